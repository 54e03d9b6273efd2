//! Windows: where words of stacks can be loaded plainly, and how the next one is opened.

use super::super::emit::{At, Base, Emit};
use super::super::routines::PROCESS_VM_READV;
use super::{CONTEXT_BYTES, CONTEXT_HIT, CONTEXT_ROOM, leave_unless};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_isa::detour::BLOCK_OWNER;
use trapless_wire::{
    SCRIPT_BLOCK, SCRIPT_GOROUTINES, SCRIPT_STACK_END, THREAD_MAIN_STACK, THREAD_STACK, THREAD_STRANGE,
    THREAD_UNREAD,
};

/// As many words as `process_vm_readv` is given, and two pairs that say where and how much.
const READ_WORDS: u32 = 80;

/// A page of the machine.
const PAGE: i64 = 4096;
/// So many pages are asked for at once whether they can be read.
const MOST_PAGES: i64 = 256;
/// What is read is at least so long, if it can be.
const LEAST_READ: i64 = 1024;
/// The saved registers of a frame lie so far below its return address at most, mostly.
const SAVED_BELOW: i64 = 64;
/// One of the stacks that stay mapped while the thread runs.
struct Own {
    /// Where the first page that has to be asked for ends.
    floor: Value,
    /// Where the stack ends.
    end: Value,
    /// How far down it is known.
    known_at: At,
}

/// Opens a window that has an address: the address, the frame's stack pointer, the thread's id, memory for bytes, and the context of the
/// window, which says afterwards what is there.
pub(in crate::native) fn fetch(e: &mut Emit<'_>, system: u16, arguments: &[Value]) {
    let &[address, sp, tid, window, context] = arguments else { return };
    let context = At(context, 0);
    let short_tid = e.b.ins().ireduce(I32, tid);
    let tid = e.b.ins().uextend(I64, short_tid);
    let part = |offset: u32| Base::Block(SCRIPT_BLOCK + offset);
    let end_at = e.address(Base::Shared(SCRIPT_STACK_END.into()));
    let main_end = e.load(end_at);
    let owner_at = e.address(Base::Block(BLOCK_OWNER));
    let owner = e.load(owner_at);
    let owner_page = e.b.ins().band_imm_s(owner, -PAGE);
    let stacks = [
        Own { floor: main_end, end: main_end, known_at: e.address(part(THREAD_MAIN_STACK)) },
        Own { floor: owner_page, end: owner, known_at: e.address(part(THREAD_STACK)) },
    ];
    let strange_at = e.address(part(THREAD_STRANGE));
    let words = e.slot(READ_WORDS);
    let zero = e.int(0);
    let [again, others, copy] = [(); 3].map(|()| e.block());
    // Once it is known, it is found; each stack can be asked for once.
    let patience = e.int(3);
    let patience = e.set_new(patience);
    // Where goroutines run, neither is a stack.
    let at = e.address(Base::Shared(SCRIPT_GOROUTINES.into()));
    let goroutines = e.load(at);
    e.leave_if(goroutines, others);
    e.go_on(again);
    for own in &stacks {
        let known = e.load(own.known_at);
        let whose = e.b.ins().ireduce(I32, known);
        let is_ours = e.is(IntCC::Equal, whose, short_tid);
        let pages = e.b.ins().ushr_imm_s(known, 32);
        let pages = e.b.ins().select(is_ours, pages, zero);
        let depth = e.b.ins().ishl_imm_s(pages, 12);
        let low = e.b.ins().isub(own.floor, depth);
        let size = e.b.ins().isub(own.end, low);
        let room = room(e, size);
        let next = e.block();
        open_if_inside(e, context, address, [low, room, low]);
        // Close below?
        let above = e.b.ins().isub(low, address);
        let above = e.b.ins().iadd_imm_s(above, -1);
        let is_far = e.is_imm(IntCC::UnsignedGreaterThanOrEqual, above, (MOST_PAGES - 1) * PAGE);
        e.leave_if(is_far, next);
        let page = e.b.ins().ushr_imm_s(address, 12);
        let strange = e.load(strange_at);
        let is_strange = e.is(IntCC::Equal, strange, page);
        e.leave_if(is_strange, next);
        leave_unless(e, tid, next);
        let left = e.b.use_var(patience);
        let left = e.b.ins().iadd_imm_s(left, -1);
        e.b.def_var(patience, left);
        leave_unless(e, left, next);
        // A byte of each page from the known ones down to the address.
        let bottom = e.b.ins().band_imm_s(address, -PAGE);
        let wanted = e.b.ins().isub(low, bottom);
        let wanted = e.b.ins().ushr_imm_s(wanted, 12);
        let end = e.b.ins().ishl_imm_s(wanted, 4);
        let one = e.int(1);
        let at = e.set_new(low);
        e.each(end, 16, |e, index, _| {
            let page = e.b.use_var(at);
            let page = e.b.ins().iadd_imm_s(page, -PAGE);
            e.b.def_var(at, page);
            let entry = e.b.ins().iadd(window, index);
            e.store(page, At(entry, 0));
            e.store(one, At(entry, 8));
        });
        let bytes = e.b.ins().iadd_imm_s(window, MOST_PAGES * 16);
        let read = read(e, system, words, tid, [bytes, wanted], (window, wanted));
        let is_less = e.is(IntCC::SignedLessThan, read, wanted);
        e.when(is_less, |e| e.store(page, strange_at));
        let is_none = e.is_imm(IntCC::SignedLessThanOrEqual, read, 0);
        e.leave_if(is_none, next);
        let pages = e.b.ins().iadd(pages, read);
        let known = e.b.ins().ishl_imm_s(pages, 32);
        let known = e.b.ins().bor(known, tid);
        e.store(known, own.known_at);
        e.jump(again);
        e.b.switch_to_block(next);
    }
    e.go_on(others);
    let hit = e.load(context.plus(CONTEXT_HIT));
    let page = e.b.ins().bor_imm_s(hit, PAGE - 1);
    let page = e.b.ins().iadd_imm_s(page, 1);
    let size = e.b.ins().isub(page, hit);
    let in_page = room(e, size);
    open_if_inside(e, context, address, [hit, in_page, hit]);

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
    e.count(part(THREAD_UNREAD));
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

/// Reads memory by a system call: to where and how much, and the pairs that say from where. How many bytes were read, or an error.
fn read(
    e: &mut Emit<'_>,
    system: u16,
    words: At,
    tid: Value,
    to: [Value; 2],
    (from, count): (Value, Value),
) -> Value {
    let [bytes, size] = to;
    let (zero, one, local) = (e.int(0), e.int(1), e.pointer(words));
    e.store(bytes, words);
    e.store(size, words.plus(8));
    for (value, at) in [tid, local, one, from, count, zero].into_iter().zip((32..).step_by(8)) {
        e.store(value, words.plus(at));
    }
    let (call, arguments) = (e.int(PROCESS_VM_READV), e.pointer(words.plus(32)));
    e.call(system, &[call, arguments]);
    e.load(words.plus(32))
}
