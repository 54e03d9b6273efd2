//! Rust's own convention, as rustc 1.95 does it: numbers and pairs of numbers in registers, other values of up to a word in
//! general registers, and what is larger by its address.
//!
//! It is not promised to anybody. Optimized code says itself where its arguments are; this is for code that is not optimized,
//! where debug information tells only where they will have been stored.

use super::{
    joined,
    leaves::{Value, pointer},
};
use crate::{
    Location, Machine, Piece, ResultLocation, Unavailable,
    types::{DEEPEST, Encoding, Kind, Member, TypeId, Types, Variant},
};

/// Members that are looked at for one form.
const MOST_PARTS: usize = 1 << 12;

/// How rustc sees a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Nothing,
    Scalar(Part),
    Pair(Part, Part),
    Memory,
}

/// A number in a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    offset: u64,
    size: u64,
    is_float: bool,
}

impl Part {
    fn at(self, offset: u64) -> Part {
        Part { offset: self.offset + offset, ..self }
    }
}

fn form(types: &Types, id: TypeId) -> Form {
    let mut budget = MOST_PARTS;
    form_at(types, id, DEEPEST, &mut budget)
}

fn form_at(types: &Types, id: TypeId, depth: usize, budget: &mut usize) -> Form {
    let stripped = types.stripped(id);
    let Some(size) = types.size(stripped) else { return Form::Memory };
    if size == 0 {
        return Form::Nothing;
    }
    if depth == 0 || *budget == 0 {
        return Form::Memory;
    }
    *budget -= 1;
    match &types.get(stripped).kind {
        Kind::Base(encoding) => {
            let is_float = *encoding == Encoding::Float;
            Form::Scalar(Part { offset: 0, size, is_float })
        }
        Kind::Pointer(..) | Kind::Enum(_) => Form::Scalar(Part { offset: 0, size, is_float: false }),
        Kind::Struct(of) => match &of.variants {
            None => fields(types, &of.members, 0, depth, budget),
            Some(variants) => {
                let Some(tag) = &variants.discriminant else {
                    let only = variants.all.iter().map(|variant| variant.member.clone()).collect::<Vec<_>>();
                    return fields(types, &only, 0, depth, budget);
                };
                enumeration(types, tag, &variants.all, size, depth, budget)
            }
        },
        _ => Form::Memory,
    }
}

/// The form of a member, from the beginning of what it is in, which is `base` bytes from where parts are counted.
fn placed(types: &Types, member: &Member, base: u64, depth: usize, budget: &mut usize) -> Form {
    let offset = member.offset.unwrap_or(0).min(1 << 40) + base;
    match form_at(types, member.of, depth - 1, budget) {
        Form::Scalar(part) => Form::Scalar(part.at(offset)),
        Form::Pair(a, b) => Form::Pair(a.at(offset), b.at(offset)),
        other => other,
    }
}

fn fields(types: &Types, members: &[Member], base: u64, depth: usize, budget: &mut usize) -> Form {
    let mut forms = Vec::new();
    for member in members {
        match placed(types, member, base, depth, budget) {
            Form::Nothing => {}
            form => forms.push(form),
        }
        if forms.len() > 2 {
            return Form::Memory;
        }
    }
    match forms[..] {
        [] => Form::Nothing,
        [one] => one,
        [Form::Scalar(a), Form::Scalar(b)] if a.offset <= b.offset => Form::Pair(a, b),
        [Form::Scalar(a), Form::Scalar(b)] => Form::Pair(b, a),
        _ => Form::Memory,
    }
}

fn enumeration(
    types: &Types,
    tag: &Member,
    variants: &[Variant],
    size: u64,
    depth: usize,
    budget: &mut usize,
) -> Form {
    let Form::Scalar(tag) = placed(types, tag, 0, depth, budget) else { return Form::Memory };
    let mut only: Option<Form> = None;
    for member in variants.iter().map(|variant| &variant.member) {
        let form = match types.as_struct(member.of) {
            Some(of) if of.variants.is_none() => {
                let base = member.offset.unwrap_or(0).min(1 << 40);
                fields(types, &of.members, base, depth, budget)
            }
            _ => placed(types, member, 0, depth, budget),
        };
        match (form, only) {
            (Form::Nothing, _) => {}
            (form, None) => only = Some(form),
            (Form::Scalar(a), Some(Form::Scalar(b))) if a == b => {}
            _ => return Form::Memory,
        }
    }
    match only {
        None => Form::Scalar(tag),
        // A niche of what is there says which variant it is, or a tag ahead of it.
        Some(Form::Scalar(part)) if part.offset == tag.offset => Form::Scalar(part),
        Some(Form::Pair(a, b)) if tag.offset == a.offset || tag.offset == b.offset => Form::Pair(a, b),
        Some(Form::Scalar(part)) if tag.offset == 0 && part.offset + part.size <= size => {
            Form::Pair(tag, part)
        }
        _ => Form::Memory,
    }
}

