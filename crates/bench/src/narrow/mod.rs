//! The 32-bit program that is measured beside the 64-bit one, carried along as data.
//!
//! trapless is one program, here of 64 bits, and no compiler may be needed where it runs, so the code of the 32-bit child is
//! assembled into this program's constants (`code`), made a file in memory with the symbols by which its functions are found
//! (`file`), and executed from there.

mod code;
mod file;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub(crate) mod triggers;

pub use code::{Function, functions};
pub use file::{address, program};

/// What the probes of the sites in 32-bit code tell of: a register, and arguments on the stack.
pub const USDT_OPERANDS: [&str; 3] = ["%eax", "4(%esp)", "8(%esp)"];
