//! Expressions. Integers and doubles are both held in 64 bits; verification has settled which is which.

use super::Run;
use super::bytes::{Frame, load};
use crate::ir::*;

impl Run<'_, '_> {
    /// The value of an expression: an integer, or the bits of a double. Recursion is as deep as expressions are nested, which verification
    /// bounds.
    pub(super) fn value(&mut self, expression: &Expression) -> u64 {
        match expression {
            Expression::Int(value) => *value as u64,
            Expression::Float(value) => value.to_bits(),
            Expression::Local(local) => self.frame.get(*local),
            Expression::Context(what) => self.host.hit.context(*what),
            Expression::Load { from, as_ } => load(self.bytes(from, as_.size()), *as_),
            Expression::Unary(operation, operand) => unary(*operation, self.value(operand)),
            Expression::Binary(operation, left, right) => {
                let left = self.value(left);
                let right = self.value(right);
                binary(*operation, left, right)
            }
            Expression::Select(condition, then, other) => {
                let chosen = if self.value(condition) != 0 { then } else { other };
                self.value(chosen)
            }
        }
    }

    /// How far into scratch a place is, for so many bytes. `None` for constants.
    pub(super) fn offset(&mut self, place: &Place, size: u32) -> Option<usize> {
        match place {
            Place::Scratch(offset) => Some(*offset as usize),
            Place::Indexed { offset, size: run, index } => {
                let last = i64::from(run.saturating_sub(size));
                let index = (self.value(index) as i64).clamp(0, last);
                Some(*offset as usize + index as usize)
            }
            Place::Constant(_) | Place::IndexedConstant { .. } => None,
        }
    }

    /// The bytes of a place.
    pub(super) fn bytes(&mut self, place: &Place, size: u32) -> &[u8] {
        let (program, size) = (self.program, size as usize);
        let constant = |id: &ConstantId| program.constants.get(id.0 as usize).map(Vec::as_slice);
        if let Place::IndexedConstant { of, index } = place {
            let bytes = constant(of).unwrap_or_default();
            let last = bytes.len().saturating_sub(size) as i64;
            let index = (self.value(index) as i64).clamp(0, last) as usize;
            return bytes.get(index..index + size).unwrap_or_default();
        }
        let found = match (place, self.offset(place, size as u32)) {
            (Place::Constant(id), _) => constant(id).and_then(|constant| constant.get(..size)),
            (_, Some(offset)) => self.frame.scratch.get(offset..offset + size),
            (_, None) => None,
        };
        found.unwrap_or_default()
    }

    /// Writes the bytes of a place.
    pub(super) fn write(&mut self, place: &Place, bytes: &[u8]) {
        let Ok(size) = u32::try_from(bytes.len()) else { return };
        let Some(offset) = self.offset(place, size) else { return };
        if let Some(scratch) = self.frame.scratch.get_mut(offset..offset + bytes.len()) {
            scratch.copy_from_slice(bytes);
        }
    }
}

impl Frame {
    pub(super) fn new(body: &Body) -> Frame {
        Frame { locals: vec![0; body.locals.len()], scratch: vec![0; body.scratch as usize] }
    }

    pub(super) fn get(&self, local: LocalId) -> u64 {
        self.locals.get(local.0 as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, local: LocalId, value: u64) {
        if let Some(local) = self.locals.get_mut(local.0 as usize) {
            *local = value;
        }
    }
}

fn float(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn unary(operation: Unary, x: u64) -> u64 {
    match operation {
        Unary::Negate => x.wrapping_neg(),
        Unary::Not => !x,
        Unary::IsZero => (x == 0).into(),
        Unary::SignExtend(bits) => {
            let above = 64_u32.saturating_sub(bits.into());
            (((x << above.min(63)) as i64) >> above.min(63)) as u64
        }
        Unary::ZeroExtend(bits) => {
            let above = 64_u32.saturating_sub(bits.into());
            (x << above.min(63)) >> above.min(63)
        }
        Unary::SwapBytes(bits) => x.swap_bytes() >> 64_u32.saturating_sub(bits.into()).min(63),
        Unary::LeadingZeros => x.leading_zeros().into(),
        Unary::FloatNegate => (-float(x)).to_bits(),
        Unary::ToFloat => (x as i64 as f64).to_bits(),
        Unary::UnsignedToFloat => (x as f64).to_bits(),
        Unary::ToInt => float(x) as i64 as u64,
        Unary::FloatBits | Unary::BitsFloat => x,
        Unary::SingleBitsFloat => f64::from(f32::from_bits(x as u32)).to_bits(),
    }
}

fn binary(operation: Binary, left: u64, right: u64) -> u64 {
    let (signed_left, signed_right) = (left as i64, right as i64);
    let (float_left, float_right) = (float(left), float(right));
    match operation {
        Binary::Add => left.wrapping_add(right),
        Binary::Subtract => left.wrapping_sub(right),
        Binary::Multiply => left.wrapping_mul(right),
        Binary::Divide if right == 0 => 0,
        Binary::Divide => signed_left.wrapping_div(signed_right) as u64,
        Binary::UnsignedDivide => left.checked_div(right).unwrap_or(0),
        Binary::Remainder if right == 0 => 0,
        Binary::Remainder => signed_left.wrapping_rem(signed_right) as u64,
        Binary::UnsignedRemainder => left.checked_rem(right).unwrap_or(0),
        Binary::And => left & right,
        Binary::Or => left | right,
        Binary::Xor => left ^ right,
        Binary::ShiftLeft => left << (right & 63),
        Binary::ShiftRight => left >> (right & 63),
        Binary::SignedShiftRight => (signed_left >> (right & 63)) as u64,
        Binary::Equal => (left == right).into(),
        Binary::NotEqual => (left != right).into(),
        Binary::Less => (signed_left < signed_right).into(),
        Binary::LessOrEqual => (signed_left <= signed_right).into(),
        Binary::UnsignedLess => (left < right).into(),
        Binary::UnsignedLessOrEqual => (left <= right).into(),
        Binary::FloatAdd => (float_left + float_right).to_bits(),
        Binary::FloatSubtract => (float_left - float_right).to_bits(),
        Binary::FloatMultiply => (float_left * float_right).to_bits(),
        Binary::FloatDivide => (float_left / float_right).to_bits(),
        Binary::FloatEqual => (float_left == float_right).into(),
        Binary::FloatNotEqual => (float_left != float_right).into(),
        Binary::FloatLess => (float_left < float_right).into(),
        Binary::FloatLessOrEqual => (float_left <= float_right).into(),
    }
}
