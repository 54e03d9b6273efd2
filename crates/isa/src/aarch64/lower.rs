//! The shared vocabulary of cold routines on Arm. Nothing touches the flags, so comparisons go through x17, which the
//! routines' frame saves.

use super::count::add_atomically;
use super::emit::{Code, Label, instruction as a};
use super::frame::register::SP;
use crate::assemble::Assemble;
use crate::detour::{HASH_FACTOR, STACK_PAGE_SHIFT, THREAD_FOLD};

/// Scratch of the vocabulary itself.
pub(super) const OWN: u32 = 17;

/// `_Unwind_Context` holds so many registers, the frame address and the code address; these are numbers of registers there.
const COLUMNS: i32 = 98;
const LINK: i32 = 30;
const STACK_POINTER: i32 = 31;
/// Where `struct sigcontext` has the stack pointer: behind the address of a fault and 31 registers.
const SIGNAL_STACK_POINTER: i32 = 8 + 31 * 8;

const DMB_ISH: u32 = 0xd503_3bbf;
const B: u32 = 0x1400_0000;

impl Assemble for Code {
    type Reg = u32;
    type Label = Label;
    const LINKS: bool = true;

    fn word(&self) -> u32 {
        8
    }
    /// A call's slot is the stack pointer at its entry.
    fn slot_below_frame(&self) -> u32 {
        0
    }
    /// Right ahead of the thread pointer.
    fn thread_control_block(&self) -> (i32, u32) {
        (-0x900, 0x900)
    }
    fn saved_stack_pointer(&self) -> Option<i32> {
        Some(COLUMNS + 1 - STACK_POINTER)
    }
    /// libgcc takes the address of the registers in a signal's frame (`struct sigcontext`) for that of the frame that was interrupted.
    fn interrupted_stack_pointer(&mut self, pointer: u32, saved: u32, none: Label) {
        self.add_small(pointer, SIGNAL_STACK_POINTER);
        self.jump_if_not_equal(pointer, saved, none);
        Assemble::load(self, pointer, saved, 0);
    }
    /// The stack pointer stands behind it in a signal's frame (`struct sigcontext`), and it behind x29.
    fn interrupted_link(&mut self, to: u32, found: u32, [before, _]: [u32; 2], none: Label) {
        let [link, before_it] = [LINK, LINK - 1].map(|column| -8 * (COLUMNS + 1 - column));
        Assemble::load(self, before, found, before_it);
        self.jump_if_zero(before, none);
        Assemble::load(self, to, found, link);
        self.add_small(before, 8);
        self.jump_if_not_equal(before, to, none);
        Assemble::load(self, to, to, 0);
    }
    fn label(&mut self) -> Label {
        Code::label(self)
    }
    fn bind(&mut self, label: Label) {
        Code::bind(self, label);
    }
    fn set(&mut self, to: u32, value: u64) {
        Code::load(self, to, value);
    }
    fn copy(&mut self, to: u32, from: u32) {
        self.emit([a::mov(to, from)]);
    }
    fn add(&mut self, to: u32, by: u32) {
        self.emit([a::add(to, to, by, 0)]);
    }
    fn add_small(&mut self, to: u32, by: i32) {
        match u64::try_from(by) {
            Ok(by) => self.add_constant(to, to, by),
            Err(_) => self.emit([a::sub_immediate(to, to, by.unsigned_abs())]),
        }
    }
    fn sub(&mut self, to: u32, by: u32) {
        self.emit([a::sub(to, to, by, 0)]);
    }
    fn bits(&mut self, to: u32, from: u32, low: u32, count: u32) {
        self.emit([a::ubfx(to, from, low, count)]);
    }
    fn shift_left(&mut self, to: u32, by: u32) {
        self.emit([a::lsl(to, to, by)]);
    }
    fn multiply(&mut self, to: u32, by: u32) {
        self.emit([a::madd(to, to, by, SP)]);
    }
    fn hash_page(&mut self, to: u32, from: u32, count: u32) {
        Code::load(self, OWN, u64::from(HASH_FACTOR));
        self.emit([a::madd(to, from, OWN, SP), a::ubfx(to, to, 32 - count, count)]);
    }
    fn fold(&mut self, to: u32, from: u32, by: u32) {
        self.emit([a::eor_shifted_right(to, from, from, by)]);
    }
    fn hash_thread(&mut self, to: u32, from: u32, count: u32) {
        Assemble::fold(self, to, from, THREAD_FOLD);
        self.bits(to, to, STACK_PAGE_SHIFT, count);
    }
    fn load(&mut self, to: u32, base: u32, offset: i32) {
        match u32::try_from(offset) {
            Ok(offset) if offset.is_multiple_of(8) => self.emit([a::ldr(to, base, offset)]),
            Ok(offset) => self.emit([a::add_immediate(OWN, base, offset), a::ldr(to, OWN, 0)]),
            Err(_) => self.emit([a::sub_immediate(OWN, base, offset.unsigned_abs()), a::ldr(to, OWN, 0)]),
        }
    }
    fn store(&mut self, from: u32, base: u32, offset: i32) {
        match u32::try_from(offset) {
            Ok(offset) => self.emit([a::str(from, base, offset)]),
            Err(_) => self.emit([a::sub_immediate(OWN, base, offset.unsigned_abs()), a::str(from, OWN, 0)]),
        }
    }
    fn release(&mut self) {
        self.emit([DMB_ISH]);
    }
    fn jump(&mut self, to: Label) {
        self.emit_to(B, to);
    }
    fn jump_if_zero(&mut self, register: u32, to: Label) {
        self.emit_to(a::cbz(register), to);
    }
    fn jump_if_not_zero(&mut self, register: u32, to: Label) {
        self.emit_to(a::cbnz(register), to);
    }
    fn jump_if_equal(&mut self, x: u32, y: u32, to: Label) {
        self.emit([a::eor(OWN, x, y)]);
        self.emit_to(a::cbz(OWN), to);
    }
    fn jump_if_not_equal(&mut self, x: u32, y: u32, to: Label) {
        self.emit([a::eor(OWN, x, y)]);
        self.emit_to(a::cbnz(OWN), to);
    }
    /// The sign of the difference tells, unless the operands' own signs differ.
    fn jump_if_below(&mut self, x: u32, y: u32, to: Label) {
        let [differ, end] = [(); 2].map(|()| Code::label(self));
        self.emit([a::eor(OWN, x, y)]);
        self.emit_to(a::tbnz(OWN, 63), differ);
        self.emit([a::sub(OWN, x, y, 0)]);
        self.emit_to(a::tbnz(OWN, 63), to);
        self.emit_to(B, end);
        Code::bind(self, differ);
        self.emit_to(a::tbnz(y, 63), to);
        Code::bind(self, end);
    }
    /// Counts of ours, far below 2^63.
    fn jump_if_not_below_small(&mut self, x: u32, y: u32, to: Label) {
        Code::load(self, OWN, u64::from(y));
        self.emit([a::sub(OWN, x, OWN, 0)]);
        self.emit_to(a::tbz_sign(OWN), to);
    }
    fn replace(&mut self, place: u32, expected: u32, value: u32, scratch: u32, otherwise: Label) {
        let again = self.label_here();
        self.emit([a::ldxr(scratch, place)]);
        if expected != 0 {
            self.emit([a::sub_immediate(scratch, scratch, expected)]);
        }
        self.emit_to(a::cbnz(scratch), otherwise);
        self.emit([a::stxr(scratch, value, place)]);
        self.emit_to(a::cbnz_w(scratch), again);
    }
    fn take_number(&mut self, to: u32, place: u32, scratch: u32) {
        let again = self.label_here();
        self.emit([a::ldxr(to, place), a::add_immediate(scratch, to, 1), a::stxr(OWN, scratch, place)]);
        self.emit_to(a::cbnz_w(OWN), again);
    }
    fn count(&mut self, place: u32, by: u32, scratch: [u32; 2]) {
        add_atomically(self, place, Some(by), scratch);
    }
}
