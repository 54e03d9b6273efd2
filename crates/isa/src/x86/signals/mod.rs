//! Signals in 64-bit mode: where programs say which handler a signal has, where handlers return to, and what the probes there do.
//!
//! What it is for is told in [`crate::detour::signals`]. The places are found by the C library's way to write them, which is Go's, too.

mod code;

use super::{
    decode::is_write,
    detour::{Asm, Template},
    frame::RED_ZONE,
    syscalls,
};
use crate::SignalCall;
use crate::detour::signals::*;
use alloc::vec::Vec;
use iced_x86::{InstructionInfoFactory, Register, code_asm::*};

pub(super) use code::signal_code;

/// `rt_sigaction` (`arch/x86/entry/syscalls/syscall_64.tbl`).
const ACTION: u32 = 13;

/// `mov rax, 15; syscall`, as everybody writes it, since unwinders and debuggers know a signal's frame by it.
const RETURN: [u8; RETURN_LENGTH] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// A branch to a detour takes so many bytes.
const JUMP: u64 = super::JUMP_LENGTH as u64;

/// Offsets in `code` of what handlers return to.
pub(super) fn returns(code: &[u8]) -> Vec<usize> {
    memchr::memmem::find_iter(code, &RETURN).collect()
}

/// Offsets in `code` that look like the system call by which handlers are installed.
pub(super) fn action_candidates(code: &[u8]) -> Vec<usize> {
    syscalls::entries(64, code, |number| number == ACTION)
}

/// Where the probes stand ahead of and behind the system call at `at`, in a function that stands at `start`, of which `code` is all;
/// `None` if it is not that system call for sure, or has no room ahead of it.
pub(super) fn action_places(code: &[u8], start: u64, at: u64) -> Option<(u64, u64)> {
    let call = syscalls::at(64, code, start, at)?;
    let behind = call.behind();
    if call.number() != Some(ACTION) || call.is_led_to(behind) {
        return None;
    }
    let mut info = InstructionInfoFactory::new();
    for instruction in call.before().iter().rev() {
        let used = info.info(instruction).used_registers();
        if used.iter().any(|used| used.register().full_register() == Register::RSI && is_write(used.access()))
            || super::decode::flow(instruction) != crate::Flow::Next
        {
            return None;
        }
        if at - instruction.ip() >= JUMP {
            return Some((instruction.ip(), behind));
        }
        if call.is_led_to(instruction.ip()) {
            return None;
        }
    }
    None
}

impl Template<'_> {
    /// With nothing saved. `SignalCall::Return` may change what it likes, since all registers are about to be replaced; what lies above the
    /// stack pointer it must keep.
    pub(super) fn signal(&mut self, call: SignalCall) -> Asm {
        let Some(signals) = self.request.layout.signals else {
            // A plan has such probes only where there are stubs.
            return self.asm.a.ud2();
        };
        let routine = |offset: u32| signals.arena + u64::from(offset);
        let a = &mut self.asm.a;
        // Where a handler begins, and behind one, nothing is left below the stack pointer.
        let red_zone = if matches!(call, SignalCall::Return | SignalCall::Handler) { 0 } else { RED_ZONE };
        a.lea(rsp, qword_ptr(rsp - red_zone))?;
        a.pushfq()?;
        a.push(r10)?;
        a.push(r11)?;
        // From the stack pointer to where it was.
        let depth = red_zone + 24;
        let [mut old, mut done] = [(); 2].map(|()| a.create_label());
        match call {
            SignalCall::Return => {
                a.lea(r10, qword_ptr(rsp + depth))?;
                call_at(a, routine(SIGNAL_RESUME))?;
            }
            SignalCall::Handler => {
                // Behind the address that it returns to (`struct rt_sigframe`, `arch/x86/include/asm/sigframe.h`).
                a.lea(r10, qword_ptr(rsp + depth + 8))?;
                a.cmp(r10, rdx)?;
                a.jne(done)?;
                call_at(a, routine(SIGNAL_SHOW))?;
            }
            SignalCall::BeforeAction => {
                on_stack(a, done)?;
                call_at(a, routine(SIGNAL_WRAP))?;
            }
            SignalCall::Action => {
                on_stack(a, old)?;
                call_at(a, routine(SIGNAL_UNWRAP))?;
                a.set_label(&mut old)?;
                // Where it failed, nothing was told.
                a.test(eax, eax)?;
                a.jne(done)?;
                a.mov(r10, rdx)?;
                a.test(r10, r10)?;
                a.je(done)?;
                call_at(a, routine(SIGNAL_UNWRAP))?;
            }
        }
        a.set_label(&mut done)?;
        a.pop(r11)?;
        a.pop(r10)?;
        a.popfq()?;
        a.lea(rsp, qword_ptr(rsp + red_zone))
    }
}

/// r10 = rsi, the new action, if it lies on the caller's stack; else off to `elsewhere`, as where there is none.
fn on_stack(a: &mut CodeAssembler, elsewhere: CodeLabel) -> Asm {
    // From the red zone on, which is above what was pushed.
    a.lea(r10, qword_ptr(rsp + 24))?;
    a.neg(r10)?;
    a.add(r10, rsi)?;
    a.cmp(r10, ACTION_ON_STACK as i32)?;
    a.jae(elsewhere)?;
    a.mov(r10, rsi)
}

/// Calls what may be out of a branch's reach. Where it returned to does not stay behind on the stack.
fn call_at(a: &mut CodeAssembler, address: u64) -> Asm {
    a.mov(r11, address)?;
    a.call(r11)?;
    a.mov(qword_ptr(rsp - 8), 0)
}
