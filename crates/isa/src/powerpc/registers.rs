//! Which general registers does an instruction read and write?
//!
//! By the tables of the `powerpc` crate, and for what it does not know by the fields of the word: a register that an unknown
//! instruction may name counts as read, and as not written.

use super::decode::Fields;
use powerpc::{Argument, Arguments, Extension, Extensions, Ins, Opcode};

fn parse(word: u32) -> Ins {
    Ins::new(word, Extensions::from(Extension::Ppc64) | Extension::AltiVec)
}

fn general(arguments: Arguments) -> impl Iterator<Item = u8> {
    arguments.into_iter().filter_map(|argument| match argument {
        Argument::GPR(register) => Some(register.0),
        _ => None,
    })
}

/// The general registers that a word instruction writes.
pub(super) fn written(word: u32) -> impl Iterator<Item = u8> {
    general(parse(word).defs())
}

/// The general registers that a word instruction reads.
pub(super) fn read(word: u32) -> impl Iterator<Item = u8> {
    let instruction = parse(word);
    let fields: &[u32] = match (instruction.op, word.primary()) {
        (Opcode::Illegal, 31) => &[word.rt(), word.ra(), word.rb()],
        (Opcode::Illegal, 57 | 61) => &[word.ra()],
        _ => &[],
    };
    let named: [Option<u8>; 3] = core::array::from_fn(|i| fields.get(i).map(|&register| register as u8));
    general(instruction.uses()).chain(named.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn registers_of_prologue_instructions() {
        for (word, reads, writes) in [
            (0xf801_0010_u32, &[0, 1][..], &[][..]), // std r0,16(r1)
            (0xf821_ffe1, &[1, 1], &[1]),            // stdu r1,-32(r1)
            (0xe801_0010, &[1], &[0]),               // ld r0,16(r1)
            (0x7c08_02a6, &[], &[0]),                // mflr r0
            (0x7c08_03a6, &[0], &[]),                // mtlr r0
            (0x7c64_1b78, &[3, 3], &[4]),            // mr r4,r3
            (0x3821_0020, &[1], &[1]),               // addi r1,r1,32
            (0x7c83_22aa, &[3, 4], &[4]),            // lwax r4,r3,r4
        ] {
            assert_eq!(read(word).collect::<Vec<_>>(), reads, "{word:#x} reads");
            assert_eq!(written(word).collect::<Vec<_>>(), writes, "{word:#x} writes");
        }
    }
}
