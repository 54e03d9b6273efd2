//! What the benchmark shows: tables, or one JSON object per line.

use super::attach::Attach;
use super::rounds::{Cell, Measured};
use super::variant::Collector;
use crate::report::{Align, Table};
use serde::Serialize;
use std::io::{self, Write};

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
        Missing { collector: Collector, side: super::variant::Side, reason: &'a str },
        Attach(&'a Attach),
    }
    let missing = measured.missing.iter().map(|(variant, reason)| Line::Missing {
        collector: variant.collector,
        side: variant.side,
        reason,
    });
    let lines = std::iter::once(Line::Machine(machine))
        .chain(measured.cells.iter().map(Line::Hit))
        .chain(measured.scaling.iter().map(Line::Scaling))
        .chain(missing)
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
    let hypervisor = if machine.virtual_machine { ", virtual" } else { "" };
    let Machine { processor, processors, kernel, version, .. } = machine;
    writeln!(output, "trapless {version}, {processor} × {processors}{hypervisor}, Linux {kernel}")?;
    let rounds = measured.cells.first().map_or(0, |cell| cell.rounds);
    for cell in measured.cells.iter().filter(|c| c.collector.is_none() && !c.name.starts_with("call-")) {
        writeln!(output, "{:<16} {:>9.3} M/s", cell.name, cell.millions_per_second)?;
    }
    if measured.cells.iter().any(|cell| cell.collector.is_some()) {
        writeln!(output, "\nNanoseconds per hit above the unprobed call, median of {rounds}")?;
        hits(measured).write(output, None)?;
        writeln!(output, "\nMillion calls per second")?;
        calls(measured).write(output, None)?;
    }
    if !measured.scaling.is_empty() {
        writeln!(output, "\nThreads on one site: nanoseconds of processor time per hit")?;
        scaling(measured).write(output, None)?;
    }
    for (variant, reason) in &measured.missing {
        writeln!(output, "\nno {} for {}: {reason}", variant.collector.heading(), variant.side.row("*"))?;
    }
    if !attached.is_empty() {
        writeln!(output, "\nArming and removing, milliseconds")?;
        arming(attached).write(output, None)?;
    }
    output.flush()
}

const COLLECTORS: [Collector; 4] =
    [Collector::Count, Collector::Latency, Collector::Record, Collector::Kernel];

/// Names of probed rows, once each: entries first.
fn names(cells: &[Cell]) -> Vec<&str> {
    let mut names = Vec::new();
    for prefix in ["uprobe-", "uretprobe-"] {
        for cell in cells.iter().filter(|cell| cell.name.starts_with(prefix)) {
            if !names.contains(&cell.name.as_str()) {
                names.push(&cell.name);
            }
        }
    }
    names
}

fn find<'m>(cells: &'m [Cell], name: &str, collector: Option<Collector>) -> Option<&'m Cell> {
    cells.iter().find(|cell| cell.name == name && cell.collector == collector)
}

/// Three digits at least, no more than are known.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn table(first: &str, others: &[&str]) -> Table {
    let others = others.iter().map(|&heading| (heading, Align::Right));
    let columns: Vec<_> = std::iter::once((first, Align::Left)).chain(others).collect();
    Table::new(&columns)
}

fn hits(measured: &Measured) -> Table {
    let mut table =
        table("NAME", &["COUNT", "LATENCY", "RECORD", "TRAPS", "KERNEL", "TRAPS", "KERNEL/COUNT"]);
    for name in names(&measured.cells) {
        let cell = |collector| find(&measured.cells, name, Some(collector));
        let hit = |collector| cell(collector).and_then(|cell| cell.hit_ns);
        let shown = |collector| hit(collector).map_or("-".to_owned(), number);
        let traps = |collector| {
            cell(collector).and_then(|cell| cell.traps).map_or("-".to_owned(), |traps| traps.to_string())
        };
        let ratio = hit(Collector::Kernel).zip(hit(Collector::Count)).filter(|(_, count)| *count > 0.0);
        let [count, latency, record, kernel] = COLLECTORS.map(shown);
        table.row([
            name.to_owned(),
            count,
            latency,
            record,
            traps(Collector::Count),
            kernel,
            traps(Collector::Kernel),
            ratio.map_or("-".to_owned(), |(kernel, count)| format!("{:.0}", kernel / count)),
        ]);
    }
    table
}

fn calls(measured: &Measured) -> Table {
    let mut table = table("NAME", &["UNPROBED", "COUNT", "LATENCY", "RECORD", "KERNEL"]);
    for name in names(&measured.cells) {
        let (_, trigger) = name.split_once('-').unwrap_or(("", name));
        let bare = find(&measured.cells, &format!("call-{trigger}"), None);
        let cells = COLLECTORS.map(|collector| find(&measured.cells, name, Some(collector)));
        let shown = |cell: Option<&Cell>| {
            cell.map_or("-".to_owned(), |cell| format!("{:.3}", cell.millions_per_second))
        };
        table.row([name.to_owned()].into_iter().chain([shown(bare)]).chain(cells.map(shown)));
    }
    table
}

fn scaling(measured: &Measured) -> Table {
    let mut threads: Vec<u32> = measured.scaling.iter().map(|cell| cell.threads).collect();
    threads.dedup();
    let headings: Vec<String> = threads.iter().map(u32::to_string).collect();
    let headings: Vec<&str> = ["BY"].into_iter().chain(headings.iter().map(String::as_str)).collect();
    let mut table = table("NAME", &headings);
    for name in names(&measured.scaling) {
        for collector in COLLECTORS {
            let of = |&threads: &u32| {
                let mut cells = measured.scaling.iter();
                let cell =
                    cells.find(|c| c.name == name && c.collector == Some(collector) && c.threads == threads);
                cell.and_then(|cell| cell.hit_ns).map_or("-".to_owned(), number)
            };
            if find(&measured.scaling, name, Some(collector)).is_some() {
                let heading = collector.heading().to_lowercase();
                table.row([name.to_owned(), heading].into_iter().chain(threads.iter().map(of)));
            }
        }
    }
    table
}

fn arming(attached: &[Attach]) -> Table {
    let mut table = table("SITES", &["RETURNS", "ARMED AFTER", "STOPPED", "STOPPED TO REMOVE"]);
    for attach in attached {
        table.row([
            attach.sites.to_string(),
            if attach.returns { "yes" } else { "no" }.to_owned(),
            number(attach.armed_ms),
            number(attach.stopped_ms),
            number(attach.removal_stopped_ms),
        ]);
    }
    table
}
