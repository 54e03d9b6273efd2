//! From armed to the end of the run: what is shown meanwhile, and what is seen to.
//!
//! It sleeps until something happens: a signal, a target's end, the time of an interval. Only what is polled wakes it besides: the
//! rings of a trace and the numbers that `-M` limits ([`TICK`]), and now and then the bytes at the sites ([`LOOK`]).

use super::{Armed, pending::Pending, wake::Wake};
use crate::cli::validated::{Measure, Run};
use crate::commands::signals::Ended;
use crate::error::Error;
use crate::report::{Attached, Exit, Hit, Interval, ProbeSummary, Reporter, Running};
use crate::session::{Hold, Origin, Session};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trapless_session::clock::Clock;

/// How often rings are emptied and limited numbers read.
const TICK: Duration = Duration::from_millis(5);

/// How soon after arming the bytes at the sites are looked at again, and how often after a while.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Until a limit is reached, a signal comes, or every target has ended.
///
/// # Errors
/// The output broke, or a tracer died.
pub(super) fn watch(
    run: &Run,
    targets: &mut [Armed],
    reporter: &mut dyn Reporter,
    exited: &mut dyn FnMut() -> Option<Exit>,
    ended: Ended,
    running: &Running,
) -> Result<(), Error> {
    let output = |error: io::Error| run.output.error(error);
    let start = Instant::now();
    let deadline = run.limits.duration.and_then(|limit| start.checked_add(limit));
    if let Some(deadline) = deadline {
        running.end_at(deadline);
    }
    for armed in targets.iter_mut().filter(|armed| !armed.announced) {
        armed.announced = true;
        announce(armed.pid(), &armed.session, reporter).map_err(output)?;
    }
    let mut next_interval = run.limits.interval.and_then(|interval| start.checked_add(interval));
    let (mut patience, longest) = LOOK;
    let mut next_look = start + patience;
    let ticks = matches!(run.measure, Measure::Trace { .. }) || run.limits.max_events.is_some();
    loop {
        // Asked before the numbers are read, so that nothing that came before the end is missed.
        let over = ended.get()
            || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || exited().is_some()
            || targets.iter().all(|armed| !armed.process.is_alive());
        for armed in targets.iter_mut() {
            armed.ran_another_program |= armed.process.runs_another_program();
            let options = super::super::stop_options(run.allow_seccomp);
            armed.session.tend(&armed.process, &options)?;
            if let Some(pending) = armed.pending.as_mut().filter(|_| !armed.ran_another_program) {
                pending.look(run, &armed.process, &mut armed.session, Hold::Stop(options));
            }
        }
        show(run, targets, 0, reporter).map_err(output)?;
        let enough = run.limits.max_events.is_some_and(|most| shown(targets) >= most);
        if over || enough {
            return Ok(());
        }
        let now = Instant::now();
        if now >= next_look {
            for armed in targets.iter().filter(|armed| armed.process.is_alive()) {
                armed.session.look_again(&armed.process, false);
            }
            patience = (2 * patience).min(longest);
            next_look = now + patience;
        }
        if let Some(at) = next_interval.filter(|at| now >= *at) {
            // One that was missed, because the output was slow or we stood still, is not made up for.
            let interval = run.limits.interval.unwrap_or(longest);
            let missed = now.duration_since(at).as_nanos() / interval.as_nanos().max(1);
            next_interval = at.checked_add(interval * u32::try_from(missed + 1).unwrap_or(u32::MAX));
            self::interval(run, targets, Vec::new(), reporter).map_err(output)?;
        }
        let pending = targets.iter().filter_map(|armed| armed.pending.as_ref()?.next_look()).min();
        let times = [Some(next_look), next_interval, deadline, ticks.then(|| now + TICK), pending];
        sleep(targets, times.into_iter().flatten().min());
    }
}

fn sleep(targets: &[Armed], until: Option<Instant>) {
    let mut wake = Wake::new();
    // One that has ended has nothing more to say.
    for armed in targets.iter().filter(|armed| armed.process.is_alive()) {
        wake.on(armed.process.pidfd().map(|pidfd| pidfd.as_raw_fd()));
        if let Some(tracer) = armed.session.tracer_descriptor() {
            wake.on(Some(tracer));
        }
        if let Some(changes) = armed.pending.as_ref().and_then(Pending::descriptor) {
            wake.on(Some(changes));
        }
    }
    wake.sleep(until);
}

