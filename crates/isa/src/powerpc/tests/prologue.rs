//! Prologues as tables: code, and how much of it is emulated in one trap.

use super::bytes;
use crate::emulate::Stopped;
use crate::{BranchTargets, Displaced, EmulateError, Isa, Reason, Site, powerpc::POWERPC64LE};
use alloc::vec;

const SITE: u64 = 0x1000_0000;
const FIRST: Displaced = Displaced { start: SITE, length: 4, instructions: 1 };
const STACK: u64 = 0x7fff_f000;

fn together(words: &[u32], targets: &[u64], next: Option<u64>) -> u8 {
    let (code, targets) = (bytes(words), BranchTargets::new(targets.to_vec()));
    let site = Site::new(SITE, &code, &targets);
    let together = POWERPC64LE.together(&site, FIRST, next);
    assert_eq!(together.start, SITE);
    assert_eq!(together.length % 4, 0);
    together.instructions
}

const MFLR: u32 = 0x7c08_02a6; // mflr r0
const STD_LR: u32 = 0xf801_0010; // std r0,16(r1)
const STDU: u32 = 0xf821_ffe1; // stdu r1,-32(r1)
const STD_30: u32 = 0xfbc1_fff0; // std r30,-16(r1)
const STD_31: u32 = 0xfbe1_fff8; // std r31,-8(r1)
const NOP: u32 = 0x6000_0000;
const MR: u32 = 0x7c7f_1b78; // mr r31,r3
const LD: u32 = 0xe863_0000; // ld r3,0(r3)
const ADDIC: u32 = 0x3063_0001; // addic r3,r3,1
const BEQLR: u32 = 0x4d82_0020;
const BLR: u32 = 0x4e80_0020;

#[test]
fn instructions_join_as_long_as_the_hit_gets_no_dearer() {
    let cases: [(&str, &[u32], u8); 16] = [
        ("stores of saved registers, upwards", &[STD_30, STD_31, MR, BLR], 3),
        ("and downwards", &[STD_31, STD_30, MFLR, BLR], 3),
        ("a frame and what is next to its back chain", &[STDU, 0xf861_0008, BLR], 2),
        ("the set-up of the TOC", &[0x3c4c_0022, 0x3842_1730, MFLR, 0x2c23_0000, BLR], 4),
        ("a prefixed instruction", &[MR, 0x0600_0000, 0x3860_0001, BLR], 2),
        ("registers, and a nop", &[MFLR, NOP, MR, BLR], 3),
        ("nothing is stored behind what stores nothing", &[MFLR, STD_LR], 1),
        ("not what leaves a gap", &[STD_LR, STDU], 1),
        ("not what is stored elsewhere", &[STD_31, 0xf883_0000], 1),
        ("not what loads", &[MR, LD], 1),
        ("a load is alone", &[LD, MR], 1),
        ("a branch ends it", &[MR, 0x4182_0010, MR], 1),
        ("a conditional return, too", &[MR, BEQLR, MR], 1),
        ("nothing joins a nop", &[NOP, MR], 1),
        ("not what carries", &[MR, ADDIC], 1),
        ("not what is not emulated", &[MR, 0x7c00_04ac], 1),
    ];
    for (name, words, expected) in cases {
        assert_eq!(together(words, &[], None), expected, "{name}");
    }
    assert_eq!(together(&[MR; 20], &[], None), 12, "no more than a dozen");
}

#[test]
fn it_ends_where_a_branch_or_another_probe_may_begin() {
    for (end, expected) in [(4, 1), (8, 2), (12, 3), (100, 4)] {
        // The site itself is no end.
        assert_eq!(together(&[MR; 4], &[SITE, SITE + end], None), expected, "a branch to {end}");
        assert_eq!(together(&[MR; 4], &[], Some(SITE + end)), expected, "a probe at {end}");
    }
}

#[test]
fn where_an_instruction_leads_that_changes_nothing_else() {
    for (name, words, to) in [
        ("nop", &[NOP][..], Some(4)),
        ("pnop", &[0x0700_0000, 0], Some(8)),
        ("b .+16", &[0x4800_0010], Some(16)),
        ("bl .+16", &[0x4800_0011], None),
        ("beq .+16", &[0x4182_0010], None),
        ("bdnz .+16", &[0x4200_0010], None),
        ("beqlr", &[BEQLR], None),
        ("blr", &[BLR], None),
        ("mr r3,r3", &[0x7c63_1b78], None),
        ("iselgt r3,r4,r3", &[0x7c64_185e], None),
        ("isync", &[0x4c00_012c], None),
    ] {
        assert_eq!(POWERPC64LE.leads_to(&bytes(words), SITE), to.map(|offset| SITE + offset), "{name}");
    }
    assert_eq!(POWERPC64LE.leads_to(&[0, 0], SITE), None, "half an instruction");
}

fn stopped(bottom: u64) -> Stopped {
    let mut registers = core::array::from_fn(|number| 100 + number as u64);
    registers[1] = STACK;
    Stopped { registers, flags: 0, ip: SITE, written: vec![], bottom, memory: None }
}

#[test]
fn a_prologue_is_done_at_once() {
    let mut thread = stopped(0);
    // …; cmpdi cr0,r3,0
    let words = [STD_30, STD_31, MFLR, MR, 0x2c23_0000];
    assert_eq!(POWERPC64LE.emulate(&bytes(&words), SITE, &mut thread), Ok(()));
    thread.written.sort_unstable();
    assert_eq!(thread.written, [(STACK - 16, 130), (STACK - 8, 131)]);
    // lr is number 36.
    assert_eq!((thread.registers[0], thread.registers[31], thread.flags), (136, 103, 4 << 28));
    assert_eq!(thread.ip, SITE + 20);
}

/// The numbers are those of the kernel's registers.
#[test]
fn branches_use_the_link_and_the_count() {
    for (name, word, ip, registers) in [
        ("bl .+16", 0x4800_0011_u32, SITE + 16, [135, SITE + 4, 137]),
        ("blr", BLR, 136, [135, 136, 137]),
        ("bctr", 0x4e80_0420, 132, [135, 136, 137]),
        ("bdnz .+16", 0x4200_0010, SITE + 16, [134, 136, 137]),
        ("mtctr r3", 0x7c69_03a6, SITE + 4, [103, 136, 137]),
    ] {
        let mut thread = stopped(0);
        assert_eq!(POWERPC64LE.emulate(&word.to_le_bytes(), SITE, &mut thread), Ok(()), "{name}");
        assert_eq!(thread.ip, ip, "{name}");
        assert_eq!(thread.registers[35..], registers, "{name}");
    }
}

#[test]
fn what_cannot_be_done_as_a_whole_is_told() {
    let emulate = |words: &[u32], bottom| POWERPC64LE.emulate(&bytes(words), SITE, &mut stopped(bottom));
    assert_eq!(emulate(&[STDU], STACK - 32), Ok(()));
    assert_eq!(emulate(&[STDU], STACK - 24), Err(EmulateError::Fault));
    let carries = Err(EmulateError::Refused(Reason::NotEmulated("an instruction that carries")));
    assert_eq!(emulate(&[MR, ADDIC], 0), carries);
    let half = POWERPC64LE.emulate(&bytes(&[MR])[..2], SITE, &mut stopped(0));
    assert_eq!(half, Err(EmulateError::Refused(Reason::NotAnInstruction)));
}
