//! Runs the programs of unwind entries and keeps what they say of the registers that are followed.
//!
//! A program is a list of instructions that moves on through a function and says what changes (DWARF 5, 6.4.2). The state is small and
//! copied freely: [`State`] has nothing that grows.

use std::{collections::HashMap, ops::Range};

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, CommonInformationEntry,
    Encoding, Register, UnwindExpression, UnwindOffset, UnwindSection,
};

use super::{
    Cfa, FrameRule, Rule, Saved, UnknownRule, UnwindBase,
    expression::{Shape, shape},
};
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
struct Registers {
    stack: Register,
    frame: Register,
    pointer: Option<Register>,
    return_address: Register,
    /// The return address is in a register when a function is entered.
    has_link: bool,
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
enum Place {
    Unsaid,
    Undefined,
    Same,
    AtCfa(i64),
    Expression(UnwindExpression<usize>),
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CfaPlace {
    Unsaid,
    Register(Register, i64),
    Expression(UnwindExpression<usize>),
}

/// What a program has said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    cfa: CfaPlace,
    return_address: Place,
    frame: Place,
    pointer: Place,
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

/// Where a CFA is found.
enum Found {
    /// By the same rule everywhere, from this register.
    Cfa(Cfa, Register),
    /// By the stub's byte: see [`Shape::Plt`].
    Plt { offset: i32, pushed: u64 },
}

/// A program makes no sense.
#[derive(Clone, Copy, Debug)]
struct Malformed;

/// Collects rows and rules.
pub(super) struct Compiler {
    machine: Machine,
    registers: Registers,
    /// Addresses and rules.
    pub(super) rows: Vec<(u64, u32)>,
    pub(super) rules: Vec<Rule>,
    numbers: HashMap<Rule, u32>,
    spans: Vec<Span>,
    /// Bytes of stubs that may still become rows; sound entries do not tell of more code than there is.
    stubs: u64,
    remembered: Vec<State>,
}

/// What does not change within an entry.
struct Entry<'a, S> {
    section: &'a S,
    encoding: Encoding,
    code_alignment: u64,
    data_alignment: i64,
    return_address: Register,
    is_signal: bool,
    range: Range<u64>,
    initial: State,
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
    /// # Errors
    /// Where it ends early, because what follows cannot be read.
    pub(super) fn read<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
    ) -> Result<(), String> {
        // Thousands of entries share a handful of CIEs.
        let mut known: HashMap<usize, Common<'b>> = HashMap::new();
        let mut entries = section.entries(bases);
        let told = |error: gimli::Error| format!("unwind table: {error}");
        while let Some(entry) = entries.next().map_err(told)? {
            let CieOrFde::Fde(partial) = entry else { continue };
            let parsed = partial.parse(|section, bases, offset| {
                if let Some(common) = known.get(&UnwindOffset::into(offset)) {
                    return Ok(common.cie.clone());
                }
                section.cie_from_offset(bases, offset)
            });
            let fde = parsed.map_err(told)?;
            let cie = fde.cie();
            let range = fde.initial_address()..fde.end_address();
            if range.is_empty() {
                continue;
            }
            let mut entry = Entry {
                section,
                encoding: cie.encoding(),
                code_alignment: cie.code_alignment_factor(),
                data_alignment: cie.data_alignment_factor(),
                return_address: cie.return_address_register(),
                is_signal: fde.is_signal_trampoline(),
                range: range.clone(),
                initial: NOTHING_SAID,
            };
            let common = known.entry(cie.offset()).or_insert_with(|| {
                let program = cie.instructions(section, bases);
                Common { cie: cie.clone(), state: self.initial(&entry, program) }
            });
            let first = self.rows.len();
            let program = fde.instructions(section, bases);
            match common.state {
                Ok(state) => {
                    entry.initial = state;
                    self.run(&entry, program);
                }
                Err(Malformed) => {
                    let number = self.number(Rule::Unknown(UnknownRule::Damaged));
                    self.rows.push((range.start, number));
                }
            }
            self.spans.push(Span { range, rows: first..self.rows.len() });
        }
        Ok(())
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

    /// Adds the rows of a range in which nothing changes.
    fn emit<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        entry: &Entry<'_, S>,
        state: &State,
        range: Range<u64>,
    ) {
        if range.is_empty() {
            return;
        }
        let rule = match self.cfa(entry, state) {
            Ok(Found::Cfa(cfa, register)) => self.rule(entry, state, cfa, register),
            Ok(Found::Plt { offset, pushed }) => return self.emit_stubs(entry, state, range, offset, pushed),
            Err(why) => Rule::Unknown(why),
        };
        let number = self.number(rule);
        self.rows.push((range.start, number));
    }

    /// Adds the rows of stubs, in each of which a word is pushed at the same byte.
    fn emit_stubs<'b, S: UnwindSection<Reader<'b>>>(
        &mut self,
        entry: &Entry<'_, S>,
        state: &State,
        range: Range<u64>,
        offset: i32,
        pushed: u64,
    ) {
        let word = i32::from(entry.encoding.address_size);
        let base = UnwindBase::Stack;
        let number_of = |compiler: &mut Self, offset| {
            let rule = compiler.rule(entry, state, Cfa::Register { base, offset }, compiler.registers.stack);
            compiler.number(rule)
        };
        let before = number_of(self, offset);
        let behind = number_of(self, offset.saturating_add(word));
        let mut at = range.start;
        while at < range.end {
            if self.stubs == 0 {
                let number = self.number(Rule::Unknown(UnknownRule::Damaged));
                self.rows.push((at, number));
                return;
            }
            let is_behind = at & 15 >= pushed;
            self.rows.push((at, if is_behind { behind } else { before }));
            let stub = at & !15;
            let Some(next) = stub.checked_add(if is_behind { 16 } else { pushed }) else { return };
            self.stubs = self.stubs.saturating_sub(next - at);
            at = next;
        }
    }

