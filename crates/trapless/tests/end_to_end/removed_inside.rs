//! Probes that are taken out while threads are in the bodies of a script, which take longer than a target may stand.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::live::{Live, Told};
use crate::support::tool::{detach, kill_after, length_of, moments, trapless};
use crate::support::{Program, Target, arenas, eventually};
#[cfg(target_arch = "x86_64")]
use std::time::Duration;

/// Threads that hardly ever are elsewhere than in a body which reads `text`. Signals come all the time, to a handler that has a stub of ours
/// meanwhile, and looks where it interrupts the program, once its thread is in the program's own code. It returns at once, or `soon`, or
/// `late`, or not at all and `jumps`.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <ucontext.h>
#include <unistd.h>
#define THREADS 4
extern char __executable_start, etext;
static volatile int stop;
static volatile long handled, foreign, wrong;
static char text[200];
static char mode;
static sigset_t signals;
static _Thread_local sigjmp_buf again;
static _Thread_local volatile int begun;
__attribute__((noinline)) long called(const char *text, long n, double half) { __asm__ volatile("" ::: "memory"); return 2 * n + text[0] + (long)(2 * half); }
static void handler(int number, siginfo_t *info, void *context) {
    handled++;
    // It goes back by the C library, and so is interrupted there.
    if (mode == 'j') siglongjmp(again, 1);
#ifdef __x86_64__
    char *ip = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (begun && (ip < &__executable_start || ip >= &etext)) foreign++;
#endif
    if (mode == 'l') usleep(200000);
    if (mode == 's') usleep(2000);
}
static void *worker(void *unused) {
    begun = 1;
    if (mode == 'j') {
        sigsetjmp(again, 0);
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    }
    for (long n = 0; !stop; n++) {
        if (called(text, n, n % 7 + 0.5) != 2 * n + 'x' + n % 7 * 2 + 1) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    }
    begun = 0;
    return NULL;
}
int main(int argc, char **argv) {
    mode = argc > 1 ? *argv[1] : 0;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    if (mode == 'j') pthread_sigmask(SIG_BLOCK, &signals, NULL);
    memset(text, 'x', sizeof text - 1);
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGUSR1, &action, NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, worker, NULL);
    puts("ready");
    fflush(stdout);
    fd_set in;
    for (;;) {
        FD_ZERO(&in);
        FD_SET(0, &in);
        // Threads that get signals always would never be elsewhere than in their handlers, where these take long.
        struct timeval soon = { .tv_usec = mode == 'l' ? 220000 : mode == 's' ? 3000 : 200 };
        if (select(1, &in, NULL, NULL, &soon) == 1) break;
        for (int i = 0; i < THREADS; i++) pthread_kill(threads[i], SIGUSR1);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("%ld %ld %ld\n", handled, foreign, wrong);
    fflush(stdout);
    return 0;
}
"#;

const SCRIPT: &str = "uprobe:inside:called { @before = count(); @doubles = sum((uint64)(farg0 * 2)); @texts[str(arg0)] = count(); @behind = count(); }";

const THREADS: i64 = 4;

fn nothing_is_left(pid: i32) {
    eventually("the memory goes, once no handler is on its way back into it", || {
        detach(pid);
        arenas(pid).is_empty()
    });
}

/// No result was wrong, and handlers saw the program.
#[track_caller]
fn ends_well(target: &mut Target) {
    ends_well_after(target, 100);
}

/// The same, and more than so many signals were handled.
#[track_caller]
fn ends_well_after(target: &mut Target, signals: u64) {
    target.tell("end");
    let line = target.line();
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    let [handled, foreign, wrong] = numbers[..] else { panic!("{line}") };
    assert!(
        handled > signals && foreign == 0 && wrong == 0,
        "{handled} handled, {foreign} foreign, {wrong} wrong"
    );
}

/// Of how many hits a script says that a handler has cut them short, be it in a body's first instructions or its last.
fn cut_short(told: &Told) -> i64 {
    let note = "trapless: hits that may be in some of the script's numbers only: ";
    let times = told.err.lines().find_map(|line| line.strip_prefix(note)?.split_once(';'));
    times.map_or(0, |(times, _)| times.replace(',', "").parse().unwrap())
}

