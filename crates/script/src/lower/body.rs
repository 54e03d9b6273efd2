//! A body as it is lowered: its code so far, its locals and its scratch.

use crate::check::maps::Maps;
use crate::check::structs::{MAX_SIZE, Structs};
use crate::check::tree::{self, VarId};
use crate::check::types::{Space, Type};
use crate::ir::verify::MOST_BYTES;
use crate::ir::{self, Binary, Expression, LocalId, Place, Scalar, Statement, Unary, Width};
use crate::source::Sources;
use std::collections::HashMap;

use super::output::Output;

/// Lowers one body.
pub struct Lowering<'b, 'a> {
    /// What all bodies have together.
    pub output: &'b mut Output,
    /// Structs and unions.
    pub structs: &'b mut Structs<'a>,
    /// Maps, as they were checked.
    pub maps: &'b Maps,
    /// The texts.
    pub sources: &'b Sources,
    /// The variables of the body.
    pub variables: &'b [tree::Variable],
    /// What is set at the entry and asked for at the return: each has a word, from this offset of scratch on.
    pub kept: Vec<ir::Context>,
    /// Where those words are.
    pub kept_at: u32,
    /// Whether reads that fail and keys that are missing are told.
    pub tells_failures: bool,
    /// Whether values that it returns are told.
    pub tells_result: bool,
    /// The longest string that is read.
    pub longest: u32,
    /// Whether it is the predicate that is lowered, whose scratch lasts.
    pub is_in_predicate: bool,
    /// What is done so far.
    pub code: Vec<Statement>,
    locals: Vec<Scalar>,
    /// Scratch in use, and the most that was.
    top: u32,
    high: u32,
    /// Scratch of variables whose address is taken, from 0 on.
    pub addressed: u32,
    homes: HashMap<VarId, Home>,
    /// How often variables were given a value: what was read of them before may be old.
    changes: u32,
    /// How deep we are in expressions.
    pub nesting: u32,
    /// Statements so far, in all branches.
    emitted: u32,
    /// Whether there is no room for what it does. What is made of it from then on is of no use.
    pub is_too_large: bool,
    /// What was read of maps, and is still there: the predicate and the body often ask for the same.
    read: Vec<(tree::Key, Place)>,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug)]
pub enum Home {
    /// In a local.
    Local(LocalId),
    /// In scratch, from there on.
    Scratch(u32),
}

/// How many statements a body may have.
const MOST_STATEMENTS: u32 = 1 << 18;

/// Addresses of variables have this bit, and their offset in scratch below.
pub const OWN: i64 = 1 << 62;

/// The bits of an offset.
const OFFSET: i64 = 0xffff_ffff;

impl<'b, 'a> Lowering<'b, 'a> {
    /// At the beginning of a body.
    pub fn new(
        output: &'b mut Output,
        structs: &'b mut Structs<'a>,
        maps: &'b Maps,
        sources: &'b Sources,
        variables: &'b [tree::Variable],
        tells_failures: bool,
        longest: u32,
    ) -> Lowering<'b, 'a> {
        let mut lowering = Lowering {
            output,
            structs,
            maps,
            sources,
            variables,
            kept: Vec::new(),
            kept_at: 0,
            tells_failures,
            tells_result: false,
            longest,
            is_in_predicate: false,
            code: Vec::new(),
            locals: Vec::new(),
            top: 0,
            high: 0,
            addressed: 0,
            homes: HashMap::new(),
            changes: 0,
            nesting: 0,
            emitted: 0,
            is_too_large: false,
            read: Vec::new(),
        };
        for (index, variable) in variables.iter().enumerate() {
            if variable.is_addressed {
                let size = lowering.structs.size(&variable.of);
                let at = lowering.room(size);
                lowering.homes.insert(VarId(index as u32), Home::Scratch(at));
            }
        }
        lowering.addressed = lowering.top;
        lowering
    }

