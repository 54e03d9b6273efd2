//! What is where in a unit: its functions by address, and which scopes its types are in.
//!
//! DIEs do not say what they are in, so a unit is gone through once, from its beginning to its end.

use std::ops::Range;

use gimli::{AttributeValue, DwTag, Dwarf, Unit, UnitOffset};

use crate::dwarf::Slice;

/// How many ranges and DIEs are believed of one unit.
const MOST: usize = 1 << 22;

/// The map of a unit. Offsets are the unit's.
#[derive(Default)]
pub(crate) struct UnitMap {
    /// Code of functions, by address, and their DIEs.
    functions: Vec<(Range<u64>, usize)>,
    /// DIEs of types, variables and scopes, and the scopes they are in, by offset. Those in none are not there.
    scopes: Vec<(u32, u32)>,
}

/// Whether a name is qualified by those DIEs' names.
pub(super) fn is_scope(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_interface_type
            | gimli::DW_TAG_module
    )
}

/// Whether it is a type that people name.
pub(super) fn is_named_type(tag: DwTag) -> bool {
    is_scope(tag) && !matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_module)
        || matches!(tag, gimli::DW_TAG_enumeration_type | gimli::DW_TAG_typedef | gimli::DW_TAG_base_type)
}

impl UnitMap {
    /// Reads it, as far as the unit can be read.
    pub(super) fn read(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> UnitMap {
        let mut map = UnitMap::default();
        let _ = map.fill(dwarf, unit);
        map.functions.sort_by_key(|(range, _)| range.start);
        map
    }

    fn fill(&mut self, dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        let mut attributes = Vec::new();
        // Many functions may claim one long list.
        let mut budget = MOST;
        // What is open: depth, offset, and whether names are qualified by it. A function's name qualifies nothing.
        let mut around: Vec<(isize, usize, bool)> = Vec::new();
        while !entries.is_empty() {
            let (depth, offset) = (entries.next_depth(), entries.next_offset().0);
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|(of, ..)| *of >= depth) {
                around.pop();
            }
            let tag = abbreviation.tag();
            let is_function = tag == gimli::DW_TAG_subprogram;
            if is_function {
                entries.read_attributes(abbreviation.attributes(), &mut attributes)?;
                let value = |name| {
                    attributes.iter().find(|attribute| attribute.name() == name).map(|found| found.value())
                };
                let low = value(gimli::DW_AT_low_pc);
                let mut add = |range: Range<u64>| {
                    if range.start < range.end && self.functions.len() < MOST {
                        self.functions.push((range, offset));
                    }
                };
                if let Some(list) = value(gimli::DW_AT_ranges) {
                    if let Ok(Some(mut list)) = dwarf.attr_ranges(unit, list) {
                        while let Ok(Some(range)) = list.next()
                            && budget > 0
                        {
                            budget -= 1;
                            add(range.begin..range.end);
                        }
                    }
                } else if let (Some(low), Some(high)) = (low, value(gimli::DW_AT_high_pc))
                    && let Ok(Some(low)) = dwarf.attr_address(unit, low)
                {
                    let high = match high {
                        AttributeValue::Udata(size) => Some(low.saturating_add(size)),
                        other => dwarf.attr_address(unit, other).ok().flatten(),
                    };
                    add(low..high.unwrap_or(low));
                }
            } else {
                entries.skip_attributes(abbreviation.attributes())?;
            }
            let scopes = is_scope(tag);
            if (scopes || is_function || is_named_type(tag) || tag == gimli::DW_TAG_variable)
                && let Some(&(_, scope, true)) = around.last()
                && self.scopes.len() < MOST
                && let (Ok(offset), Ok(scope)) = (u32::try_from(offset), u32::try_from(scope))
            {
                self.scopes.push((offset, scope));
            }
            if abbreviation.has_children() && (scopes || is_function) {
                around.push((depth, offset, scopes));
            }
        }
        Ok(())
    }

    /// The DIE of the function with code at `address`: the one whose range is the narrowest.
    pub(super) fn function(&self, address: u64) -> Option<UnitOffset> {
        let end = self.functions.partition_point(|(range, _)| range.start <= address);
        let near = self.functions[..end].iter().rev().take(64).filter(|(range, _)| range.contains(&address));
        near.min_by_key(|(range, _)| range.end - range.start).map(|(_, offset)| UnitOffset(*offset))
    }

    /// The scope that a DIE is in.
    pub(super) fn scope(&self, offset: UnitOffset) -> Option<UnitOffset> {
        let offset = u32::try_from(offset.0).ok()?;
        let index = self.scopes.binary_search_by_key(&offset, |(of, _)| *of).ok()?;
        Some(UnitOffset(self.scopes[index].1 as usize))
    }
}
