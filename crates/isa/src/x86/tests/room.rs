//! Room for short jumps: (name, code, padding, offset of the site, targets, expected).

use super::hex;
use crate::{BranchTargets, Displaced, Machine, Reason, Site};
use alloc::{string::String, vec::Vec};

const AT: u64 = 0x40_1000;

/// xor eax,eax; and a branch behind it.
const ENTRY: &str = "31c0";

/// What a short jump at `site` takes: offsets of the room's start and end, and how many instructions were there.
fn room(code: &str, padding: &str, site: u64, targets: &[u64]) -> Result<(u64, u64, u8), Reason> {
    let (code, padding) = (hex(code), hex(padding));
    let targets = BranchTargets::new(targets.iter().map(|target| AT + target).collect::<Vec<_>>());
    let site = Site { address: AT + site, padding: &padding, ..Site::new(AT, &code, &targets) };
    let isa = Machine::X86_64.isa();
    let displaced = isa.verdict(&site).short?;
    let room = isa.room(&site, &displaced, &|_| false)?;
    // It is what a journal's reader makes of it, too.
    let [short, long] = isa.patches(&displaced, &room, AT + 0x10_0000, AT + 0x10_0100).unwrap();
    assert_eq!((short.len(), long.len()), (displaced.length.into(), room.length.into()));
    let entrance = displaced.start.wrapping_add_signed(2 + i64::from(short[1] as i8));
    assert_eq!((short[0], entrance), (0xeb, isa.entrance(&room)));
    let jump = isa.decode(&long[(entrance - room.start) as usize..], entrance).unwrap();
    assert_eq!(jump.flow, crate::Flow::Jump { target: AT + 0x10_0000 });
    if room.instructions > 0 {
        assert_eq!(isa.moved_to(&room, &long), AT + 0x10_0100);
    }
    Ok((room.start - AT, room.end() - AT, room.instructions))
}

fn code(parts: &[&str]) -> String {
    parts.concat()
}

#[test]
fn padding_that_nobody_reaches_is_room() {
    // mov eax,[rdi]; ret
    let short = code(&[ENTRY, "8b07c3"]);
    for (name, code, padding, targets, expected) in [
        ("behind the function", short.clone(), "0f1f4400 00", &[2][..], (5, 10, 0)),
        ("int3 behind it", short.clone(), "cccccccccc", &[2], (5, 10, 0)),
        ("inside, behind a jump", code(&[ENTRY, "8b07 eb05 9090909090 8b07 c3"]), "", &[2, 11], (6, 11, 0)),
        (
            "not where somebody jumps",
            code(&[ENTRY, "8b07 eb05 9090909090 8b07 c3"]),
            "6690 660f1f4400 00",
            &[2, 6],
            (14, 22, 0),
        ),
    ] {
        assert_eq!(room(&code, padding, 0, targets), Ok(expected), "{name}");
    }
    for (name, code, padding, targets) in [
        ("too little", short.clone(), "90909090", &[2][..]),
        ("zeros may be data", short.clone(), "0000000000", &[2]),
        ("entered", short.clone(), "9090909090", &[2, 7]),
        ("entered at its start", short.clone(), "9090909090", &[2, 5]),
        ("passed by", code(&[ENTRY, "8b07 9090909090 c3"]), "", &[2]),
        ("behind a call that may return", code(&[ENTRY, "e800000000"]), "9090909090", &[2]),
    ] {
        assert_eq!(room(&code, padding, 0, targets), Err(Reason::NoRoom), "{name}");
    }
}

