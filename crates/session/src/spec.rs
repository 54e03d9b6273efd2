//! Probe specifications: what a person types to name probe sites.
//!
//! ```text
//! libc.so.6:malloc                 MODULE:FUNCTION, globs on both sides
//! ./server:ns::Parser::*(int)      `::` belongs to names; a single `:` separates
//! libc.so.6:malloc+0x14            an instruction inside a function
//! ./server:0x1139                  an address as nm and objdump print it
//! ./server:parser.c:123            a line of a source file, whose path's end is given; also src/parser.c:123
//! ./server:parser.c:123:7          the statement of that line at this column
//! libc.so.6!malloc                 as frida-trace writes it
//! uprobe:/bin/bash:readline        as bpftrace writes it; also u:, uretprobe:, ur:
//! usdt:PATH:PROVIDER:NAME          a USDT probe, as bpftrace writes it; also U:, and less of it (see `usdt`)
//! sdt_PROVIDER:NAME                as perf writes it
//! boost:libc.so.6:malloc           by this mechanism and no other; also jump:, emulate:, step:
//! ```
//!
//! The separator is the first single `:` or the first `!`, whichever comes first. In a specification that starts like
//! a path it is the first one behind the last `/`, if there is one, so that directories may contain colons. A backslash
//! takes the meaning from any character. What ends in a single `:` and a decimal number names a line: no function does. The
//! number is cut off first, so the `/` of `./server:src/parser.c:123` is not taken for the program's. A line's file is no
//! pattern. Nothing here looks at files or processes.

mod foreign;
mod pattern;
mod split;
mod usdt;

use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use trapless_isa::Mechanism;

pub use pattern::{Pattern, PatternError, Syntax};

/// Which sites are meant, in which modules.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeSpec {
    /// The modules.
    pub module: Pattern,
    /// The sites in each of them.
    pub location: Location,
    /// Entry or return, when the specification says so itself (`uprobe:`, `uretprobe:`).
    pub kind: Option<Kind>,
    /// The mechanism it names (`step:`), which is then the only one for its sites.
    pub mechanism: Option<Mechanism>,
    /// Whether the copies of a function that were inlined into others are meant, too.
    pub inlines: bool,
    /// Whether a path of a module is ours, and never as the process sees it.
    pub by_file: bool,
    /// The specification as it was written, for messages.
    pub text: String,
}

/// Where in a module.
#[derive(Clone, Debug, PartialEq)]
pub enum Location {
    /// Functions by name.
    Function {
        /// Over mangled and demangled names.
        pattern: Pattern,
        /// Bytes from the function's first instruction to the probed one.
        offset: u64,
    },
    /// One instruction by its address in the file, as `nm` and `objdump` print it.
    Address(u64),
    /// USDT probes by name, wherever they stand.
    Usdt {
        /// Who offers them; `None` for anybody.
        provider: Option<Pattern>,
        /// What they are called.
        name: Pattern,
    },
    /// The statements of a line of the source.
    Line(SourceLine),
}

impl Location {
    /// What it is, where nothing returns from there.
    pub fn without_return(&self) -> Option<&'static str> {
        match self {
            Location::Function { offset: 0, .. } => None,
            Location::Function { .. } | Location::Address(_) => Some("an instruction"),
            Location::Usdt { .. } => Some("USDT probes"),
            Location::Line(_) => Some("a line of the source"),
        }
    }

    /// Whether it names USDT probes.
    pub fn is_usdt(&self) -> bool {
        matches!(self, Location::Usdt { .. })
    }
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The end of the file's path.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1: the statement at this column only.
    pub column: Option<u32>,
}

/// When a probe fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// When control arrives at the site.
    Entry,
    /// When the function returns to its caller.
    Return,
}

impl Kind {
    /// The name users see: `entry` or `return`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Entry => "entry",
            Kind::Return => "return",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a text is no probe specification. Its message shows the text with a mark under the place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("bad probe: {what}\n  {shown}\n  {:>width$}", "^", width = .column + 1)]
pub struct SpecError {
    /// What is wrong and what to write instead.
    pub what: String,
    /// The specification, with control characters made visible.
    pub shown: String,
    /// Position of the mark, in characters from 0.
    pub column: usize,
}

impl SpecError {
    fn new(text: &str, at: usize, what: impl Into<String>) -> Self {
        let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        Self {
            what: what.into(),
            shown: text.chars().map(visible).collect(),
            column: text.char_indices().take_while(|&(i, _)| i < at).count(),
        }
    }
}

