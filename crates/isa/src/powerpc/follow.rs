//! The call-paired return: the return instance at the entry, and the way home.
//!
//! # Where the return point is found
//!
//! Who takes a probe away, or looks for a followed call's place on the stack, must know where its return point can be: in lr,
//! until the function has saved it and again before it returns; in the register that carries it to and from memory; and
//! in between in the LR save doubleword of the caller's frame, which is at 16 bytes from the slot. The return
//! verdict refuses functions that take it elsewhere.

use super::detour::{SAVED_LR, Template};
use super::emit::*;
use super::runtime::Routine;
use crate::detour::*;
use crate::payload::*;

/// Doublewords of the frame for the time of the return and the time of the entry.
pub(super) const NOW: i16 = scratch(9);
pub(super) const ENTERED: i16 = scratch(10);

impl Template<'_> {
    /// r11 = the instance of the slot r8, if its page has the shadow block of its hash; or off to `missing`. Changes r9, r10 and cr0.
    fn instance(&mut self, missing: Label) {
        let layout = self.request.layout;
        let asm = &mut self.asm;
        asm.extract(R9, R8, STACK_PAGE_SHIFT, 64 - STACK_PAGE_SHIFT);
        asm.load_constant(R10, u64::from(HASH_FACTOR));
        asm.multiply(R11, R9, R10);
        asm.extract(R11, R11, 32 - layout.return_bits, layout.return_bits);
        asm.load_constant(R10, layout.block_size());
        asm.multiply(R11, R11, R10);
        asm.load_constant(R10, layout.shadow_block(0));
        asm.add(R11, R11, R10);
        asm.load(R10, R11, SHADOW_TAG as i16);
        asm.compare(R10, R9);
        asm.branch_if(When::NotEqual, missing);
        asm.extract(R9, R8, layout.slot_shift, STACK_PAGE_SHIFT - layout.slot_shift);
        asm.shift_left(R9, R9, RETURN_SHIFT);
        asm.add(R11, R11, R9);
        asm.addi(R11, R11, SHADOW_INSTANCES as i16);
    }

    /// Fills in the return instance, moves the return address into it, and calls the displaced code. Returns the offset of
    /// the return point, which comes next.
    ///
    /// Plain stores do: a signal handler's calls have slots of their own.
    pub(super) fn follow(&mut self, followed: &Followed, displaced: Label) -> Emitted<u32> {
        let [taken, claimed, lost, next] = [(); 4].map(|()| self.asm.label());
        if !followed.follows_all() {
            self.asm.compare_immediate(R11, 0);
            self.asm.branch_if(When::Equal, lost);
        }
        self.slot(R8);
        self.instance(taken);
        self.asm.load(R10, R11, RETURN_POINT as i16);
        self.asm.compare_immediate(R10, 0);
        self.asm.branch_if(When::NotEqual, taken);
        self.asm.read_special(R10, LR);
        self.asm.bind(claimed);
        self.asm.store(R10, R11, RETURN_ADDRESS as i16);
        self.asm.load_address(R9, self.return_point);
        self.asm.store(R9, R11, RETURN_POINT as i16);
        if followed.needs().entered {
            self.asm.read_special(R9, TIME_BASE);
            self.asm.store(R9, R11, RETURN_ENTERED as i16);
        }
        self.restore();
        self.asm.branch(next);

        self.asm.bind(taken);
        self.comment("the instance is not at hand");
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.call_to(Routine::Claim.address(self.request.runtime)?)?;
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::NotEqual, claimed);
        self.asm.bind(lost);
        self.asm.load_constant(R10, self.request.layout.blocks + u64::from(followed.lost));
        self.asm.increment(R10, R9);
        self.restore();
        self.asm.branch(displaced);

        self.asm.bind(next);
        self.asm.call(displaced);
        self.asm.bind(self.return_point);
        Ok(self.asm.offset())
    }

    /// From the return point to the second `blr`.
    pub(super) fn returned(&mut self, followed: &Followed) -> Emitted<()> {
        self.comment("return point: the function is done");
        let [slow, counted, elsewhere, found, home, nowhere] = [(); 6].map(|()| self.asm.label());
        let needs = followed.needs();
        self.save();
        if needs.time {
            self.asm.read_special(R10, TIME_BASE);
            self.asm.store(R10, R1, NOW);
        }
        self.find_thread(slow);
        self.asm.bind(counted);
        followed.early().for_each(|step| self.return_step(step));
        self.slot(R8);
        self.instance(elsewhere);
        self.asm.load_address(R9, self.return_point);
        self.asm.load(R10, R11, RETURN_POINT as i16);
        self.asm.compare(R10, R9);
        self.asm.branch_if(When::NotEqual, elsewhere);
        self.asm.load(R10, R11, RETURN_OLDER as i16);
        self.asm.compare_immediate(R10, 0);
        self.asm.branch_if(When::NotEqual, elsewhere);

        self.asm.bind(found);
        self.asm.load(R10, R11, RETURN_ADDRESS as i16);
        self.asm.write_special(LR, R10);
        // Free, with a 0 that is made of what was loaded: so not before it was, and somebody else may take it.
        self.asm.sub(R9, R10, R10);
        if needs.entered {
            self.asm.load(R8, R11, RETURN_ENTERED as i16);
            self.asm.store(R8, R1, ENTERED);
            self.asm.sub(R8, R8, R8);
            self.asm.or(R9, R9, R8);
        }
        self.asm.store(R9, R11, RETURN_POINT as i16);
        followed.late().for_each(|step| self.return_step(step));
        self.asm.bind(home);
        self.restore();
        self.comment("home; lr is the caller's return address");
        self.asm.return_();

        self.asm.bind(slow);
        self.resolve(counted)?;

        self.asm.bind(elsewhere);
        self.comment("the instance is not at hand");
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.call_to(Routine::Leave.address(self.request.runtime)?)?;
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::NotEqual, found);
        // No instance: somebody has put the real address into lr. If not, there is no address to go to.
        self.asm.load(R9, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.compare(R9, R10);
        self.asm.branch_if(When::Equal, nowhere);
        self.asm.write_special(LR, R9);
        self.asm.branch(home);
        self.asm.bind(nowhere);
        self.asm.trap();
        Ok(())
    }
}
