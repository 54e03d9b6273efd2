//! Detours that call bodies, run by this processor: a body finds what it is told, and the program finds everything as it was.

use crate::detours::*;
use crate::exits::{PROBE, goroutine};
use crate::machine::*;
use crate::processor::Random;
use crate::shown::Looked;
use crate::vectors;
use iced_x86::code_asm::*;
use trapless_isa::body::{Extra, Run, Runs, Takes};
use trapless_isa::detour::*;
use trapless_isa::passed::{FLOAT, Passed, SIGNED, extended};
use trapless_isa::payload::*;
use trapless_isa::{Machine as Isa, Operand, frames::Point};

/// Where bodies stand: in the arena, behind all detours.
const BODY: u64 = ARENA + 0xa000;
/// A routine that they call.
const ROUTINE: u64 = ARENA + 0xe000;

// Where a body tells what it has found, in the block of its thread.
const ARGUMENTS: u32 = 0x2000;
const EXTRAS: u32 = 0x2040;
const REGISTERS: u32 = 0x20c0;
const FLOATS: u32 = 0x2140;
const OPERANDS: u32 = 0x2180;
const ENVIRONMENT: u32 = 0x2240;
const CALLED: u32 = 0x2300;
const CALLED_ROUTINE: u32 = 0x2308;

/// General registers but r15 and the stack's, by number.
const SAVED: [AsmRegister64; 13] = [rax, rcx, rdx, rbx, rsi, rdi, r8, r9, r10, r11, r12, r13, r14];
const VECTORS: [AsmRegisterXmm; 16] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15];
const FRAME: u32 = 8 + 8 + 0x80 + 0x100 + 16 + 64;

/// Operands of every form: what a body is told of them is [`passed`].
const PASSED: [Passed; 12] = [
    Passed::Register { register: 2, shift: 0, width: 8 },
    Passed::Memory(Operand::Memory { base: 4, index: Some((3, 0)), offset: 8, size: 8 }, 8),
    Passed::Register { register: 9, shift: 0, width: 4 | SIGNED },
    Passed::Register { register: 0, shift: 8, width: 1 | SIGNED },
    Passed::Register { register: 4, shift: 0, width: 8 },
    Passed::Register { register: 15, shift: 0, width: 2 },
    Passed::Known(0xffff_fffb),
    Passed::Known(u64::MAX),
    Passed::Memory(Operand::At { address: 0x1234_5678_9abc, size: 4 }, 4 | SIGNED),
    Passed::Memory(Operand::Memory { base: 13, index: Some((12, 3)), offset: -0x7000_0000, size: 1 }, 1),
    Passed::Vector(9, 8 | FLOAT),
    Passed::Vector(2, 4 | FLOAT),
];

/// What operands are in a state: two words each.
fn passed(operands: &[Passed], hit: &State, pointer: u64) -> Vec<[u64; 2]> {
    let register = |number: u8| if number == 4 { pointer } else { hit.registers[usize::from(number)] };
    let operand = |operand: &Passed| {
        let value = match *operand {
            Passed::Known(value) => value,
            Passed::Register { register: number, shift, width } => extended(register(number) >> shift, width),
            Passed::Vector(number, _) => vector(hit, number.into()),
            Passed::Memory(Operand::At { address, .. }, _) => address,
            Passed::Memory(Operand::Memory { base, index, offset, .. }, _) => {
                let index = index.map_or(0, |(number, scale)| register(number) << scale);
                register(base).wrapping_add(index).wrapping_add_signed(offset.into())
            }
            Passed::Memory(Operand::Register(_), _) => panic!("a register is no memory"),
        };
        [value, operand.form().into()]
    };
    operands.iter().map(operand).collect()
}

fn at(offset: u32) -> AsmMemoryOperand {
    qword_ptr(r15 + offset as i32)
}

