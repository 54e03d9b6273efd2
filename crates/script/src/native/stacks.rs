//! Walks of call stacks: [`trapless_wire::unwind::walk`] in machine code, and what keeps each stack once.
//!
//! The steps have the numbers that they have there. One thing is done elsewhere: whether a return address is one of our return points is
//! asked in step 1 of the next frame, and only of those that are in no module with a table.
//!
//! # How the stack is read
//!
//! Through a *window*, in which words are loaded plainly. Where a word is in none, the routine `Fetch` opens the next one. It is the
//! first of these that has the word:
//!
//! 1. **The thread's own stack**, which stays mapped as long as the thread runs: from the first thread's stack's end downwards, or from the
//!    thread pointer downwards, since C libraries put a thread's control block on top of its stack. How far down it reaches is found out
//!    once, by reading a byte of each page by a system call, up to the first that cannot be read, and noted with the thread's id
//!    ([`THREAD_STACK`]). Below it lies a page that protects it, so no other stack is taken for it.
//! 2. **The page of the stack pointer**, from there on.
//! 3. **A copy**, made by a system call that fails where a fault would be: all other stacks, such as those of coroutines and signal
//!    handlers.
//!
//! Everything in the unwind area is found by offsets that are checked against its room, and everything that goes round is bounded, so
//! whatever stands there and on stacks, a walk ends and reads no other memory.
//!
//! # Identity
//!
//! A stack's number is a hash of its addresses, and the key of the table that has them. It is never 0.

use super::emit::{At, Base, Emit};
use super::routines::{PROCESS_VM_READV, Registry, Routine};
use super::tables::TableCode;
use super::{Common, Refusal};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I16, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Type, Value};
use cranelift_frontend::Variable;
use trapless_isa::Machine;
use trapless_isa::detour::{
    BLOCK_OWNER, HASH_FACTOR, RETURN_ADDRESS, RETURN_OLDER, RETURN_POINT, RETURN_SHIFT, SHADOW_INSTANCES,
    SHADOW_PROBES, SHADOW_TAG, STACK_PAGE_SHIFT, shadow_block_size,
};
use trapless_wire::unwind::{BUCKET_BITS, DIRECTORY_OFFSET, Facts, MOST_CHANGES, RULE_BITS, Rule, Slot};
use trapless_wire::{
    HASH, SCRIPT_ARENAS, SCRIPT_BLOCK, SCRIPT_SHADOW_BITS, SCRIPT_SHADOWS, SCRIPT_STACK_END,
    THREAD_MAIN_STACK, THREAD_STACK, THREAD_STRANGE, THREAD_UNREAD, UNWIND_ROOM,
};

/// The most frames of a stack, with the word that counts them: its room in scratch memory.
const FRAMES: u32 = 128 * 8;
/// Room for what is read at once.
const WINDOW: u32 = 5120;
/// What a stack takes of a body's scratch.
pub(super) const STACK_SCRATCH: u32 = FRAMES + WINDOW;

/// Words that a walk begins with, in this order.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// The instruction that is about to run.
    Instruction,
    Stack,
    Frame,
    Pointer,
    Link,
    /// Address of the general registers, in DWARF's order.
    General,
    /// How many these are.
    Count,
    /// Where the instruction's address was found, if it is a return address; else 0.
    Slot,
}

/// How many words these are.
pub(super) const START_WORDS: u32 = 8;

impl Start {
    pub(super) fn of(self, at: At) -> At {
        at.plus(8 * self as u32)
    }
}

/// In what is wanted of a walk: how many frames at most.
const LIMIT: i64 = 0xff;
/// In what is wanted: by frame pointers alone.
pub(super) const BY_FRAMES: i64 = 1 << 8;
/// In what is wanted: it begins in front of a function's first instruction.
pub(super) const ARRIVING: i64 = 1 << 9;

// Bits of a walk's state: those of the reference, one by one.
const EXACT: i64 = 1;
const LOST: i64 = 1 << 1;
const LOST_STACK: i64 = LOST;
const LOST_FRAME: i64 = LOST << 1;
const LOST_POINTER: i64 = LOST << 2;
const LOST_OTHER: i64 = LOST << 3;
const DOUBTED: i64 = 1 << 5;
const CHANGE: i64 = 1 << 6;

