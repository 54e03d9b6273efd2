//! Where nothing is asked for but numbers: of hits, or of calls and their returns.
//!
//! # Registers
//!
//! Four do, which are two pairs: a pair is stored and loaded by one instruction. cr0, which no store-conditional leaves alone, waits in one of
//! them, and goes to memory only while a routine is asked.
//!
//! # Without a frame
//!
//! The pairs lie below what functions use, in what the kernel leaves alone besides when it calls a handler ([`super::emit`]). So a frame is made
//! only where it does something: it ends walks where lr is neither the program's nor a return point whose instance is filled in. Those are the
//! routines, and the two instructions of the entry that fill it in. Elsewhere r1 is the program's, and unwinders are told so.
//!
//! # Whose block
//!
//! Additions are atomic, and numbers are summed up over all blocks. So any block of this process will do, and nobody looks at an owner
//! ([`crate::detour::memory`]). A followed call is not even looked for in the thread table: an instance that was freed by its slot's name bears an
//! entry of that table, where a time would stand, which is that of the thread that has called there last. On a stack that is mostly the same one; where
//! coroutines move it is another's, as at a return on another thread. A forked child finds the entry wiped, and asks the runtime for its own.
//!
//! # The return point
//!
//! The call that the function returns from goes on with the rest of the entry, which finds in lr what it has to note. So no address is
//! calculated, and a processor that predicts returns by calls sees one call and its return.

use super::detour::{SAVED_LR, Template};
use super::emit::*;
use super::runtime::Routine;
use crate::detour::*;
use crate::frames::Place;
use crate::payload::*;

/// The slot's name; where the instance is known, nothing.
const NAME: Gpr = R8;
/// What cr0 was.
const CR0: Gpr = R9;
/// The instance, less its low part. Where nothing is followed, nothing.
const PLACE: Gpr = R10;
const VALUE: Gpr = R11;

/// The first registers of the pairs, and where they are, from the program's stack pointer ([`PAIRED`]).
const PAIRS: [(Gpr, i16); 2] = [(R10, PAIRED), (R8, PAIRED + 16)];

/// Doublewords of the frame for cr0 and the instance while a routine is asked.
const KEPT_CR0: i16 = scratch(0);
const KEPT_PLACE: i16 = scratch(1);

