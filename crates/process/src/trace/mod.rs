//! Staying attached to a running process, for the mechanisms that trap.
//!
//! A [`Tracer`] is what [`Stopped::trace`] turns a stopped process into: all threads run, and each stop of one is told as a
//! [`TraceEvent`] that leaves that thread standing until the caller lets it go on. New threads are attached to by the kernel
//! before they run. Its waits take whatever happens to any child, so whoever traces must have none but these threads: a
//! keeper has none. Group-stops of job control are kept to (`PTRACE_LISTEN`) and not told.
//!
//! Waking somebody on a processor that sleeps is what a trap costs most: `nearness` tells how that is avoided.

mod drive;
mod event;
mod park;
mod tell;
#[cfg(test)]
mod tests;

use crate::alarm::Alarm;
use crate::nearness::Nearness;
use crate::ptrace;
use crate::stop::{BASE_OPTIONS, Parked, Thread};
use crate::wait::{self, Event, OnExit};
use crate::{
    BREAKPOINT_ADVANCE, Errno, Pid, Process, Registers, RemoteAddr, StopError, StopOptions, Stopped, Tid,
};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

pub use event::{Held, TraceEvent};
pub(crate) use park::Ours;

/// What we last did to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Run {
    Running,
    /// Runs one instruction. Whatever stops it before it has is no reason to let it run on.
    Stepping,
    Standing(Parked),
}

/// A running process with us attached to all of its threads. Dropping it stops them once more and detaches; use
/// [`Tracer::stop`] and take the breakpoints out before.
#[derive(Debug)]
pub struct Tracer<'p> {
    process: &'p Process,
    options: StopOptions,
    threads: HashMap<Tid, Run>,
    /// Ends the waits.
    _alarm: Alarm,
    nearness: Nearness,
    /// Processes that run in the target's memory until they start another program: children made by vfork.
    adopted: HashSet<Tid>,
    /// New processes that have stopped, and that their creators have not told of yet.
    early: HashSet<Tid>,
    /// Whether a thread that is found with all signals blocked but SIGTRAP had that one blocked, too, before it trapped.
    traps_unblock: bool,
    /// Threads whose signal handler is to be followed to its end.
    handling: HashSet<Tid>,
    /// The registers of the thread that stopped last, if they were asked for, while it stands.
    last: Cell<Option<(Tid, Registers)>>,
    /// Whether all registers were asked for after the last trap. Then they are read at the next one, which saves a look at the
    /// instruction pointer alone.
    asked: Cell<bool>,
    /// What [`Tracer::know_breakpoints`] was told, as instruction pointers after the trap.
    known: HashSet<RemoteAddr>,
    not_send: PhantomData<*mut ()>,
}

/// How long a wait lasts at most.
const TURN: Duration = Duration::from_millis(20);

/// The signals that can be blocked, without the real-time ones: bit `n - 1` is signal `n`.
const ALL: u64 = 0x7fff_ffff & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
const ALL_BUT_SIGTRAP: u64 = ALL & !(1 << (libc::SIGTRAP - 1));

const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;

impl<'p> Stopped<'p> {
    /// Lets all threads run under a tracer.
    ///
    /// # Errors
    /// [`StopError`]; the process is let go then.
    pub fn trace(self) -> Result<Tracer<'p>, StopError> {
        let (process, mut options) = (self.process, self.options.clone());
        options.ptrace_options |= OPTIONS;
        for thread in &self.threads {
            match ptrace::set_options(thread.tid, (BASE_OPTIONS | options.ptrace_options) as usize) {
                Ok(()) | Err(Errno(libc::ESRCH)) => {}
                Err(errno) => return Err(self.explain(thread.tid, "PTRACE_SETOPTIONS", errno)),
            }
        }
        let alarm = Alarm::every(TURN)
            .map_err(|errno| self.explain(process.pid().leader(), "timer_create", errno))?;
        let by_itself =
            |thread: &Thread| ptrace::signal_mask(thread.tid).is_ok_and(|mask| mask & ALL == ALL_BUT_SIGTRAP);
        let traps_unblock = !self.threads.iter().any(by_itself);
        let mut tracer = Tracer {
            process,
            options,
            threads: HashMap::new(),
            _alarm: alarm,
            nearness: Nearness::new(),
            adopted: HashSet::new(),
            early: HashSet::new(),
            traps_unblock,
            handling: HashSet::new(),
            last: Cell::new(None),
            asked: Cell::new(false),
            known: HashSet::new(),
            not_send: PhantomData,
        };
        for thread in self.into_threads() {
            thread.give_back(process.pid());
            tracer.threads.insert(thread.tid, Run::Standing(thread.parked));
            if thread.parked == Parked::Plain {
                // One that job control has stopped must not run. With this each stops once more, at once, and tells which it is.
                let _ = ptrace::interrupt(thread.tid, 0);
            }
            tracer.cont(thread.tid, thread.pending_signal().unwrap_or(0))?;
        }
        Ok(tracer)
    }
}

