//! Memory that is known to be mapped, and can be loaded from plainly:
//!
//! 1. **What nobody writes of the program's own file**, its code and constants. It was mapped before the program began, and no `dlclose`
//!    takes it away.
//! 2. **The thread's own stack**, which stays mapped as long as the thread runs: from the first thread's stack's end downwards, or from the
//!    thread pointer downwards, since C libraries put a thread's control block on top of its stack. (That of the first thread lies on none,
//!    among mappings that come and go.) How far down it reaches is found out once, by reading a byte of each page by a system call, up to the
//!    first that cannot be read, and noted with the thread's id (`THREAD_STACK`). It is never asked for more than the stack pointer shows to be in
//!    use: what lies below a stack that no page protects is none. In a process with Go nothing is taken for a stack.

use super::emit::{At, Base, Emit};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::Variable;
use trapless_isa::detour::BLOCK_OWNER;
use trapless_wire::{
    SCRIPT_BLOCK, SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE, SCRIPT_GOROUTINES, SCRIPT_LEADER, SCRIPT_STACK_END,
    THREAD_MAIN_STACK, THREAD_STACK, THREAD_STRANGE,
};

/// A page of the machine.
pub(super) const PAGE: i64 = 4096;
/// No page is asked for that lies further below the known ones.
const FAR: i64 = 256 * PAGE;
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

/// The stacks that stay mapped while the thread with this id runs. What there is to know of them is loaded anew each time: values that are kept
/// would take memory of the frame.
#[derive(Clone, Copy)]
pub(super) struct Stacks(Value);

/// One of them.
#[derive(Clone, Copy, PartialEq)]
enum Own {
    /// The first thread's.
    First,
    /// That below the thread's control block.
    BelowBlock,
}

impl Own {
    /// Where it is noted how far down it is known.
    fn known_at(self, e: &mut Emit<'_>) -> At {
        e.address(part(if self == Own::First { THREAD_MAIN_STACK } else { THREAD_STACK }))
    }
}

/// What is at an offset of the thread's part.
fn part(offset: u32) -> Base {
    Base::Block(SCRIPT_BLOCK + offset)
}

fn word(e: &mut Emit<'_>, base: Base) -> Value {
    let at = e.address(base);
    e.load(at)
}

/// How pages are asked for.
pub(super) struct Asking {
    /// The routine of system calls.
    pub(super) system: u16,
    /// [`READ_WORDS`] bytes.
    pub(super) words: At,
    /// How many pages at once, where there is memory for that.
    pub(super) room: Room,
    /// How often it may be asked.
    pub(super) patience: Variable,
}

/// How many pages are asked for at once.
#[derive(Clone, Copy)]
pub(super) enum Room {
    /// So many, with 17 bytes for each of them at this address.
    For(i64, Value),
    /// One, with a word of memory.
    ForOne(At),
}

impl Stacks {
    /// Those of the thread with this id, for code of its own. Where there are none it goes to `none`.
    pub(super) fn of_thread(e: &mut Emit<'_>, tid: Value, none: Block) -> Self {
        let goroutines = word(e, Base::Shared(SCRIPT_GOROUTINES.into()));
        e.leave_if(goroutines, none);
        Self(tid)
    }

    /// The thread's id.
    fn tid(self, e: &mut Emit<'_>) -> Value {
        let short = e.b.ins().ireduce(I32, self.0);
        e.b.ins().uextend(I64, short)
    }

    /// Where the first page of a stack that has to be asked for ends, and where the stack does.
    fn bounds(self, e: &mut Emit<'_>, own: Own) -> (Value, Value) {
        if own == Own::First {
            let end = word(e, Base::Shared(SCRIPT_STACK_END.into()));
            return (end, end);
        }
        let (leader, owner) =
            (word(e, Base::Shared(SCRIPT_LEADER.into())), word(e, Base::Block(BLOCK_OWNER)));
        let (tid, zero) = (self.tid(e), e.int(0));
        let is_leader = e.is(IntCC::Equal, leader, tid);
        let owner = e.b.ins().select(is_leader, zero, owner);
        (e.b.ins().band_imm_s(owner, -PAGE), owner)
    }

