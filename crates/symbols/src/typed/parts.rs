//! The parts that a file's DWARF is in, and how a DIE of one refers to a DIE of another.
//!
//! A part is a set of sections with units of its own: the file's, the one that dwz has put into another file, and one for each
//! unit that the compiler split (`.dwo`, or its share of a `.dwp`). A DIE is found by its part and its offset there. Units are
//! opened when they are needed, and kept while there is room.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, OnceLock},
};

use gimli::{
    AttributeValue, DebugTypeSignature, DwLang, Dwarf, DwarfPackage, DwarfPackageSections, DwarfSections,
    EndianSlice, LittleEndian, Unit, UnitHeader, UnitOffset, UnitType,
};

use super::{unit_map::UnitMap, units::UnitTable};
use crate::{
    DebugSearch,
    debug_file::{self, DebugFile},
    dwarf::{Contents, Slice, load_split_whole, package_section},
    types::{Language, Origin},
};

/// Units that are kept open.
const MOST_OPEN: usize = 256;

/// The file's own part.
pub(super) const MAIN: u32 = 0;
/// The part that it shares with other files.
pub(super) const SHARED: u32 = 1;
/// The part of the first unit of the file that is split; the others follow.
const FIRST_SPLIT: u32 = 2;
/// And, from here, the types apart of a package.
const FIRST_PACKED_TYPE: u32 = 1 << 31;

/// A DIE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Die {
    pub part: u32,
    pub in_types: bool,
    /// In the section.
    pub offset: usize,
}

impl Die {
    pub(super) fn of(origin: Origin) -> Die {
        Die { part: origin.part, in_types: origin.in_types, offset: origin.offset }
    }

    pub(super) fn origin(self, module: u32) -> Origin {
        Origin { module, part: self.part, offset: self.offset, in_types: self.in_types }
    }
}

/// A unit that is open.
pub(super) struct Open<'m> {
    pub unit: Unit<Slice<'m>>,
    pub part: u32,
    pub in_types: bool,
    /// Of its header, in the section.
    pub start: usize,
    /// None where the unit does not say, as shared ones may.
    pub language: Option<Language>,
    /// Whether LLVM made its code: it takes parameters from functions without giving them another name.
    pub is_llvm: bool,
}

impl Open<'_> {
    /// A DIE of this unit.
    pub(super) fn die(&self, offset: UnitOffset) -> Die {
        Die { part: self.part, in_types: self.in_types, offset: self.start.saturating_add(offset.0) }
    }

    /// Where a DIE of this unit is in it.
    pub(super) fn offset(&self, die: Die) -> UnitOffset {
        UnitOffset(die.offset.saturating_sub(self.start))
    }
}

/// A set of sections.
pub(super) struct Part<'m> {
    pub dwarf: Dwarf<Slice<'m>>,
    /// The units of `.debug_info` and of `.debug_types`, by offset.
    units: [Vec<UnitHeader<Slice<'m>>>; 2],
    /// Types apart, by their signature.
    signatures: HashMap<u64, (bool, usize)>,
    /// What a split unit takes from the rest of it, which is in the file.
    skeleton: Option<Rc<Open<'m>>>,
}

impl<'m> Part<'m> {
    fn new(dwarf: Dwarf<Slice<'m>>, skeleton: Option<Rc<Open<'m>>>) -> Part<'m> {
        let mut part = Part { dwarf, units: [Vec::new(), Vec::new()], signatures: HashMap::new(), skeleton };
        let mut headers = part.dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            part.note(false, header);
        }
        let mut headers = part.dwarf.type_units();
        while let Ok(Some(header)) = headers.next() {
            part.note(true, header);
        }
        part
    }

    fn note(&mut self, in_types: bool, header: UnitHeader<Slice<'m>>) {
        if let UnitType::Type { type_signature, type_offset }
        | UnitType::SplitType { type_signature, type_offset } = header.type_()
        {
            let at = header.offset().0.saturating_add(type_offset.0);
            self.signatures.entry(type_signature.0).or_insert((in_types, at));
        }
        self.units[usize::from(in_types)].push(header);
    }
}

