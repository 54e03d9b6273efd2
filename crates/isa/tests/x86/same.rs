//! Whether relocated instructions mean what the originals mean, by decoding both.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use trapless_isa::Displaced;
use trapless_isa::x86::Relocated;

/// A relocated copy, read from its start on.
struct Copy<'a> {
    bits: u32,
    code: &'a [u8],
    address: u64,
}

impl Copy<'_> {
    fn next(&mut self) -> Instruction {
        let instruction = Decoder::with_ip(self.bits, self.code, self.address, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid());
        self.skip(instruction.len());
        instruction
    }

    fn skip(&mut self, length: usize) {
        self.code = &self.code[length..];
        self.address = self.address.wrapping_add(length as u64);
    }

    /// Where a jump in the near or the far form leads.
    fn jump(&mut self) -> u64 {
        let jump = self.next();
        if jump.is_jmp_near() {
            return jump.near_branch_target();
        }
        assert_eq!(jump.code(), Code::Jmp_rm64);
        assert_eq!(jump.ip_rel_memory_address(), self.address);
        let target = u64::from_le_bytes(self.code[..8].try_into().unwrap());
        self.skip(8);
        target
    }

    /// The address that a sequence pushes.
    fn pushed(&mut self) -> u64 {
        let push = self.next();
        if self.bits == 32 {
            assert_eq!(push.code(), Code::Pushd_imm32);
            return push.immediate(0) & 0xffff_ffff;
        }
        assert_eq!(push.code(), Code::Pushq_imm32);
        if !self.code.starts_with(&[0xc7, 0x44, 0x24, 0x04]) {
            return push.immediate(0);
        }
        let high = self.next();
        push.immediate(0) & 0xffff_ffff | high.immediate(1) << 32
    }
}

/// Panics, naming `name`, where the copy does not do what the original does.
pub fn assert_same(
    bits: u32,
    displaced: &Displaced,
    original: &[u8],
    destination: u64,
    relocated: &Relocated,
    name: &str,
) {
    let mut decoder = Decoder::with_ip(bits, original, displaced.start, DecoderOptions::NONE);
    let mut copy = Copy { bits, code: &relocated.code, address: destination };
    assert_eq!(relocated.places.len(), usize::from(displaced.instructions), "{name}");
    for &(address, offset) in &relocated.places {
        let before = decoder.decode();
        assert_eq!((before.ip(), copy.address), (address, destination.wrapping_add(offset.into())), "{name}");
        let target = before.near_branch_target();
        // A jump to the first displaced instruction stays among the copies.
        let landing = if target == displaced.start { destination } else { target };
        match before.flow_control() {
            FlowControl::UnconditionalBranch => assert_eq!(copy.jump(), landing, "{name}"),
            FlowControl::ConditionalBranch if before.is_jcc_short_or_near() => {
                let after = copy.next();
                if after.is_jcc_near() {
                    assert_eq!(after.condition_code(), before.condition_code(), "{name}");
                    assert_eq!(after.near_branch_target(), landing, "{name}");
                } else {
                    let mut opposite = before;
                    opposite.negate_condition_code();
                    assert_eq!(after.condition_code(), opposite.condition_code(), "{name}");
                    assert_eq!(copy.jump(), landing, "{name}");
                    assert_eq!(after.near_branch_target(), copy.address, "{name}");
                }
            }
            FlowControl::ConditionalBranch => {
                let (taken, skip) = (copy.next(), copy.next());
                assert_eq!(taken.code(), before.code(), "{name}");
                assert_eq!(taken.near_branch_target(), copy.address, "{name}");
                assert_eq!(copy.jump(), landing, "{name}");
                assert_eq!(skip.near_branch_target(), copy.address, "{name}");
            }
            FlowControl::Call => {
                assert_eq!(copy.pushed(), before.next_ip(), "{name}");
                assert_eq!(copy.jump(), target, "{name}");
            }
            FlowControl::IndirectCall => {
                assert_eq!(copy.pushed(), before.next_ip(), "{name}");
                let mut after = copy.next();
                assert_eq!(after.flow_control(), FlowControl::IndirectBranch, "{name}");
                after.set_code(before.code());
                if before.memory_base().full_register() == Register::RSP {
                    let pushed = after.memory_displacement64().wrapping_sub(u64::from(bits / 8));
                    assert_eq!(pushed as u32, before.memory_displacement64() as u32, "{name}");
                    after.set_memory_displacement64(before.memory_displacement64());
                }
                assert_equal(&before, &after, name);
            }
            _ => assert_equal(&before, &copy.next(), name),
        }
    }
    assert!(copy.code.is_empty(), "{name}");
}

/// Same instruction, same prefixes, same operands; RIP-relative ones by their address.
fn assert_equal(before: &Instruction, after: &Instruction, name: &str) {
    let facts = |i: &Instruction| {
        let operands: Vec<_> = (0..i.op_count())
            .map(|n| (i.op_kind(n), i.op_register(n), i.try_immediate(n).unwrap_or_default()))
            .collect();
        let has_memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
        let memory = has_memory.then(|| {
            (
                i.memory_base(),
                i.memory_index(),
                i.memory_index_scale(),
                i.memory_displacement64(),
                i.memory_segment(),
            )
        });
        let prefixes = (
            i.has_lock_prefix(),
            i.has_rep_prefix(),
            i.has_repne_prefix(),
            i.segment_prefix(),
            i.op_mask(),
            i.zeroing_masking(),
        );
        (i.code(), operands, memory, prefixes, i.near_branch_target(), i.rounding_control(), i.is_broadcast())
    };
    assert_eq!(facts(before), facts(after), "{name}: {before} | {after}");
}
