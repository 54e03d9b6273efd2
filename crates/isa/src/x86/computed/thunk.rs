//! Jumps through a register that compilers keep in functions, against speculation.

use super::super::decode::{decoder, flow};
use crate::Flow;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// How many instructions of one are read.
const LENGTH: usize = 8;

/// The register that the function at the start of `code` jumps to, if that is all it does: at once, or by a return from a call that it
/// makes for this (a retpoline).
pub(super) fn thunk(bits: u32, code: &[u8]) -> Option<Register> {
    let mut at = 0;
    let mut decoder = decoder(bits, code, 0);
    let mut moved = None;
    for _ in 0..LENGTH {
        let instruction = decoder.can_decode().then(|| decoder.decode())?;
        match (instruction.mnemonic(), flow(&instruction)) {
            (Mnemonic::Endbr32 | Mnemonic::Endbr64 | Mnemonic::Lfence | Mnemonic::Nop, _) => {}
            (_, Flow::IndirectJump) => return register(&instruction, 0),
            (_, Flow::Call { target }) if target > at => {
                at = target;
                decoder.set_position(usize::try_from(target).ok()?).ok()?;
                decoder.set_ip(target);
            }
            (Mnemonic::Mov, _) if is_at_top(&instruction) => moved = register(&instruction, 1),
            (_, Flow::Return) => return moved,
            _ => return None,
        }
    }
    None
}

fn register(instruction: &Instruction, operand: u32) -> Option<Register> {
    (instruction.op_kind(operand) == OpKind::Register).then(|| instruction.op_register(operand))
}

/// Whether an instruction writes to the top of the stack, at the place that the stack pointer says.
pub(super) fn is_at_top(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base().full_register() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_register_of_a_thunk_is_told_and_nothing_else_is_one() {
        // call 1f; pause; lfence; jmp .-5; 1: mov %rax,(%rsp); ret
        let retpoline =
            [0xe8, 7, 0, 0, 0, 0xf3, 0x90, 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3];
        assert_eq!(thunk(64, &retpoline), Some(Register::RAX));
        assert_eq!(thunk(64, &[0x0f, 0xae, 0xe8, 0x41, 0xff, 0xe3]), Some(Register::R11));
        assert_eq!(thunk(64, &[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xe0]), Some(Register::RAX));
        assert_eq!(thunk(32, &[0xff, 0xe2]), Some(Register::EDX));
        // Through memory; a call of itself; a return without more; not to the end.
        for none in
            [&[0xff, 0x20][..], &[0xe8, 0xfb, 0xff, 0xff, 0xff], &[0xc3], &[0x90], &[], &retpoline[..12]]
        {
            assert_eq!(thunk(64, none), None, "{none:x?}");
        }
    }
}
