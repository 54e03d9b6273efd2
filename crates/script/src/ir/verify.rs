//! What can be checked of a program once, so that nobody has to check it again at each hit.
//!
//! Back ends rely on it: after [`verify()`], each id names something, each place is within its bytes, each expression has the type
//! that is expected of it, and nothing is deeper than [`DEEPEST_STATEMENT`] and [`DEEPEST_EXPRESSION`], so that walking a program
//! by recursion needs a known amount of stack.
//!
//! What cannot be checked here: which thread a key belongs to ([`MapSharing::PerThread`]), whether a context value
//! can be had at a probe, and whether loops end (that is what [`Program::fuel`] is for).

use super::*;

mod fault;

pub use fault::{Fault, Invalid, What};

/// How deep statements may be nested: the bodies of `if` and of loops in each other.
pub const DEEPEST_STATEMENT: u32 = 256;

/// How deep expressions may be nested, with the indices of their places.
pub const DEEPEST_EXPRESSION: u32 = 128;

/// The most bytes that scratch, a key, a value or a constant may have.
pub const MOST_BYTES: u32 = 1 << 24;

/// Checks all of a program.
///
/// ```
/// use trapless_script::ir::{Body, Program, Statement, verify::verify};
/// let mut program = Program { bodies: vec![Body::default()], ..Program::default() };
/// assert!(verify(&program).is_ok());
/// program.bodies[0].code.push(Statement::Break);
/// assert_eq!(verify(&program).unwrap_err().to_string(), "body 0, statement 0: break or continue outside of a loop");
/// ```
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(program: &Program) -> Result<(), Invalid> {
    for (id, map) in (0..).map(MapId).zip(&program.maps) {
        verify_map(map).map_err(|fault| Invalid::Map { map: id, fault })?;
    }
    for map in &program.evicting {
        if map.0 as usize >= program.maps.len() {
            return Err(Invalid::Map { map: *map, fault: Fault::Missing(What::Map, map.0) });
        }
    }
    for (id, constant) in (0..).map(ConstantId).zip(&program.constants) {
        if constant.len() > MOST_BYTES as usize {
            return Err(Invalid::Constant(id));
        }
    }
    for (id, body) in (0..).map(BodyId).zip(&program.bodies) {
        let mut checker = Checker { program, body, statement: 0 };
        let result = if body.scratch > MOST_BYTES {
            Err(Fault::TooLong)
        } else {
            checker.statements(&body.code, Around { depth: 0, is_loop: false })
        };
        result.map_err(|fault| Invalid::Body {
            body: id,
            statement: checker.statement.saturating_sub(1),
            fault,
        })?;
    }
    Ok(())
}

fn verify_map(map: &Map) -> Result<(), Fault> {
    if map.capacity == 0 {
        return Err(Fault::Capacity);
    }
    if map.key > MOST_BYTES {
        return Err(Fault::TooLong);
    }
    let aggregation = match map.value {
        MapValue::Bytes(size) if size > MOST_BYTES => return Err(Fault::TooLong),
        MapValue::Bytes(_) => return Ok(()),
        MapValue::Aggregate(aggregation) => aggregation,
    };
    let makes_sense = match aggregation {
        Aggregation::Hist { bits } => bits <= 5,
        Aggregation::LinearHist { min, max, step } => min < max && step > 0,
        Aggregation::TimeSeries { interval, buckets, .. } => interval > 0 && buckets > 0,
        _ => true,
    };
    match makes_sense && aggregation.words() <= MOST_BYTES / 8 {
        true => Ok(()),
        false => Err(Fault::Bounds),
    }
}

/// What is around a statement.
#[derive(Clone, Copy)]
struct Around {
    depth: u32,
    is_loop: bool,
}

impl Around {
    fn inside(self, is_loop: bool) -> Around {
        Around { depth: self.depth + 1, is_loop: self.is_loop || is_loop }
    }
}

struct Checker<'a> {
    program: &'a Program,
    body: &'a Body,
    /// How many statements were begun.
    statement: u32,
}

