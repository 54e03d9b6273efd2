//! The routines that the detours of one arena share: all that is too rare or too long to stand in every detour.
//!
//! | routine | in | out |
//! |---|---|---|
//! | resolve | – | r11: the thread's entry of the thread table, or 0 |
//! | claim | r8: stack slot, r12: return table, r10: the caller's return address | r11: a return instance reserved for the slot, or 0 |
//! | find | r10: stack slot | r11: 1, r10: return address and r9: entry time of the instance, which is free again; or r11: 0 |
//! | restore | r10: the caller's return address, r12: block | r10: the real one |
//!
//! Each changes r9, r10, r11, cr0 and lr at most, works in the detour's frame (see [`super::emit`]), waits for nothing, and
//! may be interrupted by a signal handler that runs it again. The memory they work on is described in [`crate::detour`].
//!
//! # The slot of a call
//!
//! Power has no stack slot that a call pushes its return address to. What identifies a call is the stack pointer at its
//! entry, which is its caller's: every function that calls others makes a frame first (the return verdict makes sure), so
//! two calls in progress differ in it, unless one was reached by a tail call from the other. Then lr is a return point in
//! an arena, and the instances of the same slot are used as a stack: the latest is at the lowest place.

use super::emit::*;
use crate::detour::*;

/// Where the routines are, by index into [`Runtime::routines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routine {
    Resolve,
    Claim,
    Find,
    Restore,
}

impl Routine {
    /// Its address.
    pub fn address(self, runtime: &Runtime) -> Emitted<u64> {
        runtime.routines.get(self as usize).copied().ok_or(crate::Reason::OutOfReach)
    }
}

/// How many entries of the thread table are looked at before a thread is served by the overflow block.
const RESOLVE_PROBES: u64 = 64;
/// How many frames the way up the stack has at most, should the back chain lead in a circle.
const MAX_FRAMES: u64 = 1 << 16;
/// Offset of the LR save doubleword in a frame.
const LR_SAVE: i16 = 16;

/// Doublewords in which routines save registers; detours use those before, `restore` those behind.
const SAVED: [i16; 4] = [scratch(14), scratch(15), scratch(16), scratch(17)];
const SAVED_BY_RESTORE: [i16; 4] = [scratch(18), scratch(19), scratch(20), scratch(21)];

pub(super) fn runtime(address: u64, layout: &Layout) -> Emitted<Runtime> {
    let mut asm = Asm::new(address);
    let routines: [fn(&mut Asm, &Layout) -> Label; 4] = [resolve, claim, find, |asm, _| asm.here_label()];
    let mut addresses = alloc::vec![];
    let mut find = None;
    for (index, routine) in routines.into_iter().enumerate() {
        addresses.push(asm.here());
        let label = routine(&mut asm, layout);
        if index == Routine::Find as usize {
            find = Some(label);
        }
    }
    if let Some(find) = find {
        restore(&mut asm, layout, find);
    }
    Ok(Runtime { code: asm.finish()?, routines: addresses })
}

fn save(asm: &mut Asm, registers: &[Gpr], places: [i16; 4]) {
    for (&register, place) in registers.iter().zip(places) {
        asm.store(register, R1, place);
    }
}

fn restore_saved(asm: &mut Asm, registers: &[Gpr], places: [i16; 4]) {
    for (&register, place) in registers.iter().zip(places) {
        asm.load(register, R1, place);
    }
}

