//! Unwind tables in memory shared with the target: where a frame's caller is, for any instruction, in a few loads.
//!
//! A stack is walked inside of the target, by machine code that has no time to read DWARF and nowhere to put what it reads. So
//! whoever attaches compiles `.eh_frame` to *rows* and lays them out as this file says. An *area* is position independent:
//! everything in it is found by offsets from its first byte. All numbers are little-endian.
//!
//! | at | what |
//! |---|---|
//! | 0 | [`MAGIC`], 8 bytes |
//! | 8 | [`VERSION`], `u32`; bytes of a word of the target, `u32`: 4 or 8 |
//! | 16 | mask of addresses, `u64`: a return address is what is found, *and* this (pointer authentication's bits lie outside) |
//! | 24 | the *directory*, `u64`: offset of the list of modules in the low half, their number in the high one |
//! | 32 | the *fallback*, a rule: what holds in code that no row tells of |
//! | 48 | the *arrival*, a rule: what holds before the first instruction of any function |
//! | 64 | tables and lists of modules, each at a multiple of 8 |
//!
//! A module of the list, 40 bytes ([`Module`]), stands for a range of addresses. The list is sorted, and its ranges do not overlap.
//!
//! | at | what |
//! |---|---|
//! | 0 | first address, `u64` |
//! | 8 | end, `u64` |
//! | 16 | offset of its index, `u32` |
//! | 20 | offset of its rows, `u32`; 0 in a module without a table, such as code that was made while the program ran |
//! | 24 | offset of its rules, `u32` |
//! | 28 | number of rows, `u32` |
//! | 32 | number of rules, `u32` |
//! | 36 | 0, `u32` |
//!
//! The *key* of an address is its distance from the module's first. Keys are looked up in two steps: keys that differ in their low
//! [`BUCKET_BITS`] bits only are one *bucket*, and `index[bucket]`, a `u32`, is the number of rows whose keys lie in earlier ones. There
//! is one more entry than buckets. A row is a `u32`: the low bits of the key from which on it holds in the high byte, and the number of
//! its rule in the others. So what holds for a key is the last row of its bucket that is not greater than `low << 24 | 0xff_ffff`, or else
//! the last one of an earlier bucket. Row 0 says that there is no rule and belongs to no bucket, so there always is one.
//! A table is never changed, and many modules may use one.
//!
//! Whoever walks reads the directory once. A new list is written to unused room first, and the directory's word last: so lists are
//! replaced while others read them.

mod area;
mod rule;
mod table;
mod walk;

pub use area::{Area, Damage, Facts, Module, Tables};
pub use rule::{Base, Kind, Rule, Slot};
pub use table::{Table, TooLarge};
pub use walk::{Ended, MOST_CHANGES, Method, Place, Registers, Walked, walk};

/// First eight bytes of an area.
pub const MAGIC: [u8; 8] = *b"TLUNWIND";

/// Version of this layout.
pub const VERSION: u32 = 1;

/// Keys of a bucket differ in so many of their low bits.
pub const BUCKET_BITS: u32 = 8;

/// Rules of a table are told apart by so many bits.
pub const RULE_BITS: u32 = 24;

/// Offset of the directory's word.
pub const DIRECTORY_OFFSET: usize = 24;

#[cfg(test)]
mod tests;
