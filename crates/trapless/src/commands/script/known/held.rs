//! Where a value is, from DWARF's words to the checker's: by the number of an argument register, and from the return address's stack slot.

use trapless_isa::body::{ARGUMENTS, ARGUMENTS_IN_GO};
use trapless_script::check::environment::Held;
use trapless_symbols::types::Language;
use trapless_symbols::{Location, Piece, ResultLocation};

const STACK_POINTER: u16 = 7;
const GENERAL: u16 = 16;
/// xmm0, and how many of them take arguments.
const FLOATS: (u16, u16) = (17, 8);

/// What is told of places that the checker has no word for.
const NO_WORD: &str = "its place is told by a computation that probes do not do";

fn gone(why: impl ToString) -> Held {
    Held::Gone(why.to_string())
}

/// The registers by their DWARF numbers that scripts count as arguments, of functions in this language.
pub(super) fn arguments(language: Language) -> &'static [u8] {
    match language {
        Language::Go => &ARGUMENTS_IN_GO,
        Language::C | Language::Cpp | Language::Rust => &ARGUMENTS,
    }
}

/// Where a value of that size is. `is_entry`: control is at the function's entry. `arguments`: [those of its language](arguments).
pub(super) fn at(location: &Location, size: Option<u64>, is_entry: bool, arguments: &[u8]) -> Held {
    let argument = |register| argument(register, arguments);
    match location {
        Location::Register(_) if size.is_some_and(|size| size > 8) => {
            gone("it is in a vector register, of which 8 bytes are known")
        }
        Location::Register(number) => register(*number, arguments),
        Location::Memory { register: STACK_POINTER, offset } if is_entry => Held::Frame(*offset),
        Location::Memory { register, offset: 0 } if argument(*register).is_some() => {
            argument(*register).map_or_else(|| gone(NO_WORD), Held::Behind)
        }
        Location::Memory { register, offset } if *register < GENERAL => {
            Held::Memory(*register as u8, *offset)
        }
        Location::Constant(bytes) if bytes.len() <= 8 => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            Held::Constant(i64::from_le_bytes(word))
        }
        Location::Pieces(pieces) => joined(pieces, |location| at(location, None, is_entry, arguments)),
        Location::Unavailable(why) => gone(why),
        _ => gone(NO_WORD),
    }
}

fn argument(register: u16, arguments: &[u8]) -> Option<u8> {
    arguments.iter().position(|number| u16::from(*number) == register).map(|number| number as u8)
}

fn register(number: u16, arguments: &[u8]) -> Held {
    let float = number.checked_sub(FLOATS.0).filter(|number| *number < FLOATS.1);
    match (argument(number, arguments), float) {
        (Some(number), _) => Held::Argument(number),
        (_, Some(number)) => Held::FloatRegister(number as u8),
        _ if number < GENERAL => Held::Register(number as u8),
        _ => gone(NO_WORD),
    }
}

/// A value in pieces; one that is missing makes it useless.
fn joined(pieces: &[Piece], one: impl Fn(&Location) -> Held) -> Held {
    let mut all = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let held = match piece.skip {
            0 => one(&piece.location),
            _ => gone(NO_WORD),
        };
        match (held, u32::try_from(piece.size)) {
            (Held::Gone(why), _) => return Held::Gone(why),
            (Held::Pieces(_), _) | (_, Err(_)) => return gone(NO_WORD),
            (held, Ok(size)) => all.push((held, size)),
        }
    }
    Held::Pieces(all)
}

/// Where the result of a function is at its return.
pub(super) fn returned(location: &ResultLocation, size: Option<u64>) -> Option<Held> {
    let ResultLocation::At(location) = location else { return None };
    let one = |location: &Location| match location {
        Location::Register(0) => Held::Result,
        Location::Register(1) => Held::SecondResult,
        Location::Register(number) if *number == FLOATS.0 => Held::FloatResult,
        Location::Memory { register: 0, offset: 0 } => Held::BehindResult,
        _ => gone(NO_WORD),
    };
    let held = match location {
        Location::Pieces(pieces) => joined(pieces, one),
        Location::Register(_) if size.is_none_or(|size| size > 8) => return None,
        other => one(other),
    };
    (!matches!(held, Held::Gone(_))).then_some(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_symbols::Unavailable;

    fn piece(size: u64, location: Location) -> Piece {
        Piece { size, skip: 0, location }
    }

    #[test]
    fn places_at_entries_are_argument_registers_and_the_frame() {
        let memory = |register, offset| Location::Memory { register, offset };
        for (location, held) in [
            (Location::Register(5), Held::Argument(0)),
            (Location::Register(9), Held::Argument(5)),
            (Location::Register(3), Held::Register(3)),
            (Location::Register(18), Held::FloatRegister(1)),
            (memory(7, 16), Held::Frame(16)),
            (memory(4, 0), Held::Behind(1)),
            (memory(4, 8), Held::Memory(4, 8)),
            (Location::Constant(vec![7, 1]), Held::Constant(263)),
            (Location::Unavailable(Unavailable::OptimizedOut), Held::Gone("it was optimized out".into())),
            (
                Location::Pieces(vec![piece(8, Location::Register(5)), piece(4, Location::Register(17))]),
                Held::Pieces(vec![(Held::Argument(0), 8), (Held::FloatRegister(0), 4)]),
            ),
        ] {
            assert_eq!(at(&location, Some(8), true, &ARGUMENTS), held, "{location:?}");
        }
        assert_eq!(at(&memory(7, 16), Some(8), false, &ARGUMENTS), Held::Memory(7, 16));
        assert!(matches!(at(&Location::Register(17), Some(16), true, &ARGUMENTS), Held::Gone(_)));
        assert!(matches!(at(&Location::ThreadLocal(0), Some(4), true, &ARGUMENTS), Held::Gone(_)));
        let missing = Location::Pieces(vec![piece(8, Location::Unavailable(Unavailable::NotHere))]);
        assert!(matches!(at(&missing, Some(16), true, &ARGUMENTS), Held::Gone(_)));
    }

    #[test]
    fn go_has_registers_of_its_own_for_arguments() {
        let at = |number| at(&Location::Register(number), Some(8), true, arguments(Language::Go));
        for (number, held) in
            [(0, Held::Argument(0)), (3, Held::Argument(1)), (2, Held::Argument(2)), (1, Held::Register(1))]
        {
            assert_eq!(at(number), held, "{number}");
        }
    }

    #[test]
    fn results_are_in_the_registers_of_results() {
        let returned = |location, size| returned(&ResultLocation::At(location), Some(size));
        assert_eq!(returned(Location::Register(0), 4), Some(Held::Result));
        assert_eq!(returned(Location::Register(17), 8), Some(Held::FloatResult));
        assert_eq!(returned(Location::Register(17), 16), None);
        assert_eq!(returned(Location::Register(33), 16), None);
        assert_eq!(returned(Location::Memory { register: 0, offset: 0 }, 40), Some(Held::BehindResult));
        let pieces = vec![piece(8, Location::Register(0)), piece(8, Location::Register(1))];
        let held = Held::Pieces(vec![(Held::Result, 8), (Held::SecondResult, 8)]);
        assert_eq!(returned(Location::Pieces(pieces), 16), Some(held));
    }
}
