//! A process all of whose threads stand still.

use crate::ptrace::Dispatch;
use crate::stop::Thread;
use crate::wait::OnExit;
use crate::{Errno, Process, Registers, StopError, StopOptions, Tid, ptrace};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// A process all of whose threads are stopped and attached to the calling thread. As long as this exists nothing in the target
/// runs but what is asked for here, so its memory and registers may be changed together.
///
/// Dropping it lets all threads go on, but for a launched command's ([`hold`](crate::launch::Launched::hold)). Only the thread that stopped them may use it: that is ptrace's rule.
#[derive(Debug)]
pub struct Stopped<'p> {
    pub(crate) process: &'p Process,
    pub(crate) threads: Vec<Thread>,
    pub(crate) options: StopOptions,
    on_leader_exit: OnExit,
    since: Instant,
    pub(crate) at_drop: AtDrop,
    not_send: PhantomData<*mut ()>,
}

/// What becomes of the threads when a [`Stopped`] is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtDrop {
    /// They go on.
    LetGo,
    /// They stand on, attached to us: a launched command that has not been let run.
    Stand,
}

impl<'p> Stopped<'p> {
    pub(crate) fn new(
        process: &'p Process,
        threads: Vec<Thread>,
        options: StopOptions,
        on_leader_exit: OnExit,
        since: Instant,
    ) -> Self {
        let at_drop = AtDrop::LetGo;
        Stopped { process, threads, options, on_leader_exit, since, at_drop, not_send: PhantomData }
    }

    /// The process.
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// How it was stopped.
    pub fn options(&self) -> &StopOptions {
        &self.options
    }

    /// Its threads, ascending by id.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// One of its threads.
    pub fn thread(&self, tid: Tid) -> Option<&Thread> {
        self.threads.binary_search_by_key(&tid, |thread| thread.tid).ok().map(|index| &self.threads[index])
    }

    /// A thread whose system calls may become signals of its own (`PR_SET_SYSCALL_USER_DISPATCH`), as far as the kernel tells: it does since 6.4.
    pub fn dispatching(&self) -> Option<Tid> {
        let is_dispatching = |tid: &Tid| matches!(Dispatch::of(*tid), Ok(Some(_)));
        self.threads.iter().map(Thread::tid).find(is_dispatching)
    }

    pub(crate) fn index_of(&self, tid: Tid) -> Result<usize, StopError> {
        self.threads
            .binary_search_by_key(&tid, |thread| thread.tid)
            .map_err(|_| StopError::UnknownThread(tid))
    }

    /// Replaces a thread's registers.
    ///
    /// # Errors
    /// [`StopError`] if there is no such thread, or it has been killed.
    pub fn set_registers(&mut self, tid: Tid, registers: Registers) -> Result<(), StopError> {
        let index = self.index_of(tid)?;
        registers.write(tid).map_err(|errno| self.explain(tid, "PTRACE_SETREGSET", errno))?;
        self.threads[index].regs = registers;
        Ok(())
    }

    /// The signals a thread blocks; bit `n - 1` is signal `n`.
    ///
    /// # Errors
    /// [`StopError`] if it has been killed.
    pub fn signal_mask(&self, tid: Tid) -> Result<u64, StopError> {
        if let Some(mask) = self.thread(tid).and_then(|thread| thread.unblocked) {
            return Ok(mask);
        }
        ptrace::signal_mask(tid).map_err(|errno| self.explain(tid, "PTRACE_GETSIGMASK", errno))
    }

    /// How long the target has been standing still.
    pub fn stopped_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets all threads go on and tells how long they stood still.
    pub fn resume_and_detach(mut self) -> Duration {
        self.detach_all();
        self.stopped_for()
    }

    /// What a failed request means: ESRCH is all the kernel says when a thread was killed under us.
    pub(crate) fn explain(&self, tid: Tid, request: &'static str, errno: Errno) -> StopError {
        match errno {
            Errno(libc::ESRCH) if !self.process.is_alive() => StopError::Gone(self.process.pid()),
            Errno(libc::ESRCH) => StopError::ThreadGone(tid),
            errno => StopError::Ptrace { tid, request, errno },
        }
    }

    pub(crate) fn on_exit(&self, tid: Tid) -> OnExit {
        if tid == self.process.pid().leader() { self.on_leader_exit } else { OnExit::Reap }
    }

    pub(crate) fn into_threads(mut self) -> Vec<Thread> {
        std::mem::take(&mut self.threads)
    }

    fn detach_all(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        // The leader last: its end is reported only after that of all others.
        for thread in threads.iter().rev() {
            thread.let_go(self.process.pid(), self.on_exit(thread.tid));
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if self.at_drop == AtDrop::LetGo {
            self.detach_all();
        }
    }
}
