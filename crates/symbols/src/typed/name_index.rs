//! Which type or variable has a name.
//!
//! Names are kept as hashes with the DIEs they stand for: in C++ most types are described again in each unit, and only the first
//! description is kept. A name with its scopes is found by the hash of the whole, and one without by that of its last part.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    thread,
};

use gimli::{AttributeValue, Dwarf, Unit};

use super::{
    parts::{Die, MAIN, Open, Parts, SHARED},
    unit_map::{is_named_type, is_scope},
    units::UnitTable,
};
use crate::dwarf::Slice;

/// Names that are kept of one file.
const MOST_NAMES: usize = 1 << 22;

/// What a name may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// Struct or class.
    Struct,
    Union,
    Enum,
    /// Typedef or base type.
    Plain,
    Variable,
    /// A number of an enum, which the DIE is of.
    Enumerator,
}

/// FNV-1a, which can be continued: a scope's name is hashed once for all that is in it.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    const EMPTY: Hash = Hash(0xcbf2_9ce4_8422_2325);

    fn and(self, bytes: &[u8]) -> Hash {
        let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Hash(bytes.iter().fold(self.0, step))
    }
}

/// A scope that is open: its depth, what its names come to (nothing in functions, whose types nobody can name), and, of an enum, what
/// those of its numbers come to, and its DIE.
type Around = (isize, Option<Hash>, Option<(Hash, usize)>);

