//! Where the program stands at each instruction of a detour ([`crate::frames`]).
//!
//! The templates say it while they are written: they move the stack pointer at two places only. Where x30 is not the program's, as around calls
//! of routines, nothing is known, and walks end. Nor is it known where a signature was taken off x30: an unwinder would check one that is
//! not there.

use super::decode::{LENGTH, word};
use super::detour::Template;
use super::emit::instruction as a;
use super::frame::register::SP;
use crate::frames::{Place, Point};

impl Template<'_> {
    /// From here on the stack pointer is so far below that of the place.
    pub fn stands(&mut self, depth: i32) {
        if self.is_stripped {
            return self.stands_nowhere();
        }
        self.points.push(Point::at(self.code.offset(), self.place, depth));
    }

    /// From here on x30 may hold anything.
    pub fn stands_nowhere(&mut self) {
        self.points.push(Point::unknown(self.code.offset()));
    }

    /// From here on the registers are in the detour's frame.
    pub fn stands_in_frame(&mut self) {
        self.stands(self.saved.size());
    }
}

/// Points of the copy of the instruction that a site begins with, and of the branch behind it: they stand at these offsets of some code.
pub(super) fn of_copy(code: &[u8], copy: u32, back: u32) -> [Point; 4] {
    let site = |offset, depth| Point::at(offset, Place::Site(0), depth);
    let is_at = |offset: u32, expected| code.get(offset as usize..).and_then(word) == Some(expected);
    let length = LENGTH as u32;
    // A copy that needs a register keeps two on the stack.
    let depth = if is_at(copy, a::stp_pre(16, 17, SP, -16)) && back - copy > 2 * length { 16 } else { 0 };
    [
        site(copy, 0),
        site(copy + length, depth),
        Point::at(back, Place::Site(LENGTH as u8), 0),
        Point::unknown(back + length),
    ]
}
