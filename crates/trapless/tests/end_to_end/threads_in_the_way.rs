//! Hard cases P1 to P3: threads whose instruction pointers, return addresses or signal frames lie in the code that changes.

use crate::support::assembly::X86;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use crate::support::park::Stepper;
use crate::support::park::park;
use crate::support::spinners::{self, PLAIN, Spinners};
use crate::support::text::eventually_nothing_is_left;
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
use crate::support::tool::run;
use crate::support::tool::{Tool, detach};

#[test]
fn p1_threads_parked_at_each_interior_offset_move_to_the_detour() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 8);
    let before = spinners.target.text();
    // Starts of its first four instructions.
    let offsets = if cfg!(target_arch = "x86_64") {
        [0, 1, 3, 6]
    } else if cfg!(target_arch = "x86") {
        [0, 1, 2, 6]
    } else {
        [0, 4, 8, 12]
    };
    let [counted, calls] = spinners.count_from(&offsets);
    // Of each four parked threads, three had entered already.
    assert_eq!(counted, calls - 6);
    before.assert_restored(spinners.target.pid());
}

#[test]
fn p1_threads_parked_at_each_instruction_of_the_detour_leave_it() {
    let program = spinners::build(PLAIN, "", "");
    for (flags, rounds) in [(&["count"][..], 4), (&["count", "--return"], 10)] {
        let mut spinners = Spinners::start(&program, 8);
        let before = spinners.target.text();
        let pid = spinners.pid();
        for round in 0..rounds {
            let tool = Tool::armed(&[flags, &["-p", &pid, "spinners:subject"]].concat());
            spinners.run_on();
            spinners.stand_in_line(round);
            let summary = tool.interrupt();
            let kept =
                summary.0["notes"].as_array().unwrap().iter().find(|note| note["code"] == "memory-kept");
            // Where calls are given their return address in a register, it is there yet in a function that has stored it, and who stands
            // goes on holding it.
            let is_held = !X86 && flags.len() > 1 && kept.is_some();
            assert!(is_held || kept.is_none(), "{flags:?}, round {round}: {kept:?}");
            if !is_held {
                before.assert_restored(spinners.target.pid());
            }
            spinners.target.thaw();
            spinners.run_on();
            if is_held {
                eventually_nothing_is_left(spinners.target.pid());
                before.assert_restored(spinners.target.pid());
            }
        }
        spinners.finish();
    }
}

/// Places in the function, signals, and whether a frame of them there keeps the site as it is: inside the displaced instructions. What is
/// one instruction has no inside.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const FRAMES: [(u64, i32, bool); 5] = [
    (1, libc::SIGUSR1, true),
    (3, libc::SIGUSR1, true),
    (3, libc::SIGUSR2, true), // on an alternate stack
    (0, libc::SIGUSR1, false),
    (6, libc::SIGUSR1, false),
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const FRAMES: [(u64, i32, bool); 3] =
    [(0, libc::SIGUSR1, false), (4, libc::SIGUSR1, false), (4, libc::SIGUSR2, false)];

/// The same for numbers in memory.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const NUMBERS: [(u64, bool); 6] = [(1, true), (2, false), (3, true), (4, false), (5, false), (6, false)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const NUMBERS: [(u64, bool); 3] = [(0, false), (2, false), (4, false)];

#[test]
fn p3_a_signal_frame_that_holds_an_interior_address_keeps_its_site_unpatched() {
    let program = spinners::build(PLAIN, "", "");
    for (offset, signal, refused) in FRAMES {
        let mut spinners = Spinners::start(&program, 1);
        let before = spinners.target.text();
        spinners.interrupt_at(spinners.subject() + offset, signal);
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject", "spinners:second"]);
        spinners.end_handling();
        spinners.run_on();
        spinners.finish();
        let summary = tool.interrupt();
        let reason = summary.skipped("subject");
        assert_eq!(
            reason.as_deref(),
            refused.then_some("a stack or saved context holds an address inside the displaced instructions"),
            "offset {offset}"
        );
        before.assert_restored(spinners.target.pid());
    }
}

#[test]
fn p3_a_number_in_memory_keeps_a_site_unpatched_where_somebody_might_go_on_there() {
    let program = spinners::build(PLAIN, "", "");
    // A program that handles signals may have saved a context anywhere, but nobody is interrupted between two instructions.
    for (offset, refused) in NUMBERS {
        let mut spinners = Spinners::start(&program, 1);
        let unused = spinners.target.address(1) + 40 * 64;
        spinners.target.write(unused, &(spinners.subject() + offset).to_le_bytes());
        let summary =
            Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject", "spinners:second"]).interrupt();
        assert_eq!(summary.skipped("subject").is_some(), refused, "offset {offset}");
        spinners.finish();
    }
}

