//! Which source line an address belongs to.
//!
//! DWARF is large and most runs never ask, so it is read on the first question, from the file itself or from its
//! debug file, and kept.

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};

use crate::{dwarf, image::Image};

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

impl Lines {
    /// From the DWARF sections of a file; `None` when it has none or they make no sense.
    pub(crate) fn read(image: &Image, bytes: &[u8]) -> Option<Lines> {
        dwarf::find(image, ".debug_info")?;
        dwarf::find(image, ".debug_line")?;
        let load = |id: SectionId| -> Result<Reader, gimli::Error> {
            let section =
                dwarf::find(image, id.name()).and_then(|section| dwarf::unpack(image, section, bytes));
            Ok(Reader::new(section.unwrap_or_default().as_ref().into(), LittleEndian))
        };
        Context::from_dwarf(Dwarf::load(load).ok()?).ok().map(Lines)
    }

    pub(crate) fn find(&self, address: u64) -> Option<SourceLine> {
        let location = self.0.find_location(address).ok()??;
        Some(SourceLine { file: location.file?.to_owned(), line: location.line.filter(|&line| line > 0)? })
    }
}
