//! Where control can arrive in a file, other than by falling through.
//!
//! A patch may only cover instructions that nobody jumps into. So all code of the file is read once, for direct
//! branches and for jump tables, from every function on and through what lies between functions; what only the file's
//! tables know is added: landing pads, relocated code pointers, local symbols.

use crate::error::Error;
use std::ops::Range;
use trapless_isa::{BranchTargets, Flow, Isa, ReadOnlyData};
use trapless_symbols::{Module, ModuleKind};

struct Data<'m>(&'m Module);

impl ReadOnlyData for Data<'_> {
    fn at(&self, address: u64) -> &[u8] {
        self.0.read_only_data_at(address)
    }

    fn is_fixed(&self) -> bool {
        self.0.kind() == ModuleKind::FixedExecutable
    }
}

/// Every known branch target of `module`, moved by `bias`.
///
/// # Errors
/// Some code could not be read: what branches there is not known, so nothing in the file can be judged.
pub fn branch_targets(module: &Module, isa: &dyn Isa, bias: u64) -> Result<BranchTargets, Error> {
    let data = Data(module);
    let start = module.executable_ranges().map(|range| range.start).min().unwrap_or(0);
    let end = module.executable_ranges().map(|range| range.end).max().unwrap_or(0);
    let is_code = |address: &u64| (start..end).contains(address);
    let all = sweep(module, |code, address, found| {
        let mut addresses = Vec::new();
        isa.branch_targets(code, address, &data, &mut addresses);
        found.extend(addresses.drain(..).filter(is_code).map(Found::Target));
        isa.computed_jumps(code, address, data.is_fixed(), &mut addresses);
        let taken = addresses.into_iter().filter(is_code);
        found.extend(taken.map(|from| Found::Computed { from, by: address }));
    })?;
    let (mut computed, mut inside) = (Vec::new(), Vec::new());
    let mut targets = Vec::with_capacity(all.len());
    let start_of = |address| module.function_containing(address).map(|function| function.address());
    for found in all {
        match found {
            Found::Target(address) => targets.push(address),
            Found::Computed { from, by } => {
                let Some(function) = start_of(from) else { continue };
                let own_label = from != function && start_of(by) == Some(function);
                let list = if own_label { &mut inside } else { &mut computed };
                list.push(function.wrapping_add(bias));
            }
        }
    }
    let mut all = targets;
    all.extend(module.landing_pads());
    all.extend(module.code_pointers());
    for target in &mut all {
        *target = target.wrapping_add(bias);
    }
    Ok(BranchTargets::new(all).with_computed(computed).with_computed_inside(inside))
}

/// What a sweep finds in a piece of code.
enum Found {
    /// Control may arrive here.
    Target(u64),
    /// Control may arrive somewhere around `from`, because the code at `by` computes a place there.
    Computed { from: u64, by: u64 },
}

/// Calls `read` with each piece of the module's code and its address, on all processors, and joins what it appends.
fn sweep<T: Send>(module: &Module, read: impl Fn(&[u8], u64, &mut Vec<T>) + Sync) -> Result<Vec<T>, Error> {
    let pieces = pieces(module);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let share = pieces.len().div_ceil(workers).max(1);
    let sweep = |pieces: &[Range<u64>]| {
        let mut found = Vec::new();
        for piece in pieces {
            if let Some(code) = module.code(piece.clone()) {
                read(code, piece.start, &mut found);
            }
        }
        found
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = pieces.chunks(share).map(|chunk| scope.spawn(|| sweep(chunk))).collect();
        // One share less would be branches that nobody knows of.
        let joined: Result<Vec<Vec<T>>, _> = running.into_iter().map(|thread| thread.join()).collect();
        joined.map(|shares| shares.into_iter().flatten().collect())
    })
    .map_err(|_| Error::File {
        path: module.path().to_owned(),
        reason: "its code could not be read whole, so nothing in it is probed; please report this".to_owned(),
    })
}

/// Where the direct calls and the conditional branches of a file lead.
pub struct Flows {
    calls: Vec<u64>,
    branches: Vec<u64>,
}

impl Flows {
    /// Whether a direct call leads to `address`.
    pub fn calls(&self, address: u64) -> bool {
        self.calls.binary_search(&address).is_ok()
    }

    /// Whether a conditional branch leads to `address`.
    pub fn branches(&self, address: u64) -> bool {
        self.branches.binary_search(&address).is_ok()
    }
}

/// Reads all code of `module` for direct calls and conditional branches. Addresses are the file's.
pub fn flows(module: &Module, isa: &dyn Isa) -> Result<Flows, Error> {
    let all = sweep(module, |code, address, found| {
        each_flow(isa, code, address, |flow| match flow {
            Flow::Call { target } => found.push((true, target)),
            Flow::Branch { target } => found.push((false, target)),
            _ => {}
        });
    })?;
    let those = |call: bool| {
        let mut targets: Vec<u64> = all.iter().filter(|f| f.0 == call).map(|f| f.1).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    };
    Ok(Flows { calls: those(true), branches: those(false) })
}

/// Calls `see` with where control goes after each instruction of `code`, which stands at `address`.
pub fn each_flow(isa: &dyn Isa, code: &[u8], address: u64, mut see: impl FnMut(Flow)) {
    // Data in text: try again at the next place where an instruction may begin.
    let step = usize::from(isa.facts().unit);
    let mut at = 0;
    while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
        match isa.decode(rest, address.wrapping_add(at as u64)) {
            Ok(instruction) => {
                see(instruction.flow);
                at += usize::from(instruction.length).max(1);
            }
            Err(_) => at += step,
        }
    }
}

/// The code cut at the functions, so that a sweep that lost its way in data finds it again at the next one.
fn pieces(module: &Module) -> Vec<Range<u64>> {
    let functions = module.functions();
    let mut cuts: Vec<u64> = functions.iter().flat_map(|f| [f.address(), f.range().end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::with_capacity(cuts.len() + 16);
    for section in module.executable_ranges() {
        let mut start = section.start;
        let first = cuts.partition_point(|&cut| cut <= section.start);
        for &cut in cuts[first..].iter().take_while(|&&cut| cut < section.end) {
            pieces.push(start..cut);
            start = cut;
        }
        pieces.push(start..section.end);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_could_not_be_read_fails_the_whole_survey() {
        let module = Module::open(std::env::current_exe().unwrap()).unwrap();
        let first = module.executable_ranges().next().unwrap().start;
        let read = |_: &[u8], address: u64, found: &mut Vec<u64>| {
            assert_ne!(address, first, "a defect");
            found.push(address);
        };
        let error = sweep(&module, read).unwrap_err();
        assert!(error.to_string().contains("could not be read whole"), "{error}");
        assert!(!sweep(&module, |_, address, found| found.push(address)).unwrap().is_empty());
    }
}
