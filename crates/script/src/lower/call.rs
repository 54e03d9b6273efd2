//! What is done by name.

use super::body::{Lowering, binary, unary};
use super::value::load;
use crate::check::tree::{Call, Expr, Kind};
use crate::check::types::Type;
use crate::ir::{Binary, Expression, Part, Place, Scalar, Statement, Unary, Width};
use crate::message::{ErrorKind, Message, part_of};
use crate::shape::Shape;
use std::sync::Arc;

/// How many strings `join` joins at most.
pub const JOINED: usize = 16;

impl Lowering<'_, '_> {
    /// A call that gives a scalar.
    pub fn call_scalar(&mut self, call: &Call, value: &Expr) -> Expression {
        match call {
            Call::Strlen(text) => {
                let (_, _, length) = self.text(text);
                length
            }
            Call::Find(haystack, needle) => {
                let (place, other) = (self.memory(haystack), self.memory(needle));
                let into = self.local(Scalar::Int);
                let (haystack_size, needle_size) =
                    (self.structs.size(&haystack.of), self.structs.size(&needle.of));
                self.emit(Statement::Find {
                    into,
                    haystack: place,
                    haystack_size,
                    needle: other,
                    needle_size,
                });
                Expression::Local(into)
            }
            Call::Delete(key, _) => {
                let found = self.local(Scalar::Int);
                let place = self.key(key);
                self.emit(Statement::MapDelete { map: key.map, key: place, found: Some(found) });
                Expression::Local(found)
            }
            Call::Has(key) => {
                let found = self.local(Scalar::Int);
                let place = self.key(key);
                self.emit(Statement::MapHas { map: key.map, key: place, found });
                Expression::Local(found)
            }
            Call::Length(map) => {
                let into = self.local(Scalar::Int);
                self.emit(Statement::MapLength { map: *map, into });
                Expression::Local(into)
            }
            _ => {
                self.call_effect(call, value);
                Expression::Int(0)
            }
        }
    }

    /// A call whose value nobody wants.
    pub fn call_effect(&mut self, call: &Call, value: &Expr) {
        match call {
            Call::Tell(message, values) => self.tell_values(message, values),
            Call::PrintMap(map, top, divisor) => {
                let parts = [*top, *divisor].map(|number| Part::Word(Expression::Int(number as i64)));
                self.tell(Message::PrintMap(*map), parts.to_vec());
            }
            Call::Join(strings, between) => self.join(strings, between),
            Call::Exit(code) => {
                let code = self.scalar(code);
                self.tell(Message::Exit, vec![Part::Word(code)]);
                self.emit(Statement::Return);
            }
            Call::Clear(map) => self.emit(Statement::MapClear(*map)),
            Call::Zero(map) => self.emit(Statement::MapZero(*map)),
            Call::Delete(key, _) => {
                let place = self.key(key);
                let found = self.tells_failures.then(|| self.local(Scalar::Int));
                self.emit(Statement::MapDelete { map: key.map, key: place, found });
                if let Some(found) = found {
                    let told = self.branch(|lowering| {
                        lowering.tell_error(ErrorKind::NotThere(key.map), value.span, Expression::Int(0));
                    });
                    self.emit(Statement::If(Expression::Local(found), Vec::new(), told));
                }
            }
            Call::Signal(number) => {
                let number = self.scalar(number);
                self.emit(Statement::Signal(number));
            }
            Call::Delay(time) => {
                let time = self.scalar(time);
                self.emit(Statement::Delay(time));
            }
            Call::Change(what, value) => {
                let value = self.scalar(value);
                self.emit(Statement::Change(*what, value));
            }
            Call::Strlen(text) => self.effect(text),
            Call::Has(key) => {
                if let Some(key) = &key.key {
                    self.effect(key);
                }
            }
            Call::Length(_) | Call::Comm | Call::NameOf(_) | Call::Stack(_) => {}
            Call::Find(left, right) | Call::Concat(left, right) | Call::Buf(left, right) => {
                self.effect(left);
                self.effect(right);
            }
            Call::Str(from, length) | Call::BufOf(from, length) | Call::Ntop(from, length) => {
                self.effect(from);
                if let Some(length) = length {
                    self.effect(length);
                }
            }
            Call::Mac(from) | Call::Symbol(from) | Call::Choose(from, ..) => self.effect(from),
        }
    }

