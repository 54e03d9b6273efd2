//! Functions: where their arguments and results are when a probe is hit, and what is shown of them.

use super::body::{FLOATS_AT, HEAD, SINGLES_AT, is_kept};
use super::table::{Part, Placed, Root, Table};
use crate::commands::registers::Registers;
use std::fmt;
use std::sync::Arc;
use trapless_script::native::Moment;
use trapless_symbols::render::{Layouts, MOST_BYTES, MOST_RECORDED};
use trapless_symbols::types::{Encoding, Kind};
use trapless_symbols::{Location, ResultLocation, TypeId, TypeReader, TypedFunction, Types, Unavailable};

/// Values of one function take no more of a tape than this, so that there is room for what they lead to.
const MOST_OF_TAPE: usize = MOST_RECORDED / 2;

/// Why a value is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Why {
    /// Debug information does not tell where it is.
    OptimizedOut,
    /// The same, at this address.
    NotHere,
    /// It is told for the function's entry alone.
    OnlyAtEntry,
    /// A computation tells.
    Computed,
    /// What tells it makes no sense.
    Malformed,
    /// The frame is not known.
    NoFrame,
    /// The function has other parameters than its source.
    Changed,
    /// Its type is not known.
    NoType,
    /// It is in a register that probes do not keep.
    Register,
    /// It is in memory whose address probes do not know.
    Address,
    /// It is in memory whose address the function was given, and nobody has at the return.
    Given,
    /// The function has more values than a record holds.
    TooMany,
    /// What was recorded does not hold it.
    Lost,
}

impl From<Unavailable> for Why {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::OptimizedOut => Why::OptimizedOut,
            Unavailable::NotHere => Why::NotHere,
            Unavailable::OnlyAtEntry => Why::OnlyAtEntry,
            Unavailable::Computed => Why::Computed,
            Unavailable::Malformed => Why::Malformed,
            Unavailable::NoFrame => Why::NoFrame,
            Unavailable::Changed => Why::Changed,
            Unavailable::NoType => Why::NoType,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match self {
            Why::OptimizedOut => Unavailable::OptimizedOut,
            Why::NotHere => Unavailable::NotHere,
            Why::OnlyAtEntry => Unavailable::OnlyAtEntry,
            Why::Computed => Unavailable::Computed,
            Why::Malformed => Unavailable::Malformed,
            Why::NoFrame => Unavailable::NoFrame,
            Why::Changed => Unavailable::Changed,
            Why::NoType => Unavailable::NoType,
            Why::Register => {
                return f.write_str("it is in a register, or a half of one, that probes do not keep");
            }
            Why::Address => return f.write_str("it is in memory whose address probes do not compute"),
            Why::Given => {
                return f.write_str(
                    "it is where the caller said, in a register that the function may have changed",
                );
            }
            Why::TooMany => return f.write_str("the function takes more than a record of a call holds"),
            Why::Lost => return f.write_str("it was not recorded"),
        };
        told.fmt(f)
    }
}

/// Where what is shown of a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// The record with this number on the tape.
    Tape(usize),
    /// It is always the same.
    Constant(Vec<u8>),
    /// Nowhere.
    Nowhere(Why),
}

/// What is shown of an argument or a result.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// Its name, if it has one.
    pub name: Option<Arc<str>>,
    /// Its type.
    pub of: TypeId,
    /// The type, as its language writes it.
    pub notation: Arc<str>,
    /// Where it comes from.
    pub from: Source,
}

/// What is shown of a function's calls.
#[derive(Clone, Debug)]
pub(super) struct Function {
    /// Its arguments.
    pub arguments: Vec<Value>,
    /// Its result, if it has one.
    pub result: Option<Value>,
}

/// Where something is at a hit.
#[derive(Clone, Copy, Debug)]
struct At {
    registers: &'static Registers,
    moment: Moment,
    /// Whether the value is an integer or an address.
    is_integer: bool,
}

/// Turns the functions of one file into lists of a table and what is shown.
pub(super) struct Planner<'p, 'm> {
    pub reader: &'p mut TypeReader<'m>,
    pub types: &'p mut Types,
    pub layouts: &'p mut Layouts,
    pub placed: &'p mut Placed,
    pub table: &'p mut Table,
    pub registers: &'static Registers,
}

/// Values that are recorded together.
#[derive(Default)]
struct Together {
    roots: Vec<Root>,
    size: usize,
}

