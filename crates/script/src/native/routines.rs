//! Routines: what is compiled once for a program, and called by its bodies.

use super::aggregates::{self, Others};
use super::bytes::byte;
use super::delay;
use super::emit::{At, Base, Emit, Piece, Usage, Workshop};
use super::layout::MapCode;
use super::mapped::{self, PAGE, READ_WORDS, Stretch};
use super::stacks;
use super::tables::TableCode;
use super::{Common, Refusal};
use crate::ir::*;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F64, I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use trapless_isa::passed::{SIGNED, SIZE};
use trapless_wire::{PATIENCE, RESERVED, THREAD_HEAD, THREAD_LOST, THREAD_RING, THREAD_TAIL, THREAD_UNREAD};

/// A routine. Those of maps are of the map with this number. What they are called with is told at each; the last argument is where
/// their result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routine {
    /// A system call: its number, the address of six words with its arguments; the first becomes the result.
    System,
    /// Has the thread sleep: for so many nanoseconds, where the result goes. 0 unless it woke in a forked child.
    Delay,
    /// Reads foreign memory: to, from, how many bytes, the thread's id. How many were read.
    ReadMemory,
    /// Reads an operand in memory: where its two words are, the thread's id. Two words: its bits, extended to 64, and whether it could be read.
    ReadOperand,
    /// Reads a string to bytes that are 0: to, from, how many bytes at most with the final zero, the thread's id. Its length, or -1.
    ReadString,
    /// Reserves a record: its first word. Its address, or 0.
    Reserve,
    /// Finds a key or puts it in with zeros: the key. The address of the value, or 0.
    Enter(u32),
    /// The key, where the value goes. Whether it is there.
    Get(u32),
    /// The key. Whether it is there.
    Has(u32),
    /// The key, the value. Whether it was written.
    Set(u32),
    /// The key, an amount. What it was before.
    Add(u32),
    /// The key. Whether it was there.
    Delete(u32),
    /// Takes all keys out.
    Clear(u32),
    /// Zeroes all values.
    Zero(u32),
    /// Where the number of the next slot is, where the key goes, where the value goes. Of one that has ended the number is -1.
    Next(u32),
    /// The key, a value, its weight, the time.
    Aggregate(u32),
    /// Walks a stack and keeps it: [`super::stacks::keep`].
    Stack,
    /// Walks a stack: [`super::stacks::walk`].
    Walk,
    /// Makes memory of a stack readable: [`super::stacks::fetch`].
    Fetch,
}

/// The routines that a program needs, by number.
#[derive(Default)]
pub(super) struct Registry(Vec<Routine>);

impl Registry {
    /// The number of a routine.
    pub(super) fn number(&mut self, routine: Routine) -> u16 {
        let known = self.0.iter().position(|known| *known == routine);
        let number = known.unwrap_or_else(|| {
            self.0.push(routine);
            self.0.len() - 1
        });
        number as u16
    }

    /// Whether some bodies lead to a system call, by the calls of all routines, and not only where an operand is read.
    pub(super) fn makes_system_calls(&self, bodies: &[Piece], routines: &[Piece]) -> bool {
        let mut reached: Vec<u16> = bodies.iter().flat_map(|body| &body.calls).copied().collect();
        let mut next = 0;
        while let Some(&number) = reached.get(next) {
            next += 1;
            match self.0.get(usize::from(number)) {
                Some(Routine::System) => return true,
                Some(Routine::ReadOperand) => continue,
                _ => {}
            }
            let calls = routines.get(usize::from(number)).map_or(&[][..], |routine| &routine.calls);
            let new: Vec<u16> = calls.iter().filter(|call| !reached.contains(call)).copied().collect();
            reached.extend(new);
        }
        false
    }

    /// Compiles all of them, with those that they need.
    pub(super) fn compile(
        &mut self,
        workshop: &mut Workshop,
        common: &Common<'_>,
    ) -> Result<Vec<Piece>, Refusal> {
        let mut pieces = Vec::new();
        while let Some(&routine) = self.0.get(pieces.len()) {
            pieces.push(self.routine(workshop, common, routine)?);
        }
        Ok(pieces)
    }

