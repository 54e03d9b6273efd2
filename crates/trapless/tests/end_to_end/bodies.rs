//! Compiled bodies in live programs, by hand-assembled ones: exact in each thread, and the program is what it was.
#![cfg(target_arch = "x86_64")]

use crate::support::park::Stepper;
use crate::support::text::eventually_nothing_is_left;
use crate::support::tool::detach;
use crate::support::{Program, Target, arenas, eventually};
use iced_x86::{IcedError, code_asm::*};
use std::sync::Arc;
use trapless_engine::{AT_RETURN, Interpreter, Script, ScriptMemory, TrapHit, TrapMemory, Unrun};
use trapless_isa::body::{Code, Extra, Hole, Program as Pieces, Takes};
use trapless_isa::passed::{Number, Wanted};
use trapless_isa::{Machine, Mechanism};
use trapless_process::{Process, StopOptions};
use trapless_session::files::Files;
use trapless_session::name::SiteName;
use trapless_session::resolve::{self, Kinds};
use trapless_session::session::{Asked, Hold, Run, RunAt, Session, SiteNumbers};
use trapless_session::spec::{ProbeSpec, Syntax};
use trapless_session::target;
use trapless_wire::{SCRIPT_BLOCK, Words, WordsMut};

const BODIES: &str = include_str!("targets/bodies.c");

/// What a body does, in assembly. rax, rcx and rdx are saved, and free where they are no arguments.
type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// A word of the script's own in the thread's block.
fn own(word: i32) -> AsmMemoryOperand {
    qword_ptr(r15 + (SCRIPT_BLOCK as i32 + 8 * word))
}

/// A piece of code that does what `write` says, and keeps all registers.
fn piece(takes: Takes, write: Write) -> Code {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut all = || {
        a.push(rax)?;
        a.push(rcx)?;
        a.push(rdx)?;
        write(&mut a)?;
        a.pop(rdx)?;
        a.pop(rcx)?;
        a.pop(rax)?;
        a.ret()
    };
    all().unwrap();
    let bytes = a.assemble(0).unwrap();
    // `mov r64, imm64` of these constants are holes.
    let hole = |constant: u64, hole| {
        let at = bytes.windows(8).position(|window| window == constant.to_le_bytes());
        at.map(|at| (at as u32, hole))
    };
    let holes = [hole(SHARED, Hole::Shared(64)), hole(ROUTINE, Hole::Routine(0))];
    Code { holes: holes.into_iter().flatten().collect(), bytes, takes, frame: 256, ..Code::default() }
}

/// Stand for what is filled in.
const SHARED: u64 = 0x1122_3344_5566_7788;
const ROUTINE: u64 = 0x2122_3344_5566_7788;

/// How far an extra lies above the stack pointer of [`piece`].
fn extra(takes: Takes, extra: Extra) -> AsmMemoryOperand {
    qword_ptr(rsp + (8 * takes.index(extra).unwrap() as i32 + 32))
}

const TOLD: Takes = Takes::of(&[Extra::Site, Extra::Tid, Extra::InstructionPointer]);

/// Counts, sums its first argument, and says which site it was.
fn count() -> Code {
    piece(TOLD, |a| {
        a.inc(own(0))?;
        a.add(own(1), rdi)?;
        a.mov(rax, extra(TOLD, Extra::Site))?;
        a.mov(own(2), rax)?;
        a.mov(rax, extra(TOLD, Extra::Tid))?;
        a.mov(own(3), rax)?;
        a.mov(rax, extra(TOLD, Extra::InstructionPointer))?;
        a.mov(own(4), rax)
    })
}

/// Counts in what all threads share, by a routine.
fn count_shared() -> Code {
    piece(Takes::NONE, |a| {
        a.mov(rax, ROUTINE)?;
        a.call(rax)
    })
}

fn routine() -> Code {
    piece(Takes::NONE, |a| {
        a.mov(rax, SHARED)?;
        a.lock().inc(qword_ptr(rax))
    })
}

