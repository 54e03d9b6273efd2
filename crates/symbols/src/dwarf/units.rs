//! The units of a file's DWARF, and the rest of those that the compiler split (`.dwo` files, `.dwp` packages).

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use gimli::{
    AttributeValue, DW_AT_high_pc, DW_AT_low_pc, DW_AT_ranges, Dwarf, DwarfPackageSections, DwarfSections,
    EndianSlice, LittleEndian, Unit, UnitOffset, UnitType,
};

use super::{
    Gaps,
    sections::{self, Contents, Slice},
};
use crate::{
    DebugSearch,
    debug_file::{self, DebugFile},
};

/// Looks at every unit that may hold code. What cannot be read is noted among `gaps`.
pub(super) fn each<'a>(
    dwarf: &Dwarf<Slice<'a>>,
    gaps: &mut Gaps,
    mut look: impl FnMut(&Rc<Unit<Slice<'a>>>, &mut Gaps),
) {
    let mut headers = dwarf.units();
    loop {
        match headers.next() {
            Ok(Some(header)) => {
                if matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
                    continue;
                }
                match dwarf.unit(header) {
                    Ok(unit) => look(&Rc::new(unit), gaps),
                    Err(_) => gaps.unit(),
                }
            }
            Ok(None) => return,
            Err(_) => return gaps.unit(),
        }
    }
}

/// Where the rest of split units is looked for.
pub(super) struct Split<'s> {
    search: &'s DebugSearch,
    /// The folder of the program.
    folder: Option<PathBuf>,
    package: Option<(DebugFile, DwarfPackageSections<Contents>)>,
}

/// Takes the whole of a unit, and the DWARF it is in.
type Look<'l> = dyn for<'x> FnMut(&Dwarf<Slice<'x>>, &Rc<Unit<Slice<'x>>>, &mut Gaps) + 'l;

impl<'s> Split<'s> {
    /// `modules`: the paths by which a package may be named.
    pub(super) fn new(search: &'s DebugSearch, modules: [&Path; 2]) -> Split<'s> {
        let package = modules.iter().find_map(|path| {
            let mut name = path.file_name()?.to_owned();
            name.push(".dwp");
            let file = debug_file::split(&path.with_file_name(name), search)?;
            let section =
                |id| Ok::<_, gimli::Error>(sections::package_section(&file.image, &file.source, id));
            let loaded = DwarfPackageSections::load(section).ok()?;
            Some((file, loaded))
        });
        Split { search, folder: modules[0].parent().map(Path::to_owned), package }
    }

    /// Looks at the whole of a unit: at itself, or at what it was split into. Noted among `gaps` where that is not to be had.
    pub(super) fn whole(
        &self,
        dwarf: &Dwarf<Slice<'_>>,
        unit: &Rc<Unit<Slice<'_>>>,
        gaps: &mut Gaps,
        look: &mut Look<'_>,
    ) {
        let (Some(id), Ok(Some(name))) = (unit.dwo_id, unit.dwo_name()) else {
            return look(dwarf, unit, gaps);
        };
        if let Some((file, sections)) = &self.package {
            let empty = EndianSlice::new(&[], LittleEndian);
            let package = sections.borrow(|section| section.slice(&file.source), empty);
            let found = package.ok().and_then(|package| package.find_cu(id, dwarf).ok()?);
            if let Some(full) = found.as_ref().and_then(|split| Some((split, full_unit(split, unit)?))) {
                return look(full.0, &full.1, gaps);
            }
        }
        let name = dwarf.attr_string(unit, name).map(|name| name.to_string_lossy().into_owned());
        let name = PathBuf::from(name.unwrap_or_default());
        let folder = unit.comp_dir.as_ref().map(|folder| PathBuf::from(&*folder.to_string_lossy()));
        let beside = self.folder.as_ref().and_then(|folder| Some(folder.join(name.file_name()?)));
        let candidates = folder.map(|folder| folder.join(&name)).into_iter().chain(beside);
        for candidate in candidates {
            let Some(file) = debug_file::split(&candidate, self.search) else { continue };
            let sections: DwarfSections<Contents> = sections::load_split(&file.image, &file.source);
            let mut split = sections.borrow(|section| section.slice(&file.source));
            split.make_dwo(dwarf);
            if let Some(full) = full_unit(&split, unit) {
                return look(&split, &full, gaps);
            }
        }
        gaps.split(name);
    }
}

/// The unit that `skeleton` stands for.
fn full_unit<'x>(split: &Dwarf<Slice<'x>>, skeleton: &Unit<Slice<'x>>) -> Option<Rc<Unit<Slice<'x>>>> {
    let mut headers = split.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(mut unit) = split.unit(header) else { continue };
        if unit.dwo_id == skeleton.dwo_id {
            unit.copy_relocated_attributes(skeleton);
            return Some(Rc::new(unit));
        }
    }
    None
}

/// Whether the unit says that its code is at `address`.
pub(super) fn covers(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, address: u64) -> bool {
    let Ok(root) = unit.entry(UnitOffset(unit.header.header_size())) else { return false };
    if let Some(list) = root.attr_value(DW_AT_ranges) {
        let Ok(Some(mut list)) = dwarf.attr_ranges(unit, list) else { return false };
        while let Ok(Some(range)) = list.next() {
            if (range.begin..range.end).contains(&address) {
                return true;
            }
        }
        return false;
    }
    let low = root.attr_value(DW_AT_low_pc).and_then(|low| dwarf.attr_address(unit, low).ok()?);
    let (Some(low), Some(high)) = (low, root.attr_value(DW_AT_high_pc)) else { return false };
    let high = match high {
        AttributeValue::Udata(size) => Some(low.saturating_add(size)),
        other => dwarf.attr_address(unit, other).ok().flatten(),
    };
    high.is_some_and(|high| (low..high).contains(&address))
}
