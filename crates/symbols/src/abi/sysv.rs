//! System V, AMD64: values in up to two eightbytes, each of a class.

use super::joined;
use super::leaves::{Number, Value};
use crate::{Location, Piece, ResultLocation};

/// rdi, rsi, rdx, rcx, r8, r9.
const INTEGERS: [u16; 6] = [5, 4, 1, 2, 8, 9];
/// rsp, and where the first argument in memory is when the return address has been pushed.
const STACK: (u16, i64) = (7, 8);
const XMM0: u16 = 17;
const VECTORS: usize = 8;
const ST0: u16 = 33;
const RAX: u16 = 0;
const RDX: u16 = 1;

/// The class of an eightbyte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Sse,
}

/// How a value goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Not at all: it is empty.
    None,
    /// Each eightbyte in a register of its class.
    Eightbytes(Vec<Class>),
    /// In one vector register, whatever its width.
    Vector,
    /// In x87's registers as a result, in memory as an argument: how many.
    Extended(u16),
    Memory,
    /// By its address.
    Reference,
}

fn way(value: &Value) -> Way {
    if value.by_reference {
        return Way::Reference;
    }
    if value.size == 0 {
        return Way::None;
    }
    let Some(leaves) = &value.leaves else { return Way::Memory };
    if leaves.is_empty() {
        return Way::None;
    }
    match leaves[..] {
        [leaf] if leaf.kind == Number::Extended => return Way::Extended(1),
        [leaf] if leaf.kind == Number::ComplexExtended && !value.is_aggregate => return Way::Extended(2),
        // Also alone in a struct.
        [leaf] if matches!(leaf.kind, Number::Vector | Number::Float) && leaf.size == value.size * 8 => {
            return Way::Vector;
        }
        _ => {}
    }
    if value.size > 16 {
        return Way::Memory;
    }
    let mut classes: Vec<Option<Class>> = vec![None; value.size.div_ceil(8) as usize];
    for leaf in leaves {
        // A field that lies askew, as in a packed struct. Only __int128 and its like are larger than a word.
        let natural = (leaf.size / 8).next_power_of_two().min(16) * 8;
        if !leaf.is_bits && leaf.start % natural != 0 {
            return Way::Memory;
        }
        let class = match leaf.kind {
            Number::Integer => Class::Integer,
            Number::Float | Number::Vector => Class::Sse,
            _ => return Way::Memory,
        };
        let last = leaf.start.saturating_add(leaf.size.max(1) - 1) / 64;
        for index in leaf.start / 64..=last {
            let Some(of) = classes.get_mut(index as usize) else { return Way::Memory };
            if *of != Some(Class::Integer) {
                *of = Some(class);
            }
        }
    }
    // What only pads is in a vector register.
    Way::Eightbytes(classes.into_iter().map(|class| class.unwrap_or(Class::Sse)).collect())
}

/// Where arguments are at the entry.
pub(super) fn arguments(result: &Value, given: &[Option<Value>]) -> Vec<Location> {
    let (mut integers, mut vectors, mut stack) = (0, 0, 0_u64);
    if matches!(way(result), Way::Memory | Way::Reference) {
        integers = 1;
    }
    let mut all = Vec::new();
    for value in given {
        // Where one is not known, neither are those behind it.
        let Some(value) = value else { break };
        let way = way(value);
        let classes = match &way {
            Way::None => {
                all.push(Location::Constant(Vec::new()));
                continue;
            }
            Way::Eightbytes(classes) => classes.clone(),
            Way::Vector => vec![Class::Sse],
            Way::Reference => vec![Class::Integer],
            Way::Memory | Way::Extended(_) => Vec::new(),
        };
        let of = |class| classes.iter().filter(|&&of| of == class).count();
        let fits = integers + of(Class::Integer) <= INTEGERS.len() && vectors + of(Class::Sse) <= VECTORS;
        if classes.is_empty() || !fits {
            let size = if way == Way::Reference { 8 } else { value.size };
            let align = if way == Way::Reference { 8 } else { value.align.clamp(8, 64) };
            stack = stack.next_multiple_of(align);
            let (register, base) = STACK;
            let offset = base.wrapping_add_unsigned(stack);
            stack = stack.saturating_add(size).min(1 << 40).next_multiple_of(8);
            all.push(match way {
                Way::Reference => Location::Indirect { register, offset, then: 0 },
                _ => Location::Memory { register, offset },
            });
            continue;
        }
        let mut next = |class| match class {
            Class::Integer => {
                integers += 1;
                INTEGERS[integers - 1]
            }
            Class::Sse => {
                vectors += 1;
                XMM0 + vectors as u16 - 1
            }
        };
        all.push(match way {
            Way::Reference => Location::Memory { register: next(Class::Integer), offset: 0 },
            Way::Vector => Location::Register(next(Class::Sse)),
            _ => eightbytes(value.size, classes.iter().map(|&class| next(class))),
        });
    }
    all
}

fn eightbytes(size: u64, registers: impl Iterator<Item = u16>) -> Location {
    super::in_registers(size, 8, registers)
}

/// Where a result is.
pub(super) fn result(value: &Value) -> ResultLocation {
    ResultLocation::At(match way(value) {
        Way::None => return ResultLocation::Nothing,
        // rax holds the address that the caller gave.
        Way::Memory | Way::Reference => Location::Memory { register: RAX, offset: 0 },
        Way::Vector => Location::Register(XMM0),
        Way::Extended(count) => {
            let part = |index| Piece {
                size: value.size / u64::from(count),
                skip: 0,
                location: Location::Register(ST0 + index),
            };
            joined((0..count).map(part).collect())
        }
        Way::Eightbytes(classes) => {
            let (mut integers, mut vectors) = ([RAX, RDX].into_iter(), [XMM0, XMM0 + 1].into_iter());
            let registers = classes.iter().filter_map(|class| match class {
                Class::Integer => integers.next(),
                Class::Sse => vectors.next(),
            });
            eightbytes(value.size, registers)
        }
    })
}
