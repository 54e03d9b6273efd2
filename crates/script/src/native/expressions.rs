//! Expressions and places.

use super::body::{Hit, Maker};
use super::emit::At;
use super::{Abi, Moment, Refusal};
use crate::ir::*;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F64, I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use trapless_isa::body::{ARGUMENTS_IN_GO, Convention, Extra, GOROUTINE, Returned};
use trapless_isa::detour::{BLOCK_OWNER, GOROUTINE_FACTOR, GOROUTINE_STACK_END};
use trapless_wire::{
    Clock, SCRIPT_BEGAN, SCRIPT_CGROUP, SCRIPT_GID, SCRIPT_PARENT, SCRIPT_PID, SCRIPT_PROCESSORS,
    SCRIPT_SEED, SCRIPT_SYMBOLS, SCRIPT_UID, THREAD_RANDOM,
};

/// In which of the registers of arguments a value of the hit is.
pub(super) fn argument_of(convention: &Convention, what: Context, at: Hit) -> Option<usize> {
    let at_return = |returned: Returned| Some(returned as usize);
    match (what, at.moment) {
        // They are in registers that bodies are not told of by these.
        (Context::Argument(_) | Context::SecondResult | Context::Call, _) if at.abi == Abi::Go => None,
        (Context::Argument(number), Moment::Entry | Moment::Inside) => {
            (usize::from(number) < convention.arguments.len()).then_some(number.into())
        }
        (Context::Register(number), Moment::Entry | Moment::Inside) => {
            convention.arguments.iter().position(|register| *register == number)
        }
        (Context::Result, Moment::Return) => at_return(Returned::Result),
        (Context::SecondResult, Moment::Return) => at_return(Returned::Second),
        (Context::Register(number), Moment::Return) if convention.results.contains(&number) => {
            convention.results.iter().position(|result| *result == number)
        }
        (Context::FloatResult | Context::FloatRegister(0), Moment::Return) => at_return(Returned::Float),
        (Context::Frame | Context::Call, Moment::Return) => at_return(Returned::Slot),
        (Context::ReturnAddress, Moment::Return) => at_return(Returned::ReturnAddress),
        _ => None,
    }
}

impl Maker<'_, '_> {
    /// An extra of the hit.
    pub(super) fn extra(&self, extra: Extra) -> Result<Value, Refusal> {
        let missing = Refusal::Missing("value on the stack");
        let first = self.common.convention.arguments.len();
        let value = self.takes.index(extra).and_then(|index| self.arguments.get(first + index as usize));
        value.copied().ok_or(missing)
    }

    /// A general register by its DWARF number, as it was at the hit.
    fn register(&mut self, number: u8) -> Result<Value, Refusal> {
        let words = self.extra(Extra::Registers)?;
        Ok(self.e.load(At(words, 8 * i32::from(number))))
    }

    /// What names a call of a goroutine's ([`goroutine_slot`](trapless_isa::detour::goroutine_slot)). Calls are followed only where the goroutine
    /// is in its register.
    fn goroutines_call(&mut self) -> Result<Value, Refusal> {
        let slot = match self.at.moment {
            Moment::Return => self.arguments[Returned::Slot as usize],
            Moment::Entry | Moment::Inside => self.extra(Extra::StackPointer)?,
        };
        let goroutine = self.register(GOROUTINE)?;
        let end = self.e.load(At(goroutine, GOROUTINE_STACK_END as i32));
        let factor = self.e.int(GOROUTINE_FACTOR as i64);
        let named = self.e.b.ins().imul(goroutine, factor);
        let named = self.e.b.ins().iadd(named, end);
        let named = self.e.b.ins().isub(named, slot);
        Ok(self.e.b.ins().bor_imm_s(named, i64::MIN))
    }

    fn shared_word(&mut self, offset: u32) -> Value {
        let at = self.e.address(self.shared(offset.into()));
        self.e.load(at)
    }

