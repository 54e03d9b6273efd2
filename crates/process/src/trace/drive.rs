//! Looking at a standing thread, changing it, and letting it go on.

use super::{Held, Run, Tracer};
use crate::arch::is_streaming;
use crate::ptrace::{self, SignalInfo};
use crate::wait::{self, OnExit};
use crate::{Errno, Pid, Registers, RemoteAddr, StopError, Tid};
use std::time::{Duration, Instant};

impl Tracer<'_> {
    /// The registers of a standing thread.
    ///
    /// # Errors
    /// [`StopError`] if it was killed.
    pub fn registers(&self, tid: Tid) -> Result<Registers, StopError> {
        self.asked.set(true);
        if let Some((of, registers)) = self.last.get()
            && of == tid
        {
            return Ok(registers);
        }
        let registers = Registers::read(tid).map_err(|errno| self.lost(tid, "PTRACE_GETREGSET", errno))?;
        self.last.set(Some((tid, registers)));
        Ok(registers)
    }

    /// Sets the registers of a standing thread.
    ///
    /// # Errors
    /// [`StopError`] if it was killed.
    pub fn set_registers(&self, tid: Tid, registers: &Registers) -> Result<(), StopError> {
        let written = match self.last.take() {
            Some((of, old)) if of == tid => registers.write_changes(tid, &old),
            _ => registers.write(tid),
        };
        written.map_err(|errno| self.lost(tid, "PTRACE_SETREGSET", errno))
    }

    /// Sets the instruction pointer of a standing thread, whose registers need not be known.
    ///
    /// # Errors
    /// [`StopError`] if it was killed.
    pub fn set_ip(&self, tid: Tid, ip: RemoteAddr) -> Result<(), StopError> {
        self.last.set(None);
        Registers::write_ip(tid, ip).map_err(|errno| self.lost(tid, "PTRACE_POKEUSER", errno))
    }

    /// The low 64 bits of a vector register of a standing thread in 64-bit mode, by its number.
    ///
    /// # Errors
    /// [`StopError`] if it was killed.
    pub fn vector(&self, tid: Tid, number: u8) -> Result<u64, StopError> {
        Registers::read_vector(tid, number).map_err(|errno| self.lost(tid, "PTRACE_GETREGSET", errno))
    }

    /// Whether a standing thread is in a mode of the processor that code is compiled for, and that of libraries is not (SME of arm64).
    pub fn is_streaming(&self, tid: Tid) -> bool {
        is_streaming(tid)
    }

    /// The signal that a thread told as [`TraceEvent::Signal`](super::TraceEvent::Signal) is about to get; `None` if it was killed.
    pub fn signal_of(&self, tid: Tid) -> Option<Held> {
        SignalInfo::of(tid).ok().map(Held)
    }

    /// Lets a thread that stands for a signal or a trap go on with `held` in its place.
    ///
    /// # Errors
    /// [`StopError`] if the kernel refuses.
    pub fn cont_with(&mut self, tid: Tid, held: &Held) -> Result<(), StopError> {
        // ESRCH means killed, which `cont` takes note of.
        let _ = held.0.give_to(tid);
        self.cont(tid, held.0.number())
    }

    /// Sends a signal that was kept back once more.
    pub fn send(&self, tid: Tid, held: &Held) {
        let pid = if self.adopted.contains(&tid) { Pid(tid.0) } else { self.process.pid() };
        held.0.send_again(pid, tid);
    }

    /// Goes on tracing a child that was made by vfork and uses the target's memory, as if it were a thread, until it starts another
    /// program or ends.
    ///
    /// # Errors
    /// [`StopError`] if the kernel refuses.
    pub fn adopt(&mut self, child: Pid) -> Result<(), StopError> {
        self.adopted.insert(child.leader());
        self.cont(child.leader(), 0)
    }

    /// Whether adopted children still use the target's memory.
    pub fn has_adopted(&self) -> bool {
        !self.adopted.is_empty()
    }

    /// Whether a thread is one of a child that shares the target's memory ([`Tracer::adopt`]).
    pub fn is_adopted(&self, tid: Tid) -> bool {
        self.adopted.contains(&tid)
    }

    /// Lets a standing thread run, with a signal or 0. One that was killed is no error: its end will be told.
    ///
    /// # Errors
    /// [`StopError`] if the kernel refuses.
    pub fn cont(&mut self, tid: Tid, signal: i32) -> Result<(), StopError> {
        match self.handling.contains(&tid) {
            true => self.resume(tid, "PTRACE_SYSCALL", ptrace::syscall, signal, Run::Running),
            false => self.resume(tid, "PTRACE_CONT", ptrace::cont, signal, Run::Running),
        }
    }

    /// Has the end of the next signal handler told as [`TraceEvent::HandlerReturns`](super::TraceEvent::HandlerReturns). The thread
    /// stops at every system call until then.
    pub fn follow_handler(&mut self, tid: Tid) {
        self.handling.insert(tid);
    }

    /// Undoes [`Tracer::follow_handler`]: the handler was left by a jump.
    pub fn leave_handler(&mut self, tid: Tid) {
        self.handling.remove(&tid);
    }

    /// Lets a standing thread run one instruction, with a signal or 0: [`TraceEvent::Stepped`](super::TraceEvent::Stepped) follows.
    ///
    /// # Errors
    /// [`StopError`] if the kernel refuses.
    pub fn step(&mut self, tid: Tid, signal: i32) -> Result<(), StopError> {
        self.resume(tid, "PTRACE_SINGLESTEP", ptrace::singlestep, signal, Run::Stepping)
    }

    /// Lets a forked child go.
    pub fn release(&mut self, child: Pid) {
        // It fails only if the child was killed, and then its death has to be taken note of.
        if ptrace::detach(child.leader(), 0).is_err() {
            wait::until(child.leader(), OnExit::Reap, Instant::now() + Duration::from_millis(100));
        }
    }

    pub(super) fn resume(
        &mut self,
        tid: Tid,
        name: &'static str,
        request: fn(Tid, usize) -> Result<(), Errno>,
        signal: i32,
        run: Run,
    ) -> Result<(), StopError> {
        self.threads.insert(tid, run);
        self.last.set(None);
        match request(tid, signal as usize) {
            Ok(()) | Err(Errno(libc::ESRCH)) => Ok(()),
            Err(errno) => Err(self.lost(tid, name, errno)),
        }
    }

    pub(super) fn lost(&self, tid: Tid, request: &'static str, errno: Errno) -> StopError {
        match errno {
            Errno(libc::ESRCH) if !self.process.is_alive() => StopError::Gone(self.process.pid()),
            Errno(libc::ESRCH) => StopError::ThreadGone(tid),
            errno => StopError::Ptrace { tid, request, errno },
        }
    }
}
