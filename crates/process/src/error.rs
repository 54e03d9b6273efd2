//! What can go wrong with another process, each with what, where and the way out.

use crate::{Errno, Pid, RemoteAddr, Seccomp, Tid};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a process cannot be worked on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is none.
    #[error("no process has the id {pid}")]
    NoSuchProcess {
        /// The id asked for.
        pid: Pid,
    },
    /// The id is that of a thread.
    #[error("{tid} is a thread of process {process}: name the process instead")]
    Thread {
        /// The id asked for.
        tid: Tid,
        /// The process it belongs to.
        process: Pid,
    },
    /// Every thread has exited.
    #[error("process {pid} ({name}) has exited and waits for its parent {parent} to notice (a zombie)")]
    Zombie {
        /// The process.
        pid: Pid,
        /// Its name.
        name: String,
        /// Who should reap it.
        parent: Pid,
    },
    /// Its addresses have 32 bits, and its registers are not known here.
    #[error("process {pid} is a 32-bit program, and this trapless probes 64-bit ones only")]
    Narrow {
        /// The process.
        pid: Pid,
    },
    /// It runs 64-bit code, whose memory and registers a 32-bit tool does not reach.
    #[error(
        "process {pid} runs a 64-bit program, and this is the 32-bit trapless: use the one that is built for x86-64"
    )]
    Wide {
        /// The process.
        pid: Pid,
    },
    /// It has no user-space part.
    #[error("{pid} ({name}) is a kernel thread: it has no code of its own to probe")]
    KernelThread {
        /// The process.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// A process cannot stop itself.
    #[error("{pid} is this program itself, which cannot trace itself")]
    Ourselves {
        /// The process.
        pid: Pid,
    },
    /// Only one tracer is allowed at a time.
    #[error(
        "process {pid} is already traced by {tracer} ({name}), and a process has one tracer at a time: end that one first"
    )]
    AlreadyTraced {
        /// The process.
        pid: Pid,
        /// The tracing thread.
        tracer: Tid,
        /// The tracer's name.
        name: String,
    },
    /// It belongs to somebody else.
    #[error("process {pid} belongs to uid {owner}, and we are uid {ours}: run as that user, or as root")]
    OtherUser {
        /// The process.
        pid: Pid,
        /// Its user.
        owner: u32,
        /// Our user.
        ours: u32,
    },
    /// Yama forbids it.
    #[error("process {pid} may not be traced because kernel.yama.ptrace_scope is {scope}: {}", yama_advice(*scope))]
    PtraceScope {
        /// The process.
        pid: Pid,
        /// The value of `kernel.yama.ptrace_scope`.
        scope: u32,
    },
    /// It lives in a user namespace that we have no rights in.
    #[error("process {pid} is in another user namespace (a container): run inside of it, or as root outside")]
    UserNamespace {
        /// The process.
        pid: Pid,
    },
    /// It made itself untraceable.
    #[error(
        "process {pid} is marked as not dumpable (it changed its uid, has file capabilities, or called prctl(PR_SET_DUMPABLE)): run as root"
    )]
    NotDumpable {
        /// The process.
        pid: Pid,
    },
    /// Something else forbids it.
    #[error(
        "no permission to trace process {pid}: {source} (a security module, or a container without CAP_SYS_PTRACE)"
    )]
    Denied {
        /// The process.
        pid: Pid,
        /// What the kernel said.
        source: io::Error,
    },
    /// The system lacks something, such as file descriptors or `/proc`.
    #[error("cannot open process {pid}: {what}: {source}")]
    System {
        /// The process.
        pid: Pid,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its `/proc` files make no sense.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

fn yama_advice(scope: u32) -> &'static str {
    match scope {
        1 => "launch the program with this one, run as root, or set it to 0",
        2 => "only root may trace",
        _ => "nobody may trace until the next boot",
    }
}

/// Why a file of `/proc/PID` gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcError {
    /// The process has ended.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The kernel refused to show it.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The text is not what the kernel writes.
    #[error("{what} makes no sense: {detail}")]
    Malformed {
        /// Which file.
        what: &'static str,
        /// What is wrong with it.
        detail: &'static str,
    },
}

/// Why memory of the target could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The address space is gone: the process ended or started another program.
    #[error("the process ended or started another program")]
    Gone,
    /// The bytes are not mapped, or their mapping forbids it.
    #[error("cannot {access} {len} bytes at {address}: {errno}")]
    Fault {
        /// "read" or "write".
        access: &'static str,
        /// The first byte that failed.
        address: RemoteAddr,
        /// How many bytes were left.
        len: usize,
        /// What the kernel said.
        errno: Errno,
    },
    /// The bytes are mapped, the target may not write there, and the kernel does not let this thread: only that which traces the target, or nobody
    /// (`proc_mem.force_override` of `Documentation/admin-guide/kernel-parameters.txt`).
    #[error(
        "cannot write to {0}: this kernel lets nobody change the code of a process; boot it with proc_mem.force_override=ptrace"
    )]
    Refused(RemoteAddr),
}

