//! Where a piece has what on its stack.
//!
//! ```text
//! r1 + size + 32   what the piece is given on the stack
//! r1 + size + 16   where it saves lr, if it calls
//! r1 + size        the stack pointer of its start
//!                  general registers that it keeps
//!                  floating-point registers that it keeps, each with the rest of its vector register
//!                  what registers had no room for
//! r1 + 32          what it has on its stack for itself
//! r1               back chain, which is 0, so that walks end there, and the rest of a header
//! ```
//!
//! A piece that calls nothing and needs no more than a function may use below its stack pointer has the
//! same there, without a header. lr is the return address wherever the stack pointer is the one of the
//! start, but for two instructions where such a piece asks for its own address.

use super::CONVENTION;
use super::code::{CODE, Code, OTHER_SCRATCH, Op, SCRATCH, STACK_POINTER};
use super::emit::{Emitter, Reach, constant};
use super::lower::Lowered;
use super::words::*;
use regalloc2::{Edit, Function, OperandKind, Output, PReg, RegClass};

/// How much of the stack a function without a frame may use (ELFv2, 2.2.2.4).
const LEAF: u32 = 288;
/// Bytes of a frame's header.
const HEADER: u32 = 32;
/// Where in its caller's frame a function saves lr.
pub(super) const LINK: i32 = 16;

/// Where a piece has what on its stack.
#[derive(Debug)]
pub(super) struct Frame {
    /// How far below the stack pointer of the start it begins.
    pub(super) size: u32,
    /// Whether the stack pointer is moved there.
    pub(super) is_made: bool,
    /// Offset of what the piece has for itself.
    pub(super) slots: u32,
    /// Offset of what registers had no room for.
    pub(super) spills: u32,
    /// Floating-point registers that are kept, and the offset of each.
    pub(super) floats: Vec<(u8, u32)>,
    /// General ones.
    pub(super) generals: Vec<(u8, u32)>,
}

impl Frame {
    pub(super) fn new(lowered: &Lowered, allocated: &Output) -> Frame {
        let code = &lowered.code;
        let written = written(code, allocated);
        let of_class =
            |class| written.iter().filter(move |at| at.class() == class).map(|at| at.hw_enc() as u8);
        let calls = code.instructions.iter().any(|instruction| matches!(instruction.op, Op::Call(_)));
        let mut generals: Vec<u8> =
            of_class(RegClass::Int).filter(|register| !CONVENTION.lost.contains(register)).collect();
        if !lowered.kept.is_empty() {
            generals.push(CODE);
        }
        let floats: Vec<u8> = of_class(RegClass::Float).collect();
        let used = lowered.slots
            + 8 * allocated.num_spillslots as u32
            + 16 * floats.len() as u32
            + 8 * generals.len() as u32;
        let is_made = calls || used.next_multiple_of(16) > LEAF;
        let slots = if is_made { HEADER } else { 0 };
        let size = (used + slots).next_multiple_of(16);
        let spills = slots + lowered.slots;
        let after_spills = spills + 8 * allocated.num_spillslots as u32;
        let after_floats = after_spills + 16 * floats.len() as u32;
        Frame {
            size,
            is_made,
            slots,
            spills,
            floats: floats.into_iter().zip((after_spills..).step_by(16)).collect(),
            generals: generals.into_iter().zip((after_floats..).step_by(8)).collect(),
        }
    }

    /// The distance from the stack pointer to something in the frame.
    pub(super) fn distance(&self, offset: u32) -> i32 {
        if self.is_made { offset as i32 } else { offset as i32 - self.size as i32 }
    }

    /// The same to something above the stack pointer of the start.
    pub(super) fn above(&self, offset: i32) -> i32 {
        if self.is_made { self.size as i32 + offset } else { offset }
    }
}

/// The registers that a piece writes.
fn written(code: &Code, allocated: &Output) -> Vec<PReg> {
    let mut all = regalloc2::PRegSet::empty();
    for (_, Edit::Move { to, .. }) in &allocated.edits {
        to.as_reg().into_iter().for_each(|register| all.add(register));
    }
    for block in code.blocks() {
        for at in code.block_insns(block).iter().filter(|at| code.at(*at).op != Op::Arguments) {
            let operands = code.at(at).operands.iter().zip(allocated.inst_allocs(at));
            for (_, to) in operands.filter(|(operand, _)| operand.kind() == OperandKind::Def) {
                to.as_reg().into_iter().for_each(|register| all.add(register));
            }
        }
    }
    all.into_iter().collect()
}

