//! Slots as tables: the instruction, where the slot stands, and what it then holds.

use super::bytes;
use crate::{Displaced, Facts, Isa, Reason, Slot, aarch64::AARCH64};
use alloc::vec::Vec;

const SITE: u64 = 0x40_0000;
const NEAR: u64 = 0x50_0000;
const FAR: u64 = SITE + (64 << 20);
const BRK: u32 = 0xd420_0000;
/// From one behind the start of the near slot to one behind the site; from anywhere there to the same place at the site.
const BACK: u32 = 0x17fc_0000;

fn displaced() -> Displaced {
    Displaced { start: SITE, length: 4, instructions: 1 }
}

fn slot(word: u32, address: u64, boosted: bool) -> Result<Slot, Reason> {
    AARCH64.slot(&displaced(), &bytes(&[word]), address, boosted)
}

fn facts() -> &'static Facts {
    AARCH64.facts()
}

#[test]
fn a_boosted_slot_is_the_copy_and_a_branch_to_the_next_instruction() {
    for (name, word, copy) in [
        ("nop", 0xd503_201f, 0xd503_201f),
        ("stp x29, x30, [sp, #-16]!", 0xa9bf_7bfd, 0xa9bf_7bfd),
        ("adrp x0, .", 0x9000_0000, 0x1080_0000),
        ("adr xzr, .", 0x1000_001f, 0xd503_201f),
        ("b .+16", 0x1400_0004, 0x17fc_0004),
        ("b.al .+16", 0x5400_008e, 0x17fc_0004),
        ("ret", 0xd65f_03c0, 0xd65f_03c0),
        ("ldxr x1, [x0]", 0xc85f_7c01, 0xc85f_7c01),
        ("svc #0", 0xd400_0001, 0xd400_0001),
    ] {
        let slot = slot(word, NEAR, true).expect(name);
        assert_eq!(slot, Slot { code: bytes(&[copy, BACK]), copy: 4, boosted: true }, "{name}");
        assert!(!slot.ends_in_break(facts()), "{name}");
    }
}

#[test]
fn a_stepped_slot_traps_at_its_end_unless_it_is_a_branch() {
    let cases: [(&str, u32, u64, &[u32], bool); 7] = [
        ("nop", 0xd503_201f, NEAR, &[0xd503_201f], true),
        ("stp x29, x30, [sp, #-16]!", 0xa9bf_7bfd, NEAR, &[0xa9bf_7bfd], true),
        ("adr x1, .+32", 0x1000_0101, NEAR, &[0x1080_0101], true),
        ("adr x1, .+32, far", 0x1000_0101, FAR, &[0xd280_0401, 0xf2a0_0801], true),
        ("b .+16", 0x1400_0004, NEAR, &[0x17fc_0004], false),
        ("ret", 0xd65f_03c0, NEAR, &[0xd65f_03c0], false),
        // x30 = 0x400004
        ("bl .+64", 0x9400_0010, NEAR, &[0xd280_009e, 0xf2a0_081e, 0x17fc_000e], false),
    ];
    for (name, word, address, copy, breaks) in cases {
        let slot = slot(word, address, false).expect(name);
        let end = if breaks { &[BRK][..] } else { &[] };
        assert_eq!(slot.code, bytes(&[copy, end].concat()), "{name}");
        assert_eq!(slot.copy as usize, 4 * copy.len(), "{name}");
        assert_eq!(slot.ends_in_break(facts()), breaks, "{name}");
    }
}

/// It stays one instruction however far its target is, and one step tells where it goes.
#[test]
fn a_conditional_branch_in_a_slot_leads_two_ways() {
    for (name, word, copy, taken) in [
        ("b.eq .+16", 0x5400_0080, 0x5400_0040, 0x17fc_0002),
        ("cbz x0, .+8", 0xb400_0040, 0xb400_0040, 0x17fc_0000),
        ("tbnz w0, #0, .+32", 0x3700_0100, 0x3700_0040, 0x17fc_0006),
    ] {
        for boosted in [false, true] {
            let slot = slot(word, NEAR, boosted).expect(name);
            assert_eq!(slot, Slot { code: bytes(&[copy, BACK, taken]), copy: 4, boosted }, "{name}");
            assert!(!slot.ends_in_break(facts()), "{name}");
        }
    }
}

/// S2's rule at each stop position of a slot.
#[test]
fn a_thread_in_a_slot_stands_at_the_original_or_at_the_next_instruction() {
    for (word, boosted) in
        [(0xd503_201f, true), (0xd503_201f, false), (0x5400_0080, true), (0x9400_0010, false)]
    {
        let slot = slot(word, FAR, boosted).unwrap();
        let places: Vec<_> = (0..=slot.code.len() as u64)
            .step_by(4)
            .filter_map(|offset| Some((offset, slot.original_of(&displaced(), offset)?)))
            .collect();
        assert_eq!(places, [(0, SITE), (slot.copy.into(), SITE + 4)], "{word:#x}");
    }
}

#[test]
fn what_has_no_slot_says_why() {
    const REACH: u64 = 128 << 20;
    let cases: [(&str, u32, u64, [Option<Reason>; 2]); 11] = [
        ("bl", 0x9400_0010, NEAR, [Some(Reason::NotBoosted("a call")), None]),
        ("blr x0", 0xd63f_0000, NEAR, [Some(Reason::NotBoosted("a call")), None]),
        ("adr x1", 0x1000_0101, NEAR, [Some(Reason::NotBoosted("adr")), None]),
        ("ldr x1, .+8", 0x5800_0041, NEAR, [Some(Reason::NotBoosted("a literal load")), None]),
        ("ldxr x1, [x0]", 0xc85f_7c01, NEAR, [None, Some(Reason::ExclusiveWindow)]),
        ("svc #0", 0xd400_0001, NEAR, [None, Some(Reason::Unmovable("a system call, to be stepped,"))]),
        ("brk #0", BRK, NEAR, [Some(Reason::Traps); 2]),
        ("wfe", 0xd503_205f, NEAR, [Some(Reason::Unmovable("wfe")); 2]),
        ("nop, far", 0xd503_201f, SITE + REACH + 4, [Some(Reason::OutOfReach), None]),
        ("cbz, far", 0xb400_0040, SITE + REACH + 4, [Some(Reason::OutOfReach); 2]),
        ("nop, at half a word", 0xd503_201f, NEAR + 2, [Some(Reason::MidInstruction); 2]),
    ];
    for (name, word, address, reasons) in cases {
        let found = [true, false].map(|boosted| slot(word, address, boosted).err());
        assert_eq!(found, reasons, "{name}");
    }
    assert!(slot(0xd503_201f, SITE + REACH, true).is_ok(), "the end of the reach");
}

/// It stands there before it has met it, too.
#[test]
fn a_thread_at_a_breakpoint_may_not_have_met_it() {
    assert_eq!(facts().advance, 0);
    assert!(!AARCH64.is_unmistakable(&bytes(&[0xd503_201f])));
    assert!(!AARCH64.saves_step(&bytes(&[0xd53b_4200])));
}
