//! May a function's calls be followed to their return?
//!
//! Following a call takes the return address from where a call puts it and has the function return elsewhere. So the
//! address must be there when control arrives, the function must return once and plainly, and nobody may look for it:
//! neither the function, nor a run-time system that knows its frames by their return addresses.
//!
//! Where they may not, the places where the function is left may be probed instead ([`super::exits()`]).
//!
//! What a function must not do with its return address, it must not have done by another either: `_setjmp` jumps to
//! `__sigsetjmp`, which would save a return point. So the functions that are reached by tail jumps are judged, too.

use super::{Arrival, Facts, Known, known_names};
use crate::{Module, Refusal, Request, Unwinder, spread};
use std::collections::{HashMap, HashSet};
use trapless_isa::Site;

/// Whether the calls that arrive at the sites of `requests` may be followed, or why they may not.
pub fn judge_returns(
    facts: &Facts,
    modules: &[Module<'_>],
    requests: &[Request<'_>],
) -> Vec<Result<(), Refusal>> {
    let jumped_to = modules.iter().enumerate().flat_map(|(index, module)| {
        let addresses = module.functions.values().flat_map(|known| known.goes_on.iter().copied());
        addresses.map(move |address| (index, address))
    });
    let mut jumped_to: Vec<(usize, u64)> = jumped_to.collect();
    jumped_to.sort_unstable();
    jumped_to.dedup();
    let is_plain = spread::map(&jumped_to, |(index, address)| {
        let module = &modules[*index];
        module.functions.get(address).map(|known| returns_plainly(module, known))
    });
    let looked_at = jumped_to.into_iter().zip(is_plain);
    let places = looked_at.filter_map(|(place, is_plain)| Some((place, is_plain?))).collect();
    let alone = spread::map(requests, |request| judge_alone(facts, modules, request));
    let mut ways = Ways { modules, places, plain: HashSet::new() };
    let judge = |(request, alone): (&Request<'_>, Result<&Known<'_>, Refusal>)| {
        ways.go_on_plainly(request.module, alone?)?;
        if facts.throws_unhooked { Err(Refusal::Unwinder) } else { Ok(()) }
    };
    requests.iter().zip(alone).map(judge).collect()
}

/// What is to be said of a request, whatever its function goes on in.
fn judge_alone<'a, 'm>(
    facts: &Facts,
    modules: &'a [Module<'m>],
    request: &Request<'_>,
) -> Result<&'a Known<'m>, Refusal> {
    let module = &modules[request.module];
    if let Some(runtime) = module.runtimes.finds_frames_itself() {
        return Err(Refusal::Runtime(runtime));
    }
    if let Some(runtime) = facts.runtimes.reaches_everywhere() {
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
    if facts.shadow_stack {
        return Err(Refusal::ShadowStack);
    }
    module.machine.isa().return_verdict(&crate::plan::site_of(request, modules))?;
    Ok(known)
}

/// What functions go on in by tail jumps.
struct Ways<'a, 'm> {
    modules: &'a [Module<'m>],
    /// By module and address: whether a function that is jumped to returns plainly itself.
    places: HashMap<(usize, u64), bool>,
    /// Those that do, and so does all that they jump to.
    plain: HashSet<(usize, u64)>,
}

impl Ways<'_, '_> {
    /// Whether what is reached by tail jumps from `first` returns plainly, too.
    fn go_on_plainly(&mut self, index: usize, first: &Known<'_>) -> Result<(), Refusal> {
        let module = &self.modules[index];
        let mut goes_on: Vec<&[u64]> = vec![&first.goes_on];
        let mut seen = HashSet::from([first.function.address]);
        while let Some(addresses) = goes_on.pop() {
            for &address in addresses {
                if self.plain.contains(&(index, address)) || !seen.insert(address) {
                    continue;
                }
                // The caller names all that is reached, so one that is missing was not looked at.
                let (Some(next), Some(is_plain)) =
                    (module.functions.get(&address), self.places.get(&(index, address)))
                else {
                    return Err(Refusal::GoesOn(format!("{address:#x}")));
                };
                if !is_plain {
                    let name = next.names.first().map_or_else(|| format!("{address:#x}"), |n| n.to_string());
                    return Err(Refusal::GoesOn(name));
                }
                goes_on.push(&next.goes_on);
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
    let site = Site::new(address, code, module.targets);
    // The stack of a part is not that of a function's start, so its code alone says nothing.
    known_names::returns_plainly(&known.names).is_ok()
        && (known.arrival != Arrival::Called || module.machine.isa().return_verdict(&site).is_ok())
}