#[test]
fn p3_a_signal_frame_inside_the_detour_keeps_its_memory_until_the_handler_returns() {
    let program = spinners::build(PLAIN, "", "");
    for steps in [1, 5, 9] {
        let mut spinners = Spinners::start(&program, 1);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        // Handlers have stubs of the first session only: they are shown the detours of another as they are. Elsewhere they have none.
        let first = X86.then(|| Tool::armed(&["count", "-p", &spinners.pid(), "spinners:second"]));
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject"]);
        spinners.run_on();
        spinners.target.freeze();
        let inside = park(&spinners.target, spinners.workers()[0], spinners.subject(), steps);
        spinners.target.thaw();
        spinners.interrupt_at(inside, libc::SIGUSR1);
        let summary = tool.interrupt();
        let notes = summary.0["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["code"] == "memory-kept"), "{steps}: {notes:?}");
        first.map(Tool::interrupt);
        spinners.end_handling();
        spinners.run_on();
        detach(pid);
        before.assert_restored(pid);
        spinners.finish();
    }
}

#[test]
fn p3_a_signal_frame_that_was_shown_the_program_keeps_nothing() {
    if !trapless_isa::Machine::beside(false).isa().shows_handlers_the_program() {
        return trapless_testing::inapplicable!("here, handlers see detours");
    }
    let program = spinners::build(PLAIN, "", "");
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        let mut spinners = Spinners::start(&program, 1);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        let tool = Tool::armed(&["count", "-p", &spinners.pid(), "spinners:subject"]);
        spinners.run_on();
        spinners.target.freeze();
        let inside = park(&spinners.target, spinners.workers()[0], spinners.subject(), 1);
        spinners.target.thaw();
        spinners.interrupt_at(inside, signal);
        tool.interrupt();
        before.assert_restored(pid);
        spinners.end_handling();
        spinners.run_on();
        before.assert_restored(pid);
        spinners.finish();
    }
}

/// `waits` blocks in its first call, until a signal comes. `CALLS` calls it by the instruction at `CALL`, which a probe there displaces.
#[cfg(target_arch = "x86_64")]
mod displaced_call {
    pub const CALLS: &str = "push %rbx; call waits; lea 1(%rdi,%rdi), %rax; pop %rbx; ret";
    pub const CALL: &str = "subject";
    pub const WAITS: &str = "waits: push %rdi; mov handled(%rip), %eax; test %eax, %eax; jnz 1f; mov $34, %eax; syscall; \
        movl $1, handled(%rip); 1: pop %rdi; ret; .data; .globl handled; handled: .long 0; .text";
    pub const VERBS: &[&[&str]] = &[&["count"], &["count", "--return"]];
}
#[cfg(target_arch = "x86")]
mod displaced_call {
    pub const CALLS: &str = "push %ebx; call waits; mov 8(%esp), %ecx; lea 1(%ecx,%ecx), %eax; pop %ebx; ret";
    pub const CALL: &str = "subject";
    pub const WAITS: &str = "waits: push %ebx; call 1f; 1: pop %ebx; lea handled-1b(%ebx), %ebx; cmpl $0, (%ebx); jne 2f; mov $29, %eax; \
        int $0x80; movl $1, (%ebx); 2: pop %ebx; ret; .data; .globl handled; handled: .long 0; .text";
    pub const VERBS: &[&[&str]] = &[&["count"], &["count", "--return"]];
}
#[cfg(target_arch = "aarch64")]
mod displaced_call {
    pub const CALLS: &str =
        "stp x29, x30, [sp, #-16]!; bl waits; add x0, x0, x0; add x0, x0, #1; ldp x29, x30, [sp], #16; ret";
    pub const CALL: &str = "subject+0x4";
    pub const WAITS: &str = "waits: mov x9, x0; adrp x10, handled; add x10, x10, :lo12:handled; ldr w1, [x10]; cbnz w1, 1f; \
        mov x0, #0; mov x1, #0; mov x2, #0; mov x3, #0; mov x8, #73; svc #0; mov w1, #1; str w1, [x10]; 1: mov x0, x9; ret; \
        .data; .globl handled; handled: .long 0; .text";
    pub const VERBS: &[&[&str]] = &[&["count"]];
}
#[cfg(target_arch = "powerpc64")]
mod displaced_call {
    pub const CALLS: &str = "mflr 0; std 0, 16(1); stdu 1, -48(1); bl waits; add 3, 3, 3; addi 3, 3, 1; addi 1, 1, 48; \
        ld 0, 16(1); mtlr 0; blr";
    pub const CALL: &str = "subject+0xc";
    pub const WAITS: &str = "waits: std 3, -16(1); addis 10, 2, handled@toc@ha; addi 10, 10, handled@toc@l; lwz 4, 0(10); cmpwi 4, 0; \
        bne 1f; std 10, -24(1); li 0, 29; sc; ld 10, -24(1); li 4, 1; stw 4, 0(10); 1: ld 3, -16(1); blr; \
        .data; .globl handled; handled: .long 0; .text";
    pub const VERBS: &[&[&str]] = &[&["count"]];
}

