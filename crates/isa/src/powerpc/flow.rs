//! Where control can go in a function.

use super::decode::{Branch, Destination, Form, decode, form, word_at};
use crate::Flow;
use alloc::{vec, vec::Vec};

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
}
