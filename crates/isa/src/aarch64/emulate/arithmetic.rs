//! Integer data processing, with immediates and with registers.

use super::super::decode::field;
use super::{C, N, State, V, Z, not_emulated};
use crate::{EmulateError, Reason};

const UNALLOCATED: EmulateError = EmulateError::Refused(Reason::NotAnInstruction);

/// The operands' size, and what follows from it.
#[derive(Clone, Copy)]
struct Width(u32);

impl Width {
    fn of(word: u32) -> Self {
        Self(if word >> 31 != 0 { 64 } else { 32 })
    }

    fn cut(self, value: u64) -> u64 {
        if self.0 == 64 { value } else { value & 0xffff_ffff }
    }

    fn sign(self, value: u64) -> bool {
        value >> (self.0 - 1) & 1 != 0
    }

    /// `value`, cut, rotated right.
    fn rotate(self, value: u64, amount: u32) -> u64 {
        match self.0 {
            64 => value.rotate_right(amount),
            _ => u64::from((value as u32).rotate_right(amount)),
        }
    }

    /// `value` shifted as bits 23:22 of an instruction say: lsl, lsr, asr, ror. `amount` below the width.
    fn shift(self, value: u64, kind: u32, amount: u32) -> u64 {
        let value = self.cut(value);
        self.cut(match kind {
            0 => value << amount,
            1 => value >> amount,
            2 if self.0 == 64 => (value as i64 >> amount) as u64,
            2 => (value as i32 >> amount) as u64,
            _ => self.rotate(value, amount),
        })
    }

    /// Sum and flags.
    fn add(self, a: u64, b: u64, carry: bool) -> (u64, u64) {
        let (a, b) = (self.cut(a), self.cut(b));
        let wide = u128::from(a) + u128::from(b) + u128::from(carry);
        let sum = self.cut(wide as u64);
        let overflow = self.sign(a) == self.sign(b) && self.sign(a) != self.sign(sum);
        let carry = wide >> self.0 != 0;
        (sum, self.nz(sum) | if carry { C } else { 0 } | if overflow { V } else { 0 })
    }

    fn nz(self, value: u64) -> u64 {
        (if self.sign(value) { N } else { 0 }) | if value == 0 { Z } else { 0 }
    }
}

fn set_flags(r: &mut State<'_>, flags: u64) {
    let flags = r.thread.flags() & !(N | Z | C | V) | flags;
    r.thread.set_flags(flags);
}

fn rd(word: u32) -> u8 {
    field(word, 0, 5) as u8
}

fn rn(word: u32) -> u8 {
    field(word, 5, 5) as u8
}

fn rm(word: u32) -> u8 {
    field(word, 16, 5) as u8
}

/// Data processing with an immediate, but for `adr`.
pub fn immediate(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    let width = Width::of(word);
    match field(word, 23, 3) {
        0b010 => {
            let immediate = u64::from(field(word, 10, 12)) << (12 * field(word, 22, 1));
            add_or_sub(word, width, r.get_or_sp(rn(word)), immediate, true, r);
            Ok(())
        }
        0b100 => {
            let mask = bitmask(word, width).ok_or(UNALLOCATED)?;
            let value = logical(field(word, 29, 2), width, r.get(rn(word)), mask, r);
            // ANDS writes a register, the others may write sp.
            if field(word, 29, 2) == 3 {
                r.set(rd(word), value)
            } else {
                r.set_or_sp(rd(word), value)
            }
            Ok(())
        }
        0b101 => move_wide(word, width, r),
        0b110 => bitfield(word, width, r),
        0b111 => {
            let amount = field(word, 10, 6);
            let valid = field(word, 29, 2) == 0 && field(word, 21, 1) == 0;
            if !valid || field(word, 22, 1) != word >> 31 || amount >= width.0 {
                return Err(UNALLOCATED);
            }
            let (high, low) = (width.cut(r.get(rn(word))), width.cut(r.get(rm(word))));
            let wide = u128::from(high) << width.0 | u128::from(low);
            r.set(rd(word), width.cut((wide >> amount) as u64));
            Ok(())
        }
        _ => not_emulated("an instruction on tags"),
    }
}

/// ADD, ADDS, SUB, SUBS. `sp`: whether register 31 is the stack pointer as a destination without flags.
fn add_or_sub(word: u32, width: Width, a: u64, b: u64, sp: bool, r: &mut State<'_>) {
    let subtract = field(word, 30, 1) != 0;
    let (value, flags) = width.add(a, if subtract { !b } else { b }, subtract);
    if field(word, 29, 1) != 0 {
        set_flags(r, flags);
        r.set(rd(word), value);
    } else if sp {
        r.set_or_sp(rd(word), value);
    } else {
        r.set(rd(word), value);
    }
}

