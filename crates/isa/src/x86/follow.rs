//! The call-paired return: reserving the return instance at the entry, and the way home.

use super::{
    detour::{Asm, Template},
    emit::{GPR32, GPR64, at, call_runtime, number::*},
    frame::{Frame, restore_flags},
    runtime::Routine,
    steps::{Stacked, read_clock},
};
use crate::detour::*;
use crate::payload::*;
use iced_x86::{Code, IcedError, code_asm::*};

/// What is saved where a call returns, in order: rax first, since it then holds the flags.
const SAVED: [AsmRegister64; 3] = [rax, rcx, rdx];
/// What is saved besides where a step needs the call: for its time, the block, the time of the entry. Behind them lie the flags.
const SAVED_FOR_CALL: [AsmRegister64; 3] = [rsi, rdi, r8];

/// What is saved behind those where bodies are called.
const SAVED_FOR_BODIES: [AsmRegister64; 2] = [r9, r15];
/// Behind them, for bodies: the times of the return and of the entry, which may be lost on the way.
const TIMES: usize = 2;

/// How far [`save`] lowers the stack pointer.
pub(super) fn depth(followed: &Followed) -> i32 {
    let call = if followed.needs().is_of_the_call() { SAVED_FOR_CALL.len() + 1 } else { 0 };
    let bodies = if followed.runs().is_some() { SAVED_FOR_BODIES.len() + TIMES } else { 0 };
    8 * (SAVED.len() + call + bodies) as i32
}

/// Where [`save`] has put registers for bodies: their numbers, and how many words below the stack pointer that it found.
pub(super) const SAVED_AT: [(usize, i32); 8] =
    [(RAX, 1), (RCX, 2), (RDX, 3), (RSI, 4), (RDI, 5), (R8, 6), (R9, 8), (R15, 9)];
/// The same for the time of the return.
pub(super) const RETURNED_AT: i32 = 10;
/// The same for that of the entry, which a step fills in.
pub(super) const ENTERED_AT: i32 = 11;

/// Where a call returns: saves the registers and flags that the steps take. rsi = the time, where they need the call.
pub(super) fn save(a: &mut CodeAssembler, followed: &Followed) -> Asm {
    SAVED.into_iter().try_for_each(|register| a.push(register))?;
    a.lahf()?;
    a.seto(al)?;
    if followed.needs().is_of_the_call() {
        SAVED_FOR_CALL.into_iter().try_for_each(|register| a.push(register))?;
        a.push(rax)?;
        if followed.runs().is_some() {
            SAVED_FOR_BODIES.into_iter().try_for_each(|register| a.push(register))?;
        }
        if followed.needs().time {
            read_clock(a)?;
            a.mov(rsi, rax)?;
        }
        if followed.runs().is_some() {
            a.lea(rsp, qword_ptr(rsp - 8 * TIMES as i32))?;
        }
        if followed.runs().is_some() && followed.needs().time {
            a.mov(qword_ptr(rsp + 8), rsi)?;
        }
    }
    Ok(())
}

/// Undoes [`save`].
pub(super) fn restore(a: &mut CodeAssembler, followed: &Followed) -> Asm {
    if followed.runs().is_some() {
        a.lea(rsp, qword_ptr(rsp + 8 * TIMES as i32))?;
        SAVED_FOR_BODIES.into_iter().rev().try_for_each(|register| a.pop(register))?;
    }
    if followed.needs().is_of_the_call() {
        a.pop(rax)?;
        SAVED_FOR_CALL.into_iter().rev().try_for_each(|register| a.pop(register))?;
    }
    restore_flags(a)?;
    SAVED.into_iter().rev().try_for_each(|register| a.pop(register))
}

/// Labels that `reserve` leaves to `not_followed`.
pub(super) struct Later {
    /// The instance is not at hand.
    taken: CodeLabel,
    /// An instance is found.
    claimed: CodeLabel,
}

