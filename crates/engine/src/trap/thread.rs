//! A stopped thread as emulation sees it.

use trapless_isa::x86::State;
use trapless_process::{Process, Registers, RemoteAddr};

/// Registers, to be written back by the caller, and the memory as it is.
pub(super) struct Thread<'a> {
    pub process: &'a Process,
    pub registers: Registers,
}

impl State for Thread<'_> {
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
        let mut bytes = [0; 8];
        self.process.load(RemoteAddr(address), bytes.get_mut(..usize::from(size))?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&mut self, address: u64, size: u8, value: u64) -> Option<()> {
        self.process.store(RemoteAddr(address), value.to_le_bytes().get(..usize::from(size))?).ok()
    }
}
