//! Integers, strings and parameters.

use super::cursor::{is_identifier_body, is_identifier_start};
use super::{Parser, Result};
use crate::source::Span;
use crate::syntax::ast::{ExprKind, Float, Integer};
use crate::syntax::number;

impl Parser<'_> {
    /// Takes an integer with its suffix, as written. Empty if there is none.
    pub(super) fn integer_text(&mut self) -> Result<String> {
        self.layout();
        let start = self.position;
        if self.peek() == b'0' && matches!(self.peek_at(1), b'x' | b'X') {
            self.bump(2);
            self.digits(|byte| byte.is_ascii_hexdigit())?;
            return Ok(self.slice(start, self.position));
        }
        self.digits(|byte| byte.is_ascii_digit())?;
        if matches!(self.peek(), b'e' | b'E') {
            self.bump(1);
            self.digits(|byte| byte.is_ascii_digit())?;
        }
        let suffix = self.suffix_length();
        self.bump(suffix);
        let behind = self.position;
        if is_identifier_start(self.peek()) {
            self.bump_while(is_identifier_body);
            let message = format!("invalid integer suffix '{}'", self.slice(behind, self.position));
            return Err(self.error_at(self.span_from(behind), &message));
        }
        Ok(self.slice(start, self.position))
    }

    /// Takes digits with `_` between them.
    fn digits(&mut self, is_digit: impl Fn(u8) -> bool) -> Result<()> {
        let start = self.position;
        self.bump_while(|byte| is_digit(byte) || byte == b'_');
        if self.position > start && self.byte_at(self.position - 1) == b'_' {
            let span = Span::new(self.source, self.position - 1, self.position);
            return Err(self.error_at(span, "trailing underscore in integer literal"));
        }
        Ok(())
    }

    /// The length of a suffix: a unit of time or size, `u`, `l`, `ul`, `ll` or `ull`.
    fn suffix_length(&self) -> usize {
        let is_long = |offset| matches!(self.peek_at(offset), b'l' | b'L');
        match self.peek() {
            b'n' | b'u' | b'm' if self.peek_at(1) == b's' => 2,
            b's' | b'm' | b'h' | b'd' | b'k' | b'M' | b'G' => 1,
            b'u' | b'U' if is_long(1) => 2 + usize::from(is_long(2)),
            b'u' | b'U' => 1,
            b'l' | b'L' => 1 + usize::from(is_long(1)),
            _ => 0,
        }
    }

    /// Takes a float, if there is one: digits around a point, and perhaps an exponent. `1..2` is none.
    fn float(&mut self) -> Result<Option<ExprKind>> {
        let start = self.position;
        let digits = |parser: &Self, from: usize| {
            (from..).take_while(|&at| parser.peek_at(at).is_ascii_digit()).count()
        };
        let whole = digits(self, 0);
        if self.peek_at(whole) != b'.' {
            return Ok(None);
        }
        let fraction = digits(self, whole + 1);
        if fraction == 0 {
            return Ok(None);
        }
        let mut length = whole + 1 + fraction;
        if matches!(self.peek_at(length), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek_at(length + 1), b'+' | b'-'));
            let exponent = digits(self, length + 1 + sign);
            length += if exponent > 0 { 1 + sign + exponent } else { 0 };
        }
        self.bump(length);
        let text = self.slice(start, self.position);
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(ExprKind::Float(Float { value, text }))),
            _ => Err(self.error_at(self.span_from(start), "float is too large")),
        }
    }

    /// Takes an integer or a float; the position is at a digit.
    pub(super) fn number(&mut self) -> Result<ExprKind> {
        let start = self.position;
        if let Some(float) = self.float()? {
            return Ok(float);
        }
        let text = self.integer_text()?;
        match number::parse_literal(&text) {
            Ok(value) => Ok(ExprKind::Integer(Integer { value, text })),
            Err(error) => Err(self.error_at(self.span_from(start), &error.to_string())),
        }
    }

    /// Takes `$1` or `$#`; the position is at the `$`.
    pub(super) fn parameter(&mut self) -> Result<ExprKind> {
        let start = self.position;
        if self.peek_at(1) == b'#' {
            self.bump(2);
            return Ok(ExprKind::PositionalCount);
        }
        self.bump(1);
        self.bump_while(|byte| byte.is_ascii_digit());
        let digits = self.slice(start + 1, self.position);
        match digits.parse::<i64>() {
            Ok(number @ 1..) => Ok(ExprKind::Positional(number as u64)),
            _ => {
                let message = format!("param ${digits} is out of integer range [1, {}]", i64::MAX);
                Err(self.error_at(self.span_from(start), &message))
            }
        }
    }

    /// Takes a string and resolves its escapes; the position is at the quote.
    pub(super) fn string(&mut self) -> Result<Vec<u8>> {
        self.bump(1);
        let mut bytes = Vec::new();
        loop {
            if self.at_end() || self.peek() == b'\n' {
                return Err(self.error_here("unterminated string"));
            }
            match self.peek() {
                b'"' => break self.bump(1),
                b'\\' => bytes.push(self.escape()?),
                byte => {
                    bytes.push(byte);
                    self.bump(1);
                }
            }
        }
        Ok(bytes)
    }

    fn escape(&mut self) -> Result<u8> {
        let start = self.position;
        self.bump(1);
        let byte = match self.peek() {
            _ if self.at_end() => return Err(self.error_here("unterminated string")),
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            quoted @ (b'"' | b'\\') => quoted,
            b'0'..=b'7' => {
                let length = (1..3).take_while(|&at| matches!(self.peek_at(at), b'0'..=b'7')).count() + 1;
                self.bump(length);
                let digits = self.slice(start + 1, self.position);
                return u8::from_str_radix(&digits, 8).map_err(|_| {
                    let message = format!("octal escape sequence out of range '\\{digits}'");
                    self.error_at(self.span_from(start), &message)
                });
            }
            b'x' | b'X' => {
                self.bump(1);
                let length = (0..2).take_while(|&at| self.peek_at(at).is_ascii_hexdigit()).count();
                self.bump(length);
                let digits = self.slice(start + 2, self.position);
                return u8::from_str_radix(&digits, 16)
                    .map_err(|_| self.error_here("invalid hex escape sequence"));
            }
            other => {
                let message = format!("invalid escape character '\\{}'", char::from(other));
                return Err(self.error_here(&message));
            }
        };
        self.bump(1);
        Ok(byte)
    }
}
