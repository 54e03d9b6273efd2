//! Detours of 32-bit programs.
//!
//! They do what [`super::detour`] tells, in the same memory: 64-bit fields whose upper halves hold zero where the value
//! is an address. What 32-bit mode changes:
//!
//! - **The thread pointer** is the word at `gs:0`, where glibc and musl keep the address of the thread's control
//!   block, which is also the base of gs. A thread without TLS has a null selector in gs and would fault, and a
//!   program may load others for purposes of its own. So gs has to hold [`Layout::selector`](crate::detour::Layout::selector); any other thread is one without
//!   memory of its own. That `gs:0` does hold its own address (in Go's programs it does not) is looked at once per thread,
//!   by `resolve`, which claims no memory for a thread pointer that is none.
//! - **Counters** take two instructions, `add low, 1; adc high, 0`. Addition commutes: a signal handler in between,
//!   and on the overflow block another thread, adds its own count and its own carry, and none is lost. A reader may see the
//!   carry late, every 2^32 counts.
//! - **A histogram's maximum** is replaced by one `cmpxchg8b`, as two stores could be torn by a handler's.
//! - **Ring positions** are counted in 32 bits, and wrap: a ring is far shorter.
//! - **Arguments** are read where cdecl has them, on the stack. That a local function takes some in registers (`regparm`,
//!   `fastcall`) cannot be known from its code; its registers are kept all the same.
//! - **No red zone**: what lies below esp, the kernel overwrites with the next signal's frame.
//! - **Displacements wrap**, so everything is in reach, and addresses are absolute: arenas are not moved.

mod follow;
mod latency;
mod steps;

use super::{
    detour::{Asm, Template},
    emit::{GPR32, call_runtime, number::*},
    frame::{Frame, Stacks},
    runtime::Routine,
};
use crate::detour::*;
use crate::payload::*;
use iced_x86::code_asm::*;

/// A detour for 32-bit mode being written.
pub(super) struct Narrow<'t, 'a>(pub &'t mut Template<'a>);

/// The lower half of a field in the target's probe memory.
fn low(base: usize, offset: u32) -> AsmMemoryOperand {
    dword_ptr(GPR32[base] + offset as i32)
}

/// Its upper half.
fn high(base: usize, offset: u32) -> AsmMemoryOperand {
    low(base, offset + 4)
}

/// An address as an immediate operand.
fn immediate(address: u64) -> u32 {
    address as u32
}

impl Narrow<'_, '_> {
    pub fn write(&mut self) -> Asm {
        let payload = &self.0.request.payload;
        payload.hooks.iter().try_for_each(|hook| self.hook(hook))?;
        if payload.needs_no_thread() {
            return self.0.displaced();
        }
        let frame = Frame::choose(32, Stacks::of(self.0.request), payload, self.0.entry_liveness());
        frame.save(self.a())?;
        self.entry(&frame)?;
        match payload.followed {
            None => {
                self.0.asm.a.set_label(&mut self.0.labels.plain)?;
                // There may be nothing to restore, and a label needs an instruction of its own.
                self.a().zero_bytes()?;
                frame.restore(self.a())?;
                self.0.displaced()?;
            }
            Some(followed) => {
                let later = self.follow(&frame, &followed)?;
                self.return_part(&followed)?;
                self.0.displaced()?;
                self.not_followed(&frame, &followed, later)?;
            }
        }
        self.entry_slow(&frame)
    }

    fn a(&mut self) -> &mut CodeAssembler {
        &mut self.0.asm.a
    }

    /// The functions that unwinders ask about an address. Arguments are on the stack.
    fn translate(&mut self, lookup: Lookup) -> Asm {
        let translate = Routine::Translate.address(self.0.request.runtime);
        let a = self.a();
        a.pushfd()?;
        a.push(eax)?;
        a.push(edx)?;
        match lookup {
            Lookup::FindObject => {
                a.mov(eax, dword_ptr(esp + 16))?;
                a.lea(edx, dword_ptr(esp + 12))?;
                call_runtime(a, false, translate)?;
                a.mov(dword_ptr(esp + 16), eax)?;
            }
            Lookup::IteratePhdr => {
                let mut elsewhere = a.create_label();
                a.mov(edx, dword_ptr(esp + 20))?;
                a.sub(edx, esp)?;
                a.cmp(edx, UNWINDER_STACK)?;
                a.jae(elsewhere)?;
                for word in 0..LOOKED_UP_WORDS {
                    a.mov(edx, dword_ptr(esp + 20))?;
                    a.mov(eax, dword_ptr(edx + 4 * word))?;
                    a.lea(edx, dword_ptr(esp + 12))?;
                    call_runtime(a, false, translate)?;
                }
                a.set_label(&mut elsewhere)?;
            }
        }
        a.pop(edx)?;
        a.pop(eax)?;
        a.popfd()
    }