/// A file with a split unit.
pub(super) type SplitFile = (DebugFile, DwarfSections<Contents>);
/// A file with many.
pub(super) type Package = (DebugFile, DwarfPackageSections<Contents>);

/// All parts of a file's DWARF.
pub(super) struct Parts<'m> {
    table: &'m UnitTable,
    search: &'m DebugSearch,
    module: &'m Path,
    all: HashMap<u32, Option<Rc<Part<'m>>>>,
    open: HashMap<(u32, bool, usize), Option<Rc<Open<'m>>>>,
    maps: HashMap<(u32, bool, usize), Arc<UnitMap>>,
    package: Option<Option<Rc<DwarfPackage<Slice<'m>>>>>,
}

impl<'m> Parts<'m> {
    pub(super) fn new(
        dwarf: Dwarf<Slice<'m>>,
        shared: Option<Dwarf<Slice<'m>>>,
        table: &'m UnitTable,
        search: &'m DebugSearch,
        module: &'m Path,
    ) -> Parts<'m> {
        let main = Rc::new(Part::new(dwarf, None));
        let shared = shared.map(|shared| Rc::new(Part::new(shared, None)));
        Parts {
            table,
            search,
            module,
            all: HashMap::from([(MAIN, Some(main)), (SHARED, shared)]),
            open: HashMap::new(),
            maps: HashMap::new(),
            package: None,
        }
    }

    /// A part.
    pub(super) fn part(&mut self, number: u32) -> Option<Rc<Part<'m>>> {
        if let Some(known) = self.all.get(&number) {
            return known.clone();
        }
        let found = self.find(number).map(Rc::new);
        self.all.insert(number, found.clone());
        found
    }

    fn find(&mut self, number: u32) -> Option<Part<'m>> {
        let main = self.part(MAIN)?;
        if number >= FIRST_PACKED_TYPE {
            let package = self.package()?;
            let dwarf = package.tu_sections(number - FIRST_PACKED_TYPE, &main.dwarf).ok()?;
            return Some(Part::new(dwarf, None));
        }
        let index = (number - FIRST_SPLIT) as usize;
        let start = self.table.all.get(index)?.start;
        let skeleton = self.open(Die { part: MAIN, in_types: false, offset: start })?;
        let (id, name) = (skeleton.unit.dwo_id?, skeleton.unit.dwo_name().ok()??);
        if let Some(package) = self.package()
            && let Ok(Some(dwarf)) = package.find_cu(id, &main.dwarf)
        {
            return Some(Part::new(dwarf, Some(skeleton)));
        }
        let name = main.dwarf.attr_string(&skeleton.unit, name).ok()?;
        let name = PathBuf::from(&*name.to_string_lossy());
        let folder = skeleton.unit.comp_dir.as_ref().map(|folder| PathBuf::from(&*folder.to_string_lossy()));
        let beside = self.module.parent().and_then(|folder| Some(folder.join(name.file_name()?)));
        let paths: Vec<PathBuf> = folder.map(|folder| folder.join(&name)).into_iter().chain(beside).collect();
        let search = self.search;
        let file = self.table.all[index].split.get_or_init(|| {
            paths.iter().find_map(|path| {
                let file = debug_file::split(path, search)?;
                let sections = load_split_whole(&file.image, &file.source);
                let dwarf = sections.borrow(|section| section.slice(&file.source));
                has_unit(&dwarf, id).then_some((file, sections))
            })
        });
        let (file, sections) = file.as_ref()?;
        let mut dwarf = sections.borrow(|section| section.slice(&file.source));
        dwarf.make_dwo(&main.dwarf);
        Some(Part::new(dwarf, Some(skeleton)))
    }

    fn package(&mut self) -> Option<Rc<DwarfPackage<Slice<'m>>>> {
        if self.package.is_none() {
            let (search, module) = (self.search, self.module);
            let found = self.table.package.get_or_init(|| {
                let mut name = module.file_name()?.to_owned();
                name.push(".dwp");
                let file = debug_file::split(&module.with_file_name(name), search)?;
                let section = |id| Ok::<_, gimli::Error>(package_section(&file.image, &file.source, id));
                let loaded = DwarfPackageSections::load(section).ok()?;
                Some((file, loaded))
            });
            let package = found.as_ref().and_then(|(file, sections)| {
                let empty = EndianSlice::new(&[], LittleEndian);
                sections.borrow(|section| section.slice(&file.source), empty).ok()
            });
            self.package = Some(package.map(Rc::new));
        }
        self.package.clone().flatten()
    }

    /// The unit that a DIE is in.
    pub(super) fn open(&mut self, die: Die) -> Option<Rc<Open<'m>>> {
        let part = self.part(die.part)?;
        let units = &part.units[usize::from(die.in_types)];
        let index = units.partition_point(|header| header.offset().0 <= die.offset).checked_sub(1)?;
        let header = units[index];
        let start = header.offset().0;
        if die.offset - start >= header.length_including_self() {
            return None;
        }
        let key = (die.part, die.in_types, start);
        if let Some(known) = self.open.get(&key) {
            return known.clone();
        }
        let open = part.dwarf.unit(header).ok().map(|mut unit| {
            if let Some(skeleton) = &part.skeleton {
                unit.copy_relocated_attributes(&skeleton.unit);
            }
            let language = language(&unit);
            let is_llvm = is_llvm(&part.dwarf, &unit);
            Rc::new(Open { unit, part: die.part, in_types: die.in_types, start, language, is_llvm })
        });
        if self.open.len() >= MOST_OPEN {
            self.open.clear();
            self.maps.clear();
        }
        self.open.insert(key, open.clone());
        open
    }

    /// The whole of the unit with this index: of what it was split into, where it was.
    pub(super) fn whole(&mut self, index: usize) -> Option<Rc<Open<'m>>> {
        let start = self.table.all.get(index)?.start;
        let unit = self.open(Die { part: MAIN, in_types: false, offset: start })?;
        let Some(id) = unit.unit.dwo_id else { return Some(unit) };
        if !matches!(unit.unit.dwo_name(), Ok(Some(_))) {
            return Some(unit);
        }
        let number = FIRST_SPLIT.checked_add(u32::try_from(index).ok()?)?;
        let Some(part) = self.part(number) else { return Some(unit) };
        let starts: Vec<usize> = part.units[0].iter().map(|header| header.offset().0).collect();
        for offset in starts {
            let found = self.open(Die { part: number, in_types: false, offset });
            if let Some(found) = found.filter(|found| found.unit.dwo_id == Some(id)) {
                return Some(found);
            }
        }
        Some(unit)
    }

    /// What is in a unit.
    pub(super) fn map(&mut self, unit: &Rc<Open<'m>>) -> Arc<UnitMap> {
        let key = (unit.part, unit.in_types, unit.start);
        if let Some(known) = self.maps.get(&key) {
            return known.clone();
        }
        let Some(part) = self.part(unit.part) else { return Arc::default() };
        let read = || Arc::new(UnitMap::read(&part.dwarf, &unit.unit));
        // Those of the file are kept for whoever comes later.
        let index = match (unit.part, unit.in_types) {
            (MAIN, false) => self.table.index(unit.start),
            (FIRST_SPLIT..FIRST_PACKED_TYPE, false) => Some((unit.part - FIRST_SPLIT) as usize),
            _ => None,
        };
        let kept: Option<&OnceLock<Arc<UnitMap>>> =
            index.and_then(|index| self.table.all.get(index)).map(|unit| &unit.map);
        let is_skeleton = unit.part == MAIN && unit.unit.dwo_id.is_some();
        let map = match kept.filter(|_| !is_skeleton) {
            Some(kept) => kept.get_or_init(read).clone(),
            None => read(),
        };
        self.maps.insert(key, map.clone());
        map
    }

    /// The DIE that an attribute of `unit` refers to.
    pub(super) fn referred(&mut self, unit: &Open<'m>, value: &AttributeValue<Slice<'m>>) -> Option<Die> {
        match value {
            AttributeValue::UnitRef(offset) => Some(unit.die(*offset)),
            AttributeValue::DebugInfoRef(offset) => {
                Some(Die { part: unit.part, in_types: false, offset: offset.0 })
            }
            AttributeValue::DebugInfoRefSup(offset) => {
                Some(Die { part: SHARED, in_types: false, offset: offset.0 })
            }
            AttributeValue::DebugTypesRef(signature) => self.signed(unit.part, *signature),
            _ => None,
        }
    }

    fn signed(&mut self, part: u32, signature: DebugTypeSignature) -> Option<Die> {
        for number in [part, MAIN] {
            if let Some((in_types, offset)) = self.part(number)?.signatures.get(&signature.0) {
                return Some(Die { part: number, in_types: *in_types, offset: *offset });
            }
        }
        let package = self.package()?;
        let index = package.tu_index.find(signature.0)?;
        let number = FIRST_PACKED_TYPE.checked_add(index)?;
        let (in_types, offset) = *self.part(number)?.signatures.get(&signature.0)?;
        Some(Die { part: number, in_types, offset })
    }

    /// All units of a part but those of the file's `.debug_info`: for whoever looks at all.
    pub(super) fn others(&mut self, number: u32) -> Vec<Die> {
        let mut all = Vec::new();
        let Some(part) = self.part(number) else { return all };
        for in_types in [false, true] {
            if (number, in_types) == (MAIN, false) {
                continue;
            }
            let units = part.units[usize::from(in_types)].iter();
            all.extend(units.map(|header| Die { part: number, in_types, offset: header.offset().0 }));
        }
        all
    }

    /// Looks at each type apart of the package, with the DIE of its unit's beginning.
    pub(super) fn each_packed_type(
        &mut self,
        mut look: impl FnMut(&Dwarf<Slice<'m>>, &Unit<Slice<'m>>, Die),
    ) {
        let (Some(main), Some(package)) = (self.part(MAIN), self.package()) else { return };
        for index in 1..=package.tu_index.unit_count() {
            let (Ok(dwarf), Some(number)) =
                (package.tu_sections(index, &main.dwarf), FIRST_PACKED_TYPE.checked_add(index))
            else {
                continue;
            };
            let part = Part::new(dwarf, None);
            for in_types in [false, true] {
                for header in &part.units[usize::from(in_types)] {
                    let offset = header.offset().0;
                    if let Ok(unit) = part.dwarf.unit(*header) {
                        look(&part.dwarf, &unit, Die { part: number, in_types, offset });
                    }
                }
            }
        }
    }
}

