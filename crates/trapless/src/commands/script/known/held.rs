//! Where a value is, from DWARF's words to the checker's: by the number of an argument register, and from the return address's stack slot.

use crate::commands::registers::Registers;
use trapless_script::check::environment::Held;
use trapless_symbols::types::Language;
use trapless_symbols::{Location, Machine, Piece, ResultLocation};

/// What is told of places that the checker has no word for.
const NO_WORD: &str = "its place is told by a computation that probes do not do";

fn gone(why: impl ToString) -> Held {
    Held::Gone(why.to_string())
}

impl Registers {
    fn held(&self, number: u16) -> Held {
        match (self.argument(number), self.float(number)) {
            (Some(number), _) => Held::Argument(number),
            (_, Some(number)) => Held::FloatRegister(number),
            _ if number < self.general => Held::Register(number as u8),
            _ => gone(NO_WORD),
        }
    }

    /// Where a value of that size is. `is_entry`: control is at the function's entry.
    pub fn at(&self, location: &Location, size: Option<u64>, is_entry: bool) -> Held {
        match location {
            Location::Register(_) if size.is_some_and(|size| size > 8) => {
                gone("it is in a vector register, of which 8 bytes are known")
            }
            Location::Register(_) if size.is_some_and(|size| size > self.word) => gone(NO_WORD),
            Location::Register(number) => self.held(*number),
            Location::Memory { register, offset } if is_entry && *register == self.stack_pointer => {
                Held::Frame(*offset)
            }
            Location::Memory { register, offset: 0 } if self.argument(*register).is_some() => {
                self.argument(*register).map_or_else(|| gone(NO_WORD), Held::Behind)
            }
            Location::Memory { register, offset } if *register < self.general => {
                Held::Memory(*register as u8, *offset)
            }
            Location::Constant(bytes) if bytes.len() <= 8 => {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                Held::Constant(i64::from_le_bytes(word))
            }
            Location::Pieces(pieces) => joined(pieces, |location| self.at(location, None, is_entry)),
            Location::Unavailable(why) => gone(why),
            _ => gone(NO_WORD),
        }
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
pub(super) fn returned(machine: Machine, location: &ResultLocation, size: Option<u64>) -> Option<Held> {
    let ResultLocation::At(location) = location else { return None };
    let registers = Registers::of(machine, Language::C);
    let one = |location: &Location| match location {
        Location::Register(number) if *number == registers.results[0] => Held::Result,
        Location::Register(number) if *number == registers.results[1] => Held::SecondResult,
        Location::Register(number) if *number == registers.floats.0 => Held::FloatResult,
        Location::Memory { register: 0, offset: 0 } => Held::BehindResult,
        _ => gone(NO_WORD),
    };
    let held = match location {
        Location::Pieces(pieces) => joined(pieces, one),
        Location::Register(_) if size.is_none_or(|size| size > registers.word) => return None,
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
        let registers = Registers::of(Machine::X86_64, Language::C);
        let at = |location: &_, size, is_entry| registers.at(location, size, is_entry);
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
            assert_eq!(at(&location, Some(8), true), held, "{location:?}");
        }
        assert_eq!(at(&memory(7, 16), Some(8), false), Held::Memory(7, 16));
        assert!(matches!(at(&Location::Register(17), Some(16), true), Held::Gone(_)));
        assert!(matches!(at(&Location::ThreadLocal(0), Some(4), true), Held::Gone(_)));
        let missing = Location::Pieces(vec![piece(8, Location::Unavailable(Unavailable::NotHere))]);
        assert!(matches!(at(&missing, Some(16), true), Held::Gone(_)));
    }

    #[test]
    fn go_has_registers_of_its_own_for_arguments() {
        let registers = Registers::of(Machine::X86_64, Language::Go);
        let at = |number| registers.at(&Location::Register(number), Some(8), true);
        for (number, held) in
            [(0, Held::Argument(0)), (3, Held::Argument(1)), (2, Held::Argument(2)), (1, Held::Register(1))]
        {
            assert_eq!(at(number), held, "{number}");
        }
    }

    #[test]
    fn arm64_has_eight_arguments_in_registers_and_others_in_the_frame() {
        let registers = Registers::of(Machine::AArch64, Language::C);
        let at = |location: &_| registers.at(location, Some(8), true);
        let memory = |register, offset| Location::Memory { register, offset };
        assert_eq!(at(&Location::Register(7)), Held::Argument(7));
        assert_eq!(at(&Location::Register(19)), Held::Register(19));
        assert_eq!(at(&Location::Register(65)), Held::FloatRegister(1));
        assert_eq!(at(&memory(31, 8)), Held::Frame(8));
        assert_eq!(at(&memory(2, 0)), Held::Behind(2));
        let returned =
            |number| returned(Machine::AArch64, &ResultLocation::At(Location::Register(number)), Some(8));
        assert_eq!([0, 64, 19].map(returned), [Some(Held::Result), Some(Held::FloatResult), None]);
    }

    #[test]
    fn narrow_programs_have_arguments_in_the_frame_and_results_in_two_registers() {
        let registers = Registers::of(Machine::I386, Language::C);
        let at = |location: &_, size, is_entry| registers.at(location, Some(size), is_entry);
        let memory = |register, offset| Location::Memory { register, offset };
        assert_eq!(at(&memory(4, 8), 4, true), Held::Frame(8));
        assert_eq!(at(&memory(4, 8), 4, false), Held::Memory(4, 8));
        assert_eq!(at(&memory(5, -12), 8, false), Held::Memory(5, -12));
        assert_eq!(at(&Location::Register(3), 4, true), Held::Register(3));
        assert!(matches!(at(&Location::Register(3), 8, true), Held::Gone(_)));
        assert!(matches!(at(&Location::Register(21), 4, true), Held::Gone(_)));
        let returned = |location, size| returned(Machine::I386, &ResultLocation::At(location), Some(size));
        assert_eq!(returned(Location::Register(0), 4), Some(Held::Result));
        assert_eq!(returned(Location::Register(11), 8), None);
        let pieces = vec![piece(4, Location::Register(0)), piece(4, Location::Register(2))];
        let held = Held::Pieces(vec![(Held::Result, 4), (Held::SecondResult, 4)]);
        assert_eq!(returned(Location::Pieces(pieces), 8), Some(held));
    }

    #[test]
    fn results_are_in_the_registers_of_results() {
        let returned = |location, size| returned(Machine::X86_64, &ResultLocation::At(location), Some(size));
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
