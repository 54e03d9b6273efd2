//! Operators with two sides: which types they take, what comes of it, and what is known already.

use super::checker::Checker;
use super::convert::converted;
use super::expression::{comparison, literal};
use super::tree::{Expr, Kind};
use super::types::{Int, Type};
use crate::diagnostics::Diagnostic;
use crate::ir::{Binary, Unary};
use crate::source::Span;
use crate::syntax::ast::BinaryOp;

const OVERFLOW: &str = "unable to fold literals due to overflow or underflow";

impl Checker<'_> {
    /// `left op right`.
    pub fn binary(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        if left.of.is_none() || right.of.is_none() {
            return Expr::nothing(span);
        }
        if let Some(known) = self.folded(op, &left, &right, span) {
            return known;
        }
        let (left, right) = (self.as_number(left), self.as_number(right));
        let is_number = |of: &Type| of.is_int() || matches!(of, Type::Bool);
        match (&left.of, &right.of) {
            (Type::Pointer(..), _) | (_, Type::Pointer(..)) => self.on_pointers(op, left, right, span),
            (Type::Float(_), other) | (other, Type::Float(_))
                if is_number(other) || matches!(other, Type::Float(_)) =>
            {
                self.on_floats(op, left, right, span)
            }
            (l, r) if is_number(l) && is_number(r) => self.on_integers(op, left, right, span),
            _ => self.on_others(op, left, right, span),
        }
    }

    fn refused(&mut self, op: BinaryOp, left: &Expr, right: &Expr, span: Span) -> Expr {
        self.error(
            span,
            format!(
                "The {} operator can not be used on expressions of types {}, {}",
                op.symbol(),
                left.of,
                right.of
            ),
        );
        Expr::nothing(span)
    }

    fn on_integers(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let both_bool = left.of == Type::Bool && right.of == Type::Bool;
        let int = |of: &Type| of.as_int().unwrap_or(Int::new(1, false));
        let (mut l, mut r) = (int(&left.of), int(&right.of));
        if let BinaryOp::LogicalAnd | BinaryOp::LogicalOr = op {
            return logical(op, left, right, span);
        }
        if is_comparison(op) {
            let both = l.promoted(r);
            let of = Type::Int(both);
            let (left, right) = (self.widened(left, &of), self.widened(right, &of));
            return compared(both, op, left, right, span);
        }
        // A literal is of the other side's sign.
        if l.flexible && !r.flexible {
            l.signed = r.signed;
        } else if r.flexible && !l.flexible {
            r.signed = l.signed;
        }
        let signed = l.signed || r.signed;
        let wide = Type::int(8, signed);
        let result = if op == BinaryOp::Subtract { Type::INT64 } else { wide.clone() };
        let (left, right) = (self.widened(left, &wide), self.widened(right, &wide));
        let operation = match op {
            BinaryOp::Add => Binary::Add,
            BinaryOp::Subtract => Binary::Subtract,
            BinaryOp::Multiply => Binary::Multiply,
            BinaryOp::Divide if signed => Binary::Divide,
            BinaryOp::Divide => Binary::UnsignedDivide,
            BinaryOp::Modulo if signed => Binary::Remainder,
            BinaryOp::Modulo => Binary::UnsignedRemainder,
            BinaryOp::BitAnd => Binary::And,
            BinaryOp::BitOr => Binary::Or,
            BinaryOp::BitXor => Binary::Xor,
            BinaryOp::ShiftLeft => Binary::ShiftLeft,
            BinaryOp::ShiftRight if l.signed => Binary::SignedShiftRight,
            _ => Binary::ShiftRight,
        };
        let is_division = matches!(op, BinaryOp::Divide | BinaryOp::Modulo);
        let is_safe = right.literal().is_some_and(|divisor| divisor != 0);
        let (left, right) = (Box::new(left), Box::new(right));
        let kind = if is_division && !is_safe {
            Kind::Divide(operation, left, right)
        } else {
            Kind::Binary(operation, left, right)
        };
        let value = Expr { of: result, span, kind };
        if both_bool {
            let zero = Expr::int(value.of.clone(), 0, span);
            return Expr {
                of: Type::Bool,
                span,
                kind: Kind::Binary(Binary::NotEqual, Box::new(value), Box::new(zero)),
            };
        }
        value
    }

    fn widened(&mut self, value: Expr, to: &Type) -> Expr {
        let value = match value.of {
            Type::Bool => Expr { of: Type::UINT8, ..value },
            _ => value,
        };
        converted(value, to)
    }

    fn on_floats(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        if let BinaryOp::LogicalAnd | BinaryOp::LogicalOr = op {
            let (left, right) = (self.truth(left), self.truth(right));
            return logical(op, left, right, span);
        }
        let (operation, swap) = match op {
            BinaryOp::Add => (Binary::FloatAdd, false),
            BinaryOp::Subtract => (Binary::FloatSubtract, false),
            BinaryOp::Multiply => (Binary::FloatMultiply, false),
            BinaryOp::Divide => (Binary::FloatDivide, false),
            BinaryOp::Equal => (Binary::FloatEqual, false),
            BinaryOp::NotEqual => (Binary::FloatNotEqual, false),
            BinaryOp::Less => (Binary::FloatLess, false),
            BinaryOp::LessEqual => (Binary::FloatLessOrEqual, false),
            BinaryOp::Greater => (Binary::FloatLess, true),
            BinaryOp::GreaterEqual => (Binary::FloatLessOrEqual, true),
            _ => return self.refused(op, &left, &right, span),
        };
        let of = if is_comparison(op) { Type::Bool } else { Type::Float(8) };
        let double = Type::Float(8);
        let (left, right) = (converted(left, &double), converted(right, &double));
        let (left, right) = if swap { (right, left) } else { (left, right) };
        Expr { of, span, kind: Kind::Binary(operation, Box::new(left), Box::new(right)) }
    }

    fn on_pointers(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let is_logical = matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr);
        let as_word = |value: Expr| match value.of {
            Type::Pointer(..) => Expr { of: Type::UINT64, ..value },
            Type::Bool => converted(Expr { of: Type::UINT8, ..value }, &Type::UINT64),
            _ => converted(value, &Type::UINT64),
        };
        match (&left.of, &right.of) {
            (Type::Pointer(l, _), Type::Pointer(r, _)) => {
                if is_logical {
                    return logical(op, left, right, span);
                }
                if !is_comparison(op) {
                    return self.refused(op, &left, &right, span);
                }
                if !l.is_same(r) {
                    self.tell(
                        Diagnostic::warning(span, format!("comparison of distinct pointer types: {l}, {r}"))
                            .related(left.span, format!("left ({l})"))
                            .related(right.span, format!("right ({r})")),
                    );
                }
                compared(Int::new(8, false), op, as_word(left), as_word(right), span)
            }
            (Type::Pointer(to, _), Type::Int(_) | Type::Enum(..) | Type::Bool)
            | (Type::Int(_) | Type::Enum(..) | Type::Bool, Type::Pointer(to, _)) => {
                if is_comparison(op) {
                    return compared(Int::new(8, false), op, as_word(left), as_word(right), span);
                }
                let left_is_pointer = matches!(left.of, Type::Pointer(..));
                let operation = match op {
                    BinaryOp::Add => Binary::Add,
                    BinaryOp::Subtract if left_is_pointer => Binary::Subtract,
                    _ => return self.refused(op, &left, &right, span),
                };
                let size = i64::from(self.structs.size(to).max(1));
                let (pointer, amount) = if left_is_pointer { (left, right) } else { (right, left) };
                let of = pointer.of.clone();
                let amount = self.widened(amount, &Type::INT64);
                let amount = match amount.kind {
                    Kind::Int(number) => Expr::int(Type::INT64, number.wrapping_mul(size), span),
                    _ if size == 1 => amount,
                    _ => {
                        let size = Expr::int(Type::INT64, size, span);
                        let kind = Kind::Binary(Binary::Multiply, Box::new(amount), Box::new(size));
                        Expr { of: Type::INT64, span, kind }
                    }
                };
                if let (Kind::Int(address), Kind::Int(amount)) = (&pointer.kind, &amount.kind) {
                    let amount = if operation == Binary::Add { *amount } else { amount.wrapping_neg() };
                    return Expr::int(of, address.wrapping_add(amount), span);
                }
                Expr { of, span, kind: Kind::Binary(operation, Box::new(pointer), Box::new(amount)) }
            }
            _ => self.refused(op, &left, &right, span),
        }
    }

    fn on_others(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let (left, right) = match (&left.of, &right.of) {
            (Type::Probe, Type::String(_)) => (self.with_name(left), right),
            (Type::String(_), Type::Probe) => (left, self.with_name(right)),
            _ => (left, right),
        };
        let is_equality = matches!(op, BinaryOp::Equal | BinaryOp::NotEqual);
        if let (Type::Array(l, count), Type::Array(r, other)) = (&left.of, &right.of) {
            let problem = if !is_equality {
                Some(format!("The {} operator cannot be used on arrays.", op.symbol()))
            } else if count != other {
                Some("Only arrays of same size support comparison operators.".to_owned())
            } else if !l.is_int() || !l.is_same(r) {
                Some("Only arrays of same sized integer support comparison operators.".to_owned())
            } else {
                None
            };
            if let Some(problem) = problem {
                self.error(span, problem);
                return Expr::nothing(span);
            }
        } else if !left.of.is_compatible(&right.of) && left.of.promoted(&right.of).is_none() {
            self.tell(
                Diagnostic::error(
                    span,
                    format!("Type mismatch for '{}': comparing {} with {}", op.symbol(), left.of, right.of),
                )
                .related(left.span, format!("left ({})", left.of))
                .related(right.span, format!("right ({})", right.of)),
            );
            return Expr::nothing(span);
        }
        if !is_equality {
            return self.refused(op, &left, &right, span);
        }
        let same = match (&left.of, &right.of) {
            (Type::String(_), Type::String(_)) => Kind::SameText(Box::new(left), Box::new(right), None),
            (Type::Username | Type::CgroupPath | Type::Function | Type::Probe | Type::Timestamp(..), _) => {
                Kind::Binary(Binary::Equal, Box::new(left), Box::new(right))
            }
            (Type::Struct(_) | Type::ErrorText, _) => return self.refused(op, &left, &right, span),
            (l, r) => match l.promoted(r) {
                Some(both) => {
                    Kind::SameBytes(Box::new(converted(left, &both)), Box::new(converted(right, &both)))
                }
                None => return self.refused(op, &left, &right, span),
            },
        };
        let same = Expr { of: Type::Bool, span, kind: same };
        if op == BinaryOp::Equal {
            return same;
        }
        Expr { of: Type::Bool, span, kind: Kind::Unary(Unary::IsZero, Box::new(same)) }
    }

    /// What comes of literals.
    fn folded(&mut self, op: BinaryOp, left: &Expr, right: &Expr, span: Span) -> Option<Expr> {
        let truth = |value: bool| Some(Expr::int(Type::Bool, value.into(), span));
        match (&left.kind, &right.kind) {
            (Kind::Text(l), Kind::Text(r)) => match op {
                BinaryOp::Equal => truth(l == r),
                BinaryOp::NotEqual => truth(l != r),
                BinaryOp::Less => truth(l < r),
                BinaryOp::LessEqual => truth(l <= r),
                BinaryOp::Greater => truth(l > r),
                BinaryOp::GreaterEqual => truth(l >= r),
                BinaryOp::LogicalAnd => truth(!l.is_empty() && !r.is_empty()),
                BinaryOp::LogicalOr => truth(!l.is_empty() || !r.is_empty()),
                BinaryOp::Add => Some(self.text([&l[..], &r[..]].concat(), span)),
                _ => {
                    self.error(span, "illegal literal operation with strings");
                    Some(Expr::nothing(span))
                }
            },
            (Kind::Text(text), Kind::Int(_)) | (Kind::Int(_), Kind::Text(text)) => {
                let number = if matches!(left.kind, Kind::Int(_)) { left } else { right };
                if number.of == Type::Bool {
                    let (text, number) = (!text.is_empty(), number.truth()?);
                    return match op {
                        BinaryOp::LogicalAnd => truth(text && number),
                        BinaryOp::LogicalOr => truth(text || number),
                        _ => None,
                    };
                }
                let skip = number.literal().filter(|skip| *skip >= 0 && op == BinaryOp::Add)?;
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                if skip >= text.len() {
                    self.warning(span, "literal string will always be empty");
                }
                let rest = text.get(skip..).unwrap_or_default().to_vec();
                Some(self.text(rest, span))
            }
            (Kind::Int(_), Kind::Int(_)) => self.folded_numbers(op, left, right, span),
            (Kind::Tuple(_), Kind::Tuple(_)) if left.is_literal() && right.is_literal() => {
                let same = same_literals(left, right)?;
                match op {
                    BinaryOp::Equal => truth(same),
                    BinaryOp::NotEqual => truth(!same),
                    _ => None,
                }
            }
            (Kind::Float(l), Kind::Float(r)) => {
                let value = match op {
                    BinaryOp::Add => l + r,
                    BinaryOp::Subtract => l - r,
                    BinaryOp::Multiply => l * r,
                    BinaryOp::Divide => l / r,
                    _ => return None,
                };
                Some(Expr { of: Type::Float(8), span, kind: Kind::Float(value) })
            }
            _ => None,
        }
    }

    fn folded_numbers(&mut self, op: BinaryOp, left: &Expr, right: &Expr, span: Span) -> Option<Expr> {
        let both_bool = left.of == Type::Bool && right.of == Type::Bool;
        if matches!(left.of, Type::Bool) != matches!(right.of, Type::Bool)
            && !matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr)
        {
            return None;
        }
        let (l, r) = (left.literal()?, right.literal()?);
        // What was cast has the type that it was cast to, and an enum's value is of the enum.
        let is_untyped = |of: &Type, value| {
            *of == Type::Bool || matches!(of, Type::Int(int) if *int == Int::of_literal(value))
        };
        if !is_untyped(&left.of, l) || !is_untyped(&right.of, r) {
            return None;
        }
        let truth = |value: bool| Some(Expr::int(Type::Bool, value.into(), span));
        match op {
            BinaryOp::Equal => return truth(l == r),
            BinaryOp::NotEqual => return truth(l != r),
            BinaryOp::Less => return truth(l < r),
            BinaryOp::LessEqual => return truth(l <= r),
            BinaryOp::Greater => return truth(l > r),
            BinaryOp::GreaterEqual => return truth(l >= r),
            BinaryOp::LogicalAnd => return truth(l != 0 && r != 0),
            BinaryOp::LogicalOr => return truth(l != 0 || r != 0),
            _ => {}
        }
        let low = |value: i128| value as u64;
        let sign = |bits: u64| match l < 0 || r < 0 {
            true => i128::from(bits as i64),
            false => i128::from(bits),
        };
        let value = match op {
            BinaryOp::Add => Some(l + r),
            BinaryOp::Subtract => Some(l - r),
            BinaryOp::Multiply => l.checked_mul(r),
            BinaryOp::Divide => l.checked_div(r),
            BinaryOp::Modulo => l.checked_rem(r),
            BinaryOp::BitAnd => Some(sign(low(l) & low(r))),
            BinaryOp::BitOr => Some(sign(low(l) | low(r))),
            BinaryOp::BitXor => Some(sign(low(l) ^ low(r))),
            BinaryOp::ShiftLeft if (0..64).contains(&r) => Some(sign(low(l) << r)),
            BinaryOp::ShiftRight if (0..64).contains(&r) => Some(l >> r),
            _ => None,
        };
        // With a side below 0, both are of 64 bits with a sign; but the product of two of them is not.
        let is_signed = l < 0 || r < 0;
        let most =
            if is_signed && !(l < 0 && r < 0 && op == BinaryOp::Multiply) { 1i128 << 63 } else { 1 << 64 };
        let is_mixed = is_signed && (l >= 1 << 63 || r >= 1 << 63);
        match value.filter(|value| !is_mixed && (-(1i128 << 63)..most).contains(value)) {
            Some(value) if both_bool => truth(value != 0),
            Some(value) => Some(literal(value, span)),
            None => {
                self.error(span, OVERFLOW);
                Some(Expr::nothing(span))
            }
        }
    }
}

