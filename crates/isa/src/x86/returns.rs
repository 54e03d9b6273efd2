//! May this function carry a call-paired return probe?
//!
//! The detour of such a probe takes the return address off the stack and calls the function anew. That changes what
//! the function does when it looks at its own return address, and it needs the function to return once, by a plain
//! return, with the stack pointer where a return leaves it.
//!
//! The function's paths are walked once, with the distance of each register from the stack pointer at entry where that
//! is known. Found are
//!
//! - reads of the return address: through rsp at a known depth, through a frame pointer, by `pop` (`setjmp`,
//!   `getcontext`, `vfork`, `dlsym`, profiling hooks);
//! - writes to it;
//! - `ret imm16`, and returns or tail calls above the return address;
//! - in 32-bit mode, tail calls of functions that are not known, which may pop arguments;
//! - jumps back to the entry with another stack pointer: who is interrupted there is in no call that could be paired;
//! - stack pointers that come from elsewhere than the frame: `longjmp`, context and coroutine switches.
//!
//! Accepted are frames of any usual kind, realigned ones among them: gcc pushes a copy of the return address there
//! (`lea r10,[rsp+8]; and rsp,-32; push [r10-8]`), which only unwinders read. Where a register's value is not known
//! nothing is found: this proves harm, not harmlessness.
//!
//! The same walk tells by which instructions a function is left (`leaves`).

mod leaves;
mod values;

pub(super) use leaves::exits;

use self::values::{State, Value};
use super::decode::{decoder, flow, is_endbr};
use crate::{Flow, Reason, Site};
use alloc::{vec, vec::Vec};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

/// Whether a jump goes through a table.
fn is_indexed(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory && instruction.memory_index() != Register::None
}

/// Whether an operand of this kind is a register or a constant.
fn is_no_memory(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Register
            | NearBranch16
            | NearBranch32
            | NearBranch64
            | FarBranch16
            | FarBranch32
            | Immediate8
            | Immediate8_2nd
            | Immediate16
            | Immediate32
            | Immediate64
            | Immediate8to16
            | Immediate8to32
            | Immediate8to64
            | Immediate32to64
    )
}

pub(super) fn return_verdict(bits: u32, site: &Site<'_>) -> Result<(), Reason> {
    let mut walk = Walk::new(bits, site);
    let mut entry = State::default();
    *entry.sp() = Value::At(0);
    walk.from(site.function, entry);
    match walk.found {
        // 32-bit callees may pop their arguments; then the depths behind a call are wrong, and show it.
        Some(Reason::ReadsReturnAddress | Reason::ReturnsOddly) if bits == 32 && walk.uneven => Ok(()),
        Some(reason) => Err(reason),
        None => Ok(()),
    }
}

struct Walk<'a> {
    bits: u32,
    site: &'a Site<'a>,
    factory: InstructionInfoFactory,
    /// A bit for each byte of code: whether an instruction that begins there was walked over.
    visited: Vec<u64>,
    paths: Vec<(u64, State)>,
    /// What follows calls. Walked last: a call that never returns is followed by code that is reached from elsewhere,
    /// with a stack of another depth.
    after_calls: Vec<(u64, State)>,
    /// State at an indirect jump inside the function, which the targets of jump tables share.
    dispatch: Option<State>,
    found: Option<Reason>,
    /// A return was seen at a depth other than the return address's.
    uneven: bool,
    /// Where the function is left, if that is asked, and nothing else.
    exits: Option<leaves::Found>,
}

impl<'a> Walk<'a> {
    fn new(bits: u32, site: &'a Site<'a>) -> Self {
        Self {
            bits,
            site,
            factory: InstructionInfoFactory::new(),
            visited: vec![0; site.code.len().div_ceil(64)],
            paths: Vec::new(),
            after_calls: Vec::new(),
            dispatch: None,
            found: None,
            uneven: false,
            exits: None,
        }
    }

    /// Walks all paths from `address` on.
    fn from(&mut self, address: u64, state: State) {
        self.paths.push((address, state));
        loop {
            while let Some((address, state)) = self.paths.pop().or_else(|| self.after_calls.pop()) {
                self.path(address, state);
            }
            let Some(state) = self.dispatch.take() else { return };
            for target in self.not_visited() {
                self.paths.push((target, state));
            }
        }
    }

    /// The branch targets in the function that no path has led to yet.
    fn not_visited(&self) -> Vec<u64> {
        let end = self.site.function.wrapping_add(self.site.code.len() as u64);
        let next = |last: &u64| self.site.targets.first_inside(*last, end);
        let all = core::iter::successors(next(&self.site.function), next);
        all.filter(|target| !self.was_visited(*target)).collect()
    }

    fn was_visited(&self, address: u64) -> bool {
        self.offset(address).is_some_and(|at| self.visited[at / 64] >> (at % 64) & 1 != 0)
    }

    /// Marks an instruction, and tells whether it was marked.
    fn visit(&mut self, address: u64) -> bool {
        let Some(at) = self.offset(address) else { return true };
        let (word, bit) = (&mut self.visited[at / 64], 1 << (at % 64));
        let was_visited = *word & bit != 0;
        *word |= bit;
        was_visited
    }

    fn find(&mut self, reason: Reason) {
        self.found = self.found.or(Some(reason));
    }

