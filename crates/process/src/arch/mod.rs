//! What differs between instruction sets outside of instructions: registers, what the kernel saves of them for signals, system call
//! numbers and conventions.
//!
//! Each file offers the same items; the host's is chosen here and nowhere else.

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub use x86::{Abi, BREAKPOINT, BREAKPOINT_ADVANCE, Interrupted, Registers, TRAP_FLAG, ticks};
