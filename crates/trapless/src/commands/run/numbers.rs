//! Numbers and lines of a run, for its reporter: what `count`, `latency` and `trace` show.

mod kept;

use super::Armed;
use super::collect::{Aside, Collector, End, Flow, Who};
use super::finish::{Finished, losses_of};
use super::source::Source;
use crate::cli::validated::Run;
use crate::error::Error;
use crate::report::{
    Attached, Exit, Hit, Interval, Losses, ProbeSummary, Reporter, Summary, Total, Totals, View, losses,
};
use crate::session::{Origin, Session};
use crate::terminal::tell;
use kept::Kept;
use std::io;
use std::time::{Duration, Instant};
use trapless_session::clock::Clock;

/// How often rings are emptied and limited numbers read.
const TICK: Duration = Duration::from_millis(5);

/// How long what is left in the rings may take to be read. A hostile target goes on filling them.
const READING: Duration = Duration::from_secs(1);

/// What a run shows of its numbers.
pub(super) struct Numbers<'r> {
    run: &'r Run,
    view: View,
    source: Box<dyn Source + 'r>,
    reporter: Box<dyn Reporter + Send>,
    /// Of targets that are gone.
    kept: Kept,
    next_interval: Option<Instant>,
    next_tick: Option<Instant>,
}

impl<'r> Numbers<'r> {
    /// Those of a run that begins now.
    pub fn new(
        run: &'r Run,
        view: View,
        source: Box<dyn Source + 'r>,
        reporter: Box<dyn Reporter + Send>,
    ) -> Self {
        let now = Instant::now();
        let next_interval = run.limits.interval.and_then(|interval| now.checked_add(interval));
        let ticks = view == View::Trace || run.limits.max_events.is_some() || source.needs_ticks();
        let next_tick = ticks.then_some(now + TICK);
        Self { run, view, source, reporter, kept: Kept::default(), next_interval, next_tick }
    }

    fn output(&self, error: io::Error) -> Error {
        self.run.output.error(error)
    }

    /// Shows or tallies what the rings hold, up to what `-M` leaves.
    fn show(&mut self, targets: &mut [Armed]) -> io::Result<()> {
        let source = &mut self.source;
        let mut hits = hits_of(targets, |armed, origin| source.hits(armed, origin));
        if targets.len() > 1 {
            hits.sort_by_key(|(_, hit)| hit.time_ns);
        }
        self.show_all(targets, hits)
    }

    /// Shows or tallies at the end what is left, as calls that have not returned, up to what `-M` leaves.
    fn show_rest(&mut self, targets: &mut [Armed]) -> io::Result<()> {
        let source = &mut self.source;
        let hits = hits_of(targets, |armed, origin| source.last_hits(armed, origin));
        self.show_all(targets, hits)
    }

    fn show_all(&mut self, targets: &mut [Armed], hits: Vec<(usize, Hit)>) -> io::Result<()> {
        let limit = self.run.limits.max_events;
        let left = limit.map_or(u64::MAX, |most| most.saturating_sub(self.shown(targets)));
        let traced = self.view == View::Trace;
        let mut all = 0;
        for (index, hit) in hits {
            if all >= left {
                break;
            }
            let armed = &mut targets[index];
            if hit.of_child {
                *armed.children.entry(hit.pid).or_default() += 1;
            }
            if traced {
                self.reporter.hit(&hit)?;
            } else if hit.of_child {
                // Told apart, and not counted.
                continue;
            }
            if limit.is_some() {
                armed.tally.add(&hit);
            }
            armed.shown += 1;
            all += 1;
        }
        if traced && all > 0 { self.reporter.flush() } else { Ok(()) }
    }

    /// How many hits were shown so far.
    fn shown(&self, targets: &[Armed]) -> u64 {
        self.kept.shown + targets.iter().map(|armed| armed.shown).sum::<u64>()
    }

