//! Functions of strings and bytes.

use super::{called, lossy};
use crate::check::checker::Checker;
use crate::check::convert::converted;
use crate::check::expression::literal;
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::Type;
use crate::ir::Unary;
use crate::source::Span;
use crate::syntax::ast::{self, BinaryOp, ExprKind};

impl Checker<'_> {
    pub(super) fn on_text(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        match (function, arguments) {
            ("str", _) => self.str(arguments, span),
            ("buf", _) => self.buf(arguments, span),
            ("strlen" | "strcap", [text]) => {
                let text = self.expr(text);
                let text = self.with_name(text);
                self.length(function, text, span)
            }
            ("strstr", [haystack, needle]) => {
                let (haystack, needle) = (self.string_like(haystack, span), self.string_like(needle, span));
                let (Some(haystack), Some(needle)) = (haystack, needle) else { return Expr::nothing(span) };
                called(Type::INT64, Call::Find(Box::new(haystack), Box::new(needle)), span)
            }
            ("str_concat", [first, second]) => {
                let (first, second) = (self.string_like(first, span), self.string_like(second, span));
                let (Some(first), Some(second)) = (first, second) else { return Expr::nothing(span) };
                let room = |of: &Type| match of {
                    Type::String(room) => room.saturating_sub(1),
                    _ => 0,
                };
                let room = room(&first.of).saturating_add(room(&second.of)).saturating_add(1);
                let of = Type::String(room.min(self.longest()));
                called(of, Call::Concat(Box::new(first), Box::new(second)), span)
            }
            ("strncmp", [first, second, count]) => {
                let (first, second) = (self.expr(first), self.expr(second));
                let (first, second) = (self.with_name(first), self.with_name(second));
                let count = self.expr(count);
                for side in [&first, &second] {
                    if !matches!(side.of, Type::String(_) | Type::None) {
                        let kind = side.of.kind();
                        self.error(
                            span,
                            format!("strncmp() only supports string arguments ({kind} provided)"),
                        );
                        return Expr::nothing(span);
                    }
                }
                if count.literal().is_none_or(|count| count < 0) && !count.of.is_none() {
                    self.error(span, "Builtin strncmp requires a non-negative literal");
                    return Expr::nothing(span);
                }
                if first.of.is_none() || second.of.is_none() || count.of.is_none() {
                    return Expr { of: Type::UINT64, ..Expr::nothing(span) };
                }
                let count = converted(count, &Type::UINT64);
                let kind = Kind::SameText(Box::new(first), Box::new(second), Some(Box::new(count)));
                let same = Expr { of: Type::Bool, span, kind };
                Expr { of: Type::UINT64, span, kind: Kind::Unary(Unary::IsZero, Box::new(same)) }
            }
            ("memcmp", [first, second, _]) => {
                let (first, second) = (self.expr(first), self.expr(second));
                match first.of.promoted(&second.of) {
                    Some(both) if !first.of.is_none() && !second.of.is_none() => {
                        let (first, second) = (converted(first, &both), converted(second, &both));
                        let same = Kind::SameBytes(Box::new(first), Box::new(second));
                        let same = Expr { of: Type::Bool, span, kind: same };
                        Expr { of: Type::INT64, span, kind: Kind::Unary(Unary::IsZero, Box::new(same)) }
                    }
                    _ => Expr { of: Type::INT64, ..Expr::nothing(span) },
                }
            }
            ("strerror", [error]) => {
                let error = self.integer(function, error, span);
                Expr { of: Type::ErrorText, span, kind: Kind::Convert(Box::new(error)) }
            }
            ("signal_name", [signal]) => {
                let signal = self.integer(function, signal, span);
                if signal.of.is_none() {
                    return Expr { of: Type::String(64), ..Expr::nothing(span) };
                }
                let signal = converted(signal, &Type::INT64);
                let texts = crate::check::signals::TEXTS;
                called(Type::String(64), Call::Choose(Box::new(signal), texts, "N/A"), span)
            }
            ("strftime", [format, time]) => self.strftime(format, time, span),
            ("comm", []) => called(Type::String(16), Call::Comm, span),
            ("comm", _) => {
                for argument in arguments {
                    self.expr(argument);
                }
                self.error(
                    span,
                    "comm() of another process is not known in the probed one: comm tells its own name",
                );
                Expr::nothing(span)
            }
            ("assert_str", [text]) => {
                self.string_like(text, span);
                Expr { of: Type::Void, ..Expr::nothing(span) }
            }
            _ => Expr::nothing(span),
        }
    }

    fn str(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let [source, rest @ ..] = arguments else { return Expr::nothing(span) };
        // A parameter of the command line is the text that it is, and never a number.
        let value = match &source.kind {
            ExprKind::Positional(number) => self.positional_text(*number, source.span),
            ExprKind::Binary { op: BinaryOp::Add, left, right }
                if matches!(left.kind, ExprKind::Positional(_)) =>
            {
                let ExprKind::Positional(number) = left.kind else { return Expr::nothing(span) };
                let text = self.positional_text(number, left.span);
                let skip = self.expr(right);
                self.binary(BinaryOp::Add, text, skip, source.span)
            }
            _ => self.expr(source),
        };
        let value = self.with_name(value);
        let length = rest.first().map(|length| self.integer("str", length, span));
        let fixed = length.as_ref().and_then(Expr::literal);
        if let Some(negative) = fixed.filter(|length| *length < 0) {
            self.error(span, format!("strcannot use negative length ({negative})"));
            return Expr::nothing(span);
        }
        let text = match (&value.kind, value.literal()) {
            (Kind::Text(text), _) => Some(text.clone()),
            (_, Some(number)) if matches!(value.of, Type::Int(_)) => Some(number.to_string().into_bytes()),
            _ => None,
        };
        if let (Some(mut text), true) = (text, length.is_none() || fixed.is_some()) {
            text.truncate(fixed.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX));
            return self.text(text, span);
        }
        let most = self.longest();
        let room = match fixed {
            Some(length) if length + 1 > i128::from(most) => {
                self.warning(
                    span,
                    format!(
                        "length param ({length}) is too long and will be shortened to {most} bytes (see \
                         BPFTRACE_MAX_STRLEN)"
                    ),
                );
                most
            }
            Some(length) => length as u32 + 1,
            None => most,
        };
        let of = Type::String(room);
        match &value.of {
            Type::None => Expr { of, ..Expr::nothing(span) },
            Type::String(_) => converted(value, &of),
            other if other.is_int() || matches!(other, Type::Pointer(..)) => {
                let length = length
                    .filter(|_| fixed.is_none())
                    .map(|length| Box::new(converted(length, &Type::UINT64)));
                called(of, Call::Str(Box::new(value), length), span)
            }
            other => {
                self.error(
                    span,
                    format!("str() expects a string, integer or a pointer type as first argument ({other} provided)"),
                );
                Expr::nothing(span)
            }
        }
    }

    fn buf(&mut self, arguments: &[ast::Expr], span: Span) -> Expr {
        let [source, rest @ ..] = arguments else { return Expr::nothing(span) };
        let value = self.expr(source);
        let length = rest.first().map(|length| self.integer("buf", length, span));
        let most = self.longest().saturating_sub(4);
        let fixed = length.as_ref().and_then(Expr::literal);
        if let Some(negative) = fixed.filter(|length| *length < 0) {
            self.error(span, format!("bufcannot use negative length ({negative})"));
            return Expr::nothing(span);
        }
        let room = match (fixed, &value.of) {
            (Some(length), _) => u32::try_from(length).unwrap_or(most).min(most),
            (None, Type::Array(..)) if length.is_none() => self.structs.size(&value.of).min(most),
            _ => most,
        };
        let of = Type::Buffer(room);
        match &value.of {
            Type::None => Expr { of, ..Expr::nothing(span) },
            Type::Array(..) | Type::String(_) => {
                if length.is_none() && matches!(value.of, Type::String(_)) {
                    self.error(span, "buf() expects a length argument for non-array type string");
                    return Expr::nothing(span);
                }
                let length = length.map(|length| Box::new(converted(length, &Type::UINT64)));
                called(of, Call::BufOf(Box::new(value.as_bytes()), length), span)
            }
            other if other.is_int() || matches!(other, Type::Pointer(..)) => {
                let Some(length) = length else {
                    let kind = other.kind();
                    self.error(span, format!("buf() expects a length argument for non-array type {kind}"));
                    return Expr::nothing(span);
                };
                let length = converted(length, &Type::UINT64);
                called(of, Call::Buf(Box::new(value), Box::new(length)), span)
            }
            other => {
                let kind = other.kind();
                self.error(
                    span,
                    format!("buf() expects an integer, string, or array argument but saw {kind}"),
                );
                Expr::nothing(span)
            }
        }
    }

    /// A string, or the one that an array of characters or a pointer to them is.
    fn string_like(&mut self, text: &ast::Expr, span: Span) -> Option<Expr> {
        let text = self.expr(text);
        let text = self.with_name(text);
        self.as_string(text, span)
    }

    fn as_string(&mut self, text: Expr, span: Span) -> Option<Expr> {
        let is_char = |of: &Type| of.as_int().is_some_and(|int| int.size == 1 && int.signed);
        match &text.of {
            Type::None => None,
            Type::String(_) => Some(text),
            Type::Array(of, count) if is_char(of) => {
                let of = Type::String(*count);
                Some(Expr { of, span, kind: Kind::Reinterpret(Box::new(text)) })
            }
            Type::Pointer(of, _) if is_char(of) => {
                let of = Type::String(self.longest());
                Some(called(of, Call::Str(Box::new(text), None), span))
            }
            Type::Array(..) => {
                self.error(span, "string-like arrays must contain a char-like type");
                None
            }
            Type::Pointer(..) => {
                self.error(span, "string-like pointers must point to a char-like type");
                None
            }
            _ => {
                self.error(span, "string-like values must be either strings, arrays or pointers");
                None
            }
        }
    }

    fn length(&mut self, function: &str, text: Expr, span: Span) -> Expr {
        if function == "strcap" {
            match &text.of {
                Type::String(room) => return literal((*room).into(), span),
                Type::Array(_, count) => {
                    let count = *count;
                    return match self.as_string(text, span) {
                        Some(_) => literal(count.into(), span),
                        None => Expr::nothing(span),
                    };
                }
                _ => {}
            }
        }
        let is_none = text.of.is_none();
        match self.as_string(text, span) {
            Some(Expr { kind: Kind::Text(text), .. }) => {
                let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                Expr::int(Type::UINT64, length as i64, span)
            }
            Some(text) => called(Type::UINT64, Call::Strlen(Box::new(text)), span),
            None if is_none => Expr { of: Type::UINT64, ..Expr::nothing(span) },
            None => Expr::nothing(span),
        }
    }

    fn strftime(&mut self, format: &ast::Expr, time: &ast::Expr, span: Span) -> Expr {
        let format = self.text_literal("strftime", format, span);
        let time = self.integer("strftime", time, span);
        let Some(format) = format else { return Expr::nothing(span) };
        let clock = match &time.of {
            Type::Int(int) => int.clock,
            _ => Default::default(),
        };
        if clock == crate::check::types::Clock::Monotonic {
            self.error(span, "strftime() can not take a monotonic timestamp");
        }
        if time.literal().is_some_and(|time| time < 0) {
            self.error(span, "strftime() does not accept negative timestamps");
        }
        let of = Type::Timestamp(lossy(&format), clock);
        if time.of.is_none() {
            return Expr { of, ..Expr::nothing(span) };
        }
        let time = converted(time, &Type::UINT64);
        Expr { of, span, kind: Kind::Convert(Box::new(time)) }
    }
}
