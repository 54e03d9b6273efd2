//! Which functions of a Go program leave room for a detour?
//!
//! A goroutine's stack is as small as it can be. Functions that check for stack space and grow it have at least what Go's
//! linker keeps for functions that do not (`nosplit`); a detour needs some of that. Those without a check may have nothing
//! left. A trap needs none.
//!
//! Go stops goroutines at any instruction and asks its tables how large the frame is there. A detour is in none of them, so nothing is
//! stopped in it; the room of a short jump is.

use super::{Runtime, Runtimes};
use crate::Refusal;
use trapless_isa::{Isa, Site};

/// Why there must be no jump inside of a function that leads from one of its instructions to the detour of another.
pub(super) fn lets_hop(runtimes: Runtimes) -> Result<(), Refusal> {
    if runtimes.contains(Runtime::Go) { Err(Refusal::Preempted) } else { Ok(()) }
}

/// Why a detour may find no stack.
pub(super) fn leaves_room(runtimes: Runtimes, isa: &dyn Isa, site: &Site<'_>) -> Result<(), Refusal> {
    if runtimes.contains(Runtime::Go) && !isa.grows_stack(site) {
        return Err(Refusal::NoSplit);
    }
    Ok(())
}
