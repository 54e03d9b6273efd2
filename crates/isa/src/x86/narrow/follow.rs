//! The call-paired return in 32-bit mode: as in [`super::super::follow`], with fewer registers.

use super::{Narrow, high, immediate, low};
use crate::detour::*;
use crate::payload::*;
use crate::x86::{
    detour::Asm,
    emit::{GPR32, call_runtime, number::*},
    frame::{Frame, restore_flags},
    runtime::Routine,
};
use iced_x86::code_asm::*;

/// What the return part saves, in order: eax first, since it then holds the flags.
const SAVED: [AsmRegister32; 3] = [eax, ecx, edx];
/// What it saves besides where a step needs the call: the block and its time. Behind them lie the flags, then the time of the entry.
const SAVED_FOR_CALL: [AsmRegister32; 3] = [ebx, esi, edi];

/// Labels that `follow` leaves to `not_followed`.
pub(super) struct Later {
    /// The instance is not at hand.
    taken: CodeLabel,
    /// An instance is found.
    claimed: CodeLabel,
}

impl Narrow<'_, '_> {
    /// `block` = the shadow block of the page of the slot in `page`, if it has that of its hash; or off to `missing`. Loses `page`.
    fn shadow_block(&mut self, block: usize, page: usize, missing: CodeLabel) -> Asm {
        let layout = self.0.request.layout;
        let a = self.a();
        a.shr(GPR32[page], STACK_PAGE_SHIFT as i32)?;
        a.imul_3(GPR32[block], GPR32[page], HASH_FACTOR as i32)?;
        a.shr(GPR32[block], 32 - layout.return_bits as i32)?;
        a.imul_3(GPR32[block], GPR32[block], layout.block_size() as i32)?;
        a.add(GPR32[block], immediate(layout.shadow_block(0)))?;
        a.cmp(low(block, SHADOW_TAG), GPR32[page])?;
        a.jne(missing)
    }

    /// `block` = the instance of the slot in `slot` in its block. Loses `slot`.
    fn instance(&mut self, block: usize, slot: usize) -> Asm {
        let a = self.a();
        let scale = 1 << (RETURN_SHIFT - 2);
        a.and(GPR32[slot], (1 << STACK_PAGE_SHIFT) - 4)?;
        a.lea(GPR32[block], dword_ptr(GPR32[block] + GPR32[slot] * scale + SHADOW_INSTANCES as i32))
    }

    /// Claims the return instance, moves the return address into it, and calls the displaced code.
    pub(super) fn follow(
        &mut self,
        frame: &Frame,
        followed: &Followed,
    ) -> Result<Later, iced_x86::IcedError> {
        let (scratch, slot, instance) = (frame.entry, frame.block, frame.x);
        let (displaced, point) = (self.0.labels.displaced, immediate(self.0.return_point));
        let [taken, mut claimed] = [(); 2].map(|()| self.a().create_label());
        self.0.asm.a.set_label(&mut self.0.labels.known)?;
        self.a().lea(GPR32[slot], dword_ptr(esp + frame.depth()))?;
        self.a().mov(GPR32[scratch], GPR32[slot])?;
        self.shadow_block(instance, scratch, taken)?;
        self.a().mov(GPR32[scratch], GPR32[slot])?;
        self.instance(instance, scratch)?;
        let a = self.a();
        a.cmp(low(instance, RETURN_POINT), 0)?;
        a.jne(taken)?;
        a.set_label(&mut claimed)?;
        a.mov(GPR32[scratch], dword_ptr(GPR32[slot]))?;
        a.mov(low(instance, RETURN_ADDRESS), GPR32[scratch])?;
        a.mov(GPR32[scratch], point)?;
        a.mov(low(instance, RETURN_POINT), GPR32[scratch])?;
        if followed.needs().entered {
            a.rdtsc()?;
            a.mov(low(instance, RETURN_ENTERED), eax)?;
            a.mov(high(instance, RETURN_ENTERED), edx)?;
        }
        frame.restore(a)?;
        a.lea(esp, dword_ptr(esp + 4))?;
        a.call(displaced)?;
        Ok(Later { taken, claimed })
    }

    /// The ways out of `follow`: another instance, or none at all.
    pub(super) fn not_followed(&mut self, frame: &Frame, followed: &Followed, later: Later) -> Asm {
        let (slot, instance) = (frame.block, frame.x);
        let claim = Routine::Claim.address(self.0.request.runtime);
        let Later { mut taken, claimed } = later;
        let a = self.a();
        a.set_label(&mut taken)?;
        // eax may hold the flags, or be one of the two.
        a.push(eax)?;
        a.mov(eax, GPR32[slot])?;
        call_runtime(a, false, claim)?;
        if instance == RAX {
            a.lea(esp, dword_ptr(esp + 4))?;
        } else {
            a.mov(GPR32[instance], eax)?;
            a.pop(eax)?;
        }
        a.test(GPR32[instance], GPR32[instance])?;
        a.jne(claimed)?;
        self.count_shared(followed.lost)?;
        self.0.asm.a.set_label(&mut self.0.labels.plain)?;
        frame.restore(self.a())?;
        let displaced = self.0.labels.displaced;
        self.a().jmp(displaced)
    }

