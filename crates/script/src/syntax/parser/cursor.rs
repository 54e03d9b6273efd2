//! Characters, layout and words; telling errors.

use super::{Failed, MAX_ERRORS, Parser, Result};
use crate::diagnostics::Diagnostic;
use crate::source::Span;
use crate::syntax::ast::{Comment, Name};

pub(super) fn is_identifier_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

pub(super) fn is_identifier_body(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl Parser<'_> {
    /// The byte at `position`, or 0 behind the end. A 0 in the text begins no rule.
    pub(super) fn byte_at(&self, position: usize) -> u8 {
        self.bytes.get(position).copied().unwrap_or(0)
    }

    pub(super) fn peek(&self) -> u8 {
        self.byte_at(self.position)
    }

    pub(super) fn peek_at(&self, offset: usize) -> u8 {
        self.byte_at(self.position + offset)
    }

    pub(super) fn at_end(&self) -> bool {
        self.position >= self.bytes.len()
    }

    /// The text from `start` to `end`, both at places where tokens begin or end.
    pub(super) fn slice(&self, start: usize, end: usize) -> String {
        String::from_utf8_lossy(self.bytes.get(start..end).unwrap_or_default()).into_owned()
    }

    /// Takes `count` bytes of a token.
    pub(super) fn bump(&mut self, count: usize) {
        self.position = (self.position + count).min(self.bytes.len());
        self.end = self.position;
    }

    /// Takes bytes of a token while they fit.
    pub(super) fn bump_while(&mut self, fits: impl Fn(u8) -> bool) {
        while !self.at_end() && fits(self.peek()) {
            self.bump(1);
        }
    }

    /// The place behind spaces and comments at `position`.
    pub(super) fn scan_layout(&self, mut position: usize) -> usize {
        loop {
            match self.byte_at(position) {
                b' ' | b'\t' | b'\r' | b'\n' | b'\x0b' | b'\x0c' => position += 1,
                b'/' if self.byte_at(position + 1) == b'/' => position = self.scan_line(position),
                b'/' if self.byte_at(position + 1) == b'*' => position = self.scan_block_comment(position),
                _ => return position,
            }
        }
    }

    /// The end of the line.
    pub(super) fn scan_line(&self, position: usize) -> usize {
        let rest = self.bytes.get(position..).unwrap_or_default();
        position + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
    }

    /// A comment that is not ended reaches to the end of the text.
    fn scan_block_comment(&self, position: usize) -> usize {
        let rest = self.bytes.get(position + 2..).unwrap_or_default();
        let length = rest.windows(2).position(|pair| pair == b"*/");
        length.map_or(self.bytes.len(), |length| position + 2 + length + 2)
    }

    pub(super) fn scan_identifier(&self, mut position: usize) -> usize {
        while is_identifier_body(self.byte_at(position)) {
            position += 1;
        }
        position
    }

    /// The place behind the bracket that closes the one at `position`, or nothing. Strings and comments do
    /// not count.
    pub(super) fn scan_balanced(&self, position: usize, open: u8, close: u8) -> Option<usize> {
        let (mut at, mut depth) = (position, 0_usize);
        while at < self.bytes.len() {
            match self.byte_at(at) {
                b'/' if matches!(self.byte_at(at + 1), b'/' | b'*') => {
                    at = self.scan_layout(at);
                    continue;
                }
                b'"' => at = self.scan_string(at),
                byte if byte == open => depth += 1,
                byte if byte == close => depth = depth.checked_sub(1)?,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                return (at > position + 1).then_some(at);
            }
        }
        None
    }

    /// The closing quote of the string at `position`, or the end of its line.
    pub(super) fn scan_string(&self, position: usize) -> usize {
        let mut at = position + 1;
        while at < self.bytes.len() && !matches!(self.byte_at(at), b'"' | b'\n') {
            at += if self.byte_at(at) == b'\\' { 2 } else { 1 };
        }
        at
    }

    /// Skips layout and keeps its comments.
    pub(super) fn layout(&mut self) {
        let end = self.scan_layout(self.position);
        let mut at = self.position;
        while at < end {
            if self.byte_at(at) != b'/' {
                at += 1;
                continue;
            }
            let line = self.byte_at(at + 1) == b'/';
            let behind = if line { self.scan_line(at) } else { self.scan_block_comment(at) };
            // The same layout may be skipped again after a rule has looked ahead.
            if self.comments.last().is_none_or(|last| (last.span.start as usize) < at) {
                self.comments.push(Comment { span: Span::new(self.source, at, behind) });
            }
            at = behind;
        }
        self.position = end;
    }

    /// The word at the position, or nothing.
    pub(super) fn peek_word(&self) -> &[u8] {
        let end = self.scan_identifier(self.position);
        self.bytes.get(self.position..end).unwrap_or_default()
    }

    /// Takes `byte` if it is next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.byte_at(self.scan_layout(self.position)) == byte && byte != 0;
        if found {
            self.layout();
            self.bump(1);
        }
        found
    }

    /// Whether `word` is next, whole.
    pub(super) fn at_word(&self, word: &str) -> bool {
        let start = self.scan_layout(self.position);
        let end = start + word.len();
        self.bytes.get(start..end) == Some(word.as_bytes()) && !is_identifier_body(self.byte_at(end))
    }

    /// Takes `word` if it is next, whole.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.layout();
            self.bump(word.len());
        }
        found
    }

    pub(super) fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) {
            return Ok(());
        }
        Err(self.error_here(&format!("expected '{}'", char::from(byte))))
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.take_word(word) {
            return Ok(());
        }
        Err(self.error_here(&format!("expected '{word}'")))
    }

    /// Takes an identifier, or tells `expected`.
    pub(super) fn identifier(&mut self, expected: &str) -> Result<Name> {
        self.layout();
        if !is_identifier_start(self.peek()) {
            return Err(self.error_here(expected));
        }
        Ok(self.word(0))
    }

    /// Takes `$x` at the position; the name is without `$`.
    pub(super) fn variable(&mut self) -> Result<Name> {
        if !is_identifier_start(self.peek_at(1)) {
            return Err(self.error_here("expected identifier after '$'"));
        }
        Ok(self.word(1))
    }

    /// Takes `@m` or `@` at the position; the name is without `@`.
    pub(super) fn map(&mut self) -> Name {
        if is_identifier_start(self.peek_at(1)) {
            return self.word(1);
        }
        let start = self.position;
        self.bump(1);
        Name { text: String::new(), span: self.span_from(start) }
    }

    /// Takes a sigil of `sigil` bytes and the identifier behind it.
    fn word(&mut self, sigil: usize) -> Name {
        let start = self.position;
        let end = self.scan_identifier(start + sigil);
        self.bump(end - start);
        Name { text: self.slice(start + sigil, end), span: self.span_from(start) }
    }

    /// Tells an error about the next token.
    pub(super) fn error_here(&mut self, message: &str) -> Failed {
        let start = self.scan_layout(self.position);
        let run = |fits: fn(u8) -> bool, mut at: usize| {
            while at < self.bytes.len() && fits(self.byte_at(at)) {
                at += 1;
            }
            at
        };
        let end = match self.byte_at(start) {
            _ if start >= self.bytes.len() => start,
            byte if is_identifier_start(byte) => run(is_identifier_body, start),
            b'0'..=b'9' => run(|byte| byte.is_ascii_alphanumeric() || byte == b'.', start),
            b'@' | b'$' => run(is_identifier_body, start + 1),
            _ => start + 1,
        };
        self.error_at(Span::new(self.source, start, end), message)
    }

    /// Tells an error at `span`.
    pub(super) fn error_at(&mut self, span: Span, message: &str) -> Failed {
        self.fail(Diagnostic::error(span, format!("syntax: {message}")))
    }

    /// Tells an error. After too many, the text is taken to be at its end.
    pub(super) fn fail(&mut self, told: Diagnostic) -> Failed {
        if self.errors < MAX_ERRORS {
            self.diagnostics.push(told);
        }
        self.errors += 1;
        if self.errors >= MAX_ERRORS {
            self.position = self.bytes.len();
        }
        Failed
    }
}
