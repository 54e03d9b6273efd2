//! From Cranelift's IR to instructions.
//!
//! # What registers hold
//!
//! An integer of fewer than 64 bits is in the low bits of its register; what is above may be anything. Whoever needs it extends it first. Loads and
//! comparisons leave zeros there, which is remembered. A floating-point number of 32 bits is held as one of 64.
//!
//! # Order
//!
//! Blocks are taken in reverse postorder, in which each is behind those that dominate it, so that what it uses has a register. Comparisons are made
//! once more where their result decides a branch or a choice, and constants in each block that uses them: what is not needed then is left out
//! ([`Code::new`]). cr0 is never held for longer than from one instruction to the next, between which regalloc2 may put moves.

use super::super::Refusal;
use super::super::emit::hole;
use super::code::{Base, Code, Edge, Filled, Instruction, Kept, Op, Place, general};
use super::words::*;
use cranelift_codegen::Context;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{
    self, Block, BlockCall, ExternalName, Function, GlobalValueData, InstructionData, Opcode, Type, Value,
    ValueDef,
};
use regalloc2::{Operand, RegClass, VReg};
use std::collections::{HashMap, HashSet};
use trapless_isa::body::Hole;

/// A piece in instructions.
pub(super) struct Lowered {
    pub(super) code: Code,
    /// What lies behind it.
    pub(super) kept: Vec<Kept>,
    /// Bytes that it has on its stack for itself.
    pub(super) slots: u32,
}

/// Lowers a function that was optimized. `arguments`: the registers of its first ones. `is_own`: all that it changes is the thread's own.
pub(super) fn lower(context: &Context, arguments: &[u8], is_own: bool) -> Result<Lowered, Refusal> {
    let func = &context.func;
    let order: Vec<Block> = context.domtree.cfg_rpo().copied().collect();
    let mut slots = HashMap::new();
    let mut end = 0u32;
    for (slot, data) in func.sized_stack_slots.iter() {
        end = end.next_multiple_of(1 << data.align_shift);
        slots.insert(slot, end);
        end += data.size;
    }
    let mut lower = Lower {
        func,
        is_own,
        slots,
        values: HashMap::new(),
        extended: HashSet::new(),
        here: HashMap::new(),
        now: Filled::default(),
        registers: 0,
        kept: Vec::new(),
    };
    for &block in &order {
        for &value in func.dfg.block_params(block) {
            lower.define(value)?;
        }
    }
    let mut blocks = Vec::new();
    for (index, &block) in order.iter().enumerate() {
        lower.here.clear();
        let parameters = func.dfg.block_params(block);
        if index == 0 {
            lower.start(parameters, arguments);
        } else {
            lower.now.parameters = parameters.iter().map(|value| lower.values[value]).collect();
        }
        for at in func.layout.block_insts(block) {
            lower.instruction(at).map_err(|refused| match refused {
                Refused::Here(what) => {
                    Refusal::Compiler(format!("no code for {}{what}", func.dfg.display_inst(at)))
                }
                Refused::Other(refusal) => refusal,
            })?;
        }
        blocks.push(std::mem::take(&mut lower.now));
    }
    let blocks = connected(blocks, &order);
    let code = Code::new(blocks, lower.registers)?;
    Ok(Lowered { code, kept: lower.kept, slots: end.next_multiple_of(8) })
}

/// Turns edges, which name blocks of the function, to such that name blocks by their places, with one of its own for each that leads from one of
/// several successors to one of several predecessors. That lies behind where it comes from.
fn connected(blocks: Vec<Filled>, order: &[Block]) -> Vec<Filled> {
    let mut predecessors = HashMap::new();
    for edge in blocks.iter().flat_map(|block| &block.edges) {
        *predecessors.entry(edge.to.index()).or_insert(0u32) += 1;
    }
    let is_critical = |block: &Filled, edge: &Edge| {
        block.edges.len() > 1 && (predecessors[&edge.to.index()] > 1 || !edge.with.is_empty())
    };
    let mut places = HashMap::new();
    let mut next = 0;
    for (block, name) in blocks.iter().zip(order) {
        places.insert(name.as_u32() as usize, regalloc2::Block::new(next));
        next += 1 + block.edges.iter().filter(|edge| is_critical(block, edge)).count();
    }
    let mut all: Vec<Filled> = Vec::with_capacity(next);
    for mut block in blocks {
        let mut between = Vec::new();
        let critical: Vec<bool> = block.edges.iter().map(|edge| is_critical(&block, edge)).collect();
        for (edge, is_critical) in block.edges.iter_mut().zip(critical) {
            edge.to = places[&edge.to.index()];
            if is_critical {
                let own = regalloc2::Block::new(all.len() + 1 + between.len());
                between.push(Filled::jump(std::mem::replace(edge, Edge { to: own, with: Vec::new() })));
            }
        }
        all.push(block);
        all.extend(between);
    }
    all
}

