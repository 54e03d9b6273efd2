//! Counts are exact: a function called N times from each of T threads shows N × T entries and returns (hard cases S5,
//! S6 and the first claim of the tool).

use crate::support::Program;
use crate::support::tool::run;

const THREADS: &str = r#"
#include <pthread.h>
#include <stdlib.h>
__attribute__((noinline, noclone)) long probed(long x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
static long calls;
static void *work(void *unused) { for (long i = 0; i < calls; i++) probed(i); return unused; }
int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    pthread_t id[64];
    calls = atol(argv[2]);
    for (int i = 0; i < threads; i++) pthread_create(&id[i], 0, work, 0);
    for (int i = 0; i < threads; i++) pthread_join(id[i], 0);
    return 0;
}
"#;

#[test]
fn every_call_on_every_thread_is_counted() {
    let program = Program::build("threads", THREADS, &[]);
    let path = program.path().to_str().unwrap();
    for threads in [1, 2, 4, 16, 64] {
        let calls = 200_000 / threads;
        let (t, n) = (threads.to_string(), calls.to_string());
        let command = ["--", path, &t, &n];
        let counted = run(&[&["count", "--return", "threads:probed", "-f", "json"], &command[..]].concat());
        let summary = counted.summary();
        for kind in ["entry", "return"] {
            assert_eq!(summary.hits("probed", kind), threads * calls, "{kind}, {threads} threads");
        }
        let timed = run(&[&["latency", "threads:probed", "-f", "json"], &command[..]].concat()).summary();
        assert_eq!(timed.hits("probed", "return"), threads * calls, "latency, {threads} threads");
        assert_eq!(timed.0["probes"][0]["lost"], 0);
    }
}

/// Signals arrive at a high rate, on an alternate stack, and their handler calls the probed function too; so does a
/// thread that blocks every signal and takes some through a signalfd, and a handler for SIGTRAP.
const SIGNALS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#include "assembly.h"
__attribute__((noinline, noclone)) long probed(long x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
static volatile long in_handler, in_trap;
static void tick(int s) { (void)s; for (int i = 0; i < 3; i++) probed(i); in_handler += 3; }
static void trap(int s, siginfo_t *info, void *context) { (void)s; probed(0); in_trap++; GO_PAST_BREAKPOINT(info, context); }
static void *blocked(void *unused) {
    sigset_t all, usr;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR2);
    int fd = signalfd(-1, &usr, 0);
    for (int i = 0; i < 1000; i++) {
        struct signalfd_siginfo info;
        pthread_kill(pthread_self(), SIGUSR2);
        if (read(fd, &info, sizeof info) != sizeof info || info.ssi_signo != SIGUSR2) exit(9);
        probed(i);
    }
    return unused;
}
int main(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, 0);
    struct sigaction on_tick = {.sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct sigaction on_trap = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGALRM, &on_tick, 0);
    sigaction(SIGTRAP, &on_trap, 0);
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &usr, 0);
    pthread_t id;
    pthread_create(&id, 0, blocked, 0);
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, 0);
    long calls = 0;
    while (in_handler < 6000) { probed(calls++); if (calls % 5000 == 0) BREAKPOINT(); }
    setitimer(ITIMER_REAL, &never, 0);
    pthread_join(id, 0);
    printf("%ld\n", calls + in_handler + in_trap + 1000);
    return 0;
}
"#;

#[test]
fn s5_s6_signal_handlers_that_call_what_they_interrupt_are_counted_exactly() {
    let program = Program::build("signals", SIGNALS, &[]);
    let path = program.path().to_str().unwrap();
    for verb in [&["count", "--return"][..], &["latency"], &["trace", "--return", "--args", "2"]] {
        let output = program.dir().join("result");
        let to = output.to_str().unwrap();
        let options = ["signals:probed", "-f", "json", "-o", to, "--", path];
        let mut ran = run(&[verb, &options].concat());
        assert_eq!(ran.code, Some(0), "{verb:?} {ran:?}");
        let calls: u64 = ran.out.trim().parse().unwrap();
        ran.out = std::fs::read_to_string(&output).unwrap();
        if verb[0] == "trace" {
            // Slow enough that rings can run full: then the records that are lost are counted.
            continue;
        }
        assert_eq!(ran.summary().hits("probed", "return"), calls, "{verb:?}");
    }
}
