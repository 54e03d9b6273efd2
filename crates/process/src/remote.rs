//! System calls made by the target itself.
//!
//! The protocol, on one stopped thread:
//! 1. Keep its registers, with those that a system call clears (arm64), its signal mask, and the restartable-sequence
//!    descriptor, which the kernel drops when it sees the thread's instruction pointer elsewhere. If the thread stands before
//!    the delivery of a signal, keep that too and suppress it.
//! 2. Block all signals, so that no handler runs in between. SIGSTOP cannot be blocked; it is delivered: the thread makes our
//!    calls all the same, and the kernel knows that the process is to stand afterwards, unless a SIGCONT comes first.
//!    Where the thread has its calls dispatched to itself (`PR_SET_SYSCALL_USER_DISPATCH`), keep that and end it: our call would become a SIGSYS, and
//!    one that is blocked takes the program's handler away. Kernels before 6.4 do not tell, so there SIGSYS stays unblocked.
//! 3. For each call: point the instruction pointer at a system call instruction somewhere in the target's code, load number and
//!    arguments, say that the thread is in no system call (else the kernel would first restart the one we interrupted), and
//!    run to the stop at its entry and the one at its exit. No single steps: they trap to the hypervisor in a virtual machine.
//!    Where a kernel drops what is written at the exit, the thread goes on to the kernel's signal code ahead of the next call.
//! 4. Put everything back, *including the number of the system call the thread was in*, ask for a stop and let it run: it gets as
//!    far as the kernel's signal code. When it goes on from there, that code finds an interrupted system call and restarts it
//!    with the time that was left, as after any stop: the program sees nothing.
//! 5. A suppressed signal is sent anew, alone unblocked, and given its old description when the thread is about to get it.
//!
//! A thread may not run when it is let: its control group was frozen, as a paused container is. Then it is asked to stop again, which even a
//! frozen one does, and gets back what it had. Left as it is, it would make our call whenever it is thawed, and end behind it.

use crate::arch::{END_OF_CALL_TAKES_ALL, LostByCalls};
use crate::ptrace::{self, Dispatch, SignalInfo};
use crate::stop::{BASE_OPTIONS, Parked};
use crate::wait::{self, Event, Stop};
use crate::{
    BREAKPOINT, Errno, Mapping, MemoryError, Process, Registers, RemoteAddr, RemoteError, Seccomp, StopError,
    Stopped, Tid,
};
use std::time::{Duration, Instant};

/// A stopped thread that makes system calls for us. Dropping it puts the thread back where it was.
#[derive(Debug)]
pub struct Remote<'s, 'p> {
    stopped: &'s mut Stopped<'p>,
    index: usize,
    tid: Tid,
    instruction: RemoteAddr,
    saved: Saved,
    /// The SIGSTOP that it is to get when it is let run next, or 0.
    passing: i32,
    /// A page of ours in the target, for arguments in memory.
    pub(crate) scratch: Option<RemoteAddr>,
    /// Whether the thread has run since it was taken.
    ran: bool,
    /// Whether it stands at the end of a system call of ours.
    behind_call: bool,
    /// Whether it was let run once and did not come back: no further call is tried.
    stuck: bool,
}

/// The request by which a thread's dispatch of system calls is set.
const DISPATCH: &str = "PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG";

/// What step 4 puts back.
#[derive(Debug)]
struct Saved {
    regs: Registers,
    vectors: LostByCalls,
    mask: u64,
    signal: Option<SignalInfo>,
    /// Where the descriptor's address is kept, and that address.
    rseq: Option<(RemoteAddr, u64)>,
    seccomp_suspended: bool,
    /// Where its system calls were dispatched to itself.
    dispatch: Option<Dispatch>,
}

impl<'p> Stopped<'p> {
    /// Runs `calls` with a thread of the target that makes system calls. When it returns, the thread is as it was.
    ///
    /// # Errors
    /// What `calls` returns, or [`RemoteError`] if no thread could be used or put back.
    pub fn remote<T, E: From<RemoteError>>(
        &mut self,
        calls: impl FnOnce(&mut Remote<'_, 'p>) -> Result<T, E>,
    ) -> Result<T, E> {
        let index = self.thread_for_calls().ok_or(RemoteError::NoThread(self.process.pid()))?;
        self.remote_of(index, calls)
    }

