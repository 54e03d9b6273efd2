//! Byte tables: what each file of this folder says to given bytes.

mod computed;
mod faults;
mod liveness;
mod prologue;
mod relocate;
mod returns;
mod room;
mod sharing;
mod skim;
mod slot;
mod tables;
mod turns;
mod verdict;

use alloc::vec::Vec;

/// Bytes written in hexadecimal; spaces are ignored.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let nibble = |b: u8| (b as char).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}