fn is_comparison(op: BinaryOp) -> bool {
    matches!(
        op,
        BinaryOp::Equal
            | BinaryOp::NotEqual
            | BinaryOp::Less
            | BinaryOp::LessEqual
            | BinaryOp::Greater
            | BinaryOp::GreaterEqual
    )
}

fn logical(op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
    let (left, right) = (Box::new(left), Box::new(right));
    let kind = if op == BinaryOp::LogicalAnd { Kind::And(left, right) } else { Kind::Or(left, right) };
    Expr { of: Type::Bool, span, kind }
}

/// Two integers of one type, compared.
fn compared(of: Int, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
    let Some((operation, swap)) = comparison(of, op) else { return Expr::nothing(span) };
    let (left, right) = if swap { (right, left) } else { (left, right) };
    Expr { of: Type::Bool, span, kind: Kind::Binary(operation, Box::new(left), Box::new(right)) }
}

fn same_literals(left: &Expr, right: &Expr) -> Option<bool> {
    Some(match (&left.kind, &right.kind) {
        (Kind::Text(l), Kind::Text(r)) => l == r,
        (Kind::Int(_), Kind::Int(_)) => left.literal()? == right.literal()?,
        (Kind::Tuple(l), Kind::Tuple(r)) => {
            if l.len() != r.len() {
                return Some(false);
            }
            for (index, part) in l {
                let index = match (&left.of, &right.of) {
                    (Type::Record(names), Type::Record(others)) => {
                        super::types::field(others, &names.get(*index)?.0)?.0
                    }
                    _ => *index,
                };
                let (_, other) = r.iter().find(|(other, _)| *other == index)?;
                if !same_literals(part, other)? {
                    return Some(false);
                }
            }
            true
        }
        _ => return None,
    })
}
