//! Conversions: a value in another type, where the script asks for it and where it does not have to.

use super::checker::Checker;
use super::tree::{Expr, Kind};
use super::types::{Int, Type, field};
use crate::ir::{Binary, Unary};
use crate::source::Span;
use crate::syntax::ast::{TypeKind, TypeOf, TypeOfKind};
use std::sync::Arc;

/// The value in another type, whatever is lost.
pub fn converted(value: Expr, to: &Type) -> Expr {
    if value.of.is_same(to) || value.of.is_none() || to.is_none() {
        return Expr { of: if value.of.is_same(to) { to.clone() } else { value.of.clone() }, ..value };
    }
    let span = value.span;
    match (&value.kind, to) {
        (Kind::Int(number), Type::Int(int) | Type::Enum(int, _)) => {
            Expr::int(to.clone(), int.wrap(*number), span)
        }
        (Kind::Int(number), Type::Float(_)) => {
            let number = match value.of.as_int() {
                Some(int) if !int.signed => *number as u64 as f64,
                _ => *number as f64,
            };
            Expr { of: to.clone(), span, kind: Kind::Float(number) }
        }
        (Kind::Text(text), Type::String(room)) => {
            let mut text = text.clone();
            text.truncate((*room as usize).saturating_sub(1));
            Expr { of: to.clone(), span, kind: Kind::Text(text) }
        }
        (Kind::Tuple(_), Type::Tuple(types)) => {
            let Kind::Tuple(parts) = value.kind else { return Expr::nothing(span) };
            let parts = parts.into_iter().map(|(index, part)| {
                let part = match types.get(index) {
                    Some(of) => converted(part, of),
                    None => part,
                };
                (index, part)
            });
            Expr { of: to.clone(), span, kind: Kind::Tuple(parts.collect()) }
        }
        (Kind::Tuple(_), Type::Record(types)) if matches!(value.of, Type::Record(_)) => {
            let (Kind::Tuple(parts), Type::Record(from)) = (value.kind, &value.of) else {
                return Expr::nothing(span);
            };
            // They are evaluated in the order in which they are written, and lie in that of the type.
            let parts = parts.into_iter().filter_map(|(index, part)| {
                let (index, of) = field(types, &from.get(index)?.0)?;
                Some((index, converted(part, of)))
            });
            Expr { of: to.clone(), span, kind: Kind::Tuple(parts.collect()) }
        }
        _ => Expr { of: to.clone(), span, kind: Kind::Convert(Box::new(value)) },
    }
}

