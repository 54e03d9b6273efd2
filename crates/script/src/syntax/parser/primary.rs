//! What operators work on: names, literals, calls, and everything in brackets.

use super::cursor::is_identifier_start;
use super::expression::place_expression;
use super::{Failed, Parser, Result};
use crate::syntax::ast::{Expr, ExprKind, Name, Place, PlaceKind, RecordField, TypeOf};
use crate::syntax::words::is_builtin;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Result<Expr> {
        self.layout();
        let start = self.position;
        match self.peek() {
            b'(' => return self.parenthesis(),
            b'{' => {
                let block = self.block_with_value()?;
                let below = self.height;
                return self.node(block.span, ExprKind::Block(block), below);
            }
            b'@' => {
                let place = self.map_place()?;
                return Ok(place_expression(place));
            }
            b'$' if self.peek_at(1) == b'#' || self.peek_at(1).is_ascii_digit() => {
                let kind = self.parameter()?;
                return self.node(self.span_from(start), kind, 0);
            }
            b'$' => {
                let name = self.variable()?;
                return self.node(name.span, ExprKind::Variable(name.text), 0);
            }
            b'0'..=b'9' => {
                let kind = self.number()?;
                return self.node(self.span_from(start), kind, 0);
            }
            b'"' => {
                let text = self.string()?;
                return self.node(self.span_from(start), ExprKind::String(text), 0);
            }
            byte if !is_identifier_start(byte) => return Err(self.error_here("expected expression")),
            _ => {}
        }
        self.height = 0;
        let kind = match self.peek_word() {
            b"if" => return self.if_expression(),
            b"sizeof" => ExprKind::Sizeof(Box::new(self.type_call("sizeof")?)),
            b"typeinfo" => ExprKind::Typeinfo(Box::new(self.type_call("typeinfo")?)),
            b"offsetof" => self.offset_of()?,
            b"comptime" => {
                self.take_word("comptime");
                ExprKind::Comptime(Box::new(self.unary()?))
            }
            _ => return self.named(),
        };
        let below = self.height;
        self.node(self.span_from(start), kind, below)
    }

    fn type_call(&mut self, word: &str) -> Result<TypeOf> {
        self.expect_word(word)?;
        self.expect(b'(')?;
        let of = self.type_operand()?;
        self.expect(b')')?;
        Ok(of)
    }

    fn offset_of(&mut self) -> Result<ExprKind> {
        self.expect_word("offsetof")?;
        self.expect(b'(')?;
        let of = Box::new(self.type_operand()?);
        self.expect(b',')?;
        let mut fields = vec![self.identifier("expected identifier")?];
        while self.take(b'.') {
            fields.push(self.identifier("expected identifier")?);
        }
        self.expect(b')')?;
        Ok(ExprKind::Offsetof { of, fields })
    }

    /// Takes a name: a literal, a call, a builtin or a word.
    fn named(&mut self) -> Result<Expr> {
        let name = self.identifier("expected expression")?;
        let kind = match name.text.as_str() {
            "true" | "false" => ExprKind::Boolean(name.text == "true"),
            _ if self.take(b'(') => return self.call(name),
            word if is_builtin(word) => ExprKind::Builtin(name.text),
            _ => ExprKind::Identifier(name.text),
        };
        self.node(name.span, kind, 0)
    }

    /// Takes the arguments of a call and its parenthesis.
    fn call(&mut self, name: Name) -> Result<Expr> {
        let (mut arguments, mut below) = (Vec::new(), 0);
        if !self.take(b')') {
            loop {
                arguments.push(self.argument()?);
                below = below.max(self.height);
                if !self.take(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        let span = name.span.to(self.span_from(self.end));
        self.node(span, ExprKind::Call { name, arguments }, below)
    }

    fn argument(&mut self) -> Result<Expr> {
        if !self.at_word("typeof") {
            return self.expression();
        }
        let of = self.type_of()?;
        let below = self.height;
        self.node(of.span, ExprKind::TypeArg(Box::new(of)), below)
    }

    /// Takes `if condition { … }` with its `else`.
    fn if_expression(&mut self) -> Result<Expr> {
        let start = self.position;
        self.expect_word("if")?;
        let condition = Box::new(self.condition()?);
        let mut below = self.height;
        let then = self.block_with_value()?;
        below = below.max(self.height);
        let mut otherwise = None;
        if self.take_word("else") {
            self.layout();
            let part = if self.peek() == b'{' {
                let block = self.block_with_value()?;
                let below = self.height;
                self.node(block.span, ExprKind::Block(block), below)?
            } else if self.at_word("if") {
                self.nested(Parser::if_expression)?
            } else {
                return Err(self.error_here("expected '{' or 'if' after 'else'"));
            };
            below = below.max(self.height);
            otherwise = Some(Box::new(part));
        }
        self.node(self.span_from(start), ExprKind::If { condition, then, otherwise }, below)
    }

    /// Takes the condition of `if`, `while` and `unroll`.
    ///
    /// In parentheses it is any expression, and never a record. Without them it ends before the `{`.
    pub(super) fn condition(&mut self) -> Result<Expr> {
        if !self.take(b'(') {
            return self.unary();
        }
        let condition = self.expression()?;
        self.expect(b')')?;
        Ok(condition)
    }

    /// Takes what begins with `(`: the empty tuple, a record, a cast, a group or a tuple.
    fn parenthesis(&mut self) -> Result<Expr> {
        let start = self.position;
        self.bump(1);
        if self.take(b')') {
            return self.node(self.span_from(start), ExprKind::Tuple(Vec::new()), 0);
        }
        if self.looks_like_record() {
            return self.record(start);
        }
        if self.looks_like_cast() {
            return self.cast(start);
        }
        let first = self.expression()?;
        if !self.take(b',') {
            self.expect(b')')?;
            return Ok(first);
        }
        let (mut parts, mut below) = (vec![first], self.height);
        while !self.take(b')') {
            parts.push(self.expression()?);
            below = below.max(self.height);
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        self.node(self.span_from(start), ExprKind::Tuple(parts), below)
    }

    /// `name =`, where the name is no builtin.
    fn looks_like_record(&self) -> bool {
        let start = self.scan_layout(self.position);
        let end = self.scan_identifier(start);
        let equals = self.scan_layout(end);
        is_identifier_start(self.byte_at(start))
            && self.byte_at(equals) == b'='
            && self.byte_at(equals + 1) != b'='
            && !is_builtin(&self.slice(start, end))
    }

    fn record(&mut self, start: usize) -> Result<Expr> {
        let (mut fields, mut below): (Vec<RecordField>, u32) = (Vec::new(), 0);
        loop {
            let name = self.identifier("expected identifier")?;
            self.expect(b'=')?;
            let value = self.expression()?;
            below = below.max(self.height);
            let span = name.span.to(self.span_from(self.end));
            if fields.iter().any(|field| field.name.text == name.text) {
                let message = format!("Named argument list already contains name: {}", name.text);
                return Err(self.error_at(span, &message));
            }
            fields.push(RecordField { name, value, span });
            if !self.take(b',') {
                break;
            }
        }
        self.expect(b')')?;
        self.node(self.span_from(start), ExprKind::Record(fields), below)
    }

    /// A type, `)`, and something that begins an expression.
    fn looks_like_cast(&self) -> bool {
        let close = if self.at_word("typeof") {
            let open = self.scan_layout(self.scan_layout(self.position) + "typeof".len());
            self.scan_balanced(open, b'(', b')').map(|behind| self.scan_layout(behind))
        } else {
            self.look_for_type().map(|shape| shape.end)
        };
        let Some(close) = close.filter(|&close| self.byte_at(close) == b')') else { return false };
        match self.byte_at(self.scan_layout(close + 1)) {
            b'0'..=b'9' | b'$' | b'@' | b'"' | b'(' | b'-' | b'!' | b'~' | b'*' | b'&' => {
                // `(a) != b`, `(a) && b` and `(a) -= b` begin no expression behind the parenthesis.
                let at = self.scan_layout(close + 1);
                !matches!((self.byte_at(at), self.byte_at(at + 1)), (b'!', b'=') | (b'&', b'&'))
            }
            byte => is_identifier_start(byte),
        }
    }

    fn cast(&mut self, start: usize) -> Result<Expr> {
        let to = Box::new(self.annotation()?);
        let below = self.height;
        self.expect(b')')?;
        let span = self.span_from(start);
        let value = Box::new(self.unary()?);
        let below = below.max(self.height);
        self.node(span, ExprKind::Cast { to, value }, below)
    }

    /// Takes `@m` or `@m[key, key]`; the position is at the `@`.
    pub(super) fn map_place(&mut self) -> Result<Place> {
        let start = self.position;
        let map = self.map();
        self.height = 1;
        if !self.take(b'[') {
            return Ok(Place { id: self.ids.fresh(), span: map.span, kind: PlaceKind::Map(map.text) });
        }
        let first = self.expression()?;
        let (mut keys, mut below) = (vec![first], self.height);
        while self.take(b',') {
            keys.push(self.expression()?);
            below = below.max(self.height);
        }
        self.expect(b']')?;
        let span = self.span_from(start);
        let key = match keys.pop() {
            Some(only) if keys.is_empty() => only,
            last => {
                keys.extend(last);
                self.node(span, ExprKind::Tuple(keys), below)?
            }
        };
        self.height = below + 2;
        Ok(Place { id: self.ids.fresh(), span, kind: PlaceKind::MapElement { map, key: Box::new(key) } })
    }

    /// Takes a block, or an `if`, and nothing behind it.
    pub(super) fn block_expression(&mut self) -> Result<Expr> {
        self.nested(Parser::primary)
    }

    /// Tells that a rule needs a semicolon.
    pub(super) fn missing_semicolon(&mut self) -> Failed {
        self.error_here("expected ';'")
    }
}
