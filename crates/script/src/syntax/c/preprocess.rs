//! The preprocessor: from lines with directives to tokens without.
//!
//! Macros are expanded as the standard says: a token remembers the macros that it came from, and is not
//! expanded by them again. All that headers can ask for is limited: the depth of includes, the bytes that are
//! read and the tokens that are written.

mod directive;
mod macros;

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use super::token::{Place, Token, tokens};
use super::{Options, builtin};
use crate::diagnostics::Diagnostics;
use crate::source::{SourceId, Sources, Span};
use crate::syntax::files::{FileKind, Files, directory, join};

/// How deep includes may nest.
const MAX_INCLUDES: usize = 64;
/// How many bytes may be read in all.
const MAX_BYTES: usize = 1 << 26;
/// How many tokens may be written in all.
const MAX_TOKENS: usize = 1 << 21;

/// A macro of the preprocessor.
#[derive(Clone, Debug)]
pub(super) struct Macro {
    /// The names of its parameters, if it takes any list.
    pub(super) parameters: Option<Vec<Rc<str>>>,
    /// Whether the last one takes all that is left.
    pub(super) variadic: bool,
    pub(super) body: Vec<Token>,
}

/// What it works on.
pub(super) struct Preprocessor<'a> {
    pub(super) options: &'a Options,
    pub(super) files: &'a dyn Files,
    pub(super) sources: &'a mut Sources,
    pub(super) diagnostics: &'a mut Diagnostics,
    pub(super) macros: BTreeMap<Rc<str>, Macro>,
    /// What was written.
    pub(super) out: Vec<Token>,
    /// The sources that are headers, in which what is not understood is skipped.
    pub(super) headers: HashSet<SourceId>,
    /// Headers that said `#pragma once`.
    once: HashSet<String>,
    /// The files that are being read, outermost first, with the number of the directory where each was found.
    reading: Vec<(String, usize)>,
    bytes: usize,
    /// How many tokens macros have written.
    written: usize,
    /// How many calls of macros had no end.
    unclosed: u32,
    /// Where each statement of the script starts, and its line in a file that has nothing else.
    pub(super) statements: Vec<(Span, u32)>,
    /// `#pragma pack`: the values before, and the one now.
    packs: Vec<Option<u32>>,
    pack: Option<u32>,
    /// Where in what was written the packing changed.
    pub(super) pack_changes: Vec<(usize, Option<u32>)>,
    /// Something was told that makes the rest useless.
    pub(super) failed: bool,
}

impl<'a> Preprocessor<'a> {
    pub(super) fn new(
        options: &'a Options,
        files: &'a dyn Files,
        sources: &'a mut Sources,
        diagnostics: &'a mut Diagnostics,
    ) -> Preprocessor<'a> {
        Preprocessor {
            options,
            files,
            sources,
            diagnostics,
            macros: BTreeMap::new(),
            out: Vec::new(),
            headers: HashSet::new(),
            once: HashSet::new(),
            reading: Vec::new(),
            bytes: 0,
            written: 0,
            unclosed: 0,
            statements: Vec::new(),
            packs: Vec::new(),
            pack: None,
            pack_changes: Vec::new(),
            failed: false,
        }
    }

    /// Tells an error, and stops.
    fn fail(&mut self, span: Span, message: &str) {
        if !self.failed {
            self.diagnostics.error(span, message);
        }
        self.failed = true;
    }

    /// Reads lines: directives are followed, the rest is expanded and written.
    pub(super) fn lines(&mut self, input: &[Token]) {
        let mut conditions = Vec::new();
        let mut text: Vec<Token> = Vec::new();
        for line in input.chunk_by(|_, next| !next.first) {
            if self.failed {
                return;
            }
            match line {
                [mark, directive @ ..] if mark.is("#") && mark.first => {
                    self.write(std::mem::take(&mut text));
                    self.directive(mark.span, directive, &mut conditions);
                }
                _ if conditions.iter().all(directive::Condition::reads) => text.extend_from_slice(line),
                _ => {}
            }
        }
        self.write(text);
    }

    fn write(&mut self, text: Vec<Token>) {
        let Some(span) = text.first().map(|token| token.span) else { return };
        let expanded = self.expand(text);
        self.out.extend(expanded);
        if self.out.len() > MAX_TOKENS {
            self.fail(span, "definitions of C are too long");
        }
    }

    /// Reads the header `name`. With quotes it is looked for beside the file that asks for it first.
    fn include(&mut self, span: Span, name: &str, quoted: bool, after: Option<usize>) {
        if self.reading.len() >= MAX_INCLUDES {
            return self.fail(span, &format!("'{name}' is included from too many files"));
        }
        let Some((path, index)) = self.find(name, quoted, after) else {
            if let Some(text) = builtin::header(name) {
                if self.once.insert(format!("<{name}>")) {
                    self.read(span, name, usize::MAX, text.to_string());
                }
                return;
            }
            return self.not_found(span, name);
        };
        if self.once.contains(&path) {
            return;
        }
        match self.files.read(&path) {
            // Headers may have comments in other encodings.
            Ok(bytes) => self.read(span, &path, index, String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => self.fail(span, &format!("cannot read '{path}': {error}")),
        }
    }

    fn read(&mut self, span: Span, path: &str, index: usize, text: String) {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > MAX_BYTES {
            return self.fail(span, "the headers that are included are too long");
        }
        let source = match self.sources.add(path, text) {
            Ok(source) => source,
            Err(error) => return self.fail(span, &error.to_string()),
        };
        self.headers.insert(source);
        let input = tokens(self.sources.get(source).text(), Place::At(source, 0));
        self.reading.push((path.to_string(), index));
        self.lines(&input);
        self.reading.pop();
    }

    /// Finds a header: beside the file that asks, then in the directories in turn. Its path, and the number
    /// of its directory, which is 0 beside the file.
    fn find(&self, name: &str, quoted: bool, after: Option<usize>) -> Option<(String, usize)> {
        let beside = self.reading.last().map_or(self.options.beside.as_str(), |(path, _)| directory(path));
        let beside =
            Some(beside).filter(|_| quoted && after.is_none()).into_iter().map(|directory| (directory, 0));
        let listed = self.options.include_paths.iter().map(String::as_str).zip(1..);
        let listed = listed.filter(|(_, index)| after.is_none_or(|after| *index > after));
        let mut all = beside.chain(listed).map(|(directory, index)| (join(directory, name), index));
        all.find(|(path, _)| self.files.kind(path) == Some(FileKind::File))
    }

    /// Tells it as the compiler does that bpftrace asks.
    fn not_found(&mut self, span: Span, name: &str) {
        let message = match self.reading.last() {
            None => {
                let begins = |(statement, _): &&(Span, u32)| {
                    (statement.source, statement.start) == (span.source, span.start)
                };
                let line = self.statements.iter().find(begins).map_or(1, |(_, line)| *line);
                let column = "#include <".len();
                format!("definitions.h:{line}:{column}: fatal error: '{name}' file not found")
            }
            Some((path, _)) => {
                let place = self.sources.start(span);
                format!("{path}:{}:{}: fatal error: '{name}' file not found", place.line, place.column)
            }
        };
        self.fail(span, &message);
    }
}
