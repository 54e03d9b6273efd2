//! `-f text`: what a person reads on a terminal.
//!
//! Results go to the output. Notes about the run (attached, how many are not shown) go to a second place, standard
//! error, so that the output of a trace is only its lines.

use super::number::{count, duration, plural};
use super::table::{Align, Table, printable};
use super::{
    Attached, Exit, Hit, Interval, ProbeSummary, Reporter, Skipped, Summary, Total, Tree, keyed, latency,
    totals::totals, trace,
};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// What the results are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Hits per probe.
    Count,
    /// Percentiles and histograms per function.
    Latency,
    /// A line per hit.
    Trace,
    /// A histogram of values per function.
    Values,
}

/// What orders the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Most hits first.
    #[default]
    Hits,
    /// Longest total time first.
    Total,
    /// Highest mean first.
    Average,
    /// Highest 99th percentile first.
    P99,
    /// Highest maximum first.
    Max,
    /// By module and function.
    Name,
}

/// How results are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// What they are about.
    pub view: View,
    /// Characters per line; `None` leaves names as long as they are.
    pub width: Option<usize>,
    /// Whether headings stand out.
    pub color: bool,
    /// How rows are ordered.
    pub sort: Sort,
    /// How many rows are shown; `None` for all.
    pub top: Option<usize>,
    /// Whether probes that were never hit are shown.
    pub all: bool,
    /// How many histograms follow a latency table.
    pub histograms: usize,
    /// Whether rows about call stacks are lines for flame graphs, and nothing else is written.
    pub folded: bool,
}

/// Writes events for people.
pub struct Text<W, N> {
    output: W,
    notes: N,
    options: TextOptions,
    traced: bool,
}

impl<W: Write, N: Write> Text<W, N> {
    /// Results go to `output`, notes to `notes`.
    pub fn new(output: W, notes: N, options: TextOptions) -> Self {
        Self { output, notes, options, traced: false }
    }

    fn heading(&mut self, text: &str) -> io::Result<()> {
        match self.options.color {
            true => writeln!(self.output, "\x1b[1m{text}\x1b[0m"),
            false => writeln!(self.output, "{text}"),
        }
    }

    /// Writes rows about call stacks as lines for flame graphs.
    fn fold(&mut self, probes: &[ProbeSummary]) -> io::Result<()> {
        for probe in probes.iter().filter(|probe| probe.hits > 0) {
            if let Some(frames) = probe.collected.as_ref().and_then(|collected| collected.folded.as_ref()) {
                writeln!(self.output, "{} {}", printable(frames), probe.hits)?;
            }
        }
        Ok(())
    }

    fn probes(&mut self, probes: &[ProbeSummary], histograms: usize) -> io::Result<()> {
        let mut shown: Vec<&ProbeSummary> =
            probes.iter().filter(|p| self.options.all || p.was_hit()).collect();
        let never = probes.len() - shown.len();
        sort(&mut shown, self.options.sort);
        let more = shown.len().saturating_sub(self.options.top.unwrap_or(usize::MAX));
        shown.truncate(shown.len() - more);
        if !shown.is_empty() {
            match self.options.view {
                View::Latency => latency::table(&mut self.output, &shown, self.options.width)?,
                View::Count | View::Trace => counts(&mut self.output, &shown, self.options.width)?,
                View::Values => keyed::histograms(&mut self.output, &shown, self.options.width)?,
            }
            latency::histograms(&mut self.output, &shown, histograms, self.options.width)?;
        }
        if more > 0 {
            writeln!(self.output, "{} more; a larger --top shows them", count(more as u64))?;
        }
        match (never, shown.is_empty()) {
            (0, _) => Ok(()),
            (_, true) => writeln!(self.output, "no hits on {}", plural(never as u64, "probe")),
            (_, false) => {
                writeln!(self.output, "{} never hit; --all shows them", plural(never as u64, "probe"))
            }
        }
    }
}

