//! How detours call bodies ([`crate::body`]) in 64-bit mode.
//!
//! ```text
//!     r15 = the thread's block                                     ── a child's ──▶ count
//!     [take a level of the thread's stack for bodies, and go there ── none left ──▶ count]
//!     for each body:
//!         what its extras point to: operands, low halves of vector registers, all general registers
//!         its extras, the last one first
//!         [the registers of the arguments]
//!         call the body, by its absolute address in a register
//!         forget where it returned to
//!         drop all that was pushed
//!     [go back, and give the level back]
//! ```
//!
//! Where bodies change what the call does, the words by which they do lie below everything else while they run. At an entry the arguments are
//! loaded from there when all have run, or the call is skipped: registers are what they were, and the detour returns to the caller.
//!
//! At an entry the arguments are where the program has them, so none of their registers plays a role in the frame. What reading the clock
//! takes of them is put back from where it was saved. At a return they are loaded for each body.
//!
//! Where bodies have stacks of their own ([`Layout::stacks`]), a register that they keep holds the program's stack pointer, by which the frame is
//! found. What a detour does there is followed as the rest of it: [`super::frames`].
//!
//! An address in a detour that stays behind on the stack would be taken for a context that comes back: what a body's call has pushed is
//! overwritten once that has returned. Whoever is in a body has that address on his stack, and so nothing else needs to be
//! looked for when probes are taken out: what bodies and routines leave behind leads to nowhere.

use super::{
    detour::{ARGUMENTS, Asm, Template},
    emit::{GPR32, GPR64, at, number::*},
    follow::{ENTERED_AT, RETURNED_AT, SAVED_AT},
    frame::Frame,
    goroutine::ROOM,
    steps::{Stacked, read_clock},
};
use crate::body::{self, Change, Extra, LEFT_OUT, Run, Runs, Takes};
use crate::detour::*;
use crate::passed::{MOST_PASSED, Passed, SIGNED, SIZE};
use iced_x86::{Code, IcedError, Instruction, Register, code_asm::*};

/// The general registers in the order of DWARF, by their numbers in code.
const BY_DWARF: [usize; 16] = [RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8, R9, R10, R11, R12, R13, R14, R15];

const XMM: [AsmRegisterXmm; 16] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15];

/// `MXCSR` as a program starts: all exceptions are masked, and numbers are rounded to the nearest.
const MXCSR: i32 = 0x1f80;

/// Bytes in which the program's is kept.
const KEPT_ENVIRONMENT: i32 = 8;

/// How many vector registers [`Extra::Floats`] tells of.
const FLOATS: i32 = 8;

/// The bytes of [`Extra::Changes`].
const CHANGES: i32 = body::changes(ARGUMENTS.len()) as i32;

/// Where a word of it is.
const fn change(change: Change) -> i32 {
    body::change(change) as i32
}

/// What a body needs of the stack besides its own: what its extras point to, they themselves, the return address, and what is kept of numbers.
fn pushed_for(run: &Run<'_>) -> i32 {
    let takes = run.takes;
    let areas = [
        (Extra::Registers, 8 * BY_DWARF.len() as i32),
        (Extra::Floats, 8 * FLOATS),
        (Extra::Operands, 16 * MOST_PASSED as i32),
        (Extra::Changes, CHANGES),
    ];
    let areas: i32 = areas.iter().filter(|(extra, _)| takes.has(*extra)).map(|area| area.1).sum();
    let environment = if run.calculates { KEPT_ENVIRONMENT + 8 } else { 0 };
    environment + areas + 8 * takes.count() as i32 + 8
}

/// How much room the detour of a request needs on a goroutine's stack. Entry and exit ask for the same.
pub(super) fn room(request: &DetourRequest<'_>) -> i32 {
    // What the frame of a call with bodies saves more than others.
    const MORE_SAVED: i32 = 64;
    let Runs { entry, at_return } = request.runs;
    let below = |run: &Run<'_>| match request.layout.body_stacks() {
        BodyStacks::Programs => pushed_for(run) + i32::try_from(run.frame).unwrap_or(i32::MAX / 2),
        BodyStacks::Own => 0,
    };
    let of = |run: &Run<'_>| MORE_SAVED + below(run);
    ROOM + entry.iter().chain(at_return).map(of).max().unwrap_or(0)
}