    /// Puts what a call gives in scratch.
    pub fn call_into(&mut self, call: &Call, value: &Expr, at: u32) {
        let size = self.structs.size(&value.of);
        let to = Place::Scratch(at);
        match call {
            Call::Str(from, length) => _ = self.read_text(from, length.as_deref(), at, size),
            Call::Comm => self.emit(Statement::ThreadName { to }),
            Call::NameOf(of) => self.emit(Statement::ProcessName { of: *of, to }),
            Call::Buf(from, length) => {
                let from = self.scalar(from);
                let (from, length) = self.both(from, Scalar::Int, |lowering| lowering.scalar(length));
                let room = size.saturating_sub(4);
                let length = self.at_most(length, room);
                self.emit(Statement::Store { to, as_: Width::Unsigned(4), value: length.clone() });
                self.emit(Statement::ReadBytes {
                    to: Place::Scratch(at + 4),
                    size: room,
                    from,
                    length,
                    ok: None,
                });
            }
            Call::BufOf(of, length) => self.buffer_of(of, length.as_deref(), at, size),
            Call::Concat(first, second) => self.concat(first, second, at, size),
            Call::Ntop(of, family) => self.inet(of, family.as_deref(), at),
            Call::Mac(of) => self.mac(of, at),
            Call::Symbol(of) => {
                let address = self.scalar(of);
                self.emit(Statement::Store { to, as_: Width::Unsigned(8), value: address });
                self.store_pid(at + 8);
            }
            Call::Stack(by) => {
                let frames = match &value.of {
                    Type::Stack { frames, .. } => *frames,
                    _ => 127,
                };
                let into = self.local(Scalar::Int);
                self.emit(Statement::Stack { into, frames, by: *by });
                let number = Expression::Local(into);
                self.emit(Statement::Store { to, as_: Width::Unsigned(8), value: number });
                self.store_pid(at + 8);
            }
            Call::Choose(number, texts, otherwise) => {
                let number = self.scalar(number);
                let number = self.held(number, Scalar::Int);
                self.copy_text(otherwise, at, size);
                for (known, text) in *texts {
                    let code = self.branch(|lowering| lowering.copy_text(text, at, size));
                    let is = binary(Binary::Equal, number.clone(), Expression::Int(*known));
                    self.emit(Statement::If(is, code, Vec::new()));
                }
            }
            _ => {
                let scalar = self.call_scalar(call, value);
                self.emit(Statement::Store { to, as_: super::body::width(&value.of), value: scalar });
            }
        }
    }