fn has_unit(dwarf: &Dwarf<Slice<'_>>, id: gimli::DwoId) -> bool {
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
            return true;
        }
    }
    false
}

fn is_llvm(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> bool {
    let Ok(root) = unit.entry(unit.header.root_offset()) else { return false };
    let Some(producer) = root.attr_value(gimli::DW_AT_producer) else { return false };
    let text = dwarf.attr_string(unit, producer);
    text.is_ok_and(|text| {
        let text = text.slice().get(..256).unwrap_or(text.slice());
        [&b"clang"[..], b"LLVM", b"rustc"].iter().any(|mark| memchr::memmem::find(text, mark).is_some())
    })
}

/// The language that a unit's root tells.
fn language(unit: &Unit<Slice<'_>>) -> Option<Language> {
    let root = unit.entry(unit.header.root_offset()).ok()?;
    let AttributeValue::Language(language) = root.attr_value(gimli::DW_AT_language)? else { return None };
    Some(match language {
        gimli::DW_LANG_C_plus_plus
        | gimli::DW_LANG_C_plus_plus_03
        | gimli::DW_LANG_C_plus_plus_11
        | gimli::DW_LANG_C_plus_plus_14
        | DwLang(0x2b | 0x3a) => Language::Cpp,
        gimli::DW_LANG_Rust | DwLang(0x9000) => Language::Rust,
        gimli::DW_LANG_Go => Language::Go,
        _ => Language::C,
    })
}
