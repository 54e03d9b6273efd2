//! Threads that sleep in a delay: what becomes of them when handlers jump out of it, call what is delayed, or fork there; when threads, programs and other tools
//! end meanwhile; and in sandboxes.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::family::children;
use crate::support::text::eventually_nothing_is_left;
use crate::support::tool::{self, Tool};
use crate::support::{Program, Target, counting_tells_unwinders, mapping, wait_until_asleep};
use std::mem::offset_of;
use std::time::{Duration, Instant};
use trapless_wire::{Header, PAGE};

const C: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone))
PROBED long take(long number) { __asm__ volatile("" : "+r"(number)); return number; }
PROBED long other(long number) { __asm__ volatile("" : "+r"(number)); return number; }

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static void say(const char *who, long number) {
    long start = now();
    errno = 77;
    long result = take(number);
    int error = errno;
    printf("%s %ld %ld %d\n", who, now() - start, result, error);
}
static int awaited;
static void *sleeper(void *to) {
    if (to) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
    if (to == &awaited) for (;;) pause();
    /* What is left on the stack is in pages that the C library gives back when the thread has ended, be they 64 KiB large. */
    volatile char deep[256 << 10];
    deep[0] = 3;
    return (void *)take(deep[0]);
}
static void after(long milliseconds) {
    struct itimerval once = { { 0, 0 }, { 0, milliseconds * 1000 } };
    setitimer(ITIMER_REAL, &once, 0);
}

static sigjmp_buf back;
static void jumps(int signal) { (void)signal; siglongjmp(back, 1); }
static volatile long called;
static void calls(int signal) {
    (void)signal;
    if (write(1, "in\n", 3) == 3) called = take(2);
}
static void waits(int signal) {
    char byte;
    (void)signal;
    if (write(1, "in\n", 3) == 3) called = read(0, &byte, 1);
}
static volatile int forked;
static void forks(int signal) { (void)signal; forked = fork(); }

/* Who makes one of the calls by which bodies sleep is killed. */
static int sandboxed(void) {
    struct sock_filter all[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof all / sizeof *all, all };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    char line[64];
    pthread_t thread;
    (void)arguments;
    if (count > 1 && sandboxed()) return 1;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long number = atol(line + 1), left = 0;
        switch (*line) {
        case 'n': say("main", number); break;
        case 'o': printf("%ld\n", other(number)); break;
        case 'j':
            signal(SIGALRM, jumps);
            for (volatile long i = 0; i < number; i++) {
                if (sigsetjmp(back, 1)) { left++; continue; }
                after(20);
                take(i);
            }
            printf("%ld left\n", left);
            break;
        case 'h':
            signal(SIGALRM, calls);
            after(20);
            say("main", 1);
            printf("handler %ld\n", called);
            break;
        case 'w':
            signal(SIGALRM, waits);
            after(20);
            say("main", number);
            break;
        case 'f':
            signal(SIGALRM, forks);
            after(100);
            errno = 77;
            long start = now(), result = take(number);
            printf("%s %ld %ld %d\n", forked ? "parent" : "child", now() - start, result, errno);
            break;
        case 'k': if (!fork()) { say("child", 3); fflush(stdout); pause(); } continue;
        case 'c': {
            void *result;
            pthread_create(&thread, 0, sleeper, number ? &thread : (void *)&awaited);
            usleep(100000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
            break;
        }
        case 'e':
            pthread_create(&thread, 0, sleeper, 0);
            if (!fgets(line, sizeof line, stdin)) return 1;
            return 7;
        }
        fflush(stdout);
    }
    return 0;
}
"#;

const SECOND: u64 = 1_000_000_000;
/// What ends a delay of half a minute has it end before this, on any machine.
const SOON: u64 = 20 * SECOND;

fn started() -> Target {
    Program::build("sleepers", C, &["-g", "-O1"]).start(&[])
}

fn armed(target: &Target, deeds: &[&str]) -> Tool {
    let pid = target.pid().to_string();
    Tool::armed(&[&["inject", "-p", &pid, "sleepers:take"], deeds].concat())
}

/// What a target says of a call: who made it, how long it took, and the rest, result and `errno`.
#[track_caller]
fn said(target: &mut Target) -> (String, u64, String) {
    let line = target.line();
    let mut parts = line.splitn(3, ' ');
    let mut part = || parts.next().unwrap_or_else(|| panic!("{line}")).to_owned();
    let (who, time) = (part(), part());
    (who, time.parse().unwrap_or_else(|_| panic!("{line}")), part())
}

