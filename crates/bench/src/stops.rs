//! `ptrace-count`: what a trap costs at least that a tracer serves.
//!
//! A process runs into one breakpoint after the other. Its tracer, on the same processor, lets it go on each time and does
//! nothing else: it does not even look where the process stands. Probes that trap cannot be cheaper than that.

use std::io;
use std::mem::{size_of, zeroed};
use std::time::Instant;

/// Nanoseconds that `times` stops take.
///
/// # Errors
/// The process cannot be made, or not be traced.
pub(crate) fn stops(times: u64) -> io::Result<u64> {
    let _here = Here::stay();
    // SAFETY: the child makes system calls and runs breakpoints only, and never returns.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => run_into_breakpoints(times),
        child => {
            let served = serve(child, times);
            if served.is_err() {
                // It is ours and not yet waited for, so the id is its own.
                // SAFETY: kill and waitpid take an id of ours; the status is not wanted.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
            served
        }
    }
}

/// The traced process. Without its tracer, a breakpoint ends it.
fn run_into_breakpoints(times: u64) -> ! {
    // SAFETY: the requests take no memory, the instruction touches none, and _exit does not return.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 {
            for _ in 0..=times {
                breakpoint();
            }
        }
        libc::_exit(0)
    }
}

fn breakpoint() {
    // SAFETY: it traps, and changes nothing.
    unsafe {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        core::arch::asm!("int3");
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("brk #0");
        #[cfg(target_arch = "powerpc64")]
        core::arch::asm!("trap");
    };
}

/// The tracer: from the first stop to the last one.
fn serve(child: i32, times: u64) -> io::Result<u64> {
    let (mut start, mut stops, mut status) = (Instant::now(), 0, 0);
    loop {
        // SAFETY: the call writes one integer.
        if unsafe { libc::waitpid(child, &mut status, libc::__WALL) } != child {
            return Err(io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::other("the traced process ended early"));
        }
        if stops == 0 {
            start = Instant::now();
        }
        if stops == times {
            let passed = start.elapsed().as_nanos() as u64;
            // SAFETY: as above; the child is ours. Where breakpoints leave it in front of themselves it would never end by itself.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, libc::__WALL);
            }
            return Ok(passed);
        }
        stops += 1;
        // SAFETY: the request takes numbers only.
        if unsafe { libc::ptrace(libc::PTRACE_CONT, child, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
}

/// Keeps this thread, and what it forks, on the processor it is on.
struct Here(Option<libc::cpu_set_t>);

impl Here {
    fn stay() -> Self {
        // SAFETY: zeros are a valid set, the calls get its size, and CPU_SET checks the index.
        unsafe {
            let (mut before, mut here): (libc::cpu_set_t, libc::cpu_set_t) = (zeroed(), zeroed());
            let processor = libc::sched_getcpu();
            let known = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before) == 0;
            if processor < 0 || !known {
                return Self(None);
            }
            libc::CPU_SET(processor as usize, &mut here);
            let stays = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &here) == 0;
            Self(stays.then_some(before))
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: the set is one the kernel gave us.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), before) };
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #[test]
    fn every_stop_takes_time_and_the_thread_may_move_again() {
        let allowed = std::thread::available_parallelism().unwrap();
        assert!(super::stops(100).unwrap() > 0);
        assert_eq!(std::thread::available_parallelism().unwrap(), allowed);
    }
}
