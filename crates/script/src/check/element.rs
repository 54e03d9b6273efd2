//! Keys of maps, and counting up and down.

use super::checker::Checker;
use super::statement::{at, dollar};
use super::tree::{Expr, Key, Kind};
use super::types::Type;
use crate::ir::MapId;
use crate::source::Span;
use crate::syntax::ast::{self, PlaceKind, Step, StepOrder};

impl Checker<'_> {
    /// The map of this name, used as a whole.
    pub fn map(&mut self, name: &str, span: Span) -> MapId {
        let id = self.maps.number(name, span);
        self.maps.get_mut(id).is_used = true;
        id
    }

    /// The one value of a map.
    pub fn scalar_map(&mut self, name: &str, span: Span) -> Option<Key> {
        let name = at(name);
        let map = self.map(&name, span);
        let found = self.maps.get_mut(map);
        if found.is_scalar == Some(false) {
            self.error(
                span,
                format!(
                    "{name} used as a map without an explicit key (scalar map), previously used with an explicit key \
                     (non-scalar map)"
                ),
            );
            return None;
        }
        if found.is_scalar.is_none() {
            found.is_scalar = Some(true);
            self.has_changed = true;
        }
        self.widen_key(map, &Type::INT64);
        Some(Key { map, key: None })
    }

    /// A key of a map.
    pub fn keyed_map(&mut self, map: &ast::Name, key: &ast::Expr, span: Span) -> Option<Key> {
        let key = self.expr(key);
        self.key_of(map, key, span)
    }

    /// A key of a map, checked already.
    pub fn key_of(&mut self, map: &ast::Name, key: Expr, span: Span) -> Option<Key> {
        let name = at(&map.text);
        let id = self.map(&name, map.span);
        let found = self.maps.get_mut(id);
        if found.is_scalar == Some(true) {
            self.error(
                span,
                format!(
                    "{name} used as a map with an explicit key (non-scalar map), previously used without an explicit \
                     key (scalar map)"
                ),
            );
            return None;
        }
        if found.is_scalar.is_none() {
            found.is_scalar = Some(false);
            self.has_changed = true;
        }
        let parts = match &key.of {
            Type::Tuple(parts) => parts.to_vec(),
            other => vec![other.clone()],
        };
        if let Some(chart) = parts.iter().find(|of| of.is_chart()) {
            self.error(key.span, format!("{chart} cannot be part of a map key"));
            return None;
        }
        if matches!(key.of, Type::Void | Type::Mode) {
            self.error(span, format!("Value '{}' cannot be used as a map key.", key.of));
            return None;
        }
        if key.of.is_none() {
            if self.is_last && !self.told.has_errors() {
                self.error(key.span, format!("Invalid map key type: {}", key.of));
            }
            return None;
        }
        let key = self.as_number(key);
        let from = key.of.clone();
        let fits = self.widen_key(id, &from);
        let of = self.maps.get(id).key.clone();
        match self.coerced(key, &of) {
            Some(key) if fits => Some(Key { map: id, key: Some(Box::new(key)) }),
            _ => {
                self.error(
                    span,
                    format!(
                        "Argument mismatch for {name}: trying to access with arguments: '{from}' when map expects \
                         arguments: '{of}'"
                    ),
                );
                None
            }
        }
    }

    /// The place in a map that is assigned to.
    pub fn map_place(&mut self, place: &ast::Place) -> Option<Key> {
        match &place.kind {
            PlaceKind::Map(name) => self.scalar_map(name, place.span),
            PlaceKind::MapElement { map, key } => self.keyed_map(map, key, place.span),
            PlaceKind::Variable(_) => None,
        }
    }

    /// What a map has for a key.
    pub fn get(&mut self, key: Key, span: Span) -> Expr {
        let map = self.maps.get(key.map);
        let of = map.value.clone();
        if of.is_none() || map.key.is_none() {
            let name = map.name.clone();
            if self.is_last {
                self.error(span, format!("Undefined map: {name}"));
            }
            return Expr::nothing(span);
        }
        let kind = if matches!(of, Type::Aggregate(_)) { Kind::Number(key) } else { Kind::Get(key) };
        Expr { of, span, kind }
    }

    /// `++place` and its kin.
    pub fn step(&mut self, place: &ast::Place, step: Step, order: StepOrder, span: Span) -> Expr {
        let after = order == StepOrder::Before;
        let up = step == Step::Up;
        let sign = if up { 1 } else { -1 };
        let symbol = if up { "++" } else { "--" };
        let refuse = |checker: &mut Self, of: &Type| {
            checker
                .error(span, format!("The {symbol} operator can not be used on expressions of type '{of}'"));
            Expr::nothing(span)
        };
        match &place.kind {
            PlaceKind::Variable(name) => {
                let name = dollar(name);
                let Some(variable) = self.read(&name, place.span) else { return Expr::nothing(span) };
                self.assigned(&name);
                let of = self.type_of(variable);
                match &of {
                    Type::None => Expr::nothing(span),
                    Type::Pointer(to, _) => {
                        let by = sign * i64::from(self.structs.size(to).max(1));
                        Expr { of, span, kind: Kind::Step { variable, by, after } }
                    }
                    Type::Int(int) => {
                        if !self.is_fixed(variable) {
                            self.widen(variable, &Type::int(8, int.signed || !up));
                        }
                        let of = self.type_of(variable);
                        Expr { of, span, kind: Kind::Step { variable, by: sign, after } }
                    }
                    _ => {
                        let from = if up { "uint64" } else { "int64" };
                        self.error(
                            span,
                            format!(
                                "Type mismatch for {name}: trying to assign value of type '{from}' when variable \
                                 already has a type '{of}'"
                            ),
                        );
                        Expr::nothing(span)
                    }
                }
            }
            PlaceKind::Map(_) | PlaceKind::MapElement { .. } => {
                let Some(key) = self.map_place(place) else { return Expr::nothing(span) };
                let of = self.maps.get(key.map).value.clone();
                match &of {
                    Type::Pointer(to, _) => {
                        let by = sign * i64::from(self.structs.size(to).max(1));
                        Expr { of, span, kind: Kind::StepKey { key, by, after } }
                    }
                    Type::None => {
                        if !up {
                            self.widen_value(key.map, &Type::INT64);
                        }
                        Expr { of: Type::None, span, kind: Kind::Nothing }
                    }
                    Type::Int(int) => {
                        let result = Type::int(8, int.signed || !up);
                        self.widen_value(key.map, &result);
                        let of = self.maps.get(key.map).value.clone();
                        Expr { of, span, kind: Kind::StepKey { key, by: sign, after } }
                    }
                    _ => {
                        if matches!(of, Type::Aggregate(_)) {
                            let name = self.maps.get(key.map).name.clone();
                            self.error(
                                span,
                                format!(
                                    "Type mismatch for {name}: trying to assign value of type 'int64' when map \
                                     already has a type '{of}'"
                                ),
                            );
                            return Expr::nothing(span);
                        }
                        refuse(self, &of)
                    }
                }
            }
        }
    }
}
