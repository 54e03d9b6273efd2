//! The triggers of powerpc64le.

use super::Execution::Emulated;
use super::{Probed, Trigger, USDT, probed};
use crate::assembly::functions;

functions!(
    r#"
    trapless_function nop
        nop
        blr
    trapless_function_end nop

    trapless_function blr
        blr
    trapless_function_end blr

    # Optimized code that calls begins with its return address,
    trapless_function o2
        mflr 0
        std 31, -8(1)
        std 0, 16(1)
        stdu 1, -48(1)
        mr 31, 3
        add 3, 31, 4
        addi 1, 1, 48
        ld 0, 16(1)
        ld 31, -8(1)
        mtlr 0
        blr
    trapless_function_end o2

    # code with locals and no calls with a frame,
    trapless_function stdu
        stdu 1, -48(1)
        stw 3, 40(1)
        lwz 3, 40(1)
        addi 1, 1, 48
        blr
    trapless_function_end stdu

    # and much with a condition, whose copy leaves by two ways.
    trapless_function bc
        beq 1f
        add 3, 3, 4
    1:  blr
    trapless_function_end bc

    # The site of a USDT probe, four bytes behind the start (`USDT`).
    trapless_function usdt_nop
        add 3, 3, 4
        nop
        add 3, 3, 5
        blr
    trapless_function_end usdt_nop

    # void calls(void (*function)(void), uint64_t times), times > 0
    .p2align 6
    .globl trapless_bench_calls
    .hidden trapless_bench_calls
    .type trapless_bench_calls, @function
    trapless_bench_calls:
        mflr 0
        std 30, -16(1)
        std 31, -8(1)
        std 0, 16(1)
        stdu 1, -48(1)
        mr 30, 3
        mr 31, 4
        .p2align 6
    1:  mr 12, 30
        mtctr 12
        bctrl
        addi 31, 31, -1
        cmpdi 31, 0
        bne 1b
        addi 1, 1, 48
        ld 0, 16(1)
        mtlr 0
        ld 30, -16(1)
        ld 31, -8(1)
        blr
    .size trapless_bench_calls, . - trapless_bench_calls

    # void increments(uint64_t *counter, uint64_t times): `usermode-count`
    .p2align 6
    .globl trapless_bench_increments
    .hidden trapless_bench_increments
    trapless_bench_increments:
    1:  ldarx 5, 0, 3
        addi 5, 5, 1
        stdcx. 5, 0, 3
        bne 1b
        addi 4, 4, -1
        cmpdi 4, 0
        bne 1b
        blr
    "#
);

unsafe extern "C" {
    fn trapless_bench_nop();
    fn trapless_bench_blr();
    fn trapless_bench_o2();
    fn trapless_bench_stdu();
    fn trapless_bench_bc();
    fn trapless_bench_usdt_nop();
}

/// All of them. The kernel emulates nearly everything (`arch/powerpc/lib/sstep.c`).
pub const TRIGGERS: &[Trigger] = &[
    probed("nop", trapless_bench_nop, Probed::Function, Emulated),
    probed("blr", trapless_bench_blr, Probed::Function, Emulated),
    probed("o2", trapless_bench_o2, Probed::Function, Emulated),
    probed("stdu", trapless_bench_stdu, Probed::Function, Emulated),
    probed("bc", trapless_bench_bc, Probed::Function, Emulated),
    probed("nop", trapless_bench_usdt_nop, USDT, Emulated),
];

/// What the probe of the site tells of: registers.
pub const USDT_OPERANDS: [&str; 3] = ["3", "4", "5"];