    /// As [`Stopped::remote`], with a thread of the caller's choice.
    ///
    /// # Errors
    /// As [`Stopped::remote`], or that there is no such thread.
    pub fn remote_on<T, E: From<RemoteError>>(
        &mut self,
        tid: Tid,
        calls: impl FnOnce(&mut Remote<'_, 'p>) -> Result<T, E>,
    ) -> Result<T, E> {
        let index = self.index_of(tid).map_err(RemoteError::from)?;
        self.remote_of(index, calls)
    }

    fn remote_of<T, E: From<RemoteError>>(
        &mut self,
        index: usize,
        calls: impl FnOnce(&mut Remote<'_, 'p>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut remote = Remote::begin(self, index)?;
        let result = calls(&mut remote);
        let finished = remote.finish();
        let value = result?;
        finished?;
        Ok(value)
    }

    /// A thread in a plain stop, if there is one: the others have a signal to be sent anew.
    fn thread_for_calls(&self) -> Option<usize> {
        let plain = self.threads.iter().position(|thread| thread.parked == Parked::Plain);
        plain.or(if self.threads.is_empty() { None } else { Some(0) })
    }
}

impl<'s, 'p> Remote<'s, 'p> {
    fn begin(stopped: &'s mut Stopped<'p>, index: usize) -> Result<Self, RemoteError> {
        let process = stopped.process;
        let (tid, regs) = (stopped.threads[index].tid, stopped.threads[index].regs);
        let instruction = process.find_code(regs.abi().syscall_instruction)?;
        let instruction = instruction.ok_or(RemoteError::NoSyscallInstruction(process.pid()))?;
        let failed = |request, errno| stopped.explain(tid, request, errno);

        let vectors = LostByCalls::of(tid).map_err(|errno| failed("PTRACE_GETREGSET", errno))?;
        let mask = ptrace::signal_mask(tid).map_err(|errno| failed("PTRACE_GETSIGMASK", errno))?;
        let signal = match stopped.threads[index].parked {
            Parked::Plain | Parked::Signal(libc::SIGSTOP) => None,
            Parked::Signal(_) => {
                Some(SignalInfo::of(tid).map_err(|errno| failed("PTRACE_GETSIGINFO", errno))?)
            }
        };
        let seccomp_suspended = suspend_seccomp(stopped, tid)?;
        let (dispatch, blocked) = match Dispatch::of(tid) {
            Ok(dispatch) => (dispatch, u64::MAX),
            Err(_) => (None, mask | !(1 << (libc::SIGSYS - 1))),
        };
        if let Some(dispatch) = dispatch {
            // Whether it may be given back is known before it is taken.
            dispatch.give(tid).map_err(|errno| failed(DISPATCH, errno))?;
        }
        let rseq = rseq_descriptor(process, tid);
        let saved = Saved { regs, vectors, mask, signal, rseq, seccomp_suspended, dispatch };
        ptrace::set_signal_mask(tid, blocked).map_err(|errno| failed("PTRACE_SETSIGMASK", errno))?;
        if dispatch.is_some() {
            Dispatch::default().give(tid).map_err(|errno| failed(DISPATCH, errno))?;
        }
        let passing = match stopped.threads[index].parked {
            Parked::Signal(libc::SIGSTOP) => libc::SIGSTOP,
            _ => 0,
        };
        Ok(Remote {
            stopped,
            index,
            tid,
            instruction,
            saved,
            passing,
            scratch: None,
            ran: false,
            behind_call: false,
            stuck: false,
        })
    }

    /// The process the calls are made in.
    pub fn process(&self) -> &'p Process {
        self.stopped.process
    }

