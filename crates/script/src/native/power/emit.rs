//! From allocated instructions to words.
//!
//! The frame is described in [`super::frame`].
//!
//! # Constants
//!
//! They lie behind the code, words of eight bytes, and are reached from r31, which holds an address in the
//! code. Calls go by lr: ctr is kept.

use super::super::Refusal;
use super::CONVENTION;
use super::code::{Base, CODE, Change, Instruction, Kept, OTHER_SCRATCH, Op, Place, SCRATCH, STACK_POINTER};
use super::frame::Frame;
use super::lower::Lowered;
use super::words::*;
use regalloc2::{Allocation, Block, Edit, Function, InstOrEdit, Output, PReg, RegClass};
use trapless_isa::body::Hole;

/// How far conditional branches, and distances of loads, reach, with some room.
const NEAR: usize = 0x7f00;

/// A piece's bytes.
#[derive(Debug)]
pub(super) struct Emitted {
    pub(super) bytes: Vec<u8>,
    pub(super) holes: Vec<(u32, Hole)>,
    /// What it uses of the stack below the stack pointer of its start.
    pub(super) frame: u32,
}

/// How many instructions write a number.
pub(super) fn steps(number: i64) -> usize {
    let mut words = Vec::new();
    constant(&mut words, OTHER_SCRATCH, number);
    words.len()
}

pub(super) fn constant(words: &mut Vec<u32>, to: u8, number: i64) {
    let part = |shift: u32| (number >> shift) as i16;
    if number == i64::from(part(0)) {
        words.push(LOAD_IMMEDIATE.and(part(0)).with(&[to]));
    } else if number == i64::from(number as i32) {
        words.push(LOAD_SHIFTED.and(part(16)).with(&[to]));
        if part(0) != 0 {
            words.push(OR_IMMEDIATE.and(part(0)).with(&[to, to]));
        }
    } else {
        let zeros = number.trailing_zeros();
        let shifted = number >> zeros;
        let upper = number >> 32;
        if shifted == i64::from(shifted as i16)
            || (upper != i64::from(upper as i16) && shifted == i64::from(shifted as i32))
        {
            constant(words, to, shifted);
            words.push(shift_left_by(zeros).with(&[to, to]));
            return;
        }
        constant(words, to, upper);
        if upper != 0 {
            words.push(shift_left_by(32).with(&[to, to]));
        }
        for (form, part) in [(OR_SHIFTED, part(16)), (OR_IMMEDIATE, part(0))] {
            if part != 0 {
                words.push(form.and(part).with(&[to, to]));
            }
        }
    }
}

/// Emits a piece whose registers are allocated.
pub(super) fn emit(lowered: &Lowered, allocated: &Output) -> Result<Emitted, Refusal> {
    let mut emitter = Emitter::new(lowered, allocated);
    emitter.all()?;
    if 4 * emitter.words.len() + 8 * lowered.kept.len() > NEAR {
        // The second time, its length is about what it was the first time.
        for _ in 0..2 {
            emitter = Emitter { reach: Reach::Far(emitter.words.len()), ..Emitter::new(lowered, allocated) };
            emitter.all()?;
        }
    }
    emitter.fill()?;
    let mut bytes: Vec<u8> = emitter.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut holes = Vec::new();
    for kept in &lowered.kept {
        let word = match *kept {
            Kept::Hole(hole) => {
                holes.push((bytes.len() as u32, hole));
                0
            }
            Kept::Bits(bits) => bits,
        };
        bytes.extend(word.to_le_bytes());
    }
    Ok(Emitted { bytes, holes, frame: emitter.frame.size })
}

/// How far it is from one end of the code to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Conditional branches go anywhere, and so do loads of constants.
    Near,
    /// They do not. So many instructions a piece has at least.
    Far(usize),
}

/// A branch whose distance is not known yet.
struct Gap {
    word: usize,
    to: Block,
}