/// Registers of one machine.
struct Registers {
    general: &'static [u16],
    vector: u16,
    stack: (u16, i64),
}

fn registers(machine: Machine) -> Registers {
    match machine {
        Machine::AArch64 => Registers { general: &[0, 1, 2, 3, 4, 5, 6, 7], vector: 64, stack: (31, 0) },
        _ => Registers { general: &[5, 4, 1, 2, 8, 9], vector: 17, stack: (7, 8) },
    }
}

/// Where arguments are at the entry.
pub(super) fn arguments(
    machine: Machine,
    types: &Types,
    result: TypeId,
    parameters: &[TypeId],
    given: &[Option<Value>],
) -> Vec<Location> {
    let Registers { general, vector, stack: (top, base) } = registers(machine);
    let (mut generals, mut vectors, mut stack) = (0, 0, 0_u64);
    let is_large = types.size(result).is_some_and(|size| size > pointer(machine));
    if machine == Machine::X86_64 && form(types, result) == Form::Memory && is_large {
        generals = 1;
    }
    let mut all = Vec::new();
    for (&id, value) in parameters.iter().zip(given) {
        let Some(value) = value else { break };
        let mut number = |part: Part| {
            let words = if part.is_float { 1 } else { part.size.div_ceil(8).max(1) as usize };
            if part.is_float && vectors < 8 {
                vectors += 1;
                return Location::Register(vector + vectors - 1);
            }
            if !part.is_float && generals + words <= general.len() {
                generals += words;
                return super::in_registers(part.size, 8, general[generals - words..].iter().copied());
            }
            stack = stack.next_multiple_of(if part.size > 8 { 16 } else { 8 });
            stack += part.size.next_multiple_of(8).min(16);
            Location::Memory {
                register: top,
                offset: base + (stack - part.size.next_multiple_of(8).min(16)) as i64,
            }
        };
        all.push(match form(types, id) {
            Form::Nothing => Location::Constant(Vec::new()),
            Form::Scalar(part) => number(part),
            Form::Pair(a, b) => {
                let first = number(a);
                pair(a, b, value.size, first, number(b))
            }
            Form::Memory if value.size <= pointer(machine) => {
                number(Part { offset: 0, size: value.size, is_float: false })
            }
            _ => match number(Part { offset: 0, size: pointer(machine), is_float: false }) {
                Location::Register(register) => Location::Memory { register, offset: 0 },
                Location::Memory { register, offset } => Location::Indirect { register, offset, then: 0 },
                other => other,
            },
        });
    }
    all
}

/// Two numbers with what is between them and behind.
fn pair(a: Part, b: Part, size: u64, first: Location, second: Location) -> Location {
    let mut pieces = Vec::new();
    let mut add = |size, location| match location {
        Location::Pieces(parts) => pieces.extend(parts),
        location if size > 0 => pieces.push(Piece { size, skip: 0, location }),
        _ => {}
    };
    let gap = || Location::Constant(Vec::new());
    add(a.size, first);
    add(b.offset.saturating_sub(a.offset + a.size), gap());
    add(b.size, second);
    add(size.saturating_sub(b.offset + b.size), gap());
    joined(pieces)
}

/// Where a result is.
pub(super) fn result(machine: Machine, types: &Types, id: TypeId, value: &Value) -> ResultLocation {
    let (general, vector): ([u16; 2], [u16; 2]) = match machine {
        Machine::AArch64 => ([0, 1], [64, 65]),
        _ => ([0, 1], [17, 18]),
    };
    let in_general = |size: u64| super::in_registers(size, 8, general.into_iter());
    ResultLocation::At(match form(types, id) {
        Form::Nothing => return ResultLocation::Nothing,
        Form::Scalar(part) if part.is_float => Location::Register(vector[0]),
        Form::Scalar(part) => in_general(part.size),
        Form::Pair(a, b) if a.size <= 8 && b.size <= 8 => {
            let first = if a.is_float { vector[0] } else { general[0] };
            let second = match (a.is_float, b.is_float) {
                (true, true) => vector[1],
                (false, true) => vector[0],
                (true, false) => general[0],
                (false, false) => general[1],
            };
            pair(a, b, value.size, Location::Register(first), Location::Register(second))
        }
        Form::Memory if value.size <= pointer(machine) => in_general(value.size),
        // How wider ones come back is LLVM's own affair.
        Form::Pair(..) => return ResultLocation::Unavailable(Unavailable::Changed),
        _ if machine == Machine::AArch64 => return ResultLocation::Given { register: 8 },
        _ => Location::Memory { register: general[0], offset: 0 },
    })
}
