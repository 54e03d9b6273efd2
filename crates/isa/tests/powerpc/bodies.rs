//! Bodies that detours call: what each is told, and that nobody sees anything of it.

use crate::state::Registers;
use crate::{cross::Cross, machine::*, oracle::Random};
use std::ops::Range;
use trapless_isa::{
    Layout, Operand,
    body::{Extra, Run, Runs, Takes},
    detour::*,
    passed::{FLOAT, MOST_PASSED, Passed, SIGNED, extended},
    payload::*,
};

/// Where the bodies are, so far apart, and what calls a function with floating-point numbers.
const BODIES: u64 = FUNCTION + 0x4000;
const BODY_SIZE: u64 = 0x400;
const CALLER: u64 = FUNCTION + 0x3000;
/// The numbers that it has in f1 to f8.
const FLOATS: u64 = SLOT + 0x1000;
/// Where in the block a body puts what it was told, and the next one behind it.
const TOLD: u32 = 0x2000;
const TOLD_SIZE: u32 = 0x800;
const ARGUMENTS: u32 = 8;
/// FPSCR: numbers are rounded to zero, operations that are not valid trap, and something was inexact.
const ENVIRONMENT: u64 = 0x0200_0081;
/// Where that of the program lies, and where it is put afterwards.
const FPSCR: u64 = FLOATS + 128;
const KEPT: u64 = FLOATS + 192;
/// Where functions return to.
const RETURN: u64 = CALLER - 0x40;

/// `op t, d(a)`
fn d_form(op: u32, t: u32, a: u32, d: u32) -> u32 {
    op << 26 | t << 21 | a << 16 | d
}
const LD: u32 = 58;
const STD: u32 = 62;

/// How many words a body of some operands is told at an extra, behind the extra itself.
fn words_behind(extra: Extra, operands: usize) -> u32 {
    match extra {
        Extra::Registers => 33,
        Extra::Floats => 8,
        Extra::Operands => 2 * operands as u32,
        _ => 0,
    }
}

/// A body that stores its arguments, its extras and what these point to into the block, and loses all that bodies may lose.
fn body(takes: Takes, operands: usize, told: u32) -> Vec<u32> {
    let mut code = vec![
        0x7c08_02a6, // mflr r0
        0xf801_0010, // std r0,16(r1)
    ];
    let mut at = told;
    let mut store = |code: &mut Vec<u32>, from: u32| {
        code.push(d_form(STD, from, 30, at));
        at += 8;
    };
    (3..=10).for_each(|register| store(&mut code, register));
    // FPSCR, in which it leaves an exception.
    code.extend([
        0x3961_ffc0, // addi r11,r1,-64
        0x7c00_5f98, // stxvd2x vs0,0,r11
        0xfc00_048e, // mffs f0
        0xd801_ffb8, // stfd f0,-72(r1)
        0xe981_ffb8, // ld r12,-72(r1)
        0xfc60_004c, // mtfsb1 3
        0x7c00_5e98, // lxvd2x vs0,0,r11
    ]);
    store(&mut code, 12);
    for (n, extra) in (0..).zip(takes.iter()) {
        code.push(d_form(LD, 11, 1, 32 + 8 * n));
        store(&mut code, 11);
        for word in 0..words_behind(extra, operands) {
            code.push(d_form(LD, 12, 11, 8 * word));
            store(&mut code, 12);
        }
    }
    code.extend([
        0xe801_0010, // ld r0,16(r1)
        0x7c08_03a6, // mtlr r0
        0x3800_ffff, // li r0,-1
        0x7c01_03a6, // mtxer r0
        0x7c08_0120, // mtocrf cr0,r0
        0x3960_0b0b, // li r11,…
        0x3980_0c0c, // li r12,…
        BLR,
    ]);
    assert!(code.len() as u64 * 4 <= BODY_SIZE && at - told <= TOLD_SIZE);
    code
}

/// What a body was told.
struct Told<'a> {
    words: &'a [u8],
    takes: Takes,
    operands: usize,
}

impl Told<'_> {
    fn word(&self, index: u32) -> u64 {
        u64::from_le_bytes(self.words[8 * index as usize..][..8].try_into().unwrap())
    }

    fn place(&self, extra: Extra) -> u32 {
        let before = self.takes.iter().take_while(|other| *other != extra);
        ARGUMENTS + 1 + before.map(|other| 1 + words_behind(other, self.operands)).sum::<u32>()
    }

    fn extra(&self, extra: Extra) -> u64 {
        self.word(self.place(extra))
    }

    fn behind(&self, extra: Extra) -> Vec<u64> {
        let place = self.place(extra);
        (1..=words_behind(extra, self.operands)).map(|n| self.word(place + n)).collect()
    }
}

