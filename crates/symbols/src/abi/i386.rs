//! System V, Intel386: arguments on the stack, results in eax and edx, in st0, or in memory.

use super::{
    in_registers,
    leaves::{Number, Value},
};
use crate::{Location, ResultLocation};

const ESP: u16 = 4;
const EAX: u16 = 0;
const EDX: u16 = 2;
const ST0: u16 = 11;
const XMM0: u16 = 21;
/// Vectors that are passed in registers.
const VECTORS: u16 = 3;

fn is_vector(value: &Value) -> bool {
    let is_vector = |kind| kind == Number::Vector;
    !value.is_aggregate
        && value.leaves.as_ref().is_some_and(|leaves| leaves.len() == 1 && is_vector(leaves[0].kind))
}

fn is_in_memory(value: &Value) -> bool {
    value.by_reference || value.is_aggregate || value.is_complex && value.size > 8
}

/// Where arguments are at the entry.
pub(super) fn arguments(result: &Value, given: &[Option<Value>]) -> Vec<Location> {
    let mut offset: i64 = if result.size > 0 && is_in_memory(result) { 8 } else { 4 };
    let mut vectors = 0;
    let mut all = Vec::new();
    for value in given {
        let Some(value) = value else { break };
        if is_vector(value) && value.size == 16 && vectors < VECTORS {
            all.push(Location::Register(XMM0 + vectors));
            vectors += 1;
            continue;
        }
        if value.size == 0 {
            all.push(Location::Constant(Vec::new()));
            continue;
        }
        let (at, size) = (offset, if value.by_reference { 4 } else { value.size });
        offset = at.wrapping_add_unsigned(size.min(1 << 30).next_multiple_of(4));
        all.push(match value.by_reference {
            true => Location::Indirect { register: ESP, offset: at, then: 0 },
            false => Location::Memory { register: ESP, offset: at },
        });
    }
    all
}

/// Where a result is.
pub(super) fn result(value: &Value) -> ResultLocation {
    if is_in_memory(value) {
        return ResultLocation::At(Location::Memory { register: EAX, offset: 0 });
    }
    if is_vector(value) && value.size == 16 {
        return ResultLocation::At(Location::Register(XMM0));
    }
    let kind = value.leaves.as_ref().and_then(|leaves| leaves.first()).map(|leaf| leaf.kind);
    ResultLocation::At(match kind {
        Some(Number::Float | Number::Extended) if !value.is_complex => Location::Register(ST0),
        _ => in_registers(value.size, 4, [EAX, EDX].into_iter()),
    })
}