/// Why an instruction has no code.
pub(super) enum Refused {
    /// It is not known, or not so.
    Here(&'static str),
    Other(Refusal),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Other(refusal)
    }
}

pub(super) type Known<T> = Result<T, Refused>;

/// That an instruction is not known.
pub(super) fn unknown<T>() -> Known<T> {
    Err(Refused::Here(""))
}

/// What comes in registers of its own in each block that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Made {
    Constant(i64),
    /// A floating-point number by the bits of the 64 that it is held as.
    Float(u64),
    Value(Value),
}

/// A function that is being lowered.
pub(super) struct Lower<'a> {
    pub(super) func: &'a Function,
    is_own: bool,
    slots: HashMap<ir::StackSlot, u32>,
    values: HashMap<Value, VReg>,
    /// Values above whose bits there are zeros in their registers.
    extended: HashSet<Value>,
    /// What the block has made already.
    here: HashMap<Made, VReg>,
    now: Filled,
    registers: usize,
    kept: Vec<Kept>,
}

impl Lower<'_> {
    pub(super) fn new_register(&mut self, class: RegClass) -> VReg {
        self.registers += 1;
        VReg::new(self.registers - 1, class)
    }

    pub(super) fn type_of(&self, value: Value) -> Type {
        self.func.dfg.value_type(value)
    }

    /// How many bits an integer has: 8 to 64.
    pub(super) fn bits(&self, value: Value) -> Known<u32> {
        let type_ = self.type_of(value);
        if type_.is_int() && type_.bits() <= 64 { Ok(type_.bits()) } else { Err(Refused::Here(": a type")) }
    }

    /// The register of a value that is written.
    fn define(&mut self, value: Value) -> Result<VReg, Refusal> {
        let type_ = self.type_of(value);
        let class = match type_ {
            _ if type_.is_int() && type_.bits() <= 64 => RegClass::Int,
            ir::types::F32 | ir::types::F64 => RegClass::Float,
            _ => return Err(Refusal::Compiler(format!("no code for values of {type_}"))),
        };
        let register = self.new_register(class);
        self.values.insert(value, register);
        Ok(register)
    }

    /// Says that a value is in a register already.
    pub(super) fn is_in(&mut self, value: Value, register: VReg) {
        self.values.insert(value, register);
    }

    pub(super) fn has_zeros_above(&mut self, value: Value) {
        self.extended.insert(value);
    }

    pub(super) fn push(&mut self, op: Op, operands: Vec<Operand>) {
        self.now.instructions.push(Instruction { op, operands });
    }

    /// An instruction that writes a register from others. Any of these may be the same one.
    pub(super) fn put(&mut self, op: Op, to: VReg, from: &[VReg]) {
        let from = from.iter().map(|from| Operand::reg_use(*from));
        self.push(op, [Operand::reg_def(to)].into_iter().chain(from).collect());
    }

    /// The same where what is written is another one than all that is read: it is written before the last one is read.
    pub(super) fn put_early(&mut self, op: Op, to: VReg, from: &[VReg]) {
        let from = from.iter().map(|from| Operand::reg_use(*from));
        self.push(op, [Operand::reg_def_at_start(to)].into_iter().chain(from).collect());
    }

    /// A new integer.
    pub(super) fn integer(&mut self, op: Op, from: &[VReg]) -> VReg {
        let to = self.new_register(RegClass::Int);
        self.put(op, to, from);
        to
    }

    /// A new integer, by one instruction.
    pub(super) fn plain(&mut self, form: Form, from: &[VReg]) -> VReg {
        self.integer(Op::Plain(form), from)
    }

    /// A new floating-point number, by one instruction.
    pub(super) fn float(&mut self, form: Form, from: &[VReg]) -> VReg {
        let to = self.new_register(RegClass::Float);
        self.put(Op::Plain(form), to, from);
        to
    }

    pub(super) fn compare(&mut self, form: Form, of: &[VReg]) {
        self.push(Op::Compare(form), of.iter().map(|of| Operand::reg_use(*of)).collect());
    }

    pub(super) fn kept(&mut self, what: Kept) -> Place {
        let found = self.kept.iter().position(|kept| *kept == what);
        Place(found.unwrap_or_else(|| {
            self.kept.push(what);
            self.kept.len() - 1
        }))
    }

    /// The arguments, of which the first are in registers.
    fn start(&mut self, parameters: &[Value], registers: &[u8]) {
        let in_registers = parameters.iter().zip(registers);
        let operands: Vec<Operand> = in_registers
            .map(|(value, register)| Operand::reg_fixed_def(self.values[value], general(*register)))
            .collect();
        self.push(Op::Arguments, operands);
        for (value, offset) in parameters.iter().skip(registers.len()).zip((0..).step_by(8)) {
            self.put(Op::Load(LOAD, Base::Passed, offset), self.values[value], &[]);
        }
    }

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

    /// Where a block goes, with what.
    fn edge(&mut self, call: &BlockCall) -> Known<Edge> {
        let pool = &self.func.dfg.value_lists;
        let arguments: Vec<_> = call.args(pool).collect();
        let to = regalloc2::Block::new(call.block(pool).as_u32() as usize);
        let with = arguments.into_iter().map(|argument| match argument {
            ir::BlockArg::Value(value) => self.value(value),
            _ => unknown(),
        });
        Ok(Edge { to, with: with.collect::<Known<_>>()? })
    }

    pub(super) fn leave(&mut self, data: &InstructionData) -> Known<()> {
        match data {
            InstructionData::Jump { opcode: Opcode::Jump, destination } => {
                let edge = self.edge(destination)?;
                self.now.edges.push(edge);
                self.push(Op::Jump, Vec::new());
            }
            InstructionData::Brif { opcode: Opcode::Brif, arg, blocks } => {
                for block in blocks {
                    let edge = self.edge(block)?;
                    self.now.edges.push(edge);
                }
                let condition = self.decided(*arg)?;
                self.push(Op::Branch(condition), Vec::new());
            }
            InstructionData::MultiAry { opcode: Opcode::Return, args } if args.is_empty() => {
                self.push(Op::Return, Vec::new());
            }
            _ => return unknown(),
        }
        Ok(())
    }

    /// Orders what was before with what comes next. A barrier that follows another one is left out, or replaces a lighter one.
    pub(super) fn order(&mut self, barrier: Form) {
        match self.now.instructions.last_mut() {
            Some(Instruction { op: Op::Barrier(last), .. }) => {
                if *last == LIGHT_SYNC {
                    *last = barrier;
                }
            }
            _ => self.push(Op::Barrier(barrier), Vec::new()),
        }
    }

    /// Orders a change of a word with what comes behind it, where others change the word, too.
    pub(super) fn order_behind(&mut self, address: Value) {
        if !self.is_own && self.place(address).is_none() {
            self.order(LIGHT_SYNC);
        }
    }

    pub(super) fn call(&mut self, function: ir::FuncRef, arguments: &[Value], registers: &[u8]) -> Known<()> {
        let ExternalName::User(name) = self.func.dfg.ext_funcs[function].name else { return unknown() };
        if arguments.len() > registers.len() {
            return Err(Refused::Here(": arguments in memory"));
        }
        let place = self.kept(Kept::Hole(hole(self.func, name, 0)));
        let mut operands = Vec::new();
        for (value, register) in arguments.iter().zip(registers) {
            operands.push(Operand::reg_fixed_use(self.value(*value)?, general(*register)));
        }
        self.push(Op::Call(place), operands);
        Ok(())
    }

    /// What an instruction writes: nothing that is used, or a value.
    pub(super) fn result(&mut self, at: ir::Inst) -> Known<VReg> {
        let value = self.func.dfg.first_result(at);
        Ok(self.define(value)?)
    }

    /// Whether a value is an integer of all 64 bits.
    pub(super) fn is_whole(&self, value: Value) -> bool {
        self.type_of(value) == I64
    }
}
