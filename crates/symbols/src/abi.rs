//! Where functions take their arguments and give their results, as the calling conventions of Linux say: pure functions of types.
//!
//! Sources: System V ABI, AMD64 supplement 1.0 (section 3.2.3); System V ABI, Intel386 supplement 1.1 (2.2); AAPCS64, 2024Q3 (6.8, 6.9);
//! 64-bit ELF V2 ABI for Power, 1.5 (2.2.4, 2.2.5). Rust's own convention is not written down; `rust` holds what rustc does.

mod aapcs64;
mod elfv2;
mod i386;
mod leaves;
mod rust;
mod sysv;

use crate::{Location, Machine, Piece, ResultLocation, TypeId, Types, Unavailable};

/// By which rules a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// The machine's own, of C and C++.
    C,
    /// That of Rust's functions which do not say `extern "C"`.
    Rust,
    /// Another one, as Go's.
    Unknown,
}

/// Where the arguments are before the function's first instruction, in order. `result` is the type it gives, as a large one takes
/// a register from the arguments.
///
/// Floats of 4 bytes are in powerpc's registers as floats of 8.
///
/// ```
/// use trapless_symbols::{Location, Machine, Types, types::Encoding, abi::{self, Convention}};
///
/// let mut types = Types::new();
/// let (int, double) = (types.base("int", 4, Encoding::Signed), types.base("double", 8, Encoding::Float));
/// let arguments =
///     abi::arguments(Machine::X86_64, Convention::C, &types, Types::VOID, &[int, double, int]);
/// // edi, xmm0, esi
/// assert_eq!(arguments, [5, 17, 4].map(Location::Register));
/// ```
pub fn arguments(
    machine: Machine,
    convention: Convention,
    types: &Types,
    result: TypeId,
    parameters: &[TypeId],
) -> Vec<Location> {
    let given: Vec<Option<leaves::Value>> =
        parameters.iter().map(|&id| leaves::value(machine, types, id)).collect();
    let known = leaves::value(machine, types, result);
    let mut all = match (convention, machine, known) {
        (Convention::Rust, Machine::X86_64 | Machine::AArch64, Some(_)) => {
            rust::arguments(machine, types, result, parameters, &given)
        }
        (Convention::C, Machine::X86_64, Some(result)) => sysv::arguments(&result, &given),
        (Convention::C, Machine::I386, Some(result)) => i386::arguments(&result, &given),
        (Convention::C, Machine::AArch64, Some(result)) => aapcs64::arguments(&given, &result),
        (Convention::C, Machine::PowerPc64Le, Some(result)) => elfv2::arguments(&result, &given),
        _ => Vec::new(),
    };
    let reason = match convention {
        Convention::C => Unavailable::NoType,
        _ => Unavailable::Changed,
    };
    all.resize(parameters.len(), Location::Unavailable(reason));
    all
}

/// Where the result is when the function has returned.
pub fn result(machine: Machine, convention: Convention, types: &Types, id: TypeId) -> ResultLocation {
    let Some(value) = leaves::value(machine, types, id) else {
        return ResultLocation::Unavailable(Unavailable::NoType);
    };
    if id == Types::VOID || value.size == 0 {
        return ResultLocation::Nothing;
    }
    match (convention, machine) {
        (Convention::Rust, Machine::X86_64 | Machine::AArch64) => rust::result(machine, types, id, &value),
        (Convention::C, Machine::X86_64) => sysv::result(&value),
        (Convention::C, Machine::I386) => i386::result(&value),
        (Convention::C, Machine::AArch64) => aapcs64::result(&value),
        (Convention::C, Machine::PowerPc64Le) => elfv2::result(&value),
        _ => ResultLocation::Unavailable(Unavailable::Changed),
    }
}

/// A value in one place, or in several after each other.
fn joined(pieces: Vec<Piece>) -> Location {
    match pieces.len() {
        1 => pieces.into_iter().next().map_or(Location::Constant(Vec::new()), |piece| piece.location),
        _ => Location::Pieces(pieces),
    }
}

/// A value of `size` bytes in registers of `width` bytes each.
fn in_registers(size: u64, width: u64, registers: impl Iterator<Item = u16>) -> Location {
    let count = size.div_ceil(width).max(1) as usize;
    let piece = |(index, register): (usize, u16)| Piece {
        size: width.min(size - index as u64 * width),
        skip: 0,
        location: Location::Register(register),
    };
    joined(registers.take(count).enumerate().map(piece).collect())
}
