//! What differs between instruction sets outside of instructions: registers, what the kernel saves of them for signals, system call
//! numbers and conventions.
//!
//! Each folder offers the same items; the host's is chosen here and nowhere else.

mod abi;
mod interrupted;
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
mod plain;
#[cfg(not(target_arch = "aarch64"))]
mod unlost;
#[cfg(not(target_arch = "aarch64"))]
mod waiting;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "powerpc64")]
mod powerpc;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
mod x86;

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "powerpc64"
)))]
compile_error!("trapless is a program of x86-64, 32-bit x86, arm64 or powerpc64le");

#[cfg(target_arch = "aarch64")]
use aarch64 as host;
#[cfg(target_arch = "powerpc64")]
use powerpc as host;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use x86 as host;

use crate::RemoteAddr;

/// Whether this program can reach all of the memory of programs in 64-bit mode, and write all of their registers.
pub(crate) const HAS_64BIT: bool = cfg!(target_pointer_width = "64");

pub use abi::Abi;
pub use host::{BREAKPOINT, BREAKPOINT_ADVANCE, Registers, TRAP_FLAG, thread_selector, ticks, vectors};
pub(crate) use host::{
    END_OF_CALL_TAKES_ALL, HAS_32BIT, LostByCalls, OTHER_CALLS, POINTED_PAST, STEP_OVER_CALL_LOOKS_SENT,
    Stepping, Waiting, addresses_end, is_streaming, narrow_end, trapped,
};
pub use interrupted::Interrupted;

/// What a processor has beyond vector registers of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Nothing.
    Short,
    /// Longer ones, and what the kernel saves of them.
    Long(LongVectors),
    /// Ones of a length that each program may choose, with predicates (SVE of arm64).
    Scalable,
    /// Nobody here knows how they are saved.
    Unknown,
}

/// How vectors of more than 128 bits are saved on x86.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongVectors {
    /// The state components of XCR0 that there are beyond the low 128 bits of vector registers.
    pub components: u32,
    /// Whether the processor tells which of them are in use (XGETBV with 1).
    pub tells_use: bool,
}

impl Registers {
    /// The instruction pointer.
    pub fn ip(&self) -> RemoteAddr {
        RemoteAddr(self.ip_value())
    }

    /// Sets the instruction pointer.
    pub fn set_ip(&mut self, ip: RemoteAddr) {
        self.set_ip_value(ip.0);
    }

    /// The stack pointer.
    pub fn sp(&self) -> RemoteAddr {
        RemoteAddr(self.sp_value())
    }

    /// Sets the stack pointer.
    pub fn set_sp(&mut self, sp: RemoteAddr) {
        self.set_sp_value(sp.0);
    }
}

/// What a SIGTRAP that an instruction has raised tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trapped {
    /// It is a breakpoint.
    Breakpoint,
    /// It was stepped over, or has met a breakpoint of the processor's own.
    Step,
}
