//! Why something could not be measured.

use crate::OWN_BITS;
use std::io;
use thiserror::Error;

/// What ends the benchmark.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The benchmark's own probes could not be armed or removed.
    #[error(transparent)]
    Session(#[from] trapless_session::error::Error),
    /// Programs of 32 bits, on a kernel that has none.
    #[error("this kernel runs no {bits}-bit programs")]
    NoSuchPrograms {
        /// 64 or 32.
        bits: u32,
    },
    /// Programs of 64 bits, which a 32-bit tool does not attach to.
    #[error("a {OWN_BITS}-bit trapless measures no {bits}-bit programs")]
    Wider {
        /// 64.
        bits: u32,
    },
    /// A child that could not be started.
    #[error("cannot start a {bits}-bit program: {source}")]
    Start {
        /// 64 or 32.
        bits: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A child that does not answer.
    #[error("the benchmark's child has ended before it answered: {0}")]
    Silent(io::Error),
    /// A trigger that is not where this program has it.
    #[error("the trigger '{0}' is not a function of this program's file")]
    NoTrigger(String),
    /// Hits that were missed, or counted twice.
    #[error("{made} calls were made, but {collector} at {row} counted {hits}")]
    Inexact {
        /// How many hits there were.
        made: u64,
        /// How many were counted.
        hits: u64,
        /// What collected them.
        collector: String,
        /// What the trigger's row is called.
        row: String,
    },
    /// A tool that runs no script, or no longer.
    #[error("{tool} does not run the script '{script}': {said}")]
    Script {
        /// Which tool.
        tool: &'static str,
        /// The script's name.
        script: String,
        /// What it said of it.
        said: String,
    },
    /// A script whose tool has told of other hits than there were.
    #[error("{made} hits were made, but '{script}' by {tool} has told of {told}")]
    Told {
        /// Which tool.
        tool: &'static str,
        /// The script's name.
        script: String,
        /// How many hits there were.
        made: u64,
        /// How many it has told of.
        told: u64,
    },
    /// Anything else that the parts below report.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps what a part below reports.
    pub fn other(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Other(Box::new(error))
    }
}
