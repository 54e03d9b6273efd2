//! Runs the programs of unwind entries and keeps what they say of the registers that are followed.
//!
//! A program is a list of instructions that moves on through a function and says what changes (DWARF 5, 6.4.2). The state is small and
//! copied freely: [`State`] has nothing that grows.

use std::{collections::HashMap, ops::Range};

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, CommonInformationEntry,
    Encoding, Register, UnwindExpression, UnwindOffset, UnwindSection,
};

use super::{Rule, UnknownRule};
use crate::{Machine, frames::Reader};

/// One entry's rows.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) range: Range<u64>,
    /// Which rows, among all that a compiler has made. The first one's address is the range's start.
    pub(super) rows: Range<usize>,
}

/// States that a program has put aside: compilers nest them once.
const MOST_REMEMBERED: usize = 16;

/// The numbers DWARF gives to the registers that are followed.
pub(super) struct Registers {
    pub(super) stack: Register,
    pub(super) frame: Register,
    pub(super) pointer: Option<Register>,
    pub(super) return_address: Register,
    /// The return address is in a register when a function is entered.
    pub(super) has_link: bool,
}

fn registers(machine: Machine) -> Registers {
    let (stack, frame, pointer, return_address, has_link) = match machine {
        Machine::X86_64 => (7, 6, Some(3), 16, false),
        Machine::I386 => (4, 5, None, 8, false),
        Machine::AArch64 => (31, 29, None, 30, true),
        Machine::PowerPc64Le => (1, 31, None, 65, true),
    };
    Registers {
        stack: Register(stack),
        frame: Register(frame),
        pointer: pointer.map(Register),
        return_address: Register(return_address),
        has_link,
    }
}

/// Where a program says that a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unsaid,
    Undefined,
    Same,
    AtCfa(i64),
    Expression(UnwindExpression<usize>),
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CfaPlace {
    Unsaid,
    Register(Register, i64),
    Expression(UnwindExpression<usize>),
}

/// What a program has said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) cfa: CfaPlace,
    pub(super) return_address: Place,
    pub(super) frame: Place,
    pub(super) pointer: Place,
}

const NOTHING_SAID: State = State {
    cfa: CfaPlace::Unsaid,
    return_address: Place::Unsaid,
    frame: Place::Unsaid,
    pointer: Place::Unsaid,
};

/// What a CIE says for all entries that refer to it.
struct Common<'b> {
    cie: CommonInformationEntry<Reader<'b>>,
    state: Result<State, Malformed>,
}

/// A program makes no sense.
#[derive(Clone, Copy, Debug)]
struct Malformed;

/// Collects rows and rules.
pub(super) struct Compiler {
    pub(super) machine: Machine,
    pub(super) registers: Registers,
    /// Addresses and rules.
    pub(super) rows: Vec<(u64, u32)>,
    pub(super) rules: Vec<Rule>,
    pub(super) numbers: HashMap<Rule, u32>,
    pub(super) spans: Vec<Span>,
    /// Bytes of stubs that may still become rows; sound entries do not tell of more code than there is.
    pub(super) stubs: u64,
    pub(super) remembered: Vec<State>,
}

/// What does not change within an entry.
pub(super) struct Entry<'a, S> {
    pub(super) section: &'a S,
    pub(super) encoding: Encoding,
    pub(super) code_alignment: u64,
    pub(super) data_alignment: i64,
    pub(super) return_address: Register,
    pub(super) is_signal: bool,
    pub(super) range: Range<u64>,
    pub(super) initial: State,
}

impl<'a, S> Entry<'a, S> {
    fn of(
        section: &'a S,
        cie: &CommonInformationEntry<Reader<'_>>,
        range: Range<u64>,
        is_signal: bool,
    ) -> Entry<'a, S> {
        Entry {
            section,
            encoding: cie.encoding(),
            code_alignment: cie.code_alignment_factor(),
            data_alignment: cie.data_alignment_factor(),
            return_address: cie.return_address_register(),
            is_signal,
            range,
            initial: NOTHING_SAID,
        }
    }
}

impl Compiler {
    /// One for a module with so many bytes of code.
    pub(super) fn new(machine: Machine, code: u64) -> Compiler {
        Compiler {
            machine,
            registers: registers(machine),
            rows: Vec::new(),
            rules: vec![Rule::Nothing],
            numbers: HashMap::from([(Rule::Nothing, 0)]),
            spans: Vec::new(),
            stubs: code,
            remembered: Vec::new(),
        }
    }

