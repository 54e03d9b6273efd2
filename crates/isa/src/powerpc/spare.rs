//! Counting with nothing saved: where one counter is all that is asked for, and the function reads some registers no more.
//!
//! ```text
//!     find a block, in registers that are dead at the site    ── none ──▶ missed
//!     count
//! displaced:
//!     displaced instruction
//!     b site + 4
//! missed:
//!     the detour that saves what it uses
//!     b displaced
//! ```

use super::detour::Template;
use super::emit::*;
use super::liveness::liveness;
use crate::detour::*;

/// Registers that hold nothing any more.
#[derive(Clone, Copy)]
pub(super) struct Spare {
    /// Two that can be a base: r0 is none.
    base: Gpr,
    value: Gpr,
    /// Where cr0 is kept if it is read yet.
    cr0: Option<Gpr>,
}

impl Spare {
    /// Those of a request that asks for no more than one counter, if there are enough.
    pub fn of(request: &DetourRequest<'_>) -> Option<Self> {
        let live = liveness(request.site, request.displaced.start);
        // r0 last: it does where others do not.
        let mut dead = (1..32).chain([0]).filter(|number| live.dead >> number & 1 != 0).map(Gpr);
        let [base, value] = [dead.next()?, dead.next().filter(|register| *register != R0)?];
        let cr0 = if live.cr0_dead { None } else { Some(dead.next()?) };
        Some(Self { base, value, cr0 })
    }
}

impl Template<'_> {
    /// Counts, or goes off to `missed` with cr0 where it is kept.
    pub fn count_in_spare(&mut self, spare: Spare, counter: u32, missed: Label) {
        let Spare { base, value, cr0 } = spare;
        self.stands(0);
        self.comment("registers that nobody reads any more");
        if let Some(kept) = cr0 {
            self.asm.read_cr0(kept);
        }
        let low = self.entry_by_hash(base, value);
        self.asm.load(base, base, low + THREAD_BLOCK as i16);
        self.asm.compare_immediate(base, 0);
        self.asm.branch_if(When::Equal, missed);
        self.asm.add_offset(base, base, counter);
        self.asm.increment(base, value);
        self.put_back_cr0(spare);
    }

    /// Has cr0 where the program had it.
    pub fn put_back_cr0(&mut self, spare: Spare) {
        if let Some(kept) = spare.cr0 {
            self.asm.write_cr0(kept);
        }
    }
}
