//! Bodies that change what a call does: the program finds that, and everything else as it was.

use crate::state::Registers;
use crate::{cross::Cross, machine::*, oracle::Random};
use trapless_isa::{
    BranchTargets, DetourRequest, Isa, Reason, Site,
    body::{Change, Extra, LEFT_OUT, Run, Runs, SKIPPED, Takes},
    detour::*,
    payload::*,
    powerpc::POWERPC64LE,
};

/// Where bodies are, so far apart, and where the functions are that have no probe.
const BODIES: u64 = FUNCTION + 0x4000;
const BODY_SIZE: u64 = 0x200;
const PLAIN: u64 = FUNCTION + 0x3000;

/// `add r3,r3,r10`; `mr r31,r4`
const ADD: u32 = 0x7c63_5214;
const LOSES_R31: u32 = 0x7c9f_2378;

/// `addis r2,r12,1; addi r2,r2,-0x7f00`
const SETS_TOC: [u32; 2] = [0x3c4c_0001, 0x3842_8100];

/// Functions, each with what is remarkable about it.
const FUNCTIONS: [(&[u32], &str); 4] = [
    (&[ADD, BLR], "at the entry"),
    (&[SETS_TOC[0], SETS_TOC[1], ADD, LOSES_R31, BLR], "behind what sets the TOC"),
    // mflr r0; std r0,16(r1); stdu r1,-64(r1); addi r1,r1,64; ld r0,16(r1); mtlr r0
    (
        &[0x7c08_02a6, 0xf801_0010, 0xf821_ffc1, ADD, 0x3821_0040, 0xe801_0010, 0x7c08_03a6, BLR],
        "with a frame",
    ),
    (&[NOP, LOSES_R31, ADD, BLR], "a register lost"),
];

const SKIP: u32 = Change::Skip as u32;
const RESULT: u32 = Change::Result as u32;
const fn argument(number: u32) -> u32 {
    Change::Arguments as u32 + number
}

type Case<'a> = [&'a [(u32, u64)]; 2];

/// What the last body has written to a word.
fn last(case: &Case<'_>, word: u32) -> Option<u64> {
    case.iter().copied().flatten().rev().find(|written| written.0 == word).map(|written| written.1)
}

/// A body that writes these words, and loses what bodies may lose.
fn body(takes: Takes, written: &[(u32, u64)]) -> Vec<u32> {
    let changes = takes.index(Extra::Changes).unwrap();
    let half = |number: u64, shift: u32| (number >> shift & 0xffff) as u32;
    // ld r11,…(r1)
    let mut code = vec![0xe961_0020 + 8 * changes];
    for &(word, to) in written {
        code.extend([
            0x3d80_0000 | half(to, 48), // lis r12,…
            0x618c_0000 | half(to, 32), // ori r12,r12,…
            0x798c_07c6,                // sldi r12,r12,32
            0x658c_0000 | half(to, 16), // oris r12,r12,…
            0x618c_0000 | half(to, 0),  // ori r12,r12,…
            0xf98b_0000 | (8 * word),   // std r12,…(r11)
        ]);
    }
    // li r0,-1; mtxer r0; mtocrf cr0,r0; li r11,…; li r12,…; blr
    code.extend([0x3800_ffff, 0x7c01_03a6, 0x7c08_0120, 0x3960_0b0b, 0x3980_0c0c, BLR]);
    assert!(4 * code.len() as u64 <= BODY_SIZE);
    code
}

fn run(takes: Takes, body: u64) -> Run<'static> {
    let calculates = takes.has(Extra::Floats);
    Run { body, takes, frame: 64, vectors: false, calculates, site: 1, operands: &[] }
}

/// What bodies take beside it.
fn takes() -> [Takes; 2] {
    // What the emulator of programs has no register for, and what there is none of.
    let known = |extra: &Extra| !matches!(extra, Extra::Operands | Extra::Processor);
    [Takes::of(&[Extra::Changes]), Extra::ALL.into_iter().filter(known).collect()]
}

