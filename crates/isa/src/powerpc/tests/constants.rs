//! Constants that are added to an index, run as they are emulated: what comes out, and how many instructions it takes.

use crate::Thread;
use crate::powerpc::{assembler::*, emulate};

/// General registers alone.
struct Registers([u64; 32]);

impl Thread for Registers {
    fn register(&self, number: u8) -> u64 {
        self.0[usize::from(number)]
    }
    fn set_register(&mut self, number: u8, value: u64) {
        self.0[usize::from(number)] = value;
    }
    fn flags(&self) -> u64 {
        0
    }
    fn set_flags(&mut self, _flags: u64) {}
    fn set_ip(&mut self, _address: u64) {}
    fn segment_base(&self, _gs: bool) -> Option<u64> {
        None
    }
    fn read(&self, _address: u64, _size: u8) -> Option<u64> {
        None
    }
    fn write(&mut self, _address: u64, _size: u8, _value: u64) -> Option<()> {
        None
    }
}

/// An index of so many bits, the constant, what is left for displacements, and the instructions.
type Case = (u32, u64, i16, usize);

#[test]
fn a_constant_takes_two_instructions_near_a_multiple_that_no_index_reaches() {
    let cases: [Case; 10] = [
        (19, 0x7e92_0000_0000, 0, 2),
        (30, 0x7e93_0000_1000, 0x1000, 2),
        (30, 0x7e93_ffff_f000, -0x1000, 2),
        (30, 0x3e80_4000_0000, 0, 4),
        (30, 0xfc00_0000_0000, 0, 2),
        (30, 0xfc01_0000_0000, 0, 4),
        (13, 0x2201_0000, 0, 2),
        // An index would reach into it.
        (30, 0x2201_0000, 0, 2),
        (30, 0x7e93_0000_1010, 0, 4),
        (30, 0x7e93_0000_9000, -0x7000, 4),
    ];
    for (bits, value, low, instructions) in cases {
        for index in [0, 32, (1 << bits) - 32] {
            let mut asm = Asm::new(0);
            assert_eq!(asm.add_constant_but_low(R10, R11, value, bits), low, "{value:#x}");
            let code = asm.finish().unwrap();
            assert_eq!(code.len() / 4, instructions, "{value:#x}");
            let mut registers = Registers([0x5555_aaaa_1234_5678; 32]);
            registers.0[10] = index;
            for word in code.chunks_exact(4) {
                emulate(word, 0, &mut registers, None).unwrap();
            }
            assert_eq!(registers.0[10], (index + value).wrapping_sub(low as u64), "{value:#x}, {index:#x}");
        }
    }
}
