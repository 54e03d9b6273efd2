//! Values: expressions as scalars, and as bytes in scratch.

use super::body::{Home, Lowering, OWN, binary, further, scalar, stored, truth, unary, width};
use crate::check::tree::{Block, Expr, Kind};
use crate::check::types::{Space, Type};
use crate::ir::{Binary, Expression, Place, Scalar, Statement, Unary};
use crate::message::ErrorKind;
use crate::shape::Bits;
use crate::source::Span;

/// After so many levels, what there is of an expression is kept in a local.
const NESTING: u32 = 16;

impl Lowering<'_, '_> {
    /// A value that is one scalar.
    pub fn scalar(&mut self, value: &Expr) -> Expression {
        self.nesting += 1;
        let result = self.scalar_of(value);
        self.nesting -= 1;
        // Expressions may not be too deep.
        if self.nesting % NESTING == NESTING - 1 {
            return self.held(result, scalar(&value.of).unwrap_or(Scalar::Int));
        }
        result
    }

    fn scalar_of(&mut self, value: &Expr) -> Expression {
        match &value.kind {
            Kind::Int(number) => Expression::Int(*number),
            Kind::Float(number) => Expression::Float(*number),
            Kind::Variable(variable) => match self.home(*variable) {
                Home::Local(local) => Expression::Local(local),
                Home::Scratch(at) => load(Place::Scratch(at), &value.of),
            },
            Kind::Context(context) => self.context(*context),
            Kind::Operand(argument) => self.operand(*argument, value),
            Kind::Unary(op, of) => {
                let of = self.scalar(of);
                unary(*op, of)
            }
            Kind::Binary(op, left, right) => {
                let (l, _) = op.types();
                let left = self.scalar(left);
                let (left, right) = self.both(left, l, |lowering| lowering.scalar(right));
                binary(*op, left, right)
            }
            Kind::Divide(op, left, right) => self.divide(*op, left, right),
            Kind::And(left, right) => self.logical(left, right, true),
            Kind::Or(left, right) => self.logical(left, right, false),
            Kind::Convert(of) => self.converted(of, &value.of),
            Kind::SameText(left, right, most) => {
                let (l, r) = (self.memory(left), self.memory(right));
                let (l_size, r_size) = (self.structs.size(&left.of), self.structs.size(&right.of));
                let most = most.as_ref().map(|most| self.scalar(most));
                self.compare(l, l_size, r, r_size, most, true)
            }
            Kind::SameBytes(left, right) => {
                let (l, r) = (self.memory(left), self.memory(right));
                let size = self.structs.size(&left.of);
                self.compare(l, size, r, size, None, false)
            }
            Kind::Address(variable) => match self.home(*variable) {
                Home::Scratch(at) => Expression::Int(OWN | i64::from(at)),
                // Variables whose address is taken live in scratch.
                Home::Local(_) => Expression::Int(0),
            },
            Kind::Part(of, offset, bits) => self.part(value, of, *offset, *bits),
            Kind::Deref(_) | Kind::Index(..) => match self.address(value) {
                Some((address, space)) => self.read(address, space, &value.of, read_at(value)),
                None => {
                    let place = self.memory(value);
                    load(place, &value.of)
                }
            },
            Kind::If(condition, then, otherwise) => {
                let of = scalar(&value.of).unwrap_or(Scalar::Int);
                let result = self.local(of);
                let condition = self.scalar(condition);
                let mut branch = |block: &Block| {
                    self.branch(|lowering| {
                        lowering.block(block, |lowering, value| {
                            let value = lowering.scalar(value);
                            lowering.emit(Statement::Set(result, value));
                        });
                    })
                };
                let (then, otherwise) = (branch(then), branch(otherwise));
                self.emit(Statement::If(condition, then, otherwise));
                self.changed();
                Expression::Local(result)
            }
            Kind::Block(block) => {
                let of = scalar(&value.of).unwrap_or(Scalar::Int);
                let result = self.local(of);
                self.block(block, |lowering, value| {
                    let value = lowering.scalar(value);
                    lowering.emit(Statement::Set(result, value));
                });
                self.changed();
                Expression::Local(result)
            }
            Kind::Step { variable, by, after } => self.step(*variable, *by, *after, true),
            Kind::StepKey { key, by, after } => self.step_key(key, *by, *after, true),
            Kind::Get(key) => {
                let place = self.get(key, value.span);
                load(place, &stored(&value.of))
            }
            Kind::Number(key) => self.number(key),
            Kind::Call(call) => self.call_scalar(call, value),
            Kind::Nothing
            | Kind::Text(_)
            | Kind::Bytes(_)
            | Kind::Words(_)
            | Kind::Characters(_)
            | Kind::Reinterpret(_)
            | Kind::Tuple(_) => {
                let place = self.memory(value);
                load(place, &value.of)
            }
        }
    }