/// A body that tells all that it is given, as a compiler would write it: it saves what it changes, and changes everything.
fn body(takes: Takes, address: u64) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut write = || -> Result<(), iced_x86::IcedError> {
        a.push(rbp)?;
        a.mov(rbp, rsp)?;
        a.sub(rsp, 0x190)?;
        for (n, register) in (0..).zip(SAVED) {
            a.mov(qword_ptr(rsp + 8 * n), register)?;
        }
        for (n, vector) in (0..).zip(VECTORS) {
            a.movdqu(xmmword_ptr(rsp + (0x80 + 16 * n)), vector)?;
        }
        // A place for what is calculated, which is an argument first.
        let variable = qword_ptr(rsp + 0x180);
        a.mov(variable, rdi)?;
        for (n, register) in (0..).zip([rdi, rsi, rdx, rcx, r8, r9]) {
            a.mov(at(ARGUMENTS + 8 * n), register)?;
        }
        for (n, extra) in takes.iter().enumerate() {
            let lies = 8 + 8 * takes.index(extra).unwrap();
            a.mov(rax, qword_ptr(rbp + (8 + lies as i32)))?;
            a.mov(at(EXTRAS + 8 * n as u32), rax)?;
            let (to, words) = match extra {
                Extra::Registers => (REGISTERS, 16),
                Extra::Floats => (FLOATS, 8),
                Extra::Operands => (OPERANDS, 2 * PASSED.len() as u32),
                _ => continue,
            };
            for word in 0..words {
                a.mov(rcx, qword_ptr(rax + 8 * word as i32))?;
                a.mov(at(to + 8 * word), rcx)?;
            }
        }
        // How numbers are calculated with; and it leaves other rules, and exceptions.
        a.stmxcsr(dword_ptr(r15 + ENVIRONMENT as i32))?;
        a.mov(dword_ptr(r15 + (ENVIRONMENT as i32 + 4)), 0x7fbf)?;
        a.ldmxcsr(dword_ptr(r15 + (ENVIRONMENT as i32 + 4)))?;
        a.mov(rax, ROUTINE)?;
        a.call(rax)?;
        a.inc(at(CALLED))?;
        let mut again = a.create_label();
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.mov(variable, rcx)?;
        a.mov(rdi, variable)?;
        a.dec(ecx)?;
        a.jne(again)?;
        for (n, register) in (0..).zip(SAVED) {
            a.mov(register, 0x1111_1111u64.wrapping_mul(n))?;
        }
        for vector in VECTORS {
            a.pcmpeqd(vector, vector)?;
        }
        a.cmp(rax, 1)?;
        for (n, vector) in (0..).zip(VECTORS) {
            a.movdqu(vector, xmmword_ptr(rsp + (0x80 + 16 * n)))?;
        }
        for (n, register) in (0..).zip(SAVED) {
            a.mov(register, qword_ptr(rsp + 8 * n))?;
        }
        a.mov(rsp, rbp)?;
        a.pop(rbp)?;
        a.ret()
    };
    write().unwrap();
    a.assemble(address).unwrap()
}

/// A routine: it saves by pushing, and counts.
fn routine() -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut write = || -> Result<(), iced_x86::IcedError> {
        a.push(rbx)?;
        a.push(rdi)?;
        a.mov(rbx, at(CALLED_ROUTINE))?;
        a.lea(rdi, qword_ptr(rbx + 1))?;
        a.mov(at(CALLED_ROUTINE), rdi)?;
        a.add(rdi, rbx)?;
        a.pop(rdi)?;
        a.pop(rbx)?;
        a.ret()
    };
    write().unwrap();
    a.assemble(ROUTINE).unwrap()
}

/// Puts the body and its routine into the arena, and tells of their instructions.
fn put(machine: &Machine, takes: Takes) -> [(u64, Vec<Point>); 2] {
    let isa = Isa::X86_64.isa();
    let (body, routine) = (body(takes, BODY), routine());
    assert!(body.len() as u64 <= ROUTINE - BODY);
    machine.write(BODY, &body);
    machine.write(ROUTINE, &routine);
    [(BODY, isa.body_frames(&body)), (ROUTINE, isa.body_frames(&routine))]
}

/// Each extra alone, none, and all; and some mixtures.
fn takes() -> Vec<Takes> {
    let mut all: Vec<Takes> = Extra::ALL.into_iter().map(Takes::from).collect();
    all.push(Takes::NONE);
    all.push(Extra::ALL.into_iter().collect());
    all.push(Takes::of(&[Extra::Site, Extra::Time, Extra::Tid]));
    all.push(Takes::of(&[Extra::Processor, Extra::StackPointer, Extra::InstructionPointer]));
    all
}