impl<'p> Tracer<'p> {
    /// The process.
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// Breakpoints behind whose first byte no thread can ever stand but by having met them: those that hide the start of an instruction of
    /// two bytes or more. One look tells a stop at such a one from a SIGTRAP that somebody sent.
    pub fn know_breakpoints(&mut self, addresses: impl IntoIterator<Item = RemoteAddr>) {
        self.known.extend(addresses.into_iter().map(|address| address + BREAKPOINT_ADVANCE));
    }

    /// Waits for the next event, for about a fiftieth of a second; `None` when none has come by then.
    ///
    /// # Errors
    /// [`StopError`] if a thread could not be driven.
    pub fn next_event(&mut self) -> Result<Option<TraceEvent>, StopError> {
        self.event(Self::take_next)
    }

    /// The next event, if it has happened already.
    ///
    /// # Errors
    /// [`StopError`] if a thread could not be driven.
    pub fn pending_event(&mut self) -> Result<Option<TraceEvent>, StopError> {
        self.event(|_| wait::take_any(false)?.ok_or(Errno(libc::EAGAIN)))
    }

    fn event(
        &mut self,
        take: impl Fn(&mut Self) -> Result<(Tid, Event), Errno>,
    ) -> Result<Option<TraceEvent>, StopError> {
        loop {
            let (tid, event) = match take(self) {
                Ok(taken) => taken,
                Err(Errno(libc::ECHILD)) => return Ok(Some(TraceEvent::ProcessGone)),
                Err(_) => return Ok(None),
            };
            if !self.is_ours(tid) {
                // A new process that stands before its creator has told of it, or has been killed there.
                match event {
                    Event::Stop(_) => self.early.insert(tid),
                    Event::Gone => self.early.remove(&tid),
                };
            } else if let Some(event) = self.tell(tid, event)? {
                return Ok(Some(event));
            }
        }
    }

    /// Asks for the next event where that is worth it, and waits for it otherwise.
    fn take_next(&mut self) -> Result<(Tid, Event), Errno> {
        if let Some(until) = self.nearness.asks() {
            loop {
                if let Some(taken) = wait::take_any(false)? {
                    return Ok(taken);
                }
                if Instant::now() >= until {
                    break;
                }
            }
            self.nearness.asked_in_vain();
        }
        wait::take_any(true)?.ok_or(Errno(libc::EINTR))
    }

    /// A thread of the process, known or not yet.
    fn is_ours(&self, tid: Tid) -> bool {
        self.threads.contains_key(&tid) || self.process.thread_stat(tid).is_ok()
    }

    /// Stops all threads again. A thread that has hit a breakpoint not told yet stands before it, and one that was being stepped stands
    /// where it got to; neither has a SIGTRAP of ours still to get, whatever came first.
    ///
    /// A process that was forked and not told of yet is handed to `newborn`, as it would have been with [`TraceEvent::Forked`], and let
    /// go. (One made by vfork is let go at once: its creator stops only when it is done.)
    ///
    /// # Errors
    /// [`StopError`]; the process is let go then.
    pub fn stop(mut self, newborn: impl FnMut(Pid)) -> Result<Stopped<'p>, StopError> {
        self.stop_again(newborn)
    }

    fn stop_again(&mut self, mut newborn: impl FnMut(Pid)) -> Result<Stopped<'p>, StopError> {
        let (mut running, mut standing) = (Vec::new(), Vec::new());
        let mut ours = Ours { known: std::mem::take(&mut self.known), ..Ours::default() };
        for (tid, run) in std::mem::take(&mut self.threads) {
            if run == Run::Stepping {
                ours.stepping.insert(tid);
            }
            match run {
                Run::Running | Run::Stepping => running.push(tid),
                Run::Standing(parked) => match Registers::read(tid) {
                    Ok(regs) => standing.push(Thread::new(tid, regs, parked)),
                    // Killed: there is its end to wait for.
                    Err(_) => running.push(tid),
                },
            }
        }
        let (process, options) = (self.process, self.options.clone());
        let park = |tid, signal| ours.park(process, tid, signal);
        let stopped = process.stop_traced(&options, running, standing, &park, &mut |born| {
            if self.await_first_stop(born.child) && !born.vfork {
                newborn(born.child);
            }
            self.release(born.child);
        });
        self.release_early(newborn);
        stopped
    }

    /// Lets those go whose creators were killed before they could tell of them.
    fn release_early(&mut self, mut newborn: impl FnMut(Pid)) {
        for tid in std::mem::take(&mut self.early) {
            newborn(Pid(tid.0));
            self.release(Pid(tid.0));
        }
    }

    /// A new process stops before its first instruction; whether this one does, and has not been killed.
    fn await_first_stop(&mut self, child: Pid) -> bool {
        let stop = || wait::until(child.leader(), OnExit::Reap, Instant::now() + self.options.patience);
        self.early.remove(&child.leader()) || matches!(stop(), Some(Event::Stop(_)))
    }
}

impl Drop for Tracer<'_> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            drop(self.stop_again(|_| {}));
        }
        self.release_early(|_| {});
    }
}
