//! `list --lines`: the source of functions, with a mark at each line that can be probed.

use super::super::sites::Place;
use crate::cli::validated::Listing;
use crate::error::Error;
use crate::report::{ListedLine, json_rows_after, text_rows};
use crate::resolve::lines::{FunctionSource, MOST_FUNCTIONS, sources};
use crate::session::Prepared;
use crate::terminal::{printable, tell};
use std::collections::BTreeMap;
use std::io::Write;
use trapless_engine::{Refusal, Wanted};

/// Shows it.
///
/// # Errors
/// Nothing matches, too much does, or there is no line table.
pub(super) fn run(listing: &Listing, place: &Place) -> Result<u8, Error> {
    let process = place.process();
    let functions = place.sites(listing)?;
    if functions.sites.len() > MOST_FUNCTIONS {
        return Err(Error::Usage(format!(
            "--lines shows {MOST_FUNCTIONS} functions at most, and {} match; narrow the pattern",
            functions.sites.len()
        )));
    }
    let (sources, sites) = sources(process, &place.images, &functions)?;
    let prepared = Prepared::new(process, &place.images, sites, false)?;
    let entries =
        prepared.offers(|_| Wanted { entries: true, ..Wanted::default() }, &listing.selection.mechanisms)?;
    let answers = entries.answers();
    let mut judged: BTreeMap<(usize, u64), Judged> = BTreeMap::new();
    for (id, site) in (0..).zip(&prepared.sites().sites) {
        let answer = answers.get(&id);
        let planned = answer.and_then(|answer| answer.ok());
        let why = answer.and_then(|answer| answer.err());
        let why = why.or_else(|| planned.and_then(|planned| planned.no_jump.as_ref()));
        judged.insert(
            (site.image, site.address),
            Judged {
                bias: place.images[site.image].bias(process)?,
                mechanism: planned.map(|planned| planned.mechanism.name()),
                code: why.map(Refusal::code),
                reason: why.map(|why| match planned {
                    Some(_) => format!("no jump: {why}"),
                    None => why.to_string(),
                }),
            },
        );
    }
    let mut output = listing.output.open()?;
    let width = listing.output.width(&output);
    let mut before = 0;
    for source in &sources {
        let module = place.images[source.image].name();
        let rows = rows(module, source, &judged);
        if let Err(why) = &source.text {
            tell(format_args!("{}: {why}; only its lines that have code are shown", source.file));
        }
        let written = if listing.output.json {
            json_rows_after(&mut output, &rows, before)
        } else {
            let title = printable(&format!("{module}:{} ({})", source.function, source.file));
            writeln!(output, "{title}").and_then(|()| text_rows(&mut output, &rows, width))
        };
        written.map_err(|error| listing.output.error(error))?;
        before += rows.len();
    }
    Ok(0)
}

/// What the judge says of a site.
struct Judged {
    bias: u64,
    mechanism: Option<&'static str>,
    code: Option<&'static str>,
    reason: Option<String>,
}

/// A row for each statement, and one for each line without.
fn rows(module: &str, source: &FunctionSource, judged: &BTreeMap<(usize, u64), Judged>) -> Vec<ListedLine> {
    let mut rows = Vec::new();
    let mut by_line: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (line, address, name) in &source.statements {
        by_line.entry(*line).or_default().push((*address, name));
    }
    let text = source.text.as_ref().ok();
    // Lines that nobody knows anything about are not counted out: a hostile table has four billion of them.
    let last = match text {
        Some(text) => (*source.lines.end()).min(u32::try_from(text.len()).unwrap_or(u32::MAX)),
        None => 0,
    };
    let shown: std::collections::BTreeSet<u32> =
        (*source.lines.start()..=last).chain(by_line.keys().copied()).collect();
    for line in shown {
        let row = ListedLine {
            module: module.to_owned(),
            function: source.function.text().to_owned(),
            file: source.file.clone(),
            line,
            text: text.and_then(|text| text.get(line as usize - 1)).cloned(),
            ..ListedLine::default()
        };
        let mut statements = by_line.remove(&line).unwrap_or_default();
        // Those of the function itself come first.
        statements.sort_by_key(|(address, name)| (!name.is_within(&source.function), *address));
        if statements.is_empty() {
            rows.push(row.clone());
        }
        for (index, (address, name)) in statements.into_iter().enumerate() {
            let Some(judged) = judged.get(&(source.image, address)) else { continue };
            rows.push(ListedLine {
                address: Some(address.wrapping_add(judged.bias)),
                site: Some(name.text().to_owned()),
                mechanism: judged.mechanism,
                code: judged.code,
                reason: judged.reason.clone(),
                is_again: index > 0,
                is_elsewhere: !name.is_within(&source.function),
                ..row.clone()
            });
        }
    }
    rows
}
