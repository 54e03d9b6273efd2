//! Where an unwinder's context has its code address, as the function says that sets it.

use super::decode::decoder;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// No context is as large.
const NEAR: u32 = 1 << 16;

/// See [`crate::Isa::code_address_in_context`].
pub(super) fn code_address_in_context(bits: u32, code: &[u8]) -> Option<u32> {
    // The arguments, by the registers that they are in.
    let (mut context, mut address) = match bits {
        64 => (Some(Register::RDI), Some(Register::RSI)),
        _ => (None, None),
    };
    let mut stored = None;
    for instruction in decoder(bits, code, 0).iter() {
        match instruction.mnemonic() {
            Mnemonic::Endbr64 | Mnemonic::Endbr32 => {}
            Mnemonic::Ret if instruction.op_count() == 0 => return stored,
            Mnemonic::Mov if stored.is_none() => {
                let offset = u32::try_from(instruction.memory_displacement64()).ok()?;
                let word = instruction.memory_size().size() == bits as usize / 8;
                if !word || instruction.memory_index() != Register::None || has_segment(&instruction) {
                    return None;
                }
                let kinds = (instruction.op0_kind(), instruction.op1_kind());
                let base = Some(instruction.memory_base());
                match kinds {
                    (OpKind::Register, OpKind::Memory) if base == Some(Register::ESP) => {
                        let argument = match offset {
                            4 => &mut context,
                            8 => &mut address,
                            _ => return None,
                        };
                        *argument = Some(instruction.op0_register());
                    }
                    (OpKind::Memory, OpKind::Register) => {
                        let is_address = address == Some(instruction.op1_register());
                        let is_context = base == context && context != address;
                        let is_in_reach = (bits / 8..NEAR).contains(&offset);
                        stored = (is_address && is_context && is_in_reach).then_some(offset);
                        stored?;
                    }
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    None
}

fn has_segment(instruction: &Instruction) -> bool {
    instruction.segment_prefix() != Register::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_of_the_second_argument_tells() {
        let wide = [0x48, 0x89, 0xb7, 0x98, 0, 0, 0, 0xc3];
        let narrow = [0x8b, 0x44, 0x24, 4, 0x8b, 0x54, 0x24, 8, 0x89, 0x50, 0x4c, 0xc3];
        let turned = [0x8b, 0x54, 0x24, 8, 0x8b, 0x44, 0x24, 4, 0x89, 0x50, 0x4c, 0xc3];
        assert_eq!(code_address_in_context(64, &wide), Some(0x98));
        assert_eq!(code_address_in_context(64, &[&[0xf3, 0x0f, 0x1e, 0xfa][..], &wide].concat()), Some(0x98));
        assert_eq!(code_address_in_context(32, &narrow), Some(0x4c));
        assert_eq!(code_address_in_context(32, &turned), Some(0x4c));
    }

    #[test]
    fn whatever_else_the_function_does_tells_nothing() {
        let wrong: [(u32, &[u8]); 9] = [
            // LLVM's: mov rdx,rsi; mov esi,-1; jmp
            (64, &[0x48, 0x89, 0xf2, 0xbe, 0xff, 0xff, 0xff, 0xff, 0xe9, 0, 0, 0, 0]),
            (64, &[0x48, 0x89, 0xb7, 0x98, 0, 0, 0]),
            (64, &[0xc3]),
            // Another register, another width, an index, below the context, twice.
            (64, &[0x48, 0x89, 0x97, 0x98, 0, 0, 0, 0xc3]),
            (64, &[0x89, 0xb7, 0x98, 0, 0, 0, 0xc3]),
            (64, &[0x48, 0x89, 0x74, 0xc7, 0x08, 0xc3]),
            (64, &[0x48, 0x89, 0x77, 0xf8, 0xc3]),
            (64, &[0x48, 0x89, 0x77, 0x08, 0x48, 0x89, 0x77, 0x10, 0xc3]),
            (32, &[0x8b, 0x44, 0x24, 4, 0x8b, 0x54, 0x24, 12, 0x89, 0x50, 0x4c, 0xc3]),
        ];
        for (bits, code) in wrong {
            assert_eq!(code_address_in_context(bits, code), None, "{code:x?}");
        }
    }
}