impl Planner<'_, '_> {
    /// What is shown of a function, and its lists: for where it is entered, and for its return.
    pub fn plan(&mut self, function: &TypedFunction, moment: Moment) -> (Function, [u32; 2]) {
        let mut together = Together::default();
        let mut arguments = Vec::with_capacity(function.parameters.len());
        for parameter in &function.parameters {
            let from = self.value(parameter.of, &parameter.location, moment, &mut together);
            arguments.push(self.shown(parameter.name.clone(), parameter.of, from));
        }
        let entry = self.table.list(&together.roots);
        let mut together = Together::default();
        let result = (function.result != Types::VOID).then(|| {
            let from = match &function.result_location {
                ResultLocation::Nothing => Source::Constant(Vec::new()),
                ResultLocation::At(location) => {
                    self.value(function.result, location, Moment::Return, &mut together)
                }
                ResultLocation::Given { .. } => Source::Nowhere(Why::Given),
                ResultLocation::Unavailable(why) => Source::Nowhere((*why).into()),
            };
            self.shown(None, function.result, from)
        });
        let at_return = self.table.list(&together.roots);
        (Function { arguments, result }, [entry, at_return])
    }

    fn shown(&self, name: Option<Arc<str>>, of: TypeId, from: Source) -> Value {
        Value { name, of, notation: self.types.notation(of).into(), from }
    }

    fn value(&mut self, of: TypeId, location: &Location, moment: Moment, together: &mut Together) -> Source {
        self.reader.complete(self.types, of);
        let Some(size) = self.types.size(of) else { return Source::Nowhere(Why::NoType) };
        if let Location::Constant(bytes) = location {
            let mut bytes = bytes.clone();
            bytes.resize(size.min(MOST_BYTES) as usize, 0);
            return Source::Constant(bytes);
        }
        if size == 0 {
            return Source::Constant(Vec::new());
        }
        let stripped = self.types.stripped(of);
        let is_integer = match &self.types.get(stripped).kind {
            Kind::Base(encoding) => *encoding != Encoding::Float,
            Kind::Pointer(..) | Kind::Enum(_) => true,
            _ => false,
        };
        let parts = match parts(location, size, At { registers: self.registers, moment, is_integer }) {
            Ok(parts) => parts,
            Err(why) => return Source::Nowhere(why),
        };
        let size = size.min(MOST_BYTES) as u32;
        let needed = (HEAD + size.next_multiple_of(8)) as usize;
        if together.size + needed > MOST_OF_TAPE {
            return Source::Nowhere(Why::TooMany);
        }
        together.size += needed;
        let reader = &mut *self.reader;
        let mut complete = |types: &mut Types, id| {
            reader.complete(types, id);
        };
        let layout = self.layouts.of_value(self.types, &mut complete, of);
        let layout = self.table.layout(self.layouts, self.placed, layout);
        together.roots.push(Root { size, parts, layout });
        Source::Tape(together.roots.len() - 1)
    }
}

/// The parts of a value of so many bytes.
fn parts(location: &Location, size: u64, at_hit: At) -> Result<Vec<(u32, Part)>, Why> {
    let Location::Pieces(pieces) = location else {
        return Ok(vec![(0, part(location, size, 0, at_hit)?)]);
    };
    let (mut parts, mut at) = (Vec::new(), 0_u64);
    for piece in pieces {
        let piece_size = piece.size.min(size.saturating_sub(at));
        if piece_size == 0 {
            break;
        }
        // Words are written whole, the later ones over the ends of the earlier.
        let to = u32::try_from(at).ok().filter(|to| u64::from(*to) + 8 <= MOST_BYTES).ok_or(Why::TooMany)?;
        parts.push((to, part(&piece.location, piece_size, piece.skip, at_hit)?));
        at += piece_size;
    }
    // Of what is behind the pieces, nothing is left.
    if at == size { Ok(parts) } else { Err(Why::OptimizedOut) }
}

