//! Records of operands: each as it was when the detour was entered.
//!
//! On the machine that runs on the crate's emulator, with random operands; `aarch64_detours` does it under qemu-user.

#[path = "aarch64/machine.rs"]
mod machine;

use machine::{FUNCTION, Machine, detoured, state::Memory, state::Registers};
use trapless_isa::{
    Operand, Reason,
    body::{Extra, Run, Runs, Takes},
    detour,
    passed::{FLOAT, MOST_PASSED, Passed, SIGNED, SIZE, extended},
    payload::*,
};

const STACK: u64 = 0x7f_ffff_0000;
const DATA: u64 = 0x33_4000_0000;
const DATA_SIZE: u64 = 0x1000;
const HITS: u32 = detour::BLOCK_COUNTERS;
const CODE: [u32; 2] = [0xd503_201f, 0xd65f_03c0];
const RING: u32 = 0x1_0000;

/// A machine about to call a function whose detour records `operands`; or why there is none.
fn machine(operands: &[Operand], followed: bool) -> Result<Machine, Reason> {
    let steps = Steps::of([ReturnStep::Count(HITS + 8)]);
    let payload = Payload {
        hooks: Steps::default(),
        entry: Steps::of([EntryStep::Count(HITS), EntryStep::Fetch { id: 8 }]),
        followed: followed.then_some(Followed { lost: HITS + 16, steps, way: Way::Paired }),
    };
    detoured(&CODE, payload, Runs::default(), operands)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16 ^ self.0 << 24
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Some operand; one in memory changes the registers that lead there, which are not `taken` afterwards.
fn operand(random: &mut Random, x: &mut [u64; 31], taken: &mut u32) -> Operand {
    let size = random.pick(&[1, 2, 4, 8]);
    let at = DATA + random.below(DATA_SIZE - 8);
    let offset = random.pick(&[0, 8, -8, 4095, -4095, -4096, 0xff_ffff, 1 << 24, i32::MIN, i32::MAX]);
    let fresh = |random: &mut Random, taken: &mut u32| loop {
        let register = random.below(31) as u8;
        if *taken >> register & 1 == 0 {
            *taken |= 1 << register;
            return register;
        }
    };
    match random.below(5) {
        0 => {
            let register = random.below(32) as u8;
            *taken |= 1 << register;
            Operand::Register(register)
        }
        1 => Operand::Memory { base: 31, index: None, offset: random.below(0x800) as i32, size },
        n @ (2 | 3) if taken.count_ones() < 24 => {
            let base = fresh(random, taken);
            let mut to = at.wrapping_sub_signed(offset.into());
            let index = (n == 3).then(|| {
                let (index, scale) = (fresh(random, taken), random.below(4) as u8);
                x[usize::from(index)] = random.below(0x1000);
                to = to.wrapping_sub(x[usize::from(index)] << scale);
                (index, scale)
            });
            x[usize::from(base)] = to;
            Operand::Memory { base, index, offset, size }
        }
        _ => Operand::At { address: at, size },
    }
}

/// What an operand is.
fn value(operand: Operand, registers: &Registers, machine: &mut Machine) -> u64 {
    let register = |n: u8| registers.x.get(usize::from(n)).copied().unwrap_or(registers.sp);
    let (address, size) = match operand {
        Operand::Register(n) => return register(n),
        Operand::Memory { base, index, offset, size } => {
            let index = index.map_or(0, |(index, scale)| register(index) << scale);
            (register(base).wrapping_add(index).wrapping_add_signed(offset.into()), size)
        }
        Operand::At { address, size } => (address, size),
    };
    let mut bytes = [0; 8];
    machine.memory.read(address, &mut bytes[..size.into()]).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn operands_are_recorded_as_they_were_at_the_entry() {
    let mut random = Random(5);
    for n in 0..400 {
        let mut x: [u64; 31] = core::array::from_fn(|_| random.next());
        let mut taken = 0;
        let operands: Vec<Operand> =
            (0..random.below(14)).map(|_| operand(&mut random, &mut x, &mut taken)).collect();
        let followed = n % 2 == 1;
        let mut machine = machine(&operands, followed).unwrap();
        for (at, size) in [(DATA, DATA_SIZE), (STACK, 0x1000)] {
            let data: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
            machine.load(at, &data);
        }
        // The second hit of a thread goes another way than the first.
        for round in 0..2 {
            let start = Registers { x, sp: STACK, pc: FUNCTION, pstate: 0x6000_0000 };
            machine.registers = start;
            let expected: Vec<u64> =
                operands.iter().map(|&operand| value(operand, &start, &mut machine)).collect();
            machine.run_to(x[30]);
            assert_eq!(machine.registers, Registers { pc: x[30], ..start }, "{operands:x?}");
            let record = 0x12_0010_0000 + u64::from(RING) + (round << detour::RECORD_SHIFT);
            let field = |at: u32| machine.memory.get(record + u64::from(at));
            assert_eq!(field(detour::RECORD_SEQUENCE), round + 1);
            assert_eq!([field(detour::RECORD_ID), field(detour::RECORD_MISSING)], [8, 0]);
            assert_eq!(field(detour::RECORD_SLOT), STACK);
            for (n, (operand, value)) in (0..).zip(operands.iter().zip(expected)).take(detour::MOST_FETCHED) {
                assert_eq!(field(detour::RECORD_VALUES + 8 * n), value, "{operand:x?}");
            }
        }
    }
}

/// Where the two bodies below are, and where each puts what it is given.
const BODIES: [u64; 2] = [0x110_0000, 0x120_0000];
const TOLD: [u64; 2] = [0x33_5000_0000, 0x33_5001_0000];

/// Stores the words that one of its extras points to, and then what another one is.
fn body(told: u64, operands: u32, words: u32, other: u32) -> Vec<u8> {
    let mut code = vec![
        0xf940_03f0 | operands << 10,                      // ldr x16, [sp, #8 * operands]
        0xd280_0011 | ((told & 0xffff) as u32) << 5,       // movz x17, #…
        0xf2a0_0011 | ((told >> 16 & 0xffff) as u32) << 5, // movk x17, #…, lsl 16
        0xf2c0_0011 | ((told >> 32 & 0xffff) as u32) << 5, // movk x17, #…, lsl 32
        0xf81f_0fe9,                                       // str x9, [sp, #-16]!
    ];
    for word in 0..words {
        // ldr x9, [x16, #8 * word]; str x9, [x17, #8 * word]
        code.extend([0xf940_0209 | word << 10, 0xf900_0229 | word << 10]);
    }
    // ldr x9, [sp, #16 + 8 * other]; str x9, [x17, #8 * words]; ldr x9, [sp], #16; ret
    code.extend([0xf940_03e9 | (2 + other) << 10, 0xf900_0229 | words << 10, 0xf841_07e9, 0xd65f_03c0]);
    code.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Two bodies ask for them, of which each takes other things, too.
#[test]
fn operands_are_passed_to_bodies_as_they_were_at_the_entry() {
    let mut random = Random(7);
    for _ in 0..400 {
        let mut x: [u64; 31] = core::array::from_fn(|_| random.next());
        let mut taken = 0;
        let count = 1 + random.below(MOST_PASSED as u64);
        let (passed, operands): (Vec<Passed>, Vec<Option<Operand>>) = (0..count)
            .map(|_| {
                match random.below(12) {
                    0 => return (Passed::Known(random.next()), None),
                    1 => return (Passed::Vector(random.below(32) as u8, random.pick(&[4, 8]) | FLOAT), None),
                    _ => {}
                }
                let operand = operand(&mut random, &mut x, &mut taken);
                let width = random.pick(&[1, 2, 4, 8]) | random.pick(&[0, SIGNED]);
                let passed = match operand {
                    Operand::Register(register) => {
                        let width = random.pick(&[width, 4 | FLOAT, 8 | FLOAT]);
                        Passed::Register { register, shift: 0, width }
                    }
                    Operand::Memory { size, .. } | Operand::At { size, .. } => {
                        Passed::Memory(operand, width & !SIZE | size)
                    }
                };
                (passed, Some(operand))
            })
            .unzip();
        // What else they take, of which one is looked at.
        let others = [
            (&[Extra::StackPointer][..], Extra::StackPointer, STACK),
            (&[Extra::Site, Extra::Tid, Extra::InstructionPointer], Extra::InstructionPointer, FUNCTION),
            (&[Extra::Time, Extra::Tid, Extra::StackPointer, Extra::Registers], Extra::StackPointer, STACK),
            (&[Extra::Site], Extra::Site, HITS.into()),
        ];
        let others = [random.pick(&others), random.pick(&others)];
        let takes = others.map(|(all, ..)| Takes::of(all).with(Extra::Operands));
        let index = |which: usize, extra| takes[which].iter().position(|own| own == extra).unwrap() as u32;
        let run = |which: usize| Run {
            body: BODIES[which],
            takes: takes[which],
            frame: 64,
            vectors: false,
            calculates: false,
            site: HITS,
            operands: &passed,
        };
        let runs = [run(0), run(1)];
        let both = takes[0].iter().chain(takes[1].iter()).collect();
        let entry = Steps::of([EntryStep::Count(HITS), EntryStep::Run(both)]);
        let payload = Payload { entry, ..Payload::default() };
        let mut machine = detoured(&CODE, payload, Runs { entry: &runs, at_return: &[] }, &[]).unwrap();
        for which in 0..2 {
            let words = 2 * passed.len() as u32;
            let (operands, other) = (index(which, Extra::Operands), index(which, others[which].1));
            machine.load(BODIES[which], &body(TOLD[which], operands, words, other));
            machine.load(TOLD[which], &[0; 16 * MOST_PASSED + 8]);
        }
        for (at, size) in [(DATA, DATA_SIZE), (STACK, 0x1000)] {
            machine.load(at, &vec![0; size as usize]);
        }
        let start = Registers { x, sp: STACK, pc: FUNCTION, pstate: 0x6000_0000 };
        machine.registers = start;
        machine.vectors = core::array::from_fn(|_| random.next());
        machine.run_to(x[30]);
        assert_eq!(machine.registers, Registers { pc: x[30], ..start }, "{passed:x?}");
        let register = |n: u8| x.get(usize::from(n)).copied().unwrap_or(STACK);
        let expected = passed.iter().zip(&operands).flat_map(|(passed, operand)| {
            let value = match (*passed, *operand) {
                (Passed::Known(value), _) => value,
                (Passed::Vector(number, _), _) => machine.vectors[usize::from(number)],
                (Passed::Register { register: n, width, .. }, _) => extended(register(n), width),
                (_, Some(Operand::At { address, .. })) => address,
                (_, Some(Operand::Memory { base, index, offset, .. })) => {
                    let index = index.map_or(0, |(index, scale)| register(index) << scale);
                    register(base).wrapping_add(index).wrapping_add_signed(offset.into())
                }
                other => panic!("{other:?}"),
            };
            [value, passed.form().into()]
        });
        let expected: Vec<u64> = expected.collect();
        for (told, (_, _, other)) in TOLD.into_iter().zip(others) {
            let words = (0..=expected.len() as u64).map(|n| machine.memory.get(told + 8 * n));
            let expected: Vec<u64> = expected.iter().copied().chain([other]).collect();
            assert_eq!(words.collect::<Vec<_>>(), expected, "{passed:x?}");
        }
    }
}

#[test]
fn operands_that_no_body_can_be_passed_are_refused() {
    let refused = |passed: &[Passed], extra: Extra| {
        let takes = Takes::of(&[extra]);
        let run = Run {
            body: BODIES[0],
            takes,
            frame: 64,
            vectors: false,
            calculates: false,
            site: HITS,
            operands: passed,
        };
        let payload = Payload { entry: Steps::of([EntryStep::Run(takes)]), ..Payload::default() };
        detoured(&CODE, payload, Runs { entry: &[run], at_return: &[] }, &[]).err()
    };
    let register = |register, shift| Passed::Register { register, shift, width: 8 };
    assert_eq!(refused(&[register(31, 0)], Extra::Operands), None);
    for passed in [
        &[register(32, 0)][..],
        &[register(0, 8)],
        &[Passed::Memory(Operand::Register(0), 8)],
        &[Passed::Known(0); MOST_PASSED + 1],
    ] {
        assert_eq!(refused(passed, Extra::Operands), Some(Reason::NotImplemented), "{passed:?}");
    }
    assert_eq!(refused(&[], Extra::Processor), Some(Reason::NotImplemented));
}

#[test]
fn registers_that_are_not_general_are_refused() {
    assert_eq!(machine(&[Operand::Register(32)], false).err(), Some(Reason::NotImplemented));
}
