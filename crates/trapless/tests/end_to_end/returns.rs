//! Followed calls that do not simply return (hard cases R1, R2, R3, R5, R6): the program must not notice, and calls after
//! them are followed as before.

use crate::support::Program;
use crate::support::tool::{Ran, finish, run};
use std::process::Command;

/// A program, how it is compiled, and how often `probed` returns and is entered.
struct Case {
    name: &'static str,
    source: &'static str,
    flags: &'static [&'static str],
    /// Entries, where they are known.
    entries: Option<u64>,
    /// Returns that are seen, where they are known.
    returns: Option<u64>,
}

/// Runs the program as it is, then with all its functions followed; its output and exit code must be the same.
fn same(case: &Case) {
    let program = Program::build(case.name, case.source, case.flags);
    let bare = finish(&mut Command::new(program.path()));
    assert_eq!(bare.code, Some(0), "{}: {bare:?}", case.name);
    let path = program.path().to_str().unwrap();
    let output = program.dir().join("result");
    let pattern = format!("{}:*", case.name);
    for verb in [&["count", "--return"][..], &["latency"]] {
        let options = [&pattern, "-f", "json", "-o", output.to_str().unwrap(), "--", path];
        let ran = run(&[verb, &options].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{} {verb:?}: {ran:?}", case.name);
        let summary = Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
        if let (Some(entries), true) = (case.entries, verb[0] == "count") {
            assert_eq!(summary.hits("probed", "entry"), entries, "{}", case.name);
        }
        if let Some(returns) = case.returns {
            assert_eq!(summary.hits("probed", "return"), returns, "{} {verb:?}", case.name);
        }
    }
}

#[test]
fn r1_recursion_deeper_than_any_table() {
    same(&Case {
        name: "deep",
        source: r#"
            #include <stdio.h>
            #include <sys/resource.h>
            __attribute__((noinline, noclone)) long probed(long n) {
                volatile long here = n;
                return n == 0 ? 0 : probed(n - 1) + (here == n);
            }
            int main(void) {
                long sum = 0;
                for (int i = 0; i < 3; i++) sum += probed(50000 - 1);
                printf("%ld\n", sum);
                return 0;
            }"#,
        flags: &["-fno-optimize-sibling-calls"],
        entries: Some(150_000),
        returns: None,
    });
}

#[test]
fn r1_mutual_recursion_and_tail_calls() {
    same(&Case {
        name: "tails",
        source: r#"
            #include <stdio.h>
            __attribute__((noinline, noclone)) long last(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
            __attribute__((noinline, noclone)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return last(n * 2); }
            __attribute__((noinline, noclone)) long first(long n) { __asm__ volatile("" : "+r"(n)); return probed(n + 3); }
            long odd(long n);
            __attribute__((noinline, noclone)) long even(long n) { __asm__ volatile("" : "+r"(n)); return n ? odd(n - 1) + 1 : 0; }
            __attribute__((noinline, noclone)) long odd(long n) { __asm__ volatile("" : "+r"(n)); return n ? even(n - 1) + 1 : 0; }
            __attribute__((noinline, noclone)) long loop(long n) { __asm__ volatile("" : "+r"(n)); return n ? loop(n - 1) : 7; }
            int main(void) {
                long sum = 0;
                for (long i = 0; i < 10000; i++) sum += first(i);
                sum += even(300) + odd(301) + loop(1000);
                printf("%ld\n", sum);
                return 0;
            }"#,
        flags: &["-O2"],
        entries: Some(10_000),
        returns: Some(10_000),
    });
}

#[test]
fn r2_longjmp_over_followed_calls() {
    same(&Case {
        name: "jumps",
        source: r#"
            #include <setjmp.h>
            #include <stdio.h>
            static jmp_buf home;
            __attribute__((noinline, noclone)) void thrown(int n) { volatile char space[64]; space[n % 64] = 1; if (n % 3) longjmp(home, n + 1); }
            __attribute__((noinline, noclone)) void between(int n) { volatile char space[128]; space[n % 128] = 1; thrown(n); space[1] = 2; }
            __attribute__((noinline, noclone)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
            int main(void) {
                volatile long sum = 0, returned = 0;
                for (volatile int i = 0; i < 100000; i++) {
                    if (!setjmp(home)) { between(i); returned++; }
                    sum = probed(sum);
                }
                printf("%ld %ld\n", sum, returned);
                return 0;
            }"#,
        flags: &[],
        entries: Some(100_000),
        returns: Some(100_000),
    });
}

#[test]
fn r2_coroutines_return_in_any_order_and_on_any_thread() {
    same(&Case {
        name: "coroutines",
        source: r#"
            #include <pthread.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <ucontext.h>
            enum { ROUTINES = 50, TURNS = 200 };
            static ucontext_t routine[ROUTINES], scheduler[ROUTINES];
            static long sum[ROUTINES];
            __attribute__((noinline, noclone)) long probed(int me, long n) {
                volatile long kept = n;
                swapcontext(&routine[me], &scheduler[me]);
                return kept + 1;
            }
            static void body(int me) {
                for (int turn = 0; turn < TURNS; turn++) sum[me] += probed(me, turn);
                for (;;) swapcontext(&routine[me], &scheduler[me]);
            }
            static void *turn(void *order) {
                for (int i = 0; i < ROUTINES; i++) {
                    int me = (i * 7 + (int)(long)order) % ROUTINES;
                    swapcontext(&scheduler[me], &routine[me]);
                }
                return 0;
            }
            int main(void) {
                for (int me = 0; me < ROUTINES; me++) {
                    getcontext(&routine[me]);
                    routine[me].uc_stack.ss_sp = malloc(65536);
                    routine[me].uc_stack.ss_size = 65536;
                    makecontext(&routine[me], (void (*)(void))body, 1, me);
                }
                for (long order = 0; order < TURNS + 1; order++) {
                    if (order % 5) { turn((void *)order); continue; }
                    pthread_t other;
                    pthread_create(&other, 0, turn, (void *)order);
                    pthread_join(other, 0);
                }
                long all = 0;
                for (int me = 0; me < ROUTINES; me++) all += sum[me];
                printf("%ld\n", all);
                return 0;
            }"#,
        flags: &[],
        entries: Some(50 * 200),
        returns: None,
    });
}

#[test]
fn r2_r3_threads_that_end_inside_a_call() {
    same(&Case {
        name: "exits",
        source: r#"
            #define _GNU_SOURCE
            #include <pthread.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <unistd.h>
            static volatile long cleaned;
            static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
            static void clean(void *unused) { (void)unused; pthread_mutex_lock(&lock); cleaned++; pthread_mutex_unlock(&lock); }
            __attribute__((noinline, noclone)) void leave(long n) { if (n % 2) pthread_exit((void *)n); for (;;) pause(); }
            __attribute__((noinline, noclone)) void probed(long n) {
                pthread_cleanup_push(clean, 0);
                leave(n);
                pthread_cleanup_pop(0);
            }
            static void *body(void *n) { probed((long)n); return 0; }
            int main(void) {
                for (long round = 0; round < 100; round++) {
                    pthread_t id[4];
                    for (long i = 0; i < 4; i++) pthread_create(&id[i], 0, body, (void *)i);
                    for (int i = 0; i < 4; i++) {
                        void *result;
                        if (i % 2 == 0) pthread_cancel(id[i]);
                        pthread_join(id[i], &result);
                        if (result != (i % 2 ? (void *)(long)i : PTHREAD_CANCELED)) abort();
                    }
                }
                printf("%ld\n", cleaned);
                return 0;
            }"#,
        flags: &[],
        entries: Some(400),
        returns: Some(0),
    });
}

#[test]
fn r3_a_backtrace_names_the_callers() {
    same(&Case {
        name: "backtraces",
        source: r#"
            #include <execinfo.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            static long right;
            __attribute__((noinline, noclone)) void look(void) {
                void *frame[64];
                int n = backtrace(frame, 64);
                char **name = backtrace_symbols(frame, n);
                int found = 0;
                for (int i = 0; i < n; i++) found |= strstr(name[i], "(look+") ? 1 : strstr(name[i], "(probed+") ? 2 : strstr(name[i], "(outer+") ? 4 : strstr(name[i], "(main+") ? 8 : 0;
                right += found == 15;
                free(name);
            }
            __attribute__((noinline, noclone)) void probed(int n) { volatile char space[256]; space[n] = 1; if (n) look(); space[n]++; }
            __attribute__((noinline, noclone)) void outer(int n) { probed(n); __asm__ volatile(""); }
            int main(void) {
                for (int i = 0; i < 100; i++) outer(i % 2);
                printf("%ld\n", right);
                return 0;
            }"#,
        flags: &["-rdynamic", "-fno-optimize-sibling-calls"],
        entries: Some(100),
        returns: None,
    });
}

#[test]
fn r5_values_of_every_kind_come_back() {
    same(&Case {
        name: "values",
        source: r#"
            #include <complex.h>
            #ifdef __x86_64__
            #include <immintrin.h>
            #endif
            #include <setjmp.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <sys/wait.h>
            #include <unistd.h>
            #define KEPT __attribute__((noinline, noclone))
            struct large { long word[9]; };
            struct pair { long a; double b; };
            KEPT struct large hidden(long n) { struct large l; for (int i = 0; i < 9; i++) l.word[i] = n + i; return l; }
            KEPT struct pair two(long n) { return (struct pair){n, n * 0.5}; }
            #ifdef __SIZEOF_INT128__
            typedef __int128 wider;
            #else
            typedef long long wider;
            #endif
            KEPT wider wide(long n) { return ((wider)n << (8 * sizeof(wider) - 58)) + n; }
            KEPT long double x87(long double n) { return n * 1.0000000000000000001L + 3; }
            KEPT _Complex long double two_x87(long double n) { return n + 2.5L * n * I; }
            KEPT double real(double n) { return n / 3; }
            #ifdef __x86_64__
            KEPT __attribute__((target("avx"))) __m256i vector(long n) { return _mm256_set_epi64x(n, n + 1, n + 2, n + 3); }
            KEPT __attribute__((target("avx"))) long add(long n) {
                long out[4];
                _mm256_storeu_si256((void *)out, vector(n));
                return out[0] + 2 * out[1] + 3 * out[2] + 4 * out[3];
            }
            #define VECTORS __builtin_cpu_supports("avx")
            #else
            typedef long words __attribute__((vector_size(16)));
            KEPT words vector(long n) { return (words){n, n + 1}; }
            KEPT long add(long n) { words got = vector(n); return got[0] + 2 * got[1]; }
            #define VECTORS 1
            #endif
            KEPT __attribute__((noreturn)) void end(int code) { _exit(code); }
            static jmp_buf twice;
            KEPT int again(int n) { int seen = setjmp(twice); if (seen < n) longjmp(twice, seen + 1); return seen; }
            KEPT long probed(long n) { __asm__ volatile("" : "+r"(n)); return n; }
            KEPT int spawn(int code) {
                pid_t child = vfork();
                if (child == 0) end(code);
                int status;
                waitpid(child, &status, 0);
                return WEXITSTATUS(status);
            }
            int main(void) {
                long double sum = 0;
                for (long i = 0; i < 1000; i++) {
                    struct large l = hidden(i);
                    struct pair p = two(i);
                    _Complex long double c = two_x87(i);
                    sum += l.word[8] + p.a + p.b + (long)(wide(i) >> (8 * sizeof(wider) - 58)) + x87(i) + creall(c) + cimagl(c) + real(i) + again(i % 5) + probed(i);
                    if (VECTORS) sum += add(i);
                }
                for (int i = 0; i < 20; i++) sum += spawn(i);
                printf("%.18Lg\n", sum);
                return 0;
            }"#,
        flags: &["-O2"],
        entries: Some(1000),
        returns: Some(1000),
    });
}

#[test]
fn r6_functions_that_read_their_return_address_are_followed_and_those_that_return_twice_refused() {
    let program = Program::build(
        "callers",
        r#"
            #define _GNU_SOURCE
            #include <dlfcn.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include "assembly.h"
            extern char __executable_start, etext;
            #define KEPT __attribute__((noinline, noclone))
            KEPT int asks(void) { char *caller = __builtin_return_address(0); return caller >= &__executable_start && caller < &etext; }
            KEPT int hands_on(int n) { __asm__ volatile("" : "+r"(n)); return asks(); }
            ASSEMBLED(here, RETURN_ADDRESS)
            void *here(void);
            int main(void) {
                int sum = 0;
                for (int i = 0; i < 10; i++) sum += hands_on(i) + ((char *)here() < &etext);
                sum += dlsym(RTLD_NEXT, "malloc") != 0;
                sum += dlopen("libm.so.6", RTLD_NOW) != 0;
                printf("%d\n", sum);
                return 0;
            }"#,
        &["-O2", "-no-pie"],
    );
    let path = program.path().to_str().unwrap();
    let output = program.dir().join("result");
    let to = output.to_str().unwrap();
    let patterns = ["callers:*", "libc.so.6:dl*", "libc.so.6:*setjmp*", "libc.so.6:vfork"];
    let options = ["-f", "json", "-o", to, "--", path];
    let ran = run(&[&["count", "--return"][..], &patterns, &options].concat());
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "22\n"), "{ran:?}");
    let summary = Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
    for (function, calls) in [("asks", 10), ("here", 10), ("dlsym", 1), ("dlopen", 1)] {
        // Where a register has it, and in 32 bits, who looks at it there cannot be followed.
        if cfg!(not(target_arch = "x86_64"))
            && let Some(reason) = summary.skipped(function)
        {
            let reads = ["reads its own return address", "chooses by its return address"];
            assert!(reads.iter().any(|text| reason.contains(text)), "{function}: {reason}");
            continue;
        }
        let hits = ["entry", "return"].map(|kind| summary.hits(function, kind));
        assert_eq!(hits, [calls; 2], "{function}");
    }
    for function in ["_setjmp", "vfork"] {
        let reason = summary.skipped(function).unwrap_or_else(|| panic!("{function}: {summary:?}"));
        assert!(reason.contains("exactly once"), "{function}: {reason}");
    }
}
