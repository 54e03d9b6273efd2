//! What an instruction does to saved registers and memory.
//!
//! Emulated are the branches, the address and literal instructions, hints without effect, and the integer
//! instructions and loads and stores that functions start with and mostly consist of. Not emulated, each with
//! its name as the reason: what needs the CPU's keys (pointer authentication), its monitors (exclusives,
//! atomics) or its vector registers, and ordered accesses.
//!
//! An instruction either takes effect wholly or, when memory faults, not at all.

mod arithmetic;
mod memory;

use super::decode::{Form, LENGTH, Literal, RegisterBranch, form, hint};
use crate::Reason;
use thiserror::Error;

/// A thread's general registers, as the kernel's `user_pt_regs` orders them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// x0 to x30.
    pub x: [u64; 31],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
    /// Processor state: N, Z, C and V in bits 31 to 28, BTYPE in bits 11 and 10.
    pub pstate: u64,
}

/// The memory of the thread.
pub trait Memory {
    /// Fills `bytes` from `address`.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Stores `bytes` at `address`, all or none.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// Memory that cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no access to memory at {address:#x}")]
pub struct Fault {
    /// The address.
    pub address: u64,
}

/// Why an instruction had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// It is not emulated.
    #[error(transparent)]
    NotEmulated(#[from] Reason),
    /// It would fault.
    #[error(transparent)]
    Fault(#[from] Fault),
}

fn not_emulated<T>(name: &'static str) -> Result<T, Failure> {
    Err(Failure::NotEmulated(Reason::NotEmulated(name)))
}

const N: u64 = 1 << 31;
const Z: u64 = 1 << 30;
const C: u64 = 1 << 29;
const V: u64 = 1 << 28;
const BTYPE: u64 = 3 << 10;

impl Registers {
    /// Register `number`; 31 is zero.
    pub fn get(&self, number: u8) -> u64 {
        self.x.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// Register `number`; 31 is the stack pointer.
    pub fn get_or_sp(&self, number: u8) -> u64 {
        self.x.get(usize::from(number)).copied().unwrap_or(self.sp)
    }

    fn set(&mut self, number: u8, value: u64) {
        if let Some(register) = self.x.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    fn set_or_sp(&mut self, number: u8, value: u64) {
        *self.x.get_mut(usize::from(number)).unwrap_or(&mut self.sp) = value;
    }

    /// Whether a condition code holds.
    pub fn holds(&self, condition: u8) -> bool {
        let is = |flag| self.pstate & flag != 0;
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

/// Does to `registers` and `memory` what `word` does, with the program counter at `registers.pc`.
pub fn emulate(word: u32, registers: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
    let mut next = *registers;
    next.pc = registers.pc.wrapping_add(LENGTH);
    // An emulated indirect branch does not check for a landing pad, as in the kernel's own simulation.
    next.pstate &= !BTYPE;
    step(word, registers.pc, &mut next, memory)?;
    *registers = next;
    Ok(())
}

/// Whether `word` is emulated.
pub fn supported(word: u32) -> Result<(), Reason> {
    /// Memory full of zeros.
    struct Zeros;
    impl Memory for Zeros {
        fn read(&mut self, _address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
            bytes.fill(0);
            Ok(())
        }
        fn write(&mut self, _address: u64, _bytes: &[u8]) -> Result<(), Fault> {
            Ok(())
        }
    }
    match emulate(word, &mut Registers::default(), &mut Zeros) {
        Err(Failure::NotEmulated(reason)) => Err(reason),
        _ => Ok(()),
    }
}

fn step(word: u32, pc: u64, r: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
    let to = |offset: i64| pc.wrapping_add_signed(offset);
    match form(word) {
        Form::Branch { link, offset } => {
            if link {
                r.x[30] = r.pc;
            }
            r.pc = to(offset);
        }
        Form::ConditionalBranch { condition, offset } => {
            if r.holds(condition) {
                r.pc = to(offset);
            }
        }
        Form::CompareBranch { wide, nonzero, rt, offset } => {
            let value = if wide { r.get(rt) } else { r.get(rt) & 0xffff_ffff };
            if (value != 0) == nonzero {
                r.pc = to(offset);
            }
        }
        Form::TestBranch { bit, nonzero, rt, offset } => {
            if (r.get(rt) >> bit & 1 != 0) == nonzero {
                r.pc = to(offset);
            }
        }
        Form::RegisterBranch { authenticated: true, .. } => return not_emulated("an authenticated branch"),
        Form::RegisterBranch { kind, rn, .. } => {
            let target = r.get(rn);
            if kind == RegisterBranch::Call {
                r.x[30] = r.pc;
            }
            r.pc = target;
        }
        Form::Address { page, rd, offset } => {
            let base = if page { pc & !0xfff } else { pc };
            r.set(rd, base.wrapping_add_signed(offset));
        }
        Form::Literal { kind, rt, offset } => match kind {
            Literal::Prefetch => {}
            Literal::Vector { .. } => return not_emulated("a vector load"),
            Literal::Word => r.set(rt, memory::load(memory, to(offset), 2)?),
            Literal::Double => r.set(rt, memory::load(memory, to(offset), 3)?),
            Literal::SignedWord => r.set(rt, memory::load(memory, to(offset), 2)? as i32 as u64),
        },
        Form::Hint(number) => return hint_without_effect(number),
        Form::Plain => return plain(word, r, memory),
        Form::TimedWait => return not_emulated("wfet"),
        Form::SupervisorCall => return not_emulated("svc"),
        Form::LoadExclusive | Form::StoreExclusive | Form::ClearExclusive => {
            return not_emulated("an exclusive access");
        }
        Form::SignsWithPc => return not_emulated("pointer authentication"),
        Form::Exception(name) => return not_emulated(name),
        Form::Privileged => return not_emulated("a privileged instruction"),
        Form::Unallocated => return Err(Reason::NotAnInstruction.into()),
    }
    Ok(())
}

fn hint_without_effect(number: u8) -> Result<(), Failure> {
    match number {
        // nop, yield, dgh, csdb, bti
        0 | 1 | 6 | 20 | 32 | 34 | 36 | 38 => Ok(()),
        number if hint::is_pointer_authentication(number) => not_emulated("pointer authentication"),
        _ => not_emulated("a hint with an effect"),
    }
}

fn plain(word: u32, r: &mut Registers, memory: &mut dyn Memory) -> Result<(), Failure> {
    match word >> 25 & 0xf {
        0b1000 | 0b1001 => arithmetic::immediate(word, r),
        0b0101 | 0b1101 => arithmetic::register(word, r),
        0b0100 | 0b1100 => memory::access(word, r, memory),
        0b0110 | 0b1110 => not_emulated("a vector load or store"),
        0b0111 | 0b1111 => not_emulated("a vector instruction"),
        0b1010 | 0b1011 => not_emulated("a system instruction"),
        _ => not_emulated("an SVE or SME instruction"),
    }
}
