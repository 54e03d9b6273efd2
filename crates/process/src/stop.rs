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
//! Where somebody else traces a thread, everything is let go and that tracer is waited for: another tool like this one stops the process for
//! milliseconds, and may do so just when probes are to be taken out.
//!
//! Threads that end on the way are forgotten. If the process starts another program, ends, or a thread does not stop in time,
//! everything is let go and the error says so. Steps 2 to 4 are in [`seizure`].

mod seizure;

use crate::arch::Waiting;
use crate::sharers::Seen;
use crate::wait::{self, Backoff, OnExit};
use crate::watchdog::Watchdog;
use crate::{Pid, ProcError, Process, Registers, State, StopError, Stopped, Tid, ptrace};
use seizure::Seizure;
use std::collections::{HashMap, HashSet};
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

/// How long a process is waited for that shares the memory: a child made by vfork is about to run another program. It may itself wait for
/// whoever is told of that ([`crate::execs`]), each time a fifth of this.
const FOR_SHARERS: Duration = Duration::from_secs(1);

/// How long a tracer may keep a process that is only to be looked at: another tool's stop takes some milliseconds.
pub(crate) const FOR_TRACERS: Duration = Duration::from_millis(250);

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
    /// The signals that it blocks, where more are blocked while it is stepped.
    pub(crate) unblocked: Option<u64>,
}

impl Thread {
    /// One that has just stopped, from which nothing is kept.
    pub(crate) fn new(tid: Tid, regs: Registers, parked: Parked) -> Self {
        Self { tid, regs, parked, held: Vec::new(), unblocked: None }
    }

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

    /// Gives back what was kept from it while it ran for us: signals that were held back, and those that it does not block.
    pub(crate) fn give_back(&self, pid: Pid) {
        if let Some(mask) = self.unblocked {
            // Where it fails the thread is gone.
            let _ = ptrace::set_signal_mask(self.tid, mask);
        }
        self.held.iter().for_each(|signal| signal.send_again(pid, self.tid));
    }

    /// Detaches from it, with the signals it has still to get.
    pub(crate) fn let_go(&self, pid: Pid, on_exit: OnExit) {
        self.give_back(pid);
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
        let for_sharers = || Instant::now() + options.patience.min(FOR_SHARERS);
        let (until, mut deadline) = (Instant::now() + options.patience, for_sharers());
        let mut seen = Seen::default();
        let mut backoff = Backoff::default();
        loop {
            let stopped = match self.memory_sharer(&mut seen) {
                None => match self.stop_threads(options) {
                    Ok(stopped) => Some(stopped),
                    Err(StopError::AlreadyTraced { tid, tracer, .. }) if self.is_left(tid, tracer, until) => {
                        deadline = for_sharers();
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Some(_) => None,
            };
            // One that was made meanwhile is found while nothing runs that could make another.
            let Some(other) = self.memory_sharer(&mut seen) else {
                match stopped {
                    // It was opened ahead of its program's start, and its memory was somebody else's then.
                    Some(_) if self.has_another_memory() => return Err(StopError::Execed(self.pid())),
                    Some(stopped) => return Ok(stopped),
                    None => continue,
                }
            };
            drop(stopped);
            if Instant::now() >= deadline {
                return Err(StopError::SharesMemory { pid: self.pid(), other });
            }
            backoff.pause();
        }
    }

    fn stop_threads(&self, options: &StopOptions) -> Result<Stopped<'_>, StopError> {
        let programs = self.wait_until_stoppable(options.patience)?;
        let watchdog = (programs.len() > 1).then(Watchdog::start);
        let since = Instant::now();
        let mut seizure = Seizure {
            process: self,
            options: BASE_OPTIONS | options.ptrace_options,
            on_exit: self.on_leader_exit()?,
            programs,
            known: HashMap::new(),
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
            programs: HashSet::new(),
            known: stopped.iter().map(|thread| (thread.tid(), Waiting::NOTHING)).collect(),
            watchdog: None,
            park,
            newborn: Some(newborn),
            running,
            stopped,
        };
        for &tid in &seizure.running {
            seizure.known.insert(tid, Waiting::of(self.pid(), tid));
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

    /// Waits until a tracer has left a thread, which is let run meanwhile. False if it stays.
    fn is_left(&self, tid: Tid, tracer: Tid, until: Instant) -> bool {
        let mut backoff = Backoff::default();
        while self.thread_status(tid).is_ok_and(|status| status.tracer == tracer.0) {
            if Instant::now() >= until {
                return false;
            }
            backoff.pause();
        }
        Instant::now() < until
    }

    /// Step 1 of the protocol; the program's threads.
    fn wait_until_stoppable(&self, patience: Duration) -> Result<HashSet<Tid>, StopError> {
        let start = Instant::now();
        let mut threads = HashSet::new();
        for tid in self.tasks()? {
            let mut backoff = Backoff::default();
            while let Ok(stat) = self.thread_stat(tid)
                && !stat.is_worker()
            {
                threads.insert(tid);
                if stat.state != State::Uninterruptible {
                    break;
                }
                if start.elapsed() > patience {
                    return Err(self.unstoppable(tid, patience));
                }
                backoff.pause();
            }
        }
        Ok(threads)
    }

    pub(crate) fn unstoppable(&self, tid: Tid, waited: Duration) -> StopError {
        let read = |file: &str| {
            let text = self.read_proc(&format!("task/{tid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&text).trim().to_owned()
        };
        let state = self.thread_stat(tid).map(|stat| stat.state);
        let syscall = read("syscall");
        let number = syscall.split(' ').next().and_then(|number| number.parse::<i64>().ok());
        let place = read("wchan");
        // Where the kernel lets the threads of a frozen control group wait; compilers make one function of the first two.
        let is_frozen = match place.as_str() {
            "do_freezer_trap" | "get_signal" => matches!(state, Ok(State::Sleeping)),
            place => place == "__refrigerator",
        };
        let why = match (state, number) {
            _ if is_frozen => "its control group is frozen, as that of a paused container".into(),
            (Ok(State::Uninterruptible), Some(number)) => {
                format!(
                    "it waits uninterruptibly in system call {number} ({}), for a disk, a file server or a child made by vfork",
                    place
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

/// The id of the calling thread: the tracer, as the kernel sees it.
pub(crate) fn own_tid() -> i32 {
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

#[cfg(test)]
mod tests;