/// Offset in an area of its fallback.
const FALLBACK: i32 = 32;
/// Offset in an area of its arrival.
const ARRIVAL: i32 = 48;
/// Bytes of a module in the list.
const MODULE: i64 = 40;

// A module's fields.
const MODULE_END: i32 = 8;
const MODULE_INDEX: i32 = 16;
const MODULE_ROWS: i32 = 20;
const MODULE_RULES: i32 = 24;

/// As many words as `process_vm_readv` is given, and two pairs that say where and how much.
const READ_WORDS: u32 = 80;

/// A window, in memory: where it begins, at how many addresses from there a word can be loaded, and where these bytes are. Then where the
/// memory begins that was there when the probe was hit, on the stack pointer's page.
const CONTEXT: u32 = 32;
const CONTEXT_ROOM: u32 = 8;
const CONTEXT_BYTES: u32 = 16;
const CONTEXT_HIT: u32 = 24;

/// A page of the machine.
const PAGE: i64 = 4096;
/// So many pages are asked for at once whether they can be read.
const MOST_PAGES: i64 = 256;
/// What is read is at least so long, if it can be.
const LEAST_READ: i64 = 1024;
/// The saved registers of a frame lie so far below its return address at most, mostly.
const SAVED_BELOW: i64 = 64;
/// A tail call after the other: no more are followed.
const MOST_OLDER: i64 = 1 << 12;
/// There are no more arenas.
const MOST_ARENAS: i64 = 128;

/// What is constant in a program's walks.
#[derive(Clone, Copy)]
pub(super) struct Walks {
    /// Where the area is.
    area: Base,
    facts: Facts,
    fetch: u16,
}

impl Walks {
    pub(super) fn new(common: &Common<'_>, registry: &mut Registry) -> Result<Self, Refusal> {
        let facts = match common.target.machine {
            Machine::X86_64 => Facts::X86_64,
            Machine::AArch64 => Facts::AARCH64,
            other => return Err(Refusal::Machine(other)),
        };
        let at = common.layout.unwind.ok_or(Refusal::Missing("room for unwind tables"))?;
        Ok(Self { area: Base::Shared(at), facts, fetch: registry.number(Routine::Fetch) })
    }
}

fn short(e: &mut Emit<'_>, type_: Type, at: At) -> Value {
    let value = e.load_as(type_, at);
    e.b.ins().uextend(I64, value)
}

fn signed(e: &mut Emit<'_>, type_: Type, at: At) -> Value {
    let value = e.load_as(type_, at);
    e.b.ins().sextend(I64, value)
}

/// Goes to a block where a bit is set.
fn leave_if_set(e: &mut Emit<'_>, value: Value, bits: i64, to: Block) {
    let found = e.b.ins().band_imm_s(value, bits);
    e.leave_if(found, to);
}

fn not(e: &mut Emit<'_>, condition: Value) -> Value {
    e.is_imm(IntCC::Equal, condition, 0)
}

/// Goes to a block unless a condition is not 0.
fn leave_unless(e: &mut Emit<'_>, condition: Value, to: Block) {
    let otherwise = not(e, condition);
    e.leave_if(otherwise, to);
}

/// What lives from one round to the next.
struct Walk<'w> {
    walks: &'w Walks,
    pc: Variable,
    sp: Variable,
    fp: Variable,
    bp: Variable,
    link: Variable,
    /// Where `pc` was found, if it may be one of our return points.
    slot: Variable,
    state: Variable,
    arriving: Variable,
    /// Address of the module looked at last.
    module: Variable,
    out: Variable,
    hash: Variable,
    // The window.
    start: Variable,
    room: Variable,
    bytes: Variable,
    context: At,
    tid: Value,
    window: Value,
    /// Where the walk ends.
    done: Block,
}

