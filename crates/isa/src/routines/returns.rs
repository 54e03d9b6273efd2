//! Return instances: the shadow block of a stack page, the claim of an instance, and the way home where it is not plain.

use crate::assemble::Assemble;
use crate::detour::*;

/// The registers of the routines by role.
#[derive(Clone, Copy)]
pub(crate) struct Instances<R> {
    /// In: the call's stack slot. Kept.
    pub slot: R,
    /// Out: the instance, or 0.
    pub instance: R,
    pub page: R,
    pub index: R,
    pub left: R,
    pub scratch: R,
}

/// What a page without a shadow block gets, or a thread without an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Claim,
    Nothing,
}

/// `instance` = the instance of the slot, or off to `none`.
pub(crate) fn instance_of<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    missing: Missing,
    none: A::Label,
) {
    let [probe, next, found] = [(); 3].map(|()| a.label());
    let word = 8 * a.word();
    let shadows = layout.shadows();
    a.bits(r.page, r.slot, STACK_PAGE_SHIFT, word - STACK_PAGE_SHIFT);
    match shadows {
        Shadows::Tagged => a.hash_page(r.index, r.page, layout.return_bits),
        Shadows::Plain => {
            a.fold(r.index, r.slot, SHADOW_FOLD);
            a.bits(r.index, r.index, STACK_PAGE_SHIFT, layout.return_bits);
        }
    }
    a.set(r.left, u64::from(SHADOW_PROBES));
    // `instance` = the place of the tag.
    a.bind(probe);
    a.copy(r.instance, r.index);
    match shadows {
        Shadows::Tagged => {
            a.set(r.scratch, layout.block_size());
            a.multiply(r.instance, r.scratch);
        }
        Shadows::Plain => a.shift_left(r.instance, TAG_SHIFT),
    }
    a.set(r.scratch, layout.tag(0));
    a.add(r.instance, r.scratch);
    a.load(r.scratch, r.instance, 0);
    a.jump_if_equal(r.scratch, r.page, found);
    match missing {
        Missing::Claim => {
            a.jump_if_not_zero(r.scratch, next);
            // If another thread is quicker, it may have claimed it for this very page.
            a.reserve(r.instance, r.page, r.scratch, probe);
            a.set(r.scratch, layout.pages + u64::from(PAGES_COUNT));
            a.take_number(r.index, r.scratch, r.left);
            a.shift_left(r.index, 3);
            a.set(r.scratch, layout.pages + u64::from(PAGES_FIRST));
            a.add(r.index, r.scratch);
            a.store(r.page, r.index, 0);
            a.jump(found);
        }
        Missing::Nothing => a.jump_if_zero(r.scratch, none),
    }
    a.bind(next);
    a.add_small(r.index, 1);
    a.bits(r.index, r.index, 0, layout.return_bits);
    a.add_small(r.left, -1);
    a.jump_if_not_zero(r.left, probe);
    a.jump(none);
    a.bind(found);
    match shadows {
        Shadows::Tagged => {
            a.bits(r.page, r.slot, layout.slot_shift, STACK_PAGE_SHIFT - layout.slot_shift);
            a.shift_left(r.page, RETURN_SHIFT);
            a.add(r.instance, r.page);
            a.add_small(r.instance, SHADOW_INSTANCES as i32);
        }
        // From the place of the tag to the block, and on to the slot.
        Shadows::Plain => {
            a.set(r.scratch, layout.first_tag());
            a.sub(r.instance, r.scratch);
            a.shift_left(r.instance, layout.block_size().ilog2() - TAG_SHIFT);
            a.set(r.scratch, layout.shadow_block(0));
            a.add(r.instance, r.scratch);
            a.fold(r.page, r.slot, SHADOW_FOLD);
            a.bits(r.page, r.page, layout.slot_shift, STACK_PAGE_SHIFT - layout.slot_shift);
            a.shift_left(r.page, RETURN_SHIFT);
            a.add(r.instance, r.page);
        }
    }
}

/// Goes to `free` when `point` is that of a free instance. Changes `scratch`, which may be `point`.
pub(crate) fn jump_if_free<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    point: A::Reg,
    scratch: A::Reg,
    free: A::Label,
) {
    a.jump_if_zero(point, free);
    jump_if_name(a, layout, point, scratch, free);
}

/// Goes to `to` when `word`, a point or an older instance, is a slot's name. Changes `scratch`, which may be `word`.
fn jump_if_name<A: Assemble>(a: &mut A, layout: &Layout, word: A::Reg, scratch: A::Reg, to: A::Label) {
    if layout.shadows() == Shadows::Plain {
        a.bits(scratch, word, 0, 1);
        a.jump_if_not_zero(scratch, to);
    }
}

/// `older` = the instance that `instance` was reached from, or off to `none`. Changes `scratch`, which is another register.
pub(crate) fn older_than<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    [older, instance, scratch]: [A::Reg; 3],
    none: A::Label,
) {
    a.load(older, instance, RETURN_OLDER as i32);
    a.jump_if_zero(older, none);
    jump_if_name(a, layout, older, scratch, none);
}

