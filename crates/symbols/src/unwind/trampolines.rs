//! What handlers of signals return to, known by its instructions.
//!
//! musl's and Go's trampolines have no unwind entries, and arm64's in the vDSO has none since Linux 5.8, so that unwinders do what is done
//! here (gcc's `linux-unwind.h` of each machine). There the stack pointer is at the kernel's frame.

use std::ops::Range;

use memchr::memmem;

use super::{Cfa, FrameRule, Rule, Saved, UnwindBase, spans::Spans};
use crate::{Machine, image::CodeSection};

/// A trampoline's instructions and the frame that the kernel has made.
struct Trampoline {
    code: &'static [u8],
    frame: FrameRule,
}

/// The saved registers' distances from the stack pointer: sp, pc, fp, and of x86-64 rbx, of arm64 the link register.
const fn frame(sp: i32, pc: i16, fp: i16, pointer: Saved, link: Saved) -> FrameRule {
    FrameRule {
        cfa: Cfa::Memory { base: UnwindBase::Stack, offset: sp, plus: 0 },
        return_address: Saved::AtBase(pc),
        frame_pointer: Saved::AtBase(fp),
        base_pointer: pointer,
        interrupted: Some(link),
    }
}

/// `struct rt_sigframe` of `arch/x86/include/asm/sigframe.h`, behind the return address: 40 bytes of a `ucontext`, then
/// `struct sigcontext_64`.
const X86_64: FrameRule = frame(160, 168, 120, Saved::AtBase(128), Saved::Unchanged);

/// `struct rt_sigframe` of `arch/arm64/kernel/signal.c`: 128 bytes of `siginfo`, 176 of a `ucontext`, 8, then `regs[31]`, `sp`, `pc`.
const AARCH64: FrameRule = frame(560, 568, 544, Saved::Unchanged, Saved::AtBase(552));

fn trampolines(machine: Machine) -> &'static [Trampoline] {
    match machine {
        Machine::X86_64 => &[
            // mov $15, %rax; syscall
            Trampoline { code: &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], frame: X86_64 },
            // mov $15, %eax; syscall
            Trampoline { code: &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05], frame: X86_64 },
        ],
        // mov x8, #139; svc #0
        Machine::AArch64 => {
            &[Trampoline { code: &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4], frame: AARCH64 }]
        }
        // Their vDSOs have entries.
        Machine::I386 | Machine::PowerPc64Le => &[],
    }
}

/// Those that no entry tells of yet.
pub(super) fn find<'b>(
    machine: Machine,
    sections: &[CodeSection],
    code: impl Fn(Range<u64>) -> Option<&'b [u8]>,
    spans: &Spans,
) -> Vec<(Range<u64>, Rule)> {
    let mut found = Vec::new();
    for section in sections {
        let Some(bytes) = code(section.range.clone()) else { continue };
        for trampoline in trampolines(machine) {
            for at in memmem::find_iter(bytes, trampoline.code) {
                let start = section.range.start + at as u64;
                let range = start..start + trampoline.code.len() as u64;
                if spans.overlaps(&range) {
                    continue;
                }
                // Whoever returns here was not called from here, and looks one byte ahead.
                let ahead = start.saturating_sub(1)..range.end;
                let range = if spans.overlaps(&ahead) { range } else { ahead };
                found.push((range, Rule::Frame(trampoline.frame)));
            }
        }
    }
    found
}