impl Template<'_> {
    /// Counts, with what it uses saved. Whoever has no block at first sight goes off to `unknown`, and comes back at what is returned.
    pub(super) fn count_in_pairs(&mut self, counter: u32, unknown: Label) -> Label {
        let known = self.asm.label();
        self.keep_pairs();
        let low = self.entry_by_hash(PLACE, VALUE);
        self.asm.load(VALUE, PLACE, low + THREAD_BLOCK as i16);
        self.asm.compare_immediate(VALUE, 0);
        self.asm.branch_if(When::Equal, unknown);
        self.asm.bind(known);
        self.add([counter]);
        self.put_back_pairs(0);
        known
    }

    /// What [`Self::count_in_pairs`] has no block for.
    pub(super) fn count_unknown(&mut self, unknown: Label, known: Label) -> Emitted<()> {
        self.asm.bind(unknown);
        self.stands(0);
        self.comment("the thread has no block yet");
        self.make_frame();
        self.ask_for_block()?;
        self.take_frame(known);
        Ok(())
    }

    /// A followed call, from its entry to the branch back, and its return. Gives the offset of the return point.
    ///
    /// Plain stores do for the instance: a signal handler's calls have slots of their own.
    pub(super) fn follow_counts(&mut self, followed: &Followed) -> Emitted<u32> {
        let [taken, unknown, counted, lost, rest, displaced] = [(); 6].map(|()| self.asm.label());
        let entry = self.request.payload.entry;
        let counters = || {
            entry.iter().filter_map(|step| match step {
                EntryStep::Count(counter) => Some(counter),
                _ => None,
            })
        };
        self.stands(0);
        let [(first, at), (second, below)] = PAIRS;
        self.asm.store_pair(first, R1, at);
        self.asm.load_constant(VALUE, 0);
        self.asm.push_frame(FRAME, VALUE);
        self.stands(FRAME);
        self.asm.store_pair(second, R1, FRAME + below);
        self.asm.read_cr0(CR0);
        self.asm.addi(NAME, R1, slot_name(FRAME as u64) as i16);
        let low = self.instance_of(NAME);
        self.asm.load(VALUE, PLACE, low + RETURN_POINT as i16);
        self.asm.compare(VALUE, NAME);
        self.asm.branch_if(When::NotEqual, taken);
        self.asm.load(VALUE, PLACE, low + RETURN_ENTERED as i16);
        self.asm.load(VALUE, VALUE, THREAD_BLOCK as i16);
        self.asm.compare_immediate(VALUE, 0);
        self.asm.branch_if(When::Equal, unknown);
        self.asm.bind(counted);
        self.stands(FRAME);
        self.add(counters());
        self.asm.read_special(VALUE, LR);
        self.asm.store(VALUE, PLACE, low + RETURN_ADDRESS as i16);
        self.asm.call(rest);
        self.asm.bind(self.return_point);
        let return_point = self.asm.offset();
        self.place = Place::Caller;
        self.counted_return(followed)?;
        self.place = Place::Site(0);

        self.asm.bind(rest);
        self.stands_nowhere();
        self.comment("lr is the return point");
        self.asm.read_special(VALUE, LR);
        self.asm.store(VALUE, PLACE, low + RETURN_POINT as i16);
        self.stands(FRAME);
        self.put_back_pairs(FRAME);
        self.asm.leave();
        self.stands(0);
        self.asm.bind(displaced);
        self.displaced()?;

        self.asm.bind(taken);
        self.stands_nowhere();
        self.comment("the instance is not at hand");
        self.asm.store(CR0, R1, KEPT_CR0);
        self.asm.addi(R8, NAME, -1);
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.call_to(Routine::Claim.address(self.request.runtime)?)?;
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        self.asm.load(CR0, R1, KEPT_CR0);
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::Equal, lost);
        self.asm.addi(PLACE, R11, -low);

        self.asm.bind(unknown);
        self.comment("the instance bears no entry with a block");
        self.asm.store(CR0, R1, KEPT_CR0);
        self.asm.store(PLACE, R1, KEPT_PLACE);
        self.ask_for_block()?;
        self.asm.load(CR0, R1, KEPT_CR0);
        self.asm.load(PLACE, R1, KEPT_PLACE);
        self.asm.store(R8, PLACE, low + RETURN_ENTERED as i16);
        self.asm.branch(counted);

        self.asm.bind(lost);
        self.comment("not followed");
        self.ask_for_block()?;
        self.asm.load(CR0, R1, KEPT_CR0);
        self.add(counters());
        self.asm.load_constant(VALUE, self.request.layout.blocks);
        self.add([followed.lost]);
        self.stands(FRAME);
        self.put_back_pairs(FRAME);
        self.asm.leave();
        self.stands(0);
        self.asm.branch(displaced);
        Ok(return_point)
    }

    /// From the return point to the second `blr`.
    fn counted_return(&mut self, followed: &Followed) -> Emitted<()> {
        self.comment("return point: the function is done");
        let [elsewhere, freed, unknown, asked, counted] = [(); 5].map(|()| self.asm.label());
        self.keep_pairs();
        let low = self.instance_of(R1);
        // A function that has come back by `blr` has left its return point in lr.
        self.asm.load(VALUE, PLACE, low + RETURN_POINT as i16);
        self.asm.read_special(R8, LR);
        self.asm.compare(VALUE, R8);
        self.asm.branch_if(When::NotEqual, elsewhere);
        self.asm.addi(NAME, R1, slot_name(0) as i16);
        self.asm.load(VALUE, PLACE, low + RETURN_OLDER as i16);
        self.asm.compare(VALUE, NAME);
        self.asm.branch_if(When::NotEqual, elsewhere);
        self.asm.load(VALUE, PLACE, low + RETURN_ADDRESS as i16);
        self.asm.write_special(LR, VALUE);
        self.asm.load(VALUE, PLACE, low + RETURN_ENTERED as i16);
        self.asm.store(NAME, PLACE, low + RETURN_POINT as i16);
        self.asm.bind(freed);
        self.asm.load(VALUE, VALUE, THREAD_BLOCK as i16);
        self.asm.compare_immediate(VALUE, 0);
        self.asm.branch_if(When::Equal, unknown);
        self.asm.bind(counted);
        self.add(followed.steps.iter().filter_map(|step| match step {
            ReturnStep::Count(counter) => Some(counter),
            _ => None,
        }));
        self.put_back_pairs(0);
        self.comment("home; lr is the caller's return address");
        self.asm.return_();

        self.asm.bind(elsewhere);
        self.comment("the instance is not at hand");
        self.asm.copy(R8, R1);
        self.make_frame();
        self.leave_elsewhere(freed, asked)?;

        self.asm.bind(unknown);
        self.stands(0);
        self.comment("whose entry has no block");
        self.make_frame();
        self.asm.bind(asked);
        self.ask_for_block()?;
        self.take_frame(counted);
        Ok(())
    }

    /// As in [`Self::leave`], for the slot r8: with the instance's entry in `VALUE` at `freed`; without an instance, in the frame at `asked`.
    fn leave_elsewhere(&mut self, freed: Label, asked: Label) -> Emitted<()> {
        let [none, nowhere] = [(); 2].map(|()| self.asm.label());
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.call_to(Routine::Leave.address(self.request.runtime)?)?;
        self.asm.compare_immediate(R11, 0);
        self.asm.branch_if(When::Equal, none);
        self.asm.load(R10, R11, RETURN_ADDRESS as i16);
        self.asm.write_special(LR, R10);
        self.asm.load(R8, R11, RETURN_ENTERED as i16);
        // Free, with a 0 that is made of what was loaded: so not before it was, and somebody else may take it.
        self.asm.sub(R10, R10, R10);
        self.asm.add(R10, R10, R8);
        self.asm.sub(R10, R10, R8);
        self.asm.store(R10, R11, RETURN_POINT as i16);
        self.asm.copy(VALUE, R8);
        self.take_frame(freed);
        // No instance: somebody has put the real address into lr. If not, there is no address to go to.
        self.asm.bind(none);
        self.stands_nowhere();
        self.asm.load(R8, R1, SAVED_LR);
        self.asm.load_address(R10, self.return_point);
        self.asm.compare(R8, R10);
        self.asm.branch_if(When::Equal, nowhere);
        self.asm.write_special(LR, R8);
        self.asm.branch(asked);
        self.asm.bind(nowhere);
        self.asm.trap();
        Ok(())
    }

    /// Saves the pairs and cr0, without a frame.
    fn keep_pairs(&mut self) {
        self.stands(0);
        for (pair, place) in PAIRS {
            self.asm.store_pair(pair, R1, place);
        }
        self.asm.read_cr0(CR0);
    }

    /// Where the program's stack pointer is `depth` bytes above.
    fn put_back_pairs(&mut self, depth: i16) {
        self.asm.write_cr0(CR0);
        for (pair, place) in PAIRS.into_iter().rev() {
            self.asm.load_pair(pair, R1, depth + place);
        }
    }

    /// A frame that ends walks, with what cr0 was in it.
    fn make_frame(&mut self) {
        self.asm.load_constant(VALUE, 0);
        self.asm.push_frame(FRAME, VALUE);
        self.stands_nowhere();
        self.asm.store(CR0, R1, KEPT_CR0);
    }

    /// Takes it away, and goes to a place without one.
    fn take_frame(&mut self, to: Label) {
        self.asm.load(CR0, R1, KEPT_CR0);
        self.asm.leave();
        self.stands(0);
        self.asm.branch(to);
    }

    /// `PLACE` = the place of the instance of the slot that `named` is, or is the name of, less what is returned, if its page has the shadow
    /// block that it is given first, as in [`fold`]. Changes `VALUE`.
    fn instance_of(&mut self, named: Gpr) -> i16 {
        self.instance_at(PLACE, named, VALUE)
    }

    /// Adds 1 to each of these counters of the block `VALUE`. Changes that and r8.
    fn add(&mut self, counters: impl IntoIterator<Item = u32>) {
        let mut at = 0;
        for counter in counters {
            self.asm.add_offset(VALUE, VALUE, counter.wrapping_sub(at));
            self.asm.increment(VALUE, R8);
            at = counter;
        }
    }

    /// `VALUE` = the block of whoever runs, or the overflow block, and r8 = an entry of the thread table: his own, or that which is looked at
    /// first for him. In a frame. Changes r9 and r10.
    fn ask_for_block(&mut self) -> Emitted<()> {
        let [none, done] = [(); 2].map(|()| self.asm.label());
        self.asm.read_special(R10, LR);
        self.asm.store(R10, R1, SAVED_LR);
        let again = self.asm.here_label();
        self.asm.call_to(Routine::Resolve.address(self.request.runtime)?)?;
        self.asm.copy(R8, R11);
        self.asm.compare_immediate(R8, 0);
        self.asm.branch_if(When::Equal, none);
        self.asm.load(VALUE, R8, THREAD_BLOCK as i16);
        self.asm.compare_immediate(VALUE, 0);
        self.asm.branch_if(When::Equal, again);
        self.asm.branch(done);
        self.asm.bind(none);
        let low = self.entry_by_hash(R8, VALUE);
        self.asm.addi(R8, R8, low);
        self.asm.load_constant(VALUE, self.request.layout.blocks);
        self.asm.bind(done);
        self.asm.load(R10, R1, SAVED_LR);
        self.asm.write_special(LR, R10);
        Ok(())
    }
}