impl<W: Write, N: Write> Reporter for Text<W, N> {
    fn attached(&mut self, attached: &Attached) -> io::Result<()> {
        let Attached { pid, stopped_us, probes, skipped } = *attached;
        let skipped =
            if skipped > 0 { format!(", {} skipped", count(skipped as u64)) } else { String::new() };
        let stopped = duration(stopped_us.saturating_mul(1000));
        // Notes are a courtesy: a closed standard error is no reason to end a run.
        let _ = writeln!(
            self.notes,
            "trapless: {} in process {pid}{skipped} (stopped for {stopped}); Ctrl-C ends",
            plural(probes as u64, "probe")
        );
        Ok(())
    }

    fn hit(&mut self, hit: &Hit) -> io::Result<()> {
        if !self.traced {
            self.traced = true;
            self.heading(trace::HEADING)?;
        }
        writeln!(self.output, "{}", trace::line(hit))?;
        let stack = hit.told.as_ref().map_or(&[][..], |told| &told.stack);
        stack.iter().try_for_each(|frame| writeln!(self.output, "{}{}", trace::BELOW, printable(frame)))
    }

    fn interval(&mut self, intervals: &[Interval]) -> io::Result<()> {
        if self.options.folded {
            // Flame graphs are of a whole run.
            return Ok(());
        }
        let busy: Vec<&Interval> = intervals.iter().filter(|interval| !interval.probes.is_empty()).collect();
        for interval in &busy {
            self.heading(&format!("\nprocess {} after {}", interval.pid, duration(interval.time_ns)))?;
            self.probes(&interval.probes, 0)?;
        }
        if let [first, _, ..] = busy[..] {
            let processes = count(busy.len() as u64);
            self.heading(&format!("\nall {processes} processes after {}", duration(first.time_ns)))?;
            self.probes(&totals(busy.iter().map(|interval| interval.probes.as_slice())), 0)?;
        }
        self.flush()
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        if self.options.folded {
            self.fold(&summary.probes)?;
            skipped(&mut self.notes, &summary.skipped, None)?;
            return self.flush();
        }
        if self.options.view == View::Trace {
            // The lines are the result. They come before the notes where both go to one terminal.
            self.flush()?;
            let lost = summary.probes.iter().fold(0u64, |sum, p| sum.saturating_add(p.lost));
            let lost = if lost > 0 { format!(", {} lost", count(lost)) } else { String::new() };
            let (hits, pid) = (plural(summary.shown.unwrap_or(0), "hit"), summary.pid);
            let _ = writeln!(self.notes, "trapless: {hits}{lost} in process {pid}{}", ended(summary.exit));
        } else {
            let pid = summary.pid;
            self.heading(&format!(
                "\nprocess {pid}, {}{}",
                duration(summary.duration_ns),
                ended(summary.exit)
            ))?;
            self.probes(&summary.probes, self.options.histograms)?;
        }
        skipped(&mut self.output, &summary.skipped, self.options.width)?;
        self.flush()
    }

    fn total(&mut self, total: &Total) -> io::Result<()> {
        if self.options.view != View::Trace && !self.options.folded {
            self.heading(&format!("\nall {} processes", count(total.processes as u64)))?;
            self.probes(&total.probes, 0)?;
        }
        self.flush()
    }

