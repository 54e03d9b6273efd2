//! Functions of maps.

use super::called;
use crate::check::checker::Checker;
use crate::check::statement::at;
use crate::check::tree::{Call, Expr, Key};
use crate::check::types::Type;
use crate::ir::MapId;
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind, Name};

impl Checker<'_> {
    pub(super) fn on_map(&mut self, function: &str, arguments: &[ast::Expr], span: Span) -> Expr {
        let [first, rest @ ..] = arguments else { return Expr::nothing(span) };
        if let (ExprKind::MapElement { map, key }, "delete", []) = (&first.kind, function, rest) {
            // As older scripts have it.
            let key = self.keyed_map(map, key, span);
            return self.deleted(key, span);
        }
        if let (ExprKind::Call { .. } | ExprKind::Builtin(_) | ExprKind::Variable(_), "len") =
            (&first.kind, function)
        {
            return self.on_place("stack_len", arguments, span);
        }
        let ExprKind::Map(name) = &first.kind else {
            self.expr(first);
            let message = match function {
                "is_scalar" => "is_scalar() expects a map for the first argument".to_owned(),
                "len" => "call to len() expects a map, ustack, or kstack".to_owned(),
                _ => format!("{function}() expects a map argument"),
            };
            self.error(first.span, message);
            return Expr::nothing(span);
        };
        let name = Name { text: at(name), span: first.span };
        let map = self.map(&name.text, first.span);
        let is_scalar = self.maps.get(map).is_scalar;
        match (function, rest) {
            ("clear", _) => called(Type::Void, Call::Clear(self.defined(map, first.span)), span),
            ("zero", _) => called(Type::Void, Call::Zero(self.defined(map, first.span)), span),
            ("is_scalar", _) => match is_scalar {
                Some(is_scalar) => Expr::int(Type::Bool, is_scalar.into(), span),
                None => {
                    self.error(span, format!("Unknown map: {}", name.text));
                    Expr::nothing(span)
                }
            },
            ("len", _) => {
                if is_scalar == Some(true) {
                    self.error(span, "call to len() expects a map with explicit keys (non-scalar map)");
                    return Expr::nothing(span);
                }
                called(Type::INT64, Call::Length(self.defined(map, first.span)), span)
            }
            ("delete", []) => {
                if is_scalar == Some(false) {
                    self.error(
                        span,
                        "call to delete() with a single argument expects a map without explicit keys (scalar map)",
                    );
                    return Expr::nothing(span);
                }
                let key = self.scalar_map(&name.text, first.span);
                self.deleted(key, span)
            }
            ("delete", [key, ..]) => {
                if is_scalar == Some(true) {
                    self.error(
                        span,
                        "call to delete() with two arguments expects a map with explicit keys (non-scalar map)",
                    );
                    return Expr::nothing(span);
                }
                let key = self.keyed_map(&name, key, span);
                self.deleted(key, span)
            }
            ("has_key", [key]) => {
                let key = self.key_for("has_key()", &name, key, span);
                match key {
                    Some(key) => called(Type::Bool, Call::Has(key), span),
                    None => Expr { of: Type::Bool, ..Expr::nothing(span) },
                }
            }
            ("has_key", _) => {
                if is_scalar == Some(true) {
                    self.error(span, "call to has_key() expects a map with explicit keys (non-scalar map)");
                } else {
                    self.error(span, "has_key() requires 2 arguments (1 provided)");
                }
                Expr::nothing(span)
            }
            _ => Expr::nothing(span),
        }
    }

    /// A map that is used as a whole, and has to be known from elsewhere.
    fn defined(&mut self, map: MapId, span: Span) -> MapId {
        let found = self.maps.get(map);
        if self.is_last && (found.value.is_none() || found.key.is_none()) {
            let name = found.name.clone();
            self.error(span, format!("Undefined map: {name}"));
        }
        map
    }

    fn key_for(&mut self, call: &str, name: &Name, key: &ast::Expr, span: Span) -> Option<Key> {
        let map = self.maps.number(&name.text, name.span);
        if self.maps.get(map).is_scalar == Some(true) {
            self.error(span, format!("call to {call} expects a map with explicit keys (non-scalar map)"));
            return None;
        }
        let key = self.keyed_map(name, key, span)?;
        if self.maps.get(map).value.is_none() {
            if self.is_last {
                self.error(name.span, format!("Undefined map: {}", name.text));
            }
            return None;
        }
        Some(key)
    }

    fn deleted(&mut self, key: Option<Key>, span: Span) -> Expr {
        match key {
            Some(key) => {
                if self.is_last && self.maps.get(key.map).value.is_none() {
                    let name = self.maps.get(key.map).name.clone();
                    self.error(span, format!("Undefined map: {name}"));
                }
                called(Type::Bool, Call::Delete(key, false), span)
            }
            None => Expr { of: Type::Bool, ..Expr::nothing(span) },
        }
    }
}
