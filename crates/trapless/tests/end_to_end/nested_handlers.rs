//! Handlers that interrupt each other, each on a stack of its own: the context that the outermost one has
//! saved lies on a stack that its thread is not on now. In a program with so much memory that not all of it
//! is looked through.

use crate::support::assembly::X86;
use crate::support::park::park;
use crate::support::tool::{Ran, Tool, detach, run};
use crate::support::{Program, Target, eventually};

/// Calls `subject` without a pause, on the stack that the first argument says. SIGUSR1 is handled there,
/// SIGUSR2 on an alternate stack where the second one says, and SIGURG, which may interrupt that, on another
/// alternate one. Each handler waits until it is let go. With a third argument each handler is for one signal
/// only (`once`), or the first one needs more stack than there is (`overflow`), and goes on when that was
/// handled. Or the stack is full of what looks like contexts of signals, each with another stack pointer
/// (`forged`).
const NESTED: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#define SIZE (64 << 10)
#define BALLAST (80 << 20)
#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif
long subject(long x);
#include "assembly.h"
ASSEMBLED(subject, TWICE_AND_ONE)
static volatile unsigned calls, wrong;
static volatile int in[3], go[3], scrub;
static char in_bss[2][SIZE];
static void *alternate[2];
static ucontext_t home, worker;
static void use_stack(int index) {
    stack_t stack = { .ss_sp = alternate[index], .ss_size = SIZE, .ss_flags = SS_AUTODISARM };
    if (sigaltstack(&stack, NULL)) abort();
}
static void hold(int index) { in[index] = 1; while (!go[index]) usleep(500); go[index] = in[index] = 0; }
/* What is set is disarmed by each handler, wherever that runs. */
static const char *how = "";
static sigjmp_buf back;
static __attribute__((noinline)) int recurse(int depth) {
    volatile char frame[3 << 10];
    frame[0] = depth;
    return recurse(depth + 1) + frame[0];
}
static void first(int signal) {
    use_stack(0);
    if (!strcmp(how, "overflow") && !sigsetjmp(back, 1)) { in[0] = 1; recurse(0); }
    hold(0);
}
static void overflowed(int signal) { hold(1); siglongjmp(back, 1); }
static void second(int signal) { use_stack(1); hold(1); }
static void third(int signal) { hold(2); }
/* What handlers and detours have left behind on stacks is overwritten. */
static __attribute__((noinline)) void overwrite(void) {
    volatile char junk[SIZE / 2];
    for (unsigned i = 0; i < sizeof junk; i++) junk[i] = 1;
    for (int i = 0; i < 2; i++) memset(alternate[i], 1, SIZE);
}
static void body(void) {
    for (long x = 0;; x++) {
        if (scrub) { overwrite(); scrub = 0; }
        if (subject(x) != 2 * x + 1) wrong++;
        calls++;
    }
}
/* Whatever the thread that has made it blocks. */
static void *start(void *nothing) {
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    body();
    return nothing;
}
static void *map(void) { return mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void *memory(const char *place) { return strcmp(place, "heap") ? map() : malloc(SIZE); }
static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags | (strcmp(how, "once") ? 0 : SA_RESETHAND) };
    sigaction(signal, &action, NULL);
}
int main(int argc, char **argv) {
    char local[2][SIZE];
    const char *calls_on = argv[1], *place = argv[2];
    if (argc > 3) how = argv[3];
    char *ballast = malloc(BALLAST);
    memset(ballast, 1, BALLAST);
    for (int i = 0; i < 2; i++)
        alternate[i] = !strcmp(place, "bss") ? in_bss[i] : !strcmp(place, "local") ? local[i] : memory(place);
    handle(SIGUSR1, first, 0);
    handle(SIGUSR2, second, SA_ONSTACK);
    handle(SIGURG, third, SA_ONSTACK);
    if (!strcmp(how, "overflow")) handle(SIGSEGV, overflowed, SA_ONSTACK);
    if (!strcmp(how, "forged")) {
        unsigned long long *word = (void *)local;
        for (long i = 0; i < sizeof local / 32; i++, word += 4) {
            word[0] = (unsigned long)ballast + BALLAST / (sizeof local / 32) * i;
            word[1] = (unsigned long)subject;
            word[3] = 0x002b000000000033;
        }
    }
    printf("ready %lx %lx %lx %lx %lx %lx\n", (long)subject, (long)&calls, (long)&wrong, (long)in, (long)go, (long)&scrub);
    fflush(stdout);
    if (!strcmp(calls_on, "own")) start(NULL);
    if (!strcmp(calls_on, "thread")) {
        pthread_t thread;
        sigset_t all;
        sigfillset(&all);
        /* Ahead of the calls: who sees one may send a signal, and that is for the other thread. */
        pthread_sigmask(SIG_SETMASK, &all, NULL);
        pthread_create(&thread, NULL, start, NULL);
        for (;;) pause();
    }
    getcontext(&worker);
    worker.uc_stack.ss_sp = memory(calls_on);
    worker.uc_stack.ss_size = SIZE;
    makecontext(&worker, body, 0);
    swapcontext(&home, &worker);
}
"#;