    /// The function by which unwinders land.
    fn land(&mut self, code_address: u32) -> Asm {
        let landed = Routine::Landed.address(self.0.request.runtime);
        let a = self.a();
        a.pushfd()?;
        a.push(eax)?;
        a.push(edx)?;
        a.mov(eax, dword_ptr(esp + 16))?;
        // Where eax is, for which libgcc has number 0.
        a.mov(edx, dword_ptr(eax))?;
        a.lea(eax, dword_ptr(eax + code_address))?;
        call_runtime(a, false, landed)?;
        a.pop(edx)?;
        a.pop(eax)?;
        a.popfd()
    }

    /// `entry` = address of the thread's entry in the thread table, or off to `slow`.
    fn find_thread(&mut self, entry: usize, thread: usize, slow: CodeLabel) -> Asm {
        let layout = self.0.request.layout;
        let mask = ((1i32 << layout.thread_bits) - 1) << THREAD_SHIFT;
        let a = self.a();
        a.mov(GPR32[thread], gs)?;
        a.cmp(GPR32[thread], u32::from(layout.selector))?;
        a.jne(slow)?;
        a.mov(GPR32[thread], dword_ptr(0).gs())?;
        // It would match a free entry.
        a.test(GPR32[thread], GPR32[thread])?;
        a.je(slow)?;
        a.imul_3(GPR32[entry], GPR32[thread], HASH_FACTOR as i32)?;
        a.shr(GPR32[entry], 32 - layout.thread_bits as i32 - THREAD_SHIFT as i32)?;
        a.and(GPR32[entry], mask)?;
        a.add(GPR32[entry], immediate(layout.threads))?;
        a.cmp(low(entry, THREAD_OWNER), GPR32[thread])?;
        a.jne(slow)
    }

    /// `block` = that of the thread's `entry`; or off to `wiped`, in a child that a handler of the thread's has forked since the owner was
    /// looked at.
    fn load_block(&mut self, block: AsmRegister32, entry: usize, wiped: CodeLabel) -> Asm {
        let a = self.a();
        a.mov(block, low(entry, THREAD_BLOCK))?;
        a.test(block, block)?;
        a.je(wiped)
    }

    /// Finds the thread and does the steps of the entry. Leaves the thread's entry in its register.
    fn entry(&mut self, frame: &Frame) -> Asm {
        let payload = &self.0.request.payload;
        self.find_thread(frame.entry, frame.block, self.0.labels.slow)?;
        self.0.asm.a.set_label(&mut self.0.labels.resume)?;
        if payload.needs().block {
            self.load_block(GPR32[frame.block], frame.entry, self.0.labels.slow)?;
        }
        payload.entry.iter().try_for_each(|step| self.entry_step(step, frame))?;
        // A label may follow at once, and needs an instruction of its own.
        self.a().zero_bytes()
    }

    /// `to` = the thread's entry by way of the runtime, 0 when the thread has none.
    fn resolve(&mut self, to: usize) -> Asm {
        let resolve = Routine::Resolve.address(self.0.request.runtime);
        let a = self.a();
        if to == RAX {
            call_runtime(a, false, resolve)?;
        } else {
            a.push(eax)?;
            call_runtime(a, false, resolve)?;
            a.mov(GPR32[to], eax)?;
            a.pop(eax)?;
        }
        a.test(GPR32[to], GPR32[to])
    }

    /// Finds the thread's entry where the hash did not lead, or counts for a thread that has none.
    fn entry_slow(&mut self, frame: &Frame) -> Asm {
        let payload = &self.0.request.payload;
        self.0.asm.a.set_label(&mut self.0.labels.slow)?;
        self.resolve(frame.entry)?;
        let (resume, plain) = (self.0.labels.resume, self.0.labels.plain);
        self.a().jne(resume)?;
        payload.entry.iter().try_for_each(|step| self.entry_step_shared(step))?;
        let next = match payload.followed {
            Some(followed) if followed.follows_all() => self.0.labels.known,
            Some(followed) => {
                self.count_shared(followed.lost)?;
                plain
            }
            None => plain,
        };
        self.a().jmp(next)
    }
}
