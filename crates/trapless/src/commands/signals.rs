//! Ctrl-C and SIGTERM end a run; they do not end it in the middle of something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ENDED: AtomicBool = AtomicBool::new(false);

/// Whether a signal asked for the end.
#[derive(Clone, Copy, Debug)]
pub struct Ended(());

extern "C" fn end(_signal: libc::c_int) {
    ENDED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending this process. Ignored ones stay ignored, as
/// `nohup` wants it.
pub fn install() -> Ended {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler stores to an atomic, which is allowed in a handler; the structures are plain data that
        // the calls fill in or read; without SA_RESTART a wait ends at once.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = end as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
    Ended(())
}

/// Whether a signal came.
pub fn interrupted() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// Waits for the next one.
pub fn forget() {
    ENDED.store(false, Ordering::Relaxed);
}

impl Ended {
    /// Whether a signal came.
    pub fn get(self) -> bool {
        interrupted()
    }

    /// Waits for as long, or until a signal comes.
    pub fn wait(self, time: Duration) {
        let until = Instant::now() + time;
        while !self.get() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // `thread::sleep` goes on after a signal; a second look every so often is enough.
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}
