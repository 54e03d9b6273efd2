//! Instructions with two integers, of which the right one may be a constant.

use super::code::Op;
use super::lower::{Known, Lower, unknown};
use super::words::*;
use cranelift_codegen::ir::{Inst, InstructionData, Opcode, Value};

/// The bits that are masks of rotates: the low ones of a word, all but those, or some of the lower half.
fn mask(number: i64) -> Option<Form> {
    let bits = number as u64;
    let (ones, zeros) = (bits.trailing_ones(), bits.trailing_zeros());
    if number == 0 || number == -1 {
        return None;
    }
    if ones > 0 && bits >> ones == 0 {
        return Some(low_bits(ones));
    }
    if (bits >> zeros) == u64::MAX >> zeros {
        return Some(without_low_bits(zeros));
    }
    let length = (bits >> zeros).trailing_ones();
    (bits >> zeros >> length == 0 && zeros + length <= 32)
        .then(|| rotate_word(0, 32 - zeros - length, 31 - zeros))
}

/// The upper and the lower 16 bits of a number of 32.
fn halves(number: i64) -> Option<(u16, u16)> {
    let number = u32::try_from(number).ok()?;
    Some(((number >> 16) as u16, number as u16))
}

impl Lower<'_> {
    pub(super) fn of_integers(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
        let bits = self.bits(left)?;
        // Where only one of them is a constant, that is the right one if their order is all the same.
        let commutes =
            matches!(opcode, Opcode::Iadd | Opcode::Imul | Opcode::Band | Opcode::Bor | Opcode::Bxor);
        let (left, right) = match (self.constant(left), self.constant(right)) {
            (Some(_), None) if commutes => (right, left),
            _ => (left, right),
        };
        match opcode {
            Opcode::Ishl | Opcode::Ushr | Opcode::Sshr | Opcode::Rotl | Opcode::Rotr => {
                return self.shift(at, opcode, left, right);
            }
            Opcode::Udiv | Opcode::Urem | Opcode::Sdiv | Opcode::Srem => {
                return self.divide(at, opcode, left, right);
            }
            Opcode::Umin | Opcode::Umax | Opcode::Smin | Opcode::Smax => {
                return self.extreme(at, opcode, left, right);
            }
            _ => {}
        }
        if opcode == Opcode::Isub
            && let Some(number) = self.constant(left).and_then(|number| i16::try_from(number).ok())
        {
            let from = self.value(right)?;
            return self.result_by(at, SUB_FROM.and(number), &[from]);
        }
        if let Some(number) = self.constant(right)
            && let Some((form, second)) = with_constant(opcode, number)
        {
            let mut from = self.value(left)?;
            if let Some(second) = second {
                from = self.plain(form, &[from]);
                return self.result_by(at, second, &[from]);
            }
            return self.result_by(at, form, &[from]);
        }
        let inverted = |lower: &Self, value: Value| match lower.maker(value) {
            Some(&InstructionData::Unary { opcode: Opcode::Bnot, arg }) => Some(arg),
            _ => None,
        };
        let with_inverted = match opcode {
            Opcode::Band => Some(AND_NOT),
            Opcode::Bor => Some(OR_NOT),
            _ => None,
        };
        if let Some(form) = with_inverted {
            let found =
                inverted(self, right).map(|of| (left, of)).or(inverted(self, left).map(|of| (right, of)));
            if let Some((plain, of)) = found {
                let from = [self.value(plain)?, self.value(of)?];
                return self.result_by(at, form, &from);
            }
        }
        let form = match opcode {
            Opcode::Iadd => ADD,
            Opcode::Isub => SUB,
            Opcode::Imul => MULTIPLY,
            Opcode::Band => AND,
            Opcode::Bor => OR,
            Opcode::Bxor => XOR,
            Opcode::Umulhi if bits == 64 => MULTIPLY_HIGH_UNSIGNED,
            Opcode::Smulhi if bits == 64 => MULTIPLY_HIGH,
            _ => return unknown(),
        };
        let from = [self.value(left)?, self.value(right)?];
        self.result_by(at, form, &from)
    }

    /// Shifts and rotates, whose amounts count modulo the bits of what is shifted.
    fn shift(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
        let bits = self.bits(left)?;
        let rotates = matches!(opcode, Opcode::Rotl | Opcode::Rotr);
        if rotates && bits < 32 {
            return unknown();
        }
        let from = match opcode {
            Opcode::Ushr => self.zero_extended(left)?,
            Opcode::Sshr => self.sign_extended(left)?,
            _ => self.value(left)?,
        };
        if let Some(amount) = self.constant(right) {
            let by = (amount as u32) & (bits - 1);
            let form = match opcode {
                Opcode::Ishl => shift_left_by(by),
                Opcode::Ushr => shift_right_by(by),
                Opcode::Sshr => shift_right_signed_by(by),
                _ => {
                    let by = if opcode == Opcode::Rotl { by } else { (bits - by) & (bits - 1) };
                    if bits == 64 { rotate_left_by(by) } else { rotate_word(by, 0, 31) }
                }
            };
            return self.result_by(at, form, &[from]);
        }
        self.bits(right)?;
        let mut amount = self.value(right)?;
        let form = match opcode {
            Opcode::Ishl => SHIFT_LEFT,
            Opcode::Ushr => SHIFT_RIGHT,
            Opcode::Sshr => SHIFT_RIGHT_SIGNED,
            _ if bits == 64 => ROTATE,
            _ => ROTATE_WORD,
        };
        if opcode == Opcode::Rotr {
            amount = self.plain(NEG, &[amount]);
        }
        if !rotates {
            amount = self.plain(low_bits(bits.trailing_zeros()), &[amount]);
        }
        self.result_by(at, form, &[from, amount])
    }

    /// The divisors that there is no quotient for are looked at before, by the code that divides.
    fn divide(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
        let (from, form) = match opcode {
            Opcode::Udiv | Opcode::Urem => {
                ([self.zero_extended(left)?, self.zero_extended(right)?], DIVIDE_UNSIGNED)
            }
            _ => ([self.sign_extended(left)?, self.sign_extended(right)?], DIVIDE),
        };
        if matches!(opcode, Opcode::Udiv | Opcode::Sdiv) {
            return self.result_by(at, form, &from);
        }
        let quotient = self.plain(form, &from);
        let product = self.plain(MULTIPLY, &[quotient, from[1]]);
        self.result_by(at, SUB, &[from[0], product])
    }

    fn extreme(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
        let (signs, from) = match opcode {
            Opcode::Umin | Opcode::Umax => {
                (Signs::Unsigned, [self.zero_extended(left)?, self.zero_extended(right)?])
            }
            _ => (Signs::Signed, [self.sign_extended(left)?, self.sign_extended(right)?]),
        };
        let bit = if matches!(opcode, Opcode::Umin | Opcode::Smin) { Bit::Less } else { Bit::Greater };
        self.compare(compare(signs, Compared::Doubleword), &from);
        let to = self.result(at)?;
        self.put(Op::Choose(Condition::Set(bit)), to, &from);
        Ok(())
    }
}