    fn routine(
        &mut self,
        workshop: &mut Workshop,
        common: &Common<'_>,
        routine: Routine,
    ) -> Result<Piece, Refusal> {
        let map = |number: u32| {
            let map = common.maps.get(number as usize).copied();
            let map = map.ok_or(Refusal::Missing("map of that number"))?;
            map.table().map(|table| (map, table)).ok_or(Refusal::Missing("table of that map"))
        };
        match routine {
            Routine::System => {
                let code = trapless_isa::body::system_call(common.target.machine);
                let code = code.ok_or(Refusal::Machine(common.target.machine))?;
                Ok(Piece { code, calls: Vec::new() })
            }
            Routine::Delay => {
                let system = self.number(Routine::System);
                workshop.piece(2, false, |e, arguments| {
                    delay::sleep(e, system, arguments[0], At(arguments[1], 0));
                    Ok(())
                })
            }
            Routine::ReadMemory => {
                let system = self.number(Routine::System);
                workshop.piece(5, false, |e, arguments| {
                    let unread = Base::Block(trapless_wire::SCRIPT_BLOCK + THREAD_UNREAD);
                    let [to, from, length, tid, out] = arguments else { return Ok(()) };
                    let read = read_memory(e, system, unread, [*to, *from, *length, *tid]);
                    e.store(read, At(*out, 0));
                    e.finish();
                    Ok(())
                })
            }
            Routine::ReadOperand => {
                let read = self.number(Routine::ReadMemory);
                workshop.piece(3, false, |e, arguments| {
                    let [words, tid, out] = arguments else { return Ok(()) };
                    read_operand(e, read, [*words, *tid], At(*out, 0));
                    e.finish();
                    Ok(())
                })
            }
            Routine::ReadString => {
                let read = self.number(Routine::ReadMemory);
                workshop.piece(5, false, |e, arguments| {
                    let [to, from, most, tid, out] = arguments else { return Ok(()) };
                    read_string(e, read, [*to, *from, *most, *tid, *out]);
                    Ok(())
                })
            }
            Routine::Reserve => workshop.piece(2, true, |e, arguments| {
                reserve(e, common, arguments[0], At(arguments[1], 0));
                Ok(())
            }),
            Routine::Stack => {
                let walk = self.number(Routine::Walk);
                let (at, table) = common.layout.stacks.ok_or(Refusal::Missing("table of stacks"))?;
                let table = TableCode { base: Base::Shared(at), table };
                workshop.piece(5, false, |e, arguments| {
                    stacks::keep(e, walk, &table, arguments);
                    Ok(())
                })
            }
            Routine::Walk => {
                let walks = stacks::Walks::new(common, self)?;
                workshop.piece(6, false, |e, arguments| {
                    stacks::walk(e, &walks, arguments);
                    Ok(())
                })
            }
            Routine::Fetch => {
                let system = self.number(Routine::System);
                workshop.piece(5, false, |e, arguments| {
                    stacks::fetch(e, system, arguments);
                    Ok(())
                })
            }
            Routine::Enter(number)
            | Routine::Get(number)
            | Routine::Has(number)
            | Routine::Set(number)
            | Routine::Add(number)
            | Routine::Delete(number)
            | Routine::Clear(number)
            | Routine::Zero(number)
            | Routine::Next(number)
            | Routine::Aggregate(number) => {
                let (map, table) = map(number)?;
                let words = match routine {
                    Routine::Clear(_) | Routine::Zero(_) => 1,
                    Routine::Enter(_) | Routine::Has(_) | Routine::Delete(_) => 2,
                    Routine::Aggregate(_) => 5,
                    _ => 3,
                };
                workshop.piece(words, map.base.is_own(), |e, arguments| {
                    on_table(e, routine, &map, &table, arguments);
                    Ok(())
                })
            }
        }
    }
}

/// What each routine uses with all that it calls. None calls itself.
pub(super) fn usage(routines: &[Piece]) -> Vec<Usage> {
    // Each time through, what one calls is known one call deeper.
    let mut known: Vec<Usage> = routines.iter().map(Piece::own_usage).collect();
    for _ in 0..routines.len() {
        for (index, piece) in routines.iter().enumerate() {
            known[index] = piece.usage(&known);
        }
    }
    known
}

/// Writes a result, and ends the routine.
fn answer(e: &mut Emit<'_>, out: Value, value: i64) {
    let value = e.int(value);
    e.store(value, At(out, 0));
    e.finish();
}

