//! `-l` and `-lv`: probes that there are, by a pattern or by a script's attach points.
//!
//! What a search finds goes to standard output, one probe a line, as it would be written in a script; with `-lv` its arguments follow. What
//! it does not find, and where to look for it, goes to standard error.

mod rows;
mod types;
mod wanted;

use super::load;
use crate::cli::script::{Dialect, Search, Text};
use crate::cli::validated::{OutputOptions, Target};
use crate::error::Error;
use crate::files::Files;
use crate::report::Output;
use crate::target::{self, Image};
use crate::terminal::{printable, tell_plainly};
use rows::rows;
use std::io::Write;
use std::path::PathBuf;
use trapless_process::Process;
use wanted::Wanted;

/// What is said where the kernel's probes would be.
const KERNEL: &str = "probes are in the kernel, and only user programs are probed here: bpftrace, perf and ftrace list the kernel's";

/// Where something is looked for.
struct Place {
    /// Process and the files that it maps.
    process: Option<(Process, Vec<Image>)>,
    /// How files are read that no process maps.
    files: Files,
    /// Whether arguments are shown.
    verbose: bool,
}

impl Place {
    fn open(pid: Option<i32>, debug: &[PathBuf], verbose: bool) -> Result<Self, Error> {
        let files = Files::searching(debug.iter().cloned());
        let process = pid.map(target::open).transpose()?;
        let images = process.as_ref().map(|process| target::images(process, &files)).transpose()?;
        Ok(Self { process: process.zip(images), files, verbose })
    }
}

/// Lists what a pattern means.
///
/// # Errors
/// It makes no sense, there is no such process, or the output broke.
pub(super) fn search(search: &Search) -> Result<u8, Error> {
    let Search { pattern, pid, verbose, .. } = search;
    if pattern.contains('.') && !pattern.contains([':', '*']) && !std::path::Path::new(pattern).exists() {
        warn(&format!(
            "It appears that '{pattern}' is a filename but the file does not exist. Treating '{pattern}' as a search pattern."
        ));
    }
    let place = Place::open(*pid, &search.debug_directories, *verbose)?;
    let mut lines = Vec::new();
    for wanted in
        wanted::wanted(pattern, pid.is_some()).map_err(|what| Error::Script(Dialect::Bpftrace, what))?
    {
        match wanted {
            Wanted::Own(found) => lines.extend(found),
            Wanted::Kernel(provider) => warn(&format!("{provider} {KERNEL}")),
            Wanted::Types(name) => match types::definitions(&place, &name) {
                Ok(found) => lines.extend(found),
                Err(why) => warn(&why),
            },
            Wanted::Point(point) => match rows(&place, &point) {
                Ok(found) => lines.extend(found),
                Err(why) => warn(&why),
            },
        }
    }
    write(&search.output, &lines)
}

/// Lists what the attach points of a script mean.
///
/// # Errors
/// It is wrong, there is no such process, or the output broke.
pub(super) fn program(text: &Text) -> Result<u8, Error> {
    let pid = match &text.target {
        Some(Target::Processes(pids)) => pids.first().copied(),
        _ => None,
    };
    let points = load::attach_points(text)?;
    let place = Place::open(pid, &text.debug_directories, text.verbose)?;
    let mut lines = Vec::new();
    for (written, point) in &points {
        match wanted::of_point(written, point) {
            None => {}
            Some(Wanted::Own(found)) => lines.extend(found),
            Some(Wanted::Kernel(provider)) => warn(&format!("{provider} {KERNEL}")),
            Some(_) => match rows(&place, point) {
                Ok(found) => lines.extend(found),
                Err(why) => warn(&why),
            },
        }
    }
    write(&text.output, &lines)
}

fn warn(what: &str) {
    tell_plainly(&format!("WARNING: {what}\n"));
}

fn write(options: &OutputOptions, lines: &[String]) -> Result<u8, Error> {
    let destination = match &options.file {
        Some(file) => file.display().to_string(),
        None => "standard output".to_owned(),
    };
    let opened = match &options.file {
        Some(file) => Output::file(file),
        None => Output::stdout(),
    };
    let written = opened.and_then(|mut out| {
        // Definitions of types have tabs.
        lines.iter().try_for_each(|line| {
            let (indent, rest) = line.split_at(line.len() - line.trim_start_matches('\t').len());
            writeln!(out, "{indent}{}", printable(rest))
        })?;
        out.flush()
    });
    written.map_err(|error| Error::output(destination, error))?;
    Ok(0)
}
