//! The convention of system calls.

use crate::arch::Abi;

/// `include/uapi/asm-generic/unistd.h`.
pub(super) static ABI: Abi = Abi::of_host(
    // svc #0
    &[0x01, 0x00, 0x00, 0xd4],
    &[libc::SYS_rt_sigreturn],
    &[
        // Sockets with a timeout.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_connect,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendmmsg,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
        SYS_IO_PGETEVENTS,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_io_uring_enter,
    ],
);

const SYS_IO_PGETEVENTS: i64 = 292;
