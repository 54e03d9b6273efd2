//! The call-paired return in 32-bit mode: as in [`super::super::follow`], with fewer registers.

use super::{Narrow, count, high, low};
use crate::detour::*;
use crate::x86::{
    detour::Asm,
    emit::{GPR32, number::*},
    frame::{Frame, restore_flags},
    runtime::Routine,
};
use iced_x86::code_asm::*;

/// What the return part saves, in order: eax first, since it then holds the flags.
const SAVED: [AsmRegister32; 3] = [eax, ecx, edx];
/// What it saves besides when it reads the clock; behind them lie the flags, then the time of the entry.
const SAVED_WITH_CLOCK: [AsmRegister32; 3] = [ebx, esi, edi];

/// Labels that `follow` leaves to `not_followed`.
pub(super) struct Later {
    /// The instance's first place is taken.
    taken: CodeLabel,
    /// An instance is found.
    reserved: CodeLabel,
    /// The slot is the thread's highest so far.
    higher: CodeLabel,
    /// That is known.
    known: CodeLabel,
}

impl Narrow<'_, '_> {
    fn return_mask(&self) -> i32 {
        ((1i32 << self.0.request.layout.return_bits) - 1) << RETURN_SHIFT
    }

    /// Reserves a return instance, moves the return address into it, and calls the displaced code.
    pub(super) fn follow(
        &mut self,
        frame: &Frame,
        ret: &ReturnActions,
    ) -> Result<Later, iced_x86::IcedError> {
        let mask = self.return_mask();
        let displaced = self.0.labels.displaced;
        let (table, slot, instance) = (frame.entry, frame.block, frame.x);
        let a = self.a();
        let [taken, mut reserved, higher, mut known] = [(); 4].map(|()| a.create_label());
        a.lea(GPR32[slot], dword_ptr(esp + frame.depth()))?;
        a.cmp(low(table, THREAD_HIGHEST), GPR32[slot])?;
        a.jb(higher)?;
        a.set_label(&mut known)?;
        a.mov(GPR32[table], low(table, THREAD_RETURNS))?;
        a.lea(GPR32[instance], dword_ptr(GPR32[slot] + GPR32[slot] * 1))?;
        a.and(GPR32[instance], mask)?;
        a.add(GPR32[instance], GPR32[table])?;
        a.cmp(low(instance, RETURN_SLOT), 0)?;
        a.jne(taken)?;
        a.set_label(&mut reserved)?;
        a.mov(low(instance, RETURN_SLOT), GPR32[slot])?;
        a.mov(GPR32[table], dword_ptr(GPR32[slot]))?;
        a.mov(low(instance, RETURN_ADDRESS), GPR32[table])?;
        if ret.times() {
            a.rdtsc()?;
            a.mov(low(instance, RETURN_ENTERED), eax)?;
            a.mov(high(instance, RETURN_ENTERED), edx)?;
        }
        frame.restore(a)?;
        a.lea(esp, dword_ptr(esp + 4))?;
        a.call(displaced)?;
        Ok(Later { taken, reserved, higher, known })
    }

    /// The ways out of `follow`: another place for the instance, or none at all.
    pub(super) fn not_followed(&mut self, frame: &Frame, ret: &ReturnActions, later: Later) -> Asm {
        let (table, slot, instance) = (frame.entry, frame.block, frame.x);
        let claim = Routine::Claim.address(self.0.request.runtime);
        let Later { mut taken, reserved, mut higher, known } = later;
        let a = self.a();
        a.set_label(&mut higher)?;
        a.mov(low(table, THREAD_HIGHEST), GPR32[slot])?;
        a.jmp(known)?;
        a.set_label(&mut taken)?;
        // eax may hold the flags, or be one of the two.
        a.push(eax)?;
        a.push(edx)?;
        a.push(GPR32[slot])?;
        a.push(GPR32[table])?;
        a.pop(edx)?;
        a.pop(eax)?;
        a.call(claim)?;
        a.mov(GPR32[instance], eax)?;
        for (number, register) in [(RDX, edx), (RAX, eax)] {
            if number == instance {
                a.lea(esp, dword_ptr(esp + 4))?;
            } else {
                a.pop(register)?;
            }
        }
        a.test(GPR32[instance], GPR32[instance])?;
        a.jne(reserved)?;
        self.count_shared(ret.lost)?;
        self.0.asm.a.set_label(&mut self.0.labels.plain)?;
        frame.restore(self.a())?;
        let displaced = self.0.labels.displaced;
        self.a().jmp(displaced)
    }