/// Walks a stack: the address of [`Start`]'s words, where the frames go, what is wanted, the thread's id, memory for a window. The result
/// is how many frames there are, and behind that the hash of them.
pub(super) fn walk(e: &mut Emit<'_>, walks: &Walks, arguments: &[Value]) {
    let &[start, out, wanted, tid, window, result] = arguments else { return };
    let start = At(start, 0);
    // Not 0, so that a frame of address 0 makes a difference.
    let (zero, first) = (e.int(0), e.int(HASH as i64));
    // Zeros are a module that has no address, and a window that has none.
    let nothing = e.slot(MODULE as u32);
    let context = e.slot(CONTEXT);
    e.zero(nothing, MODULE as u32);
    let [pc, sp, fp, bp, link, slot] =
        [Start::Instruction, Start::Stack, Start::Frame, Start::Pointer, Start::Link, Start::Slot].map(
            |word| {
                let value = e.load(word.of(start));
                e.set_new(value)
            },
        );
    let below = e.b.use_var(sp);
    let below = e.b.ins().iadd_imm_s(below, -8);
    e.store(below, context.plus(CONTEXT_HIT));
    let limit = e.b.ins().band_imm_s(wanted, LIMIT);
    let bytes = e.b.ins().ishl_imm_s(limit, 3);
    let end = e.b.ins().iadd(out, bytes);
    let (exact, arriving) = (e.int(EXACT), e.b.ins().band_imm_s(wanted, ARRIVING));
    let module = e.pointer(nothing);
    let done = e.block();
    let w = Walk {
        walks,
        pc,
        sp,
        fp,
        bp,
        link,
        slot,
        state: e.set_new(exact),
        arriving: e.set_new(arriving),
        module: e.set_new(module),
        out: e.set_new(out),
        hash: e.set_new(first),
        start: e.set_new(zero),
        room: e.set_new(zero),
        bytes: e.set_new(zero),
        context,
        tid,
        window,
        done,
    };
    let by_rows = {
        let by_frames = e.b.ins().band_imm_s(wanted, BY_FRAMES);
        not(e, by_frames)
    };
    let head = e.block();
    e.go_on(head);
    w.round(e, start, end, by_rows, head);
    e.b.switch_to_block(done);
    let last = e.b.use_var(w.out);
    let told = e.b.ins().isub(last, out);
    let told = e.b.ins().ushr_imm_s(told, 3);
    e.store(told, At(result, 0));
    let hash = e.b.use_var(w.hash);
    e.store(hash, At(result, 8));
    e.finish();
}