pub(super) struct Emitter<'a> {
    pub(super) lowered: &'a Lowered,
    allocated: &'a Output,
    pub(super) frame: Frame,
    pub(super) words: Vec<u32>,
    /// Where blocks begin.
    starts: Vec<Option<usize>>,
    gaps: Vec<Gap>,
    /// Loads of constants, which.
    loads: Vec<(usize, Place)>,
    /// The instruction whose address r31 has.
    pub(super) origin: usize,
    pub(super) reach: Reach,
}

impl<'a> Emitter<'a> {
    fn new(lowered: &'a Lowered, allocated: &'a Output) -> Self {
        Self {
            lowered,
            allocated,
            frame: Frame::new(lowered, allocated),
            words: Vec::new(),
            starts: vec![None; lowered.code.num_blocks()],
            gaps: Vec::new(),
            loads: Vec::new(),
            origin: 0,
            reach: Reach::Near,
        }
    }

    pub(super) fn push(&mut self, form: Form, registers: &[u8]) {
        self.words.push(form.with(registers));
    }

    fn all(&mut self) -> Result<(), Refusal> {
        self.begin();
        let blocks: Vec<Block> =
            self.lowered.code.blocks().filter(|block| self.passes_on(*block).is_none()).collect();
        for (index, &block) in blocks.iter().enumerate() {
            self.starts[block.index()] = Some(self.words.len());
            let next = blocks.get(index + 1).copied();
            let allocated = self.allocated;
            for step in allocated.block_insts_and_edits(&self.lowered.code, block) {
                match step {
                    InstOrEdit::Edit(Edit::Move { from, to }) => self.move_(*from, *to),
                    InstOrEdit::Inst(at) => {
                        let registers: Vec<u8> = allocated.inst_allocs(at).iter().map(register).collect();
                        self.instruction(block, next, self.lowered.code.at(at), &registers)?;
                    }
                }
            }
        }
        // Constants are aligned.
        if self.words.len() % 2 == 1 {
            self.words.push(0);
        }
        Ok(())
    }

    /// Where a block goes that does nothing.
    fn passes_on(&self, block: Block) -> Option<Block> {
        let code = &self.lowered.code;
        let mut steps = self.allocated.block_insts_and_edits(code, block);
        match (steps.next(), code.block_succs(block)) {
            (Some(InstOrEdit::Inst(at)), &[to]) if code.at(at).op == Op::Jump && to != block => Some(to),
            _ => None,
        }
    }

    /// The block that one leads to at last. Loops of nothing but jumps have one.
    fn behind(&self, block: Block) -> Block {
        let mut at = block;
        for _ in 0..self.starts.len() {
            match self.passes_on(at) {
                Some(next) => at = next,
                None => return at,
            }
        }
        at
    }

    fn move_(&mut self, from: Allocation, to: Allocation) {
        let class = |at: Allocation| at.as_reg().map(PReg::class);
        let spilled = |emitter: &Self, at: Allocation| {
            let index = at.as_stack().map_or(0, |slot| slot.index() as u32);
            emitter.frame.distance(emitter.frame.spills + 8 * index)
        };
        match (class(from), class(to)) {
            (Some(RegClass::Int), Some(_)) => self.push(COPY, &[register(&to), register(&from)]),
            (Some(_), Some(_)) => self.push(FLOAT_COPY, &[register(&to), register(&from)]),
            (Some(kind), None) => {
                let form = if kind == RegClass::Int { STORE } else { STORE_DOUBLE };
                let at = spilled(self, to);
                self.access(form, register(&from), STACK_POINTER, at);
            }
            (None, Some(kind)) => {
                let form = if kind == RegClass::Int { LOAD } else { LOAD_DOUBLE };
                let at = spilled(self, from);
                self.access(form, register(&to), STACK_POINTER, at);
            }
            (None, None) => {
                let (from, to) = (spilled(self, from), spilled(self, to));
                self.access(LOAD, SCRATCH, STACK_POINTER, from);
                self.access(STORE, SCRATCH, STACK_POINTER, to);
            }
        }
    }

