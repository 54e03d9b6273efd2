//! The functions of a module: names, bounds, and how to find them.

use std::{fmt, ops::Range};

use crate::{
    frames::Arrival,
    image::Machine,
    name::{Binding, Name, NameRecord, NameTable, version_start},
};

/// Where a function is known from. The first that knows it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The file's `.symtab`.
    SymbolTable,
    /// The `.symtab` of a separate debug file.
    DebugFile,
    /// The `.symtab` in `.gnu_debugdata` ("MiniDebugInfo").
    MiniDebugInfo,
    /// The file's `.dynsym`.
    DynamicSymbols,
    /// The table of functions that a Go program has for itself (`.gopclntab`).
    GoTable,
    /// Only an entry of `.eh_frame`: the name is made up. The start is certain; the end too for compiled code, but
    /// assembly can end its entry early, as `clone3` does.
    UnwindTable,
}

/// What stands at a function's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A function: calls arrive here.
    Function,
    /// The resolver of an ifunc (`STT_GNU_IFUNC`). The dynamic loader calls it once and it returns the function's
    /// address; calls to the name never arrive here.
    IfuncResolver,
    /// A part that the compiler moved away (`.cold`). It is jumped to, never called.
    Part,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub address: u64,
    pub size: u64,
    pub first_name: u32,
    pub names: u16,
    pub kind: Kind,
    pub origin: Origin,
    /// ELFv2 local entry point, in bytes after `address`.
    pub local_entry: u8,
    /// AAPCS64: it is called in a way of its own.
    pub is_variant: bool,
    pub arrival: Arrival,
}

impl Record {
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// All functions of a module, by address. Functions at one address are one function with several names.
#[derive(Default)]
pub struct Functions {
    pub(crate) records: Vec<Record>,
    pub(crate) names: Vec<NameRecord>,
    pub(crate) text: NameTable,
    /// For each record, the largest end of it and all before it.
    pub(crate) reach: Vec<u64>,
    /// For each record, where the bytes after it stop being unclaimed.
    pub(crate) boundaries: Vec<u64>,
    /// Addresses of local symbols in code that are not functions, sorted.
    pub(crate) labels: Vec<u64>,
    pub(crate) defects: Vec<String>,
    /// Whether a symbol table of the file itself is among them.
    pub(crate) lacks_symbols: bool,
}

/// How many functions [`Functions::containing`] and [`Functions::overlapping`] look back over. Assembly nests two or three deep.
const MOST_OVERLAPS: usize = 64;

impl Functions {
    /// How many functions there are, parts and resolvers included.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All functions by rising address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Function<'_>> + ExactSizeIterator + '_ {
        (0..self.records.len()).map(|index| Function { table: self, index })
    }

    /// The function at `index` in address order.
    pub fn get(&self, index: usize) -> Option<Function<'_>> {
        (index < self.records.len()).then_some(Function { table: self, index })
    }

    /// The function whose code `address` is in. Where one lies inside another, the inner one.
    pub fn containing(&self, address: u64) -> Option<Function<'_>> {
        let after = self.records.partition_point(|record| record.address <= address);
        (0..after)
            .rev()
            .take(MOST_OVERLAPS)
            .take_while(|&index| self.reach[index] > address)
            .find(|&index| address < self.records[index].end())
            .map(|index| Function { table: self, index })
    }

    /// The functions of which some byte is in `range`, or that end where it starts, from the last one on; but for those that others begin
    /// inside of.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Function<'_>> {
        let before = self.records.partition_point(|record| record.address < range.end);
        let near = (0..before).rev().take(MOST_OVERLAPS);
        let near = near.take_while(move |&index| self.reach[index] >= range.start);
        let alone = near.filter(move |&index| {
            let (record, next) = (&self.records[index], self.records.get(index + 1));
            let is_first = index == 0 || self.reach[index - 1] <= record.address;
            is_first && next.is_none_or(|next| record.end() <= next.address) && record.end() >= range.start
        });
        alone.map(|index| Function { table: self, index })
    }

    /// The function that starts at `address`.
    pub fn at(&self, address: u64) -> Option<Function<'_>> {
        let index = self.records.binary_search_by_key(&address, |record| record.address).ok()?;
        Some(Function { table: self, index })
    }

    /// The functions with this mangled name, with version (`memcpy@@GLIBC_2.14`, `memcpy@GLIBC_2.2.5`) or without.
    ///
    /// Best first: global before weak before local, the default version before others, then by address. Local names
    /// and versioned ones can belong to several functions.
    pub fn named(&self, asked: &str) -> Vec<Function<'_>> {
        let plain = version_start(asked).map_or(asked, |at| &asked[..at]);
        // Letters are compared where lengths are equal, so an index would take longer to make than a thousand searches.
        let is_it = |name: &Name<'_>| {
            name.plain() == plain && (plain.len() == asked.len() || name.versioned() == asked)
        };
        let mut found = Vec::new();
        for (index, record) in self.records.iter().enumerate() {
            let first = record.first_name as usize;
            let names = &self.names[first..first + usize::from(record.names)];
            let same_length = names.iter().filter(|name| name.plain_len() == plain.len());
            found.extend(
                same_length.map(|name| (self.text.get(*name), index)).filter(|(name, _)| is_it(name)),
            );
        }
        found.sort_by_key(|&(name, index)| (name.binding(), !name.is_default_version(), index));
        found.into_iter().map(|(_, index)| Function { table: self, index }).collect()
    }

    /// Tables that could not be read, or only in part, one line each. What that means for a function is told by
    /// [`Module::unread`](crate::Module::unread).
    pub fn defects(&self) -> &[String] {
        &self.defects
    }

    fn name(&self, index: u32) -> Name<'_> {
        self.text.get(self.names[index as usize])
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One function of a module.
#[derive(Clone, Copy)]
pub struct Function<'m> {
    table: &'m Functions,
    index: usize,
}

