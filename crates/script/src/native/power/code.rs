//! Instructions with virtual registers, as regalloc2 is given them.

use super::super::Refusal;
use super::words::{Condition, Form};
use regalloc2::{Block, Inst, InstRange, MachineEnv, Operand, OperandKind, PReg, PRegSet, RegClass, VReg};
use trapless_isa::body::Hole;

/// What a constant is that lies behind the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// An address that only the target knows.
    Hole(Hole),
    Bits(u64),
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) usize);

/// Where an offset is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// A register, which is the last operand.
    Register,
    /// The thread's block.
    Block,
    /// What the piece has on its stack for itself.
    Slots,
    /// The words that it is given on the stack.
    Passed,
}

/// What is done to a word of memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// By an instruction of the sum's form: the new word of the old one and an operand.
    By(Form),
    /// It is replaced.
    Replace,
}

/// An instruction, or a few that belong together. Operands are in the order that is told: what is written
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// The arguments are in their registers.
    Arguments,
    /// One instruction, with its operands.
    Plain(Form),
    /// One instruction that says something in cr0, and does nothing else.
    Compare(Form),
    /// One that combines bits of cr0.
    Combine(Form),
    /// One without operands, which is never left out.
    Barrier(Form),
    /// Writes a number.
    Constant(i64),
    /// Writes a constant from behind the code.
    Kept(Place),
    /// Reads a number: what is written, and the base.
    Load(Form, Base, i32),
    /// Writes a number: it, and the base.
    Store(Form, Base, i32),
    /// Writes an address.
    Address(Base, i32),
    /// Writes the stack pointer.
    StackPointer,
    /// Writes 1 if a condition holds, else 0.
    Truth(Condition),
    /// Writes one of two integers: that if a condition holds, and the other one.
    Choose(Condition),
    /// Writes one of two floating-point numbers: the other one, which is in the same register, and that if
    /// the condition holds.
    ChooseFloat(Condition),
    /// Writes the bytes of a word in the opposite order.
    SwapBytes,
    /// Writes 0 if what was compared was unordered, else an integer.
    OrNothing,
    /// Writes a word of memory as it was, if anybody needs that: its address, and what it is changed by.
    Update(Change),
    /// Writes a word of memory as it was: its address, what it should have been, and what it becomes then.
    Exchange,
    /// Calls a routine whose address is behind the code.
    Call(Place),
    /// Goes to the first successor.
    Jump,
    /// Goes to the first successor if a condition holds, else to the second one.
    Branch(Condition),
    Return,
}

impl Op {
    /// Whether nobody misses it where nobody needs what it writes.
    fn is_pure(self) -> bool {
        matches!(
            self,
            Op::Plain(_)
                | Op::Constant(_)
                | Op::Kept(_)
                | Op::Load(..)
                | Op::Address(..)
                | Op::StackPointer
                | Op::Truth(_)
                | Op::Choose(_)
                | Op::ChooseFloat(_)
                | Op::SwapBytes
                | Op::OrNothing
        )
    }

    /// Whether it depends on cr0.
    fn takes_condition(self) -> bool {
        matches!(
            self,
            Op::Truth(_)
                | Op::Choose(_)
                | Op::ChooseFloat(_)
                | Op::OrNothing
                | Op::Branch(_)
                | Op::Combine(_)
        )
    }
}

/// One of them with its operands.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) op: Op,
    pub(super) operands: Vec<Operand>,
}

/// Where a block may go, and what its successor's parameters are then.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) to: Block,
    pub(super) with: Vec<VReg>,
}

/// A block that is being filled.
#[derive(Clone, Debug, Default)]
pub(super) struct Filled {
    pub(super) parameters: Vec<VReg>,
    pub(super) instructions: Vec<Instruction>,
    pub(super) edges: Vec<Edge>,
}

impl Filled {
    /// One that goes on elsewhere.
    pub(super) fn jump(edge: Edge) -> Filled {
        let jump = Instruction { op: Op::Jump, operands: Vec::new() };
        Filled { instructions: vec![jump], edges: vec![edge], ..Filled::default() }
    }
}

/// A block that is filled.
#[derive(Debug)]
struct Laid {
    instructions: InstRange,
    parameters: Vec<VReg>,
    successors: Vec<Block>,
    passed: Vec<Vec<VReg>>,
    predecessors: Vec<Block>,
}

/// A piece. Its first block is its start, and none goes there. Where a block has several successors, each
/// of these has no other predecessor.
#[derive(Debug)]
pub(super) struct Code {
    blocks: Vec<Laid>,
    pub(super) instructions: Vec<Instruction>,
    registers: usize,
}

