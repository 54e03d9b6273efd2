//! May breakpoints be set in this process at all?
//!
//! A breakpoint instruction raises SIGTRAP, and the kernel *forces* it on the thread (`force_sig_info_to_task` in
//! `kernel/signal.c`): where the thread blocks SIGTRAP it is unblocked, where the process ignores it or has a handler for it and
//! the thread blocks it, the disposition is set to the default. That comes before a tracer hears of anything, and the program
//! would find its own state changed: a `sigwait` that waits in vain, a handler that is gone.
//!
//! So a process that ignores SIGTRAP gets no breakpoints, and neither does one with a thread that blocks it for good. The C library
//! blocks all signals for a moment where threads and processes are made; such a moment is waited for. A trap that falls into a
//! later one is no harm to a program without a handler for SIGTRAP, and the tracer blocks the signal again
//! ([`Tracer`]).
//!
//! [`Tracer`]: trapless_process::trace::Tracer

use crate::EngineError;
use std::{collections::BTreeSet, thread, time::Duration};
use trapless_process::{Process, StopOptions, Stopped, Tid};

const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// The times between looks at the threads, each twice the one before: 1.3 seconds together. A thread that blocks SIGTRAP at each look
/// does so for good, and not because it waits for a process that is being made on a busy machine.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSES: u32 = 7;

/// Stops the process for breakpoints to be set.
pub(super) fn stop<'p>(process: &'p Process, options: &StopOptions) -> Result<Stopped<'p>, EngineError> {
    let mut blocking: Option<BTreeSet<Tid>> = None;
    for look in 0..=PAUSES {
        let stopped = process.stop_with(options)?;
        if process.status()?.sig_ignored & SIGTRAP_BIT != 0 {
            return Err(EngineError::IgnoresTraps);
        }
        let now = stopped.threads().iter().map(|thread| thread.tid());
        let now = now.filter(|&tid| stopped.signal_mask(tid).is_ok_and(|mask| mask & SIGTRAP_BIT != 0));
        let now: BTreeSet<Tid> = now.collect();
        let still = match blocking {
            Some(before) => &before & &now,
            None => now,
        };
        if still.is_empty() {
            return Ok(stopped);
        }
        blocking = Some(still);
        drop(stopped);
        if look < PAUSES {
            thread::sleep(FIRST_PAUSE * 2u32.pow(look));
        }
    }
    let tid = blocking.and_then(|threads| threads.first().copied());
    Err(EngineError::BlocksTraps(tid.unwrap_or(process.pid().leader())))
}
