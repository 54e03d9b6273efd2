//! The real address for an unwinder that looks up a return point.

use super::returns::{Instances, Missing, instance_of, older_than, oldest};
use super::walks::walked;
use crate::assemble::Assemble;
use crate::detour::*;

/// Words of the routine's frame below the saved registers.
pub(crate) const LOCALS: u32 = 13;

/// Places in the frame, in words.
pub(super) mod local {
    /// The address that is looked up, as the unwinder has it: the return point less one.
    pub const LOOKED_UP: u32 = 0;
    /// The same, as it shall be.
    pub const REAL: u32 = 1;
    /// The stack pointer at the entry of the function that is asked.
    pub const STACK: u32 = 2;
    /// A word of the unwinder's stack that holds the return point.
    pub const FOUND: u32 = 3;
    /// Where the search ends.
    pub const END: u32 = 4;
    /// The first word that looks like one in a context of `Neighbours`, or 0.
    pub const NEIGHBOUR: u32 = 5;
    /// The same of `Registers`.
    pub const REGISTER: u32 = 6;
    /// Of a frame that was interrupted in a detour: its code address, on the way to the real one.
    pub const CODE: u32 = 7;
    /// The same of its stack pointer.
    pub const POINTER: u32 = 8;
    /// Its stack pointer where it was interrupted.
    pub const INTERRUPTED: u32 = 9;
    /// The arena.
    pub const ARENA: u32 = 10;
    /// The instance of the call that was found, while another is worked on.
    pub const INSTANCE: u32 = 11;
    /// How many calls return through its slot.
    pub const CALLS: u32 = 12;
}

/// How an unwinder keeps the code address of the frame that it looks up, beside the frame address of the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    /// libgcc: frame address, code address, language-specific data, bases; and the caller keeps the address of the bases.
    Gcc,
    /// libunwind: frame address, code address.
    Neighbours,
    /// LLVM's libunwind: all registers in order, the stack pointer among them, which is the frame address.
    Registers,
}

/// Translates an address that is looked up.
///
/// `frame` is the routine's frame: [`LOCALS`] words, then `saved` words that hold the registers that functions keep for their callers;
/// they are loaded again after. In: `address`, and `stack`, the stack pointer at the entry of the function that is
/// asked. Out: `address`. `registers_apart`: distance in words from the stack pointer to the code address in LLVM's
/// array of registers.
pub(crate) fn translate<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    (address, stack): (A::Reg, A::Reg),
    saved: u32,
    registers_apart: i32,
) {
    let [inside, out, look, next, kept, no_neighbour, other, interrupted] = [(); 8].map(|()| a.label());
    let word = a.word() as i32;
    store_local(a, address, frame, local::LOOKED_UP);
    store_local(a, address, frame, local::REAL);
    store_local(a, stack, frame, local::STACK);
    super::in_arena(a, layout, address, [r.page, r.index, r.left], inside);
    a.jump(out);

    a.bind(inside);
    begin_search(a, r, frame);
    a.set(r.page, 0);
    store_local(a, r.page, frame, local::NEIGHBOUR);
    store_local(a, r.page, frame, local::REGISTER);

    // libgcc's context is known for sure. Others are remembered: parts of the stack may hold what an earlier frame has left there.
    a.bind(look);
    load_local(a, r.left, frame, local::FOUND);
    a.load(r.scratch, r.left, 0);
    load_local(a, r.page, frame, local::LOOKED_UP);
    a.add_small(r.page, 1);
    a.jump_if_not_equal(r.scratch, r.page, next);

    a.skip_signal_frame(r.left, r.scratch, no_neighbour);
    find_call(a, layout, r, frame, 1, no_neighbour);
    end_with_slot(a, r, frame);
    load_local(a, r.page, frame, local::FOUND);
    a.add_small(r.page, 2 * word);
    each_word(a, r, frame, saved, |a, at| {
        a.load(r.index, at, 0);
        a.jump_if_equal(r.index, r.page, kept);
    });
    remember(a, r, frame, local::NEIGHBOUR);
    a.bind(no_neighbour);
    find_call(a, layout, r, frame, registers_apart, next);
    end_with_slot(a, r, frame);
    remember(a, r, frame, local::REGISTER);

    a.bind(next);
    search_on(a, r, frame, look);

    load_local(a, r.left, frame, local::NEIGHBOUR);
    a.jump_if_zero(r.left, other);
    store_local(a, r.left, frame, local::FOUND);
    find_call(a, layout, r, frame, 1, out);
    make_real(a, layout, r, frame, Context::Neighbours, saved, out);
    a.jump(out);

    a.bind(other);
    load_local(a, r.left, frame, local::REGISTER);
    a.jump_if_zero(r.left, interrupted);
    store_local(a, r.left, frame, local::FOUND);
    find_call(a, layout, r, frame, registers_apart, out);
    make_real(a, layout, r, frame, Context::Registers, saved, out);
    a.jump(out);

    a.bind(kept);
    // The walk over what is kept has lost the slot, but not the instance.
    walked(a, layout, r, frame, address);
    make_real(a, layout, r, frame, Context::Gcc, saved, out);
    a.jump(out);

    a.bind(interrupted);
    super::interrupted::translate(a, layout, r, frame, saved, out);

    a.bind(out);
    load_local(a, address, frame, local::REAL);
}

