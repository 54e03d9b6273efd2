//! The processes of a run that follows, as a table for people.

use super::number::count;
use super::table::{Align, Table};
use super::{Exit, Summary};
use std::cmp::Reverse;
use std::io::{self, Write};

/// How many processes are shown unless more are asked for.
pub(super) const MOST: usize = 20;

/// A row for each program of each process, those with most hits first, at most so many.
pub(super) fn processes(
    output: &mut dyn Write,
    summaries: &[Summary],
    most: Option<usize>,
    width: Option<usize>,
) -> io::Result<()> {
    let hits = |summary: &Summary| summary.probes.iter().fold(0u64, |sum, p| sum.saturating_add(p.hits));
    let mut rows: Vec<&Summary> = summaries.iter().collect();
    rows.sort_by_key(|summary| (Reverse(hits(summary)), summary.pid));
    let shown = most.unwrap_or(usize::MAX).min(rows.len());
    let mut table = Table::new(&[
        ("HITS", Align::Right),
        ("PID", Align::Right),
        ("PARENT", Align::Right),
        ("END", Align::Left),
        ("COMMAND", Align::Left),
    ]);
    for summary in &rows[..shown] {
        table.row(vec![
            count(hits(summary)),
            summary.pid.to_string(),
            summary.parent.map_or_else(String::new, |pid| pid.to_string()),
            match summary.exit {
                None => String::new(),
                Some(Exit::Code(code)) => format!("code {code}"),
                Some(Exit::Signal(signal)) => format!("signal {signal}"),
            },
            summary.command.clone().unwrap_or_default(),
        ]);
    }
    if shown > 0 {
        table.write(output, width)?;
    }
    match rows.len() - shown {
        0 => Ok(()),
        more => writeln!(output, "{} more; --all shows them", count(more as u64)),
    }
}

/// A number of processes in words.
pub(super) fn processes_text(processes: usize) -> String {
    match processes {
        1 => "1 process".to_owned(),
        many => format!("{} processes", count(many as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::row;
    use crate::spec::Kind;

    fn summary(pid: i32, hits: u64, exit: Option<Exit>) -> Summary {
        let probes = vec![row("m", "f", Kind::Entry, hits)];
        let (command, parent) = (Some("sh".into()), Some(1));
        Summary { pid, command, parent, exit, probes, ..Summary::default() }
    }

    #[test]
    fn the_busiest_processes_are_shown_first_and_the_rest_is_counted() {
        let summaries = [
            summary(7, 3, None),
            summary(8, 1200, Some(Exit::Code(2))),
            summary(9, 1, Some(Exit::Signal(9))),
        ];
        let mut text = Vec::new();
        processes(&mut text, &summaries, Some(2), Some(80)).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["HITS", "PID", "PARENT", "END", "COMMAND"]);
        assert_eq!(lines[1], ["1,200", "8", "1", "code", "2", "sh"]);
        assert_eq!(lines[2], ["3", "7", "1", "sh"]);
        assert_eq!(text.lines().last(), Some("1 more; --all shows them"));
    }
}
