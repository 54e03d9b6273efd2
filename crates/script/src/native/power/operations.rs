//! What each instruction of Cranelift's is in ours.
//!
//! Those are here that bodies have, and what the optimizer makes of them. Any other is refused by its name.

use super::code::{Change, Op};
use super::lower::{Known, Lower, unknown};
use super::words::*;
use cranelift_codegen::ir::types::{F32, F64};
use cranelift_codegen::ir::{AtomicRmwOp, Inst, InstructionData, Opcode, Type, Value};
use regalloc2::{Operand, RegClass, VReg};

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
                self.call(func_ref, &arguments)?;
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
    pub(super) fn result_by(&mut self, at: Inst, form: Form, from: &[VReg]) -> Known<()> {
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

    /// What was before is ordered before it, as on the other machines, where the tool may look at what is a
    /// thread's own.
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
}
