//! Why a command could not be launched.

use crate::{Errno, MemoryError, OpenError, ProcError, RemoteError, StopError};
use std::path::PathBuf;

/// Why a command could not be launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// There is no such file, along PATH or at the path given.
    #[error("{program}: no such command{}", if program.contains('/') { "" } else { " in PATH" })]
    NotFound {
        /// What was asked for.
        program: String,
    },
    /// It may not be executed.
    #[error("{}: not executable (permission denied)", .0.display())]
    NotExecutable(PathBuf),
    /// It is a directory.
    #[error("{}: is a directory", .0.display())]
    Directory(PathBuf),
    /// The kernel knows no way to run it.
    #[error("{}: neither a program for this machine nor a script with a #! line", .0.display())]
    UnknownFormat(PathBuf),
    /// Its interpreter, of a script or a dynamic program, is missing.
    #[error("{}: its interpreter (the #! line, or the dynamic loader) does not exist", .0.display())]
    MissingInterpreter(PathBuf),
    /// It would run with other rights than ours.
    #[error("{}: is set-uid, set-gid or has capabilities, which it would lose under a tracer: run as the user it runs as", .0.display())]
    Privileged(PathBuf),
    /// An argument holds a NUL byte.
    #[error("an argument holds a NUL byte")]
    Nul,
    /// It ended before its own code ran.
    #[error("{} ended while it was being loaded ({status})", program.display())]
    Died {
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// It did not come to the end of loading in time.
    #[error("{} was not loaded within {seconds} seconds", program.display())]
    Timeout {
        /// The program.
        program: PathBuf,
        /// How long we waited.
        seconds: u64,
    },
    /// A system call of ours failed.
    #[error("{what} failed: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The new process could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new process could not be driven.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The new process could not make a system call for us.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The new process's memory could not be changed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// `/proc` gave no answer.
    #[error(transparent)]
    Proc(#[from] ProcError),
}
