//! Texts and places in them.
//!
//! Every text that takes part in a script is a [`Source`] in [`Sources`]. A [`Span`] is a range of bytes in
//! one of them, with the way by which a macro brought it where it is. Lines and columns are counted from 1,
//! columns in bytes, as bpftrace tells them.

use std::fmt;
use std::num::NonZeroU32;

/// One text of a [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u32);

/// One expansion of a macro, told by [`Sources::expansion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpansionId(NonZeroU32);

/// Bytes `start..end` of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The text.
    pub source: SourceId,
    /// The first byte.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
    /// The call of a macro that brought this text where it is used.
    pub expansion: Option<ExpansionId>,
}

impl Span {
    /// Bytes `start..end` of `source`, written where they are used.
    pub fn new(source: SourceId, start: usize, end: usize) -> Span {
        // `Sources::add` refuses texts that do not fit.
        let narrow = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Span { source, start: narrow(start), end: narrow(end.max(start)), expansion: None }
    }

    /// From the start of `self` to the end of `other`, which is of the same source and not before it.
    pub fn to(self, other: Span) -> Span {
        Span { end: other.end.max(self.start), ..self }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}..{}", self.source.0, self.start, self.end)
    }
}

/// A place as people count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineColumn {
    /// The line, from 1.
    pub line: u32,
    /// The byte in the line, from 1.
    pub column: u32,
}

/// A text with its name.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    /// Where each line starts.
    lines: Vec<u32>,
}

impl Source {
    /// The name that diagnostics tell: a path, or `stdin` for a script of the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line and column of byte `at`. A byte behind the end is the end.
    pub fn line_column(&self, at: u32) -> LineColumn {
        let at = at.min(self.text.len() as u32);
        let line = self.lines.partition_point(|&start| start <= at);
        let start = self.lines[line - 1];
        LineColumn { line: line as u32, column: at - start + 1 }
    }

    /// Line `line`, counted from 1, without its end. Empty if there is none.
    pub fn line(&self, line: u32) -> &str {
        let Some(&start) = (line as usize).checked_sub(1).and_then(|index| self.lines.get(index)) else {
            return "";
        };
        let end = self.lines.get(line as usize).map_or(self.text.len(), |&next| next as usize);
        self.text.get(start as usize..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }
}

/// A text is too long to be a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {length} bytes are more than the {} that a source may have", Sources::MAX_LENGTH)]
pub struct TooLong {
    /// The name of the text.
    pub name: String,
    /// Its bytes.
    pub length: usize,
}

/// How a macro was expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    /// The name of the macro.
    pub name: String,
    /// The call. It may itself come from an expansion.
    pub call: Span,
}

/// All texts of one script.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    sources: Vec<Source>,
    expansions: Vec<Expansion>,
}

impl Sources {
    /// The bytes that one text may have.
    pub const MAX_LENGTH: usize = 1 << 26;

    /// Keeps `text` under `name`.
    ///
    /// ```
    /// use trapless_script::source::{LineColumn, Sources, Span};
    ///
    /// let mut sources = Sources::default();
    /// let script = sources.add("stdin", "begin {\n  exit();\n}").unwrap();
    /// let call = Span::new(script, 10, 14);
    /// assert_eq!(sources.text(call), "exit");
    /// assert_eq!(sources.start(call), LineColumn { line: 2, column: 3 });
    /// ```
    ///
    /// # Errors
    /// The text is longer than [`Sources::MAX_LENGTH`].
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> Result<SourceId, TooLong> {
        let (name, text) = (name.into(), text.into());
        if text.len() > Sources::MAX_LENGTH {
            return Err(TooLong { name, length: text.len() });
        }
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at as u32 + 1)).collect();
        self.sources.push(Source { name, text, lines });
        Ok(SourceId(self.sources.len() as u32 - 1))
    }

    /// The text of `id`.
    ///
    /// # Panics
    /// `id` is of other sources.
    pub fn get(&self, id: SourceId) -> &Source {
        &self.sources[id.0 as usize]
    }

    /// Every text in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (SourceId, &Source)> {
        self.sources.iter().enumerate().map(|(index, source)| (SourceId(index as u32), source))
    }

    /// The bytes of `span`, or nothing if they are not whole characters.
    pub fn text(&self, span: Span) -> &str {
        self.get(span.source).text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// Where `span` starts.
    pub fn start(&self, span: Span) -> LineColumn {
        self.get(span.source).line_column(span.start)
    }

    /// Where `span` ends: the place behind its last byte.
    pub fn end(&self, span: Span) -> LineColumn {
        self.get(span.source).line_column(span.end)
    }

    /// Remembers that the macro `name` is expanded for `call`.
    pub fn expand(&mut self, name: impl Into<String>, call: Span) -> ExpansionId {
        self.expansions.push(Expansion { name: name.into(), call });
        let count = u32::try_from(self.expansions.len()).unwrap_or(u32::MAX);
        ExpansionId(NonZeroU32::new(count).unwrap_or(NonZeroU32::MAX))
    }

    /// What [`Sources::expand`] remembered.
    pub fn expansion(&self, id: ExpansionId) -> &Expansion {
        &self.expansions[id.0.get() as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "ab\nc\r\n\nd").unwrap();
        let source = sources.get(id);
        for (at, line, column) in
            [(0, 1, 1), (2, 1, 3), (3, 2, 1), (6, 3, 1), (7, 4, 1), (8, 4, 2), (99, 4, 2)]
        {
            assert_eq!(source.line_column(at), LineColumn { line, column }, "byte {at}");
        }
        let lines: Vec<&str> = (0..6).map(|line| source.line(line)).collect();
        assert_eq!(lines, ["", "ab", "c", "", "d", ""]);
    }

    #[test]
    fn an_empty_text_has_one_empty_line() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "").unwrap();
        assert_eq!(sources.get(id).line(1), "");
        assert_eq!(sources.start(Span::new(id, 0, 0)), LineColumn { line: 1, column: 1 });
    }

    #[test]
    fn expansions_are_told_in_turn() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "outer()").unwrap();
        let call = Span::new(id, 0, 7);
        let outer = sources.expand("outer", call);
        let inner = sources.expand("inner", Span { expansion: Some(outer), ..call });
        assert_eq!(sources.expansion(inner).name, "inner");
        assert_eq!(sources.expansion(inner).call.expansion, Some(outer));
    }
}