impl MemoryError {
    /// Whether another thread, the tracer, may do what this one may not.
    pub fn is_refused(&self) -> bool {
        matches!(self, MemoryError::Refused(_))
    }
}

/// Why a file behind a mapping could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappedFileError {
    /// It is anonymous memory or a special mapping.
    #[error("the memory at {0} is not backed by a file")]
    NotAFile(RemoteAddr),
    /// The path now names another file and the old one cannot be reached.
    #[error("{} was replaced or deleted after the process mapped it; restart the process, or read it as root through /proc/PID/map_files", .0.display())]
    Replaced(PathBuf),
    /// It exists and cannot be read.
    #[error("cannot open {}: {source}", path.display())]
    Unreadable {
        /// The file, in the target's mount namespace.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Why the threads of a target could not be stopped, looked at or let go.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The process ended meanwhile.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The process started another program meanwhile.
    #[error("process {0} has started another program")]
    Execed(Pid),
    /// A thread ended meanwhile (its process may live on).
    #[error("thread {0} has ended")]
    ThreadGone(Tid),
    /// A thread cannot be stopped now.
    #[error(
        "thread {tid} of process {pid} did not stop within {waited:?}: {why}; nothing was changed, try again"
    )]
    Unstoppable {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// How long it was waited for.
        waited: Duration,
        /// What it is doing.
        why: String,
    },
    /// Another process runs in the same memory.
    #[error(
        "process {pid} shares its memory with process {other}, which is none of its threads (clone(CLONE_VM), or a vfork that lasts) and would run while code is changed; nothing was changed, try again when that one has ended"
    )]
    SharesMemory {
        /// The process.
        pid: Pid,
        /// The one that shares its memory.
        other: Pid,
    },
    /// Somebody else traces a thread.
    #[error("thread {tid} of process {pid} is already traced by {tracer}: end that tracer first")]
    AlreadyTraced {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The tracing thread.
        tracer: Tid,
    },
    /// A ptrace request failed for a reason of its own.
    #[error("ptrace {request} on thread {tid} failed: {errno}")]
    Ptrace {
        /// The thread.
        tid: Tid,
        /// The request's name.
        request: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A thread reached what only a caller's mistake or another program's interference leads to.
    #[error("thread {tid} stopped unexpectedly: {what}")]
    Unexpected {
        /// The thread.
        tid: Tid,
        /// What it stopped for.
        what: String,
    },
    /// No thread of this id is among the stopped ones.
    #[error("thread {0} is not among the stopped ones")]
    UnknownThread(Tid),
    /// `/proc` gave no answer.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

impl StopError {
    /// Whether the same may succeed later by itself: what is in the way is something that the process, or a tracer, is doing just now.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            StopError::ThreadGone(_)
                | StopError::Execed(_)
                | StopError::Unstoppable { .. }
                | StopError::SharesMemory { .. }
                | StopError::AlreadyTraced { .. }
        )
    }
}

/// Why a system call in the target was not made, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The target's kernel refused the call.
    #[error("{call} in the target failed: {errno}")]
    Failed {
        /// The call's name, or "system call".
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// A seccomp sandbox might kill the target for it.
    #[error(
        "process {pid} is under seccomp ({mode:?}), which might kill it for a system call made on its behalf: run as root, or accept that with --allow-seccomp"
    )]
    Seccomp {
        /// The process.
        pid: Pid,
        /// Its mode.
        mode: Seccomp,
    },
    /// The kernel does not hand out the target's descriptor.
    #[error("cannot take the shared memory out of process {pid}: {why} ({errno}); nothing was changed")]
    NoDescriptor {
        /// The process.
        pid: Pid,
        /// What is in the way.
        why: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The target's descriptor refers to something else than the memory that was made, or that memory was changed meanwhile.
    #[error(
        "the shared memory made in the process is not what came out of it ({0}): something in the process replaces its files; nothing was changed"
    )]
    Replaced(&'static str),
    /// The memory cannot be made what it has to be.
    #[error("the shared memory made in the process {what}: {errno}; nothing was changed")]
    Unfit {
        /// What failed.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// There is no `syscall` instruction in the target's code.
    #[error("process {0} has no system call instruction in its code")]
    NoSyscallInstruction(Pid),
    /// Every thread is in a state that forbids it.
    #[error("process {0} has no thread that can make a system call now")]
    NoThread(Pid),
    /// The thread could not be driven.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Arguments could not be put into the target.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// `/proc` gave no answer.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

impl RemoteError {
    /// The target kernel's refusal, if that is what it is.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            RemoteError::Failed { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}
