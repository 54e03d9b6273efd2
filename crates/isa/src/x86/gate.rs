//! A gate, in both modes: see [`crate::detour::gate`].
//!
//! The waiting is done by a system call that is made here, and by no other: programs with threads may make it, whatever a sandbox forbids. It
//! changes rax, rcx and r11, in 32-bit mode eax alone, and nothing of the floating point unit. Nor is a clock read: the time is
//! that of so many waits, each of which ends by itself.

use super::{
    detour::{Asm, Template},
    frame::RED_ZONE,
};
use crate::detour::gate::*;
use iced_x86::code_asm::*;

/// The system call `futex` (`arch/x86/entry/syscalls`), in 64-bit mode and in 32-bit mode.
const FUTEX: [u32; 2] = [202, 240];

impl Template<'_> {
    /// With nothing saved.
    pub(super) fn gate(&mut self) -> Asm {
        if self.bits == 64 { self.gate_64() } else { self.gate_32() }
    }

    fn gate_64(&mut self) -> Asm {
        let layout = self.request.layout;
        let a = &mut self.asm.a;
        let [mut done, mut look, mut again, mut open, mut waited] = [(); 5].map(|()| a.create_label());
        let saved = [rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11];
        a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
        a.pushfq()?;
        saved.into_iter().try_for_each(|register| a.push(register))?;
        a.mov(rdi, layout.origin)?;
        a.cmp(qword_ptr(rdi), 0)?;
        a.je(done)?;
        a.mov(rdi, layout.gate)?;
        a.cmp(dword_ptr(rdi + GATE_STATE), GATE_SHUT)?;
        a.jne(done)?;
        // r8: the number of this arrival.
        a.mov(r8d, 1)?;
        a.lock().xadd(dword_ptr(rdi + GATE_ARRIVED), r8d)?;
        a.inc(r8d)?;
        a.add(rdi, GATE_ARRIVED as i32)?;
        a.mov(esi, FUTEX_WAKE)?;
        a.mov(edx, i32::MAX)?;
        a.mov(eax, FUTEX[0])?;
        a.syscall()?;
        // The time of one wait, and in r9 how many there may be, whatever ends them.
        a.lea(rsp, qword_ptr(rsp - 16))?;
        a.mov(qword_ptr(rsp), 0)?;
        a.mov(qword_ptr(rsp + 8), GATE_WAIT as i32)?;
        a.mov(r9d, GATE_WAITS)?;
        a.jmp(look)?;

        a.set_label(&mut again)?;
        a.dec(r9d)?;
        a.je(open)?;
        look_after_a_wait(a, look)?;
        a.jmp(open)?;

        a.set_label(&mut look)?;
        a.mov(rdi, layout.gate)?;
        a.cmp(dword_ptr(rdi + GATE_STATE), GATE_SHUT)?;
        a.jne(waited)?;
        a.mov(edx, dword_ptr(rdi + GATE_SERVED))?;
        a.mov(eax, edx)?;
        a.sub(eax, r8d)?;
        a.jns(waited)?;
        a.add(rdi, GATE_SERVED as i32)?;
        a.mov(esi, FUTEX_WAIT)?;
        a.mov(r10, rsp)?;
        a.mov(eax, FUTEX[0])?;
        a.syscall()?;
        a.jmp(again)?;

        a.set_label(&mut open)?;
        a.mov(rdi, layout.gate)?;
        a.mov(dword_ptr(rdi + GATE_STATE), 0)?;
        a.lock().inc(dword_ptr(rdi + GATE_LATE))?;
        a.set_label(&mut waited)?;
        a.lea(rsp, qword_ptr(rsp + 16))?;
        a.set_label(&mut done)?;
        saved.into_iter().rev().try_for_each(|register| a.pop(register))?;
        a.popfq()?;
        a.lea(rsp, qword_ptr(rsp + RED_ZONE))
    }

    fn gate_32(&mut self) -> Asm {
        let layout = self.request.layout;
        let word = |offset: u32| dword_ptr(layout.gate + u64::from(offset));
        let address = |offset: u32| (layout.gate + u64::from(offset)) as u32;
        let a = &mut self.asm.a;
        let [mut done, mut look, mut again, mut open, mut waited] = [(); 5].map(|()| a.create_label());
        let saved = [eax, ecx, edx, ebx, esi];
        a.pushfd()?;
        saved.into_iter().try_for_each(|register| a.push(register))?;
        a.cmp(dword_ptr(layout.origin), 0)?;
        a.je(done)?;
        a.cmp(word(GATE_STATE), GATE_SHUT)?;
        a.jne(done)?;
        // Below each other: the time of one wait, how many there may be, and the number of this arrival.
        a.push(GATE_WAIT as i32)?;
        a.push(0)?;
        a.push(GATE_WAITS as i32)?;
        a.mov(eax, 1)?;
        a.lock().xadd(word(GATE_ARRIVED), eax)?;
        a.inc(eax)?;
        a.push(eax)?;
        a.mov(ebx, address(GATE_ARRIVED))?;
        a.mov(ecx, FUTEX_WAKE)?;
        a.mov(edx, i32::MAX)?;
        a.mov(eax, FUTEX[1])?;
        a.int(0x80)?;
        a.jmp(look)?;

        a.set_label(&mut again)?;
        a.dec(dword_ptr(esp + 4))?;
        a.je(open)?;
        look_after_a_wait(a, look)?;
        a.jmp(open)?;

        a.set_label(&mut look)?;
        a.cmp(word(GATE_STATE), GATE_SHUT)?;
        a.jne(waited)?;
        a.mov(edx, word(GATE_SERVED))?;
        a.mov(eax, edx)?;
        a.sub(eax, dword_ptr(esp))?;
        a.jns(waited)?;
        a.mov(ebx, address(GATE_SERVED))?;
        a.mov(ecx, FUTEX_WAIT)?;
        a.lea(esi, dword_ptr(esp + 8))?;
        a.mov(eax, FUTEX[1])?;
        a.int(0x80)?;
        a.jmp(again)?;

        a.set_label(&mut open)?;
        a.mov(word(GATE_STATE), 0)?;
        a.lock().inc(word(GATE_LATE))?;
        a.set_label(&mut waited)?;
        a.lea(esp, dword_ptr(esp + 16))?;
        a.set_label(&mut done)?;
        saved.into_iter().rev().try_for_each(|register| a.pop(register))?;
        a.popfd()
    }
}

/// Goes to `look` where a wait has ended as waits end; what it said is in eax.
fn look_after_a_wait(a: &mut CodeAssembler, look: CodeLabel) -> Asm {
    a.test(eax, eax)?;
    a.je(look)?;
    for error in GATE_AGAIN {
        a.cmp(eax, -i32::from(error))?;
        a.je(look)?;
    }
    Ok(())
}
