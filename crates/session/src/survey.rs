//! Where control can arrive in a file, other than by falling through.
//!
//! A patch may only cover instructions that nobody jumps into. So all code of the file is read once, for direct
//! branches and for jump tables, from every function on and through what lies between functions; what only the file's
//! tables know is added: landing pads, relocated code pointers, local symbols.

mod computed;
mod flags;

use crate::error::Error;
use computed::{Clues, PointedInto};
use std::ops::Range;
use std::path::Path;
use trapless_engine::spread::{both, share_out};
use trapless_isa::{Arrivals, BranchTargets, Flow, Isa, ReadOnlyData, Swept, View};
use trapless_symbols::{Module, ModuleKind};

struct Data<'m> {
    module: &'m Module,
    /// All code of the file lies here.
    code: Range<u64>,
}

impl ReadOnlyData for Data<'_> {
    fn at(&self, address: u64) -> &[u8] {
        self.module.read_only_data_at(address)
    }

    fn is_fixed(&self) -> bool {
        self.module.kind() == ModuleKind::FixedExecutable
    }

    fn got(&self) -> Option<u64> {
        self.module.got()
    }

    fn code_at(&self, address: u64) -> &[u8] {
        self.module.code_at(address)
    }

    fn may_be_code(&self, address: u64) -> bool {
        self.code.contains(&address)
    }
}

/// Every known branch target of `module`. Addresses are the file's.
///
/// # Errors
/// Some code could not be read: what branches there is not known, so nothing in the file can be judged.
pub fn branch_targets(module: &Module, isa: &dyn Isa) -> Result<BranchTargets, Error> {
    let start = module.executable_ranges().map(|range| range.start).min().unwrap_or(0);
    let end = module.executable_ranges().map(|range| range.end).max().unwrap_or(0);
    let data = Data { module, code: start..end };
    let arrivals = Arrivals::over(module.executable_ranges().map(|range| in_file(module, range)));
    let pieces = pieces(module);
    let in_parts: Vec<u64> = functions_in_parts(module, &pieces).collect();
    in_parts.iter().for_each(|&function| arrivals.may_turn_to_entry(function));
    /// What one thread keeps from piece to piece.
    #[derive(Default)]
    struct Read {
        swept: Swept,
        clues: Clues,
        beginning_again: Vec<u64>,
    }
    impl Read {
        fn append(&mut self, share: Read) {
            self.clues.append(share.clues);
            self.beginning_again.extend(share.beginning_again);
        }
    }
    let read = |own: &mut Read, code: &[u8], address: u64| {
        let found = &mut own.swept;
        found.clear();
        isa.sweep(code, address, &data, found);
        found.targets.iter().for_each(|&target| arrivals.insert(target));
        found.turns.iter().for_each(|&target| arrivals.insert_turn(target));
        if found.view == View::Partial {
            arrivals.may_turn_to_entry(address);
        }
        own.beginning_again.extend(found.begins_again.then_some(address));
        own.clues.take(found, address, &data);
    };
    let told = || {
        module.landing_pads().iter().for_each(|&pad| arrivals.insert(pad));
        let mut pointers = module.code_pointers();
        if data.is_fixed() {
            pointers.retain(|&address| !is_number(module, isa, address));
        }
        pointers.iter().for_each(|&at| arrivals.insert(at));
        pointers
    };
    let (told, shares) = both(told, || sweep(module, &pieces, read));
    let mut all = Read { beginning_again: in_parts, ..Read::default() };
    shares?.into_iter().for_each(|share| all.append(share));
    // One of them less would be places that nobody knows of.
    let pointers = told.map_err(|_| unread(module.path()))?;
    let read_again = |own: &mut Read, pointed: &PointedInto| {
        let Some(code) = module.code(pointed.function.clone()) else { return };
        let (found, address) = (&mut own.swept, pointed.function.start);
        found.clear();
        isa.sweep_pointed_into(code, address, &pointed.pointers, &data, found);
        found.targets.iter().for_each(|&target| arrivals.insert(target));
        own.beginning_again.extend(found.begins_again.then_some(address));
        own.clues.take_pointed_into(found, address, &data);
    };
    let again = share_out(&all.clues.pointed_into(module, pointers), read_again);
    again.map_err(|_| unread(module.path()))?.into_iter().for_each(|share| all.append(share));
    let targets = arrivals.targets();
    let functions = all.clues.functions(module, isa, &targets);
    let targets = targets.with_computed(functions).with_beginning_again(all.beginning_again);
    Ok(flags::known(module, isa, targets))
}

/// So many instructions of a function are read to tell that a number is no address. Probes of entries change no more.
const FIRST: usize = 16;

/// Whether a number that may be the address of code in a program that does not move is none: it is in the middle of one of a function's first
/// instructions, which control passes one after the other. So text is (`ame\0` at the end of a name is 0x656d61).
fn is_number(module: &Module, isa: &dyn Isa, address: u64) -> bool {
    let Some(function) = module.function_containing(address).map(|function| function.range()) else {
        return false;
    };
    let (mut code, mut at) = (module.code(function.clone()).unwrap_or_default(), function.start);
    for _ in 0..FIRST {
        let Ok(instruction) = isa.decode(code, at) else { return false };
        if at >= address || instruction.end() > address {
            return at < address;
        }
        if !instruction.flow.falls_through() {
            return false;
        }
        at = instruction.end();
        code = code.get(usize::from(instruction.length)..).unwrap_or_default();
    }
    false
}

