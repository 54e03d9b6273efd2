//! ELFv2, powerpc64le: a row of doublewords, of which the first eight are in registers, and beside it floats and vectors.

use super::{
    joined,
    leaves::{Number, Value},
};
use crate::{Location, Piece, ResultLocation};

/// r3 takes the first doubleword.
const R3: u16 = 3;
const WORDS: u64 = 8;
const R1: u16 = 1;
/// Where the row begins in memory, from r1 at the entry.
const SAVE_AREA: i64 = 32;
/// f1 to f13.
const F1: u16 = 33;
const FLOATS: u64 = 13;
/// v2 to v13: v0 is 77.
const V2: u16 = 79;
const VECTORS: u64 = 12;

/// The registers that a value is spread over: floats or vectors, how many, and bytes in each.
fn spread(value: &Value) -> Option<(Number, u64, u64)> {
    if value.by_reference {
        return None;
    }
    if let Some([leaf]) = value.leaves.as_deref()
        && leaf.kind == Number::DoubleDouble
    {
        return Some((Number::Float, 2, 8));
    }
    let (count, size, kind) = value.homogeneous()?;
    let fits = count <= 8 && (kind == Number::Vector && size == 16 || kind == Number::Float && size <= 8);
    fits.then_some((kind, count as u64, size))
}

/// Where arguments are at the entry.
pub(super) fn arguments(result: &Value, given: &[Option<Value>]) -> Vec<Location> {
    let (mut word, mut float, mut vector) = (0_u64, 0, 0);
    if is_in_memory(result) {
        word = 1;
    }
    let mut all = Vec::new();
    for value in given {
        let Some(value) = value else { break };
        if value.size == 0 {
            all.push(Location::Constant(Vec::new()));
            continue;
        }
        let size = if value.by_reference { 8 } else { value.size.min(1 << 40) };
        let spread = spread(value);
        let is_vector = matches!(spread, Some((Number::Vector, ..)));
        if !value.by_reference && (is_vector || value.is_aggregate && value.align >= 16) {
            word = word.next_multiple_of(2);
        }
        let first = word;
        word += size.div_ceil(8);
        if let Some((kind, count, each)) = spread {
            let (next, limit, register) = match kind {
                Number::Vector => (&mut vector, VECTORS, V2),
                _ => (&mut float, FLOATS, F1),
            };
            let mut pieces = Vec::new();
            for index in 0..count {
                // Those that find no register are in the row.
                let location = if *next < limit {
                    *next += 1;
                    Location::Register(register + *next as u16 - 1)
                } else {
                    in_row(first, index * each)
                };
                pieces.push(Piece { size: each, skip: 0, location });
            }
            all.push(joined(pieces));
            continue;
        }
        if value.by_reference {
            all.push(match in_row(first, 0) {
                Location::Register(register) => Location::Memory { register, offset: 0 },
                Location::Memory { register, offset } => Location::Indirect { register, offset, then: 0 },
                other => other,
            });
            continue;
        }
        all.push(row(first, size));
    }
    all
}

/// The place of a byte of an argument that begins at a doubleword.
fn in_row(first: u64, byte: u64) -> Location {
    let word = first + byte / 8;
    match word < WORDS && byte.is_multiple_of(8) {
        true => Location::Register(R3 + word as u16),
        false => Location::Memory { register: R1, offset: SAVE_AREA + (first * 8 + byte) as i64 },
    }
}

/// Bytes of the row: in registers, and what does not fit there in memory.
fn row(first: u64, size: u64) -> Location {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let location = in_row(first, at);
        let size = match location {
            Location::Register(_) => 8.min(size - at),
            _ => size - at,
        };
        pieces.push(Piece { size, skip: 0, location });
        at += size;
    }
    joined(pieces)
}

fn is_in_memory(value: &Value) -> bool {
    value.by_reference || value.is_aggregate && value.size > 16 && spread(value).is_none()
}

/// Where a result is.
pub(super) fn result(value: &Value) -> ResultLocation {
    if is_in_memory(value) {
        return ResultLocation::Given { register: R3 };
    }
    ResultLocation::At(match spread(value) {
        Some((kind, count, each)) => {
            let first = if kind == Number::Vector { V2 } else { F1 };
            let piece =
                |index| Piece { size: each, skip: 0, location: Location::Register(first + index as u16) };
            joined((0..count).map(piece).collect())
        }
        None => row(0, value.size),
    })
}
