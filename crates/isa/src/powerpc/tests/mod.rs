//! Tables of words: what each file of this folder says to given instructions.

mod constants;
mod faults;
mod prologue;
mod slot;

use alloc::vec::Vec;

/// The bytes of instructions.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
