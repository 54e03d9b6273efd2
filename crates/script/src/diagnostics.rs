//! What is told about a script, in the form that bpftrace has.
//!
//! ```text
//! stdin:1:9-14: ERROR: what is wrong
//! begin { exyt(); }
//!         ~~~~~
//! HINT: what to do
//! ```

use std::fmt::{self, Write};

use crate::source::{Source, Sources, Span};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The script cannot run.
    Error,
    /// The script can run.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
        })
    }
}

/// One thing that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where, unless it is about no place.
    pub span: Option<Span>,
    /// What.
    pub message: String,
    /// Other places that belong to it.
    pub related: Vec<(Span, String)>,
    /// What can be done.
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// An error at `span`.
    pub fn error(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            span: Some(span),
            message: message.into(),
            related: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// A warning at `span`.
    pub fn warning(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(span, message) }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hints.push(hint.into());
        self
    }

    /// The same with another place.
    #[must_use]
    pub fn related(mut self, span: Span, message: impl Into<String>) -> Diagnostic {
        self.related.push((span, message.into()));
        self
    }

    /// Its text, with the lines of source that it is about.
    pub fn render(&self, sources: &Sources) -> String {
        let mut out = String::new();
        match self.span {
            Some(span) => render_place(&mut out, sources, span, self.severity, &self.message),
            None => _ = writeln!(out, "{}: {}", self.severity, self.message),
        }
        for (span, message) in &self.related {
            render_place(&mut out, sources, *span, self.severity, message);
        }
        for hint in &self.hints {
            _ = writeln!(out, "HINT: {hint}");
        }
        let mut expansion = self.span.and_then(|span| span.expansion);
        while let Some(id) = expansion {
            let call = sources.expansion(id).call;
            render_place(&mut out, sources, call, self.severity, "expanded from");
            expansion = call.expansion;
        }
        out
    }
}

/// Where, what, and the line with a mark below it. A span of several lines is shown with all of them.
fn render_place(out: &mut String, sources: &Sources, span: Span, severity: Severity, message: &str) {
    let source = sources.get(span.source);
    let (start, end) = (sources.start(span), sources.end(span));
    if start.line != end.line {
        _ = writeln!(out, "{}:{}-{}: {severity}: {message}", source.name(), start.line, end.line);
        for line in start.line..=end.line {
            _ = writeln!(out, "{}", source.line(line));
        }
        return;
    }
    let (name, line) = (source.name(), start.line);
    _ = writeln!(out, "{name}:{line}:{}-{}: {severity}: {message}", start.column, end.column);
    if is_behind_the_last_line(source, line) {
        return;
    }
    let text = source.line(line);
    _ = writeln!(out, "{}", text.replace('\t', "    "));
    for (at, byte) in text.bytes().enumerate().take(end.column as usize - 1) {
        let mark = if at + 1 < start.column as usize { ' ' } else { '~' };
        out.extend(std::iter::repeat_n(mark, if byte == b'\t' { 4 } else { 1 }));
    }
    out.push('\n');
}

/// A text that ends with a line's end has nothing to show behind it.
fn is_behind_the_last_line(source: &Source, line: u32) -> bool {
    let text = source.text();
    text.is_empty() || (text.ends_with('\n') && source.line_column(text.len() as u32).line == line)
}

