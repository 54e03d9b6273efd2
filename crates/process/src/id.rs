//! Names for things that belong to another process, so that they cannot be taken for ours.

use std::fmt;
use std::ops::{Add, Sub};

/// An address in the target's address space. It never means anything in ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemoteAddr(pub u64);

impl RemoteAddr {
    /// The address as a number, for instruction operands and shared memory.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The largest multiple of `align` (a power of two) that is not above this address.
    pub const fn align_down(self, align: u64) -> Self {
        RemoteAddr(self.0 & !(align - 1))
    }

    /// The smallest multiple of `align` (a power of two) that is not below this address; `None` on overflow.
    pub const fn align_up(self, align: u64) -> Option<Self> {
        match self.0.checked_add(align - 1) {
            Some(sum) => Some(RemoteAddr(sum & !(align - 1))),
            None => None,
        }
    }

    /// This address `bytes` further up; `None` where the address space ends.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(RemoteAddr(sum)),
            None => None,
        }
    }

    /// Bytes from `base` up to this address; `None` if `base` is above it.
    pub const fn offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }
}

impl Add<u64> for RemoteAddr {
    type Output = Self;
    /// Wraps like the hardware does: a target's addresses are input and must not make us panic.
    fn add(self, bytes: u64) -> Self {
        RemoteAddr(self.0.wrapping_add(bytes))
    }
}

impl Sub<u64> for RemoteAddr {
    type Output = Self;
    fn sub(self, bytes: u64) -> Self {
        RemoteAddr(self.0.wrapping_sub(bytes))
    }
}

impl From<u64> for RemoteAddr {
    fn from(address: u64) -> Self {
        RemoteAddr(address)
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A process (thread group) id in our pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub i32);

/// A thread id in our pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub i32);

impl Pid {
    /// The id of the thread group's leader, which is the same number.
    pub const fn leader(self) -> Tid {
        Tid(self.0)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error number of a system call, ours or the target's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The error of the system call this thread made last.
    pub fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// `result`, or the calling thread's errno if it is −1.
    pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
        if result == -1 { Err(Self::last()) } else { Ok(result) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_and_display() {
        assert_eq!(RemoteAddr(0x1fff).align_down(0x1000), RemoteAddr(0x1000));
        assert_eq!(RemoteAddr(0x1001).align_up(0x1000), Some(RemoteAddr(0x2000)));
        assert_eq!(RemoteAddr(u64::MAX).align_up(0x1000), None);
        assert_eq!(RemoteAddr(0x2000).offset_from(RemoteAddr(0x3000)), None);
        assert_eq!(RemoteAddr(0x7f00).to_string(), "0x7f00");
    }
}
