//! The signal state this program was started with.
//!
//! A launched command must find what the user's shell meant it to find. By the time anybody calls us, Rust's runtime has set
//! SIGPIPE to be ignored and we may have blocked or ignored signals ourselves, so the state is taken down before `main`, by a
//! function the dynamic loader (or the static start-up code) calls with the constructors.

use std::sync::atomic::{AtomicU64, Ordering};

/// Ignored signals at start; bit `n - 1` is signal `n`.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Blocked signals at start.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// `_NSIG` of the kernel.
pub(crate) const SIGNALS: i32 = 64;

#[used]
#[unsafe(link_section = ".init_array")]
static TAKE_DOWN: extern "C" fn() = take_down;

extern "C" fn take_down() {
    let mut ignored = 0u64;
    for signal in 1..=SIGNALS {
        // SAFETY: all zeros is a valid sigaction; with a null new action the call only writes the old one. It is safe before `main`.
        let old = unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(signal, std::ptr::null(), &mut old) == 0).then_some(old)
        };
        if old.is_some_and(|old| old.sa_sigaction == libc::SIG_IGN) {
            ignored |= 1 << (signal - 1);
        }
    }
    let mut blocked = 0u64;
    // SAFETY: with a null new set the call only writes the old one, of 8 bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            std::ptr::null::<u64>(),
            &raw mut blocked,
            8usize,
        )
    };
    IGNORED.store(ignored, Ordering::Relaxed);
    BLOCKED.store(blocked, Ordering::Relaxed);
}

/// Puts the calling process back into that state. Async-signal-safe, for use between fork and exec.
pub(crate) fn restore() {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for signal in 1..=SIGNALS {
        let handler = if ignored >> (signal - 1) & 1 == 1 { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: default and ignore are valid dispositions; the kernel and libc refuse the signals that have none.
        unsafe { libc::signal(signal, handler) };
    }
    let blocked = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: the call reads 8 bytes and writes nothing through the null pointer.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const blocked,
            std::ptr::null_mut::<u64>(),
            8usize,
        )
    };
}
