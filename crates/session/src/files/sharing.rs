//! The system calls of a file that may make children which share the memory.

use super::file::{code_of, function_around};
use crate::target;
use trapless_isa::SharingCalls;
use trapless_symbols::Module;

/// All of them, each with where its children are told from their parent.
pub(super) fn calls(module: &Module) -> Vec<(u64, SharingCalls)> {
    let isa = target::machine(module).isa();
    let ranges = module.executable_ranges();
    let code = ranges.filter_map(|range| Some((range.start, module.code(range)?)));
    let candidates = code
        .flat_map(|(start, code)| isa.sharing_candidates(code).into_iter().map(move |at| start + at as u64));
    let told = |at| {
        let function = function_around(module, at);
        let code = function.and_then(|function| Some((function.address(), code_of(module, function)?)));
        code.map_or(SharingCalls::Unclear, |(start, code)| isa.sharing_calls(code, start, at))
    };
    candidates.map(|at| (at, told(at))).collect()
}
