//! May what a call does be changed where control arrives at a function?
//!
//! Who skips a call returns for the function, to what lies at the stack pointer: so there it must be, and the function must return as others
//! do. Where code is jumped to, as a part of another function is, there are no arguments either.

use super::{Arrival, Runtime, known_names};
use crate::plan::site_of;
use crate::{Module, Refusal, Request};
use trapless_isa::Reason;

/// Whether the bodies of a request may change what its calls do.
pub fn lets_change(modules: &[Module<'_>], request: &Request<'_>) -> Result<(), Refusal> {
    let module = &modules[request.module];
    let isa = module.machine.isa();
    // Go returns in other registers, and has nothing below its stack pointer.
    if !isa.changes_calls() || module.runtimes.contains(Runtime::Go) {
        return Err(Reason::NoChanges.into());
    }
    if module.entry == request.address {
        return Err(Refusal::EntryPoint);
    }
    if let Some(table) = request.unread {
        return Err(Refusal::Unread(table));
    }
    let known = module.functions.get(&request.function.address).ok_or(Refusal::NotCalled)?;
    match known_names::returns_plainly(&known.names) {
        // It looks at its return address, which stays.
        Ok(()) | Err(Refusal::ChoosesByCaller | Refusal::ReportsCaller) => {}
        Err(refusal) => return Err(refusal),
    }
    match known.arrival {
        Arrival::Called => {}
        Arrival::Jumped => return Err(Refusal::Part),
        Arrival::Unclear => return Err(Refusal::NotCalled),
    }
    match isa.return_verdict(&site_of(request, modules)) {
        Err(reason @ (Reason::MovesStackPointer | Reason::ReturnsOddly)) => Err(reason.into()),
        _ => Ok(()),
    }
}