    /// Gives `see` each of the stacks as far as it is known: where that begins, and its size. Where that does not leave, and the address lies in
    /// what is in use of the stack, from `sp` on, it is asked whether its pages down to there can be read.
    pub(super) fn each(
        self,
        e: &mut Emit<'_>,
        (address, sp): (Value, Value),
        asking: &Asking,
        mut see: impl FnMut(&mut Emit<'_>, [Value; 2]),
    ) {
        let again = e.block();
        e.go_on(again);
        for own in [Own::First, Own::BelowBlock] {
            let (low, end) = self.known(e, own);
            let size = e.b.ins().isub(end, low);
            see(e, [low, size]);
            let next = e.block();
            let is_unused = e.is(IntCC::UnsignedLessThan, address, sp);
            e.leave_if(is_unused, next);
            self.ask(e, own, address, asking, [again, next]);
            e.b.switch_to_block(next);
        }
    }

    /// Where the known pages of a stack begin, and where the stack ends.
    fn known(self, e: &mut Emit<'_>, own: Own) -> (Value, Value) {
        let (floor, end) = self.bounds(e, own);
        let at = own.known_at(e);
        let (known, tid) = (e.load(at), self.tid(e));
        let whose = e.b.ins().band_imm_s(known, i64::from(u32::MAX));
        let is_ours = e.is(IntCC::Equal, whose, tid);
        let (pages, zero) = (e.b.ins().ushr_imm_s(known, 32), e.int(0));
        let pages = e.b.ins().select(is_ours, pages, zero);
        let depth = e.b.ins().ishl_imm_s(pages, 12);
        (e.b.ins().isub(floor, depth), end)
    }

    /// Asks for pages of a stack below the known ones, and goes to `again` if some can be read, to `next` if not.
    fn ask(self, e: &mut Emit<'_>, own: Own, address: Value, asking: &Asking, [again, next]: [Block; 2]) {
        let ((low, _), words) = (self.known(e, own), asking.words);
        let above = e.b.ins().isub(low, address);
        let above = e.b.ins().iadd_imm_s(above, -1);
        let is_far = e.is_imm(IntCC::UnsignedGreaterThanOrEqual, above, FAR - PAGE);
        e.leave_if(is_far, next);
        let page = e.b.ins().ushr_imm_s(address, 12);
        let strange = word(e, part(THREAD_STRANGE));
        let is_strange = e.is(IntCC::Equal, strange, page);
        e.leave_if(is_strange, next);
        let (tid, left) = (self.tid(e), e.b.use_var(asking.patience));
        for needed in [tid, left] {
            let is_none = e.is_imm(IntCC::Equal, needed, 0);
            e.leave_if(is_none, next);
        }
        let left = e.b.ins().iadd_imm_s(left, -1);
        e.b.def_var(asking.patience, left);
        // A byte of each page from the known ones down to the address.
        let one = e.int(1);
        let (read, wanted) = match asking.room {
            Room::ForOne(byte) => {
                let next = e.b.ins().iadd_imm_s(low, -PAGE);
                e.store(next, words.plus(16));
                e.store(one, words.plus(24));
                let (byte, from) = (e.pointer(byte), e.pointer(words.plus(16)));
                (read(e, asking.system, words, tid, [byte, one], (from, one)), one)
            }
            Room::For(most, room) => {
                let bottom = e.b.ins().band_imm_s(address, -PAGE);
                let wanted = e.b.ins().isub(low, bottom);
                let (wanted, all) = (e.b.ins().ushr_imm_s(wanted, 12), e.int(most));
                let wanted = e.b.ins().umin(wanted, all);
                let end = e.b.ins().ishl_imm_s(wanted, 4);
                let at = e.set_new(low);
                e.each(end, 16, |e, index, _| {
                    let page = e.b.use_var(at);
                    let page = e.b.ins().iadd_imm_s(page, -PAGE);
                    e.b.def_var(at, page);
                    let entry = e.b.ins().iadd(room, index);
                    e.store(page, At(entry, 0));
                    e.store(one, At(entry, 8));
                });
                let bytes = e.b.ins().iadd_imm_s(room, most * 16);
                (read(e, asking.system, words, tid, [bytes, wanted], (room, wanted)), wanted)
            }
        };
        let is_less = e.is(IntCC::SignedLessThan, read, wanted);
        e.when(is_less, |e| {
            let strange_at = e.address(part(THREAD_STRANGE));
            let page = e.b.ins().ushr_imm_s(address, 12);
            e.store(page, strange_at);
        });
        let is_none = e.is_imm(IntCC::SignedLessThanOrEqual, read, 0);
        e.leave_if(is_none, next);
        // From where it was asked: a handler may have noted more meanwhile, and that is not known to go on from here.
        let (floor, _) = self.bounds(e, own);
        let before = e.b.ins().isub(floor, low);
        let before = e.b.ins().ushr_imm_s(before, 12);
        let pages = e.b.ins().iadd(before, read);
        let (known, tid) = (e.b.ins().ishl_imm_s(pages, 32), self.tid(e));
        let known = e.b.ins().bor(known, tid);
        let at = own.known_at(e);
        e.store(known, at);
        e.jump(again);
    }
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
