//! What the notes of USDT probes tell, in a process: their semaphores, and their arguments, from operands to what detours record, and from
//! records to values.

use super::MemoryOperands;
use crate::outcome::UsdtValue;
use crate::resolve::UsdtSite;
use crate::target;
use std::sync::Arc;
use trapless_isa::Operand;
use trapless_isa::detour::MOST_FETCHED;
use trapless_isa::operand::{NotRead, Source};
use trapless_isa::passed::{Noted, Number, Passed, Wanted};
use trapless_symbols::{Module, UsdtArgument};
use trapless_wire::RecordView;

/// What the notes of all USDT probes at one site tell.
#[derive(Clone, Debug, Default)]
pub struct SiteNotes {
    /// The addresses of their semaphores.
    pub semaphores: Vec<u64>,
    /// What is recorded, each once.
    pub operands: Vec<Operand>,
    /// The arguments, by the probe's name.
    probes: Vec<(String, Arc<[Argument]>)>,
}

/// How the value of one argument is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// It is in the record.
    Recorded {
        /// Which value of the record.
        index: usize,
        /// By how many bits it is shifted right.
        shift: u8,
        /// How many bits of it count.
        bits: u32,
        /// Whether the highest of them is the sign.
        is_signed: bool,
    },
    /// It is always the same.
    Constant {
        /// The number.
        value: i64,
        /// How many bits of it count.
        bits: u32,
        /// Whether the highest of them is the sign.
        is_signed: bool,
    },
    /// It is not read.
    Unread(NotRead),
}

impl SiteNotes {
    /// Those of some probes at a site in a module that is moved by `bias`.
    pub(super) fn of(module: &Module, bias: u64, probes: &[UsdtSite]) -> Self {
        let mut site = Self::default();
        for probe in probes {
            site.semaphores.extend(probe.semaphore.map(|at| at.wrapping_add(bias)));
            let told = probe.arguments.iter().map(|argument| site.argument(module, bias, argument)).collect();
            site.probes.push((probe.site_name().text().to_owned(), told));
        }
        site
    }

    /// The arguments of the probe with this name, if it is one at the site.
    pub fn arguments_of(&self, name: &str) -> Option<Arc<[Argument]>> {
        self.probes.iter().find(|(own, _)| own == name).map(|(_, told)| told.clone())
    }

    fn argument(&mut self, module: &Module, bias: u64, argument: &UsdtArgument) -> Argument {
        let source = source(module, bias, argument);
        let word = u32::from(target::machine(module).isa().facts().word) * 8;
        let bits = if argument.size == 0 { word } else { u32::from(argument.size) * 8 };
        let is_signed = argument.is_signed;
        match source {
            Ok(Source::Constant(value)) => Argument::Constant { value, bits, is_signed },
            Ok(Source::Read(operand, shift)) => match self.index_of(operand) {
                Some(index) => Argument::Recorded { index, shift, bits, is_signed },
                None => Argument::Unread(NotRead::TooMany),
            },
            Err(why) => Argument::Unread(why),
        }
    }

    /// Where in the record an operand is; `None` where that is full.
    fn index_of(&mut self, operand: Operand) -> Option<usize> {
        if let Some(known) = self.operands.iter().position(|known| *known == operand) {
            return Some(known);
        }
        (self.operands.len() < MOST_FETCHED).then(|| {
            self.operands.push(operand);
            self.operands.len() - 1
        })
    }
}

