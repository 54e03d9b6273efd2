//! Contexts that no thread runs in: switched away from inside a detour, behind large signal frames, on stacks in several mappings.
//! As long as one may lead into our memory it stays, and `status` shows it.

use crate::support::park::park;
use crate::support::tool::{Ran, Tool, detach, run};
use crate::support::{Program, Target, eventually};

/// A coroutine that calls `subject` without a pause, on a stack where the argument says. A signal switches away from it.
const SWITCHED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#define SIZE (96 << 10)
long subject(long x);
#include "assembly.h"
ASSEMBLED(subject, TWICE_AND_ONE)
static ucontext_t home, worker;
static volatile unsigned long calls, wrong;
static volatile int saved, go, scrub;
static char in_bss[SIZE];
static void handler(int signal) { saved = 1; swapcontext(&worker, &home); }
/* What was left behind on the stack is overwritten. */
static __attribute__((noinline)) void overwrite(void) { volatile char junk[SIZE / 2]; for (unsigned i = 0; i < sizeof junk; i++) junk[i] = 1; }
static void body(void) {
    for (long x = 0;; x++) {
        if (scrub) { overwrite(); scrub = 0; }
        if (subject(x) != 2 * x + 1) wrong++;
        calls++;
    }
}
static void *map(int flags, int fd) {
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}
int main(int argc, char **argv) {
    char local[SIZE];
    const char *place = argv[1];
    void *stack = NULL;
    if (!strcmp(place, "heap")) stack = malloc(SIZE);
    if (!strcmp(place, "bss")) stack = in_bss;
    if (!strcmp(place, "local")) stack = local;
    if (!strcmp(place, "anonymous")) stack = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!strcmp(place, "shared")) stack = map(MAP_SHARED | MAP_ANONYMOUS, -1);
    if (!strcmp(place, "file") || !strcmp(place, "private file")) {
        int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (ftruncate(fd, SIZE)) return 1;
        stack = map(strcmp(place, "file") ? MAP_PRIVATE : MAP_SHARED, fd);
    }
    if (!stack) return 1;
    struct sigaction action = { .sa_handler = handler };
    sigaction(SIGUSR1, &action, NULL);
    getcontext(&worker);
    worker.uc_stack.ss_sp = stack;
    worker.uc_stack.ss_size = SIZE;
    makecontext(&worker, body, 0);
    printf("ready %lx %lx %lx %lx %lx %lx\n", (long)subject, (long)&calls, (long)&saved, (long)&go, (long)&wrong, (long)&scrub);
    fflush(stdout);
    for (;;) {
        swapcontext(&home, &worker);
        while (!go) usleep(500);
        go = saved = 0;
        scrub = 1;
    }
}
"#;

/// The coroutine is switched away from `steps` instructions behind its next call.
fn switch_away(target: &Target, steps: usize) {
    target.freeze();
    park(target, target.pid(), target.address(0), steps);
    target.signal(libc::SIGUSR1);
    target.thaw();
    eventually("the coroutine stands", || target.read(target.address(2), 4) != [0; 4]);
}

/// It goes on.
fn switch_back(target: &Target) {
    target.write(target.address(3), &1u32.to_le_bytes());
    run_on(target);
}

fn run_on(target: &Target) {
    let low = |index| u32::from_le_bytes(target.read(target.address(index), 4).try_into().unwrap());
    let before = low(1);
    eventually("it calls", || low(1).wrapping_sub(before) > 2000);
    assert_eq!(low(4), 0, "wrong results");
}