    /// The thread that makes them.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Numbers and conventions of that thread's system calls.
    pub fn abi(&self) -> &'static crate::arch::Abi {
        self.saved.regs.abi()
    }

    /// Makes one system call; a 32-bit target gets the lower halves of the arguments.
    ///
    /// # Errors
    /// [`RemoteError::Failed`] with what the kernel said, or that the thread was lost.
    pub fn syscall(&mut self, number: u64, args: [u64; 6]) -> Result<u64, RemoteError> {
        self.named_syscall("system call", number, args)
    }

    pub(crate) fn named_syscall(
        &mut self,
        call: &'static str,
        number: u64,
        args: [u64; 6],
    ) -> Result<u64, RemoteError> {
        if self.stuck {
            let what = format!("it does not run, and no {call} was tried");
            return Err(StopError::Unexpected { tid: self.tid, what }.into());
        }
        let mut regs = self.saved.regs;
        regs.load_syscall(self.instruction, number, args);
        self.load(&regs)?;
        self.run_to_syscall_stop()?;
        self.run_to_syscall_stop()?;
        self.behind_call = true;
        let regs = Registers::read(self.tid)
            .map_err(|errno| self.stopped.explain(self.tid, "PTRACE_GETREGSET", errno))?;
        regs.syscall_result().map_err(|errno| RemoteError::Failed { call, errno })
    }

    /// Has the thread run one instruction, which makes no system call and leads on, with registers that `set` has changed; those that it has
    /// then.
    ///
    /// # Errors
    /// [`RemoteError`] if it did not come to its end.
    pub fn step(&mut self, set: impl FnOnce(&mut Registers)) -> Result<Registers, RemoteError> {
        let mut regs = self.saved.regs;
        regs.leave_syscall();
        set(&mut regs);
        self.load(&regs)?;
        let start = regs.ip();
        loop {
            self.resume("PTRACE_SINGLESTEP", ptrace::singlestep)?;
            match self.next_stop()? {
                Stop::Signal(libc::SIGTRAP) => {
                    let regs = Registers::read(self.tid)
                        .map_err(|errno| self.stopped.explain(self.tid, "PTRACE_GETREGSET", errno))?;
                    // A kernel that finds a step pending stops ahead of the instruction.
                    if regs.ip() != start {
                        return Ok(regs);
                    }
                }
                Stop::Signal(libc::SIGSTOP) => self.passing = libc::SIGSTOP,
                Stop::Signal(signal) => {
                    let what = format!("signal {signal} while it made a step for us");
                    return Err(StopError::Unexpected { tid: self.tid, what }.into());
                }
                Stop::Interrupted(_) | Stop::Event(_) | Stop::Syscall => {}
            }
        }
    }

    /// Has the thread go on with these registers, all of them.
    fn load(&mut self, regs: &Registers) -> Result<(), StopError> {
        if std::mem::take(&mut self.behind_call) && !END_OF_CALL_TAKES_ALL {
            self.stop_in_signal_code()?;
        }
        regs.write(self.tid).map_err(|errno| self.stopped.explain(self.tid, "PTRACE_SETREGSET", errno))
    }

    /// Lets the thread run as far as the kernel's signal code.
    fn stop_in_signal_code(&mut self) -> Result<(), StopError> {
        loop {
            // In the kernel any stop takes back an interrupt that has not had its effect.
            ptrace::interrupt(self.tid, 0)
                .map_err(|errno| self.stopped.explain(self.tid, "PTRACE_INTERRUPT", errno))?;
            self.resume("PTRACE_CONT", ptrace::cont)?;
            match self.next_stop()? {
                Stop::Interrupted(_) => return Ok(()),
                Stop::Signal(libc::SIGSTOP) => self.passing = libc::SIGSTOP,
                _ => {}
            }
        }
    }

    fn run_to_syscall_stop(&mut self) -> Result<(), StopError> {
        loop {
            self.resume("PTRACE_SYSCALL", ptrace::syscall)?;
            match self.next_stop()? {
                Stop::Syscall => return Ok(()),
                Stop::Signal(libc::SIGSTOP) => self.passing = libc::SIGSTOP,
                Stop::Signal(signal) => {
                    return Err(StopError::Unexpected {
                        tid: self.tid,
                        what: format!("signal {signal} while it made a system call for us"),
                    });
                }
                // The interrupt that stopped it first, or one that was still to come.
                Stop::Interrupted(_) | Stop::Event(_) => {}
            }
        }
    }

    fn resume(
        &mut self,
        name: &'static str,
        request: fn(Tid, usize) -> Result<(), Errno>,
    ) -> Result<(), StopError> {
        self.ran = true;
        let signal = std::mem::take(&mut self.passing);
        if signal != 0 {
            self.stopped.threads[self.index].parked = Parked::Plain;
        }
        request(self.tid, signal as usize).map_err(|errno| self.stopped.explain(self.tid, name, errno))
    }

    fn next_stop(&mut self) -> Result<Stop, StopError> {
        let stop = self.stopped.next_stop(self.tid);
        self.stuck |= matches!(stop, Err(StopError::Unstoppable { .. }));
        stop
    }

    /// Steps 4 and 5 of the protocol.
    fn put_back(&mut self) -> Result<(), StopError> {
        let (tid, stopped) = (self.tid, &*self.stopped);
        let failed = |request| move |errno| stopped.explain(tid, request, errno);
        if self.saved.seccomp_suspended {
            let options = BASE_OPTIONS | stopped.options.ptrace_options;
            ptrace::set_options(tid, options as usize).map_err(failed("PTRACE_SETOPTIONS"))?;
        }
        if let Some(dispatch) = self.saved.dispatch.take() {
            dispatch.give(tid).map_err(failed(DISPATCH))?;
        }
        if self.ran {
            self.saved.regs.write(tid).map_err(failed("PTRACE_SETREGSET"))?;
            self.saved.vectors.put_back(tid).map_err(failed("PTRACE_SETREGSET"))?;
            if let Some((address, descriptor)) = self.saved.rseq {
                // It was readable and written by the program a moment ago. If it is not any more, there is nothing to keep.
                let _ = stopped.process.write(address, &descriptor.to_le_bytes());
            }
            self.stop_in_signal_code()?;
            if let Some(signal) = self.saved.signal.take() {
                self.summon(signal)?;
            }
        }
        let (tid, stopped) = (self.tid, &*self.stopped);
        ptrace::set_signal_mask(tid, self.saved.mask)
            .map_err(|errno| stopped.explain(tid, "PTRACE_SETSIGMASK", errno))
    }

    /// Brings the thread back into the stop before the delivery of `signal`.
    fn summon(&mut self, signal: SignalInfo) -> Result<(), StopError> {
        let (tid, tgid) = (self.tid, self.process().pid().0);
        let only = !(1u64 << (signal.number() - 1));
        ptrace::set_signal_mask(tid, only)
            .and_then(|()| ptrace::send_signal(tgid, tid, signal.number()))
            .map_err(|errno| self.stopped.explain(tid, "PTRACE_SETSIGMASK", errno))?;
        loop {
            self.resume("PTRACE_CONT", ptrace::cont)?;
            match self.next_stop()? {
                Stop::Signal(libc::SIGSTOP) => self.passing = libc::SIGSTOP,
                Stop::Signal(number) if number == signal.number() => {
                    return signal
                        .give_to(tid)
                        .map_err(|errno| self.stopped.explain(tid, "PTRACE_SETSIGINFO", errno));
                }
                _ => {}
            }
        }
    }

    fn finish(mut self) -> Result<(), RemoteError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), RemoteError> {
        self.release_scratch();
        let put_back = self.put_back();
        // Dropping must not do it twice.
        self.ran = false;
        self.saved.seccomp_suspended = false;
        put_back.map_err(RemoteError::from)
    }
}

