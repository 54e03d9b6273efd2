//! The two system call conventions.

use crate::arch::Abi;

/// `arch/x86/entry/syscalls/syscall_64.tbl`.
pub(super) static X86_64: Abi = Abi::of_host(
    &[0x0f, 0x05],
    &[libc::SYS_rt_sigreturn],
    &[
        0, 1, 19, 20, // read, write, readv, writev (sockets with a timeout)
        42, 43, 288, // connect, accept, accept4
        44, 45, 46, 47, 299, 307, // sendto, recvfrom, sendmsg, recvmsg, recvmmsg, sendmmsg
        65, 220, // semop, semtimedop
        128, // rt_sigtimedwait
        208, 333, // io_getevents, io_pgetevents
        232, 281, 441, // epoll_wait, epoll_pwait, epoll_pwait2
        426, // io_uring_enter
    ],
);

/// `arch/x86/entry/syscalls/syscall_32.tbl`.
pub(super) static I386: Abi = Abi {
    syscall_instruction: &[0xcd, 0x80],
    mmap: 192,
    mmap_counts_pages: true,
    munmap: 91,
    mprotect: 125,
    munlock: 151,
    madvise: 219,
    memfd_create: 356,
    close: 6,
    getpid: 20,
    membarrier: 375,
    prctl: 172,
    rt_sigaction: 174,
    ppoll: 309,
    sigreturn: &[119, 173],
    plain_eintr: &[
        3, 4, 145, 146, // read, write, readv, writev
        102, 362, 364, // socketcall, connect, accept4
        369, 370, 371, 372, 337, 345, // sendto, sendmsg, recvfrom, recvmsg, recvmmsg, sendmmsg
        417, // recvmmsg_time64
        117, 420, // ipc (semop), semtimedop_time64
        177, 421, // rt_sigtimedwait, and its time64 form
        247, 385, 416, // io_getevents, io_pgetevents, and its time64 form
        256, 319, 441, // epoll_wait, epoll_pwait, epoll_pwait2
        426, // io_uring_enter
    ],
};
