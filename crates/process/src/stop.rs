//! Stopping all threads of a process.
//!
//! The protocol, in order:
//! 0. Wait a while for other processes in the same memory to leave it ([`crate::sharers`]): they are no threads, and would go on. It is
//!    asked again at the end, about those that have come since.
//! 1. Wait until no thread is in an uninterruptible wait (a vfork parent, a dead file server): such a thread could be attached
//!    but neither stopped nor let go again. Nothing has been touched until here.
//! 2. Attach to every thread of `/proc/PID/task` (`PTRACE_SEIZE`, which by itself disturbs nothing), ask each to stop
//!    (`PTRACE_INTERRUPT`), and read the list again until it has no new thread.
//! 3. Wait for all of them. A thread stops in one of two ways, both fine to stay in: the interrupt's own stop (also when job
//!    control had stopped it before), or on the way to a signal, which it gets when it goes on.
//! 4. A thread that was being created in 2 is listed by now, because its creator has stopped outside of the system call: repeat
//!    from 2 until a full round finds nothing new. After that no thread is left that could create another.
//!
//! Threads that end on the way are forgotten. If the process starts another program, ends, or a thread does not stop in time,
//! everything is let go and the error says so.

use crate::sharers::Seen;
use crate::wait::{self, Backoff, Event, OnExit, Stop};
use crate::watchdog::Watchdog;
use crate::{Errno, Pid, ProcError, Process, Registers, State, StopError, Stopped, Tid, ptrace};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How to stop a process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StopOptions {
    /// How long any one wait may take.
    pub patience: Duration,
    /// `PTRACE_O_*` to set in addition to those that are needed.
    pub ptrace_options: i32,
    /// Make system calls in the target although a seccomp filter might kill it for them.
    pub allow_seccomp: bool,
}

impl Default for StopOptions {
    fn default() -> Self {
        StopOptions { patience: Duration::from_secs(5), ptrace_options: 0, allow_seccomp: false }
    }
}

/// How long a process is waited for that shares the memory: a child made by vfork is about to run another program.
const FOR_SHARERS: Duration = Duration::from_secs(1);

/// What every attached thread needs: system call stops told from SIGTRAP, and exec noticed.
pub(crate) const BASE_OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;

/// How a stopped thread is to be let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parked {
    /// In a stop that delivers nothing.
    Plain,
    /// In a signal-delivery-stop, and the signal is to be delivered.
    Signal(i32),
}

/// A process that a traced thread has created.
pub(crate) struct Newborn {
    pub child: Pid,
    /// Whether it runs in its creator's memory, which waits for it.
    pub vfork: bool,
}

/// A stopped thread.
#[derive(Debug)]
pub struct Thread {
    pub(crate) tid: Tid,
    pub(crate) regs: Registers,
    pub(crate) parked: Parked,
    /// Signals that came while it ran for us, to be sent again.
    pub(crate) held: Vec<ptrace::SignalInfo>,
}

impl Thread {
    /// Its id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Its registers.
    pub fn registers(&self) -> &Registers {
        &self.regs
    }

    /// The signal it will get when it goes on.
    pub fn pending_signal(&self) -> Option<i32> {
        match self.parked {
            Parked::Signal(signal) => Some(signal),
            Parked::Plain => None,
        }
    }

    /// Sends the signals that were held back.
    pub(crate) fn send_held(&self, pid: Pid) {
        self.held.iter().for_each(|signal| signal.send_again(pid, self.tid));
    }

    /// Detaches from it, with the signals it has still to get.
    pub(crate) fn let_go(&self, pid: Pid, on_exit: OnExit) {
        self.send_held(pid);
        if ptrace::detach(self.tid, self.pending_signal().unwrap_or(0) as usize).is_err() {
            // Killed while it stood. Its parent, or an execve that killed it, hears of it only when we have.
            let _ = wait::until(self.tid, on_exit, Instant::now() + Duration::from_millis(100));
        }
    }
}

