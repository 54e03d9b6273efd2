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

/// A function whose code an address is in: inlined there, or the one that has the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// Its name as the linker would have it, where the debug information says one.
    pub function: Option<String>,
    /// Where in its source the address is: in a function that another one is inlined in, the call.
    pub line: Option<SourceLine>,
}

/// More functions are not inlined into each other.
const MOST_INLINED: usize = 64;

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
        line_of(self.0.find_location(address).ok()??)
    }

    /// From the function that is inlined innermost to the one that has the code. What makes no sense is left out.
    pub(crate) fn frames(&self, address: u64) -> Vec<SourceFrame> {
        let mut frames = Vec::new();
        let Ok(mut found) = self.0.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next()
            && frames.len() < MOST_INLINED
        {
            let name =
                |name: &addr2line::FunctionName<Reader>| name.raw_name().ok().map(|name| name.into_owned());
            frames.push(SourceFrame {
                function: frame.function.as_ref().and_then(name),
                line: frame.location.and_then(line_of),
            });
        }
        frames
    }
}

fn line_of(location: addr2line::Location<'_>) -> Option<SourceLine> {
    Some(SourceLine { file: location.file?.to_owned(), line: location.line.filter(|&line| line > 0)? })
}