impl Emitter<'_> {
    /// Loads or stores at a distance from a register that is none of those to lose.
    pub(super) fn access(&mut self, form: Form, value: u8, base: u8, distance: i32) {
        match i16::try_from(distance) {
            Ok(distance) if !form.is_of_words() || distance & 3 == 0 => {
                self.push(form.and(distance), &[value, base]);
            }
            _ => {
                self.add(OTHER_SCRATCH, base, distance);
                self.push(form.and(0), &[value, OTHER_SCRATCH]);
            }
        }
    }

    /// `to = base + distance`
    pub(super) fn add(&mut self, to: u8, base: u8, distance: i32) {
        let low = distance as i16;
        let high = ((i64::from(distance) - i64::from(low)) >> 16) as i32;
        // A distance of nearly 2 GiB has an upper half beyond what one instruction adds.
        let parts = [high / 2, high - high / 2];
        let mut from = base;
        for part in if i16::try_from(high).is_ok() { [high, 0] } else { parts } {
            if part != 0 {
                self.push(ADD_SHIFTED.and(part as i16), &[to, from]);
                from = to;
            }
        }
        if low != 0 || from == base {
            self.push(ADD_IMMEDIATE.and(low), &[to, from]);
        }
    }

    /// Saves or restores vector registers.
    fn vectors(&mut self, form: Form) {
        for (register, offset) in self.frame.floats.clone() {
            let distance = self.frame.distance(offset);
            constant(&mut self.words, OTHER_SCRATCH, distance.into());
            self.push(form, &[register, STACK_POINTER, OTHER_SCRATCH]);
        }
    }

    fn generals(&mut self, form: Form) {
        for (register, offset) in self.frame.generals.clone() {
            let distance = self.frame.distance(offset);
            self.access(form, register, STACK_POINTER, distance);
        }
    }

    pub(super) fn begin(&mut self) {
        if self.frame.is_made {
            self.push(READ_LINK, &[SCRATCH]);
            self.push(STORE.and(LINK as i16), &[SCRATCH, STACK_POINTER]);
            self.push(LOAD_IMMEDIATE.and(0), &[OTHER_SCRATCH]);
            let below = -(self.frame.size as i32);
            match i16::try_from(below) {
                Ok(below) => self.push(STORE_UPDATE.and(below), &[OTHER_SCRATCH, STACK_POINTER]),
                // Whoever asks for so much of the stack is refused, but not for other code than was asked
                // for.
                Err(_) => {
                    constant(&mut self.words, SCRATCH, below.into());
                    self.push(STORE_UPDATE_INDEXED, &[OTHER_SCRATCH, STACK_POINTER, SCRATCH]);
                }
            }
        }
        self.generals(STORE);
        self.vectors(STORE_VECTOR);
        if self.lowered.kept.is_empty() {
            return;
        }
        if !self.frame.is_made {
            self.push(READ_LINK, &[SCRATCH]);
        }
        self.words.push(HERE);
        self.origin = self.words.len();
        self.push(READ_LINK, &[CODE]);
        if !self.frame.is_made {
            self.push(WRITE_LINK, &[SCRATCH]);
        }
        if let Reach::Far(words) = self.reach {
            // To about where the constants are.
            let before = self.words.len();
            self.add(CODE, CODE, 4 * (words - self.origin) as i32);
            debug_assert!(self.words.len() > before);
        }
    }

    pub(super) fn end(&mut self) {
        if self.frame.is_made {
            let saved = self.frame.above(LINK);
            self.access(LOAD, SCRATCH, STACK_POINTER, saved);
            self.push(WRITE_LINK, &[SCRATCH]);
        }
        self.vectors(LOAD_VECTOR);
        self.generals(LOAD);
        if self.frame.is_made {
            let size = self.frame.size as i32;
            self.add(STACK_POINTER, STACK_POINTER, size);
        }
        self.words.push(RETURN);
    }
}
