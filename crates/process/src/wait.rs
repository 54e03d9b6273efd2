//! Waiting for one tracee at a time, never longer than a deadline.
//!
//! Each wait names its thread, so that no other child of ours is ever reaped here, and looks before it takes (`WNOWAIT`): if the
//! target is our own child, its end stays for whoever started it. The kernel offers no wait with a deadline, so we poll:
//! first giving the processor away, which is what a stop of a thread on the same CPU needs, then sleeping for longer and longer.

use crate::{Errno, Tid};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// What happened to a tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It stopped.
    Stop(Stop),
    /// It ended by itself or by a signal; or it is no longer ours to wait for.
    Gone,
}

/// Why a tracee stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A signal is about to be delivered.
    Signal(i32),
    /// Entry to or exit from a system call (with `PTRACE_O_TRACESYSGOOD`).
    Syscall,
    /// `PTRACE_EVENT_STOP` after an interrupt (SIGTRAP), or in a group-stop (the stopping signal).
    Interrupted(i32),
    /// Another `PTRACE_EVENT_*`.
    Event(i32),
}

impl Stop {
    /// `status` is a signal number, with the event in the byte above it.
    fn from_status(status: i32) -> Stop {
        match (status & 0xff, status >> 8) {
            (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            (signal, 0) => Stop::Signal(signal),
            (signal, libc::PTRACE_EVENT_STOP) => Stop::Interrupted(signal),
            (_, event) => Stop::Event(event),
        }
    }
}

/// Whether an ended tracee may be taken from the kernel's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExit {
    /// Yes: its parent hears of its end only then.
    Reap,
    /// No: we are its parent, and somebody here will want its exit status.
    Leave,
}

/// What has happened to `tid` since it was last looked at; `None` for nothing.
pub(crate) fn poll(tid: Tid, on_exit: OnExit) -> Option<Event> {
    let look = wait(tid, libc::WNOWAIT);
    match look {
        Err(_) => Some(Event::Gone),
        Ok(None) => None,
        Ok(Some((libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED, _))) => {
            if on_exit == OnExit::Reap {
                let _ = wait(tid, 0);
            }
            Some(Event::Gone)
        }
        // The second look can differ from the first only by SIGKILL, which then is what there is to tell.
        Ok(Some(_)) => match wait(tid, 0) {
            Ok(Some((libc::CLD_TRAPPED | libc::CLD_STOPPED, status))) => {
                Some(Event::Stop(Stop::from_status(status)))
            }
            Ok(None) => None,
            _ => Some(Event::Gone),
        },
    }
}

/// Reaps `tid` if it has ended, and takes nothing else; whether it has ended.
pub(crate) fn reap_if_dead(tid: Tid) -> bool {
    match wait(tid, libc::WNOWAIT) {
        Ok(Some((libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED, _))) => wait(tid, 0).is_ok(),
        Ok(_) => false,
        Err(_) => true,
    }
}

/// Takes the next thing that happens to any child or tracee of the calling thread. Without `block`, `None` when nothing has happened yet.
///
/// # Errors
/// EINTR after a signal handler, ECHILD when there is nobody to wait for.
pub(crate) fn take_any(block: bool) -> Result<Option<(Tid, Event)>, Errno> {
    let mut status = 0;
    let hang = if block { 0 } else { libc::WNOHANG };
    // SAFETY: the call writes one integer.
    let found = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD | hang) };
    let tid = Tid(Errno::check(libc::c_long::from(found))? as i32);
    if tid.0 == 0 {
        return Ok(None);
    }
    let event = match libc::WIFSTOPPED(status) {
        true => Event::Stop(Stop::from_status(status >> 8)),
        false => Event::Gone,
    };
    Ok(Some((tid, event)))
}

/// A stop, or how a tracee has ended.
pub(crate) type Happened = Result<Stop, ExitStatus>;

/// As [`take_any`] without a wait, with how a tracee has ended.
pub(crate) fn take_any_end() -> Result<Option<(Tid, Happened)>, Errno> {
    take_end(-1)
}

/// The same of one tracee.
pub(crate) fn take_end_of(tid: Tid) -> Option<Happened> {
    take_end(tid.0).ok().flatten().map(|(_, happened)| happened)
}

fn take_end(which: i32) -> Result<Option<(Tid, Happened)>, Errno> {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: the call writes one integer.
    let found = Errno::check(libc::c_long::from(unsafe { libc::waitpid(which, &mut status, flags) }))?;
    let happened = match libc::WIFSTOPPED(status) {
        true => Ok(Stop::from_status(status >> 8)),
        false => Err(ExitStatus::from_raw(status)),
    };
    Ok((found != 0).then_some((Tid(found as i32), happened)))
}

fn wait(tid: Tid, flags: i32) -> Result<Option<(i32, i32)>, Errno> {
    let found = waitid(libc::P_PID, tid.0, libc::WNOHANG | flags)?;
    Ok(found.map(|(_, code, status)| (code, status)))
}

/// Id, `CLD_*` code and status.
fn waitid(kind: libc::idtype_t, id: i32, flags: i32) -> Result<Option<(i32, i32, i32)>, Errno> {
    let options = libc::WEXITED | libc::WSTOPPED | libc::__WALL | flags;
    // SAFETY: all zeros is a valid siginfo_t, and the call gets the address of one.
    let (result, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::waitid(kind, id as libc::id_t, &mut info, options), info)
    };
    Errno::check(libc::c_long::from(result))?;
    // SAFETY: waitid has filled the fields for a child, or left everything zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some((pid, info.si_code, status)))
}

/// A poller that is eager at first and gets lazy.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    turns: u32,
}

impl Backoff {
    /// Turns that only give the processor away: about 100 µs on an idle machine.
    const EAGER: u32 = 200;

    /// Lets others run.
    pub fn pause(&mut self) {
        self.turns += 1;
        match self.turns.checked_sub(Self::EAGER) {
            None => std::thread::yield_now(),
            Some(late) => std::thread::sleep(Duration::from_micros(u64::from(20 * (late + 1)).min(1000))),
        }
    }
}

/// Waits for the next event of `tid`; `None` when `deadline` has passed without one.
pub(crate) fn until(tid: Tid, on_exit: OnExit, deadline: Instant) -> Option<Event> {
    let mut backoff = Backoff::default();
    loop {
        if let Some(event) = poll(tid, on_exit) {
            return Some(event);
        }
        if Instant::now() >= deadline {
            return None;
        }
        backoff.pause();
    }
}
