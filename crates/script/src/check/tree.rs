//! The checked tree: what a script does, with every name resolved, every type known and every conversion written out.
//!
//! The checker makes it from the syntax, and lowering makes the [`ir`] of it. Whatever is in it can be lowered: what cannot be
//! done was refused before.

mod walk;

use super::types::Type;
use crate::ir;
use crate::shape::Bits;
use crate::source::Span;
use std::sync::Arc;

/// Index of a variable of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(pub u32);

/// What runs at a hit.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// Its variables, by [`VarId`].
    pub variables: Vec<Variable>,
    /// What must hold for the rest to run.
    pub predicate: Option<Expr>,
    /// What is done.
    pub block: Block,
    /// Whether values that it returns are told.
    pub tells_result: bool,
    /// Whether it asks for what differs between functions: arguments by name, what kind of float is returned.
    pub depends_on_function: bool,
    /// Whether it computes with the name of the probe that was hit.
    pub depends_on_name: bool,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// With its `$`.
    pub name: String,
    /// What it holds.
    pub of: Type,
    /// Whether its address is taken.
    pub is_addressed: bool,
}

/// Statements and perhaps a value.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The variables that live in it.
    pub variables: Vec<VarId>,
    /// What is done.
    pub statements: Vec<Stmt>,
    /// What it is worth.
    pub value: Option<Box<Expr>>,
}

/// Something that is done.
#[derive(Clone, Debug)]
pub enum Stmt {
    /// An expression for its effect.
    Effect(Expr),
    /// Give a variable a value of just its type.
    Set(VarId, Expr),
    /// Make a variable all zeros.
    Clear(VarId),
    /// Give a key of a map a value of just its type.
    SetKey(Key, Expr, Span),
    /// Add to the integer of a key.
    AddKey(Key, Expr),
    /// Add to an aggregation.
    Aggregate(Key, Expr, Option<Expr>),
    /// Do it so often.
    Unroll(u32, Block),
    /// As long as it holds.
    While(Expr, Block),
    /// For each integer of a range.
    Range(VarId, Expr, Expr, Block),
    /// For each key of a map: the variable is a tuple of the key and the value.
    Each(VarId, ir::MapId, Block),
    /// Leave the loop.
    Break,
    /// Next round.
    Continue,
    /// The body is done.
    Return(Option<Expr>),
}

/// A key of a map.
#[derive(Clone, Debug)]
pub struct Key {
    /// Which.
    pub map: ir::MapId,
    /// The key, of just the type of the map's keys; nothing for maps of one value.
    pub key: Option<Box<Expr>>,
}

/// An expression of a type.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Its type.
    pub of: Type,
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: Kind,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// No value.
    Nothing,
    /// A value of one word, as its type has it.
    Int(i64),
    /// A double.
    Float(f64),
    /// A string. Its type has room for it.
    Text(Vec<u8>),
    /// The string in an array of characters: up to its first zero, or all of them.
    Characters(Box<Expr>),
    /// The bytes of an array.
    Bytes(Vec<u8>),
    /// What a variable holds.
    Variable(VarId),
    /// What a map has for a key: of a map of bytes.
    Get(Key),
    /// The number that an aggregation is so far.
    Number(Key),
    /// All words of an aggregation, as they are.
    Words(Key),
    /// Something of the hit.
    Context(ir::Context),
    /// An argument of the USDT probe.
    Operand(u8),
    /// An operation.
    Unary(ir::Unary, Box<Expr>),
    /// An operation.
    Binary(ir::Binary, Box<Expr>, Box<Expr>),
    /// A division or remainder whose divisor may be 0.
    Divide(ir::Binary, Box<Expr>, Box<Expr>),
    /// The second only if the first is not 0.
    And(Box<Expr>, Box<Expr>),
    /// The second only if the first is 0.
    Or(Box<Expr>, Box<Expr>),
    /// The same value in another type.
    Convert(Box<Expr>),
    /// The bytes of it as another type of the same size.
    Reinterpret(Box<Expr>),
    /// Whether two strings are equal, of at most so many bytes.
    SameText(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    /// Whether the bytes of two values of one type are equal.
    SameBytes(Box<Expr>, Box<Expr>),
    /// What is at an address.
    Deref(Box<Expr>),
    /// Bytes of a value that lies in memory, from this offset on.
    Part(Box<Expr>, u32, Option<Bits>),
    /// An element of an array, of a string or behind a pointer; how many there are, if that is known.
    Index(Box<Expr>, Box<Expr>, Option<u32>),
    /// The address of a variable.
    Address(VarId),
    /// The parts of a tuple or a record, which are evaluated in this order. Of a record that is no tuple: the index of each in its type.
    Tuple(Vec<(usize, Expr)>),
    /// One of two, by the first.
    If(Box<Expr>, Box<Block>, Box<Block>),
    /// What a block is worth.
    Block(Box<Block>),
    /// Count a variable up or down. The value is that after it, or before.
    Step {
        /// Which.
        variable: VarId,
        /// By how much.
        by: i64,
        /// Whether the value is that after it.
        after: bool,
    },
    /// Count the integer of a key up or down.
    StepKey {
        /// Which.
        key: Key,
        /// By how much.
        by: i64,
        /// Whether the value is that after it.
        after: bool,
    },
    /// Something that is done by name.
    Call(Call),
}

