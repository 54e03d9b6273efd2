//! Running one stopped thread instruction by instruction, to move it out of code that is about to change.

use crate::arch::{OTHER_CALLS, STEP_OVER_CALL_LOOKS_SENT, Stepping, Trapped, trapped};
use crate::ptrace::{self, SignalInfo};
use crate::stop::Parked;
use crate::wait::Stop;
use crate::{BREAKPOINT_ADVANCE, Process, Registers, StopError, Stopped, TRAP_FLAG, Tid};

/// How a thread was stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The condition held after this many steps.
    Done(u32),
    /// It did not hold after as many steps as were allowed.
    NotYet,
    /// It did not hold, and signals come faster than the thread can be stepped.
    Outpaced,
    /// The instruction the thread stands at raises this signal, which it gets when it goes on.
    Faulted(i32),
}

/// How many signals may come during one step. They are held back one by one, and somebody may send more of them than that.
const SIGNALS: u32 = 16;

/// The same of those that cannot be blocked.
const UNBLOCKABLE: u32 = 1000;

/// All signals that are not queued. Those that are come in order: what was held back must not come behind what waits in the kernel.
const STANDARD: u64 = (1 << 31) - 1;

/// Signals that an instruction raises. The kernel ends a program that blocks one.
const RAISED: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// What came of one step.
enum Outcome {
    Made,
    /// This signal prevents it.
    Faulted(i32),
    /// Signals come faster than it can be tried.
    Outpaced,
}

