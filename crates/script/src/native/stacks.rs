//! Walks of call stacks: [`trapless_wire::unwind::walk`] in machine code, and what keeps each stack once.
//!
//! The steps have the numbers that they have there. One thing is done elsewhere: whether a return address is one of our return points is
//! asked in step 1 of the next frame, and only of those that are in no module with a table.
//!
//! # How the stack is read
//!
//! Through a *window*, in which words are loaded plainly. Where a word is in none, the routine `Fetch` opens the next one. It is the first
//! of these that has the word:
//!
//! 1. **The page of the stack pointer**, from there on.
//! 2. **A page of the thread's own stack**, which stays mapped ([`super::mapped`]).
//! 3. **A copy**, made by a system call that fails where a fault would be: all other stacks, such as those of coroutines and signal
//!    handlers.
//!
//! Everything in the unwind area is found by offsets that are checked against its room, and everything that goes round is bounded, so
//! whatever stands there and on stacks, a walk ends and reads no other memory.
//!
//! # Identity
//!
//! A stack's number is a hash of its addresses with how many they are in its lowest bits, and the key of the table that has them. It is
//! never 0.
mod points;
mod rows;
mod walk;
mod window;

pub(super) use walk::{Walks, walk};
pub(super) use window::fetch;

use super::emit::{At, Emit};
use super::tables::TableCode;
use crate::ir::STACK_LENGTH;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{Block, InstBuilder, Type, Value};

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
/// A window, in memory: where it begins, at how many addresses from there a word can be loaded, and where these bytes are. Then where the
/// memory begins that was there when the probe was hit, on the stack pointer's page.
const CONTEXT: u32 = 32;
const CONTEXT_ROOM: u32 = 8;
const CONTEXT_BYTES: u32 = 16;
const CONTEXT_HIT: u32 = 24;

fn short(e: &mut Emit<'_>, type_: Type, at: At) -> Value {
    let value = e.load_as(type_, at);
    e.b.ins().uextend(I64, value)
}

fn signed(e: &mut Emit<'_>, type_: Type, at: At) -> Value {
    let value = e.load_as(type_, at);
    e.b.ins().sextend(I64, value)
}

fn not(e: &mut Emit<'_>, condition: Value) -> Value {
    e.is_imm(IntCC::Equal, condition, 0)
}

/// Goes to a block unless a condition is not 0.
fn leave_unless(e: &mut Emit<'_>, condition: Value, to: Block) {
    let otherwise = not(e, condition);
    e.leave_if(otherwise, to);
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
    let rest = e.b.ins().band_imm_s(hash, !STACK_LENGTH);
    let number = e.b.ins().bor(rest, count);
    // Of a stack without frames, too.
    let (one, nothing) = (e.int(STACK_LENGTH + 1), not(e, number));
    let number = e.b.ins().select(nothing, one, number);
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
