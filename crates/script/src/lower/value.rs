//! Values: expressions as scalars, and as bytes in scratch.

use super::body::{Home, Lowering, OWN, binary, further, scalar, stored, truth, unary, width};
use crate::check::tree::{Block, Expr, Kind};
use crate::check::types::{Space, Type, field};
use crate::ir::{Binary, Expression, Place, Scalar, Statement, Unary, Width};
use crate::message::ErrorKind;
use crate::shape::Bits;

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
                Some((address, space)) => self.read(address, space, &value.of),
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
                self.read(address, space, &whole)
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
    fn advanced(&mut self, place: Place, by: u32, size: u32) -> Place {
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
            Kind::Index(of, index, _) => {
                let (address, space) = self.address(of)?;
                let size = self.structs.size(&value.of);
                let (address, index) = self.both(address, Scalar::Int, |lowering| lowering.scalar(index));
                let offset = binary(Binary::Multiply, index, Expression::Int(size.into()));
                Some((binary(Binary::Add, address, offset), space))
            }
            _ => None,
        }
    }

    /// Reads a scalar at an address.
    fn read(&mut self, from: Expression, space: Space, of: &Type) -> Expression {
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
        self.tell_unread(ok, from);
        Expression::Local(into)
    }

    /// The bytes of a value, wherever they are.
    pub fn memory(&mut self, value: &Expr) -> Place {
        match &value.kind {
            Kind::Text(_) | Kind::Bytes(_) => {
                let bytes = self.bytes(value);
                Place::Constant(self.output.constant(bytes))
            }
            Kind::Variable(variable) => match self.home(*variable) {
                Home::Scratch(at) => Place::Scratch(at),
                Home::Local(_) => self.built(value),
            },
            Kind::Part(of, offset, None) if scalar(&of.of).is_none() && !self.is_at_address(of) => {
                let place = self.memory(of);
                let size = self.structs.size(&of.of);
                self.advanced(place, *offset, size)
            }
            Kind::Deref(pointer) if matches!(pointer.of, Type::Pointer(_, Space::Own)) => {
                let pointer = self.scalar(pointer);
                self.own(pointer, 0)
            }
            Kind::Reinterpret(of) if scalar(&of.of).is_none() => self.memory(of),
            Kind::Get(key) if scalar(&value.of).is_none() => self.get(key, value.span),
            Kind::Words(key) => self.words(key).0,
            Kind::Index(of, index, Some(count)) if !self.is_at_address(of) => {
                let base = self.memory(of);
                let whole = self.structs.size(&of.of);
                let base = match base {
                    Place::Scratch(at) => at,
                    other => {
                        let at = self.room(whole);
                        self.emit(Statement::Copy { to: Place::Scratch(at), from: other, size: whole });
                        at
                    }
                };
                let size = self.structs.size(&value.of).max(1);
                let index = self.scalar(index);
                let index = self.checked_index(index, *count, value);
                let index = binary(Binary::Multiply, index, Expression::Int(size.into()));
                Place::Indexed { offset: base, size: whole, index: Box::new(index) }
            }
            _ => self.built(value),
        }
    }

    /// An index that is told if it is beyond the end. It counts as the last one then.
    fn checked_index(&mut self, index: Expression, count: u32, at: &Expr) -> Expression {
        let index = self.held(index, Scalar::Int);
        let beyond = binary(Binary::UnsignedLessOrEqual, Expression::Int(count.into()), index.clone());
        let told = self.branch(|lowering| {
            lowering.tell_error(ErrorKind::OutOfBounds, at.span, index.clone());
        });
        self.emit(Statement::If(beyond.clone(), told, Vec::new()));
        let last = i64::from(count.saturating_sub(1));
        Expression::Select(Box::new(beyond), Box::new(Expression::Int(last)), Box::new(index))
    }

    fn is_at_address(&self, value: &Expr) -> bool {
        match &value.kind {
            Kind::Deref(_) => true,
            Kind::Part(of, _, None) | Kind::Index(of, ..) => self.is_at_address(of),
            _ => false,
        }
    }

    /// A value in scratch of its own.
    fn built(&mut self, value: &Expr) -> Place {
        let size = self.structs.size(&value.of);
        let at = self.room(size);
        self.into(value, at);
        Place::Scratch(at)
    }

    /// The bytes of a constant.
    fn bytes(&mut self, value: &Expr) -> Vec<u8> {
        let size = self.structs.size(&value.of) as usize;
        match &value.kind {
            Kind::Text(text) => {
                let mut bytes: Vec<u8> = text.iter().copied().take(size.saturating_sub(1)).collect();
                // Nothing is in a string behind its end.
                if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                    bytes.truncate(end);
                }
                bytes.resize(size, 0);
                bytes
            }
            Kind::Bytes(bytes) => {
                let mut bytes = bytes.clone();
                bytes.resize(size, 0);
                bytes
            }
            _ => Vec::new(),
        }
    }

    /// Puts a value in scratch.
    pub fn into(&mut self, value: &Expr, at: u32) {
        let to = Place::Scratch(at);
        let size = self.structs.size(&value.of);
        if size == 0 {
            self.effect(value);
            return;
        }
        if scalar(&value.of).is_some() && !matches!(value.kind, Kind::Bytes(_) | Kind::Text(_)) {
            let scalar = self.scalar(value);
            self.emit(Statement::Store { to, as_: width(&value.of), value: scalar });
            return;
        }
        match &value.kind {
            Kind::Text(_) | Kind::Bytes(_) => {
                let bytes = self.bytes(value);
                if bytes.iter().all(|byte| *byte == 0) {
                    self.emit(Statement::Zero { to, size });
                } else {
                    let from = Place::Constant(self.output.constant(bytes));
                    self.emit(Statement::Copy { to, from, size });
                }
            }
            Kind::Tuple(parts) => self.tuple(&value.of, parts, at),
            Kind::Convert(of) => self.convert_into(of, &value.of, at),
            Kind::Reinterpret(of) => {
                let inner = self.structs.size(&of.of);
                if inner < size {
                    self.emit(Statement::Zero { to: to.clone(), size });
                }
                if inner <= size {
                    self.into(of, at);
                } else {
                    let from = self.memory(of);
                    self.emit(Statement::Copy { to, from, size });
                }
            }
            Kind::Deref(_) | Kind::Part(..) | Kind::Index(..) => match self.address(value) {
                Some((address, space)) => self.read_into(address, space, &value.of, at),
                None => {
                    let from = self.memory(value);
                    self.emit(Statement::Copy { to, from, size });
                }
            },
            Kind::If(condition, then, otherwise) => {
                let condition = self.scalar(condition);
                let mut branch = |block: &Block| {
                    self.branch(|lowering| {
                        lowering.block(block, |lowering, value| lowering.into(value, at));
                    })
                };
                let (then, otherwise) = (branch(then), branch(otherwise));
                self.emit(Statement::If(condition, then, otherwise));
                self.changed();
            }
            Kind::Block(block) => {
                self.block(block, |lowering, value| lowering.into(value, at));
                self.changed();
            }
            Kind::Get(key) => {
                let found = self.get_into(key, to, value.span);
                _ = found;
            }
            Kind::Call(call) => self.call_into(call, value, at),
            _ => {
                let from = self.memory(value);
                self.emit(Statement::Copy { to, from, size });
            }
        }
    }

    fn read_into(&mut self, from: Expression, space: Space, of: &Type, at: u32) {
        let size = self.structs.size(of);
        let to = Place::Scratch(at);
        if space == Space::Own {
            let from = self.own(from, 0);
            self.emit(Statement::Copy { to, from, size });
            return;
        }
        let length = Expression::Int(size.into());
        if let Type::String(_) = of {
            self.emit(Statement::ReadString { to, size, from, most: length, length: None });
            return;
        }
        if !self.tells_failures {
            self.emit(Statement::ReadBytes { to, size, from, length, ok: None });
            return;
        }
        let from = self.held(from, Scalar::Int);
        let ok = self.local(Scalar::Int);
        self.emit(Statement::ReadBytes { to, size, from: from.clone(), length, ok: Some(ok) });
        self.tell_unread(ok, from);
    }

    /// Puts the parts of a tuple or record beside each other, with zeros between.
    fn tuple(&mut self, of: &Type, parts: &[(usize, Expr)], at: u32) {
        let places = match of {
            Type::Tuple(types) => self.structs.places(types.iter().map(|of| ("", of)), 0),
            Type::Record(types) => self.structs.places(types.iter().map(|(name, of)| (&**name, of)), 0),
            _ => return,
        };
        let used: u32 = places.fields.iter().map(|field| field.shape.size()).sum();
        if used != places.size {
            self.emit(Statement::Zero { to: Place::Scratch(at), size: places.size });
        }
        for (index, part) in parts {
            if let Some(field) = places.fields.get(*index) {
                self.into(part, at + field.offset);
            }
        }
    }

    fn convert_into(&mut self, of: &Expr, to: &Type, at: u32) {
        let (from_size, size) = (self.structs.size(&of.of), self.structs.size(to));
        match (&of.of, to) {
            (Type::String(_) | Type::Buffer(_), Type::String(_) | Type::Buffer(_)) if from_size <= size => {
                self.into(of, at);
                if from_size < size {
                    self.emit(Statement::Zero { to: Place::Scratch(at + from_size), size: size - from_size });
                }
            }
            (Type::String(_), Type::String(_)) => {
                let from = self.memory(of);
                self.emit(Statement::Copy { to: Place::Scratch(at), from, size });
                let last = Place::Scratch(at + size - 1);
                self.emit(Statement::Store { to: last, as_: Width::Unsigned(1), value: Expression::Int(0) });
            }
            (Type::Buffer(_), Type::Buffer(room)) => {
                let from = self.memory(of);
                self.emit(Statement::Copy { to: Place::Scratch(at), from, size });
                let length = Expression::Load { from: Place::Scratch(at), as_: Width::Unsigned(4) };
                let most = Expression::Int((*room).into());
                let fits = binary(Binary::UnsignedLess, length.clone(), most.clone());
                let value = Expression::Select(Box::new(fits), Box::new(length), Box::new(most));
                self.emit(Statement::Store { to: Place::Scratch(at), as_: Width::Unsigned(4), value });
            }
            (Type::Tuple(_), Type::Tuple(_)) | (Type::Record(_), Type::Record(_)) => {
                self.convert_parts(of, to, at);
            }
            _ => {
                let from = self.memory(of);
                let both = from_size.min(size);
                if from_size < size {
                    self.emit(Statement::Zero { to: Place::Scratch(at), size });
                }
                self.emit(Statement::Copy { to: Place::Scratch(at), from, size: both });
            }
        }
    }

    /// A tuple or record of other types: each part for itself.
    fn convert_parts(&mut self, of: &Expr, to: &Type, at: u32) {
        let place = self.memory(of);
        let size = self.structs.size(&of.of);
        let from = match place {
            Place::Scratch(from) => from,
            other => {
                let from = self.room(size);
                self.emit(Statement::Copy { to: Place::Scratch(from), from: other, size });
                from
            }
        };
        self.convert_at(from, &of.of, to, at);
    }

    fn convert_at(&mut self, from: u32, of: &Type, to: &Type, at: u32) {
        let size = self.structs.size(to);
        let parts: Vec<(u32, Type, u32, Type)> = match (of, to) {
            (Type::Tuple(old), Type::Tuple(new)) => {
                let old_places = self.structs.places(old.iter().map(|of| ("", of)), 0);
                let new_places = self.structs.places(new.iter().map(|of| ("", of)), 0);
                (0..old.len().min(new.len()))
                    .map(|index| {
                        let (old_at, new_at) =
                            (old_places.fields[index].offset, new_places.fields[index].offset);
                        (old_at, old[index].clone(), new_at, new[index].clone())
                    })
                    .collect()
            }
            (Type::Record(old), Type::Record(new)) => {
                let old_places = self.structs.places(old.iter().map(|(name, of)| (&**name, of)), 0);
                let new_places = self.structs.places(new.iter().map(|(name, of)| (&**name, of)), 0);
                let places = new.iter().enumerate().filter_map(|(index, (name, to))| {
                    let (other, of) = field(old, name)?;
                    let old_at = old_places.fields.get(other)?.offset;
                    Some((old_at, of.clone(), new_places.fields.get(index)?.offset, to.clone()))
                });
                places.collect()
            }
            _ if scalar(of).is_some() && scalar(to).is_some() => {
                let value = convert(load(Place::Scratch(from), of), of, to);
                self.emit(Statement::Store { to: Place::Scratch(at), as_: width(to), value });
                return;
            }
            _ => {
                let old = self.structs.size(of);
                if old < size {
                    self.emit(Statement::Zero { to: Place::Scratch(at), size });
                }
                self.emit(Statement::Copy {
                    to: Place::Scratch(at),
                    from: Place::Scratch(from),
                    size: old.min(size),
                });
                return;
            }
        };
        self.emit(Statement::Zero { to: Place::Scratch(at), size });
        for (old_at, old, new_at, new) in parts {
            self.convert_at(from + old_at, &old, &new, at + new_at);
        }
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
