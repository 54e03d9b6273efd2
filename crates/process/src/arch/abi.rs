//! How system calls are made.

/// Numbers of system calls, and the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abi {
    /// The instruction that enters the kernel.
    pub syscall_instruction: &'static [u8],
    /// `mmap`, or `mmap2` whose offset counts pages.
    pub mmap: u64,
    /// Whether `mmap`'s offset counts 4096-byte units.
    pub mmap_counts_pages: bool,
    /// `munmap`.
    pub munmap: u64,
    /// `mprotect`.
    pub mprotect: u64,
    /// `munlock`.
    pub munlock: u64,
    /// `madvise`.
    pub madvise: u64,
    /// `memfd_create`.
    pub memfd_create: u64,
    /// `close`.
    pub close: u64,
    /// `getpid`.
    pub getpid: u64,
    /// `membarrier`.
    pub membarrier: u64,
    /// `prctl`.
    pub prctl: u64,
    /// `rt_sigaction`.
    pub(crate) rt_sigaction: u64,
    /// `ppoll`.
    pub(crate) ppoll: u64,
    /// `sigreturn` and `rt_sigreturn`, by which signal handlers end.
    pub(crate) sigreturn: &'static [i64],
    /// Calls that answer a stop with EINTR although no handler runs, and that may be made again.
    pub(super) plain_eintr: &'static [i64],
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
impl Abi {
    /// The host's own, by the numbers that its C library has.
    pub(super) const fn of_host(
        syscall_instruction: &'static [u8],
        sigreturn: &'static [i64],
        plain_eintr: &'static [i64],
    ) -> Self {
        Self {
            syscall_instruction,
            mmap: libc::SYS_mmap as u64,
            mmap_counts_pages: false,
            munmap: libc::SYS_munmap as u64,
            mprotect: libc::SYS_mprotect as u64,
            munlock: libc::SYS_munlock as u64,
            madvise: libc::SYS_madvise as u64,
            memfd_create: libc::SYS_memfd_create as u64,
            close: libc::SYS_close as u64,
            getpid: libc::SYS_getpid as u64,
            membarrier: libc::SYS_membarrier as u64,
            prctl: libc::SYS_prctl as u64,
            rt_sigaction: libc::SYS_rt_sigaction as u64,
            ppoll: libc::SYS_ppoll as u64,
            sigreturn,
            plain_eintr,
        }
    }
}
