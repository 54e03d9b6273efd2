//! A script with probes in other processes: which ones, and the run in them.

use super::collector::Scripting;
use super::course::Course;
use super::probed::Points;
use super::scripted::Scripted;
use crate::cli::script::{Dialect, Task, Text};
use crate::cli::validated::{CodeFor, Limits, Measure, Rows, Run, Selection, Target, check_traps};
use crate::commands::run;
use crate::commands::signals::{self, Ended};
use crate::error::Error;
use crate::files::Files;
use crate::report::Running;
use crate::resolve::{self, Kinds, Site, Sites};
use crate::target::{self, Image};
use crate::whoever::Whoever;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// More functions than that are not probed by one script.
const MOST_PROBES: usize = 200_000;

/// Runs a script in processes; its exit code.
///
/// # Errors
/// Nothing can be probed, or the output broke.
pub(super) fn run_in_targets(
    text: &Text,
    course: Course<'_>,
    scripted: Arc<Scripted>,
    points: Points,
    ended: Ended,
) -> Result<u8, Error> {
    course.check(points.probes.len())?;
    let (target, in_files) = match &text.target {
        Some(target) => (target.clone(), None),
        None => {
            let Some(files) = points.files() else {
                let what = "its probes do not all name files; give -p PID for a running process";
                return Err(Error::Script(text.dialect, what.to_owned()));
            };
            let count = probes_in(text, &points)?;
            (Target::Whoever(Whoever { files, ..Whoever::default() }), Some(count))
        }
    };
    check_traps(&text.mechanisms, text.follow, &target)?;
    let code: Arc<dyn CodeFor> = scripted.clone();
    let run = Run {
        measure: Measure::Script,
        script: Some(code),
        target,
        follow: text.follow,
        pending: false,
        allow_seccomp: text.allow_seccomp,
        debug_directories: text.debug_directories.clone(),
        ends_command: text.dialect == Dialect::Bpftrace,
        selection: Selection {
            probes: points.probes,
            exclusions: Vec::new(),
            mechanisms: text.mechanisms.clone(),
            max_probes: MOST_PROBES,
        },
        limits: Limits::default(),
        output: text.output.clone(),
        rows: Rows::default(),
    };
    let written = points.written;
    let running = Running::new(if run::follows(&run) { || true } else { signals::interrupted });
    let mut scripting = Scripting::new(course, scripted, written, in_files);
    if text.task == Task::DryRun {
        check_in_processes(text, &run)?;
        return Ok(0);
    }
    scripting.begin()?;
    if scripting.is_over() {
        return scripting.end_early();
    }
    run::collected(&run, &mut scripting, &running, ended)
}

/// Whether the processes that are given have what is to be probed, of which nothing is probed now.
///
/// # Errors
/// What one of them has not, or that it is not there.
fn check_in_processes(text: &Text, run: &Run) -> Result<(), Error> {
    let Target::Processes(pids) = &run.target else { return Ok(()) };
    let files = Files::searching(text.debug_directories.iter().cloned());
    for pid in pids {
        let process = target::open(*pid)?;
        let images = target::images(&process, &files)?;
        let specs =
            run.selection.probes.iter().map(|probe| (&probe.spec, Kinds::hits(probe.entry, probe.returns)));
        resolve::resolve(Some(&process), &images, specs, &[], MOST_PROBES)?;
    }
    Ok(())
}

/// How many probes there are in the files that are named.
fn probes_in(text: &Text, points: &Points) -> Result<u64, Error> {
    let files = Files::searching(text.debug_directories.iter().cloned());
    let mut count = 0;
    for (probe, is_own) in points.probes.iter().zip(&points.is_own) {
        let Some(path) = probe.spec.module.as_literal() else { continue };
        let image = Image::file_of(Path::new(path), &files)?;
        let kinds = Kinds::hits(probe.entry, probe.returns);
        let found: Sites = resolve::resolve(None, &[image], [(&probe.spec, kinds)], &[], MOST_PROBES)?;
        if *is_own {
            // A USDT probe is one, at however many places it stands.
            let places = found.sites.iter().filter(|site| site.usdt.is_empty()).count();
            let of = |site: &'_ Site| {
                site.usdt.iter().map(|usdt| (usdt.provider.clone(), usdt.name.clone())).collect::<Vec<_>>()
            };
            let usdt: BTreeSet<_> = found.sites.iter().flat_map(of).collect();
            count += (places + usdt.len()) as u64;
        }
    }
    Ok(count)
}
