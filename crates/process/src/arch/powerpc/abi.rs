//! The convention of system calls.

use crate::arch::Abi;

/// `arch/powerpc/kernel/syscalls/syscall.tbl`.
pub(super) static ABI: Abi = Abi::of_host(
    // sc
    &[0x02, 0x00, 0x00, 0x44],
    &[libc::SYS_sigreturn, libc::SYS_rt_sigreturn],
    &[
        // Sockets with a timeout.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_socketcall,
        libc::SYS_connect,
        libc::SYS_accept,
        libc::SYS_accept4,
        // Beside those of other machines, which have none of their own for it.
        libc::SYS_send,
        libc::SYS_recv,
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
);

const SYS_SEMTIMEDOP: i64 = 392;
const SYS_IO_PGETEVENTS: i64 = 388;
