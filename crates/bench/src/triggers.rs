//! The functions that are probed: one for each way in which functions begin, and the loop that calls them.
//!
//! They are written in assembly, so that no compiler decides what the first instruction is, and lie 64 bytes apart
//! with padding behind them: functions shorter than a jump need it, and compilers leave it.

/// A function that is called and probed.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// What follows `uprobe-` in the benchmark's names: its first instruction.
    pub name: &'static str,
    /// The function. Takes and returns anything, keeps what the ABI says is kept.
    pub function: unsafe extern "C" fn(),
    /// How often the kernel traps for a uprobe on it: once where it emulates the first instruction, twice where it
    /// steps it (`arch/x86/kernel/uprobes.c`).
    pub kernel_traps: u32,
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
        pub(super) fn trapless_bench_calls(function: unsafe extern "C" fn(), times: u64);
        pub(super) fn trapless_bench_increments(counter: *mut u64, times: u64);
    }

    use super::Trigger;
    /// All of them.
    pub const TRIGGERS: &[Trigger] = &[
        Trigger { name: "nop", function: trapless_bench_nop, kernel_traps: 1 },
        Trigger { name: "push", function: trapless_bench_push, kernel_traps: 1 },
        Trigger { name: "ret", function: trapless_bench_ret, kernel_traps: 2 },
        Trigger { name: "nop5", function: trapless_bench_nop5, kernel_traps: 1 },
        Trigger { name: "endbr", function: trapless_bench_endbr, kernel_traps: 2 },
        Trigger { name: "o2", function: trapless_bench_o2, kernel_traps: 1 },
        Trigger { name: "sub", function: trapless_bench_sub, kernel_traps: 2 },
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
