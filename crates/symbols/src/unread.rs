//! What of a file could not be read, and which code that concerns.
//!
//! A table that is damaged leaves out functions, landing pads or pointers that are there. Who patches code must not take
//! that for "there are none".

use std::ops::Range;

use crate::Module;

/// Something that tells where control may arrive, or what a function is, and that could not be read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unread {
    /// A symbol table of the file: names, and labels inside functions.
    Symbols,
    /// The unwind table, so that landing pads may be anywhere.
    UnwindTable,
    /// The landing pads of one function.
    LandingPads,
    /// The relocations, which list the pointers to code.
    Pointers,
}

impl Unread {
    /// What it is called, to complete "… could not be read".
    pub fn name(self) -> &'static str {
        match self {
            Unread::Symbols => "the file's symbol table",
            Unread::UnwindTable => "the file's unwind table",
            Unread::LandingPads => "the function's exception table",
            Unread::Pointers => "the file's relocations",
        }
    }
}

impl Module {
    /// What could not be read and concerns the code in `range`.
    pub fn unread(&self, range: &Range<u64>) -> Option<Unread> {
        if self.functions().lacks_symbols {
            return Some(Unread::Symbols);
        }
        if self.frames().defect.is_some() {
            return Some(Unread::UnwindTable);
        }
        if self.read_pointers().1.is_some() {
            return Some(Unread::Pointers);
        }
        let (_, unread) = self.read_landing_pads();
        let concerns = |part: &Range<u64>| part.start < range.end && range.start < part.end;
        unread.iter().any(concerns).then_some(Unread::LandingPads)
    }
}
