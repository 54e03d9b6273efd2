//! The real place for an unwinder that looks up an instruction of a detour: a signal's handler walks its stack, and the signal has
//! interrupted the detour.
//!
//! What the instruction stands for, its arena tells ([`crate::frames`]). libgcc's context is known for sure: its caller keeps the address
//! of the bases. The signal's frame, which holds the same code address beside the same stack pointer, is left alone: the thread goes on
//! by it. Other unwinders are not told, and end their walks there: LLVM's (14) takes the interrupted instruction for one behind a call,
//! and would look up what precedes the function.

use super::in_arena;
use super::returns::{Instances, Missing, instance_of, jump_if_free, oldest};
use super::translate::{begin_search, each_word, load_local, local, search_on, store_local, tell_everywhere};
use crate::assemble::Assemble;
use crate::detour::*;
use crate::frames::*;

/// How far above an unwinder's context the signal's frame may lie: the frames of the handler are between them.
const SIGNAL_FRAME: u32 = 1 << 16;

/// Finds libgcc's context of the address that is looked up, which lies in an arena, and makes it that of the real place; or off to
/// `out`.
pub(super) fn translate<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    saved: u32,
    out: A::Label,
) {
    let [look, next, kept, known] = [(); 4].map(|()| a.label());
    let apart = a.saved_stack_pointer();
    let word = a.word() as i32;
    begin_search(a, r, frame);

    a.bind(look);
    load_local(a, r.left, frame, local::FOUND);
    a.load(r.scratch, r.left, 0);
    load_local(a, r.page, frame, local::LOOKED_UP);
    a.jump_if_not_equal(r.scratch, r.page, next);
    a.copy(r.page, r.left);
    a.add_small(r.page, 2 * word);
    each_word(a, r, frame, saved, |a, at| {
        a.load(r.index, at, 0);
        a.jump_if_equal(r.index, r.page, kept);
    });
    a.bind(next);
    search_on(a, r, frame, look);
    a.jump(out);

    // Where the stack pointer was saved, if it was, is in the signal's frame, above. A context that is laid out in another way is let be.
    a.bind(kept);
    load_local(a, r.left, frame, local::FOUND);
    a.load(r.slot, r.left, -word);
    if let Some(apart) = apart {
        a.load(r.page, r.left, -apart * word);
        a.jump_if_zero(r.page, known);
        a.copy(r.index, r.page);
        a.sub(r.index, r.left);
        a.jump_if_not_below_small(r.index, SIGNAL_FRAME, out);
        a.interrupted_stack_pointer(r.slot, r.page, out);
    }
    a.bind(known);
    store_local(a, r.slot, frame, local::INTERRUPTED);
    store_local(a, r.slot, frame, local::POINTER);
    real_place(a, layout, r, frame, out);

    load_local(a, r.left, frame, local::FOUND);
    load_local(a, r.scratch, frame, local::POINTER);
    a.store(r.scratch, r.left, -word);
    if let Some(apart) = apart {
        a.set(r.scratch, 0);
        a.store(r.scratch, r.left, -apart * word);
    }
    load_local(a, r.scratch, frame, local::CODE);
    a.store(r.scratch, r.left, 0);
    tell_everywhere(a, r, frame, saved);
}