impl Walk<'_> {
    fn masked(&self, e: &mut Emit<'_>, address: Value) -> Value {
        match self.walks.facts.mask {
            u64::MAX => address,
            mask => {
                let mask = e.int(mask as i64);
                e.b.ins().band(address, mask)
            }
        }
    }

    fn area(&self, e: &mut Emit<'_>) -> Value {
        let at = e.address(self.walks.area);
        e.pointer(at)
    }

    /// The address so far into the area, if so many bytes are there.
    fn in_area(&self, e: &mut Emit<'_>, offset: Value, bytes: i64) -> Value {
        let is_out = e.is_imm(IntCC::UnsignedGreaterThan, offset, UNWIND_ROOM as i64 - bytes);
        e.leave_if(is_out, self.done);
        let area = self.area(e);
        e.b.ins().iadd(area, offset)
    }

    /// Whether an address is in the module.
    fn is_in(e: &mut Emit<'_>, module: Value, at: Value) -> Value {
        let (start, end) = (e.load(At(module, 0)), e.load(At(module, MODULE_END)));
        let (distance, length) = (e.b.ins().isub(at, start), e.b.ins().isub(end, start));
        e.is(IntCC::UnsignedLessThan, distance, length)
    }

    fn round(&self, e: &mut Emit<'_>, registers: At, end: Value, by_rows: Value, head: Block) {
        let facts = self.walks.facts;
        // 1. The module.
        let (pc, state) = (e.b.use_var(self.pc), e.b.use_var(self.state));
        let is_exact = e.b.ins().band_imm_s(state, EXACT);
        let before = e.b.ins().iadd_imm_s(pc, -1);
        let before = self.masked(e, before);
        let at = e.b.ins().select(is_exact, pc, before);
        let module = e.b.use_var(self.module);
        let is_in = Self::is_in(e, module, at);
        let known = e.set_new(is_in);
        let [search, unknown, found] = [(); 3].map(|()| e.block());
        e.leave_if(is_in, found);
        e.b.ins().brif(by_rows, search, &[], unknown, &[]);
        e.b.switch_to_block(search);
        self.search(e, at, known, unknown);
        e.go_on(unknown);
        // What is in a module with a table is none of our return points.
        let slot = e.b.use_var(self.slot);
        leave_unless(e, slot, found);
        let module = e.b.use_var(self.module);
        let rows = short(e, I32, At(module, MODULE_ROWS));
        let is_known = e.b.use_var(known);
        let is_known = e.b.ins().uextend(I64, is_known);
        let has_table = e.b.ins().imul(is_known, rows);
        e.leave_if(has_table, found);
        self.translate(e, pc, slot, head);
        e.go_on(found);

        // 2. What the fallback has found may be anything.
        let is_known = e.b.use_var(known);
        let told = e.block();
        e.leave_if(is_known, told);
        leave_if_set(e, state, DOUBTED, self.done);
        e.go_on(told);

        // 3. Tell this frame, and stop after the last one.
        let out = e.b.use_var(self.out);
        e.store(pc, At(out, 0));
        let out = e.b.ins().iadd_imm_s(out, 8);
        e.b.def_var(self.out, out);
        let hash = e.b.use_var(self.hash);
        let mixed = e.b.ins().bxor(hash, pc);
        let factor = e.int(HASH as i64);
        let product = e.b.ins().imul(mixed, factor);
        let upper = e.b.ins().ushr_imm_s(product, 32);
        let hash = e.b.ins().bxor(product, upper);
        e.b.def_var(self.hash, hash);
        let is_last = e.is(IntCC::UnsignedGreaterThanOrEqual, out, end);
        e.leave_if(is_last, self.done);

        // 4. The rule.
        let area = self.area(e);
        let arrival = e.b.ins().iadd_imm_s(area, i64::from(ARRIVAL));
        let rule = e.set_new(arrival);
        let [not_arriving, look, fall, have] = [(); 4].map(|()| e.block());
        let arriving = e.b.use_var(self.arriving);
        let zero = e.int(0);
        e.b.def_var(self.arriving, zero);
        let next = e.b.ins().band_imm_s(state, !(EXACT | DOUBTED));
        let next = e.b.ins().bor_imm_s(next, LOST_OTHER);
        let next = e.set_new(next);
        let fell_back = e.set_new(zero);
        e.b.ins().brif(arriving, have, &[], not_arriving, &[]);
        e.b.switch_to_block(not_arriving);
        let is_known = e.b.use_var(known);
        let has_rows = e.b.ins().band(is_known, by_rows);
        e.b.ins().brif(has_rows, look, &[], fall, &[]);
        e.b.switch_to_block(look);
        let module = e.b.use_var(self.module);
        self.rule(e, module, at, rule, fall);
        let at_rule = e.b.use_var(rule);
        let head_word = e.load(At(at_rule, 0));
        let kind = e.b.ins().band_imm_s(head_word, 0xff);
        let is_nothing = e.is_imm(IntCC::Equal, kind, Rule::NOTHING.into());
        e.leave_if(is_nothing, fall);
        // 5. The fallback, also where the stack pointer is needed that it has lost.
        let stack_lost = e.b.ins().band_imm_s(state, LOST_STACK);
        leave_unless(e, stack_lost, have);
        let based = e.b.ins().band_imm_s(head_word, i64::from(Rule::BASE) << 8 | 0xff);
        let needs_stack = e.is_imm(IntCC::Equal, based, Rule::FRAME.into());
        e.b.ins().brif(needs_stack, fall, &[], have, &[]);
        e.b.switch_to_block(fall);
        let fallback = e.b.ins().iadd_imm_s(area, i64::from(FALLBACK));
        e.b.def_var(rule, fallback);
        let one = e.int(1);
        e.b.def_var(fell_back, one);
        let is_known = e.b.use_var(known);
        leave_unless(e, is_known, have);
        let module = e.b.use_var(self.module);
        let rows = short(e, I32, At(module, MODULE_ROWS));
        leave_unless(e, rows, have);
        let now = e.b.use_var(next);
        let now = e.b.ins().bor_imm_s(now, DOUBTED);
        e.b.def_var(next, now);
        e.go_on(have);

        let rule = At(e.b.use_var(rule), 0);
        let (word, slots) = (e.load(rule), e.load(rule.plus(8)));
        let kind = e.b.ins().band_imm_s(word, 0xff);
        let is_other = e.is_imm(IntCC::NotEqual, kind, Rule::FRAME.into());
        e.leave_if(is_other, self.done);

        // 6. The base, and the CFA.
        let flags = e.b.ins().ushr_imm_s(word, 8);
        let number = e.b.ins().band_imm_s(flags, i64::from(Rule::BASE));
        let lost = e.b.ins().ushr(state, number);
        leave_if_set(e, lost, LOST, self.done);
        let [sp, fp] = [self.sp, self.fp].map(|variable| e.b.use_var(variable));
        let is_frame = e.b.ins().band_imm_s(number, 1);
        let base = e.b.ins().select(is_frame, fp, sp);
        let base = e.set_new(base);
        let upper = e.b.ins().band_imm_s(number, 2);
        let rare = |e: &mut Emit<'_>| {
            let bp = e.b.use_var(self.bp);
            e.b.def_var(base, bp);
            let other = e.b.ins().band_imm_s(number, 1);
            e.when(other, |e| {
                let plus = e.b.ins().ushr_imm_s(slots, 48);
                let count = e.load(Start::Count.of(registers));
                let is_none = e.is(IntCC::UnsignedGreaterThanOrEqual, plus, count);
                e.leave_if(is_none, self.done);
                let general = e.load(Start::General.of(registers));
                let offset = e.b.ins().ishl_imm_s(plus, 3);
                let at = e.b.ins().iadd(general, offset);
                let value = e.load(At(at, 0));
                e.b.def_var(base, value);
            });
        };
        e.when(upper, rare);
        let base = e.b.use_var(base);
        let fallen = e.b.use_var(fell_back);
        e.when(fallen, |e| leave_unless(e, base, self.done));
        let distance = e.b.ins().sshr_imm_s(word, 32);
        let cfa = e.b.ins().iadd(base, distance);
        let cfa = self.masked(e, cfa);
        let cfa = e.set_new(cfa);
        let in_memory = e.b.ins().band_imm_s(flags, i64::from(Rule::MEMORY));
        e.when(in_memory, |e| {
            let at = e.b.use_var(cfa);
            let found = self.read(e, at);
            leave_unless(e, found, self.done);
            let plus = e.b.ins().sshr_imm_s(slots, 48);
            let found = e.b.ins().iadd(found, plus);
            let found = self.masked(e, found);
            e.b.def_var(cfa, found);
        });
        let cfa = e.b.use_var(cfa);

        // 7. The caller's frame is above.
        let ra = signed(e, I16, rule.plus(8));
        let in_link = e.is_imm(IntCC::Equal, ra, Slot::UNCHANGED.0.into());
        let interrupted = e.b.ins().band_imm_s(flags, i64::from(Rule::INTERRUPTED));
        let ascending = e.block();
        let is_above = e.is(IntCC::UnsignedGreaterThan, cfa, sp);
        e.leave_if(is_above, ascending);
        e.leave_if(interrupted, ascending);
        let is_same = e.is(IntCC::Equal, cfa, sp);
        let is_link = e.b.ins().band(is_same, in_link);
        e.leave_if(is_link, ascending);
        leave_unless(e, fallen, self.done);
        let now = e.b.use_var(next);
        let over = e.is_imm(IntCC::UnsignedGreaterThanOrEqual, now, i64::from(MOST_CHANGES) * CHANGE);
        e.leave_if(over, self.done);
        let now = e.b.ins().iadd_imm_s(now, CHANGE);
        e.b.def_var(next, now);
        e.go_on(ascending);

        // 8. The return address.
        let link = e.b.use_var(self.link);
        let found = e.set_new(link);
        let zero = e.int(0);
        e.b.def_var(self.slot, zero);
        let [from_link, from_stack, have_found] = [(); 3].map(|()| e.block());
        e.b.ins().brif(in_link, from_link, &[], from_stack, &[]);
        e.b.switch_to_block(from_link);
        leave_unless(e, is_exact, self.done);
        e.jump(have_found);
        e.b.switch_to_block(from_stack);
        let at_base = e.b.ins().band_imm_s(flags, i64::from(Rule::RA_AT_BASE));
        let from = e.b.ins().select(at_base, base, cfa);
        let slot = e.b.ins().iadd(from, ra);
        let slot = self.masked(e, slot);
        let value = self.read(e, slot);
        e.b.def_var(found, value);
        let slot = e.b.ins().select(interrupted, zero, slot);
        e.b.def_var(self.slot, slot);
        e.go_on(have_found);

        // 9. The saved registers. Mostly there are none.
        let unchanged = i64::from(Slot::UNCHANGED.0) << 32 | i64::from(Slot::UNCHANGED.0) << 16;
        let both = e.b.ins().band_imm_s(slots, 0xffff_ffff_0000);
        let is_kept = e.is_imm(IntCC::Equal, both, unchanged);
        let kept = e.block();
        let at_base = e.b.ins().band_imm_s(flags, i64::from(Rule::SAVED_AT_BASE));
        let from = e.b.ins().select(at_base, base, cfa);
        e.leave_if(is_kept, kept);
        for (at, register, lost) in [(10, self.fp, LOST_FRAME), (12, self.bp, LOST_POINTER)] {
            self.restore(e, rule.plus(at), from, register, Some((next, lost)));
        }
        e.go_on(kept);
        e.when(interrupted, |e| {
            if facts.arrival.ra == Slot::UNCHANGED {
                self.restore(e, rule.plus(2), from, self.link, None);
            }
            let now = e.b.use_var(next);
            let now = e.b.ins().bor_imm_s(now, EXACT);
            e.b.def_var(next, now);
        });

        // 10. The caller's frame is the next one.
        e.b.def_var(self.sp, cfa);
        let now = e.b.use_var(next);
        let known = e.b.ins().band_imm_s(now, !LOST_STACK);
        let lost = e.b.ins().bor_imm_s(now, LOST_STACK);
        let is_lost = e.b.ins().band_imm_s(flags, i64::from(Rule::STACK_LOST));
        let now = e.b.ins().select(is_lost, lost, known);
        e.b.def_var(self.state, now);
        let found = e.b.use_var(found);
        let found = self.masked(e, found);
        e.b.def_var(self.pc, found);
        e.b.ins().brif(found, head, &[], self.done, &[]);
    }

    /// One saved register.
    fn restore(
        &self,
        e: &mut Emit<'_>,
        slot: At,
        from: Value,
        register: Variable,
        lost: Option<(Variable, i64)>,
    ) {
        let after = e.block();
        let slot = signed(e, I16, slot);
        let is_kept = e.is_imm(IntCC::Equal, slot, Slot::UNCHANGED.0.into());
        e.leave_if(is_kept, after);
        let [gone, saved] = [(); 2].map(|()| e.block());
        let is_gone = e.is_imm(IntCC::Equal, slot, Slot::LOST.0.into());
        e.b.ins().brif(is_gone, gone, &[], saved, &[]);
        e.b.switch_to_block(gone);
        if let Some((next, bit)) = lost {
            let now = e.b.use_var(next);
            let now = e.b.ins().bor_imm_s(now, bit);
            e.b.def_var(next, now);
        }
        e.jump(after);
        e.b.switch_to_block(saved);
        let at = e.b.ins().iadd(from, slot);
        let at = self.masked(e, at);
        let value = self.read(e, at);
        e.b.def_var(register, value);
        if let Some((next, bit)) = lost {
            let now = e.b.use_var(next);
            let now = e.b.ins().band_imm_s(now, !bit);
            e.b.def_var(next, now);
        }
        e.go_on(after);
    }

    /// A word of the stack. Where it cannot be read the walk ends.
    fn read(&self, e: &mut Emit<'_>, address: Value) -> Value {
        let [fetch, have] = [(); 2].map(|()| e.block());
        let inside = |e: &mut Emit<'_>| {
            let (start, room) = (e.b.use_var(self.start), e.b.use_var(self.room));
            let distance = e.b.ins().isub(address, start);
            (e.is(IntCC::UnsignedLessThan, distance, room), distance)
        };
        let (is_inside, distance) = inside(e);
        let distance = e.set_new(distance);
        e.b.ins().brif(is_inside, have, &[], fetch, &[]);
        e.b.switch_to_block(fetch);
        let (sp, context) = (e.b.use_var(self.sp), e.pointer(self.context));
        e.call(self.walks.fetch, &[address, sp, self.tid, self.window, context]);
        for (variable, at) in [(self.start, 0), (self.room, CONTEXT_ROOM), (self.bytes, CONTEXT_BYTES)] {
            let value = e.load(self.context.plus(at));
            e.b.def_var(variable, value);
        }
        let (is_inside, now) = inside(e);
        e.b.def_var(distance, now);
        e.b.ins().brif(is_inside, have, &[], self.done, &[]);
        e.b.switch_to_block(have);
        let (bytes, distance) = (e.b.use_var(self.bytes), e.b.use_var(distance));
        let at = e.b.ins().iadd(bytes, distance);
        e.load(At(at, 0))
    }

    /// Looks for the module of an address in the directory; goes to a block if there is none.
    fn search(&self, e: &mut Emit<'_>, at: Value, known: Variable, unknown: Block) {
        let area = self.area(e);
        let directory = e.watch(At(area, DIRECTORY_OFFSET as i32));
        let low = e.b.ins().ireduce(I32, directory);
        let offset = e.b.ins().uextend(I64, low);
        let count = e.b.ins().ushr_imm_s(directory, 32);
        leave_unless(e, count, unknown);
        let size = e.b.ins().imul_imm_s(count, MODULE);
        let end = e.b.ins().iadd(offset, size);
        self.in_area(e, end, 0);
        let first = e.b.ins().iadd(area, offset);
        let (from, rest) = (e.set_new(first), e.set_new(count));
        let [again, over] = [(); 2].map(|()| e.block());
        e.go_on(again);
        let left = e.b.use_var(rest);
        let is_one = e.is_imm(IntCC::UnsignedLessThanOrEqual, left, 1);
        e.leave_if(is_one, over);
        let half = e.b.ins().ushr_imm_s(left, 1);
        let middle = e.b.ins().imul_imm_s(half, MODULE);
        let now = e.b.use_var(from);
        let middle = e.b.ins().iadd(now, middle);
        let start = e.load(At(middle, 0));
        let is_before = e.is(IntCC::UnsignedLessThanOrEqual, start, at);
        let now = e.b.ins().select(is_before, middle, now);
        e.b.def_var(from, now);
        let left = e.b.ins().isub(left, half);
        e.b.def_var(rest, left);
        e.jump(again);
        e.b.switch_to_block(over);
        let now = e.b.use_var(from);
        let is_in = Self::is_in(e, now, at);
        leave_unless(e, is_in, unknown);
        e.b.def_var(self.module, now);
        e.b.def_var(known, is_in);
    }

    /// The address of the rule that holds at an address in a module; goes to a block if it has no table.
    fn rule(&self, e: &mut Emit<'_>, module: Value, at: Value, rule: Variable, none: Block) {
        let start = e.load(At(module, 0));
        let [index, rows, rules] =
            [MODULE_INDEX, MODULE_ROWS, MODULE_RULES].map(|field| short(e, I32, At(module, field)));
        leave_unless(e, rows, none);
        let key = e.b.ins().isub(at, start);
        let bucket = e.b.ins().ushr_imm_s(key, i64::from(BUCKET_BITS));
        let entry = e.b.ins().ishl_imm_s(bucket, 2);
        let entry = e.b.ins().iadd(index, entry);
        let entry = self.in_area(e, entry, 8);
        let [earlier, to] = [0, 4].map(|word| short(e, I32, At(entry, word)));
        // The last row of an earlier bucket holds if all of this one's are greater.
        leave_unless(e, earlier, self.done);
        let from = e.b.ins().iadd_imm_s(earlier, -1);
        let is_less = e.is(IntCC::UnsignedLessThan, to, from);
        e.leave_if(is_less, self.done);
        let count = e.b.ins().isub(to, from);
        let end = e.b.ins().ishl_imm_s(to, 2);
        let end = e.b.ins().iadd(rows, end);
        self.in_area(e, end, 4);
        let area = self.area(e);
        let first = e.b.ins().ishl_imm_s(from, 2);
        let first = e.b.ins().iadd(first, rows);
        let first = e.b.ins().iadd(area, first);
        let low = e.b.ins().ishl_imm_s(key, i64::from(RULE_BITS));
        let wanted = e.b.ins().bor_imm_s(low, (1 << RULE_BITS) - 1);
        let wanted = e.b.ins().ireduce(I32, wanted);
        let (row, rest) = (e.set_new(first), e.set_new(count));
        let [again, over] = [(); 2].map(|()| e.block());
        e.go_on(again);
        let left = e.b.use_var(rest);
        let is_one = e.is_imm(IntCC::UnsignedLessThanOrEqual, left, 1);
        e.leave_if(is_one, over);
        let half = e.b.ins().ushr_imm_s(left, 1);
        let middle = e.b.ins().ishl_imm_s(half, 2);
        let now = e.b.use_var(row);
        let middle = e.b.ins().iadd(now, middle);
        let value = e.load_as(I32, At(middle, 0));
        let is_before = e.is(IntCC::UnsignedLessThanOrEqual, value, wanted);
        let now = e.b.ins().select(is_before, middle, now);
        e.b.def_var(row, now);
        let left = e.b.ins().isub(left, half);
        e.b.def_var(rest, left);
        e.jump(again);
        e.b.switch_to_block(over);
        let now = e.b.use_var(row);
        let value = short(e, I32, At(now, 0));
        let number = e.b.ins().band_imm_s(value, (1 << RULE_BITS) - 1);
        let offset = e.b.ins().imul_imm_s(number, Rule::SIZE as i64);
        let offset = e.b.ins().iadd(rules, offset);
        let found = self.in_area(e, offset, Rule::SIZE as i64);
        e.b.def_var(rule, found);
    }

    /// Where a return address that was found is one of our return points: goes round again with the one that was taken.
    fn translate(&self, e: &mut Emit<'_>, pc: Value, slot: Value, head: Block) {
        let [other, inside, found] = [(); 3].map(|()| e.block());
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
        let short_page = e.b.ins().ireduce(I32, page);
        let hash = e.b.ins().imul_imm_s(short_page, i64::from(HASH_FACTOR));
        let hash = e.b.ins().uextend(I64, hash);
        let product = e.b.ins().ishl(hash, bits);
        let first = e.b.ins().ushr_imm_s(product, 32);
        let one = e.int(1);
        let count = e.b.ins().ishl(one, bits);
        let mask = e.b.ins().iadd_imm_s(count, -1);
        let block = e.set_new(shadows);
        let end = e.int(SHADOW_PROBES.into());
        e.each(end, 1, |e, turn, after| {
            let index = e.b.ins().iadd(first, turn);
            let index = e.b.ins().band(index, mask);
            let offset = e.b.ins().imul_imm_s(index, shadow_block_size(3) as i64);
            let at = e.b.ins().iadd(shadows, offset);
            e.b.def_var(block, at);
            let tag = e.load(At(at, SHADOW_TAG as i32));
            let is_it = e.is(IntCC::Equal, tag, page);
            e.leave_if(is_it, found);
            leave_unless(e, tag, after);
        });
        e.jump(other);
        e.b.switch_to_block(found);
        let block = e.b.use_var(block);
        let in_page = e.b.ins().band_imm_s(slot, (1 << STACK_PAGE_SHIFT) - 1);
        let number = e.b.ins().ushr_imm_s(in_page, 3);
        let offset = e.b.ins().ishl_imm_s(number, i64::from(RETURN_SHIFT));
        let instance = e.b.ins().iadd(block, offset);
        let instance = e.b.ins().iadd_imm_s(instance, i64::from(SHADOW_INSTANCES));
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
pub(super) fn fetch(e: &mut Emit<'_>, system: u16, arguments: &[Value]) {
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

/// Walks a stack and keeps it: the address of [`Start`]'s words, what is wanted, the thread's id, [`STACK_SCRATCH`] bytes, and where its
/// number goes.
pub(super) fn keep(e: &mut Emit<'_>, walk: u16, table: &TableCode, arguments: &[Value]) {
    let &[start, wanted, tid, scratch, result] = arguments else { return };
    let results = e.results();
    let (frames, window) =
        (e.b.ins().iadd_imm_s(scratch, 8), e.b.ins().iadd_imm_s(scratch, i64::from(FRAMES)));
    let to = e.pointer(results);
    e.call(walk, &[start, frames, wanted, tid, window, to]);
    let (count, hash) = (e.load(results), e.load(results.plus(8)));
    e.store(count, At(scratch, 0));
    let (one, nothing) = (e.int(1), not(e, hash));
    let number = e.b.ins().select(nothing, one, hash);
    let key = e.slot(8);
    e.store(number, key);
    let found = TableCode::found(e);
    let full = e.block();
    let size = e.b.ins().ishl_imm_s(count, 3);
    let size = e.b.ins().iadd_imm_s(size, 8);
    let write = |e: &mut Emit<'_>, at: At| {
        e.each(size, 8, |e, index, _| {
            let [from, to] = [scratch, at.0].map(|base| e.b.ins().iadd(base, index));
            let word = e.load(At(from, 0));
            e.store(word, At(to, at.1));
        });
    };
    table.enter(e, key, &found, &write, full);
    e.store(number, At(result, 0));
    e.finish();
    e.b.switch_to_block(full);
    let zero = e.int(0);
    e.store(zero, At(result, 0));
    e.finish();
}
