//! Pieces of the libraries that are made here and in a program's own process: little-endian ELF files of 64 bits, with one function's code and a table for
//! unwinders.

/// `Elf64_Word`s.
#[must_use]
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// `Elf64_Xword`s, addresses and offsets.
#[must_use]
pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// `Elf64_Half`s.
#[must_use]
pub fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// `.eh_frame_hdr` at the address `header`: where the table is, and its one entry, so far behind its start, by which it is searched for `code`.
#[must_use]
pub fn eh_frame_header(header: u64, table: u64, entry: u32, code: u64) -> Vec<u8> {
    const RELATIVE: u8 = 0x1b;
    const COUNT: u8 = 0x03;
    const BY_HEADER: u8 = 0x3b;
    let from_field = (table - (header + 4)) as u32;
    let entry = (table - header) as u32 + entry;
    [vec![1, RELATIVE, COUNT, BY_HEADER], words(&[from_field, 1, (code - header) as u32, entry])].concat()
}