/// How many sessions `status` says to have left memory in the process.
fn kept(pid: i32) -> usize {
    let status = run(&["status", "-p", &pid.to_string(), "-f", "json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    status.json().iter().filter(|row| row["type"] == "kept").count()
}

fn count_for_a_moment(pid: i32, flags: &[&str]) -> Ran {
    let pid = pid.to_string();
    let ran = run(&[flags, &["-p", &pid, "switched:subject", "-d", "0.05", "-f", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

#[test]
fn a_context_switched_away_from_inside_a_detour_keeps_its_memory_wherever_it_was_saved() {
    // In 32-bit programs handlers see our detours, and what a signal interrupted in one leads back there.
    let Some(program) = Program::narrow("switched", SWITCHED, &[]) else { return };
    let file = program.dir().join("stack");
    let file = file.to_str().unwrap();
    for place in ["heap", "bss", "local", "anonymous", "shared", "file", "private file"] {
        for flags in [&["count"][..], &["count", "--return"]] {
            let target = program.start(&[place, file]);
            let (pid, before) = (target.pid(), target.text());
            let text = pid.to_string();
            let tool = Tool::armed(&[flags, &["-p", &text, "switched:subject"]].concat());
            run_on(&target);
            switch_away(&target, 3);
            tool.interrupt();
            assert_eq!(kept(pid), 1, "{place}");
            let left = detach(pid).json();
            assert_eq!(left[0]["memory_kept"], true, "{place}: {left:?}");
            let again = count_for_a_moment(pid, flags);
            assert!(!again.err.contains("unmapped now is memory"), "{place}: {again:?}");

            switch_back(&target);
            let freed = count_for_a_moment(pid, flags);
            assert!(freed.err.contains("unmapped now is memory"), "{place}: {freed:?}");
            // The last session itself may have left words on a stack that is not the thread's own.
            target.write(target.address(5), &1u32.to_le_bytes());
            run_on(&target);
            detach(pid);
            assert_eq!(kept(pid), 0, "{place}");
            before.assert_restored(pid);
        }
    }
}

#[test]
fn memory_that_had_to_stay_is_unmapped_by_a_detach_when_nothing_leads_there_any_more() {
    let Some(program) = Program::narrow("switched", SWITCHED, &[]) else { return };
    let target = program.start(&["heap"]);
    let (pid, before) = (target.pid(), target.text());
    for steps in [1, 3, 5] {
        let tool = Tool::armed(&["count", "-p", &pid.to_string(), "switched:subject"]);
        run_on(&target);
        switch_away(&target, steps);
        tool.interrupt();
        assert_eq!(kept(pid), 1);
        switch_back(&target);
        let left = detach(pid).json();
        assert_eq!(left[0]["memory_kept"], false, "{left:?}");
        assert_eq!(kept(pid), 0);
        before.assert_restored(pid);
    }
}

#[test]
fn a_context_that_its_handler_saw_as_the_program_s_needs_nothing_of_ours() {
    if !trapless_isa::Machine::beside(false).isa().shows_handlers_the_program() {
        return trapless_testing::inapplicable!("here, handlers see detours");
    }
    let program = Program::build("switched", SWITCHED, &[]);
    // Further on the detour has loaded what points to our memory, which stays where it had saved the program's registers.
    for steps in 1..5 {
        let target = program.start(&["heap"]);
        let (pid, before) = (target.pid(), target.text());
        let text = pid.to_string();
        let tool = Tool::armed(&["count", "-p", &text, "switched:subject"]);
        run_on(&target);
        switch_away(&target, steps);
        let ended = tool.interrupt();
        assert_eq!(kept(pid), 0, "{steps}: {ended:?}");
        before.assert_restored(pid);
        // It comes back to the program where other probes are, whose memory is where the first ones' was.
        let tool = Tool::armed(&["count", "--return", "-p", &text, "switched:subject"]);
        switch_back(&target);
        tool.interrupt();
        run_on(&target);
        target.write(target.address(5), &1u32.to_le_bytes());
        run_on(&target);
        detach(pid);
        assert_eq!(kept(pid), 0, "{steps}");
        before.assert_restored(pid);
    }
}

/// Coroutines that a timer switches between, wherever they are.
const PREEMPTED: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>
#define N 8
static ucontext_t coroutine[N];
static volatile int current;
static volatile unsigned long calls, wrong;
__attribute__((noinline, noclone)) long f(long x) { volatile long a = x; return a + 1; }
static void body(void) {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarms, 0);
    for (long i = 0;; i++) { if (f(i) != i + 1) wrong++; calls++; }
}
static void tick(int s) { int from = current, to = (from + 1) % N; current = to; swapcontext(&coroutine[from], &coroutine[to]); }
int main(void) {
    for (int i = 1; i < N; i++) {
        getcontext(&coroutine[i]);
        coroutine[i].uc_stack.ss_size = 1 << 17;
        coroutine[i].uc_stack.ss_sp = malloc(1 << 17);
        // swapcontext sets the mask while it is on the old stack: an alarm that came there would take that for the new one.
        sigemptyset(&coroutine[i].uc_sigmask);
        sigaddset(&coroutine[i].uc_sigmask, SIGALRM);
        makecontext(&coroutine[i], body, 0);
    }
    struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &often, NULL);
    printf("ready %lx %lx\n", (long)&calls, (long)&wrong);
    fflush(stdout);
    body();
}
"#;

/// Arms and removes again and again; the calls go on and are right.
#[track_caller]
fn survives(target: &mut Target, probe: &str, cycles: usize, word: usize) {
    let pid = target.pid().to_string();
    let read = |target: &Target, index| {
        let bytes = target.read(target.address(index), word);
        bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
    };
    for cycle in 0..cycles {
        let flags = [&["count"][..], &["count", "--return"]][cycle % 2];
        let ran = run(&[flags, &["-p", &pid, probe, "-d", "0.03", "-f", "json"]].concat());
        // A context inside the displaced instructions keeps the site unpatched: then there is nothing to do.
        assert!(ran.code == Some(0) || ran.err.contains("displaced instructions"), "{ran:?}");
        assert!(target.is_alive(), "dead after {} cycles: {:?}", cycle + 1, target.wait());
        let calls = read(target, 0);
        eventually("it calls", || read(target, 0) != calls || !target.is_alive());
        assert_eq!(read(target, 1), 0, "wrong results");
    }
}

#[test]
fn preempted_coroutines_go_on_after_probes_were_taken_out() {
    for program in Program::in_both_widths("preempted", PREEMPTED, &[]) {
        let word = if program.is_32bit() { 4 } else { 8 };
        let mut target = program.start(&[]);
        survives(&mut target, "preempted:f", 30, word);
        // Each is looked at again every time, and goes when its last context has gone on.
        assert!(kept(target.pid()) < 10, "memory of {} sessions", kept(target.pid()));
    }
}

/// Calls are interrupted by a handler whose frame is large, or whose stack is in several mappings.
const DEEP: &str = r#"
#define _GNU_SOURCE
#include <alloca.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static size_t size;
static int split;
static volatile unsigned long calls, wrong;
__attribute__((noinline, noclone)) long f(long x) { volatile long a = x; return a + 1; }
static void handler(int s) {
    volatile char *frame = alloca(size);
    long page = sysconf(_SC_PAGESIZE);
    void *middle = (void *)((size_t)(frame + size / 2) & -page);
    frame[0] = frame[size - 1] = 1;
    if (split) mlock(middle, page);
    struct timespec time = { 0, 20000000 };
    nanosleep(&time, NULL);
    if (split) munlock(middle, page);
    struct itimerval once = { { 0, 0 }, { 0, 1500 } };
    setitimer(ITIMER_REAL, &once, NULL);
}
int main(int argc, char **argv) {
    size = strtoul(argv[1], NULL, 10) << 10;
    split = argc > 2;
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval once = { { 0, 0 }, { 0, 1500 } };
    setitimer(ITIMER_REAL, &once, NULL);
    printf("ready %lx %lx\n", (long)&calls, (long)&wrong);
    fflush(stdout);
    for (long i = 0;; i++) { if (f(i) != i + 1) wrong++; calls++; }
}
"#;

#[test]
fn detours_interrupted_far_up_the_stack_go_on_after_probes_were_taken_out() {
    for program in Program::in_both_widths("deep", DEEP, &[]) {
        let word = if program.is_32bit() { 4 } else { 8 };
        for arguments in [&["3000"][..], &["64", "split"]] {
            survives(&mut program.start(arguments), "deep:f", 10, word);
        }
    }
}

/// Memory that looks like a stack without a thread: of its 64 pages the first and the last two were written to.
const LEFT_STACK: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
long subject(long x);
#include "assembly.h"
ASSEMBLED(subject, TWICE_AND_ONE_AT_ONCE)
static volatile long calls, held;
/* By itself, so that no register and no local variable goes on holding the address. */
static __attribute__((noinline)) void set_up(void) {
    /* Between others that cannot be merged with it. */
    long page = sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 66 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *stack = map + page;
    mprotect(stack, 64 * page, PROT_READ | PROT_WRITE);
    stack[0] = stack[62 * page] = stack[63 * page] = 1;
    printf("ready %lx %lx %lx\n", (long)stack, (long)&held, (long)&calls);
    fflush(stdout);
}
int main(void) {
    set_up();
    for (long x = 0;; x++) { subject(x); calls++; }
}
"#;

#[test]
fn a_word_that_points_to_where_nothing_was_written_saves_no_context() {
    let program = Program::build("left", LEFT_STACK, &[]);
    let page = trapless_process::page_size();
    for (name, points_to, is_kept) in [
        ("nowhere", None, false),
        ("to what was never written", Some(30 * page), false),
        ("to its own page", Some(63 * page + 8), true),
        ("right behind what was written", Some(page), true),
        ("deeper, to what was written", Some(16), true),
        ("higher", Some(63 * page + 512), false),
    ] {
        let target = program.start(&[]);
        let (pid, before) = (target.pid(), target.text());
        let [stack, held, calls] = [0, 1, 2].map(|index| target.address(index));
        let tool = Tool::armed(&["count", "-p", &pid.to_string(), "left:subject"]);
        let counted = target.read_word(calls);
        eventually("it calls", || target.read_word(calls) > counted + 2000);
        let arena = before.added_near(pid, calls);
        target.write(stack + 63 * page + 256, &(arena + 64).to_le_bytes());
        target.write(held, &points_to.map_or(0, |offset| stack + offset).to_le_bytes());
        tool.interrupt();
        assert_eq!(kept(pid), usize::from(is_kept), "{name}");
        target.write(held, &0u64.to_le_bytes());
        detach(pid);
        before.assert_restored(pid);
    }
}

/// Two stacks without a thread, one above the other, and between them a guard of the kind that the arguments say. Another thread may stand in that: its
/// stack, the upper one, is full.
const GUARDED_STACKS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define STACK (1 << 20)
#define GUARD (64 << 10)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
long subject(long x);
#include "assembly.h"
ASSEMBLED(subject, TWICE_AND_ONE_AT_ONCE)
static volatile long calls, held;
static char *guard;
static void *stand(void *at) {
#if defined __x86_64__
    __asm__ volatile("mov %0, %%rsp; 1: jmp 1b" :: "r"(at));
#elif defined __i386__
    __asm__ volatile("mov %0, %%esp; 1: jmp 1b" :: "r"(at));
#elif defined __aarch64__
    __asm__ volatile("mov sp, %0; 1: b 1b" :: "r"(at));
#else
    __asm__ volatile("mr 1, %0; 1: b 1b" :: "r"(at));
#endif
    return NULL;
}
/* Whether the kernel says of a page that it is a guard. */
static int is_told(char *page) {
    unsigned long long entry = 0;
    int file = open("/proc/self/pagemap", O_RDONLY);
    if (pread(file, &entry, sizeof entry, (long)page / sysconf(_SC_PAGESIZE) * 8) != sizeof entry) return 0;
    close(file);
    return entry >> 58 & 1;
}
/* By itself, so that no register and no local variable goes on holding addresses. */
static __attribute__((noinline)) int set_up(int is_within) {
    char *map = mmap(NULL, 2 * STACK + 3 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *lower = map + GUARD, *upper = lower + STACK + GUARD;
    guard = lower + STACK;
    mprotect(lower, 2 * STACK + GUARD, PROT_READ | PROT_WRITE);
    if (is_within ? madvise(guard, GUARD, MADV_GUARD_INSTALL) : mprotect(guard, GUARD, PROT_NONE)) return 0;
    if (is_within && !is_told(guard)) return 0;
    lower[STACK - 1] = upper[STACK - GUARD] = upper[STACK - 1] = 1;
    printf("ready %lx %lx %lx %lx\n", (long)(lower + STACK), (long)(upper + STACK), (long)&held, (long)&calls);
    fflush(stdout);
    return 1;
}
int main(int argc, char **argv) {
    pthread_t one;
    if (!set_up(!strcmp(argv[1], "within"))) { puts("ready 0 0 0 0"); fflush(stdout); getchar(); return 0; }
    if (argc > 2) pthread_create(&one, NULL, stand, guard + GUARD - 64);
    guard = NULL;
    for (long x = 0;; x++) { subject(x); calls++; }
}
"#;

/// What points into one stack leads nobody to what calls have left on another one. glibc keeps a list of those stacks that no thread is on, in the stacks.
#[test]
fn guards_within_a_mapping_keep_stacks_apart() {
    let program = Program::build("guarded", GUARDED_STACKS, &["-pthread"]);
    for kind in ["protected", "within"] {
        for (name, is_upper, below, is_full, is_kept) in [
            ("the lower one", false, 8, false, false),
            ("the upper one, deeper", true, 1000, false, true),
            ("of a thread that has no room left", false, 8, true, true),
        ] {
            let arguments = [kind, "full"];
            let target = program.start(&arguments[..if is_full { 2 } else { 1 }]);
            if target.address(0) == 0 {
                return trapless_testing::inapplicable!("the kernel does not tell guards within mappings");
            }
            let (pid, before) = (target.pid(), target.text());
            let [lower, upper, held, calls] = [0, 1, 2, 3].map(|index| target.address(index));
            let tool = Tool::armed(&["count", "-p", &pid.to_string(), "guarded:subject"]);
            let counted = target.read_word(calls);
            eventually("it calls", || target.read_word(calls) > counted + 2000);
            let arena = before.added_near(pid, calls);
            target.write(upper - 256, &(arena + 64).to_le_bytes());
            target.write(held, &(if is_upper { upper - below } else { lower - below }).to_le_bytes());
            tool.interrupt();
            assert_eq!(kept(pid), usize::from(is_kept), "{name}, {kind}");
            target.write(held, &0u64.to_le_bytes());
            target.write(upper - 256, &0u64.to_le_bytes());
            detach(pid);
            before.assert_restored(pid);
        }
    }
}