/// The thread's entry of the thread table, claimed if it has none.
fn resolve(asm: &mut Asm, layout: &Layout) -> Label {
    let start = asm.here_label();
    let saved = [R0, R7, R8, R12];
    let [probe, reserve, cursor, used, next, release, none, done] = [(); 8].map(|()| asm.label());
    save(asm, &saved, SAVED);
    asm.compare_immediate(R13, 0);
    asm.branch_if(When::Equal, none);
    asm.extract(R10, R13, THREAD_HASH_SHIFT, layout.thread_bits);
    asm.load_constant(R9, RESOLVE_PROBES.min(1 << layout.thread_bits));

    asm.bind(probe);
    asm.extract(R10, R10, 0, layout.thread_bits);
    asm.shift_left(R11, R10, THREAD_SHIFT);
    asm.load_constant(R12, layout.threads);
    asm.add(R11, R11, R12);
    asm.load(R12, R11, THREAD_OWNER as i16);
    asm.compare(R12, R13);
    asm.branch_if(When::Equal, done);
    asm.compare_immediate(R12, 0);
    asm.branch_if(When::NotEqual, next);
    // Free: reserve it, so that no one sees an owner before the fields.
    asm.load_constant(R8, THREAD_RESERVED);
    asm.bind(reserve);
    asm.load_reserved(R12, R11);
    asm.compare_immediate(R12, 0);
    asm.branch_if(When::NotEqual, next);
    asm.store_conditional(R8, R11);
    asm.branch_if(When::NotEqual, reserve);
    // Looked at first, so that threads that come too late do not move the cursor for ever.
    asm.load_constant(R12, layout.block_cursor);
    asm.load_constant(R8, u64::from(layout.block_count));
    asm.bind(cursor);
    asm.load_reserved(R7, R12);
    asm.compare_unsigned(R7, R8);
    asm.branch_if(When::NotLess, release);
    asm.addi(R9, R7, 1);
    asm.store_conditional(R9, R12);
    asm.branch_if(When::NotEqual, cursor);
    asm.load_constant(R8, layout.block_stride);
    asm.multiply(R7, R7, R8);
    asm.load_constant(R8, layout.blocks);
    asm.add(R7, R7, R8);
    asm.store(R13, R7, BLOCK_OWNER as i16);
    asm.load_constant(R8, layout.origin);
    asm.load(R8, R8, 0);
    asm.store(R8, R7, BLOCK_ORIGIN as i16);
    asm.store(R7, R11, THREAD_BLOCK as i16);
    asm.shift_left(R7, R10, layout.return_bits + RETURN_SHIFT);
    asm.load_constant(R8, layout.returns);
    asm.add(R7, R7, R8);
    asm.store(R7, R11, THREAD_RETURNS as i16);
    if layout.returns_used != 0 {
        used_word(asm, layout, R8, R10, R7);
        asm.extract(R7, R10, 0, 6);
        asm.load_constant(R12, 1);
        asm.shift_left_by(R12, R12, R7);
        asm.bind(used);
        asm.load_reserved(R7, R8);
        asm.or(R7, R7, R12);
        asm.store_conditional(R7, R8);
        asm.branch_if(When::NotEqual, used);
    }
    asm.light_sync();
    asm.store(R13, R11, THREAD_OWNER as i16);
    asm.branch(done);

    asm.bind(next);
    asm.addi(R10, R10, 1);
    asm.addi(R9, R9, -1);
    asm.compare_immediate(R9, 0);
    asm.branch_if(When::NotEqual, probe);
    asm.branch(none);
    asm.bind(release);
    asm.load_constant(R12, 0);
    asm.store(R12, R11, THREAD_OWNER as i16);
    asm.bind(none);
    asm.load_constant(R11, 0);
    asm.bind(done);
    restore_saved(asm, &saved, SAVED);
    asm.return_();
    start
}

/// `to` = address of the word of the bitmap of used tables that has the bit of table `index`.
fn used_word(asm: &mut Asm, layout: &Layout, to: Gpr, index: Gpr, scratch: Gpr) {
    asm.extract(scratch, index, 6, 58);
    asm.shift_left(scratch, scratch, 3);
    asm.load_constant(to, layout.returns_used);
    asm.add(to, to, scratch);
}

/// `to` = address of the n-th place for `slot` in `table`.
pub(super) fn return_place(asm: &mut Asm, layout: &Layout, n: u32, to: Gpr, slot: Gpr, table: Gpr) {
    let bits = layout.return_bits;
    asm.extract(to, slot, 4, bits);
    if n > 0 {
        asm.addi(to, to, (n * (2 * n + 1) * 61) as i16);
        asm.extract(to, to, 0, bits);
    }
    asm.shift_left(to, to, RETURN_SHIFT);
    asm.add(to, to, table);
}

