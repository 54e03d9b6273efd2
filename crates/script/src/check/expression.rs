//! Expressions: what each is, and of which type.

use super::access::dereferenced;
use super::call::nearest_hint;
use super::checker::Checker;
use super::statement::{at, dollar};
use super::tree::{Expr, Kind};
use super::types::{Int, Space, Type};
use crate::diagnostics::Diagnostic;
use crate::ir::{Binary, Unary};
use crate::source::Span;
use crate::syntax::ast::{self, ExprKind, UnaryOp};
use crate::syntax::number;
use std::sync::Arc;

impl Checker<'_> {
    /// An expression.
    pub fn expr(&mut self, expr: &ast::Expr) -> Expr {
        let checked = self.deeper(expr.span, |checker| checker.kind(expr));
        checked.unwrap_or_else(|| Expr::nothing(expr.span))
    }

    /// An expression, as the number that it is if it is an aggregation.
    pub fn number_of(&mut self, expr: &ast::Expr) -> Expr {
        let value = self.expr(expr);
        self.as_number(value)
    }

    fn kind(&mut self, expr: &ast::Expr) -> Expr {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Integer(integer) => literal(integer.value.into(), span),
            ExprKind::Float(float) => Expr { of: Type::Float(8), span, kind: Kind::Float(float.value) },
            ExprKind::Boolean(value) => Expr::int(Type::Bool, (*value).into(), span),
            ExprKind::String(text) => self.text(text.clone(), span),
            ExprKind::Positional(number) => self.positional(*number, span),
            ExprKind::PositionalCount => literal(self.environment.parameters().len() as i128, span),
            ExprKind::Identifier(name) => self.identifier(name, span),
            ExprKind::Builtin(name) => match self.builtin(name, span) {
                Some(value) => value,
                None => {
                    self.error(span, format!("Unknown identifier: '{name}'"));
                    Expr::nothing(span)
                }
            },
            ExprKind::Call { name, arguments } => self.call(name, arguments, span),
            ExprKind::TypeArg(of) => {
                self.type_of_written(of);
                self.error(span, "typeof() can only be used where a type is expected");
                Expr::nothing(span)
            }
            ExprKind::Sizeof(of) => {
                let of = self.meta("sizeof", |checker| checker.type_of_written(of));
                if of.is_none() {
                    return Expr::nothing(span);
                }
                let size = self.structs.size(&of);
                literal(size.into(), span)
            }
            ExprKind::Offsetof { of, fields } => self.offset_of(of, fields, span),
            ExprKind::Typeinfo(of) => self.type_info(of, span),
            ExprKind::Variable(name) => match self.read(&dollar(name), span) {
                Some(id) => {
                    let of = self.type_of(id);
                    if of.is_none() && self.at.meta.is_none() && !self.told.has_errors() {
                        self.error(span, "Could not resolve the type of this variable");
                    }
                    Expr { of, span, kind: Kind::Variable(id) }
                }
                None => Expr::nothing(span),
            },
            ExprKind::Map(name) => match self.scalar_map(name, span) {
                Some(key) => self.get(key, span),
                None => Expr::nothing(span),
            },
            ExprKind::MapElement { map, key } => match self.keyed_map(map, key, span) {
                Some(key) => self.get(key, span),
                None => Expr::nothing(span),
            },
            ExprKind::VariableAddress(name) => self.address_of(name, span),
            ExprKind::MapAddress(name) => {
                let map = self.map(&at(&name.text), name.span);
                _ = map;
                self.error(span, "the address of a map cannot be taken");
                Expr::nothing(span)
            }
            ExprKind::Binary { op, left, right } => {
                let (left, right) = (self.expr(left), self.expr(right));
                self.binary(*op, left, right, span)
            }
            ExprKind::Unary { op, operand } => {
                let operand = self.expr(operand);
                self.unary(*op, operand, span)
            }
            ExprKind::Step { place, step, order } => self.step(place, *step, *order, span),
            ExprKind::Field { of, name, .. } => {
                let of = self.expr(of);
                self.field(of, name, span)
            }
            ExprKind::TupleIndex { of, index } => {
                let of = self.expr(of);
                self.tuple_part(of, *index, span)
            }
            ExprKind::Index { of, index } => {
                let of = self.expr(of);
                let index = self.number_of(index);
                self.index(of, index, span)
            }
            ExprKind::Cast { to, value } => {
                let value = self.expr(value);
                let to = self.type_of_written(to);
                self.cast(value, to, span)
            }
            ExprKind::Tuple(parts) => self.tuple(parts, span),
            ExprKind::Record(fields) => self.record(fields, span),
            ExprKind::Ternary { condition, then, otherwise } => {
                self.ternary(condition, then.as_deref(), otherwise, span)
            }
            ExprKind::If { condition, then, otherwise } => {
                self.branches(condition, then, otherwise.as_deref(), span)
            }
            ExprKind::Block(block) => {
                let block = self.block(block);
                match block.value {
                    // A literal is one, also in braces.
                    Some(value)
                        if block.statements.is_empty()
                            && (value.is_literal() || block.variables.is_empty()) =>
                    {
                        *value
                    }
                    _ => {
                        let of = block.value.as_ref().map_or(Type::None, |value| value.of.clone());
                        Expr { of, span, kind: Kind::Block(Box::new(block)) }
                    }
                }
            }
            ExprKind::Comptime(inner) => {
                let value = self.expr(inner);
                if self.is_last && !value.is_literal() {
                    self.error(span, "Unable to resolve comptime expression");
                }
                value
            }
        }
    }

    /// A string literal.
    pub fn text(&mut self, text: Vec<u8>, span: Span) -> Expr {
        let room = u32::try_from(text.len() + 1).unwrap_or(u32::MAX);
        Expr { of: Type::String(room), span, kind: Kind::Text(text) }
    }

    fn positional(&mut self, index: u64, span: Span) -> Expr {
        let parameters = self.environment.parameters();
        let value = usize::try_from(index).ok().and_then(|index| parameters.get(index.checked_sub(1)?));
        let value = value.cloned().unwrap_or_default();
        if value.is_empty() {
            self.warning(span, format!("Positional parameter ${index} is empty or not provided. "));
            return literal(0, span);
        }
        match whole_number(&value) {
            Some(number) => literal(number, span),
            None => self.text(value.into_bytes(), span),
        }
    }

    /// A positional parameter as the text that it is.
    pub fn positional_text(&mut self, index: u64, span: Span) -> Expr {
        let parameters = self.environment.parameters();
        let value = usize::try_from(index).ok().and_then(|index| parameters.get(index.checked_sub(1)?));
        let value = value.cloned().unwrap_or_default();
        self.text(value.into_bytes(), span)
    }

    fn identifier(&mut self, name: &str, span: Span) -> Expr {
        if let Some(value) = self.builtin(name, span) {
            return value;
        }
        if let Some((of, value)) = self.structs.enumerator(name) {
            let of = match of {
                // As a value of its own it is as wide as any integer.
                Type::Enum(int, names) => Type::Enum(Int { size: 8, ..int }, names),
                other => other,
            };
            return Expr::int(of, value, span);
        }
        if is_mode(name) {
            return Expr { of: Type::Mode, ..Expr::nothing(span) };
        }
        let told = Diagnostic::error(span, format!("Unknown identifier: '{name}'"));
        if super::is_native(name) {
            self.tell(told.hint(format!("{name} is a function: {name}()")));
            return Expr::nothing(span);
        }
        self.tell(nearest_hint(told, name, super::builtin::NAMES));
        Expr::nothing(span)
    }

    fn address_of(&mut self, name: &ast::Name, span: Span) -> Expr {
        let variable = dollar(&name.text);
        let Some(id) = self.assigned(&variable) else {
            self.error(name.span, format!("Undefined or undeclared variable: {variable}"));
            return Expr::nothing(span);
        };
        let of = self.type_of(id);
        if of.is_none() {
            if self.is_last {
                self.error(span, format!("No type available for variable {variable}"));
            }
            return Expr::nothing(span);
        }
        self.at.body.variables[id.0 as usize].is_addressed = true;
        Expr { of: Type::Pointer(Arc::new(of), Space::Own), span, kind: Kind::Address(id) }
    }

    fn unary(&mut self, op: UnaryOp, operand: Expr, span: Span) -> Expr {
        if operand.of.is_none() {
            return Expr::nothing(span);
        }
        let operand = self.as_number(operand);
        let of = operand.of.clone();
        let refuse = |checker: &mut Self| {
            checker.error(
                span,
                format!("The {} operator can not be used on expressions of type '{of}'", op.symbol()),
            );
            Expr::nothing(span)
        };
        match (op, &of) {
            (UnaryOp::Dereference, Type::Pointer(to, _)) => {
                let to = (**to).clone();
                if matches!(to, Type::Void) {
                    return refuse(self);
                }
                Expr { span, ..dereferenced(operand, to) }
            }
            (UnaryOp::Dereference, Type::Int(_)) => {
                Expr { of: Type::UINT64, span, kind: Kind::Deref(Box::new(operand)) }
            }
            // For old scripts that write `*args`.
            (UnaryOp::Dereference, Type::Record(_)) if matches!(operand.kind, Kind::Tuple(_)) => operand,
            (UnaryOp::Not, Type::Int(_) | Type::Enum(..) | Type::Bool | Type::Float(_)) => {
                if let Some(truth) = operand.truth() {
                    return Expr::int(Type::Bool, (!truth).into(), span);
                }
                let operand = self.truth(operand);
                Expr { of: Type::Bool, span, kind: Kind::Unary(Unary::IsZero, Box::new(operand)) }
            }
            (UnaryOp::Minus, Type::Float(_)) => {
                let operand = super::convert::converted(operand, &Type::Float(8));
                match operand.kind {
                    Kind::Float(value) => Expr { of: Type::Float(8), span, kind: Kind::Float(-value) },
                    _ => Checker::unary_int(Unary::FloatNegate, operand, Type::Float(8), span),
                }
            }
            (UnaryOp::Minus | UnaryOp::BitNot, Type::Int(_) | Type::Enum(..)) => {
                if let (Some(value), Type::Int(_)) = (operand.literal(), &of) {
                    return self.folded_unary(op, value, span);
                }
                let signed = of.as_int().is_some_and(|int| int.signed);
                let operation = if op == UnaryOp::Minus { Unary::Negate } else { Unary::Not };
                Checker::unary_int(operation, operand, Type::int(8, signed), span)
            }
            _ => refuse(self),
        }
    }

    fn folded_unary(&mut self, op: UnaryOp, value: i128, span: Span) -> Expr {
        match op {
            UnaryOp::BitNot => literal(i128::from(!(value as u64)), span),
            _ if value > 1 << 63 => {
                self.error(span, "negative value will underflow");
                Expr::nothing(span)
            }
            _ => literal(-value, span),
        }
    }

    fn tuple(&mut self, parts: &[ast::Expr], span: Span) -> Expr {
        let mut all = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let part = self.expr(part);
            if part.of.is_chart() && !matches!(part.of, Type::Aggregate(super::types::Aggregate::Stats(_))) {
                self.error(part.span, format!("Map type {} cannot exist inside a tuple.", part.of));
                return Expr::nothing(span);
            }
            if matches!(part.of, Type::Void) {
                self.error(part.span, "void cannot exist inside a tuple.");
                return Expr::nothing(span);
            }
            all.push((index, self.as_number(part)));
        }
        if all.iter().any(|(_, part)| part.of.is_none()) {
            return Expr::nothing(span);
        }
        let of = Type::Tuple(all.iter().map(|(_, part)| part.of.clone()).collect::<Vec<_>>().into());
        Expr { of, span, kind: Kind::Tuple(all) }
    }

    fn record(&mut self, fields: &[ast::RecordField], span: Span) -> Expr {
        let mut all = Vec::new();
        let mut types: Vec<(Arc<str>, Type)> = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let part = self.expr(&field.value);
            if part.of.is_chart() {
                self.error(part.span, format!("Map type {} cannot exist inside a record.", part.of));
                return Expr::nothing(span);
            }
            let part = self.as_number(part);
            types.push((field.name.text.as_str().into(), part.of.clone()));
            all.push((index, part));
        }
        if all.iter().any(|(_, part)| part.of.is_none() || part.of == Type::Void) {
            return Expr::nothing(span);
        }
        Expr { of: Type::Record(types.into()), span, kind: Kind::Tuple(all) }
    }

    fn type_info(&mut self, of: &ast::TypeOf, span: Span) -> Expr {
        self.unstable("typeinfo", "unstable_typeinfo", self.settings.unstable_typeinfo, span);
        let of = self.type_of_written(of);
        if of.is_none() {
            return Expr::nothing(span);
        }
        let parts = [
            ("btf_id", Expr::int(Type::UINT64, 0, span)),
            ("base_type", self.text(of.kind().as_bytes().to_vec(), span)),
            ("full_type", self.text(of.to_string().into_bytes(), span)),
        ];
        let types = parts.iter().map(|(name, part)| (Arc::from(*name), part.of.clone()));
        let of = Type::Record(types.collect::<Vec<_>>().into());
        let parts = parts.into_iter().enumerate().map(|(index, (_, part))| (index, part));
        Expr { of, span, kind: Kind::Tuple(parts.collect()) }
    }
}