    fn kept(&mut self, to: u8, form: Form, place: Place) {
        self.loads.push((self.words.len(), place));
        self.push(form, &[to, CODE]);
    }

    /// The register and the distance from there.
    fn base(&self, base: Base, offset: i32, last: Option<&u8>) -> (u8, i32) {
        match base {
            Base::Register => (last.copied().unwrap_or_default(), offset),
            Base::Block => (CONVENTION.block, offset),
            Base::Slots => (STACK_POINTER, self.frame.distance(self.frame.slots) + offset),
            Base::Passed => (STACK_POINTER, self.frame.above(CONVENTION.pushed as i32) + offset),
        }
    }

    fn instruction(
        &mut self,
        block: Block,
        next: Option<Block>,
        instruction: &Instruction,
        registers: &[u8],
    ) -> Result<(), Refusal> {
        match (instruction.op, registers) {
            (Op::Arguments, _) => {}
            (Op::Plain(form) | Op::Compare(form) | Op::Combine(form) | Op::Barrier(form), registers) => {
                self.push(form, registers);
            }
            (Op::Constant(number), &[to]) => constant(&mut self.words, to, number),
            (Op::Kept(place), &[to]) => {
                let is_float = instruction.operands[0].class() == RegClass::Float;
                self.kept(to, if is_float { LOAD_DOUBLE } else { LOAD }, place);
            }
            (Op::Load(form, base, offset) | Op::Store(form, base, offset), &[value, ref rest @ ..]) => {
                let (base, distance) = self.base(base, offset, rest.first());
                self.access(form, value, base, distance);
            }
            (Op::Address(base, offset), &[to]) => {
                let (base, distance) = self.base(base, offset, None);
                self.add(to, base, distance);
            }
            (Op::StackPointer, &[to]) => self.push(COPY, &[to, STACK_POINTER]),
            (Op::Truth(condition), &[to]) => {
                self.push(LOAD_IMMEDIATE.and(1), &[OTHER_SCRATCH]);
                match condition {
                    Condition::Clear(_) => self.push(choose(condition.bit()), &[to, 0, OTHER_SCRATCH]),
                    Condition::Set(_) => {
                        self.push(LOAD_IMMEDIATE.and(0), &[SCRATCH]);
                        self.push(choose(condition.bit()), &[to, OTHER_SCRATCH, SCRATCH]);
                    }
                }
            }
            (Op::Choose(condition), &[to, then, other]) => match condition {
                Condition::Set(_) => self.push(choose(condition.bit()), &[to, then, other]),
                Condition::Clear(_) => self.push(choose(condition.bit()), &[to, other, then]),
            },
            (Op::ChooseFloat(condition), &[to, _, then]) => {
                // Over the next instruction.
                self.words.push(condition.otherwise().branch() | 8);
                self.push(FLOAT_COPY, &[to, then]);
            }
            (Op::OrNothing, &[to, number]) => self.push(choose(Bit::Unordered as u32), &[to, 0, number]),
            (Op::SwapBytes, &[to, from]) => {
                self.push(shift_right_by(32), &[SCRATCH, from]);
                for (to, from) in [(OTHER_SCRATCH, from), (to, SCRATCH)] {
                    self.push(rotate_word(8, 0, 31), &[to, from]);
                    self.push(insert_word(24, 0, 7), &[to, from]);
                    self.push(insert_word(24, 16, 23), &[to, from]);
                }
                self.push(INSERT_UPPER, &[to, OTHER_SCRATCH]);
            }
            (Op::Update(change), &[ref was @ .., address, operand]) => {
                let to = was.first().copied().unwrap_or(OTHER_SCRATCH);
                let again = self.words.len();
                self.push(LOAD_RESERVED, &[to, address]);
                let new = match change {
                    Change::By(form) => {
                        // The target of sums comes first in the instruction, as in all of them.
                        self.push(form, &[SCRATCH, to, operand]);
                        SCRATCH
                    }
                    Change::Replace => operand,
                };
                self.push(STORE_CONDITIONAL, &[new, address]);
                self.back(Condition::Clear(Bit::Equal), again);
            }
            (Op::Exchange, &[to, address, expected, new]) => {
                let again = self.words.len();
                self.push(LOAD_RESERVED, &[to, address]);
                self.push(compare(Signs::Unsigned, Compared::Doubleword), &[to, expected]);
                // Behind the loop.
                self.words.push(Condition::Clear(Bit::Equal).branch() | 12);
                self.push(STORE_CONDITIONAL, &[new, address]);
                self.back(Condition::Clear(Bit::Equal), again);
            }
            (Op::Call(place), _) => {
                self.kept(OTHER_SCRATCH, LOAD, place);
                self.push(WRITE_LINK, &[OTHER_SCRATCH]);
                self.words.push(CALL_LINK);
            }
            (Op::Jump, _) => {
                let to = self.lowered.code.block_succs(block)[0];
                self.jump(to, next);
            }
            (Op::Branch(condition), _) => {
                let &[then, other] = self.lowered.code.block_succs(block) else {
                    return Err(Refusal::Compiler("a branch without two ways".into()));
                };
                if next == Some(self.behind(then)) {
                    self.branch(condition.otherwise(), other);
                } else {
                    self.branch(condition, then);
                    self.jump(other, next);
                }
            }
            (Op::Return, _) => self.end(),
            (op, registers) => {
                return Err(Refusal::Compiler(format!("{op:?} with registers {registers:?}")));
            }
        }
        Ok(())
    }