    /// From the return point to the second `ret`.
    ///
    /// Everything is saved: the caller may expect any register to be kept that the callee is known not to touch. With the
    /// clock, ebx is the block and edi:esi the time.
    pub(super) fn return_part(&mut self, ret: &ReturnActions) -> Asm {
        let mask = self.return_mask();
        let clock = ret.times();
        let depth = 4 * (SAVED.len() + if clock { SAVED_WITH_CLOCK.len() + 3 } else { 0 }) as i32;
        let [mut slow, mut known, mut elsewhere, mut found, mut home] =
            [(); 5].map(|()| self.a().create_label());

        self.0.asm.a.set_label(&mut self.0.labels.return_point)?;
        let a = self.a();
        a.lea(esp, dword_ptr(esp - 4))?;
        SAVED.into_iter().try_for_each(|register| a.push(register))?;
        a.lahf()?;
        a.seto(al)?;
        if clock {
            SAVED_WITH_CLOCK.into_iter().try_for_each(|register| a.push(register))?;
            a.push(eax)?;
            a.lea(esp, dword_ptr(esp - 8))?;
            a.rdtsc()?;
            a.mov(esi, eax)?;
            a.mov(edi, edx)?;
        }
        self.find_thread(RDX, RCX, slow)?;
        let a = self.a();
        a.set_label(&mut known)?;
        a.mov(ecx, low(RDX, THREAD_RETURNS))?;
        a.mov(edx, low(RDX, THREAD_BLOCK))?;
        if let Some(hits) = ret.hits {
            count(a, RDX, hits)?;
        }
        if clock {
            a.mov(ebx, edx)?;
        }
        a.lea(edx, dword_ptr(esp + depth))?;
        a.add(edx, edx)?;
        a.and(edx, mask)?;
        a.add(ecx, edx)?;
        a.lea(edx, dword_ptr(esp + depth))?;
        a.cmp(low(RCX, RETURN_SLOT), edx)?;
        a.jne(elsewhere)?;

        a.set_label(&mut found)?;
        a.mov(edx, low(RCX, RETURN_ADDRESS))?;
        a.mov(dword_ptr(esp + depth), edx)?;
        if clock {
            a.mov(eax, low(RCX, RETURN_ENTERED))?;
            a.mov(edx, high(RCX, RETURN_ENTERED))?;
            a.mov(dword_ptr(esp), eax)?;
            a.mov(dword_ptr(esp + 4), edx)?;
        }
        a.mov(low(RCX, RETURN_SLOT), 0)?;
        if clock {
            a.test(ebx, ebx)?;
            a.je(home)?;
        }
        if let Some(record) = ret.record {
            self.record_return(record, depth)?;
        }
        if let Some(latency) = ret.latency {
            self.add_latency(latency)?;
        }
        self.a().set_label(&mut home)?;
        self.a().zero_bytes()?;
        self.0.asm.a.set_label(&mut self.0.labels.going_home)?;
        let a = self.a();
        if clock {
            a.lea(esp, dword_ptr(esp + 8))?;
            a.pop(eax)?;
            SAVED_WITH_CLOCK.into_iter().rev().try_for_each(|register| a.pop(register))?;
        }
        restore_flags(a)?;
        SAVED.into_iter().rev().try_for_each(|register| a.pop(register))?;
        a.ret()?;

        a.set_label(&mut slow)?;
        self.resolve(RDX)?;
        self.a().jne(known)?;
        // A thread without memory of its own, in a frame that another thread entered.
        if let Some(hits) = ret.hits {
            self.count_shared(hits)?;
        }
        let find = Routine::Find.address(self.0.request.runtime);
        let a = self.a();
        if clock {
            a.xor(ebx, ebx)?;
        }
        a.set_label(&mut elsewhere)?;
        a.push(eax)?;
        a.lea(eax, dword_ptr(esp + (depth + 4)))?;
        a.call(find)?;
        a.mov(ecx, eax)?;
        a.pop(eax)?;
        a.jmp(found)
    }

    /// Appends a record of the return. Loses eax, ecx and edx.
    fn record_return(&mut self, record: Record, depth: i32) -> Asm {
        let mut full = self.a().create_label();
        self.reserve_record(RBX, RCX, RDX, full)?;
        let a = self.a();
        // eax was the first register that was saved.
        a.mov(eax, dword_ptr(esp + (depth - 4)))?;
        a.mov(low(RCX, RECORD_VALUES), eax)?;
        a.mov(high(RCX, RECORD_VALUES), 0)?;
        for half in [0, 4] {
            a.mov(eax, dword_ptr(esp + half as i32))?;
            a.mov(low(RCX, RECORD_VALUES + 8 + half), eax)?;
        }
        a.mov(low(RCX, RECORD_TIME), esi)?;
        a.mov(high(RCX, RECORD_TIME), edi)?;
        a.lea(eax, dword_ptr(esp + depth))?;
        self.identify_record(record, RCX)?;
        self.publish_record(RCX, RDX)?;
        self.a().set_label(&mut full)?;
        self.a().zero_bytes()
    }
}
