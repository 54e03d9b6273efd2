//! The quick forms: `count`, `latency` and `trace` with expressions, and `hist`. They are scripts that are put together, and run as those do;
//! what they tell is shown as these verbs show their numbers.
//!
//! ```text
//!     --where, --by, --arg …        program: parsed, named by debug information, put into a frame of the script language
//!             │
//!             ▼
//!     load ─▶ Points ─▶ Scripted    as for any script, at the places that the verb's own specifications mean
//!             │
//!             ▼
//!     source: maps and messages of each process ─▶ rows and hits ─▶ the verb's own reporter
//! ```

mod names;
mod program;
mod source;
mod values;

use super::known::{Chosen, Known};
use super::load;
use super::probed::Points;
use super::scripted::Scripted;
use crate::cli::quick::{Form, Quick};
use crate::cli::script::{Buffering, Dialect, Source, Task, Text, Warnings};
use crate::cli::validated::{CodeFor, OutputOptions, Run, Selection, Target};
use crate::commands::run::of_source;
use crate::error::Error;
use crate::report::View;
use program::{Meaning, Written};
use std::sync::Arc;
use trapless_script::ir::{MapSharing, Readers};

/// Does what was asked.
///
/// # Errors
/// An expression is wrong, which has been told; nothing could be probed, or the output broke.
pub fn run(run: Run, asked: &Quick) -> Result<u8, Error> {
    check(&run, asked)?;
    let text = Text { is_unsafe: matches!(asked.form, Form::Inject(_)), ..text(&run) };
    let mut written = Written::parse(&text, asked)?;
    let (chosen, places) = program::places(&run.selection, asked, &written)?;
    let known = Known::new(&text, places.iter().flat_map(|(_, points)| points).map(|(_, point)| point));
    let known =
        known.choosing(Chosen { specs: chosen.clone(), exclusions: run.selection.exclusions.clone() });
    names::settle(&text, &mut written, &known, &places)?;
    let (script, meaning) = program::script(&text, &mut written, asked, &run, &places)?;
    let Written { sources, told, .. } = written;
    let mut loaded = load::compiled(&text, script, &sources, told, &known)?;
    drop(known);
    let maps = loaded.compiled.program.maps.iter_mut();
    for map in maps.filter(|map| program::OF_PROCESS.contains(&map.name.as_str())) {
        map.sharing = MapSharing::PerProcess(Readers::Nobody);
    }
    let points = Points::chosen(&text, &loaded, &chosen)?;
    let scripted = Arc::new(Scripted::new(&loaded.compiled.program, &points, &text)?);
    let code: Arc<dyn CodeFor> = scripted.clone();
    let run =
        Run { script: Some(code), selection: Selection { probes: points.probes, ..run.selection }, ..run };
    let view = match asked.form {
        Form::Count | Form::Inject(_) => View::Count,
        Form::Latency => View::Latency,
        Form::Trace(_) => View::Trace,
        Form::Hist { .. } => View::Values,
    };
    let meaning = Meaning { most: run.limits.max_events, ..meaning };
    let source = source::Quickly::new(scripted, &loaded.compiled, meaning, run.output.folded);
    of_source(&run, view, Box::new(source))
}

/// Refuses what cannot be.
fn check(run: &Run, asked: &Quick) -> Result<(), Error> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    let stacks = asked.stack.is_some() || asked.by.iter().any(|by| by.trim_start().starts_with("ustack"));
    if run.output.folded && !(asked.form == Form::Count && stacks) {
        return usage("-f folded is for counts by call stack: trapless count … --stack -f folded");
    }
    let is_one = match &run.target {
        Target::Processes(pids) => pids.len() == 1,
        Target::Launch(_) => true,
        Target::Whoever(_) => false,
    };
    let counts = !matches!(asked.form, Form::Trace(_));
    if run.limits.max_events.is_some() && counts && (run.follow || !is_one) {
        return usage(match asked.form {
            Form::Inject(_) => {
                "--count and -M count the calls of one process; give one -p PID, without --follow, or leave them out"
            }
            _ => {
                "with expressions, -M counts the hits of one process; give one -p PID, without --follow, or leave out -M"
            }
        });
    }
    Ok(())
}

/// The command line as that of a script.
fn text(run: &Run) -> Text {
    let target = match &run.target {
        // Whoever runs the files that probes name.
        Target::Whoever(whoever) if !whoever.files.is_empty() => None,
        other => Some(other.clone()),
    };
    Text {
        source: Source::Argument(String::new()),
        task: Task::Run,
        positional: Vec::new(),
        named: Vec::new(),
        target,
        follow: run.follow,
        include_directories: Vec::new(),
        include_files: Vec::new(),
        debug_directories: run.debug_directories.clone(),
        is_unsafe: false,
        warnings: Warnings::Usual,
        quiet: true,
        verbose: false,
        stages: Vec::new(),
        only: None,
        output: OutputOptions::default(),
        buffering: Buffering::Line,
        allow_seccomp: run.allow_seccomp,
        mechanisms: run.selection.mechanisms.clone(),
        dialect: Dialect::Own,
    }
}
