//! `replace`: has a function of a library called instead of one of the process, until it is taken back.

use super::{signals, stop_options, wake::Wake};
use crate::attach::ENDING;
use crate::cli::replace::Replace;
use crate::error::Error;
use crate::files::Files;
use crate::live_patch::{InProcess, Library, LivePatch};
use crate::report::{
    Output, ReplacedFunction, RestoredFunction, Row, Running, json_rows, json_rows_after, text_rows,
};
use crate::session::Session;
use crate::target;
use crate::terminal::tell;
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trapless_process::Process;

/// How often it is looked whether the function is still replaced.
const LOOK: Duration = Duration::from_secs(1);

/// How long is waited for a call without a word.
const SILENT: Duration = Duration::from_secs(1);

/// Does it.
///
/// # Errors
/// The function cannot be replaced, which is found out before anything is changed as far as it can be; or it could not be taken back.
pub fn run(replace: &Replace) -> Result<u8, Error> {
    signals::install();
    let running = Running::new(signals::interrupted);
    let library = Library::open(&replace.with, replace.original.as_deref())
        .map_err(|error| Error::from(trapless_session::error::Error::from(error)))?;
    let process = target::open(replace.pid)?;
    let images = target::images(&process, &Files::default())?;
    let options = stop_options(replace.allow_seccomp);
    let patch = LivePatch::new(&process, &images, &replace.function, library, options)?;
    let mut output = replace.output.open()?;
    output.wait_only_while(running.clone());
    if replace.dry_run {
        running.finish();
        let row = replaced(&process, &patch, None, Duration::ZERO);
        return write(replace, &mut output, &row, 0).map(|()| 0);
    }
    let (start, told) = (Instant::now(), Cell::new(false));
    let is_ended = || {
        // Mostly it is called all the time.
        if !told.get() && start.elapsed() >= SILENT {
            told.set(true);
            let (name, library) = (patch.name(), patch.library().name());
            tell(format_args!(
                "waiting for a call of {name}, in which process {} can load {library}",
                replace.pid
            ));
        }
        signals::interrupted()
    };
    let found = patch.load(replace.wait, &is_ended)?;
    let session = patch.arm(&found).inspect_err(|_| {
        tell(format_args!(
            "process {} has loaded {}, which stays loaded",
            replace.pid,
            patch.library().name()
        ));
    })?;
    let deadline = replace.duration.and_then(|limit| Instant::now().checked_add(limit));
    if let Some(deadline) = deadline {
        running.end_at(deadline);
    }
    let row = replaced(&process, &patch, Some(&found), session.stopped());
    // Where nobody reads, it is taken back all the same.
    let written = write(replace, &mut output, &row, 0);
    if written.is_ok() {
        watch(&process, &session, deadline);
    }
    let ended = take_back(replace, &process, &patch, &session);
    signals::release();
    running.finish();
    match (written, ended) {
        (Err(error), _) | (Ok(()), Err(error)) => Err(error),
        (Ok(()), Ok(Some(row))) => write(replace, &mut output, &row, 1).map(|()| 0),
        (Ok(()), Ok(None)) => {
            tell(format_args!("process {} has ended, or runs another program", replace.pid));
            Ok(0)
        }
    }
}

fn replaced(
    process: &Process,
    patch: &LivePatch<'_>,
    found: Option<&InProcess>,
    stopped: Duration,
) -> ReplacedFunction {
    ReplacedFunction {
        pid: process.pid().0,
        module: patch.module().to_owned(),
        function: patch.function().to_owned(),
        address: patch.address(),
        library: patch.library().name(),
        with: patch.library().function().to_owned(),
        with_address: found.map(|found| found.function),
        dry_run: found.is_none(),
        passed: found.map_or(0, |found| found.passed),
        stopped_us: stopped.as_micros() as u64,
    }
}

/// Until the time is over, a signal comes, the process ends, or somebody else has taken it out.
fn watch(process: &Process, session: &Session, deadline: Option<Instant>) {
    while !signals::interrupted()
        && deadline.is_none_or(|deadline| Instant::now() < deadline)
        && process.is_alive()
        && !process.runs_another_program()
    {
        session.look_again(process, true);
        if !session.lost_sites().is_empty() {
            return;
        }
        let mut wake = Wake::new();
        wake.on(process.pidfd().map(|pidfd| pidfd.as_raw_fd()));
        wake.sleep(Some(
            deadline.map_or(Instant::now() + LOOK, |deadline| deadline.min(Instant::now() + LOOK)),
        ));
    }
}

/// Takes it back; `None`: the process has ended, or runs another program.
///
/// # Errors
/// The function is replaced yet.
fn take_back(
    replace: &Replace,
    process: &Process,
    patch: &LivePatch<'_>,
    session: &Session,
) -> Result<Option<RestoredFunction>, Error> {
    if !process.is_alive() || process.runs_another_program() {
        return Ok(None);
    }
    let removed = match session.remove(process, &stop_options(replace.allow_seccomp)) {
        Ok(removed) => removed,
        Err(_) if process.has_ended_within(ENDING) => return Ok(None),
        Err(why) => return Err(Error::StillProbed { pid: replace.pid, why }),
    };
    Ok(Some(RestoredFunction {
        pid: replace.pid,
        module: patch.module().to_owned(),
        function: patch.function().to_owned(),
        restored: removed.restored > 0 && removed.left == 0,
        memory_kept_because: removed.kept.map(|kept| kept.to_string()),
        stopped_us: removed.stopped.as_micros() as u64,
    }))
}

/// Writes a row behind as many as `before` says.
fn write<R: Row>(replace: &Replace, output: &mut Output, row: &R, before: usize) -> Result<(), Error> {
    let rows = std::slice::from_ref(row);
    let width = replace.output.width(output);
    let written = match (replace.output.json, before) {
        (true, 0) => json_rows(output, rows),
        (true, before) => json_rows_after(output, rows, before),
        (false, _) => text_rows(output, rows, width),
    };
    written.map_err(|error| replace.output.error(error))
}
