//! Records of operands: those of USDT probes, and where functions of other languages than C have their arguments.
//!
//! An operand is read as it was when the detour was entered. Registers that the detour itself uses are read from its frame, and the
//! stack pointer of the program is the slot. What has less than 8 bytes is extended with zeros; the reader knows about signs.

use super::emit::{Code, instruction as a};
use super::frame::register::*;
use crate::detour::*;
use crate::{Operand, Reason};

/// The registers that a frame of eight holds, in order from its bottom.
const SAVED: core::ops::RangeInclusive<u32> = TEMPORARY..=ENTERED;

/// Stores the values of operands into the record at `ADDRESS`, with the slot in `SLOT` and all eight registers saved. Changes
/// `TEMPORARY` and `STATUS`.
///
/// # Errors
/// An operand is in no general register.
pub(super) fn fetch(code: &mut Code, operands: &[Operand]) -> Emitted<()> {
    for (n, &operand) in (0..).zip(operands.iter().take(MOST_FETCHED)) {
        let value = value(code, operand)?;
        code.emit([a::str(value, ADDRESS, RECORD_VALUES + 8 * n)]);
    }
    code.emit([a::str(SP, ADDRESS, RECORD_MISSING)]);
    Ok(())
}

/// The register in which the value of an operand is then.
fn value(code: &mut Code, operand: Operand) -> Emitted<u32> {
    let size = match operand {
        Operand::Register(register) => return program(code, TEMPORARY, register),
        Operand::Memory { base, index, offset, size } => {
            let base = program(code, STATUS, base)?;
            match index {
                None => add_offset(code, base, offset),
                Some((index, scale)) => {
                    let index = program(code, TEMPORARY, index)?;
                    code.emit([a::add(STATUS, base, index, scale.into())]);
                    add_offset(code, STATUS, offset);
                }
            }
            size
        }
        Operand::At { address, size } => {
            code.load(STATUS, address);
            size
        }
    };
    code.emit([match size {
        1 => a::ldrb(TEMPORARY, STATUS),
        2 => a::ldrh(TEMPORARY, STATUS),
        4 => a::ldr_w(TEMPORARY, STATUS, 0),
        _ => a::ldr(TEMPORARY, STATUS, 0),
    }]);
    Ok(TEMPORARY)
}

/// The register that holds what `register` was in the program: it itself, the slot, or `to` with what was saved.
fn program(code: &mut Code, to: u32, register: u8) -> Emitted<u32> {
    match u32::from(register) {
        saved if SAVED.contains(&saved) => {
            code.emit([a::ldr(to, SP, 8 * (saved - SAVED.start()))]);
            Ok(to)
        }
        SP => Ok(SLOT),
        register if register < SP => Ok(register),
        _ => Err(Reason::NotImplemented),
    }
}

/// `STATUS` = `base` + `offset`. Changes `TEMPORARY`.
fn add_offset(code: &mut Code, base: u32, offset: i32) {
    match offset {
        0..=0xff_ffff => code.add_constant(STATUS, base, offset.unsigned_abs().into()),
        -0xfff..0 => code.emit([a::sub_immediate(STATUS, base, offset.unsigned_abs())]),
        _ => {
            code.load(TEMPORARY, i64::from(offset) as u64);
            code.emit([a::add(STATUS, base, TEMPORARY, 0)]);
        }
    }
}
