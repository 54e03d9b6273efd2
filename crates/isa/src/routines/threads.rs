//! A thread's entry of the thread table, and how it is shared with children that share the memory.

use super::Missing;
use crate::assemble::Assemble;
use crate::detour::*;

/// How many entries of the thread table are looked at before a thread is served by the overflow block.
const RESOLVE_PROBES: u32 = 64;

/// The registers of [`resolve`] by role.
#[derive(Clone, Copy)]
pub(crate) struct Threads<R> {
    /// In: the thread pointer, not 0.
    pub pointer: R,
    /// In: the owner that stands for it in the table.
    pub owner: R,
    /// Out: the entry, or 0.
    pub entry: R,
    pub index: R,
    pub left: R,
    pub x: R,
    pub y: R,
}

/// Finds the thread's entry, or its part for children if one of them asks; or claims one with a block. 0 when there is none left.
///
/// A handler of the thread's may fork at any instruction of this, and its child go on here with the table wiped. What it has reserved is
/// free then, so an entry bears its owner only if it is still reserved; if not, all begins again, for a block of the child's own.
/// One that bears it nevertheless, by a store that was under way, and has no block is claimed by whoever finds it.
pub(crate) fn resolve<A: Assemble>(a: &mut A, layout: &Layout, r: &Threads<A::Reg>, missing: Missing) {
    let [again, probe, claim, next, release, none, shared, found, done] = [(); 9].map(|()| a.label());
    a.bind(again);
    a.set(r.left, u64::from(RESOLVE_PROBES));
    a.hash_thread(r.index, r.pointer, layout.thread_bits);

    a.bind(probe);
    a.bits(r.index, r.index, 0, layout.thread_bits);
    a.copy(r.entry, r.index);
    a.shift_left(r.entry, THREAD_SHIFT);
    a.set(r.x, layout.threads);
    a.add(r.entry, r.x);
    a.load(r.x, r.entry, THREAD_OWNER as i32);
    a.jump_if_equal(r.x, r.owner, found);
    if A::MARKS {
        shared_owner(a, r);
        a.jump_if_equal(r.x, r.y, shared);
    }
    match missing {
        Missing::Claim => a.jump_if_not_zero(r.x, next),
        Missing::Nothing => {
            a.jump_if_not_zero(r.x, next);
            a.jump(none);
        }
    }
    if missing == Missing::Claim {
        // Free: reserve it, so that no one sees an owner before the fields.
        a.set(r.y, THREAD_RESERVED);
        a.reserve(r.entry, r.y, r.x, next);
        a.bind(claim);
        take_block(a, layout, r, release);
        a.set(r.x, layout.origin);
        a.load(r.x, r.x, 0);
        a.store(r.x, r.y, BLOCK_ORIGIN as i32);
        a.store(r.y, r.entry, THREAD_BLOCK as i32);
        a.release();
        a.replace(r.entry, THREAD_RESERVED as u32, r.owner, r.x, again);
        a.jump(done);
    }

    a.bind(next);
    a.add_small(r.index, 1);
    a.add_small(r.left, -1);
    a.jump_if_not_zero(r.left, probe);
    a.jump(none);
    if A::MARKS {
        a.bind(shared);
        a.jump_unless_marked(r.x, found);
        a.add_small(r.entry, THREAD_CHILDREN as i32);
        a.jump(found);
    }
    if missing == Missing::Claim {
        a.bind(found);
        a.load(r.x, r.entry, THREAD_BLOCK as i32);
        a.jump_if_not_zero(r.x, done);
        a.set(r.x, THREAD_RESERVED);
        a.store(r.x, r.entry, THREAD_OWNER as i32);
        a.jump(claim);
        a.bind(release);
        a.set(r.x, 0);
        a.store(r.x, r.entry, THREAD_OWNER as i32);
    }
    a.bind(none);
    a.set(r.entry, 0);
    if missing == Missing::Nothing {
        a.bind(found);
    }
    a.bind(done);
}