    /// Branches to an instruction that is there already, and near.
    fn back(&mut self, condition: Condition, to: usize) {
        let distance = -4 * (self.words.len() - to) as i32;
        self.words.push(condition.branch() | distance as u32 & 0xfffc);
    }

    fn jump(&mut self, to: Block, next: Option<Block>) {
        let to = self.behind(to);
        if next != Some(to) {
            self.gaps.push(Gap { word: self.words.len(), to });
            self.words.push(BRANCH);
        }
    }

    fn branch(&mut self, condition: Condition, to: Block) {
        if self.reach == Reach::Near {
            let to = self.behind(to);
            self.gaps.push(Gap { word: self.words.len(), to });
            self.words.push(condition.branch());
        } else {
            // Over the next instruction.
            self.words.push(condition.otherwise().branch() | 8);
            self.jump(to, None);
        }
    }

    /// Fills in the distances of branches and of constants.
    fn fill(&mut self) -> Result<(), Refusal> {
        let too_far = || Refusal::Compiler("a piece that is too long".into());
        for Gap { word, to } in &self.gaps {
            let start = self.starts[to.index()].ok_or_else(too_far)?;
            let distance = 4 * (start as i64 - *word as i64);
            let (limit, bits) =
                if self.words[*word] >> 26 == 16 { (1 << 15, 0xfffc) } else { (1 << 25, 0x03ff_fffc) };
            if !(-limit..limit).contains(&distance) {
                return Err(too_far());
            }
            self.words[*word] |= distance as u32 & bits;
        }
        let base = match self.reach {
            Reach::Near => self.origin,
            Reach::Far(words) => words,
        };
        for (word, place) in &self.loads {
            let distance = 4 * (self.words.len() as i64 - base as i64) + 8 * place.0 as i64;
            let distance = match i16::try_from(distance) {
                Ok(distance) => distance,
                Err(_) => return Err(too_far()),
            };
            self.words[*word] |= u32::from(distance as u16);
        }
        Ok(())
    }
}

/// A register's number in instructions.
fn register(at: &Allocation) -> u8 {
    at.as_reg().map_or(0, |register| register.hw_enc() as u8)
}
