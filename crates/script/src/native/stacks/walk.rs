//! The walk: one round for each frame.

use super::super::emit::{At, Base, Emit};
use super::super::routines::{Registry, Routine};
use super::super::{Common, Refusal};
use super::{
    ARRIVING, BY_FRAMES, CONTEXT, CONTEXT_BYTES, CONTEXT_HIT, CONTEXT_ROOM, LIMIT, Start, leave_unless, not,
    short, signed,
};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I16, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::Variable;
use trapless_isa::Machine;
use trapless_wire::unwind::{Facts, MOST_CHANGES, Rule, Slot};
use trapless_wire::{HASH, UNWIND_ROOM};

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
pub(super) const MODULE: i64 = 40;

// A module's fields.
pub(super) const MODULE_END: i32 = 8;
pub(super) const MODULE_INDEX: i32 = 16;
pub(super) const MODULE_ROWS: i32 = 20;
pub(super) const MODULE_RULES: i32 = 24;

/// What is constant in a program's walks.
#[derive(Clone, Copy)]
pub(in crate::native) struct Walks {
    /// Where the area is.
    area: Base,
    facts: Facts,
    fetch: u16,
    /// Log2 of the distance between the addresses by which calls are known.
    pub(super) slot_shift: u32,
}

impl Walks {
    pub(in crate::native) fn new(common: &Common<'_>, registry: &mut Registry) -> Result<Self, Refusal> {
        let facts = match common.target.machine {
            Machine::X86_64 => Facts::X86_64,
            Machine::AArch64 => Facts::AARCH64,
            Machine::PowerPc64Le => Facts::POWERPC64LE,
            other => return Err(Refusal::Machine(other)),
        };
        let at = common.layout.unwind.ok_or(Refusal::Missing("room for unwind tables"))?;
        let slot_shift = common.target.machine.isa().facts().slot_shift;
        Ok(Self { area: Base::Shared(at), facts, fetch: registry.number(Routine::Fetch), slot_shift })
    }
}
/// Goes to a block where a bit is set.
fn leave_if_set(e: &mut Emit<'_>, value: Value, bits: i64, to: Block) {
    let found = e.b.ins().band_imm_s(value, bits);
    e.leave_if(found, to);
}
/// What lives from one round to the next.
pub(super) struct Walk<'w> {
    pub(super) walks: &'w Walks,
    pub(super) pc: Variable,
    sp: Variable,
    fp: Variable,
    bp: Variable,
    link: Variable,
    /// Where `pc` was found, if it may be one of our return points.
    pub(super) slot: Variable,
    state: Variable,
    arriving: Variable,
    /// Address of the module looked at last.
    pub(super) module: Variable,
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
    pub(super) done: Block,
}

/// Walks a stack: the address of [`Start`]'s words, where the frames go, what is wanted, the thread's id, memory for a window. The result
/// is how many frames there are, and behind that the hash of them.
pub(in crate::native) fn walk(e: &mut Emit<'_>, walks: &Walks, arguments: &[Value]) {
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
    pub(super) fn masked(&self, e: &mut Emit<'_>, address: Value) -> Value {
        match self.walks.facts.mask {
            u64::MAX => address,
            mask => {
                let mask = e.int(mask as i64);
                e.b.ins().band(address, mask)
            }
        }
    }

    pub(super) fn area(&self, e: &mut Emit<'_>) -> Value {
        let at = e.address(self.walks.area);
        e.pointer(at)
    }

    /// The address so far into the area, if so many bytes are there.
    pub(super) fn in_area(&self, e: &mut Emit<'_>, offset: Value, bytes: i64) -> Value {
        let is_out = e.is_imm(IntCC::UnsignedGreaterThan, offset, UNWIND_ROOM as i64 - bytes);
        e.leave_if(is_out, self.done);
        let area = self.area(e);
        e.b.ins().iadd(area, offset)
    }

    /// Whether an address is in the module.
    pub(super) fn is_in(e: &mut Emit<'_>, module: Value, at: Value) -> Value {
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
        if facts.arrival.ra == Slot::UNCHANGED {
            // Where calls push no return address, they are known by the stack pointer of their entry.
            let slot = e.b.ins().select(interrupted, zero, cfa);
            e.b.def_var(self.slot, slot);
        }

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
}
