//! Where a variable of each thread's own is, by a function that returns its address.

use super::decode::decoder;
use super::frames::immediate;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The most instructions of such a function. The C library's have four.
const MOST: usize = 16;

/// What rax is.
#[derive(Clone, Copy)]
enum Known {
    Nothing,
    /// A number.
    Number(i64),
    /// So far from the thread pointer.
    Local(i64),
}

/// As [`Isa::returned_local`](crate::Isa::returned_local).
pub(super) fn returned(code: &[u8], address: u64, read: &mut dyn FnMut(u64) -> Option<u64>) -> Option<i64> {
    let mut known = Known::Nothing;
    for instruction in decoder(64, code, address).iter().take(MOST) {
        let is_rax = instruction.op0_register() == Register::RAX;
        known = match (instruction.mnemonic(), known) {
            (Mnemonic::Endbr64 | Mnemonic::Nop, known) => known,
            (Mnemonic::Ret, Known::Local(offset)) => return Some(offset),
            (Mnemonic::Mov, _) if is_rax && is_thread_pointer(&instruction) => Known::Local(0),
            (Mnemonic::Mov, _) if is_rax && instruction.is_ip_rel_memory_operand() => {
                Known::Number(read(instruction.ip_rel_memory_address())? as i64)
            }
            (Mnemonic::Mov, _) if is_rax => Known::Number(immediate(&instruction)?),
            (Mnemonic::Add, Known::Number(number)) if is_rax && is_thread_pointer(&instruction) => {
                Known::Local(number)
            }
            (Mnemonic::Add, Known::Local(offset)) if is_rax => {
                Known::Local(offset.checked_add(immediate(&instruction)?)?)
            }
            (Mnemonic::Sub, Known::Local(offset)) if is_rax => {
                Known::Local(offset.checked_sub(immediate(&instruction)?)?)
            }
            (Mnemonic::Lea, Known::Local(offset))
                if is_rax
                    && instruction.memory_base() == Register::RAX
                    && instruction.memory_index() == Register::None =>
            {
                Known::Local(offset.checked_add(instruction.memory_displacement64() as i64)?)
            }
            _ => return None,
        };
    }
    None
}

/// Whether it reads the first word of the thread's control block, which is the block's address.
fn is_thread_pointer(instruction: &Instruction) -> bool {
    instruction.op1_kind() == OpKind::Memory
        && instruction.segment_prefix() == Register::FS
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = -0x78i64 as u64;

    fn of(code: &[u8]) -> Option<i64> {
        returned(code, 0x1000, &mut |address| (address == 0x1107).then_some(READ))
    }

    #[test]
    fn functions_of_c_libraries_tell_where_a_variable_is() {
        // glibc: mov rax,[rip+0x100]; add rax,fs:0; ret
        let dynamic =
            [&[0x48, 0x8b, 0x05, 0, 1, 0, 0][..], &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0], &[0xc3]]
                .concat();
        assert_eq!(of(&dynamic), Some(-0x78));
        // A static glibc: mov rax,-0x40; add rax,fs:0; ret. With a landing pad ahead.
        let fixed = [
            &[0xf3, 0x0f, 0x1e, 0xfa][..],
            &[0x48, 0xc7, 0xc0, 0xc0, 0xff, 0xff, 0xff],
            &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0],
            &[0xc3],
        ]
        .concat();
        assert_eq!(of(&fixed), Some(-0x40));
        // musl: mov rax,fs:0; add rax,0x34; ret
        let musl =
            [&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0][..], &[0x48, 0x83, 0xc0, 0x34], &[0xc3]].concat();
        assert_eq!(of(&musl), Some(0x34));
        // lea rax,[rax-4] instead.
        let lea =
            [&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0][..], &[0x48, 0x8d, 0x40, 0xfc], &[0xc3]].concat();
        assert_eq!(of(&lea), Some(-4));
    }

    #[test]
    fn nothing_is_told_of_others() {
        let others: [&[u8]; 7] = [
            &[],
            &[0xc3],
            // mov rax,1; ret
            &[0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0xc3],
            // mov rax,fs:8; ret
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0, 0xc3],
            // mov rax,[rip+0x200], which cannot be read
            &[0x48, 0x8b, 0x05, 0, 2, 0, 0, 0xc3],
            // jmp elsewhere
            &[0xe9, 0, 0, 0, 0],
            // mov rax,fs:0; mov rax,rdi; ret
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x89, 0xf8, 0xc3],
        ];
        for code in others {
            assert_eq!(of(code), None, "{code:x?}");
        }
    }
}
