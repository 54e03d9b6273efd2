//! The machine code of patches, and the frame that detours run in.
//!
//! # Where a detour may put its registers
//!
//! A function without a frame may use 288 bytes below the stack pointer (ELFv2, 2.2.2.4), and another 224 belong to the
//! system: Linux skips all 512 when it builds a signal frame (`USER_REDZONE_SIZE`, since 3.14, and the first kernel of powerpc64le had it), qemu-user and
//! valgrind skip 288 only. So a detour makes a frame of its own like any function, with the 288 bytes left out at its top:
//!
//! ```text
//! r1 + 544   the stack pointer of the program
//! r1 + 256   what a function without a frame may use
//! r1 + 240   the register that is saved first
//! r1 +  64   the pairs of [`super::count`]
//! r1 +  32   scratch doublewords
//! r1         back chain, which is 0, and the rest of a frame's header
//! ```
//!
//! What only counts does without a frame most of the time, and saves where it would be ([`PAIRED`]). That is the system's part, which code that nobody calls
//! has to leave alone too, as the ABI says, and Linux does. qemu-user puts a signal's frame there, but has seven doublewords in it that it does not write,
//! between what it says of the signal and the context: those are taken. Under valgrind, which translates code and is not told that it changes, there are no
//! detours.
//!
//! # Where walks end
//!
//! No table of unwinders knows a detour, and libgcc's `_Unwind_Backtrace` goes on by the back chain then: it takes the LR save doubleword of
//! the next frame for a return address, and reads the instruction there. At the entry of a function nothing is saved there yet, and a program
//! whose signal handler had looked for its callers died of what was there instead. So the back chain of our frames is 0, which ends the walk,
//! from the instruction on that makes them: the register that holds the 0 is saved ahead of the frame, where only the system may write. The copy
//! of a displaced instruction runs without a frame of ours, and is told to unwinders ([`super::frames`]), wherever they can be hooked.

use super::assembler::i_form;
pub(super) use super::assembler::*;
use super::decode::NOP;
use crate::Reason;
use alloc::{vec, vec::Vec};

/// Size of a detour's frame.
pub(super) const FRAME: i16 = 544;

/// Offset from r1 of the n-th scratch doubleword in a detour's frame. There are 26.
pub(super) const fn scratch(n: i16) -> i16 {
    assert!(n >= 0 && n < 26);
    32 + 8 * n
}

/// Where a detour's frame has the register that is saved first: below what functions use, and as near as the alignment of stacks allows.
pub(super) const FIRST: i16 = FRAME - 304;

/// Where pairs of registers are saved from, with a frame and without: from the program's stack pointer, in 32 bytes.
pub(super) const PAIRED: i16 = -480;

impl Asm {
    /// Makes the frame of a detour, with `first` in it, at [`FIRST`]. `first` is 0 then.
    pub fn enter(&mut self, first: Gpr) {
        self.make_frame(FRAME, first, FIRST);
    }

    /// Makes a frame with `first` at `place` in it. `first` is 0 then, and the back chain too.
    pub fn make_frame(&mut self, size: i16, first: Gpr, place: i16) {
        self.store(first, R1, place - size);
        self.load_constant(first, 0);
        self.push_frame(size, first);
    }

    /// `stdu chain,-size(r1)`
    pub fn push_frame(&mut self, size: i16, chain: Gpr) {
        self.d_form(62, chain, R1, -size | 1);
    }

    /// Takes the frame away.
    pub fn leave(&mut self) {
        self.addi(R1, R1, FRAME);
    }

    /// Sets the link register to `value` without a frame, by way of r12 which is kept.
    pub fn set_link(&mut self, value: u64) {
        self.enter(R12);
        self.load_constant(R12, value);
        self.write_special(LR, R12);
        self.load(R12, R1, FIRST);
        self.leave();
    }
}

/// The words of a patch: a branch from `start` to `detour`, then nops up to `length` bytes.
///
/// Only a prefixed instruction is longer than the branch. Its suffix becomes a nop: nothing arrives there but a
/// disassembler.
pub(super) fn patch(start: u64, length: u8, detour: u64) -> Result<Vec<u8>, Reason> {
    let mut words = vec![i_form(0, start, detour)?];
    words.resize(usize::from(length / 4).max(1), NOP);
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}
