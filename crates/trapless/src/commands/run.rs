//! `count`, `latency` and `trace`: arm, wait, remove, report.

mod collect;
mod finish;
mod follow;
mod numbers;
mod pending;
mod present;
mod source;
mod tally;
mod watch;

use crate::cli::validated::{self, Run, Target};
use crate::error::Error;
use crate::files::Files;
use crate::progress::Progress;
use crate::report::{Exit, Running, View};
use crate::resolve::{Kinds, Sites};
use crate::session::{Asked, Calls, Hold, Session, Snapshot};
use crate::target::{self, Image};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trapless_process::Process;
use trapless_process::launch::{self, Child};
use trapless_session::clock::Clock;

pub(super) use collect::{Aside, Collector, End, Flow, Who};
use finish::finish;
pub(super) use finish::{Finished, beside_numbers};
use numbers::Numbers;
use pending::{Pending, Wanted};
pub(super) use source::{Sessions, Source, Untold};
use watch::watch;

/// Does what was asked.
///
/// # Errors
/// Nothing could be probed, or the output broke; then the probes are out.
pub fn run(run: &Run) -> Result<u8, Error> {
    let view = match run.measure {
        // What a script says, no reporter shows.
        validated::Measure::Count | validated::Measure::Script | validated::Measure::Quick => View::Count,
        validated::Measure::Latency => View::Latency,
        validated::Measure::Trace { .. } => View::Trace,
    };
    of_source(run, view, Box::new(Sessions(run)))
}

/// Does what was asked, and shows what this source tells.
///
/// # Errors
/// As [`run`].
pub fn of_source<'r>(run: &'r Run, view: View, source: Box<dyn Source + 'r>) -> Result<u8, Error> {
    let ended = super::signals::install();
    // Whoever is traced must not wait for a reader of our output.
    let running = Running::new(if follows(run) { || true } else { super::signals::interrupted });
    let reporter = run.output.reporter(view, run.rows, running.clone())?;
    collected(run, &mut Numbers::new(run, view, source, reporter), &running, ended)
}

/// Does what was asked, for this collector.
///
/// # Errors
/// As [`run`].
pub fn collected(
    run: &Run,
    collector: &mut dyn Collector,
    running: &Arc<Running>,
    ended: super::signals::Ended,
) -> Result<u8, Error> {
    match &run.target {
        Target::Processes(pids) if !run.follow => attached(run, pids, collector, running, ended),
        Target::Launch(command) if !run.follow => launched(run, command, collector, running, ended),
        _ => follow::follow(run, collector, running, ended),
    }
}

/// Whether a run is one of a keeper's, which follows or finds whoever is meant.
pub fn follows(run: &Run) -> bool {
    run.follow || matches!(run.target, Target::Whoever(_))
}

fn attached(
    run: &Run,
    pids: &[i32],
    collector: &mut dyn Collector,
    running: &Running,
    ended: super::signals::Ended,
) -> Result<u8, Error> {
    let (mut targets, files) = (Vec::new(), run.files());
    let attached = pids.iter().try_for_each(|&pid| {
        let process = target::open(pid)?;
        let hold = Hold::Stop(super::stop_options(run.allow_seccomp));
        let (session, pending) = attach(run, &process, &files, hold)?;
        let armed = Armed { pending, ..Armed::new(Rc::new(process), session) };
        let joined = collector.joined(pid, &armed.session);
        targets.push(armed);
        joined
    });
    // Nobody else is to be attached to.
    drop(files);
    let mut none = || None;
    let result = attached.and_then(|()| watch(run, &mut targets, collector, &mut none, ended, running));
    finish(run, targets, collector, result, None, running)?;
    Ok(collector.exit_code())
}