    fn copy_text(&mut self, text: &str, at: u32, size: u32) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.truncate(size.saturating_sub(1) as usize);
        bytes.resize(size as usize, 0);
        let from = Place::Constant(self.output.constant(bytes));
        self.emit(Statement::Copy { to: Place::Scratch(at), from, size });
    }

    /// The process, and nothing behind it.
    fn store_pid(&mut self, at: u32) {
        let pid = Expression::Context(crate::ir::Context::Pid);
        let pid = unary(Unary::ZeroExtend(32), pid);
        self.emit(Statement::Store { to: Place::Scratch(at), as_: Width::Unsigned(8), value: pid });
    }

    fn at_most(&mut self, length: Expression, most: u32) -> Expression {
        match length {
            Expression::Int(length) => Expression::Int((length as u64).min(most.into()) as i64),
            length => {
                let length = self.held(length, Scalar::Int);
                let most = Expression::Int(most.into());
                let fits = binary(Binary::UnsignedLess, length.clone(), most.clone());
                Expression::Select(Box::new(fits), Box::new(length), Box::new(most))
            }
        }
    }

    fn read_text(&mut self, from: &Expr, length: Option<&Expr>, at: u32, size: u32) -> Expression {
        let span = from.span;
        let is_own = matches!(from.of, Type::Pointer(_, crate::check::types::Space::Own));
        let from = self.scalar(from);
        let (from, most) = self.both(from, Scalar::Int, |lowering| match length {
            // The length does not count the final zero.
            Some(length) => {
                let length = lowering.scalar(length);
                let length = lowering.at_most(length, size.saturating_sub(1));
                binary(Binary::Add, length, Expression::Int(1))
            }
            None => Expression::Int(size.into()),
        });
        let to = Place::Scratch(at);
        let into = self.local(Scalar::Int);
        if is_own {
            self.own_text(from, most, at, size);
            self.emit(Statement::StringLength { into, of: to, size });
            return Expression::Local(into);
        }
        let from = if self.tells_failures { self.held(from, Scalar::Int) } else { from };
        self.emit(Statement::ReadString { to, size, from: from.clone(), most, length: Some(into) });
        let length = Expression::Local(into);
        let is_bad = binary(Binary::Less, length.clone(), Expression::Int(0));
        if self.tells_failures {
            let told = self.branch(|lowering| lowering.tell_error(ErrorKind::UnreadableText, span, from));
            self.emit(Statement::If(is_bad.clone(), told, Vec::new()));
        }
        Expression::Select(Box::new(is_bad), Box::new(Expression::Int(0)), Box::new(length))
    }

    /// A string in variables: byte by byte, since its address is computed.
    fn own_text(&mut self, from: Expression, most: Expression, at: u32, size: u32) {
        self.emit(Statement::Zero { to: Place::Scratch(at), size });
        let from = self.held(from, Scalar::Int);
        let index = self.local(Scalar::Int);
        self.emit(Statement::Set(index, Expression::Int(0)));
        let last = binary(Binary::Subtract, most, Expression::Int(1));
        let last = self.held(last, Scalar::Int);
        let code = self.branch(|lowering| {
            let index_of = Expression::Local(index);
            let more = binary(Binary::UnsignedLess, index_of.clone(), last);
            lowering.emit(Statement::If(more, Vec::new(), vec![Statement::Break]));
            let address = binary(Binary::Add, from, index_of.clone());
            let byte = load(lowering.own(address, 0), &Type::UINT8);
            let byte = lowering.held(byte, Scalar::Int);
            lowering.emit(Statement::If(byte.clone(), Vec::new(), vec![Statement::Break]));
            let to = Place::Indexed { offset: at, size, index: Box::new(index_of.clone()) };
            lowering.emit(Statement::Store { to, as_: Width::Unsigned(1), value: byte });
            lowering.emit(Statement::Set(index, binary(Binary::Add, index_of, Expression::Int(1))));
        });
        self.emit(Statement::Loop(code));
    }

    /// A string: its place, the room there, and its length.
    pub fn text(&mut self, text: &Expr) -> (Place, u32, Expression) {
        let size = self.structs.size(&text.of);
        match &text.kind {
            Kind::Text(bytes) => {
                let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                let length = length.min(size.saturating_sub(1) as usize);
                (self.memory(text), size, Expression::Int(length as i64))
            }
            Kind::Call(Call::Str(from, length)) => {
                let at = self.room(size);
                let length = self.read_text(from, length.as_deref(), at, size);
                (Place::Scratch(at), size, length)
            }
            _ => {
                let place = self.memory(text);
                let into = self.local(Scalar::Int);
                self.emit(Statement::StringLength { into, of: place.clone(), size });
                (place, size, Expression::Local(into))
            }
        }
    }

    fn buffer_of(&mut self, of: &Expr, length: Option<&Expr>, at: u32, size: u32) {
        let room = size.saturating_sub(4);
        let inner = self.structs.size(&of.of);
        let most = room.min(inner);
        let length = match length {
            Some(length) => {
                let length = self.scalar(length);
                self.at_most(length, most)
            }
            None => Expression::Int(most.into()),
        };
        let is_whole = matches!(length, Expression::Int(length) if length == i64::from(room));
        if !is_whole || inner < room {
            self.emit(Statement::Zero { to: Place::Scratch(at), size });
        }
        let length = self.held(length, Scalar::Int);
        self.emit(Statement::Store {
            to: Place::Scratch(at),
            as_: Width::Unsigned(4),
            value: length.clone(),
        });
        let from = self.memory(of);
        self.emit(Statement::Copy { to: Place::Scratch(at + 4), from, size: most });
        if let Expression::Int(length) = length {
            let kept = length as u32;
            if kept < most {
                let to = Place::Scratch(at + 4 + kept);
                self.emit(Statement::Zero { to, size: most - kept });
            }
        }
    }

    fn concat(&mut self, first: &Expr, second: &Expr, at: u32, size: u32) {
        let (first, first_size, length) = self.text(first);
        let length = self.held(length, Scalar::Int);
        let (second, second_size, _) = self.text(second);
        // Both with all of their room, of which the result may have less.
        let whole = first_size.saturating_add(second_size);
        let is_direct = whole <= size.saturating_add(1);
        let (to, room) = if is_direct { (at, size) } else { (self.room(whole), whole) };
        self.emit(Statement::Zero { to: Place::Scratch(to), size: room });
        self.emit(Statement::Copy { to: Place::Scratch(to), from: first, size: first_size.min(room) });
        // The second one begins where the first one ends.
        let behind = Place::Indexed { offset: to, size: room, index: Box::new(length) };
        self.emit(Statement::Copy { to: behind, from: second, size: second_size.min(room) });
        if !is_direct {
            self.emit(Statement::Copy { to: Place::Scratch(at), from: Place::Scratch(to), size });
        }
        let last = Place::Scratch(at + size.saturating_sub(1));
        self.emit(Statement::Store { to: last, as_: Width::Unsigned(1), value: Expression::Int(0) });
    }

    fn inet(&mut self, of: &Expr, family: Option<&Expr>, at: u32) {
        let size = self.structs.size(&of.of);
        self.emit(Statement::Zero { to: Place::Scratch(at), size: 20 });
        let known = if size == 16 { 10 } else { 2 };
        let family = match family {
            Some(family) => self.scalar(family),
            None => Expression::Int(known),
        };
        self.emit(Statement::Store { to: Place::Scratch(at), as_: Width::Unsigned(4), value: family });
        let bytes = Place::Scratch(at + 4);
        if of.of.is_int() {
            let value = self.scalar(of);
            self.emit(Statement::Store { to: bytes, as_: Width::Unsigned(4), value });
        } else {
            let from = self.memory(of);
            self.emit(Statement::Copy { to: bytes, from, size: size.min(16) });
        }
    }

    fn mac(&mut self, of: &Expr, at: u32) {
        let to = Place::Scratch(at);
        match &of.of {
            Type::Int(_) | Type::Pointer(..) => {
                let from = self.scalar(of);
                let length = Expression::Int(6);
                self.emit(Statement::ReadBytes { to, size: 6, from, length, ok: None });
            }
            _ => {
                let from = self.memory(of);
                self.emit(Statement::Copy { to, from, size: 6 });
            }
        }
    }

    fn tell_values(&mut self, message: &Arc<Message>, values: &[Expr]) {
        let mut parts = Vec::new();
        for value in values {
            let part = self.value_part(value);
            parts.push(part);
        }
        self.tell((**message).clone(), parts);
    }

    /// A value as a part of a message.
    fn value_part(&mut self, value: &Expr) -> Part {
        if let Kind::Words(key) = &value.kind {
            let (place, size) = self.words(key);
            return Part::Bytes(place, size);
        }
        let shape = self.structs.shape(&value.of, 0);
        match part_of(&shape) {
            crate::ir::PartKind::Word => {
                let scalar = self.scalar(value);
                match value.of {
                    Type::Float(_) => {
                        let kept = self.held(scalar, Scalar::Float);
                        Part::Word(unary(Unary::FloatBits, kept))
                    }
                    _ => {
                        // A value that a later one changes is told as it was.
                        let scalar = match scalar {
                            Expression::Local(_) | Expression::Load { .. } => self.held(scalar, Scalar::Int),
                            other => other,
                        };
                        Part::Word(scalar)
                    }
                }
            }
            crate::ir::PartKind::Text(_) => {
                let (from, size, length) = self.text(value);
                Part::Text { from, size, length }
            }
            crate::ir::PartKind::Bytes(size) => {
                let place = match shape {
                    Shape::Float(_) => {
                        let at = self.room(size);
                        self.into(value, at);
                        Place::Scratch(at)
                    }
                    _ => self.memory(value),
                };
                Part::Bytes(place, size)
            }
        }
    }

    /// `join`: the strings that an array of addresses points to, up to an address of 0.
    fn join(&mut self, strings: &Expr, between: &Arc<str>) {
        let base = self.scalar(strings);
        let base = self.held(base, Scalar::Int);
        let count = self.local(Scalar::Int);
        self.emit(Statement::Set(count, Expression::Int(0)));
        let mut parts = vec![Part::Word(Expression::Local(count))];
        let size = self.longest;
        let word = self.structs.word();
        for index in 0..JOINED as i64 {
            let at = self.room(size);
            let length = self.local(Scalar::Int);
            self.emit(Statement::Set(length, Expression::Int(0)));
            let code = self.branch(|lowering| {
                let address = lowering.local(Scalar::Int);
                let from = binary(Binary::Add, base.clone(), Expression::Int(i64::from(word) * index));
                lowering.emit(Statement::Read { into: address, from, as_: Width::Unsigned(word), ok: None });
                let read = lowering.branch(|lowering| {
                    let (to, from) = (Place::Scratch(at), Expression::Local(address));
                    let most = Expression::Int(size.into());
                    lowering.emit(Statement::ReadString { to, size, from, most, length: Some(length) });
                    let bad = binary(Binary::Less, Expression::Local(length), Expression::Int(0));
                    let none = vec![Statement::Set(length, Expression::Int(0))];
                    lowering.emit(Statement::If(bad, none, Vec::new()));
                    lowering.emit(Statement::Set(count, Expression::Int(index + 1)));
                });
                lowering.emit(Statement::If(Expression::Local(address), read, Vec::new()));
            });
            // Behind the last one there is none.
            let is_next = binary(Binary::Equal, Expression::Local(count), Expression::Int(index));
            self.emit(Statement::If(is_next, code, Vec::new()));
            parts.push(Part::Text { from: Place::Scratch(at), size, length: Expression::Local(length) });
        }
        self.tell(Message::Join { between: between.clone() }, parts);
    }
}
