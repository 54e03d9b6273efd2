//! Comparisons, and what decides branches and choices.

use super::code::Op;
use super::lower::{Known, Lower};
use super::words::*;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstructionData, Opcode, Value};

impl Lower<'_> {
    /// Compares two integers. What to look for then.
    pub(super) fn compared(&mut self, condition: IntCC, left: Value, right: Value) -> Known<Condition> {
        let bits = self.bits(left)?;
        let is_short = bits >= 32 && self.constant(right).is_some_and(|number| i16::try_from(number).is_ok());
        let signs = match condition {
            IntCC::Equal | IntCC::NotEqual if is_short => Signs::Signed,
            IntCC::SignedLessThan
            | IntCC::SignedLessThanOrEqual
            | IntCC::SignedGreaterThan
            | IntCC::SignedGreaterThanOrEqual => Signs::Signed,
            _ => Signs::Unsigned,
        };
        let of = if bits == 32 { Compared::Word } else { Compared::Doubleword };
        let operand = |lower: &mut Self, value: Value| match (bits, signs) {
            (32 | 64, _) => lower.value(value),
            (_, Signs::Signed) => lower.sign_extended(value),
            (_, Signs::Unsigned) => lower.zero_extended(value),
        };
        let left = operand(self, left)?;
        let immediate = self.constant(right).and_then(|number| match signs {
            Signs::Signed => i16::try_from(number).ok(),
            Signs::Unsigned => {
                let number = if bits == 64 { number } else { number & ((1 << bits) - 1) };
                u16::try_from(number).ok().map(|number| number as i16)
            }
        });
        match immediate {
            Some(number) => self.compare(compare_immediate(signs, of).and(number), &[left]),
            None => {
                let right = operand(self, right)?;
                self.compare(compare(signs, of), &[left, right]);
            }
        }
        use Condition::{Clear, Set};
        Ok(match condition {
            IntCC::Equal => Set(Bit::Equal),
            IntCC::NotEqual => Clear(Bit::Equal),
            IntCC::SignedLessThan | IntCC::UnsignedLessThan => Set(Bit::Less),
            IntCC::SignedGreaterThanOrEqual | IntCC::UnsignedGreaterThanOrEqual => Clear(Bit::Less),
            IntCC::SignedGreaterThan | IntCC::UnsignedGreaterThan => Set(Bit::Greater),
            IntCC::SignedLessThanOrEqual | IntCC::UnsignedLessThanOrEqual => Clear(Bit::Greater),
        })
    }

    /// Compares two floating-point numbers. What to look for then.
    pub(super) fn compared_floats(
        &mut self,
        condition: FloatCC,
        left: Value,
        right: Value,
    ) -> Known<Condition> {
        let (left, right) = (self.value(left)?, self.value(right)?);
        self.compare(COMPARE_FLOATS, &[left, right]);
        use Bit::{Equal, Greater, Less, Unordered};
        use Condition::{Clear, Set};
        let (condition, other) = match condition {
            FloatCC::Ordered => (Clear(Unordered), None),
            FloatCC::Unordered => (Set(Unordered), None),
            FloatCC::Equal => (Set(Equal), None),
            FloatCC::NotEqual => (Clear(Equal), None),
            FloatCC::OrderedNotEqual => (Set(Less), Some(Greater)),
            FloatCC::UnorderedOrEqual => (Set(Equal), Some(Unordered)),
            FloatCC::LessThan => (Set(Less), None),
            FloatCC::LessThanOrEqual => (Set(Less), Some(Equal)),
            FloatCC::GreaterThan => (Set(Greater), None),
            FloatCC::GreaterThanOrEqual => (Set(Greater), Some(Equal)),
            FloatCC::UnorderedOrLessThan => (Set(Less), Some(Unordered)),
            FloatCC::UnorderedOrLessThanOrEqual => (Clear(Greater), None),
            FloatCC::UnorderedOrGreaterThan => (Set(Greater), Some(Unordered)),
            FloatCC::UnorderedOrGreaterThanOrEqual => (Clear(Less), None),
        };
        if let (Set(bit), Some(other)) = (condition, other) {
            self.push(Op::Combine(or_bits(bit, other)), Vec::new());
        }
        Ok(condition)
    }

    /// Finds out whether a value is not 0. What to look for then.
    pub(super) fn decided(&mut self, value: Value) -> Known<Condition> {
        let mut value = value;
        // What is extended is 0 where it was before.
        while let Some(InstructionData::Unary { opcode: Opcode::Uextend | Opcode::Sextend, arg }) =
            self.maker(value)
        {
            value = *arg;
        }
        match self.maker(value) {
            Some(&InstructionData::IntCompare { opcode: Opcode::Icmp, cond, args: [left, right] })
                if self.bits(left).is_ok() =>
            {
                self.compared(cond, left, right)
            }
            Some(&InstructionData::FloatCompare { opcode: Opcode::Fcmp, cond, args: [left, right] }) => {
                self.compared_floats(cond, left, right)
            }
            _ => {
                let bits = self.bits(value)?;
                let register = self.value(value)?;
                match bits {
                    64 => self.compare(compare_immediate(Signs::Signed, Compared::Doubleword), &[register]),
                    32 => self.compare(compare_immediate(Signs::Signed, Compared::Word), &[register]),
                    16 => self.compare(test(0xffff), &[register]),
                    _ => self.compare(test(0xff), &[register]),
                }
                Ok(Condition::Clear(Bit::Equal))
            }
        }
    }
}
