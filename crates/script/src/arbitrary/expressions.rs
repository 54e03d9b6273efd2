//! Random scalars and places.

use super::{FLOATS, INTS, Maker, WORK};
use crate::ir::*;

/// Integers at which something changes.
const INTEGERS: [i64; 22] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    10,
    63,
    64,
    65,
    127,
    128,
    255,
    4096,
    -128,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
];

/// Doubles at which something changes.
const DOUBLES: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    1e-310,
    1e300,
    -1e300,
    9.3e18,
    -9.3e18,
    4_294_967_296.5,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::MIN_POSITIVE,
];

const INT_WIDTHS: [Width; 8] = [
    Width::Unsigned(1),
    Width::Unsigned(2),
    Width::Unsigned(4),
    Width::Unsigned(8),
    Width::Signed(1),
    Width::Signed(2),
    Width::Signed(4),
    Width::Signed(8),
];

const INT_UNARY: [Unary; 13] = [
    Unary::Negate,
    Unary::Not,
    Unary::IsZero,
    Unary::SignExtend(8),
    Unary::SignExtend(16),
    Unary::SignExtend(32),
    Unary::ZeroExtend(8),
    Unary::ZeroExtend(16),
    Unary::ZeroExtend(32),
    Unary::SwapBytes(16),
    Unary::SwapBytes(32),
    Unary::SwapBytes(64),
    Unary::LeadingZeros,
];

/// The operations on two integers.
pub const INT_BINARY: [Binary; 19] = [
    Binary::Add,
    Binary::Subtract,
    Binary::Multiply,
    Binary::Divide,
    Binary::UnsignedDivide,
    Binary::Remainder,
    Binary::UnsignedRemainder,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRight,
    Binary::SignedShiftRight,
    Binary::Equal,
    Binary::NotEqual,
    Binary::Less,
    Binary::LessOrEqual,
    Binary::UnsignedLess,
    Binary::UnsignedLessOrEqual,
];

const FLOAT_COMPARE: [Binary; 4] =
    [Binary::FloatEqual, Binary::FloatNotEqual, Binary::FloatLess, Binary::FloatLessOrEqual];

const FLOAT_BINARY: [Binary; 4] =
    [Binary::FloatAdd, Binary::FloatSubtract, Binary::FloatMultiply, Binary::FloatDivide];

impl Maker<'_> {
    pub(super) fn width(&mut self) -> Width {
        self.random.pick(&INT_WIDTHS).unwrap_or(Width::Unsigned(8))
    }

    pub(super) fn float_width(&mut self) -> Width {
        Width::Float(if self.random.below(2) == 0 { 4 } else { 8 })
    }

    pub(super) fn int_local(&mut self) -> LocalId {
        LocalId(self.random.below(INTS))
    }

    pub(super) fn float_local(&mut self) -> LocalId {
        LocalId(INTS + self.random.below(FLOATS))
    }

    pub(super) fn integer(&mut self) -> i64 {
        match self.random.below(4) {
            0 => self.random.word() as i64,
            1 => i64::from(self.random.below(16)),
            _ => self.random.pick(&INTEGERS).unwrap_or(0),
        }
    }

    pub(super) fn int(&mut self, depth: u32) -> Expression {
        let choice = if depth > 3 { self.random.below(4) } else { self.random.below(12) };
        match choice {
            0 => Expression::Int(self.integer()),
            1 => match self.random.pick(&self.options.contexts) {
                Some(what) => Expression::Context(what),
                None => Expression::Local(self.int_local()),
            },
            2 | 3 => Expression::Local(self.int_local()),
            4 | 5 => {
                let as_ = self.width();
                Expression::Load { from: self.readable(as_.size(), depth + 1), as_ }
            }
            6 => {
                let operation = self.random.pick(&INT_UNARY).unwrap_or(Unary::Not);
                Expression::Unary(operation, Box::new(self.int(depth + 1)))
            }
            7 => Expression::Select(
                Box::new(self.int(depth + 1)),
                Box::new(self.int(depth + 1)),
                Box::new(self.int(depth + 1)),
            ),
            8 => match self.random.below(3) {
                // The bits of locals are looked at, as these are numbers.
                0 => Expression::Unary(Unary::FloatBits, Box::new(Expression::Local(self.float_local()))),
                1 => Expression::Unary(Unary::ToInt, Box::new(self.float(depth + 1))),
                _ => {
                    let operation = self.random.pick(&FLOAT_COMPARE).unwrap_or(Binary::FloatLess);
                    let (left, right) = (self.float(depth + 1), self.float(depth + 1));
                    Expression::Binary(operation, Box::new(left), Box::new(right))
                }
            },
            _ => {
                let operation = self.random.pick(&INT_BINARY).unwrap_or(Binary::Add);
                let (left, right) = (self.int(depth + 1), self.int(depth + 1));
                Expression::Binary(operation, Box::new(left), Box::new(right))
            }
        }
    }

    /// A double, which may be no number.
    pub(super) fn float(&mut self, depth: u32) -> Expression {
        let choice = if depth > 3 { self.random.below(3) } else { self.random.below(9) };
        match choice {
            0 => Expression::Float(self.random.pick(&DOUBLES).unwrap_or(0.0)),
            1 | 2 => Expression::Local(self.float_local()),
            3 => {
                let as_ = self.float_width();
                Expression::Load { from: self.readable(as_.size(), depth + 1), as_ }
            }
            4 => Expression::Unary(Unary::FloatNegate, Box::new(self.float(depth + 1))),
            5 => {
                let operation = self
                    .random
                    .pick(&[Unary::ToFloat, Unary::UnsignedToFloat, Unary::BitsFloat, Unary::SingleBitsFloat])
                    .unwrap_or(Unary::ToFloat);
                Expression::Unary(operation, Box::new(self.int(depth + 1)))
            }
            6 => Expression::Select(
                Box::new(self.int(depth + 1)),
                Box::new(self.float(depth + 1)),
                Box::new(self.float(depth + 1)),
            ),
            _ => {
                let operation = self.random.pick(&FLOAT_BINARY).unwrap_or(Binary::FloatAdd);
                let (left, right) = (self.float(depth + 1), self.float(depth + 1));
                Expression::Binary(operation, Box::new(left), Box::new(right))
            }
        }
    }

    /// Bytes of scratch, at most 32, or of a constant.
    pub(super) fn readable(&mut self, size: u32, depth: u32) -> Place {
        if self.random.below(4) == 0 {
            let fits = (0..).map(ConstantId).zip(&self.program.constants);
            let fits: Vec<ConstantId> =
                fits.filter(|(_, bytes)| bytes.len() >= size as usize).map(|(id, _)| id).collect();
            if let Some(id) = self.random.pick(&fits) {
                if self.random.below(2) == 0 && depth < 4 {
                    return Place::IndexedConstant { of: id, index: Box::new(self.int(depth + 1)) };
                }
                return Place::Constant(id);
            }
        }
        let run = self.random.below(3);
        self.writable(run, size, depth)
    }

    /// Bytes of one of the three runs of scratch.
    pub(super) fn writable(&mut self, run: u32, size: u32, depth: u32) -> Place {
        let length = WORK / 3;
        let (start, spare) = (run * length, length.saturating_sub(size));
        if self.random.below(3) == 0 && depth < 4 {
            let index = Box::new(self.int(depth + 1));
            return Place::Indexed { offset: start, size: length, index };
        }
        Place::Scratch(start + self.random.below(spare + 1))
    }
}
