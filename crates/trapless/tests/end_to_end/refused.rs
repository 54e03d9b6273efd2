//! Sites where a probe would change what the program does are left alone with the reason (hard cases C1, S3, R4), and the
//! program goes on as if nothing had been asked.

use crate::support::assembly::X86;
use crate::support::tool::{Ran, finish, run};
use crate::support::{self, Program, Target};
use std::fs;
use std::process::Command;

/// Runs the program under `count --return PATTERNS`; its output and exit code must be `bare`'s.
fn summary_of(program: &Program, patterns: &[&str], bare: &Ran) -> support::tool::Summary {
    let output = program.dir().join("result");
    let path = program.path().to_str().unwrap();
    let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", path];
    let ran = run(&[&["count", "--return"][..], patterns, &options].concat());
    assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{ran:?}");
    Ran { out: fs::read_to_string(&output).unwrap(), ..ran }.summary()
}

/// Its cold part is reached by a jump, with the function's frame on the stack, and goes on in the function.
const COLD: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    static long seen;
    __attribute__((noinline, cold)) void rare(long n) { seen += n; }
    __attribute__((noinline, noclone)) long often(long n, long *out) {
        long here[8] = {n, n + 1, n + 2, n + 3};
        __asm__ volatile("" : : "r"(here) : "memory");
        if (__builtin_expect(n % 5 == 0, 0)) { rare(here[1]); rare(here[2]); out[0] = here[3]; seen ^= here[0]; }
        return here[0] + out[0];
    }
    __attribute__((noinline, noclone)) static long pointed(long n) { __asm__ volatile("" : "+r"(n)); return n * 3 + 1; }
    long (*volatile by_pointer)(long) = pointed;
    int main(void) {
        long sum = 0, out = 0;
        for (long i = 0; i < 1000; i++) sum += often(i, &out) + by_pointer(i);
        printf("%ld %ld\n", sum, seen);
        return 0;
    }"#;

#[test]
fn c1_parts_that_are_jumped_to_are_not_followed() {
    // That functions have parts is the compiler's default for x86 alone.
    const PARTS: &str = "-freorder-blocks-and-partition";
    for (name, flags) in [
        ("cold", &["-O2", PARTS][..]),
        ("cold_stripped", &["-O2", PARTS, "-s"]),
        ("cold_fixed", &["-O2", PARTS, "-s", "-no-pie"]),
    ] {
        let program = Program::build(name, COLD, flags);
        let bare = finish(&mut Command::new(program.path()));
        assert_eq!(bare.code, Some(0));
        let pattern = format!("{name}:*");
        let summary = summary_of(&program, &[&pattern], &bare);
        let probes = summary.0["probes"].as_array().unwrap();
        // Calls that are known from the code alone are followed in the stripped ones, too.
        assert!(probes.iter().any(|p| p["kind"] == "return" && p["hits"] == 1000), "{name}: {summary:?}");
        if name == "cold" {
            let summary = summary_of(&program, &["cold:often", "cold:often.cold"], &bare);
            assert!(summary.skipped("often.cold").unwrap().contains("jumped to"), "{summary:?}");
            assert_eq!(summary.hits("often", "return"), 1000);
        } else {
            // What is only reached through a pointer is a function, too.
            let followed = |p: &&serde_json::Value| p["kind"] == "return" && p["hits"] == 1000;
            assert_eq!(probes.iter().filter(followed).count(), 2, "{name}: {summary:?}");
            // The same program with its symbols tells where the part is.
            let flags: Vec<&str> = flags.iter().copied().filter(|flag| *flag != "-s").collect();
            let named = Program::build(name, COLD, &flags);
            let symbols = finish(Command::new("nm").arg(named.path())).out;
            let part = symbols.lines().find(|line| line.ends_with(" often.cold")).expect(&symbols);
            let part = part.split(' ').next().unwrap().trim_start_matches('0');
            let ran = run(&["list", &format!("{}:sub_{part}", program.path().display()), "-f", "json"]);
            assert_eq!(ran.json()[0]["no_return_code"], "part", "{ran:?}");
        }
    }
}

