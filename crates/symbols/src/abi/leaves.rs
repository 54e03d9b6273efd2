//! What the calling conventions ask of a type: its size and alignment, how it is passed, and the numbers it is made of.

use crate::{
    Machine,
    types::{DEEPEST, Encoding, Kind, Language, Member, Passing, Role, TypeId, Types},
};

/// More numbers than these are in nothing that goes into registers.
const MOST_LEAVES: usize = 64;

/// A number in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    /// In bits, from the value's beginning.
    pub start: u64,
    /// In bits.
    pub size: u64,
    pub kind: Number,
    /// Whether it is a bit field, which needs no alignment.
    pub is_bits: bool,
}

/// What registers a number is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Integer,
    Float,
    /// x87's format.
    Extended,
    /// Two of x87's.
    ComplexExtended,
    /// Two doubles that are one number: powerpc's `long double`.
    DoubleDouble,
    Vector,
}

/// A value as calling conventions see it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub size: u64,
    pub align: u64,
    /// A struct, union or array, or a C++ object: not a number.
    pub is_aggregate: bool,
    /// Passed by its address, as it may not be copied byte by byte.
    pub by_reference: bool,
    /// Of C++, where an empty object has a byte.
    pub is_cpp: bool,
    /// By their places; none where there are more than matter.
    pub leaves: Option<Vec<Leaf>>,
    pub is_complex: bool,
}

impl Value {
    /// The numbers, where all are of one kind and size, are floats or vectors, and fill it: how many, and of how many bytes.
    pub(super) fn homogeneous(&self) -> Option<(usize, u64, Number)> {
        let leaves = self.leaves.as_ref()?;
        let first = leaves.first()?;
        let is_same = |leaf: &&Leaf| (leaf.kind, leaf.size) == (first.kind, first.size) && !leaf.is_bits;
        // Those of a union lie over each other.
        let mut places: Vec<u64> = leaves.iter().map(|leaf| leaf.start).collect();
        places.sort_unstable();
        places.dedup();
        let fits = matches!(first.kind, Number::Float | Number::Vector)
            && leaves.iter().all(|leaf| is_same(&leaf))
            && places.len() as u64 * first.size == self.size.checked_mul(8)?;
        fits.then_some((places.len(), first.size / 8, first.kind))
    }
}

/// What is known of a type; none where it is not known.
pub(super) fn value(machine: Machine, types: &Types, id: TypeId) -> Option<Value> {
    let stripped = types.stripped(id);
    let this = types.get(stripped);
    let (mut is_aggregate, mut by_reference, mut is_complex) = (false, false, false);
    let size = match &this.kind {
        Kind::Void => 0,
        Kind::Struct(_) => {
            is_aggregate = true;
            let mut budget = MOST_LEAVES * 16;
            by_reference =
                this.language == Language::Cpp && is_copied_with_care(types, stripped, DEEPEST, &mut budget);
            this.size?
        }
        Kind::Array(array) => {
            is_aggregate = !array.is_vector;
            types.size(stripped)?
        }
        Kind::Base(encoding) => {
            is_complex = *encoding == Encoding::Complex;
            this.size?
        }
        Kind::Pointer(..) | Kind::Enum(_) => types.size(stripped)?,
        Kind::MemberPointer(..) => {
            is_aggregate = this.size? > pointer(machine);
            this.size?
        }
        Kind::Function(_) => pointer(machine),
        _ => return None,
    };
    let mut leaves = Vec::new();
    let mut steps = MOST_LEAVES * 16;
    let found = gather(machine, types, id, 0, DEEPEST, &mut leaves, &mut steps);
    let leaves = found.map(|()| {
        leaves.sort_by_key(|leaf| leaf.start);
        leaves
    });
    let align = types.align(id).max(1);
    let is_cpp = this.language == Language::Cpp;
    Some(Value { size, align, is_aggregate, by_reference, is_cpp, leaves, is_complex })
}