    fn divide(&mut self, op: Binary, left: &Expr, right: &Expr) -> Expression {
        let dividend = self.scalar(left);
        let dividend = self.held(dividend, Scalar::Int);
        let divisor = self.scalar(right);
        let divisor = self.held(divisor, Scalar::Int);
        let result = self.local(Scalar::Int);
        let told = self.branch(|lowering| {
            lowering.tell_error(ErrorKind::DivideByZero, right.span, Expression::Int(0));
            lowering.emit(Statement::Set(result, Expression::Int(1)));
        });
        let quotient = Expression::Binary(op, Box::new(dividend), Box::new(divisor.clone()));
        self.emit(Statement::If(divisor, vec![Statement::Set(result, quotient)], told));
        Expression::Local(result)
    }

    fn logical(&mut self, left: &Expr, right: &Expr, is_and: bool) -> Expression {
        let left = self.scalar(left);
        let mut value = None;
        let code = self.branch(|lowering| value = Some(lowering.scalar(right)));
        let right = truth(value.unwrap_or(Expression::Int(0)));
        if code.is_empty() {
            // Nothing is done by the second one, so that it may be evaluated in any case.
            let op = if is_and { Binary::And } else { Binary::Or };
            return binary(op, truth(left), right);
        }
        let result = self.local(Scalar::Int);
        let mut code = code;
        code.push(Statement::Set(result, right));
        let known = vec![Statement::Set(result, Expression::Int((!is_and).into()))];
        let (then, otherwise) = if is_and { (code, known) } else { (known, code) };
        self.emit(Statement::If(left, then, otherwise));
        Expression::Local(result)
    }

    /// A scalar in another type.
    fn converted(&mut self, of: &Expr, to: &Type) -> Expression {
        if scalar(&of.of).is_none() {
            let place = self.memory(of);
            return load(place, to);
        }
        let value = self.scalar(of);
        convert(value, &of.of, to)
    }

    fn part(&mut self, value: &Expr, of: &Expr, offset: u32, bits: Option<Bits>) -> Expression {
        let whole = match bits {
            // The bits are taken from the integer as it is.
            Some(_) => Type::int(self.structs.size(&value.of).clamp(1, 8) as u8, false),
            None => value.of.clone(),
        };
        let word = match self.address(of) {
            Some((address, space)) => {
                let address = binary(Binary::Add, address, Expression::Int(offset.into()));
                self.read(address, space, &whole, read_at(value))
            }
            None => {
                let place = self.memory(of);
                let size = self.structs.size(&of.of);
                let place = self.advanced(place, offset, size);
                load(place, &whole)
            }
        };
        match bits {
            None => word,
            Some(Bits { first, count }) => {
                let signed = value.of.as_int().is_some_and(|int| int.signed);
                let left = 64 - i64::from(count) - i64::from(first);
                let right = 64 - i64::from(count);
                let up = binary(Binary::ShiftLeft, word, Expression::Int(left));
                let down = if signed { Binary::SignedShiftRight } else { Binary::ShiftRight };
                binary(down, up, Expression::Int(right))
            }
        }
    }

    /// A place further on. What is constant is copied for it.
    pub fn advanced(&mut self, place: Place, by: u32, size: u32) -> Place {
        match further(place.clone(), by) {
            Some(place) => place,
            None => {
                let at = self.room(size);
                self.emit(Statement::Copy { to: Place::Scratch(at), from: place, size });
                Place::Scratch(at + by)
            }
        }
    }

