//! The shared vocabulary of cold routines on Power.
//!
//! r0 is the scratch register of whatever a constant is needed for, and no routine gives it a role: as a base it would
//! be the number 0.

use super::assembler::*;
use crate::assemble::Assemble;
use crate::detour::{HASH_FACTOR, STACK_PAGE_SHIFT, THREAD_FOLD};
use crate::routines::Context;

/// How far up the stack an unwinder's context is looked for. Those of libgcc take 1 KiB each, and its rules twice as much.
pub(super) const UNWINDER_FRAMES: u64 = 1 << 14;
/// In LLVM's array of registers the code address and the machine state stand before r0.
const STACK_POINTER_BEHIND_ADDRESS: i16 = 24;
/// The same in words, and the other way.
pub(super) const REGISTERS_APART: i32 = -3;
/// Numbers of r2, r31 and lr in libgcc's array of places.
const TOC_COLUMN: i16 = 2;
const LAST_GENERAL: i16 = 31;
const LR_COLUMN: i16 = 65;
/// How far lr lies behind r31 in a signal's frame, in bytes.
const LR_BEHIND_LAST: i16 = 40;
/// How many words may lie between the place of lr and the code address: there are up to 150 registers.
const REGISTERS_BEHIND_LR: u64 = 96;
/// `ld r2,24(r1)`, behind a call to another module.
const LOAD_TOC: u64 = 0xe841_0018;
/// Where a frame has its r2, and lr of the function that it has called.
const TOC_SAVE: i16 = 24;
const LR_SAVE: i16 = 16;

impl Assemble for Asm {
    type Reg = Gpr;
    type Label = Label;
    const LINKS: bool = true;

    fn word(&self) -> u32 {
        8
    }
    /// The stack pointer at the entry is both.
    fn slot_below_frame(&self) -> u32 {
        0
    }
    /// The thread pointer is 0x7000 behind its end.
    fn thread_control_block(&self) -> (i32, u32) {
        (-0x7900, 0x900)
    }
    fn label(&mut self) -> Label {
        Asm::label(self)
    }
    fn bind(&mut self, label: Label) {
        Asm::bind(self, label);
    }
    fn set(&mut self, to: Gpr, value: u64) {
        self.load_constant(to, value);
    }
    fn copy(&mut self, to: Gpr, from: Gpr) {
        if to != from {
            Asm::copy(self, to, from);
        }
    }
    fn add(&mut self, to: Gpr, by: Gpr) {
        Asm::add(self, to, to, by);
    }
    fn add_small(&mut self, to: Gpr, by: i32) {
        self.addi(to, to, by as i16);
    }
    fn sub(&mut self, to: Gpr, by: Gpr) {
        Asm::sub(self, to, to, by);
    }
    fn bits(&mut self, to: Gpr, from: Gpr, low: u32, count: u32) {
        self.extract(to, from, low, count);
    }
    fn shift_left(&mut self, to: Gpr, by: u32) {
        Asm::shift_left(self, to, to, by);
    }
    fn multiply(&mut self, to: Gpr, by: Gpr) {
        Asm::multiply(self, to, to, by);
    }
    fn hash_page(&mut self, to: Gpr, from: Gpr, count: u32) {
        self.load_constant(R0, u64::from(HASH_FACTOR));
        Asm::multiply(self, to, from, R0);
        self.extract(to, to, 32 - count, count);
    }
    fn fold(&mut self, to: Gpr, from: Gpr, by: u32) {
        self.extract(R0, from, by, 64 - by);
        self.xor(to, from, R0);
    }
    fn hash_thread(&mut self, to: Gpr, from: Gpr, count: u32) {
        Assemble::fold(self, to, from, THREAD_FOLD);
        self.extract(to, to, STACK_PAGE_SHIFT, count);
    }
    fn load(&mut self, to: Gpr, base: Gpr, offset: i32) {
        Asm::load(self, to, base, offset as i16);
    }
    fn store(&mut self, from: Gpr, base: Gpr, offset: i32) {
        Asm::store(self, from, base, offset as i16);
    }
    fn release(&mut self) {
        self.light_sync();
    }
    fn jump(&mut self, to: Label) {
        self.branch(to);
    }
    fn jump_if_zero(&mut self, register: Gpr, to: Label) {
        self.compare_immediate(register, 0);
        self.branch_if(When::Equal, to);
    }
    fn jump_if_not_zero(&mut self, register: Gpr, to: Label) {
        self.compare_immediate(register, 0);
        self.branch_if(When::NotEqual, to);
    }
    fn jump_if_equal(&mut self, a: Gpr, b: Gpr, to: Label) {
        self.compare(a, b);
        self.branch_if(When::Equal, to);
    }
    fn jump_if_not_equal(&mut self, a: Gpr, b: Gpr, to: Label) {
        self.compare(a, b);
        self.branch_if(When::NotEqual, to);
    }
    fn jump_if_below(&mut self, a: Gpr, b: Gpr, to: Label) {
        self.compare_unsigned(a, b);
        self.branch_if(When::Less, to);
    }
    fn jump_if_not_below_small(&mut self, a: Gpr, b: u32, to: Label) {
        self.load_constant(R0, u64::from(b));
        self.compare_unsigned(a, R0);
        self.branch_if(When::NotLess, to);
    }
    fn replace(&mut self, place: Gpr, expected: u32, value: Gpr, scratch: Gpr, otherwise: Label) {
        let again = self.here_label();
        self.load_reserved(scratch, place);
        self.compare_immediate(scratch, expected as i16);
        self.branch_if(When::NotEqual, otherwise);
        self.store_conditional(value, place);
        self.branch_if(When::NotEqual, again);
    }
    fn take_number(&mut self, to: Gpr, place: Gpr, scratch: Gpr) {
        let again = self.here_label();
        self.load_reserved(to, place);
        self.addi(scratch, to, 1);
        self.store_conditional(scratch, place);
        self.branch_if(When::NotEqual, again);
    }
    fn count(&mut self, place: Gpr, by: Gpr, [sum, _]: [Gpr; 2]) {
        let again = self.here_label();
        self.load_reserved(sum, place);
        Asm::add(self, sum, sum, by);
        self.store_conditional(sum, place);
        self.branch_if(When::NotEqual, again);
    }

