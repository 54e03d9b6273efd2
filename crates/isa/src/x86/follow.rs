//! The call-paired return: reserving the return instance at the entry, and the way home.

use super::{
    detour::{Asm, Template, read_clock},
    emit::{GPR32, GPR64, at, number::*},
    frame::{Frame, restore_flags},
    runtime::Routine,
};
use crate::detour::*;
use iced_x86::{Code, code_asm::*};

/// What the return part saves, in order: rax first, since it then holds the flags.
const SAVED: [AsmRegister64; 3] = [rax, rcx, rdx];
/// What it saves besides when it reads the clock; behind them lie the flags.
const SAVED_WITH_CLOCK: [AsmRegister64; 3] = [rsi, rdi, r8];

/// Labels that `follow` leaves to `not_followed`.
pub(super) struct Later {
    /// The instance is not at hand.
    taken: CodeLabel,
    /// An instance is found.
    claimed: CodeLabel,
}

impl Template<'_> {
    /// `block` = the shadow block of the page of the slot in `slot`, if it has that of its hash; or off to `missing`. Loses `page`.
    fn shadow_block(&mut self, block: usize, page: usize, missing: CodeLabel) -> Asm {
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
    fn instance(&mut self, block: usize, slot: usize) -> Asm {
        let a = &mut self.asm.a;
        let scale = 1 << (RETURN_SHIFT - 3);
        a.and(GPR32[slot], (1 << STACK_PAGE_SHIFT) - 8)?;
        a.lea(GPR64[block], qword_ptr(GPR64[block] + GPR64[slot] * scale + SHADOW_INSTANCES as i32))
    }

    /// Claims the return instance, moves the return address into it, and calls the displaced code.
    pub(super) fn follow(&mut self, frame: &Frame, ret: &ReturnActions) -> Asm {
        let (scratch, slot, instance) = (frame.entry, frame.block, frame.x);
        let [taken, mut claimed] = [(); 2].map(|()| self.asm.a.create_label());
        self.asm.a.set_label(&mut self.labels.known)?;
        self.asm.a.lea(GPR64[slot], qword_ptr(rsp + frame.depth()))?;
        self.asm.a.mov(GPR64[scratch], GPR64[slot])?;
        self.shadow_block(instance, scratch, taken)?;
        self.asm.a.mov(GPR32[scratch], GPR32[slot])?;
        self.instance(instance, scratch)?;
        self.asm.a.cmp(at(instance, RETURN_POINT), 0)?;
        self.asm.a.jne(taken)?;
        self.asm.a.set_label(&mut claimed)?;
        let a = &mut self.asm.a;
        a.mov(GPR64[scratch], qword_ptr(GPR64[slot]))?;
        a.mov(at(instance, RETURN_ADDRESS), GPR64[scratch])?;
        a.lea(GPR64[scratch], qword_ptr(self.labels.return_point))?;
        a.mov(at(instance, RETURN_POINT), GPR64[scratch])?;
        if ret.times() {
            read_clock(a)?;
            a.mov(at(instance, RETURN_ENTERED), rax)?;
        }
        frame.restore(a)?;
        a.lea(rsp, qword_ptr(rsp + 8))?;
        a.call(self.labels.displaced)?;
        self.later = Some(Later { taken, claimed });
        Ok(())
    }

    /// The ways out of `follow`: another instance, or none at all.
    pub(super) fn not_followed(&mut self, frame: &Frame) -> Asm {
        let (slot, instance) = (frame.block, frame.x);
        let claim = Routine::Claim.address(self.request.runtime);
        let later = self.later.take().zip(self.request.actions.ret);
        if let Some((Later { mut taken, claimed }, ret)) = later {
            let a = &mut self.asm.a;
            a.set_label(&mut taken)?;
            frame.skip_red_zone(a)?;
            a.push(r10)?;
            a.push(r11)?;
            a.mov(r10, GPR64[slot])?;
            a.call(claim)?;
            a.mov(GPR64[instance], r11)?;
            a.pop(r11)?;
            a.pop(r10)?;
            frame.unskip_red_zone(a)?;
            a.test(GPR64[instance], GPR64[instance])?;
            a.jne(claimed)?;
            self.count_shared(ret.lost, instance)?;
        }
        self.asm.a.set_label(&mut self.labels.plain)?;
        frame.restore(&mut self.asm.a)?;
        self.asm.a.jmp(self.labels.displaced)
    }

    /// From the return point to the second `ret`.
    ///
    /// Everything is saved: the caller may expect any register to be kept that the callee is known not to touch. There is
    /// no red zone: the caller has just made a call.
    pub(super) fn return_part(&mut self, ret: &ReturnActions) -> Asm {
        let clock = ret.times();
        let depth = 8 * (SAVED.len() + if clock { SAVED_WITH_CLOCK.len() + 1 } else { 0 }) as i32;
        let [mut slow, mut known, mut counted, mut elsewhere, mut found, mut home] =
            [(); 6].map(|()| self.asm.a.create_label());

        let a = &mut self.asm.a;
        a.set_label(&mut self.labels.return_point)?;
        a.lea(rsp, qword_ptr(rsp - 8))?;
        SAVED.into_iter().try_for_each(|register| a.push(register))?;
        a.lahf()?;
        a.seto(al)?;
        if clock {
            SAVED_WITH_CLOCK.into_iter().try_for_each(|register| a.push(register))?;
            a.push(rax)?;
            read_clock(a)?;
            a.mov(rsi, rax)?;
        }
        self.find_thread(RDX, RCX, slow)?;
        let a = &mut self.asm.a;
        a.set_label(&mut known)?;
        a.mov(rdx, at(RDX, THREAD_BLOCK))?;
        if let Some(hits) = ret.hits {
            a.inc(at(RDX, hits))?;
        }
        if clock {
            a.mov(rdi, rdx)?;
        }
        a.set_label(&mut counted)?;
        a.lea(rdx, qword_ptr(rsp + depth))?;
        self.shadow_block(RCX, RDX, elsewhere)?;
        self.asm.a.lea(edx, dword_ptr(rsp + depth))?;
        self.instance(RCX, RDX)?;
        let a = &mut self.asm.a;
        a.lea(rdx, qword_ptr(self.labels.return_point))?;
        a.cmp(at(RCX, RETURN_POINT), rdx)?;
        a.jne(elsewhere)?;
        a.cmp(at(RCX, RETURN_OLDER), 0)?;
        a.jne(elsewhere)?;

        a.set_label(&mut found)?;
        a.mov(rdx, at(RCX, RETURN_ADDRESS))?;
        a.mov(qword_ptr(rsp + depth), rdx)?;
        if clock {
            a.mov(r8, at(RCX, RETURN_ENTERED))?;
        }
        a.mov(at(RCX, RETURN_POINT), 0)?;
        if clock {
            a.test(rdi, rdi)?;
            a.je(home)?;
        }
        if let Some(record) = ret.record {
            self.record_return(record, depth)?;
        }
        if let Some(latency) = ret.latency {
            self.add_latency(latency)?;
        }
        let a = &mut self.asm.a;
        a.set_label(&mut home)?;
        a.zero_bytes()?;
        a.set_label(&mut self.labels.going_home)?;
        if clock {
            a.pop(rax)?;
            SAVED_WITH_CLOCK.into_iter().rev().try_for_each(|register| a.pop(register))?;
        }
        restore_flags(a)?;
        SAVED.into_iter().rev().try_for_each(|register| a.pop(register))?;
        a.ret()?;

        a.set_label(&mut slow)?;
        self.resolve(RDX)?;
        self.asm.a.jne(known)?;
        // A thread without memory of its own.
        if let Some(hits) = ret.hits {
            self.count_shared(hits, RDX)?;
        }
        let leave = Routine::Leave.address(self.request.runtime);
        let a = &mut self.asm.a;
        if clock {
            a.xor(edi, edi)?;
        }
        a.jmp(counted)?;
        a.set_label(&mut elsewhere)?;
        a.push(r10)?;
        a.push(r11)?;
        a.lea(r10, qword_ptr(rsp + depth + 16))?;
        a.lea(r11, qword_ptr(self.labels.return_point))?;
        a.call(leave)?;
        a.mov(rcx, r11)?;
        a.pop(r11)?;
        a.pop(r10)?;
        a.test(rcx, rcx)?;
        a.jne(found)?;
        // The slot holds the way home.
        a.jmp(home)
    }

    /// Appends a record of the return. rdi: block, rsi: time, r8: time of the entry. Loses rax, rcx and rdx.
    fn record_return(&mut self, record: Record, depth: i32) -> Asm {
        let mut full = self.asm.a.create_label();
        self.reserve_record(RDI, RCX, RDX, full)?;
        let a = &mut self.asm.a;
        // rax was the first register that was saved.
        a.mov(rax, qword_ptr(rsp + depth - 8))?;
        a.mov(at(RCX, RECORD_VALUES), rax)?;
        a.mov(at(RCX, RECORD_VALUES + 8), r8)?;
        a.mov(at(RCX, RECORD_TIME), rsi)?;
        a.lea(rax, qword_ptr(rsp + depth))?;
        self.identify_record(record, RCX)?;
        self.publish_record(RCX, RDX)?;
        self.asm.a.set_label(&mut full)?;
        self.asm.a.zero_bytes()
    }

    /// Adds the duration to the histogram. rdi: block, rsi: time, r8: time of the entry. Loses rax, rcx and rsi.
    fn add_latency(&mut self, latency: u32) -> Asm {
        let a = &mut self.asm.a;
        let [mut forward, mut shorter, mut inside, mut child] = [(); 4].map(|()| a.create_label());
        a.cmp(at(RDI, BLOCK_ORIGIN), 0)?;
        a.je(child)?;
        a.sub(rsi, r8)?;
        // The clocks of two CPUs may differ by a few ticks.
        a.jae(forward)?;
        a.xor(esi, esi)?;
        a.set_label(&mut forward)?;
        a.inc(at(RDI, latency + LATENCY_COUNT))?;
        a.add(at(RDI, latency + LATENCY_SUM), rsi)?;
        a.cmp(at(RDI, latency + LATENCY_MAX), rsi)?;
        a.jae(shorter)?;
        a.mov(at(RDI, latency + LATENCY_MAX), rsi)?;
        a.set_label(&mut shorter)?;
        a.mov(rax, rsi)?;
        a.shr(rax, LATENCY_OCTAVES as i32)?;
        a.je(inside)?;
        a.mov(rsi, (1u64 << LATENCY_OCTAVES) - 1)?;
        a.set_label(&mut inside)?;
        a.mov(rcx, rsi)?;
        a.or(rcx, 1 << LATENCY_BITS)?;
        a.bsr(rcx, rcx)?;
        a.sub(ecx, LATENCY_BITS as i32)?;
        a.shr(rsi, cl)?;
        a.shl(ecx, LATENCY_BITS as i32)?;
        a.add(esi, ecx)?;
        a.inc(qword_ptr(rdi + rsi * 8 + (latency + LATENCY_BUCKETS) as i32))?;
        a.set_label(&mut child)?;
        a.zero_bytes()
    }
}
