//! What detours tell of their instructions ([`trapless_isa::frames`]) is what they do: their code is walked with the stack pointer in mind.

use crate::world::{FUNCTION, SPARES_ARM64, SPARES_POWERPC, detour_of};
use std::collections::BTreeMap;
use trapless_isa::frames::{Place, Point};
use trapless_isa::{Additions, Detour, Flow, Hook, Lookup, Machine, payload::*};

/// How far an instruction moves the stack pointer down.
fn pushes(machine: Machine, word: u32) -> i64 {
    let field = |low: u32, bits: u32| i64::from((word >> low) as i32) << (64 - bits) >> (64 - bits);
    let unsigned = i64::from(word >> 10 & 0xfff);
    match machine {
        // stp …,[sp,#n]!; ldp …,[sp],#n; sub sp,sp,#n; add sp,sp,#n
        Machine::AArch64 if word & 0xffc0_03e0 == 0xa980_03e0 => -8 * field(15, 7),
        Machine::AArch64 if word & 0xffc0_03e0 == 0xa8c0_03e0 => -8 * field(15, 7),
        Machine::AArch64 if word & 0xffc0_03ff == 0xd100_03ff => unsigned,
        Machine::AArch64 if word & 0xffc0_03ff == 0x9100_03ff => -unsigned,
        // stdu …,n(r1); addi r1,r1,n
        Machine::PowerPc64Le if word & 0xfc1f_0003 == 0xf801_0001 => -(i64::from(word as i16) & !3),
        Machine::PowerPc64Le if word & 0xffff_0000 == 0x3821_0000 => -i64::from(word as i16),
        _ => 0,
    }
}

/// The stack pointer's distance from the program's ahead of each instruction that is reached, by its offset.
fn depths(machine: Machine, detour: &Detour) -> BTreeMap<u32, i64> {
    let mut depths = BTreeMap::new();
    let mut left: Vec<(u32, i64)> =
        [Some(0), detour.return_point].into_iter().flatten().map(|at| (at, 0)).collect();
    while let Some((at, depth)) = left.pop() {
        let Some(code) = detour.code.get(at as usize..).filter(|code| !code.is_empty()) else { continue };
        if let Some(known) = depths.insert(at, depth) {
            assert_eq!(known, depth, "two ways come to {at:#x} of {detour:x?}");
            continue;
        }
        let word = u32::from_le_bytes(code[..4].try_into().unwrap());
        let after = depth + pushes(machine, word);
        let instruction = machine.isa().decode(code, at.into()).unwrap();
        let inside = |to: u64| u32::try_from(to).ok().filter(|to| (*to as usize) < detour.code.len());
        let goes = |to: u64| inside(to).map(|to| (to, after));
        match instruction.flow {
            // Routines come back, and displaced code by the return point.
            Flow::Call { target } if inside(target).is_none() || target == u64::from(at) + 4 => {
                left.extend(goes(instruction.end()));
            }
            Flow::Jump { target } | Flow::Call { target } => left.extend(goes(target)),
            Flow::Branch { target } => left.extend(goes(target).into_iter().chain(goes(instruction.end()))),
            flow if flow.falls_through() => left.extend(goes(instruction.end())),
            _ => {}
        }
    }
    depths
}

/// What is told at an offset.
fn told(points: &[Point], offset: u32) -> Option<(Place, i32)> {
    points.iter().rev().find(|point| point.offset <= offset)?.stands
}

