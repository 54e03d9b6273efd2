//! Where a file's DWARF is: in itself, in its debug file, and what several debug files share (dwz).
//!
//! Sections stay where they are in the file, which may be mapped; only compressed ones are unpacked into memory. Those that
//! only questions about types need (locations, types apart, the table of addresses) are touched when the first is asked, and
//! those that no question needs (macros) never.

use std::{borrow::Cow, io::Read, ops::Range, path::Path, sync::OnceLock};

use gimli::{Dwarf, DwarfSections, EndianSlice, LittleEndian, LocationLists, SectionId};
use object::elf;

use crate::{
    DebugSearch,
    debug_file::{self, DebugFile},
    image::{Image, Section},
};

/// Reads DWARF where it stands.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Sections that unpack to more than this, in bytes, are left alone.
const LARGEST_SECTION: u64 = 1 << 30;
/// And so are those of one file beyond this.
const MOST_UNPACKED: usize = 2 << 30;

/// The bytes of one section.
pub(crate) enum Contents {
    InFile(Range<usize>),
    Unpacked(Vec<u8>),
}

impl Contents {
    /// These, or nothing where they are too much together with what was unpacked before.
    fn within(self, unpacked: &mut usize) -> Contents {
        if let Contents::Unpacked(bytes) = &self {
            *unpacked += bytes.len();
        }
        if *unpacked > MOST_UNPACKED { nothing() } else { self }
    }

    pub(crate) fn slice<'a>(&'a self, file: &'a [u8]) -> Slice<'a> {
        let bytes = match self {
            Contents::InFile(range) => file.get(range.clone()).unwrap_or_default(),
            Contents::Unpacked(bytes) => bytes,
        };
        EndianSlice::new(bytes, LittleEndian)
    }
}

/// The DWARF of one module.
pub(crate) struct DebugSections {
    /// The file it is in, where that is not the module itself.
    file: Option<DebugFile>,
    sections: DwarfSections<Contents>,
    shared: Option<(DebugFile, DwarfSections<Contents>)>,
    apart: OnceLock<Apart>,
}

/// What only questions about types need.
struct Apart {
    loc: Contents,
    loclists: Contents,
    types: Contents,
    aranges: Contents,
}

impl DebugSections {
    /// Looks in the module first, then in its debug file; `None` where neither has a line table.
    pub(crate) fn find(
        path: &Path,
        image: &Image,
        bytes: &[u8],
        search: &DebugSearch,
    ) -> Option<DebugSections> {
        let has_lines = |image: &Image| {
            let has = |name: &str| find(image, name).is_some();
            has(".debug_info") && has(".debug_line")
        };
        if has_lines(image) {
            let shared = shared(path, image, bytes, search);
            let sections = load(image, bytes);
            return Some(DebugSections { file: None, sections, shared, apart: OnceLock::new() });
        }
        let file = debug_file::find(path, image, bytes, search).filter(|file| has_lines(&file.image))?;
        let shared = shared(&file.path, &file.image, &file.source, search);
        let sections = load(&file.image, &file.source);
        Some(DebugSections { sections, file: Some(file), shared, apart: OnceLock::new() })
    }

    /// The path of the file the DWARF is in, given the module's.
    pub(crate) fn path<'a>(&'a self, module: &'a Path) -> &'a Path {
        self.file.as_ref().map_or(module, |file| &file.path)
    }

    /// The file it is in, where that is not the module itself.
    pub(crate) fn file(&self) -> Option<&DebugFile> {
        self.file.as_ref()
    }

    /// The DWARF itself; `module` are the module's bytes.
    pub(crate) fn dwarf<'a>(&'a self, module: &'a [u8]) -> Dwarf<Slice<'a>> {
        let bytes = self.file.as_ref().map_or(module, |file| &file.source);
        let mut dwarf = self.sections.borrow(|section| section.slice(bytes));
        if let Some((file, sections)) = &self.shared {
            dwarf.set_sup(sections.borrow(|section| section.slice(&file.source)));
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        dwarf
    }

    /// The DWARF that the file shares with others.
    pub(crate) fn shared(&self) -> Option<Dwarf<Slice<'_>>> {
        let (file, sections) = self.shared.as_ref()?;
        Some(sections.borrow(|section| section.slice(&file.source)))
    }

    /// The DWARF with what tells of types and places, and without abbreviations at hand; `module` and `bytes` are the module's.
    pub(crate) fn whole<'a>(&'a self, module: &Image, bytes: &'a [u8]) -> Dwarf<Slice<'a>> {
        let (image, bytes) = match &self.file {
            Some(file) => (&file.image, &file.source[..]),
            None => (module, bytes),
        };
        let apart = self.apart.get_or_init(|| {
            let mut unpacked = 0;
            let mut one = |id: SectionId| any_section(image, bytes, id.name()).within(&mut unpacked);
            Apart {
                loc: one(SectionId::DebugLoc),
                loclists: one(SectionId::DebugLocLists),
                types: one(SectionId::DebugTypes),
                aranges: one(SectionId::DebugAranges),
            }
        });
        let mut dwarf = self.sections.borrow(|section| section.slice(bytes));
        dwarf.debug_types = apart.types.slice(bytes).into();
        dwarf.debug_aranges = apart.aranges.slice(bytes).into();
        dwarf.locations =
            LocationLists::new(apart.loc.slice(bytes).into(), apart.loclists.slice(bytes).into());
        if let Some((file, sections)) = &self.shared {
            dwarf.set_sup(sections.borrow(|section| section.slice(&file.source)));
        }
        dwarf
    }
}