/// Whether an instruction raises this signal each time that it is tried.
fn is_raised_by_instruction(signal: i32, code: i32) -> bool {
    code > 0 && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL)
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
            if steps == limit {
                break;
            }
            match self.step(index)? {
                Outcome::Made => {}
                Outcome::Faulted(signal) => return Ok(Stepped::Faulted(signal)),
                Outcome::Outpaced => return Ok(Stepped::Outpaced),
            }
        }
        Ok(Stepped::NotYet)
    }

    /// Lets the signal be delivered that a step of `tid` has met ([`Stepped::Faulted`]): the thread stands at its handler's first instruction
    /// then. Whether it does; one that is not in front of such a signal stays where it is.
    ///
    /// # Errors
    /// [`StopError`] if there is no such thread, or it was lost: also because the kernel finds no room for the handler's frame.
    pub fn deliver(&mut self, tid: Tid) -> Result<bool, StopError> {
        let index = self.index_of(tid)?;
        let Parked::Signal(signal) = self.threads[index].parked else { return Ok(false) };
        // The handler's frame keeps the mask.
        self.unblock(index)?;
        self.threads[index].parked = Parked::Plain;
        let mut passing = signal as usize;
        let delivered = loop {
            ptrace::singlestep(tid, std::mem::take(&mut passing))
                .map_err(|errno| self.explain(tid, "PTRACE_SINGLESTEP", errno))?;
            match self.next_stop(tid)? {
                // The kernel tells the tracer that the frame is made.
                Stop::Signal(libc::SIGTRAP) => break true,
                Stop::Signal(signal) => {
                    self.threads[index].parked = Parked::Signal(signal);
                    break false;
                }
                _ => {}
            }
        };
        self.read_registers(index)?;
        Ok(delivered)
    }

    fn step(&mut self, index: usize) -> Result<Outcome, StopError> {
        let tid = self.threads[index].tid;
        let mut passing = 0;
        if let Parked::Signal(signal) = self.threads[index].parked {
            let info = SignalInfo::of(tid).map_err(|errno| self.explain(tid, "PTRACE_GETSIGINFO", errno))?;
            match (signal, info.code()) {
                // The instruction that the thread stands at has raised it already.
                (signal, code) if is_raised_by_instruction(signal, code) => {
                    return Ok(Outcome::Faulted(signal));
                }
                (libc::SIGSTOP, _) => passing = signal as usize,
                _ => self.threads[index].held.push(info),
            }
            self.threads[index].parked = Parked::Plain;
        }
        let stepping = Stepping::over(self.process, &self.threads[index].regs);
        let is_own = self.threads[index].regs.flags() & TRAP_FLAG != 0;
        // A call may ask for the mask, or change it.
        if self.threads[index].unblocked.is_some() && self.stands_at_call(index) {
            self.unblock(index)?;
        }
        let mut signals = 0;
        let outcome = loop {
            ptrace::singlestep(tid, std::mem::take(&mut passing))
                .map_err(|errno| self.explain(tid, "PTRACE_SINGLESTEP", errno))?;
            let stop = match self.next_stop(tid) {
                Ok(stop) => stop,
                Err(error) => {
                    self.see_again(index, stepping, is_own);
                    return Err(error);
                }
            };
            let Stop::Signal(signal) = stop else { continue };
            let info = SignalInfo::of(tid).map_err(|errno| self.explain(tid, "PTRACE_GETSIGINFO", errno))?;
            match (signal, info.code()) {
                (libc::SIGTRAP, code) if trapped(code) == Some(Trapped::Step) => break Outcome::Made,
                // A step that nobody was told of has led to a breakpoint, which the thread will meet when it goes on.
                (libc::SIGTRAP, code)
                    if BREAKPOINT_ADVANCE == 0
                        && trapped(code) == Some(Trapped::Breakpoint)
                        && self.has_moved(index)? =>
                {
                    break Outcome::Made;
                }
                (libc::SIGTRAP, _)
                    if STEP_OVER_CALL_LOOKS_SENT && info.is_of_no_process() && self.stands_at_call(index) =>
                {
                    break Outcome::Made;
                }
                // The instruction's own: it would be raised again and again.
                (signal, code)
                    if is_raised_by_instruction(signal, code) || signal == libc::SIGTRAP && code > 0 =>
                {
                    self.threads[index].parked = Parked::Signal(signal);
                    break Outcome::Faulted(signal);
                }
                // Sent again, it could come after the SIGCONT that was to end it.
                (libc::SIGSTOP, _) if signals == UNBLOCKABLE => {
                    self.threads[index].parked = Parked::Signal(signal);
                    break Outcome::Outpaced;
                }
                (libc::SIGSTOP, _) => passing = libc::SIGSTOP as usize,
                _ => self.threads[index].held.push(info),
            }
            if signals == UNBLOCKABLE {
                break Outcome::Outpaced;
            }
            signals += 1;
            if signals == SIGNALS && !self.stands_at_call(index) {
                self.block(index)?;
            }
        };
        self.read_registers(index)?;
        if !is_own {
            self.clear_trap_flag(index, stepping, !matches!(outcome, Outcome::Made))?;
        }
        Ok(outcome)
    }

    /// Blocks what may come while a thread is stepped, until it goes on or makes a system call.
    fn block(&mut self, index: usize) -> Result<(), StopError> {
        let tid = self.threads[index].tid;
        if self.threads[index].unblocked.is_none() {
            let mask = self.signal_mask(tid)?;
            let blockable = RAISED.iter().fold(STANDARD, |all, signal| all & !(1 << (signal - 1)));
            ptrace::set_signal_mask(tid, mask | blockable)
                .map_err(|errno| self.explain(tid, "PTRACE_SETSIGMASK", errno))?;
            self.threads[index].unblocked = Some(mask);
        }
        Ok(())
    }

    fn unblock(&mut self, index: usize) -> Result<(), StopError> {
        let tid = self.threads[index].tid;
        match self.threads[index].unblocked.take() {
            Some(mask) => ptrace::set_signal_mask(tid, mask)
                .map_err(|errno| self.explain(tid, "PTRACE_SETSIGMASK", errno)),
            None => Ok(()),
        }
    }

    /// Whether the last that is known of a thread is that it stands at a system call.
    fn stands_at_call(&self, index: usize) -> bool {
        let (registers, mut code) = (&self.threads[index].regs, [0; 4]);
        let read = self.process.read(registers.ip(), &mut code).unwrap_or(0);
        let is_call = |call: &[u8]| code[..read].starts_with(call);
        is_call(registers.abi().syscall_instruction) || OTHER_CALLS.iter().copied().any(is_call)
    }

    /// Whether a thread stands elsewhere than the last that is known of it says.
    fn has_moved(&self, index: usize) -> Result<bool, StopError> {
        let thread = &self.threads[index];
        let now = Registers::read(thread.tid)
            .map_err(|errno| self.explain(thread.tid, "PTRACE_GETREGSET", errno))?;
        Ok(now.ip() != thread.regs.ip())
    }

    fn read_registers(&mut self, index: usize) -> Result<(), StopError> {
        let tid = self.threads[index].tid;
        self.threads[index].regs =
            Registers::read(tid).map_err(|errno| self.explain(tid, "PTRACE_GETREGSET", errno))?;
        Ok(())
    }

    /// Looks at a thread whose step came too late: it may have come to its end after all.
    fn see_again(&mut self, index: usize, stepping: Stepping, is_own: bool) {
        let Ok(registers) = Registers::read(self.threads[index].tid) else { return };
        let moved = registers.ip() != self.threads[index].regs.ip();
        self.threads[index].regs = registers;
        if moved && !is_own {
            // A thread that is gone has no flag.
            let _ = self.clear_trap_flag(index, stepping, false);
        }
    }

    /// Takes out what the step has left of itself. Left there, it would make the thread step on without a tracer, and die of it.
    fn clear_trap_flag(&mut self, index: usize, stepping: Stepping, faulted: bool) -> Result<(), StopError> {
        let thread = &mut self.threads[index];
        let (tid, flags) = (thread.tid, thread.regs.flags());
        if stepping.pushes_flags && !faulted {
            self.process.clear_pushed_trap_flag(&thread.regs);
        }
        let popped = stepping.pops_flags && !faulted;
        if flags & TRAP_FLAG != 0 && !popped {
            thread.regs.set_flags(flags & !TRAP_FLAG);
            let written = thread.regs.write(tid);
            written.map_err(|errno| self.explain(tid, "PTRACE_SETREGSET", errno))?;
        }
        Ok(())
    }
}

impl Process {
    /// Takes the trap flag out of the flags that a thread with these registers has just pushed.
    pub fn clear_pushed_trap_flag(&self, registers: &Registers) {
        let at = registers.sp() + 1;
        let mut byte = [0];
        if self.load(at, &mut byte).is_ok() {
            // The thread has just written there.
            let _ = self.store(at, &[byte[0] & !((TRAP_FLAG >> 8) as u8)]);
        }
    }
}
