//! The vocabulary in which the cold routines of detours are written once for all instruction sets.
//!
//! A generic trait, so it compiles away and reads like assembly. Emission never fails: what cannot be encoded is told
//! once, when the code is finished. Words are the program's, of 4 or 8 bytes.

use crate::detour::UNWINDER_STACK;
use crate::routines::Context;

/// What [`crate::routines`] are written in. Registers are the caller's. An operation changes its first operand, what it says
/// it changes besides, the flags, and nothing else.
pub(crate) trait Assemble {
    /// A general register.
    type Reg: Copy + PartialEq;
    /// A place in the code.
    type Label: Copy;
    /// Whether functions are called with their return address in a register.
    const LINKS: bool = false;
    /// Whether there is a flag to mark children by that share their parent's memory ([`crate::detour::memory`]).
    const MARKS: bool = false;

    /// Bytes of a word.
    fn word(&self) -> u32;
    /// How far the slot of a call lies below its canonical frame address.
    fn slot_below_frame(&self) -> u32;

    /// Where glibc has a thread's control block (`struct pthread`): how far behind its thread pointer it starts, and at most how long it is.
    fn thread_control_block(&self) -> (i32, u32);

    fn label(&mut self) -> Self::Label;
    fn bind(&mut self, label: Self::Label);
    /// `to = value`
    fn set(&mut self, to: Self::Reg, value: u64);
    /// `to = from`
    fn copy(&mut self, to: Self::Reg, from: Self::Reg);
    /// `to += by`
    fn add(&mut self, to: Self::Reg, by: Self::Reg);
    /// `to += by`, a small number.
    fn add_small(&mut self, to: Self::Reg, by: i32);
    /// `to -= by`
    fn sub(&mut self, to: Self::Reg, by: Self::Reg);
    /// `to = (from >> low) & (2^count - 1)`. All that is left of the word when `low + count` is its size.
    fn bits(&mut self, to: Self::Reg, from: Self::Reg, low: u32, count: u32);
    /// `to <<= by`
    fn shift_left(&mut self, to: Self::Reg, by: u32);
    /// `to *= by`
    fn multiply(&mut self, to: Self::Reg, by: Self::Reg);
    /// `to = (from * HASH_FACTOR mod 2^32) >> (32 - count)`
    fn hash_page(&mut self, to: Self::Reg, from: Self::Reg, count: u32);
    /// `to = from ^ from >> by`; other registers.
    fn fold(&mut self, to: Self::Reg, from: Self::Reg, by: u32);
    /// `to` = index of a thread pointer, where the instruction set's detours look for it first.
    fn hash_thread(&mut self, to: Self::Reg, from: Self::Reg, count: u32);

    /// A word. Offsets are small.
    fn load(&mut self, to: Self::Reg, base: Self::Reg, offset: i32);
    /// A word.
    fn store(&mut self, from: Self::Reg, base: Self::Reg, offset: i32);
    /// Whatever was stored before is seen by who sees what is stored after.
    fn release(&mut self);

    fn jump(&mut self, to: Self::Label);
    fn jump_if_zero(&mut self, register: Self::Reg, to: Self::Label);
    fn jump_if_not_zero(&mut self, register: Self::Reg, to: Self::Label);
    fn jump_if_equal(&mut self, a: Self::Reg, b: Self::Reg, to: Self::Label);
    fn jump_if_not_equal(&mut self, a: Self::Reg, b: Self::Reg, to: Self::Label);
    /// Unsigned.
    fn jump_if_below(&mut self, a: Self::Reg, b: Self::Reg, to: Self::Label);
    /// Unsigned, a small number.
    fn jump_if_not_below_small(&mut self, a: Self::Reg, b: u32, to: Self::Label);

    /// Stores `value` at `place` if `expected`, a small number, stands there, else goes to `otherwise`; atomically. Changes `scratch`.
    fn replace(
        &mut self,
        place: Self::Reg,
        expected: u32,
        value: Self::Reg,
        scratch: Self::Reg,
        otherwise: Self::Label,
    );
    /// The same where 0 is expected.
    fn reserve(&mut self, place: Self::Reg, value: Self::Reg, scratch: Self::Reg, taken: Self::Label) {
        self.replace(place, 0, value, scratch, taken);
    }
    /// `to` = the 64-bit cursor at `place` (its low word), which is incremented; atomically. Changes `scratch`.
    fn take_number(&mut self, to: Self::Reg, place: Self::Reg, scratch: Self::Reg);
    /// The 64-bit counter at `place` += `by`, atomically. Changes `by` and `scratch`.
    fn count(&mut self, place: Self::Reg, by: Self::Reg, scratch: [Self::Reg; 2]);

    /// Goes to `to` unless whoever runs bears the mark. Changes `scratch`.
    fn jump_unless_marked(&mut self, _scratch: Self::Reg, to: Self::Label) {
        self.jump(to);
    }

    /// `end` = where the search for an unwinder's context ends that starts at `stack`. Changes the scratch registers.
    fn end_of_search(&mut self, end: Self::Reg, stack: Self::Reg, _scratch: [Self::Reg; 2]) {
        self.set(end, u64::from(UNWINDER_STACK));
        self.add(end, stack);
    }
    /// Goes to `is_one` when `found` is where a signal's frame holds the code address: the stack pointer lies beside it, too, but the thread
    /// goes on by it. Changes `scratch`.
    fn skip_signal_frame(&mut self, _found: Self::Reg, _scratch: Self::Reg, _is_one: Self::Label) {}
    /// How many words below a frame's code address libgcc's context holds where the frame's stack pointer was saved, if it was: 0
    /// there says that it is the frame address. `None` where signals' frames are not said to save it.
    fn saved_stack_pointer(&self) -> Option<i32>;
    /// `pointer`, what libgcc takes for the address of a frame that a signal has interrupted, = the stack pointer that the signal's frame has at
    /// `saved`; or off to `none` where the two do not belong together. Changes `saved`.
    fn interrupted_stack_pointer(&mut self, pointer: Self::Reg, saved: Self::Reg, none: Self::Label) {
        self.load(saved, saved, 0);
        self.jump_if_not_equal(saved, pointer, none);
    }
    /// `to` = what the link register was where a signal has interrupted the frame whose code address stands at `found` in libgcc's context; or
    /// off to `none`. Changes the scratch registers.
    fn interrupted_link(
        &mut self,
        _to: Self::Reg,
        _found: Self::Reg,
        _scratch: [Self::Reg; 2],
        none: Self::Label,
    ) {
        self.jump(none);
    }
    /// What else the unwinder would have found out by the real code address, which now stands at `found`. Changes the scratch
    /// registers.
    fn amend_context(
        &mut self,
        _context: Context,
        _found: Self::Reg,
        _real: Self::Reg,
        _scratch: [Self::Reg; 3],
    ) {
    }
}