impl Template<'_> {
    /// `block` = the shadow block of the page of the slot in `slot`, if it has that of its hash; or off to `missing`. Loses `page`.
    pub(super) fn shadow_block(&mut self, block: usize, page: usize, missing: CodeLabel) -> Asm {
        let layout = self.request.layout;
        let shadows = Routine::Shadows.address(self.request.runtime);
        let a = &mut self.asm.a;
        a.shr(GPR64[page], STACK_PAGE_SHIFT as i32)?;
        a.imul_3(GPR32[block], GPR32[page], HASH_FACTOR as i32)?;
        a.shr(GPR32[block], 32 - layout.return_bits as i32)?;
        a.imul_3(GPR64[block], GPR64[block], layout.block_size() as i32)?;
        self.asm.rip_relative(Code::Add_r64_rm64, GPR64[block], shadows)?;
        self.asm.a.cmp(at(block, SHADOW_TAG), GPR64[page])?;
        self.asm.a.jne(missing)
    }

    /// `block` = the instance of the slot in `slot` in its block. Loses `slot`.
    pub(super) fn instance(&mut self, block: usize, slot: usize) -> Asm {
        let a = &mut self.asm.a;
        let scale = 1 << (RETURN_SHIFT - 3);
        a.and(GPR32[slot], (1 << STACK_PAGE_SHIFT) - 8)?;
        a.lea(GPR64[block], qword_ptr(GPR64[block] + GPR64[slot] * scale + SHADOW_INSTANCES as i32))
    }

    fn identity(&self) -> Identity {
        self.request.payload.followed.map_or(Identity::Slot, |followed| followed.way.by())
    }

    /// `to` = what names the call whose return address is so far above the stack pointer: the address of its slot, or what stands for that of a
    /// goroutine's.
    pub(super) fn slot(&mut self, to: AsmRegister64, depth: i32) -> Asm {
        let by = self.identity();
        let a = &mut self.asm.a;
        match by {
            Identity::Slot => a.lea(to, qword_ptr(rsp + depth)),
            Identity::Goroutine => {
                a.mov(to, GOROUTINE_FACTOR)?;
                a.imul_2(to, r14)?;
                a.add(to, qword_ptr(r14 + GOROUTINE_STACK_END))?;
                a.sub(to, rsp)?;
                a.sub(to, depth)?;
                a.bts(to, GOROUTINE_BIT)
            }
        }
    }

    /// `instance` = that of the slot that is so far above the stack pointer, if its shadow block is at hand. Loses `page`.
    pub(super) fn instance_of_slot(
        &mut self,
        [instance, page]: [usize; 2],
        depth: i32,
        missing: CodeLabel,
    ) -> Asm {
        self.slot(GPR64[page], depth)?;
        self.shadow_block(instance, page, missing)?;
        // Where in its page it is.
        let by = self.identity();
        let a = &mut self.asm.a;
        match by {
            Identity::Slot => a.lea(GPR32[page], dword_ptr(rsp + depth))?,
            Identity::Goroutine => {
                a.mov(GPR32[page], dword_ptr(r14 + GOROUTINE_STACK_END))?;
                a.sub(GPR32[page], esp)?;
                a.sub(GPR32[page], depth)?;
            }
        }
        self.instance(instance, page)
    }

    /// The same by way of the runtime, which finds the instance of what `point` moves to r11; 0 where there is none, as the flags say.
    pub(super) fn older_instance(
        &mut self,
        depth: i32,
        point: impl FnOnce(&mut CodeAssembler) -> Asm,
    ) -> Asm {
        self.ask(Routine::Leave, RCX, |template| {
            template.slot(r10, depth + 16)?;
            point(&mut template.asm.a)
        })
    }

    /// `to` = what a routine of the runtime answers in r11 to `question` in r10 and r11, and the flags. Needs the red zone out of the way.
    fn ask(&mut self, routine: Routine, to: usize, question: impl FnOnce(&mut Self) -> Asm) -> Asm {
        self.asm.a.push(r10)?;
        self.asm.a.push(r11)?;
        question(self)?;
        let a = &mut self.asm.a;
        call_runtime(a, true, routine.address(self.request.runtime))?;
        a.mov(GPR64[to], r11)?;
        a.pop(r11)?;
        a.pop(r10)?;
        a.test(GPR64[to], GPR64[to])
    }

    /// Claims the return instance, with the return address in it, and leaves it in its register.
    pub(super) fn reserve(&mut self, frame: &Frame) -> Result<Later, IcedError> {
        let (scratch, slot, instance) = (frame.entry, frame.block, frame.x);
        let [taken, mut claimed] = [(); 2].map(|()| self.asm.a.create_label());
        self.asm.a.set_label(&mut self.labels.known)?;
        self.slot(GPR64[slot], frame.depth())?;
        self.asm.a.mov(GPR64[scratch], GPR64[slot])?;
        self.shadow_block(instance, scratch, taken)?;
        self.asm.a.mov(GPR32[scratch], GPR32[slot])?;
        self.instance(instance, scratch)?;
        self.asm.a.cmp(at(instance, RETURN_POINT), 0)?;
        self.asm.a.jne(taken)?;
        self.asm.a.set_label(&mut claimed)?;
        // What names a goroutine's call is no address.
        if self.identity() == Identity::Slot {
            let a = &mut self.asm.a;
            a.mov(GPR64[scratch], qword_ptr(GPR64[slot]))?;
            a.mov(at(instance, RETURN_ADDRESS), GPR64[scratch])?;
        }
        Ok(Later { taken, claimed })
    }

    /// Moves the return address into a return instance, and calls the displaced code.
    pub(super) fn follow(&mut self, frame: &Frame, followed: &Followed) -> Result<Later, IcedError> {
        let (scratch, instance) = (frame.entry, frame.x);
        let later = self.reserve(frame)?;
        let a = &mut self.asm.a;
        a.lea(GPR64[scratch], qword_ptr(self.labels.return_point))?;
        a.mov(at(instance, RETURN_POINT), GPR64[scratch])?;
        if followed.needs().entered {
            read_clock(a)?;
            a.mov(at(instance, RETURN_ENTERED), rax)?;
        }
        frame.restore(a)?;
        a.lea(rsp, qword_ptr(rsp + 8))?;
        a.call(self.labels.displaced)?;
        Ok(later)
    }

    /// The ways out of `reserve`: another instance, or none at all.
    pub(super) fn not_followed(&mut self, frame: &Frame, followed: &Followed, later: Later) -> Asm {
        let (slot, instance) = (frame.block, frame.x);
        let Later { mut taken, claimed } = later;
        let a = &mut self.asm.a;
        a.set_label(&mut taken)?;
        frame.skip_red_zone(a)?;
        self.ask(Routine::Claim, instance, |template| template.asm.a.mov(r10, GPR64[slot]))?;
        let a = &mut self.asm.a;
        frame.unskip_red_zone(a)?;
        a.jne(claimed)?;
        self.count_shared(followed.lost, instance)?;
        self.asm.a.set_label(&mut self.labels.plain)?;
        frame.restore(&mut self.asm.a)?;
        self.asm.a.jmp(self.labels.displaced)
    }

    /// From the return point to the second `ret`.
    ///
    /// Everything is saved: the caller may expect any register to be kept that the callee is known not to touch. There is
    /// no red zone: the caller has just made a call.
    pub(super) fn return_part(&mut self, followed: &Followed) -> Asm {
        let call = followed.needs().is_of_the_call();
        let depth = depth(followed);
        let stacked = Stacked::above(depth, 0);
        let [mut slow, mut known, mut counted, mut elsewhere, mut found, mut home] =
            [(); 6].map(|()| self.asm.a.create_label());

        let a = &mut self.asm.a;
        a.set_label(&mut self.labels.return_point)?;
        a.lea(rsp, qword_ptr(rsp - 8))?;
        save(a, followed)?;
        self.find_thread(RDX, RCX, slow)?;
        let a = &mut self.asm.a;
        a.set_label(&mut known)?;
        self.load_block(rdx, RDX, slow)?;
        followed.early().try_for_each(|step| self.return_step(step, RDX, stacked, false))?;
        let a = &mut self.asm.a;
        if call {
            a.mov(rdi, rdx)?;
        }
        a.set_label(&mut counted)?;
        self.instance_of_slot([RCX, RDX], depth, elsewhere)?;
        let a = &mut self.asm.a;
        a.lea(rdx, qword_ptr(self.labels.return_point))?;
        a.cmp(at(RCX, RETURN_POINT), rdx)?;
        a.jne(elsewhere)?;
        a.cmp(at(RCX, RETURN_OLDER), 0)?;
        a.jne(elsewhere)?;

        a.set_label(&mut found)?;
        a.mov(rdx, at(RCX, RETURN_ADDRESS))?;
        a.mov(qword_ptr(rsp + depth), rdx)?;
        if followed.needs().entered {
            a.mov(r8, at(RCX, RETURN_ENTERED))?;
        }
        a.mov(at(RCX, RETURN_POINT), 0)?;
        if call {
            a.test(rdi, rdi)?;
            a.je(home)?;
        }
        let mut late = followed.late().peekable();
        while let Some(step) = late.next() {
            self.return_step(step, RDI, stacked, late.peek().is_none())?;
        }
        let a = &mut self.asm.a;
        a.set_label(&mut home)?;
        a.zero_bytes()?;
        a.set_label(&mut self.labels.going_home)?;
        restore(a, followed)?;
        a.ret()?;

        a.set_label(&mut slow)?;
        self.resolve(RDX)?;
        self.asm.a.jne(known)?;
        // A thread without memory of its own.
        followed.early().try_for_each(|step| self.return_step_shared(step))?;
        let a = &mut self.asm.a;
        if call {
            a.xor(edi, edi)?;
        }
        a.jmp(counted)?;
        a.set_label(&mut elsewhere)?;
        let point = self.labels.return_point;
        self.older_instance(depth, |a| a.lea(r11, qword_ptr(point)))?;
        let a = &mut self.asm.a;
        a.jne(found)?;
        // The slot holds the way home.
        a.jmp(home)
    }
}