/// What a body that asks for these arguments is given at a site, where the specification with this number means one of its probes.
///
/// # Errors
/// The first argument that it cannot be told, and why.
pub(super) fn passed(
    module: &Module,
    bias: u64,
    probes: &[UsdtSite],
    (asked, wanted): (u32, &[Wanted]),
    memory: MemoryOperands,
) -> Result<Vec<Passed>, (u8, NotRead)> {
    let symbol = |name: &str| module.symbol_address(name).map(|at| at.wrapping_add(bias));
    let read = |argument: Option<&UsdtArgument>, number: Number| {
        let UsdtArgument { size, is_signed, is_float, operand } = argument.ok_or(NotRead::Absent)?;
        let noted = Noted { size: *size, is_signed: *is_signed, is_float: *is_float };
        let found = Passed::parse(target::machine(module), operand, noted, number, &symbol)?;
        match found {
            Passed::Memory(operand, _) if !holds(module, bias, operand) => Err(NotRead::Address),
            Passed::Memory(..) if memory == MemoryOperands::LeftOut => Err(NotRead::Sandboxed),
            found => Ok(found),
        }
    };
    let of = |probe: &UsdtSite, wanted: &Wanted| {
        read(probe.arguments.get(usize::from(wanted.argument)), wanted.number)
    };
    let one = |wanted: &Wanted| {
        let mut meant = probes.iter().filter(|probe| probe.asked.contains(&asked));
        let first = meant.next().map_or(Err(NotRead::Absent), |probe| of(probe, wanted))?;
        match meant.all(|probe| of(probe, wanted) == Ok(first)) {
            true => Ok(first),
            false => Err(NotRead::Ambiguous),
        }
    };
    wanted.iter().map(|wanted| one(wanted).map_err(|why| (wanted.argument, why))).collect()
}

/// Where the value of an argument is in a process.
fn source(module: &Module, bias: u64, argument: &UsdtArgument) -> Result<Source, NotRead> {
    if argument.is_float {
        return Err(NotRead::Float);
    }
    let symbol = |name: &str| module.symbol_address(name).map(|at| at.wrapping_add(bias));
    match Source::parse(target::machine(module), &argument.operand, argument.size, &symbol)? {
        Source::Read(operand, _) if !holds(module, bias, operand) => Err(NotRead::Address),
        source => Ok(source),
    }
}

/// Whether an operand at a fixed address is in the file: a symbol and an offset may lead out of it. Others are where registers say.
fn holds(module: &Module, bias: u64, operand: Operand) -> bool {
    let Operand::At { address, size } = operand else { return true };
    let holds = |at: u64| {
        module.segments().iter().any(|s| s.readable && at >= s.address && at - s.address < s.memory_size)
    };
    let first = address.wrapping_sub(bias);
    holds(first) && holds(first.wrapping_add(u64::from(size) - 1))
}

impl Argument {
    /// Its value in a hit.
    pub(super) fn value(&self, record: &RecordView) -> UsdtValue {
        match *self {
            Argument::Recorded { index, .. } if record.values[MOST_FETCHED] >> index & 1 != 0 => {
                UsdtValue::Unknown(NotRead::Fault)
            }
            Argument::Recorded { index, shift, bits, is_signed } => {
                number(record.values.get(index).map_or(0, |value| value >> shift), bits, is_signed)
            }
            Argument::Constant { value, bits, is_signed } => number(value as u64, bits, is_signed),
            Argument::Unread(why) => UsdtValue::Unknown(why),
        }
    }

    /// Why it is not read.
    pub fn unread(&self) -> Option<NotRead> {
        match *self {
            Argument::Unread(why) => Some(why),
            _ => None,
        }
    }
}

/// The lowest `bits` of a word, 8 to 64.
fn number(word: u64, bits: u32, is_signed: bool) -> UsdtValue {
    let above = 64 - bits.clamp(8, 64);
    match is_signed {
        true => UsdtValue::Signed((word << above) as i64 >> above),
        false => UsdtValue::Unsigned(word << above >> above),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_size_and_the_sign_of_its_note() {
        let word = 0x1122_3344_8566_8798;
        for (bits, is_signed, expected) in [
            (8, false, UsdtValue::Unsigned(0x98)),
            (8, true, UsdtValue::Signed(-0x68)),
            (16, true, UsdtValue::Signed(-0x7868)),
            (32, false, UsdtValue::Unsigned(0x8566_8798)),
            (32, true, UsdtValue::Signed(-0x7a99_7868)),
            (64, true, UsdtValue::Signed(word as i64)),
            (64, false, UsdtValue::Unsigned(word)),
        ] {
            assert_eq!(number(word, bits, is_signed), expected);
        }
    }

    #[test]
    fn what_could_not_be_read_is_no_number() {
        let mut values = [7; 12];
        values[MOST_FETCHED] = 0b10;
        let record = RecordView { time: 0, id: 0, tid: 0, slot: 0, values };
        let at = |index| Argument::Recorded { index, shift: 0, bits: 32, is_signed: false }.value(&record);
        assert_eq!((at(0), at(1)), (UsdtValue::Unsigned(7), UsdtValue::Unknown(NotRead::Fault)));
    }
}
