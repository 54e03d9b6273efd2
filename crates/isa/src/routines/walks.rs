//! How many calls an exception leaves: what an unwinder has walked over when it lands.
//!
//! Each walk has a *record*, in the instance of the slot that its context's code address would be. No call returns through the middle of a
//! context, so the instance is free; a signal's handler that walks in between has a context, and a record, of its own.

use super::returns::{Instances, Missing, forget, instance_of, jump_if_free, older_than};
use super::translate::{load_local, local, store_local};
use crate::assemble::Assemble;
use crate::detour::*;

/// Notes that the unwinder whose context has its code address at `FOUND` walks over the calls of `instance`, which is kept. Changes the
/// other registers, and `scratch`.
pub(super) fn walked<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    frame: A::Reg,
    scratch: A::Reg,
) {
    let [older, counted, free, goes_on, begun, out] = [(); 6].map(|()| a.label());
    let word = a.word() as i32;
    store_local(a, r.instance, frame, local::INSTANCE);
    a.set(r.left, 0);
    a.bind(older);
    a.add_small(r.left, 1);
    older_than(a, layout, [r.page, r.instance, r.scratch], counted);
    a.copy(r.instance, r.page);
    a.jump(older);
    a.bind(counted);
    store_local(a, r.left, frame, local::CALLS);

    load_local(a, r.slot, frame, local::FOUND);
    instance_of(a, layout, r, Missing::Claim, out);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    jump_if_free(a, layout, r.scratch, r.scratch, free);
    forget(a, layout, r);
    a.bind(free);
    load_local(a, r.page, frame, local::FOUND);
    a.load(r.slot, r.page, -word);
    a.add_small(r.slot, -(a.slot_below_frame() as i32));
    // The walk goes on where the record is one, of a call between the context and this one. Else it begins, for the first time or again.
    a.set(r.left, 0);
    if layout.shadows() == Shadows::Plain {
        // Whoever finds a slot's name takes what else is there for what a call has left.
        a.store(r.left, r.instance, RETURN_POINT as i32);
    }
    calls_of_record(a, r, scratch, begun);
    a.jump_if_below(r.index, r.page, begun);
    a.jump_if_below(r.index, r.slot, goes_on);
    a.jump(begun);
    a.bind(goes_on);
    a.copy(r.left, r.scratch);
    a.bind(begun);
    load_local(a, r.scratch, frame, local::CALLS);
    a.add(r.left, r.scratch);
    a.store(r.slot, r.instance, WALK_LAST as i32);
    a.add(r.left, r.slot);
    a.store(r.left, r.instance, WALK_CALLS as i32);
    a.bind(out);
    load_local(a, r.instance, frame, local::INSTANCE);
}

/// `index` = the slot of the last call of the record in `instance`, `scratch` = the number of its calls; or off to `none`, since what is there
/// is none. Changes `limit`.
fn calls_of_record<A: Assemble>(a: &mut A, r: &Instances<A::Reg>, limit: A::Reg, none: A::Label) {
    let is_one = a.label();
    a.load(r.index, r.instance, WALK_LAST as i32);
    a.load(r.scratch, r.instance, WALK_CALLS as i32);
    a.sub(r.scratch, r.index);
    a.set(limit, WALK_MOST);
    a.jump_if_below(r.scratch, limit, is_one);
    a.jump(none);
    a.bind(is_one);
}

/// An unwinder lands, whose context has its code address at `slot`: `calls` = how many calls it leaves, or off to `none`.
///
/// The frame that it lands in has made the call at the context's frame address; whatever was walked over up to there is left.
/// A landing behind which the last call walked over lies is one in the first part of that walk, before any call.
pub(crate) fn landed<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    calls: A::Reg,
    none: A::Label,
) {
    let word = a.word() as i32;
    instance_of(a, layout, r, Missing::Nothing, none);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    a.jump_if_not_zero(r.scratch, none);
    calls_of_record(a, r, calls, none);
    a.jump_if_zero(r.scratch, none);
    a.copy(calls, r.scratch);
    a.jump_if_below(r.index, r.slot, none);
    a.load(r.page, r.slot, -word);
    a.add_small(r.page, -(a.slot_below_frame() as i32));
    a.jump_if_below(r.page, r.index, none);
    // Each call is left once.
    a.set(r.left, 0);
    a.store(r.left, r.instance, WALK_LAST as i32);
    a.store(r.left, r.instance, WALK_CALLS as i32);
    // Whoever walked here before, to tell where the program is, may have walked over calls that are done.
    a.copy(r.slot, r.index);
    instance_of(a, layout, r, Missing::Nothing, none);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    jump_if_free(a, layout, r.scratch, r.scratch, none);
}

/// Counts `calls` as left by an exception, in the block of the thread with this `entry`, or without one. Changes the rest.
pub(crate) fn count_left<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    entry: A::Reg,
    calls: A::Reg,
    [block, x, y]: [A::Reg; 3],
) {
    let [nobody, known] = [(); 2].map(|()| a.label());
    a.jump_if_zero(entry, nobody);
    a.load(block, entry, THREAD_BLOCK as i32);
    a.jump_if_not_zero(block, known);
    a.bind(nobody);
    a.set(block, layout.blocks);
    a.bind(known);
    a.add_small(block, BLOCK_UNWOUND as i32);
    a.count(block, calls, [x, y]);
}

/// `place` = whether the C library unwinds a thread that is cancelled or exits, and not 0 then. In: `field`, where the unwinder's context has its
/// code address, `place`, where it has the register that a landing finds the exception in, `stack`, below both, and the thread `pointer`.
pub(crate) fn ends_thread<A: Assemble>(
    a: &mut A,
    [field, place, stack, pointer]: [A::Reg; 4],
    [x, y]: [A::Reg; 2],
    done: A::Label,
) {
    let [look, no] = [(); 2].map(|()| a.label());
    let word = a.word() as i32;
    let (start, size) = a.thread_control_block();
    a.load(x, field, -word);
    a.jump_if_below(place, stack, no);
    a.jump_if_below(place, x, look);
    a.jump(no);
    // glibc's such exceptions are part of the thread's control block, and no others are.
    a.bind(look);
    a.load(x, place, 0);
    a.sub(x, pointer);
    a.add_small(x, -start);
    a.set(y, u64::from(size));
    a.set(place, 1);
    a.jump_if_below(x, y, done);
    a.bind(no);
    a.set(place, 0);
}
