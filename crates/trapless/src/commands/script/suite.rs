//! `--test` and `--bench`: the probes of a script that test and measure it.

use super::course::options;
use super::load::Loaded;
use super::streams::Streams;
use crate::cli::script::Text;
use crate::error::Error;
use crate::spec::{Pattern, Syntax};
use std::io;
use trapless_running::course::{now, own_probes};
use trapless_running::names::{Names, SiteNames};
use trapless_running::own::Own;
use trapless_script::interp::maps::Tables;
use trapless_script::machine::{Event, Machine, Outside, OwnProbe};
use trapless_script::output::{self, Benchmark, Options, Tested};

/// A benchmark runs until it takes so long.
const LONG_ENOUGH: u64 = 1_000_000;

/// What `--probe-filter` lets run.
///
/// # Errors
/// It is no regular expression.
pub(super) fn filter(text: &Text) -> Result<Option<Pattern>, Error> {
    let pattern = |only: &String| {
        Pattern::new(only, Syntax::Regex).map_err(|error| {
            Error::Script(text.dialect, format!("Invalid --probe-filter regex '{only}': {}", error.what))
        })
    };
    text.only.as_ref().map(pattern).transpose()
}

/// A machine for one kind of probes, and those.
struct Suite {
    machine: Machine,
    names: Names,
    probes: Vec<(OwnProbe, String)>,
    streams: Streams,
    own: Own,
    maps: Tables,
}

impl Suite {
    fn new(text: &Text, loaded: Loaded, is_meant: impl Fn(&Event) -> bool) -> Result<Self, Error> {
        let only = filter(text)?;
        let printed = Options { prints_maps: false, ..options(text, &loaded.settings) };
        let (mut names, mut probes, mut begins) = (Names::default(), Vec::new(), Vec::new());
        for (probe, name) in own_probes(&loaded.compiled) {
            names.name_site(probe.site, SiteNames { probe: name.clone(), function: String::new() });
            if probe.event == Event::Begin {
                begins.push(probe);
            } else if is_meant(&probe.event) && only.as_ref().is_none_or(|only| only.matches(&name)) {
                probes.push((probe, name));
            }
        }
        let compiled = loaded.compiled;
        let maps = Tables::new(&compiled.program);
        let machine =
            Machine::new(compiled.program, compiled.messages, begins, printed).map_err(Error::other)?;
        Ok(Self { machine, names, probes, streams: Streams::open(text)?, own: Own::now(), maps })
    }

    /// Lets the machine do something, and prints.
    fn step<T>(
        &mut self,
        work: impl FnOnce(&mut Machine, &mut Outside<'_>) -> io::Result<T>,
    ) -> Result<T, Error> {
        let Self { machine, names, own, streams, maps, .. } = self;
        let (mut out, mut err) = streams.both();
        let both = output::Streams { out: &mut out, err: &mut err };
        let done = work(machine, &mut Outside { hit: own, maps, resolver: names, streams: both });
        streams.printed(done)
    }

    /// Runs a body whose output goes nowhere but into `printed`; its result, the nanoseconds it took, and whether it ended the script or
    /// said that something is wrong.
    fn run(&mut self, probe: &OwnProbe, printed: &mut Vec<u8>) -> Result<Ran, Error> {
        let Self { machine, names, own, maps, .. } = self;
        let mut told = Vec::new();
        let streams = output::Streams { out: printed, err: &mut told };
        let mut outside = Outside { hit: own, maps, resolver: names, streams };
        let since = now();
        let result = machine.run(probe.body, probe.site, &mut outside).map_err(Error::other)?;
        let duration = now().saturating_sub(since);
        let has_errors = !told.is_empty();
        printed.extend(told);
        let exit = machine.take_exit();
        Ok(Ran { result: result.unwrap_or(0), duration, exit, has_errors })
    }
}

/// What came of a run.
struct Ran {
    result: i64,
    duration: u64,
    exit: Option<i32>,
    has_errors: bool,
}

/// Runs all tests; the exit code.
///
/// # Errors
/// Those of the output.
pub(super) fn tests(text: &Text, loaded: Loaded) -> Result<u8, Error> {
    let mut suite = Suite::new(text, loaded, |event| matches!(event, Event::Test(_)))?;
    suite.step(|machine, outside| machine.begin(now(), outside))?;
    let probes = suite.probes.clone();
    suite.step(|machine, outside| machine.printer().tests_begin(probes.len(), &mut outside.streams))?;
    let mut all = Vec::new();
    for (probe, name) in &probes {
        let mut printed = Vec::new();
        let ran = suite.run(probe, &mut printed)?;
        let passed = ran.result == 0 && ran.exit.unwrap_or(0) == 0 && !ran.has_errors;
        let name = name.strip_prefix("test:").unwrap_or(name).to_owned();
        let tested = Tested { name, passed, duration: ran.duration, printed };
        suite.step(|machine, outside| machine.printer().tested(&tested, &mut outside.streams))?;
        all.push(tested);
    }
    suite.step(|machine, outside| machine.printer().tests_end(&all, &mut outside.streams))?;
    Ok(u8::from(all.iter().any(|tested| !tested.passed)))
}

/// Runs all benchmarks.
///
/// # Errors
/// Those of the output.
pub(super) fn benchmarks(text: &Text, loaded: Loaded) -> Result<u8, Error> {
    let mut suite = Suite::new(text, loaded, |event| matches!(event, Event::Benchmark(_)))?;
    suite.step(|machine, outside| machine.begin(now(), outside))?;
    let mut all = Vec::new();
    for (probe, name) in &suite.probes.clone() {
        let mut runs = 1u64;
        loop {
            let since = now();
            let mut skipped = false;
            for _ in 0..runs {
                let mut printed = Vec::new();
                let ran = suite.run(probe, &mut printed)?;
                skipped |= ran.exit.is_none() && ran.result != 0;
            }
            let took = now().saturating_sub(since);
            if skipped {
                break;
            }
            if took >= LONG_ENOUGH {
                let name = name.strip_prefix("bench:").unwrap_or(name).to_owned();
                all.push(Benchmark { name, average: took / runs, runs });
                break;
            }
            runs *= 2;
        }
    }
    suite.step(|machine, outside| machine.printer().benchmarks(&all, &mut outside.streams))?;
    Ok(0)
}