    fn context(&mut self, what: Context) -> Result<Value, Refusal> {
        let convention = self.common.convention;
        if let Some(argument) = argument_of(convention, what, self.at) {
            return Ok(self.arguments[argument]);
        }
        let refused = Refusal::Context { body: self.id, what };
        Ok(match what {
            Context::Argument(number) if self.at.abi == Abi::Go => {
                let is_there = self.at.moment != Moment::Return;
                let register =
                    ARGUMENTS_IN_GO.get(usize::from(number)).filter(|_| is_there).ok_or(refused)?;
                self.register(*register)?
            }
            Context::SecondResult if self.at.abi == Abi::Go && self.at.moment == Moment::Return => {
                self.register(ARGUMENTS_IN_GO[1])?
            }
            Context::Argument(_) | Context::Result | Context::SecondResult | Context::FloatResult => {
                return Err(refused);
            }
            Context::Call if self.at.abi == Abi::Go => self.goroutines_call()?,
            Context::Register(number) if number == convention.stack_pointer => {
                self.extra(Extra::StackPointer)?
            }
            Context::Register(number) if usize::from(number) < convention.registers.len() => {
                self.register(number)?
            }
            Context::FloatRegister(number) if number < 8 => {
                let words = self.extra(Extra::Floats)?;
                self.e.load(At(words, 8 * i32::from(number)))
            }
            Context::Register(_) | Context::FloatRegister(_) => return Err(refused),
            Context::InstructionPointer => self.extra(Extra::InstructionPointer)?,
            Context::ReturnAddress if self.at.moment == Moment::Entry => match convention.link {
                Some(link) => self.register(link)?,
                // The thread's own stack, at the stack pointer.
                None => {
                    let slot = self.extra(Extra::StackPointer)?;
                    self.e.load(At(slot, 0))
                }
            },
            Context::Frame | Context::Call if self.at.moment == Moment::Entry => {
                self.extra(Extra::StackPointer)?
            }
            Context::ReturnAddress | Context::Frame | Context::Call => return Err(refused),
            Context::Site => self.extra(Extra::Site)?,
            Context::Tid => self.extra(Extra::Tid)?,
            Context::Pid => self.shared_word(SCRIPT_PID),
            Context::ParentPid => self.shared_word(SCRIPT_PARENT),
            Context::Uid => self.shared_word(SCRIPT_UID),
            Context::Gid => self.shared_word(SCRIPT_GID),
            Context::Cgroup => self.shared_word(SCRIPT_CGROUP),
            Context::Processors => self.shared_word(SCRIPT_PROCESSORS),
            Context::Symbol(number) if usize::from(number) < self.common.program.symbols.len() => {
                self.shared_word(SCRIPT_SYMBOLS + 8 * u32::from(number))
            }
            Context::Symbol(_) => return Err(refused),
            Context::Cpu | Context::NumaNode if !self.common.convention.tells_processor => {
                self.processor_by_call(what)
            }
            Context::Cpu => {
                let processor = self.extra(Extra::Processor)?;
                self.e.b.ins().band_imm_s(processor, 0xfff)
            }
            Context::NumaNode => {
                let processor = self.extra(Extra::Processor)?;
                self.e.b.ins().ushr_imm_s(processor, 12)
            }
            Context::Time(clock) => self.time(clock)?,
            Context::Elapsed => {
                let (now, began) = (self.time(ClockKind::Boot)?, self.shared_word(SCRIPT_BEGAN));
                self.e.b.ins().isub(now, began)
            }
            Context::Duration if self.at.moment == Moment::Return => {
                let (now, entered) = (self.extra(Extra::Time)?, self.extra(Extra::Entered)?);
                let passed = self.e.b.ins().isub(now, entered);
                self.nanoseconds(ClockKind::Monotonic, passed)
            }
            Context::Duration => return Err(refused),
            Context::ThreadPointer => {
                let block = self.e.b.ins().get_pinned_reg(I64);
                self.e.load(At(block, BLOCK_OWNER as i32))
            }
            Context::Random => self.random(),
        })
    }