/// Some operand, and what its first word is.
fn operand(random: &mut Random, start: &Registers, floats: &[u64; 8]) -> (Passed, u64) {
    let offset = random.pick(&[0, 8, -8, 32767, -32768, 32768, 0x7fff_8001, i32::MIN]);
    let register = |random: &mut Random| random.below(32) as u8;
    let value = |register: u8| start.gpr[usize::from(register)];
    let size = random.pick(&[1, 2, 4, 8]);
    let width = size | random.pick(&[0, SIGNED]);
    match random.below(6) {
        0 => {
            let known = random.next();
            (Passed::Known(known), known)
        }
        1 => {
            let number = random.below(8) as u8;
            (Passed::Vector(number + 1, 8 | FLOAT), floats[usize::from(number)])
        }
        2 => {
            let address = random.next();
            (Passed::Memory(Operand::At { address, size }, width), address)
        }
        3 => {
            let (base, index, scale) = (register(random), register(random), random.below(4) as u8);
            let to = value(base).wrapping_add(value(index) << scale).wrapping_add_signed(offset.into());
            let memory = Operand::Memory { base, index: Some((index, scale)), offset, size };
            (Passed::Memory(memory, width), to)
        }
        4 => {
            let base = register(random);
            let memory = Operand::Memory { base, index: None, offset, size };
            (Passed::Memory(memory, width), value(base).wrapping_add_signed(offset.into()))
        }
        _ => {
            let register = register(random);
            (Passed::Register { register, shift: 0, width }, extended(value(register), width))
        }
    }
}

/// What the emulator of programs has no register for.
fn some_of_all(random: &mut Random) -> Takes {
    let asked = random.next();
    let known = Extra::ALL.into_iter().filter(|extra| !matches!(extra, Extra::Processor | Extra::Changes));
    known.filter(|extra| asked >> *extra as u8 & 1 != 0).collect()
}

struct World {
    script: Script,
    bodies: Range<u64>,
    floats: [u64; 8],
}

impl World {
    fn new(layout: Layout, random: &mut Random) -> Self {
        let mut script = Script::laid_out(layout);
        let floats = std::array::from_fn(|_| random.next());
        for (n, float) in (0..).zip(floats) {
            script.set(FLOATS + 8 * n, float);
        }
        script.set(FPSCR, ENVIRONMENT);
        let mut world = Self { script, bodies: BODIES..FUNCTION + 0x1_0000, floats };
        world.home();
        world
    }

    fn body(&mut self, words: &[u32]) -> u64 {
        let at = self.bodies.start;
        self.bodies.start += BODY_SIZE;
        assert!(self.bodies.start <= self.bodies.end);
        self.script.code(at, words);
        at
    }

    /// Runs from where the numbers and FPSCR are loaded: `lfd f1,…(r2)` …, `ld r2,…(r2)`, and on at `to`.
    fn call(&mut self, n: u64, start: &Registers, to: u64) -> Answer {
        let at = CALLER + 0x80 * n;
        // lxvd2x vs0,0,r2; lfd f1,…(r2); mtfsf 0xff,f1,1,0
        let mut words = vec![0x7c00_1698, d_form(50, 1, 2, (FPSCR - FLOATS) as u32), 0xfffe_0d8e];
        words.extend((0..8).map(|n| d_form(50, n + 1, 2, 8 * n)));
        words.push(d_form(LD, 2, 2, 64));
        words.push(branch(at + 4 * words.len() as u64, to));
        self.script.code(at, &words);
        self.script.set(FLOATS + 64, start.gpr[2]);
        let mut before = *start;
        before.gpr[2] = FLOATS;
        before.pc = at;
        self.script.run(&before)
    }
}

impl World {
    /// Where functions return to: it stores vs0, and FPSCR by f1, which it loses as r11, and goes home.
    fn home(&mut self) {
        let [high, low] = [(KEPT >> 16) as u32, KEPT as u32 & 0xffff];
        self.script.code(
            RETURN,
            &[
                d_form(15, 11, 0, high),
                d_form(24, 11, 11, low),
                0x7c00_5f98, // stxvd2x vs0,0,r11
                0xfc20_048e, // mffs f1
                d_form(54, 1, 11, 16),
                branch(RETURN + 20, HOME),
            ],
        );
    }

