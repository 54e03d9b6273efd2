//! Where control can arrive in a file, other than by falling through.
//!
//! A patch may only cover instructions that nobody jumps into. So all code of the file is read once, for direct
//! branches and for jump tables, from every function on and through what lies between functions; what only the file's
//! tables know is added: landing pads, relocated code pointers, local symbols.

use std::ops::Range;
use trapless_isa::{BranchTargets, Isa, ReadOnlyData};
use trapless_symbols::Module;

struct Data<'m>(&'m Module);

impl ReadOnlyData for Data<'_> {
    fn at(&self, address: u64) -> &[u8] {
        self.0.read_only_data_at(address)
    }
}

/// Every known branch target of `module`, moved by `bias`.
pub fn branch_targets(module: &Module, isa: &dyn Isa, bias: u64) -> BranchTargets {
    let pieces = pieces(module);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let share = pieces.len().div_ceil(workers).max(1);
    let sweep = |pieces: &[Range<u64>]| {
        let mut targets = Vec::new();
        for piece in pieces {
            if let Some(code) = module.code(piece.clone()) {
                isa.branch_targets(code, piece.start, &Data(module), &mut targets);
            }
        }
        targets
    };
    let mut all = std::thread::scope(|scope| {
        let running: Vec<_> = pieces.chunks(share).map(|chunk| scope.spawn(move || sweep(chunk))).collect();
        let results = running.into_iter().map(|thread| thread.join().unwrap_or_default());
        results.flatten().collect::<Vec<u64>>()
    });
    all.extend(module.landing_pads());
    all.extend(module.code_pointers());
    for target in &mut all {
        *target = target.wrapping_add(bias);
    }
    BranchTargets::new(all)
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
