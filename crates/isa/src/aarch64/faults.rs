//! Which faults may these instructions raise?
//!
//! Counted is what a program may expect and handle. Accesses that can only fail when the program's own frame or its data is gone are
//! not: the stack, at a constant distance from sp, and literals. Those distances are so short that none asks whether there is stack left. Nor
//! is a misaligned stack pointer counted. Branches raise their faults where they lead.
//!
//! The integer instructions of this ISA never fault: a division by zero gives zero. Of the others only those are said to raise nothing
//! that every processor has had from the beginning.

use super::decode::{Form, LENGTH, field, form, word};
use super::emulate::supported;
use crate::Faults;

const NONE: Faults = Faults::NONE;
const MEMORY: Faults = Faults::MEMORY;
/// Of extensions; what a failed authentication raises (FEAT_FPAC) is the same signal.
const INVALID: Faults = Faults::INVALID;

/// The faults that `code`, displaced instructions, may raise.
pub(super) fn faults(code: &[u8]) -> Faults {
    code.chunks(LENGTH as usize)
        .map(|instruction| word(instruction).map_or(Faults::ALL, of))
        .fold(NONE, Faults::with)
}

fn of(word: u32) -> Faults {
    match form(word) {
        Form::RegisterBranch { authenticated: true, .. } | Form::SignsWithPc | Form::TimedWait => INVALID,
        // AUTIA1716, AUTIB1716; AUTIAZ to AUTIBSP
        Form::Hint(12 | 14 | 28..=31) => INVALID,
        Form::Branch { .. }
        | Form::ConditionalBranch { .. }
        | Form::CompareBranch { .. }
        | Form::TestBranch { .. }
        | Form::RegisterBranch { .. }
        | Form::Address { .. }
        | Form::Literal { .. }
        | Form::Hint(_)
        | Form::SupervisorCall
        | Form::ClearExclusive => NONE,
        // Unprivileged ones are FEAT_LSUI's.
        Form::LoadExclusive | Form::StoreExclusive if field(word, 24, 1) == 0 => MEMORY,
        Form::LoadExclusive | Form::StoreExclusive => MEMORY.with(INVALID),
        Form::Prefix | Form::LaterStage | Form::Exception(_) | Form::Privileged | Form::Unallocated => {
            Faults::ALL
        }
        Form::Plain => match field(word, 25, 4) {
            0b1000 | 0b1001 | 0b0101 | 0b1101 if supported(word).is_ok() => NONE,
            0b1000 | 0b1001 | 0b0101 | 0b1101 => INVALID,
            0b0100 | 0b1100 | 0b0110 | 0b1110 => access(word),
            0b0111 | 0b1111 if moves_bits(word) => NONE,
            0b0111 | 0b1111 => Faults::ARITHMETIC.with(INVALID),
            0b1010 | 0b1011 => system(word),
            _ => Faults::ALL,
        },
    }
}

/// Loads and stores, of general registers and of vectors.
fn access(word: u32) -> Faults {
    let is_vector = field(word, 26, 1) != 0;
    let (size, operation) = (field(word, 30, 2), field(word, 22, 2));
    let is_pair = word & 0x3a00_0000 == 0x2800_0000;
    let (is_offset, mode) = (field(word, 24, 1) != 0, (field(word, 21, 1), field(word, 10, 2)));
    let is_indexed = !is_offset && mode == (1, 2);
    let is_single = word & 0x3a00_0000 == 0x3800_0000
        && (is_offset || is_indexed || matches!(mode, (0, 0 | 1 | 3)))
        // 16 bytes are a size of their own.
        && (size == 0 || operation < 2);
    let is_known = match is_vector {
        true => is_pair && size < 3 || is_single,
        false => supported(word).is_ok(),
    };
    let is_ordered = matches!(word & 0x3fff_fc00, 0x08df_fc00 | 0x089f_fc00);
    let is_prefetch = !is_vector && !is_pair && size == 3 && operation == 2;
    match is_known {
        true if is_prefetch => NONE,
        true if field(word, 5, 5) == 31 && (is_pair || !is_indexed) => NONE,
        true => MEMORY,
        // LDAR and STLR
        false if is_ordered => MEMORY,
        false => MEMORY.with(INVALID),
    }
}

/// Whether a vector or floating-point instruction moves, selects or compares bits, so that there are no exceptions to be unmasked.
fn moves_bits(word: u32) -> bool {
    const FORMS: [(u32, u32); 18] = [
        // fmov, fabs, fneg; fcsel; fmov of a constant
        (0xffbf_fc00, 0x1e20_4000),
        (0xffbf_fc00, 0x1e20_c000),
        (0xffbf_fc00, 0x1e21_4000),
        (0xffa0_0c00, 0x1e20_0c00),
        (0xffa0_1fe0, 0x1e20_1000),
        // fmov from and to general registers
        (0xfffe_fc00, 0x1e26_0000),
        (0xfffe_fc00, 0x9e66_0000),
        (0xfffe_fc00, 0x9eae_0000),
        // movi, mvni, orr, bic
        (0x9ff8_0c00, 0x0f00_0400),
        // dup, ins, smov, umov
        (0x9fe0_8400, 0x0e00_0400),
        (0xffe0_fc00, 0x5e00_0400),
        // and, orr, eor, bif…
        (0x9f20_fc00, 0x0e20_1c00),
        // ext, zip, uzp, trn, tbl
        (0xbfe0_8400, 0x2e00_0000),
        (0xbf20_8c00, 0x0e00_0800),
        (0xbfe0_8c00, 0x0e00_0000),
        // Integers: opcodes below 11000.
        (0x9f20_8400, 0x0e20_0400),
        (0x9f20_c400, 0x0e20_8400),
        // cnt, not
        (0xbffe_fc00, 0x2e20_5800),
    ];
    FORMS.iter().any(|(mask, value)| word & mask == *value)
}

/// System instructions that programs may execute.
fn system(word: u32) -> Faults {
    // Without whether it reads, and without the register.
    let register = word & !(1 << 21 | 31);
    match register {
        // dsb, dmb, isb; as they have no register, all of its bits are set.
        _ if word & 0xffff_f01f == 0xd503_301f => match field(word, 5, 3) {
            4..=6 => NONE,
            _ => INVALID,
        },
        // tpidr_el0, tpidrro_el0; nzcv, fpcr, fpsr; ctr_el0, dczid_el0
        0xd51b_d040 | 0xd51b_d060 | 0xd51b_4200 | 0xd51b_4400 | 0xd51b_4420 | 0xd51b_0020 | 0xd51b_00e0 => {
            NONE
        }
        // cntfrq_el0, cntvct_el0: a process can forbid itself the clock, and handle the fault.
        0xd51b_e000 | 0xd51b_e040 => MEMORY,
        // dc zva, dc cvac, dc cvau, dc civac, ic ivau
        0xd50b_7420 | 0xd50b_7a20 | 0xd50b_7b20 | 0xd50b_7e20 | 0xd50b_7520 => MEMORY,
        _ => Faults::ALL,
    }
}
