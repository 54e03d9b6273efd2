//! Slots as tables: original bytes, where the slot stands, and what it then holds.

use crate::{
    Displaced, Isa, Reason, Slot,
    x86::{I386, X86_64},
};
use alloc::vec::Vec;

const SITE: u64 = 0x40_0000;
const NEAR: u64 = 0x50_0000;
const FAR: u64 = 0x7000_0000_0000;

fn displaced(original: &[u8]) -> Displaced {
    Displaced { start: SITE, length: original.len() as u8, instructions: 1 }
}

fn slot(original: &[u8], address: u64, boosted: bool) -> Result<Slot, Reason> {
    X86_64.slot(&displaced(original), original, address, boosted)
}

#[test]
fn a_boosted_slot_is_the_copy_and_a_jump_to_the_next_instruction() {
    let cases: [(&str, &[u8], u64, &[u8]); 5] = [
        ("push rbp", &[0x55], NEAR, &[0x55, 0xe9, 0xfb, 0xff, 0xef, 0xff]),
        ("push rbp, far", &[0x55], FAR, &[0x55, 0xff, 0x25, 0, 0, 0, 0, 0x01, 0, 0x40, 0, 0, 0, 0, 0]),
        (
            "mov eax, [rip+0]",
            &[0x8b, 0x05, 0, 0, 0, 0],
            NEAR,
            &[0x8b, 0x05, 0, 0, 0xf0, 0xff, 0xe9, 0xfb, 0xff, 0xef, 0xff],
        ),
        // The copy has a rel32, so it ends four bytes later than the original.
        ("je +0x10", &[0x74, 0x10], NEAR, &[0x0f, 0x84, 0x0c, 0, 0xf0, 0xff, 0xe9, 0xf7, 0xff, 0xef, 0xff]),
        ("ret", &[0xc3], NEAR, &[0xc3, 0xe9, 0xfb, 0xff, 0xef, 0xff]),
    ];
    for (name, original, address, expected) in cases {
        let slot = slot(original, address, true).unwrap();
        assert_eq!(slot.code, expected, "{name}");
        let stepped = self::slot(original, address, false).unwrap();
        assert_eq!(stepped.code, expected[..slot.copy as usize], "{name}, stepped");
    }
}

/// S2's rule at each stop position of a slot.
#[test]
fn a_thread_in_a_slot_stands_at_the_original_or_at_the_next_instruction() {
    for (original, address) in [(&[0x55][..], NEAR), (&[0x55], FAR), (&[0x48, 0x89, 0xe5], NEAR)] {
        let slot = slot(original, address, true).unwrap();
        let copy = u64::from(slot.copy);
        let places: Vec<_> = (0..=slot.code.len() as u64)
            .filter_map(|offset| Some((offset, slot.original_of(&displaced(original), offset)?)))
            .collect();
        assert_eq!(places, [(0, SITE), (copy, SITE + original.len() as u64)]);
    }
}

#[test]
fn what_cannot_be_boosted_says_why() {
    let cases: [(&str, &[u8], u64, Reason); 3] = [
        ("call", &[0xe8, 0, 1, 0, 0], NEAR, Reason::NotBoosted("an instruction whose copy takes several")),
        (
            "je, its target out of reach",
            &[0x74, 0x10],
            FAR,
            Reason::NotBoosted("an instruction whose copy takes several"),
        ),
        ("mov eax, [rip], far", &[0x8b, 0x05, 0, 0, 0, 0], FAR, Reason::OutOfReach),
    ];
    for (name, original, address, reason) in cases {
        assert_eq!(slot(original, address, true), Err(reason), "{name}");
    }
}

/// The tracer clears a bit of what such an instruction has written, so nothing else may be taken for one.
#[test]
fn only_a_pushf_saves_the_flags_of_a_step() {
    let cases: [(&str, &[u8], bool, bool); 9] = [
        ("pushf", &[0x9c], true, true),
        ("pushfw", &[0x66, 0x9c], true, true),
        ("rex.w pushfq", &[0x48, 0x9c], true, false),
        ("cs pushf", &[0x2e, 0x9c], true, true),
        ("sub esp, -100", &[0x83, 0xec, 0x9c], false, false),
        ("mov eax, [ebp-100]", &[0x8b, 0x45, 0x9c], false, false),
        ("mov eax, 0x9c000000", &[0xb8, 0, 0, 0, 0x9c], false, false),
        ("push -100", &[0x6a, 0x9c], false, false),
        ("popf", &[0x9d], false, false),
    ];
    for (name, code, long, narrow) in cases {
        assert_eq!(X86_64.saves_step(code), long, "{name}");
        assert_eq!(I386.saves_step(code), narrow, "{name}, 32-bit mode");
    }
}

/// A tracer takes a thread one byte behind a site for one that has met the breakpoint there only if nobody runs from there.
#[test]
fn what_can_be_entered_behind_its_first_byte_is_mistakable() {
    let cases: [(&str, &[u8], bool); 4] = [
        ("push rbp", &[0x55], false),
        ("mov rbp, rsp", &[0x48, 0x89, 0xe5], true),
        ("lock inc [rax]", &[0xf0, 0xff, 0x00], false),
        ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa], true),
    ];
    for (name, code, is) in cases {
        assert_eq!(X86_64.is_unmistakable(code), is, "{name}");
    }
}
