//! Which functions may be followed to their return, and where jump tables lead.

use trapless_isa::{BranchTargets, Isa, ReadOnlyData, Reason, Site, aarch64::AARCH64};

const AT: u64 = 0x40_0000;
const RET: u32 = 0xd65f_03c0;
const PUSH: u32 = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
const FRAME: u32 = 0x9100_03fd; // mov x29, sp
const POP: u32 = 0xa8c2_7bfd; // ldp x29, x30, [sp], #32
const CALL: u32 = 0x9400_0100; // bl

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn verdict(words: &[u32]) -> Result<(), Reason> {
    let (code, targets) = (bytes(words), BranchTargets::default());
    let site = Site::new(AT, &code, &targets);
    AARCH64.return_verdict(&site)
}

#[test]
fn ordinary_functions_are_followed() {
    for (words, text) in [
        (&[RET][..], "a leaf"),
        (&[PUSH, FRAME, CALL, POP, RET], "a frame"),
        (&[0xd503_233f, PUSH, FRAME, CALL, POP, 0xd503_23bf, RET], "paciasp, autiasp"),
        (&[0xd503_233f, PUSH, FRAME, CALL, POP, 0xd65f_0bff], "paciasp, retaa"),
        (&[0xd100_83ff, 0xa901_7bfd, CALL, 0xa941_7bfd, 0x9100_83ff, RET], "sub sp; stp x29, x30, [sp, #16]"),
        (&[0xf81f_0ffe, CALL, 0xf841_07fe, RET], "str x30, [sp, #-16]!"),
        (&[PUSH, FRAME, 0x043f_579f, CALL, 0x043f_509f, POP, RET], "addvl sp, sp, #-4; addvl sp, sp, #4"),
        (
            &[0xd288_040c, 0xcb2c_63ff, 0xa900_7bfd, FRAME, CALL, 0xa940_7bfd, 0xd288_040c, 0x8b2c_63ff, RET],
            "mov x12, #16416; sub sp, sp, x12; stp x29, x30, [sp]",
        ),
        (
            &[0xd280_040c, 0xf2a0_002c, 0xcb2c_63ff, 0xa900_7bfd, CALL, 0xa940_7bfd, RET],
            "mov x12, #32; movk x12, #1, lsl #16; sub sp, sp, x12; stp x29, x30, [sp]",
        ),
        (&[PUSH, 0xaa00_03fe, 0x8b1e_0000, POP, RET], "x30 as any register, once saved"),
        (&[PUSH, FRAME, CALL, POP, 0x1400_0100], "a tail call"),
        (&[PUSH, FRAME, 0xf940_0fa1, POP, RET], "ldr x1, [x29, #24]: a local variable"),
        (&[0xd61f_0200], "br x16"),
        (&[CALL], "calls and never returns"),
    ] {
        assert_eq!(verdict(words), Ok(()), "{text}");
    }
}

#[test]
fn functions_that_look_at_their_return_address_are_refused() {
    for (words, text) in [
        (&[0xaa1e_03e0, RET][..], "mov x0, x30"),
        (&[0xaa1e_03ef, CALL, 0xd65f_01e0], "mov x15, x30; bl; ret x15: callees share its slot"),
        (&[0xa905_781d, RET], "stp x29, x30, [x0, #80]: setjmp"),
        (&[0xf900_001e, RET], "str x30, [x0]"),
        (&[0xd503_20ff, RET], "xpaclri"),
        (&[PUSH, FRAME, 0xf940_07a0, POP, RET], "ldr x0, [x29, #8]"),
        (&[PUSH, 0xf940_07e0, POP, RET], "ldr x0, [sp, #8]"),
        (&[PUSH, 0xd100_43ff, 0xf940_0fe0, 0x9100_43ff, POP, RET], "sub sp, sp, #16; ldr x0, [sp, #24]"),
        (&[PUSH, 0xa940_07e0, POP, RET], "ldp x0, x1, [sp]"),
        (&[0xd288_040c, 0xcb2c_63ff, 0xa900_7bfd, 0xf940_07e0, RET], "ldr x0, [sp, #8] in a large frame"),
        (&[0xcb2c_63ff, 0xa900_7bfd, RET], "sub sp, sp, x12; stp x29, x30, [sp]: nobody knows where"),
        (&[0xd288_040c, 0xf940_000c, 0xcb2c_63ff, 0xa900_7bfd, RET], "the same behind ldr x12, [x0]"),
        (&[0xd288_040c, 0xcb2c_73ff, 0xa900_7bfd, RET], "sub sp, sp, x12, lsl #4"),
        (&[0x043f_579f, 0xa900_7bfd, RET], "addvl sp, sp, #-4; stp x29, x30, [sp]: nobody knows where"),
        (&[PUSH, CALL, POP, 0xaa1e_03e1, 0x1400_0100], "x30 passed to a tail call"),
        (&[0x9e67_03c8, RET], "fmov d8, x30"),
    ] {
        assert_eq!(verdict(words), Err(Reason::ReadsReturnAddress), "{text}");
    }
}

#[test]
fn functions_that_return_by_another_way_are_refused() {
    for (words, text) in [
        (&[0xa945_781d, 0xd61f_03c0][..], "ldp x29, x30, [x0, #80]; br x30: longjmp"),
        (&[0xd65f_0280], "ret x20"),
    ] {
        assert_eq!(verdict(words), Err(Reason::ReturnsOddly), "{text}");
    }
}

/// A table at an address.
struct Table(u64, Vec<u8>);

