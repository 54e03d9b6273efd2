//! The call-paired return: the return instance at the entry, and the way home.
//!
//! # Where the return point is found
//!
//! Who takes a probe away, or looks for a followed call's place on the stack, must know where its return point can be: in lr,
//! until the function has saved it and again before it returns; in the register that carries it to and from memory; and
//! in between in the LR save doubleword of the caller's frame, which is at 16 bytes from the slot. The return
//! verdict refuses functions that take it elsewhere.
//!
//! Where nothing is asked for but numbers of calls and returns, it is done with less: [`super::count`].

use super::detour::{SAVED_LR, Template};
use super::emit::*;
use super::runtime::Routine;
use crate::detour::*;
use crate::payload::*;

/// Doublewords of the frame for the time of the return and the time of the entry.
pub(super) const NOW: i16 = scratch(9);
pub(super) const ENTERED: i16 = scratch(10);

/// Where r11 is kept while a routine is asked.
const KEPT_ENTRY: i16 = scratch(11);
/// Where the return has the entry of the thread table that is looked at first for whoever returns, less its low part.
pub(super) const NOTED: i16 = scratch(0);

impl Template<'_> {
    /// `place` = the place of the instance of the slot that `named` is, or is the name of, less what is returned, if its page has the shadow
    /// block that it is given first, as in [`fold`]. Changes `temporary`.
    pub(super) fn instance_at(&mut self, place: Gpr, named: Gpr, temporary: Gpr) -> i16 {
        let layout = self.request.layout;
        let asm = &mut self.asm;
        asm.extract(place, named, SHADOW_FOLD, 64 - SHADOW_FOLD);
        asm.xor(place, place, named);
        let bits = STACK_PAGE_SHIFT - layout.slot_shift + layout.return_bits;
        asm.move_bits(place, place, layout.slot_shift, RETURN_SHIFT, bits);
        asm.add_constant_but_low(place, temporary, layout.shadow_block(0), RETURN_SHIFT + bits)
    }

    /// r9 = the name of the call's slot, and `to` = the place of its instance. Changes r10.
    fn instance(&mut self, to: Gpr) -> i16 {
        self.asm.addi(R9, R1, slot_name(FRAME as u64) as i16);
        self.instance_at(to, R9, R10)
    }

    /// Fills in the return instance, moves the return address into it, and calls the displaced code. Returns the offset of
    /// the return point, which comes next. r11 is the thread's entry; `taken` is where the instance is not free, and `claimed` where another
    /// one is known, in r12; `lost` is where the call is not followed.
    ///
    /// Plain stores do: a signal handler's calls have slots of their own.
    pub(super) fn follow(
        &mut self,
        followed: &Followed,
        displaced: Label,
        [taken, claimed, lost]: [Label; 3],
    ) -> u32 {
        if !followed.follows_all() {
            self.asm.compare_immediate(R11, 0);
            self.asm.branch_if(When::Equal, lost);
        }
        let low = self.instance(R12);
        self.asm.load(R10, R12, low + RETURN_POINT as i16);
        self.asm.compare(R10, R9);
        self.asm.branch_if(When::NotEqual, taken);
        self.asm.bind(claimed);
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R12, low + RETURN_ADDRESS as i16);
        // lr is the return point's as soon as the displaced code is called, and ahead of that: where r1 is the program's, unwinders ask for it.
        self.stands_nowhere();
        self.asm.load_address_by_link(R9, self.return_point);
        self.asm.store(R9, R12, low + RETURN_POINT as i16);
        self.asm.write_special(LR, R9);
        self.stands(FRAME);
        if followed.needs().entered {
            self.asm.read_special(R9, TIME_BASE);
            self.asm.store(R9, R12, low + RETURN_ENTERED as i16);
        }
        self.restore();
        self.asm.call(displaced);
        self.asm.bind(self.return_point);
        self.asm.offset()
    }

    /// What [`Self::follow`] does not find at hand.
    pub(super) fn claim(
        &mut self,
        followed: &Followed,
        displaced: Label,
        [taken, claimed, lost]: [Label; 3],
    ) -> Emitted<()> {
        let low = low_part(self.request.layout.shadow_block(0));
        self.asm.bind(taken);
        self.stands_nowhere();
        self.comment("the instance is not at hand");
        self.asm.addi(R8, R9, -1);
        self.asm.store(R11, R1, KEPT_ENTRY);
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.call_to(Routine::Claim.address(self.request.runtime)?)?;
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        self.asm.addi(R12, R11, -low);
        self.asm.compare_immediate(R11, 0);
        self.asm.load(R11, R1, KEPT_ENTRY);
        self.asm.branch_if(When::NotEqual, claimed);
        self.asm.bind(lost);
        self.asm.load_constant(R10, self.request.layout.blocks + u64::from(followed.lost));
        self.asm.increment(R10, R9);
        self.restore();
        self.asm.branch(displaced);
        Ok(())
    }

    /// From the return point to the second `blr`.
    pub(super) fn returned(&mut self, followed: &Followed) -> Emitted<()> {
        self.comment("return point: the function is done");
        let [slow, counted, elsewhere, freed, home] = [(); 5].map(|()| self.asm.label());
        let needs = followed.needs();
        self.save();
        if needs.time {
            self.asm.read_special(R10, TIME_BASE);
            self.asm.store(R10, R1, NOW);
        }
        let low_of_entry = self.find_thread(slow);
        self.asm.bind(counted);
        followed.early().try_for_each(|step| self.return_step(step))?;
        let low = self.instance(R11);
        self.asm.load(R10, R11, low + RETURN_OLDER as i16);
        self.asm.compare(R10, R9);
        self.asm.branch_if(When::NotEqual, elsewhere);
        // A function that has come back by `blr` has left its return point in lr.
        self.asm.load(R10, R11, low + RETURN_POINT as i16);
        self.asm.read_special(R8, LR);
        self.asm.compare(R10, R8);
        self.asm.branch_if(When::NotEqual, elsewhere);
        self.asm.load(R10, R11, low + RETURN_ADDRESS as i16);
        self.asm.write_special(LR, R10);
        self.home_in_r0(R8);
        self.entered(followed, low);
        // Whoever only counts finds it there.
        self.asm.load(R10, R1, NOTED);
        self.asm.addi(R10, R10, low_of_entry);
        self.asm.store(R10, R11, low + RETURN_ENTERED as i16);
        self.asm.store(R9, R11, low + RETURN_POINT as i16);
        self.asm.bind(freed);
        followed.late().try_for_each(|step| self.return_step(step))?;
        self.asm.bind(home);
        self.restore();
        self.comment("home; lr is the caller's return address");
        self.asm.return_();

        self.asm.bind(slow);
        self.stands_nowhere();
        self.comment("the thread is not where it was looked for");
        self.resolve(counted)?;
        self.leave(followed, elsewhere, freed, home)
    }

    /// Functions come by r0 to their return address, and leave it there. Where that is kept, it becomes the real one in the place of the return point, as it is
    /// without a probe: what lies in a frame of ours stays behind on the stack, and would look like a way into our memory. r10 is the
    /// caller's return address. Changes r0.
    fn home_in_r0(&mut self, point: Gpr) {
        let Some(place) = self.place_of(R0) else { return };
        let other = self.asm.label();
        self.asm.load(R0, R1, place);
        self.asm.compare(R0, point);
        self.asm.branch_if(When::NotEqual, other);
        self.asm.store(R10, R1, place);
        self.asm.bind(other);
    }

    /// r8 = what was noted at the entry, if anything was; for the late steps it is in the frame.
    fn entered(&mut self, followed: &Followed, low: i16) {
        if followed.needs().entered {
            self.asm.load(R8, R11, low + RETURN_ENTERED as i16);
            self.asm.store(R8, R1, ENTERED);
        }
    }

    /// What is done with the instance at hand, with one that the runtime finds; without one, lr has the real address, and it goes on at
    /// `unknown`.
    fn leave(&mut self, followed: &Followed, elsewhere: Label, freed: Label, unknown: Label) -> Emitted<()> {
        let [none, nowhere] = [(); 2].map(|()| self.asm.label());
        self.asm.bind(elsewhere);
        self.comment("the instance is not at hand");
        self.asm.addi(R8, R9, -1);
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.call_to(Routine::Leave.address(self.request.runtime)?)?;
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::Equal, none);
        self.asm.load(R10, R11, RETURN_ADDRESS as i16);
        self.asm.write_special(LR, R10);
        self.asm.load(R9, R1, SAVED_LR);
        self.home_in_r0(R9);
        // Free, with a 0 that is made of what was loaded: so not before it was, and somebody else may take it.
        self.asm.sub(R9, R10, R10);
        self.entered(followed, 0);
        if followed.needs().entered {
            self.asm.sub(R10, R8, R8);
            self.asm.or(R9, R9, R10);
        }
        self.asm.store(R9, R11, RETURN_POINT as i16);
        self.asm.branch(freed);
        // No instance: somebody has put the real address into lr. If not, there is no address to go to.
        self.asm.bind(none);
        self.asm.load(R9, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.compare(R9, R10);
        self.asm.branch_if(When::Equal, nowhere);
        self.asm.write_special(LR, R9);
        self.asm.branch(unknown);
        self.asm.bind(nowhere);
        self.asm.trap();
        Ok(())
    }
}