/// Everything that is told about a script, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// How much is told at most, besides one error.
    const MAX: usize = 200;

    /// Tells `diagnostic`, unless just the same was told, or so much that nobody reads it.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let room = self.list.len() < Diagnostics::MAX;
        let first_error = || diagnostic.severity == Severity::Error && !self.has_errors();
        if self.list.last() != Some(&diagnostic) && (room || first_error()) {
            self.list.push(diagnostic);
        }
    }

    /// Tells an error at `span`.
    pub fn error(&mut self, span: Span, message: impl Into<String>) {
        self.push(Diagnostic::error(span, message));
    }

    /// Tells a warning at `span`.
    pub fn warning(&mut self, span: Span, message: impl Into<String>) {
        self.push(Diagnostic::warning(span, message));
    }

    /// Whether there is an error.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// How many errors there are.
    pub fn error_count(&self) -> usize {
        self.list.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// Everything in the order in which it was told.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Tells all of `other`.
    pub fn append(&mut self, other: Diagnostics) {
        other.list.into_iter().for_each(|diagnostic| self.push(diagnostic));
    }

    /// The text of everything: errors, then warnings.
    pub fn render(&self, sources: &Sources) -> String {
        let of = |severity| self.list.iter().filter(move |diagnostic| diagnostic.severity == severity);
        of(Severity::Error)
            .chain(of(Severity::Warning))
            .map(|diagnostic| diagnostic.render(sources))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, start: usize, end: usize) -> String {
        let mut sources = Sources::default();
        let id = sources.add("stdin", text).unwrap();
        Diagnostic::error(Span::new(id, start, end), "no").render(&sources)
    }

    #[test]
    fn one_line_has_a_mark() {
        assert_eq!(rendered("a bcd e", 2, 5), "stdin:1:3-6: ERROR: no\na bcd e\n  ~~~\n");
    }

    #[test]
    fn a_tab_is_four_columns_wide() {
        assert_eq!(rendered("\ta\tb", 1, 4), "stdin:1:2-5: ERROR: no\n    a    b\n    ~~~~~~\n");
    }

    #[test]
    fn several_lines_have_no_mark() {
        assert_eq!(rendered("a\nb\nc\nd", 2, 5), "stdin:2-3: ERROR: no\nb\nc\n");
    }

    #[test]
    fn the_end_of_the_text_has_an_empty_mark() {
        assert_eq!(rendered("abc", 3, 3), "stdin:1:4-4: ERROR: no\nabc\n   \n");
        assert_eq!(rendered("abc\n", 4, 4), "stdin:2:1-1: ERROR: no\n");
    }

    #[test]
    fn a_mark_in_a_character_of_several_bytes_is_shown() {
        assert_eq!(rendered("ä!", 1, 2), "stdin:1:2-3: ERROR: no\nä!\n ~\n");
    }

    #[test]
    fn related_places_and_hints_come_before_the_calls_of_macros() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "m() d b").unwrap();
        let call = Span::new(id, 0, 3);
        let body = Span { expansion: Some(sources.expand("m", call)), ..Span::new(id, 6, 7) };
        let told = Diagnostic::warning(body, "no").related(Span::new(id, 4, 5), "as here").hint("try");
        let expected = "stdin:1:7-8: WARNING: no\nm() d b\n      ~\n\
                        stdin:1:5-6: WARNING: as here\nm() d b\n    ~\n\
                        HINT: try\n\
                        stdin:1:1-4: WARNING: expanded from\nm() d b\n~~~\n";
        assert_eq!(told.render(&sources), expected);
    }

    #[test]
    fn errors_are_told_before_warnings_and_once() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "ab").unwrap();
        let mut all = Diagnostics::default();
        all.warning(Span::new(id, 0, 1), "first");
        all.error(Span::new(id, 1, 2), "second");
        all.error(Span::new(id, 1, 2), "second");
        assert_eq!(
            all.render(&sources),
            "stdin:1:2-3: ERROR: second\nab\n ~\nstdin:1:1-2: WARNING: first\nab\n~\n"
        );
        assert_eq!(all.error_count(), 1);
    }

    #[test]
    fn an_error_is_told_however_many_warnings_there_are() {
        let mut sources = Sources::default();
        let id = sources.add("stdin", "a".repeat(1000)).unwrap();
        let mut all = Diagnostics::default();
        for at in 0..1000 {
            all.warning(Span::new(id, at, at + 1), "w");
        }
        all.error(Span::new(id, 0, 1), "e");
        assert_eq!((all.iter().len(), all.has_errors()), (201, true));
    }
}
