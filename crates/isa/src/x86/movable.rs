//! What moving an instruction takes, and which instructions must run where they stand.
//!
//! Every form that is not a plain copy is decided here by name. The refusals:
//!
//! - **Kernel entries** (`syscall`, `sysenter`, `int 0x80`): a thread may be blocked in one, with its IP behind it and
//!   no way to see that from its stack; a restarted call would run at the copy after the detour is gone.
//! - **Traps** (`int3`, `int1`, `int n`, `into`, `ud0/1/2`, `hlt` and what only a kernel may run): the handler looks
//!   at the IP, or the byte is somebody's breakpoint.
//! - **Far transfers**, `iret`, `sysret`, `sysexit`: they leave the flat address space.
//! - **`mov ss`, `pop ss`, `lss`**: they hold off interrupts, and with them single steps, for one instruction more.
//! - **Branches with an operand-size prefix**: 16-bit targets on one vendor's processors, ignored on the other's.
//!   With REX.W the prefix means nothing (`data16 rex.W call __tls_get_addr`) and is accepted.
//! - **EIP-relative operands** (address-size prefix in 64-bit mode): cut to 32 bits, so they depend on where they run.
//! - **Operands in the patched bytes themselves**: code that reads its own instructions would read the patch.
//! - **`call rsp`** and **calls through memory below rsp**: the return address cannot be pushed without changing the
//!   target.
//!
//! Accepted as they are: `lock`, segment, `rep`, `bnd` and `notrack` prefixes, VEX and EVEX, gathers, `push rsp`,
//! `pushf`/`popf`, `enter`, `rep` strings (an interrupted one goes on at its copy), `rdtscp`, `xend`, `xabort`, `rep ret`.

use crate::Reason;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// How an instruction is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Its bytes are copied; a RIP-relative displacement is re-based.
    Copy,
    /// `jmp rel`.
    Jump,
    /// `jcc rel`.
    Conditional,
    /// `loop`, `loope`, `loopne`, `jcxz` and its wider forms: they exist with an 8-bit displacement only.
    ShortOnly,
    /// `xbegin rel32`.
    Transaction,
    /// `call rel32`.
    Call,
    /// `call r/m`.
    IndirectCall,
}

/// How to move `instruction`, whose bytes are `bytes`, out of the region `start..end`.
pub(super) fn form(
    bits: u32,
    instruction: &Instruction,
    bytes: &[u8],
    region: core::ops::Range<u64>,
) -> Result<Form, Reason> {
    refuse_by_kind(instruction)?;
    refuse_by_operand(bits, instruction, region)?;
    let branch = match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Form::Jump,
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => Form::Conditional,
        FlowControl::ConditionalBranch => Form::ShortOnly,
        FlowControl::Call => Form::Call,
        FlowControl::IndirectCall => Form::IndirectCall,
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => Form::Transaction,
        FlowControl::IndirectBranch | FlowControl::Return => {
            return refuse_narrow(bits, bytes).map(|()| Form::Copy);
        }
        _ => return Ok(Form::Copy),
    };
    refuse_narrow(bits, bytes)?;
    Ok(branch)
}

fn refuse_by_kind(instruction: &Instruction) -> Result<(), Reason> {
    use Mnemonic::*;
    match instruction.mnemonic() {
        INVALID => return Err(Reason::NotAnInstruction),
        Syscall => return Err(Reason::Unmovable("syscall")),
        Sysenter => return Err(Reason::Unmovable("sysenter")),
        Int if instruction.immediate8() == 0x80 => return Err(Reason::Unmovable("int 0x80")),
        Iret | Iretd | Iretq | Sysret | Sysretq | Sysexit | Sysexitq | Uiret | Rsm => {
            return Err(Reason::Unmovable("a return from an interrupt"));
        }
        Pop | Mov if writes_stack_segment(instruction) => return Err(Reason::Unmovable("a load of ss")),
        Lss => return Err(Reason::Unmovable("a load of ss")),
        Hlt => return Err(Reason::Traps),
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Interrupt | FlowControl::Exception => Err(Reason::Traps),
        FlowControl::Call if !instruction.is_call_near() && !instruction.is_call_far() => {
            Err(Reason::Unmovable("a call of the hypervisor"))
        }
        _ if is_far(instruction) => Err(Reason::Unmovable("a far branch")),
        _ if instruction.is_privileged() => Err(Reason::Traps),
        _ => Ok(()),
    }
}

fn writes_stack_segment(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::SS
}

fn is_far(instruction: &Instruction) -> bool {
    instruction.is_jmp_far()
        || instruction.is_call_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far_indirect()
        || matches!(instruction.mnemonic(), Mnemonic::Retf)
}

fn refuse_by_operand(
    bits: u32,
    instruction: &Instruction,
    region: core::ops::Range<u64>,
) -> Result<(), Reason> {
    if instruction.is_call_near_indirect() && instruction.op0_register().full_register() == Register::RSP {
        return Err(Reason::Unmovable("call rsp"));
    }
    if instruction.is_call_near_indirect() && instruction.memory_base().full_register() == Register::RSP {
        let displacement = instruction.memory_displacement64() as i32;
        // The return address, pushed first, would overwrite it; or the displacement has no room for the adjustment.
        if !(0..=i32::MAX - 8).contains(&displacement) {
            return Err(Reason::Unmovable("a call through memory below the stack pointer"));
        }
    }
    // A branch keeps its target where others keep a displacement.
    if !instruction.op_kinds().any(|kind| kind == OpKind::Memory) {
        return Ok(());
    }
    match instruction.memory_base() {
        Register::EIP => return Err(Reason::Unmovable("an eip-relative operand")),
        Register::RIP => {}
        // An absolute address.
        Register::None if instruction.memory_index() == Register::None && bits == 32 => {}
        _ => return Ok(()),
    }
    let address = instruction.memory_displacement64();
    let end = address.wrapping_add(instruction.memory_size().size() as u64);
    let accessed = !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    if accessed && address < region.end && region.start < end {
        return Err(Reason::Unmovable("an instruction that reads the patched bytes"));
    }
    Ok(())
}

/// Refuses branches whose target may be cut to 16 bits, and those whose REX prefix is not in its place.
fn refuse_narrow(bits: u32, bytes: &[u8]) -> Result<(), Reason> {
    let prefixes = legacy_prefixes(bytes);
    let rest = &bytes[prefixes.len()..];
    let rex = rest.first().filter(|b| bits == 64 && *b & 0xf0 == 0x40);
    if rex.is_some() && (!legacy_prefixes(&rest[1..]).is_empty() || rest[1] & 0xf0 == 0x40) {
        return Err(Reason::Unmovable("a branch with misplaced prefixes"));
    }
    if prefixes.contains(&0x66) && rex.is_none_or(|rex| rex & 8 == 0) {
        return Err(Reason::Unmovable("a branch with an operand-size prefix"));
    }
    Ok(())
}

/// The legacy prefixes that `bytes` start with.
pub(super) fn legacy_prefixes(bytes: &[u8]) -> &[u8] {
    let is_prefix = |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    &bytes[..bytes.iter().take_while(|b| is_prefix(b)).count()]
}
