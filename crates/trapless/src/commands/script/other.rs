//! A process that a script is about without probing it: `-p PID` or a command, beside `begin` and `interval` alone. The script ends with
//! it.

use crate::cli::validated::Target;
use crate::commands::wake::Wake;
use crate::error::Error;
use crate::target;
use std::os::fd::AsRawFd;
use trapless_process::Process;
use trapless_process::launch::{self, Child, Launched};

/// Such a process, if there is one.
pub(super) enum Other {
    /// There is none.
    None,
    /// It runs.
    Running(Box<Process>),
    /// It waits to be let run.
    Waiting(Option<Box<Launched>>),
    /// It was launched.
    Launched(Box<Process>, Child),
}

impl Other {
    /// That of a target.
    ///
    /// # Errors
    /// It is not there, or cannot be launched.
    pub fn of(target: Option<&Target>) -> Result<Self, Error> {
        Ok(match target {
            Some(Target::Processes(pids)) => match pids.first() {
                Some(pid) => Self::Running(Box::new(target::open(*pid)?)),
                None => Self::None,
            },
            Some(Target::Launch(command)) => match command.split_first() {
                Some((program, arguments)) => {
                    Self::Waiting(Some(Box::new(launch::launch(program, arguments)?)))
                }
                None => Self::None,
            },
            Some(Target::Whoever(_)) | None => Self::None,
        })
    }

    /// Lets a command run.
    pub fn let_run(&mut self) -> Result<(), Error> {
        if let Self::Waiting(launched) = self
            && let Some(launched) = launched.take()
        {
            let (process, child) = launched.let_run().map_err(Error::other)?;
            *self = Self::Launched(Box::new(process), child);
        }
        Ok(())
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Asks a command that was launched to end.
    pub fn ask_to_end(&mut self) -> Result<(), Error> {
        match self {
            Self::Launched(_, child) => child.ask_to_end().map_err(Error::other),
            _ => Ok(()),
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        match self {
            Self::None | Self::Waiting(_) => false,
            Self::Running(process) => !process.is_alive(),
            Self::Launched(_, child) => child.try_wait().ok().flatten().is_some(),
        }
    }

    /// Wakes when it ends.
    pub fn wakes(&self, wake: &mut Wake) {
        match self {
            Self::None | Self::Waiting(_) => {}
            Self::Running(process) | Self::Launched(process, _) => {
                wake.on(process.pidfd().map(|pidfd| pidfd.as_raw_fd()));
            }
        }
    }
}
