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
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use trapless_process::Process;
use trapless_process::launch::{self, Child};

/// How often rings are emptied and ends are noticed.
const TICK: Duration = Duration::from_millis(5);

/// How long a target that has given up its memory may take to be seen to have ended.
const ENDING: Duration = Duration::from_millis(200);

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
    // Ended on every way out of here but the last.
    let launched = launch::launch(program, arguments)?;
    let options = super::stop_options(run.allow_seccomp);
    let session = attach(run, launched.process(), Hold::Launched(&launched, options))?;
    announce(launched.process().pid().0, &session, reporter).map_err(|error| run.output.error(error))?;
    if ended.get() {
        return Err(Error::Interrupted);
    }
    let (process, mut child) = session.let_run(launched)?;
    let mut targets = vec![Armed { announced: true, ..Armed::new(process, session) }];
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
        let status = wait_for_end(&mut child)?;
        return Ok(status.and_then(|status| status.code()).map_or(0, |code| code as u8));
    }
    Ok(exit.map_or(0, Exit::shell_code))
}

/// One process with its probes.
struct Armed {
    process: Process,
    session: Session,
    calls: Calls,
    announced: bool,
    /// It was seen to have started another program.
    ran_another_program: bool,
    /// At the last interval.
    before: Snapshot,
}

impl Armed {
    fn new(process: Process, session: Session) -> Self {
        Self {
            process,
            session,
            calls: Calls::default(),
            announced: false,
            ran_another_program: false,
            before: Snapshot::default(),
        }
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

fn attach(run: &Run, process: &Process, hold: Hold<'_>) -> Result<Session, Error> {
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
    for armed in targets.iter_mut().filter(|armed| !armed.announced) {
        armed.announced = true;
        announce(armed.pid(), &armed.session, reporter).map_err(output)?;
    }
    let mut traced = 0u64;
    loop {
        // Asked before the numbers are read, so that nothing that came before the end is missed.
        let over = ended.get()
            || run.limits.duration.is_some_and(|limit| start.elapsed() >= limit)
            || exited().is_some()
            || targets.iter().all(|armed| !armed.process.is_alive());
        let left = run.limits.max_events.map_or(u64::MAX, |most| most - traced);
        for armed in targets.iter_mut() {
            armed.ran_another_program |= armed.process.runs_another_program();
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

/// Says that a target's probes are armed.
fn announce(pid: i32, session: &Session, reporter: &mut dyn Reporter) -> io::Result<()> {
    let kinds = session.probes().iter().map(|probe| probe.kinds);
    let probes = kinds.map(|kinds| usize::from(kinds.entry) + usize::from(kinds.returns)).sum();
    let stopped_us = session.stopped().as_micros() as u64;
    reporter.attached(&Attached { pid, stopped_us, probes, skipped: session.skipped().len() })?;
    reporter.flush()
}

/// Waits for the end of a command that was interrupted, which may take its time for it. Being interrupted once more leaves
/// it to itself.
fn wait_for_end(child: &mut Child) -> Result<Option<ExitStatus>, Error> {
    const SILENT: Duration = Duration::from_secs(2);
    let pid = child.pid();
    let mut status = child.wait_for(SILENT).map_err(Error::other)?;
    if status.is_none() {
        crate::terminal::tell(format_args!(
            "waiting for the command (process {pid}) to end; interrupt once more to leave it"
        ));
    }
    super::signals::forget();
    while status.is_none() && !super::signals::interrupted() {
        status = child.wait_for(Duration::from_millis(50)).map_err(Error::other)?;
    }
    Ok(status)
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
                Err(_) if armed.process.has_ended_within(ENDING) => {}
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
            ran_another_program: armed.ran_another_program,
            probes: now.since(&Snapshot::default(), armed.session.probes(), rate, latency),
            skipped: armed.session.skipped().to_vec(),
        };
        let written =
            rest.iter().try_for_each(|hit| reporter.hit(hit)).and_then(|()| reporter.summary(&summary));
        first_error = written.err().map(|error| run.output.error(error));
        if armed.ran_another_program {
            eprintln!("trapless: process {} ran another program, whose calls were not counted", armed.pid());
        }
        notes(&now);
    }
    first_error.map_or(Ok(()), Err)
}

/// What the numbers do not show.
fn notes(now: &Snapshot) {
    let note = |count: u64, what: &str| {
        if count > 0 {
            crate::terminal::tell(format_args!("{} {what}", crate::report::count(count)));
        }
    };
    note(now.in_children, "hits in forked children, which are not counted above");
    note(now.records_lost, "hits were not shown, because they came faster than they could be read");
    note(now.unwound, "calls were left by an exception, and their return was not seen");
}
