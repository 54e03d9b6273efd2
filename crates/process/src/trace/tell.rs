//! What a stop means: an event to be told, or something that is settled here.

use super::{ALL, ALL_BUT_SIGTRAP, Run, TraceEvent, Tracer};
use crate::arch::{Trapped, trapped};
use crate::ptrace::{self, SignalInfo};
use crate::stop::Parked;
use crate::wait::{Event, Stop};
use crate::{BREAKPOINT_ADVANCE, Pid, Registers, StopError, Tid};
use std::collections::HashMap;

impl Tracer<'_> {
    /// What is to be told of an event. A stop that SIGKILL has ended meanwhile, as one does that comes from another thread's exec, is
    /// nothing to be told: the thread's end follows.
    pub(super) fn tell(&mut self, tid: Tid, event: Event) -> Result<Option<TraceEvent>, StopError> {
        match self.meaning(tid, event) {
            Err(StopError::ThreadGone(_)) => {
                self.threads.insert(tid, Run::Running);
                Ok(None)
            }
            Err(StopError::Gone(_)) => Ok(Some(TraceEvent::ProcessGone)),
            told => told,
        }
    }

    fn meaning(&mut self, tid: Tid, event: Event) -> Result<Option<TraceEvent>, StopError> {
        let Event::Stop(stop) = event else {
            self.threads.remove(&tid);
            self.adopted.remove(&tid);
            self.handling.remove(&tid);
            // Whether it is the last is the kernel's to say: whoever goes for good leaves breakpoints behind.
            return Ok(Some(match self.process.is_alive() {
                true => TraceEvent::ThreadGone { tid },
                false => TraceEvent::ProcessGone,
            }));
        };
        if stop == Stop::Event(libc::PTRACE_EVENT_EXEC) {
            return Ok(self.execed(tid));
        }
        let Some(before) = self.threads.insert(tid, Run::Standing(Parked::Plain)) else {
            return Ok(Some(TraceEvent::NewThread { tid }));
        };
        match stop {
            Stop::Signal(libc::SIGTRAP) => self.trap(tid).map(Some),
            Stop::Signal(signal) => {
                self.threads.insert(tid, Run::Standing(Parked::Signal(signal)));
                Ok(Some(TraceEvent::Signal { tid, signal }))
            }
            Stop::Event(
                event @ (libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE),
            ) => match self.created(tid, event)? {
                None => self.go_on(tid, before),
                told => Ok(told),
            },
            Stop::Syscall if self.ends_handler(tid)? => Ok(Some(TraceEvent::HandlerReturns { tid })),
            Stop::Interrupted(libc::SIGTRAP) | Stop::Event(_) | Stop::Syscall => self.go_on(tid, before),
            Stop::Interrupted(_) => {
                self.resume(tid, "PTRACE_LISTEN", ptrace::listen, 0, before)?;
                Ok(None)
            }
        }
    }

    /// Whether the system call that a thread stands before ends a handler that is followed.
    fn ends_handler(&mut self, tid: Tid) -> Result<bool, StopError> {
        if !self.handling.contains(&tid) {
            return Ok(false);
        }
        let registers = Registers::read(tid).map_err(|errno| self.lost(tid, "PTRACE_GETREGSET", errno))?;
        let ends = registers.abi().sigreturn.contains(&registers.syscall_number());
        Ok(ends && self.handling.remove(&tid))
    }

    /// Blocks SIGTRAP again in a thread that blocked all signals when it met a breakpoint of ours, as the C library does for a moment:
    /// the kernel has unblocked it.
    pub fn block_again(&self, tid: Tid) {
        if self.traps_unblock
            && let Ok(mask) = ptrace::signal_mask(tid)
            && mask & ALL == ALL_BUT_SIGTRAP
            // The kernel takes the handler from a process that is trapped while it blocks the signal: who has one did not.
            && self.process.status().is_ok_and(|status| status.sig_caught & 1 << (libc::SIGTRAP - 1) == 0)
        {
            // ESRCH means killed.
            let _ = ptrace::set_signal_mask(tid, mask | ALL);
        }
    }

    fn trap(&mut self, tid: Tid) -> Result<TraceEvent, StopError> {
        self.nearness.note(self.process, tid);
        self.last.set(None);
        let ip = if self.asked.replace(false) {
            let registers =
                Registers::read(tid).map_err(|errno| self.lost(tid, "PTRACE_GETREGSET", errno))?;
            self.last.set(Some((tid, registers)));
            registers.ip()
        } else {
            Registers::read_ip(tid).map_err(|errno| self.lost(tid, "PTRACE_PEEKUSER", errno))?
        };
        let breakpoint = TraceEvent::Breakpoint { tid, address: ip - BREAKPOINT_ADVANCE };
        // Where a breakpoint leaves the thread in front of itself, a step may lead there as well.
        if BREAKPOINT_ADVANCE > 0 && self.known.contains(&ip) {
            return Ok(breakpoint);
        }
        let info = SignalInfo::of(tid).map_err(|errno| self.lost(tid, "PTRACE_GETSIGINFO", errno))?;
        match trapped(info.code()) {
            Some(Trapped::Breakpoint) => Ok(breakpoint),
            Some(Trapped::Step) => Ok(TraceEvent::Stepped { tid }),
            // Sent by somebody.
            None => {
                self.threads.insert(tid, Run::Standing(Parked::Signal(libc::SIGTRAP)));
                Ok(TraceEvent::Signal { tid, signal: libc::SIGTRAP })
            }
        }
    }

    /// `tid` is the leader's, whichever thread it was that called exec: it may have ended before we were here, and not be known.
    fn execed(&mut self, tid: Tid) -> Option<TraceEvent> {
        if self.adopted.remove(&tid) {
            self.threads.remove(&tid);
            self.release(Pid(tid.0));
            return None;
        }
        self.threads = HashMap::from([(tid, Run::Standing(Parked::Plain))]);
        Some(TraceEvent::Execed { tid })
    }

    /// After a stop that is nothing to the caller. A step that it came before is still to be made.
    fn go_on(&mut self, tid: Tid, before: Run) -> Result<Option<TraceEvent>, StopError> {
        if before == Run::Stepping {
            self.step(tid, 0)?
        } else {
            self.cont(tid, 0)?
        }
        Ok(None)
    }

    /// The new process, if it is one. To the kernel every child is a clone that does not end with SIGCHLD, as threads are.
    fn created(&mut self, tid: Tid, event: i32) -> Result<Option<TraceEvent>, StopError> {
        let message =
            ptrace::event_message(tid).map_err(|errno| self.lost(tid, "PTRACE_GETEVENTMSG", errno))?;
        let child = Pid(message as i32);
        let cloned = event == libc::PTRACE_EVENT_CLONE;
        // A thread that has ended already is not listed either, and one that was killed there is no process any more.
        if cloned && self.is_ours(child.leader()) || !self.await_first_stop(child) {
            return Ok(None);
        }
        Ok(Some(TraceEvent::Forked { tid, child, vfork: event == libc::PTRACE_EVENT_VFORK }))
    }
}