/// Goes to `inside` when `address` lies in an arena, on otherwise. Changes `at`, `x`, `y` and cr0.
fn branch_if_in_arena(asm: &mut Asm, layout: &Layout, address: Gpr, [at, x, y]: [Gpr; 3], inside: Label) {
    let outside = asm.label();
    asm.load_constant(at, layout.arenas);
    let arena = asm.here_label();
    asm.load(x, at, 0);
    asm.compare_immediate(x, 0);
    asm.branch_if(When::Equal, outside);
    asm.sub(x, address, x);
    asm.load(y, at, 8);
    asm.compare_unsigned(x, y);
    asm.branch_if(When::Less, inside);
    asm.addi(at, at, 16);
    asm.branch(arena);
    asm.bind(outside);
}

/// Reserves a place, so that among instances with the same slot the latest is at the lowest place.
///
/// If the call's return address is one of our return points, the call is a tail call from a followed one, whose
/// instance is alive: the instances of this slot move up, the oldest to the free place. If not, all instances of this
/// slot were left behind by abandoned calls, since the slot has a new owner now.
fn claim(asm: &mut Asm, layout: &Layout) -> Label {
    let start = asm.here_label();
    let saved = [R7];
    let [tail, out] = [(); 2].map(|()| asm.label());
    save(asm, &saved, SAVED);
    branch_if_in_arena(asm, layout, R10, [R11, R9, R7], tail);
    for n in 0..=RETURN_PROBES {
        let kept = asm.label();
        return_place(asm, layout, n, R9, R8, R12);
        asm.load(R7, R9, RETURN_SLOT as i16);
        asm.compare(R7, R8);
        asm.branch_if(When::NotEqual, kept);
        asm.load_constant(R7, 0);
        asm.store(R7, R9, RETURN_SLOT as i16);
        asm.bind(kept);
    }
    asm.bind(tail);
    let move_up = [(); RETURN_PROBES as usize].map(|()| asm.label());
    for n in 0..=RETURN_PROBES {
        let next = asm.label();
        return_place(asm, layout, n, R11, R8, R12);
        reserve_place(asm, R11, R8, R9, next);
        asm.branch(match n {
            0 => out,
            n => move_up[n as usize - 1],
        });
        asm.bind(next);
    }
    asm.load_constant(R11, 0);
    asm.branch(out);

    // r11: a place of ours that is free. What the slot has at lower places moves up one by one.
    for n in (0..RETURN_PROBES).rev() {
        let skip = asm.label();
        asm.bind(move_up[n as usize]);
        return_place(asm, layout, n, R9, R8, R12);
        asm.load(R7, R9, RETURN_SLOT as i16);
        asm.compare(R7, R8);
        asm.branch_if(When::NotEqual, skip);
        for field in [RETURN_ADDRESS, RETURN_ENTERED] {
            asm.load(R7, R9, field as i16);
            asm.store(R7, R11, field as i16);
        }
        asm.copy(R11, R9);
        asm.bind(skip);
    }
    asm.bind(out);
    restore_saved(asm, &saved, SAVED);
    asm.return_();
    start
}

/// Reserves the return instance at `place` for `slot` if it is free, or goes to `taken`. Changes `t` and cr0.
///
/// By compare-and-swap: a signal handler may switch to another stack of the same thread in between.
pub(super) fn reserve_place(asm: &mut Asm, place: Gpr, slot: Gpr, t: Gpr, taken: Label) {
    const { assert!(RETURN_SLOT == 0, "place is the slot's address") };
    let again = asm.here_label();
    asm.load_reserved(t, place);
    asm.compare_immediate(t, 0);
    asm.branch_if(When::NotEqual, taken);
    asm.store_conditional(slot, place);
    asm.branch_if(When::NotEqual, again);
}