impl FromStr for ProbeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse(text, Syntax::Glob)
    }
}

impl ProbeSpec {
    /// Reads one specification whose names are patterns in `syntax`.
    ///
    /// Regular expressions may contain `+0x…`, so `FUNCTION+0xOFF` exists in globs only.
    ///
    /// ```
    /// use trapless_session::spec::{ProbeSpec, Syntax};
    ///
    /// let spec = ProbeSpec::parse("libc.so.6:mem*", Syntax::Glob)?;
    /// assert!(spec.module.matches("libc.so.6") && !spec.module.matches("libm.so.6"));
    /// let error = ProbeSpec::parse("malloc", Syntax::Glob).unwrap_err();
    /// assert!(error.to_string().contains("malloc"));
    /// # Ok::<(), trapless_session::spec::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// No module, no function, a malformed pattern, number or prefix.
    pub fn parse(text: &str, syntax: Syntax) -> Result<Self, SpecError> {
        let (mechanism, skipped) = mechanism_prefix(text, syntax);
        if let Some((module, location)) = usdt::parse(text, skipped, syntax)? {
            return Ok(Self {
                module,
                location,
                kind: None,
                mechanism,
                inlines: false,
                by_file: false,
                text: text.to_owned(),
            });
        }
        let (kind, start) = kind_prefix(text, skipped, syntax)?;
        let body = &text[start..];
        let Some(separator) = split::separator(body, syntax) else {
            let what = if text.is_empty() {
                "nothing is named; write MODULE:FUNCTION".to_owned()
            } else if kind.is_some() {
                "PATH:FUNCTION must follow".to_owned()
            } else if split::line(text).is_some() {
                format!("no module; write MODULE:FILE:LINE, or '*:{text}' for every module")
            } else {
                format!("no module; write MODULE:FUNCTION, or '*:{text}' for every module")
            };
            return Err(SpecError::new(text, text.len(), what));
        };
        let (module, rest) = (&body[..separator], &body[separator + 1..]);
        if module.is_empty() {
            let what = format!("no module before the separator; '*:{rest}' means every module");
            return Err(SpecError::new(text, start, what));
        }
        let at = start + separator + 1;
        let module = pattern(text, start, module, syntax)?;
        let location = location(text, at, rest, syntax, kind.is_some())?;
        Ok(Self { module, location, kind, mechanism, inlines: false, by_file: false, text: text.to_owned() })
    }

    /// Whether `text` has a module and something behind it, so that it is meant as a specification and not as a
    /// name alone.
    pub fn is_meant(text: &str, syntax: Syntax) -> bool {
        usdt::is_meant(text, syntax) || split::separator(text, syntax).is_some()
    }

    /// A specification of functions by name, or of USDT probes (`usdt:PROVIDER:NAME`, `usdt:NAME`), from patterns that are given
    /// apart (`trapless list FILE PATTERN`).
    ///
    /// # Errors
    /// As [`ProbeSpec::parse`], about `function` alone.
    pub fn in_module(module: &str, function: &str, syntax: Syntax) -> Result<Self, SpecError> {
        let location = match usdt::names(function, syntax)? {
            Some(location) => location,
            None => location(function, 0, function, syntax, false)?,
        };
        let module = Pattern::literal(module);
        Ok(Self {
            module,
            location,
            kind: None,
            mechanism: None,
            inlines: false,
            by_file: false,
            text: function.to_owned(),
        })
    }
}

/// Functions that a wider pattern shall leave out: `FUNCTION` in any module, or `MODULE:FUNCTION`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exclusion {
    /// The modules it applies to; `None` for all.
    pub module: Option<Pattern>,
    /// The functions left out.
    pub function: Pattern,
}

impl Exclusion {
    /// Reads one exclusion.
    ///
    /// ```
    /// use trapless_session::spec::{Exclusion, Syntax};
    ///
    /// let everywhere = Exclusion::parse("*_unlocked", Syntax::Glob)?;
    /// assert!(everywhere.module.is_none() && everywhere.function.matches("getc_unlocked"));
    /// # Ok::<(), trapless_session::spec::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// An empty text or part, or a malformed pattern.
    pub fn parse(text: &str, syntax: Syntax) -> Result<Self, SpecError> {
        let (module, start) = match split::separator(text, syntax) {
            Some(0) => return Err(SpecError::new(text, 0, "no module before the separator")),
            Some(at) => (Some(pattern(text, 0, &text[..at], syntax)?), at + 1),
            None => (None, 0),
        };
        if start == text.len() {
            return Err(SpecError::new(text, start, "no function to exclude"));
        }
        Ok(Self { module, function: pattern(text, start, &text[start..], syntax)? })
    }
}