/// Counts returns, and sums what they return.
fn returned() -> Code {
    const TIMES: Takes = Takes::of(&[Extra::Time, Extra::Entered]);
    piece(TIMES, |a| {
        a.inc(own(8))?;
        a.add(own(9), rdi)?;
        a.mov(own(10), rcx)?;
        // The call began before it ended.
        a.mov(rax, extra(TIMES, Extra::Time))?;
        a.sub(rax, extra(TIMES, Extra::Entered))?;
        a.sar(rax, 63)?;
        a.sub(own(11), rax)
    })
}

/// Says that all it does is to count in a word. Whoever ran it nevertheless would die.
fn only_counts(word: u32) -> Code {
    Code { counts: Some(SCRIPT_BLOCK + 8 * word), ..piece(Takes::NONE, |a| a.ud2()) }
}

/// Goes round a thousand times.
fn long() -> Code {
    piece(Takes::NONE, |a| {
        let mut again = a.create_label();
        a.mov(ecx, 1000)?;
        a.set_label(&mut again)?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.inc(own(0))
    })
}

/// A session that calls bodies in a program.
struct Armed {
    process: Process,
    session: Session,
    /// By which bodies know sites.
    numbers: Arc<SiteNumbers>,
}

impl Armed {
    fn new(target: &Target, bodies: Vec<Code>, clauses: &[(&str, RunAt)]) -> Armed {
        let jumps = [Mechanism::Jump, Mechanism::Short];
        Armed::by(target, (bodies, None), clauses, &jumps)
    }

    fn by(
        target: &Target,
        (bodies, interpreter): (Vec<Code>, Option<Arc<dyn Interpreter>>),
        clauses: &[(&str, RunAt)],
        allowed: &[Mechanism],
    ) -> Armed {
        let process = target::open(target.pid()).unwrap();
        let images = target::images(&process, &Files::default()).unwrap();
        let kinds = |at: &RunAt| Kinds::hits(matches!(at, RunAt::Entry(_)), matches!(at, RunAt::Return(_)));
        let specs: Vec<(ProbeSpec, Kinds)> = clauses
            .iter()
            .map(|(text, at)| (ProbeSpec::parse(text, Syntax::Glob).unwrap(), kinds(at)))
            .collect();
        let asked = specs.iter().map(|(spec, kinds)| (spec, *kinds));
        let sites = resolve::resolve(Some(&process), &images, asked, &[], 100_000).unwrap();
        let script = Script {
            program: Pieces { routines: vec![routine()], bodies },
            shared: vec![7; 8],
            shared_size: 4096,
            block_size: 4096,
            walks: None,
            interpreter,
        };
        let clauses = clauses.iter().map(|clause| clause.1).collect();
        let numbers = Arc::new(SiteNumbers::default());
        // They are not what the session itself calls its probes.
        for offset in 0..1000 {
            numbers.of("another file", &SiteName::new("function", offset));
        }
        let run = Run { script, clauses, numbers: numbers.clone(), ..Run::default() };
        let hold = Hold::Stop(StopOptions::default());
        let asked = Asked { allowed: allowed.to_vec(), ..Asked::run(run) };
        let session = Session::attach(&process, &images, sites, asked, hold).unwrap();
        Armed { process, session, numbers }
    }

    fn memory(&self) -> ScriptMemory {
        self.session.script().unwrap()
    }

    /// The sum over all threads of a word that bodies have in blocks.
    fn sum(&self, word: u64) -> u64 {
        let memory = self.memory();
        memory.blocks().map(|block| memory.region().word(block.start + 8 * word)).sum()
    }

    fn shared(&self, offset: u64) -> u64 {
        let memory = self.memory();
        memory.region().word(memory.shared().start + offset)
    }

    fn unrun(&self) -> Unrun {
        self.memory().unrun()
    }

    /// Takes everything out; what keeps the memory, if something does.
    fn remove(self) -> Option<trapless_engine::Kept> {
        self.session.remove(&self.process, &StopOptions::default()).unwrap().kept
    }
}

fn does(target: &mut Target, deed: &str) {
    target.tell(deed);
    assert_eq!(target.line(), "done 0", "{deed}");
}

const ENTRY: (&str, RunAt) = ("bodies:probed", RunAt::Entry(0));

