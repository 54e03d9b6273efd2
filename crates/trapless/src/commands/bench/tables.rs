//! What was measured, as tables for people. None is wider than 80 columns.

use crate::report::{Align, Table};
use trapless_bench::OWN_BITS;
use trapless_bench::attach::Attach;
use trapless_bench::rounds::{Cell, Measured, median};
use trapless_bench::variant::Collector;

/// The columns that the table of collectors shows.
const COLLECTORS: [Collector; 4] =
    [Collector::Count, Collector::Latency, Collector::Record, Collector::Kernel];

/// The rungs, from the dearest of ours on. The last one is the kernel's.
const LADDER: [Collector; 5] =
    [Collector::Step, Collector::Emulate, Collector::Boost, Collector::Count, Collector::Kernel];

/// What names of probed rows begin with, in the order in which they are shown.
const PREFIXES: [&str; 3] = ["uprobe-", "uretprobe-", "usdt-"];

/// Names of probed rows, once each: entries first.
fn names(cells: &[Cell], bits: u32) -> Vec<&str> {
    let mut names = Vec::new();
    for prefix in PREFIXES {
        for cell in cells.iter().filter(|cell| cell.bits == bits && cell.name.starts_with(prefix)) {
            if !names.contains(&cell.name.as_str()) {
                names.push(&cell.name);
            }
        }
    }
    names
}

fn find<'m>(cells: &'m [Cell], bits: u32, name: &str, collector: Option<Collector>) -> Option<&'m Cell> {
    cells.iter().find(|cell| cell.bits == bits && cell.name == name && cell.collector == collector)
}

/// Three digits at least, no more than are known.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn hit(cell: Option<&Cell>) -> String {
    cell.and_then(|cell| cell.hit_ns).map_or("-".to_owned(), number)
}

fn traps(cell: Option<&Cell>) -> String {
    cell.and_then(|cell| cell.traps).map_or("-".to_owned(), |traps| traps.to_string())
}

/// How many times one hit costs what another does, where both are there.
fn ratio(this: Option<&Cell>, other: Option<&Cell>) -> Option<f64> {
    let (this, other) = (this?.hit_ns?, other?.hit_ns?);
    (other > 0.0).then(|| this / other)
}

pub(super) fn table(first: &str, others: &[&str]) -> Table {
    let others = others.iter().map(|&heading| (heading, Align::Right));
    let columns: Vec<_> = std::iter::once((first, Align::Left)).chain(others).collect();
    Table::new(&columns)
}

/// A hit by what is collected.
pub(super) fn hits(measured: &Measured, bits: u32) -> Table {
    let mut table =
        table("NAME", &["COUNT", "LATENCY", "RECORD", "TRAPS", "KERNEL", "TRAPS", "KERNEL/COUNT"]);
    for name in names(&measured.cells, bits) {
        let [count, latency, record, kernel] =
            COLLECTORS.map(|collector| find(&measured.cells, bits, name, Some(collector)));
        table.row([
            name.to_owned(),
            hit(count),
            hit(latency),
            hit(record),
            traps(count),
            hit(kernel),
            traps(kernel),
            ratio(kernel, count).map_or("-".to_owned(), |ratio| format!("{ratio:.0}")),
        ]);
    }
    table
}

/// A hit by how the collector gets control, and how often it traps for that.
pub(super) fn ladder(measured: &Measured, bits: u32) -> Table {
    let mut table = table("NAME", &["STEP", "T", "EMULATE", "T", "BOOST", "T", "JUMP", "T", "KERNEL", "T"]);
    for name in names(&measured.cells, bits) {
        let cells = LADDER.map(|collector| find(&measured.cells, bits, name, Some(collector)));
        let shown = cells.into_iter().flat_map(|cell| [hit(cell), traps(cell)]);
        table.row(std::iter::once(name.to_owned()).chain(shown));
    }
    table
}

