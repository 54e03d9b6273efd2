//! Loads and stores of general registers, one or two.

use super::super::decode::{field, signed};
use super::{SP, State, not_emulated};
use crate::{EmulateError, Reason};

const UNALLOCATED: EmulateError = EmulateError::Refused(Reason::NotAnInstruction);
/// The manual leaves the result open.
const UNPREDICTABLE: EmulateError =
    EmulateError::Refused(Reason::NotEmulated("a load with an unpredictable result"));

/// The top byte of an address is a tag that the CPU ignores.
fn untagged(address: u64) -> u64 {
    ((address << 8) as i64 >> 8) as u64
}

/// Reads 1 << `size` bytes.
pub fn load(r: &State<'_>, address: u64, size: u32) -> Result<u64, EmulateError> {
    r.thread.read(untagged(address), 1 << size).ok_or(EmulateError::Fault)
}

fn store(r: &mut State<'_>, address: u64, size: u32, value: u64) -> Result<(), EmulateError> {
    r.thread.write(untagged(address), 1 << size, value).ok_or(EmulateError::Fault)
}

/// A load or store of general registers.
pub fn access(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    match field(word, 24, 6) {
        0b101000 | 0b101001 => pair(word, r),
        0b111000 | 0b111001 => single(word, r),
        _ => not_emulated("an ordered or atomic access"),
    }
}

/// The base register; sp must be aligned.
fn base(rn: u8, r: &State<'_>) -> Result<u64, EmulateError> {
    let base = r.get_or_sp(rn);
    if rn == SP && !base.is_multiple_of(16) {
        return Err(EmulateError::Fault);
    }
    Ok(base)
}

fn pair(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    let (rt, rn, rt2) = (field(word, 0, 5) as u8, field(word, 5, 5) as u8, field(word, 10, 5) as u8);
    let (loads, mode) = (field(word, 22, 1) != 0, field(word, 23, 2));
    let (size, sign) = match field(word, 30, 2) {
        0 => (2, false),
        1 if loads && mode != 0 => (2, true),
        2 => (3, false),
        _ => return Err(UNALLOCATED),
    };
    let writes_back = mode & 1 != 0;
    if loads && rt == rt2 || writes_back && rn != SP && (rt == rn || rt2 == rn) {
        return Err(UNPREDICTABLE);
    }
    let base = base(rn, r)?;
    let moved = base.wrapping_add_signed(signed(word, 15, 7) << size);
    let address = if mode == 1 { base } else { moved };
    let second = address.wrapping_add(1 << size);
    if loads {
        let values = [load(r, address, size)?, load(r, second, size)?];
        for (register, value) in [rt, rt2].into_iter().zip(values) {
            r.set(register, if sign { value as i32 as u64 } else { value });
        }
    } else {
        // Downwards, as a stack grows: see `Thread::write`.
        store(r, second, size, r.get(rt2))?;
        store(r, address, size, r.get(rt))?;
    }
    if writes_back {
        r.set_or_sp(rn, moved);
    }
    Ok(())
}

/// How the address of a single access is formed.
enum Address {
    Offset(u64),
    /// Adds to the base after the access.
    After(u64),
    /// Adds to the base before the access.
    Before(u64),
}

fn single(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    let (rt, rn) = (field(word, 0, 5) as u8, field(word, 5, 5) as u8);
    let (size, operation) = (field(word, 30, 2), field(word, 22, 2));
    let unscaled = signed(word, 12, 9) as u64;
    let address = match (field(word, 24, 1), field(word, 21, 1), field(word, 10, 2)) {
        (1, ..) => Address::Offset(u64::from(field(word, 10, 12)) << size),
        (_, 0, 0) => Address::Offset(unscaled),
        (_, 0, 1) => Address::After(unscaled),
        (_, 0, 3) => Address::Before(unscaled),
        (_, 1, 2) => {
            let index = r.get(field(word, 16, 5) as u8);
            let index = match field(word, 13, 3) {
                2 => u64::from(index as u32),
                3 | 7 => index,
                6 => index as i32 as u64,
                _ => return Err(UNALLOCATED),
            };
            Address::Offset(index << (size * field(word, 12, 1)))
        }
        _ => return not_emulated("an ordered or atomic access"),
    };
    let writes_back = !matches!(address, Address::Offset(_));
    match (operation, size) {
        (2, 3) if !writes_back => return Ok(()), // prfm
        (2, 3) | (3, 2 | 3) => return Err(UNALLOCATED),
        _ if writes_back && rn == rt && rn != SP => return Err(UNPREDICTABLE),
        _ => {}
    }
    let base = base(rn, r)?;
    let (at, moved) = match address {
        Address::Offset(offset) => (base.wrapping_add(offset), base),
        Address::After(offset) => (base, base.wrapping_add(offset)),
        Address::Before(offset) => (base.wrapping_add(offset), base.wrapping_add(offset)),
    };
    if operation == 0 {
        store(r, at, size, r.get(rt))?;
    } else {
        let value = load(r, at, size)?;
        let unused = 64 - (8 << size);
        let extended = ((value << unused) as i64 >> unused) as u64;
        r.set(
            rt,
            match operation {
                1 => value,
                2 => extended,
                _ => extended & 0xffff_ffff,
            },
        );
    }
    if writes_back {
        r.set_or_sp(rn, moved);
    }
    Ok(())
}