    /// The body as it is now; nothing if it is too large.
    pub fn finish(self) -> Option<ir::Body> {
        let body = ir::Body { locals: self.locals, scratch: self.high, code: self.code };
        (!self.is_too_large).then_some(body)
    }

    /// A new local.
    pub fn local(&mut self, of: Scalar) -> LocalId {
        self.locals.push(of);
        LocalId(self.locals.len() as u32 - 1)
    }

    /// Room in scratch until the statement is done.
    pub fn room(&mut self, size: u32) -> u32 {
        let at = self.top.next_multiple_of(8);
        if size >= MAX_SIZE || at > MOST_BYTES - MAX_SIZE {
            self.is_too_large = true;
            return 0;
        }
        self.top = at + size;
        self.high = self.high.max(self.top.next_multiple_of(8));
        at
    }

    /// Does something whose scratch nobody needs afterwards.
    pub fn scoped<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let top = self.top;
        let result = work(self);
        self.top = top;
        result
    }

    /// The code of something that is done in a branch.
    pub fn branch(&mut self, work: impl FnOnce(&mut Self)) -> Vec<Statement> {
        let code = std::mem::take(&mut self.code);
        // What is read in a branch may not have been read.
        let is_in_predicate = std::mem::take(&mut self.is_in_predicate);
        self.scoped(work);
        self.is_in_predicate = is_in_predicate;
        std::mem::replace(&mut self.code, code)
    }

    /// Where a variable lives. It is given a home where it is met first.
    pub fn home(&mut self, variable: VarId) -> Home {
        if let Some(home) = self.homes.get(&variable) {
            return *home;
        }
        let of =
            self.variables.get(variable.0 as usize).map(|variable| variable.of.clone()).unwrap_or_default();
        let home = match scalar(&of) {
            Some(scalar) => Home::Local(self.local(scalar)),
            None => {
                let size = self.structs.size(&of);
                Home::Scratch(self.room(size))
            }
        };
        self.homes.insert(variable, home);
        home
    }

    /// Gives variables that lie in scratch their room, for as long as their block lasts.
    pub fn house(&mut self, variables: &[VarId]) {
        for variable in variables {
            self.home(*variable);
        }
    }

    /// The variables' room is another's from now on.
    pub fn evict(&mut self, variables: &[VarId]) {
        for variable in variables {
            let is_addressed =
                self.variables.get(variable.0 as usize).is_some_and(|variable| variable.is_addressed);
            if !is_addressed && matches!(self.homes.get(variable), Some(Home::Scratch(_))) {
                self.homes.remove(variable);
            }
        }
    }

    /// Does something.
    pub fn emit(&mut self, statement: Statement) {
        if self.emitted >= MOST_STATEMENTS {
            self.is_too_large = true;
            return;
        }
        self.emitted += 1;
        match &statement {
            Statement::MapSet { map, .. }
            | Statement::MapAdd { map, .. }
            | Statement::MapDelete { map, .. }
            | Statement::MapClear(map)
            | Statement::MapZero(map) => self.read.retain(|(key, _)| key.map != *map),
            _ => {}
        }
        self.code.push(statement);
    }

    /// Keeps in mind that the value of a key was read to a place that lasts as long as the body.
    pub fn remember(&mut self, key: &tree::Key, place: &Place) {
        if key.key.as_ref().is_none_or(|key| key.is_lasting()) {
            self.read.push((key.clone(), place.clone()));
        }
    }

    /// Where the value of a key was read to.
    pub fn remembered(&self, key: &tree::Key) -> Option<Place> {
        let same = |known: &tree::Key| {
            known.map == key.map
                && match (&known.key, &key.key) {
                    (None, None) => true,
                    (Some(known), Some(key)) => known.is_like(key),
                    _ => false,
                }
        };
        self.read.iter().find(|(known, _)| same(known)).map(|(_, place)| place.clone())
    }

    /// What comes is done more than once, and may change what was read.
    pub fn forget(&mut self) {
        self.read.clear();
    }

    /// A variable was given a value.
    pub fn changed(&mut self) {
        self.changes += 1;
    }

    /// Keeps an expression in a local, unless it is as good as one.
    pub fn held(&mut self, value: Expression, of: Scalar) -> Expression {
        match value {
            Expression::Int(_) | Expression::Float(_) => value,
            _ => {
                let local = self.local(of);
                self.emit(Statement::Set(local, value));
                Expression::Local(local)
            }
        }
    }

    /// An expression, and then another one that may change what the first one reads.
    pub fn both<T>(
        &mut self,
        first: Expression,
        of: Scalar,
        second: impl FnOnce(&mut Self) -> T,
    ) -> (Expression, T) {
        let (at, changes) = (self.code.len(), self.changes);
        let second = second(self);
        if self.changes == changes || matches!(first, Expression::Int(_) | Expression::Float(_)) {
            return (first, second);
        }
        let local = self.local(of);
        self.code.insert(at, Statement::Set(local, first));
        (Expression::Local(local), second)
    }

    /// A place in variables whose address was taken.
    pub fn own(&mut self, address: Expression, offset: u32) -> Place {
        let at = binary(Binary::And, address, Expression::Int(OFFSET));
        let index = binary(Binary::Add, at, Expression::Int(offset.into()));
        match index {
            Expression::Int(at) if at < i64::from(self.addressed) => Place::Scratch(at as u32),
            index => Place::Indexed { offset: 0, size: self.addressed, index: Box::new(index) },
        }
    }
}

