//! AAPCS64: eight general registers, eight vector registers, then the stack.

use super::{
    in_registers, joined,
    leaves::{Number, Value},
};
use crate::{Location, Piece, ResultLocation};

/// x0 to x7 are 0 to 7, and v0 to v7 follow this.
const V0: u16 = 64;
const REGISTERS: u64 = 8;
/// Takes the address of a large result.
const X8: u16 = 8;
const SP: u16 = 31;

/// The floats or vectors that a value is made of, where it goes into as many vector registers: how many, and their size in bytes.
fn vectors(value: &Value) -> Option<(u64, u64)> {
    if value.by_reference {
        return None;
    }
    let (count, size, kind) = value.homogeneous()?;
    // More than four are a struct like any other. Short vectors have 8 or 16 bytes.
    let fits = count <= 4 && (kind == Number::Float || matches!(size, 8 | 16));
    fits.then_some((count as u64, size))
}

fn spread(count: u64, size: u64, first: u16) -> Location {
    let piece = |index| Piece { size, skip: 0, location: Location::Register(first + index as u16) };
    joined((0..count).map(piece).collect())
}

/// Where arguments are at the entry.
pub(super) fn arguments(given: &[Option<Value>], _result: &Value) -> Vec<Location> {
    let (mut general, mut vector, mut stack) = (0, 0, 0_u64);
    let mut all = Vec::new();
    for value in given {
        let Some(value) = value else { break };
        if value.size == 0 {
            all.push(Location::Constant(Vec::new()));
            continue;
        }
        if let Some((count, size)) = vectors(value) {
            if vector + count <= REGISTERS {
                all.push(spread(count, size, V0 + vector as u16));
                vector += count;
                continue;
            }
            vector = REGISTERS;
            all.push(on_stack(&mut stack, value.size, value.align));
            continue;
        }
        let by_reference = value.by_reference || value.is_aggregate && value.size > 16;
        let size = if by_reference { 8 } else { value.size };
        let words = size.div_ceil(8);
        if !by_reference && value.align >= 16 && words == 2 {
            general = (general + 1) & !1;
        }
        if words <= 2 && general + words <= REGISTERS {
            let first = general as u16;
            general += words;
            all.push(match by_reference {
                true => Location::Memory { register: first, offset: 0 },
                false => in_registers(size, 8, first..),
            });
            continue;
        }
        general = REGISTERS;
        let align = if by_reference { 8 } else { value.align };
        all.push(match (on_stack(&mut stack, size, align), by_reference) {
            (Location::Memory { register, offset }, true) => Location::Indirect { register, offset, then: 0 },
            (place, _) => place,
        });
    }
    all
}

fn on_stack(stack: &mut u64, size: u64, align: u64) -> Location {
    *stack = stack.next_multiple_of(align.clamp(8, 16));
    let offset = *stack as i64;
    *stack = stack.saturating_add(size).min(1 << 40).next_multiple_of(8);
    Location::Memory { register: SP, offset }
}

/// Where a result is.
pub(super) fn result(value: &Value) -> ResultLocation {
    if value.by_reference || value.size > 16 && vectors(value).is_none() {
        return ResultLocation::Given { register: X8 };
    }
    ResultLocation::At(match vectors(value) {
        Some((count, size)) => spread(count, size, V0),
        None => in_registers(value.size, 8, 0..),
    })
}
