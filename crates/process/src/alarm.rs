//! Ends a blocking wait of the calling thread when its time is up.
//!
//! wait(2) has no timeout. A timer that signals this very thread gives it one: the handler does nothing, and the wait returns EINTR.
//! The timer goes off again and again, because once may be just before the wait begins.

use crate::Errno;
use std::mem::zeroed;
use std::time::Duration;

/// Near the end of the real-time range, where neither C libraries nor users look first.
fn signal() -> i32 {
    libc::SIGRTMAX() - 3
}

extern "C" fn nothing(_: libc::c_int) {}

#[derive(Debug)]
pub(crate) struct Alarm(libc::timer_t);

impl Alarm {
    /// An alarm for the calling thread that goes off every `period`.
    pub fn every(period: Duration) -> Result<Alarm, Errno> {
        // SAFETY: zeros are valid for all three structs; the handler touches nothing; the kernel writes one timer id and reads one itimerspec.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            Errno::check(libc::sigaction(signal(), &action, std::ptr::null_mut()).into())?;
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = zeroed();
            Errno::check(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer).into())?;
            let alarm = Alarm(timer);
            let time = libc::timespec {
                tv_sec: period.as_secs() as libc::time_t,
                tv_nsec: period.subsec_nanos() as libc::c_long,
            };
            let times = libc::itimerspec { it_interval: time, it_value: time };
            Errno::check(libc::timer_settime(timer, 0, &times, std::ptr::null_mut()).into())?;
            Ok(alarm)
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
