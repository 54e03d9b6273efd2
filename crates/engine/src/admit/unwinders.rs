//! Which functions must be hooked where calls are followed?
//!
//! An unwinder that walks a stack must find the real return addresses, or an exception is lost. Where one cannot be hooked
//! and exceptions are thrown, nothing is followed.

use super::Facts;
use crate::{Module, Plan, Refusal, Request};

/// Entry points of unwinders that walk the stack from their caller on. They must find the real return addresses. The C
/// library's own stand before an unwinder that it loads when it first needs one.
pub const UNWINDERS: &[&str] = &[
    "_Unwind_RaiseException",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
    "backtrace",
    "__pthread_unwind",
];

/// Follows nothing where an exception could not pass: an unwinder that is not hooked would meet return points
/// it knows nothing of.
pub fn require_unwinders(facts: &Facts, plan: &mut Plan<'_>, requests: &[Request<'_>]) {
    let needed = requests.iter().filter(|request| is_needed(&plan.modules, request));
    let hooked = needed.map(|request| request.id).all(|id| plan.sites.iter().any(|s| s.request.id == id));
    if facts.throws_unhooked || !hooked {
        plan.refuse(|site| site.request.wanted.follows().then_some(Refusal::Unwinder));
    }
    if !plan.follows() {
        // Nothing to put back, so nothing to hook. Nobody has asked for hooks by themselves.
        plan.sites.retain(|site| !site.request.wanted.is_hook());
    }
}

/// Without the C library's own hooked, a backtrace is short; without these, exceptions are lost.
fn is_needed(modules: &[Module<'_>], request: &Request<'_>) -> bool {
    let known = || modules[request.module].functions.get(&request.function.address);
    request.wanted.restore_returns
        && known().is_none_or(|known| known.names.iter().any(|name| name.starts_with("_Unwind_")))
}
