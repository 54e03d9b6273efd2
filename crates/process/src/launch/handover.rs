//! From one tracer to another, without a moment in which a launched program could run.
//!
//! Probes that trap need a tracer that outlives us, and a tracer cannot hand its tracee on: it has to let go, and the other
//! to attach. In between the program must stand by itself. A SIGSTOP would do that, but leaves traces: it can come twice
//! when the other attaches first, and the SIGCONT that ends it stays pending in a program that blocks it. So the program waits
//! in a system call that never ends:
//!
//! 1. It asks the kernel to be killed when its parent, who is us, ends (`PR_SET_PDEATHSIG`), and to let itself be traced by the other,
//!    who is no ancestor of its (`PR_SET_PTRACER`, until 3).
//! 2. All its signals are blocked, its registers are set to `ppoll` without descriptors or a time limit, and it is let go.
//! 3. The other attaches, with the kernel to kill the program should the other end, and puts registers and signals back.
//! 4. Before it lets the program run it takes back 1.
//!
//! Who forks the other process keeps the memory of what is to be put back: it is in the copy.

use crate::stopped::AtDrop;
use crate::{Process, Registers, RemoteError, StopError, StopOptions, Stopped, ptrace};

/// What a program that waits to be taken over has to get back.
#[derive(Debug, Clone, Copy)]
pub struct Handover {
    regs: Registers,
    mask: u64,
}

impl Handover {
    /// Steps 1 and 2.
    pub(super) fn park(mut stopped: Stopped<'_>) -> Result<Handover, RemoteError> {
        let tid = stopped.process.pid().leader();
        die_with_parent(&mut stopped, libc::SIGKILL)?;
        let _ = be_traced_by(&mut stopped, ANYBODY);
        let thread = stopped.thread(tid).ok_or(StopError::UnknownThread(tid))?;
        let mut regs = *thread.registers();
        let abi = regs.abi();
        let handover = Handover { regs, mask: stopped.signal_mask(tid)? };
        let instruction = stopped.process.find_code(abi.syscall_instruction)?;
        let instruction = instruction.ok_or(RemoteError::NoSyscallInstruction(stopped.process.pid()))?;
        regs.load_syscall(instruction, abi.ppoll, [0; 6]);
        stopped.set_registers(tid, regs)?;
        ptrace::set_signal_mask(tid, u64::MAX)
            .map_err(|errno| stopped.explain(tid, "PTRACE_SETSIGMASK", errno))?;
        stopped.resume_and_detach();
        Ok(handover)
    }

    /// Step 3. The program stands on when what is returned is dropped, and dies with the caller.
    ///
    /// # Errors
    /// [`StopError`] if it was killed meanwhile.
    pub fn take<'p>(&self, process: &'p Process, options: &StopOptions) -> Result<Stopped<'p>, StopError> {
        let mut options = options.clone();
        options.ptrace_options |= libc::PTRACE_O_EXITKILL;
        let mut stopped = process.stop_with(&options)?;
        stopped.at_drop = AtDrop::Stand;
        let tid = process.pid().leader();
        let mut regs = self.regs;
        // The wait it is in is not its own.
        regs.leave_syscall();
        stopped.set_registers(tid, regs)?;
        ptrace::set_signal_mask(tid, self.mask)
            .map_err(|errno| stopped.explain(tid, "PTRACE_SETSIGMASK", errno))?;
        let _ = be_traced_by(&mut stopped, NOBODY);
        Ok(stopped)
    }

    /// Step 4. From now on the program is let go when `stopped` is, and outlives the caller.
    ///
    /// # Errors
    /// [`RemoteError`] if it was killed meanwhile.
    pub fn settle(&self, stopped: &mut Stopped<'_>) -> Result<(), RemoteError> {
        die_with_parent(stopped, 0)?;
        stopped.options.ptrace_options &= !libc::PTRACE_O_EXITKILL;
        stopped.at_drop = AtDrop::LetGo;
        Ok(())
    }

    /// Steps 3 and 4 by whom it was handed over from: the program stands as it did before.
    pub(super) fn take_back(&self, process: &Process, options: &StopOptions) -> Result<(), RemoteError> {
        die_with_parent(&mut self.take(process, options)?, 0)
    }

    /// The other side of a failed attempt: the program waits again, to be taken back by whom it was handed over from.
    ///
    /// # Errors
    /// [`RemoteError`] if it was killed meanwhile.
    pub fn give_back(&self, stopped: Stopped<'_>) -> Result<(), RemoteError> {
        Handover::park(stopped).map(drop)
    }
}

/// Of `PR_SET_PTRACER`.
const ANYBODY: u64 = u64::MAX;
const NOBODY: u64 = 0;

/// Who of its user's may trace it besides its ancestors, where Yama lets nobody else (`kernel.yama.ptrace_scope` 1). Kernels without Yama
/// say EINVAL.
fn be_traced_by(stopped: &mut Stopped<'_>, whom: u64) -> Result<(), RemoteError> {
    stopped.remote(|remote| {
        let args = [libc::PR_SET_PTRACER as u64, whom, 0, 0, 0, 0];
        remote.named_syscall("prctl", remote.abi().prctl, args).map(drop)
    })
}

/// `PR_SET_PDEATHSIG`: the signal the program gets when its parent ends, 0 for none.
fn die_with_parent(stopped: &mut Stopped<'_>, signal: i32) -> Result<(), RemoteError> {
    stopped.remote(|remote| {
        let args = [libc::PR_SET_PDEATHSIG as u64, signal as u64, 0, 0, 0, 0];
        remote.named_syscall("prctl", remote.abi().prctl, args).map(drop)
    })
}