fn on_table(e: &mut Emit<'_>, routine: Routine, map: &MapCode, table: &TableCode, arguments: &[Value]) {
    let Some(&out) = arguments.last() else { return };
    let key = At(arguments[0], 0);
    let missing = e.block();
    let aggregation = match map.value {
        MapValue::Aggregate(aggregation) => Some(aggregation),
        MapValue::Bytes(_) => None,
    };
    let read = move |e: &mut Emit<'_>, from: At, to: At| match aggregation {
        Some(aggregation) => aggregates::copy_words(e, aggregation, from, to),
        None => e.copy(to, from, map.value.size(), false),
    };
    match routine {
        Routine::Enter(_) => {
            let found = TableCode::found(e);
            let written = e.int(0);
            let written = e.set_new(written);
            table.enter(
                e,
                key,
                &found,
                &|e, at| {
                    e.zero(at, table.value_size());
                    let at = e.pointer(at);
                    e.b.def_var(written, at);
                },
                missing,
            );
            let (there, new) = (e.b.use_var(found.value_at), e.b.use_var(written));
            let is_there = e.b.use_var(found.is_there);
            let at = e.b.ins().select(is_there, there, new);
            e.store(at, At(out, 0));
            e.finish();
        }
        Routine::Get(_) => {
            let to = At(arguments[1], 0);
            table.read(e, key, &|e, from| read(e, from, to), missing);
            answer(e, out, 1);
            e.b.switch_to_block(missing);
            e.zero(to, map.value.size());
            answer(e, out, 0);
            return;
        }
        Routine::Has(_) => {
            table.read(e, key, &|_, _| {}, missing);
            answer(e, out, 1);
        }
        Routine::Set(_) => {
            let value = At(arguments[1], 0);
            let write = |e: &mut Emit<'_>, at: At| e.copy(at, value, table.table.value, true);
            table.set(e, key, &write, missing);
            answer(e, out, 1);
        }
        Routine::Add(_) => {
            let amount = arguments[1];
            let before = e.int(0);
            let before = e.set_new(before);
            let first = |e: &mut Emit<'_>, at: At| {
                e.store(amount, at);
                let none = e.int(0);
                e.b.def_var(before, none);
            };
            let add = |e: &mut Emit<'_>, at: At| {
                let was = if map.is_by_word() {
                    e.add_shared(at, amount)
                } else {
                    let was = e.load(at);
                    let sum = e.b.ins().iadd(was, amount);
                    e.store(sum, at);
                    was
                };
                e.b.def_var(before, was);
            };
            if map.is_by_word() {
                table.in_place(e, key, &first, &add, missing);
            } else {
                table.change(e, key, &first, &add, missing);
            }
            let before = e.b.use_var(before);
            e.store(before, At(out, 0));
            e.finish();
        }
        Routine::Delete(_) => {
            table.delete(e, key, missing);
            answer(e, out, 1);
        }
        Routine::Clear(_) | Routine::Zero(_) => {
            table.all(e, matches!(routine, Routine::Clear(_)));
            answer(e, out, 0);
        }
        Routine::Next(_) => {
            let [key, value] = [1, 2].map(|index| At(arguments[index], 0));
            table.next_key(e, At(arguments[0], 0), key, value, &read);
            return e.end_unreached(missing);
        }
        Routine::Aggregate(_) => {
            let (value, weight, time) = (arguments[1], arguments[2], arguments[3]);
            let add = |e: &mut Emit<'_>, at: At| match aggregation {
                Some(Aggregation::TimeSeries { interval, buckets, of }) => {
                    aggregates::add_to_series(e, interval, buckets, of, at, value, weight, time);
                }
                Some(aggregation) => {
                    let is_float = aggregation.is_of_floats();
                    let value =
                        if is_float { e.b.ins().bitcast(F64, MemFlagsData::new(), value) } else { value };
                    aggregates::add(e, aggregation, Others::Nobody, at, value, Some(weight));
                }
                None => {}
            };
            let first = |e: &mut Emit<'_>, at: At| {
                e.zero(at, table.value_size());
                add(e, at);
            };
            table.change(e, key, &first, &add, missing);
            answer(e, out, 1);
        }
        Routine::System
        | Routine::Delay
        | Routine::ReadMemory
        | Routine::ReadOperand
        | Routine::ReadString
        | Routine::Reserve
        | Routine::Stack
        | Routine::Walk
        | Routine::Fetch => {}
    }
    e.b.switch_to_block(missing);
    answer(e, out, 0);
}

