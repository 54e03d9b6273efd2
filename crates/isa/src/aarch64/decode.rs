//! Decoding by mask and value: the forms whose place or effect matters to a probe. Everything else is plain.
//!
//! The names and groups follow the encoding index of the Arm Architecture Reference Manual (DDI 0487). What
//! the branch and system groups do not define is unallocated here, so a branch of a later extension is
//! refused and never moved wrongly.

use crate::{DecodeError, Flow, Instruction};

/// Length of every instruction, in bytes.
pub const LENGTH: u64 = 4;

/// What an instruction word is, as far as moving and probing it are concerned. Offsets are in bytes from the
/// instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `b`, and `bl` with `link`.
    Branch {
        /// Whether x30 becomes the return address.
        link: bool,
        /// Distance to the target, ±128 MB.
        offset: i64,
    },
    /// `b.cond` and `bc.cond`.
    ConditionalBranch {
        /// Condition code, 0 to 15; 14 and 15 always hold.
        condition: u8,
        /// Distance to the target, ±1 MB.
        offset: i64,
    },
    /// `cbz`, `cbnz`.
    CompareBranch {
        /// Compares 64 bits, not 32.
        wide: bool,
        /// Branches when not zero.
        nonzero: bool,
        /// The register; 31 is zero.
        rt: u8,
        /// Distance to the target, ±1 MB.
        offset: i64,
    },
    /// `tbz`, `tbnz`.
    TestBranch {
        /// Number of the bit.
        bit: u8,
        /// Branches when the bit is set.
        nonzero: bool,
        /// The register; 31 is zero.
        rt: u8,
        /// Distance to the target, ±32 KB.
        offset: i64,
    },
    /// `br`, `blr`, `ret` and their authenticated forms.
    RegisterBranch {
        /// Which of the three.
        kind: RegisterBranch,
        /// The register that holds the target.
        rn: u8,
        /// Whether the target is authenticated first (FEAT_PAuth).
        authenticated: bool,
    },
    /// `adr`, and `adrp` with `page`.
    Address {
        /// Relative to the instruction's 4 KB page.
        page: bool,
        /// The register; 31 is zero.
        rd: u8,
        /// Distance from the instruction or from its page, ±1 MB or ±4 GB.
        offset: i64,
    },
    /// A load of a literal.
    Literal {
        /// What is loaded.
        kind: Literal,
        /// The register, or the operation of `prfm`.
        rt: u8,
        /// Distance to the literal, ±1 MB.
        offset: i64,
    },
    /// The hint instructions: `nop`, `bti`, `paciasp`, `wfe`…
    Hint(u8),
    /// `wfet`, `wfit`.
    TimedWait,
    /// `svc`.
    SupervisorCall,
    /// Instructions that raise an exception in a program, by their name.
    Exception(&'static str),
    /// A load that opens an exclusive-access window.
    LoadExclusive,
    /// A store that ends one.
    StoreExclusive,
    /// `clrex`.
    ClearExclusive,
    /// System instructions that a program may not execute.
    Privileged,
    /// FEAT_PAuth_LR: signs or authenticates with the program counter.
    SignsWithPc,
    /// `movprfx`: the processor may make one of it and the next instruction, which must be the one behind it.
    Prefix,
    /// FEAT_MOPS: the second or third of the instructions that copy or set memory together. A kernel that moves a thread to another processor in
    /// between has it go on at the first, which it looks for ahead of this one.
    LaterStage,
    /// Neither its place nor what it does to control flow matters.
    Plain,
    /// No instruction.
    Unallocated,
}

/// The three branches to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterBranch {
    /// `br`
    Jump,
    /// `blr`
    Call,
    /// `ret`
    Return,
}

/// What a literal load loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// `ldr w`
    Word,
    /// `ldr x`
    Double,
    /// `ldrsw x`
    SignedWord,
    /// `prfm`
    Prefetch,
    /// `ldr s`, `ldr d`, `ldr q`: 4 << size bytes.
    Vector {
        /// 0, 1 or 2.
        size: u8,
    },
}

