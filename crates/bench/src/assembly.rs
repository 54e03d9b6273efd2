//! Functions in assembly, for each instruction set.

/// `global_asm!`, in which `trapless_function NAME` begins the function `trapless_bench_NAME` and `trapless_function_end NAME` ends it: 64 bytes
/// from any other, with padding behind it, and known to unwinders.
macro_rules! functions {
    ($text:expr $(, $($operands:tt)*)?) => {
        core::arch::global_asm!(
            r#"
            .macro trapless_function name
            .p2align 6
            .globl trapless_bench_\name
            .hidden trapless_bench_\name
            .type trapless_bench_\name, STT_FUNC
            trapless_bench_\name:
            .cfi_startproc
            .endm
            .macro trapless_function_end name
            .cfi_endproc
            .size trapless_bench_\name, . - trapless_bench_\name
            .p2align 6
            .endm
            .text
            "#,
            $text,
            ".purgem trapless_function",
            ".purgem trapless_function_end",
            $($($operands)*)?
        );
    };
}

pub(crate) use functions;
