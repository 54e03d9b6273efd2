//! Types as written, and where a type or an expression may stand.

use super::cursor::is_identifier_start;
use super::{Parser, Result};
use crate::syntax::ast::{ExprKind, Type, TypeKind, TypeOf, TypeOfKind};
use crate::syntax::number;
use crate::syntax::words::{is_builtin, is_type};

/// More stars and brackets than this are no type that anyone means.
const MAX_SUFFIXES: usize = 16;

/// What a look ahead found at the place of a type.
pub(super) struct TypeShape {
    /// The place behind it and the layout after it.
    pub(super) end: usize,
    /// Whether it can only be a type: it has a tag, a suffix or a name that is known.
    pub(super) certain: bool,
}

impl Parser<'_> {
    /// Looks for a type at the position: a name, with or without a tag, stars and lengths.
    pub(super) fn look_for_type(&self) -> Option<TypeShape> {
        let start = self.scan_layout(self.position);
        if !is_identifier_start(self.byte_at(start)) {
            return None;
        }
        let mut at = self.scan_identifier(start);
        let word = std::str::from_utf8(self.bytes.get(start..at)?).ok()?;
        if is_builtin(word) {
            return None;
        }
        let mut certain = is_type(word);
        if is_tag(word) {
            at = self.scan_layout(at);
            if !is_identifier_start(self.byte_at(at)) {
                return None;
            }
            at = self.scan_identifier(at);
            certain = true;
        }
        loop {
            at = self.scan_layout(at);
            match self.byte_at(at) {
                b'*' => at += 1,
                b'[' => {
                    at = self.scan_layout(at + 1);
                    while self.byte_at(at).is_ascii_alphanumeric() || self.byte_at(at) == b'_' {
                        at += 1;
                    }
                    at = self.scan_layout(at);
                    if self.byte_at(at) != b']' {
                        return None;
                    }
                    at += 1;
                }
                _ => return Some(TypeShape { end: at, certain }),
            }
            certain = true;
        }
    }

    /// Takes a type.
    pub(super) fn parse_type(&mut self) -> Result<Type> {
        self.layout();
        let start = self.position;
        let word = self.identifier("expected type name")?.text;
        let kind = if is_tag(&word) {
            let name = self.identifier("expected identifier")?.text;
            match word.as_str() {
                "struct" => TypeKind::Struct(name),
                "union" => TypeKind::Union(name),
                _ => TypeKind::Enum(name),
            }
        } else {
            TypeKind::Named(word)
        };
        let mut result = Type { kind, span: self.span_from(start) };
        for _ in 0..MAX_SUFFIXES {
            let start = self.scan_layout(self.position);
            let kind = if self.take(b'*') {
                TypeKind::Pointer(Box::new(result))
            } else if self.take(b'[') {
                let text = self.integer_text()?;
                // Without a length, and with one that is no number, as in bpftrace.
                let length = number::parse(&text).unwrap_or(0);
                self.expect(b']')?;
                TypeKind::Array(Box::new(result), length)
            } else {
                return Ok(result);
            };
            result = Type { kind, span: self.span_from(start) };
        }
        Err(self.error_here(super::TOO_DEEP))
    }

    /// Takes `typeof(…)` or a type.
    pub(super) fn annotation(&mut self) -> Result<TypeOf> {
        if self.at_word("typeof") {
            return self.type_of();
        }
        let start = self.scan_layout(self.position);
        let kind = TypeOfKind::Type(self.parse_type()?);
        self.height = 1;
        Ok(TypeOf { kind, span: self.span_from(start) })
    }

    /// Takes `typeof(type or expression)`.
    pub(super) fn type_of(&mut self) -> Result<TypeOf> {
        let start = self.scan_layout(self.position);
        self.expect_word("typeof")?;
        self.expect(b'(')?;
        let kind = self.type_or_expression(b")")?;
        self.expect(b')')?;
        Ok(TypeOf { kind, span: self.span_from(start) })
    }

    /// Takes a type, `typeof(…)` or an expression, for `sizeof` and its kin.
    pub(super) fn type_operand(&mut self) -> Result<TypeOf> {
        if self.at_word("typeof") {
            return self.type_of();
        }
        let start = self.scan_layout(self.position);
        let kind = self.type_or_expression(b";,=){}")?;
        Ok(TypeOf { kind, span: self.span_from(start) })
    }

    /// A name that is no known type stays an expression: what it names is found later.
    fn type_or_expression(&mut self, terminators: &[u8]) -> Result<TypeOfKind> {
        let shape = self.look_for_type().filter(|shape| terminators.contains(&self.byte_at(shape.end)));
        match shape {
            Some(TypeShape { certain: true, .. }) => {
                self.height = 1;
                Ok(TypeOfKind::Type(self.parse_type()?))
            }
            Some(TypeShape { certain: false, .. }) => {
                let name = self.identifier("expected type name")?;
                Ok(TypeOfKind::Expr(self.node(name.span, ExprKind::Identifier(name.text), 0)?))
            }
            None => Ok(TypeOfKind::Expr(self.expression()?)),
        }
    }
}

fn is_tag(word: &str) -> bool {
    matches!(word, "struct" | "union" | "enum")
}
