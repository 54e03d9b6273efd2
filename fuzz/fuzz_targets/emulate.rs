//! Any bytes as an instruction, any registers, memory that is sometimes there: the emulators of all instruction sets.
#![no_main]

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use trapless_isa::{Machine, x86};

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    which: u8,
    address: u64,
    /// As many as any instruction set numbers.
    registers: [u64; 38],
    flags: u64,
    /// Bits of an address that decide whether memory is there.
    absent: u8,
    code: &'a [u8],
}

struct Thread {
    registers: [u64; 38],
    flags: u64,
    ip: u64,
    absent: u8,
}

impl Thread {
    fn is_there(&self, address: u64) -> bool {
        (address >> 12) as u8 & self.absent == 0
    }
}

impl trapless_isa::Thread for Thread {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number)]
    }
    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number)] = value;
    }
    fn flags(&self) -> u64 {
        self.flags
    }
    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }
    fn set_ip(&mut self, address: u64) {
        self.ip = address;
    }
    fn segment_base(&self, gs: bool) -> Option<u64> {
        gs.then_some(0x1000)
    }
    fn read(&self, address: u64, size: u8) -> Option<u64> {
        assert!((1..=8).contains(&size));
        self.is_there(address).then_some(address ^ u64::from(size))
    }
    fn write(&mut self, address: u64, size: u8, _value: u64) -> Option<()> {
        assert!((1..=8).contains(&size));
        self.is_there(address).then_some(())
    }
}

fuzz_target!(|case: Case<'_>| {
    let mut thread =
        Thread { registers: case.registers, flags: case.flags, ip: case.address, absent: case.absent };
    match case.which % 4 {
        0 | 1 => {
            let bits = if case.which % 4 == 0 { 64 } else { 32 };
            let before = (thread.registers, thread.flags);
            if x86::emulate(bits, case.code, case.address, &mut thread).is_err() {
                assert_eq!(before, (thread.registers, thread.flags), "half emulated");
            }
        }
        which => {
            let machine = if which == 2 { Machine::AArch64 } else { Machine::PowerPc64Le };
            let before = (thread.registers, thread.flags);
            if machine.isa().emulate(case.code, case.address, &mut thread).is_err() && case.code.len() < 8 {
                assert_eq!(before, (thread.registers, thread.flags), "half emulated");
            }
        }
    }
});