#[test]
fn p2_a_thread_blocked_inside_a_displaced_call_returns_to_where_it_came_from() {
    use displaced_call::{CALL, CALLS, VERBS, WAITS};
    let program = spinners::build(CALLS, "", WAITS);
    let site = format!("spinners:{CALL}");
    for &flags in VERBS {
        let mut spinners = Spinners::start(&program, 1);
        let (pid, before) = (spinners.target.pid(), spinners.target.text());
        let worker = spinners.workers()[0];
        spinners.end_handling();
        // SAFETY: the call takes integers.
        let unblock = || unsafe { libc::syscall(libc::SYS_tgkill, pid, worker, libc::SIGUSR1) };

        spinners.target.wait_for_state("S");
        let called = spinners.calls();
        let text = pid.to_string();
        let arguments = [flags, &["-p", &text, &site]].concat();
        let tool = Tool::armed(&arguments);
        unblock();
        spinners.run_on();
        // It blocks again, now called by the detour.
        spinners.target.write(spinners.target.address(5), &0u32.to_le_bytes());
        spinners.target.wait_for_state("S");
        let entered = spinners.calls() - called;
        assert_eq!(tool.interrupt().hits(CALL, "entry"), entered);
        before.assert_restored(pid);
        unblock();
        spinners.run_on();
        spinners.finish();
    }
}

/// A register with a pointer; 2 x + 1 for an argument x; and functions that return it if no trap flag was pushed, or stays.
#[cfg(target_arch = "x86_64")]
const POINTER: &str = "%rbx";
#[cfg(target_arch = "x86_64")]
const TWICE: &str = "lea 1(%rdi,%rdi), %rax";
#[cfg(target_arch = "x86_64")]
const TELL_FLAG: [&str; 2] = [
    "pushf; pop %rax; shr $8, %eax; and $1, %eax; lea 1(%rax,%rdi,2), %rax; ret",
    "pushf; popf; lea 1(%rdi,%rdi), %rax; ret",
];
#[cfg(target_arch = "x86")]
const POINTER: &str = "%ebx";
#[cfg(target_arch = "x86")]
const TWICE: &str = "mov 4(%esp), %eax; lea 1(%eax,%eax), %eax";
#[cfg(target_arch = "x86")]
const TELL_FLAG: [&str; 2] = [
    "pushf; pop %eax; shr $8, %eax; and $1, %eax; mov 4(%esp), %ecx; lea 1(%eax,%ecx,2), %eax; ret",
    "pushf; popf; mov 4(%esp), %eax; lea 1(%eax,%eax), %eax; ret",
];

/// Elsewhere a patch is one instruction, into which nothing returns.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn p2_a_call_that_would_return_into_the_patch_is_refused() {
    let program = spinners::build(
        &format!("jmp f2; f1: call *{POINTER}; nop; nop; nop; nop; ret; f2: {TWICE}; ret"),
        "",
        "",
    );
    let path = format!("{}:subject+0x2", program.path().display());
    let site = &run(&["list", &path, "-f", "json"]).json()[0];
    assert_eq!(site["reason"], "no jump: a displaced call would return into the patch", "{site}");
}

/// The step over a displaced `pushf` pushes the trap flag that the step itself sets; a `popf` would then set it for good. Steps behind a
/// `popf` leave it set, too.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn p1_a_thread_stepped_out_of_a_detour_keeps_no_trap_flag() {
    for body in TELL_FLAG {
        let program = spinners::build(body, "", "");
        for flags in [&["count"][..], &["count", "--return"]] {
            let mut spinners = Spinners::start(&program, 4);
            let (pid, before) = (spinners.target.pid(), spinners.target.text());
            let tool = Tool::armed(&[flags, &["-p", &spinners.pid(), "spinners:subject"]].concat());
            spinners.run_on();
            spinners.target.freeze();
            for worker in spinners.workers() {
                let stepper = Stepper::seize(&spinners.target, worker);
                while spinners.target.read(stepper.ip(), 1) != [0x9c] {
                    stepper.step();
                }
            }
            tool.interrupt();
            before.assert_restored(pid);
            spinners.target.thaw();
            spinners.run_on();
            spinners.finish();
        }
    }
}
