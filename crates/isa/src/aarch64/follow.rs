//! The call-paired return: the return instance at the entry, and the way home.
//!
//! # Which calls share a slot
//! See [`crate::detour::memory`] for the protocol. The slot is sp at the entry, where on x86 the return address would
//! be. So calls that are followed at the same time can have the same slot, in two cases.
//!
//! A tail call, or a jump back to the function's own entry: it is known by its x30, which is the return point
//! of the instance that is there.
//!
//! A call by a function that keeps its return address in a register and does not move sp. [`super::returns`]
//! refuses to follow those, but a followed function may end in a tail call to one (`rawmemchr`, which calls
//! `strlen`). It is known by that register, which holds the return point.
//!
//! In any other case the instance was left behind, and the latest call wins.
//!
//! # What only counts
//! Where nothing is asked for but numbers of calls and returns, four registers do, and the thread is looked for once: the entry notes
//! the thread's entry of the thread table in the instance, where a time would stand, and the return counts in the block that is there.
//! If another thread returns, since a coroutine has moved, it adds to the block of the one that has called: additions are atomic, and
//! numbers are summed up over all blocks. A forked child finds the entry wiped, and asks the runtime for its own.
//!
//! The instance is freed before that is counted and after all was read: a handler's calls lie below, at other slots.

use super::count::{add_at, add_one};
use super::decode::hint;
use super::detour::{Slow, Template};
use super::emit::{Label, instruction as a};
use super::frame::register::*;
use super::runtime;
use super::steps::Saved;
use crate::detour::*;
use crate::payload::*;

/// The first word of the frame that is free while four registers of eight are saved.
pub(super) const SPARE: u32 = 32;

/// The registers of a followed call.
#[derive(Clone, Copy)]
struct Roles {
    /// The slot, or its name.
    slot: u32,
    /// The instance.
    place: u32,
}

