//! Sleeping until there is something to do: a signal for us, the end of a target or of its keeper, or a time.

use super::signals;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long is slept at most where something to wait for cannot be waited for (kernels without pidfds).
const BLIND: Duration = Duration::from_millis(50);

/// What a run waits for. A descriptor that is not to be had is `None`.
#[derive(Debug, Default)]
pub(super) struct Wake {
    descriptors: Vec<libc::pollfd>,
    blind: bool,
}

impl Wake {
    /// Signals alone.
    pub(super) fn new() -> Self {
        let mut wake = Self::default();
        wake.on(signals::descriptor());
        wake.on_noted();
        wake
    }

    /// Wakes when a signal is noted for a script, if any is.
    pub(super) fn on_noted(&mut self) {
        if let Some(noted) = signals::noted() {
            self.on(Some(noted));
        }
    }

    /// Wakes when `descriptor` becomes readable.
    pub(super) fn on(&mut self, descriptor: Option<RawFd>) {
        match descriptor {
            Some(fd) => self.descriptors.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }),
            None => self.blind = true,
        }
    }

    /// Sleeps until one of them is readable, or until then; `None` for as long as it takes.
    pub(super) fn sleep(mut self, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = if self.blind { Some(left.unwrap_or(BLIND).min(BLIND)) } else { left };
        let time = left.map(|left| libc::timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: left.subsec_nanos() as libc::c_long,
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.descriptors.len() as libc::nfds_t;
        // SAFETY: the descriptors and the time live until the call is over, and the count is theirs; no mask is given. Whatever
        // it answers, the caller looks at everything anew.
        unsafe { libc::ppoll(self.descriptors.as_mut_ptr(), count, time, std::ptr::null()) };
    }
}