/// The probes are out, and the function is as it was.
#[track_caller]
fn assert_goes_on(target: &mut Target, before: &crate::support::text::Text) {
    before.assert_restored(target.pid());
    target.tell("n5");
    let (_, time, rest) = said(target);
    assert!(time < SOON && rest == "5 77", "{time} {rest}");
}

#[test]
fn a_handler_may_jump_out_of_a_delay_for_good() {
    let mut target = started();
    let before = target.text();
    for deeds in [&["--delay", "30s"][..], &["--delay", "30s", "--result", "retval"]] {
        let tool = armed(&target, deeds);
        target.tell("j20");
        assert_eq!(target.line(), "20 left");
        let kind = if deeds.len() > 2 { "return" } else { "entry" };
        assert_eq!(tool.interrupt().hits("take", kind), 0, "no delay was over");
        assert_goes_on(&mut target, &before);
    }
}

#[test]
fn a_run_of_so_many_delays_ends_though_some_are_never_over() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "500ms", "--count", "4"]);
    target.tell("n1");
    assert!(said(&mut target).1 >= SECOND / 2);
    target.tell("j3");
    assert_eq!(target.line(), "3 left");
    assert_eq!(tool.ended().hits("take", "entry"), 1);
    assert_goes_on(&mut target, &before);
}

#[test]
fn delays_in_handlers_that_interrupt_delays_end_with_the_probes() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "30s"]);
    target.tell("h");
    assert_eq!(target.line(), "in");
    wait_until_asleep(target.pid(), 1);
    let summary = tool.interrupt();
    let (_, time, rest) = said(&mut target);
    assert!(time < SOON && rest == "1 77", "{time} {rest}");
    assert_eq!(target.line(), "handler 2");
    assert_eq!(summary.hits("take", "entry"), 2);
    assert_goes_on(&mut target, &before);
}

/// It goes back to the body when the tool has long gone.
#[test]
fn a_handler_may_interrupt_a_delay_for_longer_than_the_probes_are_there() {
    let mut target = started();
    let before = target.text();
    for deeds in [&["--delay", "30s"][..], &["--delay", "30s", "--result", "retval + 1"]] {
        let tool = armed(&target, deeds);
        target.tell("w3");
        assert_eq!(target.line(), "in");
        tool.interrupt();
        target.tell("");
        let (_, time, rest) = said(&mut target);
        assert!(time < SOON && ["3 77", "4 77"].contains(&rest.as_str()), "{time} {rest}");
        eventually_nothing_is_left(target.pid());
        assert_goes_on(&mut target, &before);
    }
}

/// The child comes back to the body that its parent is in, too.
#[test]
fn a_child_that_a_handler_forks_in_a_delay_goes_on_at_once_and_counts_nothing() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "3s"]);
    target.tell("f4");
    let (who, time, rest) = said(&mut target);
    assert!(who == "child" && time < 3 * SECOND && rest == "4 77", "{who} {time} {rest}");
    let child = children(target.pid())[0];
    assert_eq!(tool::detach(child).code, Some(0));
    before.assert_restored(child);
    let (who, time, rest) = said(&mut target);
    assert!(who == "parent" && time >= 3 * SECOND && rest == "4 77", "{who} {time} {rest}");
    assert_eq!(tool.interrupt().hits("take", "entry"), 1);
    // SAFETY: kill takes two integers. The target has not waited for its child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    before.assert_restored(target.pid());
}

#[test]
fn a_stopped_program_has_its_probes_taken_out_and_sleeps_no_longer_when_it_goes_on() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "30s"]);
    target.tell("n3");
    wait_until_asleep(target.pid(), 1);
    target.freeze();
    assert_eq!(tool.interrupt().hits("take", "entry"), 1);
    before.assert_restored(target.pid());
    target.wait_for_state("T");
    target.thaw();
    let (_, time, rest) = said(&mut target);
    assert!(time < SOON && rest == "3 77", "{time} {rest}");
    assert_goes_on(&mut target, &before);
}

