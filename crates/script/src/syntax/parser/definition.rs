//! Lines of the preprocessor and definitions of C: found by their form, and kept as text.

use super::cursor::is_identifier_start;
use super::{Failed, Parser, Result};
use crate::syntax::ast::CStatement;

impl Parser<'_> {
    /// A line of the preprocessor or a definition of C.
    pub(super) fn at_c(&self) -> bool {
        match self.peek() {
            b'#' => self.peek_at(1) != b'!',
            _ => match self.peek_word() {
                b"struct" | b"union" | b"enum" => self.looks_like_definition(),
                b"typedef" => {
                    let next = self.scan_layout(self.position + "typedef".len());
                    is_identifier_start(self.byte_at(next))
                }
                _ => false,
            },
        }
    }

    /// Words and attributes up to a `{`, unlike the attach point `struct:probe`.
    fn looks_like_definition(&self) -> bool {
        let mut at = self.scan_layout(self.scan_identifier(self.position));
        loop {
            let next = match self.byte_at(at) {
                b'{' => return true,
                byte if is_identifier_start(byte) => Some(self.scan_identifier(at)),
                b'(' => self.scan_balanced(at, b'(', b')'),
                b'[' => self.scan_balanced(at, b'[', b']'),
                _ => None,
            };
            let Some(next) = next else { return false };
            at = self.scan_layout(next);
        }
    }

    pub(super) fn c_statement(&mut self) -> Option<CStatement> {
        let start = self.position;
        if self.peek() == b'#' {
            // A backslash at the end of a line joins the next one to it.
            let mut end = self.scan_line(start);
            while self.slice(start, end).trim_end_matches('\r').ends_with('\\') && end < self.bytes.len() {
                end = self.scan_line(end + 1);
            }
            self.bump(end - start);
        } else if self.peek_word() == b"typedef" {
            self.skip_c(|byte| byte == b';');
        } else {
            self.skip_c(|byte| byte == b'{');
            let Some(end) = self.scan_c_body() else {
                self.error_here("expected '}'");
                self.bump(self.bytes.len() - self.position);
                return None;
            };
            self.bump(end - self.position);
            if let Err(Failed) = self.attributes() {
                self.bump(self.scan_line(self.position) - self.position);
                return None;
            }
        }
        let span = self.span_from(start);
        let text = self.slice(start, self.end).trim_end().to_string();
        self.take(b';');
        Some(CStatement { text, span })
    }

    /// Moves to the first byte that fits outside of braces and comments.
    fn skip_c(&mut self, fits: impl Fn(u8) -> bool) {
        while !self.at_end() && !fits(self.peek()) {
            if self.peek() == b'/' && matches!(self.peek_at(1), b'/' | b'*') {
                self.layout();
            } else if self.peek() == b'{' {
                let end = self.scan_c_body().unwrap_or(self.bytes.len());
                self.bump(end - self.position);
            } else {
                self.bump(1);
            }
        }
    }

    /// The place behind the body in braces at the position. Braces in comments do not count.
    fn scan_c_body(&self) -> Option<usize> {
        let (mut at, mut depth) = (self.position, 0_usize);
        while at < self.bytes.len() {
            match self.byte_at(at) {
                b'/' if matches!(self.byte_at(at + 1), b'/' | b'*') => {
                    at = self.scan_layout(at);
                    continue;
                }
                b'{' => depth += 1,
                b'}' if depth <= 1 => return Some(at + 1),
                b'}' => depth -= 1,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Takes the attributes behind a definition.
    fn attributes(&mut self) -> Result<()> {
        while self.take_word("__attribute__") {
            self.layout();
            if self.peek() != b'(' || self.peek_at(1) != b'(' {
                return Err(self.error_here("__attribute__ syntax error, expected '(('"));
            }
            let Some(end) = self.scan_balanced(self.position, b'(', b')') else {
                return Err(self.error_here("__attribute__ syntax error, mismatched '(' and ')'"));
            };
            self.bump(end - self.position);
        }
        Ok(())
    }
}
