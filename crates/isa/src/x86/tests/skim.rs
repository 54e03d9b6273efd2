//! What is skimmed is what the decoder says of it.

extern crate std;

use super::super::{computed, decode::decoder, skim::*};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

const AT: u64 = 0x5555_0000_1000;

/// Whether a survey may pass over an instruction.
fn says_nothing(instruction: &Instruction, fixed: bool) -> bool {
    let is_indexed = instruction.memory_index() != Register::None;
    match instruction.mnemonic() {
        Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Xbegin => false,
        Mnemonic::Lea => !fixed && instruction.memory_base() != Register::RIP,
        Mnemonic::Cmp | Mnemonic::And => instruction.try_immediate(1).is_err(),
        Mnemonic::Movsxd => !is_indexed,
        Mnemonic::Mov | Mnemonic::Add if instruction.op1_kind() == OpKind::Memory => !is_indexed,
        _ => {
            !matches!(
                instruction.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            ) && (!fixed || computed::constant(instruction).is_none())
        }
    }
}

/// Whether it was skimmed.
fn check(code: &[u8; WINDOW], fixed: bool) -> bool {
    let Some(skimmed) = skim(code, fixed) else { return false };
    let instruction = decoder(64, code, AT).decode();
    assert!(!instruction.is_invalid(), "{code:02x?}: {skimmed:?}");
    match skimmed {
        Skimmed::Plain(length) => {
            assert_eq!(length, instruction.len(), "{code:02x?}: {instruction}");
            assert!(says_nothing(&instruction, fixed), "{code:02x?}: {instruction}");
        }
        Skimmed::Branch { length, distance, is_call } => {
            assert_eq!(length, instruction.len(), "{code:02x?}: {instruction}");
            let target = (AT + length as u64).wrapping_add_signed(distance);
            assert_eq!(target, instruction.near_branch_target(), "{code:02x?}: {instruction}");
            assert_eq!(is_call, instruction.is_call_near(), "{code:02x?}: {instruction}");
            assert_eq!(instruction.op0_kind(), OpKind::NearBranch64, "{code:02x?}: {instruction}");
        }
    }
    true
}

#[test]
fn every_opcode_with_every_operand_is_skimmed_as_it_is_decoded() {
    let prefixes: [&[u8]; 16] = [
        &[],
        &[0x40],
        &[0x41],
        &[0x42],
        &[0x44],
        &[0x48],
        &[0x4f],
        &[0x66],
        &[0x66, 0x42],
        &[0x66, 0x48],
        &[0xf2],
        &[0xf2, 0x48],
        &[0xf3],
        &[0xf3, 0x41],
        &[0xf0],
        &[0x48, 0x66],
    ];
    // Scales and bases of all kinds: none, with an index, without.
    let scaled = [0x00, 0x24, 0x25, 0x2d, 0x64, 0x8d, 0xe4, 0xff];
    let mut skimmed = 0;
    for prefix in prefixes {
        for escape in [&[][..], &[0x0f]] {
            for (opcode, operand) in
                (0..=255_u8).flat_map(|opcode| (0..=255_u8).map(move |byte| (opcode, byte)))
            {
                for scale in scaled {
                    let head = [prefix, escape, &[opcode, operand, scale]].concat();
                    let mut code = [0x81; WINDOW];
                    code[..head.len()].copy_from_slice(&head);
                    for fixed in [false, true] {
                        skimmed += usize::from(check(&code, fixed));
                    }
                }
            }
        }
    }
    assert!(skimmed > 1_000_000, "{skimmed}");
}

#[test]
fn most_of_what_compilers_write_is_skimmed() {
    let path = std::env::current_exe().unwrap();
    let file = std::fs::read(path).unwrap();
    let object = object::File::parse(&*file).unwrap();
    use object::{Object, ObjectSection};
    if object.architecture() != object::Architecture::X86_64 {
        return;
    }
    let text = object.section_by_name(".text").unwrap();
    let code = text.data().unwrap();
    let (mut at, mut all, mut skimmed) = (0, 0, 0);
    while let Some(window) = code.get(at..).and_then(|rest| rest.first_chunk::<WINDOW>()) {
        all += 1;
        skimmed += usize::from(check(window, false));
        at += decoder(64, window, AT).decode().len().max(1);
    }
    assert!(skimmed * 10 > all * 7, "{skimmed} of {all}");
}
