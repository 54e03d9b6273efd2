//! What is kept of processes that have ended, or run another program: plain numbers, whose number grows with the processes that had
//! hits, and with the commands.

use super::super::collect::Who;
use crate::report::{
    CommandTotal, Exit, Interval, Losses, NotFollowed, Note, ProbeSummary, Skipped, Summary, Totals, Tree,
    TreeTotal, losses, totals,
};
use crate::terminal::tell;
use std::collections::{BTreeMap, BTreeSet};

/// Everything of the run that is over already.
#[derive(Debug, Default)]
pub(super) struct Kept {
    summaries: Vec<Summary>,
    commands: BTreeMap<String, Command>,
    pids: BTreeSet<i32>,
    /// Rows of the interval that runs, of targets that are gone.
    intervals: Vec<Interval>,
    /// Hits that were shown of them.
    pub shown: u64,
    pub without_match: usize,
    pub not_followed: Vec<NotFollowed>,
    pub notes: Vec<Note>,
}

/// One command's numbers so far.
#[derive(Debug, Default)]
struct Command {
    pids: BTreeSet<i32>,
    probes: Totals,
    skipped: Vec<Skipped>,
}

impl Kept {
    /// Takes down the numbers of a target that has no probes any more, of which so many hits were `shown`.
    pub fn keep(&mut self, summary: Summary, skipped: &[Skipped], shown: u64, who: Who) {
        let mut summary = Summary {
            command: Some(who.command),
            parent: Some(who.parent),
            ran_another_program: false,
            ..summary
        };
        take_told_apart(&mut summary.losses, who.told_apart);
        // It is followed.
        summary.losses.notes.retain(|note| note.code != "exec");
        self.shown += shown;
        self.add(summary, skipped);
    }

    /// Takes down what a target had to show of the interval that runs.
    pub fn keep_interval(&mut self, interval: Interval) {
        if !interval.probes.is_empty() {
            self.intervals.push(interval);
        }
    }

    /// Takes down what a child did in its parent's memory before it ran another program.
    pub fn keep_sharing(&mut self, pid: i32, who: Who, probes: Vec<ProbeSummary>, exit: Option<Exit>) {
        let mut probes = probes;
        keep_hit(&mut probes);
        if probes.is_empty() {
            return;
        }
        let (command, parent) = (Some(who.command), Some(who.parent));
        self.add(Summary { pid, command, parent, exit, probes, ..Summary::default() }, &[]);
    }

    /// `summary`: with all probes, of which those that were hit are kept.
    fn add(&mut self, mut summary: Summary, skipped: &[Skipped]) {
        self.pids.insert(summary.pid);
        let name = summary.command.clone().unwrap_or_default();
        let command = self.commands.entry(name).or_default();
        command.pids.insert(summary.pid);
        if command.skipped.is_empty() {
            command.skipped = skipped.to_vec();
        }
        command.probes.add(&summary.probes);
        keep_hit(&mut summary.probes);
        self.summaries.push(summary);
    }

    /// The rows of the interval that is over now.
    pub fn take_intervals(&mut self) -> Vec<Interval> {
        std::mem::take(&mut self.intervals)
    }

    /// The report. What the numbers do not hold goes to standard error.
    pub fn into_tree(self, traced: bool) -> Tree {
        for summary in &self.summaries {
            for line in losses(summary, traced) {
                tell(format_args!("process {}: {line}", summary.pid));
            }
        }
        for NotFollowed { pid, command, reason } in &self.not_followed {
            let of = if command.is_empty() { String::new() } else { format!(" ({command})") };
            tell(format_args!("process {pid}{of} was not followed: {reason}"));
        }
        for note in &self.notes {
            tell(&note.text);
        }
        let commands = self.commands.into_iter().map(|(command, of)| CommandTotal {
            command,
            processes: of.pids.len(),
            probes: of.probes.into_rows(),
            skipped: of.skipped,
        });
        let commands: Vec<CommandTotal> = commands.collect();
        let probes = totals(commands.iter().map(|command| command.probes.as_slice()));
        Tree {
            commands,
            total: TreeTotal {
                processes: self.pids.len(),
                probes,
                without_match: self.without_match,
                not_followed: self.not_followed,
                notes: self.notes,
            },
            summaries: self.summaries,
        }
    }

    /// Whether no process ever had a probe.
    pub fn is_empty(&self) -> bool {
        self.summaries.is_empty()
    }
}

fn keep_hit(probes: &mut Vec<ProbeSummary>) {
    probes.retain(ProbeSummary::was_hit);
    probes.shrink_to_fit();
}

/// Takes hits that are in summaries of their own out of those of children that nobody could tell apart.
fn take_told_apart(losses: &mut Losses, told_apart: u64) {
    for child in losses.children.iter_mut().filter(|child| child.pid.is_none()) {
        child.hits = child.hits.saturating_sub(told_apart);
    }
    losses.children.retain(|child| child.hits > 0);
}