    /// From the return point to the second `ret`.
    ///
    /// Everything is saved: the caller may expect any register to be kept that the callee is known not to touch. Where a
    /// step needs the call, ebx is the block and edi:esi the time.
    pub(super) fn return_part(&mut self, followed: &Followed) -> Asm {
        let call = followed.needs().is_of_the_call();
        let depth = 4 * (SAVED.len() + if call { SAVED_FOR_CALL.len() + 3 } else { 0 }) as i32;
        let [mut slow, mut known, mut counted, mut elsewhere, mut found, mut home] =
            [(); 6].map(|()| self.a().create_label());

        self.0.asm.a.set_label(&mut self.0.labels.return_point)?;
        let point = immediate(self.0.return_point);
        let a = self.a();
        a.lea(esp, dword_ptr(esp - 4))?;
        SAVED.into_iter().try_for_each(|register| a.push(register))?;
        a.lahf()?;
        a.seto(al)?;
        if call {
            SAVED_FOR_CALL.into_iter().try_for_each(|register| a.push(register))?;
            a.push(eax)?;
            a.lea(esp, dword_ptr(esp - 8))?;
            a.rdtsc()?;
            a.mov(esi, eax)?;
            a.mov(edi, edx)?;
        }
        self.find_thread(RDX, RCX, slow)?;
        let a = self.a();
        a.set_label(&mut known)?;
        self.load_block(edx, RDX, slow)?;
        followed.early().try_for_each(|step| self.return_step(step, RDX, depth, false))?;
        let a = self.a();
        if call {
            a.mov(ebx, edx)?;
        }
        a.set_label(&mut counted)?;
        a.lea(edx, dword_ptr(esp + depth))?;
        self.shadow_block(RCX, RDX, elsewhere)?;
        self.a().lea(edx, dword_ptr(esp + depth))?;
        self.instance(RCX, RDX)?;
        let a = self.a();
        a.mov(edx, point)?;
        a.cmp(low(RCX, RETURN_POINT), edx)?;
        a.jne(elsewhere)?;
        a.cmp(low(RCX, RETURN_OLDER), 0)?;
        a.jne(elsewhere)?;

        a.set_label(&mut found)?;
        a.mov(edx, low(RCX, RETURN_ADDRESS))?;
        a.mov(dword_ptr(esp + depth), edx)?;
        if call {
            a.mov(eax, low(RCX, RETURN_ENTERED))?;
            a.mov(edx, high(RCX, RETURN_ENTERED))?;
            a.mov(dword_ptr(esp), eax)?;
            a.mov(dword_ptr(esp + 4), edx)?;
        }
        a.mov(low(RCX, RETURN_POINT), 0)?;
        if call {
            a.test(ebx, ebx)?;
            a.je(home)?;
        }
        let mut late = followed.late().peekable();
        while let Some(step) = late.next() {
            self.return_step(step, RBX, depth, late.peek().is_none())?;
        }
        self.a().set_label(&mut home)?;
        self.a().zero_bytes()?;
        self.0.asm.a.set_label(&mut self.0.labels.going_home)?;
        let a = self.a();
        if call {
            a.lea(esp, dword_ptr(esp + 8))?;
            a.pop(eax)?;
            SAVED_FOR_CALL.into_iter().rev().try_for_each(|register| a.pop(register))?;
        }
        restore_flags(a)?;
        SAVED.into_iter().rev().try_for_each(|register| a.pop(register))?;
        a.ret()?;

        a.set_label(&mut slow)?;
        self.resolve(RDX)?;
        self.a().jne(known)?;
        // A thread without memory of its own.
        followed.early().try_for_each(|step| self.return_step_shared(step))?;
        let leave = Routine::Leave.address(self.0.request.runtime);
        let a = self.a();
        if call {
            a.xor(ebx, ebx)?;
        }
        a.jmp(counted)?;
        a.set_label(&mut elsewhere)?;
        a.push(eax)?;
        a.lea(eax, dword_ptr(esp + (depth + 4)))?;
        a.mov(edx, point)?;
        call_runtime(a, false, leave)?;
        a.mov(ecx, eax)?;
        a.pop(eax)?;
        a.test(ecx, ecx)?;
        a.jne(found)?;
        // The slot holds the way home.
        a.jmp(home)
    }
}
