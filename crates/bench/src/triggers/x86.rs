//! The triggers of x86: in the code of as many bits as this program has, and, beside a 64-bit one, in that of [`narrow`](crate::narrow).

use super::Execution::{Emulated, Optimized, Stepped};
use super::{Probed, Trigger, USDT, probed};

#[cfg(target_arch = "x86")]
mod narrow;
#[cfg(target_arch = "x86_64")]
mod wide;

#[cfg(target_arch = "x86")]
pub use crate::narrow::USDT_OPERANDS;

unsafe extern "C" {
    fn trapless_bench_nop();
    fn trapless_bench_push();
    fn trapless_bench_ret();
    fn trapless_bench_nop5();
    fn trapless_bench_endbr();
    fn trapless_bench_o2();
    fn trapless_bench_sub();
    fn trapless_bench_exits();
    fn trapless_bench_usdt_nop();
    fn trapless_bench_usdt_nop5();
}

/// All of them.
pub const TRIGGERS: &[Trigger] = &[
    probed("nop", trapless_bench_nop, Probed::Function, Emulated),
    probed("push", trapless_bench_push, Probed::Function, Emulated),
    probed("ret", trapless_bench_ret, Probed::Function, Stepped),
    probed("nop5", trapless_bench_nop5, Probed::Function, Optimized),
    probed("endbr", trapless_bench_endbr, Probed::Function, Stepped),
    probed("o2", trapless_bench_o2, Probed::Function, Emulated),
    probed("sub", trapless_bench_sub, Probed::Function, Stepped),
    probed("exits", trapless_bench_exits, Probed::Return, Emulated),
    probed("nop", trapless_bench_usdt_nop, USDT, Emulated),
    probed("nop5", trapless_bench_usdt_nop5, USDT, Optimized),
];

/// What the probes of the sites tell of: registers.
#[cfg(target_arch = "x86_64")]
pub const USDT_OPERANDS: [&str; 3] = ["%rax", "%rdi", "%rdx"];