fn run(takes: Takes, site: u32) -> Run<'static> {
    let operands = if takes.has(Extra::Operands) { &PASSED[..] } else { &[] };
    Run { body: BODY, takes, frame: FRAME, vectors: false, calculates: true, site, operands }
}

/// One in which bodies run on the program's stack or on their own, in a program that is known or not.
pub fn some_layout(random: &mut Random) -> Layout {
    let layout = layout(random.next().is_multiple_of(2));
    if random.next().is_multiple_of(2) { with_stacks(layout) } else { layout }
}

/// The numbers of the registers in DWARF's order.
const BY_DWARF: [usize; 16] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// The low half of a vector register: of a state to start from, which is laid out as XSAVE does, or of one at an exit, which is packed.
fn vector(state: &State, number: usize) -> u64 {
    let first = if state.extended.len() == vectors::SIZE { 160 } else { vectors::PACKED_XMM };
    u64::from_le_bytes(state.extended[first + 16 * number..][..8].try_into().unwrap())
}

fn floats(state: &State) -> [u64; 8] {
    std::array::from_fn(|n| vector(state, n))
}

/// What a body was told: by its extras, in order.
struct Told<'m>(&'m Machine, Takes);

impl Told<'_> {
    fn extra(&self, extra: Extra) -> Option<u64> {
        let at = 8 * self.1.index(extra)?;
        Some(self.0.block(1, EXTRAS + at))
    }

    fn words<const N: usize>(&self, from: u32) -> [u64; N] {
        std::array::from_fn(|n| self.0.block(1, from + 8 * n as u32))
    }
}

/// What both an entry's and a return's body are told besides their arguments.
fn check(told: &Told<'_>, tid: u64, hit: &State, pointer: u64, site: u32, context: &str) {
    let is = |extra: Extra, value: u64| {
        if let Some(found) = told.extra(extra) {
            assert_eq!(found, value, "{context}: {extra:?}");
        }
    };
    is(Extra::Site, site.into());
    is(Extra::Tid, tid);
    is(Extra::StackPointer, pointer);
    is(Extra::InstructionPointer, FUNCTION);
    assert_eq!(told.words::<1>(ENVIRONMENT)[0] as u32, 0x1f80, "{context}");
    if let Some(time) = told.extra(Extra::Time) {
        // SAFETY: reading the clock reads nothing else.
        let now = unsafe { core::arch::x86_64::_rdtsc() };
        assert!(time != 0 && time <= now && now - time < 10_000_000_000, "{context}: {time} {now}");
    }
    if let Some(processor) = told.extra(Extra::Processor) {
        // SAFETY: sysconf takes a number.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as u64;
        assert!(processor & 0xfff < processors && processor >> 32 == 0, "{context}: {processor:x}");
    }
    if told.1.has(Extra::Registers) {
        let mut registers = hit.registers;
        registers[4] = pointer;
        assert_eq!(told.words(REGISTERS), BY_DWARF.map(|number| registers[number]), "{context}");
    }
    if told.1.has(Extra::Floats) {
        assert_eq!(told.words(FLOATS), floats(hit), "{context}");
    }
}