impl Checker<'_> {
    fn statements(&mut self, code: &[Statement], around: Around) -> Result<(), Fault> {
        if around.depth > DEEPEST_STATEMENT {
            return Err(Fault::TooDeep);
        }
        code.iter().try_for_each(|statement| {
            self.statement = self.statement.saturating_add(1);
            self.statement(statement, around)
        })
    }

    fn statement(&mut self, statement: &Statement, around: Around) -> Result<(), Fault> {
        match statement {
            Statement::Set(local, value) => {
                let expected = self.local(*local)?;
                self.is(value, expected)
            }
            Statement::If(condition, then, other) => {
                self.int(condition)?;
                self.statements(then, around.inside(false))?;
                self.statements(other, around.inside(false))
            }
            Statement::Loop(code) => self.statements(code, around.inside(true)),
            Statement::Break | Statement::Continue => match around.is_loop {
                true => Ok(()),
                false => Err(Fault::NoLoop),
            },
            Statement::Return => Ok(()),
            Statement::Store { .. }
            | Statement::Copy { .. }
            | Statement::Zero { .. }
            | Statement::Read { .. }
            | Statement::ReadBytes { .. }
            | Statement::ReadString { .. }
            | Statement::Operand { .. }
            | Statement::StringLength { .. }
            | Statement::Compare { .. }
            | Statement::Find { .. } => self.bytes(statement),
            Statement::MapGet { .. }
            | Statement::MapSet { .. }
            | Statement::MapAdd { .. }
            | Statement::MapDelete { .. }
            | Statement::MapHas { .. }
            | Statement::MapLength { .. }
            | Statement::MapClear(_)
            | Statement::MapZero(_)
            | Statement::Aggregate { .. }
            | Statement::AggregateGet { .. } => self.map_statement(statement),
            Statement::ForEach { map, key, value, body } => {
                let map = self.map(*map)?;
                let (&Place::Scratch(key_at), &Place::Scratch(value_at)) = (key, value) else {
                    return Err(match (key, value) {
                        (Place::Constant(_) | Place::IndexedConstant { .. }, _)
                        | (_, Place::Constant(_) | Place::IndexedConstant { .. }) => Fault::Written,
                        _ => Fault::MovingPlace,
                    });
                };
                self.writable(key, map.key)?;
                self.writable(value, map.value.size())?;
                if overlap((key_at, map.key), (value_at, map.value.size())) {
                    return Err(Fault::Overlap);
                }
                self.statements(body, around.inside(true))
            }
            Statement::Stack { into, frames, by: StackWalk::Tables | StackWalk::FramePointers } => {
                self.int_local(*into)?;
                match frames {
                    1..=127 => Ok(()),
                    _ => Err(Fault::Frames(*frames)),
                }
            }
            Statement::ThreadName { to } | Statement::ProcessName { to, of: Kin::Own | Kin::Parent } => {
                self.writable(to, 16)
            }
            Statement::Emit { message, parts } => self.emit(*message, parts),
            Statement::Signal(value) | Statement::Delay(value) | Statement::Change(_, value) => {
                self.int(value)
            }
        }
    }

    /// Statements on places and foreign memory.
    fn bytes(&self, statement: &Statement) -> Result<(), Fault> {
        match statement {
            Statement::Store { to, as_, value } => {
                let expected = width(*as_)?;
                self.writable(to, as_.size())?;
                self.is(value, expected)
            }
            Statement::Copy { to, from, size } => {
                self.writable(to, *size)?;
                self.place(from, *size, 0)?;
                match (reach(to, *size), reach(from, *size)) {
                    (Some(to), Some(from)) if overlap(to, from) => Err(Fault::Overlap),
                    _ => Ok(()),
                }
            }
            Statement::Zero { to, size } => self.writable(to, *size),
            Statement::Read { into, from, as_, ok } => {
                let found = width(*as_)?;
                let expected = self.local(*into)?;
                same(expected, found)?;
                self.int(from)?;
                self.optional(*ok)
            }
            Statement::ReadBytes { to, size, from, length, ok } => {
                self.writable(to, *size)?;
                self.int(from)?;
                self.int(length)?;
                self.optional(*ok)
            }
            Statement::ReadString { to, size, from, most, length } => {
                self.writable(to, *size)?;
                if *size == 0 {
                    // There is no room for the final zero.
                    return Err(Fault::Outside(1));
                }
                self.int(from)?;
                self.int(most)?;
                self.optional(*length)
            }
            Statement::Operand { into, argument, ok } => {
                self.local(*into)?;
                self.optional(*ok)?;
                match usize::from(*argument) < trapless_isa::passed::MOST_PASSED {
                    true => Ok(()),
                    false => Err(Fault::Operand(*argument)),
                }
            }
            Statement::StringLength { into, of, size } => {
                self.int_local(*into)?;
                self.place(of, *size, 0)
            }
            Statement::Compare { into, left, right, size, most, strings: _ } => {
                self.int_local(*into)?;
                self.place(left, *size, 0)?;
                self.place(right, *size, 0)?;
                most.as_ref().map_or(Ok(()), |most| self.int(most))
            }
            Statement::Find { into, haystack, haystack_size, needle, needle_size } => {
                self.int_local(*into)?;
                self.place(haystack, *haystack_size, 0)?;
                self.place(needle, *needle_size, 0)
            }
            _ => Ok(()),
        }
    }

    fn map_statement(&self, statement: &Statement) -> Result<(), Fault> {
        match statement {
            Statement::MapGet { map, key, to, found } => {
                let size = self.map_of_bytes(*map)?;
                self.key(*map, key)?;
                self.writable(to, size)?;
                self.optional(*found)
            }
            Statement::MapSet { map, key, value, ok } => {
                let size = self.map_of_bytes(*map)?;
                self.key(*map, key)?;
                self.place(value, size, 0)?;
                self.optional(*ok)
            }
            Statement::MapAdd { map, key, amount, before } => {
                if self.map_of_bytes(*map)? != 8 {
                    return Err(Fault::MapKind(*map));
                }
                self.key(*map, key)?;
                self.int(amount)?;
                self.optional(*before)
            }
            Statement::MapDelete { map, key, found } => {
                self.key(*map, key)?;
                self.optional(*found)
            }
            Statement::MapHas { map, key, found } => {
                self.key(*map, key)?;
                self.int_local(*found)
            }
            Statement::MapLength { map, into } => {
                self.map(*map)?;
                self.int_local(*into)
            }
            Statement::MapClear(map) | Statement::MapZero(map) => self.map(*map).map(|_| ()),
            Statement::Aggregate { map, key, value, weight } => {
                let aggregation = self.map_of_aggregations(*map)?;
                self.key(*map, key)?;
                match aggregation {
                    // Whatever it is, it must be one thing.
                    Aggregation::Count => self.expression(value, 0).map(|_| ())?,
                    other if other.is_of_floats() => self.is(value, Scalar::Float)?,
                    _ => self.int(value)?,
                }
                weight.as_ref().map_or(Ok(()), |weight| self.int(weight))
            }
            Statement::AggregateGet { map, key, to, found } => {
                let aggregation = self.map_of_aggregations(*map)?;
                self.key(*map, key)?;
                self.writable(to, 8 * aggregation.words())?;
                self.optional(*found)
            }
            _ => Ok(()),
        }
    }

    fn emit(&self, id: MessageId, parts: &[Part]) -> Result<(), Fault> {
        let kinds = self.program.messages.get(id.0 as usize).ok_or(Fault::Missing(What::Message, id.0))?;
        if kinds.len() != parts.len() {
            return Err(Fault::Parts(id));
        }
        kinds.iter().zip(parts).try_for_each(|(kind, part)| match (kind, part) {
            (PartKind::Word, Part::Word(value)) => self.expression(value, 0).map(|_| ()),
            (PartKind::Bytes(expected), Part::Bytes(from, size)) if size == expected => {
                self.place(from, *size, 0)
            }
            (PartKind::Text(most), Part::Text { from, size, length }) if size <= most => {
                self.place(from, *size, 0)?;
                self.int(length)
            }
            _ => Err(Fault::Parts(id)),
        })
    }

    fn local(&self, local: LocalId) -> Result<Scalar, Fault> {
        self.body.locals.get(local.0 as usize).copied().ok_or(Fault::Missing(What::Local, local.0))
    }

    fn int_local(&self, local: LocalId) -> Result<(), Fault> {
        same(Scalar::Int, self.local(local)?)
    }

    fn optional(&self, local: Option<LocalId>) -> Result<(), Fault> {
        local.map_or(Ok(()), |local| self.int_local(local))
    }

    fn map(&self, map: MapId) -> Result<&Map, Fault> {
        self.program.maps.get(map.0 as usize).ok_or(Fault::Missing(What::Map, map.0))
    }

    fn map_of_bytes(&self, map: MapId) -> Result<u32, Fault> {
        match self.map(map)?.value {
            MapValue::Bytes(size) => Ok(size),
            MapValue::Aggregate(_) => Err(Fault::MapKind(map)),
        }
    }

    fn map_of_aggregations(&self, map: MapId) -> Result<Aggregation, Fault> {
        match self.map(map)?.value {
            MapValue::Aggregate(aggregation) => Ok(aggregation),
            MapValue::Bytes(_) => Err(Fault::MapKind(map)),
        }
    }

    fn key(&self, map: MapId, key: &Place) -> Result<(), Fault> {
        self.place(key, self.map(map)?.key, 0)
    }

    fn writable(&self, place: &Place, size: u32) -> Result<(), Fault> {
        match place {
            Place::Constant(_) | Place::IndexedConstant { .. } => Err(Fault::Written),
            _ => self.place(place, size, 0),
        }
    }

    /// Whether a place has `size` bytes, wherever its index leads.
    fn place(&self, place: &Place, size: u32, depth: u32) -> Result<(), Fault> {
        let within = |offset: u32, size: u32| match offset.checked_add(size) {
            Some(end) if end <= self.body.scratch => Ok(()),
            _ => Err(Fault::Outside(size)),
        };
        match place {
            Place::Scratch(offset) => within(*offset, size),
            Place::Indexed { offset, size: run, index } => {
                within(*offset, *run)?;
                if size > *run {
                    return Err(Fault::Outside(size));
                }
                same(Scalar::Int, self.expression(index, depth + 1)?)
            }
            Place::Constant(id) => self.constant(*id, size),
            Place::IndexedConstant { of, index } => {
                self.constant(*of, size)?;
                same(Scalar::Int, self.expression(index, depth + 1)?)
            }
        }
    }

    /// Whether a constant has so many bytes.
    fn constant(&self, id: ConstantId, size: u32) -> Result<(), Fault> {
        let constants = &self.program.constants;
        let constant = constants.get(id.0 as usize).ok_or(Fault::Missing(What::Constant, id.0))?;
        match size as usize <= constant.len() {
            true => Ok(()),
            false => Err(Fault::Outside(size)),
        }
    }

    fn int(&self, value: &Expression) -> Result<(), Fault> {
        self.is(value, Scalar::Int)
    }

    fn is(&self, value: &Expression, expected: Scalar) -> Result<(), Fault> {
        same(expected, self.expression(value, 0)?)
    }

    /// The type of an expression.
    fn expression(&self, value: &Expression, depth: u32) -> Result<Scalar, Fault> {
        if depth > DEEPEST_EXPRESSION {
            return Err(Fault::TooDeep);
        }
        let of = |value: &Expression| self.expression(value, depth + 1);
        match value {
            Expression::Int(_) | Expression::Context(_) => Ok(Scalar::Int),
            Expression::Float(_) => Ok(Scalar::Float),
            Expression::Local(local) => self.local(*local),
            Expression::Load { from, as_ } => {
                let found = width(*as_)?;
                self.place(from, as_.size(), depth)?;
                Ok(found)
            }
            Expression::Unary(operation, operand) => {
                match operation {
                    Unary::SignExtend(8 | 16 | 32)
                    | Unary::ZeroExtend(8 | 16 | 32)
                    | Unary::SwapBytes(16 | 32 | 64) => {}
                    Unary::SignExtend(bits) | Unary::ZeroExtend(bits) | Unary::SwapBytes(bits) => {
                        return Err(Fault::Bits(*bits));
                    }
                    _ => {}
                }
                let (expected, result) = operation.types();
                same(expected, of(operand)?)?;
                Ok(result)
            }
            Expression::Binary(operation, left, right) => {
                let (expected, result) = operation.types();
                same(expected, of(left)?)?;
                same(expected, of(right)?)?;
                Ok(result)
            }
            Expression::Select(condition, then, other) => {
                same(Scalar::Int, of(condition)?)?;
                let result = of(then)?;
                same(result, of(other)?)?;
                Ok(result)
            }
        }
    }
}