    /// Shows or tallies all that targets without probes have left, as far as it can be read in time; whether it could.
    fn show_last(&mut self, targets: &mut [Armed]) -> io::Result<bool> {
        let until = Instant::now() + READING;
        let is_limited = self.run.limits.max_events.is_some();
        let mut has_all = true;
        loop {
            self.show(targets)?;
            if is_limited || !targets.iter().any(|armed| self.source.is_behind(armed)) {
                break;
            }
            if Instant::now() >= until {
                has_all = false;
                break;
            }
        }
        self.show_rest(targets)?;
        Ok(has_all)
    }

    /// All numbers of a target that has no probes any more.
    fn summary(&mut self, armed: &mut Armed, clock: Clock, end: End) -> Summary {
        let traced = self.view == View::Trace;
        let mut probes = self.source.rows(armed, clock.rate());
        if self.run.limits.max_events.is_some() && self.source.is_tallied() {
            std::mem::take(&mut armed.tally).put_into(&mut probes, self.view == View::Latency);
        }
        let told = self.source.losses(armed);
        let losses = losses_of(armed, &armed.session.snapshot(), traced, end.memory);
        let losses = Losses {
            not_shown: losses.not_shown.saturating_add(told.not_shown),
            notes: losses.notes.into_iter().chain(told.notes).collect(),
            ..losses
        };
        Summary {
            pid: armed.pid(),
            command: None,
            parent: None,
            stopped_us: end.stopped.as_micros() as u64,
            duration_ns: armed.session.clock().elapsed().as_nanos() as u64,
            exit: end.exit,
            ran_another_program: armed.ran_another_program,
            shown: traced.then_some(armed.shown),
            probes,
            skipped: Vec::new(),
            losses,
        }
    }

    /// What came in one target since the last interval.
    fn interval_of(&mut self, armed: &mut Armed) -> Interval {
        let time = armed.beginning.elapsed();
        let rows = self.source.rows_since(armed);
        let probes = rows.into_iter().filter(ProbeSummary::was_hit).collect();
        Interval { pid: armed.pid(), time_ns: time.as_nanos() as u64, probes }
    }

    fn report(&mut self, finished: Vec<Finished>, exit: Option<Exit>) -> io::Result<()> {
        let several = finished.len() > 1;
        let (processes, mut all) = (finished.len(), Totals::default());
        let (mut targets, ends): (Vec<Armed>, Vec<_>) = finished
            .into_iter()
            .map(|target| {
                let end = End { exit, stopped: target.stopped, memory: target.memory };
                (target.armed, (target.ran, end))
            })
            .unzip();
        if !self.show_last(&mut targets)? {
            tell("hits at the end were not shown, because there were more than could be read");
        }
        let traced = self.view == View::Trace;
        for (mut armed, (ran, end)) in targets.into_iter().zip(ends) {
            let clock = armed.session.clock();
            let summary = Summary {
                duration_ns: ran.as_nanos() as u64,
                skipped: armed.session.skipped().to_vec(),
                ..self.summary(&mut armed, clock, end)
            };
            self.reporter.summary(&summary)?;
            let of = if several { format!("process {}: ", summary.pid) } else { String::new() };
            for line in losses(&summary, traced) {
                tell(format_args!("{of}{line}"));
            }
            if several {
                all.add(&summary.probes);
            }
        }
        if several { self.reporter.total(&Total { processes, probes: all.into_rows() }) } else { Ok(()) }
    }

    fn keep(&mut self, armed: Armed, who: Who, end: End) -> io::Result<()> {
        let mut armed = [armed];
        self.show_last(&mut armed)?;
        let [mut armed] = armed;
        if self.run.limits.interval.is_some() {
            let interval = self.interval_of(&mut armed);
            self.kept.keep_interval(interval);
        }
        let stopped = armed.session.stopped() + end.stopped;
        let clock = armed.beginning;
        let summary = self.summary(&mut armed, clock, End { stopped, ..end });
        self.kept.keep(summary, armed.session.skipped(), armed.shown, who);
        self.source.gone(armed.pid());
        Ok(())
    }
}