    /// The back chain tells how far the stack goes: every function that calls has made a frame, with its caller's above it.
    fn end_of_search(&mut self, end: Gpr, stack: Gpr, [next, last]: [Gpr; 2]) {
        let [climb, done] = [(); 2].map(|()| Asm::label(self));
        self.load_constant(last, UNWINDER_FRAMES);
        Asm::add(self, last, last, stack);
        Asm::copy(self, end, stack);
        Asm::bind(self, climb);
        Asm::load(self, next, end, 0);
        // Upward, and not too far. The chain ends with 0.
        self.compare_unsigned(end, next);
        self.branch_if(When::NotLess, done);
        self.compare_unsigned(next, last);
        self.branch_if(When::NotLess, done);
        Asm::copy(self, end, next);
        self.branch(climb);
        Asm::bind(self, done);
    }

    /// Signals' frames save all registers but the stack pointer, which is the frame address.
    fn saved_stack_pointer(&self) -> Option<i32> {
        None
    }
    /// In a signal's frame lr stands five doublewords behind r31 (`struct pt_regs`), and nothing else has them as far apart as their columns.
    fn interrupted_link(&mut self, to: Gpr, found: Gpr, [at, left]: [Gpr; 2], none: Label) {
        let [look, next, known] = [(); 3].map(|()| Asm::label(self));
        Asm::copy(self, at, found);
        self.load_constant(left, REGISTERS_BEHIND_LR);
        Asm::bind(self, look);
        self.addi(at, at, -8);
        Asm::load(self, to, at, 0);
        Asm::load(self, R0, at, -8 * (LR_COLUMN - LAST_GENERAL));
        self.compare_immediate(R0, 0);
        self.branch_if(When::Equal, next);
        Asm::sub(self, R0, to, R0);
        self.compare_immediate(R0, LR_BEHIND_LAST);
        self.branch_if(When::Equal, known);
        Asm::bind(self, next);
        self.addi(left, left, -1);
        self.compare_immediate(left, 0);
        self.branch_if(When::NotEqual, look);
        self.branch(none);
        Asm::bind(self, known);
        Asm::load(self, to, to, 0);
    }

    /// By the instruction behind the call an unwinder knows whether the caller has its r2 in its frame. So far it has looked at that
    /// of the return point.
    fn amend_context(&mut self, context: Context, found: Gpr, real: Gpr, [slot, x, y]: [Gpr; 3]) {
        let [look, next, out] = [(); 3].map(|()| Asm::label(self));
        self.load_word(x, real, 0);
        self.load_constant(y, LOAD_TOC);
        self.compare_unsigned(x, y);
        self.branch_if(When::NotEqual, out);
        match context {
            // It has no such rule.
            Context::Neighbours => {}
            Context::Registers => {
                Asm::load(self, slot, found, STACK_POINTER_BEHIND_ADDRESS);
                Asm::load(self, x, slot, TOC_SAVE);
                Asm::store(self, x, found, STACK_POINTER_BEHIND_ADDRESS + 8);
            }
            // Pointers to where registers are saved. That of lr is the only one to its place in the frame.
            Context::Gcc => {
                Asm::load(self, slot, found, -8);
                self.addi(slot, slot, LR_SAVE);
                Asm::copy(self, x, found);
                self.load_constant(y, REGISTERS_BEHIND_LR);
                Asm::bind(self, look);
                self.addi(x, x, -8);
                Asm::load(self, R0, x, 0);
                self.compare(R0, slot);
                self.branch_if(When::NotEqual, next);
                self.addi(slot, slot, TOC_SAVE - LR_SAVE);
                Asm::store(self, slot, x, -8 * (LR_COLUMN - TOC_COLUMN));
                self.branch(out);
                Asm::bind(self, next);
                self.addi(y, y, -1);
                self.compare_immediate(y, 0);
                self.branch_if(When::NotEqual, look);
            }
        }
        Asm::bind(self, out);
    }
}
