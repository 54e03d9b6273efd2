//! The system calls the engine makes in the target, by name.

use crate::{Remote, RemoteAddr, RemoteError};
use std::ffi::CStr;

/// Bytes of the page that holds arguments in memory.
const SCRATCH: u64 = 4096;

/// Bytes of the kernel's set of signals.
const SIGSET_BYTES: u64 = 8;

/// What a 64-bit process does at a signal: the kernel's `struct sigaction` (`include/linux/signal_types.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SignalAction {
    /// Address of the handler, or `SIG_DFL` or `SIG_IGN`.
    pub handler: u64,
    /// `SA_…`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// The signals that are blocked meanwhile.
    pub mask: u64,
}

impl SignalAction {
    fn bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = [self.handler, self.flags, self.restorer, self.mask];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    fn of(bytes: [u8; size_of::<Self>()]) -> Self {
        let word = |index: usize| u64::from_le_bytes(bytes.as_chunks().0[index]);
        Self { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) }
    }

    /// Whether the process has a handler.
    pub fn is_handled(&self) -> bool {
        self.handler != libc::SIG_DFL as u64 && self.handler != libc::SIG_IGN as u64
    }
}

impl Remote<'_, '_> {
    /// `mmap(2)`. `fd` −1 is anonymous memory; `offset` is in bytes and must be a multiple of the page size.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says: EEXIST under `MAP_FIXED_NOREPLACE`, EPERM or EACCES in a sandbox, ENOMEM.
    pub fn mmap(
        &mut self,
        address: RemoteAddr,
        len: u64,
        protection: i32,
        flags: i32,
        fd: i32,
        offset: u64,
    ) -> Result<RemoteAddr, RemoteError> {
        let abi = self.abi();
        let offset = if abi.mmap_counts_pages { offset / 4096 } else { offset };
        let args = [address.0, len, protection as u64, flags as u64, fd as i64 as u64, offset];
        let mapped = RemoteAddr(self.named_syscall("mmap", abi.mmap, args)?);
        // Kernels before 4.17 take the flag for a hint.
        if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE && mapped != address {
            self.munmap(mapped, len)?;
            return Err(RemoteError::Failed { call: "mmap", errno: crate::Errno(libc::EEXIST) });
        }
        Ok(mapped)
    }

    /// `munmap(2)`.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn munmap(&mut self, address: RemoteAddr, len: u64) -> Result<(), RemoteError> {
        self.named_syscall("munmap", self.abi().munmap, [address.0, len, 0, 0, 0, 0]).map(drop)
    }

    /// `mprotect(2)`.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn mprotect(&mut self, address: RemoteAddr, len: u64, protection: i32) -> Result<(), RemoteError> {
        let args = [address.0, len, protection as u64, 0, 0, 0];
        self.named_syscall("mprotect", self.abi().mprotect, args).map(drop)
    }

    /// `munlock(2)`.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn munlock(&mut self, address: RemoteAddr, len: u64) -> Result<(), RemoteError> {
        self.named_syscall("munlock", self.abi().munlock, [address.0, len, 0, 0, 0, 0]).map(drop)
    }

    /// `madvise(2)`.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn madvise(&mut self, address: RemoteAddr, len: u64, advice: i32) -> Result<(), RemoteError> {
        self.named_syscall("madvise", self.abi().madvise, [address.0, len, advice as u64, 0, 0, 0]).map(drop)
    }

    /// `memfd_create(2)`: a descriptor of the target.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn memfd_create(&mut self, name: &CStr, flags: u32) -> Result<i32, RemoteError> {
        let name = self.place(name.to_bytes_with_nul())?;
        let args = [name.0, u64::from(flags), 0, 0, 0, 0];
        self.named_syscall("memfd_create", self.abi().memfd_create, args).map(|fd| fd as i32)
    }

    /// `close(2)` of a descriptor of the target.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub fn close(&mut self, fd: i32) -> Result<(), RemoteError> {
        self.named_syscall("close", self.abi().close, [fd as u64, 0, 0, 0, 0, 0]).map(drop)
    }

    /// `rt_sigaction(2)`: what the process does at `signal`, and from now on does instead, if `new` says so.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says; [`RemoteError::NoThread`] when the process is gone.
    pub fn signal_action(
        &mut self,
        signal: i32,
        new: Option<SignalAction>,
    ) -> Result<SignalAction, RemoteError> {
        const SIZE: usize = size_of::<SignalAction>();
        let mut both = [0; 2 * SIZE];
        if let Some(new) = new {
            both[..SIZE].copy_from_slice(&new.bytes());
        }
        let page = self.place(&both)?;
        let old = RemoteAddr(page.0 + SIZE as u64);
        let args = [signal as u64, new.map_or(0, |_| page.0), old.0, SIGSET_BYTES, 0, 0];
        self.named_syscall("rt_sigaction", self.abi().rt_sigaction, args)?;
        let mut bytes = [0; SIZE];
        self.process().read(old, &mut bytes)?;
        Ok(SignalAction::of(bytes))
    }

    /// `rt_sigaction(2)`: the process ignores `signal`, as one does whose parent did.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] as the manual says.
    pub(crate) fn ignore(&mut self, signal: i32) -> Result<(), RemoteError> {
        // The handler, flags, restorer and mask of the kernel's `struct sigaction`: the first is a word, and the rest is zero.
        let mut action = [0; 32];
        action[..8].copy_from_slice(&(libc::SIG_IGN as u64).to_le_bytes());
        let action = self.place(&action)?;
        let args = [signal as u64, action.0, 0, SIGSET_BYTES, 0, 0];
        self.named_syscall("rt_sigaction", self.abi().rt_sigaction, args).map(drop)
    }

    /// Puts an argument into a page of ours in the target, which lives until these calls end. It takes two calls more than borrowing the
    /// stack below the red zone, and cannot meet a guard page, a signal frame or a coroutine's small stack.
    fn place(&mut self, bytes: &[u8]) -> Result<RemoteAddr, RemoteError> {
        let page = match self.scratch {
            Some(page) => page,
            None => {
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                // Away from the libraries: beside them go what the kernel chooses a place for, and arenas that were planned there.
                let away = if self.process().is_32bit() { 1 << 30 } else { 1 << 46 };
                let page = self.mmap(RemoteAddr(away), SCRATCH, protection, flags, -1, 0)?;
                *self.scratch.insert(page)
            }
        };
        if bytes.len() as u64 > SCRATCH {
            return Err(RemoteError::Failed { call: "memfd_create", errno: crate::Errno(libc::EINVAL) });
        }
        self.process().write(page, bytes)?;
        Ok(page)
    }

    /// Gives the page back. If the thread cannot do it any more there is no one to give it to.
    pub(crate) fn release_scratch(&mut self) {
        if let Some(page) = self.scratch.take() {
            let _ = self.munmap(page, SCRATCH);
        }
    }
}
