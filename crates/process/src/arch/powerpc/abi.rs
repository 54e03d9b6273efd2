//! The convention of system calls.

use crate::arch::Abi;

/// `arch/powerpc/kernel/syscalls/syscall.tbl`.
pub(super) static ABI: Abi = Abi {
    // sc
    syscall_instruction: &[0x02, 0x00, 0x00, 0x44],
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
    sigreturn: &[libc::SYS_sigreturn, libc::SYS_rt_sigreturn],
    plain_eintr: &[
        // Sockets with a timeout.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_socketcall,
        libc::SYS_connect,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendmmsg,
        // semop
        libc::SYS_ipc,
        SYS_SEMTIMEDOP,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        SYS_IO_PGETEVENTS,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_io_uring_enter,
    ],
};

const SYS_SEMTIMEDOP: i64 = 392;
const SYS_IO_PGETEVENTS: i64 = 388;