/// What was there when the probe was hit, and where it is now.
struct Hit<'f> {
    /// At an entry, its frame.
    frame: Option<&'f Frame>,
    /// At a return.
    stacked: Stacked,
    /// A register that is nobody's.
    temporary: usize,
    /// One that holds the program's stack pointer where bodies have a stack of their own.
    base: usize,
}

impl Hit<'_> {
    /// How far above the program's stack pointer a register was saved.
    fn saved_at(&self, register: usize) -> Option<i32> {
        match self.frame {
            Some(frame) => frame.saved_at(register),
            None => SAVED_AT.iter().find(|saved| saved.0 == register).map(|saved| self.at_return(saved.1)),
        }
    }

    /// How far above the program's stack pointer so many words lie below where the return found it.
    fn at_return(&self, words: i32) -> i32 {
        // Which was saved first.
        self.stacked.result + 8 - 8 * words
    }

    /// How far above the program's stack pointer that was at the hit.
    fn stack_pointer(&self) -> i32 {
        match self.frame {
            Some(frame) => frame.depth(),
            // The return has popped its slot.
            None => self.stacked.slot + 8,
        }
    }
}

impl Template<'_> {
    /// With the thread's block in r15, which is its register in such a frame.
    pub(super) fn run_at_entry(&mut self, frame: &Frame) -> Asm {
        let ran = self.leave_out_children()?;
        let hit =
            Hit { frame: Some(frame), stacked: Stacked::above(0, 0), temporary: frame.entry, base: frame.x };
        self.switch_stack(&hit, ran)?;
        let changes = Runs::takes(self.request.runs.entry).has(Extra::Changes);
        self.pushed = 0;
        if changes {
            self.push_changes(&hit)?;
        }
        for run in self.request.runs.entry {
            self.run(run, &hit, Self::put_back_arguments)?;
        }
        if changes {
            self.change_call(frame, &hit)?;
        }
        self.switch_back(&hit)?;
        self.go_on(ran)
    }

    /// What bodies may change, as it is.
    fn push_changes(&mut self, hit: &Hit<'_>) -> Asm {
        for register in ARGUMENTS.into_iter().rev() {
            match hit.saved_at(register) {
                Some(saved) if hit.frame.is_some() => self.push_from(saved)?,
                _ => self.push(register)?,
            }
        }
        match hit.frame {
            Some(_) => self.push_zero()?,
            None => self.push_from(hit.at_return(1))?,
        }
        self.push_zero()
    }

    /// Does at an entry what bodies have asked for, and drops what they did it by.
    fn change_call(&mut self, frame: &Frame, hit: &Hit<'_>) -> Asm {
        let mut stays = self.asm.a.create_label();
        self.asm.a.cmp(qword_ptr(rsp + change(Change::Skip)), 0)?;
        self.asm.a.je(stays)?;
        let (pushed, base) = (self.pushed, self.base);
        self.skip_call(frame, hit)?;
        (self.pushed, self.base) = (pushed, base);
        self.asm.a.set_label(&mut stays)?;
        self.asm.a.zero_bytes()?;
        for (word, register) in (0..).zip(ARGUMENTS) {
            let changed = qword_ptr(rsp + change(Change::Arguments) + 8 * word);
            match hit.saved_at(register) {
                // From where it comes back to its register.
                Some(saved) => {
                    let saved = self.above(saved);
                    self.asm.a.mov(GPR64[hit.temporary], changed)?;
                    self.asm.a.mov(saved, GPR64[hit.temporary])?;
                }
                None => self.asm.a.mov(GPR64[register], changed)?,
            }
        }
        self.drop_changes()
    }

    /// Goes back to the caller. What it is given lies meanwhile below its return address, where nothing else is yet.
    fn skip_call(&mut self, frame: &Frame, hit: &Hit<'_>) -> Asm {
        const BELOW: i32 = 8;
        let kept = self.above(frame.depth() - BELOW);
        let was = hit.saved_at(RAX).map(|saved| self.above(saved));
        let result = GPR64[hit.temporary];
        let a = &mut self.asm.a;
        let [mut left_out, mut known] = [(); 2].map(|()| a.create_label());
        a.cmp(qword_ptr(rsp + change(Change::Skip)), LEFT_OUT as i32)?;
        a.je(left_out)?;
        a.mov(result, qword_ptr(rsp + change(Change::Result)))?;
        a.jmp(known)?;
        a.set_label(&mut left_out)?;
        match was {
            Some(was) => a.mov(result, was)?,
            None => a.mov(result, rax)?,
        }
        a.set_label(&mut known)?;
        a.mov(kept, result)?;
        self.drop_changes()?;
        self.switch_back(hit)?;
        frame.restore(&mut self.asm.a)?;
        self.asm.a.mov(rax, qword_ptr(rsp - BELOW))?;
        self.asm.a.ret()
    }

    fn drop_changes(&mut self) -> Asm {
        self.pushed -= CHANGES;
        self.asm.a.lea(rsp, qword_ptr(rsp + CHANGES))
    }

    /// As a late step of [`Template::return_step`]. `stacked`: what it is told.
    pub(super) fn run_at_return(&mut self, stacked: Stacked, last: bool) -> Asm {
        let hit = Hit { frame: None, stacked, temporary: RAX, base: R9 };
        self.asm.a.mov(r15, rdi)?;
        let entered = self.request.payload.followed.is_some_and(|followed| followed.needs().entered);
        if entered {
            self.asm.a.mov(qword_ptr(rsp + hit.at_return(ENTERED_AT)), r8)?;
        }
        let ran = self.leave_out_children()?;
        self.switch_stack(&hit, ran)?;
        let changes = Runs::takes(self.request.runs.at_return).has(Extra::Changes);
        self.pushed = 0;
        if changes {
            self.push_changes(&hit)?;
        }
        for run in self.request.runs.at_return {
            self.run(run, &hit, |template, hit, _| template.load_arguments(hit))?;
        }
        if changes {
            let result = self.above(hit.at_return(1));
            self.asm.a.mov(rax, qword_ptr(rsp + change(Change::Result)))?;
            self.asm.a.mov(result, rax)?;
            self.drop_changes()?;
        }
        self.switch_back(&hit)?;
        self.go_on(ran)?;
        if !last {
            let a = &mut self.asm.a;
            a.mov(rdi, r15)?;
            a.mov(rsi, qword_ptr(rsp + hit.at_return(RETURNED_AT)))?;
            if entered {
                a.mov(r8, qword_ptr(rsp + hit.at_return(ENTERED_AT)))?;
            }
        }
        Ok(())
    }

    /// A child's block has no origin, and calls no bodies: it counts what it would have called. To the label that comes back it goes on.
    fn leave_out_children(&mut self) -> Result<CodeLabel, IcedError> {
        let a = &mut self.asm.a;
        let labels @ [child, ran] = [a.create_label(), a.create_label()];
        a.cmp(at(R15, BLOCK_ORIGIN), 0)?;
        a.je(child)?;
        self.children.push(labels);
        Ok(ran)
    }

    /// Where bodies have stacks of their own, goes there; or off to be counted and on to `ran`, if the thread's is in use to its end.
    ///
    /// A handler that interrupts it leaves how much is in use as it was, and so what is read twice is the same.
    fn switch_stack(&mut self, hit: &Hit<'_>, ran: CodeLabel) -> Asm {
        if self.request.layout.body_stacks() == BodyStacks::Programs {
            return Ok(());
        }
        const END: i32 = 1 << STACK_SHIFT;
        let [level, levels] = [STACK_LEVEL, STACK_LEVEL * STACK_LEVELS].map(|bytes| bytes as i32);
        let (top, base) = (hit.temporary, hit.base);
        let a = &mut self.asm.a;
        let [full, mut switch] = [(); 2].map(|()| a.create_label());
        a.mov(GPR64[top], at(R15, BLOCK_STACK))?;
        a.add(at(top, STACK_USED), level)?;
        a.mov(GPR64[base], at(top, STACK_USED))?;
        a.cmp(GPR64[base], levels)?;
        a.ja(full)?;
        self.crowded.push((full, top, ran));
        a.sub(GPR64[top], GPR64[base])?;
        a.lea(GPR64[top], qword_ptr(GPR64[top] + (END + level - LEVEL_SWITCH as i32)))?;
        a.lea(GPR64[base], qword_ptr(switch))?;
        a.mov(qword_ptr(GPR64[top]), GPR64[base])?;
        a.mov(qword_ptr(GPR64[top] + (LEVEL_SWITCH - LEVEL_POINTER)), rsp)?;
        a.mov(GPR64[base], rsp)?;
        a.set_label(&mut switch)?;
        a.mov(rsp, GPR64[top])?;
        self.base = base;
        Ok(())
    }

    /// Back from there. Only then may others have the level.
    fn switch_back(&mut self, hit: &Hit<'_>) -> Asm {
        if self.request.layout.body_stacks() == BodyStacks::Programs {
            return Ok(());
        }
        let a = &mut self.asm.a;
        a.mov(rsp, GPR64[hit.base])?;
        a.mov(GPR64[hit.temporary], at(R15, BLOCK_STACK))?;
        a.sub(at(hit.temporary, STACK_USED), STACK_LEVEL as i32)?;
        self.base = RSP;
        Ok(())
    }

    /// So far above the program's stack pointer.
    pub(super) fn above(&self, offset: i32) -> AsmMemoryOperand {
        match self.base {
            RSP => qword_ptr(rsp + (offset + self.pushed)),
            base => qword_ptr(GPR64[base] + offset),
        }
    }

    fn go_on(&mut self, mut ran: CodeLabel) -> Asm {
        self.asm.a.set_label(&mut ran)?;
        self.asm.a.zero_bytes()
    }

    /// Last of all: where children count what they do not call, and others what they have no stack for.
    pub(super) fn count_children(&mut self) -> Asm {
        for [mut child, ran] in core::mem::take(&mut self.children) {
            self.asm.a.set_label(&mut child)?;
            self.asm.a.inc(at(R15, BLOCK_UNRUN))?;
            self.asm.a.jmp(ran)?;
        }
        for (mut full, stack, ran) in core::mem::take(&mut self.crowded) {
            self.asm.a.set_label(&mut full)?;
            self.asm.a.sub(at(stack, STACK_USED), STACK_LEVEL as i32)?;
            self.asm.a.inc(at(R15, BLOCK_UNRUN))?;
            self.asm.a.jmp(ran)?;
        }
        Ok(())
    }

    /// Calls one body. `arguments` puts these into their registers, once nothing else is done with any.
    fn run(
        &mut self,
        run: &Run<'_>,
        hit: &Hit<'_>,
        arguments: impl FnOnce(&mut Self, &Hit<'_>, Takes) -> Asm,
    ) -> Asm {
        let before = self.pushed;
        if run.calculates {
            self.push_environment()?;
        }
        let operands = self.push_operands(run, hit)?;
        let floats = self.push_floats(run)?;
        let registers = self.push_registers(run, hit)?;
        for extra in run.takes.iter().rev() {
            match extra {
                Extra::Site => self.push_constant(Code::Mov_r32_imm32, hit, run.site.into())?,
                Extra::Time => self.push_time(hit)?,
                Extra::Entered => self.push_entered(hit)?,
                Extra::Processor => self.push_processor()?,
                Extra::Tid => self.push_tid(hit)?,
                Extra::StackPointer => self.push_stack_pointer(hit)?,
                Extra::InstructionPointer => {
                    self.push_constant(Code::Mov_r64_imm64, hit, self.request.site.address)?;
                }
                Extra::Registers => self.push_address(hit, self.pushed - registers)?,
                Extra::Floats => self.push_address(hit, self.pushed - floats)?,
                Extra::Operands => self.push_address(hit, self.pushed - operands)?,
                Extra::Changes => self.push_address(hit, self.pushed - before)?,
            }
        }
        arguments(self, hit, run.takes)?;
        let temporary = hit.temporary;
        self.constant(Code::Mov_r64_imm64, temporary, run.body)?;
        let pushed = core::mem::replace(&mut self.pushed, before) - before;
        let a = &mut self.asm.a;
        a.call(GPR64[temporary])?;
        a.mov(qword_ptr(rsp - 8), 0)?;
        if run.calculates {
            a.ldmxcsr(dword_ptr(rsp + (pushed - KEPT_ENVIRONMENT)))?;
        }
        if pushed > 0 {
            a.lea(rsp, qword_ptr(rsp + pushed))?;
        }
        Ok(())
    }

    /// `to` = a constant, in the same number of bytes whatever it is.
    fn constant(&mut self, code: Code, to: usize, value: u64) -> Asm {
        let instruction = match code {
            Code::Mov_r32_imm32 => Instruction::with2(code, Register::from(GPR32[to]), value as u32)?,
            _ => Instruction::with2(code, Register::from(GPR64[to]), value)?,
        };
        self.asm.a.add_instruction(instruction)
    }

    /// First of all, pushes `MXCSR` as the program has it, and below it what a program starts with, which it becomes.
    fn push_environment(&mut self) -> Asm {
        let a = &mut self.asm.a;
        a.lea(rsp, qword_ptr(rsp - KEPT_ENVIRONMENT))?;
        a.stmxcsr(dword_ptr(rsp))?;
        a.push(MXCSR)?;
        a.ldmxcsr(dword_ptr(rsp))?;
        self.pushed += KEPT_ENVIRONMENT + 8;
        Ok(())
    }

    fn push(&mut self, register: usize) -> Asm {
        self.pushed += 8;
        self.asm.a.push(GPR64[register])
    }

    fn push_zero(&mut self) -> Asm {
        self.pushed += 8;
        self.asm.a.push(0)
    }

    /// Pushes what lies so far above the program's stack pointer.
    fn push_from(&mut self, above: i32) -> Asm {
        let from = self.above(above);
        self.pushed += 8;
        self.asm.a.push(from)
    }

    fn push_constant(&mut self, code: Code, hit: &Hit<'_>, value: u64) -> Asm {
        self.constant(code, hit.temporary, value)?;
        self.push(hit.temporary)
    }

    /// Pushes the address so far above the stack pointer.
    fn push_address(&mut self, hit: &Hit<'_>, above: i32) -> Asm {
        self.asm.a.lea(GPR64[hit.temporary], qword_ptr(rsp + above))?;
        self.push(hit.temporary)
    }

    /// What that was at the hit.
    fn push_stack_pointer(&mut self, hit: &Hit<'_>) -> Asm {
        let was = self.above(hit.stack_pointer());
        self.asm.a.lea(GPR64[hit.temporary], was)?;
        self.push(hit.temporary)
    }

    /// At a return it was read when that began. Else loses rax and rdx.
    fn push_time(&mut self, hit: &Hit<'_>) -> Asm {
        if hit.frame.is_none() {
            return self.push_from(hit.at_return(RETURNED_AT));
        }
        read_clock(&mut self.asm.a)?;
        self.push(RAX)
    }

    /// At an entry there is none.
    fn push_entered(&mut self, hit: &Hit<'_>) -> Asm {
        if hit.frame.is_some() {
            return self.push_constant(Code::Mov_r32_imm32, hit, 0);
        }
        self.push_from(hit.at_return(ENTERED_AT))
    }

    /// Loses rax, rcx and rdx.
    fn push_processor(&mut self) -> Asm {
        self.asm.a.rdtscp()?;
        self.push(RCX)
    }

    fn push_tid(&mut self, hit: &Hit<'_>) -> Asm {
        let to = GPR32[hit.temporary];
        match self.request.layout.tid_offset {
            Some(offset) => self.asm.a.mov(to, dword_ptr(offset).fs())?,
            None => self.asm.a.xor(to, to)?,
        }
        self.push(hit.temporary)
    }

    /// All registers as they were at the hit. How much was pushed then, tells where they lie.
    fn push_registers(&mut self, run: &Run<'_>, hit: &Hit<'_>) -> Result<i32, IcedError> {
        if run.takes.has(Extra::Registers) {
            for register in BY_DWARF.into_iter().rev() {
                match hit.saved_at(register) {
                    _ if register == RSP => self.push_stack_pointer(hit)?,
                    Some(saved) => self.push_from(saved)?,
                    None => self.push(register)?,
                }
            }
        }
        Ok(self.pushed)
    }

    fn push_floats(&mut self, run: &Run<'_>) -> Result<i32, IcedError> {
        if run.takes.has(Extra::Floats) {
            self.asm.a.lea(rsp, qword_ptr(rsp - 8 * FLOATS))?;
            self.pushed += 8 * FLOATS;
            for (n, vector) in (0..FLOATS).zip(XMM) {
                self.asm.a.movq(qword_ptr(rsp + 8 * n), vector)?;
            }
        }
        Ok(self.pushed)
    }

    /// What the probe's operands are, two words each. Loses rax and rdx.
    fn push_operands(&mut self, run: &Run<'_>, hit: &Hit<'_>) -> Result<i32, IcedError> {
        if let (true, Some(frame)) = (run.takes.has(Extra::Operands), hit.frame) {
            for &operand in run.operands.iter().take(MOST_PASSED).rev() {
                self.pushed += 8;
                self.asm.a.push(i32::from(operand.form()))?;
                self.pass(frame, operand)?;
                self.push(RAX)?;
            }
        }
        Ok(self.pushed)
    }

    /// rax = the first word of an operand. Loses rdx.
    fn pass(&mut self, frame: &Frame, operand: Passed) -> Asm {
        match operand {
            Passed::Known(value) => self.asm.a.mov(rax, value),
            Passed::Register { register, shift, width } => {
                self.fetch_register(frame, RAX, register.into())?;
                let a = &mut self.asm.a;
                if shift > 0 {
                    a.shr(rax, i32::from(shift))?;
                }
                match (width & SIZE, width & SIGNED != 0) {
                    (1, false) => a.movzx(eax, al),
                    (1, true) => a.movsx(rax, al),
                    (2, false) => a.movzx(eax, ax),
                    (2, true) => a.movsx(rax, ax),
                    (4, false) => a.mov(eax, eax),
                    (4, true) => a.movsxd(rax, eax),
                    _ => a.zero_bytes(),
                }
            }
            Passed::Vector(number, _) => self.asm.a.movq(rax, XMM[usize::from(number) % XMM.len()]),
            Passed::Memory(operand, _) => self.fetch_address(frame, operand),
        }
    }

    /// At an entry, what reading clocks and operands has lost.
    fn put_back_arguments(&mut self, hit: &Hit<'_>, takes: Takes) -> Asm {
        for register in lost_with(takes).filter(|register| ARGUMENTS.contains(register)) {
            if let Some(saved) = hit.saved_at(register) {
                let was = self.above(saved);
                self.asm.a.mov(GPR64[register], was)?;
            }
        }
        Ok(())
    }

    /// At a return, what [`Returned`](crate::body::Returned) says.
    fn load_arguments(&mut self, hit: &Hit<'_>) -> Asm {
        let [result, second, slot] =
            [hit.at_return(1), hit.at_return(3), hit.stacked.slot].map(|at| self.above(at));
        let a = &mut self.asm.a;
        a.mov(rdi, result)?;
        a.mov(rsi, second)?;
        a.lea(rdx, slot)?;
        a.movq(rcx, xmm0)?;
        a.mov(r8, slot)
    }
}

/// The registers that are lost to what extras are made from, at an entry.
pub(super) fn lost_with(takes: Takes) -> impl Iterator<Item = usize> {
    let clock = takes.has(Extra::Time) || takes.has(Extra::Processor) || takes.has(Extra::Operands);
    let all = [(RAX, clock), (RDX, clock), (RCX, takes.has(Extra::Processor))];
    all.into_iter().filter(|lost| lost.1).map(|lost| lost.0)
}

/// Registers that play roles in the frame of an entry with bodies, but for rax: those of the arguments play none.
pub(super) const ROLES: [usize; 5] = [RBX, R12, R13, R14, RBP];