/// A place further on.
pub fn further(place: Place, by: u32) -> Option<Place> {
    match place {
        _ if by == 0 => Some(place),
        Place::Scratch(at) => Some(Place::Scratch(at + by)),
        Place::Indexed { offset, size, index } => {
            let index = Box::new(binary(Binary::Add, *index, Expression::Int(by.into())));
            Some(Place::Indexed { offset, size, index })
        }
        Place::Constant(_) | Place::IndexedConstant { .. } => None,
    }
}

/// What a value of a type is in a local, if it fits in one.
pub fn scalar(of: &Type) -> Option<Scalar> {
    match of {
        Type::Float(_) => Some(Scalar::Float),
        other => other.is_scalar().then_some(Scalar::Int),
    }
}

/// How a scalar lies in memory.
pub fn width(of: &Type) -> Width {
    match of {
        Type::Int(int) | Type::Enum(int, _) => match int.signed {
            true => Width::Signed(int.size),
            false => Width::Unsigned(int.size),
        },
        Type::Bool => Width::Unsigned(1),
        Type::Float(size) => Width::Float(*size),
        Type::Pointer(_, Space::Narrow) => Width::Unsigned(4),
        _ => Width::Unsigned(8),
    }
}

/// The type by which a map keeps values of a type: integers have 8 bytes there, so that they can be added to at once.
pub fn stored(of: &Type) -> Type {
    use crate::check::types::Int;
    match of {
        Type::Int(int) => Type::Int(Int { size: 8, ..*int }),
        Type::Enum(int, names) => Type::Enum(Int { size: 8, ..*int }, names.clone()),
        Type::Float(_) => Type::Float(8),
        other => other.clone(),
    }
}

