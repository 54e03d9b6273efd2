//! Prologues as tables: code, and how much of it is emulated in one trap.

use super::bytes;
use crate::emulate::Stopped;
use crate::{BranchTargets, Displaced, EmulateError, Isa, Reason, Site, aarch64::AARCH64};
use alloc::vec;

const SITE: u64 = 0x40_0000;
const FIRST: Displaced = Displaced { start: SITE, length: 4, instructions: 1 };
const STACK: u64 = 0x7fff_f000;

fn together(words: &[u32], targets: &[u64], next: Option<u64>) -> u8 {
    let (code, targets) = (bytes(words), BranchTargets::new(targets.to_vec()));
    let site = Site::new(SITE, &code, &targets);
    let together = AARCH64.together(&site, FIRST, next);
    assert_eq!((together.start, together.length), (SITE, 4 * together.instructions));
    together.instructions
}

const STP_PUSH: u32 = 0xa9bd_7bfd; // stp x29, x30, [sp, #-48]!
const MOV_FP: u32 = 0x9100_03fd; // mov x29, sp
const STP_19: u32 = 0xa901_53f3; // stp x19, x20, [sp, #16]
const STR_21: u32 = 0xf900_13f5; // str x21, [sp, #32]
const NOP: u32 = 0xd503_201f;
const MOV: u32 = 0xaa01_03e0; // mov x0, x1
const ADRP: u32 = 0x9000_0001;
const LDR: u32 = 0xf940_0000; // ldr x0, [x0]
const RET: u32 = 0xd65f_03c0;

#[test]
fn instructions_join_as_long_as_the_hit_gets_no_dearer() {
    let cases: [(&str, &[u32], u8); 18] = [
        ("all of gcc's prologue", &[STP_PUSH, MOV_FP, STP_19, STR_21, ADRP, LDR], 5),
        // sub sp, sp, #48; stp x29, x30, [sp, #32]; stp x20, x19, [sp, #16]; add x29, sp, #32
        ("clang's, but for its first", &[0xa902_7bfd, 0xa901_4ff4, 0x9100_83fd, RET], 3),
        ("nothing is stored behind what stores nothing", &[0xd100_c3ff, 0xa902_7bfd], 1),
        ("pushes", &[0xa9bf_7bfd, 0xa9bf_53f3, 0xf81f_0ff5, RET], 2),
        ("registers, addresses and flags", &[MOV, ADRP, 0xf100_041f, NOP, RET], 4),
        ("stores by the frame pointer", &[STP_PUSH, MOV_FP, 0xa901_53b3, RET], 3),
        ("one word of two", &[0xb900_0fe0, 0xb900_0be1, RET], 2),
        ("not what leaves a gap", &[STP_PUSH, STR_21], 1),
        ("not what is stored again", &[STP_PUSH, 0xf900_03ff], 1),
        ("not what is stored elsewhere", &[STP_PUSH, 0xf900_0020], 1),
        ("not what is stored at an index", &[STP_PUSH, 0xf821_6be0], 1),
        ("not what loads", &[MOV, LDR], 1),
        ("a load is alone", &[LDR, MOV], 1),
        ("a store elsewhere is alone", &[0xf900_0020, MOV], 1),
        ("a branch ends it, and is alone", &[MOV, 0xb400_0040, MOV], 1),
        ("a call is alone", &[0x9400_0010, MOV], 1),
        ("nothing joins a nop", &[NOP, MOV], 1),
        ("not what is not emulated", &[MOV, 0xd53b_d040], 1),
    ];
    for (name, words, expected) in cases {
        assert_eq!(together(words, &[], None), expected, "{name}");
    }
    assert_eq!(together(&[MOV; 20], &[], None), 12, "no more than a dozen");
}

#[test]
fn it_ends_where_a_branch_or_another_probe_may_begin() {
    for (end, expected) in [(4, 1), (8, 2), (12, 3), (100, 4)] {
        // The site itself is no end.
        assert_eq!(together(&[MOV; 4], &[SITE, SITE + end], None), expected, "a branch to {end}");
        assert_eq!(together(&[MOV; 4], &[], Some(SITE + end)), expected, "a probe at {end}");
    }
}

#[test]
fn where_an_instruction_leads_that_changes_nothing_else() {
    for (name, word, to) in [
        ("nop", NOP, Some(4)),
        ("bti c", 0xd503_245f, Some(4)),
        ("prfm pldl1keep, [x0]", 0xf980_0000, Some(4)),
        ("b .+16", 0x1400_0004, Some(16)),
        ("bl .+16", 0x9400_0004, None),
        ("b.eq .+16", 0x5400_0080, None),
        ("br x0", 0xd61f_0000, None),
        ("ret", RET, None),
        ("mov x0, x0", 0xaa00_03e0, None),
        ("csel x0, x1, x0, hi", 0x9a80_8020, None),
        ("sev", 0xd503_209f, None),
    ] {
        assert_eq!(AARCH64.leads_to(&bytes(&[word]), SITE), to.map(|offset| SITE + offset), "{name}");
    }
    assert_eq!(AARCH64.leads_to(&[0x1f, 0x20], SITE), None, "half an instruction");
}

fn stopped(bottom: u64) -> Stopped {
    let mut registers = core::array::from_fn(|number| 100 + number as u64);
    registers[31] = STACK;
    Stopped { registers, flags: 0, ip: SITE, written: vec![], bottom, memory: None }
}

#[test]
fn a_prologue_is_done_at_once() {
    let mut thread = stopped(0);
    let words = [STP_PUSH, MOV_FP, STP_19, STR_21, ADRP];
    assert_eq!(AARCH64.emulate(&bytes(&words), SITE, &mut thread), Ok(()));
    let sp = STACK - 48;
    thread.written.sort_unstable();
    assert_eq!(thread.written, [(sp, 129), (sp + 8, 130), (sp + 16, 119), (sp + 24, 120), (sp + 32, 121)]);
    assert_eq!((thread.registers[29], thread.registers[31], thread.registers[1]), (sp, sp, SITE));
    assert_eq!(thread.ip, SITE + 20);
}

#[test]
fn what_cannot_be_done_as_a_whole_is_told() {
    let emulate = |words: &[u32], bottom| AARCH64.emulate(&bytes(words), SITE, &mut stopped(bottom));
    assert_eq!(emulate(&[STP_PUSH], STACK - 48), Ok(()));
    assert_eq!(emulate(&[STP_PUSH], STACK - 40), Err(EmulateError::Fault));
    let not_emulated = EmulateError::Refused(Reason::NotEmulated("a system instruction"));
    assert_eq!(emulate(&[MOV, 0xd53b_d040], 0), Err(not_emulated));
    let half = AARCH64.emulate(&bytes(&[MOV])[..2], SITE, &mut stopped(0));
    assert_eq!(half, Err(EmulateError::Refused(Reason::NotAnInstruction)));
}
