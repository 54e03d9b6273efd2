//! Records: one per hit, in the ring of the thread's block.
//!
//! The thread looks whether there is room, reserves a position by an addition that a signal handler cannot
//! take apart, fills the record, and completes it by its sequence number (store-release: the tool reads it
//! from another processor). Handlers that come in between the look and the reservation are why [`RING_SLACK`]
//! places are never used.

use super::count::add_one;
use super::emit::{Code, instruction as a};
use super::fetch::fetch;
use super::frame::register::*;
use crate::detour::*;
use crate::{Operand, Reason};

/// The values of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// Of an entry: the first arguments, so many.
    Arguments(u8),
    /// Of a return: x0, then the time stamp of the entry, in `ENTERED`.
    Result,
    /// Of an entry: what operands are there (`fetch`).
    Operands(&'a [Operand]),
}

/// Registers of the first arguments.
pub(super) const ARGUMENTS: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// How many arguments are in registers.
const REGISTER_ARGUMENTS: u32 = ARGUMENTS.len() as u32;

/// Writes the record, with the time stamp in `TIME` and the slot in `SLOT`. Changes `TEMPORARY`, `ADDRESS`,
/// `STATUS` and `PLACE`.
pub fn record(code: &mut Code, layout: &Layout, id: u32, values: Values<'_>) -> Emitted<()> {
    const SEQUENCE: u32 = PLACE;
    if layout.ring == 0 {
        return Err(Reason::NotImplemented);
    }
    let room = (1u64 << layout.ring_bits).saturating_sub(u64::from(RING_SLACK));
    let (full, done) = (code.label(), code.label());
    code.emit([
        a::ldr(ADDRESS, BLOCK, BLOCK_RING_HEAD),
        a::ldr(STATUS, BLOCK, BLOCK_RING_TAIL),
        a::sub(ADDRESS, ADDRESS, STATUS, 0),
    ]);
    code.load(STATUS, room);
    code.emit([a::sub(ADDRESS, ADDRESS, STATUS, 0)]);
    code.emit_to(a::tbz_sign(ADDRESS), full);

    code.emit([a::add_immediate(ADDRESS, BLOCK, BLOCK_RING_HEAD)]);
    let again = code.label_here();
    code.emit([
        a::ldxr(TEMPORARY, ADDRESS),
        a::add_immediate(SEQUENCE, TEMPORARY, 1),
        a::stxr(STATUS, SEQUENCE, ADDRESS),
    ]);
    code.emit_to(a::cbnz_w(STATUS), again);
    code.add_constant(ADDRESS, BLOCK, u64::from(layout.ring));
    code.emit([
        a::ubfiz(TEMPORARY, TEMPORARY, RECORD_SHIFT, layout.ring_bits),
        a::add(ADDRESS, ADDRESS, TEMPORARY, 0),
    ]);

    code.emit([a::str(TIME, ADDRESS, RECORD_TIME), a::str(SLOT, ADDRESS, RECORD_SLOT)]);
    code.load(TEMPORARY, u64::from(id));
    code.emit([a::str_w(TEMPORARY, ADDRESS, RECORD_ID)]);
    thread_id(code, layout);
    match values {
        Values::Arguments(count) => arguments(code, u32::from(count).min(RECORD_MAX_VALUES)),
        Values::Result => code.emit([a::stp(0, ENTERED, ADDRESS, RECORD_VALUES as i32)]),
        Values::Operands(operands) => fetch(code, operands)?,
    }
    code.emit([a::stlr(SEQUENCE, ADDRESS)]);
    code.emit_to(0x1400_0000, done);
    code.bind(full);
    add_one(code, BLOCK_RING_LOST);
    code.bind(done);
    Ok(())
}

/// Stores the thread's id, or 0.
fn thread_id(code: &mut Code, layout: &Layout) {
    let Some(offset) = layout.tid_offset else {
        code.emit([a::str_w(SP, ADDRESS, RECORD_TID)]);
        return;
    };
    let none = code.label();
    code.emit([a::mrs_thread_pointer(TEMPORARY)]);
    code.emit_to(a::cbz(TEMPORARY), none);
    // Any distance, either way.
    code.load(STATUS, i64::from(offset) as u64);
    code.emit([a::add(TEMPORARY, TEMPORARY, STATUS, 0), a::ldr_w(TEMPORARY, TEMPORARY, 0)]);
    code.bind(none);
    code.emit([a::str_w(TEMPORARY, ADDRESS, RECORD_TID)]);
}

/// Stores the first `count` integer arguments: x0 to x7, then the stack at the slot.
fn arguments(code: &mut Code, count: u32) {
    for argument in 0..count {
        let offset = RECORD_VALUES + 8 * argument;
        if argument < REGISTER_ARGUMENTS {
            code.emit([a::str(argument, ADDRESS, offset)]);
        } else {
            let stack = 8 * (argument - REGISTER_ARGUMENTS);
            code.emit([a::ldr(TEMPORARY, SLOT, stack), a::str(TEMPORARY, ADDRESS, offset)]);
        }
    }
}
