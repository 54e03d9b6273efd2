//! Which processes a command means.

use super::flags::TargetFlags;
use super::validated::{Probe, Target};
use crate::error::Error;
use crate::spec::{Pattern, Syntax};
use crate::whoever::{Whoever, group_of};
use std::path::{Path, PathBuf};

/// What `flags` name; without a target, whoever runs the files of `probes`.
pub(super) fn target(flags: TargetFlags, probes: &[Probe]) -> Result<Target, Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    let is_named = !flags.pids.is_empty() || !flags.command.is_empty();
    if is_named && (flags.name.is_some() || flags.user.is_some() || flags.cgroup.is_some()) {
        return usage(
            "-n, --user and --cgroup say which processes are probed; leave them out, or -p PID and -- COMMAND",
        );
    }
    match (flags.pids.is_empty(), flags.command.first()) {
        (true, None) => whoever(flags, probes),
        (false, Some(_)) => usage("-p PID and -- COMMAND are two targets; give one of them"),
        (true, Some(program)) if program.is_empty() => usage("the command after -- has an empty name"),
        (true, Some(_)) => Ok(Target::Launch(flags.command)),
        (false, None) => Ok(Target::Processes(distinct(flags.pids))),
    }
}

/// What `flags` name, if they name anything.
pub(super) fn processes_named(flags: TargetFlags) -> Result<Option<Target>, Error> {
    let TargetFlags { pids, name, user, cgroup, command } = &flags;
    let names_any = !pids.is_empty() || !command.is_empty();
    let names_whom = name.is_some() || user.is_some() || cgroup.is_some();
    if names_any || names_whom { target(flags, &[]).map(Some) } else { Ok(None) }
}

/// All who fulfil the conditions; without one, whoever runs the files that the probes name.
fn whoever(flags: TargetFlags, probes: &[Probe]) -> Result<Target, Error> {
    let named = flags.name.map(|name| {
        Pattern::new(&name, Syntax::Glob)
            .map_err(|error| Error::Usage(format!("bad name '{name}': {}", error.what)))
    });
    let whoever = Whoever {
        name: named.transpose()?,
        user: flags.user,
        cgroup: flags.cgroup.as_deref().map(group_of),
        ..Whoever::default()
    };
    if whoever != Whoever::default() {
        return Ok(Target::Whoever(whoever));
    }
    let file = |probe: &Probe| {
        let path = probe.spec.module.as_literal().filter(|path| path.contains('/'))?;
        Some(PathBuf::from(path)).filter(|path| path.is_file())
    };
    let missing = probes.iter().filter_map(|probe| probe.spec.module.as_literal());
    if let Some(path) = missing.into_iter().find(|path| path.contains('/') && !Path::new(path).is_file()) {
        return Err(Error::Usage(format!(
            "{path}: no such file, and no target; give -p PID for a running process"
        )));
    }
    let files: Option<_> = probes.iter().map(file).collect();
    match files.filter(|_| !probes.is_empty()) {
        Some(files) => Ok(Target::Whoever(Whoever { files, ..Whoever::default() })),
        None => Err(Error::Usage(
            "no target; give -p PID, -n NAME or -- COMMAND, or probes with a file's path, for whoever runs it"
                .into(),
        )),
    }
}

/// The same numbers without repetitions, in the order given.
pub(super) fn distinct(pids: Vec<i32>) -> Vec<i32> {
    let mut seen = std::collections::BTreeSet::new();
    pids.into_iter().filter(|&pid| seen.insert(pid)).collect()
}
