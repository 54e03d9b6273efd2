//! How the function table is made from symbols and unwind entries.
//!
//! 1. Every symbol in a code section becomes a candidate, or a label if it cannot be a function.
//! 2. Candidates at one address are one function; its names are put in order.
//! 3. Unwind entries that no function covers are functions, or parts, without a name.
//! 4. Sizes that no symbol tells end at the unwind entry's end, the next function or the section's end.

use std::collections::HashSet;

use object::elf;

use crate::{
    frames::{Arrival, Frame},
    functions::{Functions, Kind, Origin, Record, is_variant, local_entry_offset},
    image::{CodeSection, Machine, section_at},
    name::{Binding, NameRecord, NameTable, is_cold_part},
    symtab::Symbol,
};

struct Candidate {
    address: u64,
    size: u64,
    name: NameRecord,
    origin: Origin,
    local_entry: u8,
    is_variant: bool,
    is_ifunc: bool,
    /// `STT_NOTYPE`: assembly that did not say what it is.
    is_untyped: bool,
}

/// A function table in the making.
pub(crate) struct Builder<'c> {
    machine: Machine,
    code: &'c [CodeSection],
    candidates: Vec<Candidate>,
    functions: Functions,
}

impl<'c> Builder<'c> {
    /// For a file of `file_size` bytes with these code sections, sorted.
    pub(crate) fn new(machine: Machine, code: &'c [CodeSection], file_size: usize) -> Builder<'c> {
        let functions = Functions { text: NameTable::for_file(file_size), ..Functions::default() };
        Builder { machine, code, candidates: Vec::new(), functions }
    }

    /// Takes note of a table that could not be read.
    pub(crate) fn defect(&mut self, origin: Origin, error: &str) {
        self.functions.defects.push(format!("{origin:?}: {error}"));
        // What stands in another file may be missing anyway.
        self.functions.lacks_symbols |= matches!(origin, Origin::SymbolTable | Origin::DynamicSymbols);
    }

    /// Takes one symbol, whatever it is.
    pub(crate) fn add(&mut self, symbol: &Symbol<'_>, origin: Origin) {
        let Some(section) = section_at(self.code, symbol.address) else { return };
        if section.is_plt || is_mapping_symbol(symbol.name) || self.is_linker_stub(symbol.name) {
            return;
        }
        let is_untyped = symbol.kind == elf::STT_NOTYPE;
        let is_local = symbol.binding == elf::STB_LOCAL;
        match symbol.kind {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => {}
            elf::STT_NOTYPE if !is_local => {}
            elf::STT_NOTYPE => return self.functions.labels.push(symbol.address),
            _ => return,
        }
        let binding = match symbol.binding {
            elf::STB_LOCAL => Binding::Local,
            elf::STB_WEAK => Binding::Weak,
            _ => Binding::Global,
        };
        let Some(name) = self.functions.text.add(symbol.name, symbol.version, binding) else { return };
        self.candidates.push(Candidate {
            address: symbol.address,
            size: symbol.size.min(section.range.end - symbol.address),
            name,
            origin,
            local_entry: local_entry_offset(self.machine, symbol.other),
            is_variant: is_variant(self.machine, symbol.other),
            is_ifunc: symbol.kind == elf::STT_GNU_IFUNC,
            is_untyped,
        });
    }

    /// Stubs that PowerPC linkers put into `.text`, with a symbol each.
    fn is_linker_stub(&self, name: &[u8]) -> bool {
        const INFIXES: [&[u8]; 3] = [b".plt_call.", b".plt_branch.", b".long_branch."];
        let contains = |part: &&[u8]| name.windows(part.len()).any(|window| window == *part);
        self.machine == Machine::PowerPc64Le && (name.starts_with(b"__glink") || INFIXES.iter().any(contains))
    }

    /// The table, with what `frames`, which are sorted, add to it.
    pub(crate) fn finish(mut self, frames: &[Frame]) -> Functions {
        self.drop_inner_labels();
        self.merge_aliases();
        let symbols = self.functions.records.len();
        self.add_unnamed(frames);
        if self.functions.records.len() > symbols {
            self.functions.records.sort_unstable_by_key(|record| record.address);
        }
        self.bound(frames);
        self.functions
    }

    /// Untyped symbols inside a typed function are labels in it, not functions.
    fn drop_inner_labels(&mut self) {
        // At one address the typed ones come first.
        self.candidates.sort_unstable_by_key(|candidate| (candidate.address, candidate.is_untyped));
        let mut end = 0;
        let labels = &mut self.functions.labels;
        let mut start = None;
        self.candidates.retain(|candidate| {
            if !candidate.is_untyped {
                end = end.max(candidate.address + candidate.size);
                start = Some(candidate.address);
                return true;
            }
            let is_inner = candidate.address < end && start != Some(candidate.address);
            if is_inner {
                labels.push(candidate.address);
            }
            !is_inner
        });
        labels.sort_unstable();
        labels.dedup();
    }

    fn merge_aliases(&mut self) {
        let Functions { records, names, text, .. } = &mut self.functions;
        for aliases in self.candidates.chunk_by_mut(|a, b| a.address == b.address) {
            aliases.sort_by_cached_key(|alias| rank(text, alias.name));
            let first_name = names.len() as u32;
            let is_part = aliases.iter().all(|alias| is_cold_part(text.get(alias.name).plain()));
            match aliases {
                [alone] => names.push(alone.name),
                _ => names_of(aliases, text, names),
            }
            let any = |test: fn(&Candidate) -> bool| aliases.iter().any(test);
            records.push(Record {
                address: aliases[0].address,
                size: aliases.iter().map(|alias| alias.size).max().unwrap_or(0),
                first_name,
                names: (names.len() - first_name as usize) as u16,
                kind: match is_part {
                    _ if any(|alias| alias.is_ifunc) => Kind::IfuncResolver,
                    true => Kind::Part,
                    false => Kind::Function,
                },
                origin: aliases.iter().map(|alias| alias.origin).min().unwrap_or(Origin::SymbolTable),
                local_entry: aliases.iter().map(|alias| alias.local_entry).max().unwrap_or(0),
                is_variant: any(|alias| alias.is_variant),
                arrival: Arrival::Untold,
            });
        }
        self.candidates = Vec::new();
    }

    fn add_unnamed(&mut self, frames: &[Frame]) {
        let Functions { records, names, text, .. } = &mut self.functions;
        let named = records.len();
        let (mut next, mut covered) = (0, 0);
        for frame in frames {
            while next < named && records[next].address <= frame.start {
                covered = covered.max(records[next].end());
                next += 1;
            }
            let starts_here = next > 0 && records[next - 1].address == frame.start;
            let Some(section) = section_at(self.code, frame.start).filter(|section| !section.is_plt) else {
                continue;
            };
            if starts_here || frame.start < covered {
                continue;
            }
            let name = format!("sub_{:x}", frame.start);
            let Some(name) = text.add(name.as_bytes(), None, Binding::Made) else { continue };
            records.push(Record {
                address: frame.start,
                size: frame.end.min(section.range.end) - frame.start,
                first_name: names.len() as u32,
                names: 1,
                kind: if frame.arrival == Arrival::SetUp { Kind::Part } else { Kind::Function },
                origin: Origin::UnwindTable,
                local_entry: 0,
                is_variant: false,
                arrival: Arrival::Untold,
            });
            names.push(name);
        }
    }

    /// Gives sizes to those without, and finds what follows each.
    fn bound(&mut self, frames: &[Frame]) {
        let Functions { records, reach, boundaries, labels, .. } = &mut self.functions;
        let mut furthest = 0;
        // The first frame behind the record's start.
        let mut behind = 0;
        for index in 0..records.len() {
            let next = records.get(index + 1).map_or(u64::MAX, |record| record.address);
            let record = &mut records[index];
            behind = first_from(frames, behind, |frame| frame.start <= record.address);
            let around = behind.checked_sub(1).map(|at| &frames[at]);
            let around = around.filter(|frame| record.address < frame.end);
            if record.size == 0 {
                let section = section_at(self.code, record.address);
                let section_end = section.map_or(record.address, |section| section.range.end);
                let end = match around {
                    Some(frame) => frame.end,
                    None => frames.get(behind).map_or(u64::MAX, |frame| frame.start),
                };
                record.size = end.min(next).min(section_end) - record.address;
            }
            furthest = furthest.max(record.end());
            reach.push(furthest);
            let told = around.filter(|frame| frame.start == record.address);
            record.arrival = told.map_or(Arrival::Untold, |frame| frame.arrival);
        }
        let (mut past_frames, mut past_labels) = (0, 0);
        for (index, record) in records.iter().enumerate() {
            let (start, end) = (record.address, record.end());
            // Starts only move on. An end may lie before that of the record before.
            past_frames = first_from(frames, past_frames, |frame| frame.start < start);
            past_labels = first_from(labels, past_labels, |&label| label < start);
            let next = first_from(records, index, |other| other.address < end);
            let next_frame = first_from(frames, past_frames, |frame| frame.start < end);
            let next_label = first_from(labels, past_labels, |&label| label < end);
            let frame = frames.get(next_frame).map(|frame| frame.start);
            // Bytes that another function or unwind entry goes on over are code.
            let last = if frame == Some(end) { Some(next_frame) } else { next_frame.checked_sub(1) };
            let has_frame = last.is_some_and(|last| end < frames[last].end);
            let is_claimed = reach[next.max(1) - 1] > end || has_frame;
            let section = section_at(self.code, start).map(|section| section.range.end);
            let follower = records.get(next).map(|next| next.address);
            let label = labels.get(next_label).copied();
            let free = [follower, label, frame, section].into_iter().flatten().min();
            boundaries.push(free.filter(|_| !is_claimed).unwrap_or(end));
        }
    }
}

/// Index of the first of `sorted`, from `from` on, that is no longer `before`. It is looked for near `from` first.
fn first_from<T>(sorted: &[T], from: usize, before: impl Fn(&T) -> bool) -> usize {
    let (mut low, mut step) = (from, 1);
    while let Some(item) = sorted.get(low + step - 1)
        && before(item)
    {
        low += step;
        step *= 2;
    }
    let high = sorted.len().min(low + step - 1);
    low + sorted[low..high].partition_point(before)
}

/// Appends the names of one function, whose candidates are in order: each once, and each version of it.
fn names_of(aliases: &[Candidate], text: &NameTable, names: &mut Vec<NameRecord>) {
    let first = names.len();
    let mut plain = HashSet::new();
    let mut versions = HashSet::new();
    for alias in aliases {
        let name = text.get(alias.name);
        // .dynsym has the version that .symtab may lack; it ranks first.
        let is_new_plain = plain.insert(name.plain());
        let is_new_version = versions.insert(name.versioned()) && name.version().is_some();
        let room = names.len() - first < usize::from(u16::MAX);
        if (is_new_plain || is_new_version) && room {
            names.push(alias.name);
        }
    }
}

/// What decides which of several names is the best; smallest first.
fn rank(text: &NameTable, record: NameRecord) -> impl Ord + use<> {
    let name = text.get(record);
    let plain = name.plain();
    let is_mangled = plain.starts_with("_Z") || plain.starts_with("_R");
    let underscores = if is_mangled { 0 } else { plain.bytes().take_while(|&byte| byte == b'_').count() };
    (
        name.binding() == Binding::Local,
        underscores,
        !name.is_default_version(),
        name.binding(),
        name.version().is_none(),
        plain.len(),
        name.versioned().to_owned(),
    )
}

/// `$x`, `$d`, `$a`, `$t`: where code and data begin, on Arm.
fn is_mapping_symbol(name: &[u8]) -> bool {
    matches!(name, [b'$', b'x' | b'd' | b'a' | b't'] | [b'$', b'x' | b'd' | b'a' | b't', b'.', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_from_some_place_on_finds_what_one_of_all_finds() {
        let sorted: Vec<u32> = (0..40).map(|n| n * n / 7).collect();
        for wanted in 0..=sorted[39] + 1 {
            let first = sorted.partition_point(|&n| n < wanted);
            for from in 0..=first {
                assert_eq!(first_from(&sorted, from, |&n| n < wanted), first, "{wanted} from {from}");
            }
        }
        assert_eq!(first_from(&[], 0, |&n: &u32| n < 1), 0);
    }
}
