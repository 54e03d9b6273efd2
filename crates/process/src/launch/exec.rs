//! From a command's name to a child that has just started the program and stands still.

use super::child::Doomed;
use super::error::LaunchError;
use crate::readable::is_readable;
use crate::stop::BASE_OPTIONS;
use crate::wait::{self, Event, OnExit, Stop};
use crate::{Errno, Tid, inherited, ptrace};
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Finds the file execvp(3) would run.
pub(super) fn resolve(program: &OsStr) -> Result<PathBuf, LaunchError> {
    let not_found = || LaunchError::NotFound { program: program.to_string_lossy().into_owned() };
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![program.into()]
    } else if program.is_empty() {
        return Err(not_found());
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
        std::env::split_paths(&path).map(|dir| Path::new(".").join(dir).join(program)).collect()
    };
    let mut refused = None;
    for path in candidates {
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        if meta.is_dir() {
            refused.get_or_insert(LaunchError::Directory(path));
        } else if meta.mode() & 0o111 == 0 {
            refused.get_or_insert(LaunchError::NotExecutable(path));
        } else {
            return Ok(path);
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

/// Refuses a program that runs with other rights than ours: the kernel takes them away under a tracer, and it would fail
/// for a reason its user could not guess.
pub(super) fn refuse_privileged(path: &Path) -> Result<(), LaunchError> {
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    // SAFETY: geteuid and getegid take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let set_uid = meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid;
    // Without group execution the bit meant mandatory locking.
    let set_gid = meta.mode() & libc::S_ISGID != 0 && meta.mode() & libc::S_IXGRP != 0 && meta.gid() != gid;
    if uid != 0 && (set_uid || set_gid) { Err(LaunchError::Privileged(path.to_owned())) } else { Ok(()) }
}

/// Forks a child, attaches to it, and lets it start the program: it stands in the stop that follows a successful execve.
///
/// The child waits for us to have attached, on a pipe. A second pipe, closed by the execve, brings the errno of a failed one.
pub(super) fn spawn(path: &Path, args: &[&OsStr], deadline: Instant) -> Result<Doomed, LaunchError> {
    let nul = |_| LaunchError::Nul;
    let file = CString::new(path.as_os_str().as_bytes()).map_err(nul)?;
    let args: Vec<CString> =
        args.iter().map(|arg| CString::new(arg.as_bytes())).collect::<Result<_, _>>().map_err(nul)?;
    let argv: Vec<_> = args.iter().map(|arg| arg.as_ptr()).chain([std::ptr::null()]).collect();
    let system = |what| {
        move |error: io::Error| LaunchError::System { what, errno: Errno(error.raw_os_error().unwrap_or(0)) }
    };
    let (go_read, mut go_write) = io::pipe().map_err(system("pipe"))?;
    let (mut failed_read, failed_write) = io::pipe().map_err(system("pipe"))?;

    // SAFETY: the child only calls async-signal-safe functions (see `child`) and never returns.
    let pid = Errno::check(libc::c_long::from(unsafe { libc::fork() }))
        .map_err(|errno| LaunchError::System { what: "fork", errno })?;
    if pid == 0 {
        // Our end would keep the child's read from ending if we died.
        // SAFETY: the descriptor is the child's copy, which nothing in it uses again.
        unsafe { libc::close(go_write.as_raw_fd()) };
        // SAFETY: `file` and `argv` are NUL-terminated, live, and were made before the fork.
        unsafe { child(file.as_ptr(), argv.as_ptr(), go_read.as_raw_fd(), failed_write.as_raw_fd()) }
    }
    drop((go_read, failed_write));
    let child = Tid(pid as i32);
    let mut doomed = Doomed::new(child);
    // Should this thread die, the half-started program dies with it.
    let options = BASE_OPTIONS | libc::PTRACE_O_EXITKILL;
    ptrace::seize(child, options as usize)
        .map_err(|errno| LaunchError::System { what: "PTRACE_SEIZE", errno })?;
    go_write.write_all(b"x").map_err(system("write"))?;
    loop {
        match wait::until(child, OnExit::Leave, deadline) {
            Some(Event::Stop(Stop::Event(libc::PTRACE_EVENT_EXEC))) => {
                return Ok(doomed);
            }
            Some(Event::Stop(Stop::Signal(signal))) => drop(ptrace::cont(child, signal as usize)),
            Some(Event::Stop(_)) => drop(ptrace::cont(child, 0)),
            Some(Event::Gone) => break,
            None => {
                return Err(LaunchError::Timeout {
                    program: path.to_owned(),
                    seconds: super::PATIENCE.as_secs(),
                });
            }
        }
    }
    let mut errno = [0; 4];
    // What it had to say is there. A process forked at the same time may hold the other end, so the pipe's end is not waited for.
    let has_said = is_readable(failed_read.as_fd(), Duration::ZERO);
    if has_said && failed_read.read_exact(&mut errno).is_ok() {
        return Err(explain(path, Errno(i32::from_ne_bytes(errno))));
    }
    Err(LaunchError::Died { program: path.to_owned(), status: doomed.reap()? })
}

fn explain(path: &Path, errno: Errno) -> LaunchError {
    match errno.0 {
        libc::ENOENT if path.exists() => LaunchError::MissingInterpreter(path.to_owned()),
        libc::ENOENT | libc::ENOTDIR => LaunchError::NotFound { program: path.display().to_string() },
        libc::EACCES | libc::EPERM => LaunchError::NotExecutable(path.to_owned()),
        libc::ENOEXEC | libc::EINVAL | libc::ELIBBAD => LaunchError::UnknownFormat(path.to_owned()),
        _ => LaunchError::System { what: "execve", errno },
    }
}

/// The child's side of [`spawn`]. Allocates nothing and takes no lock: other threads of ours may have held any at the fork.
///
/// # Safety
/// To be called in a forked child only, with a C string, a null-terminated array of them, and two open descriptors.
unsafe fn child(file: *const libc::c_char, argv: *const *const libc::c_char, go: i32, failed: i32) -> ! {
    let mut byte = 0u8;
    // SAFETY: plain system calls on the child's own descriptors and stack, `environ` as inherited, and `_exit`.
    unsafe {
        loop {
            match libc::read(go, (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                // The parent is gone.
                _ => libc::_exit(127),
            }
        }
        inherited::restore();
        libc::execv(file, argv);
        let errno = *libc::__errno_location();
        libc::write(failed, (&raw const errno).cast(), 4);
        libc::_exit(127)
    }
}
