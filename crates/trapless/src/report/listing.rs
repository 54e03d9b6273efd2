//! Lists: what can be probed, which modules there are, what is armed. One row or one JSON object per item.

use super::table::{Align, Table};
use serde::Serialize;
use std::io::{self, Write};
use trapless_session::name::Source;
use trapless_session::outcome::LatencySummary;

/// Something that is shown as a row of a table or as an object of JSON.
pub trait Row: Serialize {
    /// The object's `"type"`.
    const TYPE: &'static str;

    /// The table's headings.
    const COLUMNS: &'static [(&'static str, Align)];

    /// The cells under the headings.
    fn cells(&self) -> Vec<String>;

    /// A line under the row, for what does not fit into columns.
    fn note(&self) -> Option<String> {
        None
    }
}

/// A module of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedModule {
    /// Its path as the target sees it.
    pub path: String,
    /// The name it gives itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soname: Option<String>,
    /// Where its first byte is mapped.
    pub address: u64,
    /// How many functions it has that can be named.
    pub functions: usize,
}

impl Row for ListedModule {
    const TYPE: &'static str = "module";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("FUNCTIONS", Align::Right),
        ("ADDRESS", Align::Right),
        ("SONAME", Align::Left),
        ("PATH", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let soname = self.soname.clone().unwrap_or_else(|| "-".to_owned());
        vec![super::count(self.functions as u64), format!("{:#x}", self.address), soname, self.path.clone()]
    }
}

/// A function that can be probed, or the reason why it cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedSite {
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Where it is in the source, if it was asked for by that.
    #[serde(flatten)]
    pub source: Source,
    /// Its other names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Its address: in the target, or in the file where there is no target.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The best mechanism among those allowed; `None` when it cannot be probed.
    pub mechanism: Option<&'static str>,
    /// What the notes say, where it was asked for as a USDT probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usdt: Option<ListedUsdt>,
    /// The name of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why it is not a better one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The name of the reason why its returns cannot be probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_return_code: Option<&'static str>,
    /// Why its returns cannot be probed; `None` when they can, or when nothing of it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_return: Option<String>,
}

/// What the note of a USDT probe says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedUsdt {
    /// Who offers it.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// The function that it stands in, and how far.
    pub place: String,
    /// Its arguments, as the note has them: size, sign, and where the value is.
    pub arguments: Vec<String>,
    /// Those of them that `trace` does not show, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_shown: Vec<String>,
    /// Address of its semaphore, in the target, or in the file where there is no target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<u64>,
}

impl ListedUsdt {
    /// In words.
    pub fn text(&self) -> String {
        let arguments = match self.arguments.len() {
            0 => "no arguments".to_owned(),
            count => format!("{}: {}", super::plural(count as u64, "argument"), self.arguments.join(" ")),
        };
        let semaphore = self.semaphore.map_or(String::new(), |at| format!("; semaphore {at:#x}"));
        let not_shown = match self.not_shown.is_empty() {
            true => String::new(),
            false => format!("; not shown: {}", self.not_shown.join(", ")),
        };
        format!("in {}; {arguments}{not_shown}{semaphore}", self.place)
    }
}

impl Row for ListedSite {
    const TYPE: &'static str = "site";
    const COLUMNS: &'static [(&'static str, Align)] =
        &[("ADDRESS", Align::Right), ("SIZE", Align::Right), ("BY", Align::Left), ("FUNCTION", Align::Left)];

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:#x}", self.address),
            super::count(self.size),
            self.mechanism.unwrap_or("-").to_owned(),
            format!("{}:{}", self.module, self.function),
        ]
    }

    fn note(&self) -> Option<String> {
        let no_return = self.no_return.as_ref().map(|reason| format!("no return probe: {reason}"));
        let usdt = self.usdt.as_ref().map(ListedUsdt::text);
        let why: Vec<String> = usdt.into_iter().chain(self.reason.iter().cloned()).chain(no_return).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

/// A statement of a source line, or a line without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ListedLine {
    /// File name of the module.
    pub module: String,
    /// The function whose lines are listed, demangled.
    pub function: String,
    /// The source file's whole path, as the compiler saw it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// Its text, where the file is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Where the statement begins: in the target, or in the file where there is no target. `None` for a line without code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// The site's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The best mechanism among those allowed; `None` when it cannot be probed.
    pub mechanism: Option<&'static str>,
    /// The name of the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why it is not a better one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether an earlier row is of the same line.
    #[serde(skip)]
    pub is_again: bool,
    /// Whether the statement is in another function, or in a copy that was inlined.
    #[serde(skip)]
    pub is_elsewhere: bool,
}