/// Runs without and with probes from one state: what the program finds is the same. The state, and that at the exit.
fn run_both(machine: &Machine, probes: &[&Probed<'_>], thread: u64, start: &State, context: &str) -> State {
    // Whatever others have left.
    machine.write(SLOT - 2048, &[0; 2048]);
    machine.set(SLOT, EXIT);
    let memory = machine.read(SLOT - 2048, 4096);
    let expected = (machine.run(thread, start), machine.read(SLOT, 512));
    machine.write(SLOT - 2048, &memory);
    probes.iter().for_each(|probe| probe.arm());
    let found = (machine.run(thread, start), machine.read(SLOT, 512));
    probes.iter().for_each(|probe| probe.disarm());
    assert_eq!(found.0.0, expected.0.0, "{context}");
    assert_eq!(found.0.1.registers, expected.0.1.registers, "{context}");
    assert_eq!(found.0.1.flags, expected.0.1.flags, "{context}");
    assert!(found == expected, "{context}: vectors or stack");
    assert_eq!([machine.open_calls() as u64, machine.stacks_in_use()], [0; 2], "{context}");
    let below = machine.read(SLOT - 2048, 2048);
    let mut words = below.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    // Those of the body and its routine lead nowhere: `reach` of the engine knows. An operand may be any number.
    let operands = passed(&PASSED, start, SLOT);
    let is_operand = |word: u64| operands.iter().any(|[value, _]| *value == word);
    let leads = words.any(|word| (ARENA..BODY).contains(&word) && !is_operand(word));
    assert!(!leads, "{context}: leads to the detour");
    found.0.1
}

#[test]
fn a_body_at_an_entry_finds_what_it_is_told_and_the_program_everything_as_it_was() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(61);
    for takes in takes() {
        let count = EntryStep::Count(HITS);
        let step = EntryStep::Run(takes);
        let lists = [
            (Steps::of([step]), None),
            (Steps::of([count, step]), None),
            (Steps::of([step, EntryStep::Record { id: RECORD_ENTRY, arguments: 6 }]), None),
            (Steps::of([step]), Some(Steps::of([COUNT_RETURN]))),
            (Steps::of([count, step]), Some(Steps::of([COUNT_RETURN, TIME]))),
        ];
        put(&machine, takes);
        let both = [run(takes, 7), run(takes, 0xffff_fff0)];
        for &(name, prologue, epilogue) in PROLOGUES {
            for (entry, at_return) in lists {
                for runs in [&both[..1], &both[..]] {
                    machine.forget();
                    let layout = some_layout(&mut random);
                    let code = [prologue, epilogue, &[0xc3][..]].concat();
                    let followed = at_return.map(|steps| Followed { lost: LOST, steps, way: Way::Paired });
                    let payload = Payload { entry, followed, ..Payload::default() };
                    machine.write(FUNCTION, &code);
                    let called = Runs { entry: runs, at_return: &[] };
                    let where_to = ((FUNCTION, FUNCTION), (detour_at(0), Stack::Enough));
                    let probed =
                        Probed::calling(&machine, &code, where_to.0, where_to.1, &layout, payload, called);
                    let number = random.next() % 8;
                    let context = format!("{name}, {payload:?}, {} bodies", runs.len());
                    for round in 1..=2 {
                        let start = machine.random(&mut random);
                        run_both(&machine, &[&probed], Machine::thread(number), &start, &context);
                        let told = Told(&machine, takes);
                        let arguments = [7, 6, 2, 1, 8, 9].map(|register| start.registers[register]);
                        assert_eq!(told.words(ARGUMENTS), arguments, "{context}");
                        let tid = if layout.tid_offset.is_some() { 1000 + number } else { 0 };
                        let site = runs.last().unwrap().site;
                        check(&told, tid, &start, SLOT, site, &context);
                        assert!(told.extra(Extra::Entered).is_none_or(|entered| entered == 0), "{context}");
                        if takes.has(Extra::Operands) {
                            let told = told.words::<24>(OPERANDS);
                            assert_eq!(told.as_chunks().0, passed(&PASSED, &start, SLOT), "{context}");
                        }
                        let called = [CALLED, CALLED_ROUTINE].map(|counter| machine.sum(counter));
                        assert_eq!(called, [round * runs.len() as u64; 2], "{context}");
                    }
                    assert_eq!(machine.sum(BLOCK_UNRUN), 0, "{context}");
                }
            }
        }
    }
}

/// The payloads of bodies at a return, with what else is done there.
fn at_returns(takes: Takes) -> [Steps<ReturnStep>; 4] {
    let step = ReturnStep::Run(takes);
    [
        Steps::of([step]),
        Steps::of([COUNT_RETURN, step]),
        Steps::of([step, TIME]),
        Steps::of([RECORD_RETURN, COUNT_RETURN, step, TIME]),
    ]
}

fn check_return(told: &Told<'_>, number: u64, layout: &Layout, end: &State, context: &str) {
    let [result, second, slot, float, address] = told.words(ARGUMENTS);
    let expected = [end.registers[0], end.registers[2], SLOT, floats(end)[0], EXIT];
    assert_eq!([result, second, slot, float, address], expected, "{context}");
    // SAFETY: as above.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    if let Some(entered) = told.extra(Extra::Entered) {
        assert!(entered != 0 && entered <= told.extra(Extra::Time).unwrap_or(now), "{context}");
    }
    let tid = if layout.tid_offset.is_some() { 1000 + number } else { 0 };
    check(told, tid, end, SLOT + 8, 3, context);
}

