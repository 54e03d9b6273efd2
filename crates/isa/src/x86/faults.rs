//! Which faults may these instructions raise?
//!
//! Counted is what a program may expect and handle. Accesses that can only fail when the program's own frame, its thread
//! block or its data is gone are not: the stack by rsp (and by rbp once the code has set it from rsp), fs- and gs-relative,
//! RIP-relative and absolute ones. A store far below rsp is: it asks whether there is stack left.

use super::decode::decoder;
use crate::Faults;
use iced_x86::{CpuidFeature, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory};

/// Accesses further below rsp than this probe the stack's end. The red zone, and what `push` and `call` write, is nearer.
const PROBED_STACK: i64 = -0x1000;

/// The faults that `code`, displaced instructions that stand at `address`, may raise.
pub(super) fn faults(bits: u32, code: &[u8], address: u64) -> Faults {
    let mut factory = InstructionInfoFactory::new();
    let mut frame = false;
    let mut found = Faults::NONE;
    for instruction in decoder(bits, code, address).iter() {
        found = found.with(of_kind(bits, &instruction));
        use Mnemonic::*;
        if matches!(instruction.mnemonic(), Nop | Lea | Leave) {
            continue;
        }
        let accesses = factory.info(&instruction).used_memory();
        if accesses.iter().any(|access| is_wild(bits, access, frame)) {
            found = found.with(Faults::MEMORY);
        }
        frame |= sets_frame(&instruction);
    }
    found
}

/// Whether it makes rbp point to the frame.
pub(super) fn sets_frame(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_register().full_register() == Register::RBP
        && instruction.op1_register().full_register() == Register::RSP
}

/// Whether `instruction` alone may raise any. `frame`: in its function rbp points to the frame.
pub(super) fn may_fault(
    bits: u32,
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    frame: bool,
) -> bool {
    let mut accesses =
        || factory.info(instruction).used_memory().iter().any(|access| is_wild(bits, access, frame));
    let touches = !matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Lea | Mnemonic::Leave);
    of_kind(bits, instruction) != Faults::NONE || touches && accesses()
}

/// Whether an access may reach memory that is not there.
fn is_wild(bits: u32, access: &UsedMemory, frame: bool) -> bool {
    if access.access() == OpAccess::NoMemAccess {
        return false;
    }
    let displacement = match bits {
        64 => access.displacement() as i64,
        _ => i64::from(access.displacement() as u32 as i32),
    };
    let framed = match access.base().full_register() {
        Register::RSP => displacement > PROBED_STACK,
        Register::None | Register::RIP | Register::EIP => true,
        Register::RBP => frame,
        _ => matches!(access.segment(), Register::FS | Register::GS),
    };
    !(framed && access.index() == Register::None)
}

/// What the instruction may raise whatever its operands are.
fn of_kind(bits: u32, instruction: &Instruction) -> Faults {
    use Mnemonic::*;
    let faults = match instruction.mnemonic() {
        INVALID => return Faults::ALL,
        Div | Idiv => Faults::ARITHMETIC,
        // A process can forbid itself the clock and cpuid, and handle the fault.
        Rdtsc | Rdtscp | Cpuid | Bound | In | Out | Insb | Insw | Insd | Outsb | Outsw | Outsd | Sgdt
        | Sidt | Sldt | Smsw | Str => Faults::MEMORY,
        // No arithmetic: bits are moved as they are.
        Movaps | Movapd | Movups | Movupd | Movdqa | Movdqu | Movd | Movq | Movss | Movsd | Movlps
        | Movhps | Movlpd | Movhpd | Pxor | Xorps | Xorpd | Andps | Andpd | Andnps | Andnpd | Orps | Orpd
        | Por | Pand | Pandn | Pcmpeqb | Pcmpeqw | Pcmpeqd | Punpcklbw | Punpcklwd | Punpckldq
        | Punpcklqdq | Punpckhqdq | Pshufd | Pshuflw | Unpcklps | Unpcklpd | Shufps | Shufpd | Movmskps
        | Movmskpd | Pmovmskb | Vmovaps | Vmovapd | Vmovups | Vmovupd | Vmovdqa | Vmovdqu | Vmovd | Vmovq
        | Vpxor | Vxorps | Vxorpd | Vzeroupper | Vzeroall | Prefetcht0 | Prefetcht1 | Prefetcht2
        | Prefetchnta | Lfence | Mfence | Sfence => Faults::NONE,
        _ if instruction.cpuid_features().iter().any(|feature| has_floats(*feature)) => Faults::ARITHMETIC,
        _ => Faults::NONE,
    };
    match instruction.cpuid_features().iter().all(|feature| is_everywhere(bits, *feature)) {
        true => faults,
        false => faults.with(Faults::INVALID),
    }
}

/// Whether arithmetic on floating-point numbers is among the feature's instructions.
fn has_floats(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    !matches!(
        feature,
        INTEL8086
            | INTEL8086_ONLY
            | INTEL186
            | INTEL286
            | INTEL286_ONLY
            | INTEL386
            | INTEL386_ONLY
            | INTEL486
            | INTEL486_A_ONLY
            | X64
            | ADX
            | AES
            | BMI1
            | BMI2
            | CET_IBT
            | CET_SS
            | CLDEMOTE
            | CLFLUSHOPT
            | CLFSH
            | CLWB
            | CMOV
            | CMPXCHG16B
            | CPUID
            | CX8
            | ENQCMD
            | FSGSBASE
            | FXSR
            | HLE
            | HLE_or_RTM
            | RTM
            | LZCNT
            | MOVBE
            | MULTIBYTENOP
            | PAUSE
            | PCLMULQDQ
            | PKU
            | POPCNT
            | PREFETCHW
            | RDPID
            | RDRAND
            | RDSEED
            | RDTSCP
            | SHA
            | TBM
            | TSC
            | XSAVE
            | XSAVEC
            | XSAVEOPT
    )
}

/// Whether every processor that runs such programs has it, or takes its instructions for a nop.
fn is_everywhere(bits: u32, feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    let wide =
        matches!(feature, X64 | CMOV | SSE | SSE2 | MMX | FXSR | CX8 | CLFSH | TSC | CPUID | MULTIBYTENOP);
    matches!(
        feature,
        INTEL8086
            | INTEL8086_ONLY
            | INTEL186
            | INTEL286
            | INTEL286_ONLY
            | INTEL386
            | INTEL386_ONLY
            | INTEL486
            | FPU
            | FPU287
            | FPU387
            | CET_IBT
            | CET_SS
            | PAUSE
    ) || bits == 64 && wide
}
