//! Everything that can end a run, with its text for people and its exit code for programs.

use crate::cli::script::Dialect;
use crate::report::Exit;
use std::io;
use thiserror::Error;
use trapless_process::OpenError;
use trapless_process::launch::LaunchError;
use trapless_session::error as session;
use trapless_session::live_patch::LivePatchError;
use trapless_session::select::SelectError;
use trapless_session::spec::SpecError;

/// Why trapless did not do what it was asked to.
///
/// The text says what happened, where, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that contradict each other or miss something.
    #[error("{0}")]
    Usage(String),
    /// Probes could not be found, armed or removed.
    #[error(transparent)]
    Session(#[from] session::Error),
    /// The benchmark could not be run.
    #[error(transparent)]
    Bench(#[from] trapless_bench::error::Error),
    /// The target went away while something was being done to it.
    #[error("process {pid} {} while {during}; nothing is left to clean up", how_ended(.exit))]
    TargetEnded {
        /// The process.
        pid: i32,
        /// How it ended, if that is known.
        exit: Option<Exit>,
        /// What was being done: "probes were being armed".
        during: &'static str,
    },
    /// The probes are still in the target, which lives.
    #[error(
        "the probes could not be taken out of process {pid}, or not as a whole: {why}; then take out what is left with: trapless detach -p {pid}"
    )]
    StillProbed {
        /// The process.
        pid: i32,
        /// What was in the way.
        why: session::Error,
    },
    /// A library that is not there, and is not found.
    #[error("{0}. To wait for it to be loaded, add --pending")]
    NotLoaded(SelectError),
    /// The command to launch could not be started.
    #[error("cannot run the command: {0}")]
    Launch(#[from] LaunchError),
    /// Ctrl-C, or another signal that ends a run, came before a launched command ran.
    #[error("interrupted while the probes were being armed; the command was ended before it ran")]
    Interrupted,
    /// Results that could not be written.
    #[error("cannot write to {destination}: {source}{}", output_hint(.source))]
    Output {
        /// `standard output` or a path.
        destination: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something that the process has told already that did the work; its exit code.
    #[error("the work failed with exit code {0}")]
    Told(u8),
    /// A script that cannot be run, and in whose manners that is said.
    #[error("{1}")]
    Script(Dialect, String),
    /// Anything else that the parts below report.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn how_ended(exit: &Option<Exit>) -> String {
    match exit {
        None => "ended".to_owned(),
        Some(Exit::Code(code)) => format!("exited with code {code}"),
        Some(Exit::Signal(signal)) => format!("was ended by signal {signal}"),
    }
}

fn output_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; make room, or write elsewhere with -o FILE",
        io::ErrorKind::NotFound => "; does its directory exist?",
        _ => "",
    }
}

/// The exit codes, as `--help` and the manual page show them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done; with -- COMMAND, the command's own exit code instead, and 128+N if signal N ended it
  1    failed, or no matching site could be probed
  2    wrong usage: flags or a malformed probe
  3    no such process, or it has ended
  4    not permitted to attach, or another tracer is there
  5    no module, function or place in the source matches, or too many do
  6    the target ended before its probes were armed
  7    the output could not be written
  126  the command was found and could not be run
  127  the command was not found
  130  interrupted before the command ran, and it never did; or before a function was replaced";