/// The mechanism a specification starts with, and where the rest begins.
fn mechanism_prefix(text: &str, syntax: Syntax) -> (Option<Mechanism>, usize) {
    let named = text.split_once(':').and_then(|(name, rest)| Some((name.parse().ok()?, rest)));
    // A module may be called `step`; then nothing else separates.
    let named = named.filter(|(_, rest)| split::separator(rest, syntax).is_some());
    named.map_or((None, 0), |(mechanism, rest)| (Some(mechanism), text.len() - rest.len()))
}

/// The kind a specification says at byte `from`, and where the rest begins.
fn kind_prefix(text: &str, from: usize, syntax: Syntax) -> Result<(Option<Kind>, usize), SpecError> {
    let body = &text[from..];
    for (prefix, kind) in
        [("uprobe:", Kind::Entry), ("uretprobe:", Kind::Return), ("u:", Kind::Entry), ("ur:", Kind::Return)]
    {
        let Some(rest) = body.strip_prefix(prefix) else { continue };
        // A module may be called `u`; then nothing else separates.
        if prefix.len() > 3 || split::separator(rest, syntax).is_some() {
            return Ok((Some(kind), from + prefix.len()));
        }
    }
    // `profile:hz:99` ends like a line, too, but files have endings.
    let follows = |rest: &str| match split::line(rest) {
        Some(end) => !rest[..end].contains('.'),
        None => split::separator(rest, syntax).is_some(),
    };
    if let Some((prefix, what)) = foreign::prefix(body, follows) {
        return Err(SpecError::new(text, from, format!("{prefix}: {what}")));
    }
    Ok((None, from))
}

/// Reads what follows the separator; it starts at byte `at` of the whole `text`.
fn location(
    text: &str,
    at: usize,
    rest: &str,
    syntax: Syntax,
    bpftrace: bool,
) -> Result<Location, SpecError> {
    if let Some(address) = split::number(rest) {
        let address = address.map_err(|what| SpecError::new(text, at, what))?;
        return Ok(Location::Address(address));
    }
    if let Some(end) = split::line(rest) {
        let (file, numbers) = (&rest[..end], &rest[end + 1..]);
        return source_line(file, numbers).map_err(|what| SpecError::new(text, at + end + 1, what));
    }
    let (name, offset) = match syntax {
        Syntax::Glob => split::offset(rest).map_err(|(i, what)| SpecError::new(text, at + i, what))?,
        Syntax::Regex => (rest, 0),
    };
    // bpftrace writes C++ names as `cpp:"ns::f(int)"`.
    let language = if bpftrace && name.starts_with("cpp:") { 4 } else { 0 };
    let (name, at) = (&name[language..], at + language);
    let quoted = name.strip_prefix('"').and_then(|n| n.strip_suffix('"'));
    let (name, at) = quoted.map_or((name, at), |inner| (inner, at + 1));
    if name.is_empty() {
        return Err(SpecError::new(text, at, "no function; '*' means all of them"));
    }
    Ok(Location::Function { pattern: pattern(text, at, name, syntax)?, offset })
}

/// Reads the numbers behind a file: `123`, `123:7`.
fn source_line(file: &str, numbers: &str) -> Result<Location, String> {
    let number = |digits: &str| match digits.parse::<u32>() {
        Ok(0) => Err("lines and columns count from 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{digits} is no line: no file has so many")),
    };
    let (line, column) = numbers.split_once(':').map_or((numbers, None), |(l, c)| (l, Some(c)));
    let column = column.map(number).transpose()?;
    Ok(Location::Line(SourceLine { file: file.to_owned(), line: number(line)?, column }))
}

/// Reads the pattern that starts at byte `at` of the whole `text`.
fn pattern(text: &str, at: usize, pattern: &str, syntax: Syntax) -> Result<Pattern, SpecError> {
    Pattern::new(pattern, syntax).map_err(|e| SpecError::new(text, at + e.at, e.what))
}

#[cfg(test)]
mod tests;
