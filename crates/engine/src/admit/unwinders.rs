//! Which functions must be hooked for unwinders?
//!
//! An unwinder that walks a stack must find the real return addresses, or an exception is lost. Where calls are followed by
//! detours, it is told them by the functions that it asks about an address ([`LOOKUPS`]). Where a tracer follows, which replaces
//! return addresses in their slots, the tracer puts them back at the unwinder's entry ([`UNWINDERS`]). Where either cannot be hooked,
//! nothing is followed that way. Where an unwinder lands ([`LANDINGS`]) the calls are counted that it leaves; where that cannot be hooked, they
//! are followed all the same, and not told from those that have not returned yet.
//!
//! Some unwinders go astray where no table knows the code that a signal has interrupted ([`trapless_isa::Facts::walks_by_chain`]). There they are
//! told of every copy of an instruction that runs with the program's stack pointer; or, if any signal is handled, nothing is copied that one may
//! interrupt.

use super::Facts;
use crate::{Home, Plan, PlannedSite, Refusal, Request, Unwinder};
use trapless_isa::Lookup;

/// Functions that unwinders ask about each code address they meet. The C library has the first ones, or its loader, so whichever
/// unwinder it is and whenever it was loaded, it asks there; libgcc's own looks first through what static programs register.
pub const LOOKUPS: &[(&str, Lookup)] = &[
    ("_dl_find_object", Lookup::FindObject),
    ("__dl_find_object", Lookup::FindObject),
    ("_Unwind_Find_FDE", Lookup::FindObject),
    ("dl_iterate_phdr", Lookup::IteratePhdr),
    ("__dl_iterate_phdr", Lookup::IteratePhdr),
];

/// Functions by which unwinders land. gcc's: every personality routine calls it, once, when it has found where its frame goes on.
pub const LANDINGS: &[&str] = &["_Unwind_SetIP"];

/// Entry points of unwinders that walk the stack from their caller on. The C library's own stand before an unwinder that it loads
/// when it first needs one.
pub const UNWINDERS: &[&str] = &[
    "_Unwind_RaiseException",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
    "backtrace",
    "__pthread_unwind",
];

/// Follows nothing where an exception could not pass: an unwinder that is not served would meet return points it knows
/// nothing of. What serves a way of following that nobody needs is left out.
pub fn require_unwinders(facts: &Facts, plan: &mut Plan<'_>, requests: &[Request<'_>]) {
    let follows = |site: &PlannedSite<'_>, traps: bool| site.request.pairs() && site.traps() == traps;
    let is_one = |unwinder: Option<Unwinder>, lookup: bool| match unwinder {
        Some(Unwinder::Lookup(_)) => lookup,
        Some(Unwinder::Entry) => !lookup,
        Some(Unwinder::Landing(_)) | None => false,
    };
    let is_missing = |plan: &Plan<'_>, lookups: bool| {
        let serving = requests.iter().filter(|r| is_one(r.wanted.unwinder, lookups));
        serving.map(|request| request.id).any(|id| plan.sites.iter().all(|site| site.request.id != id))
    };
    let [no_entry, no_lookup] =
        [false, true].map(|lookups| facts.throws_unhooked || is_missing(plan, lookups));
    // What is added to a session is followed by what that one has.
    let never = matches!(plan.home, Home::Armed(host) if !host.follows);
    // Handlers ask for their callers, and nobody else meets what was interrupted.
    let (handles, walks) = (facts.handled != 0, plan.walks_by_chain());
    plan.refuse(|site| {
        let refused = no_lookup && follows(site, false)
            || no_entry && follows(site, true)
            || never && site.request.wanted.follows();
        let astray = || (no_lookup && handles && walks && site.is_copied()).then_some(Refusal::Walks);
        refused.then_some(Refusal::Unwinder).or_else(astray)
    });
    // What is added later needs them, too.
    let by_jump = plan.home.spare().wanted.follows() || plan.sites.iter().any(|site| follows(site, false));
    let is_told = by_jump || plan.sites.iter().any(|site| walks && site.is_copied());
    let by_trap = plan.sites.iter().any(|site| follows(site, true));
    plan.sites.retain_mut(|site| {
        let needed = match site.request.wanted.unwinder {
            Some(Unwinder::Lookup(_)) => is_told,
            Some(Unwinder::Landing(_)) => by_jump,
            Some(Unwinder::Entry) => by_trap,
            None => return true,
        };
        let is_hook = site.request.wanted.is_hook();
        if !needed {
            site.request.wanted.unwinder = None;
        }
        needed || !is_hook
    });
}
