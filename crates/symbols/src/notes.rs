//! What the notes of a file say: records of owner, type and description.

use std::path::Path;

use object::elf;

use crate::image::Image;

/// One note.
pub(crate) struct Note<'b> {
    /// Where it starts in its section or segment.
    pub offset: usize,
    pub owner: &'b [u8],
    pub kind: u32,
    pub description: &'b [u8],
}

/// The notes in `bytes`; an error is the offset of the note that is cut short, and ends the sequence.
pub(crate) fn notes(bytes: &[u8], align: u64) -> impl Iterator<Item = Result<Note<'_>, usize>> {
    let align = if align == 8 { 8 } else { 4 };
    let mut offset = 0;
    std::iter::from_fn(move || {
        // Sections are padded with zeros to their alignment at most.
        if bytes.len().saturating_sub(offset) < align {
            return None;
        }
        let start = offset;
        let note = note(bytes, start, align);
        // Every note takes at least its header, so this ends.
        offset = note.as_ref().map_or(bytes.len(), |&(_, end)| end);
        Some(note.map(|(note, _)| note).ok_or(start))
    })
}

fn note(bytes: &[u8], offset: usize, align: usize) -> Option<(Note<'_>, usize)> {
    let header = bytes.get(offset..)?.first_chunk::<12>()?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (owner_size, size) = (word(0) as usize, word(4) as usize);
    let owner_start = offset + 12;
    let owner_end = owner_start.checked_add(owner_size)?;
    let owner = bytes.get(owner_start..owner_end)?;
    let start = owner_end.checked_next_multiple_of(align)?;
    let end = start.checked_add(size)?;
    let description = bytes.get(start..end)?;
    let owner = owner.strip_suffix(b"\0").unwrap_or(owner);
    Some((Note { offset, owner, kind: word(8), description }, end.checked_next_multiple_of(align)?))
}

/// The build id: usually 20 bytes, at most 64.
pub(crate) fn build_id<'b>(image: &Image, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let sections = image
        .sections
        .iter()
        .filter(|section| section.kind == elf::SHT_NOTE)
        .map(|section| (section.file.clone(), section.align));
    sections
        .chain(image.notes.iter().cloned())
        // More than a few note sections are not a program.
        .take(64)
        .filter_map(|(range, align)| Some((bytes.get(range)?, align)))
        .flat_map(|(bytes, align)| notes(bytes, align).map_while(Result::ok))
        .find(|note| note.owner == b"GNU" && note.kind == elf::NT_GNU_BUILD_ID.0)
        .map(|note| note.description)
        .filter(|id| (2..=64).contains(&id.len()))
}

/// The place below a debug root where the file with this build id keeps its symbols.
pub(crate) fn build_id_path(id: &[u8]) -> Option<impl AsRef<Path> + use<>> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (first, rest) = id.split_at_checked(1)?;
    Some(format!(".build-id/{}/{}.debug", hex(first), hex(rest)))
}
