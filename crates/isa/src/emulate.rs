//! A stopped thread, as emulation sees it, and what can keep an instruction from being emulated.

use crate::Reason;

/// A stopped thread: its registers and its memory.
///
/// | machine | registers by their numbers | flags |
/// |---|---|---|
/// | x86 | as instructions encode them: rax 0, rcx 1, rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi 7, r8 to r15 | rflags |
/// | arm64 | x0 to x30, and sp 31: as the kernel's `user_pt_regs` has them | pstate |
/// | powerpc | r0 to r31, ctr 35, lr 36, xer 37: as the kernel's `pt_regs` has them | cr |
///
/// In 32-bit mode values have 32 bits.
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
    /// Base of the segment that fs (`false`) or gs (`true`) selects; `None` when it is not known. On arm64 that of fs is `tpidr_el0`.
    fn segment_base(&self, gs: bool) -> Option<u64>;
    /// Reads `size` bytes, 1 to 8, little endian; `None` where the thread would fault.
    fn read(&self, address: u64, size: u8) -> Option<u64>;
    /// Writes the low `size` bytes of `value`, 1 to 8; `None`, and nothing written, where the thread would fault.
    ///
    /// An instruction may write twice. All that those of one [`together`](crate::Isa::together) write is one piece of memory when the last
    /// has written, in whatever order; and where that turns out otherwise, they may be refused.
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

/// A thread of zeros, without memory: it can be asked what is emulated, and nothing else.
pub(crate) struct Blank;

impl Thread for Blank {
    fn register(&self, _number: u8) -> u64 {
        0
    }

    fn set_register(&mut self, _number: u8, _value: u64) {}

    fn flags(&self) -> u64 {
        0
    }

    fn set_flags(&mut self, _flags: u64) {}

    fn set_ip(&mut self, _address: u64) {}

    fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }

    fn read(&self, _address: u64, _size: u8) -> Option<u64> {
        None
    }

    fn write(&mut self, _address: u64, _size: u8, _value: u64) -> Option<()> {
        None
    }
}

/// A thread for tests, on a stack that ends at a page that is not there.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct Stopped {
    /// As many as any instruction set numbers.
    pub registers: [u64; 38],
    pub flags: u64,
    pub ip: u64,
    /// What it has written, in order, a word each.
    pub written: alloc::vec::Vec<(u64, u64)>,
    pub bottom: u64,
    /// What stands at an address, where there is any memory to be read. What is written there may be less than a word.
    pub memory: Option<fn(u64, u8) -> u64>,
}

#[cfg(test)]
impl Thread for Stopped {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number)]
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number)] = value;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn set_ip(&mut self, address: u64) {
        self.ip = address;
    }

    fn segment_base(&self, _: bool) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        self.memory.map(|memory| memory(address, size))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        assert!(size == 8 || self.memory.is_some(), "{size}");
        (address >= self.bottom).then(|| self.written.push((address, value)))
    }
}
