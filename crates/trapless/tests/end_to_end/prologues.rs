//! Several instructions emulated in one trap, on live programs: they have their whole effect or none, and no probe
//! among them is passed over. And what stands in memory decides, not what the file says.
#![cfg(target_arch = "x86_64")]

use crate::support::tool::{Tool, run};
use crate::support::{Program, Target};

/// `many` starts with six pushes and gives back a number made of what they wrote. `edge` runs it on a stack of which the
/// last three pushes find no memory; the handler looks where the fault is, gives the memory, and returns.
const PROGRAM: &str = r#"
    #define _GNU_SOURCE
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <ucontext.h>
    __asm__(".text\n.globl many\n.type many, @function\n.p2align 6\nmany:\n"
            "push %r15\n push %r14\n push %r13\n .globl fourth\nfourth: push %r12\n push %rbp\n push %rbx\n"
            "mov 40(%rsp), %rax\n xor 32(%rsp), %rax\n add 24(%rsp), %rax\n xor 16(%rsp), %rax\n add 8(%rsp), %rax\n xor (%rsp), %rax\n"
            "pop %rbx\n pop %rbp\n pop %r12\n pop %r13\n pop %r14\n pop %r15\n ret\n.size many, .-many\n.p2align 6\n"
            // long with(long first, void *stack): calls many with r15, r14, … set from first, on the given stack if there is one
            ".globl with\n.type with, @function\nwith:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
            "mov %rsp, old(%rip)\n test %rsi, %rsi\n je 1f\n mov %rsi, %rsp\n 1:\n"
            "mov %rdi, %r15\n lea 1(%rdi), %r14\n lea 5(%rdi), %r13\n lea 9(%rdi), %r12\n lea 70(%rdi), %rbp\n lea 300(%rdi), %rbx\n"
            "call many\n mov old(%rip), %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
            ".size with, .-with\n.p2align 6\n.local old\n.comm old,8\n");
    long with(long first, void *stack);
    extern char many[], fourth[];
    static char *stack;
    static volatile int faults, wrong;
    static long expected(long v) {
        long x = v;
        x ^= v + 1; x += v + 5; x ^= v + 9; x += v + 70; x ^= v + 300;
        return x;
    }
    static void on_fault(int signal, siginfo_t *info, void *context) {
        ucontext_t *c = context;
        uint64_t sp = c->uc_mcontext.gregs[REG_RSP];
        faults++;
        wrong += c->uc_mcontext.gregs[REG_RIP] != (greg_t)fourth || info->si_addr != (void *)(sp - 8) || sp != (uint64_t)stack + 4096;
        mprotect(stack, 4096, PROT_READ | PROT_WRITE);
    }
    int main(int argc, char **argv) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        sigaltstack(&other, 0);
        sigaction(SIGSEGV, &action, 0);
        stack = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (long i = 0; i < 1000; i++) wrong += with(i * 77, 0) != expected(i * 77);
        for (long i = 0; i < 20; i++) {
            mprotect(stack, 4096, PROT_NONE);
            // The return address and three pushes have room.
            wrong += with(i, stack + 4096 + 32) != expected(i);
        }
        fprintf(stderr, "faults %d wrong %d\n", faults, wrong);
        return 0;
    }"#;

#[test]
fn s3_pushes_emulated_together_fault_where_the_processor_would() {
    let program = Program::build("prologues", PROGRAM, &[]);
    let path = program.path().to_str().unwrap();
    for (mechanism, returns) in [("emulate", false), ("emulate", true), ("step", false), ("boost", false)] {
        let flags = ["count", "--mechanism", mechanism, "-f", "json"];
        let kinds: &[&str] = if returns { &["--return"] } else { &[] };
        let ran = run(&[&flags[..], kinds, &["prologues:many", "--", path]].concat());
        assert!(ran.err.contains("faults 20 wrong 0\n"), "{mechanism}: {ran:?}");
        let summary = ran.summary();
        assert_eq!(summary.hits("many", "entry"), 1020, "{mechanism}");
        if returns {
            assert_eq!(summary.hits("many", "return"), 1020, "{mechanism}");
        }
    }
}