    /// Walks straight on from `address` until control leaves or was there before.
    fn path(&mut self, address: u64, mut state: State) {
        let Some(offset) = self.offset(address) else { return };
        let mut decoder = decoder(self.bits, &self.site.code[offset..], address);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() || self.visit(instruction.ip()) {
                return;
            }
            if self.found.is_some() && self.bits == 64 {
                return;
            }
            match self.exits {
                None => self.accesses(&instruction, &state),
                Some(_) => self.leave(&instruction, &mut state),
            }
            match flow(&instruction) {
                Flow::Next => self.effect(&instruction, &mut state),
                Flow::Branch { target } => {
                    self.jump(target, state);
                    self.effect(&instruction, &mut state);
                }
                Flow::Jump { target } => return self.jump(target, state),
                Flow::Call { target } if target == instruction.next_ip() => {
                    *state.sp() = state.sp().plus(-self.word());
                }
                Flow::System => self.forget_over_call(&mut state),
                Flow::Call { .. } | Flow::IndirectCall => {
                    self.forget_over_call(&mut state);
                    self.after_calls.push((instruction.next_ip(), state));
                    return;
                }
                Flow::IndirectJump => {
                    let sp = *state.sp();
                    match sp {
                        Value::At(1..) => self.find(Reason::MovesStackPointer),
                        // A tail call: the frame is gone. In 32-bit mode the callee may pop arguments (stdcall, a returned struct).
                        Value::At(0) if self.bits == 32 && !is_indexed(&instruction) => {
                            self.find(Reason::UnknownTailCall);
                        }
                        Value::At(0) => {}
                        _ => self.dispatch = Some(state),
                    }
                    return;
                }
                Flow::Return => return self.at_return(&instruction, &mut state),
                Flow::Stop => return,
            }
        }
    }

    fn word(&self) -> i64 {
        i64::from(self.bits / 8)
    }

    fn offset(&self, address: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.site.function);
        (offset < self.site.code.len() as u64).then_some(offset as usize)
    }

    fn jump(&mut self, target: u64, mut state: State) {
        if self.offset(target).is_some() {
            let is_uneven = !matches!(*state.sp(), Value::At(0) | Value::Frame | Value::Unknown);
            if is_uneven && self.exits.is_none() && self.is_entry(target) {
                self.find(Reason::MovesStackPointer);
            }
            self.paths.push((target, state));
        } else if let Value::At(1..) = *state.sp() {
            self.find(Reason::MovesStackPointer);
        }
    }

    /// Whether this is the first instruction, or the one behind a landing place of indirect branches.
    fn is_entry(&self, address: u64) -> bool {
        let first = decoder(self.bits, self.site.code, self.site.function).decode();
        address == first.ip() || is_endbr(&first) && address == first.next_ip()
    }

    fn at_return(&mut self, instruction: &Instruction, state: &mut State) {
        if instruction.op_count() == 1 && instruction.immediate16() != 0 {
            self.find(Reason::MovesStackPointer);
        }
        match *state.sp() {
            Value::At(0) | Value::Frame | Value::Unknown => {}
            Value::At(_) if self.bits == 32 => self.uneven = true,
            Value::At(1..) => self.find(Reason::MovesStackPointer),
            // A jump to what was pushed: control still comes back by the return address. Or code behind a call that
            // never returns.
            Value::At(_) => {}
        }
    }

    fn forget_over_call(&self, state: &mut State) {
        let kept: u16 = if self.bits == 64 { 0b1111_0000_0011_1000 } else { 0b1111_1000 };
        for (number, value) in state.0.iter_mut().enumerate() {
            if kept >> number & 1 == 0 {
                *value = Value::Unknown;
            }
        }
    }

    /// Looks for accesses to the return address.
    fn accesses(&mut self, instruction: &Instruction, state: &State) {
        use Mnemonic::*;
        // A return reads it to return; a push of it is the realigned frame's copy; a lea reads nothing.
        if matches!(instruction.mnemonic(), Ret | Push | Call | Lea | Nop | Leave) {
            return;
        }
        // What goes to memory by one address alone is looked at only where that is known.
        if instruction.op_kinds().all(|kind| matches!(kind, OpKind::Memory) || is_no_memory(kind))
            && !instruction.is_stack_instruction()
            && !matches!(state.get(instruction.memory_base()), Value::At(_))
        {
            return;
        }
        let word = self.word();
        for memory in self.factory.info(instruction).used_memory() {
            let Value::At(base) = state.get(memory.base()) else { continue };
            if memory.index() != Register::None || matches!(memory.segment(), Register::FS | Register::GS) {
                continue;
            }
            let displacement = match self.bits {
                64 => memory.displacement() as i64,
                _ => i64::from(memory.displacement() as u32 as i32),
            };
            let start = base.wrapping_add(displacement);
            let size = memory.memory_size().size() as i64;
            if start >= word || start + size <= 0 {
                continue;
            }
            let reason = match memory.access() {
                OpAccess::Write | OpAccess::CondWrite => Reason::ReturnsOddly,
                OpAccess::NoMemAccess | OpAccess::None => continue,
                _ => Reason::ReadsReturnAddress,
            };
            self.found = self.found.or(Some(reason));
        }
    }
}
