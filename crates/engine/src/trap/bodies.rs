//! Which bodies of a script run at a trap, and what do they see? The engine knows no script: an [`Interpreter`] runs them, which whoever made
//! the script brings along. The keeper calls it, as a forked process that has all of it in memory.
//!
//! The thread that was hit stands, and its registers and memory are read from outside. In memory, the interpreter has what it would have in
//! the target: the script's shared part, and the part of one block, which is the keeper's own.

use super::numbers::argument;
use super::returns::Returns;
use crate::script::{AT_RETURN, Clauses};
use crate::{Region, target};
use std::fmt;
use trapless_isa::Machine;
use trapless_isa::Operand;
use trapless_isa::body::Convention;
use trapless_isa::passed::{FLOAT, Passed, SIZE, extended};
use trapless_process::{Process, Registers, RemoteAddr, Tid, page_size, trace::Tracer};

/// Runs bodies of a script for threads that stand at a trap.
pub trait Interpreter: fmt::Debug + Send + Sync {
    /// Why it does not run a body for threads of this machine. The text completes "there is no probe that traps, as …".
    fn refuses(&self, body: u16, machine: Machine) -> Option<&'static str>;

    /// Runs a body once. Meanwhile the thread stands, and so do all others that are hit: it must come to an end soon. A panic is counted with
    /// what was not run ([`Unrun`](crate::Unrun)).
    fn run(&self, body: u16, memory: &TrapMemory<'_>, hit: &TrapHit<'_>);
}

/// Where the keeper runs bodies.
#[derive(Clone, Copy, Debug)]
pub struct TrapMemory<'r> {
    /// All shared memory of the session: offsets are from its start.
    pub region: &'r Region,
    /// Where the script's shared part begins.
    pub shared: u64,
    /// Where the script's part of the keeper's own block begins. Nobody else writes to it, but for the tool, which takes messages out.
    pub own: u64,
}

/// What runs at a site that traps.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrapBodies {
    /// At the hit, each with what it is given of a USDT probe's operands.
    pub entry: Vec<(u16, Vec<Passed>)>,
    /// At the return.
    pub at_return: Vec<u16>,
    /// The number of the site that bodies are told.
    pub site: u32,
}

impl TrapBodies {
    pub fn of(clauses: &Clauses<'_>) -> Self {
        let operands = clauses.operands.unwrap_or_default();
        let given = |index: usize| operands.get(index).cloned().unwrap_or_default();
        Self {
            entry: clauses.entry.iter().zip(0..).map(|(clause, index)| (clause.body, given(index))).collect(),
            at_return: clauses.at_return.iter().map(|clause| clause.body).collect(),
            site: clauses.site,
        }
    }
}

/// When a body runs.
#[derive(Clone, Copy)]
pub(super) enum Moment<'a> {
    /// At the hit, with what is known of calls under way.
    Entry(&'a Returns),
    /// At the return: clock ticks at the entry, and where the call returns to.
    Return { entered: u64, home: u64 },
}

/// A thread that stands at a hit.
pub struct TrapHit<'a> {
    process: &'a Process,
    tracer: &'a Tracer<'a>,
    standing: Tid,
    registers: &'a Registers,
    moment: Moment<'a>,
    operands: &'a [Passed],
    /// The number of the site that bodies are told, with [`AT_RETURN`] at a return.
    pub site: u32,
    /// The thread's number, as its own process knows it.
    pub tid: u32,
    /// Clock ticks when it was found standing.
    pub time: u64,
    /// Address of the probe.
    pub instruction: u64,
}

impl fmt::Debug for TrapHit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrapHit").field("site", &self.site).field("tid", &self.tid).finish_non_exhaustive()
    }
}

impl<'a> TrapHit<'a> {
    pub(super) fn new(
        tracer: &'a Tracer<'a>,
        (standing, tid): (Tid, u32),
        registers: &'a Registers,
        moment: Moment<'a>,
        (instruction, site): (u64, u32),
        time: u64,
    ) -> Self {
        let site = site | if matches!(moment, Moment::Return { .. }) { AT_RETURN } else { 0 };
        let process = tracer.process();
        Self { process, tracer, standing, registers, moment, operands: &[], site, tid, time, instruction }
    }

    /// The same where a body is given these operands of a USDT probe.
    pub(super) fn with_operands(self, operands: &'a [Passed]) -> Self {
        Self { operands, ..self }
    }

