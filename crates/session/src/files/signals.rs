//! The places of a file where it says which handlers its signals have, and where handlers return to.

use super::file::{code_of, function_around};
use crate::target;
use trapless_isa::SignalCall;
use trapless_symbols::{Function, Module};

/// What the kernel calls in programs of Go for any signal: the first, or where there is C, too, the second.
const GOS: [&str; 2] = ["runtime.sigtramp", "runtime.cgoSigtramp"];

/// The handlers of a module that are known by their names.
fn handlers(module: &Module) -> Vec<u64> {
    if !module.is_go() {
        return Vec::new();
    }
    let is_handler = |name: &str| GOS.contains(&name.trim_end_matches(".abi0"));
    let known =
        module.functions().iter().filter(|function| function.names().any(|name| is_handler(name.plain())));
    known.map(|function| function.address()).collect()
}

/// Whether it is Go's way to install handlers, all of which are probed.
fn is_gos(function: &Function<'_>) -> bool {
    function.names().any(|name| name.plain().trim_end_matches(".abi0") == "runtime.rt_sigaction")
}

/// All of them, where the instruction set's handlers can be shown the program.
pub(super) fn places(module: &Module) -> Vec<(u64, SignalCall)> {
    let isa = target::machine(module).isa();
    let mut places = Vec::new();
    if !isa.shows_handlers_the_program() {
        return places;
    }
    let handlers = handlers(module);
    places.extend(handlers.iter().map(|&address| (address, SignalCall::Handler)));
    for range in module.executable_ranges() {
        let start = range.start;
        let Some(code) = module.code(range) else { continue };
        let returns = isa.handlers_return_to(code).into_iter().map(|at| start + at as u64);
        // Where no table tells of it, unwinders know it by its bytes, which are to stay. Go's own looks for names.
        let returns = returns.filter(|&address| module.is_go() || module.is_signal_trampoline(address));
        places.extend(returns.map(|address| (address, SignalCall::Return)));
        for at in isa.action_candidates(code) {
            let at = start + at as u64;
            let function = function_around(module, at);
            if !handlers.is_empty() && function.as_ref().is_some_and(is_gos) {
                continue;
            }
            let own = function.and_then(|function| Some((function.address(), code_of(module, function)?)));
            let found = own.and_then(|(start, code)| isa.action_places(code, start, at));
            let Some((ahead, behind)) = found else { continue };
            places.extend([(ahead, SignalCall::BeforeAction), (behind, SignalCall::Action)]);
        }
    }
    places
}
