//! Which words of its module does code refer to relative to itself?

use super::decode::decoder;
use crate::Reference;
use alloc::vec::Vec;
use iced_x86::{Code, Mnemonic, OpKind, Register};

/// The references of 64-bit code, in its order.
pub(super) fn references(code: &[u8], address: u64) -> Vec<(u64, Reference)> {
    let instructions = decoder(64, code, address).into_iter();
    let own = instructions.filter(|instruction| {
        instruction.memory_base() == Register::RIP && instruction.segment_prefix() == Register::None
    });
    let references = own.filter_map(|instruction| {
        let reference = match instruction.code() {
            _ if instruction.mnemonic() == Mnemonic::Lea => Reference::Taken,
            Code::Mov_r64_rm64 if instruction.op1_kind() == OpKind::Memory => Reference::Loaded,
            Code::Cmp_rm64_r64 | Code::Cmp_r64_rm64 => Reference::Compared,
            _ => return None,
        };
        Some((instruction.memory_displacement64(), reference))
    });
    references.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_by_what_is_done_with_them_and_nothing_else_is() {
        let code = [
            &[0x48, 0x8b, 0x0d, 0x10, 0, 0, 0][..],   // mov rcx,[rip+0x10]
            &[0x48, 0x39, 0x1d, 0x20, 0, 0, 0],       // cmp [rip+0x20],rbx
            &[0x48, 0x8d, 0x05, 0x30, 0, 0, 0],       // lea rax,[rip+0x30]
            &[0x48, 0x89, 0x0d, 0x40, 0, 0, 0],       // mov [rip+0x40],rcx
            &[0x8b, 0x0d, 0x50, 0, 0, 0],             // mov ecx,[rip+0x50]
            &[0x48, 0x8b, 0x08],                      // mov rcx,[rax]
            &[0x64, 0x48, 0x8b, 0x0d, 0x60, 0, 0, 0], // mov rcx,fs:[rip+0x60]
        ]
        .concat();
        let expected =
            [(0x1017, Reference::Loaded), (0x102e, Reference::Compared), (0x1045, Reference::Taken)];
        assert_eq!(references(&code, 0x1000), expected);
    }
}