/// What the rungs cost beside each other, and in the last rows the medians.
pub(super) fn ratios(measured: &Measured, bits: u32) -> Table {
    use Collector::{Boost, Count, Emulate, Kernel, Step};
    let columns = [
        ("EMULATE/STEP", Emulate, Step),
        ("BOOST/STEP", Boost, Step),
        ("EMULATE/JUMP", Emulate, Count),
        ("KERNEL/JUMP", Kernel, Count),
    ];
    // Beside programs of the other kind, if they were measured, too.
    let other = 64;
    let beside = bits != other && measured.cells.iter().any(|cell| cell.bits == other);
    let headings: Vec<&str> =
        columns.iter().map(|column| column.0).chain(beside.then_some("JUMP 32/64")).collect();
    let mut table = table("NAME", &headings);
    let shown = |ratio: Option<f64>| match ratio {
        Some(ratio) if ratio >= 10.0 => format!("{ratio:.0}"),
        Some(ratio) => format!("{ratio:.2}"),
        None => "-".to_owned(),
    };
    let mut rows: Vec<(&str, Vec<Option<f64>>)> = Vec::new();
    for name in names(&measured.cells, bits) {
        let cell = |bits, collector| find(&measured.cells, bits, name, Some(collector));
        let among = columns.iter().map(|&(_, this, than)| ratio(cell(bits, this), cell(bits, than)));
        let across = beside.then(|| ratio(cell(bits, Count), cell(other, Count)));
        rows.push((name, among.chain(across).collect()));
    }
    for (name, ratios) in &rows {
        table.row(std::iter::once((*name).to_owned()).chain(ratios.iter().copied().map(shown)));
    }
    for prefix in PREFIXES {
        let rows: Vec<_> = rows.iter().filter(|row| row.0.starts_with(prefix)).collect();
        let column = |index: usize| rows.iter().filter_map(|row| row.1[index]).collect::<Vec<f64>>();
        let medians = (0..headings.len()).map(column).map(|ratios| {
            let any = !ratios.is_empty();
            shown(any.then(|| median(ratios.into_iter())))
        });
        if rows.len() > 1 {
            table.row(std::iter::once(format!("{prefix}*")).chain(medians));
        }
    }
    table
}

/// Calls in a second.
pub(super) fn calls(measured: &Measured, bits: u32) -> Table {
    let mut table = table("NAME", &["UNPROBED", "COUNT", "LATENCY", "RECORD", "KERNEL"]);
    for name in names(&measured.cells, bits) {
        let trigger = ["uprobe-", "uretprobe-"].iter().find_map(|prefix| name.strip_prefix(prefix));
        let trigger = trigger.unwrap_or(name);
        let bare = find(&measured.cells, bits, &format!("call-{trigger}"), None);
        let cells = COLLECTORS.map(|collector| find(&measured.cells, bits, name, Some(collector)));
        let shown = |cell: Option<&Cell>| {
            cell.map_or("-".to_owned(), |cell| format!("{:.3}", cell.millions_per_second))
        };
        table.row([name.to_owned()].into_iter().chain([shown(bare)]).chain(cells.map(shown)));
    }
    table
}

/// One site, hit by more and more threads.
pub(super) fn scaling(measured: &Measured) -> Table {
    let mut threads: Vec<u32> = measured.scaling.iter().map(|cell| cell.threads).collect();
    threads.dedup();
    let headings: Vec<String> = threads.iter().map(u32::to_string).collect();
    let headings: Vec<&str> = ["BY"].into_iter().chain(headings.iter().map(String::as_str)).collect();
    let mut table = table("NAME", &headings);
    for name in names(&measured.scaling, OWN_BITS) {
        for collector in COLLECTORS {
            let of = |&threads: &u32| {
                let mut cells = measured.scaling.iter();
                hit(cells.find(|c| c.name == name && c.collector == Some(collector) && c.threads == threads))
            };
            if find(&measured.scaling, OWN_BITS, name, Some(collector)).is_some() {
                let heading = collector.heading().to_lowercase();
                table.row([name.to_owned(), heading].into_iter().chain(threads.iter().map(of)));
            }
        }
    }
    table
}

/// What it takes to arm.
pub(super) fn arming(attached: &[Attach]) -> Table {
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
