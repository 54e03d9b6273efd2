//! Maps: keys, values and aggregations.

use super::body::{Lowering, binary, scalar, stored, width};
use super::value::{convert, load};
use crate::check::convert::converted;
use crate::check::tree::{Expr, Key, Kind};
use crate::check::types::{Aggregate, Of, Type};
use crate::ir::{Binary, Context, Expression, LocalId, Place, Scalar, Statement, Unary, Width};
use crate::message::ErrorKind;
use crate::source::Span;

/// Where in a key the thread's or the process's number is, if anywhere, so that no other process has it: the way through its tuples.
fn number_in(key: &Expr) -> Option<Vec<usize>> {
    match &key.kind {
        Kind::Context(Context::Tid | Context::Pid) => Some(Vec::new()),
        // No bit of it gets lost.
        Kind::Convert(of) if width(&key.of).size() >= 4 => number_in(of),
        Kind::Tuple(parts) => parts.iter().enumerate().find_map(|(index, (_, part))| {
            let mut way = number_in(part)?;
            way.insert(0, index);
            Some(way)
        }),
        _ => None,
    }
}

/// Whether a key is the thread's number and nothing else.
fn is_tid(key: &Expr) -> bool {
    match &key.kind {
        Kind::Context(Context::Tid) => true,
        Kind::Convert(of) => width(&key.of).size() >= 4 && is_tid(of),
        _ => false,
    }
}

impl Lowering<'_, '_> {
    /// Where the bytes of a key are.
    pub fn key(&mut self, key: &Key) -> Place {
        let (map, of) = (key.map, key.key.as_ref());
        self.output.note_key(map, of.and_then(|key| number_in(key)), of.is_some_and(|key| is_tid(key)));
        match &key.key {
            None => Place::Scratch(0),
            Some(key) => self.constant(key).unwrap_or_else(|| self.memory(key)),
        }
    }

    /// A value that is known already, as constant bytes.
    fn constant(&mut self, value: &Expr) -> Option<Place> {
        match &value.kind {
            Kind::Int(number) => {
                let size = width(&value.of).size() as usize;
                let bytes = number.to_le_bytes()[..size].to_vec();
                Some(Place::Constant(self.output.constant(bytes)))
            }
            _ => None,
        }
    }

    /// Reads the value of a key.
    pub fn get(&mut self, key: &Key, span: Span) -> Place {
        if let Some(place) = self.remembered(key) {
            return place;
        }
        let of = stored(&self.maps.get(key.map).value);
        let size = self.structs.size(&of);
        let to = Place::Scratch(self.room(size));
        self.get_into(key, to.clone(), span);
        if self.is_in_predicate {
            self.remember(key, &to);
        }
        to
    }

    /// Reads the value of a key to a place.
    pub fn get_into(&mut self, key: &Key, to: Place, span: Span) -> Option<LocalId> {
        let place = self.key(key);
        let found = self.tells_failures.then(|| self.local(Scalar::Int));
        self.emit(Statement::MapGet { map: key.map, key: place, to, found });
        if let Some(found) = found {
            let told = self.branch(|lowering| {
                lowering.tell_error(ErrorKind::Missing(key.map), span, Expression::Int(0));
            });
            self.emit(Statement::If(Expression::Local(found), Vec::new(), told));
        }
        found
    }

    /// Writes the value of a key.
    pub fn set_key(&mut self, key: &Key, value: &Expr, span: Span) {
        let of = stored(&value.of);
        let value = converted(value.clone(), &of);
        // The value is made before the key, as it is written behind it and may change what the key is made of.
        let from = match self.constant(&value) {
            Some(constant) => constant,
            None => {
                let from = self.memory(&value);
                match from {
                    Place::Indexed { .. } => {
                        let size = self.structs.size(&of);
                        let at = self.room(size);
                        self.emit(Statement::Copy { to: Place::Scratch(at), from, size });
                        Place::Scratch(at)
                    }
                    other => other,
                }
            }
        };
        let place = self.key(key);
        let ok = self.local(Scalar::Int);
        self.emit(Statement::MapSet { map: key.map, key: place, value: from, ok: Some(ok) });
        let told = self.branch(|lowering| {
            lowering.tell_error(ErrorKind::MapFull(key.map), span, Expression::Int(0));
        });
        self.emit(Statement::If(Expression::Local(ok), Vec::new(), told));
    }

