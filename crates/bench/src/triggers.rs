//! The functions that are probed: one for each way in which functions begin, one whose return address has to stay
//! where it is, and those that hold the site of a USDT probe; and the loop that calls them.
//!
//! They are written in assembly, so that no compiler decides what the probed instruction is, and lie 64 bytes
//! apart with padding behind them: functions shorter than a jump need it, and compilers leave it.

use super::kernel::Execution;
use serde::Serialize;

/// A function that is called and probed.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// What follows `uprobe-` or `usdt-` in the benchmark's names: the probed instruction, or how its return is
    /// followed.
    pub name: &'static str,
    /// The function. Takes and returns anything, keeps what the ABI says is kept.
    pub function: unsafe extern "C" fn(),
    /// Where it is probed.
    pub probed: Probed,
    /// How the kernel executes the instruction that its uprobe replaces.
    pub execution: Execution,
}

/// Where a trigger is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// At its first instruction, and there with its return.
    Function,
    /// With its return only: at its first instruction it is like any other.
    Return,
    /// At a nop inside of it, where the site of a USDT probe is: so many bytes behind its start, in 64-bit and in
    /// 32-bit code.
    Inside(u64),
}

/// What of a call is probed: the rows of the benchmark are named by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// `uprobe-…`
    Entry,
    /// `uretprobe-…`
    Return,
    /// `usdt-…`
    Inside,
}

impl Side {
    /// The benchmark's name for a trigger probed here.
    pub fn row(self, trigger: &str) -> String {
        match self {
            Side::Entry => format!("uprobe-{trigger}"),
            Side::Return => format!("uretprobe-{trigger}"),
            Side::Inside => format!("usdt-{trigger}"),
        }
    }
}

impl Trigger {
    /// What of its calls is probed.
    pub fn sides(&self) -> &'static [Side] {
        match self.probed {
            Probed::Function => &[Side::Entry, Side::Return],
            Probed::Return => &[Side::Return],
            Probed::Inside(_) => &[Side::Inside],
        }
    }

    /// How far behind its start the probed instruction is, in bytes.
    pub fn offset(&self) -> u64 {
        match self.probed {
            Probed::Function | Probed::Return => 0,
            Probed::Inside(offset) => offset,
        }
    }

    /// Its name among all triggers: two may be named after one instruction.
    pub fn label(&self) -> String {
        match self.probed {
            Probed::Function | Probed::Return => self.name.to_owned(),
            Probed::Inside(_) => Side::Inside.row(self.name),
        }
    }

    /// The benchmark's name for an unprobed call.
    pub fn call(&self) -> String {
        format!("call-{}", self.label())
    }
}

#[cfg(target_arch = "x86_64")]
mod code {
    core::arch::global_asm!(
        r#"
        .macro trapless_trigger name
        .p2align 6
        .globl trapless_bench_\name
        .hidden trapless_bench_\name
        .type trapless_bench_\name, @function
        trapless_bench_\name:
        .cfi_startproc
        .endm
        .macro trapless_trigger_end name
        .cfi_endproc
        .size trapless_bench_\name, . - trapless_bench_\name
        .p2align 6
        .endm

        .text
        trapless_trigger nop
            nop
            ret
        trapless_trigger_end nop

        trapless_trigger push
            push rax
            add rsp, 8
            ret
        trapless_trigger_end push

        trapless_trigger ret
            ret
        trapless_trigger_end ret

        trapless_trigger nop5
            .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
            ret
        trapless_trigger_end nop5

        trapless_trigger endbr
            endbr64
            lea eax, [rdi + rsi]
            ret
        trapless_trigger_end endbr

        # Optimized code that keeps values over calls begins with pushes,
        trapless_trigger o2
            push rbp
            mov ebp, esi
            push rbx
            mov ebx, edi
            sub rsp, 8
            lea eax, [rbx + rbp]
            add rsp, 8
            pop rbx
            pop rbp
            ret
        trapless_trigger_end o2

        # and code with locals and no such values with a subtraction.
        trapless_trigger sub
            sub rsp, 24
            mov dword ptr [rsp + 12], edi
            mov eax, dword ptr [rsp + 12]
            add rsp, 24
            ret
        trapless_trigger_end sub

        # What looks at its return address is followed to where it is left.
        trapless_trigger exits
            push rbx
            mov rbx, qword ptr [rsp + 8]
            lea eax, [rdi + rsi]
            add rax, rbx
            pop rbx
            ret
        trapless_trigger_end exits

        # The sites of USDT probes, four bytes behind the start (`USDT`). A jump fits into the nop of five bytes; with
        # the one of one byte the instruction behind it is displaced. Nothing is kept below the stack pointer, which
        # the kernel's call from a nop of five bytes overwrites.
        trapless_trigger usdt_nop
            lea rax, [rdi + rsi]
            nop
            lea rax, [rax + rdx]
            ret
        trapless_trigger_end usdt_nop

        trapless_trigger usdt_nop5
            lea rax, [rdi + rsi]
            .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
            lea rax, [rax + rdx]
            ret
        trapless_trigger_end usdt_nop5

        # void calls(void (*function)(void), uint64_t times), times > 0
        .p2align 6
        .globl trapless_bench_calls
        .hidden trapless_bench_calls
        .type trapless_bench_calls, @function
        trapless_bench_calls:
            push rbx
            push rbp
            sub rsp, 8
            mov rbx, rsi
            mov rbp, rdi
            .p2align 6
        1:  call rbp
            dec rbx
            jnz 1b
            add rsp, 8
            pop rbp
            pop rbx
            ret
        .size trapless_bench_calls, . - trapless_bench_calls

        # void increments(uint64_t *counter, uint64_t times): `usermode-count`, as the kernel's benchmark does it
        .p2align 6
        .globl trapless_bench_increments
        .hidden trapless_bench_increments
        trapless_bench_increments:
        1:  lock inc qword ptr [rdi]
            dec rsi
            jnz 1b
            ret
        "#
    );

