//! From Cranelift's IR to instructions.
//!
//! # What registers hold
//!
//! An integer of fewer than 64 bits is in the low bits of its register; what is above may be anything.
//! Whoever needs it extends it first. Loads and comparisons leave zeros there, which is remembered. A
//! floating-point number of 32 bits is held as one of 64.
//!
//! # Order
//!
//! Blocks are taken in reverse postorder, in which each is behind those that dominate it, so that what it
//! uses has a register. Cold ones are put behind all others at last. Comparisons are made once more where
//! their result decides a branch or a choice, and constants in each block that uses them: what is not
//! needed then is left out ([`leave_out`]). cr0 is never held for longer than from one instruction to the
//! next, between which regalloc2 may put moves.

use super::super::Refusal;
use super::super::emit::hole;
use super::CONVENTION;
use super::code::{Base, Code, Edge, Filled, Instruction, Kept, Op, Place, general, leave_out};
use super::words::*;
use cranelift_codegen::Context;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{
    self, Block, BlockCall, ExternalName, Function, InstructionData, Opcode, Type, Value,
};
use regalloc2::{Operand, RegClass, VReg};
use std::collections::{HashMap, HashSet};

/// Log2 of what frames are aligned to.
const MOST_ALIGNED: u8 = 4;

/// A piece in instructions.
pub(super) struct Lowered {
    pub(super) code: Code,
    /// What lies behind it.
    pub(super) kept: Vec<Kept>,
    /// Bytes that it has on its stack for itself.
    pub(super) slots: u32,
}

/// Lowers a function that was optimized. `is_own`: all that it changes is the thread's own.
pub(super) fn lower(context: &Context, is_own: bool) -> Result<Lowered, Refusal> {
    let func = &context.func;
    let order: Vec<Block> = context.domtree.cfg_rpo().copied().collect();
    let mut slots = HashMap::new();
    let mut end = 0u32;
    for (slot, data) in func.sized_stack_slots.iter() {
        if data.align_shift > MOST_ALIGNED {
            return Err(Refusal::Compiler(format!("no room that is aligned to 2^{}", data.align_shift)));
        }
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
            lower.start(parameters);
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
    leave_out(&mut blocks, lower.registers);
    let mut blocks: Vec<(Block, Filled)> = order.into_iter().zip(blocks).collect();
    blocks.sort_by_key(|(block, _)| func.layout.is_cold(*block));
    let code = Code::new(connected(blocks), lower.registers)?;
    Ok(Lowered { code, kept: lower.kept, slots: end.next_multiple_of(8) })
}

/// Turns edges, which name blocks of the function, to such that name blocks by their places, with one of
/// its own for each that leads from one of several successors to one of several predecessors. That lies
/// behind where it comes from.
fn connected(blocks: Vec<(Block, Filled)>) -> Vec<Filled> {
    let mut predecessors = HashMap::new();
    for edge in blocks.iter().flat_map(|(_, block)| &block.edges) {
        *predecessors.entry(edge.to.index()).or_insert(0u32) += 1;
    }
    let is_critical = |block: &Filled, edge: &Edge| {
        block.edges.len() > 1 && (predecessors[&edge.to.index()] > 1 || !edge.with.is_empty())
    };
    let mut places = HashMap::new();
    let mut next = 0;
    for (name, block) in &blocks {
        places.insert(name.as_u32() as usize, regalloc2::Block::new(next));
        next += 1 + block.edges.iter().filter(|edge| is_critical(block, edge)).count();
    }
    let mut all: Vec<Filled> = Vec::with_capacity(next);
    for (_, mut block) in blocks {
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
pub(super) enum Made {
    Constant(i64),
    /// A floating-point number by the bits of the 64 that it is held as.
    Float(u64),
    Value(Value),
}

/// A function that is being lowered.
pub(super) struct Lower<'a> {
    pub(super) func: &'a Function,
    is_own: bool,
    pub(super) slots: HashMap<ir::StackSlot, u32>,
    pub(super) values: HashMap<Value, VReg>,
    /// Values above whose bits there are zeros in their registers.
    pub(super) extended: HashSet<Value>,
    /// What the block has made already.
    pub(super) here: HashMap<Made, VReg>,
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

    /// The same where what is written is another one than all that is read: it is written before the last
    /// one is read.
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
    fn start(&mut self, parameters: &[Value]) {
        let registers = CONVENTION.arguments;
        let in_registers = parameters.iter().zip(registers);
        let operands: Vec<Operand> = in_registers
            .map(|(value, register)| Operand::reg_fixed_def(self.values[value], general(*register)))
            .collect();
        self.push(Op::Arguments, operands);
        for (value, offset) in parameters.iter().skip(registers.len()).zip((0..).step_by(8)) {
            self.put(Op::Load(LOAD, Base::Passed, offset), self.values[value], &[]);
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

    /// Orders what was before with what comes next. A barrier that follows another one is left out, or
    /// replaces a lighter one.
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

    pub(super) fn call(&mut self, function: ir::FuncRef, arguments: &[Value]) -> Known<()> {
        let registers = CONVENTION.arguments;
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
