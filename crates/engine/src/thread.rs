//! A stopped thread as emulation sees it.

use std::collections::BTreeMap;
use trapless_process::{Process, Registers, RemoteAddr};

/// Registers, to be written back by the caller, and the memory as it is. What is written is kept until [`Thread::finish`], so
/// that instructions emulated together have their whole effect or none.
pub(crate) struct Thread<'a> {
    process: &'a Process,
    pub registers: Registers,
    /// Written, by address, with its size: all that is written together is one piece in the end.
    written: BTreeMap<u64, ([u8; 8], u8)>,
}

impl<'a> Thread<'a> {
    pub fn new(process: &'a Process, registers: Registers) -> Self {
        Self { process, registers, written: BTreeMap::new() }
    }

    /// Writes what was written; `None`, and nothing is changed, where the thread would fault.
    pub fn finish(&self) -> Option<()> {
        let Some(&start) = self.written.keys().next() else { return Some(()) };
        let mut all = Vec::new();
        for (&address, (bytes, size)) in &self.written {
            if address != start + all.len() as u64 {
                return None;
            }
            all.extend_from_slice(&bytes[..usize::from(*size)]);
        }
        self.process.store(RemoteAddr(start), &all).ok()
    }
}

impl trapless_isa::Thread for Thread<'_> {
    fn register(&self, number: u8) -> u64 {
        self.registers.general(number)
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers.set_general(number, value);
    }

    fn flags(&self) -> u64 {
        self.registers.flags()
    }

    fn set_flags(&mut self, flags: u64) {
        self.registers.set_flags(flags);
    }

    fn set_ip(&mut self, address: u64) {
        self.registers.set_ip(RemoteAddr(address));
    }

    fn segment_base(&self, gs: bool) -> Option<u64> {
        self.registers.segment_base(gs)
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        // Instructions that read memory are emulated alone, so what they have written is never read.
        if !self.written.is_empty() {
            return None;
        }
        let mut bytes = [0; 8];
        self.process.load(RemoteAddr(address), bytes.get_mut(..usize::from(size))?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        // There are no wider ones. What is written twice is in no piece.
        let is_one = size <= 8 && self.written.insert(address, (value.to_le_bytes(), size)).is_none();
        is_one.then_some(())
    }
}
