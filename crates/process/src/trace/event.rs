//! What a traced process has done.

use crate::ptrace::SignalInfo;
use crate::{Pid, RemoteAddr, Tid};

/// What a traced process has done. The thread named stands still until [`Tracer::cont`](super::Tracer::cont) or [`Tracer::step`](super::Tracer::step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A breakpoint instruction at `address` ran; the instruction pointer is behind it.
    Breakpoint {
        /// The thread.
        tid: Tid,
        /// The breakpoint.
        address: RemoteAddr,
    },
    /// The step asked for is done.
    Stepped {
        /// The thread.
        tid: Tid,
    },
    /// A signal is about to be delivered: pass it to `cont` or `step`.
    Signal {
        /// The thread.
        tid: Tid,
        /// The signal.
        signal: i32,
    },
    /// A thread was created and has not run yet.
    NewThread {
        /// The new thread.
        tid: Tid,
    },
    /// A process was created, stands still and is attached, too: [`Tracer::release`](super::Tracer::release) lets it go. It has a copy of the memory
    /// with all breakpoints in it; after vfork, the memory itself.
    Forked {
        /// The thread that created it.
        tid: Tid,
        /// The new process.
        child: Pid,
        /// Whether it was made by vfork, and they share their memory. They may do so otherwise, too (`CLONE_VM`).
        vfork: bool,
    },
    /// Another program was started: all breakpoints and other threads are gone.
    Execed {
        /// The only thread.
        tid: Tid,
    },
    /// A handler ends that [`Tracer::follow_handler`](super::Tracer::follow_handler) was asked to follow: the thread is about to go
    /// back to where the signal met it.
    HandlerReturns {
        /// The thread.
        tid: Tid,
    },
    /// A thread has ended; nothing of it stands.
    ThreadGone {
        /// The thread.
        tid: Tid,
    },
    /// The process has ended.
    ProcessGone,
}

/// A signal that was kept from a thread, as the kernel described it.
#[derive(Debug, Clone, Copy)]
pub struct Held(pub(super) SignalInfo);

impl Held {
    /// The signal.
    pub fn number(&self) -> i32 {
        self.0.number()
    }

    /// Whether signals like it are queued, and come in order.
    pub fn is_queued(&self) -> bool {
        self.number() >= 32
    }

    /// The child that a SIGCHLD is about, and the signal that ended it; `None` if none did.
    pub fn killed_child(&self) -> Option<(Pid, i32)> {
        let info = &self.0.0;
        let killed = matches!(info.si_code, libc::CLD_KILLED | libc::CLD_DUMPED);
        // SAFETY: the kernel has filled in a SIGCHLD's description, by its code one of a child's end.
        (info.si_signo == libc::SIGCHLD && killed).then(|| unsafe { (Pid(info.si_pid()), info.si_status()) })
    }

    /// Whether the instruction the thread stands at has raised it.
    pub fn is_fault(&self) -> bool {
        matches!(self.number(), libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP)
            && self.0.code() > 0
    }

    /// Where the signal is about an instruction at `from`, makes it one about `to`.
    pub fn move_instruction(&mut self, from: RemoteAddr, to: RemoteAddr) {
        if matches!(self.number(), libc::SIGFPE | libc::SIGILL | libc::SIGTRAP) {
            self.0.replace_address(from.0, to.0);
        }
    }
}
