//! Latencies as a table of percentiles and a histogram per function.

use super::number::{count, duration};
use super::table::{Align, Table, printable};
use super::{ProbeSummary, histogram, keyed};
use std::io::{self, Write};

/// The columns a histogram takes where there is no terminal to ask.
const HISTOGRAM_WIDTH: usize = 80;

/// Writes one row per probe.
///
/// The numbers leave little room for names in 80 columns, so a module that all probes share moves to the heading.
pub(super) fn table(
    output: &mut dyn Write,
    probes: &[&ProbeSummary],
    width: Option<usize>,
) -> io::Result<()> {
    let shared = probes.iter().all(|p| p.module == probes[0].module);
    let heading = match probes.first() {
        Some(probe) if shared => format!("FUNCTION ({})", printable(&probe.module)),
        _ => "FUNCTION".to_owned(),
    };
    let lost = probes.iter().any(|p| p.lost > 0);
    let mut columns = vec![("CALLS", Align::Right)];
    if lost {
        columns.push(("LOST", Align::Right));
    }
    columns.extend(["AVG", "P50", "P90", "P99", "P99.9", "MAX"].map(|h| (h, Align::Right)));
    columns.push((&heading, Align::Left));
    columns.extend(keyed::headings(probes));
    let mut table = Table::new(&columns);
    for probe in probes {
        let mut cells = vec![count(probe.hits)];
        if lost {
            cells.push(count(probe.lost));
        }
        match probe.latency() {
            Some(l) => cells.extend([l.avg, l.p50, l.p90, l.p99, l.p999, l.max].map(duration)),
            None => cells.extend(std::iter::repeat_n("-".to_owned(), 6)),
        }
        cells.push(if shared {
            probe.function.to_string()
        } else {
            format!("{}:{}", probe.module, probe.function)
        });
        cells.extend(keyed::cells(probe));
        table.row(cells);
        keyed::stacks(&mut table, probe);
    }
    table.write(output, width)
}

/// Writes the histograms of the first `most` probes that have one, each under its full name.
pub(super) fn histograms(
    output: &mut dyn Write,
    probes: &[&ProbeSummary],
    most: usize,
    width: Option<usize>,
) -> io::Result<()> {
    let measured = probes.iter().filter_map(|p| p.latency().map(|l| (p, l)));
    for (probe, latency) in measured.take(most) {
        let by = keyed::by(probe).iter().filter(|told| told.frames.is_none());
        let by: String =
            by.map(|told| format!("  {} = {}", printable(&told.name), printable(&told.text))).collect();
        writeln!(output, "\n{}:{}{by}", printable(&probe.module), printable(probe.function.text()))?;
        histogram::write(output, &latency.buckets, width.unwrap_or(HISTOGRAM_WIDTH))?;
    }
    Ok(())
}
