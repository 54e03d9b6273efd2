//! Calls that are delayed: threads sleep as long as they are to, whatever interrupts them, and no longer than the probes are there.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::tool::{self, Summary, Tool};
use crate::support::{Program, Target, eventually, wait_until_asleep};
use std::time::Instant;

const C: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone))
/* Microseconds between signals: more where machines are emulated. */
#ifdef __x86_64__
#define OFTEN 200
#else
#define OFTEN 5000
#endif
static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static __thread long ran;
PROBED long take(long number) { ran = now(); __asm__ volatile("" : "+r"(number)); return number; }

struct call { long ahead, behind, result; int error; };
static struct call make(long number) {
    struct call call;
    long start = now();
    ran = 0;
    errno = 77;
    call.result = take(number);
    call.error = errno;
    if (!ran) ran = now();
    call.ahead = ran - start;
    call.behind = now() - ran;
    return call;
}

static long calls, least;
static void *work(void *to) {
    struct call *all = to;
    for (long i = 0; i < calls; i++) {
        struct call call = make(i);
        all->result += call.result != i || call.error != 77;
        all->ahead += call.ahead + call.behind >= least;
    }
    return 0;
}

static volatile long interrupted;
static void look(int signal) { (void)signal; interrupted++; }

int main(void) {
    char line[64];
    signal(SIGALRM, look);
    signal(SIGUSR1, look);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct itimerval often = { { 0, OFTEN }, { 0, OFTEN } }, never = { { 0, 0 }, { 0, 0 } };
        if (*line == 'n' || *line == 's') {
            interrupted = 0;
            if (*line == 's') setitimer(ITIMER_REAL, &often, 0);
            struct call call = make(atol(line + 1));
            setitimer(ITIMER_REAL, &never, 0);
            printf("%ld %ld %ld %d %ld\n", call.ahead, call.behind, call.result, call.error, interrupted);
        }
        /* Four threads: so many calls each, and how many of them took how many milliseconds. */
        if (*line == 'w') {
            pthread_t threads[4];
            struct call all[4];
            char *end;
            calls = strtol(line + 1, &end, 10);
            least = atol(end) * 1000000;
            memset(all, 0, sizeof all);
            for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, work, all + i);
            for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
            for (int i = 1; i < 4; i++) { all[0].ahead += all[i].ahead; all[0].result += all[i].result; }
            printf("%ld long, %ld wrong\n", all[0].ahead, all[0].result);
        }
        if (*line == 'f') {
            int child = fork();
            if (!child) for (;;) pause();
            printf("%d\n", child);
        }
        fflush(stdout);
    }
}
"#;

const MILLISECOND: u64 = 1_000_000;
/// What ends a delay of half a minute has it end before this, on any machine.
const SOON: u64 = 20_000 * MILLISECOND;

fn started() -> Target {
    Program::build("delays", C, &["-g", "-O1"]).start(&[])
}

/// A call, as the target tells it.
#[derive(Debug)]
struct Call {
    /// Nanoseconds until the function ran, or was skipped.
    ahead: u64,
    /// Nanoseconds from then on until its caller went on.
    behind: u64,
    result: i64,
    errno: i64,
    /// How many signals its thread was interrupted by.
    signals: u64,
}

#[track_caller]
fn call(target: &mut Target) -> Call {
    let line = target.line();
    let words: Vec<i64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [ahead, behind, result, errno, signals] = words[..] else { panic!("{line}") };
    Call { ahead: ahead as u64, behind: behind as u64, result, errno, signals: signals as u64 }
}

fn armed(target: &Target, deeds: &[&str]) -> Tool {
    let pid = target.pid().to_string();
    Tool::armed(&[&["inject", "-p", &pid, "delays:take"], deeds].concat())
}

/// The only call of a target while deeds are done to its calls, and what the tool then says. Afterwards it is as it was.
#[track_caller]
fn injected(deeds: &[&str], line: &str) -> (Call, Summary) {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, deeds);
    target.tell(line);
    let called = call(&mut target);
    let summary = tool.interrupt();
    before.assert_restored(target.pid());
    target.tell("n5");
    assert_eq!(call(&mut target).result, 5);
    (called, summary)
}

