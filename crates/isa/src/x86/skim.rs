//! The length of an instruction that says nothing about where control arrives, without decoding it whole.
//!
//! A survey reads all code of a program, and of most instructions it wants to know only where the next one begins. Those are told here
//! by their opcode: moves, arithmetic, pushes and pops, the usual vector instructions; and direct branches with their distance.
//! Whatever is not known to be one of these, or is written in an odd way, is the decoder's. 64-bit mode only.

/// What was skimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skimmed {
    /// It takes no address of code, loads from no table, bounds no index and goes to what follows it, or nowhere that is told.
    Plain(usize),
    /// A direct branch or call.
    Branch {
        /// Its length.
        length: usize,
        /// How far behind its end it leads.
        distance: i64,
        /// Whether it is a call.
        is_call: bool,
    },
}

/// The bytes that are looked at: no instruction is longer.
pub(super) const WINDOW: usize = 16;

/// How the bytes behind an opcode are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By the decoder.
    Other,
    /// There are none.
    Bare,
    /// An operand in memory or a register.
    Operand,
    /// The same; a load from a table where it is indexed.
    Unindexed,
    /// The same; in memory only.
    Memory,
    /// An operand, and a byte. Where the number in the operand's byte is 4 or 7, the byte may bound an index.
    Arithmetic8,
    /// The same with 32 bits. Where the number is 0, 5 or 6 they may be an address, too.
    Arithmetic32,
    /// An operand, and a byte.
    OperandAnd8,
    /// An operand, and 32 bits.
    OperandAnd32,
    /// A shift by a byte, by one or by cl: the number 6 is no instruction.
    Shift8,
    Shift,
    /// `not`, `neg`, multiplications and divisions. The numbers 0 and 1 have a constant.
    Unary,
    /// A byte, or 32 bits.
    Only8,
    Only32,
    /// A constant of one byte or of the size of the operation into a register or an operand: an address in a program that does not move.
    Move8,
    Move,
    MoveTo8,
    MoveTo32,
    /// A constant that the accumulator is computed with, with the same.
    Add32,
    /// An address that is computed.
    Lea,
    /// A branch by 8 or 32 bits, and a call.
    Branch8,
    Branch32,
    Call,
    /// Landing places of indirect branches, and wide nops.
    Endbr,
    Nop,
}

use Form::*;

/// Opcodes of one byte.
const ONE: [Form; 256] = {
    let mut forms = [Other; 256];
    let mut row = 0;
    // add, or, adc, sbb, and, sub, xor, cmp: to memory or a register, from them.
    while row < 8 {
        let first = row * 8;
        forms[first] = Operand;
        forms[first + 1] = Operand;
        let from = if row == 0 { Unindexed } else { Operand };
        forms[first + 2] = from;
        forms[first + 3] = from;
        // With a constant and the accumulator; and, cmp may bound an index.
        if row != 4 && row != 7 {
            forms[first + 4] = Only8;
            // add, sub, xor: it may be an address.
            forms[first + 5] = if matches!(row, 0 | 5 | 6) { Add32 } else { Only32 };
        }
        row += 1;
    }
    let mut number = 0;
    while number < 16 {
        forms[0x50 + number] = Bare;
        forms[0x70 + number] = Branch8;
        forms[0xb0 + number] = if number < 8 { Move8 } else { Move };
        number += 1;
    }
    forms[0x63] = Unindexed;
    forms[0x69] = OperandAnd32;
    forms[0x6b] = OperandAnd8;
    forms[0x80] = Arithmetic8;
    forms[0x81] = Arithmetic32;
    forms[0x83] = Arithmetic8;
    forms[0x84] = Operand;
    forms[0x85] = Operand;
    forms[0x88] = Operand;
    forms[0x89] = Operand;
    forms[0x8a] = Unindexed;
    forms[0x8b] = Unindexed;
    forms[0x8d] = Lea;
    forms[0x90] = Bare;
    forms[0x98] = Bare;
    forms[0x99] = Bare;
    forms[0xa8] = Only8;
    forms[0xa9] = Only32;
    forms[0xc0] = Shift8;
    forms[0xc1] = Shift8;
    forms[0xc3] = Bare;
    forms[0xc6] = MoveTo8;
    forms[0xc7] = MoveTo32;
    forms[0xc9] = Bare;
    forms[0xcc] = Bare;
    forms[0xd0] = Shift;
    forms[0xd1] = Shift;
    forms[0xd2] = Shift;
    forms[0xd3] = Shift;
    forms[0xe8] = Call;
    forms[0xe9] = Branch32;
    forms[0xeb] = Branch8;
    forms[0xf6] = Unary;
    forms[0xf7] = Unary;
    forms
};