/// Reads through a pointer in its first instruction; with an argument, it catches the fault, says where it was, and
/// makes the retry work.
const FAULTS: &str = r#"
    #define _GNU_SOURCE
    #include <signal.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <ucontext.h>
    #include "assembly.h"
    ASSEMBLED(loads, LOADS)
    long loads(long *from);
    static char *page;
    static int at_site;
    INSTALL
    static void fault(int s, siginfo_t *info, void *context) {
        (void)s;
        at_site = IP_OF(context) == (unsigned long)loads && info->si_addr == page;
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
    }
    int main(int argc, char **argv) {
        page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        (void)argv;
        if (argc > 1) install(SIGSEGV, (void *)fault);
        printf("ready\n");
        fflush(stdout);
        char line[16];
        if (!fgets(line, sizeof line, stdin)) return 2;
        long value = loads((long *)page);
        printf("%ld %d\n", value, at_site);
        return 0;
    }"#;

/// Installs a handler that returns to code of its own, which nobody knows: it can be given no stub.
const INSTALL: &str = r#"
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifdef __aarch64__
    __asm__(".text; .globl own_return; own_return: mov x8, #139; svc #0");
    #elif defined __x86_64__
    __asm__(".text; own_return: movl $15, %eax; syscall");
    #else
    __asm__(".text; own_return: trap");
    #endif
    extern char own_return[];
    static void install(int signal, void *handler) {
        struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {handler, 0x04000004, own_return, 0};
        syscall(SYS_rt_sigaction, signal, &action, 0L, 8L);
    }
"#;

/// Why a handler is no help.
#[cfg(not(target_arch = "powerpc64"))]
const NOT_SERVED: &str = if X86 { "could not be exchanged" } else { "handles SIGSEGV itself" };