#[test]
fn a_thread_sleeps_ahead_of_the_function_or_behind_it_and_nothing_else_changes() {
    let (call, summary) = injected(&["--delay", "50ms"], "n3");
    assert!(call.ahead >= 50 * MILLISECOND && (call.result, call.errno) == (3, 77), "{call:?}");
    assert_eq!(summary.hits("take", "entry"), 1);
    let (call, summary) = injected(&["--delay", "50ms", "--result", "retval + 1"], "n3");
    assert!(call.behind >= 50 * MILLISECOND && (call.result, call.errno) == (4, 77), "{call:?}");
    assert_eq!(summary.hits("take", "return"), 1);
}

#[test]
fn delays_go_together_with_all_else_that_is_done() {
    let fails = ["--delay", "20ms", "--return", "-7", "--errno", "ENOSPC"];
    let (call, _) = injected(&fails, "n3");
    assert!(call.ahead >= 20 * MILLISECOND, "{call:?}");
    assert_eq!((call.result, call.errno), (-7, 28));
    let others = ["--delay", "20ms", "--set", "arg0=9", "--signal", "USR1"];
    let (call, summary) = injected(&others, "n3");
    assert!(call.ahead >= 20 * MILLISECOND, "{call:?}");
    assert_eq!((call.result, call.signals, summary.hits("take", "entry")), (9, 1, 1));
}

#[test]
fn a_storm_of_signals_does_not_shorten_a_delay() {
    for deeds in [&["--delay", "300ms"][..], &["--delay", "300ms", "--result", "retval"]] {
        let (call, _) = injected(deeds, "s3");
        assert!(call.ahead + call.behind >= 300 * MILLISECOND && call.signals > 1, "{call:?}");
        assert_eq!((call.result, call.errno), (3, 77));
    }
}

#[test]
fn each_fifth_call_is_delayed_whichever_thread_makes_it() {
    let mut target = started();
    let tool = armed(&target, &["--delay", "20ms", "--every", "5"]);
    target.tell("w20 20");
    let line = target.line();
    let (long, rest) = line.split_once(' ').unwrap();
    // Where a machine is slow, others take as long.
    assert!(long.parse::<u64>().unwrap() >= 16 && rest == "long, 0 wrong", "{line}");
    assert_eq!(tool.interrupt().hits("take", "entry"), 16);
}

#[test]
fn a_dry_run_counts_and_does_not_sleep() {
    let (call, summary) = injected(&["--delay", "30s", "--dry-run"], "n3");
    assert!(call.ahead + call.behind < SOON, "{call:?}");
    assert_eq!((call.result, summary.hits("take", "entry")), (3, 1));
}

#[test]
fn the_last_of_a_number_of_delays_is_not_cut_short() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "200ms", "--count", "4"]);
    target.tell("w1 200");
    assert_eq!(target.line(), "4 long, 0 wrong");
    assert_eq!(tool.ended().hits("take", "entry"), 4);
    before.assert_restored(target.pid());
}

/// Threads of a process that sleeps are ended by `out`; what it then says, and that it took no longer than it may.
#[track_caller]
fn ended<T>(target: &mut Target, line: &str, threads: usize, out: impl FnOnce() -> T) -> (String, T) {
    target.tell(line);
    wait_until_asleep(target.pid(), threads);
    let start = Instant::now();
    let told = out();
    let said = target.line();
    assert!((start.elapsed().as_nanos() as u64) < SOON, "{said}: {:?}", start.elapsed());
    (said, told)
}

#[test]
fn who_takes_the_probes_out_ends_all_delays_and_waits_for_none() {
    for (deeds, kind) in
        [(&["--delay", "30s"][..], "entry"), (&["--delay", "30s", "--result", "retval"], "return")]
    {
        // In the last, the main thread waits for four.
        for (line, threads, said) in
            [("n3", 1, " 3 77 0"), ("s3", 1, " 3 77 "), ("w1 30000", 5, "0 long, 0 wrong")]
        {
            let mut target = started();
            let before = target.text();
            let tool = armed(&target, deeds);
            let (told, summary) = ended(&mut target, line, threads, || tool.interrupt());
            assert!(told.contains(said), "{line}: {told}");
            assert_eq!(summary.hits("take", kind), 4.min(threads as u64), "{line}");
            before.assert_restored(target.pid());
            target.tell("n5");
            assert_eq!(call(&mut target).result, 5);
        }
    }
}

