//! Where control can go in a function, and what it does to the stack frame.

use super::decode::{Branch, Destination, Fields, Form, decode, form, word_at};
use crate::Flow;
use alloc::{vec, vec::Vec};

/// Offset of the LR save doubleword in a stack frame.
pub(super) const LR_SAVE: i64 = 16;

/// The code of a function, and its address.
#[derive(Clone, Copy)]
pub(super) struct Function<'a> {
    pub code: &'a [u8],
    pub address: u64,
}

impl Function<'_> {
    /// How many words it has.
    pub fn len(&self) -> usize {
        self.code.len() / 4
    }

    /// The number of the word at an address, if it is one of the function.
    pub fn index(&self, address: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.address);
        (offset < 4 * self.len() as u64 && offset.is_multiple_of(4)).then_some((offset / 4) as usize)
    }

    pub fn address_of(&self, index: usize) -> u64 {
        self.address.wrapping_add(4 * index as u64)
    }

    pub fn word(&self, index: usize) -> u32 {
        word_at(self.code, 4 * index).unwrap_or_default()
    }

    pub fn form(&self, index: usize) -> Option<Form> {
        form(&self.code[4 * index..], self.address_of(index)).ok().map(|(form, _)| form)
    }

    pub fn flow(&self, index: usize) -> Option<Flow> {
        decode(&self.code[4 * index..], self.address_of(index)).ok().map(|instruction| instruction.flow)
    }

    fn branch(&self, index: usize) -> Option<Branch> {
        match self.form(index) {
            Some(Form::Branch(branch)) => Some(branch),
            _ => None,
        }
    }

    /// Whether the instruction calls, other than the next instruction to learn its own address.
    pub fn calls(&self, index: usize) -> bool {
        self.branch(index).is_some_and(|branch| branch.link && !self.gets_pc(index))
    }

    pub fn gets_pc(&self, index: usize) -> bool {
        let next = Destination::Address(self.address_of(index + 1));
        self.branch(index).is_some_and(|branch| branch.link && branch.to == next)
    }

    /// The instructions of the function that the one at `index` can go on to.
    pub fn next(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let decoded = decode(&self.code[4 * index..], self.address_of(index)).ok();
        let through = decoded.filter(|d| d.flow.falls_through()).and_then(|d| self.index(d.end()));
        let target = decoded.and_then(|d| d.flow.target()).and_then(|target| self.index(target));
        through.into_iter().chain(target)
    }

    /// What can be reached from `starts`, themselves included, without going on from where it `stops`.
    pub fn reached(&self, starts: impl Iterator<Item = usize>, stops: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut reached = vec![false; self.len()];
        let mut work: Vec<usize> = starts.collect();
        while let Some(index) = work.pop() {
            if !core::mem::replace(&mut reached[index], true) && !stops(index) {
                work.extend(self.next(index));
            }
        }
        reached
    }

    /// The sizes of the frames that the function makes.
    pub fn frames(&self) -> Vec<i64> {
        let size = |word: u32| (word & 0xffff_0003 == 0xf821_0001).then(|| -(word.d() & !3));
        let mut sizes: Vec<i64> = (0..self.len()).filter_map(|index| size(self.word(index))).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// `addi r1,r1,frame` and `ld r1,0(r1)`.
    pub fn takes_frame_away(&self, index: usize, frames: &[i64]) -> bool {
        let word = self.word(index);
        word & 0xffff_0000 == 0x3821_0000 && frames.contains(&word.d()) || word == 0xe821_0000
    }
}

/// Whether `d(r1)` is the LR save doubleword of the caller: with the function's frame in between, or without.
pub(super) fn is_save(d: i64, frames: &[i64]) -> bool {
    d == LR_SAVE || frames.iter().any(|frame| d == frame + LR_SAVE)
}

/// Whether the instruction stores `register` in the LR save doubleword of the caller, by another register.
pub(super) fn saves(word: u32, register: u32, frames: &[i64]) -> bool {
    let stores = word.primary() == 62 && word & 3 == 0 && word.rt() == register && word.ra() != register;
    stores && is_save(word.d() & !3, frames)
}