/// `CODE` and `POINTER` = what the address that is looked up stands for, with the stack pointer in `POINTER`; or off to `out`.
fn real_place<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>, frame: A::Reg, out: A::Label) {
    let [again, inside, row, found, routine, caller, real] = [(); 7].map(|()| a.label());
    let word = a.word() as i32;
    load_local(a, r.slot, frame, local::LOOKED_UP);
    store_local(a, r.slot, frame, local::CODE);
    a.bind(again);
    load_local(a, r.slot, frame, local::CODE);
    in_arena(a, layout, r.slot, [r.page, r.index, r.left], inside);
    a.jump(out);

    a.bind(inside);
    a.load(r.index, r.page, 0);
    store_local(a, r.index, frame, local::ARENA);
    a.sub(r.slot, r.index);
    piece(a, r, out);
    half(a, r.index, r.page, ENTRY_START);
    a.jump_if_below(r.slot, r.index, out);
    a.sub(r.slot, r.index);
    half(a, r.index, r.page, ENTRY_ROWS);
    load_local(a, r.left, frame, local::ARENA);
    a.add(r.index, r.left);
    a.bind(row);
    half(a, r.left, r.index, 0);
    a.bits(r.scratch, r.left, ROW_END.0, ROW_END.1);
    a.jump_if_below(r.slot, r.scratch, found);
    a.add_small(r.index, 1 << ROW_SHIFT);
    a.jump(row);

    a.bind(found);
    a.bits(r.scratch, r.left, ROW_PLACE.0, ROW_PLACE.1);
    a.set(r.index, u64::from(PLACE_UNKNOWN));
    a.jump_if_equal(r.scratch, r.index, out);
    a.bits(r.left, r.left, ROW_DEPTH.0, ROW_DEPTH.1);
    a.shift_left(r.left, a.word().ilog2());
    load_local(a, r.slot, frame, local::POINTER);
    a.add(r.slot, r.left);
    a.add_small(r.slot, -word);
    store_local(a, r.slot, frame, local::POINTER);
    a.set(r.index, u64::from(PLACE_ROUTINE));
    a.jump_if_equal(r.scratch, r.index, routine);
    a.set(r.index, u64::from(PLACE_CALLER));
    a.jump_if_equal(r.scratch, r.index, caller);
    a.load(r.left, r.page, ENTRY_SITE as i32);
    a.add(r.left, r.scratch);
    a.jump(real);

    // Its stack pointer is that of the detour which has called it, from where it goes on. Routines call none.
    a.bind(routine);
    a.load(r.left, r.slot, 0);
    store_local(a, r.left, frame, local::CODE);
    a.add_small(r.slot, word);
    store_local(a, r.slot, frame, local::POINTER);
    a.jump(again);

    a.bind(caller);
    way_home(a, layout, r, frame, out);
    a.jump_if_zero(r.left, out);
    a.bind(real);
    store_local(a, r.left, frame, local::CODE);
}

/// `page` = the last entry of the index that starts at `slot`, an offset in the arena at `index`, or before it; if that is known to have
/// any.
fn piece<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, out: A::Label) {
    let [search, halve, done] = [(); 3].map(|()| a.label());
    let word = 8 * a.word();
    half(a, r.left, r.index, ARENA_FRAMES);
    half(a, r.scratch, r.index, ARENA_FRAMES + 4);
    a.jump_if_zero(r.scratch, out);
    a.add(r.left, r.index);
    a.set(r.page, 0);
    // `page` entries are known to start before, and it is one of the next `scratch` ones.
    a.bind(search);
    a.jump_if_not_below_small(r.scratch, 2, halve);
    a.jump(done);
    a.bind(halve);
    a.bits(r.index, r.scratch, 1, word - 1);
    a.sub(r.scratch, r.index);
    a.add(r.index, r.page);
    a.copy(r.instance, r.index);
    a.shift_left(r.instance, ENTRY_SHIFT);
    a.add(r.instance, r.left);
    half(a, r.instance, r.instance, ENTRY_START);
    a.jump_if_below(r.slot, r.instance, search);
    a.copy(r.page, r.index);
    a.jump(search);
    a.bind(done);
    a.shift_left(r.page, ENTRY_SHIFT);
    a.add(r.page, r.left);
}

/// `left` = the return address of the call that was in the slot just popped: in its instance as long as the slot holds a return
/// point, and in the slot after that, or in the link register. Where the first instruction behind the call was interrupted, a signal's frame may
/// lie in the slot.
fn way_home<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>, frame: A::Reg, none: A::Label) {
    let [in_slot, in_instance, done] = [(); 3].map(|()| a.label());
    load_local(a, r.slot, frame, local::POINTER);
    a.add_small(r.slot, -(a.slot_below_frame() as i32));
    instance_of(a, layout, r, Missing::Nothing, in_slot);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    jump_if_free(a, layout, r.scratch, r.scratch, in_slot);
    if !A::LINKS {
        load_local(a, r.page, frame, local::INTERRUPTED);
        load_local(a, r.left, frame, local::POINTER);
        a.jump_if_equal(r.page, r.left, in_instance);
        a.load(r.left, r.slot, 0);
        in_arena(a, layout, r.left, [r.page, r.index, r.scratch], in_instance);
        a.jump(done);
    }
    a.bind(in_instance);
    oldest(a, layout, r);
    a.load(r.left, r.instance, RETURN_ADDRESS as i32);
    a.jump(done);
    a.bind(in_slot);
    if A::LINKS {
        load_local(a, r.page, frame, local::FOUND);
        a.interrupted_link(r.left, r.page, [r.index, r.scratch], none);
    } else {
        a.load(r.left, r.slot, 0);
    }
    a.bind(done);
}

/// `to` = 32 bits at an even number of bytes; words are read whole.
fn half<A: Assemble>(a: &mut A, to: A::Reg, base: A::Reg, offset: u32) {
    let word = a.word();
    a.load(to, base, offset as i32);
    if word == 8 {
        a.bits(to, to, 0, 32);
    }
}
