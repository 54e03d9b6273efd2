//! `bench`: the trigger benchmark, and the cost of attaching.

mod report;
mod scripts;
mod tables;

use crate::cli::validated::{Bench, BenchOf};
use crate::error::Error;
use std::io::{IsTerminal, Write};
use trapless_bench::attach;
use trapless_bench::child::BASELINES;
use trapless_bench::rounds::{self, Choice, Measured};
use trapless_bench::triggers::{Side, TRIGGERS, Trigger};

/// How often arming is measured at most: it is long and varies little.
const MOST_ATTACHES: u32 = 5;

/// Measures and shows what was chosen.
///
/// # Errors
/// No name is meant, or the output broke.
pub fn run(bench: &Bench) -> Result<u8, Error> {
    match &bench.of {
        BenchOf::Triggers { bits, threads } => triggers(bench, bits, *threads),
        BenchOf::Scripts(texts) => scripts::run(bench, texts),
    }
}

/// Measures triggers, and arming.
fn triggers(bench: &Bench, bits: &[u32], threads: Option<u32>) -> Result<u8, Error> {
    let choice = choose(bench, bits, threads);
    let attaches = bench.names.is_empty() || wanted(bench, "attach");
    let measures = !choice.rows.is_empty() || !choice.baselines.is_empty();
    if !measures && !attaches {
        let known: Vec<String> = all().map(|(trigger, side)| side.row(TRIGGERS[trigger].name)).collect();
        let (known, baselines) = (known.join(" "), BASELINES.map(|(_, name)| name).join(" "));
        return Err(Error::Usage(format!("no benchmark matches; there are {baselines} {known} attach")));
    }
    let measured = match measures {
        true => rounds::measure(&choice, &mut progress("hits"))?,
        false => Measured::default(),
    };
    let mut attached = Vec::new();
    for (sites, returns) in attach::RUNS {
        if attaches {
            attached.push(attach::measure(sites, returns, bench.rounds.min(MOST_ATTACHES))?);
        }
    }
    let mut output = bench.output.open()?;
    let show = if bench.output.json { report::json } else { report::text };
    let machine = report::Machine::this();
    show(&mut output, &machine, &measured, &attached).map_err(|error| bench.output.error(error))?;
    Ok(0)
}

/// Every row.
fn all() -> impl Iterator<Item = (usize, Side)> {
    let rows = |(index, sides): (usize, &'static [Side])| sides.iter().map(move |&side| (index, side));
    TRIGGERS.iter().map(Trigger::sides).enumerate().flat_map(rows)
}

fn wanted(bench: &Bench, name: &str) -> bool {
    bench.names.is_empty() || bench.names.iter().any(|pattern| pattern.matches(name))
}

fn choose(bench: &Bench, bits: &[u32], threads: Option<u32>) -> Choice {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let baselines = BASELINES.into_iter().filter(|_| bits.contains(&trapless_bench::OWN_BITS));
    Choice {
        rows: all().filter(|(trigger, side)| wanted(bench, &side.row(TRIGGERS[*trigger].name))).collect(),
        bits: bits.to_vec(),
        baselines: baselines.filter(|(_, name)| wanted(bench, name)).collect(),
        rounds: bench.rounds,
        threads: threads.unwrap_or(processors as u32),
    }
}

/// Says how far it is, to a person who waits.
fn progress(of: &'static str) -> impl FnMut(f64) {
    let terminal = std::io::stderr().is_terminal();
    let mut shown = 0;
    move |part| {
        let percent = (part * 100.0) as u32;
        if terminal && percent != shown {
            shown = percent;
            let end = if percent == 100 { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\rmeasuring {of}: {percent} %{end}");
        }
    }
}
