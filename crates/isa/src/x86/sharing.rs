//! Where does code make children that share its memory, and how are they told apart there?
//!
//! What is done is told in [`crate::detour::memory`]. Behind the system call both the parent and its child come by; rax tells which is which,
//! and the other registers hold what they held ahead of it, but rcx and r11 in 64-bit mode.
//!
//! The places are found by the C library's way to write them: the number is loaded, in the last few instructions, and then comes
//! `syscall`, or `int 0x80` in 32-bit mode, in straight code. (Through `gs:[0x10]` no such child can be made: the call's return address
//! lies on the stack that both use.)

use super::{
    decode::{decoder, flow, is_write},
    detour::{Asm, Template},
    frame::RED_ZONE,
    runtime::Routine,
};
use crate::payload::*;
use crate::{Flow, SharingCalls};
use alloc::vec::Vec;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register, UsedRegister, code_asm::*};

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

/// The instruction that enters the kernel.
fn entry(bits: u32) -> [u8; 2] {
    if bits == 64 { [0x0f, 0x05] } else { [0xcd, 0x80] }
}

/// So far ahead of the entry into the kernel the number is loaded, in bytes.
const NEAR: usize = 48;

/// Offsets in `code` that look like the entry into the kernel of such a call.
pub(super) fn candidates(bits: u32, code: &[u8]) -> Vec<usize> {
    let loads_number = |before: &[u8]| {
        let word = |at: usize| before.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        (0..before.len()).any(|at| match before[at] {
            // mov eax, imm32; mov al, imm8
            0xb8 => word(at + 1).is_some_and(|bytes| Call::of(bits, u32::from_le_bytes(bytes)).is_some()),
            0xb0 => before.get(at + 1).is_some_and(|&number| Call::of(bits, number.into()).is_some()),
            _ => false,
        })
    };
    let entry = entry(bits);
    let found = memchr::memmem::find_iter(code, &entry);
    found.filter(|&at| loads_number(&code[at.saturating_sub(NEAR)..at])).collect()
}

/// What is known of the registers of a system call.
#[derive(Clone, Copy, Default)]
struct Known {
    number: Option<u32>,
    /// Address of the instruction that has loaded it.
    loaded: u64,
    flags: Option<u32>,
}

/// The places that belong to the entry into the kernel at `at`, in a function of which `code` is all that was found, from its
/// `start` on.
pub(super) fn sharing_calls(bits: u32, code: &[u8], start: u64, at: u64) -> SharingCalls {
    let all: Vec<Instruction> = decoder(bits, code, start).iter().take_while(|i| i.ip() <= at).collect();
    let is_entry = |i: &Instruction| i.ip() == at && !i.is_invalid();
    let Some((entry, before)) = all.split_last().filter(|(last, _)| is_entry(last)) else {
        return SharingCalls::Unclear;
    };
    // Branches from behind it, too.
    let arrivals: Vec<u64> = decoder(bits, code, start)
        .iter()
        .filter_map(|i| match flow(&i) {
            Flow::Jump { target } | Flow::Branch { target } => Some(target),
            _ => None,
        })
        .collect();
    let (mut known, mut info) = (Known::default(), InstructionInfoFactory::new());
    for instruction in before {
        if arrivals.contains(&instruction.ip()) {
            known = Known::default();
        }
        known.follow(bits, instruction, &mut info);
    }
    if arrivals.contains(&at) {
        return SharingCalls::Unclear;
    }
    let Some(number) = known.number else { return SharingCalls::Unclear };
    let behind = entry.next_ip();
    match Call::of(bits, number) {
        Some(Call::Vfork) => SharingCalls::One(behind, Sharing::Vfork),
        Some(Call::Clone) if known.flags.is_some_and(|flags| flags & CLONE_VFORK == 0) => SharingCalls::None,
        Some(Call::Clone) => SharingCalls::One(behind, Sharing::Clone),
        // What lies ahead is displaced: it must be there that the arguments are in their register.
        Some(Call::Clone3) if before.last().is_some_and(|last| last.ip() == known.loaded) => {
            SharingCalls::Two((known.loaded, Sharing::BeforeClone3), (behind, Sharing::Clone3))
        }
        Some(Call::Clone3) => SharingCalls::Unclear,
        None => SharingCalls::None,
    }
}

impl Known {
    fn follow(&mut self, bits: u32, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        if flow(instruction) != Flow::Next && !matches!(flow(instruction), Flow::Branch { .. }) {
            *self = Self::default();
            return;
        }
        let first = if bits == 64 { Register::RDI } else { Register::EBX };
        let immediate = || match (instruction.mnemonic(), instruction.op1_kind()) {
            (Mnemonic::Mov, OpKind::Immediate32 | OpKind::Immediate32to64) => Some(instruction.immediate32()),
            (Mnemonic::Xor, OpKind::Register) if instruction.op0_register() == instruction.op1_register() => {
                Some(0)
            }
            _ => None,
        };
        let written = instruction.op0_register();
        let used = info.info(instruction).used_registers();
        let writes = |register: Register| {
            let is_it = |used: &UsedRegister| used.register().full_register() == register.full_register();
            used.iter().any(|used| is_it(used) && is_write(used.access()))
        };
        if writes(Register::RAX) {
            self.number = match written {
                Register::EAX | Register::RAX => immediate(),
                // On top of what is known.
                Register::AL if instruction.mnemonic() == Mnemonic::Mov => match instruction.op1_kind() {
                    OpKind::Immediate8 => {
                        self.number.map(|number| number & !0xff | u32::from(instruction.immediate8()))
                    }
                    _ => None,
                },
                _ => None,
            };
            self.loaded = instruction.ip();
        }
        if writes(first) {
            self.flags = match written.full_register() == first.full_register() {
                true if written.size() >= 4 => immediate(),
                _ => None,
            };
        }
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
        call(a, is_wide, if sharing == Sharing::Clone3 { join } else { share })?;
        if sharing != Sharing::BeforeClone3 {
            if is_wide {
                a.or(qword_ptr(rsp + 16), r11)?;
            } else {
                a.or(dword_ptr(esp + 8), eax)?;
            }
            a.jmp(done)?;
            a.set_label(&mut parent)?;
            call(a, is_wide, unshare)?;
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

/// Calls a routine. Where it returned to does not stay behind on the stack, on which much may be built that never writes there.
fn call(a: &mut CodeAssembler, is_wide: bool, routine: u64) -> Asm {
    a.call(routine)?;
    if is_wide { a.mov(qword_ptr(rsp - 8), 0) } else { a.mov(dword_ptr(esp - 4), 0) }
}