#[test]
fn bodies_at_entries_and_returns_are_exact_whoever_calls() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let clauses = [ENTRY, ("bodies:probed", RunAt::Entry(1)), ("bodies:probed", RunAt::Return(2))];
    let armed = Armed::new(&target, vec![count(), count_shared(), returned()], &clauses);
    assert_eq!(armed.shared(0), u64::from_le_bytes([7; 8]), "what it begins with");
    assert!(armed.session.skipped().is_empty(), "{:?}", armed.session.skipped());
    let mut calls = 0;
    let mut sums = [0u64; 2];
    let mut called = |count: u64, times: u64| {
        calls += count * times;
        sums[0] += count * (count - 1) / 2 * times;
        sums[1] += (3 * count * (count - 1) / 2 + 2 * count) * times;
        (calls, sums)
    };
    for (deed, count, times) in
        [("call 1000", 1000, 1), ("threads 200000", 200_000, 16), ("ends 100", 3, 100)]
    {
        does(&mut target, deed);
        let (calls, sums) = called(count, times);
        let found = [0, 1, 8, 9, 11].map(|word| armed.sum(word));
        assert_eq!(found, [calls, sums[0], calls, sums[1], 0], "{deed}");
        assert_eq!(armed.shared(64), calls, "{deed}");
    }
    // What the last site was told.
    let memory = armed.memory();
    let first = memory.block(1).start;
    let word = |word: u64| memory.region().word(first + 8 * word);
    let (probe, address) = armed.session.probes_at().next().unwrap();
    let site = armed.numbers.of(armed.session.path_of(probe), &probe.probed.function);
    assert_eq!([word(2), word(3), word(4)], [site.into(), target.pid() as u64, address]);
    assert_eq!(armed.unrun(), Unrun::default());
    assert_eq!(armed.remove(), None);
    before.assert_restored(target.pid());
    does(&mut target, "call 10");
}

#[test]
fn what_only_counts_is_done_by_detours_themselves() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    // Alone, and beside bodies that are called, of which one could be a step itself.
    let alone = [ENTRY, ("bodies:probed", RunAt::Return(1))];
    let beside = [
        ("bodies:probed", RunAt::Entry(2)),
        ("bodies:probed", RunAt::Entry(0)),
        ("bodies:probed", RunAt::Entry(4)),
        ("bodies:probed", RunAt::Return(3)),
        ("bodies:probed", RunAt::Return(1)),
    ];
    let also = || Code { counts: Some(SCRIPT_BLOCK + 8 * 34), ..piece(Takes::NONE, |a| a.inc(own(33))) };
    let bodies = || vec![only_counts(30), only_counts(31), count(), returned(), also()];
    for (clauses, are_called) in [(&alone[..], 0), (&beside[..], 1)] {
        let armed = Armed::new(&target, bodies(), clauses);
        assert!(armed.session.skipped().is_empty(), "{:?}", armed.session.skipped());
        does(&mut target, "threads 20000");
        does(&mut target, "storm 3000000");
        let all = armed.sum(30);
        assert!(all > 16 * 20_000 + 3_000_000, "{all}");
        let called = are_called * all;
        assert_eq!([31, 0, 33, 8, 34].map(|word| armed.sum(word)), [all, called, called, called, 0]);
        // Calls that are left do not return, and one may be left between a counter and a body.
        const LEFT: u64 = 50;
        does(&mut target, &format!("leave {LEFT}"));
        let [all, returned, ran] = [30, 31, 0].map(|word| armed.sum(word));
        assert!((all - LEFT..=all).contains(&returned), "{returned} of {all}");
        assert!((are_called * (all - LEFT)..=are_called * all).contains(&ran), "{ran} of {all}");
        does(&mut target, "fork 20");
        assert_eq!(armed.sum(30), all, "children count for themselves");
        let memory = armed.memory();
        let word = |block: std::ops::Range<u64>| memory.region().word(block.start + 8 * 30);
        assert_eq!(memory.children().map(word).sum::<u64>(), 20 * 5);
        assert_eq!(armed.unrun().in_children, are_called * 20 * 5 * 2);
        assert_eq!(armed.remove(), None);
        before.assert_restored(target.pid());
    }
    does(&mut target, "call 10");
}