/// `instance` = the one of the call whose frame address lies `apart` words below `FOUND`, if its return point is the one that is looked
/// up, or that of a call that it was reached from: it is not in its slot yet, then. Or off to `none`.
fn find_call<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    apart: i32,
    none: A::Label,
) {
    load_local(a, r.left, frame, local::FOUND);
    a.load(r.slot, r.left, -apart * a.word() as i32);
    a.add_small(r.slot, -(a.slot_below_frame() as i32));
    // A slot that looks like a context of itself: the call keeps a frame address beside it.
    a.jump_if_equal(r.slot, r.left, none);
    instance_of(a, layout, r, Missing::Nothing, none);
    let [older, found] = [(); 2].map(|()| a.label());
    load_local(a, r.page, frame, local::LOOKED_UP);
    a.add_small(r.page, 1);
    a.bind(older);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    a.jump_if_equal(r.scratch, r.page, found);
    older_than(a, layout, [r.scratch, r.instance, r.index], none);
    a.copy(r.instance, r.scratch);
    a.jump(older);
    a.bind(found);
}

/// A context lies below the call that it tells of. So the search ends with the page of the call's slot: a small stack may end there,
/// too, and nothing be mapped behind.
fn end_with_slot<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, frame: A::Reg) {
    let as_before = a.label();
    load_local(a, r.page, frame, local::FOUND);
    // On another stack.
    a.jump_if_below(r.slot, r.page, as_before);
    a.bits(r.page, r.slot, STACK_PAGE_SHIFT, 8 * a.word() - STACK_PAGE_SHIFT);
    a.add_small(r.page, 1);
    a.shift_left(r.page, STACK_PAGE_SHIFT);
    load_local(a, r.index, frame, local::END);
    a.jump_if_below(r.index, r.page, as_before);
    store_local(a, r.page, frame, local::END);
    a.bind(as_before);
}

/// `FOUND` = the first word where an unwinder's context may lie, which is searched up to `END`.
pub(super) fn begin_search<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, frame: A::Reg) {
    load_local(a, r.slot, frame, local::STACK);
    store_local(a, r.slot, frame, local::FOUND);
    a.end_of_search(r.left, r.slot, [r.page, r.index]);
    store_local(a, r.left, frame, local::END);
}

/// Goes to `look` with `FOUND` at the next word, if there is one.
pub(super) fn search_on<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, frame: A::Reg, look: A::Label) {
    load_local(a, r.left, frame, local::FOUND);
    a.add_small(r.left, a.word() as i32);
    store_local(a, r.left, frame, local::FOUND);
    load_local(a, r.page, frame, local::END);
    a.jump_if_below(r.left, r.page, look);
}

