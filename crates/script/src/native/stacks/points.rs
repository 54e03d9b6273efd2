//! Return points on stacks: a followed call's slot holds one of ours, and its return instance the address that the program put there.

use super::super::emit::{At, Base, Emit};
use super::leave_unless;
use super::walk::Walk;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use trapless_isa::detour::{
    HASH_FACTOR, RETURN_ADDRESS, RETURN_OLDER, RETURN_POINT, RETURN_SHIFT, SHADOW_FOLD, SHADOW_INSTANCES,
    SHADOW_PROBES, SHADOW_TAG, STACK_PAGE_SHIFT, Shadows, TAG_SHIFT, shadow_block_size,
};
use trapless_wire::{SCRIPT_ARENAS, SCRIPT_SHADOW_BITS, SCRIPT_SHADOWS};

/// A tail call after the other: no more are followed.
const MOST_OLDER: i64 = 1 << 12;
/// There are no more arenas.
const MOST_ARENAS: i64 = 128;
impl Walk<'_> {
    /// Where a return address that was found is one of our return points: goes round again with the one that was taken.
    pub(super) fn translate(&self, e: &mut Emit<'_>, pc: Value, slot: Value, head: Block) {
        let [other, inside, found] = [(); 3].map(|()| e.block());
        let shift = self.walks.slot_shift;
        let shadows_at = e.address(Base::Shared(SCRIPT_SHADOWS.into()));
        let shadows = e.load(shadows_at);
        leave_unless(e, shadows, other);
        // In one of the arenas?
        let arenas_at = e.address(Base::Shared(SCRIPT_ARENAS.into()));
        let arenas = e.load(arenas_at);
        let end = e.int(16 * MOST_ARENAS);
        e.each(end, 16, |e, index, after| {
            let at = e.b.ins().iadd(arenas, index);
            let (start, size) = (e.load(At(at, 0)), e.load(At(at, 8)));
            leave_unless(e, start, after);
            let distance = e.b.ins().isub(pc, start);
            let is_inside = e.is(IntCC::UnsignedLessThan, distance, size);
            e.leave_if(is_inside, inside);
        });
        e.jump(other);
        // The shadow of the slot's page.
        e.b.switch_to_block(inside);
        let bits_at = e.address(Base::Shared(SCRIPT_SHADOW_BITS.into()));
        let bits = e.load(bits_at);
        let page = e.b.ins().ushr_imm_s(slot, i64::from(STACK_PAGE_SHIFT));
        // As `Layout::block_index`; for plain shadows without the mask, which comes with each turn.
        let (first, place) = match Shadows::of(shift) {
            Shadows::Tagged => {
                let short_page = e.b.ins().ireduce(I32, page);
                let hash = e.b.ins().imul_imm_s(short_page, i64::from(HASH_FACTOR));
                let hash = e.b.ins().uextend(I64, hash);
                let product = e.b.ins().ishl(hash, bits);
                (e.b.ins().ushr_imm_s(product, 32), slot)
            }
            Shadows::Plain => {
                let above = e.b.ins().ushr_imm_s(slot, i64::from(SHADOW_FOLD));
                let place = e.b.ins().bxor(slot, above);
                (e.b.ins().ushr_imm_s(place, i64::from(STACK_PAGE_SHIFT)), place)
            }
        };
        let one = e.int(1);
        let count = e.b.ins().ishl(one, bits);
        let mask = e.b.ins().iadd_imm_s(count, -1);
        let block = e.set_new(shadows);
        let end = e.int(SHADOW_PROBES.into());
        e.each(end, 1, |e, turn, after| {
            let index = e.b.ins().iadd(first, turn);
            let index = e.b.ins().band(index, mask);
            let offset = e.b.ins().imul_imm_s(index, shadow_block_size(shift) as i64);
            let at = e.b.ins().iadd(shadows, offset);
            let (at, tag_at) = match Shadows::of(shift) {
                Shadows::Tagged => (at, at),
                // The tags come first, and the blocks behind them.
                Shadows::Plain => {
                    let tags = e.b.ins().ishl_imm_s(count, i64::from(TAG_SHIFT));
                    let tag = e.b.ins().ishl_imm_s(index, i64::from(TAG_SHIFT));
                    (e.b.ins().iadd(at, tags), e.b.ins().iadd(shadows, tag))
                }
            };
            e.b.def_var(block, at);
            let tag = e.load(At(tag_at, SHADOW_TAG as i32));
            let is_it = e.is(IntCC::Equal, tag, page);
            e.leave_if(is_it, found);
            leave_unless(e, tag, after);
        });
        e.jump(other);
        e.b.switch_to_block(found);
        let block = e.b.use_var(block);
        let in_page = e.b.ins().band_imm_s(place, (1 << STACK_PAGE_SHIFT) - 1);
        let number = e.b.ins().ushr_imm_s(in_page, i64::from(shift));
        let offset = e.b.ins().ishl_imm_s(number, i64::from(RETURN_SHIFT));
        let instance = e.b.ins().iadd(block, offset);
        let instance = match Shadows::of(shift) {
            Shadows::Tagged => e.b.ins().iadd_imm_s(instance, i64::from(SHADOW_INSTANCES)),
            Shadows::Plain => instance,
        };
        // The point is that of the call, or of one that it was reached from. The oldest has the program's own address.
        let zero = e.int(0);
        let (instance, seen) = (e.set_new(instance), e.set_new(zero));
        let end = e.int(MOST_OLDER);
        e.each(end, 1, |e, _, after| {
            let at = e.b.use_var(instance);
            let point = e.load(At(at, RETURN_POINT as i32));
            let is_it = e.is(IntCC::Equal, point, pc);
            let is_it = e.b.ins().uextend(I64, is_it);
            let before = e.b.use_var(seen);
            let now = e.b.ins().bor(before, is_it);
            e.b.def_var(seen, now);
            let older = e.load(At(at, RETURN_OLDER as i32));
            leave_unless(e, older, after);
            // A slot's name is odd, and no older instance.
            if Shadows::of(shift) == Shadows::Plain {
                let is_name = e.b.ins().band_imm_s(older, 1);
                e.leave_if(is_name, after);
            }
            e.b.def_var(instance, older);
        });
        let is_seen = e.b.use_var(seen);
        leave_unless(e, is_seen, other);
        let at = e.b.use_var(instance);
        let real = e.load(At(at, RETURN_ADDRESS as i32));
        let real = self.masked(e, real);
        e.b.def_var(self.pc, real);
        let nowhere = e.int(0);
        e.b.def_var(self.slot, nowhere);
        e.b.ins().brif(real, head, &[], self.done, &[]);
        e.b.switch_to_block(other);
    }
}
