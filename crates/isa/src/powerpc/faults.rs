//! Which faults may these instructions raise?
//!
//! Counted is what a program may expect and handle. Accesses that can only fail when the program's own frame, its thread block or its
//! data is gone are not: those at a constant distance from r1, r13 and r2, and relative ones. A store far below r1 is: it asks whether
//! there is stack left. Branches raise their faults where they lead. Arithmetic on integers raises none: a division by zero has an undefined
//! result.
//!
//! Every processor that runs such programs has what ISA 2.07 has (ELFv2, 1.1); what came later may be invalid.

use super::decode::{Fields, Form, form, word_at};
use super::emulate::{Version, access, emulate};
use crate::emulate::Blank;
use crate::{EmulateError, Faults};

const NONE: Faults = Faults::NONE;
const MEMORY: Faults = Faults::MEMORY;
const INVALID: Faults = Faults::INVALID;
/// Floating-point and vector instructions, of whatever version.
const FLOATS: Faults = Faults::ARITHMETIC.with(INVALID);

/// Accesses further below r1 than this probe the stack's end.
const PROBED_STACK: i64 = -0x1000;

/// The faults that `code`, displaced instructions that stand at `address`, may raise.
pub(super) fn faults(code: &[u8], address: u64) -> Faults {
    let (mut found, mut done) = (NONE, 0);
    while let rest @ [_, ..] = code.get(done..).unwrap_or_default() {
        let at = address.wrapping_add(done as u64);
        match form(rest, at) {
            Ok((form, length)) => {
                found = found.with(of(rest, form, at));
                done += usize::from(length);
            }
            Err(_) => return Faults::ALL,
        }
    }
    found
}

fn of(code: &[u8], form: Form, address: u64) -> Faults {
    match form {
        Form::Branch(_) => NONE,
        Form::AddPcIs { .. } => INVALID,
        Form::Prefixed { relative: true } => INVALID,
        Form::Prefixed { relative: false } => INVALID.with(MEMORY).with(Faults::ARITHMETIC),
        Form::LoadReserve | Form::StoreConditional => MEMORY,
        Form::Trap { .. } | Form::System(_) => Faults::ALL,
        Form::Plain => word_at(code, 0).map_or(Faults::ALL, |word| plain(word, address)),
    }
}

fn plain(word: u32, address: u64) -> Faults {
    // The doubleword's low bits are the opcode, but for a quadword's.
    if let Some(access) = access(word) {
        return at(access.at_constant());
    }
    match word.primary() {
        // lfs, lfd, stfs, stfd, and with an update
        48..=55 => at((word.ra() != 0).then(|| (word.ra(), word.d()))),
        57 | 61 => MEMORY.with(INVALID),
        31 => extended(word, address),
        // isync
        19 if word.xo() == 150 => NONE,
        4 | 59 | 60 | 63 => {
            if moves_bits(word) {
                NONE
            } else {
                FLOATS
            }
        }
        _ => arithmetic(word, address),
    }
}

/// An access at a constant distance from a register, or any other.
fn at(place: Option<(u32, i64)>) -> Faults {
    const TOC: u32 = 2;
    const THREAD: u32 = 13;
    match place {
        Some((1, distance)) if distance > PROBED_STACK => NONE,
        Some((TOC | THREAD, _)) => NONE,
        _ => MEMORY,
    }
}

/// Primary opcode 31, without the loads and stores of general registers.
fn extended(word: u32, address: u64) -> Faults {
    match (word.xo(), word.xo() & 31) {
        // sync and lwsync, eieio; dcbt, dcbtst
        (598 | 854 | 278 | 246, _) => NONE,
        // dcbst, dcbf, icbi, dcbz
        (54 | 86 | 982 | 1014, _) => MEMORY,
        // mftb; mfspr, mtspr of what programs have
        (371, _) => NONE,
        (339 | 467, _) => match word.spr() {
            1 | 8 | 9 | 256 | 268 | 269 | 815 => NONE,
            _ => Faults::ALL,
        },
        // mfvsrd, mfvsrwz, mtvsrd, mtvsrwa, mtvsrwz
        (51 | 115 | 179 | 211 | 243, _) => NONE,
        // Divisions and high multiplications, with or without overflow recorded; subtractions and additions that record it.
        (xo, 9 | 11) if matches!(xo & 0x1ff, 9 | 11 | 73 | 75 | 233 | 235 | 457 | 459 | 489 | 491) => NONE,
        (xo, 8 | 10) if matches!(xo & 0x1ff, 8 | 10 | 40 | 104 | 136 | 138 | 200 | 202 | 232 | 234 | 266) => {
            NONE
        }
        // Counts of trailing zeros came with ISA 3.0.
        (538 | 570, _) => INVALID,
        // Loads and stores of floating-point and vector registers; later ones among them.
        (_, 6 | 7 | 12 | 23) => MEMORY.with(INVALID),
        _ => arithmetic(word, address),
    }
}

/// What is emulated is in every version, and works on integers.
fn arithmetic(word: u32, address: u64) -> Faults {
    match emulate(&word.to_le_bytes(), address, &mut Blank, Some(Version::V2_07)) {
        Ok(_) | Err(EmulateError::Fault) => NONE,
        Err(EmulateError::Refused(_)) => Faults::ALL,
    }
}

/// Whether a floating-point or vector instruction moves bits, so that there are no exceptions to be enabled.
fn moves_bits(word: u32) -> bool {
    match word.primary() {
        // vand, vandc, vor, vxor, vnor
        4 => matches!(word & 0x7ff, 1028 | 1092 | 1156 | 1220 | 1284),
        // xxland, xxlandc, xxlor, xxlxor, xxlnor; xxpermdi
        60 => matches!(word >> 3 & 0xff, 130 | 138 | 146 | 154 | 162) || matches!(word >> 3 & 0x9f, 10),
        // fcpsgn, fneg, fmr, fnabs, fabs
        63 => matches!(word.xo(), 8 | 40 | 72 | 136 | 264),
        _ => false,
    }
}
