//! How detours call bodies ([`crate::body`]).
//!
//! ```text
//!     no block of the thread's own, or a child's ──▶ count
//!     sp moves; the registers as they were, what the detour itself has to keep, floats
//!     x21 = the thread's block
//!     for each body:
//!         the probe's operands, its extras at sp
//!         [the registers of the arguments]
//!         blr body
//!         overwrite what it has left below sp
//!     [the registers of the arguments, or of the result, as bodies have changed them]
//!     back to what was kept                                ── the call is skipped ──▶ ret
//! ```
//!
//! Bodies lose x16 and x17, the flags, and what calculations leave in `FPSR`; a call loses x30. All of these are kept here, and `FPCR` where any calculates. At
//! an entry the arguments are where the program has them: no detour touches x0 to x8. At a return they are loaded for each body.
//!
//! # Long vectors
//! Where vectors are longer than 128 bits (SVE), whatever writes to the first 128 bits makes zeros of the rest, and a system call may, too.
//! By the procedure call standard nothing is there at entries and returns. Anywhere else a body that does either ([`Run::vectors`]) is
//! refused.

use super::decode::hint;
use super::detour::Template;
use super::emit::instruction as a;
use super::frame::register::*;
use crate::body::{Change, Extra, LEFT_OUT, Run, Runs, change, changes};
use crate::detour::*;
use crate::passed::{MOST_PASSED, Passed, SIGNED, SIZE};
use crate::{Operand, Reason};

/// The general registers, in DWARF's order: x0 to x30, sp.
const REGISTERS: i32 = 0;
/// The flags, and `FPSR` behind them.
const FLAGS: i32 = 256;
/// The time of the entry, which is in a register that bodies lose.
const KEPT_ENTERED: i32 = 272;
/// `FPCR`.
const KEPT_CONTROL: i32 = 280;
/// The low halves of v0 to v7.
const FLOATS: i32 = 288;
/// What bodies may change.
const CHANGES: u32 = FLOATS as u32 + 64;
/// Bytes of all.
const AREA: i32 = CHANGES as i32 + changes(ARGUMENTS as usize) as i32;
// The stack pointer's alignment, and the reach of what loads the eight registers behind it.
const _: () = assert!(AREA % 16 == 0 && AREA + 7 * 8 <= 504);

/// How many registers hold arguments, from x0 on.
const ARGUMENTS: u32 = 8;

/// How far above the stack pointer a register was kept.
const fn kept(register: u32) -> u32 {
    REGISTERS as u32 + 8 * register
}

/// The registers of arguments, by two, and where bodies may change them.
fn arguments() -> impl Iterator<Item = (u32, i32)> {
    let first = (CHANGES + change(Change::Arguments)) as i32;
    (0..ARGUMENTS).step_by(2).zip((first..).step_by(16))
}

/// Where the bodies are called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Entry,
    Return,
}

