//! Which functions of a Go program read no flags that they are called with, and whose callers read none that they return with?
//!
//! Where its code has no stack and no registers to spare, probes count if nobody reads the flags. Go's assembly keeps to no convention about
//! them (`runtime.duffzero` keeps them for its callers), so it is looked at: at functions from their first instruction on, and at their callers
//! behind each call. What functions call by a pointer they cannot know, and so read nothing of its flags.

use std::collections::HashSet;
use std::ops::Range;
use trapless_engine::spread;
use trapless_isa::{BranchTargets, Flow, Isa, Site};
use trapless_symbols::Module;

/// How often what was found out is asked for by those that could not be told. Assembly goes on in other assembly, and this in what the compiler
/// has made.
const ROUNDS: usize = 3;

/// The targets with these functions, of a module that Go has made.
pub(super) fn known(module: &Module, isa: &dyn Isa, mut targets: BranchTargets) -> BranchTargets {
    if !module.is_go() {
        return targets;
    }
    let functions: Vec<_> = module.functions().iter().map(|function| function.range()).collect();
    let called = calls(module, isa, &functions);
    let unread = |targets: &BranchTargets, function: &Range<u64>, address: u64| {
        let Some(code) = module.code(function.clone()) else { return false };
        let site = Site { address, function: function.start, code, padding: &[], targets };
        isa.flags_are_unread(&site, module.is_compiled_by_go(function.start))
    };
    let (mut reads_none, mut returns_none) = (HashSet::new(), HashSet::new());
    for _ in 0..ROUNDS {
        let before = reads_none.len() + returns_none.len();
        let left: Vec<_> =
            functions.iter().filter(|function| !reads_none.contains(&function.start)).collect();
        let found = spread::map(&left, |function| unread(&targets, function, function.start));
        reads_none.extend(left.iter().zip(found).filter_map(|(function, is)| is.then_some(function.start)));
        let left: Vec<_> = called.iter().filter(|calls| !returns_none.contains(&calls.function)).collect();
        let found = spread::map(&left, |calls| {
            calls.behind.iter().all(|(caller, behind)| unread(&targets, caller, *behind))
        });
        returns_none.extend(left.iter().zip(found).filter_map(|(calls, is)| is.then_some(calls.function)));
        if reads_none.len() + returns_none.len() == before {
            break;
        }
        let all = |found: &HashSet<u64>| found.iter().copied().collect();
        targets = targets.with_unread_flags(all(&reads_none), all(&returns_none));
    }
    targets
}

/// A function that is called, but entered in no other way, and what stands behind the calls.
struct Calls {
    function: u64,
    /// Whose code, and where.
    behind: Vec<(Range<u64>, u64)>,
}

/// Who calls the functions that Go's compiler has not made.
fn calls(module: &Module, isa: &dyn Isa, functions: &[Range<u64>]) -> Vec<Calls> {
    let of = |address: u64| {
        let index = functions.partition_point(|function| function.start <= address).checked_sub(1)?;
        Some(index).filter(|&index| functions[index].contains(&address))
    };
    let is_asked = |index: &usize| !module.is_compiled_by_go(functions[*index].start);
    /// How control comes to a function.
    enum Arrival {
        Call(u64),
        Jump,
    }
    let arrivals = spread::map(functions, |function| {
        let mut found = Vec::new();
        let (mut code, mut address) = (module.code(function.clone()).unwrap_or_default(), function.start);
        while let Ok(instruction) = isa.decode(code, address) {
            let behind = instruction.end();
            let arrival = match instruction.flow {
                Flow::Call { target } if function.contains(&behind) => Some((target, Arrival::Call(behind))),
                Flow::Jump { target } | Flow::Branch { target } if !function.contains(&target) => {
                    Some((target, Arrival::Jump))
                }
                // On into the next function.
                Flow::Next if behind == function.end => Some((behind, Arrival::Jump)),
                _ => None,
            };
            let arrival = arrival.and_then(|(target, arrival)| Some((of(target).filter(is_asked)?, arrival)));
            found.extend(arrival);
            code = code.get(usize::from(instruction.length).max(1)..).unwrap_or_default();
            address = behind;
        }
        found
    });
    let mut all: Vec<_> = functions
        .iter()
        .enumerate()
        .map(|(index, function)| {
            is_asked(&index).then(|| Calls { function: function.start, behind: Vec::new() })
        })
        .collect();
    for (function, found) in functions.iter().zip(arrivals) {
        for (index, arrival) in found {
            match (arrival, &mut all[index]) {
                (Arrival::Call(behind), Some(calls)) => calls.behind.push((function.clone(), behind)),
                // It returns to whoever has called the one that jumps.
                (Arrival::Jump, calls) => *calls = None,
                (Arrival::Call(_), None) => {}
            }
        }
    }
    all.into_iter().flatten().collect()
}