#[test]
fn instructions_that_nothing_enters_are_moved_for_room() {
    // Two of five bytes each, and a third.
    let three = "b901000000 ba02000000 be03000000";
    for (name, code, targets, expected) in [
        ("right behind", code(&[ENTRY, three, "c3"]), &[2][..], (2, 12, 2)),
        ("behind what is entered", code(&[ENTRY, three, "c3"]), &[2, 7], (7, 17, 2)),
        ("a call stays", code(&[ENTRY, "e800000000", three, "c3"]), &[2], (7, 17, 2)),
        ("what must be met stays", code(&[ENTRY, "f30f1efa", three, "c3"]), &[2], (6, 16, 2)),
        ("behind a return, where somebody jumps", code(&[ENTRY, "8b07c3", three, "c3"]), &[2, 5], (5, 15, 2)),
        ("with a jump and filler", code(&[ENTRY, "b901000000 eb03 909090 c3"]), &[2, 12], (2, 12, 2)),
    ] {
        assert_eq!(room(&code, "", 0, targets), Ok(expected), "{name}");
    }
    for (name, code, targets) in [
        ("entered everywhere", code(&[ENTRY, three, "c3"]), &[2, 7, 12][..]),
        ("too short", code(&[ENTRY, "b901000000 ffc0 c3"]), &[2]),
        ("a table behind a return", code(&[ENTRY, "8b07c3", three, "c3"]), &[2]),
        ("syscalls stay", code(&[ENTRY, "b901000000 0f05 ba02000000 0f05 c3"]), &[2]),
    ] {
        assert_eq!(room(&code, "", 0, targets), Err(Reason::NoRoom), "{name}");
    }
    // The first instruction of a function stays where others look for it, and so does what is behind its endbr64.
    let code = code(&["f30f1efa b801000000 b901000000 31c0 8b07 c3"]);
    assert_eq!(room(&code, "", 14, &[16]), Err(Reason::NoRoom));
}

#[test]
fn a_short_jump_reaches_so_far_and_no_further() {
    let two_movs = "b901000000 b901000000";
    // Filled with what is entered at each instruction, so that nothing moves. Back: 128 bytes before the end of the short jump.
    for (gap, expected) in [(24, Ok((1, 11, 2))), (25, Err(Reason::NoRoom))] {
        let mut code = String::from("90") + two_movs;
        let mut targets = Vec::new();
        for at in 0..gap {
            code += "8b07 eb01 90";
            targets.extend([11 + 5 * at, 13 + 5 * at, 15 + 5 * at]);
        }
        let site = 11 + 5 * gap;
        // Its entrance, at 6, is 2 + site - 6 bytes before the end of the short jump.
        let reaches = site + 2 - 6 <= 128;
        assert_eq!(reaches, expected.is_ok(), "{gap}");
        code += "31c0 8b07 c3";
        targets.extend([site, site + 2, site + 4]);
        assert_eq!(room(&code, "", site, &targets), expected, "{gap}");
    }
    // On: 127 bytes behind it.
    for (gap, expected) in [(24, true), (25, false)] {
        let (mut code, mut targets) = (String::from(ENTRY), alloc::vec![2]);
        for at in 0..gap {
            code += "8b07 eb01 90";
            targets.extend([2 + 5 * at, 4 + 5 * at, 6 + 5 * at]);
        }
        let start = 2 + 5 * gap;
        assert_eq!(start + 5 <= 2 + 127, expected, "{gap}");
        code += two_movs;
        code += "c3";
        targets.push(start);
        let found = room(&code, "", 0, &targets);
        assert_eq!(found, if expected { Ok((start, start + 10, 2)) } else { Err(Reason::NoRoom) }, "{gap}");
    }
}

#[test]
fn patches_that_cannot_be_are_refused() {
    let isa = Machine::X86_64.isa();
    let at = |start, length, instructions| Displaced { start, length, instructions };
    let (site, room) = (at(AT, 2, 1), at(AT + 20, 10, 2));
    let patches = |site: &Displaced, room: &Displaced| isa.patches(site, room, AT + 0x1000, AT + 0x2000);
    assert!(patches(&site, &room).is_ok());
    assert_eq!(patches(&at(AT, 1, 1), &room), Err(Reason::TooShort));
    assert_eq!(patches(&site, &at(AT + 20, 9, 2)), Err(Reason::TooShort));
    assert_eq!(patches(&site, &at(AT + 20, 4, 0)), Err(Reason::TooShort));
    assert_eq!(patches(&site, &at(AT + 200, 10, 2)), Err(Reason::NoRoom));
    assert_eq!(patches(&site, &at(u64::MAX - 1, 10, 2)), Err(Reason::NoRoom));
    assert_eq!(isa.patches(&site, &room, AT + (1 << 40), AT), Err(Reason::OutOfReach));
    let arm = Machine::AArch64.isa();
    assert_eq!(arm.patches(&site, &room, AT, AT), Err(Reason::NotImplemented));
}