/// An operation, or what is known to come of it.
pub fn binary(op: Binary, left: Expression, right: Expression) -> Expression {
    use Expression::Int;
    let truth = |value: bool| Int(value.into());
    match (&left, &right) {
        (Int(l), Int(r)) => {
            let (l, r) = (*l, *r);
            let shift = (r & 63) as u32;
            match op {
                Binary::Add => return Int(l.wrapping_add(r)),
                Binary::Subtract => return Int(l.wrapping_sub(r)),
                Binary::Multiply => return Int(l.wrapping_mul(r)),
                Binary::Divide if r != 0 => return Int(l.wrapping_div(r)),
                Binary::UnsignedDivide if r != 0 => return Int((l as u64 / r as u64) as i64),
                Binary::Remainder if r != 0 => return Int(l.wrapping_rem(r)),
                Binary::UnsignedRemainder if r != 0 => return Int((l as u64 % r as u64) as i64),
                Binary::And => return Int(l & r),
                Binary::Or => return Int(l | r),
                Binary::Xor => return Int(l ^ r),
                Binary::ShiftLeft => return Int(l << shift),
                Binary::ShiftRight => return Int((l as u64 >> shift) as i64),
                Binary::SignedShiftRight => return Int(l >> shift),
                Binary::Equal => return truth(l == r),
                Binary::NotEqual => return truth(l != r),
                Binary::Less => return truth(l < r),
                Binary::LessOrEqual => return truth(l <= r),
                Binary::UnsignedLess => return truth((l as u64) < r as u64),
                Binary::UnsignedLessOrEqual => return truth(l as u64 <= r as u64),
                _ => {}
            }
        }
        (_, Int(0))
            if matches!(
                op,
                Binary::Add
                    | Binary::Subtract
                    | Binary::Or
                    | Binary::Xor
                    | Binary::ShiftLeft
                    | Binary::ShiftRight
                    | Binary::SignedShiftRight
            ) =>
        {
            return left;
        }
        (_, Int(1)) if matches!(op, Binary::Multiply | Binary::Divide | Binary::UnsignedDivide) => {
            return left;
        }
        (Int(0), _) if op == Binary::Add => return right,
        _ => {}
    }
    Expression::Binary(op, Box::new(left), Box::new(right))
}

/// An operation, or what is known to come of it.
pub fn unary(op: Unary, of: Expression) -> Expression {
    use Expression::{Float, Int};
    match (op, &of) {
        (Unary::Negate, Int(value)) => return Int(value.wrapping_neg()),
        (Unary::Not, Int(value)) => return Int(!value),
        (Unary::IsZero, Int(value)) => return Int((*value == 0).into()),
        (Unary::IsZero, Expression::Unary(Unary::IsZero, inner)) if is_truth(inner) => {
            return (**inner).clone();
        }
        (Unary::SignExtend(bits), Int(value)) => {
            let shift = 64 - u32::from(bits);
            return Int(value << shift >> shift);
        }
        (Unary::ZeroExtend(bits), Int(value)) => {
            let shift = 64 - u32::from(bits);
            return Int(((*value as u64) << shift >> shift) as i64);
        }
        (Unary::ToFloat, Int(value)) => return Float(*value as f64),
        (Unary::UnsignedToFloat, Int(value)) => return Float(*value as u64 as f64),
        (Unary::FloatBits, Float(value)) => return Int(value.to_bits() as i64),
        (Unary::FloatNegate, Float(value)) => return Float(-value),
        _ => {}
    }
    Expression::Unary(op, Box::new(of))
}

/// Whether an expression is 1 or 0.
pub fn is_truth(value: &Expression) -> bool {
    use Binary::*;
    match value {
        Expression::Int(value) => matches!(value, 0 | 1),
        Expression::Unary(Unary::IsZero, _) => true,
        Expression::Binary(op, left, right) => match op {
            Equal | NotEqual | Less | LessOrEqual | UnsignedLess | UnsignedLessOrEqual | FloatEqual
            | FloatNotEqual | FloatLess | FloatLessOrEqual => true,
            And | Or => is_truth(left) && is_truth(right),
            _ => false,
        },
        Expression::Select(_, left, right) => is_truth(left) && is_truth(right),
        _ => false,
    }
}

/// An expression as 1 or 0.
pub fn truth(value: Expression) -> Expression {
    if is_truth(&value) { value } else { binary(Binary::NotEqual, value, Expression::Int(0)) }
}