    fn tree(&mut self, tree: &Tree) -> io::Result<()> {
        if self.options.folded {
            tree.summaries.iter().try_for_each(|summary| self.fold(&summary.probes))?;
            return self.flush();
        }
        let is_trace = self.options.view == View::Trace;
        if !is_trace && !tree.summaries.is_empty() {
            self.heading("\nprocesses")?;
        }
        let most = if self.options.all { None } else { Some(self.options.top.unwrap_or(super::tree::MOST)) };
        if is_trace {
            self.flush()?;
            super::tree::processes(&mut self.notes, &tree.summaries, most, self.options.width)?;
        } else {
            super::tree::processes(&mut self.output, &tree.summaries, most, self.options.width)?;
        }
        for command in &tree.commands {
            if !is_trace {
                let processes = super::tree::processes_text(command.processes);
                self.heading(&format!("\n{}, {processes}", printable(&command.command)))?;
                self.probes(&command.probes, self.options.histograms)?;
            }
            skipped(&mut self.output, &command.skipped, self.options.width)?;
        }
        if !is_trace && tree.commands.len() > 1 {
            self.heading(&format!("\nall {}", super::tree::processes_text(tree.total.processes)))?;
            self.probes(&tree.total.probes, 0)?;
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

pub(super) fn ended(exit: Option<Exit>) -> String {
    match exit {
        None => String::new(),
        Some(Exit::Code(code)) => format!(", exit code {code}"),
        Some(Exit::Signal(signal)) => format!(", ended by signal {signal}"),
    }
}

fn sort(probes: &mut [&ProbeSummary], sort: Sort) {
    let latency = |p: &ProbeSummary, f: fn(&super::LatencySummary) -> u64| p.latency().map_or(0, f);
    let key = |p: &ProbeSummary| -> u128 {
        match sort {
            Sort::Hits => p.hits.into(),
            Sort::Total => u128::from(p.hits) * u128::from(latency(p, |l| l.avg)),
            Sort::Average => latency(p, |l| l.avg).into(),
            Sort::P99 => latency(p, |l| l.p99).into(),
            Sort::Max => latency(p, |l| l.max).into(),
            Sort::Name => 0,
        }
    };
    let name = |p: &ProbeSummary| (p.module.clone(), p.function.text().to_owned(), p.kind, p.address);
    probes.sort_by_cached_key(|p| (std::cmp::Reverse(key(p)), name(p)));
}

/// Hits per probe. Columns that would say the same in every row are left out.
fn counts(output: &mut dyn Write, probes: &[&ProbeSummary], width: Option<usize>) -> io::Result<()> {
    let lost = probes.iter().any(|p| p.lost > 0);
    let kinds = probes.iter().any(|p| p.kind != crate::spec::Kind::Entry);
    let mechanisms = probes.iter().any(|p| p.mechanism != "jump");
    let optional =
        [(lost, "LOST", Align::Right), (kinds, "KIND", Align::Right), (mechanisms, "BY", Align::Right)];
    let mut columns = vec![("HITS", Align::Right)];
    columns.extend(optional.iter().filter(|o| o.0).map(|&(_, heading, align)| (heading, align)));
    let (by, one) = (keyed::headings(probes), keyed::is_one_function(probes));
    let is_named = !one || probes.iter().all(|probe| keyed::by(probe).is_empty());
    if is_named {
        columns.extend([("MODULE", Align::Left), ("FUNCTION", Align::Left)]);
    }
    columns.extend(&by);
    let mut table = Table::new(&columns);
    for probe in probes {
        let mut cells = vec![count(probe.hits)];
        cells.extend(lost.then(|| count(probe.lost)));
        cells.extend(kinds.then(|| probe.kind.to_string()));
        cells.extend(mechanisms.then(|| probe.mechanism.to_owned()));
        if is_named {
            cells.extend([probe.module.to_string(), probe.function.to_string()]);
        }
        cells.extend(keyed::cells(probe));
        table.row(cells);
        keyed::stacks(&mut table, probe);
    }
    table.write(output, width)
}

/// How many names stand behind each reason.
const EXAMPLES: usize = 2;

/// Sites left alone, by reason.
fn skipped(output: &mut dyn Write, skipped: &[Skipped], width: Option<usize>) -> io::Result<()> {
    let mut reasons: BTreeMap<&str, Vec<&Skipped>> = BTreeMap::new();
    for site in skipped {
        reasons.entry(&site.why.group).or_default().push(site);
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, sites)| std::cmp::Reverse(sites.len()));
    for (reason, sites) in reasons {
        writeln!(output, "skipped {}: {}", plural(sites.len() as u64, "site"), printable(reason))?;
        let names: Vec<String> =
            sites.iter().take(EXAMPLES).map(|s| format!("{}:{}", s.module, s.function)).collect();
        let more = if sites.len() > EXAMPLES { ", …" } else { "" };
        let width = width.unwrap_or(usize::MAX).saturating_sub(more.len() + 4) / names.len().max(1);
        let names: Vec<String> =
            names.iter().map(|n| super::table::shorten(&printable(n), width.saturating_sub(2))).collect();
        writeln!(output, "    {}{more}", names.join(", "))?;
    }
    Ok(())
}
