//! Programs at the edges of what a tracer that serves traps has to know: one whose first thread has ended, one with breakpoints of
//! its own, one that leaves faults behind by siglongjmp.

use crate::support::Program;
use crate::support::tool::{KINDS_BY_TRAP, RETURN_BY_TRAP, Tool, run};

const MECHANISMS: [&str; 3] = ["step", "emulate", "boost"];

/// The first thread ends; the other one waits in a call for a line of input, then makes another.
const LEADERLESS: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <stdlib.h>
    #if defined __x86_64__ || defined __i386__
    #define KEPT "rbx"
    #elif defined __aarch64__
    #define KEPT "x19"
    #else
    #define KEPT "r30"
    #endif
    __attribute__((noipa)) int slow(int n) { int c = getchar(); return c == EOF ? -1 : n + 1; }
    __attribute__((noipa)) int quick(int n) { __asm__ volatile("" ::: KEPT); return n + 1; }
    static void *work(void *main_thread) {
        pthread_join(*(pthread_t *)main_thread, NULL);
        printf("ready\n");
        fflush(stdout);
        for (int n = 0; (n = slow(quick(n))) > 0;) {
            printf("%d\n", n);
            fflush(stdout);
        }
        exit(0);
    }
    int main(void) {
        static pthread_t self, other;
        self = pthread_self();
        pthread_create(&other, NULL, work, &self);
        pthread_exit(NULL);
    }"#;

#[test]
fn l1_calls_under_way_return_home_though_the_first_thread_has_ended() {
    for program in Program::in_both_widths("leaderless", LEADERLESS, &[]) {
        for mechanism in MECHANISMS {
            let mut target = program.start(&[]);
            let pid = target.pid().to_string();
            let probes = ["--mechanism", mechanism, "-p", &pid, "leaderless:slow", "leaderless:quick"];
            let tool = Tool::armed(&[&["count"], RETURN_BY_TRAP, &probes].concat());
            for n in [2, 4, 6] {
                target.tell("");
                assert_eq!(target.line(), n.to_string(), "{mechanism}");
            }
            // It waits in a followed call again, which returns when the probes are gone.
            target.wait_for_state("SZ");
            let summary = tool.interrupt();
            for kind in KINDS_BY_TRAP {
                assert_eq!(summary.hits("quick", kind), 3, "{mechanism}: {kind}");
            }
            // The first call was under way when the probes came, the last one when they went.
            for (kind, hits) in KINDS_BY_TRAP.iter().zip([3, 2]) {
                assert_eq!(summary.hits("slow", kind), hits, "{mechanism}: {summary:?}");
            }
            target.tell("");
            assert_eq!(target.line(), "8", "{mechanism}");
        }
    }
}

/// `f` starts with a breakpoint of the program's own; its handler does what it hides.
const OWN: &str = r#"
    #define _GNU_SOURCE
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <sys/mman.h>
    #include <ucontext.h>
    #include <unistd.h>
    #include "assembly.h"
    ASSEMBLED(f, "nop; nop; " RETURNS(3))
    ASSEMBLED(g, "nop; " RETURNS(4))
    int f(void), g(void);
    static volatile int trapped;
    static void on_trap(int signal, siginfo_t *info, void *context) {
        trapped += IP_OF(context) == (unsigned long)f + BEHIND_BREAKPOINT;
        GO_PAST_BREAKPOINT(info, context);
    }
    int main(void) {
        struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
        sigaction(SIGTRAP, &action, 0);
        long size = getpagesize();
        char *page = (char *)((uintptr_t)f & -size);
        if (mprotect(page, size, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
        *(volatile breakpoint *)f = BREAKPOINT_BYTES;
        __builtin___clear_cache((char *)f, (char *)f + 8);
        if (mprotect(page, size, PROT_READ | PROT_EXEC)) return 1;
        printf("ready\n");
        fflush(stdout);
        while (getchar() != EOF) {
            int before = trapped;
            int three = f(), four = g();
            printf("%d %d %d\n", three, four, trapped - before);
            fflush(stdout);
        }
        return 0;
    }"#;

#[test]
fn p7_a_breakpoint_of_the_programs_own_stays_its_own() {
    let program = Program::build("own", OWN, &[]);
    for mechanism in MECHANISMS {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let tool = Tool::armed(&["count", "--mechanism", mechanism, "-p", &pid, "own:f", "own:g"]);
        for _ in 0..3 {
            target.tell("");
            assert_eq!(target.line(), "3 4 1", "{mechanism}");
        }
        let summary = tool.interrupt();
        assert!(summary.skipped("f").unwrap().contains("file"), "{summary:?}");
        assert_eq!(summary.hits("g", "entry"), 3, "{mechanism}");
        target.tell("");
        assert_eq!(target.line(), "3 4 1", "{mechanism}");
    }
}

/// Each call faults. The handler of the first hundred repairs what is wrong and returns, that of the others jumps away.
const FAULTS: &str = r#"
    #define _GNU_SOURCE
    #include <setjmp.h>
    #include <signal.h>
    #include <stdio.h>
    #include <ucontext.h>
    #include "assembly.h"
    ASSEMBLED(f, LOADS_INT "; nop; nop; nop")
    int f(int *p);
    static sigjmp_buf back;
    static volatile int jumps, value = 5;
    static void on_fault(int signal, siginfo_t *info, void *context) {
        if (jumps) siglongjmp(back, 1);
        ARGUMENT_OF(context) = (unsigned long)&value;
    }
    int main(void) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
        sigaction(SIGSEGV, &action, 0);
        volatile int good = 0;
        for (volatile int i = 0; i < 100; i++) good += f(0) == 5;
        jumps = 1;
        for (volatile int i = 0; i < 100; i++)
            if (sigsetjmp(back, 1)) good++; else f(0);
        fprintf(stderr, "good %d\n", good);
        return 0;
    }"#;

#[test]
fn s3_a_fault_that_is_left_by_a_jump_is_not_taken_for_one_that_is_repaired() {
    let program = Program::build("faults", FAULTS, &[]);
    let path = program.path().to_str().unwrap();
    for mechanism in MECHANISMS {
        let ran = run(&["count", "--mechanism", mechanism, "-f", "json", "faults:f", "--", path]);
        assert!(ran.err.contains("good 200\n"), "{mechanism}: {ran:?}");
        assert_eq!(ran.summary().hits("f", "entry"), 200, "{mechanism}");
    }
}
