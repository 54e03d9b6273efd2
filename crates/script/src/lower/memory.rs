//! Values as bytes in scratch: strings, tuples, structs, keys.

use super::body::{Home, Lowering, binary, scalar, stored, width};
use super::value::{convert, load, read_at};
use crate::check::tree::{Block, Expr, Kind};
use crate::check::types::{Space, Type, field};
use crate::ir::{Binary, Expression, Place, Scalar, Statement, Width};
use crate::message::ErrorKind;
use crate::source::Span;

impl Lowering<'_, '_> {
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
            Kind::Get(key) if stored(&value.of).is_same(&value.of) => self.get(key, value.span),
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

    /// An index that is told if it is beyond the end, and whether it is.
    pub fn told_index(&mut self, index: Expression, count: u32, at: Span) -> (Expression, Expression) {
        let index = self.held(index, Scalar::Int);
        let beyond = binary(Binary::UnsignedLessOrEqual, Expression::Int(count.into()), index.clone());
        let told = self.branch(|lowering| lowering.tell_error(ErrorKind::OutOfBounds, at, index.clone()));
        self.emit(Statement::If(beyond.clone(), told, Vec::new()));
        (index, beyond)
    }

    /// An index that is told if it is beyond the end. It counts as the last one then.
    fn checked_index(&mut self, index: Expression, count: u32, at: &Expr) -> Expression {
        let (index, beyond) = self.told_index(index, count, at.span);
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
            Kind::Characters(of) => self.text_in(of, at, size),
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
                Some((address, space)) => self.read_into(address, space, value, at),
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

    fn read_into(&mut self, from: Expression, space: Space, value: &Expr, at: u32) {
        let size = self.structs.size(&value.of);
        let to = Place::Scratch(at);
        if space == Space::Own {
            let from = self.own(from, 0);
            self.emit(Statement::Copy { to, from, size });
            return;
        }
        let length = Expression::Int(size.into());
        if !self.tells_failures {
            self.emit(Statement::ReadBytes { to, size, from, length, ok: None });
            return;
        }
        let from = self.held(from, Scalar::Int);
        let ok = self.local(Scalar::Int);
        self.emit(Statement::ReadBytes { to, size, from: from.clone(), length, ok: Some(ok) });
        self.tell_unread(ok, read_at(value), from);
    }

    /// The string in an array of characters, with zeros behind it. `size` is one more than there are characters.
    fn text_in(&mut self, of: &Expr, at: u32, size: u32) {
        let to = Place::Scratch(at);
        match self.address(of) {
            Some((from, Space::Foreign | Space::Narrow)) => {
                let most = Expression::Int(size.into());
                if !self.tells_failures {
                    self.emit(Statement::ReadString { to, size, from, most, length: None });
                    return;
                }
                let from = self.held(from, Scalar::Int);
                let length = self.local(Scalar::Int);
                let read = Statement::ReadString { to, size, from: from.clone(), most, length: Some(length) };
                self.emit(read);
                let ok = self.local(Scalar::Int);
                let first = binary(Binary::Less, Expression::Int(-1), Expression::Local(length));
                self.emit(Statement::Set(ok, first));
                self.tell_unread(ok, read_at(of), from);
            }
            _ => {
                let count = size.saturating_sub(1);
                let from = self.memory(of);
                self.emit(Statement::Copy { to: to.clone(), from, size: count });
                self.end_text(at, size);
            }
        }
    }

    /// Zeroes the last byte of a string's room, and what is behind the first zero.
    fn end_text(&mut self, at: u32, size: u32) {
        let store = |to| Statement::Store { to, as_: Width::Unsigned(1), value: Expression::Int(0) };
        self.emit(store(Place::Scratch(at + size - 1)));
        let index = self.local(Scalar::Int);
        self.emit(Statement::StringLength { into: index, of: Place::Scratch(at), size });
        let byte = Expression::Local(index);
        let code = self.branch(|lowering| {
            let more = binary(Binary::UnsignedLess, byte.clone(), Expression::Int(size.into()));
            lowering.emit(Statement::If(more, Vec::new(), vec![Statement::Break]));
            lowering.emit(store(Place::Indexed { offset: at, size, index: Box::new(byte.clone()) }));
            lowering.emit(Statement::Set(index, binary(Binary::Add, byte.clone(), Expression::Int(1))));
        });
        self.emit(Statement::Loop(code));
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
}