impl Drop for Remote<'_, '_> {
    fn drop(&mut self) {
        if self.ran || self.saved.seccomp_suspended || self.saved.dispatch.is_some() {
            // The thread is lost if this fails, and the next use of it tells.
            let _ = self.end();
        }
    }
}

impl Stopped<'_> {
    /// Waits for a thread that was let run. When this fails because it did not stop in time, it stands again.
    pub(crate) fn next_stop(&self, tid: Tid) -> Result<Stop, StopError> {
        let patience = self.options.patience;
        match wait::until(tid, self.on_exit(tid), Instant::now() + patience) {
            Some(Event::Stop(Stop::Event(libc::PTRACE_EVENT_EXEC))) => {
                Err(StopError::Execed(self.process.pid()))
            }
            Some(Event::Stop(stop)) => Ok(stop),
            Some(Event::Gone) if self.process.is_alive() => Err(StopError::ThreadGone(tid)),
            Some(Event::Gone) => Err(StopError::Gone(self.process.pid())),
            None => {
                let unstoppable = self.process.unstoppable(tid, patience);
                self.take_back(tid);
                Err(unstoppable)
            }
        }
    }
}

impl Stopped<'_> {
    /// Stops a thread that was let run and does not come back. Whatever it does, with registers of ours or under steps, it must not go on
    /// doing it behind our back.
    fn take_back(&self, tid: Tid) {
        /// It may be in the middle of a system call that cannot be interrupted. One that does not come back from that is lost.
        const LAST_PATIENCE: Duration = Duration::from_secs(30);
        let _ = ptrace::interrupt(tid, 0);
        let stop = wait::until(tid, self.on_exit(tid), Instant::now() + LAST_PATIENCE);
        match stop {
            // It goes on from here without. What the processor has raised is raised again, or was for us: the end of a step.
            Some(Event::Stop(Stop::Signal(signal)))
                if SignalInfo::of(tid).is_ok_and(|info| info.code() <= 0) =>
            {
                let _ = ptrace::send_signal(self.process.pid().0, tid, signal);
            }
            // The interrupt has overtaken the end of a step, which would kill the thread when nobody traces it any more.
            Some(Event::Stop(Stop::Interrupted(_))) if ptrace::has_pending_trap(tid) => {
                let _ = ptrace::cont(tid, 0);
                let _ = wait::until(tid, self.on_exit(tid), Instant::now() + LAST_PATIENCE);
            }
            _ => {}
        }
    }
}

