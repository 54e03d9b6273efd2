//! The patch at a site, and the small vocabulary that detours and runtime routines are written in.
//!
//! Encoding is iced's; what to encode is ours. A template is written once against an assembler with labels, so it
//! reads as the assembly it becomes.

use crate::{Displaced, Reason};
use alloc::{vec, vec::Vec};
use iced_x86::{
    BlockEncoderOptions, Code, IcedError, Instruction, MemoryOperand, Register,
    code_asm::{
        AsmMemoryOperand, AsmRegister32, AsmRegister64, CodeAssembler, CodeAssemblerResult, CodeLabel,
        dword_ptr, qword_ptr, registers as r,
    },
};

const JUMP_LENGTH: usize = super::JUMP_LENGTH as usize;

/// The general registers by hardware number.
pub(super) const GPR64: [AsmRegister64; 16] = {
    use r::*;
    [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15]
};

/// Their lower halves.
pub(super) const GPR32: [AsmRegister32; 16] = {
    use r::*;
    [eax, ecx, edx, ebx, esp, ebp, esi, edi, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d]
};

/// Hardware numbers of the registers the templates name.
pub(super) mod number {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
}

/// A 64-bit memory operand in the target's probe memory.
pub(super) fn at(base: usize, offset: u32) -> AsmMemoryOperand {
    qword_ptr(GPR64[base] + offset as i32)
}

/// A jump to `detour` over the displaced instructions.
///
/// The bytes behind the jump are `int3`: nothing may run them (the verdict saw to that), and if something did, a trap
/// is found where a wrong instruction would not be.
pub(super) fn patch(bits: u32, displaced: &Displaced, detour: u64) -> Result<Vec<u8>, Reason> {
    let length = usize::from(displaced.length);
    if length < JUMP_LENGTH {
        return Err(Reason::TooShort);
    }
    let mut bytes = vec![0xcc; length];
    bytes[..JUMP_LENGTH].copy_from_slice(&jump_to(bits, displaced.start, detour)?);
    Ok(bytes)
}

/// The jump from `address` to `target`.
pub(super) fn jump_to(bits: u32, address: u64, target: u64) -> Result<[u8; JUMP_LENGTH], Reason> {
    let next = address.wrapping_add(JUMP_LENGTH as u64);
    let distance = target.wrapping_sub(next) as i64;
    // In 32-bit mode the jump wraps around.
    let distance = match bits {
        32 => distance as i32,
        _ => i32::try_from(distance).map_err(|_| Reason::OutOfReach)?,
    };
    let [a, b, c, d] = distance.to_le_bytes();
    Ok([0xe9, a, b, c, d])
}

/// An assembler for one piece of code at a known address.
pub(super) struct Assembler {
    pub a: CodeAssembler,
    address: u64,
}

/// Nothing but an operand out of reach makes our templates unencodable.
pub(super) fn unencodable(_: IcedError) -> Reason {
    Reason::OutOfReach
}

impl Assembler {
    pub fn new(bits: u32, address: u64) -> Result<Self, Reason> {
        Ok(Self { a: CodeAssembler::new(bits).map_err(unencodable)?, address })
    }

    /// `op register, [rip + …]` with the operand at the absolute address `target`.
    pub fn rip_relative(
        &mut self,
        code: Code,
        register: AsmRegister64,
        target: u64,
    ) -> Result<(), IcedError> {
        let memory = MemoryOperand::with_base_displ(Register::RIP, target as i64);
        self.a.add_instruction(Instruction::with2(code, Register::from(register), memory)?)
    }

    /// Code that was encoded elsewhere.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), IcedError> {
        bytes.chunks(16).try_for_each(|chunk| self.a.db(chunk))
    }

    /// Encodes everything. Branches keep their form: one that does not reach is an error, not a thunk.
    pub fn finish(mut self) -> Result<Assembled, Reason> {
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let result = self.a.assemble_options(self.address, options).map_err(unencodable)?;
        Ok(Assembled { result, address: self.address })
    }
}

/// Encoded code and the places of its labels.
pub(super) struct Assembled {
    result: CodeAssemblerResult,
    address: u64,
}

impl Assembled {
    pub fn code(&self) -> &[u8] {
        &self.result.inner.code_buffer
    }

    /// Address of a label.
    pub fn address_of(&self, label: &CodeLabel) -> Result<u64, Reason> {
        self.result.label_ip(label).map_err(unencodable)
    }

    /// Offset of a label from the start of the code.
    pub fn offset_of(&self, label: &CodeLabel) -> Result<u32, Reason> {
        Ok((self.address_of(label)? - self.address) as u32)
    }
}

/// Calls a routine of the runtime. Where it returned to does not stay behind on the stack, on which much may be built that never writes there.
pub(super) fn call_runtime(a: &mut CodeAssembler, is_wide: bool, routine: u64) -> Result<(), IcedError> {
    a.call(routine)?;
    if is_wide { a.mov(qword_ptr(r::rsp - 8), 0) } else { a.mov(dword_ptr(r::esp - 4), 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn displaced(length: u8) -> Displaced {
        Displaced { start: 0x40_0000, length, instructions: 1 }
    }

    #[test]
    fn patch_is_a_jump_filled_up_with_int3() {
        let cases: [(u8, u64, &[u8]); 3] = [
            (5, 0x40_0005, &[0xe9, 0, 0, 0, 0]),
            (7, 0x50_0000, &[0xe9, 0xfb, 0xff, 0x0f, 0x00, 0xcc, 0xcc]),
            (6, 0x3f_0000, &[0xe9, 0xfb, 0xff, 0xfe, 0xff, 0xcc]),
        ];
        for (length, detour, expected) in cases {
            assert_eq!(patch(64, &displaced(length), detour).unwrap(), expected, "to {detour:#x}");
        }
    }

    #[test]
    fn patch_reaches_everything_in_32_bit_mode() {
        let expected = [0xe9, 0xfb, 0xff, 0xbf, 0xff];
        let bytes = patch(32, &displaced(5), 0xf000_0000).unwrap();
        let distance = i32::from_le_bytes(bytes[1..].try_into().unwrap());
        assert_eq!(0x40_0005u32.wrapping_add_signed(distance), 0xf000_0000);
        assert_eq!(patch(32, &displaced(5), 0).unwrap(), expected);
    }

    #[test]
    fn patch_refuses_what_a_jump_cannot_do() {
        assert_eq!(patch(64, &displaced(4), 0x40_0000), Err(Reason::TooShort));
        assert_eq!(patch(64, &displaced(5), 0x1_0000_0000), Err(Reason::OutOfReach));
        assert!(patch(64, &displaced(5), 0x40_0005 + 0x7fff_ffff).is_ok());
        assert_eq!(patch(64, &displaced(5), 0x40_0005 + 0x8000_0000), Err(Reason::OutOfReach));
    }
}