fn launched(
    run: &Run,
    command: &[std::ffi::OsString],
    collector: &mut dyn Collector,
    running: &Running,
    ended: super::signals::Ended,
) -> Result<u8, Error> {
    if run.output.json && run.output.file.is_none() {
        crate::report::leave_stdout();
    }
    let (program, arguments) = command.split_first().ok_or_else(|| Error::Usage("no command".into()))?;
    // Ended on every way out of here but the last.
    let launched = launch::launch(program, arguments)?;
    let options = super::stop_options(run.allow_seccomp);
    // A program that runs another takes that one's name. It can be read until the end is waited for.
    let name_of = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let pid = launched.process().pid().0;
    let name = name_of(pid);
    let hold = Hold::Launched(&launched, options);
    let (session, pending) = attach(run, launched.process(), &run.files(), hold)?;
    collector.joined(pid, &session)?;
    collector.armed(pid, &session)?;
    if ended.get() {
        return Err(Error::Interrupted);
    }
    let (process, mut child) = session.let_run(launched)?;
    let mut last_name = name.clone();
    let mut targets = vec![Armed { announced: true, pending, ..Armed::new(Rc::new(process), session) }];
    let mut status = None;
    let mut exited = || {
        if status.is_none() {
            last_name = name_of(pid).or(last_name.take());
            status = child.try_wait().ok().flatten();
        }
        status.map(exit_of)
    };
    let result = watch(run, &mut targets, collector, &mut exited, ended, running);
    let mut exit = exited();
    // Its end is ours to hear of only when its tracer has.
    let patience = Instant::now() + Duration::from_secs(10);
    while exit.is_none() && targets.iter().all(|armed| !armed.process.is_alive()) && Instant::now() < patience
    {
        std::thread::sleep(Duration::from_millis(1));
        exit = exited();
    }
    if let [armed] = &mut targets[..] {
        armed.renamed = last_name.filter(|last| Some(last) != name.as_ref());
    }
    let finished = finish(run, targets, collector, result, exit, running);
    // Its probes are out, and whoever has traced it is gone.
    let exit = exit.or_else(|| child.try_wait().ok().flatten().map(exit_of));
    if exit.is_none() && run.ends_command {
        child.ask_to_end().map_err(Error::other)?;
    }
    finished?;
    if exit.is_none() && !run.ends_command && super::signals::interrupted() {
        // As a shell would: a command launched in the foreground got the Ctrl-C, too. Wait for what it makes of it.
        let status = wait_for_end(&mut child)?;
        return Ok(status.and_then(|status| status.code()).map_or(0, |code| code as u8));
    }
    // A script has an exit code of its own.
    Ok(match run.measure {
        validated::Measure::Script => collector.exit_code(),
        _ => exit.map_or(0, Exit::shell_code),
    })
}

fn exit_of(status: ExitStatus) -> Exit {
    match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(status.code().unwrap_or(0)),
    }
}

/// One process with its probes.
pub(in crate::commands) struct Armed {
    process: Rc<Process>,
    session: Session,
    /// What is probed in libraries that are loaded later, if anything is.
    pending: Option<Pending>,
    /// Why nothing was probed in it at first, where nothing was.
    absent: Option<Error>,
    /// When time began for the run.
    beginning: Clock,
    calls: Calls,
    announced: bool,
    /// It was seen to have started another program.
    ran_another_program: bool,
    /// Hits that were shown or tallied, and those that were children's.
    shown: u64,
    tally: tally::Tally,
    children: BTreeMap<i32, u64>,
    /// The name that a launched command had at its end, where that was not the one it was armed with.
    renamed: Option<String>,
    /// At the last interval.
    before: Snapshot,
}

impl Armed {
    fn new(process: Rc<Process>, session: Session) -> Self {
        Self {
            process,
            beginning: session.clock(),
            session,
            pending: None,
            absent: None,
            calls: Calls::default(),
            announced: false,
            ran_another_program: false,
            shown: 0,
            tally: tally::Tally::default(),
            children: BTreeMap::new(),
            renamed: None,
            before: Snapshot::default(),
        }
    }

    pub(in crate::commands) fn pid(&self) -> i32 {
        self.process.pid().0
    }

    pub(in crate::commands) fn session(&self) -> &Session {
        &self.session
    }
}

/// What is asked for in a process.
///
/// # Errors
/// A script cannot run in it.
fn asked(
    run: &Run,
    process: &Process,
    images: &[Image],
    sites: &Sites,
    later: Option<Kinds>,
) -> Result<Asked, Error> {
    let asked = match &run.script {
        Some(code) => {
            let asked = Asked {
                allowed: run.selection.mechanisms.clone(),
                ..Asked::run(code.run_in(process, images, sites)?)
            };
            // Else code tells what else is shown of hits.
            let only_runs = matches!(run.measure, validated::Measure::Script | validated::Measure::Quick);
            Asked { counts: !only_runs, ..asked }
        }
        None => Asked::of(&run.selection.mechanisms),
    };
    Ok(Asked { later, ..asked })
}

fn attach(
    run: &Run,
    process: &Process,
    files: &Files,
    hold: Hold<'_>,
) -> Result<(Session, Option<Pending>), Error> {
    let progress = Progress::start("reading symbols and code");
    let images = target::images(process, files)?;
    let Wanted { sites, later, pending } = pending::wanted(run, process, &images)?;
    // Its thread must not be there when the keeper is forked.
    drop(progress);
    let asked = asked(run, process, &images, &sites, later)?;
    let session = Session::attach(process, &images, sites, asked, hold)?;
    let pending = later.map(|_| Pending::of(process, &session, (&images, files), pending));
    Ok((session, pending))
}

/// Waits for the end of a command that was interrupted, which may take its time for it. Being interrupted once more leaves
/// it to itself.
fn wait_for_end(child: &mut Child) -> Result<Option<ExitStatus>, Error> {
    const SILENT: Duration = Duration::from_secs(2);
    super::signals::install();
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
