//! Why a process cannot be opened: the kernel says EACCES or EPERM to a dozen different situations.

use crate::process::read_file;
use crate::status::{parse_stat, parse_status};
use crate::stop::FOR_TRACERS;
use crate::wait::Backoff;
use crate::{OpenError, Pid, ProcError, Status, Tid};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// What `/proc` tells of a process or a thread that need not be open.
///
/// # Errors
/// [`ProcError::Gone`] if there is none; otherwise it could not be read.
pub fn status_of(tid: Tid) -> Result<Status, ProcError> {
    let path = format!("/proc/{tid}/status");
    let text = read_file(Path::new(&path)).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => ProcError::Gone(Pid(tid.0)),
        _ => ProcError::Unreadable { path: path.into(), source },
    })?;
    parse_status(&text)
}

/// All processes, as `/proc` lists them.
pub fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
}

/// What can be known to be wrong before asking for anything.
pub(crate) fn refuse_untraceable(pid: Pid) -> Result<(), OpenError> {
    if pid.0 <= 0 {
        return Err(OpenError::NoSuchProcess { pid });
    }
    let status = match status_of(pid.leader()) {
        Err(ProcError::Gone(_)) => {
            return Err(match std::fs::metadata("/proc/self") {
                Err(source) => OpenError::System { pid, what: "/proc is not mounted", source },
                Ok(_) => OpenError::NoSuchProcess { pid },
            });
        }
        status => status?,
    };
    if status.tgid != pid.0 {
        return Err(OpenError::Thread { tid: pid.leader(), process: Pid(status.tgid) });
    }
    if pid.0 == std::process::id() as i32 {
        return Err(OpenError::Ourselves { pid });
    }
    let stat =
        read_file(Path::new(&format!("/proc/{pid}/stat"))).map_err(|_| OpenError::NoSuchProcess { pid })?;
    if parse_stat(&stat)?.is_kernel_thread() {
        return Err(OpenError::KernelThread { pid, name: status.name });
    }
    // A leader that has exited while other threads live is a zombie too, but its process is none.
    if status.state.has_ended() && status.threads <= 1 {
        return Err(OpenError::Zombie { pid, name: status.name, parent: Pid(status.ppid) });
    }
    let is_ours = |tracer: i32| Path::new(&format!("/proc/self/task/{tracer}")).exists();
    let mut tracer = status.tracer;
    let until = Instant::now() + FOR_TRACERS;
    let mut backoff = Backoff::default();
    while tracer != 0 && !is_ours(tracer) && Instant::now() < until {
        backoff.pause();
        tracer = status_of(pid.leader()).map_or(0, |status| status.tracer);
    }
    if tracer != 0 && !is_ours(tracer) {
        let name = status_of(Tid(tracer)).map_or_else(|_| "unknown".into(), |tracer| tracer.name);
        return Err(OpenError::AlreadyTraced { pid, tracer: Tid(tracer), name });
    }
    Ok(())
}

/// A process that has ended is a zombie until its parent has noticed, and none after that.
pub(crate) fn gone(pid: Pid) -> OpenError {
    match status_of(pid.leader()) {
        Ok(status) => OpenError::Zombie { pid, name: status.name, parent: Pid(status.ppid) },
        Err(_) => OpenError::NoSuchProcess { pid },
    }
}

/// Which of the reasons to be refused it was, by what can be seen from outside.
pub(crate) fn explain_denial(pid: Pid, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => return gone(pid),
        Some(libc::EACCES | libc::EPERM) => {}
        _ => return OpenError::System { pid, what: "/proc/PID/mem", source },
    }
    let Ok(status) = status_of(pid.leader()) else { return OpenError::NoSuchProcess { pid } };
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if status.uid[..3].iter().any(|&owner| owner != uid) && uid != 0 {
        let owner = status.uid[..3].iter().copied().find(|&owner| owner != uid).unwrap_or(status.uid[0]);
        return OpenError::OtherUser { pid, owner, ours: uid };
    }
    if let Some(scope) = ptrace_scope().filter(|&scope| scope >= 3 || (scope > 0 && uid != 0)) {
        return OpenError::PtraceScope { pid, scope };
    }
    let user_namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user"));
    match (user_namespace("self"), user_namespace(&pid.to_string())) {
        (Ok(ours), Ok(theirs)) if ours != theirs => return OpenError::UserNamespace { pid },
        _ => {}
    }
    // The kernel gives the files of a process that is not dumpable to root.
    let owner = std::fs::metadata(format!("/proc/{pid}/stat")).map(|meta| meta.uid());
    if uid != 0 && owner.is_ok_and(|owner| owner != uid) || status.gid[..3].iter().any(|&group| group != gid)
    {
        return OpenError::NotDumpable { pid };
    }
    OpenError::Denied { pid, source }
}

/// `kernel.yama.ptrace_scope`; `None` on kernels without Yama.
fn ptrace_scope() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}
