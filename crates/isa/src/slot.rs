//! Out-of-line slots: where a displaced instruction runs after a trap.
//!
//! A slot holds the relocated copy of the one instruction at the trap. A *stepped* slot is the copy alone: a second trap,
//! the single step's, ends it. A *boosted* slot goes on with a jump to the next instruction, so there is no second trap.
//!
//! A copy may take several instructions, and several steps. Where control leaves it at its end only, a breakpoint stands there: with it the
//! thread may run the copy, and there are two traps however long that is ([`Slot::ends_in_break`]). What branches away has to be stepped.
//!
//! A thread that stands in a slot when the probe is taken out is put back by the rule of the booster's first description
//! (SystemTap bug 5509): found at the copy, which has not run, it goes back to the original instruction; found at the jump, when the copy
//! has run, it goes on to the next.

use crate::{Displaced, Facts};
use alloc::vec::Vec;

/// A slot for one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Machine code, to stand at the address it was made for.
    pub code: Vec<u8>,
    /// Length of the copy. A thread that stands here has run it.
    pub copy: u32,
    /// Whether a jump to the next instruction follows the copy.
    pub boosted: bool,
}

impl Slot {
    /// Whether the copy may be run instead of stepped: whoever does comes to a breakpoint behind it.
    pub fn ends_in_break(&self, facts: &Facts) -> bool {
        !self.boosted && self.code.get(self.copy as usize..) == Some(facts.breakpoint)
    }

    /// Where in the original code a thread stands that stands at `offset` in the slot.
    ///
    /// `None` outside of the slot, between the instructions of a copy that takes several, and where a conditional branch in the copy
    /// leads to a branch to its target: its own instruction has run.
    pub fn original_of(&self, displaced: &Displaced, offset: u64) -> Option<u64> {
        match offset {
            0 => Some(displaced.start),
            _ if offset == u64::from(self.copy) => Some(displaced.end()),
            _ => None,
        }
    }
}