/// Where the calls run, where alternate stacks are, and how many handlers there are.
const CASES: &[(&str, &str, usize)] = &[
    ("own", "bss", 2),
    ("own", "heap", 2),
    ("own", "mapped", 2),
    ("own", "local", 2),
    ("thread", "bss", 2),
    ("thread", "mapped", 3),
    ("heap", "bss", 2),
    ("heap", "heap", 3),
    ("mapped", "heap", 2),
    ("own", "bss", 3),
    ("own", "local", 3),
];

const SIGNALS: [i32; 3] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGURG];

fn half(target: &Target, address: u64) -> u32 {
    u32::from_le_bytes(target.read(address, 4).try_into().unwrap())
}

fn run_on(target: &mut Target, case: &str) {
    let before = half(target, target.address(1));
    eventually("it calls", || {
        !target.is_alive() || half(target, target.address(1)).wrapping_sub(before) > 2000
    });
    assert!(target.is_alive(), "{case}: {:?}", target.wait());
    assert_eq!(half(target, target.address(2)), 0, "{case}: wrong results");
}

/// The thread that calls is interrupted `steps` instructions behind its next call, and each handler but the
/// last by the next.
fn interrupt(target: &Target, steps: usize, handlers: usize) {
    eventually("it calls", || half(target, target.address(1)) > 0);
    target.freeze();
    // The leader waits where another thread calls.
    park(target, *target.threads().last().unwrap(), target.address(0), steps);
    for (index, signal) in SIGNALS.into_iter().enumerate().take(handlers) {
        target.signal(signal);
        target.thaw();
        eventually("a handler waits", || half(target, target.address(3) + 4 * index as u64) == 1);
    }
}

/// The handlers end, the last one first.
fn let_go(target: &mut Target, handlers: usize, case: &str) {
    for index in (0..handlers).rev() {
        target.write(target.address(4) + 4 * index as u64, &1u32.to_le_bytes());
        let waits = target.address(3) + 4 * index as u64;
        eventually("a handler ends", || !target.is_alive() || half(target, waits) == 0);
    }
    target.write(target.address(5), &1u32.to_le_bytes());
    run_on(target, case);
}

fn count_for_a_moment(target: &Target) -> Ran {
    run(&["count", "-p", &target.pid().to_string(), "nested:subject", "-d", "0.05", "-f", "json"])
}

