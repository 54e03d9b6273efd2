//! The steps of a payload: the registers that each takes, and its code.

use super::detour::{ARGUMENTS, Template};
use super::emit::*;
use super::fetch::is_general;
use super::follow::{ENTERED, NOW};
use crate::Reason;
use crate::detour::*;
use crate::payload::*;

/// The registers that a detour may save, in the order of their doublewords: what counting needs, then following, then recording and timing.
const SAVED: [Gpr; 6] = [R11, R12, R9, R10, R8, R0];

/// Those of them that a payload takes.
pub(super) fn saved_for(payload: &Payload) -> &'static [Gpr] {
    let entry = payload.entry.iter().map(|step| match step {
        EntryStep::Count(_) => 4,
        EntryStep::Record { .. } | EntryStep::Fetch { .. } | EntryStep::Run(_) => 6,
    });
    let at_return = payload.followed.iter().flat_map(|followed| followed.steps.iter());
    let at_return = at_return.map(|step| match step {
        ReturnStep::Count(_) => 4,
        ReturnStep::Record { .. } | ReturnStep::Time(_) | ReturnStep::Run(_) => 6,
    });
    let followed = payload.followed.map(|_| 5);
    &SAVED[..entry.chain(at_return).chain(followed).fold(4, usize::max)]
}

/// How calls are followed, if nothing is asked for but numbers of them.
pub(super) fn only_counts(payload: &Payload) -> Option<Followed> {
    let entry = payload.entry.iter().all(|step| matches!(step, EntryStep::Count(_)));
    let at_return = |followed: &Followed| followed.steps.iter().all(|s| matches!(s, ReturnStep::Count(_)));
    payload.followed.filter(at_return).filter(|_| entry && payload.hooks.is_empty())
}