/// Probes on several instructions of the prologue: each counts every call, whether it is served alone or not.
#[test]
fn p7_no_probe_in_a_prologue_is_passed_over() {
    let program = Program::build("prologues", PROGRAM, &[]);
    let path = program.path().to_str().unwrap();
    let probes = ["prologues:many", "prologues:many+2", "prologues:many+8"];
    for mechanism in ["emulate", "boost", "step"] {
        let flags = ["count", "--mechanism", mechanism, "-f", "json"];
        let ran = run(&[&flags[..], &probes, &["--", path]].concat());
        assert!(ran.err.contains("faults 20 wrong 0\n"), "{mechanism}: {ran:?}");
        let summary = ran.summary();
        let probes = summary.0["probes"].as_array().unwrap();
        let hits: Vec<u64> = probes.iter().map(|probe| probe["hits"].as_u64().unwrap()).collect();
        assert_eq!(hits, [1020; 3], "{mechanism}: {summary:?}");
    }
}

/// A probe may name its mechanism; the others get what the flags allow.
#[test]
fn probes_of_one_run_use_the_mechanisms_they_name() {
    let program = Program::build("prologues", PROGRAM, &[]);
    let path = program.path().to_str().unwrap();
    let hits = serde_json::Value::from(1020);
    let probes =
        ["prologues:w*", "step:prologues:many", "emulate:prologues:many+2", "boost:prologues:many+6"];
    for (flags, with) in
        [(&[][..], "jump"), (&["--mechanism", "boost"], "boost"), (&["--allow-trap"], "jump")]
    {
        let ran = run(&[&["count", "-f", "json"], flags, &probes, &["--", path]].concat());
        assert!(ran.err.contains("faults 20 wrong 0\n"), "{flags:?}: {ran:?}");
        let summary = ran.summary();
        let probes = summary.0["probes"].as_array().unwrap().iter();
        let mut found: Vec<_> = probes
            .map(|p| (p["function"].as_str().unwrap(), p["mechanism"].as_str().unwrap(), &p["hits"]))
            .collect();
        found.sort_by_key(|probe| probe.0);
        let expected = [("many", "step"), ("many+0x2", "emulate"), ("many+0x6", "boost"), ("with", with)];
        let expected: Vec<_> = expected.iter().map(|(function, by)| (*function, *by, &hits)).collect();
        assert_eq!(found, expected, "{flags:?}");
    }
}

/// It changes an instruction behind its first byte, which is what text relocations of 32-bit programs do, too.
const MODIFIED: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    #include <sys/mman.h>
    __asm__(".text\n.globl changed\n.type changed, @function\n.p2align 6\nchanged: mov $5, %eax\n ret\n.size changed, .-changed\n.p2align 6\n"
            ".globl second\n.type second, @function\nsecond: push %rbx\n push $5\n pop %rax\n pop %rbx\n ret\n.size second, .-second\n.p2align 6\n"
            ".globl kept\n.type kept, @function\nkept: mov $5, %eax\n ret\n.size kept, .-kept\n.p2align 6\n");
    int changed(void), second(void), kept(void);
    int main(void) {
        char *page = (char *)((uintptr_t)changed & ~4095ul);
        if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
        ((volatile char *)changed)[1] = 7;
        ((volatile char *)second)[2] = 7;
        if (mprotect(page, 8192, PROT_READ | PROT_EXEC)) return 1;
        printf("ready\n");
        fflush(stdout);
        while (getchar() != EOF) {
            printf("%d %d %d\n", changed(), second(), kept());
            fflush(stdout);
        }
        return 0;
    }"#;

#[test]
fn c5_instructions_that_are_not_the_files_do_not_run_from_copies() {
    let program = Program::build("modified", MODIFIED, &[]);
    for (mechanism, refused) in
        [("step", &["changed"][..]), ("boost", &["changed"]), ("emulate", &["changed", "second"])]
    {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let probes = ["modified:changed", "modified:second", "modified:kept"];
        let tool = Tool::armed(&[&["count", "--mechanism", mechanism, "-p", &pid][..], &probes].concat());
        call(&mut target);
        let summary = tool.interrupt();
        for function in ["changed", "second", "kept"] {
            let reason = summary.skipped(function);
            assert_eq!(reason.is_some(), refused.contains(&function), "{mechanism}: {function}: {reason:?}");
            if reason.is_none() {
                assert_eq!(summary.hits(function, "entry"), 1, "{mechanism}: {function}");
            }
        }
        call(&mut target);
    }
}

#[track_caller]
fn call(target: &mut Target) {
    target.tell("");
    assert_eq!(target.line(), "7 7 5");
}
