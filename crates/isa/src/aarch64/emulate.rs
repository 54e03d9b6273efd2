//! What does an instruction do to a set of saved registers and memory?
//!
//! Emulated are the branches, the address and literal instructions, hints without effect, and the integer
//! instructions and loads and stores that functions start with and mostly consist of. Not emulated, each with
//! its name as the reason: what needs the CPU's keys (pointer authentication), its monitors (exclusives,
//! atomics) or its vector registers, and ordered accesses.
//!
//! An instruction has its whole effect or none: memory is accessed first. Only a store of two registers may
//! have stored one of them when the other turns out to fault.

mod arithmetic;
mod memory;

use super::decode::{Form, LENGTH, Literal, RegisterBranch, field, form, hint};
use super::emit::instruction::mrs_thread_pointer;
use crate::emulate::Blank;
use crate::{EmulateError, Reason, Thread};

fn not_emulated<T>(name: &'static str) -> Result<T, EmulateError> {
    Err(Reason::NotEmulated(name).into())
}

const N: u64 = 1 << 31;
const Z: u64 = 1 << 30;
const C: u64 = 1 << 29;
const V: u64 = 1 << 28;
const BTYPE: u64 = 3 << 10;

/// A thread at an instruction.
struct State<'a> {
    thread: &'a mut dyn Thread,
    /// Address of the instruction.
    pc: u64,
    /// Where the thread goes on.
    next: u64,
}

/// The number of the stack pointer, and in other places of zero.
const SP: u8 = 31;
const LINK: u8 = 30;

impl State<'_> {
    /// Register `number`; 31 is zero.
    fn get(&self, number: u8) -> u64 {
        if number == SP { 0 } else { self.thread.register(number) }
    }

    /// Register `number`; 31 is the stack pointer.
    fn get_or_sp(&self, number: u8) -> u64 {
        self.thread.register(number)
    }

    fn set(&mut self, number: u8, value: u64) {
        if number != SP {
            self.thread.set_register(number, value);
        }
    }

    fn set_or_sp(&mut self, number: u8, value: u64) {
        self.thread.set_register(number, value);
    }

    fn has(&self, flag: u64) -> bool {
        self.thread.flags() & flag != 0
    }

    /// Whether a condition code holds.
    fn holds(&self, condition: u8) -> bool {
        let is = |flag| self.has(flag);
        let holds = match condition >> 1 & 7 {
            0 => is(Z),
            1 => is(C),
            2 => is(N),
            3 => is(V),
            4 => is(C) && !is(Z),
            5 => is(N) == is(V),
            6 => is(N) == is(V) && !is(Z),
            _ => return true,
        };
        holds != (condition & 1 != 0)
    }
}

/// Does to `thread` what `word` does at `address`.
///
/// # Errors
/// Nothing but memory, which may hold half of what a pair stores, was changed then.
pub fn emulate(word: u32, address: u64, thread: &mut dyn Thread) -> Result<(), EmulateError> {
    let mut state = State { thread, pc: address, next: address.wrapping_add(LENGTH) };
    step(word, &mut state)?;
    let State { thread, next, .. } = state;
    // An emulated indirect branch does not check for a landing pad, as in the kernel's own simulation.
    let flags = thread.flags();
    if flags & BTYPE != 0 {
        thread.set_flags(flags & !BTYPE);
    }
    thread.set_ip(next);
    Ok(())
}

/// Whether `word` is emulated.
pub fn supported(word: u32) -> Result<(), Reason> {
    match emulate(word, 0, &mut Blank) {
        Err(EmulateError::Refused(reason)) => Err(reason),
        _ => Ok(()),
    }
}

fn step(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    let pc = r.pc;
    let to = |offset: i64| pc.wrapping_add_signed(offset);
    match form(word) {
        Form::Branch { link, offset } => {
            if link {
                r.set(LINK, r.next);
            }
            r.next = to(offset);
        }
        Form::ConditionalBranch { condition, offset } => {
            if r.holds(condition) {
                r.next = to(offset);
            }
        }
        Form::CompareBranch { wide, nonzero, rt, offset } => {
            let value = if wide { r.get(rt) } else { r.get(rt) & 0xffff_ffff };
            if (value != 0) == nonzero {
                r.next = to(offset);
            }
        }
        Form::TestBranch { bit, nonzero, rt, offset } => {
            if (r.get(rt) >> bit & 1 != 0) == nonzero {
                r.next = to(offset);
            }
        }
        Form::RegisterBranch { authenticated: true, .. } => return not_emulated("an authenticated branch"),
        Form::RegisterBranch { kind, rn, .. } => {
            let target = r.get(rn);
            if kind == RegisterBranch::Call {
                r.set(LINK, r.next);
            }
            r.next = target;
        }
        Form::Address { page, rd, offset } => {
            let base = if page { pc & !0xfff } else { pc };
            r.set(rd, base.wrapping_add_signed(offset));
        }
        Form::Literal { kind, rt, offset } => match kind {
            Literal::Prefetch => {}
            Literal::Vector { .. } => return not_emulated("a vector load"),
            Literal::Word => {
                let value = memory::load(r, to(offset), 2)?;
                r.set(rt, value);
            }
            Literal::Double => {
                let value = memory::load(r, to(offset), 3)?;
                r.set(rt, value);
            }
            Literal::SignedWord => {
                let value = memory::load(r, to(offset), 2)?;
                r.set(rt, value as i32 as u64);
            }
        },
        Form::Hint(number) => return hint_without_effect(number),
        Form::Plain => return plain(word, r),
        Form::TimedWait => return not_emulated("wfet"),
        Form::SupervisorCall => return not_emulated("svc"),
        Form::LoadExclusive | Form::StoreExclusive | Form::ClearExclusive => {
            return not_emulated("an exclusive access");
        }
        Form::SignsWithPc => return not_emulated("pointer authentication"),
        Form::Prefix => return not_emulated("an SVE or SME instruction"),
        Form::LaterStage => return not_emulated("a copy in stages"),
        Form::Exception(name) => return not_emulated(name),
        Form::Privileged => return not_emulated("a privileged instruction"),
        Form::Unallocated => return Err(Reason::NotAnInstruction.into()),
    }
    Ok(())
}

fn hint_without_effect(number: u8) -> Result<(), EmulateError> {
    match number {
        // nop, yield, dgh, csdb, bti
        0 | 1 | 6 | 20 | 32 | 34 | 36 | 38 => Ok(()),
        number if hint::is_pointer_authentication(number) => not_emulated("pointer authentication"),
        _ => not_emulated("a hint with an effect"),
    }
}

fn plain(word: u32, r: &mut State<'_>) -> Result<(), EmulateError> {
    match word >> 25 & 0xf {
        0b1000 | 0b1001 => arithmetic::immediate(word, r),
        0b0101 | 0b1101 => arithmetic::register(word, r),
        0b0100 | 0b1100 => memory::access(word, r),
        0b0110 | 0b1110 => not_emulated("a vector load or store"),
        0b0111 | 0b1111 => not_emulated("a vector instruction"),
        0b1010 | 0b1011 => match r.thread.segment_base(false) {
            Some(pointer) if word & !31 == mrs_thread_pointer(0) => {
                r.set(field(word, 0, 5) as u8, pointer);
                Ok(())
            }
            _ => not_emulated("a system instruction"),
        },
        _ => not_emulated("an SVE or SME instruction"),
    }
}