impl Checker<'_> {
    /// The value as one of this type, if it may become one without being asked to.
    pub fn coerced(&mut self, value: Expr, to: &Type) -> Option<Expr> {
        if value.of.is_same(to) || value.of.is_none() || to.is_none() {
            return Some(converted(value, to));
        }
        match (&value.of, to) {
            (from, to) if (from.is_int() || from.is_number_of_aggregate()) && to.is_int() => {
                let from = from.number();
                let (from, target) = (from.as_int()?, to.as_int()?);
                let literal = value.literal().filter(|_| !matches!(value.of, Type::Enum(..)));
                if literal.is_some_and(|literal| !target.holds(literal)) {
                    return None;
                }
                if literal.is_none() && !fits(from, target) && value.of.is_int() {
                    let message = format!(
                        "Expression of type: {} being cast to type: {to}. This may cause unexpected results. Use an \
                         explicit cast to suppress this warning.",
                        value.of
                    );
                    self.warning(value.span, message);
                }
                let value = self.as_number(value);
                Some(converted(value, to))
            }
            (from, Type::Float(_)) if from.is_int() || from.is_number_of_aggregate() => {
                let value = self.as_number(value);
                Some(converted(value, to))
            }
            (Type::Float(_), Type::Float(_)) => Some(converted(value, to)),
            (Type::String(from), Type::String(room)) => (from <= room).then(|| converted(value, to)),
            (Type::Tuple(_), Type::Tuple(_)) | (Type::Record(_), Type::Record(_)) => {
                if !value.of.is_compatible(to) && value.of.promoted(to).is_none() {
                    return None;
                }
                self.coerced_parts(value, to)
            }
            (Type::Pointer(..), Type::Pointer(..)) | (Type::Buffer(_), Type::Buffer(_)) => {
                Some(converted(value, to))
            }
            (Type::Timestamp(..), Type::Timestamp(..)) => Some(Expr { of: to.clone(), ..value }),
            _ => None,
        }
    }

    /// Literal parts have to fit.
    fn coerced_parts(&mut self, value: Expr, to: &Type) -> Option<Expr> {
        let Kind::Tuple(parts) = value.kind else {
            return to.promoted(&value.of).is_some_and(|both| both.is_same(to)).then(|| converted(value, to));
        };
        let from = value.of.clone();
        let mut all = Vec::new();
        for (index, part) in parts {
            let (index, of) = match (&from, to) {
                (Type::Record(from), Type::Record(to)) => field(to, &from.get(index)?.0)?,
                (_, Type::Tuple(to)) => (index, to.get(index)?),
                _ => return None,
            };
            all.push((index, self.coerced(part, of)?));
        }
        Some(Expr { of: to.clone(), span: value.span, kind: Kind::Tuple(all) })
    }

    /// An aggregation as the number that it is so far; all else as it is.
    pub fn as_number(&mut self, value: Expr) -> Expr {
        Expr { of: value.of.number(), ..value }
    }

    /// Whether it is true, as 1 or 0 or anything but 0.
    pub fn truth(&mut self, value: Expr) -> Expr {
        let value = self.as_number(value);
        match value.of {
            Type::Float(_) => {
                let span = value.span;
                let zero = Expr { of: Type::Float(8), span, kind: Kind::Float(0.0) };
                let value = converted(value, &Type::Float(8));
                Expr {
                    of: Type::Bool,
                    span,
                    kind: Kind::Binary(Binary::FloatNotEqual, Box::new(value), Box::new(zero)),
                }
            }
            _ => value,
        }
    }

    /// The type that is written, or that of an expression.
    pub fn type_of_written(&mut self, of: &TypeOf) -> Type {
        match &of.kind {
            TypeOfKind::Type(written) => self.written(written, of.span, 0),
            TypeOfKind::Expr(expr) => {
                if let crate::syntax::ast::ExprKind::Identifier(name) = &expr.kind
                    && let Some(of) = self.type_named(name)
                {
                    return of;
                }
                if let crate::syntax::ast::ExprKind::Map(name) = &expr.kind {
                    return self.type_of_map(name, expr.span);
                }
                self.meta("typeof or typeinfo", |checker| checker.expr(expr).of)
            }
        }
    }

    /// The type of a map's keys; of a map of one value, that of the value.
    fn type_of_map(&mut self, name: &str, span: Span) -> Type {
        let id = self.map(&super::statement::at(name), span);
        let map = self.maps.get(id);
        match map.is_scalar {
            Some(false) => map.key.clone(),
            Some(true) => map.value.clone(),
            // What it is, another use will tell.
            None => Type::None,
        }
    }

    /// A type by its name.
    pub fn type_named(&mut self, name: &str) -> Option<Type> {
        use super::types::{Aggregate, Of};
        let aggregate = |of| Some(Type::Aggregate(of));
        match name {
            "bool" => Some(Type::Bool),
            "int8" => Some(Type::int(1, true)),
            "int16" => Some(Type::int(2, true)),
            "int32" => Some(Type::int(4, true)),
            "int64" => Some(Type::int(8, true)),
            "uint8" => Some(Type::int(1, false)),
            "uint16" => Some(Type::int(2, false)),
            "uint32" => Some(Type::int(4, false)),
            "uint64" => Some(Type::int(8, false)),
            "void" => Some(Type::Void),
            "string" => Some(Type::String(0)),
            "buffer" => Some(Type::Buffer(0)),
            "inet" => Some(Type::Inet),
            "macaddr_t" => Some(Type::Mac),
            "username_t" => Some(Type::Username),
            "cgroup_path_t" => Some(Type::CgroupPath),
            "usym_t" => Some(Type::Symbol),
            "timestamp" => Some(Type::Timestamp("%H:%M:%S".into(), super::types::Clock::Boot)),
            "count_t" => aggregate(Aggregate::Count),
            "sum_t" => aggregate(Aggregate::Sum(Of::Signed)),
            "usum_t" => aggregate(Aggregate::Sum(Of::Unsigned)),
            "min_t" => aggregate(Aggregate::Min(Of::Signed)),
            "umin_t" => aggregate(Aggregate::Min(Of::Unsigned)),
            "max_t" => aggregate(Aggregate::Max(Of::Signed)),
            "umax_t" => aggregate(Aggregate::Max(Of::Unsigned)),
            "avg_t" => aggregate(Aggregate::Average(Of::Signed)),
            "uavg_t" => aggregate(Aggregate::Average(Of::Unsigned)),
            "stats_t" => aggregate(Aggregate::Stats(Of::Signed)),
            "ustats_t" => aggregate(Aggregate::Stats(Of::Unsigned)),
            _ => self.structs.named(name, 0),
        }
    }

    fn written(&mut self, of: &crate::syntax::ast::Type, span: Span, depth: u32) -> Type {
        if depth > 32 {
            self.error(span, "nested too deeply");
            return Type::None;
        }
        let unknown = |checker: &mut Self, name: &str| {
            checker.error(span, format!("Cannot resolve unknown type \"{name}\""));
            Type::None
        };
        match &of.kind {
            TypeKind::Named(name) => match self.type_named(name) {
                Some(of) => of,
                None => unknown(self, name),
            },
            TypeKind::Struct(name) => self.known_struct(format!("struct {name}"), depth, span),
            TypeKind::Union(name) => self.known_struct(format!("union {name}"), depth, span),
            TypeKind::Enum(name) => match self.structs.enumeration(name) {
                Some(of) => of,
                None => {
                    self.error(span, format!("Unknown enum: {name}"));
                    Type::None
                }
            },
            TypeKind::Pointer(to) => {
                let to = self.written(to, span, depth + 1);
                if to.is_none() { Type::None } else { self.structs.pointer(to) }
            }
            TypeKind::Array(of, count) => {
                let count = u32::try_from(*count).unwrap_or(u32::MAX);
                if count > super::structs::MAX_SIZE {
                    self.error(span, format!("array of {count} elements is too large"));
                    return Type::None;
                }
                match self.written(of, span, depth + 1) {
                    Type::String(0) => Type::String(count),
                    Type::Buffer(0) => Type::Buffer(count),
                    Type::Inet => Type::Inet,
                    Type::None => Type::None,
                    of => Type::Array(Arc::new(of), count),
                }
            }
        }
    }

    /// A struct as the script writes it. Pointers to structs that nobody knows are as good as any.
    fn known_struct(&mut self, name: String, depth: u32, span: Span) -> Type {
        let of = match name.split_once(' ') {
            Some(("union", name)) => self.structs.union(name),
            Some((_, name)) => self.structs.structure(name),
            None => Type::None,
        };
        if let Type::Struct(of) = &of
            && !self.structs.is_known(of)
            && (depth == 0
                || self.environment.described(&super::environment::TypeName::Named(String::new())).is_none())
        {
            self.error(span, format!("Cannot resolve unknown type \"{name}\""));
            return Type::None;
        }
        of
    }

    /// `(type)value`.
    pub fn cast(&mut self, value: Expr, to: Type, span: Span) -> Expr {
        let from = value.of.clone();
        if to.is_none() || from.is_none() {
            if self.is_last && from.is_none() && !self.told.has_errors() {
                self.error(span, format!("Cannot cast from \"{from}\" type"));
            }
            return Expr { of: to, ..Expr::nothing(span) };
        }
        let refuse = |checker: &mut Self, to: &Type| {
            checker.error(span, format!("Cannot cast from \"{from}\" to \"{to}\""));
            Expr { of: to.clone(), ..Expr::nothing(span) }
        };
        if let Type::Struct(_) = from {
            self.error(span, format!("Cannot cast from C type \"{from}\""));
            return Expr::nothing(span);
        }
        if from.is_same(&to) {
            self.warning(span, format!("Unnecessary cast: expression is already of type {from}"));
            return Expr { of: to, span, ..value };
        }
        let space = match &from {
            Type::Pointer(_, space) => *space,
            _ => self.structs.space(),
        };
        match (&from, &to) {
            (Type::String(from_room), Type::String(room)) if from_room <= room => converted(value, &to),
            (_, Type::Username) if from.is_int() => {
                Expr { of: to, span, kind: Kind::Convert(Box::new(value)) }
            }
            (_, Type::Array(of, count)) => self.cast_to_array(value, of.clone(), *count, span),
            (Type::Array(..), _) if to.is_int() => {
                if self.structs.size(&from) != self.structs.size(&to) {
                    return refuse(self, &to);
                }
                Expr { of: to, span, kind: Kind::Reinterpret(Box::new(value)) }
            }
            (
                Type::Int(_)
                | Type::Enum(..)
                | Type::Bool
                | Type::Float(_)
                | Type::Aggregate(_)
                | Type::Pointer(..),
                _,
            ) if matches!(to, Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Float(_))
                && !from.is_chart() =>
            {
                if matches!((&from, &to), (Type::Pointer(..), Type::Float(_))) {
                    return refuse(self, &to);
                }
                self.cast_number(value, to, span)
            }
            (_, Type::Pointer(target, _)) if from.is_int() || matches!(from, Type::Pointer(..)) => {
                let of = Type::Pointer(target.clone(), space);
                // An address has no sign: what is above the integer's own bits is 0.
                let value = match from.as_int() {
                    Some(int) if int.signed => converted(value, &Type::int(int.size, false)),
                    _ => value,
                };
                match value.kind {
                    Kind::Int(number) => Expr::int(of, number, span),
                    _ => Expr { of, span, kind: Kind::Convert(Box::new(value)) },
                }
            }
            (Type::String(_), Type::Bool) => {
                // A string is true if it is not empty.
                if let Some(truth) = value.truth() {
                    return Expr::int(Type::Bool, truth.into(), span);
                }
                let first = Expr { of: Type::UINT8, span, kind: Kind::Part(Box::new(value), 0, None) };
                self.is_not_zero(first, span)
            }
            (Type::Function | Type::Symbol | Type::Probe, _) if to.is_int() => refuse(self, &to),
            _ => refuse(self, &to),
        }
    }

    fn is_not_zero(&mut self, value: Expr, span: Span) -> Expr {
        let zero = Expr::int(value.of.clone(), 0, span);
        Expr { of: Type::Bool, span, kind: Kind::Binary(Binary::NotEqual, Box::new(value), Box::new(zero)) }
    }

    fn cast_number(&mut self, value: Expr, to: Type, span: Span) -> Expr {
        let value = self.as_number(value);
        match &to {
            Type::Bool => match value.truth() {
                Some(truth) => Expr::int(Type::Bool, truth.into(), span),
                None if matches!(value.of, Type::Float(_)) => self.truth(value),
                None => self.is_not_zero(value, span),
            },
            Type::Enum(_, names) => {
                if let Some(literal) = value.literal()
                    && !names.values.iter().any(|(value, _)| i128::from(*value) == literal)
                {
                    self.error(
                        span,
                        format!("Enum: {} doesn't contain a variant value of {literal}", names.name),
                    );
                }
                Expr { span, ..converted(value, &to) }
            }
            _ if matches!(value.of, Type::Bool) && matches!(value.kind, Kind::Int(_)) => {
                let Kind::Int(number) = value.kind else { return Expr::nothing(span) };
                converted(Expr::int(Type::UINT8, number, span), &to)
            }
            _ => {
                // A value that is cast is no literal of the new type: it has that type and no other.
                let value = converted(value, &to);
                match value.of {
                    Type::Int(int) => Expr { of: Type::Int(Int { flexible: false, ..int }), span, ..value },
                    _ => Expr { span, ..value },
                }
            }
        }
    }

    fn cast_to_array(&mut self, value: Expr, of: Arc<Type>, count: u32, span: Span) -> Expr {
        let element = self.structs.size(&of);
        if !of.is_int() && *of != Type::Bool {
            self.error(span, format!("Cannot cast from \"{}\" to \"{}\"", value.of, Type::Array(of, count)));
            return Expr::nothing(span);
        }
        let is_text = matches!(value.of, Type::String(_));
        let value = self.as_number(value).as_bytes();
        let size = self.structs.size(&value.of);
        let count = match count {
            0 if element > 0 && size.is_multiple_of(element) => size / element,
            0 => {
                self.error(
                    span,
                    "Cannot determine array size: the element size is incompatible with the cast integer size",
                );
                return Expr::nothing(span);
            }
            count => count,
        };
        let to = Type::Array(of, count);
        let room = element.saturating_mul(count);
        // A literal is as wide as it has to be.
        let widens = value.of.is_int() && room <= 8 && room > size;
        let fits =
            room == size && (is_text || matches!(value.of, Type::Int(_) | Type::Enum(..) | Type::Bool));
        if !widens && !fits {
            self.error(span, format!("Cannot cast from \"{}\" to \"{to}\"", value.of));
            return Expr { of: to, ..Expr::nothing(span) };
        }
        match value.kind {
            Kind::Int(number) => {
                let bytes = number.to_le_bytes()[..room as usize].to_vec();
                Expr { of: to, span, kind: Kind::Bytes(bytes) }
            }
            _ if widens && value.of.is_int() => {
                let wide = Type::int(
                    room.next_power_of_two() as u8,
                    value.of.as_int().is_some_and(|int| int.signed),
                );
                let value = converted(value, &wide);
                Expr { of: to, span, kind: Kind::Reinterpret(Box::new(value)) }
            }
            _ => Expr { of: to, span, kind: Kind::Reinterpret(Box::new(value)) },
        }
    }

    /// `-x` and its kin on integers.
    pub fn unary_int(op: Unary, value: Expr, of: Type, span: Span) -> Expr {
        Expr { of, span, kind: Kind::Unary(op, Box::new(value)) }
    }
}

fn fits(from: Int, to: Int) -> bool {
    Type::Int(from).fits_into(&Type::Int(to))
}
