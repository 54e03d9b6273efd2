//! Which unit an address is in.
//!
//! `.debug_aranges` answers for most files at once. Units that it does not list (clang writes none) say their addresses
//! themselves, at their roots, and those are read when the table has no answer.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use gimli::{AttributeValue, Dwarf, UnitType};

use super::{
    name_index::NameIndex,
    parts::{Package, SplitFile},
    unit_map::UnitMap,
};
use crate::dwarf::Slice;

/// How many ranges of addresses are believed of one file.
const MOST_RANGES: usize = 1 << 22;

/// A unit of a file's `.debug_info`.
pub(super) struct UnitEntry {
    pub start: usize,
    /// What it was split into, once that was looked for.
    pub split: OnceLock<Option<SplitFile>>,
    pub map: OnceLock<Arc<UnitMap>>,
    is_listed: bool,
}

/// What is known of a file's units, by whoever has asked, for whoever asks.
pub(crate) struct UnitTable {
    /// A number that no other table has.
    pub(super) number: u32,
    /// By their offsets.
    pub(super) all: Box<[UnitEntry]>,
    listed: Vec<(Range<u64>, u32)>,
    unlisted: OnceLock<Vec<(Range<u64>, u32)>>,
    pub(super) package: OnceLock<Option<Package>>,
    pub(super) names: OnceLock<NameIndex>,
}

impl UnitTable {
    pub(crate) fn read(dwarf: &Dwarf<Slice<'_>>) -> UnitTable {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut all = Vec::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let is_listed = matches!(header.type_(), UnitType::Type { .. } | UnitType::Partial);
            let start = header.offset().0;
            all.push(UnitEntry { start, split: OnceLock::new(), map: OnceLock::new(), is_listed });
        }
        let mut listed = Vec::new();
        let mut headers = dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            let start = header.debug_info_offset().0;
            let Ok(index) = all.binary_search_by_key(&start, |unit| unit.start) else { continue };
            let mut entries = header.entries();
            while let Ok(Some(entry)) = entries.next() {
                let range = entry.range();
                if range.begin < range.end && listed.len() < MOST_RANGES {
                    all[index].is_listed = true;
                    listed.push((range.begin..range.end, index as u32));
                }
            }
        }
        listed.sort_by_key(|(range, _)| range.start);
        UnitTable {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            all: all.into(),
            listed,
            unlisted: OnceLock::new(),
            package: OnceLock::new(),
            names: OnceLock::new(),
        }
    }

    /// The index of the unit that begins there.
    pub(super) fn index(&self, start: usize) -> Option<usize> {
        self.all.binary_search_by_key(&start, |unit| unit.start).ok()
    }

    /// The units that say the code at `address` is theirs: one, in a sound file.
    pub(super) fn at(&self, dwarf: &Dwarf<Slice<'_>>, address: u64) -> Vec<usize> {
        let found = within(&self.listed, address);
        if !found.is_empty() {
            return found;
        }
        let unlisted = self.unlisted.get_or_init(|| {
            let mut ranges = Vec::new();
            let mut budget = MOST_RANGES;
            for (index, unit) in self.all.iter().enumerate().filter(|(_, unit)| !unit.is_listed) {
                // A unit that cannot be read has no code that is known.
                let _ = root_ranges(dwarf, unit.start, &mut budget, &mut |range| {
                    ranges.push((range, index as u32));
                });
            }
            ranges.sort_by_key(|(range, _)| range.start);
            ranges
        });
        within(unlisted, address)
    }
}

/// Ranges that lie over each other: so many of them are looked at.
const MOST_OVER: usize = 64;

fn within(ranges: &[(Range<u64>, u32)], address: u64) -> Vec<usize> {
    let end = ranges.partition_point(|(range, _)| range.start <= address);
    let near = ranges[..end].iter().rev().take(MOST_OVER);
    let mut found: Vec<usize> =
        near.filter(|(range, _)| range.contains(&address)).map(|(_, index)| *index as usize).collect();
    found.dedup();
    found
}

fn root_ranges(
    dwarf: &Dwarf<Slice<'_>>,
    start: usize,
    budget: &mut usize,
    add: &mut dyn FnMut(Range<u64>),
) -> gimli::Result<()> {
    let unit = dwarf.unit(dwarf.unit_header(gimli::DebugInfoOffset(start))?)?;
    let root = unit.entry(unit.header.root_offset())?;
    if let Some(list) = root.attr_value(gimli::DW_AT_ranges) {
        let Some(mut list) = dwarf.attr_ranges(&unit, list)? else { return Ok(()) };
        while let Some(range) = list.next()?
            && *budget > 0
        {
            *budget -= 1;
            if range.begin < range.end {
                add(range.begin..range.end);
            }
        }
        return Ok(());
    }
    let (Some(low), Some(high)) =
        (root.attr_value(gimli::DW_AT_low_pc), root.attr_value(gimli::DW_AT_high_pc))
    else {
        return Ok(());
    };
    let Some(low) = dwarf.attr_address(&unit, low)? else { return Ok(()) };
    let high = match high {
        AttributeValue::Udata(size) => low.saturating_add(size),
        other => dwarf.attr_address(&unit, other)?.unwrap_or(low),
    };
    if low < high {
        add(low..high);
    }
    Ok(())
}
