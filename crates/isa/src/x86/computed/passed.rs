//! Addresses of functions that code only hands on, as nearly all that is named: no place is computed from them.

use super::super::decode::{decoder, flow};
use crate::Flow;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// How many instructions are looked at.
const NEAR: usize = 16;

/// Whether `instruction`, which names an address, and the `behind` code that follows it only store it, or have it in a register that a call
/// takes, or somebody who is jumped or returned to, or that is set anew; in a straight line.
pub(super) fn is_passed_on(bits: u32, instruction: &Instruction, behind: &[u8]) -> bool {
    if instruction.op0_kind() != OpKind::Register {
        return instruction.mnemonic() != Mnemonic::Add;
    }
    let register = instruction.op0_register().full_register();
    if !matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Lea) || !register.is_gpr64() {
        return false;
    }
    for next in decoder(bits, behind, 0).iter().take(NEAR) {
        match flow(&next) {
            Flow::Next => {}
            // What a callee may lose is lost.
            Flow::Call { .. } | Flow::IndirectCall => return is_lost_in_calls(register),
            Flow::Return | Flow::Stop => return true,
            _ => return false,
        }
        if !is_simple(next.mnemonic()) {
            return false;
        }
        let is_set = next.op0_kind() == OpKind::Register
            && next.op0_register().full_register() == register
            && next.op0_register().size() >= 4
            && matches!(next.mnemonic(), Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Movzx);
        let reads = |operand: u32| match next.op_kind(operand) {
            OpKind::Register => {
                (operand > 0 || !is_set) && next.op_register(operand).full_register() == register
            }
            OpKind::Memory => {
                [next.memory_base(), next.memory_index()].iter().any(|part| part.full_register() == register)
            }
            _ => false,
        };
        let is_stored = next.mnemonic() == Mnemonic::Mov
            && next.op0_kind() == OpKind::Memory
            && next.op1_kind() == OpKind::Register
            && !reads(0);
        if !is_stored && (0..next.op_count()).any(reads) {
            return false;
        }
        if is_set {
            return true;
        }
    }
    false
}

/// Of both calling conventions.
fn is_lost_in_calls(register: Register) -> bool {
    use Register::{R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI};
    [RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11].contains(&register)
}

/// Whether an instruction uses no registers but those that it names.
fn is_simple(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Add, And, Cmp, Endbr32, Endbr64, Lea, Mov, Movaps, Movdqa, Movdqu, Movsx, Movsxd, Movups, Movzx, Nop,
        Or, Pxor, Sub, Test, Xor,
    };
    matches!(
        mnemonic,
        Add | And
            | Cmp
            | Endbr32
            | Endbr64
            | Lea
            | Mov
            | Movaps
            | Movdqa
            | Movdqu
            | Movsx
            | Movsxd
            | Movups
            | Movzx
            | Nop
            | Or
            | Pxor
            | Sub
            | Test
            | Xor
    )
}

#[cfg(test)]
mod tests {
    use super::super::super::decode::decode_one;
    use super::*;

    fn passed(bits: u32, code: &[u8]) -> bool {
        let (first, _) = decode_one(bits, code, 0).unwrap();
        is_passed_on(bits, &first, &code[first.len()..])
    }

    #[test]
    fn what_is_handed_on_is_told_from_what_is_computed_with() {
        const LEA_RSI: [u8; 7] = [0x48, 0x8d, 0x35, 0, 1, 0, 0];
        let with = |code: &[u8]| passed(64, &[&LEA_RSI[..], code].concat());
        // mov edi,1; call | mov [rdi],rsi; mov esi,2 | ret | xor edx,edx; jmp rax is not.
        assert!(with(&[0xbf, 1, 0, 0, 0, 0xe8, 0, 0, 0, 0]));
        assert!(with(&[0x48, 0x89, 0x37, 0xbe, 2, 0, 0, 0]));
        assert!(with(&[0xc3]));
        // add rsi,rax; lea rsi,[rsi+2]; mov [rsi],rsi; mov sil,1; mov rax,rsi; a branch; rep movsb; the end; a jump.
        for code in [
            &[0x48, 0x01, 0xc6][..],
            &[0x48, 0x8d, 0x76, 0x02],
            &[0x48, 0x89, 0x36],
            &[0x40, 0xb6, 0x01],
            &[0x48, 0x89, 0xf0],
            &[0x75, 0x00, 0xc3],
            &[0xf3, 0xa4],
            &[],
            &[0xff, 0xe6],
        ] {
            assert!(!with(code), "{code:x?}");
        }
        // Kept over calls: lea rbx; call. To memory at once; added to.
        assert!(!passed(64, &[0x48, 0x8d, 0x1d, 0, 1, 0, 0, 0xe8, 0, 0, 0, 0]));
        assert!(passed(32, &[0xc7, 0x04, 0x24, 0, 0x10, 0, 0]));
        assert!(!passed(32, &[0x81, 0x04, 0x24, 0, 0x10, 0, 0]));
        assert!(passed(32, &[0x68, 0, 0x10, 0, 0]) && !passed(32, &[0x05, 0, 0x10, 0, 0]));
    }
}
