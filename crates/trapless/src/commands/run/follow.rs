//! `--follow`: the target, all that it creates, and all programs that these run.
//!
//! Whoever is to probe a child before its first instruction has to be its tracer, and stay so. That is a keeper ([`keeper`](trapless_process::keeper)), for the
//! tracer must not die of what ends a terminal's programs. It does the whole run, from arming to the report:
//!
//! ```text
//!     this process                         keeper (its tracer is a thread of its own)
//!       │ launch, fork ─────────────────────▶ take the command over, or attach; arm
//!       │ ◀───────────────────────── RUNS     let it run; events of the family (worker)
//!       │ signals: asked to end ────────────▶ all stand, are cleaned and let go (ends)
//!       │ ◀───────────────────────── OUT      the tracer thread ends, the kernel lets go whoever is left
//!       │ ◀──────────────────── exit code     report
//! ```
//!
//! This process is the command's parent, hears the signals, and gives the exit code. Should it be killed, the keeper cleans
//! up and ends without a report. Should the keeper be killed, the kernel lets all go on with their probes, which `trapless detach` takes out.

mod arming;
mod ends;
mod newcomers;
mod sharing;
mod worker;

use super::collect::Collector;
use super::present::kinds;
use super::wait_for_end;
use crate::cli::validated::{Measure, Run, Target};
use crate::commands::signals::{self, Ended};
use crate::error::Error;
use crate::report::{Exit, Running};
use crate::resolve;
use crate::target::Image;
use crate::whoever::Whoever;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use trapless_process::keeper::{Keeper, ParentWatch};
use trapless_process::launch::{self, Child, Handover, Launched};
use trapless_process::{Pid, same_memory};

use crate::commands::wake::Wake;

/// What the keeper tells: the launched command runs.
const RUNS: u8 = b'r';
/// No probe is in anywhere, and nobody is traced.
const OUT: u8 = b'o';

/// The target as the keeper gets it.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one, and the registers in it are to be copied")]
enum Root {
    /// Running processes.
    Processes(Vec<i32>),
    /// A launched command, which waits to be taken over.
    Command(Pid, Handover),
    /// Whoever is so.
    Whoever(Whoever),
}

/// What the keeper is to do.
struct Task<'r> {
    run: &'r Run,
    root: Root,
    running: Arc<Running>,
    /// Who has started it, and hears what it tells.
    parent: &'r ParentWatch,
    tells: PipeWriter,
}

impl Task<'_> {
    /// Tells the parent.
    fn tell(&self, what: u8) {
        // It fails only if nobody is left to hear it.
        let _ = (&self.tells).write_all(&[what]);
    }

    /// Does it. The answer is whether all went well, and the exit code.
    fn work(&self, collector: &mut dyn Collector) -> Vec<u8> {
        match worker::work(self, collector) {
            Ok(()) => vec![1, collector.exit_code()],
            Err(error) => {
                error.tell();
                vec![0, error.exit_code()]
            }
        }
    }
}

/// Does the run.
///
/// # Errors
/// As without following; what the keeper has told is [`Error::Told`].
pub(super) fn follow(
    run: &Run,
    collector: &mut dyn Collector,
    running: &Arc<Running>,
    ended: Ended,
) -> Result<u8, Error> {
    let own = Pid(std::process::id() as i32).leader();
    if same_memory(own, own).is_none() {
        return Err(Error::Usage(
            "--follow needs to know which processes share their memory, and the kernel, or a sandbox around trapless, does not tell (kcmp)".into(),
        ));
    }
    let (root, launched) = match &run.target {
        Target::Processes(pids) => (Root::Processes(pids.clone()), None),
        Target::Whoever(whoever) => {
            check_files(run, whoever)?;
            (Root::Whoever(whoever.clone()), None)
        }
        Target::Launch(command) => {
            if run.output.json && run.output.file.is_none() {
                crate::report::leave_stdout();
            }
            let (program, arguments) =
                command.split_first().ok_or_else(|| Error::Usage("no command".into()))?;
            let launched = launch::launch(program, arguments)?;
            let options = super::super::stop_options(run.allow_seccomp);
            let handover = launched.hand_over(&options).map_err(Error::other)?;
            (Root::Command(launched.process().pid(), handover), Some(launched))
        }
    };
    if ended.get() {
        return Err(Error::Interrupted);
    }
    let (progress, tells) = std::io::pipe().map_err(Error::other)?;
    // Moved in, so that our copies of the reporter and of the keeper's end are gone.
    let running = Arc::clone(running);
    let keeper = Keeper::start(move |parent| Task { run, root, running, parent, tells }.work(collector));
    wait_for(run, keeper.map_err(Error::other)?, progress, launched)
}

