//! Slots as tables: the instruction, where the slot stands, and what it then holds.

use super::bytes;
use crate::{Displaced, Facts, Isa, Reason, Slot, powerpc::POWERPC64LE};
use alloc::vec::Vec;

const SITE: u64 = 0x1000_0000;
const NEAR: u64 = SITE + 0x1000;
const TRAP: u32 = 0x7fe0_0008;
const NOP: u32 = 0x6000_0000;
const PADDI: [u32; 2] = [0x0600_0000, 0x3860_0001];
/// From anywhere in the near slot to the same place at the site.
const BACK: u32 = 0x4bff_f000;

/// Instructions by name, and where the slot stands.
type Case = (&'static str, &'static [u32], u64);

fn displaced(words: &[u32]) -> Displaced {
    Displaced { start: SITE, length: 4 * words.len() as u8, instructions: 1 }
}

fn slot(words: &[u32], address: u64, boosted: bool) -> Result<Slot, Reason> {
    POWERPC64LE.slot(&displaced(words), &bytes(words), address, boosted)
}

fn facts() -> &'static Facts {
    POWERPC64LE.facts()
}

#[test]
fn a_boosted_slot_is_the_copy_and_a_branch_to_the_next_instruction() {
    let cases: [(&str, &[u32], &[u32]); 8] = [
        ("mflr r0", &[0x7c08_02a6], &[0x7c08_02a6]),
        ("stdu r1,-32(r1)", &[0xf821_ffe1], &[0xf821_ffe1]),
        ("b .+16", &[0x4800_0010], &[0x4bff_f010]),
        ("blr", &[0x4e80_0020], &[0x4e80_0020]),
        ("beqlr", &[0x4d82_0020], &[0x4d82_0020]),
        ("lwarx r5,0,r3", &[0x7ca0_1828], &[0x7ca0_1828]),
        ("paddi r3,0,1", &[0x0600_0000, 0x3860_0001], &[0x0600_0000, 0x3860_0001]),
        ("pla r3,1", &[0x0610_0000, 0x3860_0001], &[0x0613_ffff, 0x3860_f001]),
    ];
    for (name, words, copy) in cases {
        let slot = slot(words, NEAR, true).expect(name);
        assert_eq!(slot.code, bytes(&[copy, &[BACK]].concat()), "{name}");
        assert_eq!((slot.copy as usize, slot.boosted), (4 * copy.len(), true), "{name}");
        assert!(!slot.ends_in_break(facts()), "{name}");
    }
}

#[test]
fn a_stepped_slot_traps_at_its_end_unless_it_is_a_branch() {
    const CALL: [u32; 9] = [
        0xf981_fed0,
        0x3980_0000,
        0xf981_fde1,
        0x3d80_1000,
        0x618c_0004,
        0x7d88_03a6,
        0xe981_00f0,
        0x3821_0220,
        0x4bff_f020,
    ];
    let cases: [(Case, &[u32], bool); 7] = [
        (("nop", &[NOP], NEAR), &[NOP], true),
        (("paddi r3,0,1", &PADDI, NEAR), &PADDI, true),
        (("paddi, where it would cross a line", &PADDI, NEAR + 60), &[NOP, PADDI[0], PADDI[1]], true),
        // r3 = 0x1000_0004
        (("addpcis r3,0", &[0x4c60_0004], NEAR), &[0x3c60_1000, 0x6063_0004], true),
        (("b .+16", &[0x4800_0010], NEAR), &[0x4bff_f010], false),
        (("bctr", &[0x4e80_0420], NEAR), &[0x4e80_0420], false),
        (("bl .+64", &[0x4800_0041], NEAR), &CALL, false),
    ];
    for ((name, words, address), copy, breaks) in cases {
        let slot = slot(words, address, false).expect(name);
        let end = if breaks { &[TRAP][..] } else { &[] };
        assert_eq!(slot.code, bytes(&[copy, end].concat()), "{name}");
        assert_eq!(slot.copy as usize, 4 * copy.len(), "{name}");
        assert_eq!(slot.ends_in_break(facts()), breaks, "{name}");
    }
}

