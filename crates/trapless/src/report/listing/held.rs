//! Rows of what targets hold of ours: armed probes, memory that stays, sessions that were left alone.

use super::Row;
use crate::report::table::Align;
use serde::Serialize;
use trapless_session::outcome::LatencySummary;

/// A probe found in a target by its journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArmedSite {
    /// The target.
    pub pid: i32,
    /// The process that armed it.
    pub owner: i32,
    /// Whether that process still runs.
    pub owner_alive: bool,
    /// File name of the module.
    pub module: String,
    /// The function, demangled, or the site's address.
    pub function: String,
    /// The site's address in the target.
    pub address: u64,
    /// How it gets control.
    pub mechanism: &'static str,
    /// How often it fired: entries, or where they are not counted returns.
    pub hits: u64,
    /// Returns, where calls are followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<u64>,
    /// Calls that could not be followed to their return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Hits in children that were forked or share the memory, which are not in the others.
    pub in_children: u64,
    /// The durations of calls, if they are collected and there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencySummary>,
    /// Whether another function is called instead, and nothing is counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// Whether calls are recorded one by one, for whoever reads the rings.
    pub records: bool,
}

impl Row for ArmedSite {
    const TYPE: &'static str = "armed";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("HITS", Align::Right),
        ("ADDRESS", Align::Right),
        ("BY", Align::Left),
        ("FUNCTION", Align::Left),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let gone = if self.owner_alive { "" } else { " (gone)" };
        vec![
            self.pid.to_string(),
            crate::report::count(self.hits),
            format!("{:#x}", self.address),
            self.mechanism.to_owned(),
            format!("{}:{}", self.module, self.function),
            format!("process {}{gone}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let some = |number: u64| (number > 0).then_some(number);
        let returns = self.returns.map(|returns| crate::report::plural(returns, "return"));
        let lost = self.lost.and_then(some).map(|lost| format!("{} lost", crate::report::count(lost)));
        let children =
            some(self.in_children).map(|hits| format!("{} in children", crate::report::plural(hits, "hit")));
        let latency = self.latency.as_ref().map(|times| {
            let [avg, p99, max] = [times.avg, times.p99, times.max].map(crate::report::duration);
            format!("{avg} on average, 99 % within {p99}, longest {max}")
        });
        let replaced = self.replaced.then(|| "another function is called instead".to_owned());
        let records = self.records.then(|| "calls are recorded".to_owned());
        let parts: Vec<_> =
            [replaced, returns, lost, children, latency, records].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Memory of a session that was taken out, which is still mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptMemory {
    /// The target.
    pub pid: i32,
    /// The process that armed the session.
    pub owner: i32,
    /// Address of the memory by which it is found.
    pub address: u64,
    /// Bytes of code that a saved context may lead into.
    pub code: u64,
}

impl Row for KeptMemory {
    const TYPE: &'static str = "kept";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("KEPT CODE", Align::Right),
        ("ADDRESS", Align::Right),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            crate::report::count(self.code),
            format!("{:#x}", self.address),
            format!("process {}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let why = "no probe is left, but something may still lead into this memory";
        Some(format!("{why}; the next attach or detach tries again to unmap it"))
    }
}

/// A session that was taken out of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DetachedSession {
    /// The target.
    pub pid: i32,
    /// The process that armed it.
    pub owner: i32,
    /// Sites whose original bytes were put back.
    pub restored: usize,
    /// Sites that had somebody else's bytes, or are unmapped.
    pub left: usize,
    /// Running calls whose return address was put back.
    pub returns: usize,
    /// Whether its memory stays mapped.
    pub memory_kept: bool,
    /// Why it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kept_because: Option<String>,
    /// Sessions taken out before whose memory had to stay mapped until now.
    pub freed: usize,
    /// How long the target stood still, in microseconds.
    pub stopped_us: u64,
}

impl Row for DetachedSession {
    const TYPE: &'static str = "detached";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("RESTORED", Align::Right),
        ("LEFT", Align::Right),
        ("RETURNS", Align::Right),
        ("STOPPED", Align::Right),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let number = |n: usize| crate::report::count(n as u64);
        vec![
            self.pid.to_string(),
            number(self.restored),
            number(self.left),
            number(self.returns),
            crate::report::duration(self.stopped_us.saturating_mul(1000)),
            format!("process {}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let kept = self.memory_kept_because.as_ref().map(|why| format!("memory stays mapped: {why}"));
        let freed = (self.freed > 0)
            .then(|| format!("sessions whose memory had to stay before and is unmapped now: {}", self.freed));
        let notes: Vec<_> = kept.into_iter().chain(freed).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}
