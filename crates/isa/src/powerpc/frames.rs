//! Where the program stands at each instruction of a detour ([`crate::frames`]).
//!
//! The templates say it while they are written: they move the stack pointer at two places only. What runs in a frame of ours while lr is not the
//! program's, as around calls of routines, is unknown, and a walk ends there by the back chain, which is 0 ([`super::emit`]). Wherever r1 is the
//! program's, it has to be told: libgcc would follow the program's own chain from there, and take a callback's data for that of glibc's
//! `backtrace` (`MD_BACKCHAIN_FALLBACK`, since 12).

use super::decode::word_at;
use super::detour::Template;
use super::emit::*;
use crate::frames::{Place, Point};
use alloc::vec::Vec;

impl Template<'_> {
    /// From here on the stack pointer is so far below that of the place.
    pub fn stands(&mut self, depth: i16) {
        self.points.push(Point::at(self.asm.offset(), self.place, depth.into()));
    }

    /// From here on lr may hold anything.
    pub fn stands_nowhere(&mut self) {
        self.points.push(Point::unknown(self.asm.offset()));
    }
}

/// Points of copies of displaced instructions: `places` says where each stands, and last of all where control leaves `code`; `site` is the
/// address of the first one.
pub(super) fn of_copies(code: &[u8], places: &[(u64, u32)], site: u64) -> Vec<Point> {
    let mut points = Vec::new();
    for (index, &(original, offset)) in places.iter().enumerate() {
        let place = u8::try_from(original.wrapping_sub(site)).ok().map(Place::Site);
        let told = |offset| place.map_or(Point::unknown(offset), |place| Point::at(offset, place, 0));
        points.push(told(offset));
        let end = places.get(index + 1).map_or(code.len() as u32, |next| next.1);
        // The copy of a call makes a frame for a moment. Any other is one instruction, or moves no stack pointer.
        for at in (offset..end).step_by(4).filter(|_| end - offset > 2 * WORD) {
            match word_at(code, at as usize) {
                Some(ENTERS) => points.push(Point::unknown(at + WORD)),
                Some(LEAVES) => points.push(told(at + WORD)),
                _ => {}
            }
        }
    }
    points.push(Point::unknown(code.len() as u32));
    points
}

/// Length of an instruction.
const WORD: u32 = 4;
/// `stdu r12,-544(r1)` and `addi r1,r1,544`: see [`Asm::set_link`].
const ENTERS: u32 = 0xf981_0001 | (-FRAME as u16 as u32);
const LEAVES: u32 = 0x3821_0000 | FRAME as u32;