fn same(expected: Scalar, found: Scalar) -> Result<(), Fault> {
    match expected == found {
        true => Ok(()),
        false => Err(Fault::Type { expected, found }),
    }
}

/// The type of a scalar in memory, if there is one.
fn width(width: Width) -> Result<Scalar, Fault> {
    match width {
        Width::Unsigned(1 | 2 | 4 | 8) | Width::Signed(1 | 2 | 4 | 8) | Width::Float(4 | 8) => {
            Ok(width.scalar())
        }
        Width::Unsigned(size) | Width::Signed(size) | Width::Float(size) => Err(Fault::Width(size)),
    }
}

/// Start and length of what an access may touch of scratch.
fn reach(place: &Place, size: u32) -> Option<(u32, u32)> {
    match place {
        Place::Scratch(offset) => Some((*offset, size)),
        Place::Indexed { offset, size: run, .. } => Some((*offset, *run)),
        Place::Constant(_) | Place::IndexedConstant { .. } => None,
    }
}

/// Whether two runs of scratch have bytes in common. Both were checked to end within it.
fn overlap((left, left_size): (u32, u32), (right, right_size): (u32, u32)) -> bool {
    left_size > 0 && right_size > 0 && left < right + right_size && right < left + left_size
}

#[cfg(test)]
mod tests;
