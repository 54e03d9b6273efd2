//! Which functions of a Go program read no flags that they are called with, and whose callers read none that they return with?
//!
//! Where its code has no stack and no registers to spare, probes count if nobody reads the flags. Go's assembly keeps to no convention about
//! them (`runtime.duffzero` keeps them for its callers), so it is looked at: at functions from their first instruction on, and at their callers
//! behind each call. What somebody calls by a pointer he cannot know, and so reads nothing of its flags.

use std::collections::HashSet;
use std::ops::Range;
use trapless_engine::spread;
use trapless_isa::{BranchTargets, Flow, Isa, Site};
use trapless_symbols::{Module, ModuleKind};

/// How often what was found out is asked for by those that could not be told. Assembly goes on in other assembly, and this in what the compiler
/// has made.
const ROUNDS: usize = 3;

/// The targets with these functions, of a module that Go has made.
pub(super) fn known(module: &Module, isa: &dyn Isa, mut targets: BranchTargets) -> BranchTargets {
    if !module.is_go() {
        return targets;
    }
    // Only direct calls of one's own know what a function does to flags.
    let is_alone = !is_called_by_others(module);
    if is_alone {
        targets = targets.with_no_flags_across_pointers();
    }
    let functions: Vec<_> = module.functions().iter().map(|function| function.range()).collect();
    let called = if is_alone { calls(module, isa, &functions) } else { Vec::new() };
    let unread = |targets: &BranchTargets, function: &Range<u64>, address: u64| {
        let Some(code) = module.code(function.clone()) else { return false };
        let site = Site { address, ..Site::new(function.start, code, targets) };
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

/// A function that is called, and entered in no other way, and what stands behind the calls.
struct Calls {
    function: u64,
    /// Whose code, and where.
    behind: Vec<(Range<u64>, u64)>,
}

/// How control comes to a function.
#[derive(Clone, Copy)]
enum Arrival {
    /// By a call in a function, with what stands behind it.
    Call(u64),
    /// In another way, or from who knows where. It returns to nobody who is known.
    Otherwise,
}

/// Who calls the functions that Go's compiler has not made. Nobody is known where some function's code cannot be read from end to end: there may
/// be any call. One that is not called at all is entered in some other way, as `runtime.asyncPreempt` is; so may be what other modules know.
fn calls(module: &Module, isa: &dyn Isa, functions: &[Range<u64>]) -> Vec<Calls> {
    let of = |address: u64| {
        let index = functions.partition_point(|function| function.start <= address).checked_sub(1)?;
        Some(index).filter(|&index| functions[index].contains(&address))
    };
    let is_asked = |index: usize| !module.is_compiled_by_go(functions[index].start);
    let of_functions = spread::map(functions, |function| arrivals(module, isa, function));
    if of_functions.iter().any(Option::is_none) {
        return Vec::new();
    }
    let mut all: Vec<_> = (0..functions.len())
        .map(|index| is_asked(index).then(|| Calls { function: functions[index].start, behind: Vec::new() }))
        .collect();
    let mut arrive = |target: u64, from: Option<&Range<u64>>, arrival: Arrival| {
        let Some(index) = of(target) else { return };
        match (arrival, from, &mut all[index]) {
            (Arrival::Call(behind), Some(caller), Some(calls)) => calls.behind.push((caller.clone(), behind)),
            (Arrival::Call(_), Some(_), None) => {}
            (_, _, calls) => *calls = None,
        }
    };
    for (function, found) in functions.iter().zip(of_functions) {
        for (target, arrival) in found.into_iter().flatten() {
            arrive(target, Some(function), arrival);
        }
        // On through what lies between them, to the next function.
        let next = functions.partition_point(|next| next.start < function.end);
        if passes_end(module, isa, function)
            && let Some(next) = functions.get(next)
        {
            arrive(next.start, None, Arrival::Otherwise);
        }
    }
    let is_function = |piece: &Range<u64>| functions.binary_search_by_key(&piece.start, |f| f.start).is_ok();
    for between in super::pieces(module).iter().filter(|piece| !is_function(piece)) {
        // Nobody knows where instructions begin there.
        for address in between.clone() {
            let code = module.code(address..between.end).unwrap_or_default();
            let target = isa.decode(code, address).ok().and_then(|instruction| instruction.flow.target());
            target.into_iter().for_each(|target| arrive(target, None, Arrival::Otherwise));
        }
    }
    all.into_iter().flatten().filter(|calls| !calls.behind.is_empty()).collect()
}

/// Whether other modules may call functions of this one: a library's, or those of a program that loads plugins.
fn is_called_by_others(module: &Module) -> bool {
    let opens = |name: &str| name.starts_with("plugin.");
    module.kind() == ModuleKind::SharedLibrary
        || module.functions().iter().any(|function| function.names().any(|name| opens(name.plain())))
}

/// Where the branches of a function lead outside of it, and how; `None` if not all of its code is instructions.
fn arrivals(module: &Module, isa: &dyn Isa, function: &Range<u64>) -> Option<Vec<(u64, Arrival)>> {
    let mut found = Vec::new();
    for instruction in instructions(module, isa, function) {
        let (behind, flow) = instruction?;
        match flow {
            Flow::Call { target } if function.contains(&behind) => {
                found.push((target, Arrival::Call(behind)))
            }
            Flow::Call { target } => found.push((target, Arrival::Otherwise)),
            Flow::Jump { target } | Flow::Branch { target } if !function.contains(&target) => {
                found.push((target, Arrival::Otherwise));
            }
            _ => {}
        }
    }
    Some(found)
}

/// Whether control may pass a function's last instruction.
fn passes_end(module: &Module, isa: &dyn Isa, function: &Range<u64>) -> bool {
    instructions(module, isa, function).last().flatten().is_none_or(|(_, flow)| flow.falls_through())
}

/// What is behind each instruction of a function, and where it leads; ends with `None` at what is no instruction, or goes on behind the function.
fn instructions(
    module: &Module,
    isa: &dyn Isa,
    function: &Range<u64>,
) -> impl Iterator<Item = Option<(u64, Flow)>> {
    let (code, mut at) = (module.code(function.clone()).unwrap_or_default(), function.start);
    let end = function.end;
    core::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let rest = code.get((at - (end - code.len() as u64)) as usize..).unwrap_or_default();
        let instruction = isa.decode(rest, at).ok().filter(|instruction| instruction.end() <= end);
        at = instruction.map_or(end, |instruction| instruction.end());
        Some(instruction.map(|instruction| (instruction.end(), instruction.flow)))
    })
}
