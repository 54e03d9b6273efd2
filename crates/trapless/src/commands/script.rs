//! Scripts: what is done with one.
//!
//! A text becomes a [`Compiled`](trapless_script::lower::Compiled) script ([`load`]). Its probes that need no target run in this process
//! ([`trapless_running::own`]), under a [course](mod@course) that says when what happens, and prints.

mod bounds;
mod collector;
mod course;
mod environment;
mod info;
mod known;
mod listing;
mod load;
mod machine;
mod missing;
mod other;
mod probed;
mod quick;
mod scripted;
mod streams;
mod suite;
mod targets;
mod traced;
mod variants;
mod walks;

use crate::cli::script::{Script, Source, Task, Text};
use crate::commands::signals;
use crate::error::Error;
use course::Course;
use load::Loaded;
use other::Other;
use probed::Points;
pub(super) use quick::run as quick;
use scripted::Scripted;
use std::io::Write;
use std::sync::{Arc, Mutex};
use trapless_running::store::Store;
use trapless_wire::ScriptLayout;

pub(super) use scripted::check_sandbox;

/// Does what was asked.
///
/// # Errors
/// The script is wrong, nothing could be probed, or the output broke.
pub(super) fn run(script: Script) -> Result<u8, Error> {
    match script {
        Script::Say(text) => say(&text),
        Script::Info => say(&info::text()),
        Script::Search(search) => listing::search(&search),
        Script::Text(text) => work(&text),
    }
}

fn say(text: &str) -> Result<u8, Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Error::output("standard output", error))?;
    Ok(0)
}

fn work(text: &Text) -> Result<u8, Error> {
    if text.task == Task::Format {
        return say(&load::formatted(text)?);
    }
    if text.task == Task::List {
        return listing::program(text);
    }
    let ended = signals::install();
    let loaded = load::load(text)?;
    match text.task {
        Task::Compile => Ok(0),
        Task::Test => suite::tests(text, loaded),
        Task::Bench => suite::benchmarks(text, loaded),
        _ => course(text, loaded, ended),
    }
}

/// Runs a script.
fn course(text: &Text, loaded: Loaded, ended: signals::Ended) -> Result<u8, Error> {
    let points = Points::of(text, &loaded)?;
    if points.probes.is_empty() {
        let store = Store::new(&loaded.compiled.program, ScriptLayout::default());
        let course = Course::new(text, loaded, Arc::new(Mutex::new(store)))?;
        return course.alone(ended, Other::of(text.target.as_ref())?);
    }
    let scripted = Arc::new(Scripted::new(&loaded.compiled.program, &points, text)?);
    let course = Course::new(text, loaded, Arc::clone(&scripted.store))?;
    targets::run_in_targets(text, course, scripted, points, ended)
}

/// How a text is called in what is said of it.
fn name_of(source: &Source) -> String {
    match source {
        Source::Argument(_) | Source::Stdin => "stdin".to_owned(),
        Source::File(path) => path.display().to_string(),
    }
}