impl Process {
    /// Stops every thread, with the default options.
    ///
    /// # Errors
    /// [`StopError`]; the process is as it was before.
    pub fn stop(&self) -> Result<Stopped<'_>, StopError> {
        self.stop_with(&StopOptions::default())
    }

    /// Stops every thread.
    ///
    /// # Errors
    /// [`StopError`]; the process is as it was before.
    pub fn stop_with(&self, options: &StopOptions) -> Result<Stopped<'_>, StopError> {
        let deadline = Instant::now() + options.patience.min(FOR_SHARERS);
        let mut seen = Seen::default();
        let mut backoff = Backoff::default();
        loop {
            let stopped = match self.memory_sharer(&mut seen) {
                None => Some(self.stop_threads(options)?),
                Some(_) => None,
            };
            // One that was made meanwhile is found while nothing runs that could make another.
            let Some(other) = self.memory_sharer(&mut seen) else {
                if let Some(stopped) = stopped {
                    return Ok(stopped);
                }
                continue;
            };
            drop(stopped);
            if Instant::now() >= deadline {
                return Err(StopError::SharesMemory { pid: self.pid(), other });
            }
            backoff.pause();
        }
    }

    fn stop_threads(&self, options: &StopOptions) -> Result<Stopped<'_>, StopError> {
        let threads = self.wait_until_stoppable(options.patience)?;
        let watchdog = (threads > 1).then(Watchdog::start);
        let since = Instant::now();
        let mut seizure = Seizure {
            process: self,
            options: BASE_OPTIONS | options.ptrace_options,
            on_exit: self.on_leader_exit()?,
            known: HashSet::new(),
            watchdog,
            park: &|_, signal| Parked::Signal(signal),
            newborn: None,
            running: Vec::new(),
            stopped: Vec::new(),
        };
        seizure.stop_all(options.patience)?;
        let mut threads = std::mem::take(&mut seizure.stopped);
        threads.sort_by_key(|thread| thread.tid);
        if threads.is_empty() {
            return Err(StopError::Gone(self.pid()));
        }
        Ok(Stopped::new(self, threads, options.clone(), seizure.on_exit, since))
    }

    /// Stops a process some of whose threads are attached and running, and others attached and stopped. `park` decides how one that
    /// stops for a signal is to be let go. `newborn` is told of each process that one of them has created and nobody has heard of yet;
    /// it is attached, and whether it stands is not known.
    pub(crate) fn stop_traced(
        &self,
        options: &StopOptions,
        running: Vec<Tid>,
        stopped: Vec<Thread>,
        park: &dyn Fn(Tid, i32) -> Parked,
        newborn: &mut dyn FnMut(Newborn),
    ) -> Result<Stopped<'_>, StopError> {
        let since = Instant::now();
        let mut seizure = Seizure {
            process: self,
            options: BASE_OPTIONS | options.ptrace_options,
            on_exit: self.on_leader_exit()?,
            known: running.iter().copied().chain(stopped.iter().map(Thread::tid)).collect(),
            watchdog: None,
            park,
            newborn: Some(newborn),
            running,
            stopped,
        };
        for &tid in &seizure.running {
            // It can only fail because the thread has ended, and the wait will tell us that.
            let _ = ptrace::interrupt(tid, 0);
        }
        seizure.wait_for_all(Instant::now() + options.patience, options.patience)?;
        seizure.stop_all(options.patience)?;
        let mut threads = std::mem::take(&mut seizure.stopped);
        threads.sort_by_key(|thread| thread.tid);
        if threads.is_empty() {
            return Err(StopError::Gone(self.pid()));
        }
        Ok(Stopped::new(self, threads, options.clone(), seizure.on_exit, since))
    }

    /// A child of ours that ends while we trace it must be left for whoever started it to reap.
    pub(crate) fn on_leader_exit(&self) -> Result<OnExit, ProcError> {
        let ours = self.status()?.ppid == std::process::id() as i32;
        Ok(if ours { OnExit::Leave } else { OnExit::Reap })
    }

    /// Step 1 of the protocol; how many threads there were.
    fn wait_until_stoppable(&self, patience: Duration) -> Result<usize, StopError> {
        let start = Instant::now();
        let threads = self.threads()?;
        for &tid in &threads {
            let mut backoff = Backoff::default();
            while self.thread_stat(tid).is_ok_and(|stat| stat.state == State::Uninterruptible) {
                if start.elapsed() > patience {
                    return Err(self.unstoppable(tid, patience));
                }
                backoff.pause();
            }
        }
        Ok(threads.len())
    }

    pub(crate) fn unstoppable(&self, tid: Tid, waited: Duration) -> StopError {
        let read = |file: &str| {
            let text = self.read_proc(&format!("task/{tid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&text).trim().to_owned()
        };
        let state = self.thread_stat(tid).map(|stat| stat.state);
        let syscall = read("syscall");
        let number = syscall.split(' ').next().and_then(|number| number.parse::<i64>().ok());
        let why = match (state, number) {
            (Ok(State::Uninterruptible), Some(number)) => {
                format!(
                    "it waits uninterruptibly in system call {number} ({}), for a disk, a file server or a child made by vfork",
                    read("wchan")
                )
            }
            (Ok(State::Uninterruptible), None) => {
                "it waits uninterruptibly, for a disk, a file server or a child made by vfork".into()
            }
            (Ok(state), _) => format!("its state is {state:?}"),
            (Err(_), _) => "it is ending".into(),
        };
        StopError::Unstoppable { pid: self.pid(), tid, waited, why }
    }
}

/// Threads attached to so far. Dropping it lets them go.
struct Seizure<'p, 'n> {
    process: &'p Process,
    options: i32,
    on_exit: OnExit,
    known: HashSet<Tid>,
    watchdog: Option<Watchdog>,
    park: &'n dyn Fn(Tid, i32) -> Parked,
    /// What is told of new processes, if the threads were traced: breakpoints and steps of ours may be what they stop for.
    newborn: Option<&'n mut dyn FnMut(Newborn)>,
    running: Vec<Tid>,
    stopped: Vec<Thread>,
}

impl Seizure<'_, '_> {
    fn pid(&self) -> Pid {
        self.process.pid()
    }

    fn on_exit(&self, tid: Tid) -> OnExit {
        if tid == self.pid().leader() { self.on_exit } else { OnExit::Reap }
    }

    fn stop_all(&mut self, patience: Duration) -> Result<(), StopError> {
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

    /// Step 2 of the protocol, once; whether there was anything new.
    fn attach_new(&mut self) -> Result<bool, StopError> {
        let mut found = false;
        for tid in self.process.threads()? {
            if !self.known.insert(tid) {
                continue;
            }
            if self.attach(tid)? {
                self.running.push(tid);
                found = true;
            } else {
                // A leader that has ended lives again, attached, once another thread of its has called exec.
                self.known.remove(&tid);
            }
        }
        Ok(found)
    }

    /// Whether the thread is attached now; it is not if it has ended.
    fn attach(&mut self, tid: Tid) -> Result<bool, StopError> {
        if self.known.len() > 1 && self.watchdog.is_none() {
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
            Err(Errno(libc::ESRCH)) => return Ok(false),
            Err(errno) => {
                let Ok(status) = self.process.thread_status(tid) else { return Ok(false) };
                return match status.state {
                    // The leader stays listed after its end for as long as other threads live.
                    State::Zombie | State::Dead => Ok(false),
                    // Created by a thread whose options attach us to its offspring; it stops by itself.
                    _ if status.tracer == own_tid() => Ok(true),
                    _ if status.tracer != 0 => {
                        Err(StopError::AlreadyTraced { pid: self.pid(), tid, tracer: Tid(status.tracer) })
                    }
                    _ => Err(StopError::Ptrace { tid, request: "PTRACE_SEIZE", errno }),
                };
            }
        }
        // It can only fail because the thread has ended, and the wait will tell us that.
        let _ = ptrace::interrupt(tid, 0);
        Ok(true)
    }

    fn wait_for_all(&mut self, deadline: Instant, patience: Duration) -> Result<(), StopError> {
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
            Some(Event::Gone) => return Ok(()),
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
            // Killed since.
            Err(Errno(libc::ESRCH)) => return Ok(()),
            Err(errno) => return Err(StopError::Ptrace { tid, request: "PTRACE_GETREGSET", errno }),
        };
        if regs.restart_if_interrupted() {
            // ESRCH means killed, and then nobody will miss it.
            let _ = regs.write(tid);
        }
        self.stopped.push(Thread { tid, regs, parked, held: Vec::new() });
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

/// The id of the calling thread: the tracer, as the kernel sees it.
pub(crate) fn own_tid() -> i32 {
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests;