/// Reads foreign memory in pieces that end at page borders, up to the first that cannot be read: plainly what [stays
/// mapped](super::mapped), else by a system call, which fails where a fault would be.
fn read_memory(e: &mut Emit<'_>, system: u16, unread: Base, arguments: [Value; 4]) -> Value {
    let [to, from, length, tid] = arguments;
    let zero = e.int(0);
    let done = e.set_new(zero);
    let [again, mapped, plainly, by_call, unknown, over, got_some] = [(); 7].map(|()| e.block());
    let words = e.slot(READ_WORDS);
    let sp = e.pointer(words);
    let got = e.set_new(zero);
    e.go_on(again);
    let so_far = e.b.use_var(done);
    let left = e.b.ins().isub(length, so_far);
    let is_over = e.is_imm(IntCC::Equal, left, 0);
    e.leave_if(is_over, over);
    let address = e.b.ins().iadd(from, so_far);
    // Nothing is read beyond the end of the address space, nor from its beginning again.
    let wraps = e.is(IntCC::UnsignedLessThan, address, from);
    e.leave_if(wraps, over);
    let in_page = e.b.ins().band_imm_s(address, PAGE - 1);
    let page = e.int(PAGE);
    let to_border = e.b.ins().isub(page, in_page);
    let size = e.b.ins().umin(left, to_border);
    let target = e.b.ins().iadd(to, so_far);
    let piece = Stretch { start: address, size };
    mapped::leave_if_constant(e, piece, mapped);
    mapped::each_stack(e, sp, |e, stack| piece.leave_if_in(e, stack, mapped));
    e.go_on(by_call);
    let short_tid = e.b.ins().ireduce(I32, tid);
    let is_unknown = e.b.ins().icmp_imm_s(IntCC::Equal, short_tid, 0);
    e.leave_if(is_unknown, unknown);
    e.store(address, words.plus(16));
    e.store(size, words.plus(24));
    let (remote, one) = (e.pointer(words.plus(16)), e.int(1));
    let read = mapped::read(e, system, words, tid, [target, size], (remote, one));
    // An error is negative.
    let read = e.b.ins().smax(read, zero);
    e.b.def_var(got, read);
    e.jump(got_some);
    e.b.switch_to_block(mapped);
    let apart = e.b.ins().bxor(address, sp);
    let is_just_written = e.is_imm(IntCC::UnsignedLessThan, apart, PAGE);
    e.leave_if(is_just_written, plainly);
    mapped::leave_unless_readable(e, system, words, address, by_call);
    e.go_on(plainly);
    copy(e, target, address, size);
    e.b.def_var(got, size);
    e.go_on(got_some);
    let read = e.b.use_var(got);
    let so_far = e.b.ins().iadd(so_far, read);
    e.b.def_var(done, so_far);
    let is_whole = e.is(IntCC::Equal, read, size);
    e.b.ins().brif(is_whole, again, &[], over, &[]);
    e.b.switch_to_block(unknown);
    e.count(unread);
    e.go_on(over);
    e.b.use_var(done)
}

/// Copies so many bytes.
fn copy(e: &mut Emit<'_>, to: Value, from: Value, bytes: Value) {
    let whole = e.b.ins().band_imm_s(bytes, -8);
    for (start, end, step, type_) in [(None, whole, 8, I64), (Some(whole), bytes, 1, I8)] {
        let count = start.map_or(end, |start| e.b.ins().isub(end, start));
        e.each(count, step, |e, index, _| {
            let index = start.map_or(index, |start| e.b.ins().iadd(index, start));
            let [from, to] = [from, to].map(|base| At(e.b.ins().iadd(base, index), 0));
            let part = e.load_as(type_, from);
            e.store(part, to);
        });
    }
}

