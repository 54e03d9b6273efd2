//! What is in Go's registers: is the goroutine in its own all through a function, and which hold nothing at an entry?
//!
//! Go's compiler keeps it in r14 (ABIInternal, from Go 1.17 on), and compares the stack pointer with its limit at the entry by that. Behind calls of
//! assembly, which may do with r14 what it likes, it loads it anew from the thread's memory. Functions of the older convention always do, into other
//! registers.
//!
//! No function keeps anything for its caller but rsp, rbp, r14 and xmm15, and where one begins, r12 and r13 hold nothing: the compiler itself takes
//! them there to check for large frames (`src/cmd/compile/abi-internal.md` of Go). Assembly has conventions of its own.

use super::decode::decoder;
use super::detour::Asm;
use super::liveness::{Liveness, RegisterSet};
use crate::detour::GOROUTINE_STACK_END;
use crate::{Site, StackCheck};
use iced_x86::{
    Code, CodeSize, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    code_asm::*,
};

/// The number of the register: r14.
pub(super) const GOROUTINE: usize = 14;

/// Where a goroutine has the limits of its stack (`stackguard0`, and `stackguard1` for functions that run on a thread's own stack), in words.
const LIMITS: [u64; 2] = [2, 3];

/// Registers that hold nothing at the entry of a function that Go's compiler has made.
pub(super) const FREE_AT_ENTRY: RegisterSet = RegisterSet(1 << 12 | 1 << 13);

/// What may be overwritten at such an entry, of which the code says `live`.
pub(super) fn at_entry(live: Liveness) -> Liveness {
    Liveness { dead: RegisterSet(live.dead.0 | FREE_AT_ENTRY.0), flags_dead: true }
}

/// What a detour needs of the stack below the stack pointer, with the routines that it calls. The linker keeps hundreds of bytes for functions
/// that do not check; it is too little only where several of those call each other at the very end.
pub(super) const ROOM: i32 = 128;

/// Goes on where there is so much `room`, [`ROOM`] or more, on the goroutine's stack, or off to `scarce`. Loses r12, r13 and the flags, which hold nothing where a
/// function begins or is left.
pub(super) fn ask_for_room(a: &mut CodeAssembler, room: i32, scarce: CodeLabel) -> Asm {
    ask_for_stack(a, scarce)?;
    a.cmp(r12, room)?;
    a.jb(scarce)
}

/// Goes on where the thread is on its goroutine's stack, with r12 = how far above the end of it, or off to `elsewhere`: a thread may have no
/// goroutine, or another stack, as where Go's handlers of signals begin. Loses r13 and the flags.
pub(super) fn ask_for_stack(a: &mut CodeAssembler, elsewhere: CodeLabel) -> Asm {
    a.test(r14, r14)?;
    a.je(elsewhere)?;
    a.mov(r12, qword_ptr(r14))?;
    a.mov(r13, qword_ptr(r14 + GOROUTINE_STACK_END))?;
    a.sub(r13, r12)?;
    a.neg(r12)?;
    a.add(r12, rsp)?;
    a.cmp(r12, r13)?;
    a.jae(elsewhere)
}

/// Whether none of some instructions reads what [`ask_for_room`] loses, before another of them has written it.
pub(super) fn reads_nothing_free(code: &[u8], address: u64) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let (mut free, mut flags) = (FREE_AT_ENTRY, u32::MAX);
    for instruction in decoder(64, code, address).iter() {
        let mut written = 0;
        for used in factory.info(&instruction).used_registers() {
            let full = used.register().full_register();
            let number = if full.is_gpr64() { full.number() as u8 } else { continue };
            let is_new = used.access() == OpAccess::Write && used.register().size() >= 4;
            if is_new {
                written |= 1 << number;
            } else if free.contains(number) {
                return false;
            }
        }
        if instruction.rflags_read() & flags != 0 {
            return false;
        }
        free.0 &= !written;
        flags &= !instruction.rflags_modified();
    }
    true
}

/// Whether no instruction of the function writes r14 but to load it anew, and its caller has it there, too.
///
/// With a `check`, that compares by it, and nothing of it moves the stack pointer. Without one, Go's compiler has made the function: then it
/// is there by convention, unless it is loaded ahead of any call, for assembly that has called.
pub(super) fn is_kept(site: &Site<'_>, check: Option<&StackCheck>) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let (mut compares, mut has_called) = (false, false);
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
            if check.is_none() && !has_called {
                return false;
            }
            continue;
        }
        has_called |= matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let is_check = check.is_some_and(|check| instruction.ip() < check.behind);
        compares |= is_check && limit_of(&instruction) == Some(Register::R14);
        if instruction.is_invalid()
            || writes(&mut factory, &instruction, Register::R14)
            || is_check && writes(&mut factory, &instruction, Register::RSP)
        {
            return false;
        }
    }
    (compares || check.is_none()) && !is_offset
}

/// Whether the check compares an address on the stack with the limit of a goroutine, wherever that comes from.
pub(super) fn compares(bits: u32, site: &Site<'_>, check: &StackCheck) -> bool {
    let code = site.code.get(..check.behind.saturating_sub(site.function) as usize).unwrap_or_default();
    decoder(bits, code, site.function).iter().any(|instruction| limit_of(&instruction).is_some())
}

/// The register that a goroutine is in with whose limit an instruction compares.
fn limit_of(instruction: &Instruction) -> Option<Register> {
    let word = if instruction.code_size() == CodeSize::Code64 { 8 } else { 4 };
    let compares = instruction.mnemonic() == Mnemonic::Cmp
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
        && LIMITS.contains(&(instruction.memory_displacement64() / word));
    compares.then(|| instruction.memory_base())
}

/// Whether the goroutine is loaded from the thread's memory: `mov r14,fs:[offset]`, and `mov r14,fs:[r14]` with the offset in `base`.
fn loads_anew(instruction: &Instruction, base: Register) -> bool {
    loads(instruction) && instruction.segment_prefix() == Register::FS && instruction.memory_base() == base
}

/// `mov r14,[rip+…]`, or `mov r14,…` where a linker knew it.
fn loads_offset(instruction: &Instruction) -> bool {
    let is_known = instruction.code() == Code::Mov_rm64_imm32 && instruction.op0_register() == Register::R14;
    let is_loaded =
        loads(instruction) && instruction.memory_base() == Register::RIP && !instruction.has_segment_prefix();
    is_known || is_loaded
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