#[test]
fn where_jumps_lead_is_computed_an_instruction_alone_is_displaced() {
    let isa = Machine::X86_64.isa();
    // What a jump, a short jump and its room take in a function whose code computes where to jump to.
    for (name, code, padding, expected) in [
        ("five bytes in one instruction", "b801000000 c3", "", [Ok(()), Err(Reason::NoRoom)]),
        ("in two", "31c0 83c001 c3", "", [Err(Reason::ComputedJump), Err(Reason::NoRoom)]),
        ("in two, and padding", "31c0 83c001 c3", "9090909090", [Err(Reason::ComputedJump), Ok(())]),
        ("two of one byte", "9999 83c001 c3", "9090909090", [Err(Reason::ComputedJump); 2]),
        ("nops that may be entered", "c3 90909090", "", [Err(Reason::ComputedJump); 2]),
        (
            "room that may be entered",
            "31c0 83c001 c3 9090909090",
            "",
            [Err(Reason::ComputedJump), Err(Reason::NoRoom)],
        ),
        (
            "others that may be entered",
            "31c0 b901000000 ba02000000 c3",
            "",
            [Err(Reason::ComputedJump), Err(Reason::NoRoom)],
        ),
    ] {
        let (code, padding) = (hex(code), hex(padding));
        let targets = BranchTargets::default().with_computed(alloc::vec![AT]);
        let site = Site { padding: &padding, ..Site::new(AT, &code, &targets) };
        let ladder = isa.verdict(&site);
        let short = ladder.short.and_then(|displaced| isa.room(&site, &displaced, &|_| false));
        assert_eq!([ladder.jump, short].map(|rung| rung.map(|_| ())), expected, "{name}");
    }
}

#[test]
fn room_may_be_in_another_function_that_is_near() {
    let isa = Machine::X86_64.isa();
    // Behind it: xor eax,eax; ret; and then, without padding, mov eax,1; mov ecx,2; ret.
    let (stub, other) = (hex("31c0c3"), hex("b801000000 b902000000 c3"));
    let targets = BranchTargets::default();
    let site = |function, code| Site::new(function, code, &targets);
    let short = isa.verdict(&site(AT, &stub)).short.unwrap();
    assert_eq!(isa.room(&site(AT, &stub), &short, &|_| false), Err(Reason::NoRoom));
    let room_at = |function| isa.room(&site(function, &other), &short, &|_| false);
    // Its first instruction stays, and ten bytes behind it there are not.
    assert_eq!(room_at(AT + 3), Err(Reason::NoRoom));
    let longer = hex("b801000000 b902000000 ba03000000 c3");
    let reach = isa.in_reach(&short);
    for (function, is_near) in [
        (AT + 3, true),
        (AT - 16, true),
        // Behind its first five bytes the room's entrance is ten behind the function.
        (AT + 129 - 10, true),
        (AT + 129 - 9, false),
        (AT - 126 - 10, true),
        (AT - 126 - 11, false),
    ] {
        let room = isa.room(&site(function, &longer), &short, &|_| false);
        assert_eq!(room.is_ok(), is_near, "{:x}", function.wrapping_sub(AT));
        assert!(room.is_err() || reach.contains(&room.unwrap().start), "{room:?} {reach:x?}");
        let taken = isa.room(&site(function, &longer), &short, &|range| range.contains(&(function + 9)));
        assert_eq!(taken, Err(Reason::NoRoom));
    }
}