/// Says that a target's probes are armed.
pub(super) fn announce(pid: i32, session: &Session, reporter: &mut dyn Reporter) -> io::Result<()> {
    let kinds = session.probes().iter().map(|probe| probe.kinds);
    let probes = kinds.map(|kinds| usize::from(kinds.entry) + usize::from(kinds.returns)).sum();
    let stopped_us = session.stopped().as_micros() as u64;
    reporter.attached(&Attached { pid, stopped_us, probes, skipped: session.skipped().len() })?;
    reporter.flush()
}

pub(super) fn shown(targets: &[Armed]) -> u64 {
    targets.iter().map(|armed| armed.shown).sum()
}

/// When time began for all targets.
pub(super) fn beginning(targets: &[Armed]) -> Option<Clock> {
    targets.first().map(|armed| armed.beginning)
}

/// Shows or tallies what the rings hold, up to what `-M` leaves. `earlier`: how many were shown of targets that are no longer here.
pub(super) fn show(
    run: &Run,
    targets: &mut [Armed],
    earlier: u64,
    reporter: &mut dyn Reporter,
) -> io::Result<()> {
    let args = match run.measure {
        Measure::Trace { args } => usize::from(args),
        _ if run.limits.max_events.is_some() => 0,
        _ => return Ok(()),
    };
    let mut hits = hits_of(targets, |armed, origin| armed.calls.take(&armed.session, origin, args));
    if targets.len() > 1 {
        hits.sort_by_key(|(_, hit)| hit.time_ns);
    }
    show_all(run, targets, hits, earlier, reporter)
}

/// Shows or tallies at the end the calls that have not returned, up to what `-M` leaves.
pub(super) fn show_rest(
    run: &Run,
    targets: &mut [Armed],
    earlier: u64,
    reporter: &mut dyn Reporter,
) -> io::Result<()> {
    let Measure::Trace { args } = run.measure else { return Ok(()) };
    let args = usize::from(args);
    let hits = hits_of(targets, |armed, origin| armed.calls.rest(&armed.session, origin, args));
    show_all(run, targets, hits, earlier, reporter)
}

/// What `take` finds in each target, with the target's index.
fn hits_of(targets: &mut [Armed], mut take: impl FnMut(&mut Armed, Origin) -> Vec<Hit>) -> Vec<(usize, Hit)> {
    let Some(clock) = beginning(targets) else { return Vec::new() };
    let mut hits = Vec::new();
    for (index, armed) in targets.iter_mut().enumerate() {
        let origin = Origin { pid: armed.pid(), clock, rate: clock.rate() };
        hits.extend(take(armed, origin).into_iter().map(|hit| (index, hit)));
    }
    hits
}

fn show_all(
    run: &Run,
    targets: &mut [Armed],
    hits: Vec<(usize, Hit)>,
    earlier: u64,
    reporter: &mut dyn Reporter,
) -> io::Result<()> {
    let before = earlier + shown(targets);
    let left = run.limits.max_events.map_or(u64::MAX, |most| most.saturating_sub(before));
    let traced = matches!(run.measure, Measure::Trace { .. });
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
            reporter.hit(&hit)?;
        } else if hit.of_child {
            // Told apart, and not counted.
            continue;
        }
        if run.limits.max_events.is_some() {
            armed.tally.add(&hit);
        }
        armed.shown += 1;
        all += 1;
    }
    if traced && all > 0 { reporter.flush() } else { Ok(()) }
}

/// Shows what came since the last interval. `ended`: those of targets that are no longer here.
pub(super) fn interval(
    run: &Run,
    targets: &mut [Armed],
    ended: Vec<Interval>,
    reporter: &mut dyn Reporter,
) -> io::Result<()> {
    let mut intervals = ended;
    intervals.extend(targets.iter_mut().map(|armed| interval_of(run, armed)));
    reporter.interval(&intervals)
}

/// What came in one target since the last interval.
pub(super) fn interval_of(run: &Run, armed: &mut Armed) -> Interval {
    let time = armed.beginning.elapsed();
    let now = armed.session.snapshot();
    let latency = run.measure == Measure::Latency;
    let rows = now.since(&armed.before, &armed.session, armed.beginning.rate(), latency);
    let probes = rows.into_iter().filter(ProbeSummary::was_hit).collect();
    armed.before = now;
    Interval { pid: armed.pid(), time_ns: time.as_nanos() as u64, probes }
}
