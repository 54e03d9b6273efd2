//! May breakpoints be set in this process at all?
//!
//! A breakpoint instruction raises SIGTRAP, and the kernel *forces* it on the thread (`force_sig_info_to_task` in
//! `kernel/signal.c`): where the thread blocks SIGTRAP it is unblocked, where the process ignores it or has a handler for it and
//! the thread blocks it, the disposition is set to the default. That comes before a tracer hears of anything, and the program
//! would find its own state changed: a `sigwait` that waits in vain, a handler that is gone.
//!
//! So a process that ignores SIGTRAP gets no breakpoints, and neither does one with a thread that blocks it for good. The C library
//! blocks all signals for a moment where threads and processes are made; the end of such a moment is waited for. A trap that falls into a
//! later one is no harm to a program without a handler for SIGTRAP, and the tracer blocks the signal again
//! ([`Tracer`]).
//!
//! [`Tracer`]: trapless_process::trace::Tracer

use crate::EngineError;
use std::{
    thread,
    time::{Duration, Instant},
};
use trapless_process::{Process, StopOptions, Stopped, Tid};

const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// How long a thread may block SIGTRAP before it is taken to do so for good: a creator of processes does until its child has started.
const MOMENT: Duration = Duration::from_millis(1500);

/// Stops the process for breakpoints to be set.
pub(super) fn stop<'p>(process: &'p Process, options: &StopOptions) -> Result<Stopped<'p>, EngineError> {
    let stopped = process.stop_with(options)?;
    if process.status()?.sig_ignored & SIGTRAP_BIT != 0 {
        return Err(EngineError::IgnoresTraps);
    }
    let blocking = |tid: &Tid| stopped.signal_mask(*tid).is_ok_and(|mask| mask & SIGTRAP_BIT != 0);
    let mut blocking: Vec<Tid> =
        stopped.threads().iter().map(|thread| thread.tid()).filter(blocking).collect();
    if blocking.is_empty() {
        return Ok(stopped);
    }
    drop(stopped);
    let deadline = Instant::now() + MOMENT;
    loop {
        blocking.retain(|&tid| blocks(process, tid));
        let Some(&tid) = blocking.first() else { return Ok(process.stop_with(options)?) };
        if Instant::now() >= deadline {
            return Err(EngineError::BlocksTraps(tid));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a running thread blocks SIGTRAP, or waits for signals: then it shows another mask than its own.
fn blocks(process: &Process, tid: Tid) -> bool {
    /// `rt_sigtimedwait` in 64 and in 32 bits, and its 64-bit form there.
    const WAITS: [&str; 3] = ["128", "177", "421"];
    let Ok(status) = process.thread_status(tid) else { return false };
    let call = std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", process.pid()));
    let waits = call.is_ok_and(|call| call.split(' ').next().is_some_and(|number| WAITS.contains(&number)));
    waits || status.sig_blocked & SIGTRAP_BIT != 0
}
