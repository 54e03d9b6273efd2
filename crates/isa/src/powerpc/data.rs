//! Which words of a function are no instructions, but read by it.
//!
//! gcc puts a jump table right behind the branch that goes through it. Entries are distances from the table's start ([`super::tables`]); those
//! that lead back look like instructions on floating-point numbers, `0xffff…`.

use super::decode::{BCTR, word_at};

/// Whether the word at `offset` of a function is an entry of a jump table.
pub(super) fn is_data(code: &[u8], offset: usize) -> bool {
    let mut at = 0;
    while at < offset {
        let is_jump = word_at(code, at) == Some(BCTR);
        at += 4;
        if is_jump {
            at = end_of_table(code, at);
        }
    }
    at > offset
}

/// Where the table at `start` ends; there, if none is. Each entry leads to an instruction of the function, and the first of those behind the
/// table follows its last entry.
fn end_of_table(code: &[u8], start: usize) -> usize {
    let mut end = code.len();
    let mut at = start;
    while at < end {
        let target =
            word_at(code, at).and_then(|distance| start.checked_add_signed(distance as i32 as isize));
        let Some(target) = target.filter(|target| *target < code.len() && target.is_multiple_of(4)) else {
            break;
        };
        if (start..=at).contains(&target) {
            break;
        }
        if target > at {
            end = end.min(target);
        }
        at += 4;
    }
    at
}
