//! What a person or a program reads: events of a run as tables, histograms and lines, or as JSON.
//!
//! The structs here are plain data and are the JSON schema at the same time: `-f json` prints one object per line,
//! each with its `"type"` in front. They know no process and no engine; whoever runs probes fills them in.

mod histogram;
mod json;
mod latency;
mod listing;
mod number;
mod output;
mod table;
mod text;
mod trace;

use serde::Serialize;
use std::io;

pub use json::JsonLines;
pub use listing::{ArmedSite, DetachedSession, ListedModule, ListedSite, Row, json_rows, text_rows};
pub use number::{count, duration};
pub use output::Output;
pub use table::{Align, Table};
pub use text::{Sort, Text, TextOptions, View};
pub use trapless_session::outcome::{Bucket, Hit, LatencySummary, ProbeSummary, Skipped};

/// Receives a run's events in order: `attached`, any number of `interval` and `hit`, `summary`.
///
/// Every method fails with the error of the output it writes to and with nothing else.
pub trait Reporter {
    /// Probes are armed in one process.
    fn attached(&mut self, attached: &Attached) -> io::Result<()>;
    /// A traced hit.
    fn hit(&mut self, hit: &Hit) -> io::Result<()>;
    /// An interval of `-i` is over.
    fn interval(&mut self, interval: &Interval) -> io::Result<()>;
    /// The run is over in one process. Flushes.
    fn summary(&mut self, summary: &Summary) -> io::Result<()>;
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
    /// Every probe, hit or not.
    pub probes: Vec<ProbeSummary>,
    /// Sites that matched and were left alone.
    pub skipped: Vec<Skipped>,
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