/// Notes `FOUND` in `place`, if it is the first there.
fn remember<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, frame: A::Reg, place: u32) {
    let known = a.label();
    load_local(a, r.page, frame, place);
    a.jump_if_not_zero(r.page, known);
    load_local(a, r.page, frame, local::FOUND);
    store_local(a, r.page, frame, place);
    a.bind(known);
}

/// Puts the real address of the call with this `instance` wherever the unwinder has the point.
fn make_real<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    context: Context,
    saved: u32,
    done: A::Label,
) {
    oldest(a, layout, r);
    a.load(r.scratch, r.instance, RETURN_ADDRESS as i32);
    // The end of a stack that somebody made by hand: it ends as well where the point is found in no file.
    a.jump_if_zero(r.scratch, done);
    past_point(a, layout, r);
    load_local(a, r.left, frame, local::FOUND);
    a.store(r.scratch, r.left, 0);
    a.amend_context(context, r.left, r.scratch, [r.slot, r.page, r.index]);
    a.add_small(r.scratch, -1);
    tell_everywhere(a, r, frame, saved);
}

/// `scratch` = where the point goes back to which it is an address of, if it is one's; else what it is.
fn past_point<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>) {
    if layout.points == 0 {
        return;
    }
    let [point, other] = [(); 2].map(|()| a.label());
    a.set(r.page, layout.points);
    a.copy(r.index, r.scratch);
    a.load(r.left, r.page, POINTS_START as i32);
    a.sub(r.index, r.left);
    a.load(r.left, r.page, POINTS_SIZE as i32);
    a.jump_if_below(r.index, r.left, point);
    a.jump(other);
    a.bind(point);
    a.load(r.left, r.page, POINTS_APART as i32);
    a.add(r.left, r.scratch);
    a.load(r.scratch, r.left, 0);
    a.bind(other);
}

/// Puts the real address in `scratch` wherever the unwinder keeps the one that it looks up.
pub(super) fn tell_everywhere<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, frame: A::Reg, saved: u32) {
    let other = a.label();
    store_local(a, r.scratch, frame, local::REAL);
    load_local(a, r.page, frame, local::LOOKED_UP);
    each_word(a, r, frame, saved, |a, at| {
        a.load(r.index, at, 0);
        a.jump_if_not_equal(r.index, r.page, other);
        a.store(r.scratch, at, 0);
        a.bind(other);
    });
}

/// Does something with each word where the unwinder may keep what it needs after the call: the saved registers, and the stack below
/// the context. The address of the word is in `left`; `slot` is lost.
pub(super) fn each_word<A: Assemble>(
    a: &mut A,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    saved: u32,
    look: impl FnOnce(&mut A, A::Reg),
) {
    let word = a.word() as i32;
    let [again, stack] = [(); 2].map(|()| a.label());
    a.copy(r.left, frame);
    a.add_small(r.left, LOCALS as i32 * word);
    a.bind(again);
    look(a, r.left);
    a.add_small(r.left, word);
    // Behind the last saved register, go on at the stack pointer.
    a.copy(r.slot, frame);
    a.add_small(r.slot, (LOCALS + saved) as i32 * word);
    a.jump_if_not_equal(r.left, r.slot, stack);
    load_local(a, r.left, frame, local::STACK);
    a.bind(stack);
    load_local(a, r.slot, frame, local::FOUND);
    a.jump_if_not_equal(r.left, r.slot, again);
}

pub(super) fn load_local<A: Assemble>(a: &mut A, to: A::Reg, frame: A::Reg, place: u32) {
    let offset = (place * a.word()) as i32;
    a.load(to, frame, offset);
}

pub(super) fn store_local<A: Assemble>(a: &mut A, from: A::Reg, frame: A::Reg, place: u32) {
    let offset = (place * a.word()) as i32;
    a.store(from, frame, offset);
}