    /// Where something is, if it is not in variables or scratch.
    pub fn address(&mut self, value: &Expr) -> Option<(Expression, Space)> {
        match &value.kind {
            Kind::Deref(pointer) => {
                let space = match &pointer.of {
                    Type::Pointer(_, space) => *space,
                    _ => Space::Foreign,
                };
                Some((self.scalar(pointer), space))
            }
            Kind::Part(of, offset, None) => {
                let (address, space) = self.address(of)?;
                Some((binary(Binary::Add, address, Expression::Int((*offset).into())), space))
            }
            Kind::Index(of, index, count) => {
                let (address, space) = self.address(of)?;
                let size = self.structs.size(&value.of);
                let (address, index) = self.both(address, Scalar::Int, |lowering| {
                    let index = lowering.scalar(index);
                    // C's arrays of no or one element mean as many as there are behind: what is there is read all the same.
                    match count {
                        Some(count) if *count > 0 => lowering.told_index(index, *count, value.span).0,
                        _ => index,
                    }
                });
                let offset = binary(Binary::Multiply, index, Expression::Int(size.into()));
                Some((binary(Binary::Add, address, offset), space))
            }
            _ => None,
        }
    }

    /// Reads a scalar at an address.
    fn read(&mut self, from: Expression, space: Space, of: &Type, span: Span) -> Expression {
        if space == Space::Own {
            let place = self.own(from, 0);
            return load(place, of);
        }
        let as_ = width(of);
        let into = self.local(as_.scalar());
        if !self.tells_failures {
            self.emit(Statement::Read { into, from, as_, ok: None });
            return Expression::Local(into);
        }
        let from = self.held(from, Scalar::Int);
        let ok = self.local(Scalar::Int);
        self.emit(Statement::Read { into, from: from.clone(), as_, ok: Some(ok) });
        self.tell_unread(ok, span, from);
        Expression::Local(into)
    }

    fn operand(&mut self, argument: u8, value: &Expr) -> Expression {
        let into = self.local(scalar(&value.of).unwrap_or(Scalar::Int));
        if !self.tells_failures {
            self.emit(Statement::Operand { into, argument, ok: None });
            return Expression::Local(into);
        }
        let ok = self.local(Scalar::Int);
        self.emit(Statement::Operand { into, argument, ok: Some(ok) });
        // Where in memory it is, is each site's own.
        self.tell_unread(ok, read_at(value), Expression::Int(0));
        Expression::Local(into)
    }

    fn compare(
        &mut self,
        left: Place,
        left_size: u32,
        right: Place,
        right_size: u32,
        most: Option<Expression>,
        strings: bool,
    ) -> Expression {
        // Every string has its end in its room, so the shorter room is enough.
        let size = left_size.min(right_size);
        let into = self.local(Scalar::Int);
        self.emit(Statement::Compare { into, left, right, size, most, strings });
        unary(Unary::IsZero, Expression::Local(into))
    }
}

/// Which part of the text is told of a value that could not be read: from the pointer that leads to it on.
pub fn read_at(value: &Expr) -> Span {
    let mut from = value;
    while let Kind::Deref(of) | Kind::Part(of, ..) | Kind::Index(of, ..) | Kind::Characters(of) = &from.kind {
        from = of;
    }
    match from.span.source == value.span.source && from.span.start < value.span.end {
        true => Span { start: from.span.start, ..value.span },
        false => value.span,
    }
}

/// A scalar of a place.
pub fn load(from: Place, of: &Type) -> Expression {
    Expression::Load { from, as_: width(of) }
}

/// A scalar in another type.
pub fn convert(value: Expression, from: &Type, to: &Type) -> Expression {
    match (from, to) {
        (Type::Float(_), Type::Float(_)) => value,
        (Type::Float(_), _) => convert(unary(Unary::ToInt, value), &Type::INT64, to),
        (_, Type::Float(_)) => {
            let signed = from.as_int().is_some_and(|int| int.signed);
            unary(if signed { Unary::ToFloat } else { Unary::UnsignedToFloat }, value)
        }
        (_, Type::Bool) => truth(value),
        (_, Type::Int(int) | Type::Enum(int, _)) => {
            // What fits needs no conversion: locals have 64 bits.
            let fits = from.as_int().is_some_and(|from| {
                (from.signed == int.signed && from.size <= int.size)
                    || (!from.signed && from.size < int.size)
                    || int.size == 8
            });
            if fits || int.size == 8 || *from == Type::Bool {
                return value;
            }
            let bits = int.bits();
            unary(if int.signed { Unary::SignExtend(bits) } else { Unary::ZeroExtend(bits) }, value)
        }
        _ => value,
    }
}
