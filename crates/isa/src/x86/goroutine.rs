//! Is the goroutine in its register all through a function?
//!
//! Go's compiler keeps it in r14 (ABIInternal, from Go 1.17 on), and compares the stack pointer with its limit at the entry by that. Behind calls of
//! assembly, which may do with r14 what it likes, it loads it anew from the thread's memory. Functions of the older convention always do, into other
//! registers.

use super::decode::decoder;
use crate::{Site, StackCheck};
use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// Where a goroutine has the limits of its stack (`stackguard0`, and `stackguard1` for functions that run on a thread's own stack).
const LIMITS: [u64; 2] = [16, 24];

/// Whether no instruction of the function writes r14 but to load it anew, the check compares by it, and nothing of that moves the stack pointer.
pub(super) fn is_kept(site: &Site<'_>, check: &StackCheck) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut compares = false;
    // Where programs may lie anywhere, it is first where in the thread's memory it is.
    let mut is_offset = false;
    for instruction in decoder(64, site.code, site.function).iter() {
        if core::mem::take(&mut is_offset) {
            if !loads_anew(&instruction, Register::R14) {
                return false;
            }
            continue;
        }
        is_offset = loads_offset(&instruction);
        if is_offset || loads_anew(&instruction, Register::None) {
            continue;
        }
        let is_check = instruction.ip() < check.behind;
        compares |= is_check && compares_with_limit(&instruction);
        if instruction.is_invalid()
            || writes(&mut factory, &instruction, Register::R14)
            || is_check && writes(&mut factory, &instruction, Register::RSP)
        {
            return false;
        }
    }
    compares && !is_offset
}

fn compares_with_limit(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Cmp
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == Register::R14
        && instruction.memory_index() == Register::None
        && instruction.memory_segment() != Register::FS
        && LIMITS.contains(&instruction.memory_displacement64())
}

/// Whether the goroutine is loaded from the thread's memory: `mov r14,fs:[offset]`, and `mov r14,fs:[r14]` with the offset in `base`.
fn loads_anew(instruction: &Instruction, base: Register) -> bool {
    loads(instruction) && instruction.segment_prefix() == Register::FS && instruction.memory_base() == base
}

/// `mov r14,[rip+…]`
fn loads_offset(instruction: &Instruction) -> bool {
    loads(instruction) && instruction.memory_base() == Register::RIP && !instruction.has_segment_prefix()
}

/// `mov r14,[…]`
fn loads(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r64_rm64
        && instruction.op0_register() == Register::R14
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
}

fn writes(factory: &mut InstructionInfoFactory, instruction: &Instruction, register: Register) -> bool {
    let used = factory.info(instruction).used_registers().iter();
    used.filter(|used| used.register().full_register() == register).any(|used| {
        !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None)
    })
}
