//! Memory that stays mapped, and can be loaded from plainly:
//!
//! 1. **What nobody writes of the program's own file**, its code and constants. It was mapped before the program began, and no `dlclose`
//!    takes it away.
//! 2. **What is in use of the thread's own stack**, from the stack pointer on: of the first thread's, which never becomes smaller, and of that of
//!    which the thread's control block says where it lies. On another stack, as those of coroutines and of signals, nothing is taken for mapped, and
//!    in a process with Go neither.
//!
//! A program may still have taken its rights off such memory before. So the kernel is asked whether a page can be read ([`leave_unless_readable`]),
//! which costs a seventh of having it read; not where the page is that of the stack pointer, which has just been written to. Between question and load
//! only another thread could take them away: off constants of the program, or off a stack that somebody runs on.

use super::emit::{At, Base, Emit};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use trapless_isa::detour::BLOCK_OWNER;
use trapless_wire::{
    MOST_ABOVE_POINTER, SCRIPT_BOUNDS, SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE, SCRIPT_GOROUTINES,
    SCRIPT_STACK_END, SCRIPT_STACK_START,
};

/// A page of the machine.
pub(super) const PAGE: i64 = 4096;
/// [`MOST_ABOVE_POINTER`].
const MOST_ABOVE: i64 = MOST_ABOVE_POINTER as i64;
/// As many words as [`read`] needs: two pairs that say where and how much, and the arguments of the call.
pub(super) const READ_WORDS: u32 = 80;

/// Memory that is to be read: where it begins and how long it is.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) start: Value,
    pub(super) size: Value,
}

impl Stretch {
    /// Goes to `there` if it lies in this memory as a whole.
    pub(super) fn leave_if_in(self, e: &mut Emit<'_>, [start, size]: [Value; 2], there: Block) {
        let before = e.b.ins().isub(self.start, start);
        let behind = e.b.ins().isub(size, before);
        let begins = e.is(IntCC::UnsignedLessThan, before, size);
        let ends = e.is(IntCC::UnsignedLessThanOrEqual, self.size, behind);
        let is_in = e.b.ins().band(begins, ends);
        e.leave_if(is_in, there);
    }
}

/// Goes to `there` if it lies in what nobody writes of the program's file.
pub(super) fn leave_if_constant(e: &mut Emit<'_>, stretch: Stretch, there: Block) {
    let words = [SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE].map(|at| e.address(Base::Shared(at.into())));
    let constant = words.map(|at| e.load(at));
    stretch.leave_if_in(e, constant, there);
}

/// Gives `see` what is in use of each of the stacks that stay mapped while their threads run, if `sp` lies in it: where that begins, and its size.
pub(super) fn each_stack(e: &mut Emit<'_>, sp: Value, mut see: impl FnMut(&mut Emit<'_>, [Value; 2])) {
    let word = |e: &mut Emit<'_>, base: Base| {
        let at = e.address(base);
        e.load(at)
    };
    let [first, block, none] = [(); 3].map(|()| e.block());
    let goroutines = word(e, Base::Shared(SCRIPT_GOROUTINES.into()));
    e.leave_if(goroutines, none);
    e.go_on(first);
    let [start, end] = [SCRIPT_STACK_START, SCRIPT_STACK_END].map(|at| word(e, Base::Shared(at.into())));
    see_if_in_use(e, sp, [start, end], block, &mut see);
    e.go_on(block);
    let offset = word(e, Base::Shared(SCRIPT_BOUNDS.into()));
    let is_unknown = e.is_imm(IntCC::Equal, offset, 0);
    e.leave_if(is_unknown, none);
    let owner = word(e, Base::Block(BLOCK_OWNER));
    let bounds = At(e.b.ins().iadd(owner, offset), 0);
    // A thread that was made without the C library may have less behind its thread pointer, whose page alone was looked at before.
    for word in [0, 16] {
        let at = e.pointer(bounds.plus(word));
        let apart = e.b.ins().bxor(at, owner);
        let is_elsewhere = e.is_imm(IntCC::UnsignedGreaterThanOrEqual, apart, PAGE);
        e.leave_if(is_elsewhere, none);
    }
    let [low, size, guard] = [0, 8, 16].map(|at| e.load(bounds.plus(at)));
    // The block of the first thread says nothing, or something else.
    let is_none = e.is_imm(IntCC::Equal, low, 0);
    e.leave_if(is_none, none);
    let above = e.b.ins().isub(owner, low);
    let is_above = e.is(IntCC::UnsignedGreaterThan, above, size);
    e.leave_if(is_above, none);
    let behind = e.b.ins().isub(size, above);
    let is_elsewhere = e.is_imm(IntCC::UnsignedGreaterThan, behind, MOST_ABOVE);
    e.leave_if(is_elsewhere, none);
    let has_none = e.is(IntCC::UnsignedGreaterThanOrEqual, guard, above);
    e.leave_if(has_none, none);
    let start = e.b.ins().iadd(low, guard);
    see_if_in_use(e, sp, [start, owner], none, &mut see);
    e.go_on(none);
}

/// Gives `see` what is from `sp` on of a stack, or goes to a block if that lies in none of it.
fn see_if_in_use(
    e: &mut Emit<'_>,
    sp: Value,
    [start, end]: [Value; 2],
    otherwise: Block,
    see: &mut impl FnMut(&mut Emit<'_>, [Value; 2]),
) {
    let (depth, size) = (e.b.ins().isub(sp, start), e.b.ins().isub(end, start));
    let is_outside = e.is(IntCC::UnsignedGreaterThanOrEqual, depth, size);
    e.leave_if(is_outside, otherwise);
    let left = e.b.ins().isub(end, sp);
    see(e, [sp, left]);
}

/// Goes to a block unless the page of an address can be read: by asking for a change of the signal mask of a kind that there is not. The kernel
/// copies the mask first and then refuses (`kernel/signal.c`), so nothing changes, and it fails in another way where there is nothing to copy.
pub(super) fn leave_unless_readable(e: &mut Emit<'_>, system: u16, words: At, address: Value, to: Block) {
    const NO_KIND: i64 = -1;
    const INVALID: i64 = -22;
    let page = e.b.ins().band_imm_s(address, -PAGE);
    let (kind, none, size) = (e.int(NO_KIND), e.int(0), e.int(8));
    for (value, at) in [kind, page, none, size, none, none].into_iter().zip((32..).step_by(8)) {
        e.store(value, words.plus(at));
    }
    let call = e.system_calls().rt_sigprocmask;
    let (call, arguments) = (e.int(call), e.pointer(words.plus(32)));
    e.call(system, &[call, arguments]);
    let answer = e.load(words.plus(32));
    let cannot = e.is_imm(IntCC::NotEqual, answer, INVALID);
    e.leave_if(cannot, to);
}

/// Reads memory by a system call: to where and how much, and the pairs that say from where. How many bytes were read, or an error.
pub(super) fn read(
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
    let call = e.system_calls().process_vm_readv;
    let (call, arguments) = (e.int(call), e.pointer(words.plus(32)));
    e.call(system, &[call, arguments]);
    e.load(words.plus(32))
}