impl Error {
    /// Wraps what a part below reports.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Other(Box::new(error))
    }

    /// Whether the same may succeed later by itself, because of what is in the way just now.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Session(error) => error.may_pass(),
            Error::Other(error) => session::may_pass(error.as_ref()),
            _ => false,
        }
    }

    /// The error of an output that `source` broke.
    pub fn output(destination: impl Into<String>, source: io::Error) -> Self {
        Error::Output { destination: destination.into(), source }
    }

    /// The process's exit code for this error; see [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            // Whoever reads us has seen enough: that is no failure.
            Error::Output { .. } if self.is_closed_pipe() => 0,
            Error::Session(error) | Error::Bench(trapless_bench::error::Error::Session(error)) => {
                session_code(error)
            }
            Error::Bench(_) | Error::Other(_) | Error::StillProbed { .. } => 1,
            Error::Told(code) => *code,
            Error::Script(dialect, _) => dialect.failure(),
            Error::Usage(_) => 2,
            Error::NotLoaded(_) => 5,
            Error::TargetEnded { .. } => 6,
            Error::Output { .. } => 7,
            Error::Interrupted => 130,
            Error::Launch(LaunchError::NotFound { .. }) => 127,
            Error::Launch(LaunchError::Died { .. }) => 6,
            Error::Launch(_) => 126,
        }
    }

    /// Tells it on standard error, unless there is nothing to tell.
    pub fn tell(&self) {
        match self {
            _ if self.is_closed_pipe() => {}
            Error::Told(_) => {}
            // With a mark under the place.
            Error::Session(session::Error::Spec(error)) => crate::terminal::tell_lines(error),
            Error::Script(Dialect::Own, what) => crate::terminal::tell_lines(what),
            Error::Script(Dialect::Bpftrace, what) => {
                crate::terminal::tell_plainly(&format!("ERROR: {what}\n"))
            }
            // Where standard error is closed, the exit code still tells.
            _ => crate::terminal::tell(self),
        }
    }

    /// Whether the reader of our output went away, as `head` does: the run ends without a word.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Output { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn session_code(error: &session::Error) -> u8 {
    match error {
        session::Error::Spec(_) => 2,
        session::Error::Open(
            OpenError::NoSuchProcess { .. } | OpenError::Thread { .. } | OpenError::Zombie { .. },
        ) => 3,
        session::Error::Open(_) => 4,
        session::Error::LivePatch(LivePatchError::Names(_)) => 2,
        session::Error::LivePatch(LivePatchError::Interrupted | LivePatchError::InterruptedLoading) => 130,
        session::Error::LivePatch(LivePatchError::NotOne { .. }) => 5,
        session::Error::TargetEnded { .. } => 6,
        session::Error::Select(_) | session::Error::Source { .. } | session::Error::OnlyInlined { .. } => 5,
        _ => 1,
    }
}

/// An error of the operating system as C programs tell it, without its number.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

impl From<SpecError> for Error {
    fn from(error: SpecError) -> Self {
        Error::Session(error.into())
    }
}

impl From<SelectError> for Error {
    fn from(error: SelectError) -> Self {
        Error::Session(error.into())
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        Error::Session(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_process::Pid;

    fn io(kind: io::ErrorKind) -> io::Error {
        kind.into()
    }

    #[test]
    fn every_error_says_what_to_do_and_has_its_code() {
        let output = |kind| Error::output("out.json", io(kind));
        let nothing = |trap_would_help| session::Error::NothingProbed {
            sites: 2,
            example: "libc:f".into(),
            reason: "too short".into(),
            trap_would_help,
        };
        for (error, code, text) in [
            (Error::Usage("what?".into()), 2, "what?"),
            (OpenError::NoSuchProcess { pid: Pid(42) }.into(), 3, "no process has the id 42"),
            (
                OpenError::OtherUser { pid: Pid(1), owner: 0, ours: 1000 }.into(),
                4,
                "process 1 belongs to uid 0, and we are uid 1000: run as that user, or as root",
            ),
            (
                SelectError::TooMany { found: 9, limit: 1 }.into(),
                5,
                "9 functions match, and the limit is 1; narrow the pattern or raise it with --max-probes 9",
            ),
            (
                nothing(false).into(),
                1,
                "none of the 2 matching sites can be probed; for instance libc:f: too short",
            ),
            (
                nothing(true).into(),
                1,
                "none of the 2 matching sites can be probed; for instance libc:f: too short; --allow-trap can probe some of them at the cost of traps",
            ),
            (
                Error::TargetEnded { pid: 5, exit: Some(Exit::Signal(9)), during: "probes were being armed" },
                6,
                "process 5 was ended by signal 9 while probes were being armed; nothing is left to clean up",
            ),
            (
                Error::Interrupted,
                130,
                "interrupted while the probes were being armed; the command was ended before it ran",
            ),
            (
                output(io::ErrorKind::StorageFull),
                7,
                "cannot write to out.json: no storage space; make room, or write elsewhere with -o FILE",
            ),
            (
                Error::Launch(LaunchError::NotExecutable("sl".into())),
                126,
                "cannot run the command: sl: not executable (permission denied)",
            ),
            (
                Error::Launch(LaunchError::NotFound { program: "sl".into() }),
                127,
                "cannot run the command: sl: no such command in PATH",
            ),
        ] {
            assert_eq!((error.exit_code(), error.to_string().as_str()), (code, text));
            assert!(EXIT_CODES.contains(&format!("\n  {code:<3}  ")), "{code} is not documented");
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let error = Error::output("standard output", io(io::ErrorKind::BrokenPipe));
        assert!(error.is_closed_pipe());
        assert_eq!(error.exit_code(), 0);
    }
}