/// Reads an operand of the form that its second word says. The page that its words are in has just been written to by the detour, and so
/// what is in it may be read plainly: it is the stack, on which compilers keep most operands that are in memory.
fn read_operand(e: &mut Emit<'_>, read: u16, [words, tid]: [Value; 2], out: At) {
    let [address, form] = [0, 8].map(|offset| e.load(At(words, offset)));
    let size = e.b.ins().band_imm_s(form, i64::from(SIZE));
    let [elsewhere, known] = [(); 2].map(|()| e.block());
    let (found, results) = (e.slot(8), e.results());
    let zero = e.int(0);
    e.store(zero, found);
    let last = e.b.ins().iadd(address, size);
    let last = e.b.ins().iadd_imm_s(last, -1);
    for end in [address, last] {
        let apart = e.b.ins().bxor(end, words);
        let pages = e.b.ins().ushr_imm_s(apart, 12);
        e.leave_if(pages, elsewhere);
    }
    for (bytes, type_) in [(1, I8), (2, I16), (4, I32), (8, I64)] {
        let is_it = e.is_imm(IntCC::Equal, size, bytes);
        e.when(is_it, |e| {
            let part = e.load_as(type_, At(address, 0));
            e.store(part, found);
        });
    }
    let whole = e.int(1);
    let whole = e.set_new(whole);
    e.jump(known);
    e.b.switch_to_block(elsewhere);
    let to = e.pointer(found);
    e.call(read, &[to, address, size, tid, results.0]);
    let count = e.load(results);
    let is_whole = e.is(IntCC::Equal, count, size);
    let is_whole = e.b.ins().uextend(I64, is_whole);
    e.b.def_var(whole, is_whole);
    e.go_on(known);
    let whole = e.b.use_var(whole);
    // Bytes ahead of one that is missing are no operand.
    let word = e.load(found);
    let word = e.b.ins().select(whole, word, zero);
    let (bits, all) = (e.b.ins().ishl_imm_s(size, 3), e.int(64));
    let above = e.b.ins().isub(all, bits);
    let up = e.b.ins().ishl(word, above);
    let signed = e.b.ins().sshr(up, above);
    let is_signed = e.b.ins().band_imm_s(form, i64::from(SIGNED));
    let word = e.b.ins().select(is_signed, signed, word);
    e.store(word, out);
    e.store(whole, out.plus(8));
}

/// The first piece of a string has so many bytes: most strings end there.
const FIRST_PIECE: i64 = 192;

/// Reads a string, piece by piece up to its end.
fn read_string(e: &mut Emit<'_>, read: u16, arguments: [Value; 5]) {
    let [to, from, most, tid, out] = arguments;
    let zero = e.int(0);
    let one = e.int(1);
    let is_none = e.is_imm(IntCC::Equal, most, 0);
    let most = e.b.ins().select(is_none, one, most);
    // Without the final zero.
    let room = e.b.ins().iadd_imm_s(most, -1);
    let length = e.set_new(zero);
    let first = e.int(FIRST_PIECE);
    let step = e.set_new(first);
    let [again, over, unreadable] = [(); 3].map(|()| e.block());
    let results = e.slot(8);
    e.go_on(again);
    let so_far = e.b.use_var(length);
    let left = e.b.ins().isub(room, so_far);
    let is_over = e.is_imm(IntCC::Equal, left, 0);
    e.leave_if(is_over, over);
    let address = e.b.ins().iadd(from, so_far);
    let wraps = e.is(IntCC::UnsignedLessThan, address, from);
    e.leave_if(wraps, over);
    let wanted = e.b.use_var(step);
    let piece = e.b.ins().umin(left, wanted);
    let target = e.b.ins().iadd(to, so_far);
    e.call(read, &[target, address, piece, tid, results.0]);
    let got = e.load(results);
    let nothing = e.b.ins().bor(got, so_far);
    let is_unreadable = e.is_imm(IntCC::Equal, nothing, 0);
    e.leave_if(is_unreadable, unreadable);
    let found = first_zero(e, target, got);
    zero_between(e, target, found, got);
    let so_far = e.b.ins().iadd(so_far, found);
    e.b.def_var(length, so_far);
    let ends = e.is(IntCC::UnsignedLessThan, found, piece);
    e.leave_if(ends, over);
    let page = e.int(4096);
    e.b.def_var(step, page);
    e.jump(again);
    e.b.switch_to_block(over);
    let length = e.b.use_var(length);
    e.store(length, At(out, 0));
    e.finish();
    e.b.switch_to_block(unreadable);
    answer(e, out, -1);
}