fn part(location: &Location, size: u64, skip: u64, at: At) -> Result<Part, Why> {
    let in_register = |register: u8, plus: i64| match size + skip {
        0..=8 if skip < 8 => Ok(Part::Register { register, shift: 8 * skip as u8, plus }),
        // Of vector registers the low half is kept; st0 is not.
        _ => Err(Why::Register),
    };
    let recorded = size.min(MOST_BYTES) as u32;
    match location {
        Location::Register(number)
            if at.registers.widens_singles && !at.is_integer && (size, skip) == (4, 0) =>
        {
            in_register(at.single(*number)?, 0)
        }
        Location::Register(number) => in_register(at.register(*number)?, 0),
        Location::Sum { register: number, offset } => in_register(at.register(*number)?, *offset),
        Location::Memory { register: number, offset } => {
            let register = at.register(*number)?;
            Ok(Part::Memory { register, plus: *offset, size: recorded, then: None })
        }
        Location::Indirect { register: number, offset, then } => {
            let register = at.register(*number)?;
            Ok(Part::Memory { register, plus: *offset, size: recorded, then: Some(*then) })
        }
        Location::Unavailable(why) => Err((*why).into()),
        Location::Address(_) | Location::ThreadLocal(_) => Err(Why::Address),
        // Gaps between the parts of a value are such ones, too.
        Location::Constant(bytes) if size <= 8 && bytes.len() <= 8 => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            Ok(Part::Constant(u64::from_le_bytes(word)))
        }
        Location::Constant(_) | Location::Pieces(_) => Err(Why::Computed),
    }
}

impl At {
    /// The number in the file of a register with DWARF's number.
    fn register(self, number: u16) -> Result<u8, Why> {
        let place = match self.registers.float(number) {
            Some(float) => FLOATS_AT + float,
            None => u8::try_from(number).ok().filter(|number| *number < FLOATS_AT).ok_or(Why::Register)?,
        };
        if is_kept(self.registers, place, self.moment) { Ok(place) } else { Err(Why::Register) }
    }

    /// The same for a value of 4 bytes: of a floating-point register the single that it holds as a double.
    fn single(self, number: u16) -> Result<u8, Why> {
        let place = self.register(number)?;
        Ok(if place >= FLOATS_AT { place - FLOATS_AT + SINGLES_AT } else { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_symbols::types::Language;
    use trapless_symbols::{Machine, Piece};

    fn piece(size: u64, skip: u64, location: Location) -> Piece {
        Piece { size, skip, location }
    }

    #[test]
    fn values_are_put_together_from_registers_and_memory() {
        let word = |register| Part::Register { register, shift: 0, plus: 0 };
        let memory = |plus, size| Part::Memory { register: 7, plus, size, then: None };
        let both = |first, second| Location::Pieces(vec![piece(8, 0, first), piece(4, 0, second)]);
        for (location, size, moment, expected) in [
            (Location::Register(5), 8, Moment::Entry, Ok(vec![(0, word(5))])),
            (Location::Register(17), 4, Moment::Entry, Ok(vec![(0, word(32))])),
            (Location::Register(17), 16, Moment::Entry, Err(Why::Register)),
            (Location::Register(3), 8, Moment::Entry, Err(Why::Register)),
            (Location::Register(3), 8, Moment::Inside, Ok(vec![(0, word(3))])),
            (Location::Register(33), 16, Moment::Return, Err(Why::Register)),
            (Location::Register(5), 8, Moment::Return, Err(Why::Register)),
            (
                both(Location::Register(0), Location::Register(17)),
                12,
                Moment::Return,
                Ok(vec![(0, word(0)), (8, word(32))]),
            ),
            (both(Location::Register(0), Location::Register(1)), 16, Moment::Return, Err(Why::OptimizedOut)),
            (Location::Memory { register: 7, offset: 8 }, 40, Moment::Entry, Ok(vec![(0, memory(8, 40))])),
            (
                Location::Memory { register: 7, offset: 8 },
                9000,
                Moment::Entry,
                Ok(vec![(0, memory(8, 1024))]),
            ),
            (
                Location::Pieces(vec![
                    piece(4, 0, Location::Register(5)),
                    piece(4, 4, Location::Register(5)),
                ]),
                8,
                Moment::Entry,
                Ok(vec![(0, word(5)), (4, Part::Register { register: 5, shift: 32, plus: 0 })]),
            ),
            (
                both(Location::Register(5), Location::Unavailable(Unavailable::OptimizedOut)),
                12,
                Moment::Entry,
                Err(Why::OptimizedOut),
            ),
            (
                Location::Pieces(vec![
                    piece(1, 0, Location::Register(5)),
                    piece(7, 0, Location::Constant(vec![])),
                ]),
                8,
                Moment::Entry,
                Ok(vec![(0, word(5)), (1, Part::Constant(0))]),
            ),
            (Location::Address(0x1000), 4, Moment::Entry, Err(Why::Address)),
        ] {
            let registers = Registers::of(Machine::X86_64, Language::C);
            let at = At { registers, moment, is_integer: false };
            assert_eq!(parts(&location, size, at), expected, "{location:?} {size} {moment:?}");
        }
    }
}