/// AND, ORR, EOR, ANDS.
fn logical(operation: u32, width: Width, a: u64, b: u64, r: &mut State<'_>) -> u64 {
    let value = width.cut(match operation {
        1 => a | b,
        2 => a ^ b,
        _ => a & b,
    });
    if operation == 3 {
        set_flags(r, width.nz(value));
    }
    value
}

/// The immediate of the logical instructions: a run of ones, rotated, repeated.
fn bitmask(word: u32, width: Width) -> Option<u64> {
    let (n, rotation, ones) = (field(word, 22, 1), field(word, 16, 6), field(word, 10, 6));
    if n != 0 && width.0 == 32 {
        return None;
    }
    let size = 1 << (n << 6 | !ones & 0x3f).checked_ilog2()?;
    let levels = size - 1;
    let (ones, rotation) = (ones & levels, rotation & levels);
    if size < 2 || ones == levels {
        return None;
    }
    let element = (1u64 << (ones + 1)) - 1;
    let limit = u64::MAX >> (64 - size);
    let rotated = if rotation == 0 { element } else { element >> rotation | element << (size - rotation) };
    let mut mask = rotated & limit;
    let mut filled = size;
    while filled < 64 {
        mask |= mask << filled;
        filled *= 2;
    }
    Some(width.cut(mask))
}

fn move_wide(word: u32, width: Width, r: &mut State<'_>) -> Result<(), EmulateError> {
    let shift = 16 * field(word, 21, 2);
    if shift >= width.0 {
        return Err(UNALLOCATED);
    }
    let immediate = u64::from(field(word, 5, 16)) << shift;
    let value = match field(word, 29, 2) {
        0 => !immediate,
        2 => immediate,
        3 => r.get(rd(word)) & !(0xffff << shift) | immediate,
        _ => return Err(UNALLOCATED),
    };
    r.set(rd(word), width.cut(value));
    Ok(())
}

fn bitfield(word: u32, width: Width, r: &mut State<'_>) -> Result<(), EmulateError> {
    let (rotation, last) = (field(word, 16, 6), field(word, 10, 6));
    if field(word, 22, 1) != word >> 31 || rotation >= width.0 || last >= width.0 {
        return Err(UNALLOCATED);
    }
    let source = width.cut(r.get(rn(word)));
    let ones = |count: u32| u64::MAX >> (64 - count);
    // Either bits rotation..=last go to the bottom, or the lowest last + 1 bits go up.
    let (low, count) =
        if last >= rotation { (0, last - rotation + 1) } else { (width.0 - rotation, last + 1) };
    let bits = source >> (if last >= rotation { rotation } else { 0 }) & ones(count);
    let placed = bits << low;
    let value = match field(word, 29, 2) {
        0 if bits >> (count - 1) & 1 != 0 && low + count < 64 => placed | u64::MAX << (low + count),
        0 | 2 => placed,
        1 => r.get(rd(word)) & !(ones(count) << low) | placed,
        _ => return Err(UNALLOCATED),
    };
    r.set(rd(word), width.cut(value));
    Ok(())
}

/// Data processing with registers.
pub fn register(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    let width = Width::of(word);
    let (a, b) = (r.get(rn(word)), r.get(rm(word)));
    let amount = field(word, 10, 6);
    match (field(word, 28, 1), field(word, 21, 4)) {
        (0, 0b0000..=0b0111) if amount < width.0 => {
            let b = width.shift(b, field(word, 22, 2), amount);
            let b = if field(word, 21, 1) != 0 { !b } else { b };
            let value = logical(field(word, 29, 2), width, a, b, r);
            r.set(rd(word), value);
        }
        (0, 0b1000 | 0b1010 | 0b1100) if amount < width.0 => {
            let b = width.shift(b, field(word, 22, 2), amount);
            add_or_sub(word, width, a, b, false, r);
        }
        (0, 0b1001) if field(word, 10, 3) <= 4 => {
            let b = extend(b, field(word, 13, 3)) << field(word, 10, 3);
            add_or_sub(word, width, r.get_or_sp(rn(word)), b, true, r);
        }
        (1, 0b0000) if amount == 0 => {
            let subtract = field(word, 30, 1) != 0;
            let (value, flags) = width.add(a, if subtract { !b } else { b }, r.has(C));
            r.set(rd(word), value);
            if field(word, 29, 1) != 0 {
                set_flags(r, flags);
            }
        }
        (1, 0b0010) if field(word, 29, 1) != 0 && field(word, 10, 1) == 0 && field(word, 4, 1) == 0 => {
            let b = if field(word, 11, 1) != 0 { u64::from(rm(word)) } else { b };
            let subtract = field(word, 30, 1) != 0;
            let flags = match r.holds(field(word, 12, 4) as u8) {
                true => width.add(a, if subtract { !b } else { b }, subtract).1,
                false => u64::from(field(word, 0, 4)) << 28,
            };
            set_flags(r, flags);
        }
        (1, 0b0100) if field(word, 29, 1) == 0 && field(word, 11, 1) == 0 => {
            let other = match (field(word, 30, 1), field(word, 10, 1)) {
                (0, 0) => b,
                (0, _) => b.wrapping_add(1),
                (_, 0) => !b,
                _ => b.wrapping_neg(),
            };
            let value = if r.holds(field(word, 12, 4) as u8) { a } else { other };
            r.set(rd(word), width.cut(value));
        }
        (1, 0b0110) if field(word, 29, 1) == 0 => return source_registers(word, width, a, b, r),
        (1, 0b1000..=0b1111) => return multiply(word, width, a, b, r),
        _ => return not_emulated("this data processing"),
    }
    Ok(())
}