    fn base(&self, register: Register) -> Option<UnwindBase> {
        if register == self.registers.stack {
            Some(UnwindBase::Stack)
        } else if register == self.registers.frame {
            Some(UnwindBase::Frame)
        } else if Some(register) == self.registers.pointer {
            Some(UnwindBase::Pointer)
        } else {
            None
        }
    }

    fn shape<'b, S: UnwindSection<Reader<'b>>>(
        &self,
        entry: &Entry<'_, S>,
        expression: UnwindExpression<usize>,
    ) -> Shape {
        // On x86 the return address's column is the instruction pointer's.
        let found = expression.get(entry.section);
        found.map_or(Shape::Other, |found| shape(found, entry.encoding, self.registers.return_address))
    }

    fn cfa<'b, S: UnwindSection<Reader<'b>>>(
        &self,
        entry: &Entry<'_, S>,
        state: &State,
    ) -> Result<Found, UnknownRule> {
        let distance = |offset: i64| i32::try_from(offset).map_err(|_| UnknownRule::Distance);
        let shape = match state.cfa {
            CfaPlace::Unsaid => return Err(UnknownRule::Damaged),
            CfaPlace::Register(register, offset) => Shape::Register(register, offset),
            CfaPlace::Expression(expression) => match self.shape(entry, expression) {
                // The expression's value is the CFA: the register's, and an offset.
                known @ (Shape::Register(..) | Shape::Memory(..) | Shape::Plt { .. }) => known,
                Shape::Other => return Err(UnknownRule::Expression),
            },
        };
        let (register, cfa) = match shape {
            Shape::Plt { register, offset, pushed } if register == self.registers.stack => {
                return Ok(Found::Plt { offset: distance(offset)?, pushed });
            }
            Shape::Register(register, offset) => {
                let other = || u8::try_from(register.0).ok().filter(|&number| number < UnwindBase::MOST);
                let base = self.base(register).or_else(|| other().map(UnwindBase::Other));
                let (base, offset) = (base.ok_or(UnknownRule::Register)?, distance(offset)?);
                if self.machine == Machine::PowerPc64Le && (base, offset) != (UnwindBase::Stack, 0) {
                    (register, Cfa::Memory { base: UnwindBase::Stack, offset: 0, plus: 0 })
                } else {
                    (register, Cfa::Register { base, offset })
                }
            }
            Shape::Memory(register, offset, plus) => {
                let base = self.base(register).ok_or(UnknownRule::Register)?;
                let plus = i16::try_from(plus).map_err(|_| UnknownRule::Distance)?;
                (register, Cfa::Memory { base, offset: distance(offset)?, plus })
            }
            Shape::Plt { .. } => return Err(UnknownRule::Register),
            Shape::Other => return Err(UnknownRule::Expression),
        };
        Ok(Found::Cfa(cfa, register))
    }

    /// The rule of a state whose CFA is found from `register`.
    fn rule<'b, S: UnwindSection<Reader<'b>>>(
        &self,
        entry: &Entry<'_, S>,
        state: &State,
        cfa: Cfa,
        register: Register,
    ) -> Rule {
        let word = i32::from(entry.encoding.address_size);
        let is_empty = cfa == Cfa::Register { base: UnwindBase::Stack, offset: word };
        let saved = |place: Place| {
            let short = |offset: i64| {
                // The ends of the range mean something else in memory.
                i16::try_from(offset).ok().filter(|offset| offset.unsigned_abs() < i16::MAX as u16)
            };
            match place {
                Place::Unsaid | Place::Same | Place::Undefined => Saved::Unchanged,
                Place::AtCfa(offset) => short(offset).map_or(Saved::Lost, Saved::AtCfa),
                // In front of its `ret` a function that has aligned its stack has everything restored, but gcc's entry does not say so.
                Place::Expression(_) if is_empty => Saved::Unchanged,
                Place::Expression(expression) => match self.shape(entry, expression) {
                    Shape::Register(base, offset) if base == register && base == self.base_of(cfa) => {
                        short(offset).map_or(Saved::Lost, Saved::AtBase)
                    }
                    _ => Saved::Lost,
                },
                Place::Elsewhere => Saved::Lost,
            }
        };
        let return_address = match state.return_address {
            Place::Undefined => return Rule::End,
            Place::Unsaid | Place::Same if self.registers.has_link => Saved::Unchanged,
            Place::Unsaid | Place::Same => return Rule::Unknown(UnknownRule::ReturnAddress),
            place => match saved(place) {
                Saved::Lost | Saved::Unchanged => return Rule::Unknown(UnknownRule::ReturnAddress),
                found => found,
            },
        };
        Rule::Frame(FrameRule {
            cfa,
            return_address,
            frame_pointer: saved(state.frame),
            base_pointer: saved(state.pointer),
            interrupted: entry.is_signal.then_some(Saved::Unchanged),
        })
    }

    fn base_of(&self, cfa: Cfa) -> Register {
        let (Cfa::Register { base, .. } | Cfa::Memory { base, .. }) = cfa;
        match base {
            UnwindBase::Stack => self.registers.stack,
            UnwindBase::Frame => self.registers.frame,
            UnwindBase::Pointer => self.registers.pointer.unwrap_or(self.registers.stack),
            UnwindBase::Other(number) => Register(number.into()),
        }
    }

    /// The number of a rule.
    fn number(&mut self, rule: Rule) -> u32 {
        let rules = &mut self.rules;
        *self.numbers.entry(rule).or_insert_with(|| {
            rules.push(rule);
            rules.len() as u32 - 1
        })
    }
}
