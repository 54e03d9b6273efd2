//! Rows of what can be probed: modules, functions and instructions, lines of source.

use super::Row;
use crate::report::table::Align;
use serde::Serialize;
use trapless_session::name::Source;

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
        vec![
            crate::report::count(self.functions as u64),
            format!("{:#x}", self.address),
            soname,
            self.path.clone(),
        ]
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
            count => {
                format!("{}: {}", crate::report::plural(count as u64, "argument"), self.arguments.join(" "))
            }
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
            crate::report::count(self.size),
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
