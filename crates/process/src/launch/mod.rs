//! Launching a command so that it stands still before its own code runs, with its libraries in place.
//!
//! The child is ours to wait for, runs with our standard streams, and has the signal state this program was started with.
//!
//! It runs only if it is let run: [`Launched`] kills it when it is dropped, on whatever way, and until then the kernel
//! kills it should we be killed. Only [`Launched::let_run`] ends that.

mod child;
mod error;
mod exec;
mod handover;
pub(crate) mod loader;

pub use child::Child;
pub use error::LaunchError;
pub use handover::Handover;
pub use loader::Place;

use crate::stop::{BASE_OPTIONS, Parked, Thread};
use crate::stopped::AtDrop;
use crate::wait::OnExit;
use crate::{Errno, Pid, Process, Registers, RemoteError, StopError, StopOptions, Stopped, ptrace};
use child::Doomed;
use std::cell::Cell;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// How long a program may take to be loaded.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A command that stands before its own code. Dropping it kills it.
#[derive(Debug)]
pub struct Launched {
    process: Process,
    child: Doomed,
    place: Place,
    /// What it gets back when it is taken over: set while it waits for that, or is another process's of ours. Otherwise it
    /// stands as our tracee.
    away: Cell<Option<Handover>>,
    not_send: PhantomData<*mut ()>,
}

/// Starts `program` (looked up along PATH unless it has a slash) with `args` after its own name, and stops it before its own
/// code runs.
///
/// # Errors
/// [`LaunchError`]; nothing of the command is left then.
pub fn launch(program: &OsStr, args: &[impl AsRef<OsStr>]) -> Result<Launched, LaunchError> {
    let path = exec::resolve(program)?;
    exec::refuse_privileged(&path)?;
    let deadline = Instant::now() + PATIENCE;
    let argv: Vec<&OsStr> = std::iter::once(program).chain(args.iter().map(AsRef::as_ref)).collect();
    let child = exec::spawn(&path, &argv, deadline)?;
    let process = Process::open(Pid(child.tid().0))?;
    if process.auxv()?.is_secure() {
        return Err(LaunchError::Privileged(path));
    }
    let mut launched =
        Launched { process, child, place: Place::Entry, away: Cell::new(None), not_send: PhantomData };
    launched.place = loader::run_until_loaded(&mut launched, &path, deadline)?;
    Ok(launched)
}

impl Launched {
    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where it stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The stopped program, to be looked at and changed. It stands on when that is dropped, and is held once at a time.
    ///
    /// # Errors
    /// [`RemoteError`] if it was killed meanwhile.
    pub fn hold(&self, options: &StopOptions) -> Result<Stopped<'_>, RemoteError> {
        // Whatever happens to us meanwhile, it is not to run.
        let mut options = options.clone();
        options.ptrace_options |= libc::PTRACE_O_EXITKILL;
        if let Some(handover) = self.away.get() {
            handover.take_back(&self.process, &options)?;
            self.away.set(None);
        }
        Ok(self.stopped(options)?)
    }

    fn stopped(&self, options: StopOptions) -> Result<Stopped<'_>, StopError> {
        let tid = self.child.tid();
        let failed = |request, errno| match errno {
            Errno(libc::ESRCH) => StopError::Gone(self.process.pid()),
            errno => StopError::Ptrace { tid, request, errno },
        };
        let flags = BASE_OPTIONS | options.ptrace_options;
        ptrace::set_options(tid, flags as usize).map_err(|errno| failed("PTRACE_SETOPTIONS", errno))?;
        let regs = Registers::read(tid).map_err(|errno| failed("PTRACE_GETREGSET", errno))?;
        let thread = Thread::new(tid, regs, Parked::Plain);
        let mut stopped = Stopped::new(&self.process, vec![thread], options, OnExit::Leave, Instant::now());
        stopped.at_drop = AtDrop::Stand;
        Ok(stopped)
    }

    /// Puts it where another process of ours can take it over, and lets go of it. It does not run until then, and does not
    /// outlive us.
    ///
    /// # Errors
    /// [`RemoteError`] if it was killed, or may not make system calls.
    pub fn hand_over(&self, options: &StopOptions) -> Result<Handover, RemoteError> {
        let handover = Handover::park(self.hold(options)?)?;
        self.away.set(Some(handover));
        Ok(handover)
    }

    /// Lets it run: what it was handed over to has done so, or we do it now.
    ///
    /// # Errors
    /// [`StopError`] if it was killed meanwhile.
    pub fn let_run(mut self) -> Result<(Process, Child), StopError> {
        if self.away.get().is_none() {
            self.stopped(StopOptions::default())?.resume_and_detach();
        }
        let child = self.child.spare();
        Ok((self.process, child))
    }
}