impl Template<'_> {
    /// With what counting needs saved.
    pub(super) fn hook(&mut self, hook: Hook) -> Emitted<()> {
        match hook {
            Hook::Translate(lookup) => self.translate(lookup),
            Hook::Land { code_address } => self.land(code_address),
            Hook::Gate => self.gate(),
            Hook::Share(_) | Hook::Signal(_) | Hook::Replace(_) | Hook::CalledBy(_) => {
                Err(Reason::NotImplemented)
            }
        }
    }

    /// With the thread's block, or the overflow block, in r12.
    pub(super) fn entry_step(&mut self, step: EntryStep) -> Emitted<()> {
        match step {
            EntryStep::Count(counter) => self.count(counter),
            EntryStep::Record { id, arguments } => self.record(id, |template| template.arguments(arguments)),
            EntryStep::Fetch { id } => {
                let operands = self.request.operands;
                operands.iter().take(MOST_FETCHED).flat_map(|o| o.registers()).try_for_each(is_general)?;
                self.record(id, |template| template.operands(operands));
            }
            EntryStep::Run(_) => self.run_at_entry()?,
        }
        Ok(())
    }

    /// With the block in r12. The times of the call and of its entry are in the frame for the late steps.
    pub(super) fn return_step(&mut self, step: ReturnStep) -> Emitted<()> {
        match step {
            ReturnStep::Count(counter) => self.count(counter),
            ReturnStep::Record { id } => self.record(id, Self::result),
            ReturnStep::Time(histogram) => self.latency(histogram),
            ReturnStep::Run(_) => self.run_at_return()?,
        }
        Ok(())
    }

    /// Increments a counter of the block r12. Changes r9 and r10.
    fn count(&mut self, counter: u32) {
        self.asm.add_offset(R10, R12, counter);
        self.asm.increment(R10, R9);
    }

    /// Writes a record into the ring of the block r12; `values` fills it in, at r10. Changes r0, r8, r9 and r10.
    fn record(&mut self, id: u32, values: impl FnOnce(&mut Self)) {
        let layout = self.request.layout;
        let [full, out] = [(); 2].map(|()| self.asm.label());
        self.asm.addi(R10, R12, BLOCK_RING_HEAD as i16);
        let again = self.asm.here_label();
        self.asm.load_reserved(R9, R10);
        self.asm.load(R8, R12, BLOCK_RING_TAIL as i16);
        self.asm.sub(R8, R9, R8);
        self.asm.load_constant(R0, 1 << layout.ring_bits);
        self.asm.compare_unsigned(R8, R0);
        self.asm.branch_if(When::NotLess, full);
        self.asm.addi(R8, R9, 1);
        self.asm.store_conditional(R8, R10);
        self.asm.branch_if(When::NotEqual, again);

        self.asm.extract(R10, R9, 0, layout.ring_bits);
        self.asm.shift_left(R10, R10, RECORD_SHIFT);
        self.asm.add(R10, R10, R12);
        self.asm.add_offset(R10, R10, layout.ring);
        values(self);
        self.asm.load_constant(R8, u64::from(id));
        self.asm.store_word(R8, R10, RECORD_ID as i16);
        self.thread_id(R8);
        self.asm.store_word(R8, R10, RECORD_TID as i16);
        self.slot(R8);
        self.asm.store(R8, R10, RECORD_SLOT as i16);
        // Last of all: the tool reads a record once its number stands in it.
        self.asm.addi(R9, R9, 1);
        self.asm.light_sync();
        self.asm.store(R9, R10, RECORD_SEQUENCE as i16);
        self.asm.branch(out);

        self.asm.bind(full);
        self.asm.addi(R10, R12, BLOCK_RING_LOST as i16);
        self.asm.increment(R10, R9);
        self.asm.bind(out);
    }

    /// `to` = the thread's number, or 0. The dynamic loader runs before there is a thread pointer.
    pub(super) fn thread_id(&mut self, to: Gpr) {
        self.asm.load_constant(to, 0);
        let Some(offset) = self.request.layout.tid_offset else { return };
        let none = self.asm.label();
        self.asm.compare_immediate(R13, 0);
        self.asm.branch_if(When::Equal, none);
        self.asm.add_offset(to, R13, offset as u32);
        self.asm.load_word(to, to, 0);
        self.asm.bind(none);
    }

    /// Time stamp and arguments of an entry, into the record at r10.
    fn arguments(&mut self, count: u8) {
        self.asm.read_special(R8, TIME_BASE);
        self.asm.store(R8, R10, RECORD_TIME as i16);
        let registers = ARGUMENTS.map(|number| Gpr(number.into()));
        for (n, register) in (0..).zip(registers).take(usize::from(count)) {
            let to = RECORD_VALUES as i16 + 8 * n;
            let from = match self.place_of(register) {
                Some(place) => {
                    self.asm.load(R8, R1, place);
                    R8
                }
                None => register,
            };
            self.asm.store(from, R10, to);
        }
    }

    /// Return value and times, into the record at r10.
    fn result(&mut self) {
        self.asm.load(R8, R1, NOW);
        self.asm.store(R8, R10, RECORD_TIME as i16);
        self.asm.store(R3, R10, RECORD_VALUES as i16);
        self.asm.load(R8, R1, ENTERED);
        self.asm.store(R8, R10, RECORD_VALUES as i16 + 8);
    }

    /// Adds the duration to the histogram of the block r12. Changes r8 to r11.
    fn latency(&mut self, histogram: u32) {
        let asm = &mut self.asm;
        let [forward, longest, inside, child] = [(); 4].map(|()| asm.label());
        asm.load(R9, R12, BLOCK_ORIGIN as i16);
        asm.compare_immediate(R9, 0);
        asm.branch_if(When::Equal, child);
        asm.load(R10, R1, NOW);
        asm.load(R9, R1, ENTERED);
        asm.sub(R10, R10, R9);
        // The clocks of two processors may differ by a few ticks.
        asm.compare_immediate(R10, 0);
        asm.branch_if(When::NotLess, forward);
        asm.load_constant(R10, 0);
        asm.bind(forward);
        asm.add_offset(R11, R12, histogram + LATENCY_COUNT);
        asm.increment(R11, R9);
        asm.add_offset(R11, R12, histogram + LATENCY_SUM);
        let sum = asm.here_label();
        asm.load_reserved(R9, R11);
        asm.add(R9, R9, R10);
        asm.store_conditional(R9, R11);
        asm.branch_if(When::NotEqual, sum);
        asm.add_offset(R11, R12, histogram + LATENCY_MAX);
        let max = asm.here_label();
        asm.load_reserved(R9, R11);
        asm.compare_unsigned(R9, R10);
        asm.branch_if(When::NotLess, longest);
        asm.store_conditional(R10, R11);
        asm.branch_if(When::NotEqual, max);
        asm.bind(longest);
        // The bucket, as in `latency_bucket`.
        asm.load_constant(R9, (1 << LATENCY_OCTAVES) - 1);
        asm.compare_unsigned(R10, R9);
        asm.branch_if(When::Less, inside);
        asm.copy(R10, R9);
        asm.bind(inside);
        asm.load_constant(R9, 1 << LATENCY_BITS);
        asm.or(R9, R9, R10);
        asm.count_leading_zeros(R9, R9);
        asm.load_constant(R8, u64::from(63 - LATENCY_BITS));
        asm.sub(R9, R8, R9);
        asm.shift_right_by(R10, R10, R9);
        asm.shift_left(R9, R9, LATENCY_BITS);
        asm.add(R10, R10, R9);
        asm.shift_left(R10, R10, 3);
        asm.add_offset(R11, R12, histogram + LATENCY_BUCKETS);
        asm.add(R11, R11, R10);
        asm.increment(R11, R9);
        asm.bind(child);
    }
}
