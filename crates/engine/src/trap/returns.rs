//! Calls whose return address was replaced by a landing pad.
//!
//! At the entry the return address on the stack is exchanged for the address of the site's landing pad, a breakpoint. The call
//! is found again by the address of its stack slot, as under the jump mechanism: the stacks of a process do not overlap, so the slot
//! names the call whatever thread or coroutine returns from it, and what longjmp left behind is dropped when the next call
//! uses the slot. A function that is reached by a tail call finds a landing pad where its return address should be;
//! both calls return through the slot, the last one first.

use std::collections::HashMap;
use trapless_process::{Process, RemoteAddr, Tid};

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    /// Index of its site.
    pub site: usize,
    /// Where it returns to; the landing pad of another call after a tail call.
    pub address: u64,
    /// Time stamp of the entry.
    pub entered: u64,
    /// The thread that made it.
    pub tid: Tid,
}

/// More calls than this under way are not followed: they are what longjmp left.
const MOST: usize = 1 << 20;

/// All calls under way, by the address of their stack slot.
#[derive(Debug)]
pub(super) struct Returns {
    by_slot: HashMap<u64, Vec<Instance>>,
    pads: HashMap<u64, usize>,
    word: u64,
}

impl Returns {
    /// `pads`: addresses of the landing pads and their sites. `word`: bytes of an address.
    pub fn new(pads: HashMap<u64, usize>, word: u64) -> Self {
        Self { by_slot: HashMap::new(), pads, word }
    }

    /// The site of a landing pad.
    pub fn site_of_pad(&self, address: u64) -> Option<usize> {
        self.pads.get(&address).copied()
    }

    /// Bytes of an address.
    pub fn word(&self) -> u64 {
        self.word
    }

    fn read(&self, process: &Process, slot: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        process.load(RemoteAddr(slot), &mut bytes[..self.word as usize]).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Writes a return address into its slot; `None` where that cannot be.
    pub fn write(&self, process: &Process, slot: u64, address: u64) -> Option<()> {
        process.store(RemoteAddr(slot), &address.to_le_bytes()[..self.word as usize]).ok()
    }

    /// Exchanges the return address at `slot` for `pad`; `None` when it cannot be followed.
    pub fn enter(
        &mut self,
        process: &Process,
        slot: u64,
        pad: u64,
        site: usize,
        (tid, entered): (Tid, u64),
    ) -> Option<()> {
        let address = self.read(process, slot)?;
        if self.by_slot.len() >= MOST && !self.by_slot.contains_key(&slot) {
            return None;
        }
        self.write(process, slot, pad)?;
        let is_tail_call = self.pads.contains_key(&address);
        let calls = self.by_slot.entry(slot).or_default();
        if !is_tail_call {
            calls.clear();
        }
        calls.push(Instance { site, address, entered, tid });
        Some(())
    }

    /// Where the call returns to whose return address is at `slot`: what stands there, unless that was exchanged.
    pub fn home_of(&self, process: &Process, slot: u64) -> Option<u64> {
        let address = self.read(process, slot)?;
        match self.pads.contains_key(&address) {
            true => self.first_home(slot),
            false => Some(address),
        }
    }

    /// The address that the first of the calls returns to that are under way at `slot`.
    pub fn first_home(&self, slot: u64) -> Option<u64> {
        self.by_slot.get(&slot)?.first().map(|first| first.address)
    }

    /// The last call that was entered with its return address at `slot`.
    pub fn leave(&mut self, slot: u64) -> Option<Instance> {
        let calls = self.by_slot.get_mut(&slot)?;
        let last = calls.pop();
        if calls.is_empty() {
            self.by_slot.remove(&slot);
        }
        last
    }

    /// Puts back the return addresses of all calls in the memory of `process`, which may be a copy of the target; how many.
    pub fn restore_in(&self, process: &Process) -> usize {
        let restored = self.by_slot.iter().filter(|(slot, calls)| self.restore(process, **slot, calls));
        restored.count()
    }

    /// Puts back those of one thread's calls above its stack pointer, which are followed no longer; how many.
    pub fn abandon(&mut self, process: &Process, tid: Tid, sp: u64) -> u64 {
        let is_its = |(slot, calls): &(&u64, &Vec<Instance>)| {
            **slot >= sp && calls.first().is_some_and(|c| c.tid == tid)
        };
        let slots: Vec<u64> = self.by_slot.iter().filter(is_its).map(|(slot, _)| *slot).collect();
        let mut count = 0;
        for slot in slots {
            if let Some(calls) = self.by_slot.remove(&slot)
                && self.restore(process, slot, &calls)
            {
                count += calls.len() as u64;
            }
        }
        count
    }

    /// The slot of a call that was abandoned by longjmp holds something else by now.
    fn restore(&self, process: &Process, slot: u64, calls: &[Instance]) -> bool {
        let is_pad = self.read(process, slot).is_some_and(|now| self.pads.contains_key(&now));
        match calls.first() {
            Some(first) if is_pad => self.write(process, slot, first.address).is_some(),
            _ => false,
        }
    }
}