/// An integer literal.
pub fn literal(value: i128, span: Span) -> Expr {
    Expr::int(Type::Int(Int::of_literal(value)), value as i64, span)
}

/// A whole number as the command line has it.
pub fn whole_number(text: &str) -> Option<i128> {
    match text.strip_prefix('-') {
        Some(rest) => {
            let value = i128::from(number::parse(rest).ok()?);
            (value <= 1 << 63).then_some(-value)
        }
        None => number::parse(text).ok().map(i128::from),
    }
}

/// Words that say how a function works.
fn is_mode(name: &str) -> bool {
    matches!(
        name,
        "monotonic"
            | "boot"
            | "tai"
            | "sw_tai"
            | "bpftrace"
            | "perf"
            | "raw"
            | "build_id"
            | "curr_ns"
            | "init"
            | "current_pid"
            | "current_tid"
    )
}

/// Comparisons of integers.
pub fn comparison(of: Int, op: ast::BinaryOp) -> Option<(Binary, bool)> {
    use ast::BinaryOp;
    let (less, less_or_equal) = match of.signed {
        true => (Binary::Less, Binary::LessOrEqual),
        false => (Binary::UnsignedLess, Binary::UnsignedLessOrEqual),
    };
    Some(match op {
        BinaryOp::Equal => (Binary::Equal, false),
        BinaryOp::NotEqual => (Binary::NotEqual, false),
        BinaryOp::Less => (less, false),
        BinaryOp::LessEqual => (less_or_equal, false),
        BinaryOp::Greater => (less, true),
        BinaryOp::GreaterEqual => (less_or_equal, true),
        _ => return None,
    })
}