/// Where the first zero is among so many bytes; their number where there is none. Eight bytes are looked at at once: of
/// `(w - 0x01…) & !w & 0x80…` the lowest bit that is set is that of the first byte which is 0, whatever those above it are.
fn first_zero(e: &mut Emit<'_>, bytes: Value, count: Value) -> Value {
    let end = e.set_new(count);
    let done = e.block();
    let whole = e.b.ins().band_imm_s(count, !7);
    e.each(whole, 8, |e, index, _| {
        let at = e.b.ins().iadd(bytes, index);
        let word = e.load(At(at, 0));
        let [ones, tops] = [0x0101_0101_0101_0101, 0x8080_8080_8080_8080_u64 as i64].map(|bits| e.int(bits));
        let less = e.b.ins().isub(word, ones);
        let less = e.b.ins().band_not(less, word);
        let zeros = e.b.ins().band(less, tops);
        let next = e.block();
        let is_none = e.is_imm(IntCC::Equal, zeros, 0);
        e.leave_if(is_none, next);
        let bit = e.b.ins().ctz(zeros);
        let byte = e.b.ins().ushr_imm_s(bit, 3);
        let found = e.b.ins().iadd(index, byte);
        e.b.def_var(end, found);
        e.jump(done);
        e.b.switch_to_block(next);
    });
    let (rest, last) = (e.b.ins().isub(count, whole), e.b.ins().iadd(bytes, whole));
    e.each(rest, 1, |e, index, _| {
        let value = byte(e, At(last, 0), index);
        let next = e.block();
        e.leave_if(value, next);
        let found = e.b.ins().iadd(whole, index);
        e.b.def_var(end, found);
        e.jump(done);
        e.b.switch_to_block(next);
    });
    e.go_on(done);
    e.b.use_var(end)
}

/// Zeroes bytes from one index to another, which is not below it.
fn zero_between(e: &mut Emit<'_>, bytes: Value, from: Value, to: Value) {
    let start = e.b.ins().iadd(bytes, from);
    let count = e.b.ins().isub(to, from);
    let whole = e.b.ins().band_imm_s(count, !7);
    e.each(whole, 8, |e, index, _| {
        let (at, nothing) = (e.b.ins().iadd(start, index), e.int(0));
        e.store(nothing, At(at, 0));
    });
    let (rest, last) = (e.b.ins().isub(count, whole), e.b.ins().iadd(start, whole));
    e.each(rest, 1, |e, index, _| {
        let at = e.b.ins().iadd(last, index);
        let nothing = e.b.ins().iconst(cranelift_codegen::ir::types::I8, 0);
        e.store(nothing, At(at, 0));
    });
}

/// Reserves a record in the thread's ring. The first word says how many bytes, in its low 31 bits.
fn reserve(e: &mut Emit<'_>, common: &Common<'_>, first: Value, out: At) {
    let part = Base::Block(trapless_wire::SCRIPT_BLOCK);
    let size = 1i64 << common.layout.ring_bits;
    let [again, lost, done] = [(); 3].map(|()| e.block());
    let patience = e.int(PATIENCE.into());
    let patience = e.set_new(patience);
    let wanted = e.b.ins().band_imm_s(first, RESERVED as i64 - 1);
    let [head_at, tail_at, ring] = [THREAD_HEAD, THREAD_TAIL, THREAD_RING].map(|at| e.address(part.plus(at)));
    e.go_on(again);
    let (head, tail) = (e.watch(head_at), e.watch(tail_at));
    let position = e.b.ins().band_imm_s(head, size - 1);
    let whole = e.int(size);
    let to_end = e.b.ins().isub(whole, position);
    let (zero, fits) = (e.int(0), e.is(IntCC::UnsignedLessThanOrEqual, wanted, to_end));
    let filler = e.b.ins().select(fits, zero, to_end);
    let start = e.b.ins().iadd(head, filler);
    let end = e.b.ins().iadd(start, wanted);
    let used = e.b.ins().isub(end, tail);
    let is_full = e.is(IntCC::UnsignedGreaterThan, used, whole);
    e.leave_if(is_full, lost);
    let was = e.exchange(head_at, head, end);
    let is_ours = e.is(IntCC::Equal, was, head);
    let [ours, theirs] = [(); 2].map(|()| e.block());
    e.b.ins().brif(is_ours, ours, &[], theirs, &[]);
    e.b.switch_to_block(theirs);
    let left = e.b.use_var(patience);
    let left = e.b.ins().iadd_imm_s(left, -1);
    e.b.def_var(patience, left);
    e.b.ins().brif(left, again, &[], lost, &[]);
    e.b.switch_to_block(ours);
    e.when(filler, |e| {
        let at = e.b.ins().iadd(ring.0, position);
        e.publish(filler, At(at, ring.1));
    });
    let position = e.b.ins().band_imm_s(start, size - 1);
    let record = e.b.ins().iadd(ring.0, position);
    let record = e.pointer(At(record, ring.1));
    let reserved = e.b.ins().bor_imm_s(first, RESERVED as i64);
    e.publish(reserved, At(record, 0));
    e.store(record, out);
    e.jump(done);
    e.b.switch_to_block(lost);
    e.count(part.plus(THREAD_LOST));
    e.store(zero, out);
    e.go_on(done);
    e.finish();
}
