//! The function and the loop on powerpc64le.

use crate::assembly::functions;

functions!(
    r#"
    # uint64_t called(uint64_t key, const char *text, uint64_t number)
    trapless_function called
        std 31, -8(1)
        .cfi_offset 31, -8
        mr 31, 3
        add 3, 31, 5
        ld 31, -8(1)
        .cfi_restore 31
        blr
    trapless_function_end called

    # void calling(const char *const *texts, uint64_t times), times > 0
    trapless_function calling
        mflr 0
        std 28, -32(1)
        std 29, -24(1)
        std 30, -16(1)
        std 31, -8(1)
        std 0, 16(1)
        stdu 1, -64(1)
        .cfi_def_cfa_offset 64
        .cfi_offset 28, -32
        .cfi_offset 29, -24
        .cfi_offset 30, -16
        .cfi_offset 31, -8
        .cfi_offset 65, 16
        mr 31, 3
        mr 30, 4
        lis 28, {mix_high}
        ori 28, 28, {mix_low}
        li 29, 0
        .p2align 6
    # Rotations and masks: (product >> 3) of 12 bits, and 8 * (number of the text) of 6.
    1:  mullw 3, 29, 28
        rlwinm 3, 3, 29, 20, 31
        rlwinm 4, 29, 3, 23, 28
        ldx 4, 31, 4
        mr 5, 29
        bl trapless_bench_called
        addi 29, 29, 1
        cmpd 29, 30
        bne 1b
        addi 1, 1, 64
        .cfi_def_cfa_offset 0
        ld 0, 16(1)
        mtlr 0
        .cfi_restore 65
        ld 28, -32(1)
        ld 29, -24(1)
        ld 30, -16(1)
        ld 31, -8(1)
        .cfi_restore 28
        .cfi_restore 29
        .cfi_restore 30
        .cfi_restore 31
        blr
    trapless_function_end calling

    # void deep(const char *const *texts, uint64_t times, uint64_t chain): calling, so many frames further down
    trapless_function deep
        mflr 0
        std 31, -8(1)
        std 0, 16(1)
        stdu 1, -48(1)
        .cfi_def_cfa_offset 48
        .cfi_offset 31, -8
        .cfi_offset 65, 16
        mr 31, 5
        cmpdi 5, 0
        beq 2f
        addi 5, 5, -1
        bl trapless_bench_deep
        b 3f
    2:  bl trapless_bench_calling
    3:  addi 1, 1, 48
        .cfi_def_cfa_offset 0
        ld 0, 16(1)
        mtlr 0
        .cfi_restore 65
        ld 31, -8(1)
        .cfi_restore 31
        blr
    trapless_function_end deep
    "#,
    mix_low = const super::MIX & 0xffff,
    mix_high = const (super::MIX >> 16) as i16,
);

// What the rotations say.
const _: () = assert!(super::KEYS == 1 << 12 && super::TEXTS == 1 << 6);