/// Does at traps what [`count`] and [`returned`] do in the target, and fails at each seventh hit.
#[derive(Debug)]
struct Counts;

impl Interpreter for Counts {
    fn refuses(&self, body: u16, _machine: Machine) -> Option<&'static str> {
        (body > 1).then_some("it is the wrong one")
    }

    fn run(&self, body: u16, memory: &TrapMemory<'_>, hit: &TrapHit<'_>) {
        let add = |word: u64, value: u64| memory.region.add(memory.own + 8 * word, value);
        let set = |word: u64, value: u64| memory.region.set_word(memory.own + 8 * word, value);
        match body {
            0 => {
                assert!(add(0, 1) % 7 != 6, "each seventh");
                add(1, hit.argument(0));
                add(12, u64::from(hit.argument(0) == hit.register(5) && hit.entered() == 0));
                [hit.site.into(), hit.tid.into(), hit.instruction]
                    .iter()
                    .zip(2..)
                    .for_each(|(&v, at)| set(at, v));
                set(13, hit.frame());
                set(14, hit.return_address());
            }
            _ => {
                add(8, 1);
                add(9, hit.result(0));
                add(15, u64::from(hit.frame() == memory.region.word(memory.own + 8 * 13)));
                add(16, u64::from(hit.return_address() == memory.region.word(memory.own + 8 * 14)));
                add(17, u64::from(hit.entered() <= hit.time && hit.site & AT_RETURN != 0));
            }
        }
    }
}

#[test]
fn what_interprets_bodies_at_traps_is_told_what_bodies_are_and_may_fail() {
    const CALLS: u64 = 700;
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let clauses = [ENTRY, ("bodies:probed", RunAt::Return(1))];
    let interpreter: Arc<dyn Interpreter> = Arc::new(Counts);
    // There a step would be in the way of what is told of hits.
    let count = Code { counts: Some(SCRIPT_BLOCK + 8 * 30), ..count() };
    let armed =
        Armed::by(&target, (vec![count, returned()], Some(interpreter)), &clauses, &[Mechanism::Step]);
    does(&mut target, &format!("call {CALLS}"));
    let told = CALLS / 7 * 6;
    assert_eq!([0, 12, 8, 30].map(|word| armed.sum(word)), [CALLS, told, CALLS, 0]);
    assert_eq!(armed.sum(9), 3 * CALLS * (CALLS - 1) / 2 + 2 * CALLS);
    assert_eq!([15, 16, 17].map(|word| armed.sum(word)), [CALLS; 3], "frames and callers are the entry's");
    let (probe, address) = armed.session.probes_at().next().unwrap();
    let site = armed.numbers.of(armed.session.path_of(probe), &probe.probed.function);
    assert_eq!([2, 3, 4].map(|word| armed.sum(word)), [site.into(), target.pid() as u64, address]);
    assert_eq!(armed.unrun(), Unrun { crowded: CALLS - told, ..Unrun::default() });
    assert_eq!(armed.remove(), None);
    before.assert_restored(target.pid());
    does(&mut target, "call 10");
}

#[test]
fn handlers_that_call_what_they_interrupt_lose_nothing() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let clauses = [ENTRY, ("bodies:probed", RunAt::Return(1)), ("bodies:in_handler", RunAt::Entry(2))];
    let in_handler = piece(Takes::NONE, |a| a.inc(own(20)));
    let armed = Armed::new(&target, vec![count(), returned(), in_handler], &clauses);
    does(&mut target, "storm 3000000");
    let handled = armed.sum(20);
    assert!(handled > 100, "{handled}");
    assert_eq!([0, 8].map(|word| armed.sum(word)), [3_000_000 + handled; 2]);
    // Left for good from within bodies, too.
    does(&mut target, "leave 300");
    does(&mut target, "coroutine 1000");
    does(&mut target, "call 1000");
    assert_eq!(armed.unrun(), Unrun::default());
    armed.remove();
    does(&mut target, "call 10");
}

