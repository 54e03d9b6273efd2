//! A stopped thread, as emulation sees it, and what can keep an instruction from being emulated.

use crate::Reason;

/// A stopped thread: its registers and its memory. Register numbers are those of the instruction encoding (on x86: rax 0, rcx 1,
/// rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi 7, r8 to r15). In 32-bit mode values have 32 bits.
pub trait Thread {
    /// A general-purpose register.
    fn register(&self, number: u8) -> u64;
    /// Sets a general-purpose register.
    fn set_register(&mut self, number: u8, value: u64);
    /// The flags.
    fn flags(&self) -> u64;
    /// Sets the flags.
    fn set_flags(&mut self, flags: u64);
    /// Sets the instruction pointer.
    fn set_ip(&mut self, address: u64);
    /// Base of the segment that fs (`false`) or gs (`true`) selects; `None` when it is not known.
    fn segment_base(&self, gs: bool) -> Option<u64>;
    /// Reads `size` bytes, 1 to 8, little endian; `None` where the thread would fault.
    fn read(&self, address: u64, size: u8) -> Option<u64>;
    /// Writes the low `size` bytes of `value`, 1 to 8; `None`, and nothing written, where the thread would fault.
    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()>;
}

/// Why nothing was emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulateError {
    /// Not an instruction that is emulated.
    #[error(transparent)]
    Refused(#[from] Reason),
    /// Memory that it accesses cannot be accessed: let it run and fault by itself.
    #[error("memory is not accessible")]
    Fault,
}
