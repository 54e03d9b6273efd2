//! One at a time: whoever changes probes does it alone in the process, and nobody is in the midst of it when the process forks.
//!
//! A lock of the C library's, since one that is held while a process forks has to be given back in both.

use std::cell::UnsafeCell;
use std::sync::Once;

struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is a lock.
unsafe impl Sync for Lock {}

static LOCK: Lock = Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

extern "C" fn lock() {
    // SAFETY: it is made to be used without more ado, and is never moved.
    unsafe { libc::pthread_mutex_lock(LOCK.0.get()) };
}

extern "C" fn unlock() {
    // SAFETY: whoever calls this has it.
    unsafe { libc::pthread_mutex_unlock(LOCK.0.get()) };
}

extern "C" fn in_child() {
    crate::threads::only_this_one();
    #[cfg(feature = "script")]
    crate::scripts::ours::in_child();
    unlock();
}

struct Held;

impl Drop for Held {
    fn drop(&mut self) {
        unlock();
    }
}

/// Does `work` alone. Not within itself.
pub(crate) fn run<T>(work: impl FnOnce() -> T) -> T {
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        // SAFETY: the functions stay.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(in_child)) };
    });
    lock();
    let _held = Held;
    work()
}

/// The same, where nobody else is at it.
pub(crate) fn try_run(work: impl FnOnce()) -> Option<()> {
    // SAFETY: as above.
    if unsafe { libc::pthread_mutex_trylock(LOCK.0.get()) } != 0 {
        return None;
    }
    let _held = Held;
    work();
    Some(())
}