/// `y` = a block that was nobody's, with its owner; or off to `exhausted`.
fn take_block<A: Assemble>(a: &mut A, layout: &Layout, r: &Threads<A::Reg>, exhausted: A::Label) {
    // Looked at first, so that threads that come too late do not move the cursor for ever.
    a.set(r.x, layout.block_cursor);
    a.load(r.y, r.x, 0);
    a.jump_if_not_below_small(r.y, layout.block_count, exhausted);
    a.take_number(r.y, r.x, r.left);
    a.jump_if_not_below_small(r.y, layout.block_count, exhausted);
    if layout.stacks != 0 {
        a.copy(r.left, r.y);
        a.shift_left(r.left, STACK_SHIFT);
        a.set(r.x, layout.stacks);
        a.add(r.left, r.x);
    }
    a.set(r.x, layout.block_stride);
    a.multiply(r.y, r.x);
    a.set(r.x, layout.blocks);
    a.add(r.y, r.x);
    a.store(r.pointer, r.y, BLOCK_OWNER as i32);
    if layout.stacks != 0 {
        a.store(r.left, r.y, BLOCK_STACK as i32);
    }
}

/// `y` = what stands in a shared entry for its owner. Nobody's thread pointer: those are even.
fn shared_owner<A: Assemble>(a: &mut A, r: &Threads<A::Reg>) {
    a.copy(r.y, r.owner);
    a.add_small(r.y, -1);
}

/// Shares the thread's entry with a child that shares its memory, whichever of the two runs this. `call`: address of the arguments
/// of a call that is to come; 0 in the child itself. Off to `no` where there is nothing to be told apart: in a child.
pub(crate) fn share<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Threads<A::Reg>,
    call: A::Reg,
    no: A::Label,
) {
    let [parent, has_block] = [(); 2].map(|()| a.label());
    a.jump_unless_marked(r.x, parent);
    a.jump(no);
    a.bind(parent);
    a.set(r.x, layout.origin);
    a.load(r.x, r.x, 0);
    a.jump_if_zero(r.x, no);
    // A thread pointer like no other's might have an owner that is another one's less one.
    a.bits(r.x, r.pointer, 0, 2);
    a.jump_if_not_zero(r.x, no);
    resolve(a, layout, r, Missing::Claim);
    a.jump_if_zero(r.entry, no);
    a.load(r.x, r.entry, (THREAD_CHILDREN + THREAD_BLOCK) as i32);
    a.jump_if_not_zero(r.x, has_block);
    // Its origin is 0, as that of all new memory.
    take_block(a, layout, r, no);
    a.store(r.y, r.entry, (THREAD_CHILDREN + THREAD_BLOCK) as i32);
    a.bind(has_block);
    a.store(call, r.entry, THREAD_CALL as i32);
    shared_owner(a, r);
    a.release();
    a.store(r.y, r.entry, THREAD_OWNER as i32);
}

/// Goes on if the entry is shared for this very `call`, which whoever runs this has come back from as a child; else off to `no`.
pub(crate) fn join<A: Assemble>(a: &mut A, layout: &Layout, r: &Threads<A::Reg>, call: A::Reg, no: A::Label) {
    resolve(a, layout, r, Missing::Nothing);
    a.jump_if_zero(r.entry, no);
    a.load(r.x, r.entry, THREAD_OWNER as i32);
    shared_owner(a, r);
    a.jump_if_not_equal(r.x, r.y, no);
    a.load(r.x, r.entry, THREAD_CALL as i32);
    a.jump_if_not_equal(r.x, call, no);
}

/// The thread's entry is its own again: the child has left the memory, or none was made. A child comes back from its own children,
/// and shares on.
pub(crate) fn unshare<A: Assemble>(a: &mut A, layout: &Layout, r: &Threads<A::Reg>, done: A::Label) {
    let parent = a.label();
    a.jump_unless_marked(r.x, parent);
    a.jump(done);
    a.bind(parent);
    resolve(a, layout, r, Missing::Nothing);
    a.jump_if_zero(r.entry, done);
    a.store(r.owner, r.entry, THREAD_OWNER as i32);
}