/// What is done by name.
#[derive(Clone, Debug)]
pub enum Call {
    /// The string at an address, of at most so many bytes.
    Str(Box<Expr>, Option<Box<Expr>>),
    /// So many bytes at an address.
    Buf(Box<Expr>, Box<Expr>),
    /// The bytes of a value as a buffer.
    BufOf(Box<Expr>, Option<Box<Expr>>),
    /// Length of a string, or of one in foreign memory.
    Strlen(Box<Expr>),
    /// Where the second string is in the first one.
    Find(Box<Expr>, Box<Expr>),
    /// Two strings, one behind the other.
    Concat(Box<Expr>, Box<Expr>),
    /// An internet address: the bytes, and the family where the script tells it.
    Ntop(Box<Expr>, Option<Box<Expr>>),
    /// A hardware address.
    Mac(Box<Expr>),
    /// An address as a symbol.
    Symbol(Box<Expr>),
    /// The call stack.
    Stack(ir::StackWalk),
    /// Name of the thread.
    Comm,
    /// Name of a process.
    NameOf(ir::Kin),
    /// Tell: a message and its parts.
    Tell(Arc<crate::message::Message>, Vec<Expr>),
    /// Tell a map.
    PrintMap(ir::MapId, u64, u64),
    /// Tell the strings that an array of addresses points to.
    Join(Box<Expr>, Arc<str>),
    /// Stop it all. The body is done.
    Exit(Box<Expr>),
    /// Take all keys out.
    Clear(ir::MapId),
    /// Make all values 0.
    Zero(ir::MapId),
    /// Take a key out: whether it was there. The second is whether it is told if not.
    Delete(Key, bool),
    /// Whether a key is there.
    Has(Key),
    /// How many keys there are.
    Length(ir::MapId),
    /// Send the process a signal.
    Signal(Box<Expr>),
    /// Have the thread sleep for so many nanoseconds.
    Delay(Box<Expr>),
    /// Have the call do something else.
    Change(ir::Change, Box<Expr>),
    /// The text that goes with a number, or the last one.
    Choose(Box<Expr>, &'static [(i64, &'static str)], &'static str),
}

impl Expr {
    /// An integer.
    pub fn int(of: Type, value: i64, span: Span) -> Expr {
        Expr { of, span, kind: Kind::Int(value) }
    }

    /// No value.
    pub fn nothing(span: Span) -> Expr {
        Expr { of: Type::None, span, kind: Kind::Nothing }
    }

    /// The value of a literal integer or truth value.
    pub fn literal(&self) -> Option<i128> {
        match (&self.kind, &self.of) {
            (Kind::Int(value), Type::Int(int)) if !int.signed => Some(i128::from(*value as u64)),
            (Kind::Int(value), Type::Int(_) | Type::Enum(..) | Type::Bool) => Some((*value).into()),
            _ => None,
        }
    }

    /// Whether it is a literal: of an integer, a truth value or a string, or a tuple of such.
    pub fn is_literal(&self) -> bool {
        match &self.kind {
            Kind::Int(_) => !matches!(self.of, Type::Pointer(..)),
            Kind::Text(_) | Kind::Float(_) => true,
            Kind::Tuple(parts) => parts.iter().all(|(_, part)| part.is_literal()),
            _ => false,
        }
    }

    /// Whether a literal counts as true.
    pub fn truth(&self) -> Option<bool> {
        match &self.kind {
            Kind::Int(value) => Some(*value != 0),
            Kind::Float(value) => Some(*value != 0.0),
            Kind::Text(text) => Some(!text.is_empty()),
            _ => None,
        }
    }

    /// Whether it is the same whenever it is asked for during a hit.
    pub fn is_lasting(&self) -> bool {
        match &self.kind {
            Kind::Int(_) | Kind::Text(_) | Kind::Operand(_) => true,
            Kind::Context(context) => !matches!(
                context,
                ir::Context::Time(_)
                    | ir::Context::Random
                    | ir::Context::Cpu
                    | ir::Context::Duration
                    | ir::Context::Elapsed
            ),
            Kind::Convert(of) | Kind::Unary(_, of) => of.is_lasting(),
            Kind::Binary(_, left, right) => left.is_lasting() && right.is_lasting(),
            Kind::Tuple(parts) => parts.iter().all(|(_, part)| part.is_lasting()),
            _ => false,
        }
    }

    /// Whether it is the same as a lasting one.
    pub fn is_like(&self, other: &Expr) -> bool {
        self.of.is_same(&other.of)
            && match (&self.kind, &other.kind) {
                (Kind::Int(a), Kind::Int(b)) => a == b,
                (Kind::Text(a), Kind::Text(b)) => a == b,
                (Kind::Context(a), Kind::Context(b)) => a == b,
                (Kind::Operand(a), Kind::Operand(b)) => a == b,
                (Kind::Convert(a), Kind::Convert(b)) => a.is_like(b),
                (Kind::Unary(op, a), Kind::Unary(other, b)) => op == other && a.is_like(b),
                (Kind::Binary(op, a, b), Kind::Binary(other, c, d)) => {
                    op == other && a.is_like(c) && b.is_like(d)
                }
                (Kind::Tuple(a), Kind::Tuple(b)) => {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.1.is_like(&b.1))
                }
                _ => false,
            }
    }
}