#[test]
fn children_call_no_bodies_and_are_counted() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let clauses = [ENTRY, ("bodies:probed", RunAt::Return(1)), ("libc.so.6:execve", RunAt::Entry(2))];
    let executed = piece(Takes::NONE, |a| a.inc(own(20)));
    let armed = Armed::new(&target, vec![count(), returned(), executed], &clauses);
    does(&mut target, "fork 20");
    does(&mut target, "call 100");
    assert_eq!([0, 8].map(|word| armed.sum(word)), [100; 2]);
    assert_eq!(armed.unrun(), Unrun { in_children: 20 * 5 * 2, ..Unrun::default() });
    does(&mut target, "spawn 3");
    assert_eq!([0, 8, 20].map(|word| armed.sum(word)), [100, 100, 0]);
    assert_eq!(armed.remove(), None);
}

#[test]
fn floating_point_arguments_and_results_are_told_and_kept() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let takes = Takes::of(&[Extra::Floats]);
    let entry = piece(Takes::of(&[Extra::Floats]), |a| {
        a.mov(rax, extra(Takes::of(&[Extra::Floats]), Extra::Floats))?;
        a.mov(rax, qword_ptr(rax))?;
        a.mov(own(0), rax)
    });
    assert_eq!(entry.takes, takes);
    let clauses = [("bodies:half", RunAt::Entry(0)), ("bodies:half", RunAt::Return(1))];
    let armed = Armed::new(&target, vec![entry, returned()], &clauses);
    does(&mut target, "half 1001");
    assert_eq!([0, 10].map(|word| f64::from_bits(armed.sum(word))), [1000.0, 500.0]);
    assert_eq!(armed.sum(8), 1001);
    assert_eq!(armed.remove(), None);
}

#[test]
fn any_instruction_and_ten_thousand_sites_call_one_body() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    // The instruction behind the entry's.
    let clauses = [("libc.so.6:*", RunAt::Entry(0))];
    let armed = Armed::new(&target, vec![count()], &clauses);
    let sites = armed.session.probes().len();
    assert!(sites > 1500, "{sites}");
    does(&mut target, "threads 1000");
    assert!(armed.sum(0) > 100);
    armed.remove();
    before.assert_restored(target.pid());
    does(&mut target, "call 10");
}

#[test]
fn probes_are_taken_out_while_threads_are_in_bodies() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    does(&mut target, "spin 8");
    for round in 0..20 {
        let clauses = [ENTRY, ("bodies:probed", RunAt::Return(1))];
        let armed = Armed::new(&target, vec![long(), returned()], &clauses);
        eventually("bodies run", || armed.sum(0) > 100);
        assert_eq!(armed.remove(), None, "{round}");
        before.assert_restored(target.pid());
    }
    does(&mut target, "call 10");
}

#[test]
fn what_a_killed_tool_has_left_is_taken_out() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    does(&mut target, "spin 4");
    let clauses = [ENTRY, ("bodies:probed", RunAt::Return(1))];
    let armed = Armed::new(&target, vec![long(), returned()], &clauses);
    eventually("bodies run", || armed.sum(0) > 100);
    // The session is as it would be if its tool were gone.
    drop(armed);
    let ran = detach(target.pid());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    before.assert_restored(target.pid());
    does(&mut target, "call 10");
}

/// A program whose handler walks its stack, and then traps.
fn interrupted() -> Program {
    const SOURCE: &str = include_str!("targets/interrupted.c");
    let flags = ["-fno-toplevel-reorder", "-foptimize-sibling-calls", "-DASIDE=0"];
    Program::build("interrupted", SOURCE, &flags)
}