    /// A general register by its place among [those that bodies are told](Convention::registers), as it was at the hit; 0 where there is no
    /// such register.
    pub fn register(&self, number: u8) -> u64 {
        match self.convention() {
            Some(convention) if convention.link == Some(number) => self.link(),
            _ => self.registers.by_dwarf(number),
        }
    }

    fn convention(&self) -> Option<&'static Convention> {
        Convention::of(target::isa(self.process).machine())
    }

    /// The register in which the thread has a return address at the entry of a function.
    fn link(&self) -> u64 {
        self.registers.general(target::isa(self.process).facts().link_register)
    }

    /// An integer argument of the function that was entered, from 0 on; 0 where it cannot be read.
    pub fn argument(&self, number: u8) -> u64 {
        let place = target::isa(self.process).facts().arguments;
        argument(self.process, self.registers, place, number.into()).unwrap_or(0)
    }

    /// A word of what the function returns in registers for integers: 0 or 1.
    pub fn result(&self, word: u8) -> u64 {
        self.registers.returned(word)
    }

    /// The low 64 bits of one of the registers that functions have floating-point arguments in, from 0 on; 0 for a thread in 32-bit mode.
    pub fn float(&self, number: u8) -> u64 {
        let first = self.convention().map_or(0, |convention| convention.first_float);
        self.vector(first + number)
    }

    /// The same of a vector register by its number.
    fn vector(&self, number: u8) -> u64 {
        match self.registers.is_32bit() {
            true => 0,
            // One that was killed has none.
            false => self.tracer.vector(self.standing, number).unwrap_or(0),
        }
    }

    /// Clock ticks at the call's entry; at the hit itself 0.
    pub fn entered(&self) -> u64 {
        match self.moment {
            Moment::Entry(_) => 0,
            Moment::Return { entered, .. } => entered,
        }
    }

    /// Address of the stack slot of the return address, at the entry of a function and at its return, which is followed only where there is one;
    /// elsewhere the stack pointer.
    pub fn frame(&self) -> u64 {
        match self.moment {
            Moment::Entry(_) => self.registers.sp_value(),
            Moment::Return { .. } => self.registers.sp_value().wrapping_sub(self.process.word_size() as u64),
        }
    }

    /// Where the call returns to, whoever has replaced that for a while; 0 where it cannot be read.
    pub fn return_address(&self) -> u64 {
        match self.moment {
            Moment::Return { home, .. } => home,
            Moment::Entry(_) if target::isa(self.process).facts().has_link_register() => self.link(),
            Moment::Entry(returns) => returns.home_of(self.process, self.frame()).unwrap_or(0),
        }
    }

    /// Address of the thread's control block.
    pub fn thread_pointer(&self) -> u64 {
        self.registers.thread_pointer().0
    }

    /// Reads memory as the thread would, and gives how many bytes there were ahead of the first that is not there.
    pub fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let page = page_size();
        if self.process.load(RemoteAddr(address), into).is_ok() {
            return into.len();
        }
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let piece = (into.len() - done).min((page - at % page) as usize);
            if self.process.load(RemoteAddr(at), &mut into[done..done + piece]).is_err() {
                break;
            }
            done += piece;
        }
        done
    }

    /// What the body is given of the operand with this index in what it asks for: an integer extended as the note says, or the bits of a
    /// double. `None` where it cannot be read.
    pub fn operand(&self, index: usize) -> Option<u64> {
        let (word, width) = match *self.operands.get(index)? {
            Passed::Known(value) => return Some(value),
            Passed::Register { register, shift, width } => (self.registers.general(register) >> shift, width),
            Passed::Vector(number, width) => (self.vector(number), width),
            Passed::Memory(operand, width) => (self.load(operand)?, width),
        };
        Some(match (width & FLOAT != 0, width & SIZE) {
            (true, 4) => f64::from(f32::from_bits(word as u32)).to_bits(),
            (true, _) => word,
            (false, _) => extended(word, width),
        })
    }

    fn load(&self, operand: Operand) -> Option<u64> {
        super::numbers::operand_of(self.process, self.registers, operand)
    }

    /// The thread's name, filled up with zeros. One that was killed has none.
    pub fn name(&self) -> [u8; 16] {
        self.process.thread_name(self.standing).unwrap_or_default()
    }

    /// The processor that it ran on last.
    pub fn processor(&self) -> u64 {
        self.process.thread_processor(self.standing).unwrap_or(0)
    }
}
