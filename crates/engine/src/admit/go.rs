//! Which functions of a Go program leave room for a detour?
//!
//! A goroutine's stack is as small as it can be. Functions that check for stack space and grow it have at least what Go's
//! linker keeps for functions that do not (`nosplit`); a detour needs some of that. Those without a check may have nothing
//! left. A trap needs none.

use super::{Runtime, Runtimes};
use crate::Refusal;
use trapless_isa::{Isa, Site};

/// Why a detour may find no stack.
pub(super) fn leaves_room(runtimes: Runtimes, isa: &dyn Isa, site: &Site<'_>) -> Result<(), Refusal> {
    if runtimes.contains(Runtime::Go) && !isa.grows_stack(site) {
        return Err(Refusal::NoSplit);
    }
    Ok(())
}
