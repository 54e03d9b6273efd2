//! How long is this instruction, and where can control go after it?

use crate::{DecodeError, Flow, Instruction};
use alloc::string::String;
use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, FlowControl, Formatter, IntelFormatter, Mnemonic, OpAccess,
    Register,
};

/// A decoder over `code`, which stands at `address`.
pub(super) fn decoder(bits: u32, code: &[u8], address: u64) -> Decoder<'_> {
    Decoder::with_ip(bits, code, address, DecoderOptions::NONE)
}

/// The instruction at the start of `code`, as iced sees it.
pub(super) fn decode_one(
    bits: u32,
    code: &[u8],
    address: u64,
) -> Result<(iced_x86::Instruction, iced_x86::ConstantOffsets), DecodeError> {
    let mut decoder = decoder(bits, code, address);
    let instruction = decoder.decode();
    match decoder.last_error() {
        DecoderError::None => {
            let offsets = decoder.get_constant_offsets(&instruction);
            Ok((instruction, offsets))
        }
        DecoderError::NoMoreBytes => Err(DecodeError::Truncated),
        _ => Err(DecodeError::Invalid),
    }
}

pub(super) fn decode(bits: u32, code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
    let (instruction, _) = decode_one(bits, code, address)?;
    Ok(Instruction { address, length: instruction.len() as u8, flow: flow(&instruction) })
}

/// The same as asking for one after the other, by one decoder.
pub(super) fn flows(bits: u32, code: &[u8], address: u64, see: &mut dyn FnMut(Flow)) {
    let mut decoder = decoder(bits, code, address);
    let mut instruction = iced_x86::Instruction::default();
    while decoder.can_decode() {
        let next = decoder.position() + 1;
        decoder.decode_out(&mut instruction);
        if !instruction.is_invalid() {
            see(flow(&instruction));
        } else if decoder.set_position(next).is_ok() {
            decoder.set_ip(address.wrapping_add(next as u64));
        }
    }
}

pub(super) fn disassemble(bits: u32, code: &[u8], address: u64) -> String {
    let mut text = String::new();
    match decode_one(bits, code, address) {
        Ok((instruction, _)) => {
            let mut formatter = IntelFormatter::new();
            let options = formatter.options_mut();
            options.set_hex_prefix("0x");
            options.set_hex_suffix("");
            options.set_uppercase_hex(false);
            options.set_space_after_operand_separator(true);
            options.set_rip_relative_addresses(true);
            options.set_branch_leading_zeros(false);
            options.set_small_hex_numbers_in_decimal(true);
            formatter.format(&instruction, &mut text);
        }
        Err(_) => text.push_str("(bad)"),
    }
    text
}

/// Whether an instruction that accesses a register so changes it.
pub(super) fn is_write(access: OpAccess) -> bool {
    !matches!(access, OpAccess::Read | OpAccess::CondRead)
}

/// Where control goes after `instruction`.
pub(super) fn flow(instruction: &iced_x86::Instruction) -> Flow {
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => Flow::Stop,
        FlowControl::Next => Flow::Next,
        // A far jump's selector makes its target no address of the flat address space.
        FlowControl::UnconditionalBranch if is_far(instruction) => Flow::IndirectJump,
        FlowControl::UnconditionalBranch => Flow::Jump { target },
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::ConditionalBranch => Flow::Branch { target },
        FlowControl::Return => Flow::Return,
        FlowControl::Call if instruction.is_call_near() => Flow::Call { target },
        FlowControl::Call if is_far(instruction) => Flow::IndirectCall,
        // syscall, sysenter, vmcall and their like.
        FlowControl::Call => Flow::System,
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Interrupt if is_system_interrupt(instruction) => Flow::System,
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Into => Flow::Next,
        FlowControl::Interrupt | FlowControl::Exception => Flow::Stop,
        // An aborted transaction goes on at the operand of its xbegin.
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => {
            Flow::Branch { target }
        }
        FlowControl::XbeginXabortXend => Flow::Next,
    }
}

fn is_far(instruction: &iced_x86::Instruction) -> bool {
    instruction.is_jmp_far() || instruction.is_call_far()
}

/// `int n` other than the ones that are traps: the kernel's entry (`int 0x80`) or, for all that can be known here,
/// something else that comes back.
fn is_system_interrupt(instruction: &iced_x86::Instruction) -> bool {
    instruction.code() == Code::Int_imm8 && instruction.immediate8() != 3
}

/// Whether this is a landing place for indirect branches that has to stay where it is.
pub(super) fn is_endbr(instruction: &iced_x86::Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32)
}

/// Whether assemblers write this instruction to fill space: nop in any of its lengths, `int3`, and what does nothing
/// in 32-bit code, such as `lea esi,[esi+0]`.
pub(super) fn is_filler(instruction: &iced_x86::Instruction) -> bool {
    let (first, second) = (instruction.op0_register(), instruction.op1_register());
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Int3 => true,
        Mnemonic::Lea => {
            instruction.memory_base() == first
                && instruction.memory_index() == Register::None
                && instruction.memory_displacement64() == 0
        }
        Mnemonic::Mov | Mnemonic::Xchg => first != Register::None && first == second,
        _ => false,
    }
}
