//! A thread's entry of the thread table.

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

/// Finds the thread's entry, or claims one with a block. 0 when there is none left.
pub(crate) fn resolve<A: Assemble>(a: &mut A, layout: &Layout, r: &Threads<A::Reg>) {
    let [probe, next, release, none, done] = [(); 5].map(|()| a.label());
    a.set(r.left, u64::from(RESOLVE_PROBES));
    a.hash_thread(r.index, r.pointer, layout.thread_bits);

    a.bind(probe);
    a.bits(r.index, r.index, 0, layout.thread_bits);
    a.copy(r.entry, r.index);
    a.shift_left(r.entry, THREAD_SHIFT);
    a.set(r.x, layout.threads);
    a.add(r.entry, r.x);
    a.load(r.x, r.entry, THREAD_OWNER as i32);
    a.jump_if_equal(r.x, r.owner, done);
    a.jump_if_not_zero(r.x, next);
    // Free: reserve it, so that no one sees an owner before the fields.
    a.set(r.y, THREAD_RESERVED);
    a.reserve(r.entry, r.y, r.x, next);
    // Looked at first, so that threads that come too late do not move the cursor for ever.
    a.set(r.x, layout.block_cursor);
    a.load(r.y, r.x, 0);
    a.jump_if_not_below_small(r.y, layout.block_count, release);
    a.take_number(r.y, r.x, r.left);
    a.jump_if_not_below_small(r.y, layout.block_count, release);
    a.set(r.x, layout.block_stride);
    a.multiply(r.y, r.x);
    a.set(r.x, layout.blocks);
    a.add(r.y, r.x);
    a.store(r.pointer, r.y, BLOCK_OWNER as i32);
    a.set(r.x, layout.origin);
    a.load(r.x, r.x, 0);
    a.store(r.x, r.y, BLOCK_ORIGIN as i32);
    a.store(r.y, r.entry, THREAD_BLOCK as i32);
    a.release();
    a.store(r.owner, r.entry, THREAD_OWNER as i32);
    a.jump(done);

    a.bind(next);
    a.add_small(r.index, 1);
    a.add_small(r.left, -1);
    a.jump_if_not_zero(r.left, probe);
    a.jump(none);
    a.bind(release);
    a.set(r.x, 0);
    a.store(r.x, r.entry, THREAD_OWNER as i32);
    a.bind(none);
    a.set(r.entry, 0);
    a.bind(done);
}