impl Row for ListedLine {
    const TYPE: &'static str = "line";
    const COLUMNS: &'static [(&'static str, Align)] =
        &[("LINE", Align::Right), ("ADDRESS", Align::Right), ("BY", Align::Left), ("SOURCE", Align::Left)];

    fn cells(&self) -> Vec<String> {
        let by = match (self.address, self.mechanism) {
            (None, _) => "",
            (Some(_), by) => by.unwrap_or("-"),
        };
        let site = self.site.as_deref().unwrap_or_default();
        let source = match (&self.text, self.is_again) {
            (_, true) | (None, false) => site.to_owned(),
            (Some(text), false) => with_spaces(text),
        };
        vec![
            if self.is_again { String::new() } else { self.line.to_string() },
            self.address.map_or(String::new(), |address| format!("{address:#x}")),
            by.to_owned(),
            source,
        ]
    }

    fn note(&self) -> Option<String> {
        let is_hidden = self.is_elsewhere && self.text.is_some() && !self.is_again;
        let site = self.site.clone().filter(|_| is_hidden).map(|site| format!("in {site}"));
        let why: Vec<String> = site.into_iter().chain(self.reason.clone()).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

/// The text with tabs as spaces, and without what ends a line.
fn with_spaces(text: &str) -> String {
    let mut spaced = String::new();
    let mut column = 0;
    for c in text.trim_end().chars() {
        match c {
            '\t' => {
                let spaces = 8 - column % 8;
                spaced.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            c => {
                spaced.push(c);
                column += 1;
            }
        }
    }
    spaced
}

/// A probe found in a target by its journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArmedSite {
    /// The target.
    pub pid: i32,
    /// The process that armed it.
    pub owner: i32,
    /// Whether that process still runs.
    pub owner_alive: bool,
    /// File name of the module.
    pub module: String,
    /// The function, demangled, or the site's address.
    pub function: String,
    /// The site's address in the target.
    pub address: u64,
    /// How it gets control.
    pub mechanism: &'static str,
    /// How often it fired: entries, or where they are not counted returns.
    pub hits: u64,
    /// Returns, where calls are followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<u64>,
    /// Calls that could not be followed to their return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Hits in children that were forked or share the memory, which are not in the others.
    pub in_children: u64,
    /// The durations of calls, if they are collected and there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencySummary>,
    /// Whether calls are recorded one by one, for whoever reads the rings.
    pub records: bool,
}

impl Row for ArmedSite {
    const TYPE: &'static str = "armed";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("HITS", Align::Right),
        ("ADDRESS", Align::Right),
        ("BY", Align::Left),
        ("FUNCTION", Align::Left),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let gone = if self.owner_alive { "" } else { " (gone)" };
        vec![
            self.pid.to_string(),
            super::count(self.hits),
            format!("{:#x}", self.address),
            self.mechanism.to_owned(),
            format!("{}:{}", self.module, self.function),
            format!("process {}{gone}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let some = |number: u64| (number > 0).then_some(number);
        let returns = self.returns.map(|returns| super::plural(returns, "return"));
        let lost = self.lost.and_then(some).map(|lost| format!("{} lost", super::count(lost)));
        let children =
            some(self.in_children).map(|hits| format!("{} in children", super::plural(hits, "hit")));
        let latency = self.latency.as_ref().map(|times| {
            let [avg, p99, max] = [times.avg, times.p99, times.max].map(super::duration);
            format!("{avg} on average, 99 % within {p99}, longest {max}")
        });
        let records = self.records.then(|| "calls are recorded".to_owned());
        let parts: Vec<_> = [returns, lost, children, latency, records].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Memory of a session that was taken out, which is still mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptMemory {
    /// The target.
    pub pid: i32,
    /// The process that armed the session.
    pub owner: i32,
    /// Address of the memory by which it is found.
    pub address: u64,
    /// Bytes of code that a saved context may lead into.
    pub code: u64,
}

impl Row for KeptMemory {
    const TYPE: &'static str = "kept";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("KEPT CODE", Align::Right),
        ("ADDRESS", Align::Right),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            super::count(self.code),
            format!("{:#x}", self.address),
            format!("process {}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let why = "no probe is left, but something may still lead into this memory";
        Some(format!("{why}; the next attach or detach tries again to unmap it"))
    }
}

/// A session that was taken out of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DetachedSession {
    /// The target.
    pub pid: i32,
    /// The process that armed it.
    pub owner: i32,
    /// Sites whose original bytes were put back.
    pub restored: usize,
    /// Sites that had somebody else's bytes, or are unmapped.
    pub left: usize,
    /// Running calls whose return address was put back.
    pub returns: usize,
    /// Whether its memory stays mapped.
    pub memory_kept: bool,
    /// Why it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kept_because: Option<String>,
    /// Sessions taken out before whose memory had to stay mapped until now.
    pub freed: usize,
    /// How long the target stood still, in microseconds.
    pub stopped_us: u64,
}

impl Row for DetachedSession {
    const TYPE: &'static str = "detached";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("RESTORED", Align::Right),
        ("LEFT", Align::Right),
        ("RETURNS", Align::Right),
        ("STOPPED", Align::Right),
        ("ARMED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let number = |n: usize| super::count(n as u64);
        vec![
            self.pid.to_string(),
            number(self.restored),
            number(self.left),
            number(self.returns),
            super::duration(self.stopped_us.saturating_mul(1000)),
            format!("process {}", self.owner),
        ]
    }

    fn note(&self) -> Option<String> {
        let kept = self.memory_kept_because.as_ref().map(|why| format!("memory stays mapped: {why}"));
        let freed = (self.freed > 0)
            .then(|| format!("sessions whose memory had to stay before and is unmapped now: {}", self.freed));
        let notes: Vec<_> = kept.into_iter().chain(freed).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

#[derive(Serialize)]
struct Typed<'a, R> {
    r#type: &'static str,
    #[serde(flatten)]
    row: &'a R,
}

/// Writes `rows` as JSON lines, and flushes.
///
/// # Errors
/// Those of `output`.
pub fn json_rows<R: Row>(output: &mut dyn Write, rows: &[R]) -> io::Result<()> {
    json_rows_after(output, rows, 0)
}

/// As [`json_rows`], behind as many lines as `before` says.
///
/// # Errors
/// Those of `output`.
pub fn json_rows_after<R: Row>(output: &mut dyn Write, rows: &[R], before: usize) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let object = Typed { r#type: R::TYPE, row };
        if before + index == 0 {
            output.write_all(super::json::first_line(&object)?.as_bytes())?;
        } else {
            crate::terminal::write_json(output, &object)?;
            output.write_all(b"\n")?;
        }
    }
    output.flush()
}

/// Writes `rows` as a table, at most `width` characters a line if there is a width, and flushes.
///
/// # Errors
/// Those of `output`.
pub fn text_rows<R: Row>(output: &mut dyn Write, rows: &[R], width: Option<usize>) -> io::Result<()> {
    let mut table = Table::new(R::COLUMNS);
    for row in rows {
        table.row(row.cells());
        if let Some(note) = row.note() {
            table.note(&note);
        }
    }
    table.write(output, width)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites() -> [ListedSite; 2] {
        let site = ListedSite {
            module: "libc.so.6".to_owned(),
            function: "malloc".to_owned(),
            source: Source::default(),
            aliases: vec!["__libc_malloc".to_owned()],
            address: 0x9d0a0,
            size: 1234,
            mechanism: Some("jump"),
            usdt: None,
            code: None,
            reason: None,
            no_return_code: None,
            no_return: None,
        };
        let refused = ListedSite {
            function: "_setjmp".to_owned(),
            aliases: vec![],
            mechanism: None,
            code: Some("too_short"),
            reason: Some("too short".to_owned()),
            no_return_code: Some("returns_oddly"),
            no_return: Some("returns twice".to_owned()),
            ..site.clone()
        };
        [site, refused]
    }

    #[test]
    fn rows_become_a_table() {
        let mut output = Vec::new();
        text_rows(&mut output, &sites(), Some(80)).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "\
ADDRESS   SIZE  BY    FUNCTION
0x9d0a0  1,234  jump  libc.so.6:malloc
0x9d0a0  1,234  -     libc.so.6:_setjmp
    too short; no return probe: returns twice
"
        );
    }

    #[test]
    fn rows_become_json_objects() {
        let mut output = Vec::new();
        json_rows(&mut output, &sites()).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            concat!(
                r#"{"type":"site","version":1,"module":"libc.so.6","function":"malloc","aliases":["__libc_malloc"],"address":643232,"size":1234,"mechanism":"jump"}"#,
                "\n",
                r#"{"type":"site","module":"libc.so.6","function":"_setjmp","address":643232,"size":1234,"mechanism":null,"code":"too_short","reason":"too short","no_return_code":"returns_oddly","no_return":"returns twice"}"#,
                "\n",
            )
        );
    }
}