/// That tells whether it is a child's.
#[test]
fn a_program_that_has_lost_its_thread_table_sleeps_no_longer_either() {
    let mut target = started();
    let pid = target.pid();
    let tool = armed(&target, &["--delay", "30s"]);
    target.tell("n3");
    wait_until_asleep(pid, 1);
    tool.kill();
    tool::wait_untraced(pid);
    let region = mapping(pid, "/memfd:trapless").start;
    let threads = region + offset_of!(Header, threads) as u64;
    // Nothing is mapped there.
    target.write(threads, &PAGE.to_le_bytes());
    let ran = tool::detach(pid);
    assert!(ran.json().iter().all(|row| row["left"] == 0 && row["memory_kept"] == false), "{ran:?}");
    target.text().assert_is_of_files(pid);
    let (_, time, rest) = said(&mut target);
    assert!(time < SOON && rest == "3 77", "{time} {rest}");
}

#[test]
fn other_tools_that_come_and_go_and_pauses_shorten_no_delay() {
    let mut target = started();
    let before = target.text();
    let pid = target.pid().to_string();
    let tool = armed(&target, &["--delay", "3s"]);
    target.tell("n3");
    wait_until_asleep(target.pid(), 1);
    for arguments in [&["count"][..], &["inject", "--delay", "1s"], &["latency"]] {
        let all = [arguments, &["-p", &pid, "sleepers:other", "--duration", "50ms"]].concat();
        let ran = tool::run(&all);
        match counting_tells_unwinders() && arguments == ["latency"] {
            true => ran.assert_refused(1, &["is asked by its unwinder"]),
            false => assert_eq!(ran.code, Some(0), "{ran:?}"),
        }
        target.freeze();
        target.thaw();
    }
    let (_, time, rest) = said(&mut target);
    assert!(time >= 3 * SECOND && rest == "3 77", "{time} {rest}");
    assert_eq!(tool.interrupt().hits("take", "entry"), 1);
    assert_goes_on(&mut target, &before);
}

#[test]
fn a_thread_may_be_cancelled_in_a_delay() {
    let mut target = started();
    // The first one has a library loaded that unwinds stacks.
    target.tell("c0");
    assert_eq!(target.line(), "cancelled");
    let before = target.text();
    let tool = armed(&target, &["--delay", "30s"]);
    target.tell("c1");
    assert_eq!(target.line(), "cancelled");
    assert_eq!(tool.interrupt().hits("take", "entry"), 0);
    assert_goes_on(&mut target, &before);
}

#[test]
fn a_program_ends_while_a_thread_sleeps() {
    let mut target = started();
    let tool = armed(&target, &["--delay", "30s", "--count", "3"]);
    target.tell("e");
    wait_until_asleep(target.pid(), 1);
    let start = Instant::now();
    target.tell("");
    assert_eq!(target.wait().code(), Some(7));
    assert_eq!(tool.ended().hits("take", "entry"), 0);
    assert!(start.elapsed() < Duration::from_nanos(SOON));
}

#[test]
fn children_that_are_followed_sleep_and_are_let_go_as_others_are() {
    let mut target = started();
    let before = target.text();
    let tool = armed(&target, &["--delay", "30s", "--follow"]);
    target.tell("k");
    crate::support::eventually("there is a child", || !children(target.pid()).is_empty());
    let child = children(target.pid())[0];
    wait_until_asleep(child, 1);
    tool.signal(libc::SIGINT);
    let (who, time, rest) = said(&mut target);
    assert!(who == "child" && time < SOON && rest == "3 77", "{who} {time} {rest}");
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let of_child = ran.json().into_iter().find(|line| line["type"] == "summary" && line["pid"] == child);
    let hits = of_child.map(|line| crate::support::family::hits(&line).values().sum::<u64>());
    assert_eq!(hits, Some(1), "{ran:?}");
    before.assert_restored(child);
    // SAFETY: kill takes two integers. The target has not waited for its child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_goes_on(&mut target, &before);
}

#[test]
fn a_sandbox_that_may_kill_for_it_is_refused() {
    let mut target = Program::build("sleepers", C, &["-g", "-O1"]).start(&["sandboxed"]);
    let before = target.text();
    let pid = target.pid().to_string();
    let script = format!("uprobe:/proc/{pid}/exe:take {{ delay(1us); }}");
    for arguments in [
        &["inject", "-p", &pid, "sleepers:take", "--delay", "1us"][..],
        &["--unsafe", "-p", &pid, "-e", &script],
    ] {
        let ran = tool::run(arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let told = ["seccomp filter", "--allow-seccomp", "delay()"];
        assert!(told.iter().all(|text| ran.err.contains(text)), "{ran:?}");
        before.assert_restored(target.pid());
    }
    target.tell("o5");
    assert_eq!(target.line(), "5");
}
