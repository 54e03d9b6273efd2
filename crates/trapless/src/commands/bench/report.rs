//! What the benchmark shows: tables, or one JSON object per line.

use super::tables;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use trapless_bench::attach::Attach;
use trapless_bench::rounds::{Cell, Measured, Missing};

/// Where the numbers are from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub processor: String,
    /// How many of them.
    pub processors: usize,
    /// Whether a hypervisor is below; single steps are dear there.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
    /// Version of this program.
    pub version: &'static str,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = information.lines().find(|line| line.starts_with(name))?;
            line.split_once(':').map(|(_, value)| value.trim())
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: field("model name").unwrap_or("unknown processor").to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel: kernel.trim().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hypervisor = if self.virtual_machine { ", virtual" } else { "" };
        let Machine { processor, processors, kernel, version, .. } = self;
        write!(f, "trapless {version}, {processor} × {processors}{hypervisor}, Linux {kernel}")
    }
}

/// Everything as JSON lines, each with its type in front.
///
/// # Errors
/// Those of the output.
pub fn json(
    output: &mut dyn Write,
    machine: &Machine,
    measured: &Measured,
    attached: &[Attach],
) -> io::Result<()> {
    #[derive(Serialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Line<'a> {
        Machine(&'a Machine),
        Hit(&'a Cell),
        Scaling(&'a Cell),
        Missing(&'a Missing),
        Attach(&'a Attach),
    }
    let lines = std::iter::once(Line::Machine(machine))
        .chain(measured.cells.iter().map(Line::Hit))
        .chain(measured.scaling.iter().map(Line::Scaling))
        .chain(measured.missing.iter().map(Line::Missing))
        .chain(attached.iter().map(Line::Attach));
    for line in lines {
        serde_json::to_writer(&mut *output, &line).map_err(io::Error::from)?;
        writeln!(output)?;
    }
    output.flush()
}

/// Everything as tables.
///
/// # Errors
/// Those of the output.
pub fn text(
    output: &mut dyn Write,
    machine: &Machine,
    measured: &Measured,
    attached: &[Attach],
) -> io::Result<()> {
    writeln!(output, "{machine}")?;
    let rounds = measured.cells.first().map_or(0, |cell| cell.rounds);
    for cell in measured.cells.iter().filter(|c| c.collector.is_none() && !c.name.starts_with("call-")) {
        writeln!(output, "{:<16} {:>9.3} M/s", cell.name, cell.millions_per_second)?;
    }
    let is_probed = |bits: u32| measured.cells.iter().any(|c| c.bits == bits && c.collector.is_some());
    let kinds: Vec<u32> = [64, 32].into_iter().filter(|&bits| is_probed(bits)).collect();
    for &bits in &kinds {
        writeln!(output, "\nNanoseconds per hit above the unprobed call, {bits}-bit, median of {rounds}")?;
        tables::hits(measured, bits).write(output, None)?;
    }
    for &bits in &kinds {
        writeln!(output, "\nMillion calls per second, {bits}-bit")?;
        tables::calls(measured, bits).write(output, None)?;
    }
    if !measured.scaling.is_empty() {
        writeln!(output, "\nThreads on one site: nanoseconds of processor time per hit")?;
        tables::scaling(measured).write(output, None)?;
    }
    for &bits in &kinds {
        writeln!(output, "\n{LADDER}, {bits}-bit: nanoseconds per hit, and its traps (T)")?;
        tables::ladder(measured, bits).write(output, None)?;
    }
    if !kinds.is_empty() {
        writeln!(output, "{TIMED}")?;
    }
    for &bits in &kinds {
        writeln!(output, "\n{LADDER}, {bits}-bit: a hit by one rung beside a hit by another")?;
        tables::ratios(measured, bits).write(output, None)?;
    }
    missing(output, measured)?;
    if !attached.is_empty() {
        writeln!(output, "\nArming and removing, milliseconds")?;
        tables::arming(attached).write(output, None)?;
    }
    output.flush()
}

/// What the headings of the rungs begin with; `scripts/benchmarks` goes by it.
const LADDER: &str = "The ladder";

const TIMED: &str = "Step, emulate, boost: the time that passes, since a thread waits for its tracer.\n\
                     Jump, kernel: the thread's processor time.";

/// Cells that are not there, with one line for all rows of a collector that have the same reason, and for all
/// collectors of these rows.
fn missing(output: &mut dyn Write, measured: &Measured) -> io::Result<()> {
    struct Line<'m> {
        bits: u32,
        collectors: Vec<String>,
        names: Vec<&'m str>,
        reason: &'m str,
    }
    let mut lines: Vec<Line<'_>> = Vec::new();
    for Missing { bits, collector, name, reason } in &measured.missing {
        let collectors = vec![collector.map_or("rows".to_owned(), |c| c.heading().to_lowercase())];
        let is_same =
            |line: &&mut Line<'_>| (line.bits, &line.collectors, line.reason) == (*bits, &collectors, reason);
        match lines.iter_mut().find(is_same) {
            Some(line) => line.names.push(name),
            None => lines.push(Line { bits: *bits, collectors, names: vec![name], reason }),
        }
    }
    lines.dedup_by(|next, line| {
        let is_same = (next.bits, &next.names, next.reason) == (line.bits, &line.names, line.reason);
        if is_same {
            line.collectors.append(&mut next.collectors);
        }
        is_same
    });
    for (index, Line { bits, collectors, names, reason }) in lines.iter().enumerate() {
        let before = if index == 0 { "\n" } else { "" };
        writeln!(output, "{before}no {bits}-bit {} at {}: {reason}", collectors.join(", "), names.join(" "))?;
    }
    Ok(())
}
