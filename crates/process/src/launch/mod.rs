//! Launching a command so that it stands still before its own code runs, with its libraries in place.
//!
//! The child is ours to wait for, runs with our standard streams, and has the signal state this program was started with.

mod error;
mod exec;
mod loader;

pub use error::LaunchError;
pub use loader::Launched;

use crate::stop::{BASE_OPTIONS, Parked, Thread};
use crate::wait::OnExit;
use crate::{Errno, Pid, Process, Registers, StopError, StopOptions, Stopped, Tid, ptrace};
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long a program may take to be loaded.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A launched command: a child of ours. Dropping it before it was let run kills it; afterwards it lives on, unreaped.
#[derive(Debug)]
pub struct Command {
    process: Process,
    place: Launched,
    /// Whether it still stands where [`launch`] left it, attached to us.
    waiting: bool,
    status: Option<ExitStatus>,
    not_send: PhantomData<*mut ()>,
}

/// Starts `program` (looked up along PATH unless it has a slash) with `args` after its own name, and stops it before its own
/// code runs.
///
/// # Errors
/// [`LaunchError`]; nothing of the command is left then.
pub fn launch(program: &OsStr, args: &[impl AsRef<OsStr>]) -> Result<Command, LaunchError> {
    let path = exec::resolve(program)?;
    exec::refuse_privileged(&path)?;
    let deadline = Instant::now() + PATIENCE;
    let argv: Vec<&OsStr> = std::iter::once(program).chain(args.iter().map(AsRef::as_ref)).collect();
    let child = exec::spawn(&path, &argv, deadline)?;
    let process = Process::open(Pid(child.0)).inspect_err(|_| abandon(child))?;
    let mut command =
        Command { process, place: Launched::Entry, waiting: true, status: None, not_send: PhantomData };
    if command.process.auxv()?.is_secure() {
        return Err(LaunchError::Privileged(path));
    }
    command.place = match loader::run_until_loaded(&command.process, child, &path, deadline) {
        Err(error @ LaunchError::Died { .. }) => {
            command.waiting = false;
            return Err(error);
        }
        place => place?,
    };
    Ok(command)
}

impl Command {
    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where it stood when it was launched.
    pub fn place(&self) -> Launched {
        self.place
    }

    /// The launched program, stopped: to be changed, and let run by [`Stopped::resume_and_detach`]. `None` the second time.
    ///
    /// # Errors
    /// [`StopError`] if it was killed meanwhile.
    pub fn stopped(&mut self, options: StopOptions) -> Option<Result<Stopped<'_>, StopError>> {
        if !std::mem::replace(&mut self.waiting, false) {
            return None;
        }
        let tid = self.process.pid().leader();
        let failed = |request, errno| match errno {
            Errno(libc::ESRCH) => StopError::Gone(self.process.pid()),
            errno => StopError::Ptrace { tid, request, errno },
        };
        let flags = BASE_OPTIONS | options.ptrace_options;
        if let Err(errno) = ptrace::set_options(tid, flags as usize) {
            return Some(Err(failed("PTRACE_SETOPTIONS", errno)));
        }
        let regs = match Registers::read(tid) {
            Ok(regs) => regs,
            Err(errno) => return Some(Err(failed("PTRACE_GETREGSET", errno))),
        };
        let thread = Thread { tid, regs, parked: Parked::Plain, held: Vec::new() };
        Some(Ok(Stopped::new(&self.process, vec![thread], options, OnExit::Leave, Instant::now())))
    }

    /// Lets it run unchanged if it still stands.
    pub fn run(&mut self) {
        if let Some(Ok(stopped)) = self.stopped(StopOptions::default()) {
            stopped.resume_and_detach();
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The kernel's reason if somebody else has reaped it.
    pub fn wait(&mut self) -> Result<ExitStatus, LaunchError> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        self.run();
        let status = reap(self.process.pid().leader())?;
        Ok(*self.status.insert(status))
    }

    /// Its exit status if it has ended.
    ///
    /// # Errors
    /// The kernel's reason if somebody else has reaped it.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, LaunchError> {
        if self.status.is_none() {
            self.status = try_reap(self.process.pid().leader(), libc::WNOHANG)?;
        }
        Ok(self.status)
    }

    /// Sends it a signal, unless it has been reaped.
    pub fn signal(&self, signal: i32) {
        if self.status.is_none() {
            // SAFETY: kill takes two integers; the child is not reaped, so the id is its own.
            unsafe { libc::kill(self.process.pid().0, signal) };
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if self.waiting {
            abandon(self.process.pid().leader());
        }
    }
}

fn abandon(child: Tid) {
    kill(child);
    let _ = reap(child);
}

fn kill(child: Tid) {
    // SAFETY: kill takes two integers; the child is not reaped yet, so the id is its own.
    unsafe { libc::kill(child.0, libc::SIGKILL) };
}

fn reap(child: Tid) -> Result<ExitStatus, LaunchError> {
    loop {
        if let Some(status) = try_reap(child, 0)? {
            return Ok(status);
        }
    }
}

fn try_reap(child: Tid, flags: i32) -> Result<Option<ExitStatus>, LaunchError> {
    let mut status = 0;
    loop {
        // SAFETY: the call writes one integer.
        let reaped = unsafe { libc::waitpid(child.0, &mut status, flags) };
        match Errno::check(libc::c_long::from(reaped)) {
            Ok(0) => return Ok(None),
            // Stops of a tracee are reported here too.
            Ok(_) if libc::WIFSTOPPED(status) || libc::WIFCONTINUED(status) => return Ok(None),
            Ok(_) => return Ok(Some(ExitStatus::from_raw(status))),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(LaunchError::System { what: "waitpid", errno }),
        }
    }
}
