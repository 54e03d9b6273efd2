//! The triggers of arm64.

use super::Execution::{Emulated, EmulatedSince, Stepped};
use super::{Probed, Trigger, USDT, probed};
use crate::assembly::functions;

functions!(
    r#"
    trapless_function nop
        nop
        ret
    trapless_function_end nop

    trapless_function stp
        stp x29, x30, [sp, #-16]!
        mov x29, sp
        ldp x29, x30, [sp], #16
        ret
    trapless_function_end stp

    trapless_function ret
        ret
    trapless_function_end ret

    // A landing pad and a signature stay at the entry, and what follows them is probed. By their numbers among the hints, since not
    // every assembler knows their names.
    trapless_function bti
        hint #34
        add x0, x0, x1
        ret
    trapless_function_end bti

    trapless_function paciasp
        hint #25
        add x0, x0, x1
        hint #29
        ret
    trapless_function_end paciasp

    // Optimized code that keeps values over calls begins with a pair of stores,
    trapless_function o2
        stp x29, x30, [sp, #-32]!
        mov x29, sp
        stp x19, x20, [sp, #16]
        mov x19, x0
        add x0, x19, x1
        ldp x19, x20, [sp, #16]
        ldp x29, x30, [sp], #32
        ret
    trapless_function_end o2

    // and code with locals and no such values with a subtraction.
    trapless_function sub
        sub sp, sp, #16
        str w0, [sp, #12]
        ldr w0, [sp, #12]
        add sp, sp, #16
        ret
    trapless_function_end sub

    // The site of a USDT probe, four bytes behind the start (`USDT`).
    trapless_function usdt_nop
        add x0, x0, x1
        nop
        add x0, x0, x2
        ret
    trapless_function_end usdt_nop

    // void calls(void (*function)(void), uint64_t times), times > 0
    .p2align 6
    .globl trapless_bench_calls
    .hidden trapless_bench_calls
    .type trapless_bench_calls, %function
    trapless_bench_calls:
        stp x29, x30, [sp, #-32]!
        mov x29, sp
        stp x19, x20, [sp, #16]
        mov x19, x1
        mov x20, x0
        .p2align 6
    1:  blr x20
        sub x19, x19, #1
        cbnz x19, 1b
        ldp x19, x20, [sp, #16]
        ldp x29, x30, [sp], #32
        ret
    .size trapless_bench_calls, . - trapless_bench_calls

    // void increments(uint64_t *counter, uint64_t times): `usermode-count`, as every processor of arm64 can
    .p2align 6
    .globl trapless_bench_increments
    .hidden trapless_bench_increments
    trapless_bench_increments:
    1:  ldxr x2, [x0]
        add x2, x2, #1
        stxr w3, x2, [x0]
        cbnz w3, 1b
        sub x1, x1, #1
        cbnz x1, 1b
        ret
    "#
);

unsafe extern "C" {
    fn trapless_bench_nop();
    fn trapless_bench_stp();
    fn trapless_bench_ret();
    fn trapless_bench_bti();
    fn trapless_bench_paciasp();
    fn trapless_bench_o2();
    fn trapless_bench_sub();
    fn trapless_bench_usdt_nop();
}

/// All of them. What the kernel emulates is in `arch/arm64/kernel/probes/decode-insn.c`.
pub const TRIGGERS: &[Trigger] = &[
    probed("nop", trapless_bench_nop, Probed::Function, EmulatedSince(6, 13)),
    probed("stp", trapless_bench_stp, Probed::Function, Stepped),
    probed("ret", trapless_bench_ret, Probed::Function, Emulated),
    probed("bti", trapless_bench_bti, Probed::Function, Stepped),
    probed("paciasp", trapless_bench_paciasp, Probed::Function, Stepped),
    probed("o2", trapless_bench_o2, Probed::Function, Stepped),
    probed("sub", trapless_bench_sub, Probed::Function, Stepped),
    probed("nop", trapless_bench_usdt_nop, USDT, EmulatedSince(6, 13)),
];

/// What the probe of the site tells of: registers.
pub const USDT_OPERANDS: [&str; 3] = ["x0", "x1", "x2"];
