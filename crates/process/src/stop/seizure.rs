//! Attaching to all threads and waiting until each stands: steps 2 to 4 of [stopping](super).

use super::{Newborn, Parked, Thread, own_tid};
use crate::arch::Waiting;
use crate::wait::{self, Backoff, Event, OnExit, Stop};
use crate::watchdog::Watchdog;
use crate::{Errno, Pid, ProcError, Process, Registers, StopError, Tid, ptrace};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Threads attached to so far. Dropping it lets them go.
pub(super) struct Seizure<'p, 'n> {
    pub process: &'p Process,
    pub options: i32,
    pub on_exit: OnExit,
    /// Threads of the program, as was found while it ran: what is asked of each lengthens the stop.
    pub programs: HashSet<Tid>,
    /// Those attached to, and what they were waiting in.
    pub known: HashMap<Tid, Waiting>,
    pub watchdog: Option<Watchdog>,
    pub park: &'n dyn Fn(Tid, i32) -> Parked,
    /// What is told of new processes, if the threads were traced: breakpoints and steps of ours may be what they stop for.
    pub newborn: Option<&'n mut dyn FnMut(Newborn)>,
    pub running: Vec<Tid>,
    pub stopped: Vec<Thread>,
}

impl Seizure<'_, '_> {
    fn pid(&self) -> Pid {
        self.process.pid()
    }

    fn on_exit(&self, tid: Tid) -> OnExit {
        if tid == self.pid().leader() { self.on_exit } else { OnExit::Reap }
    }

    pub fn stop_all(&mut self, patience: Duration) -> Result<(), StopError> {
        let deadline = Instant::now() + patience;
        loop {
            let mut found = false;
            while self.attach_new()? {
                found = true;
            }
            if !found {
                return Ok(());
            }
            self.wait_for_all(deadline, patience)?;
        }
    }

    /// Step 2 of the protocol, once; whether there was anything new, or may have been.
    fn attach_new(&mut self) -> Result<bool, StopError> {
        let listed = self.process.tasks()?;
        self.attach_listed(&listed)
    }

    pub(super) fn attach_listed(&mut self, listed: &[Tid]) -> Result<bool, StopError> {
        let mut found = false;
        for &tid in listed {
            if self.known.contains_key(&tid) {
                continue;
            }
            if !self.programs.contains(&tid) && self.process.is_worker(tid) {
                continue;
            }
            if let Some(waiting) = self.attach(tid)? {
                self.known.insert(tid, waiting);
                self.running.push(tid);
                found = true;
            } else {
                // A leader that has ended lives again, attached, once another thread of its has called exec.
                // The kernel lists by walking from thread to thread, and counts anew where the one it has come to is gone by then: so it may
                // have passed over one that lives.
                found |= matches!(self.process.thread_stat(tid), Err(ProcError::Gone(_)));
            }
        }
        Ok(found)
    }

    /// Attaches to a thread, and tells what it was waiting in. `None`: it has ended.
    fn attach(&mut self, tid: Tid) -> Result<Option<Waiting>, StopError> {
        if !self.known.is_empty() && self.watchdog.is_none() {
            self.watchdog = Some(Watchdog::start());
        }
        match ptrace::seize(tid, self.options as usize) {
            Ok(()) => {
                if let Some(watchdog) = &self.watchdog
                    && self.on_exit(tid) == OnExit::Reap
                {
                    watchdog.add(tid);
                }
            }
            Err(Errno(libc::ESRCH)) => return Ok(None),
            Err(errno) => {
                let Ok(status) = self.process.thread_status(tid) else { return Ok(None) };
                return match status.state {
                    // The leader stays listed after its end for as long as other threads live.
                    state if state.has_ended() => Ok(None),
                    // Created by a thread whose options attach us to its offspring; it stops by itself.
                    _ if status.tracer == own_tid() => Ok(Some(Waiting::NOTHING)),
                    _ if status.tracer != 0 => {
                        Err(StopError::AlreadyTraced { pid: self.pid(), tid, tracer: Tid(status.tracer) })
                    }
                    _ => Err(StopError::Ptrace { tid, request: "PTRACE_SEIZE", errno }),
                };
            }
        }
        // It can only fail because the thread has ended, and the wait will tell us that.
        let waiting = Waiting::of(self.pid(), tid);
        let _ = ptrace::interrupt(tid, 0);
        Ok(Some(waiting))
    }

