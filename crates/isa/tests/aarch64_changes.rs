//! Bodies that change what a call does: the program finds that, and everything else as it was. On the machine that runs on the crate's emulator.

#[path = "aarch64/machine.rs"]
mod machine;

use machine::{FUNCTION, Machine, detoured, detoured_at, layout, state::Registers};
use trapless_isa::{
    Reason,
    body::{Change, Extra, LEFT_OUT, Run, Runs, SKIPPED, Takes},
    detour::{BLOCK_COUNTERS, BLOCK_UNRUN},
    payload::*,
};

const STACK: u64 = 0x7f_ffff_0000;
const HOME: u64 = 0x50_0000;
const HITS: u32 = BLOCK_COUNTERS;
const RETURNED: u32 = HITS + 8;
const LOST: u32 = HITS + 16;
const BODIES: [u64; 2] = [0x110_0000, 0x120_0000];

const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;
const BTI_C: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
const AUTIASP: u32 = 0xd503_23bf;
/// `add x0, x0, x7`; `mov x19, x1`; `str x30, [sp, #-16]!`; `ldr x30, [sp], #16`
const ADD: u32 = 0x8b07_0000;
const LOSES_X19: u32 = 0xaa01_03f3;
const PUSH: u32 = 0xf81f_0ffe;
const POP: u32 = 0xf841_07fe;

/// Functions, each with the place where detours of it begin.
const FUNCTIONS: [(&[u32], &str); 4] = [
    (&[ADD, RET], "at the entry"),
    (&[BTI_C, PUSH, ADD, LOSES_X19, POP, RET], "behind a landing pad"),
    (&[PACIASP, PUSH, ADD, LOSES_X19, POP, AUTIASP, RET], "behind what signs"),
    (&[NOP, LOSES_X19, ADD, RET], "a register lost"),
];

const SKIP: u32 = Change::Skip as u32;
const RESULT: u32 = Change::Result as u32;
const fn argument(number: u32) -> u32 {
    Change::Arguments as u32 + number
}

/// A body that writes these words, and loses what bodies may lose.
fn body(takes: Takes, written: &[(u32, u64)]) -> Vec<u8> {
    let changes = takes.index(Extra::Changes).unwrap();
    // ldr x16, [sp, #8 * changes]
    let mut code = vec![0xf940_03f0 | changes << 10];
    for &(word, to) in written {
        for quarter in 0..4 {
            // movz x17, …; movk x17, …
            let operation: u32 = if quarter == 0 { 0xd280_0011 } else { 0xf280_0011 };
            code.push(operation | quarter << 21 | ((to >> (16 * quarter) & 0xffff) as u32) << 5);
        }
        // str x17, [x16, #8 * word]
        code.push(0xf900_0211 | word << 10);
    }
    // mov x16, x17; ret
    code.extend([0xaa11_03f0, RET]);
    code.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn run(takes: Takes, body: u64) -> Run<'static> {
    Run { body, takes, frame: 64, vectors: false, calculates: false, site: 1, operands: &[] }
}

/// What bodies take beside it.
fn takes() -> [Takes; 2] {
    let all = Extra::ALL.into_iter().filter(|extra| {
        // What the machine has no instructions for, and what there is none of.
        !matches!(extra, Extra::Operands | Extra::Processor | Extra::Floats)
    });
    [Takes::of(&[Extra::Changes]), all.collect()]
}