/// Fails unless the files have what is to be probed: nobody needs to be waited for in vain.
fn check_files(run: &Run, whoever: &Whoever) -> Result<(), Error> {
    for file in &whoever.files {
        let image = Image::file_of(file, &run.files())?;
        let probes = run.selection.probes.iter();
        let probes = probes.filter(|probe| probe.spec.module.as_literal().map(Path::new) == Some(file));
        let probes = probes.map(|probe| (&probe.spec, kinds(run, probe)));
        resolve::resolve(None, &[image], probes, &run.selection.exclusions, run.selection.max_probes)?;
    }
    Ok(())
}

/// Waits for the keeper, and for the command where it was interrupted.
fn wait_for(
    run: &Run,
    mut keeper: Keeper,
    progress: PipeReader,
    launched: Option<Launched>,
) -> Result<u8, Error> {
    let (mut launched, mut child) = (launched, None);
    let mut progress = Some(progress);
    let mut asked = false;
    loop {
        // Asked before, so that what it told at its end is heard.
        let is_done = keeper.is_done_within(std::time::Duration::ZERO);
        while let Some(told) = progress.as_ref().and_then(told) {
            match told {
                Some(RUNS) => child = let_run(&mut launched)?,
                Some(OUT) => signals::release(),
                Some(_) => {}
                None => progress = None,
            }
        }
        if is_done {
            break;
        }
        if signals::interrupted() && !asked {
            keeper.ask_to_end();
            asked = true;
        }
        // What is noted for a script is the keeper's.
        let mut wake = Wake::default();
        if !asked {
            wake.on(signals::descriptor());
        }
        wake.on(Some(keeper.descriptor().as_raw_fd()));
        if let Some(progress) = &progress {
            wake.on(Some(progress.as_raw_fd()));
        }
        wake.sleep(None);
    }
    let answer = keeper.wait().map_err(Error::other)?;
    let [is_well, code] = answer[..] else { return Err(Error::Told(1)) };
    if is_well == 0 {
        return Err(Error::Told(code));
    }
    let Some(mut child) = child else { return Ok(code) };
    if run.measure == Measure::Script {
        if run.ends_command {
            child.ask_to_end().map_err(Error::other)?;
        }
        return Ok(code);
    }
    let status = match child.try_wait().map_err(Error::other)? {
        None if signals::interrupted() => wait_for_end(&mut child)?,
        // What it was followed for has ended, so it has.
        None if !asked => child.wait_for(std::time::Duration::from_millis(200)).map_err(Error::other)?,
        status => status,
    };
    Ok(status.map_or(0, |status| match status.signal() {
        Some(signal) => Exit::Signal(signal).shell_code(),
        None => Exit::Code(status.code().unwrap_or(0)).shell_code(),
    }))
}

/// What the keeper has told, if it has: a byte, or that it tells no more.
fn told(mut progress: &PipeReader) -> Option<Option<u8>> {
    let mut byte = [0];
    let mut poll = libc::pollfd { fd: progress.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, and the count says so.
    if unsafe { libc::poll(&mut poll, 1, 0) } <= 0 {
        return None;
    }
    match progress.read(&mut byte) {
        Ok(1) => Some(Some(byte[0])),
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => None,
        _ => Some(None),
    }
}

/// The command runs already; from now on it is no longer ended with us.
fn let_run(launched: &mut Option<Launched>) -> Result<Option<Child>, Error> {
    let Some(launched) = launched.take() else { return Ok(None) };
    let (_, child) = launched.let_run().map_err(Error::other)?;
    Ok(Some(child))
}

/// How a process has ended, for the report.
fn exit_of(status: std::process::ExitStatus) -> Exit {
    match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(status.code().unwrap_or(0)),
    }
}