/// The kernel of powerpc64le takes no code to return to.
#[test]
#[cfg(not(target_arch = "powerpc64"))]
fn s3_what_may_fault_is_not_displaced_where_faults_are_caught() {
    let program = Program::build("faults", &FAULTS.replace("INSTALL", INSTALL), &[]);
    let mut target = program.start(&["catch"]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let ran = run(&["count", "faults:loads", "-p", &pid, "-d", "0.1"]);
    ran.assert_refused(1, &["may fault", NOT_SERVED]);
    before.assert_restored(target.pid());
    target.tell("go");
    assert_eq!((target.line().as_str(), target.wait().code()), ("3 1", Some(0)));
}

/// Divisions fault nowhere else.
#[test]
#[cfg(target_arch = "x86_64")]
fn s3_only_faults_that_the_program_handles_count() {
    // The handler is for divisions; a load cannot raise what it catches, a division can.
    let source = r#"
    #include <signal.h>
    #include <stdio.h>
    __asm__(".text\n.globl loads\n.type loads, @function\nloads: movq (%rdi), %rax\n addq $1, %rax\n ret\n.size loads, .-loads\n"
        ".globl divides\n.type divides, @function\ndivides: xchgq %rdi, %rax\n cqto\n idivq %rsi\n movq %rax, %rax\n ret\n.size divides, .-divides\n");
    long loads(long *from), divides(long a, long b);
    static void fault(int s) { (void)s; }
    INSTALL
    int main(void) {
        install(SIGFPE, (void *)fault);
        long value = 41;
        printf("ready\n");
        fflush(stdout);
        char line[16];
        if (!fgets(line, sizeof line, stdin)) return 2;
        printf("%ld %ld\n", loads(&value), divides(6, 3));
        return 0;
    }"#;
    let program = Program::build("divides", &source.replace("INSTALL", INSTALL), &[]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    run(&["count", "divides:divides", "-p", &pid, "-d", "0.1"])
        .assert_refused(1, &["may fault", "could not be exchanged"]);
    let tool = support::tool::Tool::armed(&["count", "divides:loads", "-p", &pid]);
    target.tell("go");
    assert_eq!(target.line(), "42 2");
    assert!(target.wait().success());
    assert_eq!(tool.ended().hits("loads", "entry"), 1);
}

#[test]
fn s3_a_fault_that_nobody_catches_ends_the_program_as_before() {
    use std::os::unix::process::ExitStatusExt;
    let program = Program::build("faults", &FAULTS.replace("INSTALL", INSTALL), &[]);
    for verb in [None, Some(&["count"][..]), Some(&["count", "--return"])] {
        let mut target: Target = program.start(&[]);
        let pid = target.pid().to_string();
        let tool = verb.map(|v| support::tool::Tool::armed(&[v, &["faults:loads", "-p", &pid]].concat()));
        target.tell("go");
        assert_eq!(target.wait().signal(), Some(libc::SIGSEGV), "{verb:?}");
        if let Some(tool) = tool {
            assert_eq!(tool.ended().hits("loads", "entry"), 1, "{verb:?}");
        }
    }
}

/// Adds by entering a row of instructions at a place that it computes, or in the middle of it at once.
#[cfg(target_arch = "x86_64")]
const SLED: &str = r#"
    #include <stdio.h>
    __asm__(".text\n.globl addn\n.type addn, @function\naddn: push %rax\n pop %rax\n inc %ecx\n inc %ecx\n inc %ecx\n"
        " mov %ecx, %eax\n ret\n.size addn, .-addn\n"
        ".globl enters\n.type enters, @function\nenters: xor %ecx, %ecx\n lea addn(%rip), %rax\n lea 2(%rax,%rdi,2), %rax\n"
        " jmp *%rax\n.size enters, .-enters\n"
        ".globl addm\n.type addm, @function\naddm: push %rax\n pop %rax\n inc %ecx\n inc %ecx\n mov %ecx, %eax\n ret\n.size addm, .-addm\n"
        ".globl enters_middle\n.type enters_middle, @function\nenters_middle: xor %ecx, %ecx\n lea addm+2(%rip), %rdx\n jmp *%rdx\n"
        ".size enters_middle, .-enters_middle\n");
    long enters(long skip), enters_middle(void);
    int main(void) {
        long bad = 0;
        for (int i = 0; i < 300; i++)
            for (long skip = 0; skip < 3; skip++) bad += (int)enters(skip) != 3 - skip || (int)enters_middle() != 2;
        printf("bad %ld\n", bad);
        return bad != 0;
    }"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn c9_a_function_that_is_entered_at_a_computed_place_is_left_alone() {
    let program = Program::build("sled", SLED, &[]);
    let bare = finish(&mut Command::new(program.path()));
    assert_eq!((bare.code, bare.out.as_str()), (Some(0), "bad 0\n"));
    let summary = summary_of(&program, &["sled:*"], &bare);
    let code = |function: &str| {
        let skipped = summary.0["skipped"].as_array().unwrap().iter().find(|s| s["function"] == function);
        skipped.map(|skipped| skipped["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(code("addn").as_deref(), Some("computed_jump"), "{summary:?}");
    // What stands ahead of the place is enough for a short jump, and whoever goes there is no call.
    assert_eq!((code("addm"), summary.hits("addm", "entry")), (None, 0), "{summary:?}");
    // One byte is in nobody's way.
    let path = program.path().to_str().unwrap();
    let traps = run(&["count", "--allow-trap", "sled:addn", "sled:addm", "-o", "/dev/null", "--", path]);
    assert_eq!((traps.code, traps.out.as_str()), (Some(0), "bad 0\n"), "{traps:?}");
}

/// The same where a probe takes one instruction, the first: whoever goes to another one is in nobody's way, and makes no call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const SLED: &str = r#"
    #include <stdio.h>
    #include "assembly.h"
    ASSEMBLED(addn, COUNTS)
    long addn(long n);
    int main(void) {
        long bad = 0;
        for (long i = 0; i < 300; i++)
            for (long skip = 0; skip < 4; skip++) bad += ((long (*)(long))((char *)addn + 4 + 4 * skip))(i) != i + 3 - skip;
        for (long i = 0; i < 300; i++) bad += addn(i) != i + 3;
        printf("bad %ld\n", bad);
        return bad != 0;
    }"#;

#[test]
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn c9_a_function_that_is_entered_at_a_computed_place_counts_calls_alone() {
    let program = Program::build("sled", SLED, &[]);
    let bare = finish(&mut Command::new(program.path()));
    assert_eq!((bare.code, bare.out.as_str()), (Some(0), "bad 0\n"));
    let summary = summary_of(&program, &["sled:*"], &bare);
    assert_eq!(["entry", "return"].map(|kind| summary.hits("addn", kind)), [300; 2]);
}

const GO: &str = "package main\n\nimport \"fmt\"\n\n//go:noinline\nfunc Probed(n int) int {\n\tif n == 0 {\n\t\treturn 0\n\t}\n\
    \treturn Probed(n-1) + Tiny(n)\n}\n\n//go:noinline\nfunc Tiny(n int) int {\n\treturn n/(n+1) + 1\n}\n\nfunc main() {\n\tdone := make(chan int)\n\tfor i := 0; i < 20; i++ {\n\
    \t\tgo func() { done <- Probed(999) }()\n\t}\n\tsum := 0\n\tfor i := 0; i < 20; i++ {\n\t\tsum += <-done\n\t}\n\tfmt.Println(sum)\n}\n";

#[test]
fn r4_go_is_counted_once_where_a_call_begins_again_and_what_is_assemblys_is_refused() {
    let Some(program) = Program::go("gophers", GO, &[]) else { return };
    let (result, path) = (program.dir().join("result"), program.path().to_str().unwrap());
    // A call that finds its stack too small is made again from the start, ahead of the probe.
    for (function, calls) in [("main.Probed", 20_000), ("main.Tiny", 19_980)] {
        let pattern = format!("gophers:{function}");
        let options = [&pattern, "-f", "json", "-o", result.to_str().unwrap(), "--", path];
        let ran = run(&[&["count"], &options[..]].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "19980\n"), "{ran:?}");
        let summary = Ran { out: fs::read_to_string(&result).unwrap(), ..ran }.summary();
        assert_eq!(summary.hits(function, "entry"), calls, "{summary:?}");
    }
    // Behind the entry of what does not check, all threads count in one place.
    if X86 {
        let behind = run(&["count", "gophers:main.Tiny+4", "-o", result.to_str().unwrap(), "--", path]);
        let counted = fs::read_to_string(&result).unwrap();
        assert!(behind.code == Some(0) && counted.contains("19,980  gophers  main.Tiny+0x4"), "{counted}");
    }
    // What Go's assembler made.
    for asked in [["count", "runtime.gogo*"], ["latency", "runtime.gogo*"]] {
        let ran = run(&[asked[0], &format!("gophers:{}", asked[1]), "--", path]);
        ran.assert_refused(1, &["what is left of the stack, and the probe needs some (nosplit"]);
    }
}

/// A program that forbids itself the time stamp counter, in its first thread or in its last.
#[cfg(target_arch = "x86_64")]
const CLOCKLESS: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/prctl.h>
    __attribute__((noinline)) long f(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
    static pthread_barrier_t begun, over;
    static void *forbid(void *yes) {
        if (yes) prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
        pthread_barrier_wait(&begun);
        pthread_barrier_wait(&over);
        long sum = 0;
        for (int i = 0; i < 100; i++) sum += f(i);
        return (void *)sum;
    }
    int main(int argc, char **argv) {
        int all = argc > 1;
        if (all) prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
        pthread_t threads[20];
        pthread_barrier_init(&begun, 0, 21);
        pthread_barrier_init(&over, 0, 21);
        for (int i = 0; i < 20; i++) pthread_create(&threads[i], 0, forbid, (void *)(long)(i == 19));
        pthread_barrier_wait(&begun);
        puts("ready");
        fflush(stdout);
        getchar();
        pthread_barrier_wait(&over);
        long sum = 0;
        void *one;
        for (int i = 0; i < 20; i++) { pthread_join(threads[i], &one); sum += (long)one; }
        printf("%ld\n", sum);
        return 0;
    }"#;

/// Nowhere else can a program forbid itself that.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_that_must_not_read_the_clock_is_counted_and_not_timed() {
    for program in Program::in_both_widths("clockless", CLOCKLESS, &[]) {
        for args in [&[][..], &["all"]] {
            let mut target = program.start(args);
            let (before, text) = (target.text(), target.pid().to_string());
            for verb in ["latency", "trace"] {
                let ran = run(&[verb, "-p", &text, "clockless:f", "-d", "0.1"]);
                ran.assert_refused(1, &["must not read the time stamp counter", "--mechanism step"]);
                before.assert_restored(target.pid());
            }
            let tool = support::tool::Tool::armed(&["count", "--return", "-p", &text, "clockless:f"]);
            target.tell("");
            assert_eq!(target.line(), "101000");
            assert!(target.wait().success());
            let summary = tool.ended();
            assert_eq!([summary.hits("f", "entry"), summary.hits("f", "return")], [2000, 2000]);
        }
    }
}