#[test]
fn a_body_at_a_return_finds_what_it_is_told_and_the_program_everything_as_it_was() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(62);
    for takes in takes().into_iter().filter(|takes| !takes.has(Extra::Operands)) {
        put(&machine, takes);
        let runs = [run(takes, 2), run(takes, 3)];
        for &(name, prologue, epilogue) in PROLOGUES {
            for (steps, entry) in at_returns(takes).into_iter().zip([0, 1, 2, 0]) {
                machine.forget();
                let layout = some_layout(&mut random);
                let code = [prologue, epilogue, &[0xc3][..]].concat();
                machine.write(FUNCTION, &code);
                let followed = Some(Followed { lost: LOST, steps, way: Way::Paired });
                let entries =
                    [Steps::of([]), Steps::of([EntryStep::Count(HITS)]), Steps::of([EntryStep::Run(takes)])];
                let payload = Payload { entry: entries[entry], followed, ..Payload::default() };
                let at_entry = if entry == 2 { &runs[..1] } else { &[] };
                let runs = Runs { entry: at_entry, at_return: &runs };
                let called = runs;
                let place = (detour_at(0), Stack::Enough);
                let probed =
                    Probed::calling(&machine, &code, (FUNCTION, FUNCTION), place, &layout, payload, called);
                let number = random.next() % 8;
                let context = format!("{name}, {payload:?}");
                for round in 1..=2 {
                    let start = machine.random(&mut random);
                    let end = run_both(&machine, &[&probed], Machine::thread(number), &start, &context);
                    check_return(&Told(&machine, takes), number, &layout, &end, &context);
                    let called = 2 + u64::from(entry == 2);
                    assert_eq!(machine.sum(CALLED), called * round, "{context}");
                }
                assert_eq!([machine.sum(LOST), machine.sum(BLOCK_UNRUN)], [0; 2], "{context}");
            }
        }
    }
}

/// A function whose entry notes its calls and whose exit calls bodies.
fn noted<'m>(
    machine: &'m Machine,
    (code, exit): (&[u8], usize),
    (by, stack): (Identity, Stack),
    layout: &Layout,
    steps: Steps<ReturnStep>,
    runs: Runs<'_>,
) -> [Probed<'m>; 2] {
    machine.write(FUNCTION, code);
    let followed = |way| Some(Followed { lost: LOST, steps, way });
    let call = Noted { probe: PROBE, by };
    let entry = match Runs::takes(runs.entry) {
        _ if runs.entry.is_empty() => Steps::of([EntryStep::Count(HITS)]),
        takes => Steps::of([EntryStep::Run(takes)]),
    };
    let payloads = [
        Payload { entry, followed: followed(Way::Noted(call)), ..Payload::default() },
        Payload { followed: followed(Way::Left(call)), ..Payload::default() },
    ];
    let at = |address, detour, payload| {
        let called = runs;
        Probed::calling(machine, code, (FUNCTION, address), (detour, stack), layout, payload, called)
    };
    [at(FUNCTION, detour_at(0), payloads[0]), at(FUNCTION + exit as u64, detour_at(2), payloads[1])]
}