/// Looks through all places of the thread's own table, then through those of every table that was ever used: the
/// frame may have been entered on another thread, or before a fork.
fn find(asm: &mut Asm, layout: &Layout) -> Label {
    let start = asm.here_label();
    let saved = [R0, R7, R8];
    let [table, next, hit, none, out] = [(); 5].map(|()| asm.label());
    save(asm, &saved, SAVED);
    asm.load_constant(R7, u64::MAX);
    asm.extract(R8, R13, THREAD_HASH_SHIFT, layout.thread_bits);

    asm.bind(table);
    asm.shift_left(R8, R8, layout.return_bits + RETURN_SHIFT);
    asm.load_constant(R11, layout.returns);
    asm.add(R11, R11, R8);
    for n in 0..=RETURN_PROBES {
        return_place(asm, layout, n, R9, R10, R11);
        asm.load(R0, R9, RETURN_SLOT as i16);
        asm.compare(R0, R10);
        asm.branch_if(When::Equal, hit);
    }
    asm.bind(next);
    asm.addi(R7, R7, 1);
    asm.load_constant(R0, 1 << layout.thread_bits);
    asm.compare(R7, R0);
    asm.branch_if(When::NotLess, none);
    used_word(asm, layout, R9, R7, R8);
    asm.load(R9, R9, 0);
    asm.extract(R8, R7, 0, 6);
    asm.shift_right_by(R9, R9, R8);
    asm.extract(R9, R9, 0, 1);
    asm.compare_immediate(R9, 0);
    asm.branch_if(When::Equal, next);
    asm.copy(R8, R7);
    asm.branch(table);

    asm.bind(hit);
    asm.load(R10, R9, RETURN_ADDRESS as i16);
    asm.load(R8, R9, RETURN_ENTERED as i16);
    // The table may be another thread's, who may take the place as soon as it is free.
    asm.light_sync();
    asm.load_constant(R0, 0);
    asm.store(R0, R9, RETURN_SLOT as i16);
    asm.copy(R9, R8);
    asm.load_constant(R11, 1);
    asm.branch(out);
    asm.bind(none);
    asm.load_constant(R11, 0);
    asm.bind(out);
    restore_saved(asm, &saved, SAVED);
    asm.return_();
    start
}

/// Puts back the real return addresses of the followed calls on this stack, for an unwinder that is about to walk it.
///
/// Walks the back chain, which ELFv2 requires of every function that calls: where a frame's LR save doubleword has a return
/// point, the frame's instances say what it was, and are given up and counted in the block. A signal frame is passed like any other; the lr
/// of the function it interrupted is not looked at.
fn restore(asm: &mut Asm, layout: &Layout, find: Label) {
    let saved = [R0, R7, R8];
    let [untangle, frame, unchanged, done, inside, unknown, known] = [(); 7].map(|()| asm.label());
    save(asm, &saved, SAVED_BY_RESTORE);
    asm.read_special(R0, LR);
    asm.store(R0, R1, SAVED_BY_RESTORE[3]);
    asm.addi(R7, R1, FRAME);
    asm.load_constant(R8, MAX_FRAMES);
    asm.call(untangle);
    asm.store(R10, R1, scratch(22));

    asm.bind(frame);
    asm.load(R7, R7, 0);
    asm.compare_immediate(R7, 0);
    asm.branch_if(When::Equal, done);
    asm.addi(R8, R8, -1);
    asm.compare_immediate(R8, 0);
    asm.branch_if(When::Equal, done);
    asm.load(R10, R7, LR_SAVE);
    asm.store(R10, R1, scratch(23));
    asm.call(untangle);
    asm.load(R9, R1, scratch(23));
    asm.compare(R9, R10);
    asm.branch_if(When::Equal, unchanged);
    asm.store(R10, R7, LR_SAVE);
    asm.bind(unchanged);
    asm.branch(frame);

    asm.bind(done);
    asm.load(R10, R1, scratch(22));
    asm.load(R0, R1, SAVED_BY_RESTORE[3]);
    asm.write_special(LR, R0);
    restore_saved(asm, &saved, SAVED_BY_RESTORE);
    asm.return_();

    // r10: an address, r7: its slot. r10 = what the caller's return address really is.
    asm.bind(untangle);
    asm.read_special(R0, LR);
    asm.store(R0, R1, scratch(24));
    let again = asm.here_label();
    branch_if_in_arena(asm, layout, R10, [R11, R9, R0], inside);
    asm.branch(known);
    asm.bind(inside);
    asm.store(R10, R1, scratch(25));
    asm.copy(R10, R7);
    asm.call(find);
    asm.compare_immediate(R11, 0);
    asm.branch_if(When::Equal, unknown);
    asm.addi(R11, R12, BLOCK_UNWOUND as i16);
    asm.increment(R11, R9);
    asm.branch(again);
    asm.bind(unknown);
    asm.load(R10, R1, scratch(25));
    asm.bind(known);
    asm.load(R0, R1, scratch(24));
    asm.write_special(LR, R0);
    asm.return_();
}
