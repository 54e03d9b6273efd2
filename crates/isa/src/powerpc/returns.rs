//! May the function carry a call-paired return probe?
//!
//! While a call is followed, lr holds the address of the detour's return point instead of the caller's. An ordinary
//! function only carries it around: `mflr` to a register, from there to the LR save doubleword at 16(r1) of its
//! caller, and the same way back. A function that does anything else with it reads its own return address.
//!
//! A return instance is found again by the stack pointer at the entry. So a function must not call others before it has moved the
//! stack pointer: the callee's instance would have the same key while the function's own is in use, and only tail
//! calls may share a key (see [`super::runtime`]).
//!
//! The code is looked at in the order of the addresses, which is the order of the flow in prologues and epilogues, the only places
//! where compilers touch lr.

use super::decode::Fields;
use super::flow::Function;
use super::registers::usage;
use super::verdict::{displaced, toc_setup};
use crate::{Flow, Reason, Site};
use alloc::{vec, vec::Vec};

/// How far the way of the return address is followed.
const WINDOW: usize = 64;
/// Offset of the LR save doubleword in a stack frame.
pub(super) const LR_SAVE: i64 = 16;

pub(super) fn return_verdict(site: &Site<'_>) -> Result<(), Reason> {
    let (_, displaced) = displaced(site)?;
    let local_entry = toc_setup(site.code).map_or(0, |setup| u64::from(setup.length));
    let function = Function { code: site.code, address: site.function };
    // Elsewhere than at the entry lr may be anything. Jumps back to the entry are led past the probe.
    if displaced.start != site.function.wrapping_add(local_entry) {
        return Err(Reason::ReturnsOddly);
    }
    let frames = function.frames();
    if function.calls_without_frame((local_entry / 4) as usize, &frames) {
        return Err(Reason::CallsWithoutFrame);
    }
    (0..function.len()).try_for_each(|index| function.link_register(index, &frames))
}

impl Function<'_> {
    /// The sizes of the frames that the function makes.
    fn frames(&self) -> Vec<i64> {
        let size = |word: u32| (word & 0xffff_0003 == 0xf821_0001).then(|| -(word.d() & !3));
        let mut sizes: Vec<i64> = (0..self.len()).filter_map(|index| size(self.word(index))).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// `addi r1,r1,frame` and `ld r1,0(r1)`.
    fn takes_frame_away(&self, index: usize, frames: &[i64]) -> bool {
        let word = self.word(index);
        word & 0xffff_0000 == 0x3821_0000 && frames.contains(&word.d()) || word == 0xe821_0000
    }

    /// Whether a call is reached with the stack pointer of the entry.
    fn calls_without_frame(&self, entry: usize, frames: &[i64]) -> bool {
        let mut seen = vec![false; self.len()];
        let pops = (0..self.len()).filter(|&index| self.takes_frame_away(index, frames));
        let mut work: Vec<usize> = pops.map(|index| index + 1).collect();
        work.push(entry);
        while let Some(index) = work.pop() {
            if index >= self.len() || core::mem::replace(&mut seen[index], true) {
                continue;
            }
            if self.calls(index) {
                return true;
            }
            if usage(self.word(index)).writes(1) {
                continue;
            }
            let flow = self.flow(index);
            if flow.is_none_or(Flow::falls_through) {
                work.push(index + 1);
            }
            let target = flow.and_then(Flow::target).map(|target| target.wrapping_sub(self.address) / 4);
            work.extend(target.and_then(|target| usize::try_from(target).ok()));
        }
        false
    }

    /// Checks an instruction that brings the return address into a register or into lr.
    fn link_register(&self, index: usize, frames: &[i64]) -> Result<(), Reason> {
        let word = self.word(index);
        let from_memory = || is_load(word, |base, d| base == 1 && is_save(d, frames));
        if is_mflr(word) {
            let own_address = index > 0 && self.gets_pc(index - 1);
            return if own_address { Ok(()) } else { self.only_carried(index, frames) };
        }
        if from_memory() {
            return self.only_carried(index, frames);
        }
        if is_mtlr(word) { self.restored(index) } else { Ok(()) }
    }

    /// What the instruction at `index` puts into a register may only be saved and go back to lr.
    fn only_carried(&self, index: usize, frames: &[i64]) -> Result<(), Reason> {
        let register = self.word(index).rt();
        for next in index + 1..self.len().min(index + WINDOW) {
            let word = self.word(next);
            let to_save_doubleword = saves(word, register, frames);
            let to_link_register = is_mtlr(word) && word.rt() == register;
            if !to_save_doubleword && !to_link_register && usage(word).reads(register) {
                return Err(Reason::ReadsReturnAddress);
            }
            let leaves = self.calls(next) || self.flow(next).is_some_and(|flow| !flow.falls_through());
            if leaves && (3..=10).contains(&register) && !self.stays(next) {
                // As an argument or as the result.
                return Err(Reason::ReadsReturnAddress);
            }
            let volatile = register == 0 || (3..=12).contains(&register);
            let gone = usage(word).writes(register) || volatile && self.calls(next);
            if gone || self.flow(next).is_some_and(|flow| !flow.falls_through()) {
                break;
            }
        }
        Ok(())
    }

    /// Whether a jump goes on inside the function.
    fn stays(&self, index: usize) -> bool {
        let inside = |target: u64| target.wrapping_sub(self.address) < self.code.len() as u64;
        matches!(self.flow(index), Some(Flow::Jump { target }) if inside(target))
    }

    /// `mtlr`: what it puts into lr must come from lr.
    fn restored(&self, index: usize) -> Result<(), Reason> {
        let register = self.word(index).rt();
        let source = (index.saturating_sub(WINDOW)..index)
            .rev()
            .map(|before| self.word(before))
            .find(|&word| usage(word).writes(register));
        match source {
            // From the frame of some caller, found by whatever register points to it.
            Some(word) if is_load(word, |base, d| base == 1 || d == LR_SAVE) => Ok(()),
            Some(word) if is_mflr(word) => Ok(()),
            _ => Err(Reason::ReturnsOddly),
        }
    }
}

/// Whether `d(r1)` is the LR save doubleword of the caller: with the function's frame in between, or without.
fn is_save(d: i64, frames: &[i64]) -> bool {
    d == LR_SAVE || frames.iter().any(|frame| d == frame + LR_SAVE)
}

/// Whether the instruction stores `register` in the LR save doubleword of the caller, by another register.
fn saves(word: u32, register: u32, frames: &[i64]) -> bool {
    let stores = word.primary() == 62 && word & 3 == 0 && word.rt() == register && word.ra() != register;
    stores && is_save(word.d() & !3, frames)
}

fn is_load(word: u32, from: impl Fn(u32, i64) -> bool) -> bool {
    word.primary() == 58 && word & 3 == 0 && from(word.ra(), word.d() & !3)
}

fn is_mflr(word: u32) -> bool {
    word & !(31 << 21) == 0x7c08_02a6
}

fn is_mtlr(word: u32) -> bool {
    word & !(31 << 21) == 0x7c08_03a6
}
