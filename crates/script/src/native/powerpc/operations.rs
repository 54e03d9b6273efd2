//! What each instruction of Cranelift's is in ours.
//!
//! Those are here that bodies have, and what the optimizer makes of them. Any other is refused by its name.

use super::code::{Change, Op};
use super::lower::{Known, Lower, unknown};
use super::words::*;
use cranelift_codegen::ir::types::{F32, F64};
use cranelift_codegen::ir::{AtomicRmwOp, Inst, InstructionData, Opcode, Type, Value};
use regalloc2::{Operand, RegClass, VReg};
use trapless_isa::body::Convention;

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
    /// Lowers an instruction.
    pub(super) fn instruction(&mut self, at: Inst) -> Known<()> {
        let data = self.func.dfg.insts[at];
        match data {
            // They are made where they are used.
            InstructionData::UnaryImm { opcode: Opcode::Iconst, .. }
            | InstructionData::UnaryIeee32 { .. }
            | InstructionData::UnaryIeee64 { .. }
            | InstructionData::UnaryGlobalValue { opcode: Opcode::SymbolValue, .. }
            | InstructionData::StackAddr { .. }
            | InstructionData::NullAry { opcode: Opcode::GetPinnedReg | Opcode::Nop } => {}
            InstructionData::Binary { opcode: Opcode::Iadd, .. }
                if self.place(self.func.dfg.first_result(at)).is_some() => {}
            InstructionData::NullAry { opcode: Opcode::GetStackPointer } => {
                let to = self.result(at)?;
                self.put(Op::StackPointer, to, &[]);
            }
            InstructionData::NullAry { opcode: Opcode::Fence } => self.order(SYNC),
            InstructionData::Load { opcode, arg, offset, .. } => self.load(at, opcode, arg, offset.into())?,
            InstructionData::Store { opcode, args: [value, address], offset, .. } => {
                self.store(opcode, value, address, offset.into())?;
            }
            InstructionData::LoadNoOffset { opcode: Opcode::Bitcast, arg, .. } => self.cast(at, arg)?,
            InstructionData::LoadNoOffset { opcode: Opcode::AtomicLoad, arg, .. } => {
                self.load(at, Opcode::Load, arg, 0)?;
                self.order(LIGHT_SYNC);
            }
            InstructionData::StoreNoOffset {
                opcode: Opcode::AtomicStore, args: [value, address], ..
            } => {
                self.order(LIGHT_SYNC);
                self.store(Opcode::Store, value, address, 0)?;
            }
            InstructionData::AtomicRmw { op, args: [address, operand], .. } => {
                self.update(at, op, address, operand)?;
            }
            InstructionData::AtomicCas { args: [address, expected, new], .. } => {
                if !self.is_whole(new) {
                    return unknown();
                }
                let from = [self.value(address)?, self.value(expected)?, self.value(new)?];
                self.order(LIGHT_SYNC);
                let to = self.result(at)?;
                self.put_early(Op::Exchange, to, &from);
                self.order_behind(address);
            }
            InstructionData::Call { opcode: Opcode::Call, func_ref, .. } => {
                let arguments = self.func.dfg.inst_args(at).to_vec();
                let registers =
                    Convention::of(trapless_isa::Machine::PowerPc64Le).map_or(&[][..], |of| of.arguments);
                self.call(func_ref, &arguments, registers)?;
            }
            InstructionData::IntCompare { opcode: Opcode::Icmp, cond, args: [left, right] } => {
                let condition = self.compared(cond, left, right)?;
                self.truth(at, condition)?;
            }
            InstructionData::FloatCompare { opcode: Opcode::Fcmp, cond, args: [left, right] } => {
                let condition = self.compared_floats(cond, left, right)?;
                self.truth(at, condition)?;
            }
            InstructionData::Ternary {
                opcode: Opcode::Select | Opcode::SelectSpectreGuard,
                args: [condition, then, other],
            } => self.select(at, condition, then, other)?,
            InstructionData::Ternary { opcode: Opcode::Bitselect, args: [mask, then, other] } => {
                self.bits(mask)?;
                let [mask, then, other] = [self.value(mask)?, self.value(then)?, self.value(other)?];
                let from = [self.plain(AND, &[then, mask]), self.plain(AND_NOT, &[other, mask])];
                let to = self.result(at)?;
                self.put(Op::Plain(OR), to, &from);
            }
            InstructionData::Unary { opcode, arg } => self.unary(at, opcode, arg)?,
            InstructionData::Binary { opcode, args: [left, right] } => {
                self.binary(at, opcode, left, right)?
            }
            InstructionData::Jump { .. }
            | InstructionData::Brif { .. }
            | InstructionData::MultiAry { .. } => {
                self.leave(&data)?;
            }
            _ => return unknown(),
        }
        Ok(())
    }

    /// Writes the result of an instruction by one of ours.
    fn result_by(&mut self, at: Inst, form: Form, from: &[VReg]) -> Known<()> {
        let to = self.result(at)?;
        self.put(Op::Plain(form), to, from);
        Ok(())
    }

    fn truth(&mut self, at: Inst, condition: Condition) -> Known<()> {
        let to = self.result(at)?;
        self.put(Op::Truth(condition), to, &[]);
        self.has_zeros_above(self.func.dfg.first_result(at));
        Ok(())
    }

    fn load(&mut self, at: Inst, opcode: Opcode, address: Value, offset: i32) -> Known<()> {
        let result = self.func.dfg.first_result(at);
        let type_ = self.type_of(result);
        let form = match (opcode, type_.bits()) {
            (Opcode::Load, _) if type_ == F64 => LOAD_DOUBLE,
            (Opcode::Load, _) if type_ == F32 => LOAD_SINGLE,
            (Opcode::Load, 64) if type_.is_int() => LOAD,
            (Opcode::Load, 32) | (Opcode::Uload32, _) => LOAD_WORD,
            (Opcode::Load, 16) | (Opcode::Uload16, _) => LOAD_HALF,
            (Opcode::Load, 8) | (Opcode::Uload8, _) => LOAD_BYTE,
            (Opcode::Sload32, _) => LOAD_WORD_SIGNED,
            (Opcode::Sload16, _) => LOAD_HALF_SIGNED,
            _ => return unknown(),
        };
        let (base, offset, register) = self.memory(address, offset)?;
        let to = self.result(at)?;
        self.put(Op::Load(form, base, offset), to, register.as_slice());
        if matches!(form, LOAD_WORD | LOAD_HALF | LOAD_BYTE) {
            self.has_zeros_above(result);
        }
        Ok(())
    }

    fn store(&mut self, opcode: Opcode, value: Value, address: Value, offset: i32) -> Known<()> {
        let type_ = self.type_of(value);
        let form = match (opcode, type_.bits()) {
            (Opcode::Store, _) if type_ == F64 => STORE_DOUBLE,
            (Opcode::Store, _) if type_ == F32 => STORE_SINGLE,
            (Opcode::Store, 64) if type_.is_int() => STORE,
            (Opcode::Store, 32) | (Opcode::Istore32, _) => STORE_WORD,
            (Opcode::Store, 16) | (Opcode::Istore16, _) => STORE_HALF,
            (Opcode::Store, 8) | (Opcode::Istore8, _) => STORE_BYTE,
            _ => return unknown(),
        };
        let value = self.value(value)?;
        let (base, offset, register) = self.memory(address, offset)?;
        let from = [Some(value), register].into_iter().flatten();
        self.push(Op::Store(form, base, offset), from.map(Operand::reg_use).collect());
        Ok(())
    }

    /// The bits of a number as one of the other kind.
    fn cast(&mut self, at: Inst, from: Value) -> Known<()> {
        let register = self.value(from)?;
        match (self.type_of(from), self.type_of(self.func.dfg.first_result(at))) {
            (from, F64) if from.is_int() => self.result_by(at, FLOAT_OF_BITS, &[register]),
            (F64, to) if to.is_int() => self.result_by(at, BITS_OF_FLOAT, &[register]),
            (from, F32) if from.is_int() => {
                let upper = self.plain(shift_left_by(32), &[register]);
                let upper = self.float(FLOAT_OF_BITS, &[upper]);
                self.result_by(at, SINGLE_TO_DOUBLE, &[upper])
            }
            (F32, to) if to.is_int() => {
                let upper = self.float(DOUBLE_TO_SINGLE, &[register]);
                let upper = self.plain(BITS_OF_FLOAT, &[upper]);
                self.result_by(at, shift_right_by(32), &[upper])
            }
            (from, to) if from == to => {
                self.is_in(self.func.dfg.first_result(at), register);
                Ok(())
            }
            _ => unknown(),
        }
    }

    /// What was before is ordered before it, as on the other machines, where the tool may look at what is a thread's own.
    fn update(&mut self, at: Inst, op: AtomicRmwOp, address: Value, operand: Value) -> Known<()> {
        let change = match op {
            AtomicRmwOp::Add => Change::By(ADD),
            AtomicRmwOp::And => Change::By(AND),
            AtomicRmwOp::Or => Change::By(OR),
            AtomicRmwOp::Xor => Change::By(XOR),
            AtomicRmwOp::Xchg => Change::Replace,
            _ => return unknown(),
        };
        if !self.is_whole(operand) {
            return unknown();
        }
        let from = [self.value(address)?, self.value(operand)?];
        self.order(LIGHT_SYNC);
        let to = self.result(at)?;
        self.put_early(Op::Update(change), to, &from);
        self.order_behind(address);
        Ok(())
    }

    fn select(&mut self, at: Inst, condition: Value, then: Value, other: Value) -> Known<()> {
        let is_float = self.type_of(then).is_float();
        let [then, other] = [self.value(then)?, self.value(other)?];
        let condition = self.decided(condition)?;
        let to = self.result(at)?;
        if is_float {
            let operands =
                vec![Operand::reg_reuse_def(to, 1), Operand::reg_use(other), Operand::reg_use(then)];
            self.push(Op::ChooseFloat(condition), operands);
        } else {
            self.put(Op::Choose(condition), to, &[then, other]);
        }
        Ok(())
    }

    fn unary(&mut self, at: Inst, opcode: Opcode, from: Value) -> Known<()> {
        let result = self.func.dfg.first_result(at);
        let (given, made): (Type, Type) = (self.type_of(from), self.type_of(result));
        match opcode {
            Opcode::Ireduce => {
                self.bits(from)?;
                let register = self.value(from)?;
                self.is_in(result, register);
            }
            Opcode::Uextend => {
                self.bits(result)?;
                let register = self.zero_extended(from)?;
                self.is_in(result, register);
                self.has_zeros_above(result);
            }
            Opcode::Sextend => {
                self.bits(result)?;
                let register = self.sign_extended(from)?;
                self.is_in(result, register);
            }
            Opcode::Ineg | Opcode::Bnot => {
                self.bits(from)?;
                let register = self.value(from)?;
                self.result_by(at, if opcode == Opcode::Ineg { NEG } else { NOT }, &[register])?;
            }
            Opcode::Iabs => {
                let register = self.sign_extended(from)?;
                let sign = self.plain(shift_right_signed_by(63), &[register]);
                let turned = self.plain(XOR, &[register, sign]);
                self.result_by(at, SUB, &[turned, sign])?;
            }
            Opcode::Bmask => {
                let condition = self.decided(from)?;
                let truth = self.integer(Op::Truth(condition), &[]);
                self.bits(result)?;
                self.result_by(at, NEG, &[truth])?;
            }
            Opcode::Clz if given.bits() == 64 || given.bits() == 32 => {
                let register = self.value(from)?;
                let form = if given.bits() == 64 { LEADING_ZEROS } else { LEADING_ZEROS_WORD };
                self.result_by(at, form, &[register])?;
                self.has_zeros_above(result);
            }
            Opcode::Ctz if self.is_whole(from) => {
                // The zeros in front of the ones that stand for them.
                let register = self.value(from)?;
                let less = self.plain(ADD_IMMEDIATE.and(-1), &[register]);
                let ones = self.plain(AND_NOT, &[less, register]);
                let rest = self.plain(LEADING_ZEROS, &[ones]);
                self.result_by(at, SUB_FROM.and(64), &[rest])?;
            }
            Opcode::Popcnt => {
                let register = self.zero_extended(from)?;
                self.result_by(at, POPULATION, &[register])?;
                self.has_zeros_above(result);
            }
            Opcode::Bswap => {
                let bits = self.bits(from)?;
                let register = self.value(from)?;
                if bits == 64 {
                    let to = self.result(at)?;
                    self.put_early(Op::SwapBytes, to, &[register]);
                } else {
                    let swapped = self.new_register(RegClass::Int);
                    self.put_early(Op::SwapBytes, swapped, &[register]);
                    self.result_by(at, shift_right_by(64 - bits), &[swapped])?;
                    self.has_zeros_above(result);
                }
            }
            Opcode::Fneg | Opcode::Fabs => {
                let register = self.value(from)?;
                let form = if opcode == Opcode::Fneg { FLOAT_NEGATE } else { FLOAT_ABSOLUTE };
                self.result_by(at, form, &[register])?;
            }
            Opcode::Sqrt if made == F64 => {
                let register = self.value(from)?;
                self.result_by(at, FLOAT_ROOT, &[register])?;
            }
            Opcode::Fpromote if (given, made) == (F32, F64) => {
                // A signalling NaN stays one where nothing is calculated with it.
                let register = self.value(from)?;
                self.is_in(result, register);
            }
            Opcode::Fdemote if (given, made) == (F64, F32) => {
                let register = self.value(from)?;
                self.result_by(at, FLOAT_ROUND, &[register])?;
            }
            Opcode::FcvtFromSint | Opcode::FcvtFromUint if made == F64 => {
                let (register, form) = match opcode {
                    Opcode::FcvtFromSint => (self.sign_extended(from)?, FLOAT_FROM_SIGNED),
                    _ => (self.zero_extended(from)?, FLOAT_FROM_UNSIGNED),
                };
                let bits = self.float(FLOAT_OF_BITS, &[register]);
                self.result_by(at, form, &[bits])?;
            }
            Opcode::FcvtToSintSat if given.is_float() && self.is_whole(result) => {
                let register = self.value(from)?;
                let bits = self.float(FLOAT_TO_SIGNED, &[register]);
                let number = self.plain(BITS_OF_FLOAT, &[bits]);
                self.compare(COMPARE_FLOATS, &[register, register]);
                let to = self.result(at)?;
                self.put(Op::OrNothing, to, &[number]);
            }
            _ => return unknown(),
        }
        Ok(())
    }

    fn binary(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
        let form = match opcode {
            Opcode::Fadd => FLOAT_ADD,
            Opcode::Fsub => FLOAT_SUB,
            Opcode::Fmul => FLOAT_MULTIPLY,
            Opcode::Fdiv => FLOAT_DIVIDE,
            _ => return self.of_integers(at, opcode, left, right),
        };
        if self.type_of(left) != F64 {
            return unknown();
        }
        let from = [self.value(left)?, self.value(right)?];
        self.result_by(at, form, &from)
    }

    fn of_integers(&mut self, at: Inst, opcode: Opcode, left: Value, right: Value) -> Known<()> {
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

/// What is done with a constant on the right by one instruction or two; `None` where it has to be in a register.
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
