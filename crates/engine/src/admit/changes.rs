//! May what a call does be changed where control arrives at a function?
//!
//! Who skips a call returns for the function, to what lies at the stack pointer: so there it must be, and the function must return as others
//! do. Where code is jumped to, as a part of another function is, there are no arguments either.

use super::exits::is_generated;
use super::{Arrival, Runtime, known_names};
use crate::plan::site_of;
use crate::{Meant, Module, Refusal, Request};
use trapless_isa::Reason;

/// Modules of these have functions that return in other registers than C's, with another stack, or not to where they were called.
const OTHERS: [Runtime; 3] = [Runtime::Go, Runtime::Ghc, Runtime::OCaml];

/// Functions that come back to nobody: what follows their calls may be another function's.
const NEVER_RETURN: [&str; 18] = [
    "exit",
    "_exit",
    "_Exit",
    "quick_exit",
    "abort",
    "pthread_exit",
    "thrd_exit",
    "__assert_fail",
    "__assert_perror_fail",
    "__assert",
    "__stack_chk_fail",
    "__fortify_fail",
    "__chk_fail",
    "__libc_fatal",
    "__libc_start_main",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
];

/// Whether the bodies of a request may change what its calls do.
pub fn lets_change(modules: &[Module<'_>], request: &Request<'_>) -> Result<(), Refusal> {
    let module = &modules[request.module];
    let is_other = OTHERS.iter().any(|runtime| module.runtimes.contains(*runtime));
    // A place that is no function's entry by itself, as a copy that was inlined, may be one all the same, of another one.
    if is_other || request.meant == Meant::All {
        return Err(Reason::NoChanges.into());
    }
    if module.entry == request.address {
        return Err(Refusal::EntryPoint);
    }
    if let Some(table) = request.unread {
        return Err(Refusal::Unread(table));
    }
    let known = module.functions.get(&request.function.address).ok_or(Refusal::NotCalled)?;
    if known.names.iter().any(|name| NEVER_RETURN.contains(name)) || is_generated(module, known) {
        return Err(Refusal::ReturnsOddly);
    }
    match known_names::returns_plainly(&known.names) {
        // It looks at its return address, which stays.
        Ok(()) | Err(Refusal::ChoosesByCaller | Refusal::ReportsCaller) => {}
        Err(refusal) => return Err(refusal),
    }
    match known.arrival {
        // What hand-written code does between its symbols, nobody tells.
        Arrival::Called if known.is_told => {}
        Arrival::Jumped => return Err(Refusal::Part),
        Arrival::Called | Arrival::Unclear => return Err(Refusal::NotCalled),
    }
    match module.machine.isa().return_verdict(&site_of(request, modules)) {
        Err(reason @ (Reason::MovesStackPointer | Reason::ReturnsOddly)) => Err(reason.into()),
        _ => Ok(()),
    }
}