impl<'m> Function<'m> {
    fn record(&self) -> &'m Record {
        &self.table.records[self.index]
    }

    /// Its place in [`Functions::iter`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Virtual address of its first byte. On powerpc this is the global entry point.
    pub fn address(&self) -> u64 {
        self.record().address
    }

    /// Bytes of code. Where no table says it, up to whatever comes next; never beyond its section.
    pub fn size(&self) -> u64 {
        self.record().size
    }

    /// The addresses of its code.
    pub fn range(&self) -> Range<u64> {
        self.address()..self.record().end()
    }

    /// The addresses behind it up to the next function, symbol, unwind entry or the section's end. Empty when the
    /// next one abuts or overlaps.
    ///
    /// This is padding as far as the tables tell. Whoever wants to overwrite it must look at the bytes: in a stripped
    /// file there can be code that no table knows.
    pub fn padding(&self) -> Range<u64> {
        let end = self.record().end();
        end..self.table.boundaries[self.index].max(end)
    }

    /// The best name: see [`Function::names`].
    pub fn name(&self) -> Name<'m> {
        self.table.name(self.record().first_name)
    }

    /// All names, at least one. Best first: symbols visible outside before local ones, those without leading
    /// underscores before those with, default versions before others, global before weak, short before long.
    pub fn names(&self) -> impl ExactSizeIterator<Item = Name<'m>> + use<'m> {
        let (table, record) = (self.table, self.record());
        (0..u32::from(record.names)).map(move |offset| table.name(record.first_name + offset))
    }

    /// What stands here.
    pub fn kind(&self) -> Kind {
        self.record().kind
    }

    /// Whether calls arrive here, so that a pattern may offer it. Others must be named exactly.
    pub fn is_callable(&self) -> bool {
        self.kind() == Kind::Function
    }

    /// Where the return address is before the first instruction, by the unwind table.
    pub fn arrival(&self) -> Arrival {
        self.record().arrival
    }

    /// Where it is known from.
    pub fn origin(&self) -> Origin {
        self.record().origin
    }

    /// Whether its name is a symbol, not made from the address.
    pub fn is_named(&self) -> bool {
        self.name().binding() != Binding::Made
    }

    /// ELFv2: bytes from the global to the local entry point, 0 when they are one. Always 0 on other machines.
    pub fn local_entry_offset(&self) -> u64 {
        self.record().local_entry.into()
    }

    /// Whether it is called by a variant of AAPCS64, as symbols say: it is given scalable vectors, or keeps more of vectors for its caller than others.
    /// Always `false` on other machines, and where no symbol says anything.
    pub fn has_variant_convention(&self) -> bool {
        self.record().is_variant
    }
}

impl fmt::Debug for Function<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x} {:?} {:?}", self.address(), self.size(), self.kind(), self.origin())?;
        self.names().try_for_each(|name| write!(f, " {}", name.versioned()))
    }
}

impl PartialEq for Function<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.table, other.table) && self.index == other.index
    }
}

impl Eq for Function<'_> {}

/// Bytes from the global to the local entry point by `st_other` (ELFv2 ABI, section 3.4.1).
pub(crate) fn local_entry_offset(machine: Machine, other: u8) -> u8 {
    match (machine, other >> 5) {
        (Machine::PowerPc64Le, code @ 2..=6) => 1 << code,
        _ => 0,
    }
}

/// Whether `st_other` says that a function is called by a variant of AAPCS64 (`STO_AARCH64_VARIANT_PCS`, ELF for the Arm 64-bit
/// Architecture, section 5.6.1).
pub(crate) fn is_variant(machine: Machine, other: u8) -> bool {
    machine == Machine::AArch64 && other & 0x80 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_the_convention_are_told_where_there_are_some() {
        for (machine, other, expected) in [
            (Machine::AArch64, 0x80, true),
            (Machine::AArch64, 0x82, true),
            (Machine::AArch64, 0x60, false),
            (Machine::PowerPc64Le, 0x80, false),
            (Machine::X86_64, 0x80, false),
        ] {
            assert_eq!(is_variant(machine, other), expected, "{machine:?} {other:#x}");
        }
    }

    #[test]
    fn local_entries_follow_the_abi() {
        for (other, offset) in [
            (0, 0),
            (1 << 5, 0),
            (2 << 5, 4),
            (3 << 5, 8),
            (4 << 5, 16),
            (5 << 5, 32),
            (6 << 5, 64),
            (7 << 5, 0),
            (2, 0),
        ] {
            assert_eq!(local_entry_offset(Machine::PowerPc64Le, other), offset, "{other:#x}");
            assert_eq!(local_entry_offset(Machine::AArch64, other), 0);
        }
    }

    #[test]
    fn records_are_small() {
        // A program can have half a million.
        assert!(size_of::<Record>() <= 32);
        assert!(size_of::<NameRecord>() <= 12);
    }
}