/// Each function with each case, twice: a thread's first hit goes another way. `meant`: how it is called without a probe, or how it is left
/// if it is not, and what becomes of what it gives.
fn compare(
    name: &str,
    cases: &[Case<'_>],
    payload: impl Fn(Takes, bool) -> Payload,
    at_return: bool,
    meant: impl Fn(&Case<'_>, &mut Registers) -> bool,
    given: impl Fn(&Case<'_>, &mut Registers),
) {
    let Some(cross) = Cross::find() else { return };
    let mut random = Random(81);
    for (number, takes) in takes().into_iter().enumerate() {
        for (n, case) in cases.iter().enumerate() {
            let mut script = Script::new(4);
            let bodies = [BODIES, BODIES + BODY_SIZE];
            for (written, at) in case.iter().zip(bodies) {
                script.code(at, &body(takes, written));
            }
            let runs = bodies.map(|body| run(takes, body));
            let mut seen = vec![];
            for (f, (code, function)) in (0..).zip(FUNCTIONS) {
                for (w, is_followed) in (0..).zip([at_return, true]) {
                    let (at, plain) = (FUNCTION + 0x100 * (2 * f + w), PLAIN + 0x100 * f);
                    script.code(plain, code);
                    let runs = match at_return {
                        true => Runs { entry: &[], at_return: &runs },
                        false => Runs { entry: &runs, at_return: &[] },
                    };
                    let probed = script.calling(at, code, payload(takes, is_followed), runs);
                    for thread_number in [1, 1] {
                        let mut start = registers(&mut random, probed.at, SLOT, HOME, thread(thread_number));
                        // As functions find it: so with a TOC that is the same for both.
                        start.gpr[12] = FUNCTION;
                        let found = script.run(&start);
                        let mut bare = Registers { pc: plain, ..start };
                        let calls = meant(case, &mut bare);
                        // What runs ahead of a detour has run.
                        let expected = match calls {
                            true => Ok(script.run(&bare)),
                            false if code[..2] == SETS_TOC => {
                                let mut left = bare;
                                left.gpr[2] = bare.gpr[12].wrapping_add(0x8100);
                                Err(left)
                            }
                            false => Err(bare),
                        };
                        seen.push((
                            found,
                            expected,
                            format!("{function}, {takes:?}, {case:?}, followed: {is_followed}"),
                        ));
                    }
                }
            }
            let counters = [HITS, RETURNED, LOST, BLOCK_UNRUN].map(|counter| script.counter(counter));
            let answers = script.play(&cross, &format!("changes-{name}-{number}-{n}"));
            let mut calls = 0;
            for (found, expected, context) in seen {
                calls += u64::from(expected.is_ok() && (at_return || context.ends_with("true")));
                let mut expected = match expected {
                    Ok(answer) => answers.registers(answer),
                    Err(left) => Registers { pc: HOME, ..left },
                };
                given(case, &mut expected);
                assert_eq!(answers.registers(found), expected, "{context}");
            }
            let hits = 4 * FUNCTIONS.len() as u64;
            assert_eq!(counters.map(|counter| answers.sum(&counter)), [hits, calls, 0, 0], "{case:?}");
        }
    }
}

#[test]
fn what_bodies_write_at_an_entry_are_the_functions_arguments_or_what_its_caller_gets() {
    let some = 0xfedc_ba98_7654_3210;
    let (skipped, left_out) = ((SKIP, SKIPPED.into()), (SKIP, LEFT_OUT.into()));
    let cases: [Case<'_>; 8] = [
        [&[], &[]],
        [&[(argument(0), 1), (argument(7), 2)], &[(argument(2), some)]],
        [&[(argument(3), some)], &[(argument(3), 7), (argument(5), 8), (argument(6), 9)]],
        [&[skipped, (RESULT, some)], &[]],
        [&[skipped, (RESULT, 1)], &[(argument(0), 5), (RESULT, 2)]],
        [&[skipped, (RESULT, 1)], &[(SKIP, 0)]],
        [&[left_out], &[]],
        [&[skipped, (RESULT, 1)], &[left_out, (RESULT, 2)]],
    ];
    let payload = |takes, is_followed: bool| Payload {
        entry: Steps::of([EntryStep::Count(HITS), EntryStep::Run(takes)]),
        followed: is_followed.then_some(Followed {
            lost: LOST,
            steps: Steps::of([ReturnStep::Count(RETURNED)]),
            way: Way::Paired,
        }),
        ..Payload::default()
    };
    let meant = |case: &Case<'_>, call: &mut Registers| match last(case, SKIP).unwrap_or(0) {
        0 => {
            for (word, register) in (0..8).map(argument).zip(3..) {
                call.gpr[register] = last(case, word).unwrap_or(call.gpr[register]);
            }
            true
        }
        skip => {
            if skip == u64::from(SKIPPED) {
                call.gpr[3] = last(case, RESULT).unwrap();
            }
            false
        }
    };
    compare("entry", &cases, payload, false, meant, |_, _| {});
}

#[test]
fn what_bodies_write_at_a_return_is_what_the_caller_gets() {
    let some = 0xfedc_ba98_7654_3210;
    let cases: [Case<'_>; 4] =
        [[&[], &[]], [&[(RESULT, some)], &[]], [&[(RESULT, some)], &[(RESULT, 3)]], [&[(SKIP, 1)], &[]]];
    let payload = |takes, _| Payload {
        entry: Steps::of([EntryStep::Count(HITS)]),
        followed: Some(Followed {
            lost: LOST,
            steps: Steps::of([ReturnStep::Run(takes), ReturnStep::Count(RETURNED)]),
            way: Way::Paired,
        }),
        ..Payload::default()
    };
    let given = |case: &Case<'_>, home: &mut Registers| {
        home.gpr[3] = last(case, RESULT).unwrap_or(home.gpr[3]);
    };
    compare("return", &cases, payload, true, |_, _| true, given);
}

/// A function is left before anything of it has run, or not at all: where a probe stands inside, that is too late.
#[test]
fn nothing_is_changed_inside_of_functions() {
    let changes = Takes::of(&[Extra::Changes]);
    let runs = [run(changes, BODIES)];
    let code: Vec<u8> = [NOP, NOP, NOP, BLR].iter().flat_map(|word| word.to_le_bytes()).collect();
    let targets = BranchTargets::default();
    let refused = |behind: u64| {
        let layout = layout(4);
        let site = Site { address: FUNCTION + behind, ..Site::new(FUNCTION, &code, &targets) };
        let displaced = POWERPC64LE.verdict(&site).jump.unwrap();
        let runtime = POWERPC64LE.runtime(ARENA, &layout).unwrap();
        let request = DetourRequest {
            runs: Runs { entry: &runs, at_return: &[] },
            address: ARENA + 0x8000,
            displaced,
            original: &code[..4],
            site: &site,
            payload: Payload { entry: Steps::of([EntryStep::Run(changes)]), ..Payload::default() },
            stack: Stack::Enough,
            layout: &layout,
            runtime: &runtime,
            operands: &[],
            tells: false,
        };
        POWERPC64LE.detour(&request).err()
    };
    assert_eq!([0, 4].map(refused), [None, Some(Reason::NoChanges)]);
}