/// Each hit that has begun its body is in all of its numbers, or handlers have cut it short, which is said; nothing of ours is left, and handlers
/// see the program, bodies that read memory or not.
#[test]
fn threads_finish_the_bodies_they_are_in() {
    let program = Program::build("inside", SOURCE, &["-pthread", "-g"]);
    let mut target = program.start(&[]);
    let before = target.text();
    for _ in 0..10 {
        let live = Live::run(&target, SCRIPT);
        let told = live.end();
        // A handler may be on its way back, longer than removal looks at it.
        if told.memory_stays() {
            nothing_is_left(target.pid());
        }
        before.assert_restored(target.pid());
        let [begun, ended] = ["@before", "@behind"].map(|name| told.value(name));
        let cut = cut_short(&told);
        assert!(begun > 0 && cut <= THREADS && (0..=cut).contains(&(begun - ended)), "{told:?}");
        if cut == 0 {
            told.assert_whole();
        }
        let texts = told.out.lines().find_map(|line| line.strip_prefix("@texts[")?.split_once("]: "));
        let (text, hits) = texts.unwrap();
        assert_eq!(text, "x".repeat(199));
        assert!((ended..=begun).contains(&hits.parse().unwrap()), "{told:?}");
    }
    nothing_is_left(target.pid());
    ends_well(&mut target);
}

/// A handler that takes longer than anybody waits for it goes back to the body that it has interrupted when the numbers are printed, with all registers
/// of the program in the end, and then the rest of ours can go. One that leaves by longjmp goes where it wants, and the body does not end.
#[test]
// Elsewhere handlers see bodies.
#[cfg(target_arch = "x86_64")]
fn hits_that_handlers_cut_short_are_told() {
    let program = Program::build("inside", SOURCE, &["-pthread", "-g"]);
    for mode in ["late", "jumps"] {
        let mut target = program.start(&[mode]);
        let before = target.text();
        eventually("a handler cuts a hit short", || {
            let live = Live::run(&target, SCRIPT);
            // No thread may call before its handler returns.
            std::thread::sleep(Duration::from_millis(400));
            let told = live.end();
            let [begun, ended] = ["@before", "@behind"].map(|name| told.value(name));
            let (cut, is_told) = (begun - ended, cut_short(&told));
            assert!(ended > 0 && (cut..=2 * cut + THREADS).contains(&is_told), "{mode}: {told:?}");
            nothing_is_left(target.pid());
            before.assert_restored(target.pid());
            cut > 0
        });
        // So late are few.
        ends_well_after(&mut target, if mode == "late" { 0 } else { 100 });
    }
}

/// Who comes back soon is waited for.
#[test]
#[cfg(target_arch = "x86_64")]
fn hits_that_handlers_go_back_to_soon_are_whole() {
    let program = Program::build("inside", SOURCE, &["-pthread", "-g"]);
    let mut target = program.start(&["soon"]);
    let mut whole = 0;
    // Most of the time some thread is in its handler.
    for _ in 0..40 {
        let live = Live::run(&target, SCRIPT);
        std::thread::sleep(Duration::from_millis(20));
        let told = live.end();
        whole += u32::from(cut_short(&told) == 0);
        // Beside what is left of another session, handlers would see bodies.
        if told.memory_stays() {
            nothing_is_left(target.pid());
        }
        if whole == 10 {
            break;
        }
    }
    assert_eq!(whole, 10);
    nothing_is_left(target.pid());
    ends_well(&mut target);
}

/// A script says what it has not counted.
#[test]
fn a_script_says_that_its_probes_were_taken_out() {
    let program = Program::build("inside", SOURCE, &["-pthread", "-g"]);
    let mut target = program.start(&[]);
    let before = target.text();
    let live = Live::run(&target, SCRIPT);
    detach(target.pid());
    nothing_is_left(target.pid());
    before.assert_restored(target.pid());
    let told = live.end();
    let lost = "trapless: 1 probe lost (inside:called): `trapless detach` took the probe out; calls after that are not counted";
    assert!(told.err.lines().any(|line| line == lost), "{told:?}");
    assert!((0..=THREADS).contains(&(told.value("@before") - told.value("@behind"))), "{told:?}");
    ends_well(&mut target);
}

/// Where one was killed between two visits, its keeper comes back for the rest.
#[test]
fn p9_killing_detach_while_threads_are_in_bodies_leaves_what_the_next_one_removes() {
    let program = Program::build("inside", SOURCE, &["-pthread", "-g"]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let text = pid.to_string();
    let arguments = ["detach", "-p", &text];
    let armed = || Live::run(&target, SCRIPT).tool.kill();
    armed();
    let whole = length_of(&mut trapless(&arguments));
    for moment in moments(25, whole) {
        armed();
        kill_after(&mut trapless(&arguments), moment);
        detach(pid);
        nothing_is_left(pid);
        before.assert_restored(pid);
    }
    ends_well(&mut target);
}