#[test]
fn a_killed_tool_leaves_sleepers_that_sleep_on_until_somebody_takes_the_probes_out() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "1s"]);
    target.tell("n3");
    wait_until_asleep(target.pid(), 1);
    tool.kill();
    let called = call(&mut target);
    assert!(called.ahead >= 1000 * MILLISECOND && called.result == 3, "{called:?}");
    tool::detach(target.pid());
    before.assert_restored(target.pid());
    let tool = armed(&target, &["--delay", "30s"]);
    let pid = target.pid();
    let (said, _) = ended(&mut target, "n4", 1, || {
        tool.kill();
        tool::detach(pid)
    });
    assert!(said.contains(" 4 77 0"), "{said}");
    before.assert_restored(target.pid());
}

#[test]
fn taking_the_probes_out_of_a_forked_child_ends_nobodys_sleep() {
    let mut target = started();
    let tool = armed(&target, &["--delay", "300ms"]);
    target.tell("f");
    let child: i32 = target.line().parse().unwrap();
    tool::detach(child);
    // SAFETY: kill takes two integers. The target has not waited for its child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    target.tell("n3");
    let called = call(&mut target);
    assert!(called.ahead >= 300 * MILLISECOND && called.result == 3, "{called:?}");
    assert_eq!(tool.interrupt().hits("take", "entry"), 1);
}

#[test]
fn a_script_computes_how_long() {
    let mut target = started();
    let pid = target.pid().to_string();
    let script = "uprobe:./delays:take { @ = count(); delay(arg0 * 10ms); if (arg0 == 4) { override(7); } } \
                  uretprobe:./delays:take /retval == 5/ { delay(20ms); }";
    let script = script.replace("./delays", &format!("/proc/{pid}/exe"));
    let errors = tempfile::tempdir().unwrap();
    let errors = errors.path().join("errors");
    let mut command = tool::trapless(&["--unsafe", "-p", &pid, "-e", &script]);
    let tool = Tool::armed_to(&mut command, &errors);
    eventually("armed", || std::fs::read_to_string(&errors).unwrap_or_default().contains("Attached"));
    for (number, result, ahead, behind) in [(-1, -1, 0, 0), (3, 3, 30, 0), (4, 7, 40, 0), (5, 5, 50, 20)] {
        target.tell(&format!("n{number}"));
        let called = call(&mut target);
        assert!(called.ahead >= ahead * MILLISECOND && called.behind >= behind * MILLISECOND, "{called:?}");
        assert_eq!((called.result, called.errno), (result, 77));
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert!(ran.out.contains("@: 4"), "{ran:?}");
}

#[test]
fn what_cannot_be_delayed_is_refused() {
    let target = started();
    let pid = target.pid().to_string();
    let refused = |arguments: &[&str], code: i32, told: &[&str]| {
        let ran = tool::run(&[&["inject", "-p", &pid][..], arguments].concat());
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        told.iter().for_each(|text| assert!(ran.err.contains(text), "{arguments:?}: {text}: {ran:?}"));
    };
    refused(&["delays:take"], 2, &["what to do", "--delay"]);
    refused(&["delays:take", "--delay", "61s"], 2, &["the longest delay is 60s"]);
    refused(&["delays:take", "--delay", "999ns"], 2, &["the shortest delay is 1us"]);
    refused(&["delays:take", "--delay", "5"], 2, &["a time with its unit"]);
    refused(&["delays:take", "--delay", "5ms", "--where", "delay(5)"], 2, &["are for scripts"]);
    refused(&["emulate:delays:take", "--delay", "5ms"], 1, &["it has the thread sleep"]);
    let script = format!("uprobe:/proc/{pid}/exe:take {{ delay(5ms); }}");
    let ran = tool::run(&["-p", &pid, "-e", &script]);
    assert!(ran.code == Some(2) && ran.err.contains("delay() is unsafe"), "{ran:?}");
    if let Some(narrow) = Program::narrow("delays32", C, &["-g"]) {
        let target = narrow.start(&[]);
        let pid = target.pid().to_string();
        let ran = tool::run(&["inject", "-p", &pid, "delays32:take", "--delay", "5ms"]);
        assert!(ran.code == Some(2) && ran.err.contains("delay() needs compiled code"), "{ran:?}");
    }
}