/// Prefixes that choose a vector instruction: none, 66, f3, f2.
const NONE: u8 = 1;
const P66: u8 = 2;
const PF3: u8 = 4;
const PF2: u8 = 8;

/// Opcodes behind 0f, with the prefixes that they are known with.
const TWO: [(Form, u8); 256] = {
    const ALL: u8 = NONE | P66 | PF3 | PF2;
    let mut forms = [(Other, 0); 256];
    let mut number = 0;
    while number < 16 {
        forms[0x40 + number] = (Operand, NONE | P66);
        forms[0x80 + number] = (Branch32, NONE);
        forms[0x90 + number] = (Operand, NONE);
        // Packed integers.
        forms[0x60 + number] = (Operand, P66);
        number += 1;
    }
    const OPERANDS: [(u8, u8); 44] = [
        (0x10, ALL),
        (0x11, ALL),
        (0x14, NONE | P66),
        (0x15, NONE | P66),
        (0x28, NONE | P66),
        (0x29, NONE | P66),
        (0x2a, ALL),
        (0x2c, ALL),
        (0x2d, ALL),
        (0x2e, NONE | P66),
        (0x2f, NONE | P66),
        (0x51, ALL),
        (0x54, NONE | P66),
        (0x55, NONE | P66),
        (0x56, NONE | P66),
        (0x57, NONE | P66),
        (0x58, ALL),
        (0x59, ALL),
        (0x5a, ALL),
        (0x5b, NONE | P66 | PF3),
        (0x5c, ALL),
        (0x5d, ALL),
        (0x5e, ALL),
        (0x5f, ALL),
        (0x6f, P66 | PF3),
        (0x74, P66),
        (0x75, P66),
        (0x76, P66),
        (0x7e, P66 | PF3),
        (0x7f, P66 | PF3),
        (0xaf, NONE | P66),
        (0xb6, NONE | P66),
        (0xb7, NONE | P66),
        (0xbe, NONE | P66),
        (0xbf, NONE | P66),
        (0xd4, P66),
        (0xd6, P66),
        (0xdb, P66),
        (0xdf, P66),
        (0xeb, P66),
        (0xef, P66),
        (0xfa, P66),
        (0xfb, P66),
        (0xfe, P66),
    ];
    let mut at = 0;
    while at < OPERANDS.len() {
        forms[OPERANDS[at].0 as usize] = (Operand, OPERANDS[at].1);
        at += 1;
    }
    forms[0x12] = (Memory, NONE | P66);
    forms[0x13] = (Memory, NONE | P66);
    forms[0x16] = (Memory, NONE | P66);
    forms[0x17] = (Memory, NONE | P66);
    forms[0x1e] = (Endbr, PF3);
    forms[0x1f] = (Nop, NONE | P66);
    forms[0x70] = (OperandAnd8, P66 | PF3 | PF2);
    forms[0xc6] = (OperandAnd8, NONE | P66);
    forms
};

/// The commonest opcodes of one byte, for which nothing is asked but lengths: those of the constant, and what else is so.
const SIMPLE: [u8; 256] = {
    let mut simple = [0; 256];
    let mut opcode = 0;
    while opcode < 256 {
        simple[opcode] = match ONE[opcode] {
            Bare => IS_SIMPLE,
            Only8 => IS_SIMPLE | 1,
            Only32 => IS_SIMPLE | 4,
            Operand => IS_SIMPLE | HAS_OPERAND,
            OperandAnd8 => IS_SIMPLE | HAS_OPERAND | 1,
            OperandAnd32 => IS_SIMPLE | HAS_OPERAND | 4,
            Unindexed => IS_SIMPLE | HAS_OPERAND | NO_INDEX,
            _ => 0,
        };
        opcode += 1;
    }
    simple
};
const IS_SIMPLE: u8 = 0x80;
const HAS_OPERAND: u8 = 0x40;
const NO_INDEX: u8 = 0x20;
const CONSTANT: u8 = 0x0f;

/// Looks at an instruction. `fixed`: constants may be addresses of code.
pub(super) fn skim(code: &[u8; WINDOW], fixed: bool) -> Option<Skimmed> {
    let has_rex = code[0] & 0xf0 == 0x40;
    let at = usize::from(has_rex);
    let simple = SIMPLE[usize::from(code[at])];
    if simple == 0 {
        return skim_any(code, fixed);
    }
    let at = at + 1;
    let constant = usize::from(simple & CONSTANT);
    if simple & HAS_OPERAND == 0 {
        return Some(Skimmed::Plain(at + constant));
    }
    if simple & NO_INDEX != 0 && is_indexed(code, at, if has_rex { code[0] } else { 0 }) {
        return None;
    }
    Some(Skimmed::Plain(at + operand_length(code, at) + constant))
}

