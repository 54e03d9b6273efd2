//! How detours call bodies ([`crate::body`]).
//!
//! ```text
//!     no block of the thread's own, or a child's ──▶ count
//!     a frame below the detour's own: the registers as they were, what bodies lose, floats
//!     r30 = the thread's block
//!     the registers of the arguments
//!     for each body:
//!         the probe's operands, its extras behind the frame's header
//!         blrl
//!         overwrite where it has put away its return address
//!     [the registers of the arguments, or of the result, as bodies have changed them]
//!     back to what was kept                                ── the call is skipped ──▶ blr
//! ```
//!
//! Bodies lose r0, r11 and r12, cr0, XER and lr. r0, r12 and cr0 are in the detour's own frame. FPSCR, which is reached by a floating-point register alone,
//! is kept where any of them calculates.

use super::detour::{ARGUMENTS, Template};
use super::emit::*;
use super::follow::{ENTERED, NOW};
use crate::body::{self, Change, Extra, LEFT_OUT, Run, Runs, changes};
use crate::detour::*;
use crate::passed::{MOST_PASSED, Passed, SIGNED, SIZE};
use crate::{Operand, Reason};

/// The thread's block while a body runs ([`crate::body::Convention::block`]).
const BODY_BLOCK: Gpr = Gpr(30);

/// What calculates between bodies: these they lose.
const TEMPORARY: Gpr = R12;
const SECOND: Gpr = R11;

/// The floating-point register by which FPSCR is moved.
const MOVED_BY: u32 = 0;

/// Bytes of a frame's header, and where in it a function that is called saves its return address.
const HEADER: i16 = 32;
const RETURN_ADDRESS_OF_CALLEE: i16 = 16;

/// The n-th register that the program has, of those that a body is told: r0 to r31, lr.
const fn kept(register: u8) -> i16 {
    8 * register as i16
}
const LINK: u8 = 32;
/// XER, and what r11 was in the detour.
const KEPT_XER: i16 = kept(LINK) + 8;
const KEPT_R11: i16 = KEPT_XER + 8;
/// FPSCR, and the vector register that it is moved by.
const KEPT_FPSCR: i16 = KEPT_R11 + 8;
const KEPT_VECTOR: i16 = KEPT_FPSCR + 8;
/// The low halves of f1 to f8.
const FLOATS: i16 = KEPT_VECTOR + 16;
/// What bodies may change.
const CHANGES: i16 = FLOATS + 64;
/// Bytes of all.
const KEPT: i16 = CHANGES + changes(ARGUMENTS.len()) as i16;

/// Where the bodies are called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Entry,
    Return,
}

/// The frame in which the bodies of a site are called.
#[derive(Clone, Copy)]
struct Frame {
    /// Where operands are, behind as many extras as any body takes.
    operands: i16,
    /// Where registers are kept.
    kept: i16,
    size: i16,
}