    /// Nanoseconds of a clock.
    pub(super) fn time(&mut self, clock: ClockKind) -> Result<Value, Refusal> {
        let ticks = self.extra(Extra::Time)?;
        let [first, base] = [0, 8].map(|word| self.shared_word(Clock::offset(clock as u32) + word));
        let passed = self.e.b.ins().isub(ticks, first);
        let passed = self.nanoseconds(clock, passed);
        Ok(self.e.b.ins().iadd(base, passed))
    }

    /// So many ticks in nanoseconds.
    fn nanoseconds(&mut self, clock: ClockKind, ticks: Value) -> Value {
        let scale = self.shared_word(Clock::offset(clock as u32) + 16);
        let low = self.e.b.ins().imul(ticks, scale);
        let high = self.e.b.ins().umulhi(ticks, scale);
        let low = self.e.b.ins().ushr_imm_s(low, 32);
        let high = self.e.b.ins().ishl_imm_s(high, 32);
        self.e.b.ins().bor(low, high)
    }

    /// SplitMix64, of a state that each thread has and a seed that nobody else knows.
    fn random(&mut self) -> Value {
        let state_at = self.e.address(self.thread(THREAD_RANDOM));
        let state = self.e.load(state_at);
        let step = self.e.int(0x9e37_79b9_7f4a_7c15_u64 as i64);
        self.e.add_word(state_at, step);
        let seed = self.shared_word(SCRIPT_SEED);
        let mixed = self.e.b.ins().iadd(state, seed);
        let mut mixed = self.e.b.ins().iadd(mixed, state_at.0);
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
            let shifted = self.e.b.ins().ushr_imm_s(mixed, shift);
            mixed = self.e.b.ins().bxor(mixed, shifted);
            let factor = self.e.int(factor as i64);
            mixed = self.e.b.ins().imul(mixed, factor);
        }
        let shifted = self.e.b.ins().ushr_imm_s(mixed, 31);
        self.e.b.ins().bxor(mixed, shifted)
    }

    /// Where so many bytes of a place are.
    pub(super) fn place(&mut self, place: &Place, size: u32) -> Result<At, Refusal> {
        let scratch = |maker: &mut Self, offset: u32| match maker.scratch {
            Some(at) => at.plus(offset),
            // Of no bytes, wherever that is.
            None => At(maker.e.int(0), 0),
        };
        Ok(match place {
            Place::Scratch(offset) => scratch(self, *offset),
            Place::Indexed { offset, size: run, index } => {
                let index = self.value(index)?;
                let index = self.clamped(index, run.saturating_sub(size).into());
                let at = scratch(self, *offset);
                At(self.e.b.ins().iadd(at.0, index), at.1)
            }
            Place::Constant(id) => self.constant(*id)?,
            Place::IndexedConstant { of, index } => {
                let length = self.common.program.constants.get(of.0 as usize).map_or(0, Vec::len) as i64;
                let index = self.value(index)?;
                let index = self.clamped(index, length.saturating_sub(size.into()));
                let at = self.constant(*of)?;
                At(self.e.b.ins().iadd(at.0, index), at.1)
            }
        })
    }

    /// An index, from 0 to the last one.
    fn clamped(&mut self, index: Value, last: i64) -> Value {
        let (zero, last) = (self.e.int(0), self.e.int(last));
        let index = self.e.b.ins().smax(index, zero);
        self.e.b.ins().smin(index, last)
    }

    /// Where a constant begins.
    fn constant(&mut self, id: ConstantId) -> Result<At, Refusal> {
        let offset = self.common.layout.constants.get(id.0 as usize).copied();
        Ok(self.e.address(self.shared(offset.ok_or(Refusal::Missing("constant of that number"))?)))
    }

    /// A scalar in memory.
    pub(super) fn scalar(&mut self, at: At, as_: Width) -> Value {
        let type_ = integer(as_.size());
        match as_ {
            Width::Float(4) => {
                let single = self.e.load_as(F32, at);
                self.e.b.ins().fpromote(F64, single)
            }
            Width::Float(_) => self.e.load_as(F64, at),
            Width::Unsigned(8) | Width::Signed(8) => self.e.load(at),
            Width::Unsigned(_) => {
                let value = self.e.load_as(type_, at);
                self.e.b.ins().uextend(I64, value)
            }
            Width::Signed(_) => {
                let value = self.e.load_as(type_, at);
                self.e.b.ins().sextend(I64, value)
            }
        }
    }

    /// Writes a scalar to memory.
    pub(super) fn store(&mut self, value: Value, at: At, as_: Width) {
        let value = match as_ {
            Width::Float(4) => self.e.b.ins().fdemote(F32, value),
            Width::Float(_) | Width::Unsigned(8) | Width::Signed(8) => value,
            _ => self.e.b.ins().ireduce(integer(as_.size()), value),
        };
        self.e.store(value, at);
    }

    /// An expression's value.
    pub(super) fn value(&mut self, expression: &Expression) -> Result<Value, Refusal> {
        Ok(match expression {
            Expression::Int(value) => self.e.int(*value),
            Expression::Float(value) => self.e.b.ins().f64const(*value),
            Expression::Local(local) => match self.locals.get(local.0 as usize) {
                Some(variable) => self.e.b.use_var(*variable),
                None => return Err(Refusal::Missing("local of that number")),
            },
            Expression::Context(what) => self.context(*what)?,
            Expression::Load { from, as_ } => {
                let at = self.place(from, as_.size())?;
                self.scalar(at, *as_)
            }
            Expression::Unary(operation, operand) => {
                let operand = self.value(operand)?;
                self.unary(*operation, operand)
            }
            Expression::Binary(operation, left, right) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                self.binary(*operation, left, right)
            }
            Expression::Select(condition, then, other) => {
                let (condition, then, other) =
                    (self.value(condition)?, self.value(then)?, self.value(other)?);
                self.e.b.ins().select(condition, then, other)
            }
        })
    }

    fn unary(&mut self, operation: Unary, x: Value) -> Value {
        let zero = |maker: &mut Self| maker.e.is_imm(IntCC::Equal, x, 0);
        match operation {
            Unary::Negate => self.e.b.ins().ineg(x),
            Unary::Not => self.e.b.ins().bnot(x),
            Unary::IsZero => {
                let is_zero = zero(self);
                self.e.b.ins().uextend(I64, is_zero)
            }
            Unary::SignExtend(bits) => {
                let low = self.e.b.ins().ireduce(integer(u32::from(bits) / 8), x);
                self.e.b.ins().sextend(I64, low)
            }
            Unary::ZeroExtend(bits) => {
                let low = self.e.b.ins().ireduce(integer(u32::from(bits) / 8), x);
                self.e.b.ins().uextend(I64, low)
            }
            Unary::SwapBytes(bits) => {
                let swapped = self.e.b.ins().bswap(x);
                self.e.b.ins().ushr_imm_s(swapped, 64 - i64::from(bits).clamp(1, 64))
            }
            Unary::LeadingZeros => self.e.b.ins().clz(x),
            Unary::FloatNegate => self.e.b.ins().fneg(x),
            Unary::ToFloat => self.e.b.ins().fcvt_from_sint(F64, x),
            Unary::UnsignedToFloat => self.e.b.ins().fcvt_from_uint(F64, x),
            Unary::ToInt => self.e.b.ins().fcvt_to_sint_sat(I64, x),
            Unary::FloatBits => self.bits(x),
            Unary::BitsFloat => self.double(x),
            Unary::SingleBitsFloat => {
                let low = self.e.b.ins().ireduce(I32, x);
                let single = self.e.b.ins().bitcast(F32, no_flags(), low);
                self.e.b.ins().fpromote(F64, single)
            }
        }
    }

    /// The bits of a double.
    pub(super) fn bits(&mut self, x: Value) -> Value {
        self.e.b.ins().bitcast(I64, no_flags(), x)
    }

    /// The double with these bits.
    pub(super) fn double(&mut self, x: Value) -> Value {
        self.e.b.ins().bitcast(F64, no_flags(), x)
    }

    fn binary(&mut self, operation: Binary, left: Value, right: Value) -> Value {
        let int = |maker: &mut Self, condition| {
            let holds = maker.e.is(condition, left, right);
            maker.e.b.ins().uextend(I64, holds)
        };
        let float = |maker: &mut Self, condition| {
            let holds = maker.e.b.ins().fcmp(condition, left, right);
            maker.e.b.ins().uextend(I64, holds)
        };
        match operation {
            Binary::Add => self.e.b.ins().iadd(left, right),
            Binary::Subtract => self.e.b.ins().isub(left, right),
            Binary::Multiply => self.e.b.ins().imul(left, right),
            Binary::Divide | Binary::Remainder => self.divide(operation == Binary::Divide, left, right),
            Binary::UnsignedDivide | Binary::UnsignedRemainder => {
                let by_zero = self.e.is_imm(IntCC::Equal, right, 0);
                let (zero, one) = (self.e.int(0), self.e.int(1));
                let divisor = self.e.b.ins().select(by_zero, one, right);
                let result = match operation {
                    Binary::UnsignedDivide => self.e.b.ins().udiv(left, divisor),
                    _ => self.e.b.ins().urem(left, divisor),
                };
                self.e.b.ins().select(by_zero, zero, result)
            }
            Binary::And => self.e.b.ins().band(left, right),
            Binary::Or => self.e.b.ins().bor(left, right),
            Binary::Xor => self.e.b.ins().bxor(left, right),
            // Cranelift's shifts take the amount modulo the type's width.
            Binary::ShiftLeft => self.e.b.ins().ishl(left, right),
            Binary::ShiftRight => self.e.b.ins().ushr(left, right),
            Binary::SignedShiftRight => self.e.b.ins().sshr(left, right),
            Binary::Equal => int(self, IntCC::Equal),
            Binary::NotEqual => int(self, IntCC::NotEqual),
            Binary::Less => int(self, IntCC::SignedLessThan),
            Binary::LessOrEqual => int(self, IntCC::SignedLessThanOrEqual),
            Binary::UnsignedLess => int(self, IntCC::UnsignedLessThan),
            Binary::UnsignedLessOrEqual => int(self, IntCC::UnsignedLessThanOrEqual),
            Binary::FloatAdd => self.e.b.ins().fadd(left, right),
            Binary::FloatSubtract => self.e.b.ins().fsub(left, right),
            Binary::FloatMultiply => self.e.b.ins().fmul(left, right),
            Binary::FloatDivide => self.e.b.ins().fdiv(left, right),
            Binary::FloatEqual => float(self, FloatCC::Equal),
            Binary::FloatNotEqual => float(self, FloatCC::NotEqual),
            Binary::FloatLess => float(self, FloatCC::LessThan),
            Binary::FloatLessOrEqual => float(self, FloatCC::LessThanOrEqual),
        }
    }

    /// A signed quotient or remainder. The divisors 0 and -1, which the instruction does not take, are looked at first.
    fn divide(&mut self, quotient: bool, left: Value, right: Value) -> Value {
        let [by_zero, by_minus] = [0, -1].map(|divisor| self.e.is_imm(IntCC::Equal, right, divisor));
        let odd = self.e.b.ins().bor(by_zero, by_minus);
        let (zero, one) = (self.e.int(0), self.e.int(1));
        let divisor = self.e.b.ins().select(odd, one, right);
        if !quotient {
            // By 1, which stands for both, nothing remains.
            return self.e.b.ins().srem(left, divisor);
        }
        let result = self.e.b.ins().sdiv(left, divisor);
        let negative = self.e.b.ins().ineg(left);
        let result = self.e.b.ins().select(by_minus, negative, result);
        self.e.b.ins().select(by_zero, zero, result)
    }
}

/// The integer type of so many bytes.
fn integer(bytes: u32) -> Type {
    match bytes {
        1 => I8,
        2 => I16,
        4 => I32,
        _ => I64,
    }
}

fn no_flags() -> cranelift_codegen::ir::MemFlagsData {
    cranelift_codegen::ir::MemFlagsData::new()
}
