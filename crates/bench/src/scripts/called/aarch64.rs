//! The function and the loop on arm64.

use crate::assembly::functions;

functions!(
    r#"
    // uint64_t called(uint64_t key, const char *text, uint64_t number)
    trapless_function called
        str x19, [sp, #-16]!
        .cfi_def_cfa_offset 16
        .cfi_offset 19, -16
        mov x19, x0
        add x0, x19, x2
        ldr x19, [sp], #16
        .cfi_def_cfa_offset 0
        .cfi_restore 19
        ret
    trapless_function_end called

    // void calling(const char *const *texts, uint64_t times), times > 0
    trapless_function calling
        stp x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset 29, -48
        .cfi_offset 30, -40
        stp x19, x20, [sp, #16]
        .cfi_offset 19, -32
        .cfi_offset 20, -24
        str x21, [sp, #32]
        .cfi_offset 21, -16
        mov x29, x0
        mov x19, x1
        mov w20, #{mix_low}
        movk w20, #{mix_high}, lsl #16
        mov x21, #0
        .p2align 6
    1:  mul w0, w21, w20
        and x1, x21, #{texts} - 1
        lsr w0, w0, #3
        ldr x1, [x29, x1, lsl #3]
        and w0, w0, #{keys} - 1
        mov x2, x21
        bl trapless_bench_called
        add x21, x21, #1
        cmp x21, x19
        b.ne 1b
        ldr x21, [sp, #32]
        ldp x19, x20, [sp, #16]
        ldp x29, x30, [sp], #48
        .cfi_def_cfa_offset 0
        .cfi_restore 19
        .cfi_restore 20
        .cfi_restore 21
        .cfi_restore 29
        .cfi_restore 30
        ret
    trapless_function_end calling

    // void deep(const char *const *texts, uint64_t times, uint64_t chain): calling, so many frames further down
    trapless_function deep
        stp x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset 29, -48
        .cfi_offset 30, -40
        mov x29, x2
        cbz x2, 2f
        sub x2, x2, #1
        bl trapless_bench_deep
        b 3f
    2:  bl trapless_bench_calling
    3:  ldp x29, x30, [sp], #48
        .cfi_def_cfa_offset 0
        .cfi_restore 29
        .cfi_restore 30
        ret
    trapless_function_end deep
    "#,
    mix_low = const super::MIX & 0xffff,
    mix_high = const super::MIX >> 16,
    texts = const super::TEXTS,
    keys = const super::KEYS,
);
