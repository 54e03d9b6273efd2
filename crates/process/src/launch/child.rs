//! A child of ours: its end, and how it comes to one that must not run.

use super::error::LaunchError;
use crate::wait::Backoff;
use crate::{Errno, Pid, Tid};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long the end of a killed process may take. One that waits for a disk or a file server ends when that answers.
const DYING: Duration = Duration::from_secs(5);

/// A launched command that runs. Dropping this leaves it alone.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    status: Option<ExitStatus>,
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Its exit status if it has ended.
    ///
    /// # Errors
    /// The kernel's reason if somebody else has reaped it.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, LaunchError> {
        if self.status.is_none() {
            self.status = try_reap(self.pid.leader())?;
        }
        Ok(self.status)
    }

    /// Asks it to end, if it has not.
    ///
    /// # Errors
    /// The kernel's reason: it belongs to somebody else now, or was reaped.
    pub fn ask_to_end(&mut self) -> Result<(), LaunchError> {
        if self.try_wait()?.is_none() {
            // SAFETY: kill takes two integers; the child is not reaped yet, so the id is its own.
            let asked = unsafe { libc::kill(self.pid.0, libc::SIGTERM) };
            Errno::check(asked.into()).map_err(|errno| LaunchError::System { what: "kill", errno })?;
        }
        Ok(())
    }

    /// Its exit status if it ends within `patience`.
    ///
    /// # Errors
    /// The kernel's reason if somebody else has reaped it.
    pub fn wait_for(&mut self, patience: Duration) -> Result<Option<ExitStatus>, LaunchError> {
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::default();
        loop {
            let status = self.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            backoff.pause();
        }
    }
}

/// A child that is killed and reaped when this is dropped.
#[derive(Debug)]
pub(super) struct Doomed(Option<Tid>);

impl Doomed {
    pub fn new(child: Tid) -> Doomed {
        Doomed(Some(child))
    }

    /// Its only thread; of one that is spared, none.
    pub fn tid(&self) -> Tid {
        self.0.unwrap_or(Tid(0))
    }

    /// It lives on.
    pub fn spare(&mut self) -> Child {
        Child { pid: Pid(self.0.take().unwrap_or(Tid(0)).0), status: None }
    }

    /// Takes the exit status of one that has ended.
    pub fn reap(&mut self) -> Result<ExitStatus, LaunchError> {
        let status = self.spare().wait_for(DYING)?;
        status.ok_or(LaunchError::System { what: "waitpid", errno: Errno(libc::ETIMEDOUT) })
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            // SAFETY: kill takes two integers; the child is not reaped yet, so the id is its own.
            unsafe { libc::kill(child.0, libc::SIGKILL) };
            // Should it take longer, it is reaped when we end.
            let _ = Child { pid: Pid(child.0), status: None }.wait_for(DYING);
        }
    }
}

fn try_reap(child: Tid) -> Result<Option<ExitStatus>, LaunchError> {
    let mut status = 0;
    loop {
        // SAFETY: the call writes one integer.
        let reaped = unsafe { libc::waitpid(child.0, &mut status, libc::WNOHANG) };
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
