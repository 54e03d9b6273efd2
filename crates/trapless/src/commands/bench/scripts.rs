//! `bench --script`: what scripts cost, as a table or as JSON lines.

use super::report::Machine;
use super::tables::{number, table};
use super::{progress, wanted};
use crate::cli::validated::Bench;
use crate::error::Error;
use crate::report::Table;
use serde::Serialize;
use std::io::{self, Write};
use trapless_bench::scripts::catalog::{self, ARMED, Script};
use trapless_bench::scripts::rounds::{self, Armed, Arming, Choice, Hit, Measured, Missing};
use trapless_bench::scripts::tool::Kind;

/// Measures and shows what was chosen: those of the known scripts that match, and these texts.
///
/// # Errors
/// No name is meant, trapless does not run a script, or the output broke.
pub(super) fn run(bench: &Bench, texts: &[String]) -> Result<u8, Error> {
    let is_wanted = |name: &str| (texts.is_empty() || !bench.names.is_empty()) && wanted(bench, name);
    let known = catalog::scripts().into_iter().filter(|script| is_wanted(&script.name));
    let typed = texts.iter().enumerate().map(|(index, text)| match texts.len() {
        1 => catalog::typed(text),
        _ => Script { name: format!("typed {}", index + 1), ..catalog::typed(text) },
    });
    let choice = Choice {
        scripts: known.chain(typed).collect(),
        arming: if is_wanted(ARMED) { Arming::Measured } else { Arming::Left },
        rounds: bench.rounds,
    };
    if choice.scripts.is_empty() && choice.arming == Arming::Left {
        let known: Vec<String> = catalog::scripts().into_iter().map(|script| script.name).collect();
        let known = known.join(" ");
        return Err(Error::Usage(format!(
            "no script matches; there are {known} {ARMED}, and texts with blocks"
        )));
    }
    if let Some(text) = texts.iter().find(|text| !text.contains(catalog::FILE)) {
        return Err(Error::Usage(format!(
            "no probe of '{text}' is in the benchmark: uprobe:bench:called {{ … }}"
        )));
    }
    let measured = rounds::measure(&choice, &mut progress("scripts"))?;
    let mut output = bench.output.open()?;
    let show = if bench.output.json { json } else { text };
    show(&mut output, &Machine::this(), &measured).map_err(|error| bench.output.error(error))?;
    Ok(0)
}

/// Everything as JSON lines, each with its type in front.
fn json(output: &mut dyn Write, machine: &Machine, measured: &Measured) -> io::Result<()> {
    #[derive(Serialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Line<'a> {
        Machine {
            #[serde(flatten)]
            machine: &'a Machine,
            #[serde(skip_serializing_if = "Option::is_none")]
            bpftrace: Option<&'a str>,
        },
        Script(&'a Hit),
        Armed(&'a Armed),
        Missing(&'a Missing),
    }
    let lines = std::iter::once(Line::Machine { machine, bpftrace: measured.bpftrace.as_deref() })
        .chain(measured.hits.iter().map(Line::Script))
        .chain(measured.armed.iter().map(Line::Armed))
        .chain(measured.missing.iter().map(Line::Missing));
    for line in lines {
        serde_json::to_writer(&mut *output, &line).map_err(io::Error::from)?;
        writeln!(output)?;
    }
    output.flush()
}

/// Everything as a table, with the texts below it.
fn text(output: &mut dyn Write, machine: &Machine, measured: &Measured) -> io::Result<()> {
    write!(output, "{machine}")?;
    match &measured.bpftrace {
        Some(version) => writeln!(output, ", {version}")?,
        None => writeln!(output)?,
    }
    let rounds = measured.hits.first().map_or(0, |hit| hit.rounds);
    if let Some(hit) = measured.hits.first() {
        let bare = number(hit.bare_ns);
        writeln!(output, "\nNanoseconds per hit above the unprobed call ({bare} ns), median of {rounds}")?;
        hits(measured).write(output, None)?;
    }
    if let Some(armed) = measured.armed.first() {
        writeln!(
            output,
            "\nMilliseconds from a tool's start to an attached probe, median of {}",
            armed.rounds
        )?;
        arming(measured).write(output, None)?;
    }
    let mut texts: Vec<(&str, &str)> = Vec::new();
    let named = measured.hits.iter().map(|hit| (hit.name.as_str(), hit.script.as_str()));
    for (name, script) in named.chain(measured.armed.iter().map(|armed| (ARMED, armed.script))) {
        if !texts.iter().any(|(known, _)| *known == name) {
            texts.push((name, script));
        }
    }
    writeln!(output)?;
    for (name, script) in texts {
        writeln!(output, "{name}: {script}")?;
    }
    for Missing { tool, name, reason } in &measured.missing {
        writeln!(output, "no {} at {name}: {reason}", tool.name())?;
    }
    output.flush()
}

/// The headings of both tables, behind the name's.
const HEADINGS: [&str; 4] = ["TRAPLESS", "BUDGET", "BPFTRACE", "BPFTRACE/TRAPLESS"];

/// A row of either table.
fn row(name: &str, ours: f64, budget: Option<f64>, theirs: Option<f64>) -> [String; 5] {
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let ratio = theirs.filter(|_| ours > 0.0).map(|theirs| theirs / ours);
    let ratio = ratio.map_or("-".to_owned(), |ratio| match ratio {
        ratio if ratio < 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.0}"),
    });
    let budget = budget.map_or("-".to_owned(), |budget| budget.to_string());
    [name.to_owned(), number(ours), budget, shown(theirs), ratio]
}

fn hits(measured: &Measured) -> Table {
    let mut table = table("SCRIPT", &HEADINGS);
    for ours in measured.hits.iter().filter(|hit| hit.tool == Kind::Trapless) {
        let theirs = measured.hits.iter().find(|hit| hit.tool == Kind::Bpftrace && hit.name == ours.name);
        table.row(row(&ours.name, ours.hit_ns, ours.budget_ns, theirs.map(|hit| hit.hit_ns)));
    }
    table
}

fn arming(measured: &Measured) -> Table {
    let mut table = table("SCRIPT", &HEADINGS);
    for ours in measured.armed.iter().filter(|armed| armed.tool == Kind::Trapless) {
        let theirs = measured.armed.iter().find(|armed| armed.tool == Kind::Bpftrace);
        table.row(row(ARMED, ours.ms, ours.budget_ms, theirs.map(|armed| armed.ms)));
    }
    table
}
