//! `count`, `latency` and `trace`: arm, wait, report, remove.

use crate::cli::validated::{self, Run, Target};
use crate::error::Error;
use crate::progress::Progress;
use crate::report::{Attached, Exit, Interval, Reporter, Summary};
use crate::resolve::{self, Kinds};
use crate::session::{Calls, Hold, Measure, Session, Snapshot};
use crate::target;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use trapless_process::{Process, launch};

/// How often rings are emptied and ends are noticed.
const TICK: Duration = Duration::from_millis(5);

/// Does what was asked.
///
/// # Errors
/// Nothing could be probed, or the output broke; then the probes are out.
pub fn run(run: &Run) -> Result<u8, Error> {
    let mut reporter = run.output.reporter(run.measure, run.rows)?;
    let ended = super::signals::install();
    match &run.target {
        Target::Processes(pids) => {
            let mut targets = Vec::new();
            let attached = pids.iter().try_for_each(|&pid| {
                let process = target::open(pid)?;
                let session = attach(run, &process, Hold::Stop(super::stop_options(run.allow_seccomp)))?;
                targets.push(Armed::new(process, session));
                Ok(())
            });
            let result =
                attached.and_then(|()| watch(run, &mut targets, &mut *reporter, &mut || None, ended));
            finish(run, targets, &mut *reporter, result, None)?;
            Ok(0)
        }
        Target::Launch(command) => launched(run, command, &mut *reporter, ended),
    }
}

fn launched(
    run: &Run,
    command: &[std::ffi::OsString],
    reporter: &mut dyn Reporter,
    ended: super::signals::Ended,
) -> Result<u8, Error> {
    let (program, arguments) = command.split_first().ok_or_else(|| Error::Usage("no command".into()))?;
    let mut child = launch::launch(program, arguments)?;
    // A second handle, since the first belongs to the child that is waited for.
    let process = target::open(child.process().pid().0)?;
    let options = super::stop_options(run.allow_seccomp);
    let session = {
        let may_trap = run.selection.may_trap();
        if may_trap {
            // Pending while it is attached to us, so it stands by itself when we let it go, before its own code runs.
            child.signal(libc::SIGSTOP);
        }
        let mut stopped = match child.stopped(options.clone()) {
            Some(Ok(stopped)) => stopped,
            Some(Err(error)) => return Err(Error::other(error)),
            None => return Err(Error::Usage("the command ended before it began".into())),
        };
        if may_trap {
            // Its tracer has to be the keeper, which may outlive us.
            stopped.resume_and_detach();
            let session = attach(run, &process, Hold::Stop(options));
            child.signal(libc::SIGCONT);
            session?
        } else {
            let session = attach(run, &process, Hold::Launched(&mut stopped))?;
            stopped.resume_and_detach();
            session
        }
    };
    let mut targets = vec![Armed::new(process, session)];
    let mut status = None;
    let mut exited = || {
        if status.is_none() {
            status = child.try_wait().ok().flatten();
        }
        status.map(|status| match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or(0)),
        })
    };
    let result = watch(run, &mut targets, reporter, &mut exited, ended);
    let mut exit = exited();
    // Its end is ours to hear of only when its tracer has.
    let patience = Instant::now() + Duration::from_secs(2);
    while exit.is_none() && targets.iter().all(|armed| !armed.process.is_alive()) && Instant::now() < patience
    {
        std::thread::sleep(Duration::from_millis(1));
        exit = exited();
    }
    finish(run, targets, reporter, result, exit)?;
    if exit.is_none() && super::signals::interrupted() {
        // As a shell would: a command launched in the foreground got the Ctrl-C, too. Wait for what it makes of it.
        let status = child.wait().map_err(Error::other)?;
        return Ok(status.code().map_or(0, |code| code as u8));
    }
    Ok(exit.map_or(0, Exit::shell_code))
}

/// One process with its probes.
struct Armed {
    process: Process,
    session: Session,
    calls: Calls,
    announced: bool,
    /// At the last interval.
    before: Snapshot,
}

impl Armed {
    fn new(process: Process, session: Session) -> Self {
        Self { process, session, calls: Calls::default(), announced: false, before: Snapshot::default() }
    }

    fn pid(&self) -> i32 {
        self.process.pid().0
    }
}

fn measure(run: &Run) -> Measure {
    match run.measure {
        validated::Measure::Count => Measure::Count,
        validated::Measure::Latency => Measure::Latency,
        validated::Measure::Trace { args } => Measure::Trace { args },
    }
}

fn attach(run: &Run, process: &Process, hold: Hold<'_, '_>) -> Result<Session, Error> {
    let progress = Progress::start("reading symbols and code");
    let images = target::images(process)?;
    let selection = &run.selection;
    let probes = selection
        .probes
        .iter()
        .map(|probe| (&probe.spec, Kinds { entry: probe.entry, returns: probe.returns }));
    let sites =
        resolve::resolve(Some(process), &images, probes, &selection.exclusions, selection.max_probes)?;
    // Its thread must not be there when the keeper is forked.
    drop(progress);
    Ok(Session::attach(process, &images, sites, measure(run), &selection.mechanisms, hold)?)
}