/// What of a range of code the file has.
fn in_file(module: &Module, range: Range<u64>) -> Range<u64> {
    let there = module.bytes_at(range.start).len() as u64;
    range.start..range.end.min(range.start.saturating_add(there))
}

/// The first addresses of functions that no piece holds whole and alone.
fn functions_in_parts<'m>(module: &'m Module, pieces: &'m [Range<u64>]) -> impl Iterator<Item = u64> {
    let mut pieces = pieces.iter().peekable();
    module.functions().iter().filter_map(move |function| {
        let range = function.range();
        while pieces.next_if(|piece| piece.start < range.start).is_some() {}
        (pieces.peek() != Some(&&range)).then_some(range.start)
    })
}

/// So much code is read by a thread before it looks for more, in bytes.
const SHARE: u64 = 64 << 10;

/// Calls `read` with each of `pieces`, its code and its address, on all processors, and with something that each thread keeps, which
/// is given back.
fn sweep<T: Default + Send>(
    module: &Module,
    pieces: &[Range<u64>],
    read: impl Fn(&mut T, &[u8], u64) + Sync,
) -> Result<Vec<T>, Error> {
    let read_share = |own: &mut T, share: &&[Range<u64>]| {
        for piece in *share {
            if let Some(code) = module.code(piece.clone()) {
                read(own, code, piece.start);
            }
        }
    };
    // One share less would be branches that nobody knows of.
    share_out(&shares(pieces), read_share).map_err(|_| unread(module.path()))
}

/// `pieces` in groups of about as much code.
fn shares(pieces: &[Range<u64>]) -> Vec<&[Range<u64>]> {
    let (mut shares, mut rest) = (Vec::new(), pieces);
    while !rest.is_empty() {
        let mut size = 0;
        let fits = |piece: &&Range<u64>| {
            let room = size < SHARE;
            size += piece.end - piece.start;
            room
        };
        let (share, others) = rest.split_at(rest.iter().take_while(fits).count());
        shares.push(share);
        rest = others;
    }
    shares
}

/// The error for a file at `path` of which that is so.
pub(crate) fn unread(path: &Path) -> Error {
    Error::File {
        path: path.to_owned(),
        reason: "its code could not be read whole, so nothing in it is probed; please report this".to_owned(),
    }
}

/// Where the direct calls and the conditional branches of a file lead.
#[derive(Debug)]
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
    let read = |found: &mut [Vec<u64>; 2], code: &[u8], address: u64| {
        isa.flows(code, address, &mut |flow| match flow {
            Flow::Call { target } => found[0].push(target),
            Flow::Branch { target } => found[1].push(target),
            _ => {}
        });
    };
    let (mut calls, mut branches) = (Vec::new(), Vec::new());
    for [some_calls, some_branches] in sweep(module, &pieces(module), read)? {
        calls.extend(some_calls);
        branches.extend(some_branches);
    }
    for targets in [&mut calls, &mut branches] {
        targets.sort_unstable();
        targets.dedup();
    }
    Ok(Flows { calls, branches })
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
    use crate::target;

    #[test]
    fn a_share_that_could_not_be_read_fails_the_whole_survey() {
        let module = Module::open(std::env::current_exe().unwrap()).unwrap();
        let first = module.executable_ranges().next().unwrap().start;
        let read = |found: &mut Vec<u64>, _: &[u8], address: u64| {
            assert_ne!(address, first, "a defect");
            found.push(address);
        };
        let pieces = pieces(&module);
        let error = sweep(&module, &pieces, read).unwrap_err();
        assert!(error.to_string().contains("could not be read whole"), "{error}");
        let all = |found: &mut Vec<u64>, _: &[u8], address: u64| found.push(address);
        let mut read = sweep(&module, &pieces, all).unwrap().concat();
        read.sort_unstable();
        let whole = pieces.iter().filter(|piece| module.code((*piece).clone()).is_some());
        assert_eq!(read, whole.map(|piece| piece.start).collect::<Vec<_>>());
    }

    #[test]
    fn a_loop_to_the_entry_is_known_for_every_function_that_may_have_one() {
        let module = Module::open(std::env::current_exe().unwrap()).unwrap();
        let isa = target::machine(&module).isa();
        let targets = branch_targets(&module, isa).unwrap();
        let (mut inside, mut turned) = (0, 0);
        for function in module.functions().iter() {
            let range = function.range();
            let Some(code) = module.code(range.clone()) else { continue };
            isa.flows(code, range.start, &mut |flow| {
                if let Flow::Jump { target } | Flow::Branch { target } = flow
                    && range.contains(&target)
                {
                    inside += 1;
                    turned += usize::from(targets.is_turned_to(target));
                    assert!(target != range.start || targets.is_turned_to(target), "{target:#x}");
                }
            });
        }
        // Elsewhere nobody asks of other places than entries.
        let are_all = cfg!(any(target_arch = "x86_64", target_arch = "x86"));
        assert!(!are_all || turned > 1000 && turned * 10 > inside * 9, "{turned} of {inside}");
    }
}