/// UXTB, UXTH, UXTW, UXTX, SXTB…
fn extend(value: u64, option: u32) -> u64 {
    match option {
        0 => u64::from(value as u8),
        1 => u64::from(value as u16),
        2 => u64::from(value as u32),
        4 => value as i8 as u64,
        5 => value as i16 as u64,
        6 => value as i32 as u64,
        _ => value,
    }
}

/// Divisions and shifts by a register; reversals and counts of one register.
fn source_registers(word: u32, width: Width, a: u64, b: u64, r: &mut State<'_>) -> Result<(), EmulateError> {
    let (a, b) = (width.cut(a), width.cut(b));
    let amount = b as u32 % width.0;
    let value = match (field(word, 30, 1), field(word, 10, 6)) {
        (0, 2) => a.checked_div(b).unwrap_or(0),
        (0, 3) if width.0 == 64 => {
            (a as i64).checked_div(b as i64).unwrap_or(if b == 0 { 0 } else { a as i64 }) as u64
        }
        (0, 3) => match b {
            0 => 0,
            _ => i32::wrapping_div(a as i32, b as i32) as u64,
        },
        (0, 8..=11) => width.shift(a, field(word, 10, 2), amount),
        (1, operation) if rm(word) == 0 => match (operation, width.0) {
            (0, 64) => a.reverse_bits(),
            (0, _) => u64::from((a as u32).reverse_bits()),
            (1, _) => (a & 0xff00_ff00_ff00_ff00) >> 8 | (a & 0x00ff_00ff_00ff_00ff) << 8,
            (2, 64) => a.swap_bytes().rotate_right(32),
            (2, _) => u64::from((a as u32).swap_bytes()),
            (3, 64) => a.swap_bytes(),
            (4, _) => u64::from(a.leading_zeros() - (64 - width.0)),
            (5, _) => {
                let differing = a ^ width.cut(if width.sign(a) { u64::MAX } else { 0 });
                u64::from(differing.leading_zeros() - (64 - width.0)) - 1
            }
            _ => return not_emulated("this data processing"),
        },
        _ => return not_emulated("this data processing"),
    };
    r.set(rd(word), width.cut(value));
    Ok(())
}

/// MADD, MSUB, and the long and high multiplications.
fn multiply(word: u32, width: Width, a: u64, b: u64, r: &mut State<'_>) -> Result<(), EmulateError> {
    if field(word, 29, 2) != 0 {
        return Err(UNALLOCATED);
    }
    let ra = field(word, 10, 5) as u8;
    let addend = r.get(ra);
    let signed = |value: u64| i64::from(value as i32) as u64;
    let unsigned = |value: u64| u64::from(value as u32);
    let (operation, negative, wide) = (field(word, 21, 3), field(word, 15, 1) != 0, width.0 == 64);
    let product = match (operation, wide) {
        (0, _) => a.wrapping_mul(b),
        (1, true) => signed(a).wrapping_mul(signed(b)),
        (5, true) => unsigned(a).wrapping_mul(unsigned(b)),
        // SMULH and UMULH have no addend; their Ra and o0 are fixed.
        (2, true) if !negative && ra == 31 => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        (6, true) if !negative && ra == 31 => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        _ => return not_emulated("this multiplication"),
    };
    let value = if negative { addend.wrapping_sub(product) } else { addend.wrapping_add(product) };
    r.set(rd(word), width.cut(value));
    Ok(())
}
