//! Rows that are about more than a function: what hits were grouped by, and values that were collected.

use super::number::count;
use super::table::{Align, Table, printable};
use super::{ProbeSummary, Told, Values};
use std::io::{self, Write};

/// The columns that bars take where there is no terminal to ask.
const WIDTH: usize = 80;

/// The longest a label of a bucket is drawn.
const LONGEST: usize = 32;

/// The shortest a full bar gets.
const SHORTEST: usize = 10;

/// What a row is grouped by.
pub(super) fn by(probe: &ProbeSummary) -> &[Told] {
    probe.collected.as_ref().map_or(&[], |collected| &collected.by)
}

/// The headings of what rows are grouped by. Call stacks have none: they stand below their rows.
pub(super) fn headings<'p>(probes: &[&'p ProbeSummary]) -> Vec<(&'p str, Align)> {
    let first = probes.iter().map(|probe| by(probe)).find(|by| !by.is_empty()).unwrap_or(&[]);
    first.iter().filter(|told| told.frames.is_none()).map(|told| (&*told.name, Align::Left)).collect()
}

/// The cells under [`headings`].
pub(super) fn cells(probe: &ProbeSummary) -> impl Iterator<Item = String> {
    by(probe).iter().filter(|told| told.frames.is_none()).map(|told| told.text.clone())
}

/// Puts the call stacks of a row under it.
pub(super) fn stacks(table: &mut Table, probe: &ProbeSummary) {
    for frames in by(probe).iter().filter_map(|told| told.frames.as_ref()) {
        table.notes(frames);
    }
}

/// Whether rows are of one function, so that its name says nothing.
pub(super) fn is_one_function(probes: &[&ProbeSummary]) -> bool {
    let name = |probe: &ProbeSummary| (probe.module.clone(), probe.function.text().to_owned());
    probes.iter().all(|probe| name(probe) == name(probes[0]))
}

/// Writes a histogram for each row, under its name and what it is grouped by.
pub(super) fn histograms(
    output: &mut dyn Write,
    probes: &[&ProbeSummary],
    width: Option<usize>,
) -> io::Result<()> {
    for (index, probe) in probes.iter().enumerate() {
        if index > 0 {
            writeln!(output)?;
        }
        let mut title = format!("{}:{}", printable(&probe.module), printable(probe.function.text()));
        for told in by(probe).iter().filter(|told| told.frames.is_none()) {
            title.push_str(&format!("  {} = {}", printable(&told.name), printable(&told.text)));
        }
        writeln!(output, "{title}  ({})", super::plural(probe.hits, "hit"))?;
        for frames in by(probe).iter().filter_map(|told| told.frames.as_ref()) {
            frames.iter().try_for_each(|frame| writeln!(output, "    {}", printable(frame)))?;
        }
        let values = probe.collected.as_ref().map_or(&[][..], |collected| &collected.values);
        bars(output, values, width.unwrap_or(WIDTH))?;
    }
    Ok(())
}

/// Writes the bars of `values` in at most `width` characters a line, with those between that no hit had.
fn bars(output: &mut dyn Write, values: &[Values], width: usize) -> io::Result<()> {
    let most = values.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let labels: Vec<String> = values.iter().map(label).collect();
    let widest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).min(LONGEST);
    let number = count(most).len();
    let bar = width.saturating_sub(2 + widest + 2 + number + 3).max(SHORTEST);
    for (bucket, label) in values.iter().zip(&labels) {
        let n = bucket.count;
        let marks = (u128::from(n) * bar as u128).div_ceil(u128::from(most).max(1)) as usize;
        writeln!(output, "  {label:<widest$}  {:>number$} |{:<bar$}|", count(n), "@".repeat(marks))?;
    }
    Ok(())
}

/// The values of a bucket. Numbers that are whole multiples of 1,024 are shortened.
fn label(bucket: &Values) -> String {
    match (bucket.low, bucket.high) {
        (None, None) => "all".to_owned(),
        (None, Some(high)) => format!("(..., {})", short(high)),
        (Some(low), None) => format!("[{}, ...)", short(low)),
        (Some(low), Some(high)) if low.checked_add(1) == Some(high) => format!("[{}]", short(low)),
        (Some(low), Some(high)) => format!("[{}, {})", short(low), short(high)),
    }
}

fn short(value: i64) -> String {
    const LETTERS: [(&str, u32); 3] = [("G", 30), ("M", 20), ("k", 10)];
    let of = |(letter, shift): (&str, u32)| {
        (value != 0 && value % (1 << shift) == 0).then(|| format!("{}{letter}", value >> shift))
    };
    LETTERS.into_iter().find_map(of).unwrap_or_else(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_labelled_with_their_values() {
        let bucket = |low, high, count| Values { low, high, count };
        let mut output = Vec::new();
        let all = [
            bucket(None, Some(0), 1),
            bucket(Some(0), Some(1), 4),
            bucket(Some(1), Some(1024), 0),
            bucket(Some(1024), Some(1 << 20), 2),
            bucket(Some(1 << 20), None, 1),
        ];
        bars(&mut output, &all, 40).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "  (..., 0)   1 |@@@@@@                 |\n\
             \u{20} [0]        4 |@@@@@@@@@@@@@@@@@@@@@@@|\n\
             \u{20} [1, 1k)    0 |                       |\n\
             \u{20} [1k, 1M)   2 |@@@@@@@@@@@@           |\n\
             \u{20} [1M, ...)  1 |@@@@@@                 |\n"
        );
    }
}
