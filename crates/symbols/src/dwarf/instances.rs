//! Inlined instances of functions: where their code is, and which of them an address is in.

use std::{collections::BinaryHeap, ops::Range};

use gimli::{AttributeValue, Dwarf, Unit, UnitOffset};

use super::sections::Slice;

/// How many address ranges of inlined instances are believed of one unit.
const MOST_RANGES: usize = 1 << 22;

/// The DIE of an inlined instance.
pub(super) struct Instance {
    /// Where it begins: what its entry is said to be, else its first address.
    pub entry: u64,
    /// Whether its entry is said.
    pub is_entry_said: bool,
    /// The function that it is an instance of.
    pub origin: Origin,
    /// The instance it is in.
    parent: Option<usize>,
    /// File, by its number in the unit's table, and line of the call that it stands for.
    call: Option<(u64, u64)>,
}

/// A DIE that another one refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// In the same unit.
    Unit(usize),
    /// By its place in `.debug_info`.
    Info(usize),
    /// By its place in the file that several have in common.
    Shared(usize),
    /// In a way that is not known.
    Unknown,
}

impl Origin {
    pub(super) fn of(value: &AttributeValue<Slice<'_>>) -> Origin {
        match value {
            AttributeValue::UnitRef(UnitOffset(offset)) => Origin::Unit(*offset),
            AttributeValue::DebugInfoRef(offset) => Origin::Info(offset.0),
            AttributeValue::DebugInfoRefSup(offset) => Origin::Shared(offset.0),
            _ => Origin::Unknown,
        }
    }
}

/// The inlined instances of a unit.
#[derive(Default)]
pub(super) struct Instances {
    pub all: Vec<Instance>,
    /// The code of each: addresses, depth in the tree, index.
    ranges: Vec<(Range<u64>, isize, usize)>,
}

impl Instances {
    /// Reads them.
    pub(super) fn read(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Result<Instances, gimli::Error> {
        let mut found = Instances::default();
        let mut entries = unit.entries_raw(None)?;
        let mut attributes = Vec::new();
        let mut around: Vec<(isize, usize)> = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|(of, _)| *of >= depth) {
                around.pop();
            }
            if abbreviation.tag() != gimli::DW_TAG_inlined_subroutine {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            entries.read_attributes(abbreviation.attributes(), &mut attributes)?;
            let mut origin = Origin::Unknown;
            let (mut low, mut high, mut entry, mut list) = (None, None, None, None);
            let (mut call_file, mut call_line) = (None, None);
            for attribute in &attributes {
                let value = attribute.value();
                // A constant counts from another address.
                let address = || match dwarf.attr_address(unit, attribute.value()) {
                    Ok(Some(address)) => Some(At::Address(address)),
                    _ => attribute.udata_value().map(At::Offset),
                };
                match attribute.name() {
                    gimli::DW_AT_abstract_origin => origin = Origin::of(&value),
                    gimli::DW_AT_low_pc => low = dwarf.attr_address(unit, value).ok().flatten(),
                    gimli::DW_AT_high_pc => high = address(),
                    gimli::DW_AT_entry_pc => entry = address(),
                    gimli::DW_AT_call_file => {
                        call_file = match value {
                            AttributeValue::FileIndex(file) => Some(file),
                            _ => attribute.udata_value(),
                        }
                    }
                    gimli::DW_AT_call_line => call_line = attribute.udata_value(),
                    gimli::DW_AT_ranges => list = dwarf.attr_ranges(unit, value).ok().flatten(),
                    _ => {}
                }
            }
            let index = found.all.len();
            let mut base = low;
            let mut add = |range: Range<u64>| {
                let has_room = found.ranges.len() < MOST_RANGES;
                if range.start < range.end && has_room {
                    base.get_or_insert(range.start);
                    found.ranges.push((range, depth, index));
                }
                has_room
            };
            if let Some(mut list) = list {
                while let Ok(Some(range)) = list.next() {
                    if !add(range.begin..range.end) {
                        break;
                    }
                }
            } else if let (Some(low), Some(high)) = (low, high) {
                add(low..high.from(low));
            }
            let Some(base) = base else { continue };
            let is_entry_said = entry.is_some();
            let entry = entry.map_or(base, |entry| entry.from(base));
            let parent = around.last().map(|(_, index)| *index);
            found.all.push(Instance { entry, is_entry_said, origin, parent, call: call_file.zip(call_line) });
            if abbreviation.has_children() {
                around.push((depth, index));
            }
        }
        Ok(found)
    }

