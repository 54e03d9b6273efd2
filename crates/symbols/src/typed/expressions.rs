//! From a DWARF expression to a [`Location`].
//!
//! The expression is run on a stack of symbols, `register + offset` and its like, instead of numbers. What does not fit them is a
//! computation, which probes do not do. Expressions with branches are computations, too, so each ends after as many steps as it
//! has operations.

use gimli::{AttributeValue, Expression, Operation};

use super::parts::{Open, Part};
use crate::{Location, Piece, Unavailable, dwarf::Slice};

/// Longer expressions are given up, in operations.
const MOST_OPERATIONS: usize = 256;
/// Larger constants are given up, in bytes.
const LARGEST_CONSTANT: usize = 4096;

/// A value that is known but for registers and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Constant(u64),
    /// `register + offset`.
    Sum(u16, i64),
    /// `[register + offset] + then`.
    Loaded(u16, i64, i64),
    /// An address of the file.
    Address(u64),
    ThreadLocal(u64),
    /// What a register was at the function's entry, which is not here.
    AtEntry,
}

/// What expressions of a function are about.
pub(super) struct Frame<'m> {
    pub address: u64,
    /// Whether no instruction of the function has been executed that changes anything.
    pub is_entry: bool,
    /// The function's frame base.
    pub base: Option<AttributeValue<Slice<'m>>>,
    /// The canonical frame address as register and offset, where known.
    pub cfa: Option<(u16, i64)>,
}

/// What an attribute tells of a place.
pub(super) struct Told {
    pub location: Location,
    /// Whether it holds for the whole function, as far as the variable is alive at all.
    pub is_whole: bool,
}

/// The place that an attribute tells for the frame's address.
pub(super) fn place<'m>(
    part: &Part<'m>,
    unit: &Open<'m>,
    frame: &Frame<'m>,
    value: AttributeValue<Slice<'m>>,
) -> Told {
    let whole = |location| Told { location, is_whole: true };
    match value {
        AttributeValue::Exprloc(expression) => whole(run(part, unit, frame, expression, true)),
        AttributeValue::Block(bytes) => whole(run(part, unit, frame, Expression(bytes), true)),
        other => {
            let location = match at(part, unit, frame.address, other) {
                Ok(Some(expression)) => run(part, unit, frame, expression, true),
                Ok(None) => Location::Unavailable(Unavailable::NotHere),
                Err(()) => Location::Unavailable(Unavailable::Malformed),
            };
            Told { location, is_whole: false }
        }
    }
}

/// Entries of a list of places that are looked at.
const MOST_ENTRIES: usize = 1 << 13;

/// The expression of a list that holds at an address.
fn at<'m>(
    part: &Part<'m>,
    unit: &Open<'m>,
    address: u64,
    value: AttributeValue<Slice<'m>>,
) -> Result<Option<Expression<Slice<'m>>>, ()> {
    let mut list = part.dwarf.attr_locations(&unit.unit, value).map_err(drop)?.ok_or(())?;
    for _ in 0..MOST_ENTRIES {
        let Some(entry) = list.next().map_err(drop)? else { return Ok(None) };
        if (entry.range.begin..entry.range.end).contains(&address) {
            return Ok(Some(entry.data));
        }
    }
    Err(())
}

fn run<'m>(
    part: &Part<'m>,
    unit: &Open<'m>,
    frame: &Frame<'m>,
    expression: Expression<Slice<'m>>,
    may_use_base: bool,
) -> Location {
    match evaluated(part, unit, frame, expression, may_use_base) {
        Ok(location) => location,
        Err(reason) => Location::Unavailable(reason),
    }
}

/// What was said last of the place that is told.
enum Said {
    Nothing,
    Place(Location),
    Value,
}