/// A hash is its own hash.
#[derive(Clone, Copy, Default)]
pub(super) struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = Hash(self.0).and(bytes).0;
    }

    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }

    fn write_isize(&mut self, value: isize) {
        self.0 ^= (value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Names = HashMap<(u64, Class), Die, BuildHasherDefault<Same>>;

/// The names of a unit, or of a file.
#[derive(Default)]
pub(super) struct NameIndex {
    whole: Names,
    last: Names,
    /// Variables that are named in one unit and placed in another, as link-time optimization leaves them: the names by their DIEs'
    /// places in `.debug_info`, and definitions with the DIEs that name them. Of use until the index is whole.
    unplaced: HashMap<usize, (Hash, Hash)>,
    unnamed: Vec<(usize, Die)>,
}

impl NameIndex {
    /// Those of one unit.
    pub(super) fn of_unit(dwarf: &Dwarf<Slice<'_>>, unit: &Open<'_>) -> NameIndex {
        let mut index = NameIndex::default();
        index.add(dwarf, &unit.unit, |offset| unit.die(gimli::UnitOffset(offset)));
        index
    }

    /// Those of all units, on as many threads as there are processors.
    pub(super) fn of_file(parts: &mut Parts<'_>, table: &UnitTable) -> NameIndex {
        let mut index = NameIndex::default();
        let Some(main) = parts.part(MAIN) else { return index };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
        let chunk = table.all.len().div_ceil(threads).max(1);
        let dwarf = &main.dwarf;
        let (indices, split): (Vec<NameIndex>, Vec<Vec<usize>>) = thread::scope(|scope| {
            let work = table.all.chunks(chunk).enumerate().map(|(number, units)| {
                let look = move || {
                    let (mut index, mut split) = (NameIndex::default(), Vec::new());
                    for (at, entry) in units.iter().enumerate() {
                        let header = dwarf.unit_header(gimli::DebugInfoOffset(entry.start));
                        let Ok(unit) = header.and_then(|header| dwarf.unit(header)) else { continue };
                        if unit.dwo_id.is_some() {
                            split.push(number * chunk + at);
                        }
                        let start = entry.start;
                        index.add(dwarf, &unit, |offset| Die {
                            part: MAIN,
                            in_types: false,
                            offset: start.saturating_add(offset),
                        });
                    }
                    (index, split)
                };
                scope.spawn(look)
            });
            // A thread that panicked has found nothing.
            let work: Vec<_> = work.collect();
            work.into_iter().map(|thread| thread.join().unwrap_or_default()).unzip()
        });
        for found in indices {
            index.merge(found);
        }
        index.close();
        let mut others = [parts.others(MAIN), parts.others(SHARED)].concat();
        for unit in split.into_iter().flatten() {
            if let Some(unit) = parts.whole(unit)
                && unit.part != MAIN
            {
                others.extend(parts.others(unit.part));
            }
        }
        for other in others {
            if let Some(unit) = parts.open(other)
                && let Some(part) = parts.part(unit.part)
            {
                index.add(&part.dwarf, &unit.unit, |offset| unit.die(gimli::UnitOffset(offset)));
            }
        }
        parts.each_packed_type(|dwarf, unit, start| {
            index.add(dwarf, unit, |offset| Die { offset: start.offset.saturating_add(offset), ..start });
        });
        index
    }

    /// Names what was named in other units.
    fn close(&mut self) {
        for (of, die) in std::mem::take(&mut self.unnamed) {
            if let Some(&(whole, last)) = self.unplaced.get(&of) {
                self.insert(whole, last, Class::Variable, die);
            }
        }
        self.unplaced = HashMap::new();
    }

    fn merge(&mut self, other: NameIndex) {
        self.unplaced.extend(other.unplaced);
        self.unnamed.extend(other.unnamed);
        for (into, from) in [(&mut self.whole, other.whole), (&mut self.last, other.last)] {
            if into.is_empty() {
                *into = from;
                continue;
            }
            for (name, die) in from {
                if into.len() < MOST_NAMES {
                    into.entry(name).or_insert(die);
                }
            }
        }
    }

    /// The DIE of a name, with its scopes or, where none has that, by its last part.
    pub(super) fn find(&self, classes: &[Class], name: &str) -> Option<Die> {
        self.find_whole(classes, name).or_else(|| find(&self.last, classes, name))
    }

    /// The DIE of a whole name.
    pub(super) fn find_whole(&self, classes: &[Class], name: &str) -> Option<Die> {
        find(&self.whole, classes, name)
    }

    /// Adds what a unit defines, as far as it can be read.
    fn add(&mut self, dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, die: impl Fn(usize) -> Die) {
        let _ = self.try_add(dwarf, unit, &die);
    }

    fn try_add(
        &mut self,
        dwarf: &Dwarf<Slice<'_>>,
        unit: &Unit<Slice<'_>>,
        die: &dyn Fn(usize) -> Die,
    ) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        let mut attributes = Vec::new();
        let mut around: Vec<Around> = Vec::new();
        // Declarations, and definitions of variables that leave their names to them, which may come later.
        let mut defined: Vec<(usize, usize)> = Vec::new();
        let mut declared: HashMap<usize, (Hash, Hash)> = HashMap::new();
        while !entries.is_empty() {
            let (depth, offset) = (entries.next_depth(), entries.next_offset().0);
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|(of, ..)| *of >= depth) {
                around.pop();
            }
            let tag = abbreviation.tag();
            // At the root.
            let scope = around.last().map_or(Some(Hash::EMPTY), |(_, scope, _)| *scope);
            let is_function = matches!(tag, gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine);
            if is_function && abbreviation.has_children() {
                around.push((depth, None, None));
            }
            let is_variable = matches!(tag, gimli::DW_TAG_variable | gimli::DW_TAG_member);
            let is_meant =
                is_scope(tag) || is_named_type(tag) || is_variable || tag == gimli::DW_TAG_enumerator;
            let Some(scope) = scope.filter(|_| is_meant) else {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            };
            entries.read_attributes(abbreviation.attributes(), &mut attributes)?;
            let value = |name| {
                attributes.iter().find(|attribute| attribute.name() == name).map(|found| found.value())
            };
            let name = value(gimli::DW_AT_name).and_then(|name| dwarf.attr_string(unit, name).ok());
            let hashes = name.map(|name| {
                let last = Hash::EMPTY.and(name.slice());
                let whole = match around.iter().rev().find(|(of, ..)| *of < depth) {
                    Some(_) if scope.0 != Hash::EMPTY.0 => scope.and(b"::").and(name.slice()),
                    _ => last,
                };
                (whole, last)
            });
            let is_declaration =
                value(gimli::DW_AT_declaration).is_some() || value(gimli::DW_AT_signature).is_some();
            // A type apart is in no scope itself, but its declaration there is.
            let of = match value(gimli::DW_AT_specification) {
                Some(AttributeValue::UnitRef(of)) if !is_variable => declared.get(&of.0).copied(),
                _ => None,
            };
            let hashes = of.or(hashes);
            if let Some(hashes) = hashes
                && is_declaration
            {
                declared.insert(offset, hashes);
            }
            if is_variable {
                let is_placed = [gimli::DW_AT_location, gimli::DW_AT_const_value]
                    .iter()
                    .any(|&name| value(name).is_some());
                if let Some(hashes) = hashes
                    && !is_declaration
                    && !is_placed
                    && self.unplaced.len() < MOST_NAMES
                {
                    self.unplaced.insert(die(offset).offset, hashes);
                }
                if !is_declaration && is_placed {
                    match (hashes, value(gimli::DW_AT_specification)) {
                        (Some((whole, last)), _) => self.insert(whole, last, Class::Variable, die(offset)),
                        (None, Some(AttributeValue::UnitRef(of))) => defined.push((of.0, offset)),
                        _ => {
                            if let Some(AttributeValue::DebugInfoRef(of)) =
                                value(gimli::DW_AT_abstract_origin)
                                && self.unnamed.len() < MOST_NAMES
                            {
                                self.unnamed.push((of.0, die(offset)));
                            }
                        }
                    }
                }
                continue;
            }
            if tag == gimli::DW_TAG_enumerator {
                if let (Some((_, last)), Some((_, _, Some((of, at))))) = (hashes, around.last()) {
                    let whole = match name {
                        Some(name) if of.0 != Hash::EMPTY.0 => of.and(b"::").and(name.slice()),
                        _ => last,
                    };
                    self.insert(whole, last, Class::Enumerator, die(*at));
                }
                continue;
            }
            let class = match tag {
                gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_interface_type => {
                    Some(Class::Struct)
                }
                gimli::DW_TAG_union_type => Some(Class::Union),
                gimli::DW_TAG_enumeration_type => Some(Class::Enum),
                gimli::DW_TAG_typedef | gimli::DW_TAG_base_type => Some(Class::Plain),
                _ => None,
            };
            if let (Some((whole, last)), Some(class), false) = (hashes, class, is_declaration) {
                self.insert(whole, last, class, die(offset));
            }
            if abbreviation.has_children() {
                let unnamed: &[u8] = match tag {
                    gimli::DW_TAG_namespace => b"(anonymous namespace)",
                    _ => b"(anonymous)",
                };
                let own = hashes.map_or_else(
                    || match scope.0 == Hash::EMPTY.0 {
                        true => Hash::EMPTY.and(unnamed),
                        false => scope.and(b"::").and(unnamed),
                    },
                    |(whole, _)| whole,
                );
                if tag == gimli::DW_TAG_enumeration_type {
                    // Its numbers belong to the scope around it, or to itself where it is a class.
                    let is_class = value(gimli::DW_AT_enum_class).is_some();
                    let of = if is_class { own } else { scope };
                    around.push((depth, Some(scope), Some((of, offset))));
                } else {
                    around.push((depth, Some(own), None));
                }
            }
        }
        for (of, offset) in defined {
            if let Some(&(whole, last)) = declared.get(&of) {
                self.insert(whole, last, Class::Variable, die(offset));
            }
        }
        Ok(())
    }

    fn insert(&mut self, whole: Hash, last: Hash, class: Class, die: Die) {
        for (names, hash) in [(&mut self.whole, whole), (&mut self.last, last)] {
            if names.len() < MOST_NAMES
                && let Entry::Vacant(free) = names.entry((hash.0, class))
            {
                free.insert(die);
            }
        }
    }
}

fn find(names: &Names, classes: &[Class], name: &str) -> Option<Die> {
    let hash = Hash::EMPTY.and(name.as_bytes()).0;
    classes.iter().find_map(|class| names.get(&(hash, *class)).copied())
}