impl Template<'_> {
    /// With the block, or the overflow block, in `BLOCK`. Changes `TEMPORARY`, `ADDRESS` and `STATUS`.
    pub(super) fn run_at_entry(&mut self) -> Emitted<()> {
        self.run_all(self.runs.entry, At::Entry)
    }

    /// With the block, the slot, the time and that of the entry in their registers. Changes `TEMPORARY`, `ADDRESS` and `STATUS`.
    pub(super) fn run_at_return(&mut self) -> Emitted<()> {
        self.run_all(self.runs.at_return, At::Return)
    }

    fn run_all(&mut self, runs: &[Run<'_>], at: At) -> Emitted<()> {
        self.comment("call bodies");
        self.stands_nowhere();
        let (unrun, done) = (self.code.label(), self.code.label());
        self.code.emit([a::ldr(TEMPORARY, BLOCK, BLOCK_ORIGIN)]);
        self.code.emit_to(a::cbz(TEMPORARY), unrun);
        self.code.load(TEMPORARY, self.layout.blocks);
        self.code.emit([a::eor(TEMPORARY, TEMPORARY, BLOCK)]);
        self.code.emit_to(a::cbz(TEMPORARY), unrun);
        let calculates = runs.iter().any(|run| run.calculates);
        let changes = Runs::takes(runs).has(Extra::Changes);
        self.keep(runs.iter().any(|run| run.takes.has(Extra::Floats)));
        if calculates {
            self.code.emit([
                a::mrs_float_control(ADDRESS),
                a::str(ADDRESS, SP, KEPT_CONTROL as u32),
                a::msr_float_control(31),
            ]);
        }
        if changes {
            self.offer_changes(at);
        }
        for run in runs {
            self.run(run, at)?;
        }
        if calculates {
            self.code.emit([a::ldr(ADDRESS, SP, KEPT_CONTROL as u32), a::msr_float_control(ADDRESS)]);
        }
        if changes {
            self.change(at);
        }
        self.put_back(at);
        self.code.bind(done);
        self.stands_in_frame();
        self.unrun(unrun, done);
        Ok(())
    }

    fn keep(&mut self, floats: bool) {
        self.code.emit([a::sub_immediate(SP, SP, AREA as u32)]);
        for register in (0..8).step_by(2) {
            self.code.emit([a::stp(register, register + 1, SP, kept(register) as i32)]);
        }
        self.code.emit([a::str(8, SP, kept(8))]);
        // Those that the detour has saved.
        for register in (9..17).step_by(2) {
            let saved = AREA + 8 * (register as i32 - 9);
            self.code.emit([
                a::ldp(ADDRESS, STATUS, SP, saved),
                a::stp(ADDRESS, STATUS, SP, kept(register) as i32),
            ]);
        }
        for register in (17..31).step_by(2) {
            self.code.emit([a::stp(register, register + 1, SP, kept(register) as i32)]);
        }
        self.code.emit([
            a::add_immediate(ADDRESS, SP, (AREA + self.saved.size()) as u32),
            a::str(ADDRESS, SP, kept(31)),
            a::mrs_flags(ADDRESS),
            a::mrs_float_flags(STATUS),
            a::stp(ADDRESS, STATUS, SP, FLAGS),
            a::str(ENTERED, SP, KEPT_ENTERED as u32),
        ]);
        if floats {
            for vector in (0..8).step_by(2) {
                self.code.emit([a::stp_d(vector, vector + 1, SP, FLOATS + 8 * vector as i32)]);
            }
        }
        self.code.emit([a::mov(BODY_BLOCK, BLOCK)]);
    }

    /// What bodies may change, as it is.
    fn offer_changes(&mut self, at: At) {
        let result = if at == At::Return { 0 } else { SP };
        self.code.emit([a::stp(SP, result, SP, CHANGES as i32)]);
        self.code.emit(arguments().map(|(register, place)| a::stp(register, register + 1, SP, place)));
    }

    /// Does what bodies have asked for. Changes `TEMPORARY`.
    fn change(&mut self, at: At) {
        let result = a::ldr(0, SP, CHANGES + change(Change::Result));
        if at == At::Return {
            return self.code.emit([result]);
        }
        let stays = self.code.label();
        self.code.emit([a::ldr(TEMPORARY, SP, CHANGES + change(Change::Skip))]);
        self.code.emit_to(a::cbz(TEMPORARY), stays);
        self.skip_call(result);
        self.code.bind(stays);
        self.stands_nowhere();
        self.code.emit(arguments().map(|(register, place)| a::ldp(register, register + 1, SP, place)));
    }

    /// Goes back to the caller. Where the function has signed its return address, that is undone as it would do it.
    fn skip_call(&mut self, result: u32) {
        let left_out = self.code.label();
        self.code.emit([a::sub_immediate(TEMPORARY, TEMPORARY, LEFT_OUT)]);
        self.code.emit_to(a::cbz(TEMPORARY), left_out);
        self.code.emit([result]);
        self.code.bind(left_out);
        self.put_back(At::Entry);
        self.restore();
        if let Some(signature) = self.signature.filter(|_| !self.is_stripped) {
            self.code.emit([a::hint(hint::authenticating(signature))]);
            self.stands_nowhere();
        }
        self.comment("home; the call is skipped");
        self.code.emit([a::RET]);
    }

    fn put_back(&mut self, at: At) {
        self.code.emit([
            a::ldp(ADDRESS, STATUS, SP, FLAGS),
            a::msr_flags(ADDRESS),
            a::msr_float_flags(STATUS),
            a::ldr(ENTERED, SP, KEPT_ENTERED as u32),
            a::ldr(17, SP, kept(17)),
            a::ldr(BODY_BLOCK, SP, kept(BODY_BLOCK)),
            a::ldr(LINK, SP, kept(LINK)),
        ]);
        if at == At::Return {
            self.code.emit([a::ldp(2, 3, SP, kept(2) as i32), a::ldr(4, SP, kept(4))]);
        }
        self.code.emit([a::add_immediate(SP, SP, AREA as u32)]);
    }

    /// Calls one body.
    fn run(&mut self, run: &Run<'_>, at: At) -> Emitted<()> {
        let takes_operands = run.takes.has(Extra::Operands) && at == At::Entry;
        let operands = if takes_operands { run.operands } else { &[] };
        if operands.len() > MOST_PASSED {
            return Err(Reason::NotImplemented);
        }
        let extras = (8 * run.takes.count()).next_multiple_of(16);
        let pushed = extras + 16 * operands.len() as u32;
        if pushed > 0 {
            self.code.emit([a::sub_immediate(SP, SP, pushed)]);
        }
        for (&operand, place) in operands.iter().zip((extras..).step_by(16)) {
            self.pass(operand, pushed)?;
            self.code.load(STATUS, operand.form().into());
            self.code.emit([a::stp(TEMPORARY, STATUS, SP, place as i32)]);
        }
        for (extra, place) in run.takes.iter().zip((0..).step_by(8)) {
            match extra {
                Extra::Site => self.code.load(TEMPORARY, run.site.into()),
                Extra::Time if at == At::Return => self.code.emit([a::mov(TEMPORARY, TIME)]),
                Extra::Time => self.code.emit([a::mrs_time(TEMPORARY)]),
                Extra::Entered if at == At::Return => {
                    self.code.emit([a::ldr(TEMPORARY, SP, pushed + KEPT_ENTERED as u32)]);
                }
                Extra::Entered => self.code.load(TEMPORARY, 0),
                Extra::Tid => self.thread_id(),
                Extra::StackPointer => self.code.emit([a::ldr(TEMPORARY, SP, pushed + kept(31))]),
                Extra::InstructionPointer => self.code.load(TEMPORARY, self.site),
                Extra::Registers => {
                    self.code.emit([a::add_immediate(TEMPORARY, SP, pushed + REGISTERS as u32)]);
                }
                Extra::Floats => self.code.emit([a::add_immediate(TEMPORARY, SP, pushed + FLOATS as u32)]),
                Extra::Operands => self.code.emit([a::add_immediate(TEMPORARY, SP, extras)]),
                Extra::Changes => self.code.emit([a::add_immediate(TEMPORARY, SP, pushed + CHANGES)]),
                // No instruction tells.
                Extra::Processor => return Err(Reason::NotImplemented),
            }
            self.code.emit([a::str(TEMPORARY, SP, place)]);
        }
        if at == At::Return {
            self.code.emit([a::mov(2, SLOT), a::fmov_from_d(3, 0), a::ldr(4, SP, pushed + kept(LINK))]);
        }
        self.code.load(TEMPORARY, run.body);
        // The body has put away where it returns to, just below. What leads into a detour would be taken for a context that comes back.
        self.code.emit([a::blr(TEMPORARY), a::stp_pre(31, 31, SP, -16)]);
        self.code.emit([a::add_immediate(SP, SP, 16 + pushed)]);
        Ok(())
    }

    /// `TEMPORARY` = the first word of an operand, with so many bytes below what was kept. Changes `STATUS`.
    fn pass(&mut self, operand: Passed, pushed: u32) -> Emitted<()> {
        let program = |register: u8| match u32::from(register) {
            register @ 0..=SP => Ok(pushed + kept(register)),
            _ => Err(Reason::NotImplemented),
        };
        match operand {
            Passed::Known(value) => self.code.load(TEMPORARY, value),
            Passed::Register { register, shift, width } => {
                // `%ah` is x86's.
                if shift > 0 {
                    return Err(Reason::NotImplemented);
                }
                self.code.emit([a::ldr(TEMPORARY, SP, program(register)?)]);
                let extend = if width & SIGNED != 0 { a::sbfx } else { a::ubfx };
                self.code.emit([extend(TEMPORARY, TEMPORARY, 0, 8 * u32::from(width & SIZE).clamp(1, 8))]);
            }
            Passed::Vector(number, _) => self.code.emit([a::fmov_from_d(TEMPORARY, number.into())]),
            Passed::Memory(Operand::At { address, .. }, _) => self.code.load(TEMPORARY, address),
            Passed::Memory(Operand::Memory { base, index, offset, .. }, _) => {
                self.code.emit([a::ldr(TEMPORARY, SP, program(base)?)]);
                if let Some((index, scale)) = index {
                    self.code.emit([
                        a::ldr(STATUS, SP, program(index)?),
                        a::add(TEMPORARY, TEMPORARY, STATUS, scale.into()),
                    ]);
                }
                self.code.load(STATUS, i64::from(offset) as u64);
                self.code.emit([a::add(TEMPORARY, TEMPORARY, STATUS, 0)]);
            }
            Passed::Memory(Operand::Register(_), _) => return Err(Reason::NotImplemented),
        }
        Ok(())
    }

    /// `TEMPORARY` = the thread's number, or 0. Changes `STATUS`.
    fn thread_id(&mut self) {
        let Some(offset) = self.layout.tid_offset else { return self.code.load(TEMPORARY, 0) };
        let none = self.code.label();
        self.code.emit([a::mrs_thread_pointer(TEMPORARY)]);
        self.code.emit_to(a::cbz(TEMPORARY), none);
        // Any distance, either way.
        self.code.load(STATUS, i64::from(offset) as u64);
        self.code.emit([a::add(TEMPORARY, TEMPORARY, STATUS, 0), a::ldr_w(TEMPORARY, TEMPORARY, 0)]);
        self.code.bind(none);
    }
}
