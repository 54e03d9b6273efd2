//! Sleeping in a body: the one thing for which a body waits.
//!
//! A thread sleeps by `futex` on [`SCRIPT_LEAVE`], until a moment that is computed once. So no signal shortens its sleep: it sleeps on after
//! the handler, until the same moment. Nobody wakes it. Whoever takes the script out stops all threads, which takes them out of the call, and
//! writes the word. When they go on the kernel has them make the call again and looks at the word first, and the call ends.
//!
//! A handler that interrupts a sleep may fork, and its child comes back here. A child runs no bodies: what it shares with its parent is the
//! parent's to write, who comes back as well. So whoever wakes up in another process than he fell asleep in, which the origin word tells,
//! leaves the body.

use super::emit::{At, Base, Emit};
use crate::ir::MOST_DELAY;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value};
use trapless_wire::{SCRIPT_LEAVE, SCRIPT_ORIGIN};

const MONOTONIC: i64 = 1;
const NANOSECONDS: i64 = 1_000_000_000;
/// `FUTEX_WAIT_BITSET` until a moment of the monotonic clock. Nobody else has to do with the word, so the mapping that it lies in does not matter
/// (`FUTEX_PRIVATE_FLAG`).
const WAIT_UNTIL: i64 = 9 | 128;
/// `FUTEX_BITSET_MATCH_ANY`.
const BY_ANY: i64 = u32::MAX as i64;
const INTERRUPTED: i64 = -4;

/// Has the thread sleep for so many nanoseconds. `is_elsewhere` becomes 0 if it woke in the process that it fell asleep in.
pub(super) fn sleep(e: &mut Emit<'_>, system: u16, nanoseconds: Value, is_elsewhere: At) {
    let [again, over] = [(); 2].map(|()| e.block());
    let none = e.int(0);
    e.store(none, is_elsewhere);
    let is_none = e.is_imm(IntCC::SignedLessThanOrEqual, nanoseconds, 0);
    e.leave_if(is_none, over);
    // So a loop of sleeps ends without a system call, too.
    let leave = e.address(Base::Shared(SCRIPT_LEAVE.into()));
    let word = e.load(leave);
    let is_leaving = e.is_imm(IntCC::NotEqual, word, 0);
    e.leave_if(is_leaving, over);
    let most = e.int(MOST_DELAY as i64);
    let nanoseconds = e.b.ins().umin(nanoseconds, most);
    let (words, time) = (e.slot(48), e.slot(16));
    let calls = e.system_calls();
    let (clock, until) = (e.int(MONOTONIC), e.pointer(time));
    let failed = call(e, system, words, calls.clock_gettime, &[clock, until]);
    e.leave_if(failed, over);
    let [seconds, part] = [0, 8].map(|at| e.load(time.plus(at)));
    let (part, second) = (e.b.ins().iadd(part, nanoseconds), e.int(NANOSECONDS));
    let more = e.b.ins().udiv(part, second);
    let whole = e.b.ins().imul(more, second);
    let (seconds, part) = (e.b.ins().iadd(seconds, more), e.b.ins().isub(part, whole));
    e.store(seconds, time);
    e.store(part, time.plus(8));
    let origin = origin(e);
    e.go_on(again);
    let leave = e.pointer(leave);
    let [operation, nothing, any] = [WAIT_UNTIL, 0, BY_ANY].map(|word| e.int(word));
    let result = call(e, system, words, calls.futex, &[leave, operation, nothing, until, nothing, any]);
    let now = self::origin(e);
    let difference = e.b.ins().bxor(origin, now);
    e.store(difference, is_elsewhere);
    e.leave_if(difference, over);
    // Who is woken without a reason sleeps on, too.
    let is_woken = e.is_imm(IntCC::Equal, result, 0);
    e.leave_if(is_woken, again);
    let is_interrupted = e.is_imm(IntCC::Equal, result, INTERRUPTED);
    e.leave_if(is_interrupted, again);
    e.go_on(over);
    e.finish();
}

/// The origin word of the process that the thread is in.
fn origin(e: &mut Emit<'_>) -> Value {
    let at = e.address(Base::Shared(SCRIPT_ORIGIN.into()));
    let at = e.load(at);
    e.load(At(at, 0))
}

/// A system call, by six words of the frame. Its result.
fn call(e: &mut Emit<'_>, system: u16, words: At, number: i64, arguments: &[Value]) -> Value {
    for (value, at) in arguments.iter().zip((0..).step_by(8)) {
        e.store(*value, words.plus(at));
    }
    let (number, pointer) = (e.int(number), e.pointer(words));
    e.call(system, &[number, pointer]);
    e.load(words)
}
