//! Where may a Go program be probed?
//!
//! A goroutine's stack is as small as it can be. Functions check for stack space and grow it, and have at least what Go's linker keeps for
//! functions that do not (`nosplit`); a detour needs some of that. Those without a check may have nothing left, and so has whatever is
//! ahead of the check. A trap needs none.
//!
//! So the probe of an entry stands behind the check. There each call arrives once: one that finds too little begins again ahead of it.
//! Where there is no check a probe that only counts does so without a stack: at entries of what Go's compiler has made, and wherever the
//! code shows that it is done with some registers. Others, and the exits of such functions, ask the goroutine how much is left
//! ([`Stack::AskedInGo`]). What finds too little, just ahead of a stack's end, is counted as lost.
//!
//! Calls are followed to their exits, and known again by their goroutine and how deep they are in its stack ([`Identity::Goroutine`]):
//! Go moves stacks when they grow, and goroutines from thread to thread.
//!
//! Go stops goroutines at any instruction and asks its tables how large the frame is there. A detour is in none of them, so nothing is
//! stopped in it. The room of a short jump is, and so its handler must not see it ([`trapless_isa::detour::signals`]). Handlers, and what they return
//! to, run on a stack that is made for them.

use super::verdict::original;
use super::{Facts, Runtime};
use crate::plan::site_of;
use crate::{Function, Module, Refusal, Request, Role, Wanted};
use trapless_isa::{Displaced, Identity, SignalCall, Stack, StackCheck};

/// Where the probe of a function's entry stands.
pub fn entry_of(module: &Module<'_>, function: &Function<'_>) -> u64 {
    // Where a loop leads there, too, it would count each round.
    let is_once = |check: &StackCheck| check.is_led_to() || !module.targets.contains(check.behind);
    check_of(module, function).filter(is_once).map_or(function.address, |check| check.behind)
}

/// Why there must be no jump inside of a function of the `module`th module that leads from one of its instructions to the detour of another.
pub(super) fn lets_hop(facts: &Facts, modules: &[Module<'_>], module: usize) -> Result<(), Refusal> {
    let is_go = |module: &Module<'_>| module.runtimes.contains(Runtime::Go);
    // Handlers know of one such module.
    let is_known = || facts.hops && modules.iter().position(is_go) == Some(module);
    if !is_go(&modules[module]) || is_known() { Ok(()) } else { Err(Refusal::Preempted) }
}

/// What the detour of a request may use of the stack.
pub fn stack_of(module: &Module<'_>, request: &Request<'_>) -> Stack {
    let is_handlers = matches!(request.wanted.signal, Some(SignalCall::Handler | SignalCall::Return));
    if !module.runtimes.contains(Runtime::Go) || is_handlers {
        return Stack::Enough;
    }
    let (function, at) = (&request.function, request.address);
    match check_of(module, function) {
        Some(check) if at >= check.behind && !check.restart.contains(&at) => Stack::Enough,
        _ if !module.code.is_compiled_by_go(function.address) => Stack::None,
        None if asks(module, request) => Stack::AskedInGo,
        Some(_) | None => Stack::NoneInGo,
    }
}

/// Whether the detour of a request in a function that does not check for stack space asks for it.
fn asks(module: &Module<'_>, request: &Request<'_>) -> bool {
    let is_at_an_end = request.address == request.function.address || request.is_exit();
    !only_counts(request) && is_at_an_end && keeps_goroutine(module, &request.function, None)
}

fn only_counts(request: &Request<'_>) -> bool {
    request.role == Role::Whole && request.wanted == Wanted { entries: true, ..Wanted::default() }
}

fn keeps_goroutine(module: &Module<'_>, function: &Function<'_>, check: Option<&StackCheck>) -> bool {
    module.machine.isa().keeps_goroutine(&module.whole(function), check)
}

/// Why the detour of `displaced` may find no stack, and needs some.
pub(super) fn leaves_room(
    modules: &[Module<'_>],
    request: &Request<'_>,
    displaced: &Displaced,
) -> Result<(), Refusal> {
    let module = &modules[request.module];
    let stack = stack_of(module, request);
    let counts = || {
        let isa = module.machine.isa();
        only_counts(request) && isa.counts_without_stack(&site_of(request, modules), displaced, stack)
    };
    let is_enough = match stack {
        Stack::Enough => true,
        Stack::AskedInGo => {
            let original = original(&request.function, *displaced);
            let runs_from = |at: u64| {
                let at = at.max(displaced.start);
                let code = original.get((at - displaced.start) as usize..).unwrap_or_default();
                module.machine.isa().runs_when_asked(code, at)
            };
            // Asked at both.
            let asks_again =
                if let Role::Through { exit, .. } = request.role { exit } else { request.address };
            request.wanted.hooks() == Wanted::default() && runs_from(request.address) && runs_from(asks_again)
        }
        Stack::None | Stack::NoneInGo => counts(),
    };
    if is_enough { Ok(()) } else { Err(Refusal::NoSplit) }
}

/// By what the calls of a function are known again that are noted.
///
/// # Errors
/// Why there is nothing, or no stack to note them.
pub(super) fn identity(module: &Module<'_>, function: &Function<'_>) -> Result<Identity, Refusal> {
    if !module.runtimes.contains(Runtime::Go) {
        return Ok(Identity::Slot);
    }
    let refusal = match check_of(module, function) {
        Some(check) if !keeps_goroutine(module, function, Some(&check)) => Refusal::Runtime(Runtime::Go),
        None if !module.code.is_compiled_by_go(function.address)
            || !keeps_goroutine(module, function, None) =>
        {
            Refusal::NoSplit
        }
        Some(_) | None => return Ok(Identity::Goroutine),
    };
    Err(refusal)
}

/// Where a function of a Go program checks for stack space.
fn check_of(module: &Module<'_>, function: &Function<'_>) -> Option<StackCheck> {
    let is_go = module.runtimes.contains(Runtime::Go);
    is_go.then(|| module.machine.isa().stack_check(&module.whole(function))).flatten()
}
