//! How values come into registers: constants and addresses where they are used, others from where they were
//! made.

use super::super::emit::hole;
use super::code::{Base, Kept, Op};
use super::lower::{Known, Lower, Made, Refused, unknown};
use super::words::*;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{ExternalName, GlobalValueData, InstructionData, Opcode, Value, ValueDef};
use regalloc2::{RegClass, VReg};
use trapless_isa::body::Hole;

impl Lower<'_> {
    /// The instruction that makes a value.
    pub(super) fn maker(&self, value: Value) -> Option<&InstructionData> {
        match self.func.dfg.value_def(value) {
            ValueDef::Result(at, 0) => Some(&self.func.dfg.insts[at]),
            _ => None,
        }
    }

    /// What a constant is, of which the bits above its own are copies of its sign.
    pub(super) fn constant(&self, value: Value) -> Option<i64> {
        let InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } = self.maker(value)? else {
            return None;
        };
        let above = 64 - self.type_of(value).bits().min(64);
        Some(imm.bits() << above >> above)
    }

    /// A number in a register.
    pub(super) fn number(&mut self, number: i64) -> VReg {
        if let Some(known) = self.here.get(&Made::Constant(number)) {
            return *known;
        }
        let register = if super::emit::steps(number) <= 3 {
            self.integer(Op::Constant(number), &[])
        } else {
            let place = self.kept(Kept::Bits(number as u64));
            self.integer(Op::Kept(place), &[])
        };
        self.here.insert(Made::Constant(number), register);
        register
    }

    /// The register of a value.
    pub(super) fn value(&mut self, value: Value) -> Known<VReg> {
        if let Some(number) = self.constant(value) {
            return Ok(self.number(number));
        }
        let made = match self.maker(value) {
            Some(InstructionData::UnaryIeee64 { imm, .. }) => Made::Float(imm.bits()),
            Some(InstructionData::UnaryIeee32 { imm, .. }) => {
                Made::Float(f64::from(f32::from_bits(imm.bits())).to_bits())
            }
            Some(InstructionData::UnaryGlobalValue { .. }) => Made::Value(value),
            _ if self.place(value).is_some() => Made::Value(value),
            _ => {
                let known = self.values.get(&value).copied();
                return known.ok_or(Refused::Here(": a value from elsewhere"));
            }
        };
        if let Some(known) = self.here.get(&made) {
            return Ok(*known);
        }
        let register = match made {
            Made::Float(bits) => {
                let place = self.kept(Kept::Bits(bits));
                let to = self.new_register(RegClass::Float);
                self.put(Op::Kept(place), to, &[]);
                to
            }
            _ => self.address_of(value)?,
        };
        self.here.insert(made, register);
        Ok(register)
    }

    fn address_of(&mut self, value: Value) -> Known<VReg> {
        if let Some(hole) = self.symbol(value)? {
            let place = self.kept(Kept::Hole(hole));
            return Ok(self.integer(Op::Kept(place), &[]));
        }
        let (base, offset) = self.place(value).ok_or(Refused::Here(""))?;
        Ok(self.integer(Op::Address(base, offset), &[]))
    }

    /// What a value is the address of that only the target knows.
    fn symbol(&self, value: Value) -> Known<Option<Hole>> {
        let Some(InstructionData::UnaryGlobalValue { opcode: Opcode::SymbolValue, global_value }) =
            self.maker(value)
        else {
            return Ok(None);
        };
        match &self.func.global_values[*global_value] {
            GlobalValueData::Symbol { name: ExternalName::User(name), offset, tls: false, .. } => {
                Ok(Some(hole(self.func, *name, offset.bits())))
            }
            _ => unknown(),
        }
    }

    /// An address as a sum of another one and a constant that loads and stores add by themselves.
    fn sum(&self, address: Value, offset: i32) -> Option<(Value, i32)> {
        let Some(InstructionData::Binary { opcode: Opcode::Iadd, args: [left, right] }) = self.maker(address)
        else {
            return None;
        };
        let (base, number) = match (self.constant(*left), self.constant(*right)) {
            (_, Some(number)) => (*left, number),
            (Some(number), _) => (*right, number),
            _ => return None,
        };
        let sum = i16::try_from(number.checked_add(offset.into())?).ok()?;
        (self.type_of(base) == I64).then_some((base, sum.into()))
    }

    /// Where a value is the address of, if that is told by registers that are always there.
    pub(super) fn place(&self, value: Value) -> Option<(Base, i32)> {
        if let Some((base, offset)) = self.sum(value, 0) {
            let (base, start) = self.place(base)?;
            return Some((base, start.checked_add(offset)?));
        }
        match self.maker(value)? {
            InstructionData::StackAddr { opcode: Opcode::StackAddr, stack_slot, offset } => {
                let start = i32::try_from(*self.slots.get(stack_slot)?).ok()?;
                Some((Base::Slots, start.checked_add((*offset).into())?))
            }
            InstructionData::NullAry { opcode: Opcode::GetPinnedReg } => Some((Base::Block, 0)),
            _ => None,
        }
    }

    /// How memory is reached at a distance from an address.
    pub(super) fn memory(&mut self, address: Value, offset: i32) -> Known<(Base, i32, Option<VReg>)> {
        let (mut address, mut offset) = (address, offset);
        while let Some(sum) = self.sum(address, offset) {
            (address, offset) = sum;
        }
        if let Some((base, start)) = self.place(address)
            && let Some(sum) = start.checked_add(offset)
        {
            return Ok((base, sum, None));
        }
        Ok((Base::Register, offset, Some(self.value(address)?)))
    }

    /// An integer with zeros above its bits.
    pub(super) fn zero_extended(&mut self, value: Value) -> Known<VReg> {
        let bits = self.bits(value)?;
        if let Some(number) = self.constant(value) {
            return Ok(self.number(if bits == 64 { number } else { number & ((1 << bits) - 1) }));
        }
        let register = self.value(value)?;
        if bits == 64 || self.extended.contains(&value) {
            return Ok(register);
        }
        Ok(self.plain(low_bits(bits), &[register]))
    }

    /// An integer with copies of its sign above its bits.
    pub(super) fn sign_extended(&mut self, value: Value) -> Known<VReg> {
        let register = self.value(value)?;
        Ok(match self.bits(value)? {
            _ if self.constant(value).is_some() => register,
            64 => register,
            32 => self.plain(EXTEND_WORD, &[register]),
            16 => self.plain(EXTEND_HALF, &[register]),
            _ => self.plain(EXTEND_BYTE, &[register]),
        })
    }
}