/// It stays one instruction however far its target is, and one step tells where it goes.
#[test]
fn a_conditional_branch_in_a_slot_leads_two_ways() {
    let cases: [(&str, u32, &[u32]); 4] = [
        ("beq .+16", 0x4182_0010, &[0x4182_0008, BACK, 0x4bff_f008]),
        ("bdnzt eq,.+16", 0x4102_0010, &[0x4102_0008, BACK, 0x4bff_f008]),
        ("bnea 0x10000000", 0x4082_0002, &[0x4082_0008, BACK, 0x4800_0002]),
        ("bdnz to itself", 0x4200_0000, &[0x4200_0000, BACK]),
    ];
    for (name, word, code) in cases {
        for boosted in [false, true] {
            // An absolute target of 0 is out of reach from here.
            let expected = match word & 2 {
                0 => Ok(Slot { code: bytes(code), copy: 4, boosted }),
                _ => Err(Reason::OutOfReach),
            };
            assert_eq!(slot(&[word], NEAR, boosted), expected, "{name}");
        }
    }
}

/// S2's rule at each stop position of a slot.
#[test]
fn a_thread_in_a_slot_stands_at_the_original_or_at_the_next_instruction() {
    for (words, boosted) in [
        (&[NOP][..], true),
        (&[NOP], false),
        (&[0x4182_0010], true),
        (&[0x4800_0041], false),
        (&[0x0600_0000, 0x3860_0001], true),
    ] {
        let (slot, displaced) = (slot(words, NEAR, boosted).unwrap(), displaced(words));
        let places: Vec<_> = (0..=slot.code.len() as u64)
            .step_by(4)
            .filter_map(|offset| Some((offset, slot.original_of(&displaced, offset)?)))
            .collect();
        assert_eq!(places, [(0, SITE), (slot.copy.into(), displaced.end())], "{words:x?}");
    }
}

#[test]
fn what_has_no_slot_says_why() {
    const REACH: u64 = 32 << 20;
    let several = Reason::NotBoosted("an instruction whose copy takes several");
    let link = Reason::Unmovable("a branch to the link register that sets it");
    let cases: [(Case, [Option<Reason>; 2]); 11] = [
        (("bl", &[0x4800_0041], NEAR), [Some(Reason::NotBoosted("a call")), None]),
        (("bctrl", &[0x4e80_0421], NEAR), [Some(Reason::NotBoosted("a call")), None]),
        (("addpcis", &[0x4c60_0004], NEAR), [Some(Reason::NotBoosted("addpcis")), None]),
        (("paddi at a line", &PADDI, NEAR + 60), [Some(several), None]),
        (("lwarx", &[0x7ca0_1828], NEAR), [None, Some(Reason::ExclusiveWindow)]),
        (("sc", &[0x4400_0002], NEAR), [Some(Reason::Unmovable("a system call")); 2]),
        (("trap", &[TRAP], NEAR), [Some(Reason::Traps); 2]),
        (("blrl", &[0x4e80_0021], NEAR), [Some(Reason::NotBoosted("a call")), Some(link)]),
        (("nop, far", &[NOP], SITE + REACH + 4), [Some(Reason::OutOfReach), None]),
        (("beq, far", &[0x4182_0010], SITE + REACH + 4), [Some(Reason::OutOfReach); 2]),
        (("nop, at half a word", &[NOP], NEAR + 2), [Some(Reason::MidInstruction); 2]),
    ];
    for ((name, words, address), reasons) in cases {
        let found = [true, false].map(|boosted| slot(words, address, boosted).err());
        assert_eq!(found, reasons, "{name}");
    }
    assert!(slot(&[NOP], SITE + REACH, true).is_ok(), "the end of the reach");
}

/// It stands there before it has met it, too.
#[test]
fn a_thread_at_a_breakpoint_may_not_have_met_it() {
    assert_eq!(facts().advance, 0);
    assert!(!POWERPC64LE.is_unmistakable(&bytes(&[NOP])));
    assert!(!POWERPC64LE.saves_step(&bytes(&[0x7c00_00a6])));
}