impl ReadOnlyData for Table {
    fn at(&self, address: u64) -> &[u8] {
        address.checked_sub(self.0).and_then(|offset| self.1.get(offset as usize..)).unwrap_or_default()
    }
}

fn targets(words: &[u32], table: &Table) -> Vec<u64> {
    let mut targets = vec![];
    AARCH64.branch_targets(&bytes(words), AT, table, &mut targets);
    targets.sort_unstable();
    targets.dedup();
    targets.iter().map(|target| target - AT).collect()
}

#[test]
fn direct_branches_are_targets() {
    let words = [0x1400_0002, 0x5400_0060, 0x9400_0004, RET];
    assert_eq!(targets(&words, &Table(0, vec![])), [8, 16, 24]);
}

#[test]
fn jump_tables_are_read() {
    let gcc = [
        0x7100_0c1f, // cmp w0, #3
        0x5400_0108, // b.hi 36
        0xb000_0001, // adrp x1, +4096
        0x9100_4021, // add x1, x1, #16
        0x3860_4821, // ldrb w1, [x1, w0, uxtw]
        0x1000_0062, // adr x2, 32
        0x8b21_8841, // add x1, x2, w1, sxtb #2
        0xd61f_0020, // br x1
        RET,         // 32
        RET,         // 36
        RET,         // 40
        RET,
    ];
    // The fifth entry is not the table's.
    let table = Table(AT + 4096 + 16, vec![0, 1, 2, 0xff, 3]);
    assert_eq!(targets(&gcc, &table), [28, 32, 36, 40]);

    let clang = [
        0x9000_0008 | 1 << 29, // adrp x8, +4096
        0x9100_4108,           // add x8, x8, #16
        0x1000_0009 | 4 << 5,  // adr x9, 24
        0x7860_790a,           // ldrh w10, [x8, x0, lsl #1]
        0x8b0a_0929,           // add x9, x9, x10, lsl #2
        0xd61f_0120,           // br x9
        RET,                   // 24
        RET,
        RET, // 32
    ];
    let table = Table(AT + 4096 + 16, vec![0, 0, 2, 0, 0, 0x10, 1, 0]);
    assert_eq!(targets(&clang, &table), [24, 32], "ends where an entry leads outside");

    let offsets = [
        0x9000_0008 | 1 << 29, // adrp x8, +4096
        0x9100_0108,           // add x8, x8, #0
        0xb8a0_7909,           // ldrsw x9, [x8, x0, lsl #2]
        0x8b08_0129,           // add x9, x9, x8
        0xd61f_0120,           // br x9
        RET,                   // 20
    ];
    let table = Table(AT + 4096, (-4096i32 + 20).to_le_bytes().to_vec());
    assert_eq!(targets(&offsets, &table), [20], "relative to the table, the sum in the other order");
}

const PACIASP: u32 = 0xd503_233f;
const PACIBSP: u32 = 0xd503_237f;
const AUTIASP: u32 = 0xd503_23bf;
const BTI_C: u32 = 0xd503_245f;
const CBZ: u32 = 0xb400_0060; // cbz x0, #12

/// Where a function signs its return address, what it stores has to be signed anew when probes are taken out.
#[test]
fn what_a_function_stores_is_signed_by_the_instruction_that_it_has_for_it() {
    let kept = |words: &[u32]| {
        let (code, targets) = (bytes(words), BranchTargets::default());
        let site = Site::new(AT, &code, &targets);
        (AARCH64.return_kept_at(&site), AARCH64.return_signed_by(&site).map(|at| at - AT))
    };
    for (words, place, text) in [
        (&[PUSH, FRAME, CALL, POP, RET][..], (Some(-24), None), "nothing is signed"),
        (&[PACIASP, PUSH, FRAME, CALL, POP, AUTIASP, RET], (Some(-24), Some(0)), "first of all"),
        (&[BTI_C, PACIASP, PUSH, CALL, POP, AUTIASP, RET], (Some(-24), Some(4)), "behind a landing pad"),
        (&[BTI_C, CBZ, PACIASP, PUSH, CALL, POP, AUTIASP, RET], (Some(-24), Some(8)), "on one way only"),
        (&[CBZ, RET, PACIASP, PUSH, CALL, POP, AUTIASP, RET], (Some(-24), Some(8)), "behind a return"),
        (&[PACIASP, 0xaa00_03e1, AUTIASP, RET], (None, Some(0)), "and it is stored nowhere"),
        (&[PUSH, CALL, POP, RET, PACIASP, RET], (None, Some(16)), "not what is stored"),
        (&[CBZ, PUSH, CALL, POP, RET, PACIASP, PUSH, CALL], (None, Some(20)), "not all that is stored"),
    ] {
        if !text.starts_with("not") {
            assert_eq!(verdict(words), Ok(()), "{text}");
        }
        assert_eq!(kept(words), place, "{text}");
    }
    for (words, text) in [
        (&[0xd100_43ff, PACIASP, PUSH, CALL, POP, AUTIASP, RET][..], "sub sp, sp, #16 ahead of it"),
        (&[PACIASP, PUSH, CALL, POP, AUTIASP, RET, PACIBSP, PUSH, RET], "by two keys"),
        (&[0xd503_231f, PUSH, CALL, POP, RET], "paciaz"),
        (&[0xd503_235f, PUSH, CALL, POP, RET], "pacibz"),
        (&[0xd503_24ff, PACIASP, PUSH, CALL, POP, RET], "pacm"),
    ] {
        assert_eq!(verdict(words), Err(Reason::ReturnsOddly), "{text}");
    }
}