    /// The spans since this was asked last.
    pub(super) fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    /// A span of these rows, if there are any.
    pub(super) fn spans_of(&mut self, range: Range<u64>, rows: &[(u64, Rule)]) -> Vec<Span> {
        let first = self.rows.len();
        for &(address, rule) in rows {
            let number = self.number(rule);
            self.rows.push((address, number));
        }
        let rows = first..self.rows.len();
        if rows.is_empty() || range.is_empty() { Vec::new() } else { vec![Span { range, rows }] }
    }

    /// A span of one row.
    pub(super) fn span_of(&mut self, range: Range<u64>, rule: Rule) -> Span {
        let first = self.rows.len();
        let number = self.number(rule);
        self.rows.push((range.start, number));
        Span { range, rows: first..first + 1 }
    }

    /// Compiles all entries of a section.
    ///
    /// An entry may refer to a CIE that was come across before it, and to nothing else, so that each is read once: one that is
    /// made up could begin anywhere and be as long as the section.
    ///
    /// # Errors
    /// What could not be read first: an entry, or from there on everything.
    pub(super) fn read<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
    ) -> Result<(), String> {
        let mut known: HashMap<usize, Common<'b>> = HashMap::new();
        let mut entries = section.entries(bases);
        let told = |error: gimli::Error| format!("unwind table: {error}");
        let mut unread = Ok(());
        while let Some(entry) = entries.next().map_err(told)? {
            let partial = match entry {
                CieOrFde::Cie(cie) => {
                    let program = cie.instructions(section, bases);
                    let state = self.initial(&Entry::of(section, &cie, 0..0, false), program);
                    known.insert(cie.offset(), Common { cie, state });
                    continue;
                }
                CieOrFde::Fde(partial) => partial,
            };
            let parsed = partial.parse(|_, _, offset| {
                let offset: usize = UnwindOffset::into(offset);
                let common = known.get(&offset).ok_or(gimli::Error::NotCieId(offset as u64))?;
                Ok(common.cie.clone())
            });
            let fde = match parsed {
                Ok(fde) => fde,
                Err(error) => {
                    unread = unread.and(Err(told(error)));
                    continue;
                }
            };
            let range = fde.initial_address()..fde.end_address();
            if range.is_empty() {
                continue;
            }
            let first = self.rows.len();
            match known.get(&fde.cie().offset()).map(|common| common.state) {
                Some(Ok(initial)) => {
                    let entry = Entry::of(section, fde.cie(), range.clone(), fde.is_signal_trampoline());
                    self.run(&Entry { initial, ..entry }, fde.instructions(section, bases));
                }
                _ => {
                    let number = self.number(Rule::Unknown(UnknownRule::Damaged));
                    self.rows.push((range.start, number));
                }
            }
            self.spans.push(Span { range, rows: first..self.rows.len() });
        }
        unread
    }

    /// The state at the beginning of all entries of a CIE.
    fn initial<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        entry: &Entry<'_, S>,
        mut program: CallFrameInstructionIter<'_, Reader<'b>>,
    ) -> Result<State, Malformed> {
        let mut state = NOTHING_SAID;
        self.remembered.clear();
        loop {
            match program.next() {
                Ok(None) => return Ok(state),
                // A CIE is about no place.
                Ok(Some(CallFrameInstruction::SetLoc { .. } | CallFrameInstruction::AdvanceLoc { .. }))
                | Err(_) => {
                    return Err(Malformed);
                }
                Ok(Some(instruction)) => self.apply(entry, &mut state, instruction)?,
            }
        }
    }

    /// Adds the rows of an entry.
    fn run<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        entry: &Entry<'_, S>,
        mut program: CallFrameInstructionIter<'_, Reader<'b>>,
    ) {
        use CallFrameInstruction::{AdvanceLoc, SetLoc};
        let mut state = entry.initial;
        let mut at = entry.range.start;
        self.remembered.clear();
        loop {
            let next = match program.next() {
                Ok(None) => break,
                Ok(Some(AdvanceLoc { delta })) => {
                    entry.code_alignment.checked_mul(delta.into()).and_then(|bytes| at.checked_add(bytes))
                }
                Ok(Some(SetLoc { address })) => Some(address).filter(|&address| address >= at),
                Ok(Some(instruction)) => match self.apply(entry, &mut state, instruction) {
                    Ok(()) => continue,
                    Err(Malformed) => None,
                },
                Err(_) => None,
            };
            let Some(next) = next else {
                let number = self.number(Rule::Unknown(UnknownRule::Damaged));
                self.rows.push((at, number));
                return;
            };
            if next >= entry.range.end {
                break;
            }
            if next > at {
                self.emit(entry, &state, at..next);
                at = next;
            }
        }
        self.emit(entry, &state, at..entry.range.end);
    }

    /// What one instruction says.
    fn apply<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        entry: &Entry<'_, S>,
        state: &mut State,
        instruction: CallFrameInstruction<usize>,
    ) -> Result<(), Malformed> {
        use CallFrameInstruction::*;
        let factored = |offset: i64| offset.checked_mul(entry.data_alignment).ok_or(Malformed);
        let signed = |offset: u64| i64::try_from(offset).map_err(|_| Malformed);
        let (register, place) = match instruction {
            DefCfa { register, offset } => {
                state.cfa = CfaPlace::Register(register, signed(offset)?);
                return Ok(());
            }
            DefCfaSf { register, factored_offset } => {
                state.cfa = CfaPlace::Register(register, factored(factored_offset)?);
                return Ok(());
            }
            DefCfaRegister { register } => {
                let CfaPlace::Register(was, _) = &mut state.cfa else { return Err(Malformed) };
                *was = register;
                return Ok(());
            }
            DefCfaOffset { offset } => {
                let CfaPlace::Register(_, was) = &mut state.cfa else { return Err(Malformed) };
                *was = signed(offset)?;
                return Ok(());
            }
            DefCfaOffsetSf { factored_offset } => {
                let CfaPlace::Register(_, was) = &mut state.cfa else { return Err(Malformed) };
                *was = factored(factored_offset)?;
                return Ok(());
            }
            DefCfaExpression { expression } => {
                state.cfa = CfaPlace::Expression(expression);
                return Ok(());
            }
            RememberState => {
                if self.remembered.len() >= MOST_REMEMBERED {
                    return Err(Malformed);
                }
                self.remembered.push(*state);
                return Ok(());
            }
            RestoreState => {
                *state = self.remembered.pop().ok_or(Malformed)?;
                return Ok(());
            }
            // What is signed on arm64 is told apart by the mask of addresses.
            ArgsSize { .. } | NegateRaState | Nop => return Ok(()),
            SetLoc { .. } | AdvanceLoc { .. } => return Err(Malformed),
            Undefined { register } => (register, Place::Undefined),
            SameValue { register } => (register, Place::Same),
            Offset { register, factored_offset } => {
                (register, Place::AtCfa(factored(signed(factored_offset)?)?))
            }
            OffsetExtendedSf { register, factored_offset } => {
                (register, Place::AtCfa(factored(factored_offset)?))
            }
            ValOffset { register, .. } | ValOffsetSf { register, .. } | ValExpression { register, .. } => {
                (register, Place::Elsewhere)
            }
            // `mflr r0` leaves the link register as it is, up to the next call, and before that the return address is on the stack.
            Register { dest_register, .. } if self.machine == Machine::PowerPc64Le => {
                (dest_register, Place::Same)
            }
            Register { dest_register, .. } => (dest_register, Place::Elsewhere),
            Expression { register, expression } => (register, Place::Expression(expression)),
            Restore { register } => match self.slot(entry, &mut entry.initial.clone(), register) {
                Some(initial) => (register, *initial),
                None => return Ok(()),
            },
        };
        if let Some(slot) = self.slot(entry, state, register) {
            *slot = place;
        }
        Ok(())
    }

    /// Where the state says that a register is; `None` of one that is not followed.
    fn slot<'s, S>(
        &self,
        entry: &Entry<'_, S>,
        state: &'s mut State,
        register: Register,
    ) -> Option<&'s mut Place> {
        if register == entry.return_address {
            Some(&mut state.return_address)
        } else if register == self.registers.frame {
            Some(&mut state.frame)
        } else if Some(register) == self.registers.pointer {
            Some(&mut state.pointer)
        } else {
            None
        }
    }
}