impl Frame {
    fn of(runs: &[Run<'_>]) -> Emitted<Self> {
        let most = |count: fn(&Run<'_>) -> usize| runs.iter().map(count).max().unwrap_or(0);
        let extras = most(|run| run.takes.count() as usize).next_multiple_of(2);
        let operands = most(|run| run.operands.len());
        if operands > MOST_PASSED {
            return Err(Reason::NotImplemented);
        }
        let operands_at = HEADER + 8 * extras as i16;
        let kept = operands_at + 16 * operands as i16;
        Ok(Self { operands: operands_at, kept, size: (kept + KEPT + 15) & !15 })
    }

    /// Where a word is of what bodies may change.
    fn change(self, change: Change) -> i16 {
        self.kept + CHANGES + body::change(change) as i16
    }

    /// The registers of arguments, and where bodies may change them.
    fn arguments(self) -> impl Iterator<Item = (Gpr, i16)> {
        let registers = ARGUMENTS.into_iter().map(|number| Gpr(number.into()));
        registers.zip((self.change(Change::Arguments)..).step_by(8))
    }

    /// Where a register of the program is.
    fn register(self, number: u8) -> Emitted<i16> {
        if number < LINK { Ok(self.kept + kept(number)) } else { Err(Reason::NotImplemented) }
    }
}

impl Template<'_> {
    /// With the block, or the overflow block, in r12. Changes r0 and r8 to r10.
    pub(super) fn run_at_entry(&mut self) -> Emitted<()> {
        self.run_all(self.request.runs.entry, At::Entry)
    }

    /// The same, with the result where functions have it, and the caller's return address in lr.
    pub(super) fn run_at_return(&mut self) -> Emitted<()> {
        self.run_all(self.request.runs.at_return, At::Return)
    }

    fn run_all(&mut self, runs: &[Run<'_>], at: At) -> Emitted<()> {
        self.comment("call bodies");
        self.stands_nowhere();
        let [unrun, done] = [(); 2].map(|()| self.asm.label());
        self.asm.load(R9, R12, BLOCK_ORIGIN as i16);
        self.asm.compare_immediate(R9, 0);
        self.asm.branch_if(When::Equal, unrun);
        self.asm.load_constant(R9, self.request.layout.blocks);
        self.asm.compare(R9, R12);
        self.asm.branch_if(When::Equal, unrun);
        let frame = Frame::of(runs)?;
        let calculates = runs.iter().any(|run| run.calculates);
        let changes = Runs::takes(runs).has(Extra::Changes);
        self.keep_registers(frame, runs, at);
        if calculates {
            self.by_float(frame, |asm| {
                asm.read_float_status(MOVED_BY);
                asm.store_float(MOVED_BY, R1, frame.kept + KEPT_FPSCR);
                asm.clear_vector(MOVED_BY);
                asm.write_float_status(MOVED_BY);
            });
        }
        if changes {
            self.offer_changes(frame, at);
        }
        for run in runs {
            self.run(frame, run, at)?;
        }
        if calculates {
            self.by_float(frame, |asm| {
                asm.load_float(MOVED_BY, R1, frame.kept + KEPT_FPSCR);
                asm.write_float_status(MOVED_BY);
            });
        }
        if changes {
            self.change(frame, at);
        }
        self.put_back_registers(frame, at);
        self.asm.branch(done);
        self.asm.bind(unrun);
        self.comment("bodies that are not called");
        self.asm.add_offset(R10, R12, BLOCK_UNRUN);
        self.asm.increment(R10, R9);
        self.asm.bind(done);
        self.stands(FRAME);
        Ok(())
    }

    fn keep_registers(&mut self, frame: Frame, runs: &[Run<'_>], at: At) {
        let asks = |extra| runs.iter().any(|run| run.takes.has(extra));
        let all = asks(Extra::Registers) || runs.iter().any(|run| !run.operands.is_empty());
        self.asm.load_constant(R9, 0);
        self.asm.push_frame(frame.size, R9);
        for number in (0..LINK).filter(|number| all || ARGUMENTS.contains(number) || *number == 30) {
            let register = Gpr(number.into());
            let from = match self.place_of(register) {
                Some(place) => {
                    self.asm.load(R9, R1, frame.size + place);
                    R9
                }
                None if register == R1 => {
                    self.asm.addi(R9, R1, frame.size + FRAME);
                    R9
                }
                None => register,
            };
            self.asm.store(from, R1, frame.kept + kept(number));
        }
        self.asm.read_special(R9, LR);
        self.asm.store(R9, R1, frame.kept + kept(LINK));
        self.asm.read_special(R10, XER);
        self.asm.store(R10, R1, frame.kept + KEPT_XER);
        self.asm.store(R11, R1, frame.kept + KEPT_R11);
        if asks(Extra::Floats) {
            for (n, place) in (1..=8).zip((frame.kept + FLOATS..).step_by(8)) {
                self.asm.store_float(n, R1, place);
            }
        }
        self.asm.copy(BODY_BLOCK, R12);
        if at == At::Return {
            // As in [`crate::body::Returned`].
            self.asm.copy(R7, R9);
            self.asm.addi(R5, R1, frame.size + FRAME);
            self.asm.float_bits(R6, 1);
        }
        // The detour has changed these so far. What a body saves of them stays behind on the stack, and must not lead to a return point.
        for number in [8, 9, 10] {
            self.asm.load(Gpr(number.into()), R1, frame.kept + kept(number));
        }
    }

    /// What bodies may change, as it is. Changes `TEMPORARY`.
    fn offer_changes(&mut self, frame: Frame, at: At) {
        self.asm.load_constant(TEMPORARY, 0);
        self.asm.store(TEMPORARY, R1, frame.change(Change::Skip));
        let result = if at == At::Return { R3 } else { TEMPORARY };
        self.asm.store(result, R1, frame.change(Change::Result));
        for (register, place) in frame.arguments() {
            self.asm.store(register, R1, place);
        }
    }

    /// Does what bodies have asked for. Changes `TEMPORARY` and cr0.
    fn change(&mut self, frame: Frame, at: At) {
        if at == At::Return {
            return self.asm.load(R3, R1, frame.change(Change::Result));
        }
        let stays = self.asm.label();
        self.asm.load(TEMPORARY, R1, frame.change(Change::Skip));
        self.asm.compare_immediate(TEMPORARY, 0);
        self.asm.branch_if(When::Equal, stays);
        self.skip_call(frame);
        self.asm.bind(stays);
        self.stands_nowhere();
        for (register, place) in frame.arguments() {
            match self.place_of(register) {
                // From where it comes back to its register.
                Some(saved) => {
                    self.asm.load(TEMPORARY, R1, place);
                    self.asm.store(TEMPORARY, R1, frame.size + saved);
                }
                None => self.asm.load(register, R1, place),
            }
        }
    }

    /// Goes back to the caller.
    fn skip_call(&mut self, frame: Frame) {
        let left_out = self.asm.label();
        self.asm.compare_immediate(TEMPORARY, LEFT_OUT as i16);
        self.asm.branch_if(When::Equal, left_out);
        self.asm.load(R3, R1, frame.change(Change::Result));
        self.asm.bind(left_out);
        self.put_back_registers(frame, At::Entry);
        self.restore();
        self.comment("home; the call is skipped");
        self.asm.return_();
    }

    /// Moves FPSCR by a floating-point register, which has what it had again. Changes `TEMPORARY`.
    fn by_float(&mut self, frame: Frame, moved: impl FnOnce(&mut Asm)) {
        self.asm.addi(TEMPORARY, R1, frame.kept + KEPT_VECTOR);
        self.asm.store_vector(MOVED_BY, TEMPORARY);
        moved(&mut self.asm);
        self.asm.load_vector(MOVED_BY, TEMPORARY);
    }

    fn put_back_registers(&mut self, frame: Frame, at: At) {
        self.asm.load(R9, R1, frame.kept + KEPT_XER);
        self.asm.write_special(XER, R9);
        self.asm.load(R9, R1, frame.kept + kept(LINK));
        self.asm.write_special(LR, R9);
        self.asm.copy(R12, BODY_BLOCK);
        self.asm.load(BODY_BLOCK, R1, frame.kept + kept(30));
        self.asm.load(R11, R1, frame.kept + KEPT_R11);
        if at == At::Return {
            for number in [5, 6, 7] {
                self.asm.load(Gpr(number.into()), R1, frame.kept + kept(number));
            }
        }
        self.asm.addi(R1, R1, frame.size);
    }

    /// Calls one body.
    fn run(&mut self, frame: Frame, run: &Run<'_>, at: At) -> Emitted<()> {
        let takes_operands = run.takes.has(Extra::Operands) && at == At::Entry;
        let operands = if takes_operands { run.operands } else { &[] };
        for (&operand, place) in operands.iter().zip((frame.operands..).step_by(16)) {
            self.pass(operand, frame)?;
            self.asm.load_constant(SECOND, operand.form().into());
            self.asm.store(TEMPORARY, R1, place);
            self.asm.store(SECOND, R1, place + 8);
        }
        for (extra, place) in run.takes.iter().zip((HEADER..).step_by(8)) {
            match extra {
                Extra::Site => self.asm.load_constant(TEMPORARY, run.site.into()),
                Extra::Time if at == At::Return => self.asm.load(TEMPORARY, R1, frame.size + NOW),
                Extra::Time => self.asm.read_special(TEMPORARY, TIME_BASE),
                Extra::Entered if at == At::Return => self.asm.load(TEMPORARY, R1, frame.size + ENTERED),
                Extra::Entered => self.asm.load_constant(TEMPORARY, 0),
                Extra::Processor => self.processor(),
                Extra::Tid => self.thread_id(TEMPORARY),
                Extra::StackPointer => self.asm.addi(TEMPORARY, R1, frame.size + FRAME),
                Extra::InstructionPointer => {
                    self.asm.load_constant(TEMPORARY, self.request.site.address);
                }
                Extra::Registers => self.asm.addi(TEMPORARY, R1, frame.kept),
                Extra::Floats => self.asm.addi(TEMPORARY, R1, frame.kept + FLOATS),
                Extra::Operands => self.asm.addi(TEMPORARY, R1, frame.operands),
                Extra::Changes => self.asm.addi(TEMPORARY, R1, frame.change(Change::Skip)),
            }
            self.asm.store(TEMPORARY, R1, place);
        }
        self.asm.load_constant(TEMPORARY, run.body);
        self.asm.write_special(LR, TEMPORARY);
        self.asm.call_link();
        // What leads into a detour would be taken for a context that comes back, and a stack pointer for where one was saved.
        self.asm.load_constant(TEMPORARY, 0);
        self.asm.store(TEMPORARY, R1, RETURN_ADDRESS_OF_CALLEE);
        Ok(())
    }

    /// `TEMPORARY` = the first word of an operand. Changes `SECOND`.
    fn pass(&mut self, operand: Passed, frame: Frame) -> Emitted<()> {
        match operand {
            Passed::Known(value) => self.asm.load_constant(TEMPORARY, value),
            // Other bytes than the lowest have names on x86 alone.
            Passed::Register { shift: 1.., .. } => return Err(Reason::NotImplemented),
            Passed::Register { register, width, .. } => {
                self.asm.load(TEMPORARY, R1, frame.register(register)?);
                match (width & SIZE, width & SIGNED != 0) {
                    (8.., _) => {}
                    (size, true) => self.asm.extend_sign(TEMPORARY, TEMPORARY, size),
                    (size, false) => self.asm.extract(TEMPORARY, TEMPORARY, 0, 8 * u32::from(size).max(1)),
                }
            }
            Passed::Vector(number, _) => self.asm.float_bits(TEMPORARY, number.into()),
            Passed::Memory(Operand::At { address, .. }, _) => self.asm.load_constant(TEMPORARY, address),
            Passed::Memory(Operand::Memory { base, index, offset, .. }, _) => {
                self.asm.load(TEMPORARY, R1, frame.register(base)?);
                if let Some((index, scale)) = index {
                    self.asm.load(SECOND, R1, frame.register(index)?);
                    self.asm.shift_left(SECOND, SECOND, scale.into());
                    self.asm.add(TEMPORARY, TEMPORARY, SECOND);
                }
                self.asm.load_constant(SECOND, i64::from(offset) as u64);
                self.asm.add(TEMPORARY, TEMPORARY, SECOND);
            }
            Passed::Memory(Operand::Register(_), _) => return Err(Reason::NotImplemented),
        }
        Ok(())
    }

    /// `TEMPORARY` = the processor in bits 0 to 12, and its node above, which Linux writes into 16 bits each (`arch/powerpc/kernel/vdso.c`). Changes `SECOND`.
    fn processor(&mut self) {
        self.asm.read_special(TEMPORARY, PROCESSOR);
        self.asm.extract(SECOND, TEMPORARY, 16, 16);
        self.asm.shift_left(SECOND, SECOND, 12);
        self.asm.extract(TEMPORARY, TEMPORARY, 0, 12);
        self.asm.or(TEMPORARY, TEMPORARY, SECOND);
    }
}
