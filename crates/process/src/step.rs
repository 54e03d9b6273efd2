//! Running one stopped thread instruction by instruction, to move it out of code that is about to change.

use crate::ptrace::{self, SignalInfo};
use crate::stop::Parked;
use crate::wait::Stop;
use crate::{Registers, StopError, Stopped, Tid};

/// How a thread was stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The condition held after this many steps.
    Done(u32),
    /// It did not hold after as many steps as were allowed.
    NotYet,
    /// The instruction the thread stands at raises this signal, which it gets when it goes on.
    Faulted(i32),
}

impl Stopped<'_> {
    /// Steps `tid` until `done` holds for its registers; it is asked before each step, and at most `limit` steps are made. All other
    /// threads stand still, so code that waits for one of them makes no progress. Signals that come in between are sent
    /// again when the thread goes on.
    ///
    /// A thread that was stopped inside a system call starts that call again with the first step, and may block in it: then this
    /// fails when patience ends.
    ///
    /// # Errors
    /// [`StopError`] if there is no such thread, or it was lost.
    pub fn step_until(
        &mut self,
        tid: Tid,
        limit: u32,
        mut done: impl FnMut(&Registers) -> bool,
    ) -> Result<Stepped, StopError> {
        let index = self.index_of(tid)?;
        for steps in 0..=limit {
            if done(&self.threads[index].regs) {
                return Ok(Stepped::Done(steps));
            }
            if steps < limit
                && let Some(fault) = self.step(index)?
            {
                return Ok(Stepped::Faulted(fault));
            }
        }
        Ok(Stepped::NotYet)
    }

    /// One step. The signal that prevented it, if one did.
    fn step(&mut self, index: usize) -> Result<Option<i32>, StopError> {
        let tid = self.threads[index].tid;
        if let Parked::Signal(_) = self.threads[index].parked {
            let info = SignalInfo::of(tid).map_err(|errno| self.explain(tid, "PTRACE_GETSIGINFO", errno))?;
            self.threads[index].held.push(info);
            self.threads[index].parked = Parked::Plain;
        }
        let fault = loop {
            ptrace::singlestep(tid, 0).map_err(|errno| self.explain(tid, "PTRACE_SINGLESTEP", errno))?;
            let Stop::Signal(signal) = self.next_stop(tid)? else { continue };
            let info = SignalInfo::of(tid).map_err(|errno| self.explain(tid, "PTRACE_GETSIGINFO", errno))?;
            match (signal, info.code()) {
                (libc::SIGTRAP, libc::TRAP_TRACE | libc::TRAP_BRKPT | libc::TRAP_HWBKPT) => break None,
                // The instruction's own: it would be raised again and again.
                (libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP, code)
                    if code > 0 =>
                {
                    self.threads[index].parked = Parked::Signal(signal);
                    break Some(signal);
                }
                _ => self.threads[index].held.push(info),
            }
        };
        self.threads[index].regs =
            Registers::read(tid).map_err(|errno| self.explain(tid, "PTRACE_GETREGSET", errno))?;
        Ok(fault)
    }
}
