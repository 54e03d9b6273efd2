//! May breakpoints be set in this process at all?
//!
//! A breakpoint instruction raises SIGTRAP, and the kernel *forces* it on the thread (`force_sig_info_to_task` in
//! `kernel/signal.c`): where the thread blocks SIGTRAP it is unblocked, where the process ignores it or has a handler for it and
//! the thread blocks it, the disposition is set to the default. That comes before a tracer hears of anything, and the program
//! would find its own state changed: a `sigwait` that waits in vain, a handler that is gone.
//!
//! So a process that ignores SIGTRAP gets no breakpoints, and neither does one with a thread that blocks it for good, with two
//! exceptions. Threads of libraries block all signals for good, so as to be left alone (those of jemalloc in redis do), and
//! the C library does for a moment where threads and processes are made: without a handler for SIGTRAP that is no loss, and the tracer blocks
//! the signal again ([`Tracer`]). With one, the end of the moment is waited for.
//!
//! [`Tracer`]: trapless_process::trace::Tracer

use crate::EngineError;
use std::{
    thread,
    time::{Duration, Instant},
};
use trapless_process::{Process, StopOptions, Stopped, Tid, launch::Handover};

const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// The signals that can be blocked, without the real-time ones.
const ALL: u64 = 0x7fff_ffff & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// How long a thread may block SIGTRAP before it is taken to do so for good: a creator of processes does until its child has started.
const MOMENT: Duration = Duration::from_millis(1500);

/// Stops the process for breakpoints to be set.
///
/// Only a stopped thread shows its own mask: one that waits in ppoll, sigsuspend or sigtimedwait has another for as long. A
/// thread that is found to block SIGTRAP must be found not to; others may be in such a moment by then, as there always is one
/// where threads come and go.
pub(super) fn stop<'p>(process: &'p Process, options: &StopOptions) -> Result<Stopped<'p>, EngineError> {
    let deadline = Instant::now() + MOMENT;
    let mut pause = Duration::from_millis(1);
    let mut suspects: Option<Vec<Tid>> = None;
    loop {
        let stopped = process.stop_with(options)?;
        let is_suspect = |tid: &Tid| suspects.as_ref().is_none_or(|suspects| suspects.contains(tid));
        let blocking: Vec<Tid> = blocking(&stopped)?.into_iter().filter(is_suspect).collect();
        match blocking.first() {
            None => return Ok(stopped),
            Some(&tid) if Instant::now() >= deadline => return Err(EngineError::BlocksTraps(tid)),
            Some(_) => {}
        }
        suspects = Some(blocking);
        drop(stopped);
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(200));
    }
}

/// Takes over a launched command for breakpoints to be set. What it has of its signals it has from its parent, and keeps.
pub(super) fn take<'p>(
    process: &'p Process,
    handover: &Handover,
    options: &StopOptions,
) -> Result<Stopped<'p>, EngineError> {
    let stopped = handover.take(process, options)?;
    match blocking(&stopped)?.first() {
        None => Ok(stopped),
        Some(&tid) => Err(EngineError::BlocksTraps(tid)),
    }
}

/// The threads that block SIGTRAP, in a process that does not ignore it.
fn blocking(stopped: &Stopped<'_>) -> Result<Vec<Tid>, EngineError> {
    let status = stopped.process().status()?;
    if status.sig_ignored & SIGTRAP_BIT != 0 {
        return Err(EngineError::IgnoresTraps);
    }
    let is_handled = status.sig_caught & SIGTRAP_BIT != 0;
    // Nothing is lost where there is no handler, and all signals are blocked only to be left alone.
    let is_kept = |mask: u64| !is_handled && mask & ALL == ALL;
    let blocks =
        |tid: &Tid| stopped.signal_mask(*tid).is_ok_and(|mask| mask & SIGTRAP_BIT != 0 && !is_kept(mask));
    Ok(stopped.threads().iter().map(|thread| thread.tid()).filter(blocks).collect())
}