/// How a call begins, and how the same function leaves it without a detour, with other arguments.
fn called(code: &[u32], start: Registers) -> Registers {
    let mut machine = Machine { registers: start, signature: 0x55, ..Machine::default() };
    machine.load(FUNCTION, &code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    machine.run_to(HOME);
    machine.registers
}

fn start(round: u64) -> Registers {
    let mut x: [u64; 31] =
        std::array::from_fn(|n| (n as u64 + 1 + round).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x[30] = HOME;
    Registers { x, sp: STACK, pc: FUNCTION, pstate: 0x6000_0000 }
}

/// A machine whose bodies write these, with what its sites do. Both bodies of a hit take the same.
fn world(code: &[u32], payload: Payload, runs: Runs<'_>, case: &[&[(u32, u64)]; 2], takes: Takes) -> Machine {
    let mut machine = detoured(code, payload, runs, &[]).unwrap();
    machine.signature = 0x55;
    for (written, address) in case.iter().zip(BODIES) {
        machine.load(address, &body(takes, written));
    }
    machine
}

/// What a thread's block counts.
fn counted(machine: &Machine) -> [u64; 4] {
    let block = layout().blocks + layout().block_stride;
    [HITS, RETURNED, LOST, BLOCK_UNRUN].map(|counter| machine.memory.get(block + u64::from(counter)))
}

#[test]
fn what_bodies_write_at_an_entry_are_the_functions_arguments_or_what_its_caller_gets() {
    let some = 0xfedc_ba98_7654_3210;
    let cases: [[&[(u32, u64)]; 2]; 8] = [
        [&[], &[]],
        [&[(argument(0), 1), (argument(7), 2)], &[(argument(2), some)]],
        [&[(argument(3), some)], &[(argument(3), 7), (argument(1), 8), (argument(6), 9)]],
        [&[(SKIP, SKIPPED as u64), (RESULT, some)], &[]],
        [&[(SKIP, SKIPPED as u64), (RESULT, 1)], &[(argument(0), 5), (RESULT, 2)]],
        [&[(SKIP, SKIPPED as u64), (RESULT, 1)], &[(SKIP, 0)]],
        [&[(SKIP, LEFT_OUT as u64)], &[]],
        [&[(SKIP, SKIPPED as u64), (RESULT, 1)], &[(SKIP, LEFT_OUT as u64), (RESULT, 2)]],
    ];
    for takes in takes() {
        for case in cases {
            let runs = BODIES.map(|body| run(takes, body));
            let all = || case.iter().copied().flatten();
            let last = |word: u32| all().rev().find(|written| written.0 == word).map(|written| written.1);
            for (code, name) in FUNCTIONS {
                for is_followed in [false, true] {
                    let steps = Steps::of([ReturnStep::Count(RETURNED)]);
                    let payload = Payload {
                        entry: Steps::of([EntryStep::Count(HITS), EntryStep::Run(takes)]),
                        followed: is_followed.then_some(Followed { lost: LOST, steps, way: Way::Paired }),
                        ..Payload::default()
                    };
                    let context = format!("{name}, {takes:?}, {case:?}, followed: {is_followed}");
                    let mut machine =
                        world(code, payload, Runs { entry: &runs, at_return: &[] }, &case, takes);
                    // Twice: a thread's first hit goes another way.
                    let mut returns = 0;
                    for round in 0..2 {
                        let start = start(round);
                        let mut meant = start;
                        for number in 0..8 {
                            meant.x[number as usize] =
                                last(argument(number)).unwrap_or(start.x[number as usize]);
                        }
                        let expected = match last(SKIP).unwrap_or(0) {
                            0 => called(code, meant),
                            skip => {
                                let mut home = Registers { pc: HOME, ..start };
                                if skip == u64::from(SKIPPED) {
                                    home.x[0] = last(RESULT).unwrap();
                                }
                                home
                            }
                        };
                        returns += u64::from(is_followed && last(SKIP).unwrap_or(0) == 0);
                        machine.registers = start;
                        machine.run_to(HOME);
                        assert_eq!(machine.registers, expected, "{context}");
                    }
                    assert_eq!(counted(&machine), [2, returns, 0, 0], "{context}");
                }
            }
        }
    }
}

#[test]
fn what_bodies_write_at_a_return_is_what_the_caller_gets() {
    let some = 0xfedc_ba98_7654_3210;
    let cases: [[&[(u32, u64)]; 2]; 4] =
        [[&[], &[]], [&[(RESULT, some)], &[]], [&[(RESULT, some)], &[(RESULT, 3)]], [&[(SKIP, 1)], &[]]];
    for takes in takes() {
        for case in cases {
            let runs = BODIES.map(|body| run(takes, body));
            let last = case.iter().copied().flatten().rev().find(|written| written.0 == RESULT);
            for (code, name) in FUNCTIONS {
                let steps = Steps::of([ReturnStep::Run(takes), ReturnStep::Count(RETURNED)]);
                let payload = Payload {
                    followed: Some(Followed { lost: LOST, steps, way: Way::Paired }),
                    ..Payload::default()
                };
                let mut machine = world(code, payload, Runs { entry: &[], at_return: &runs }, &case, takes);
                for round in 0..2 {
                    let start = start(round);
                    let mut expected = called(code, start);
                    expected.x[0] = last.map_or(expected.x[0], |written| written.1);
                    machine.registers = start;
                    machine.run_to(HOME);
                    assert_eq!(machine.registers, expected, "{name}, {takes:?}, {case:?}");
                }
                assert_eq!(counted(&machine), [0, 2, 0, 0], "{name}, {takes:?}, {case:?}");
            }
        }
    }
}

/// A function is left before anything of it has run, or not at all: where a probe stands inside, that is too late.
#[test]
fn nothing_is_changed_inside_of_functions() {
    let changes = Takes::of(&[Extra::Changes]);
    let runs = [run(changes, BODIES[0])];
    let refused = |behind: u64| {
        let payload = Payload { entry: Steps::of([EntryStep::Run(changes)]), ..Payload::default() };
        let runs = Runs { entry: &runs, at_return: &[] };
        detoured_at(behind, layout(), &[BTI_C, NOP, NOP, RET], payload, runs, &[]).err()
    };
    assert_eq!([0, 4, 8].map(refused), [None, Some(Reason::NoChanges), Some(Reason::NoChanges)]);
}