impl Code {
    /// Of blocks, in the order in which they are to lie, and so many virtual registers.
    pub(super) fn new(filled: Vec<Filled>, registers: usize) -> Result<Code, Refusal> {
        let mut predecessors = vec![Vec::new(); filled.len()];
        for (index, block) in filled.iter().enumerate() {
            for edge in &block.edges {
                predecessors[edge.to.index()].push(Block::new(index));
            }
        }
        if predecessors.first().is_none_or(|start| !start.is_empty()) {
            return Err(Refusal::Compiler("a piece that goes to its start".into()));
        }
        let mut instructions = Vec::new();
        let mut blocks = Vec::new();
        for (block, predecessors) in filled.into_iter().zip(predecessors) {
            let first = Inst::new(instructions.len());
            instructions.extend(block.instructions);
            let (successors, passed) = block.edges.into_iter().map(|edge| (edge.to, edge.with)).unzip();
            blocks.push(Laid {
                instructions: InstRange::new(first, Inst::new(instructions.len())),
                parameters: block.parameters,
                successors,
                passed,
                predecessors,
            });
        }
        Ok(Code { blocks, instructions, registers })
    }

    /// What is done, and to what.
    pub(super) fn at(&self, at: Inst) -> &Instruction {
        &self.instructions[at.index()]
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        (0..self.blocks.len()).map(Block::new)
    }
}

/// Leaves out what is done for nobody. Of the blocks, each lies behind those that dominate it.
pub(super) fn leave_out(blocks: &mut [Filled], registers: usize) {
    let mut is_needed = vec![false; registers];
    for edge in blocks.iter().flat_map(|block| &block.edges) {
        edge.with.iter().for_each(|passed| is_needed[passed.vreg()] = true);
    }
    for block in blocks.iter_mut().rev() {
        let mut needs_condition = false;
        let mut kept = Vec::new();
        for instruction in std::mem::take(&mut block.instructions).into_iter().rev() {
            let writes = |operand: &&Operand| operand.kind() == OperandKind::Def;
            let stays = match instruction.op {
                Op::Compare(_) | Op::Combine(_) => needs_condition,
                op if op.is_pure() => {
                    instruction.operands.iter().filter(writes).any(|of| is_needed[of.vreg().vreg()])
                }
                _ => true,
            };
            if matches!(instruction.op, Op::Compare(_)) {
                needs_condition = false;
            }
            if stays {
                let mut instruction = instruction;
                if matches!(instruction.op, Op::Update(_)) {
                    instruction.operands.retain(|of| !writes(&of) || is_needed[of.vreg().vreg()]);
                }
                needs_condition |= instruction.op.takes_condition();
                for operand in instruction.operands.iter().filter(|operand| !writes(operand)) {
                    is_needed[operand.vreg().vreg()] = true;
                }
                kept.push(instruction);
            }
        }
        kept.reverse();
        block.instructions = kept;
    }
}

impl regalloc2::Function for Code {
    fn num_insts(&self) -> usize {
        self.instructions.len()
    }

    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn entry_block(&self) -> Block {
        Block::new(0)
    }

    fn block_insns(&self, block: Block) -> InstRange {
        self.blocks[block.index()].instructions
    }

    fn block_succs(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].successors
    }

    fn block_preds(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].predecessors
    }

    fn block_params(&self, block: Block) -> &[VReg] {
        &self.blocks[block.index()].parameters
    }

    fn is_ret(&self, at: Inst) -> bool {
        self.at(at).op == Op::Return
    }

    fn is_branch(&self, at: Inst) -> bool {
        matches!(self.at(at).op, Op::Jump | Op::Branch(_))
    }

    fn branch_blockparams(&self, block: Block, _: Inst, successor: usize) -> &[VReg] {
        &self.blocks[block.index()].passed[successor]
    }

    fn inst_operands(&self, at: Inst) -> &[Operand] {
        &self.at(at).operands
    }

    fn inst_clobbers(&self, _: Inst) -> PRegSet {
        PRegSet::empty()
    }

    fn num_vregs(&self) -> usize {
        self.registers
    }

    fn spillslot_size(&self, _: RegClass) -> usize {
        1
    }
}

/// A general register.
pub(super) fn general(number: u8) -> PReg {
    PReg::new(number.into(), RegClass::Int)
}

fn float(number: u8) -> PReg {
    PReg::new(number.into(), RegClass::Float)
}

/// The general registers that are the emission's, to lose: in two of them it makes what an instruction
/// needs on the way.
pub(super) const SCRATCH: u8 = 0;
pub(super) const OTHER_SCRATCH: u8 = 12;
/// The general register that holds the address of the code, where there are constants behind it.
pub(super) const CODE: u8 = 31;
pub(super) const STACK_POINTER: u8 = 1;

/// Which registers there are to allocate. All have to be kept, so those come first that arguments are in,
/// which may hold them already.
pub(super) fn registers() -> MachineEnv {
    let set = |of: &mut dyn Iterator<Item = PReg>| of.collect::<PRegSet>();
    MachineEnv {
        preferred_regs_by_class: [
            set(&mut (3..=10).map(general)),
            set(&mut (0..4).map(float)),
            PRegSet::empty(),
        ],
        non_preferred_regs_by_class: [
            set(&mut (14..=29).map(general)),
            set(&mut (4..13).map(float)),
            PRegSet::empty(),
        ],
        scratch_by_class: [Some(general(11)), Some(float(13)), None],
        fixed_stack_slots: Vec::new(),
    }
}
