//! Counters and histograms: the additions that detours make in the thread's block.

use super::emit::{Code, instruction as a};
use super::frame::register::*;
use crate::detour::*;

/// Adds 1 to the counter at `offset` in the block. Changes `TEMPORARY`, `ADDRESS` and `STATUS`.
pub fn add_one(code: &mut Code, offset: u32) {
    code.add_constant(ADDRESS, BLOCK, u64::from(offset));
    add_at_address(code, None);
}

/// The same where `STATUS` holds something, but `status` does not any more, which may be `BLOCK`.
pub fn add_at(code: &mut Code, offset: u32, status: u32) {
    code.add_constant(ADDRESS, BLOCK, u64::from(offset));
    add_atomically(code, ADDRESS, None, [TEMPORARY, status]);
}

/// The same where nothing else is asked for: the block and `STATUS` are not needed any more, and `STATUS` is not touched.
pub fn add_one_at_last(code: &mut Code, offset: u32) {
    code.add_constant(BLOCK, BLOCK, u64::from(offset));
    add_atomically(code, BLOCK, None, [TEMPORARY, ADDRESS]);
}

/// Adds 1, or a register, to the counter at `ADDRESS`.
fn add_at_address(code: &mut Code, register: Option<u32>) {
    add_atomically(code, ADDRESS, register, [TEMPORARY, STATUS]);
}

/// Adds 1, or a register, to the word at `place`, for other threads and for what interrupts this one. Changes two registers.
pub(super) fn add_atomically(code: &mut Code, place: u32, by: Option<u32>, [sum, status]: [u32; 2]) {
    if code.additions() == Additions::Single {
        let by = by.unwrap_or_else(|| {
            code.emit([a::movz(sum, 1, 0)]);
            sum
        });
        return code.emit([a::stadd(by, place)]);
    }
    let again = code.label_here();
    code.emit([
        a::ldxr(sum, place),
        match by {
            None => a::add_immediate(sum, sum, 1),
            Some(by) => a::add(sum, sum, by, 0),
        },
        a::stxr(status, sum, place),
    ]);
    code.emit_to(a::cbnz_w(status), again);
}

/// Adds the time from `ENTERED` to `TIME` to the histogram at `offset` in the block. Changes `PLACE` too.
pub fn latency(code: &mut Code, offset: u32) {
    const TICKS: u32 = PLACE;
    let offset = u64::from(offset);
    let child = code.label();
    code.emit([a::ldr(TEMPORARY, BLOCK, BLOCK_ORIGIN)]);
    code.emit_to(a::cbz(TEMPORARY), child);
    code.emit([a::sub(TICKS, TIME, ENTERED, 0)]);
    code.add_constant(ADDRESS, BLOCK, offset + u64::from(LATENCY_COUNT));
    add_at_address(code, None);
    code.add_constant(ADDRESS, BLOCK, offset + u64::from(LATENCY_SUM));
    add_at_address(code, Some(TICKS));

    code.add_constant(ADDRESS, BLOCK, offset + u64::from(LATENCY_MAX));
    let shorter = code.label();
    let again = code.label_here();
    code.emit([a::ldxr(TEMPORARY, ADDRESS), a::sub(STATUS, TEMPORARY, TICKS, 0)]);
    code.emit_to(a::tbz_sign(STATUS), shorter);
    code.emit([a::stxr(STATUS, TICKS, ADDRESS)]);
    code.emit_to(a::cbnz_w(STATUS), again);
    code.bind(shorter);

    // The bucket, as `latency_bucket` computes it.
    let small = code.label();
    code.emit([a::lsr(TEMPORARY, TICKS, LATENCY_OCTAVES)]);
    code.emit_to(a::cbz(TEMPORARY), small);
    code.emit([a::mov_ones(TICKS, LATENCY_OCTAVES)]);
    code.bind(small);
    code.emit([a::orr_bit(TEMPORARY, TICKS, LATENCY_BITS), a::clz(TEMPORARY, TEMPORARY)]);
    code.load(ADDRESS, u64::from(63 - LATENCY_BITS));
    code.emit([
        a::sub(TEMPORARY, ADDRESS, TEMPORARY, 0),
        a::lsrv(ADDRESS, TICKS, TEMPORARY),
        a::add(PLACE, ADDRESS, TEMPORARY, LATENCY_BITS),
    ]);
    code.add_constant(ADDRESS, BLOCK, offset + u64::from(LATENCY_BUCKETS));
    code.emit([a::add(ADDRESS, ADDRESS, PLACE, 3)]);
    add_at_address(code, None);
    code.bind(child);
}