/// Whether a C++ object, or something in it, may not be copied byte by byte.
fn is_copied_with_care(types: &Types, id: TypeId, depth: usize, budget: &mut usize) -> bool {
    if depth == 0 || *budget == 0 {
        return false;
    }
    *budget -= 1;
    match types.kind(id) {
        Kind::Struct(of) => {
            let has = |member: &Member| {
                // What knows its class by a pointer, or its base by one.
                member.role == Role::Artificial && member.name.is_some() || member.offset.is_none()
            };
            of.passing == Passing::Reference
                || of
                    .members
                    .iter()
                    .any(|member| has(member) || is_copied_with_care(types, member.of, depth - 1, budget))
        }
        Kind::Array(array) => is_copied_with_care(types, array.of, depth - 1, budget),
        _ => false,
    }
}

/// Bytes of an address.
pub(super) fn pointer(machine: Machine) -> u64 {
    match machine {
        Machine::I386 => 4,
        _ => 8,
    }
}

/// Adds the numbers of a type at a place in bits. None where there are too many, or one is not known.
fn gather(
    machine: Machine,
    types: &Types,
    id: TypeId,
    start: u64,
    depth: usize,
    leaves: &mut Vec<Leaf>,
    steps: &mut usize,
) -> Option<()> {
    if depth == 0 {
        return None;
    }
    *steps = steps.checked_sub(1)?;
    let stripped = types.stripped(id);
    let this = types.get(stripped);
    let mut add = |start: u64, size: u64, kind| {
        leaves.push(Leaf { start, size: size.checked_mul(8)?, kind, is_bits: false });
        (leaves.len() <= MOST_LEAVES).then_some(())
    };
    match &this.kind {
        Kind::Void => Some(()),
        Kind::Base(encoding) => {
            let size = this.size?;
            let name = this.name.as_deref().unwrap_or_default();
            // The only float of 16 bytes that its name does not tell.
            let is_long = name.contains("long double");
            match (encoding, machine, size) {
                (Encoding::Float, Machine::X86_64 | Machine::I386, 12 | 16) if is_long => {
                    add(start, size, Number::Extended)
                }
                (Encoding::Float, Machine::PowerPc64Le, 16) if is_long => {
                    add(start, size, Number::DoubleDouble)
                }
                (Encoding::Float, Machine::PowerPc64Le, 16) => add(start, size, Number::Vector),
                (Encoding::Float, ..) => add(start, size, Number::Float),
                (Encoding::Complex, Machine::X86_64 | Machine::I386, 24 | 32) if is_long => {
                    add(start, size, Number::ComplexExtended)
                }
                (Encoding::Complex, ..) => {
                    add(start, size / 2, Number::Float)?;
                    add(start.checked_add(size / 2 * 8)?, size / 2, Number::Float)
                }
                _ => add(start, size, Number::Integer),
            }
        }
        Kind::Pointer(..) | Kind::Enum(_) | Kind::MemberPointer(..) => {
            add(start, types.size(stripped)?, Number::Integer)
        }
        Kind::Array(array) if array.is_vector => add(start, types.size(stripped)?, Number::Vector),
        Kind::Array(array) => {
            let size = types.size(stripped)?;
            let of = types.size(array.of)?;
            // An array of nothing, or of none.
            if size == 0 || of == 0 {
                return Some(());
            }
            for index in 0..size / of {
                let at = start.checked_add(index.checked_mul(of)?.checked_mul(8)?)?;
                gather(machine, types, array.of, at, depth - 1, leaves, steps)?;
            }
            Some(())
        }
        Kind::Struct(of) => {
            let variants = of.variants.as_deref();
            let parts = variants.into_iter().flat_map(|variants| {
                variants.discriminant.iter().chain(variants.all.iter().map(|variant| &variant.member))
            });
            for member in of.members.iter().chain(parts) {
                let at = start.checked_add(member.offset?.checked_mul(8)?)?;
                match member.bits {
                    // A bit field without a name only pads.
                    Some(bits) => {
                        let start = at.checked_add(bits.first.into())?;
                        let size = bits.count.into();
                        leaves.push(Leaf { start, size, kind: Number::Integer, is_bits: true });
                        if leaves.len() > MOST_LEAVES {
                            return None;
                        }
                    }
                    None => gather(machine, types, member.of, at, depth - 1, leaves, steps)?,
                }
            }
            Some(())
        }
        _ => None,
    }
}