fn evaluated<'m>(
    part: &Part<'m>,
    unit: &Open<'m>,
    frame: &Frame<'m>,
    expression: Expression<Slice<'m>>,
    may_use_base: bool,
) -> Result<Location, Unavailable> {
    use Unavailable::{Computed, Malformed, NoFrame, NotHere, OnlyAtEntry, OptimizedOut};
    let mut stack: Vec<Symbol> = Vec::new();
    let mut said = Said::Nothing;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut operations = expression.operations(unit.unit.encoding());
    let address_size = unit.unit.encoding().address_size;
    let mut is_empty = true;
    for _ in 0..MOST_OPERATIONS {
        let Some(operation) = operations.next().map_err(|_| Malformed)? else {
            if is_empty {
                return Err(OptimizedOut);
            }
            if pieces.is_empty() {
                return finished(&mut stack, said);
            }
            return Ok(Location::Pieces(pieces));
        };
        is_empty = false;
        match operation {
            Operation::Nop | Operation::Uninitialized => {}
            Operation::Register { register } => said = Said::Place(Location::Register(register.0)),
            Operation::RegisterOffset { register, offset, .. } => stack.push(Symbol::Sum(register.0, offset)),
            Operation::FrameOffset { offset } => {
                if !may_use_base {
                    return Err(Malformed);
                }
                let base = frame.base.ok_or(NoFrame)?;
                let base = match base {
                    AttributeValue::Exprloc(expression) => Some(expression),
                    AttributeValue::Block(bytes) => Some(Expression(bytes)),
                    other => at(part, unit, frame.address, other).map_err(|()| Malformed)?,
                };
                let base = base.ok_or(NoFrame)?;
                let first = base.operations(unit.unit.encoding()).next();
                // A register becomes the frame's base when the frame is set up.
                if frame.is_entry && first != Ok(Some(Operation::CallFrameCFA)) {
                    return Err(NotHere);
                }
                let base = evaluated(part, unit, frame, base, false)?;
                stack.push(match base {
                    Location::Register(register) => Symbol::Sum(register, offset),
                    Location::Memory { register, offset: at } | Location::Sum { register, offset: at } => {
                        Symbol::Sum(register, at.wrapping_add(offset))
                    }
                    Location::Indirect { register, offset: at, then } => {
                        Symbol::Loaded(register, at, then.wrapping_add(offset))
                    }
                    Location::Unavailable(reason) => return Err(reason),
                    _ => return Err(Computed),
                });
            }
            Operation::CallFrameCFA => {
                let (register, offset) = frame.cfa.ok_or(NoFrame)?;
                stack.push(Symbol::Sum(register, offset));
            }
            Operation::Address { address } => stack.push(Symbol::Address(address)),
            Operation::AddressIndex { index } => {
                let address = part.dwarf.address(&unit.unit, index).map_err(|_| Malformed)?;
                stack.push(Symbol::Address(address));
            }
            Operation::ConstantIndex { index } => {
                let value = part.dwarf.address(&unit.unit, index).map_err(|_| Malformed)?;
                stack.push(Symbol::Constant(value));
            }
            Operation::UnsignedConstant { value } => stack.push(Symbol::Constant(value)),
            Operation::SignedConstant { value } => stack.push(Symbol::Constant(value as u64)),
            Operation::PlusConstant { value } => {
                let top = stack.pop().ok_or(Malformed)?;
                stack.push(sum(top, value)?);
            }
            Operation::Plus => {
                let (a, b) = (stack.pop().ok_or(Malformed)?, stack.pop().ok_or(Malformed)?);
                stack.push(match (a, b) {
                    (Symbol::Constant(value), other) | (other, Symbol::Constant(value)) => sum(other, value)?,
                    (Symbol::AtEntry, _) | (_, Symbol::AtEntry) => Symbol::AtEntry,
                    _ => return Err(Computed),
                });
            }
            Operation::Minus => {
                let (b, a) = (stack.pop().ok_or(Malformed)?, stack.pop().ok_or(Malformed)?);
                let Symbol::Constant(value) = b else { return Err(Computed) };
                stack.push(sum(a, value.wrapping_neg())?);
            }
            Operation::Deref { size, space: false, .. } if size == address_size => {
                let at = stack.pop().ok_or(Malformed)?;
                stack.push(match at {
                    Symbol::Sum(register, offset) => Symbol::Loaded(register, offset, 0),
                    Symbol::AtEntry => Symbol::AtEntry,
                    _ => return Err(Computed),
                });
            }
            Operation::TLS => match stack.pop() {
                Some(Symbol::Constant(offset) | Symbol::Address(offset)) => {
                    stack.push(Symbol::ThreadLocal(offset));
                }
                _ => return Err(Malformed),
            },
            Operation::EntryValue { expression } => {
                let mut inner = Expression(expression).operations(unit.unit.encoding());
                let register = match inner.next() {
                    Ok(Some(Operation::Register { register })) => register,
                    Ok(Some(Operation::RegisterOffset { register, offset: 0, .. })) => register,
                    _ => return Err(Computed),
                };
                stack.push(if frame.is_entry { Symbol::Sum(register.0, 0) } else { Symbol::AtEntry });
            }
            Operation::ParameterRef { .. } => return Err(OnlyAtEntry),
            Operation::StackValue => said = Said::Value,
            Operation::ImplicitValue { data } => {
                if data.len() > LARGEST_CONSTANT {
                    return Err(Malformed);
                }
                said = Said::Place(Location::Constant(data.slice().to_vec()));
            }
            Operation::ImplicitPointer { .. } => return Err(OptimizedOut),
            Operation::Piece { size_in_bits, bit_offset } => {
                let skip = bit_offset.unwrap_or(0);
                if size_in_bits % 8 != 0 || skip % 8 != 0 {
                    return Err(Computed);
                }
                let said = std::mem::replace(&mut said, Said::Nothing);
                let location = match (stack.is_empty(), &said) {
                    (true, Said::Nothing) => Location::Unavailable(OptimizedOut),
                    _ => finished(&mut stack, said).unwrap_or_else(Location::Unavailable),
                };
                let (size, skip) = (size_in_bits / 8, skip / 8);
                pieces.push(Piece { size, skip, location });
            }
            Operation::Drop => {
                stack.pop().ok_or(Malformed)?;
            }
            Operation::Pick { index } => {
                let at = stack.len().checked_sub(usize::from(index) + 1).ok_or(Malformed)?;
                stack.push(stack[at]);
            }
            Operation::Swap => {
                let count = stack.len();
                if count < 2 {
                    return Err(Malformed);
                }
                stack.swap(count - 1, count - 2);
            }
            _ => {
                let at_entry = stack.contains(&Symbol::AtEntry);
                return Err(if at_entry { OnlyAtEntry } else { Computed });
            }
        }
    }
    Err(Computed)
}

