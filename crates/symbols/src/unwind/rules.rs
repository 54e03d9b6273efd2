//! From what a program has said to rules and rows.

use std::ops::Range;

use gimli::{Register, UnwindExpression, UnwindSection};

use super::{
    Cfa, FrameRule, Rule, Saved, UnknownRule, UnwindBase,
    expression::{Shape, shape},
    program::{CfaPlace, Compiler, Entry, Place, State},
};
use crate::{Machine, frames::Reader};

/// Where a CFA is found.
enum Found {
    /// By the same rule everywhere, from this register.
    Cfa(Cfa, Register),
    /// By the stub's byte: see [`Shape::Plt`].
    Plt { offset: i32, pushed: u64 },
}

impl Compiler {
    /// Adds the rows of a range in which nothing changes.
    pub(super) fn emit<'b, S: UnwindSection<Reader<'b>>>(
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
    pub(super) fn number(&mut self, rule: Rule) -> u32 {
        let rules = &mut self.rules;
        *self.numbers.entry(rule).or_insert_with(|| {
            rules.push(rule);
            rules.len() as u32 - 1
        })
    }
}
