//! The two system call conventions.

use crate::arch::Abi;

/// `arch/x86/entry/syscalls/syscall_64.tbl`.
pub(super) static X86_64: Abi = Abi {
    syscall_instruction: &[0x0f, 0x05],
    mmap: 9,
    mmap_counts_pages: false,
    munmap: 11,
    mprotect: 10,
    munlock: 150,
    madvise: 28,
    memfd_create: 319,
    close: 3,
    getpid: 39,
    membarrier: 324,
    prctl: 157,
    rt_sigaction: 13,
    ppoll: 271,
    sigreturn: &[15],
    plain_eintr: &[
        0, 1, 19, 20, // read, write, readv, writev (sockets with a timeout)
        42, 43, 288, // connect, accept, accept4
        44, 45, 46, 47, 299, 307, // sendto, recvfrom, sendmsg, recvmsg, recvmmsg, sendmmsg
        65, 220, // semop, semtimedop
        128, // rt_sigtimedwait
        208, 333, // io_getevents, io_pgetevents
        232, 281, 441, // epoll_wait, epoll_pwait, epoll_pwait2
        426, // io_uring_enter
    ],
};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_host_are_its_librarys() {
        let abi = if cfg!(target_arch = "x86") { &I386 } else { &X86_64 };
        for (number, expected) in [
            (abi.munmap, libc::SYS_munmap),
            (abi.mprotect, libc::SYS_mprotect),
            (abi.munlock, libc::SYS_munlock),
            (abi.madvise, libc::SYS_madvise),
            (abi.memfd_create, libc::SYS_memfd_create),
            (abi.close, libc::SYS_close),
            (abi.getpid, libc::SYS_getpid),
            (abi.membarrier, libc::SYS_membarrier),
            (abi.prctl, libc::SYS_prctl),
            (abi.rt_sigaction, libc::SYS_rt_sigaction),
            (abi.ppoll, libc::SYS_ppoll),
            (*abi.sigreturn.last().unwrap() as u64, libc::SYS_rt_sigreturn),
        ] {
            assert_eq!(number, expected as u64);
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(abi.mmap, libc::SYS_mmap as u64);
        #[cfg(target_arch = "x86")]
        assert_eq!(abi.mmap, libc::SYS_mmap2 as u64);
    }
}
