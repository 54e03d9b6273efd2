//! Where else can control go: direct branches, calls and jump tables.
//!
//! A jump table is a list of 32-bit distances from its own start. gcc and clang address it relative to the TOC, or to the pc
//! with prefixed instructions, and go through it like this:
//!
//! ```text
//! cmpldi r3,12                   the bound
//! bgt    …
//! addis  r4,r2,.L@toc@ha         the table's address: r2 is known from the TOC set-up
//! addi   r4,r4,.L@toc@l
//! sldi   r3,r3,2
//! lwax   r3,r4,r3
//! add    r3,r3,r4
//! mtctr  r3
//! bctr
//! ```
//!
//! Constants are followed in the order of the addresses, not of the control flow. That finds too much rather than too
//! little, and too much only makes a verdict more careful.

use super::decode::{BCTR, Fields, Form, WORD, decode, displacement_34, form, word_at};
use super::registers::usage;
use super::verdict::{TocPointer, toc_setup};
use crate::{Flow, ReadOnlyData};
use alloc::vec::Vec;

/// How many instructions behind the load of a distance the branch through it may be.
const WINDOW: usize = 8;

pub(super) fn branch_targets(code: &[u8], address: u64, data: &dyn ReadOnlyData, targets: &mut Vec<u64>) {
    let mut constants = [None; 32];
    constants[2] = toc_pointer(code, address);
    let toc = constants[2];
    let mut bound = None;
    let mut offset = 0;
    while let Some(word) = word_at(code, offset) {
        let rest = &code[offset..];
        let here = address.wrapping_add(offset as u64);
        let Ok(instruction) = decode(rest, here) else {
            offset += usize::from(WORD);
            continue;
        };
        targets.extend(instruction.flow.target());
        match word.primary() {
            // cmplwi, cmpldi
            10 => bound = Some(u64::from(word & 0xffff)),
            // lwax
            31 if word.xo() == 341 && branches_through(&rest[4..]) => {
                for base in [word.ra(), word.rb()].into_iter().filter_map(|r| constants[r as usize]) {
                    table(base, bound, code.len() as u64, address, data, targets);
                }
            }
            _ => {}
        }
        match instruction.flow {
            Flow::Call { .. } | Flow::IndirectCall => {
                constants[0] = None;
                constants[3..13].fill(None);
            }
            _ => follow(&mut constants, rest, here, toc),
        }
        offset += usize::from(instruction.length);
    }
}

fn toc_pointer(code: &[u8], address: u64) -> Option<u64> {
    match toc_setup(code)?.pointer {
        TocPointer::FromFunction(distance) => Some(address.wrapping_add_signed(distance)),
        TocPointer::Absolute(pointer) => Some(pointer),
        TocPointer::InMemory => None,
    }
}

/// Appends the targets of the table at `base`: up to its bound, and no further than they lie in the function.
fn table(
    base: u64,
    bound: Option<u64>,
    function_length: u64,
    function: u64,
    data: &dyn ReadOnlyData,
    targets: &mut Vec<u64>,
) {
    let entries = bound.map_or(usize::MAX, |last| last as usize + 1);
    for entry in data.at(base).chunks_exact(4).take(entries) {
        let distance = word_at(entry, 0).unwrap_or_default() as i32;
        let target = base.wrapping_add_signed(i64::from(distance));
        if target % 4 != 0 || target.wrapping_sub(function) >= function_length {
            break;
        }
        targets.push(target);
    }
}

/// Whether `bctr` follows soon.
fn branches_through(code: &[u8]) -> bool {
    code.chunks_exact(4).take(WINDOW).any(|word| word_at(word, 0) == Some(BCTR))
}

/// The constants after an instruction.
fn follow(constants: &mut [Option<u64>; 32], code: &[u8], here: u64, toc: Option<u64>) {
    let word = word_at(code, 0).unwrap_or_default();
    let (source, shift) = match word.primary() {
        14 => (word.ra(), 0),
        15 => (word.ra(), 16),
        1 => return follow_prefixed(constants, code, here),
        _ => {
            let written = usage(word);
            for (register, constant) in (0..).zip(constants.iter_mut()).filter(|&(r, _)| written.writes(r)) {
                // The TOC pointer is reloaded after calls, and is the same again.
                *constant = if register == 2 { toc } else { None };
            }
            return;
        }
    };
    let base = if source == 0 { Some(0) } else { constants[source as usize] };
    let value = base.map(|base| base.wrapping_add_signed(word.d() << shift));
    constants[word.rt() as usize] = if word.rt() == 2 { toc } else { value };
}

fn follow_prefixed(constants: &mut [Option<u64>; 32], code: &[u8], here: u64) {
    let (Some(prefix), Some(suffix)) = (word_at(code, 0), word_at(code, 4)) else { return };
    let relative = matches!(form(code, here), Ok((Form::Prefixed { relative: true }, _)));
    let paddi = prefix >> 24 & 3 == 2 && suffix.primary() == 14;
    constants[suffix.rt() as usize] =
        (paddi && relative).then(|| here.wrapping_add_signed(displacement_34(prefix, suffix)));
}