/// How many sessions `status` says to have left memory in the process.
fn kept(pid: i32) -> usize {
    let status = run(&["status", "-p", &pid.to_string(), "-f", "json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    status.json().iter().filter(|row| row["type"] == "kept").count()
}

const ONE_IS_DISPLACED: &str =
    "nobody is interrupted inside of what is displaced where that is one instruction";

/// What is interrupted by so many handlers is not patched, goes on, and can be probed then.
fn keeps_its_site_unpatched(
    program: &Program,
    arguments: &[&str],
    interrupt: impl Fn(&Target),
    handlers: usize,
) {
    let case = format!("{arguments:?}, {handlers}, in 32 bits: {}", program.is_32bit());
    let mut target = program.start(arguments);
    let before = target.text();
    interrupt(&target);
    let ran = count_for_a_moment(&target);
    assert!(ran.err.contains("displaced instructions"), "{case}: {ran:?}");
    let_go(&mut target, handlers, &case);
    let ran = count_for_a_moment(&target);
    assert_eq!(ran.code, Some(0), "{case}: {ran:?}");
    run_on(&mut target, &case);
    detach(target.pid());
    before.assert_restored(target.pid());
}

#[test]
fn a_context_below_handlers_on_stacks_of_their_own_keeps_its_site_unpatched() {
    if !X86 {
        return trapless_testing::inapplicable!("{ONE_IS_DISPLACED}");
    }
    for program in Program::in_both_widths("nested", NESTED, &[]) {
        for &(calls_on, place, handlers) in CASES {
            let interrupt = |target: &Target| interrupt(target, 1, handlers);
            keeps_its_site_unpatched(&program, &[calls_on, place], interrupt, handlers);
        }
    }
}

#[test]
fn a_context_is_found_below_handlers_that_the_program_has_no_more() {
    if !X86 {
        return trapless_testing::inapplicable!("{ONE_IS_DISPLACED}");
    }
    for program in Program::in_both_widths("nested", NESTED, &[]) {
        keeps_its_site_unpatched(&program, &["own", "bss", "once"], |target| interrupt(target, 2, 3), 3);
    }
}

#[test]
fn a_context_is_found_on_a_stack_that_has_overflowed() {
    if !X86 {
        return trapless_testing::inapplicable!("{ONE_IS_DISPLACED}");
    }
    for program in Program::in_both_widths("nested", NESTED, &[]) {
        for calls_on in ["own", "thread"] {
            let overflow = |target: &Target| {
                interrupt(target, 1, 1);
                eventually("a handler waits", || half(target, target.address(3) + 4) == 1);
            };
            keeps_its_site_unpatched(&program, &[calls_on, "mapped", "overflow"], overflow, 2);
        }
    }
}

#[test]
fn contexts_that_a_program_has_made_up_lead_nowhere() {
    let program = Program::build("nested", NESTED, &[]);
    let mut target = program.start(&["own", "bss", "forged"]);
    let before = target.text();
    let ran = count_for_a_moment(&target);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    run_on(&mut target, "forged");
    detach(target.pid());
    before.assert_restored(target.pid());
}

#[test]
fn a_detour_below_handlers_on_stacks_of_their_own_can_be_gone_on_in_after_removal() {
    for program in Program::in_both_widths("nested", NESTED, &[]) {
        // The program's place is the site itself, an instruction of the detour that is none of the program's,
        // and the inside of what is displaced.
        for (index, &(calls_on, place, handlers)) in CASES.iter().enumerate() {
            let steps = [1, 4, 8][index % 3];
            let case =
                format!("{calls_on}, {place}, {handlers}, {steps}, in 32 bits: {}", program.is_32bit());
            let mut target = program.start(&[calls_on, place]);
            let (pid, before) = (target.pid(), target.text());
            let tool = Tool::armed(&["count", "-p", &pid.to_string(), "nested:subject"]);
            run_on(&mut target, &case);
            interrupt(&target, steps, handlers);
            tool.interrupt();
            // In 32-bit programs handlers see our detours, and what a signal interrupted in one leads back
            // there.
            if program.is_32bit() {
                assert_eq!(kept(pid), 1, "{case}");
            }
            let_go(&mut target, handlers, &case);
            detach(pid);
            assert_eq!(kept(pid), 0, "{case}");
            before.assert_restored(pid);
        }
    }
}