    pub fn wait_for_all(&mut self, deadline: Instant, patience: Duration) -> Result<(), StopError> {
        let mut backoff = Backoff::default();
        loop {
            let running = std::mem::take(&mut self.running);
            let mut running = running.into_iter();
            while let Some(tid) = running.next() {
                if let Err(error) = self.look_at(tid) {
                    // Dropping the seizure must find those not looked at yet.
                    self.running.push(tid);
                    self.running.extend(running);
                    return Err(error);
                }
            }
            let Some(&tid) = self.running.first() else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(self.process.unstoppable(tid, patience));
            }
            backoff.pause();
        }
    }

    /// Files the thread under `stopped` or, if nothing final has happened to it, under `running`.
    fn look_at(&mut self, tid: Tid) -> Result<(), StopError> {
        let parked = match wait::poll(tid, self.on_exit(tid)) {
            None => {
                self.running.push(tid);
                return Ok(());
            }
            Some(Event::Gone) => {
                // Its id may become a new thread's.
                self.known.remove(&tid);
                return Ok(());
            }
            // The interrupt has overtaken a breakpoint or step whose SIGTRAP the kernel has queued already: let go now, the thread gets as
            // far as its delivery and runs nothing. Left standing here, it would be behind the breakpoint, and be killed.
            Some(Event::Stop(Stop::Interrupted(_)))
                if self.newborn.is_some() && ptrace::has_pending_trap(tid) =>
            {
                let _ = ptrace::cont(tid, 0);
                self.running.push(tid);
                return Ok(());
            }
            Some(Event::Stop(Stop::Interrupted(_))) => Parked::Plain,
            Some(Event::Stop(Stop::Signal(signal))) => (self.park)(tid, signal),
            Some(Event::Stop(Stop::Event(libc::PTRACE_EVENT_EXEC))) => {
                let _ = ptrace::detach(tid, 0);
                // A child made by vfork, which has left the target's memory.
                let adopted = self.newborn.is_some() && self.process.thread_stat(tid).is_err();
                return if adopted { Ok(()) } else { Err(StopError::Execed(self.pid())) };
            }
            // Stops of options the caller chose. In the kernel any stop takes back an interrupt that has not had its effect.
            Some(Event::Stop(stop @ (Stop::Event(_) | Stop::Syscall))) => {
                if let Stop::Event(event) = stop {
                    self.tell_of_newborn(tid, event);
                }
                let _ = ptrace::interrupt(tid, 0);
                let _ = ptrace::cont(tid, 0);
                self.running.push(tid);
                return Ok(());
            }
        };
        let mut regs = match Registers::read(tid) {
            Ok(regs) => regs,
            // Killed since. An exec that has killed it goes on only when we have taken its end.
            Err(Errno(libc::ESRCH)) => {
                self.running.push(tid);
                return Ok(());
            }
            Err(errno) => return Err(StopError::Ptrace { tid, request: "PTRACE_GETREGSET", errno }),
        };
        if regs.restart_if_interrupted(self.known.get(&tid).copied().unwrap_or(Waiting::NOTHING)) {
            // ESRCH means killed, and then nobody will miss it.
            let _ = regs.write(tid);
        }
        self.stopped.push(Thread::new(tid, regs, parked));
        Ok(())
    }

    fn tell_of_newborn(&mut self, tid: Tid, event: i32) {
        let Some(newborn) = &mut self.newborn else { return };
        let Ok(child) = ptrace::event_message(tid).map(|child| Pid(child as i32)) else { return };
        let is_process = match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => true,
            // A child that does not end with SIGCHLD, or a thread.
            libc::PTRACE_EVENT_CLONE => self.process.thread_stat(child.leader()).is_err(),
            _ => false,
        };
        if is_process {
            newborn(Newborn { child, vfork: event == libc::PTRACE_EVENT_VFORK });
        }
    }
}

impl Drop for Seizure<'_, '_> {
    fn drop(&mut self) {
        for thread in self.stopped.iter().rev() {
            thread.let_go(self.pid(), self.on_exit(thread.tid));
        }
        // A running thread cannot be let go. All of these were asked to stop; those that still do not are let go by the kernel
        // when our thread ends.
        let deadline = Instant::now() + Duration::from_millis(200);
        for &tid in &self.running {
            match wait::until(tid, self.on_exit(tid), deadline) {
                Some(Event::Stop(Stop::Signal(signal))) => drop(ptrace::detach(tid, signal as usize)),
                Some(Event::Stop(_)) => drop(ptrace::detach(tid, 0)),
                Some(Event::Gone) | None => {}
            }
        }
    }
}
