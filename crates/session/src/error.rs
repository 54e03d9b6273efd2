//! Everything that can keep a session from being armed or removed, with its text for people.

use crate::live_patch::LivePatchError;
use crate::select::SelectError;
use crate::spec::SpecError;
use std::path::PathBuf;
use thiserror::Error;
use trapless_engine::EngineError;
use trapless_process::{OpenError, StopError};
use trapless_symbols::SourceError;

/// Why trapless did not do what it was asked to.
///
/// The text says what happened, where, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A malformed probe.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Well-formed probes that select nothing usable.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A place in the source that is nowhere in the program.
    #[error("'{spec}': {error}{}", perhaps(.nearest))]
    Source {
        /// The specification as it was written.
        spec: String,
        /// What is in the way.
        error: SourceError,
        /// Names of files that are close.
        nearest: Vec<String>,
    },
    /// What a pattern means is only there as copies inside other functions.
    #[error(
        "no function matches '{spec}', but it was inlined into others at {}; --inlines probes the copies", places(*.instances)
    )]
    OnlyInlined {
        /// The specification as it was written.
        spec: String,
        /// How many copies there are.
        instances: usize,
    },
    /// Sites matched, and none of them could be probed.
    #[error("{} {example}: {reason}{}", none_of(*.sites), trap_hint(*.trap_would_help))]
    NothingProbed {
        /// How many sites matched.
        sites: usize,
        /// `MODULE:FUNCTION` of one of them.
        example: String,
        /// Why that one was refused.
        reason: String,
        /// Whether a mechanism that traps could probe some of them.
        trap_would_help: bool,
    },
    /// A process that does not exist or is not ours to change.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The keeper that served probes that trap was killed, and the target had not met one of them since.
    #[error(
        "the process that served the traps was killed; the probes were taken out, and nothing was counted after it"
    )]
    Unserved,
    /// A return was asked for where nothing returns from.
    #[error("'{spec}' names {what}, and nothing returns from there: name the function")]
    NoReturn {
        /// The specification as it was written.
        spec: String,
        /// What it names.
        what: &'static str,
    },
    /// No pattern was given.
    #[error("nothing was asked for: no pattern was given")]
    NothingAsked,
    /// More arguments than are recorded.
    #[error("{asked} arguments were asked for, and at most {most} are recorded")]
    Arguments {
        /// So many.
        asked: usize,
        /// The most there can be.
        most: usize,
    },
    /// A file that had to be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A function that is not replaced.
    #[error(transparent)]
    LivePatch(#[from] LivePatchError),
    /// The process has ended, or runs another program.
    #[error(
        "process {pid} ended, or ran another program, while a library was being loaded; nothing is left to clean up"
    )]
    TargetEnded {
        /// The process.
        pid: i32,
    },
    /// Anything else that the parts below report.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn perhaps(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(" or ")) }
}

fn places(count: usize) -> String {
    if count == 1 { "1 place".to_owned() } else { format!("{count} places") }
}

fn none_of(sites: usize) -> String {
    match sites {
        1 => "the only matching site cannot be probed;".to_owned(),
        _ => format!("none of the {sites} matching sites can be probed; for instance"),
    }
}

fn trap_hint(would_help: bool) -> &'static str {
    if would_help { "; --allow-trap can probe some of them at the cost of traps" } else { "" }
}

impl Error {
    /// Whether the same may succeed later by itself, without anybody who changes what is asked for.
    pub fn may_pass(&self) -> bool {
        let Error::Other(error) = self else { return false };
        may_pass(error.as_ref())
    }

    /// Wraps what a part below reports.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Other(Box::new(error))
    }
}

/// The same of an error of the parts below.
pub fn may_pass(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    let by_stop = error.downcast_ref::<StopError>().is_some_and(StopError::may_pass);
    by_stop || error.downcast_ref::<EngineError>().is_some_and(EngineError::may_pass)
}