    /// The instance that a row's statement belongs to, where `innermost` is at its address. Where a copy begins, the rows of the call that it
    /// stands for begin, too, and they are not the copy's.
    pub(super) fn of_row(
        &self,
        innermost: Option<usize>,
        address: u64,
        file: u64,
        line: u32,
    ) -> Option<usize> {
        let mut at = innermost;
        while let Some(instance) = at.map(|index| &self.all[index])
            && instance.entry == address
            && instance.call == Some((file, line.into()))
        {
            at = instance.parent;
        }
        at
    }

    /// Moves entries that are not said to the first statement of their instance's code, of those in `statements`, which are sorted. An
    /// instance that was moved or hoisted in part has code ahead of it that belongs to no line.
    pub(super) fn begin_at_statements(&mut self, statements: &[u64]) {
        let mut first: Vec<Option<u64>> = vec![None; self.all.len()];
        for (range, _, index) in &self.ranges {
            let at = statements.partition_point(|&address| address < range.start);
            if let Some(&address) = statements.get(at).filter(|address| range.contains(address)) {
                let first = &mut first[*index];
                *first = Some(first.map_or(address, |first| first.min(address)));
            }
        }
        for (instance, first) in self.all.iter_mut().zip(first) {
            if let (false, Some(first)) = (instance.is_entry_said, first) {
                instance.entry = first;
            }
        }
    }

    /// The innermost instance at each of some addresses, which are sorted.
    pub(super) fn innermost(&mut self, addresses: &[u64]) -> Vec<Option<usize>> {
        self.ranges.sort_by_key(|(range, ..)| range.start);
        let mut coming = self.ranges.iter().peekable();
        // By depth; what has ended leaves when it comes to the top.
        let mut open: BinaryHeap<(isize, usize, u64)> = BinaryHeap::new();
        let at = |&address: &u64| {
            while let Some((range, depth, index)) = coming.next_if(|(range, ..)| range.start <= address) {
                open.push((*depth, *index, range.end));
            }
            while open.peek().is_some_and(|&(.., end)| end <= address) {
                open.pop();
            }
            open.peek().map(|&(_, index, _)| index)
        };
        addresses.iter().map(at).collect()
    }
}

/// Where the function at `address` is declared: the number of the file in the unit's table, and the line.
pub(super) fn declared(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, address: u64) -> Option<(u64, u32)> {
    let mut entries = unit.entries_raw(None).ok()?;
    let mut attributes = Vec::new();
    while !entries.is_empty() {
        let Some(abbreviation) = entries.read_abbreviation().ok()? else { continue };
        if abbreviation.tag() != gimli::DW_TAG_subprogram {
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            continue;
        }
        entries.read_attributes(abbreviation.attributes(), &mut attributes).ok()?;
        let find = |name| attributes.iter().find(|attribute| attribute.name() == name);
        let low = find(gimli::DW_AT_low_pc).and_then(|low| dwarf.attr_address(unit, low.value()).ok()?);
        if low != Some(address) {
            continue;
        }
        let place = |file: Option<AttributeValue<Slice<'_>>>, line: Option<AttributeValue<Slice<'_>>>| {
            let file = match file? {
                AttributeValue::FileIndex(file) => file,
                other => other.udata_value()?,
            };
            Some((file, u32::try_from(line?.udata_value()?).ok()?))
        };
        let value = |name| find(name).map(|attribute| attribute.value());
        let own = place(value(gimli::DW_AT_decl_file), value(gimli::DW_AT_decl_line));
        return own.or_else(|| {
            let of = value(gimli::DW_AT_abstract_origin).or_else(|| value(gimli::DW_AT_specification))?;
            let AttributeValue::UnitRef(of) = of else { return None };
            let of = unit.entry(of).ok()?;
            place(of.attr_value(gimli::DW_AT_decl_file), of.attr_value(gimli::DW_AT_decl_line))
        });
    }
    None
}

/// An address, or its distance from another one.
#[derive(Clone, Copy)]
enum At {
    Address(u64),
    Offset(u64),
}

impl At {
    fn from(self, base: u64) -> u64 {
        match self {
            At::Address(address) => address,
            At::Offset(offset) => base.saturating_add(offset),
        }
    }
}