impl Template<'_> {
    fn roles(&self) -> Roles {
        match self.saved {
            Saved::FourOfEight => Roles { slot: ADDRESS, place: BLOCK },
            _ => Roles { slot: SLOT, place: PLACE },
        }
    }

    /// Whether nothing but numbers is asked for.
    fn only_counts(&self) -> bool {
        self.saved == Saved::FourOfEight
    }

    /// Up to and including the call of `body`. Returns the return point.
    pub(super) fn paired_entry(
        &mut self,
        entry: &Steps<EntryStep>,
        followed: &Followed,
        signed: bool,
        body: Label,
    ) -> Emitted<Label> {
        let [claim, claimed, lost, point] = core::array::from_fn(|_| self.code.label());
        self.save();
        self.find_thread(if self.only_counts() { STATUS } else { BLOCK });
        if signed {
            self.code.emit([a::hint(hint::XPACLRI)]);
            self.is_stripped = true;
            self.stands_nowhere();
        }
        if !self.only_counts() {
            self.code.emit([a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        }
        entry.iter().try_for_each(|step| self.entry_step(step, true))?;
        self.comment("claim a return instance");
        let place = self.roles().place;
        self.name_slot();
        self.instance();
        self.code.emit([a::ldr(TEMPORARY, place, RETURN_POINT)]);
        self.unless_name(claim);
        self.code.bind(claimed);
        if followed.needs().entered {
            self.code.emit([a::mrs_time(TIME), a::str(TIME, place, RETURN_ENTERED)]);
        } else if self.only_counts() {
            self.code.emit([a::str(STATUS, place, RETURN_ENTERED)]);
        }
        self.code.emit_to(a::adr(TEMPORARY), point);
        self.code.emit([a::stp(TEMPORARY, LINK, place, RETURN_POINT as i32)]);
        self.restore();
        self.code.emit_to(0x9400_0000, body);
        self.code.bind(point);
        self.off_path(claim, claimed, Slow::Claim { lost });
        self.off_path(lost, body, Slow::Lost { counter: followed.lost });
        Ok(point)
    }

    /// The slot's register = its name, if it need not be more than that.
    fn name_slot(&mut self) {
        if self.only_counts() {
            let name = slot_name(self.saved.size() as u64) as u32;
            self.code.emit([a::add_immediate(self.roles().slot, SP, name)]);
        }
    }

    /// The place's register = where the instance of the slot is, if its page has the shadow block that it is given first: as in
    /// [`fold`]. The slot may be its name: the last four bits make no difference. Changes `TEMPORARY`.
    fn instance(&mut self) {
        let Roles { slot, place } = self.roles();
        let shift = super::SLOT_SHIFT;
        self.code.emit([
            a::eor_shifted_right(TEMPORARY, slot, slot, SHADOW_FOLD),
            a::ubfx(TEMPORARY, TEMPORARY, shift, STACK_PAGE_SHIFT - shift + self.layout.return_bits),
        ]);
        self.code.constant(place, self.layout.shadow_block(0));
        self.code.emit([a::add(place, place, TEMPORARY, RETURN_SHIFT)]);
    }

    /// Off to `missing` unless `TEMPORARY` is the slot's name. Changes it.
    fn unless_name(&mut self, missing: Label) {
        let slot = self.roles().slot;
        self.code.emit([a::eor(TEMPORARY, TEMPORARY, slot)]);
        if !self.only_counts() {
            // The slot is even.
            self.code.emit([a::sub_immediate(TEMPORARY, TEMPORARY, 1)]);
        }
        self.code.emit_to(a::cbnz(TEMPORARY), missing);
    }

    /// From the return point to the return.
    pub(super) fn at_return(&mut self, followed: &Followed, point: Label) -> Emitted<()> {
        let [leave, freed] = core::array::from_fn(|_| self.code.label());
        let needs = followed.needs();
        self.comment("return point");
        self.save();
        if needs.time {
            self.code.emit([a::mrs_time(TIME)]);
        }
        let Roles { slot, place } = self.roles();
        if !self.only_counts() {
            self.find_thread(BLOCK);
            self.code.emit([a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        }
        self.comment("find the return instance");
        self.name_slot();
        self.instance();
        self.code.emit([a::ldr(TEMPORARY, place, RETURN_OLDER)]);
        self.unless_name(leave);
        self.code.emit([a::ldp(TEMPORARY, LINK, place, RETURN_POINT as i32)]);
        self.code.emit_to(a::adr(STATUS), point);
        self.code.emit([a::eor(TEMPORARY, TEMPORARY, STATUS)]);
        self.code.emit_to(a::cbnz(TEMPORARY), leave);
        if needs.entered {
            self.code.emit([a::ldr(ENTERED, place, RETURN_ENTERED)]);
        }
        if self.only_counts() {
            self.code.emit([a::ldr(STATUS, place, RETURN_ENTERED), a::str(slot, place, RETURN_POINT)]);
        } else {
            self.code.emit([a::orr_bit(TEMPORARY, slot, 0), a::str(TEMPORARY, place, RETURN_POINT)]);
        }
        self.code.bind(freed);
        if self.only_counts() {
            let [orphan, known] = core::array::from_fn(|_| self.code.label());
            self.code.emit([a::ldr(BLOCK, STATUS, THREAD_BLOCK)]);
            self.code.emit_to(a::cbz(BLOCK), orphan);
            self.code.bind(known);
            self.off_path(orphan, known, Slow::Orphan);
        }
        self.off_path(leave, freed, Slow::Leave { point });
        followed.steps.iter().try_for_each(|step| self.return_step(step))?;
        self.restore();
        self.code.emit([a::RET]);
        Ok(())
    }

    /// The instance from the runtime, or off to `lost`.
    pub(super) fn claim_elsewhere(&mut self, lost: Label) -> Emitted<()> {
        self.comment("the instance is not free");
        self.save_rest();
        self.code.emit([a::mov(ENTERED, LINK)]);
        self.routine(runtime::CLAIM)?;
        self.code.emit([a::mov(LINK, ENTERED)]);
        self.restore_rest();
        self.code.emit_to(a::cbz(self.roles().place), lost);
        Ok(())
    }

    /// The call is not followed.
    pub(super) fn lost(&mut self, counter: u32) -> Emitted<()> {
        self.comment("not followed");
        if self.only_counts() {
            let known = self.code.label();
            self.code.emit([a::ldr(BLOCK, STATUS, THREAD_BLOCK)]);
            self.code.emit_to(a::cbnz(BLOCK), known);
            self.resolve_again()?;
            self.code.bind(known);
            add_at(&mut self.code, counter, BLOCK);
        } else {
            add_one(&mut self.code, counter);
        }
        self.restore();
        Ok(())
    }

    /// What is done with the instance at hand, with one that the runtime has found. It may be one of the pool: whoever finds that free takes
    /// it, so the 0 depends on all that was read there.
    pub(super) fn leave_elsewhere(&mut self, point: Label) -> Emitted<()> {
        self.comment("the instance is not at hand");
        self.save_rest();
        self.code.emit_to(a::adr(ADDRESS), point);
        self.routine(runtime::LEAVE)?;
        self.restore_rest();
        let place = self.roles().place;
        let entered = if self.only_counts() { STATUS } else { ENTERED };
        self.code.emit([
            a::ldp(LINK, entered, place, RETURN_ADDRESS as i32),
            a::eor(TEMPORARY, LINK, LINK),
            a::eor(ADDRESS, entered, entered),
            a::orr(TEMPORARY, TEMPORARY, ADDRESS),
            a::str(TEMPORARY, place, RETURN_POINT),
        ]);
        Ok(())
    }

    /// The routines' registers, in the frame's other half where only four were saved, with the slot in its own.
    fn save_rest(&mut self) {
        if self.only_counts() {
            self.code.emit([
                a::stp(13, 14, SP, 32),
                a::stp(15, 16, SP, 48),
                a::sub_immediate(SLOT, ADDRESS, 1),
            ]);
        }
    }

    /// Has the instance where it is looked for, and the registers as they were.
    fn restore_rest(&mut self) {
        if self.only_counts() {
            self.code.emit([a::mov(BLOCK, PLACE), a::ldp(15, 16, SP, 48), a::ldp(13, 14, SP, 32)]);
        }
    }

    /// `BLOCK` = the block of whoever returns: he was forked since the call, and his thread table was wiped.
    pub(super) fn resolve_again(&mut self) -> Emitted<()> {
        self.comment("a child that was forked since");
        self.code.emit([a::mrs_thread_pointer(TEMPORARY)]);
        self.resolve(BLOCK)
    }
}