#[test]
fn w1_a_handler_that_interrupts_a_body_sees_the_program() {
    let program = interrupted();
    let mut target = program.start(&[]);
    let before = target.text();
    let clauses = [
        ("interrupted:subject", RunAt::Entry(0)),
        ("interrupted:subject", RunAt::Return(1)),
        ("interrupted:middle", RunAt::Entry(2)),
    ];
    let armed = Armed::new(&target, vec![count(), returned(), count_shared()], &clauses);
    let arenas = arenas(target.pid());
    target.freeze();
    let stepper = Stepper::seize(&target, target.pid());
    stepper.walk_to(target.address(0));
    let mut met = 0;
    for _ in 0..2500 {
        stepper.step();
        let ip = stepper.ip();
        if !arenas.iter().any(|arena| arena.contains(&ip)) {
            continue;
        }
        met += 1;
        stepper.interrupt(libc::SIGUSR1);
        let said = target.line();
        let seen = [
            "subject middle outer spin",
            "middle outer spin",
            "outer spin",
            "first spin",
            "second spin",
            "spin",
        ];
        assert!(seen.contains(&said.as_str()), "at {ip:#x}, {met}: {said:?}");
        stepper.walk_to(ip);
    }
    assert!(met > 200, "{met}");
    drop(stepper);
    target.thaw();
    armed.remove();
    eventually_nothing_is_left(target.pid());
    before.assert_restored(target.pid());
    target.signal(libc::SIGUSR2);
    let end = target.line();
    assert!(end.starts_with("wrong 0 calls "), "{end}");
}

#[test]
fn nothing_is_unmapped_while_a_handler_runs_over_a_body() {
    let program = interrupted();
    let mut target = program.start(&[]);
    let before = target.text();
    // The body is the only piece that is called by a register, and goes on for long.
    let clauses = [("interrupted:subject", RunAt::Entry(0))];
    let armed = Armed::new(&target, vec![long()], &clauses);
    let ours = arenas(target.pid());
    target.freeze();
    let stepper = Stepper::seize(&target, target.pid());
    stepper.walk_to(target.address(0));
    // Into the loop.
    (0..600).for_each(|_| stepper.step());
    assert!(ours.iter().any(|arena| arena.contains(&stepper.ip())));
    stepper.interrupt(libc::SIGUSR1);
    assert_eq!(target.line(), "subject middle outer spin");
    drop(stepper);
    // The thread stands in the handler, and goes back to the body by what stays probed for it.
    assert_eq!(armed.remove(), Some(trapless_engine::Kept::Interrupted));
    target.thaw();
    eventually_nothing_is_left(target.pid());
    before.assert_restored(target.pid());
    assert!(target.is_alive());
    target.signal(libc::SIGUSR2);
    let end = target.line();
    assert!(end.starts_with("wrong 0 calls "), "{end}");
}

#[test]
fn bodies_are_told_what_usdt_probes_tell() {
    const SOURCE: &str = include_str!("programs/usdt.c");
    const OPERANDS: Takes = Takes::of(&[Extra::Operands]);
    let program = Program::build("app", SOURCE, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let wanted = [0, 1, 2, 4].map(|argument| Wanted { argument, number: Number::Integer });
    let told = piece(OPERANDS, |a| {
        a.mov(rcx, extra(OPERANDS, Extra::Operands))?;
        a.inc(own(0))?;
        // `8@%rdi -4@%esi 8@-8(%rsp)`: the first is at the address of the third.
        a.mov(rax, qword_ptr(rcx + 32))?;
        a.mov(rax, qword_ptr(rax))?;
        a.sub(rax, qword_ptr(rcx))?;
        a.or(own(1), rax)?;
        a.mov(rax, qword_ptr(rcx + 16))?;
        a.mov(own(2), rax)?;
        // `-4@$-5`
        a.mov(rax, qword_ptr(rcx + 48))?;
        a.neg(rax)?;
        a.mov(own(3), rax)
    });
    let told = Code { operands: wanted.to_vec(), ..told };
    let armed = Armed::new(&target, vec![told], &[("usdt:app:app:five", RunAt::Entry(0))]);
    target.tell("500");
    assert!(target.line().starts_with("wrong 0 "));
    assert_eq!([0, 1, 2, 3].map(|word| armed.sum(word)), [500, 0, 77, 5]);
    assert_eq!(armed.remove(), None);
    before.assert_restored(target.pid());
}

#[test]
fn sites_that_are_added_call_bodies_that_are_there() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let process = target::open(target.pid()).unwrap();
    let images = target::images(&process, &Files::default()).unwrap();
    let kinds = Kinds::ENTRY;
    let specs = ["bodies:half", "bodies:probed"].map(|text| ProbeSpec::parse(text, Syntax::Glob).unwrap());
    let sites = |process: &Process, number: u32| {
        let asked = specs.iter().map(|spec| (spec, kinds));
        let mut sites = resolve::resolve(Some(process), &images, asked, &[], 10).unwrap();
        sites.sites.retain(|site| site.asked == [number]);
        sites
    };
    let script = Script {
        program: Pieces { routines: vec![routine()], bodies: vec![count_shared(), count()] },
        shared_size: 4096,
        block_size: 4096,
        walks: None,
        ..Script::default()
    };
    let numbers = Arc::new(SiteNumbers::default());
    let clauses = vec![RunAt::Entry(0), RunAt::Entry(1)];
    let run = Run { script, clauses, numbers: numbers.clone(), ..Run::default() };
    let asked = Asked { later: Some(kinds), ..Asked::run(run) };
    let hold = || Hold::Stop(StopOptions::default());
    let session = Session::attach(&process, &images, sites(&process, 0), asked, hold()).unwrap();
    let mut armed = Armed { process, session, numbers };
    does(&mut target, "half 10");
    does(&mut target, "call 20");
    assert_eq!([armed.shared(64), armed.sum(0)], [10, 0]);
    let more = sites(&armed.process, 1);
    let added = armed.session.add(&armed.process, &images, more, hold()).unwrap();
    assert_eq!(added, 1, "{:?}", armed.session.skipped());
    does(&mut target, "half 10");
    does(&mut target, "call 20");
    assert_eq!([armed.shared(64), armed.sum(0)], [20, 20]);
    assert_eq!(armed.remove(), None);
    before.assert_restored(target.pid());
}