/// Until a limit is reached, a signal comes, or every target has ended.
fn watch(
    run: &Run,
    targets: &mut [Armed],
    reporter: &mut dyn Reporter,
    exited: &mut dyn FnMut() -> Option<Exit>,
    ended: super::signals::Ended,
) -> Result<(), Error> {
    let output = |error: io::Error| run.output.error(error);
    let start = Instant::now();
    let mut next_interval = run.limits.interval.map(|interval| start + interval);
    for armed in targets.iter_mut() {
        armed.announced = true;
        let attached = Attached {
            pid: armed.pid(),
            stopped_us: armed.session.stopped().as_micros() as u64,
            probes: rows(armed),
            skipped: armed.session.skipped().len(),
        };
        reporter.attached(&attached).map_err(output)?;
        reporter.flush().map_err(output)?;
    }
    let mut traced = 0u64;
    loop {
        // Asked before the numbers are read, so that nothing that came before the end is missed.
        let over = ended.get()
            || run.limits.duration.is_some_and(|limit| start.elapsed() >= limit)
            || exited().is_some()
            || targets.iter().all(|armed| !armed.process.is_alive());
        let left = run.limits.max_events.map_or(u64::MAX, |most| most - traced);
        for armed in targets.iter() {
            armed.session.tend(&armed.process, &super::stop_options(run.allow_seccomp))?;
        }
        traced += trace(run, targets, reporter, left).map_err(output)?;
        let enough = run.limits.max_events.is_some_and(|most| match run.measure {
            validated::Measure::Trace { .. } => traced >= most,
            _ => targets.iter().map(|armed| armed.session.hits()).sum::<u64>() >= most,
        });
        if over || enough {
            return Ok(());
        }
        if let Some(at) = next_interval
            && Instant::now() >= at
        {
            next_interval = run.limits.interval.map(|interval| at + interval);
            interval(run, targets, reporter).map_err(output)?;
        }
        let wait = next_interval.map_or(TICK, |at| at.saturating_duration_since(Instant::now()).min(TICK));
        ended.wait(wait);
    }
}

fn rows(armed: &Armed) -> usize {
    let kinds = armed.session.probes().iter().map(|probe| probe.kinds);
    kinds.map(|kinds| usize::from(kinds.entry) + usize::from(kinds.returns)).sum()
}

/// Reports what the rings hold, up to `left` hits, and how many that were.
fn trace(run: &Run, targets: &mut [Armed], reporter: &mut dyn Reporter, left: u64) -> io::Result<u64> {
    let validated::Measure::Trace { args } = run.measure else { return Ok(0) };
    let mut reported = 0;
    for armed in targets.iter_mut() {
        let rate = armed.session.clock().rate();
        let pid = armed.pid();
        for hit in armed.calls.take(&armed.session, pid, usize::from(args), rate) {
            if reported >= left {
                break;
            }
            reporter.hit(&hit)?;
            reported += 1;
        }
    }
    if reported > 0 {
        reporter.flush()?;
    }
    Ok(reported)
}

fn interval(run: &Run, targets: &mut [Armed], reporter: &mut dyn Reporter) -> io::Result<()> {
    let latency = run.measure == validated::Measure::Latency;
    for armed in targets.iter_mut() {
        let now = armed.session.snapshot();
        let clock = armed.session.clock();
        let rows = now.since(&armed.before, armed.session.probes(), clock.rate(), latency);
        let probes = rows.into_iter().filter(|row| row.hits > 0 || row.lost > 0).collect();
        let time_ns = clock.elapsed().as_nanos() as u64;
        reporter.interval(&Interval { pid: armed.pid(), time_ns, probes })?;
        armed.before = now;
    }
    reporter.flush()
}

/// Takes the probes out of every target and reports what there was. `result` is how watching ended: if the output is
/// broken, there is nothing to report to, but the probes are taken out all the same.
fn finish(
    run: &Run,
    targets: Vec<Armed>,
    reporter: &mut dyn Reporter,
    result: Result<(), Error>,
    exit: Option<Exit>,
) -> Result<(), Error> {
    let mut first_error = result.err();
    let latency = run.measure == validated::Measure::Latency;
    for mut armed in targets {
        let duration_ns = armed.session.clock().elapsed().as_nanos() as u64;
        let mut stopped = armed.session.stopped();
        if exit.is_none() && armed.process.is_alive() {
            match armed.session.remove(&armed.process, &super::stop_options(run.allow_seccomp)) {
                Ok(removed) => stopped += removed.stopped,
                // A target that ended meanwhile took its probes along.
                Err(_) if !armed.process.is_alive() => {}
                Err(error) => first_error = first_error.or(Some(error.into())),
            }
        }
        if first_error.is_some() || !armed.announced {
            continue;
        }
        let rate = armed.session.clock().rate();
        let now = armed.session.snapshot();
        let rest = match run.measure {
            validated::Measure::Trace { args } if run.limits.max_events.is_none() => {
                let arguments = usize::from(args);
                let mut hits = armed.calls.take(&armed.session, armed.pid(), arguments, rate);
                hits.extend(armed.calls.rest(&armed.session, armed.pid(), arguments, rate));
                hits
            }
            _ => Vec::new(),
        };
        let summary = Summary {
            pid: armed.pid(),
            stopped_us: stopped.as_micros() as u64,
            duration_ns,
            exit,
            probes: now.since(&Snapshot::default(), armed.session.probes(), rate, latency),
            skipped: armed.session.skipped().to_vec(),
        };
        let written =
            rest.iter().try_for_each(|hit| reporter.hit(hit)).and_then(|()| reporter.summary(&summary));
        first_error = written.err().map(|error| run.output.error(error));
        notes(&now);
    }
    first_error.map_or(Ok(()), Err)
}

/// What the numbers do not show.
fn notes(now: &Snapshot) {
    let note = |count: u64, what: &str| {
        if count > 0 {
            eprintln!("trapless: {} {what}", crate::report::count(count));
        }
    };
    note(now.in_children, "hits in forked children, which are not counted above");
    note(now.records_lost, "hits were not shown, because they came faster than they could be read");
    note(now.unwound, "calls were left by an exception, and their return was not seen");
}