    unsafe extern "C" {
        pub(super) fn trapless_bench_nop();
        pub(super) fn trapless_bench_push();
        pub(super) fn trapless_bench_ret();
        pub(super) fn trapless_bench_nop5();
        pub(super) fn trapless_bench_endbr();
        pub(super) fn trapless_bench_o2();
        pub(super) fn trapless_bench_sub();
        pub(super) fn trapless_bench_exits();
        pub(super) fn trapless_bench_usdt_nop();
        pub(super) fn trapless_bench_usdt_nop5();
        pub(super) fn trapless_bench_calls(function: unsafe extern "C" fn(), times: u64);
        pub(super) fn trapless_bench_increments(counter: *mut u64, times: u64);
    }

    use super::Execution::{Emulated, Optimized, Stepped};
    use super::{Execution, Probed, Trigger};

    const fn probed(
        name: &'static str,
        function: unsafe extern "C" fn(),
        probed: Probed,
        execution: Execution,
    ) -> Trigger {
        Trigger { name, function, probed, execution }
    }

    /// Where the sites of USDT probes are.
    const USDT: Probed = Probed::Inside(4);

    /// All of them.
    pub const TRIGGERS: &[Trigger] = &[
        probed("nop", trapless_bench_nop, Probed::Function, Emulated),
        probed("push", trapless_bench_push, Probed::Function, Emulated),
        probed("ret", trapless_bench_ret, Probed::Function, Stepped),
        probed("nop5", trapless_bench_nop5, Probed::Function, Optimized),
        probed("endbr", trapless_bench_endbr, Probed::Function, Stepped),
        probed("o2", trapless_bench_o2, Probed::Function, Emulated),
        probed("sub", trapless_bench_sub, Probed::Function, Stepped),
        probed("exits", trapless_bench_exits, Probed::Return, Emulated),
        probed("nop", trapless_bench_usdt_nop, USDT, Emulated),
        probed("nop5", trapless_bench_usdt_nop5, USDT, Optimized),
    ];

    /// Calls a trigger `times` times, at least once.
    pub fn calls(trigger: &Trigger, times: u64) {
        // SAFETY: the loop keeps what the ABI says is kept, and so does every trigger, which takes no argument it uses
        // as an address and returns nothing that is used.
        unsafe { trapless_bench_calls(trigger.function, times.max(1)) }
    }

    /// Increments a word atomically `times` times, at least once.
    pub fn increments(times: u64) {
        let mut counter = 0;
        // SAFETY: the pointer is to a live word of ours.
        unsafe { trapless_bench_increments(&mut counter, times.max(1)) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod code {
    /// None yet.
    pub const TRIGGERS: &[super::Trigger] = &[];

    /// There is nothing to call.
    pub fn calls(_: &super::Trigger, _: u64) {}

    /// Increments a word atomically `times` times.
    pub fn increments(times: u64) {
        let counter = std::sync::atomic::AtomicU64::new(0);
        (0..times).for_each(|_| drop(counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
    }
}

pub use code::{TRIGGERS, calls, increments};

/// Makes the system call that enters and leaves the kernel with the least between, `times` times: `syscall-count`.
pub fn syscalls(times: u64) {
    for _ in 0..times {
        // SAFETY: getppid takes nothing and changes nothing. Not by the C library's name for it, which may remember.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::narrow;
    use std::collections::BTreeSet;

    #[test]
    fn a_usdt_site_is_the_nop_it_is_named_after_in_both_widths() {
        let (narrow, places) = narrow::functions();
        for (trigger, place) in TRIGGERS.iter().zip(&places[1..]) {
            let Probed::Inside(offset) = trigger.probed else { continue };
            let nop: &[u8] = if trigger.name == "nop" { &[0x90] } else { &[0x0f, 0x1f, 0x44, 0x00, 0x00] };
            let offset = offset as usize;
            // SAFETY: the nop is in the function, of which 64 bytes can be read.
            let wide =
                unsafe { std::slice::from_raw_parts((trigger.function as *const u8).add(offset), nop.len()) };
            assert_eq!(wide, nop, "{}", trigger.label());
            assert_eq!(&narrow[place.offset as usize + offset..][..nop.len()], nop, "{}", trigger.label());
        }
    }

    #[test]
    fn no_two_triggers_and_no_two_rows_have_one_name() {
        let labels: BTreeSet<String> = TRIGGERS.iter().map(Trigger::label).collect();
        assert_eq!(labels.len(), TRIGGERS.len());
        let rows = || TRIGGERS.iter().flat_map(|t| t.sides().iter().map(|side| side.row(t.name)));
        assert_eq!(rows().collect::<BTreeSet<_>>().len(), rows().count());
    }
}
