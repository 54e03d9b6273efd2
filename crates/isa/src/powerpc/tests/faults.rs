//! Which faults instructions may raise.

use super::bytes;
use crate::{Faults, Isa, powerpc::POWERPC64LE};

const NONE: Faults = Faults::NONE;
const MEMORY: Faults = Faults::MEMORY;
const INVALID: Faults = Faults::INVALID;
const ALL: Faults = Faults::ALL;

#[test]
fn faults_are_told_by_what_may_raise_them() {
    let floats = Faults::ARITHMETIC.with(INVALID);
    let extension = MEMORY.with(INVALID);
    for (name, word, expected) in [
        ("mflr r0", 0x7c08_02a6, NONE),
        ("std r0,16(r1)", 0xf801_0010, NONE),
        ("stdu r1,-32(r1)", 0xf821_ffe1, NONE),
        ("stdu r1,-16384(r1) asks for stack", 0xf821_c001, MEMORY),
        ("stdux r1,r1,r0", 0x7c21_016a, MEMORY),
        ("ld r3,0(r3)", 0xe863_0000, MEMORY),
        ("ld r3,8(r13)", 0xe86d_0008, NONE),
        ("ld r3,8(r2)", 0xe862_0008, NONE),
        ("ld r3,8(0)", 0xe860_0008, MEMORY),
        ("lfd f0,8(r1)", 0xc801_0008, NONE),
        ("stfd f0,0(r3)", 0xd803_0000, MEMORY),
        ("lxvd2x vs0,0,r9", 0x7c00_4e98, extension),
        ("lxv vs0,0(r3)", 0xf403_0001, extension),
        ("lwarx r5,0,r3", 0x7ca0_1828, MEMORY),
        ("nop", 0x6000_0000, NONE),
        ("addic r3,r3,1", 0x3063_0001, NONE),
        ("divd r3,r3,r4", 0x7c63_23d2, NONE),
        ("divwo r3,r3,r4", 0x7c63_27d6, NONE),
        ("mulhwu r3,r3,r4", 0x7c63_2016, NONE),
        ("cnttzd r3,r3", 0x7c63_0474, INVALID),
        ("addpcis r3,0", 0x4c60_0004, INVALID),
        ("b .+16", 0x4800_0010, NONE),
        ("bctrl", 0x4e80_0421, NONE),
        ("isync", 0x4c00_012c, NONE),
        ("sync", 0x7c00_04ac, NONE),
        ("dcbt 0,r3", 0x7c00_1a2c, NONE),
        ("dcbz 0,r3", 0x7c00_1fec, MEMORY),
        ("mftb r3", 0x7c6c_42a6, NONE),
        ("mfspr r3,pvr", 0x7c7f_42a6, ALL),
        ("fmr f1,f2", 0xfc20_1090, NONE),
        ("fadd f1,f1,f2", 0xfc21_102a, floats),
        ("xxlor vs0,vs1,vs1", 0xf001_0c90, NONE),
        ("xxlxor vs0,vs0,vs0", 0xf000_04d0, NONE),
        ("vor v0,v1,v1", 0x1001_0c84, NONE),
        ("vaddfp v0,v0,v1", 0x1000_080a, floats),
        ("mtvsrd vs0,r3", 0x7c03_0166, NONE),
        ("tw 31,0,0", 0x7fe0_0008, ALL),
        ("sc", 0x4400_0002, ALL),
        ("zero", 0, ALL),
    ] {
        assert_eq!(POWERPC64LE.may_fault(&bytes(&[word]), 0x1000), expected, "{name}");
    }
    for (name, words, expected) in [
        ("pla r3,1", [0x0610_0000, 0x3860_0001], INVALID),
        ("pld r3,8(r3)", [0x0400_0000, 0xe463_0008], ALL),
        ("ld r3,0(r3); cnttzd r3,r3", [0xe863_0000, 0x7c63_0474], extension),
    ] {
        assert_eq!(POWERPC64LE.may_fault(&bytes(&words), 0x1000), expected, "{name}");
    }
    assert_eq!(POWERPC64LE.may_fault(&[0, 0, 0], 0x1000), ALL, "half an instruction");
}