/// Whether a sandbox had to be, and was, suspended for the thread.
fn suspend_seccomp(stopped: &Stopped<'_>, tid: Tid) -> Result<bool, RemoteError> {
    let mode = stopped.process.thread_status(tid)?.seccomp;
    if mode == Seccomp::Off {
        return Ok(false);
    }
    let options = BASE_OPTIONS | stopped.options.ptrace_options | libc::PTRACE_O_SUSPEND_SECCOMP;
    match ptrace::set_options(tid, options as usize) {
        Ok(()) => Ok(true),
        Err(_) if mode == Seccomp::Filter && stopped.options.allow_seccomp => Ok(false),
        Err(_) => Err(RemoteError::Seccomp { pid: stopped.process.pid(), mode }),
    }
}

/// The descriptor of the restartable sequence the thread may be in: the second field of its `struct rseq`.
fn rseq_descriptor(process: &Process, tid: Tid) -> Option<(RemoteAddr, u64)> {
    let address = RemoteAddr(ptrace::rseq_area(tid)?) + 8;
    let descriptor = process.read_pod::<u64>(address).ok()?;
    (descriptor != 0).then_some((address, descriptor))
}

impl Process {
    /// Finds an instruction in executable memory, wherever one may be. The kernel's own page is looked at first: it is in every
    /// process, small, and nobody patches it.
    pub(crate) fn find_code(&self, instruction: &[u8]) -> Result<Option<RemoteAddr>, RemoteError> {
        // Where instructions are words, a breakpoint is one.
        let step = BREAKPOINT.len();
        let maps = self.maps()?;
        let executable = |mapping: &&Mapping| mapping.perms.exec && !mapping.is_special("[vsyscall]");
        let vdso = maps.iter().filter(|mapping| mapping.is_special("[vdso]"));
        let others = maps.iter().filter(executable).filter(|mapping| !mapping.is_special("[vdso]"));
        let mut buffer = vec![0; 1 << 16];
        for mapping in vdso.chain(others) {
            let mut at = mapping.start;
            while at < mapping.end {
                let want = (mapping.end.0 - at.0).min(buffer.len() as u64) as usize;
                let read = match self.read(at, &mut buffer[..want]) {
                    Ok(read) => read,
                    Err(gone @ MemoryError::Gone) => return Err(gone.into()),
                    Err(_) => break,
                };
                if let Some(offset) = first_in(&buffer[..read], instruction, step) {
                    return Ok(Some(at + offset as u64));
                }
                // An instruction may lie across two pieces.
                if read < instruction.len() || want < buffer.len() {
                    break;
                }
                at = at + (read - (instruction.len() - step)) as u64;
            }
        }
        Ok(None)
    }
}

/// Where in `code` an instruction is first found, at a multiple of `step`.
fn first_in(code: &[u8], instruction: &[u8], step: usize) -> Option<usize> {
    let index = code.windows(instruction.len()).step_by(step).position(|window| window == instruction)?;
    Some(index * step)
}

#[cfg(test)]
mod tests;
