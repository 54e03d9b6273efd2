//! Which functions may be entered at a place that is computed when the program runs.

use super::Data;
use std::ops::Range;
use trapless_isa::{BranchTargets, Isa, ReadOnlyData, Swept, Told};
use trapless_symbols::Module;

/// What sweeps tell of that: what one thread keeps from piece to piece.
#[derive(Default)]
pub(super) struct Clues {
    /// From where places are computed.
    computed: Vec<u64>,
    /// The same, where a constant may be such an address.
    guessed: Vec<u64>,
    /// What of other functions is named.
    taken: Vec<u64>,
    /// The pieces that may jump to places around what they are given.
    leading: Vec<u64>,
    /// Where it was found out which places are computed.
    told: Vec<Told>,
}

impl Clues {
    /// Takes what was `found` in the piece at `address`.
    pub(super) fn take(&mut self, found: &mut Swept, address: u64, data: &Data<'_>) {
        let is_code = |address: &u64| data.may_be_code(*address);
        self.computed.extend(found.computed.drain(..).filter(is_code));
        self.guessed.extend(found.guessed.drain(..).filter(is_code));
        self.taken.extend(found.taken.drain(..).filter(is_code));
        self.leading.extend(found.leads_around.then_some(address));
        self.told.append(&mut found.told);
    }

    /// Takes what was `found` in a function that others point into, which begins at `address`.
    pub(super) fn take_pointed_into(&mut self, found: &mut Swept, address: u64, data: &Data<'_>) {
        self.computed.extend(found.leads_around.then_some(address));
        self.take(found, address, data);
    }

    pub(super) fn append(&mut self, mut other: Clues) {
        self.computed.append(&mut other.computed);
        self.guessed.append(&mut other.guessed);
        self.taken.append(&mut other.taken);
        self.leading.append(&mut other.leading);
        self.told.append(&mut other.told);
    }

    /// The functions that code or `pointers` of data point into, if they may jump around what they are given.
    pub(super) fn pointed_into(&mut self, module: &Module, mut pointers: Vec<u64>) -> Vec<PointedInto> {
        pointers.append(&mut self.taken);
        self.leading.sort_unstable();
        let mut all = pointed_into(module, pointers);
        all.retain(|pointed| {
            let function = &pointed.function;
            let first = self.leading.partition_point(|piece| *piece < function.start);
            self.leading.get(first).is_some_and(|piece| function.contains(piece))
        });
        all
    }

    /// The first addresses of the functions that may be entered anywhere, by all that is known.
    pub(super) fn functions(mut self, module: &Module, isa: &dyn Isa, targets: &BranchTargets) -> Vec<u64> {
        // Another piece may lead into the middle of what tells a place, with anything in the registers.
        let is_entered =
            |told: &&Told| targets.first_inside(told.behind, told.last.saturating_add(1)).is_some();
        self.computed.extend(self.told.iter().filter(is_entered).map(|told| told.from));
        for guessed in pointed_into(module, self.guessed.clone()) {
            let is_label = |from: &&u64| is_instruction(module, isa, &guessed.function, **from);
            self.computed.extend(guessed.pointers.iter().find(is_label));
        }
        let containing = |from: u64| Some(module.function_containing(from)?.range());
        let is_start = |from: &&u64| containing(**from).is_some_and(|function| function.start == **from);
        let labels = self.computed.iter().chain(self.guessed.iter().filter(is_start));
        let mut entered: Vec<_> = labels.filter_map(|from| containing(*from)).collect();
        entered.sort_unstable_by_key(|function| (function.start, function.end));
        overlapping(module, &entered)
    }
}

/// The first addresses of all functions that share bytes with one of `entered`, which are sorted.
fn overlapping(module: &Module, entered: &[Range<u64>]) -> Vec<u64> {
    // How far those up to each one reach.
    let mut end = 0;
    let ends: Vec<u64> = entered.iter().map(|function| (end = end.max(function.end), end).1).collect();
    let shares = |function: &Range<u64>| {
        let before = entered.partition_point(|other| other.start < function.end);
        before > 0 && ends[before - 1] > function.start
    };
    let all = module.functions().iter().map(|function| function.range());
    all.filter(shares).map(|function| function.start).collect()
}

/// Whether an instruction of `function` begins at `address`.
fn is_instruction(module: &Module, isa: &dyn Isa, function: &Range<u64>, address: u64) -> bool {
    let unit = u64::from(isa.facts().unit);
    let mut at = function.start;
    while at < address {
        let code = module.code(at..function.end).unwrap_or_default();
        at += isa.decode(code, at).map_or(unit, |instruction| u64::from(instruction.length).max(1));
    }
    at == address
}

/// A function, and what leads to places in it that are not its first.
pub(super) struct PointedInto {
    pub(super) function: Range<u64>,
    pub(super) pointers: Vec<u64>,
}

/// The functions that some of `pointers` lead into.
fn pointed_into(module: &Module, mut pointers: Vec<u64>) -> Vec<PointedInto> {
    pointers.sort_unstable();
    pointers.dedup();
    let mut all: Vec<PointedInto> = Vec::new();
    for pointer in pointers {
        match all.last_mut() {
            Some(last) if last.function.contains(&pointer) => last.pointers.push(pointer),
            _ => {
                let function = module.function_containing(pointer).map(|function| function.range());
                let function = function.filter(|function| function.start < pointer);
                all.extend(function.map(|function| PointedInto { function, pointers: vec![pointer] }));
            }
        }
    }
    all
}
