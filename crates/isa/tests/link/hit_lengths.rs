//! How many instructions a hit takes where nothing is out of the ordinary: from the branch at the site to the branch back, or to the
//! return of a followed call, the displaced instruction and both branches included.
//!
//! The code is walked as the processor does while no condition holds: all of a detour's conditional branches are for what is rare.

use crate::world::{SPARES_ARM64, SPARES_POWERPC, detour, detour_of};
use trapless_isa::{Additions, Detour, Flow, Machine, payload::*};

/// How many instructions run from `offset` until control leaves the detour.
fn walk(machine: Machine, detour: &Detour, offset: u32) -> u32 {
    let (mut at, mut count) = (u64::from(offset), 0);
    while let Some(code) = detour.code.get(at as usize..).filter(|code| !code.is_empty()) {
        let instruction = machine.isa().decode(code, at).unwrap();
        count += 1;
        at = match instruction.flow {
            Flow::Jump { target } | Flow::Call { target } => target,
            Flow::Return => return count,
            _ => instruction.end(),
        };
        assert!(count < 1000, "it does not end");
    }
    count
}

/// Of a hit that is counted; and of one that is counted and whose return is.
fn lengths(machine: Machine, additions: Additions) -> [u32; 2] {
    let count = Payload { entry: Steps::of([EntryStep::Count(128)]), ..Payload::default() };
    let steps = Steps::of([ReturnStep::Count(144)]);
    let followed = Payload { followed: Some(Followed { lost: 136, steps, way: Way::Paired }), ..count };
    [count, followed].map(|payload| length(machine, &detour(machine, additions, payload, false)))
}

fn length(machine: Machine, detour: &Detour) -> u32 {
    1 + walk(machine, detour, 0) + detour.return_point.map_or(0, |point| walk(machine, detour, point))
}

/// Of a hit that is counted, where the function has registers to spare.
fn spared(machine: Machine, function: &[u32], additions: Additions) -> u32 {
    let count = Payload { entry: Steps::of([EntryStep::Count(128)]), ..Payload::default() };
    length(machine, &detour_of(machine, function, additions, count, false).unwrap())
}

/// Nothing is saved and restored; on powerpc64le cr0, by two, where it is read yet.
#[test]
fn where_registers_are_to_spare() {
    assert_eq!(spared(Machine::AArch64, SPARES_ARM64, Additions::Loops), 15);
    assert_eq!(spared(Machine::AArch64, SPARES_ARM64, Additions::Single), 13);
    let of_powerpc = SPARES_POWERPC.map(|words| spared(Machine::PowerPc64Le, words, Additions::Loops));
    assert_eq!(of_powerpc, [16, 18]);
}

/// Of the first number three are the branches and the displaced instruction, four save and restore three registers, seven find a
/// block, and five add in a way that neither a handler nor another thread takes apart. Where the processor has `stadd`, three do, and two
/// registers are enough.
///
/// Of the second one, four more registers are saved and restored at each end, six give the place of the instance of the slot, and
/// the thread is looked for at the entry only, with its owner, by eight: the return finds by three what the entry has noted.
#[test]
fn of_arm64() {
    assert_eq!(lengths(Machine::AArch64, Additions::Loops), [19, 58]);
    assert_eq!(lengths(Machine::AArch64, Additions::Single), [15, 54]);
}

/// Of the first number three are the branches and the displaced instruction, four save and restore two pairs of registers, two keep cr0, which no
/// exclusive store leaves alone, eight find a block, and five add. Code cannot reach constants beside it without the link register; two of the eight make
/// the address of the thread table.
///
/// Of the second one, four more save and restore at the return, and two keep cr0. Three make a frame at the entry and take it away, so that walks
/// end there while lr is not known. Six give the instance of the slot at the entry and five at the return, two of which are its address, three and eight look
/// whether it is the call's, four find the block that it leads to, at each end, and eight move the return address in and out.
#[test]
fn of_powerpc64le() {
    assert_eq!(lengths(Machine::PowerPc64Le, Additions::Loops), [22, 67]);
}