/// The same, whatever the opcode.
fn skim_any(code: &[u8; WINDOW], fixed: bool) -> Option<Skimmed> {
    let mut at = 0;
    let prefix = match code[0] {
        0x66 => P66,
        0xf3 => PF3,
        0xf2 => PF2,
        _ => NONE,
    };
    at += usize::from(prefix != NONE);
    let rex = if code[at] & 0xf0 == 0x40 { code[at] } else { 0 };
    at += usize::from(rex != 0);
    let form = match code[at] {
        0x0f => {
            at += 1;
            let (form, prefixes) = TWO[usize::from(code[at])];
            if prefixes & prefix == 0 {
                return None;
            }
            form
        }
        // A return of 16 bits is odd.
        opcode if prefix == NONE || prefix == P66 && opcode != 0xc3 => ONE[usize::from(opcode)],
        _ => return None,
    };
    let opcode = at;
    at += 1;
    let is_short = prefix == P66;
    let operand = code[at];
    let (has_register, number) = (operand >> 6 == 3, operand >> 3 & 7);
    let plain = |behind: usize| Some(Skimmed::Plain(at + behind));
    let with = |constant: usize| plain(operand_length(code, at) + constant);
    match form {
        Bare => plain(0),
        Operand => with(0),
        Unindexed => (!is_indexed(code, at, rex)).then(|| with(0))?,
        Memory => (!has_register).then(|| with(0))?,
        Arithmetic8 => (number != 4 && number != 7).then(|| with(1))?,
        Arithmetic32 => (number != 4 && number != 7 && !(fixed && matches!(number, 0 | 5 | 6)) && !is_short)
            .then(|| with(4))?,
        Add32 => (!fixed && !is_short).then(|| plain(4))?,
        OperandAnd8 => with(1),
        OperandAnd32 => (!is_short).then(|| with(4))?,
        Shift8 => (number != 6).then(|| with(1))?,
        Shift => (number != 6).then(|| with(0))?,
        Unary => (number > 1).then(|| with(0))?,
        Only8 => plain(1),
        Only32 => (!is_short).then(|| plain(4))?,
        Move8 => (!fixed).then(|| plain(1))?,
        Move => (!fixed && !is_short).then(|| plain(if rex & 8 != 0 { 8 } else { 4 }))?,
        MoveTo8 => (!fixed && number == 0).then(|| with(1))?,
        MoveTo32 => (!fixed && number == 0 && !is_short).then(|| with(4))?,
        // Not from the instruction pointer.
        Lea => (!fixed && !has_register && operand & 0xc7 != 5).then(|| with(0))?,
        Endbr => (operand == 0xfa && rex == 0).then(|| plain(1))?,
        Nop => (number == 0).then(|| with(0))?,
        Branch8 | Branch32 | Call if rex != 0 || prefix != NONE => None,
        Branch8 => {
            Some(Skimmed::Branch { length: at + 1, distance: i64::from(operand as i8), is_call: false })
        }
        Branch32 | Call => {
            let distance = i32::from_le_bytes(*code[opcode + 1..].first_chunk()?);
            Some(Skimmed::Branch { length: at + 4, distance: distance.into(), is_call: form == Call })
        }
        Other => None,
    }
}

/// The length of what names an operand, by its first byte, and whether there is a second one that names a base and an index.
const OPERANDS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut operand = 0;
    while operand < 256 {
        let (mode, base) = (operand >> 6, operand & 7);
        let displacement = match mode {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        let scaled = if mode != 3 && base == 4 { IS_SCALED | 1 } else { 0 };
        lengths[operand] = 1 + displacement + scaled;
        operand += 1;
    }
    lengths
};
const IS_SCALED: u8 = 0x80;

/// The length of what names an operand, whose first byte is at `at`.
fn operand_length(code: &[u8; WINDOW], at: usize) -> usize {
    let length = OPERANDS[usize::from(code[at])];
    if length & IS_SCALED == 0 {
        return usize::from(length);
    }
    // No base, and 32 bits instead.
    let is_baseless = code[at] >> 6 == 0 && code[at + 1] & 7 == 5;
    usize::from(length & !IS_SCALED) + if is_baseless { 4 } else { 0 }
}

/// Whether the operand at `at` is in memory and has an index.
fn is_indexed(code: &[u8; WINDOW], at: usize, rex: u8) -> bool {
    let is_scaled = OPERANDS[usize::from(code[at])] & IS_SCALED != 0;
    // The number 4 stands for none, but with the prefix for r12.
    is_scaled && (code[at + 1] >> 3 & 7 != 4 || rex & 2 != 0)
}
