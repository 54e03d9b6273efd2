//! Which functions of a Go program read no flags that they are called with?
//!
//! Where its code has no stack and no registers to spare, probes count if nobody reads the flags, and functions that call others or go on in
//! them leave that to those ([`trapless_isa::BranchTargets::reads_no_flags`]).

use trapless_engine::spread;
use trapless_isa::{BranchTargets, Isa, Site};
use trapless_symbols::Module;

/// How often what was found out is asked for by those that could not be told. Assembly goes on in other assembly, and this in what the compiler
/// has made.
const ROUNDS: usize = 3;

/// The targets with these functions, of a module that Go has made.
pub(super) fn known(module: &Module, isa: &dyn Isa, targets: BranchTargets) -> BranchTargets {
    if !module.is_go() {
        return targets;
    }
    let (mut found, mut left) = (Vec::new(), Vec::new());
    left.extend(module.functions().iter().map(|function| function.range()));
    let mut targets = targets;
    for _ in 0..ROUNDS {
        let reads_none = spread::map(&left, |function| {
            let Some(code) = module.code(function.clone()) else { return false };
            let site = Site {
                address: function.start,
                function: function.start,
                code,
                padding: &[],
                targets: &targets,
            };
            isa.reads_no_flags(&site)
        });
        let before = found.len();
        let mut reads_none = reads_none.into_iter();
        left.retain(|function| {
            let is_known = reads_none.next() == Some(true);
            found.extend(is_known.then_some(function.start));
            !is_known
        });
        if found.len() == before {
            break;
        }
        targets = targets.with_flagless(found.clone());
    }
    targets
}
