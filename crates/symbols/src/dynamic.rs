//! What the dynamic section says of a file: its name for others, what it needs, and whether it is a program.

use crate::{
    frames::little_endian,
    image::{Image, text},
};
use object::elf;

/// The entries that matter.
#[derive(Default)]
pub(crate) struct Dynamic {
    pub soname: Option<String>,
    pub needed: Vec<String>,
    pub is_pie: bool,
    /// Whether the loader changes the code.
    pub relocates_code: bool,
}

/// More needed libraries than this are not a program.
const MOST_NEEDED: usize = 4096;

impl Dynamic {
    /// Reads it from a file's contents.
    pub(crate) fn read(image: &Image, bytes: &[u8]) -> Dynamic {
        let size = image.pointer_size();
        let contents = image.dynamic.clone().and_then(|range| bytes.get(range)).unwrap_or(&[]);
        let entries = contents
            .chunks_exact(2 * size)
            .map(|entry| (little_endian(&entry[..size]) as i64, little_endian(&entry[size..])))
            .take_while(|&(tag, _)| tag != elf::DT_NULL.0);
        let mut found = Dynamic::default();
        let (mut soname, mut needed, mut strings) = (None, Vec::new(), &[][..]);
        for (tag, value) in entries {
            match elf::DynamicTag(tag) {
                elf::DT_STRTAB => strings = image.bytes_at(bytes, value),
                elf::DT_SONAME => soname = Some(value),
                elf::DT_NEEDED if needed.len() < MOST_NEEDED => needed.push(value),
                elf::DT_TEXTREL => found.relocates_code = true,
                elf::DT_FLAGS => found.relocates_code |= value & elf::DF_TEXTREL.0 != 0,
                elf::DT_FLAGS_1 => found.is_pie = value & elf::DF_1_PIE.0 != 0,
                _ => {}
            }
        }
        let string = |offset: u64| strings.get(usize::try_from(offset).ok()?..).map(text);
        found.soname = soname.and_then(string);
        found.needed = needed.into_iter().filter_map(string).collect();
        // Older linkers do not set the flag. libc.so.6 has an interpreter too, but is a library by its soname.
        found.is_pie |= image.interpreter.is_some() && soname.is_none();
        found
    }
}