fn payloads() -> Vec<Payload> {
    let entries = [
        Steps::of([]),
        Steps::of([EntryStep::Count(128)]),
        Steps::of([EntryStep::Count(128), EntryStep::Record { id: 4, arguments: 6 }]),
    ];
    let returns = [
        Steps::of([ReturnStep::Count(144)]),
        Steps::of([ReturnStep::Count(144), ReturnStep::Record { id: 5 }]),
        Steps::of([ReturnStep::Time(152)]),
    ];
    let hooks = [
        Steps::of([]),
        Steps::of([Hook::Translate(Lookup::FindObject)]),
        Steps::of([Hook::Translate(Lookup::IteratePhdr)]),
        Steps::of([Hook::Land { code_address: 0x98 }]),
        Steps::of([Hook::Gate]),
    ];
    let followed = returns.map(|steps| Some(Followed { lost: 136, steps, way: Way::Paired }));
    let mut all = Vec::new();
    for hooks in hooks {
        for entry in entries {
            for followed in [None].into_iter().chain(followed) {
                all.push(Payload { hooks, entry, followed });
            }
        }
    }
    all
}

/// `is_whole`: wherever the stack pointer is the program's, something is told.
fn check(machine: Machine, functions: &[Vec<u32>], is_whole: bool) {
    let (mut instructions, mut known) = (0, 0);
    for (function, payload) in functions.iter().flat_map(|f| payloads().into_iter().map(move |p| (f, p))) {
        for additions in [Additions::Loops, Additions::Single] {
            let what = format!("{function:x?} {payload:?} {additions:?}");
            let Ok(detour) = detour_of(machine, function, additions, payload, true) else { continue };
            assert!(detour.frames.is_sorted_by_key(|point| point.offset), "{what}");
            let displaced = function[(detour.places[0].0 - FUNCTION) as usize / 4];
            for (at, depth) in depths(machine, &detour) {
                instructions += 1;
                match told(&detour.frames, at) {
                    Some((place, told)) => {
                        // Behind the displaced instruction the program's own has moved, too.
                        let moved = if place == Place::Site(4) { pushes(machine, displaced) } else { 0 };
                        assert_eq!(
                            i64::from(told) + moved,
                            depth,
                            "{what}: at {at:#x} of {:x?}",
                            detour.frames
                        );
                        known += 1;
                    }
                    None => {
                        assert!(depth > 0 || !is_whole, "{what}: nothing at {at:#x} of {:x?}", detour.frames)
                    }
                }
            }
            let expected = |offset| {
                let is_copy = detour.places.iter().find(|place| place.1 == offset);
                is_copy.map(|place| Place::Site((place.0 - detour.places[0].0) as u8))
            };
            for &(_, offset) in &detour.places {
                let place = told(&detour.frames, offset).map(|told| told.0);
                assert_eq!(place, expected(offset), "{what}: the copy at {offset:#x}");
            }
            if let Some(point) = detour.return_point {
                assert_eq!(told(&detour.frames, point), Some((Place::Caller, 0)), "{what}");
            }
        }
    }
    // What is off the fast path is a part of the code, and little of what runs.
    assert!(2 * known > instructions, "{machine:?}: {known} of {instructions}");
}

/// `nop`; `stp x29, x30, [sp, #-16]!`; `bl`; `cbz`; `ldr d0, …`, each ahead of a return; a function that signs its return address; and
/// one with registers to spare.
#[test]
fn arm64_tells_where_its_stack_pointer_is() {
    let behind = |word: u32| vec![word, 0xd65f_03c0];
    let functions = [0xd503_201f, 0xa9bf_7bfd, 0x9400_0400, 0xb400_0800, 0x5c00_0800].map(behind);
    let others = [vec![0xd503_233f, 0xd65f_0bff], SPARES_ARM64.to_vec()];
    check(Machine::AArch64, &[&functions[..], &others].concat(), false);
}

/// `nop`; `stdu r1,-112(r1)`; `bl`; `beq`, each ahead of a return; and functions with registers to spare. Unwinders go astray where nothing is told and no frame of ours is below.
#[test]
fn powerpc64le_tells_wherever_its_stack_pointer_is_the_programs() {
    let behind = |word: u32| vec![word, 0x4e80_0020];
    let functions = [0x6000_0000, 0xf821_ff91, 0x4800_0401, 0x4182_0800].map(behind);
    let others = SPARES_POWERPC.map(<[u32]>::to_vec);
    check(Machine::PowerPc64Le, &[&functions[..], &others].concat(), true);
}
