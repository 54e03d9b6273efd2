//! Where may a Go program be probed?
//!
//! A goroutine's stack is as small as it can be. Functions check for stack space and grow it, and have at least what Go's linker keeps for
//! functions that do not (`nosplit`); a detour needs some of that. Those without a check may have nothing left, and so has whatever is
//! ahead of the check. A trap needs none.
//!
//! So the probe of an entry stands behind the check. There each call arrives once: one that finds too little begins again ahead of it.
//!
//! Calls are followed to their exits, and known again by their goroutine and how deep they are in its stack ([`Identity::Goroutine`]):
//! Go moves stacks when they grow, and goroutines from thread to thread.
//!
//! Go stops goroutines at any instruction and asks its tables how large the frame is there. A detour is in none of them, so nothing is
//! stopped in it; the room of a short jump is.

use super::{Runtime, Runtimes};
use crate::{Function, Module, Refusal, Request};
use trapless_isa::{Identity, StackCheck};

/// Where the probe of a function's entry stands.
pub fn entry_of(module: &Module<'_>, function: &Function<'_>) -> u64 {
    let check = check_of(module, function).map(|check| check.behind);
    // Where a loop leads there, too, it would count each round.
    check.filter(|behind| !module.targets.contains(*behind)).unwrap_or(function.address)
}

/// Why there must be no jump inside of a function that leads from one of its instructions to the detour of another.
pub(super) fn lets_hop(runtimes: Runtimes) -> Result<(), Refusal> {
    if runtimes.contains(Runtime::Go) { Err(Refusal::Preempted) } else { Ok(()) }
}

/// Why a detour may find no stack.
pub(super) fn leaves_room(module: &Module<'_>, request: &Request<'_>) -> Result<(), Refusal> {
    if !module.runtimes.contains(Runtime::Go) {
        return Ok(());
    }
    let at = request.address;
    match check_of(module, &request.function) {
        Some(check) if at >= check.behind && !check.restart.contains(&at) => Ok(()),
        _ => Err(Refusal::NoSplit),
    }
}

/// By what the calls of a function are known again that are noted; `None` if by nothing.
pub(super) fn identity(module: &Module<'_>, function: &Function<'_>) -> Option<Identity> {
    if !module.runtimes.contains(Runtime::Go) {
        return Some(Identity::Slot);
    }
    let check = check_of(module, function)?;
    let is_kept = module.machine.isa().keeps_goroutine(&module.whole(function), &check);
    is_kept.then_some(Identity::Goroutine)
}

/// Where a function of a Go program checks for stack space.
fn check_of(module: &Module<'_>, function: &Function<'_>) -> Option<StackCheck> {
    let is_go = module.runtimes.contains(Runtime::Go);
    is_go.then(|| module.machine.isa().stack_check(&module.whole(function))).flatten()
}
