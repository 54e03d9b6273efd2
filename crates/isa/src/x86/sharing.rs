//! Where does code make children that share its memory, and how are they told apart there?
//!
//! What is done is told in [`crate::detour::memory`]. Behind the system call both the parent and its child come by; rax tells which is which,
//! and the other registers hold what they held ahead of it, but rcx and r11 in 64-bit mode.
//!
//! The places are found by the C library's way to write them ([`syscalls`]). Through `gs:[0x10]` no such child can be made: the call's
//! return address lies on the stack that both use.

use super::{
    detour::{Asm, Template},
    emit::call_runtime,
    frame::RED_ZONE,
    runtime::Routine,
    syscalls,
};
use crate::SharingCalls;
use crate::payload::*;
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// The system calls by which children are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Vfork,
    Clone,
    Clone3,
}

impl Call {
    /// By its number (`arch/x86/entry/syscalls`).
    fn of(bits: u32, number: u32) -> Option<Self> {
        match (bits, number) {
            (64, 58) | (32, 190) => Some(Call::Vfork),
            (64, 56) | (32, 120) => Some(Call::Clone),
            (_, 435) => Some(Call::Clone3),
            _ => None,
        }
    }
}

/// Offsets in `code` that look like the entry into the kernel of such a call.
pub(super) fn candidates(bits: u32, code: &[u8]) -> Vec<usize> {
    syscalls::entries(bits, code, |number| Call::of(bits, number).is_some())
}

/// The system call that gives a thread its pointer, `arch_prctl`.
const SETS_POINTER: u32 = 158;

/// Whether 64-bit code, a function's, makes threads or gives its own a thread pointer: some of it may run with the pointer of the thread that has
/// made this one, at the same time as that.
pub(super) fn starts_threads(code: &[u8]) -> bool {
    let is_wanted = |number| number == SETS_POINTER || Call::of(64, number).is_some();
    !syscalls::entries(64, code, is_wanted).is_empty()
}

/// The places that belong to the entry into the kernel at `at`, in a function of which `code` is all that was found, from its
/// `start` on.
pub(super) fn sharing_calls(bits: u32, code: &[u8], start: u64, at: u64) -> SharingCalls {
    let Some(call) = syscalls::at(bits, code, start, at) else { return SharingCalls::Unclear };
    let Some(number) = call.number() else { return SharingCalls::Unclear };
    let behind = call.behind();
    match Call::of(bits, number) {
        Some(Call::Vfork) => SharingCalls::One(behind, Sharing::Vfork),
        Some(Call::Clone) if call.first().is_some_and(|flags| flags & CLONE_VFORK == 0) => SharingCalls::None,
        Some(Call::Clone) => SharingCalls::One(behind, Sharing::Clone),
        // What lies ahead is displaced: it must be there that the arguments are in their register.
        Some(Call::Clone3) => match call.loaded_last() {
            Some(loaded) => SharingCalls::Two((loaded, Sharing::BeforeClone3), (behind, Sharing::Clone3)),
            None => SharingCalls::Unclear,
        },
        None => SharingCalls::None,
    }
}

impl Template<'_> {
    /// Marks a child that shares the memory, and has it counted in another place than its parent.
    pub(super) fn share(&mut self, sharing: Sharing) -> Asm {
        let routine = |routine: Routine| routine.address(self.request.runtime);
        let [share, join, unshare] = [Routine::Share, Routine::Join, Routine::Unshare].map(routine);
        let is_wide = self.bits == 64;
        let a = &mut self.asm.a;
        let [mut parent, mut done] = [(); 2].map(|()| a.create_label());
        if is_wide {
            a.lea(rsp, qword_ptr(rsp - RED_ZONE))?;
            a.pushfq()?;
            a.push(r10)?;
            a.push(r11)?;
        } else {
            a.pushfd()?;
            a.push(eax)?;
            a.push(edx)?;
        }
        match (sharing, is_wide) {
            (Sharing::Vfork | Sharing::Clone3, _) => {}
            (Sharing::Clone, true) => a.mov(r10d, edi)?,
            (Sharing::Clone, false) => a.mov(edx, ebx)?,
            (Sharing::BeforeClone3, true) => a.mov(r10d, dword_ptr(rdi))?,
            (Sharing::BeforeClone3, false) => a.mov(edx, dword_ptr(ebx))?,
        }
        if matches!(sharing, Sharing::Clone | Sharing::BeforeClone3) {
            let flags = if is_wide { r10d } else { edx };
            a.and(flags, (CLONE_VM | CLONE_VFORK | CLONE_SETTLS) as i32)?;
            a.cmp(flags, (CLONE_VM | CLONE_VFORK) as i32)?;
            a.jne(done)?;
        }
        if sharing != Sharing::BeforeClone3 {
            if is_wide {
                a.test(rax, rax)?
            } else {
                a.test(eax, eax)?
            }
            a.jne(parent)?;
        }
        match (sharing, is_wide) {
            (Sharing::BeforeClone3 | Sharing::Clone3, true) => a.mov(r10, rdi)?,
            (Sharing::BeforeClone3 | Sharing::Clone3, false) => a.mov(eax, ebx)?,
            // In 32-bit mode it is 0 already.
            (Sharing::Vfork | Sharing::Clone, true) => a.xor(r10d, r10d)?,
            (Sharing::Vfork | Sharing::Clone, false) => {}
        }
        call_runtime(a, is_wide, if sharing == Sharing::Clone3 { join } else { share })?;
        if sharing != Sharing::BeforeClone3 {
            if is_wide {
                a.or(qword_ptr(rsp + 16), r11)?;
            } else {
                a.or(dword_ptr(esp + 8), eax)?;
            }
            a.jmp(done)?;
            a.set_label(&mut parent)?;
            call_runtime(a, is_wide, unshare)?;
        }
        a.set_label(&mut done)?;
        if is_wide {
            a.pop(r11)?;
            a.pop(r10)?;
            a.popfq()?;
            a.lea(rsp, qword_ptr(rsp + RED_ZONE))
        } else {
            a.pop(edx)?;
            a.pop(eax)?;
            a.popfd()
        }
    }
}
