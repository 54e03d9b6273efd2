//! Who reads what the targets of a run collect, and makes something of it: numbers and lines ([`super::numbers`]), or what a script does.
//!
//! Those who watch targets, here and in [`super::follow`], know when something has happened and who has come and gone. What is shown of it is
//! the collector's.

use super::Armed;
use super::finish::Finished;
use crate::error::Error;
use crate::report::{Exit, NotFollowed, Note, ProbeSummary};
use crate::session::Session;
use std::time::{Duration, Instant};

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Flow {
    /// It does.
    On,
    /// There is enough.
    Enough,
}

/// Who a target is among those that are followed.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Who {
    pub command: String,
    pub parent: i32,
    /// Hits of children in its memory that were told apart, and are in their own summaries.
    pub told_apart: u64,
}

/// How a target's end came.
#[derive(Debug, Default)]
pub(in crate::commands) struct End {
    pub exit: Option<Exit>,
    /// How long it stood still for removal.
    pub stopped: Duration,
    /// What became of memory of ours.
    pub memory: Vec<Note>,
}

/// Something about a run that follows, or about a process in it that has no probes.
#[derive(Debug)]
pub(in crate::commands) enum Aside {
    /// A program was run in which nothing matches.
    WithoutMatch,
    /// A process lives and is not probed.
    NotFollowed(NotFollowed),
    /// Anything else.
    Note(Note),
}

/// Reads what targets collect.
///
/// Each method fails with the error of what it writes to, or with what is wrong with a target.
pub(in crate::commands) trait Collector: Send {
    /// A target's probes are armed.
    fn armed(&mut self, pid: i32, session: &Session) -> Result<(), Error>;

    /// A target is there, whether or not that is told.
    fn joined(&mut self, _pid: i32, _session: &Session) -> Result<(), Error> {
        Ok(())
    }

    /// Takes what the targets have to show.
    fn take(&mut self, targets: &mut [Armed]) -> Result<Flow, Error>;

    /// When something is to be done though nothing happens.
    fn next(&self) -> Option<Instant>;

    /// Does what is due.
    fn tick(&mut self, now: Instant, targets: &mut [Armed]) -> Result<(), Error>;

    /// One of those that are followed has no probes any more.
    fn gone(&mut self, armed: Armed, who: Who, end: End) -> Result<(), Error>;

    /// What a child did in its parent's memory before it ran another program.
    fn of_sharing(&mut self, pid: i32, who: Who, probes: Vec<ProbeSummary>, exit: Option<Exit>);

    /// Takes note of something.
    fn note(&mut self, aside: Aside);

    /// Whether no target that was followed ever had a probe.
    fn is_empty(&self) -> bool;

    /// The run is over, and no target has a probe: those that were watched to the end.
    fn finish(&mut self, targets: Vec<Finished>, exit: Option<Exit>) -> Result<(), Error>;

    /// The run is over that followed. Nobody waits for it any more.
    fn finish_followed(&mut self) -> Result<(), Error>;

    /// The exit code of a run that went well, where there was no command with its own.
    fn exit_code(&self) -> u8 {
        0
    }
}
