//! The expressions that occur in unwind tables.

use gimli::{Encoding, Expression, Operation, Register};

use crate::frames::Reader;

/// What an expression computes, with `[x]` the word at `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// register + offset
    Register(Register, i64),
    /// \[register + offset\] + plus
    Memory(Register, i64, u64),
    /// register + offset, and a word more from byte `pushed` of each stub of 16 bytes on: what linkers write for a PLT.
    Plt { register: Register, offset: i64, pushed: u64 },
    /// Something else.
    Other,
}

/// The longest known has so many operations.
const LONGEST: usize = 9;

/// Recognises an expression; `ip` is the register that it finds the instruction pointer in.
pub(super) fn shape(expression: Expression<Reader<'_>>, encoding: Encoding, ip: Register) -> Shape {
    use Operation::{And, Deref, Ge, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    let mut operations = [Operation::Nop; LONGEST];
    let mut count = 0;
    let mut iter = expression.operations(encoding);
    loop {
        match iter.next() {
            Ok(None) => break,
            Ok(Some(operation)) if count < LONGEST => {
                operations[count] = operation;
                count += 1;
            }
            _ => return Shape::Other,
        }
    }
    let word = encoding.address_size;
    let words = u64::from(word.trailing_zeros());
    match operations[..count] {
        [RegisterOffset { register, offset, .. }] => Shape::Register(register, offset),
        [RegisterOffset { register, offset, .. }, Deref { size, space: false, .. }] if size == word => {
            Shape::Memory(register, offset, 0)
        }
        [
            RegisterOffset { register, offset, .. },
            Deref { size, space: false, .. },
            PlusConstant { value },
        ] if size == word => Shape::Memory(register, offset, value),
        [
            RegisterOffset { register, offset, .. },
            RegisterOffset { register: second, offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: pushed @ 1..=15 },
            Ge,
            UnsignedConstant { value: shift },
            Shl,
            Plus,
        ] if second == ip && shift == words => Shape::Plt { register, offset, pushed },
        _ => Shape::Other,
    }
}