#[test]
fn so_it_is_where_calls_are_noted_and_exits_call_bodies() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(63);
    // What a call returns is changed by its return alone.
    let is_there = |extra: Extra| !matches!(extra, Extra::Operands | Extra::Changes);
    let all: Takes = Extra::ALL.into_iter().filter(|extra| is_there(*extra)).collect();
    for takes in takes().into_iter().filter(|takes| takes.iter().all(is_there)).chain([all]) {
        put(&machine, takes);
        let runs = [run(takes, 3)];
        for &(name, prologue, epilogue) in PROLOGUES {
            let mut code = [prologue, &[0x0f, 0x1f, 0x44, 0, 0], epilogue, &[0xc3]].concat();
            let exit = code.len() - 1;
            code.resize(code.len() + 7, 0xcc);
            for steps in at_returns(takes) {
                machine.forget();
                let layout = some_layout(&mut random);
                let runs = Runs { entry: &[], at_return: &runs };
                let by = (Identity::Slot, Stack::Enough);
                let both = noted(&machine, (&code, exit), by, &layout, steps, runs);
                let number = random.next() % 8;
                let context = format!("{name}, {takes:?}, {steps:?}");
                for round in 1..=2 {
                    let start = machine.random(&mut random);
                    let probes = [&both[0], &both[1]];
                    let end = run_both(&machine, &probes, Machine::thread(number), &start, &context);
                    let told = Told(&machine, takes);
                    if takes.has(Extra::InstructionPointer) {
                        // Its own, of the exit.
                        let at = told.extra(Extra::InstructionPointer);
                        assert_eq!(at, Some(FUNCTION + exit as u64), "{context}");
                    } else {
                        check_return(&told, number, &layout, &end, &context);
                    }
                    assert_eq!(machine.sum(CALLED), round, "{context}");
                }
                assert_eq!([machine.sum(LOST), machine.sum(BLOCK_UNRUN)], [0; 2], "{context}");
            }
        }
    }
}

/// A function whose entry and return call a body that takes these.
fn followed<'m>(machine: &'m Machine, takes: Takes, layout: &Layout) -> Probed<'m> {
    put(machine, takes);
    let runs = [run(takes, 1)];
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    machine.write(FUNCTION, &code);
    let steps = Steps::of([ReturnStep::Run(takes)]);
    let followed = Some(Followed { lost: LOST, steps, way: Way::Paired });
    let payload = Payload { entry: Steps::of([EntryStep::Run(takes)]), followed, ..Payload::default() };
    let called = Runs { entry: &runs, at_return: &runs };
    let place = ((FUNCTION, FUNCTION), (detour_at(0), Stack::Enough));
    Probed::calling(machine, &code, place.0, place.1, layout, payload, called)
}

#[test]
fn threads_without_a_block_and_children_call_no_bodies_and_are_counted() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(64);
    let takes = Takes::of(&[Extra::Time]);
    let layout = layout(false);
    let probed = followed(&machine, takes, &layout);
    for round in 1..=3 {
        let start = machine.random(&mut random);
        run_both(&machine, &[&probed], 0, &start, "no block");
        // Its entry is not followed, so nothing is missed at its return.
        let counts = [CALLED, BLOCK_UNRUN, LOST].map(|counter| machine.sum(counter));
        assert_eq!(counts, [0, round, round], "no block");
    }
    machine.forget();
    // A forked child: the origin is wiped there.
    machine.set(layout.origin, 0);
    for round in 1..=3 {
        let start = machine.random(&mut random);
        run_both(&machine, &[&probed], Machine::thread(1), &start, "a child");
        let counts = [CALLED, BLOCK_UNRUN, LOST].map(|counter| machine.sum(counter));
        assert_eq!(counts, [0, 2 * round, 0], "a child");
        assert_eq!(machine.block(1, BLOCK_UNRUN), 2 * round, "in its own block");
    }
}

#[test]
fn w1_at_every_instruction_of_a_body_a_handler_is_shown_the_programs_registers() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(65);
    for takes in [Takes::NONE, Takes::of(&[Extra::Site, Extra::Processor]), Extra::ALL.into_iter().collect()]
    {
        let [body, routine] = put(&machine, takes);
        assert!(body.1.iter().all(|point| point.stands.is_some() || point == body.1.last().unwrap()));
        let mut looked = Looked::default().with(body).with(routine);
        let runs = [run(takes, 1), run(takes, 2)];
        for &(name, prologue, epilogue) in PROLOGUES {
            let code = [prologue, epilogue, &[0xc3][..]].concat();
            for (entry, steps) in
                [(true, None), (false, Some(at_returns(takes)[0])), (true, Some(at_returns(takes)[2]))]
            {
                let layout = some_layout(&mut random);
                machine.write(FUNCTION, &code);
                let at_entry = if entry { &runs[..] } else { &[] };
                let at_return = if steps.is_some() { &runs[..1] } else { &[] };
                let followed = steps.map(|steps| Followed { lost: LOST, steps, way: Way::Paired });
                let own = entry.then_some(EntryStep::Run(takes));
                let payload = Payload { entry: Steps::some_of([own]), followed, ..Payload::default() };
                let called = Runs { entry: at_entry, at_return };
                let place = ((FUNCTION, FUNCTION), (detour_at(0), Stack::Enough));
                let probed = [Probed::calling(&machine, &code, place.0, place.1, &layout, payload, called)];
                let context = format!("{name}, {payload:?}");
                looked.at_each(&machine, &mut random, &layout, (&code, &probed), None, &context);
            }
        }
        looked.tell();
    }
}

