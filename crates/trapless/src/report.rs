//! What a person or a program reads: events of a run as tables, histograms and lines, or as JSON.
//!
//! The structs here are plain data and are the JSON schema at the same time: `-f json` prints one object per line,
//! each with its `"type"` in front. They know no process and no engine; whoever runs probes fills them in.

mod coverage;
mod histogram;
mod json;
mod keyed;
mod latency;
mod listing;
mod losses;
mod number;
mod output;
mod table;
mod text;
mod totals;
mod trace;
mod tree;

use serde::Serialize;
use std::io;

pub use coverage::{Coverage, KeptOut};
pub use json::JsonLines;
pub use listing::{
    ArmedSite, DetachedSession, KeptMemory, ListedLine, ListedModule, ListedSite, ListedUsdt,
    ReplacedFunction, RestoredFunction, Row, json_rows, json_rows_after, text_rows,
};
pub use losses::{losses, lost, sharing};
pub use number::{duration, word};
pub use output::{Output, Running, leave_stdout};
pub use table::{Align, Table};
pub use text::{Sort, Text, TextOptions, View};
pub use totals::{Totals, totals};
pub use trapless_session::number::{count, plural};
pub use trapless_session::outcome::{
    Bucket, ChildHits, Collected, Datum, Hit, HitTold, LatencySummary, Losses, LostSite, Note, ProbeSummary,
    Probed, Skipped, Told, Values,
};

/// Receives a run's events in order: `attached`, any number of `interval` and `hit`, `summary`.
///
/// Every method fails with the error of the output it writes to and with nothing else.
pub trait Reporter {
    /// Probes are armed in one process.
    fn attached(&mut self, attached: &Attached) -> io::Result<()>;
    /// A traced hit.
    fn hit(&mut self, hit: &Hit) -> io::Result<()>;
    /// An interval of `-i` is over, in all processes at once.
    fn interval(&mut self, intervals: &[Interval]) -> io::Result<()>;
    /// The run is over in one process. Flushes.
    fn summary(&mut self, summary: &Summary) -> io::Result<()>;
    /// The run is over in several processes: what all of them did together. Follows their summaries. Flushes.
    fn total(&mut self, total: &Total) -> io::Result<()>;
    /// The run is over in all that was followed. Flushes.
    fn tree(&mut self, tree: &Tree) -> io::Result<()>;
    /// Hands everything written so far to the output. Call it when no hit is waiting, so that lines appear in time.
    fn flush(&mut self) -> io::Result<()>;
}

/// Probes are armed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attached {
    /// The target.
    pub pid: i32,
    /// How long the target stood still, in microseconds.
    pub stopped_us: u64,
    /// How many probes are armed.
    pub probes: usize,
    /// How many sites were left alone; the summary names them.
    pub skipped: usize,
}

/// The end of a run in one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The target.
    pub pid: i32,
    /// The program that it ran, by its short name, where processes were followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its parent, where it was followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<i32>,
    /// How long the target stood still in total, in microseconds.
    pub stopped_us: u64,
    /// From armed to removed, in nanoseconds.
    pub duration_ns: u64,
    /// How a launched command ended. `None` while it still runs or was not launched by us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Whether the target was seen to run another program before the end, whose calls were not counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ran_another_program: bool,
    /// How many hits a trace showed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shown: Option<u64>,
    /// Every probe, hit or not; where processes were followed, those that were hit.
    pub probes: Vec<ProbeSummary>,
    /// Sites that matched and were left alone.
    pub skipped: Vec<Skipped>,
    /// What the numbers do not hold.
    #[serde(flatten)]
    pub losses: Losses,
}

/// Several processes together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    /// How many.
    pub processes: usize,
    /// The sums of probes of the same module, function and kind.
    pub probes: Vec<ProbeSummary>,
}

/// Processes that were followed.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Each program of each process, in the order in which they ended.
    pub summaries: Vec<Summary>,
    /// The same by command.
    pub commands: Vec<CommandTotal>,
    /// All of them.
    pub total: TreeTotal,
}

/// All processes that ran one program, and were followed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CommandTotal {
    /// The program, by its short name.
    pub command: String,
    /// How many processes ran it.
    pub processes: usize,
    /// The sums of its probes, hit or not.
    pub probes: Vec<ProbeSummary>,
    /// Sites that matched and were left alone, in the first process.
    pub skipped: Vec<Skipped>,
}

/// All processes that were followed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TreeTotal {
    /// How many had probes. One that ran several programs is counted once.
    pub processes: usize,
    /// The sums of probes of the same module, function and kind.
    pub probes: Vec<ProbeSummary>,
    /// How often a program was run in which nothing matched.
    pub without_match: usize,
    /// Those that could not be probed, or not to the end.
    pub not_followed: Vec<NotFollowed>,
    /// What else is to be known.
    pub notes: Vec<Note>,
}

/// A process that was created by one that is followed, and could not be probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotFollowed {
    /// The process.
    pub pid: i32,
    /// The program that it ran, by its short name; empty where that is not known.
    pub command: String,
    /// Why.
    pub reason: String,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exit {
    /// It returned this code, 0–255.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// The exit code of the same ending in a shell: the code itself, or 128 + the signal's number.
    pub fn shell_code(self) -> u8 {
        let code = match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        };
        // The kernel keeps the low byte of a code and knows no signal above 64.
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }
}

/// What happened since the last interval, or since the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The target.
    pub pid: i32,
    /// Time since the probes were armed, in nanoseconds.
    pub time_ns: u64,
    /// The probes that fired in the interval; hits and latencies are the interval's own.
    pub probes: Vec<ProbeSummary>,
}

#[cfg(test)]
mod tests;
