//! Libraries that a process has not loaded, and where it would look for them.

use super::super::present::kinds;
use crate::cli::validated::{Probe, Run};
use crate::error::Error;
use crate::resolve;
use crate::spec::ProbeSpec;
use crate::target::Image;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use trapless_process::Process;
use trapless_session::error::Error as SessionError;
use trapless_session::select::{self, ModuleNames, SelectError};
use trapless_symbols::Module;

/// Whether a probe's file is found where the process would look for a library, and has what is to be probed.
///
/// # Errors
/// It has not, or cannot be read.
pub(super) fn can_be_loaded(
    run: &Run,
    process: &Process,
    images: &[Image],
    probe: &Probe,
) -> Result<bool, Error> {
    let selection = &run.selection;
    let asked = [(&probe.spec, kinds(run, probe))];
    let mut missing = None;
    for image in files(process, images, &probe.spec).iter().filter_map(|path| Image::file(path).ok()) {
        if !image.module(None).is_ok_and(is_library) {
            continue;
        }
        match resolve::resolve(None, &[image], asked, &selection.exclusions, selection.max_probes) {
            // By a name that is a link's.
            Ok(_) | Err(SessionError::Select(SelectError::NoModule { .. })) => return Ok(true),
            Err(error) => drop(missing.get_or_insert(error)),
        }
    }
    missing.map_or(Ok(false), |error| Err(error.into()))
}

/// Whether a file can be loaded by a program that runs: it is none itself.
fn is_library(module: &Module) -> bool {
    module.interpreter().is_none() || module.soname().is_some()
}

/// The files that a specification may mean, as we see them.
fn files(process: &Process, images: &[Image], spec: &ProbeSpec) -> Vec<PathBuf> {
    let Some(name) = spec.module.as_literal() else { return Vec::new() };
    let seen = |path: &Path| Some(process.path_in_root(path)).filter(|path| path.is_file());
    if name.contains('/') {
        let relative = || std::fs::read_link(format!("/proc/{}/cwd", process.pid())).ok();
        let path = if name.starts_with('/') {
            Some(PathBuf::from(name))
        } else {
            relative().map(|at| at.join(name))
        };
        let ours = || std::fs::canonicalize(name).ok().filter(|path| path.is_file());
        return path.and_then(|path| seen(&path)).or_else(ours).into_iter().collect();
    }
    let is_meant = |path: &Path| {
        let names = ModuleNames { path: &path.to_string_lossy(), soname: None, alias: None };
        select::modules(&spec.module, &[names]).is_ok()
    };
    let mut found = Vec::new();
    for directory in directories(process, images) {
        let entries = std::fs::read_dir(process.path_in_root(&directory));
        let mut names: Vec<_> =
            entries.into_iter().flatten().flatten().map(|entry| directory.join(entry.file_name())).collect();
        names.sort_unstable();
        found.extend(names.iter().filter(|path| is_meant(path)).filter_map(|path| seen(path)));
    }
    found
}

/// Where the process may look for libraries: beside those that it has, where it was told to by its environment, and where all look.
fn directories(process: &Process, images: &[Image]) -> BTreeSet<PathBuf> {
    let mut all: BTreeSet<PathBuf> =
        images.iter().filter_map(|image| Some(Path::new(&image.path).parent()?.to_owned())).collect();
    all.extend(std::fs::read_link(format!("/proc/{}/cwd", process.pid())));
    let environment = std::fs::read(format!("/proc/{}/environ", process.pid())).unwrap_or_default();
    let own = environment.split(|&byte| byte == 0).filter_map(|line| line.strip_prefix(b"LD_LIBRARY_PATH="));
    let own = own.flat_map(|list| list.split(|&byte| byte == b':' || byte == b';'));
    all.extend(
        own.filter(|path| path.starts_with(b"/")).map(|path| PathBuf::from(&*String::from_utf8_lossy(path))),
    );
    all.extend(["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from));
    all
}