#[test]
fn r4_bodies_run_where_goroutines_have_room_for_them() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(66);
    let takes = Takes::of(&[Extra::Site, Extra::Time]);
    put(&machine, takes);
    let runs = [run(takes, 3)];
    let mut code = vec![0x0f, 0x1f, 0x44, 0, 0, 0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    code.resize(code.len() + 7, 0xcc);
    let runs = Runs { entry: &runs, at_return: &runs };
    let steps = Steps::of([ReturnStep::Run(takes)]);
    for (layout, bounds) in
        [(layout(true), u64::from(FRAME)..1024), (with_stacks(layout(true)), 128..FRAME.into())]
    {
        let least = least_room(&machine, &mut random, &code, &layout, steps, runs);
        assert!(bounds.contains(&least), "{least}");
    }
}

/// How much has to be left of a goroutine's stack for bodies to be called; with less they are not, and that is counted.
fn least_room(
    machine: &Machine,
    random: &mut Random,
    code: &[u8],
    layout: &Layout,
    steps: Steps<ReturnStep>,
    runs: Runs<'_>,
) -> u64 {
    let mut least = None;
    for room in (64..2048).step_by(8) {
        machine.forget();
        let by = (Identity::Goroutine, Stack::AskedInGo);
        let both = noted(machine, (code, 10), by, layout, steps, runs);
        let mut start = machine.random(random);
        start.registers[14] = goroutine(machine, 1, SLOT + 4096);
        machine.set(start.registers[14], SLOT - room);
        machine.set(SLOT, EXIT);
        let below = machine.read(SLOT - 4096, (4096 - room) as usize);
        both.iter().for_each(Probed::arm);
        let (exit, end) = machine.run(Machine::thread(1), &start);
        both.iter().for_each(Probed::disarm);
        assert_eq!((exit, end.registers[4]), (1, SLOT + 8));
        assert!(machine.read(SLOT - 4096, below.len()) == below, "{room}: below the goroutine's stack");
        let counts = [CALLED, BLOCK_UNRUN, LOST].map(|counter| machine.sum(counter));
        match counts {
            [2, 0, 0] => least = least.or(Some(room)),
            [0, 1, 1] => assert!(least.is_none(), "{room}"),
            other => panic!("{room}: {other:?}"),
        }
    }
    least.expect("room")
}

#[test]
fn a_hit_that_finds_no_level_of_its_stack_free_calls_no_bodies_and_is_counted() {
    let Some(machine) = Machine::new() else { return };
    let mut random = Random(67);
    let takes = Takes::of(&[Extra::Registers]);
    let layout = with_stacks(layout(true));
    let probed = followed(&machine, takes, &layout);
    for level in 0..=STACK_LEVELS {
        machine.forget();
        let used = u64::from(level * STACK_LEVEL);
        // The first hit has the thread claim its block.
        for round in 1..=2 {
            let start = machine.random(&mut random);
            machine.set(SLOT, EXIT);
            probed.arm();
            let (exit, end) = machine.run(Machine::thread(1), &start);
            probed.disarm();
            assert_eq!((exit, end.registers[4]), (1, SLOT + 8), "{level}");
            let told = if round == 1 || level < STACK_LEVELS { [2 * round, 0] } else { [2, 2] };
            assert_eq!([CALLED, BLOCK_UNRUN].map(|counter| machine.sum(counter)), told, "{level}");
            assert_eq!(machine.stacks_in_use(), if round == 1 { 0 } else { used }, "{level}");
            machine.set(machine.block(1, BLOCK_STACK) + u64::from(STACK_USED), used);
        }
    }
}
