//! Which faults instructions may raise.

use super::bytes;
use crate::{Faults, Isa, aarch64::AARCH64};

const NONE: Faults = Faults::NONE;
const MEMORY: Faults = Faults::MEMORY;
const INVALID: Faults = Faults::INVALID;
const ALL: Faults = Faults::ALL;

#[test]
fn faults_are_told_by_what_may_raise_them() {
    let floats = Faults::ARITHMETIC.with(INVALID);
    let extension = MEMORY.with(INVALID);
    for (name, word, expected) in [
        ("nop", 0xd503_201f, NONE),
        ("stp x29, x30, [sp, #-16]!", 0xa9bf_7bfd, NONE),
        ("ldp x29, x30, [sp], #16", 0xa8c1_7bfd, NONE),
        ("stp d8, d9, [sp, #-16]!", 0x6dbf_27e8, NONE),
        ("str q0, [sp, #16]", 0x3d80_07e0, NONE),
        ("str x0, [sp, x1]", 0xf821_6be0, MEMORY),
        ("ldr x0, [x0]", 0xf940_0000, MEMORY),
        ("ldr q0, [x0]", 0x3dc0_0000, MEMORY),
        ("str x19, [x29, #16]", 0xf900_0bb3, MEMORY),
        ("ldr q0, .+8", 0x9c00_0040, NONE),
        ("prfm pldl1keep, [x0]", 0xf980_0000, NONE),
        ("sub sp, sp, #32", 0xd100_83ff, NONE),
        ("sdiv x0, x0, x1", 0x9ac1_0c00, NONE),
        ("adrp x0, .", 0x9000_0000, NONE),
        ("bl .+64", 0x9400_0010, NONE),
        ("ret", 0xd65f_03c0, NONE),
        ("svc #0", 0xd400_0001, NONE),
        ("paciasp", 0xd503_233f, NONE),
        ("autiasp", 0xd503_23bf, INVALID),
        ("xpaclri", 0xd503_20ff, NONE),
        ("retaa", 0xd65f_0bff, INVALID),
        ("pacia x0, x1", 0xdac1_0020, INVALID),
        ("crc32b w0, w0, w1", 0x1ac1_4000, INVALID),
        ("ldar x0, [x0]", 0xc8df_fc00, MEMORY),
        ("ldxr x1, [x0]", 0xc85f_7c01, MEMORY),
        ("ldadd x0, x0, [x0]", 0xf820_0000, extension),
        ("ld1 {v0.16b}, [x0]", 0x4c40_7000, extension),
        ("mov v0.16b, v1.16b", 0x4ea1_1c20, NONE),
        ("movi v0.4s, #0", 0x4f00_0400, NONE),
        ("fmov d0, x0", 0x9e67_0000, NONE),
        ("fmov d0, d1", 0x1e60_4020, NONE),
        ("fmov h0, h1", 0x1ee0_4020, floats),
        ("dup v0.4s, w0", 0x4e04_0c00, NONE),
        ("add v0.4s, v0.4s, v1.4s", 0x4ea1_8400, NONE),
        ("cmeq v0.16b, v0.16b, v1.16b", 0x6e21_8c00, NONE),
        ("fadd v0.4s, v0.4s, v1.4s", 0x4e21_d400, floats),
        ("fadd d0, d0, d1", 0x1e61_2800, floats),
        ("scvtf d0, w0", 0x1e62_0000, floats),
        ("aese v0.16b, v1.16b", 0x4e28_4820, floats),
        ("mrs x0, tpidr_el0", 0xd53b_d040, NONE),
        ("msr fpcr, x0", 0xd51b_4400, NONE),
        ("mrs x0, cntvct_el0", 0xd53b_e040, MEMORY),
        ("dc zva, x0", 0xd50b_7420, MEMORY),
        ("dmb ish", 0xd503_3bbf, NONE),
        ("isb", 0xd503_3fdf, NONE),
        ("sb", 0xd503_30ff, INVALID),
        ("mrs x0, midr_el1", 0xd538_0000, ALL),
        ("SVE", 0x04e0_0000, ALL),
        ("brk #0", 0xd420_0000, ALL),
        ("reserved", 0x0001_0000, ALL),
    ] {
        assert_eq!(AARCH64.may_fault(&bytes(&[word]), 0x1000), expected, "{name}");
    }
    let two = bytes(&[0xf940_0000, 0xd503_23bf]);
    assert_eq!(AARCH64.may_fault(&two, 0x1000), extension, "those of all instructions");
    assert_eq!(AARCH64.may_fault(&two[..6], 0x1000), ALL, "half an instruction");
}
