//! Loads and stores of general registers, one or two.

use super::super::decode::{field, signed};
use super::{Failure, Fault, Memory, Registers, not_emulated};
use crate::Reason;

const UNALLOCATED: Failure = Failure::NotEmulated(Reason::NotAnInstruction);
/// The manual leaves the result open.
const UNPREDICTABLE: Failure =
    Failure::NotEmulated(Reason::NotEmulated("a load with an unpredictable result"));

/// The top byte of an address is a tag that the CPU ignores.
fn untagged(address: u64) -> u64 {
    ((address << 8) as i64 >> 8) as u64
}

/// Reads 1 << `size` bytes.
pub fn load(memory: &mut dyn Memory, address: u64, size: u32) -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    memory.read(untagged(address), &mut bytes[..1 << size])?;
    Ok(u64::from_le_bytes(bytes))
}

fn store(memory: &mut dyn Memory, address: u64, size: u32, value: u64) -> Result<(), Failure> {
    Ok(memory.write(untagged(address), &value.to_le_bytes()[..1 << size])?)
}

/// A load or store of general registers.
pub fn access(word: u32, r: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
    match field(word, 24, 6) {
        0b101000 | 0b101001 => pair(word, r, memory),
        0b111000 | 0b111001 => single(word, r, memory),
        _ => not_emulated("an ordered or atomic access"),
    }
}

/// The base register; sp must be aligned.
fn base(rn: u8, r: &Registers) -> Result<u64, Failure> {
    let base = r.get_or_sp(rn);
    if rn == 31 && !base.is_multiple_of(16) {
        return Err(Fault { address: base }.into());
    }
    Ok(base)
}

fn pair(word: u32, r: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
    let (rt, rn, rt2) = (field(word, 0, 5) as u8, field(word, 5, 5) as u8, field(word, 10, 5) as u8);
    let (loads, mode) = (field(word, 22, 1) != 0, field(word, 23, 2));
    let (size, sign) = match field(word, 30, 2) {
        0 => (2, false),
        1 if loads && mode != 0 => (2, true),
        2 => (3, false),
        _ => return Err(UNALLOCATED),
    };
    let writes_back = mode & 1 != 0;
    if loads && rt == rt2 || writes_back && rn != 31 && (rt == rn || rt2 == rn) {
        return Err(UNPREDICTABLE);
    }
    let base = base(rn, r)?;
    let moved = base.wrapping_add_signed(signed(word, 15, 7) << size);
    let address = if mode == 1 { base } else { moved };
    let mut bytes = [0; 16];
    let length = 1usize << size;
    let bytes = &mut bytes[..2 * length];
    if loads {
        memory.read(untagged(address), bytes)?;
        for (register, part) in [rt, rt2].into_iter().zip(bytes.chunks_exact(length)) {
            let mut value = [0; 8];
            value[..length].copy_from_slice(part);
            let value = u64::from_le_bytes(value);
            r.set(register, if sign { value as i32 as u64 } else { value });
        }
    } else {
        for (register, part) in [rt, rt2].into_iter().zip(bytes.chunks_exact_mut(length)) {
            part.copy_from_slice(&r.get(register).to_le_bytes()[..length]);
        }
        memory.write(untagged(address), bytes)?;
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

fn single(word: u32, r: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
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
        _ if writes_back && rn == rt && rn != 31 => return Err(UNPREDICTABLE),
        _ => {}
    }
    let base = base(rn, r)?;
    let (at, moved) = match address {
        Address::Offset(offset) => (base.wrapping_add(offset), base),
        Address::After(offset) => (base, base.wrapping_add(offset)),
        Address::Before(offset) => (base.wrapping_add(offset), base.wrapping_add(offset)),
    };
    if operation == 0 {
        store(memory, at, size, r.get(rt))?;
    } else {
        let value = load(memory, at, size)?;
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
