//! Which source line an address belongs to.
//!
//! DWARF is large and most runs never ask, so it is read on the first question, from the file itself or from its
//! debug file, and kept.

use std::{io::Read, sync::Arc};

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};
use object::elf;

use crate::image::{Image, Section};

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The path the compiler was given, or noted as absolute.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

type Reader = EndianArcSlice<LittleEndian>;

/// The line tables of one file.
pub(crate) struct Lines(Context<Reader>);

/// DWARF sections that unpack to more than this, in bytes, are left alone.
const LARGEST_SECTION: u64 = 1 << 30;

impl Lines {
    /// From the DWARF sections of a file; `None` when it has none or they make no sense.
    pub(crate) fn read(image: &Image, bytes: &[u8]) -> Option<Lines> {
        image.section(".debug_info")?;
        image.section(".debug_line")?;
        let load = |id: SectionId| -> Result<Reader, gimli::Error> {
            let section = image.section(id.name()).and_then(|section| contents(image, section, bytes));
            Ok(Reader::new(section.unwrap_or_default(), LittleEndian))
        };
        Context::from_dwarf(Dwarf::load(load).ok()?).ok().map(Lines)
    }

    pub(crate) fn find(&self, address: u64) -> Option<SourceLine> {
        let location = self.0.find_location(address).ok()??;
        Some(SourceLine { file: location.file?.to_owned(), line: location.line.filter(|&line| line > 0)? })
    }
}

fn contents(image: &Image, section: &Section, bytes: &[u8]) -> Option<Arc<[u8]>> {
    let bytes = bytes.get(section.file.clone())?;
    if section.flags & elf::SHF_COMPRESSED.0 == 0 {
        return Some(bytes.into());
    }
    // Elf32_Chdr: type, size, alignment. Elf64_Chdr: type, reserved, size, alignment.
    let (size_at, header) = if image.is_64 { (8, 24) } else { (4, 12) };
    let kind = u32::from_le_bytes(*bytes.first_chunk()?);
    let size = crate::frames::little_endian(bytes.get(size_at..size_at + image.pointer_size())?);
    if kind != elf::ELFCOMPRESS_ZLIB.0 || size > LARGEST_SECTION {
        return None;
    }
    let mut unpacked = Vec::new();
    flate2::read::ZlibDecoder::new(bytes.get(header..)?).take(size).read_to_end(&mut unpacked).ok()?;
    Some(unpacked.into())
}