impl Collector for Numbers<'_> {
    fn armed(&mut self, pid: i32, session: &Session) -> Result<(), Error> {
        let kinds = session.probes().iter().map(|probe| probe.kinds);
        let probes =
            kinds.map(|kinds| usize::from(kinds.entry || kinds.timed) + usize::from(kinds.follows())).sum();
        let stopped_us = session.stopped().as_micros() as u64;
        let attached = Attached { pid, stopped_us, probes, skipped: session.skipped().len() };
        let told = self.reporter.attached(&attached).and_then(|()| self.reporter.flush());
        told.map_err(|error| self.output(error))
    }

    fn joined(&mut self, pid: i32, session: &Session) -> Result<(), Error> {
        self.source.joined(pid, session)
    }

    fn take(&mut self, targets: &mut [Armed]) -> Result<Flow, Error> {
        self.show(targets).map_err(|error| self.output(error))?;
        self.source.tend();
        let Some(most) = self.run.limits.max_events else { return Ok(Flow::On) };
        let counted = targets.iter().map(|armed| self.source.counted(armed)).collect::<Option<Vec<u64>>>();
        let counted = counted.filter(|hits| !hits.is_empty()).map(|hits| hits.iter().sum::<u64>());
        let enough = counted.unwrap_or_else(|| self.shown(targets)) >= most;
        Ok(if enough { Flow::Enough } else { Flow::On })
    }

    fn next(&self) -> Option<Instant> {
        [self.next_interval, self.next_tick].into_iter().flatten().min()
    }

    fn tick(&mut self, now: Instant, targets: &mut [Armed]) -> Result<(), Error> {
        if self.next_tick.is_some_and(|at| now >= at) {
            self.next_tick = Some(now + TICK);
        }
        let Some((at, interval)) =
            self.next_interval.zip(self.run.limits.interval).filter(|(at, _)| now >= *at)
        else {
            return Ok(());
        };
        // One that was missed, because the output was slow or we stood still, is not made up for.
        let missed = now.duration_since(at).as_nanos() / interval.as_nanos().max(1);
        self.next_interval = at.checked_add(interval * u32::try_from(missed + 1).unwrap_or(u32::MAX));
        let mut intervals = self.kept.take_intervals();
        for armed in targets {
            intervals.push(self.interval_of(armed));
        }
        self.reporter.interval(&intervals).map_err(|error| self.output(error))
    }

    fn gone(&mut self, armed: Armed, who: Who, end: End) -> Result<(), Error> {
        self.keep(armed, who, end).map_err(|error| self.output(error))
    }

    fn of_sharing(&mut self, pid: i32, who: Who, probes: Vec<ProbeSummary>, exit: Option<Exit>) {
        self.kept.keep_sharing(pid, who, probes, exit);
    }

    fn note(&mut self, aside: Aside) {
        match aside {
            Aside::WithoutMatch => self.kept.without_match += 1,
            Aside::NotFollowed(process) => self.kept.not_followed.push(process),
            Aside::Note(note) => self.kept.notes.push(note),
        }
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn finish(&mut self, targets: Vec<Finished>, exit: Option<Exit>) -> Result<(), Error> {
        self.report(targets, exit).map_err(|error| self.output(error))
    }

    fn finish_followed(&mut self) -> Result<(), Error> {
        let traced = self.view == View::Trace;
        let tree = std::mem::take(&mut self.kept).into_tree(traced);
        self.reporter.tree(&tree).map_err(|error| self.output(error))
    }
}

/// What `take` finds in each target, with the target's index.
fn hits_of(targets: &mut [Armed], mut take: impl FnMut(&mut Armed, Origin) -> Vec<Hit>) -> Vec<(usize, Hit)> {
    // When time began for all targets.
    let Some(clock) = targets.first().map(|armed| armed.beginning) else { return Vec::new() };
    let mut hits = Vec::new();
    for (index, armed) in targets.iter_mut().enumerate() {
        let origin = Origin { pid: armed.pid(), clock, rate: clock.rate() };
        hits.extend(take(armed, origin).into_iter().map(|hit| (index, hit)));
    }
    hits
}
