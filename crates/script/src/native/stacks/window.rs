//! Windows: where words of stacks can be loaded plainly, and how the next one is opened.

use super::super::emit::{At, Base, Emit};
use super::super::mapped::{self, PAGE, READ_WORDS, read};
use super::{CONTEXT_BYTES, CONTEXT_HIT, CONTEXT_ROOM, leave_unless};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_wire::{SCRIPT_BLOCK, THREAD_UNREAD};

/// What is read is at least so long, if it can be.
const LEAST_READ: i64 = 1024;
/// The saved registers of a frame lie so far below its return address at most, mostly.
const SAVED_BELOW: i64 = 64;

/// Opens a window that has an address: the address, the frame's stack pointer, the thread's id, memory for bytes, and the context of the
/// window, which says afterwards what is there.
pub(in crate::native) fn fetch(e: &mut Emit<'_>, system: u16, arguments: &[Value]) {
    let &[address, sp, tid, window, context] = arguments else { return };
    let context = At(context, 0);
    let short_tid = e.b.ins().ireduce(I32, tid);
    let tid = e.b.ins().uextend(I64, short_tid);
    let words = e.slot(READ_WORDS);
    let (zero, hit) = (e.int(0), e.load(context.plus(CONTEXT_HIT)));
    let [copied, copy] = [(); 2].map(|()| e.block());
    let page = e.b.ins().bor_imm_s(hit, PAGE - 1);
    let page = e.b.ins().iadd_imm_s(page, 1);
    let size = e.b.ins().isub(page, hit);
    let in_page = room(e, size);
    open_if_inside(e, context, address, [hit, in_page, hit]);
    // The address's page, as far as the stack has it.
    mapped::each_stack(e, hit, |e, [start, size]| {
        let end = e.b.ins().iadd(start, size);
        let page = e.b.ins().band_imm_s(address, -PAGE);
        let first = e.b.ins().umax(start, page);
        let behind = e.b.ins().iadd_imm_s(page, PAGE);
        let last = e.b.ins().umin(end, behind);
        let size = e.b.ins().isub(last, first);
        let room = room(e, size);
        let (distance, outside) = (e.b.ins().isub(address, first), e.block());
        let is_outside = e.is(IntCC::UnsignedGreaterThanOrEqual, distance, room);
        e.leave_if(is_outside, outside);
        mapped::leave_unless_readable(e, system, words, address, copied);
        open_if_inside(e, context, address, [first, room, first]);
        e.go_on(outside);
    });
    e.go_on(copied);

    // A copy, that begins a bit before if it can.
    let unknown = e.block();
    leave_unless(e, tid, unknown);
    let apart = e.b.ins().isub(address, sp);
    let is_near = e.is_imm(IntCC::UnsignedLessThan, apart, LEAST_READ);
    let before = e.b.ins().iadd_imm_s(address, -SAVED_BELOW);
    let start = e.b.ins().select(is_near, sp, before);
    let start = e.set_new(start);
    e.go_on(copy);
    let from = e.b.use_var(start);
    let in_page = e.b.ins().band_imm_s(from, PAGE - 1);
    let whole = e.int(PAGE);
    let size = e.b.ins().isub(whole, in_page);
    let is_short = e.is_imm(IntCC::UnsignedLessThan, size, LEAST_READ);
    let more = e.b.ins().iadd_imm_s(size, PAGE);
    let size = e.b.ins().select(is_short, more, size);
    e.store(from, words.plus(16));
    e.store(size, words.plus(24));
    let (remote, one) = (e.pointer(words.plus(16)), e.int(1));
    let got = read(e, system, words, tid, [window, size], (remote, one));
    let got = e.b.ins().smax(got, zero);
    let got = room(e, got);
    open_if_inside(e, context, address, [from, got, window]);
    let is_whole = e.is(IntCC::Equal, from, address);
    e.b.def_var(start, address);
    let nothing = e.block();
    e.b.ins().brif(is_whole, nothing, &[], copy, &[]);
    e.b.switch_to_block(unknown);
    e.count(Base::Block(SCRIPT_BLOCK + THREAD_UNREAD));
    e.go_on(nothing);
    e.store(zero, context.plus(CONTEXT_ROOM));
    e.finish();
}

/// At how many addresses of so many bytes a word begins.
fn room(e: &mut Emit<'_>, size: Value) -> Value {
    let zero = e.int(0);
    let room = e.b.ins().iadd_imm_s(size, -7);
    e.b.ins().smax(room, zero)
}

/// Ends the routine with this window, if the address is inside.
fn open_if_inside(e: &mut Emit<'_>, context: At, address: Value, window: [Value; 3]) {
    let [start, room, _] = window;
    let [inside, outside] = [(); 2].map(|()| e.block());
    let distance = e.b.ins().isub(address, start);
    let is_inside = e.is(IntCC::UnsignedLessThan, distance, room);
    e.b.ins().brif(is_inside, inside, &[], outside, &[]);
    e.b.switch_to_block(inside);
    for (value, at) in window.into_iter().zip([0, CONTEXT_ROOM, CONTEXT_BYTES]) {
        e.store(value, context.plus(at));
    }
    e.finish();
    e.b.switch_to_block(outside);
}