/// `instance` = the oldest one that it was reached from, whose return address is the program's own. Changes `page` and `scratch`.
pub(crate) fn oldest<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>) {
    let [older, known] = [(); 2].map(|()| a.label());
    a.bind(older);
    older_than(a, layout, [r.page, r.instance, r.scratch], known);
    a.copy(r.instance, r.page);
    a.jump(older);
    a.bind(known);
}

/// Offsets of the words that an instance carries besides its point and its older one.
fn carried<A: Assemble>(a: &A) -> impl Iterator<Item = i32> + use<A> {
    let time = if a.word() == 4 { &[0, 4][..] } else { &[0] };
    [RETURN_ADDRESS as i32].into_iter().chain(time.iter().map(|half| RETURN_ENTERED as i32 + half))
}

/// `instance` = an instance for a call whose return address is `caller`, or 0. Its point, address and time are the caller's to
/// fill in.
pub(crate) fn claim<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>, caller: A::Reg) {
    let [abandoned, place, next, taken, none, named, done] = [(); 7].map(|()| a.label());
    instance_of(a, layout, r, Missing::Claim, none);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    let free = if layout.shadows() == Shadows::Plain { named } else { done };
    jump_if_free(a, layout, r.scratch, r.left, free);
    a.jump_if_not_equal(r.scratch, caller, abandoned);

    // Reached by a tail call: the instance that is there moves to the pool.
    a.bits(r.page, r.slot, layout.slot_shift, 8 * a.word() - layout.slot_shift);
    a.hash_page(r.index, r.page, POOL_BITS);
    a.set(r.left, u64::from(POOL_PROBES));
    a.bind(place);
    a.copy(r.page, r.index);
    a.shift_left(r.page, RETURN_SHIFT);
    a.set(r.scratch, layout.returns);
    a.add(r.page, r.scratch);
    a.reserve(r.page, caller, r.scratch, next);
    a.jump(taken);
    a.bind(next);
    a.add_small(r.index, 1);
    a.bits(r.index, r.index, 0, POOL_BITS);
    a.add_small(r.left, -1);
    a.jump_if_not_zero(r.left, place);
    a.jump(none);
    a.bind(taken);
    let carried: alloc::vec::Vec<i32> = carried(a).collect();
    for field in carried.into_iter().chain([RETURN_OLDER as i32]) {
        a.load(r.scratch, r.instance, field);
        a.store(r.scratch, r.page, field);
    }
    a.store(r.page, r.instance, RETURN_OLDER as i32);
    a.jump(done);

    a.bind(abandoned);
    forget(a, layout, r);
    a.bind(named);
    if layout.shadows() == Shadows::Plain {
        // Slots are even.
        a.copy(r.scratch, r.slot);
        a.add_small(r.scratch, 1);
        a.store(r.scratch, r.instance, RETURN_OLDER as i32);
    }
    a.jump(done);

    a.bind(none);
    a.set(r.instance, 0);
    a.bind(done);
}

/// Frees an instance that was left behind, with all that it was reached from. Changes `page`, `index`, `left` and `scratch`.
pub(crate) fn forget<A: Assemble>(a: &mut A, layout: &Layout, r: &Instances<A::Reg>) {
    let [again, done] = [(); 2].map(|()| a.label());
    a.load(r.page, r.instance, RETURN_OLDER as i32);
    a.set(r.index, 0);
    a.store(r.index, r.instance, RETURN_OLDER as i32);
    a.store(r.index, r.instance, RETURN_POINT as i32);
    a.bind(again);
    a.jump_if_zero(r.page, done);
    jump_if_name(a, layout, r.page, r.scratch, done);
    a.load(r.left, r.page, RETURN_OLDER as i32);
    a.release();
    a.store(r.index, r.page, RETURN_POINT as i32);
    a.copy(r.page, r.left);
    a.jump(again);
    a.bind(done);
}

/// `instance` = the instance of the slot's call whose return point is `point`, for its return part to read and to free; or off to
/// `unknown`.
pub(crate) fn leave<A: Assemble>(
    a: &mut A,
    layout: &Layout,
    r: &Instances<A::Reg>,
    point: A::Reg,
    unknown: A::Label,
) {
    let done = a.label();
    instance_of(a, layout, r, Missing::Nothing, unknown);
    a.load(r.scratch, r.instance, RETURN_POINT as i32);
    a.jump_if_not_equal(r.scratch, point, unknown);
    older_than(a, layout, [r.page, r.instance, r.scratch], done);
    // The older one takes its place, and it the older one's, in the pool. The older one's own goes along, as soon as the address is there:
    // for an unwinder the last one's is always the real one.
    let carried: alloc::vec::Vec<i32> = carried(a).collect();
    for field in carried.into_iter().chain([RETURN_POINT as i32]) {
        a.load(r.scratch, r.instance, field);
        a.load(r.left, r.page, field);
        a.store(r.left, r.instance, field);
        if field == RETURN_ADDRESS as i32 {
            a.load(r.left, r.page, RETURN_OLDER as i32);
            a.store(r.left, r.instance, RETURN_OLDER as i32);
        }
        a.store(r.scratch, r.page, field);
    }
    a.copy(r.instance, r.page);
    a.bind(done);
}