fn sum(symbol: Symbol, value: u64) -> Result<Symbol, Unavailable> {
    Ok(match symbol {
        Symbol::Constant(of) => Symbol::Constant(of.wrapping_add(value)),
        Symbol::Sum(register, offset) => Symbol::Sum(register, offset.wrapping_add(value as i64)),
        Symbol::Loaded(register, offset, then) => {
            Symbol::Loaded(register, offset, then.wrapping_add(value as i64))
        }
        Symbol::Address(of) => Symbol::Address(of.wrapping_add(value)),
        Symbol::ThreadLocal(of) => Symbol::ThreadLocal(of.wrapping_add(value)),
        Symbol::AtEntry => Symbol::AtEntry,
    })
}

/// What an expression, or a part of one, has come to.
fn finished(stack: &mut Vec<Symbol>, said: Said) -> Result<Location, Unavailable> {
    let is_value = match said {
        Said::Place(location) => return Ok(location),
        Said::Value => true,
        Said::Nothing => false,
    };
    let top = stack.pop().ok_or(Unavailable::Malformed)?;
    stack.clear();
    Ok(match (top, is_value) {
        (Symbol::AtEntry, _) => return Err(Unavailable::OnlyAtEntry),
        (Symbol::Constant(value), true) => Location::Constant(value.to_le_bytes().to_vec()),
        (Symbol::Sum(register, 0), true) => Location::Register(register),
        (Symbol::Sum(register, offset), true) => Location::Sum { register, offset },
        // A value that is loaded from memory is there.
        (Symbol::Loaded(register, offset, 0), true) => Location::Memory { register, offset },
        (Symbol::Sum(register, offset), false) => Location::Memory { register, offset },
        (Symbol::Loaded(register, offset, then), false) => Location::Indirect { register, offset, then },
        (Symbol::Address(address), false) => Location::Address(address),
        (Symbol::Constant(address), false) => Location::Address(address),
        (Symbol::ThreadLocal(offset), false) => Location::ThreadLocal(offset),
        _ => return Err(Unavailable::Computed),
    })
}