impl Literal {
    /// How many bytes are loaded.
    pub fn size(self) -> u64 {
        match self {
            Literal::Prefetch => 0,
            Literal::Word | Literal::SignedWord => 4,
            Literal::Double => 8,
            Literal::Vector { size } => 4 << size,
        }
    }
}

/// Hints by their numbers.
pub mod hint {
    /// `nop`
    pub const NOP: u8 = 0;
    /// `wfe`
    pub const WFE: u8 = 2;
    /// `wfi`
    pub const WFI: u8 = 3;
    /// `xpaclri`
    pub const XPACLRI: u8 = 7;
    /// `pacia1716`
    pub const PACIA1716: u8 = 8;
    /// `pacib1716`
    pub const PACIB1716: u8 = 10;
    /// `paciasp`
    pub const PACIASP: u8 = 25;
    /// `paciaz`: signs with zero.
    pub const PACIAZ: u8 = 24;
    /// `pacibz`: the same by the other key.
    pub const PACIBZ: u8 = 26;
    /// `pacm`: the next instruction that signs does so with its own address, too.
    pub const PACM: u8 = 39;
    /// `pacibsp`
    pub const PACIBSP: u8 = 27;
    /// `autiasp`: checks what `paciasp` has signed, and takes the signature away.
    pub const AUTIASP: u8 = 29;
    /// `autibsp`
    pub const AUTIBSP: u8 = 31;
    /// `bti c`
    pub const BTI_C: u8 = 34;
    /// `bti j`
    pub const BTI_J: u8 = 36;
    /// `bti jc`
    pub const BTI_JC: u8 = 38;

    /// `autiasp` or `autibsp`, by the one that signs.
    pub const fn authenticating(signing: u8) -> u8 {
        signing + 4
    }

    /// Whether an indirect branch may arrive here when the page is guarded. `paciasp` and `pacibsp` accept
    /// calls.
    pub const fn is_landing_pad(number: u8) -> bool {
        matches!(number, PACIASP | PACIBSP | BTI_C | BTI_J | BTI_JC)
    }

    /// Whether it signs, authenticates or strips a pointer: its result depends on keys that only the CPU
    /// knows.
    pub const fn is_pointer_authentication(number: u8) -> bool {
        matches!(number, 7 | 8 | 10 | 12 | 14 | 24..=31 | 39)
    }
}

/// Bits `low .. low + width` of `word`.
pub(super) const fn field(word: u32, low: u32, width: u32) -> u32 {
    word >> low & ((1 << width) - 1)
}

/// The same as a signed number.
pub(super) const fn signed(word: u32, low: u32, width: u32) -> i64 {
    ((word << (32 - low - width)) as i32 >> (32 - width)) as i64
}

/// The instruction word at the start of `code`.
pub fn word(code: &[u8]) -> Option<u32> {
    code.first_chunk().copied().map(u32::from_le_bytes)
}

/// Whether `word` is in the space of the Scalable Vector or Matrix Extension, or changes the mode that the latter has (`msr svcr…`).
pub fn is_scalable(word: u32) -> bool {
    match field(word, 25, 4) {
        0b0010 => true,
        0b0000 => word >> 31 == 1,
        0b1010 | 0b1011 => word & 0xffff_f0ff == 0xd503_407f || word & 0xffff_ffe0 == 0xd51b_4240,
        _ => false,
    }
}