fn shared(
    path: &Path,
    image: &Image,
    bytes: &[u8],
    search: &DebugSearch,
) -> Option<(DebugFile, DwarfSections<Contents>)> {
    let file = debug_file::shared(path, image, bytes, search)?;
    let sections = load(&file.image, &file.source);
    Some((file, sections))
}

fn load(image: &Image, bytes: &[u8]) -> DwarfSections<Contents> {
    let mut unpacked = 0;
    let one =
        |id: SectionId| Ok::<_, gimli::Error>(section(image, bytes, id, id.name()).within(&mut unpacked));
    let loaded = DwarfSections::load(one);
    loaded.unwrap_or_else(|_: gimli::Error| empty())
}

/// Those of a `.dwo` file.
pub(crate) fn load_split(image: &Image, bytes: &[u8]) -> DwarfSections<Contents> {
    let one = |id: SectionId| {
        Ok::<_, gimli::Error>(id.dwo_name().map_or(nothing(), |name| section(image, bytes, id, name)))
    };
    DwarfSections::load(one).unwrap_or_else(|_: gimli::Error| empty())
}

/// Those of a `.dwo` file, with what tells of types and places.
pub(crate) fn load_split_whole(image: &Image, bytes: &[u8]) -> DwarfSections<Contents> {
    let mut unpacked = 0;
    let one = |id: SectionId| {
        let section = id.dwo_name().map_or(nothing(), |name| all_sections(image, bytes, name));
        Ok::<_, gimli::Error>(section.within(&mut unpacked))
    };
    DwarfSections::load(one).unwrap_or_else(|_: gimli::Error| empty())
}

/// One of a `.dwp` file. All of them: its index says which part of each belongs to a unit.
pub(crate) fn package_section(image: &Image, bytes: &[u8], id: SectionId) -> Contents {
    id.dwo_name().map_or(nothing(), |name| any_section(image, bytes, name))
}

fn empty() -> DwarfSections<Contents> {
    DwarfSections::load(|_| Ok::<_, std::convert::Infallible>(nothing()))
        .unwrap_or_else(|never| match never {})
}

fn nothing() -> Contents {
    Contents::InFile(0..0)
}

fn section(image: &Image, bytes: &[u8], id: SectionId, name: &str) -> Contents {
    use SectionId::*;
    match id {
        DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro | DebugTypes | DebugNames | DebugAranges => {
            nothing()
        }
        _ => any_section(image, bytes, name),
    }
}

/// All sections of a name, one behind the other: each type that is described apart has its own in an object file.
fn all_sections(image: &Image, bytes: &[u8], name: &str) -> Contents {
    let is_meant = |section: &&Section| section.name == name && !section.file.is_empty();
    if image.sections.iter().filter(is_meant).count() < 2 {
        return any_section(image, bytes, name);
    }
    let mut all = Vec::new();
    for section in image.sections.iter().filter(is_meant) {
        // Sections may lie over each other, and then be more than the file.
        match unpack(image, section, bytes) {
            Some(part) if all.len() + part.len() <= LARGEST_SECTION as usize => all.extend_from_slice(&part),
            _ => break,
        }
    }
    Contents::Unpacked(all)
}

fn any_section(image: &Image, bytes: &[u8], name: &str) -> Contents {
    let Some(section) = find(image, name) else { return nothing() };
    match unpack(image, section, bytes) {
        Some(Cow::Owned(bytes)) => Contents::Unpacked(bytes),
        Some(Cow::Borrowed(_)) => Contents::InFile(section.file.clone()),
        None => nothing(),
    }
}

/// The section of that name, or the one that old linkers compressed under another (`.zdebug_line`).
pub(crate) fn find<'i>(image: &'i Image, name: &str) -> Option<&'i Section> {
    let old = || image.section(&format!(".z{}", name.strip_prefix('.')?));
    image.section(name).or_else(old)
}

/// The section's bytes, unpacked if need be. `None` where they make no sense or are too many.
pub(crate) fn unpack<'b>(image: &Image, section: &Section, bytes: &'b [u8]) -> Option<Cow<'b, [u8]>> {
    let bytes = bytes.get(section.file.clone())?;
    if section.name.starts_with(".zdebug") {
        // "ZLIB", and the size as eight bytes with the highest first.
        let size = u64::from_be_bytes(*bytes.strip_prefix(b"ZLIB")?.first_chunk()?);
        return read(flate2::read::ZlibDecoder::new(bytes.get(12..)?), size).map(Cow::Owned);
    }
    if section.flags & elf::SHF_COMPRESSED.0 == 0 {
        return Some(bytes.into());
    }
    // Elf32_Chdr: type, size, alignment. Elf64_Chdr: type, reserved, size, alignment.
    let (size_at, header) = if image.is_64 { (8, 24) } else { (4, 12) };
    let kind = u32::from_le_bytes(*bytes.first_chunk()?);
    let size = crate::frames::little_endian(bytes.get(size_at..size_at + image.pointer_size())?);
    let packed = bytes.get(header..)?;
    let unpacked = if kind == elf::ELFCOMPRESS_ZLIB.0 {
        read(flate2::read::ZlibDecoder::new(packed), size)
    } else if kind == elf::ELFCOMPRESS_ZSTD.0 {
        read(ruzstd::decoding::StreamingDecoder::new(packed).ok()?, size)
    } else {
        None
    };
    unpacked.map(Cow::Owned)
}

fn read(packed: impl Read, size: u64) -> Option<Vec<u8>> {
    if size > LARGEST_SECTION {
        return None;
    }
    let mut unpacked = Vec::new();
    packed.take(size).read_to_end(&mut unpacked).ok()?;
    Some(unpacked)
}