    /// Counts the integer of a key up or down.
    pub fn step_key(&mut self, key: &Key, by: i64, after: bool, is_wanted: bool) -> Expression {
        let place = self.key(key);
        let before = is_wanted.then(|| self.local(Scalar::Int));
        self.emit(Statement::MapAdd { map: key.map, key: place, amount: Expression::Int(by), before });
        match before {
            Some(before) if after => binary(Binary::Add, Expression::Local(before), Expression::Int(by)),
            Some(before) => Expression::Local(before),
            None => Expression::Int(0),
        }
    }

    /// Adds to an aggregation.
    pub fn aggregate(&mut self, key: &Key, value: &Expr, weight: Option<&Expr>) {
        let Type::Aggregate(aggregate) = self.maps.get(key.map).value else { return };
        let of = match aggregate {
            Aggregate::Count => Type::INT64,
            other if other.of() == Of::Float => Type::Float(8),
            _ => Type::INT64,
        };
        let number = match aggregate {
            Aggregate::Count => Expression::Int(1),
            _ => {
                let number = self.scalar(value);
                convert(number, &value.of, &of)
            }
        };
        let kind = scalar(&of).unwrap_or(Scalar::Int);
        let (number, weight) =
            self.both(number, kind, |lowering| weight.map(|weight| lowering.scalar(weight)));
        let (number, place) = self.both(number, kind, |lowering| lowering.key(key));
        self.emit(Statement::Aggregate { map: key.map, key: place, value: number, weight });
    }

    /// All words of an aggregation, and how many bytes they have.
    pub fn words(&mut self, key: &Key) -> (Place, u32) {
        let size = match self.output.program.maps.get(key.map.0 as usize).map(|map| map.value) {
            Some(value) => value.size(),
            None => 0,
        };
        let place = self.key(key);
        let at = self.room(size);
        let to = Place::Scratch(at);
        self.emit(Statement::AggregateGet { map: key.map, key: place, to: to.clone(), found: None });
        (to, size)
    }

    /// The number that an aggregation is so far.
    pub fn number(&mut self, key: &Key) -> Expression {
        let of = self.maps.get(key.map).value.clone();
        match self.words(key).0 {
            Place::Scratch(at) => self.number_at(&of, at),
            _ => Expression::Int(0),
        }
    }

    /// The number that the words of an aggregation are.
    pub fn number_at(&mut self, of: &Type, at: u32) -> Expression {
        let word =
            |index: u32| Expression::Load { from: Place::Scratch(at + 8 * index), as_: Width::Unsigned(8) };
        let double =
            |index: u32| Expression::Load { from: Place::Scratch(at + 8 * index), as_: Width::Float(8) };
        let Type::Aggregate(aggregate) = of else { return load(Place::Scratch(at), of) };
        match aggregate {
            Aggregate::Sum(Of::Float) => double(0),
            Aggregate::Min(Of::Float) | Aggregate::Max(Of::Float) => double(1),
            Aggregate::Min(_) | Aggregate::Max(_) => word(1),
            Aggregate::Average(Of::Float) => {
                let count = super::body::unary(Unary::UnsignedToFloat, word(0));
                let average = Expression::Binary(Binary::FloatDivide, Box::new(double(1)), Box::new(count));
                // Nothing has no average.
                Expression::Select(Box::new(word(0)), Box::new(average), Box::new(Expression::Float(0.0)))
            }
            Aggregate::Average(of) => {
                let op = if *of == Of::Signed { Binary::Divide } else { Binary::UnsignedDivide };
                Expression::Binary(op, Box::new(word(1)), Box::new(word(0)))
            }
            _ => word(0),
        }
    }
}
