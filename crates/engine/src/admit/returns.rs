//! May a function's calls be followed to their return?
//!
//! Following a call takes the return address from where a call puts it and has the function return elsewhere. So the
//! address must be there when control arrives, the function must return once and plainly, and nobody may look for it:
//! neither the function, nor a run-time system that knows its frames by their return addresses.
//!
//! What a function must not do with its return address, it must not have done by another either: `_setjmp` jumps to
//! `__sigsetjmp`, which would save a return point. So the functions that are reached by tail jumps are judged, too.

use super::{Arrival, Facts, Known, known_names};
use crate::{Module, Refusal, Request, Unwinder};
use std::collections::BTreeSet;
use trapless_isa::Site;

/// Judges returns, and keeps what it has found.
pub struct Returns<'a, 'm> {
    facts: &'a Facts,
    modules: &'a [Module<'m>],
    /// By module and address: functions that return plainly, and so does all that they jump to.
    plain: BTreeSet<(usize, u64)>,
}

impl<'a, 'm> Returns<'a, 'm> {
    /// A judge of the functions of `modules`.
    pub fn new(facts: &'a Facts, modules: &'a [Module<'m>]) -> Self {
        Self { facts, modules, plain: BTreeSet::new() }
    }

    /// Whether the calls that arrive at the site of `request` may be followed.
    ///
    /// # Errors
    /// Why they may not.
    pub fn judge(&mut self, request: &Request<'_>) -> Result<(), Refusal> {
        let module = &self.modules[request.module];
        if let Some(runtime) = module.runtimes.finds_frames_itself() {
            return Err(Refusal::Runtime(runtime));
        }
        if let Some(runtime) = self.facts.runtimes.reaches_everywhere() {
            return Err(Refusal::RuntimeInProcess(runtime));
        }
        if module.entry == request.address {
            return Err(Refusal::EntryPoint);
        }
        if request.wanted.unwinder == Some(Unwinder::Entry) {
            return Err(Refusal::WalksStack);
        }
        if let Some(table) = request.unread {
            return Err(Refusal::Unread(table));
        }
        let known = module.functions.get(&request.function.address).ok_or(Refusal::NotCalled)?;
        known_names::returns_plainly(&known.names)?;
        match known.arrival {
            Arrival::Called => {}
            Arrival::Jumped => return Err(Refusal::Part),
            Arrival::Unclear => return Err(Refusal::NotCalled),
        }
        if self.facts.shadow_stack {
            return Err(Refusal::ShadowStack);
        }
        module.machine.isa().return_verdict(&crate::plan::site_of(request, self.modules))?;
        self.goes_on_plainly(request.module, known)
    }

    /// Whether what is reached by tail jumps from `first` returns plainly, too.
    fn goes_on_plainly(&mut self, index: usize, first: &'a Known<'m>) -> Result<(), Refusal> {
        let module = &self.modules[index];
        let mut seen = BTreeSet::from([first.function.address]);
        let mut ways = vec![first];
        while let Some(known) = ways.pop() {
            for &address in &known.goes_on {
                if self.plain.contains(&(index, address)) || !seen.insert(address) {
                    continue;
                }
                // The caller names all that is reached, so one that is missing was not looked at.
                let Some(next) = module.functions.get(&address) else {
                    return Err(Refusal::GoesOn(format!("{address:#x}")));
                };
                if !returns_plainly(module, next) {
                    let name = next.names.first().map_or_else(|| format!("{address:#x}"), |n| n.to_string());
                    return Err(Refusal::GoesOn(name));
                }
                ways.push(next);
            }
        }
        self.plain.extend(seen.into_iter().map(|address| (index, address)));
        Ok(())
    }
}

/// Whether a function that is reached by a tail jump returns plainly.
fn returns_plainly(module: &Module<'_>, known: &Known<'_>) -> bool {
    let address = known.function.address;
    let code = known.function.code();
    let site = Site { address, function: address, code, padding: &[], targets: module.targets };
    // The stack of a part is not that of a function's start, so its code alone says nothing.
    known_names::returns_plainly(&known.names).is_ok()
        && (known.arrival != Arrival::Called || module.machine.isa().return_verdict(&site).is_ok())
}
