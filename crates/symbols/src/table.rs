//! How the function table is made from symbols and unwind entries.
//!
//! 1. Every symbol in a code section becomes a candidate, or a label if it cannot be a function.
//! 2. Candidates at one address are one function; its names are put in order.
//! 3. Unwind entries that no function covers are functions, or parts, without a name.
//! 4. Sizes that no symbol tells end at the unwind entry's end, the next function or the section's end.

use std::collections::HashSet;

use object::elf;

use crate::{
    frames::{Arrival, Frame, frame_at},
    functions::{Functions, Kind, Origin, Record, local_entry_offset},
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
            let mut plain = HashSet::new();
            let mut versions = HashSet::new();
            for alias in aliases.iter() {
                let name = text.get(alias.name);
                // .dynsym has the version that .symtab may lack; it ranks first.
                let is_new_plain = plain.insert(name.plain());
                let is_new_version = versions.insert(name.versioned()) && name.version().is_some();
                let room = names.len() - (first_name as usize) < usize::from(u16::MAX);
                if (is_new_plain || is_new_version) && room {
                    names.push(alias.name);
                }
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
                arrival: Arrival::Untold,
            });
            names.push(name);
        }
    }

    /// Gives sizes to those without, and finds what follows each.
    fn bound(&mut self, frames: &[Frame]) {
        let Functions { records, reach, boundaries, labels, .. } = &mut self.functions;
        let mut furthest = 0;
        for index in 0..records.len() {
            let next = records.get(index + 1).map_or(u64::MAX, |record| record.address);
            let record = &mut records[index];
            let section_end =
                section_at(self.code, record.address).map_or(record.address, |section| section.range.end);
            if record.size == 0 {
                let end = match frame_at(frames, record.address) {
                    Some(frame) => frame.range().end,
                    None => frames
                        .get(frames.partition_point(|frame| frame.start <= record.address))
                        .map_or(u64::MAX, |frame| frame.start),
                };
                record.size = end.min(next).min(section_end) - record.address;
            }
            furthest = furthest.max(record.end());
            reach.push(furthest);
            let told = frame_at(frames, record.address).filter(|frame| frame.start == record.address);
            record.arrival = told.map_or(Arrival::Untold, |frame| frame.arrival);
        }
        for record in records.iter() {
            let end = record.end();
            let next = records.partition_point(|other| other.address < end);
            // Bytes that another function or unwind entry goes on over are code.
            let is_claimed = reach[next.max(1) - 1] > end || frame_at(frames, end).is_some();
            let first = |sorted: &[u64]| sorted.get(sorted.partition_point(|&at| at < end)).copied();
            let frame =
                frames.get(frames.partition_point(|frame| frame.start < end)).map(|frame| frame.start);
            let section = section_at(self.code, record.address).map(|section| section.range.end);
            let follower = records.get(next).map(|next| next.address);
            let free = [follower, first(labels), frame, section].into_iter().flatten().min();
            boundaries.push(free.filter(|_| !is_claimed).unwrap_or(end));
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