/// What `word` is.
pub fn form(word: u32) -> Form {
    match field(word, 25, 4) {
        0b0000 if word >> 16 == 0 => Form::Exception("udf"),
        0b0000 if word >> 31 == 0 => Form::Unallocated,
        0b0001 | 0b0011 => Form::Unallocated,
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => branch_or_system(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => load_or_store(word),
        // PACIASPPC and its like, in data processing with one source.
        0b0101 | 0b1101 if word & 0xffff_8000 == 0xdac1_8000 => Form::SignsWithPc,
        0b0010 if is_prefix(word) => Form::Prefix,
        _ => Form::Plain,
    }
}

/// `movprfx`, with a predicate and without.
fn is_prefix(word: u32) -> bool {
    word & 0xff3e_e000 == 0x0410_2000 || word & 0xffff_fc00 == 0x0420_bc00
}

/// `cpym`, `cpye`, `setm`, `sete` and their variants, by which of the three stages they are: those that set have it elsewhere.
fn is_later_stage(word: u32) -> bool {
    let stage = match field(word, 22, 2) {
        3 => field(word, 14, 2),
        stage => stage,
    };
    word & 0xfb20_0c00 == 0x1900_0400 && (1..3).contains(&stage)
}

fn immediate(word: u32) -> Form {
    let rd = field(word, 0, 5) as u8;
    match field(word, 23, 3) {
        0b000 | 0b001 => {
            let page = word >> 31 != 0;
            let offset = signed(word, 5, 19) << 2 | i64::from(field(word, 29, 2));
            Form::Address { page, rd, offset: if page { offset << 12 } else { offset } }
        }
        // AUTIASPPC and AUTIBSPPC, whose operand is an address.
        0b111 if field(word, 29, 2) == 0b11 => Form::SignsWithPc,
        _ => Form::Plain,
    }
}

fn load_or_store(word: u32) -> Form {
    let rt = field(word, 0, 5) as u8;
    if word & 0x3b00_0000 == 0x1800_0000 {
        let kind = match (field(word, 26, 1), field(word, 30, 2)) {
            (0, 0) => Literal::Word,
            (0, 1) => Literal::Double,
            (0, 2) => Literal::SignedWord,
            (0, _) => Literal::Prefetch,
            (_, 3) => return Form::Unallocated,
            (_, size) => Literal::Vector { size: size as u8 },
        };
        return Form::Literal { kind, rt, offset: signed(word, 5, 19) << 2 };
    }
    if is_later_stage(word) {
        return Form::LaterStage;
    }
    // LDXR and STXR of every size, with FEAT_LSUI's LDTXR and STTXR; then LDXP and STXP, whose 32-bit
    // neighbours are CASP.
    let single = word & 0x3ea0_0000 == 0x0800_0000;
    let pair = word & 0xbfa0_0000 == 0x8820_0000;
    match (single || pair, field(word, 22, 1)) {
        (false, _) => Form::Plain,
        (true, 0) => Form::StoreExclusive,
        (true, _) => Form::LoadExclusive,
    }
}

fn branch_or_system(word: u32) -> Form {
    let rt = field(word, 0, 5) as u8;
    let offset = signed(word, 5, 19) << 2;
    match word >> 24 {
        0x14..=0x17 | 0x94..=0x97 => Form::Branch { link: word >> 31 != 0, offset: signed(word, 0, 26) << 2 },
        0x34 | 0x35 | 0xb4 | 0xb5 => {
            Form::CompareBranch { wide: word >> 31 != 0, nonzero: field(word, 24, 1) != 0, rt, offset }
        }
        0x36 | 0x37 | 0xb6 | 0xb7 => Form::TestBranch {
            bit: (field(word, 31, 1) << 5 | field(word, 19, 5)) as u8,
            nonzero: field(word, 24, 1) != 0,
            rt,
            offset: signed(word, 5, 14) << 2,
        },
        0x54 => Form::ConditionalBranch { condition: rt & 15, offset },
        0xd4 => exception(word),
        0xd5 => system(word),
        0xd6 | 0xd7 => register_branch(word),
        _ => Form::Unallocated,
    }
}

fn exception(word: u32) -> Form {
    match (field(word, 21, 3), field(word, 0, 5)) {
        (0b000, 0b00001) => Form::SupervisorCall,
        (0b000, 0b00010) => Form::Exception("hvc"),
        (0b000, 0b00011) => Form::Exception("smc"),
        (0b001, 0) => Form::Exception("brk"),
        (0b010, 0) => Form::Exception("hlt"),
        (0b101, 0b00001..=0b00011) => Form::Exception("dcps"),
        _ => Form::Unallocated,
    }
}

fn register_branch(word: u32) -> Form {
    let (operation, rn, operand) = (field(word, 21, 4), field(word, 5, 5) as u8, field(word, 0, 5));
    let kind = match operation & 0b0111 {
        0b000 => RegisterBranch::Jump,
        0b001 => RegisterBranch::Call,
        0b010 => RegisterBranch::Return,
        0b100 | 0b101 if rn == 31 => return Form::Exception("eret"),
        _ => return Form::Unallocated,
    };
    let authenticated = match (field(word, 16, 5), field(word, 10, 6), operation >> 3) {
        (31, 0, 0) if operand == 0 => false,
        // BRAAZ, RETAA: no modifier, or the stack pointer.
        (31, 2 | 3, 0) if operand == 31 && (kind != RegisterBranch::Return || rn == 31) => true,
        // BRAA: a register as the modifier.
        (31, 2 | 3, 1) if kind != RegisterBranch::Return => true,
        _ => return Form::Unallocated,
    };
    // RETAA has no operand; its target is x30.
    let rn = if authenticated && kind == RegisterBranch::Return { 30 } else { rn };
    Form::RegisterBranch { kind, rn, authenticated }
}

fn system(word: u32) -> Form {
    let (op0, op1) = (field(word, 19, 2), field(word, 16, 3));
    let (crn, crm, op2) = (field(word, 12, 4), field(word, 8, 4), field(word, 5, 3));
    let (read, rt) = (field(word, 21, 1) != 0, field(word, 0, 5));
    if field(word, 22, 2) != 0 {
        return Form::Privileged; // the 128-bit forms
    }
    match (op0, op1, crn) {
        (0, 3, 2) if rt == 31 && !read => Form::Hint((crm << 3 | op2) as u8),
        (0, 3, 1) if !read && crm == 0 && op2 < 2 => Form::TimedWait,
        (0, 3, 3) if rt == 31 && !read && op2 == 2 => Form::ClearExclusive,
        (0, 3, 3) if rt == 31 && !read => Form::Plain, // barriers
        // DAIFSet and DAIFClr belong to the kernel; SSBS, DIT, TCO and SVCR do not.
        (0, 3, 4) if rt == 31 && !read && op2 < 6 => Form::Plain,
        (0, 0, 4) if rt == 31 && !read && op2 < 3 => Form::Plain, // CFINV, XAFLAG, AXFLAG
        (0, ..) => Form::Unallocated,
        // What the kernel lets programs do: cache maintenance, their own registers, and reading
        // identification registers, which it emulates wherever the instruction stands.
        (_, 3, _) => Form::Plain,
        (3, 0, 0) if read => Form::Plain,
        _ => Form::Privileged,
    }
}

impl Form {
    /// Where control goes after the instruction at `address`.
    pub fn flow(self, address: u64) -> Flow {
        let to = |offset: i64| address.wrapping_add_signed(offset);
        match self {
            Form::Branch { link: false, offset } => Flow::Jump { target: to(offset) },
            Form::Branch { link: true, offset } => Flow::Call { target: to(offset) },
            Form::ConditionalBranch { offset, .. }
            | Form::CompareBranch { offset, .. }
            | Form::TestBranch { offset, .. } => Flow::Branch { target: to(offset) },
            Form::RegisterBranch { kind: RegisterBranch::Jump, .. } => Flow::IndirectJump,
            Form::RegisterBranch { kind: RegisterBranch::Call, .. } => Flow::IndirectCall,
            Form::RegisterBranch { kind: RegisterBranch::Return, .. } => Flow::Return,
            Form::SupervisorCall => Flow::System,
            Form::Exception(_) | Form::Privileged | Form::Unallocated => Flow::Stop,
            _ => Flow::Next,
        }
    }
}

/// Decodes the instruction at the start of `code`, which stands at `address`.
pub fn decode(code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
    let word = word(code).ok_or(DecodeError::Truncated)?;
    match form(word) {
        Form::Unallocated => Err(DecodeError::Invalid),
        form => Ok(Instruction { address, length: LENGTH as u8, flow: form.flow(address) }),
    }
}