#[test]
fn sessions_with_scripts_go_side_by_side() {
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let one = Armed::new(&target, vec![count()], &[ENTRY]);
    let other = Armed::new(&target, vec![count()], &[("bodies:half", RunAt::Entry(0))]);
    does(&mut target, "half 10");
    does(&mut target, "call 20");
    assert_eq!([one.sum(0), other.sum(0)], [20, 10]);
    one.remove();
    does(&mut target, "half 10");
    assert_eq!(other.sum(0), 20);
    other.remove();
    before.assert_restored(target.pid());
}

/// By hand, to be printed: nanoseconds of a call of an empty body.
#[test]
#[ignore = "measures"]
fn how_long_a_call_takes() {
    const CALLS: u32 = 20_000_000;
    let program = Program::build("bodies", BODIES, &[]);
    let mut target = program.start(&[]);
    let mut time = |bodies: Vec<Code>, clauses: &[(&str, RunAt)], what: &str| {
        let armed = (!bodies.is_empty()).then(|| Armed::new(&target, bodies, clauses));
        does(&mut target, "call 1000");
        let deed = format!("call {CALLS}");
        let each = (0..7).map(|_| {
            let start = std::time::Instant::now();
            does(&mut target, &deed);
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        });
        println!("{what}: {:.2} ns a call", each.fold(f64::MAX, f64::min));
        armed.map(Armed::remove);
    };
    let empty = |takes| Code { bytes: vec![0xc3], takes, frame: 8, ..Code::default() };
    let both = [ENTRY, ("bodies:probed", RunAt::Return(1))];
    time(Vec::new(), &[], "without probes");
    for (what, takes, clauses) in [
        ("an empty body at the entry", Takes::NONE, &both[..1]),
        ("the same, told site and thread", Takes::of(&[Extra::Site, Extra::Tid]), &both[..1]),
        ("the same, told the time", Takes::of(&[Extra::Time]), &both[..1]),
        ("the same, told the processor", Takes::of(&[Extra::Processor]), &both[..1]),
        ("the same, told all registers", Takes::of(&[Extra::Registers]), &both[..1]),
        ("empty bodies at entry and return", Takes::NONE, &both[..]),
    ] {
        time(vec![empty(takes), empty(takes)], clauses, what);
    }
    let counts = Code { bytes: vec![0x49, 0xff, 0x87, 0, 0x10, 0, 0, 0xc3], ..empty(Takes::NONE) };
    time(vec![counts], &both[..1], "a body that counts");
}