/// What is done with a constant on the right by one instruction or two; `None` where it has to be in a
/// register.
fn with_constant(opcode: Opcode, number: i64) -> Option<(Form, Option<Form>)> {
    let low = number as i16;
    let whole = |number: i64| {
        let low = number as i16;
        let high = i16::try_from((number.wrapping_sub(low.into())) >> 16).ok()?;
        Some(match (high, low) {
            (0, low) => (ADD_IMMEDIATE.and(low), None),
            (high, 0) => (ADD_SHIFTED.and(high), None),
            (high, low) => (ADD_SHIFTED.and(high), Some(ADD_IMMEDIATE.and(low))),
        })
    };
    let by_halves = |upper: Form, lower: Form| {
        Some(match halves(number)? {
            (0, low) => (lower.and(low as i16), None),
            (high, 0) => (upper.and(high as i16), None),
            (high, low) => (upper.and(high as i16), Some(lower.and(low as i16))),
        })
    };
    match opcode {
        Opcode::Iadd => whole(number),
        Opcode::Isub => whole(number.wrapping_neg()),
        Opcode::Imul => (i64::from(low) == number).then_some((MULTIPLY_IMMEDIATE.and(low), None)),
        Opcode::Bor => by_halves(OR_SHIFTED, OR_IMMEDIATE),
        Opcode::Bxor => by_halves(XOR_SHIFTED, XOR_IMMEDIATE),
        Opcode::Band => match (mask(number), halves(number)) {
            (Some(form), _) => Some((form, None)),
            (None, Some((0, low))) => Some((AND_IMMEDIATE.and(low as i16), None)),
            (None, Some((high, 0))) => Some((AND_SHIFTED.and(high as i16), None)),
            _ => None,
        },
        _ => None,
    }
}
