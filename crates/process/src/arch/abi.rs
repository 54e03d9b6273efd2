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
