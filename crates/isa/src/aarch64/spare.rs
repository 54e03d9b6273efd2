//! Counting without a frame: where one counter is all that is asked for, and the function reads some registers no more.
//!
//! ```text
//!     find a block, in registers that are dead at the site    ── none ──▶ missed
//!     count
//! displaced:
//!     displaced instruction
//!     b behind the site
//! missed:
//!     the detour that saves what it uses
//!     b displaced
//! ```

use super::count::add_atomically;
use super::detour::Template;
use super::emit::{Label, instruction as a};
use super::liveness::dead_registers;
use super::steps::NEAR;
use crate::DetourRequest;
use crate::detour::*;

/// Registers that hold nothing any more.
#[derive(Clone, Copy)]
pub(super) struct Spare {
    block: u32,
    temporary: u32,
    /// Where an addition takes one more.
    status: u32,
}

impl Spare {
    /// Those of a request that asks for no more than one counter, if there are enough.
    pub fn of(request: &DetourRequest<'_>) -> Option<(Self, u32)> {
        let counter = request.payload.only_counter().filter(|counter| *counter < NEAR)?;
        let layout = request.layout;
        let dead = dead_registers(request.site, request.displaced.start);
        let mut dead = (0..32).filter(|number| dead >> number & 1 != 0);
        let [block, temporary] = [dead.next()?, dead.next()?];
        let status = match layout.additions {
            Additions::Single => temporary,
            Additions::Loops => dead.next()?,
        };
        Some((Self { block, temporary, status }, counter))
    }
}

impl Template<'_> {
    /// Counts, or goes off to `missed`.
    pub(super) fn count_in_spare(&mut self, spare: Spare, counter: u32, missed: Label) {
        let Spare { block, temporary, status } = spare;
        self.stands(0);
        self.comment("registers that nobody reads any more");
        self.entry_by_hash(block, [temporary; 2]);
        self.code.emit([a::ldr(block, block, THREAD_BLOCK)]);
        self.code.emit_to(a::cbz(block), missed);
        self.code.add_constant(block, block, counter.into());
        add_atomically(&mut self.code, block, None, [temporary, status]);
    }
}