    /// What it has stored: vs0, FPSCR.
    fn kept(&mut self) -> Answer {
        self.script.read(KEPT, 24)
    }
}

/// Two bodies at an entry and two at its return; each asks for other things.
#[test]
fn bodies_are_told_what_there_was_and_change_nothing() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(21);
    for round in 0..20 {
        let tid = random.next() as u32;
        let pointer = SLOT + 0x4000;
        let mut world = World::new(Layout { tid_offset: Some(-0x7700), ..layout(4) }, &mut random);
        world.script.write(pointer - 0x7700, &tid.to_le_bytes());
        let mut runs = vec![];
        for n in 0..10 {
            let function = FUNCTION + 64 * n;
            let mut start = registers(&mut random, function, SLOT, RETURN, pointer);
            start.gpr[13] = pointer;
            let count = 1 + random.below(MOST_PASSED as u64) as usize;
            let (operands, values): (Vec<Passed>, Vec<u64>) =
                (0..count).map(|_| operand(&mut random, &start, &world.floats)).unzip();
            let takes: [Takes; 4] = std::array::from_fn(|_| some_of_all(&mut random));
            let site = random.next() as u32;
            let run = |world: &mut World, which: usize| {
                let passed = if which < 2 { operands.len() } else { 0 };
                let told = TOLD + TOLD_SIZE * which as u32;
                Run {
                    body: world.body(&body(takes[which], passed, told)),
                    takes: takes[which],
                    frame: 64,
                    vectors: false,
                    calculates: true,
                    site,
                    operands: if takes[which].has(Extra::Operands) { &operands } else { &[] },
                }
            };
            let all: [Run<'_>; 4] = std::array::from_fn(|which| run(&mut world, which));
            let both = |takes: &[Takes]| takes[0].or(takes[1]);
            let entry = Steps::of([EntryStep::Count(HITS), EntryStep::Run(both(&takes[..2]))]);
            let steps = Steps::of([ReturnStep::Run(both(&takes[2..])), ReturnStep::Count(RETURNED)]);
            let followed = Some(Followed { lost: LOST, steps, way: Way::Paired });
            let payload = Payload { entry, followed, ..Payload::default() };
            let at = Runs { entry: &all[..2], at_return: &all[2..] };
            let site_of = world.script.calling(function, &[NOP, BLR], payload, at);
            let answer = world.call(n, &start, site_of.at);
            let kept = world.kept();
            let told: [Answer; 4] = std::array::from_fn(|which| {
                world.script.read_block(1, TOLD + TOLD_SIZE * which as u32, TOLD_SIZE.into())
            });
            runs.push((answer, kept, told, start, takes, operands.clone(), values, site));
            if world.bodies.end - world.bodies.start < 4 * BODY_SIZE {
                break;
            }
        }
        let floats = world.floats;
        let answers = world.script.play(&cross, &format!("bodies-{round}"));
        for (answer, kept, told, start, takes, operands, values, site) in runs {
            let mut after = Registers { pc: HOME, ..start };
            after.gpr[11] = KEPT;
            assert_eq!(answers.registers(answer), after, "{takes:?} {operands:?}");
            let [first, second] = [floats[0], floats[1]].map(u64::to_le_bytes);
            let environment = ENVIRONMENT.to_le_bytes();
            assert_eq!(answers.bytes(kept), [first, second, environment].concat(), "vs0, FPSCR: {takes:?}");
            for (which, answer) in told.into_iter().enumerate() {
                let at_return = which >= 2;
                let passed = if at_return { 0 } else { operands.len() };
                let told = Told { words: answers.bytes(answer), takes: takes[which], operands: passed };
                // Of another body there may be exceptions.
                assert_eq!(told.word(ARGUMENTS) & 0xff, 0);
                let told_arguments: Vec<u64> = (0..ARGUMENTS).map(|n| told.word(n)).collect();
                if at_return {
                    let [first, second] = [3, 4].map(|n: usize| start.gpr[n]);
                    assert_eq!(told_arguments[..5], [first, second, SLOT, floats[0], RETURN]);
                    // No return point, which would stay behind where a body saves registers.
                    assert_eq!(told_arguments[5..], start.gpr[8..=10]);
                } else {
                    assert_eq!(told_arguments, start.gpr[3..=10]);
                }
                let mut times = vec![];
                for extra in takes[which].iter() {
                    let value = told.extra(extra);
                    match extra {
                        Extra::Site => assert_eq!(value, site.into()),
                        Extra::Time => times.push(value),
                        Extra::Entered if at_return => times.push(value),
                        Extra::Entered => assert_eq!(value, 0),
                        Extra::Tid => assert_eq!(value, tid.into()),
                        Extra::StackPointer => assert_eq!(value, SLOT),
                        Extra::InstructionPointer => assert_eq!(value, start.pc),
                        Extra::Registers => {
                            let all: Vec<u64> = start.gpr.iter().copied().chain([RETURN]).collect();
                            assert_eq!(told.behind(extra), all, "{takes:?}");
                        }
                        Extra::Floats => assert_eq!(told.behind(extra), floats),
                        Extra::Operands if at_return => {}
                        Extra::Operands => {
                            let forms = operands.iter().map(|operand| u64::from(operand.form()));
                            let expected = values.iter().copied().zip(forms);
                            let expected: Vec<u64> = expected.flat_map(|(word, form)| [word, form]).collect();
                            assert_eq!(told.behind(extra), expected, "{operands:?}");
                        }
                        Extra::Processor | Extra::Changes => unreachable!(),
                    }
                }
                if let [time, entered] = times[..] {
                    assert!(0 < entered && entered <= time, "{entered} {time}");
                }
            }
        }
    }
}

/// A thread without a block of its own, and a child.
#[test]
fn what_bodies_were_not_called_for_is_counted() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(22);
    let mut world = World::new(layout(4), &mut random);
    // A trap.
    let body = world.body(&[0x7fe0_0008]);
    let takes = Takes::of(&[Extra::Site]);
    let run = Run { body, takes, frame: 64, vectors: false, calculates: false, site: 0, operands: &[] };
    let steps = Steps::of([ReturnStep::Run(takes), ReturnStep::Count(RETURNED)]);
    let entry = Steps::of([EntryStep::Run(takes), EntryStep::Count(HITS)]);
    let followed = Some(Followed { lost: LOST, steps, way: Way::Paired });
    let payload = Payload { entry, followed, ..Payload::default() };
    let runs = Runs { entry: &[run], at_return: &[run] };
    let site = world.script.calling(FUNCTION, &[NOP, BLR], payload, runs);
    let none = registers(&mut random, site.at, SLOT, HOME, thread(0));
    let first = (world.script.run(&none), none);
    // What a child finds: the block that its parent has claimed does not say for which process.
    let own = registers(&mut random, BODY, SLOT, HOME, thread(1));
    let counted = world.script.probed(FUNCTION + 64, &[NOP, BLR], FOLLOW);
    world.script.run(&Registers { pc: counted.at, ..own });
    world.script.write_block(1, BLOCK_ORIGIN, &[0; 8]);
    let child = Registers { pc: site.at, ..own };
    let second = (world.script.run(&child), child);
    let unrun = [0, 1].map(|block| world.script.read_block(block, BLOCK_UNRUN, 8));
    let counters = [HITS, RETURNED, LOST].map(|counter| world.script.counter(counter));
    let answers = world.script.play(&cross, "unrun");
    for (answer, start) in [first, second] {
        assert_eq!(answers.registers(answer), Registers { pc: HOME, ..start });
    }
    // The call of a thread without memory of its own is not followed.
    assert_eq!(unrun.map(|answer| answers.number(answer)), [1, 2]);
    assert_eq!(counters.map(|counter| answers.sum(&counter)), [3, 2, 1]);
}

/// The dynamic loader runs before there is one.
#[test]
fn without_a_thread_pointer_there_is_no_number() {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(23);
    let mut script = Script::laid_out(Layout { tid_offset: Some(-0x7700), ..layout(4) });
    let entry = Steps::of([EntryStep::Record { id: 6, arguments: 8 }]);
    let site = script.probed(FUNCTION, &[NOP, BLR], Payload { entry, ..Payload::default() });
    let start = registers(&mut random, site.at, SLOT, HOME, 0);
    let answer = script.run(&start);
    let records = script.read_block(0, RING, 1 << RECORD_SHIFT);
    let answers = script.play(&cross, "no-number");
    assert_eq!(answers.registers(answer), Registers { pc: HOME, ..start });
    let record = answers.bytes(records);
    let field = |at: u32| u32::from_le_bytes(record[at as usize..][..4].try_into().unwrap());
    assert_eq!([field(RECORD_ID), field(RECORD_TID)], [6, 0]);
}
