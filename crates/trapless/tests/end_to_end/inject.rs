//! Calls that fail, return something else or get other arguments: what the target finds is what the tool counts.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::tool::{self, Summary, Tool};
use crate::support::{Program, Target};

const C: &str = r#"
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone))
/* Microseconds between signals: more where machines are emulated. */
#ifdef __x86_64__
#define OFTEN 200
#else
#define OFTEN 5000
#endif
PROBED long take(long number) { __asm__ volatile("" : "+r"(number)); return number; }
PROBED long six(long a, long b, long c, long d, long e, long f) {
    __asm__ volatile("" ::: "memory");
    return a + 10 * b + 100 * c + 1000 * d + 10000 * e + 100000 * f;
}
PROBED void *get(size_t size) { return malloc(size); }
static long noted;
#ifdef __x86_64__
/* The caller keeps its result in the register that others return theirs in: gcc knows that this one leaves it alone. */
static PROBED void note(long number) { __asm__ volatile("addq %1, %0" : "+m"(noted) : "r"(number)); }
PROBED long twice(long number) { long result = 2 * take(number); note(number); return result; }
/* A part that is jumped to, as gcc makes them of what is seldom done. */
__asm__(".text\n.globl whole\n.type whole, @function\nwhole: .cfi_startproc\n push %rbx\n.cfi_def_cfa_offset 16\n jmp whole.cold\n.cfi_endproc\n.size whole, .-whole\n"
        ".type whole.cold, @function\nwhole.cold: lea 1(%rdi), %rax\n nop\n nop\n pop %rbx\n ret\n.size whole.cold, .-whole.cold\n"
        ".globl pops\n.type pops, @function\npops: .cfi_startproc\n lea 1(%rdi), %rax\n nop\n nop\n ret $16\n.cfi_endproc\n.size pops, .-pops\n"
        ".globl bare\n.type bare, @function\nbare: lea 1(%rdi), %rax\n nop\n nop\n ret\n.size bare, .-bare\n");
extern long whole(long);
#else
static PROBED void note(long number) { noted += number; }
PROBED long twice(long number) { long result = 2 * take(number); note(number); return result; }
#ifdef __i386__
PROBED long whole(long number) { return number + 1; }
#else
#ifdef __aarch64__
#define ADDS "add x0, x0, #1\n nop\n ret\n"
#else
#define ADDS "addi 3, 3, 1\n nop\n blr\n"
#endif
__asm__(".text\n.globl whole\n.type whole, %function\nwhole: .cfi_startproc\n nop\n b whole.cold\n.cfi_endproc\n.size whole, .-whole\n"
        ".type whole.cold, %function\nwhole.cold: " ADDS ".size whole.cold, .-whole.cold\n"
        ".globl bare\n.type bare, %function\nbare: " ADDS ".size bare, .-bare\n");
extern long whole(long);
#endif
#endif

struct found { long calls, failed, doubled, odd; };
static void *work(void *to) {
    struct found *found = to;
    for (long i = 1; i <= 1000; i++) {
        errno = 0;
        long taken = take(i);
        found->calls++;
        if (taken == -7 && errno == ENOSPC) found->failed++;
        else if (taken == 2 * i && !errno) found->doubled++;
        else if (taken != i || errno) found->odd++;
    }
    return 0;
}

static volatile long interrupted;
static void look(int signal) {
    void *frames[32];
    (void)signal;
    backtrace(frames, 32);
    interrupted++;
}

int main(void) {
    char line[64];
    void *frames[1];
    backtrace(frames, 1);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct found found[4], all = { 0, 0, 0, 0 };
        memset(found, 0, sizeof found);
        if (*line == 'w' || *line == 's') {
            struct itimerval often = { { 0, OFTEN }, { 0, OFTEN } }, never = { { 0, 0 }, { 0, 0 } };
            signal(SIGALRM, look);
            if (*line == 's') setitimer(ITIMER_REAL, &often, 0);
            for (int round = 0; round < (*line == 's' ? 25 : 1); round++) {
                pthread_t threads[4];
                for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, work, found + i);
                for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
            }
            setitimer(ITIMER_REAL, &never, 0);
            for (int i = 0; i < 4; i++) {
                all.calls += found[i].calls; all.failed += found[i].failed;
                all.doubled += found[i].doubled; all.odd += found[i].odd;
            }
            printf("%ld calls, %ld failed, %ld doubled, %ld odd\n", all.calls, all.failed, all.doubled, all.odd);
        }
        if (*line == '6') printf("%06ld\n", six(1, 2, 3, 4, 5, 6));
        if (*line == 'm') {
            long none = 0;
            for (int i = 0; i < 100; i++) {
                errno = 0;
                void *got = get(77);
                none += !got && errno == ENOMEM;
                free(got);
            }
            printf("%ld none\n", none);
        }
        if (*line == 't') { long result = twice(atol(line + 1)); printf("%ld %ld\n", result, noted); }
        if (*line == 'p') printf("%ld\n", whole(atol(line + 1)));
        if (*line == 'n') { long number = atol(line + 1); printf("%ld\n", take(number)); }
        fflush(stdout);
    }
}
"#;

/// An instruction inside of a function.
const INSIDE: &str = if cfg!(target_arch = "x86_64") { "inject:take+3" } else { "inject:take+4" };

/// How many arguments are in registers.
const IN_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 6 } else { 8 };

fn started() -> Target {
    Program::build("inject", C, &["-g", "-O1"]).start(&[])
}

/// What a target says while something is done to its calls, and what the tool then says. Afterwards it is as it was.
#[track_caller]
fn injected(arguments: &[&str], deeds: &[&str]) -> (Vec<String>, Summary) {
    let mut target = started();
    let before = target.text();
    let pid = target.pid().to_string();
    let tool = Tool::armed(&[&arguments[..1], &["-p", &pid][..], &arguments[1..]].concat());
    let said = deeds.iter().map(|deed| {
        target.tell(deed);
        target.line()
    });
    let said = said.collect();
    let summary = tool.interrupt();
    before.assert_restored(target.pid());
    target.tell("n5");
    assert_eq!(target.line(), "5");
    (said, summary)
}

/// The numbers of a line: calls, those that failed, those that were doubled, and all that is wrong.
#[track_caller]
fn numbers(line: &str) -> [u64; 4] {
    let numbers: Vec<u64> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn each_tenth_call_fails_whichever_thread_makes_it() {
    let arguments = ["inject", "inject:take", "--return", "-7", "--errno", "ENOSPC", "--every", "10"];
    let (said, summary) = injected(&arguments, &["w"]);
    assert_eq!(said, ["4000 calls, 400 failed, 0 doubled, 0 odd"]);
    assert_eq!(summary.hits("take", "entry"), 400);
}

#[test]
fn calls_fail_at_random_and_as_a_filter_says_and_are_counted() {
    for probability in ["25%", "0.001", "1"] {
        let errors = ["--return", "-7", "--errno", "28", "--probability", probability];
        let (said, summary) = injected(&[&["inject", "inject:take"], &errors[..]].concat(), &["w"]);
        let [calls, failed, doubled, odd] = numbers(&said[0]);
        assert_eq!([calls, doubled, odd], [4000, 0, 0], "{said:?}");
        assert_eq!(summary.hits("take", "entry"), failed, "{probability}");
        assert_eq!(failed == 4000, probability == "1", "{probability}: {failed}");
    }
    let filter = ["--return", "-7", "--errno", "ENOSPC", "--where", "arg0 <= 100"];
    let (said, _) = injected(&[&["inject", "inject:take"], &filter[..]].concat(), &["w"]);
    assert_eq!(said, ["4000 calls, 400 failed, 0 doubled, 0 odd"]);
}

#[test]
fn so_it_is_under_a_storm_of_signals_whose_handlers_walk_the_stack() {
    let arguments = ["inject", "inject:take", "--return", "-7", "--errno", "ENOSPC", "--every", "3"];
    let (said, summary) = injected(&arguments, &["s", "s"]);
    let told: Vec<[u64; 4]> = said.iter().map(|line| numbers(line)).collect();
    assert!(
        told.iter().all(|[calls, _, doubled, odd]| [*calls, *doubled, *odd] == [100_000, 0, 0]),
        "{said:?}"
    );
    let failed: u64 = told.iter().map(|numbers| numbers[1]).sum();
    assert_eq!([failed, summary.hits("take", "entry")], [200_000 / 3; 2]);
}

#[test]
fn what_is_asked_for_a_number_of_times_is_done_so_often_and_ends() {
    let mut target = started();
    let before = target.text();
    let pid = target.pid().to_string();
    let arguments = ["--return", "-7", "--errno", "ENOSPC", "--count", "5"];
    let tool = Tool::armed(&[&["inject", "-p", &pid, "inject:take"], &arguments[..]].concat());
    target.tell("w");
    assert_eq!(target.line(), "4000 calls, 5 failed, 0 doubled, 0 odd");
    assert_eq!(tool.ended().hits("take", "entry"), 5);
    before.assert_restored(target.pid());
}

#[test]
fn results_and_arguments_are_changed() {
    let (said, summary) = injected(&["inject", "inject:take", "--result", "retval * 2"], &["w", "n21"]);
    assert_eq!(said, ["4000 calls, 0 failed, 4000 doubled, 0 odd", "42"]);
    assert_eq!(summary.hits("take", "return"), 4001);
    let sets = ["--set", "arg0=7", "--set", "arg5=arg1 * 4", "--set", "arg2 = 0"];
    let (said, summary) = injected(&[&["inject", "inject:six"], &sets[..]].concat(), &["6", "6"]);
    assert_eq!(said, ["854027", "854027"]);
    assert_eq!(summary.hits("six", "entry"), 2);
}

#[test]
fn the_c_librarys_functions_fail_as_they_would() {
    let of = ["--return", "0", "--errno", "ENOMEM", "--where", "arg0 == 77", "--every", "2"];
    let (said, summary) = injected(&[&["inject", "libc.so.6:malloc"], &of[..]].concat(), &["m"]);
    assert_eq!(said, ["50 none"]);
    assert_eq!(summary.hits("malloc", "entry"), 50);
}

#[test]
fn a_dry_run_counts_and_changes_nothing() {
    let (said, summary) =
        injected(&["inject", "inject:take", "--return", "0", "--every", "4", "--dry-run"], &["w"]);
    assert_eq!(said, ["4000 calls, 0 failed, 0 doubled, 0 odd"]);
    assert_eq!(summary.hits("take", "entry"), 1000);
}

#[test]
fn a_static_program_has_its_errno_elsewhere() {
    let program = Program::build("inject_static", C, &["-g", "-O1", "-static"]);
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let arguments = ["--return", "-7", "--errno", "ENOSPC"];
    let tool = Tool::armed(&[&["inject", "-p", &pid, "inject_static:take"], &arguments[..]].concat());
    target.tell("w");
    assert_eq!(target.line(), "4000 calls, 4000 failed, 0 doubled, 0 odd");
    assert_eq!(tool.interrupt().hits("take", "entry"), 4000);
}

#[test]
fn a_signal_that_ends_the_program_is_counted() {
    let mut target = started();
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["inject", "-p", &pid, "inject:take", "--signal", "KILL"]);
    target.tell("n1");
    target.wait();
    assert_eq!(tool.ended().hits("take", "entry"), 1);
}

#[test]
fn a_script_sees_no_return_of_what_it_has_skipped() {
    let mut target = started();
    let pid = target.pid().to_string();
    let script = "uprobe:./inject:take /arg0 < 3/ { override(0); @skipped = count(); } uretprobe:./inject:take { @returned = count(); @last = max(retval); } uretprobe:./inject:take /retval == 4/ { override(5); }";
    let script = script.replace("./inject", &format!("/proc/{pid}/exe"));
    let errors = tempfile::tempdir().unwrap();
    let errors = errors.path().join("errors");
    let mut command = tool::trapless(&["--unsafe", "-p", &pid, "-e", &script]);
    let tool = Tool::armed_to(&mut command, &errors);
    crate::support::eventually("armed", || {
        std::fs::read_to_string(&errors).unwrap_or_default().contains("Attached")
    });
    for (number, result) in [("n1", "0"), ("n2", "0"), ("n3", "3"), ("n4", "5"), ("n6", "6")] {
        target.tell(number);
        assert_eq!(target.line(), result, "{number}");
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    for line in ["@skipped: 2", "@returned: 3", "@last: 6"] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
}

#[test]
fn a_function_without_a_result_is_left_out_and_its_callers_registers_are_kept() {
    let (said, summary) = injected(&["inject", "inject:note", "--skip"], &["t5", "t6"]);
    assert_eq!(said, ["10 0", "12 0"]);
    assert_eq!(summary.hits("note", "entry"), 2);
}

#[test]
fn where_nobody_calls_nothing_is_skipped() {
    let mut target = started();
    let pid = target.pid().to_string();
    for (function, why) in [
        ("inject:whole.cold", "part of a function that is jumped to"),
        #[cfg(target_arch = "x86_64")]
        ("inject:pops", "another stack pointer"),
        // Elsewhere the loader has no symbol of it.
        #[cfg(target_arch = "x86_64")]
        ("ld-linux-x86-64.so.2:_dl_runtime_resolve*", "does not return exactly once"),
        ("inject:_start", "entry point"),
        // Hand-written code of which no table tells that it is called.
        ("inject:bare", "is not seen to be called"),
        ("libc.so.6:exit", "does not return exactly once"),
    ] {
        for dry in [&[][..], &["--dry-run"]] {
            let ran = tool::run(&[&["inject", "-p", &pid, function, "--return", "1"], dry].concat());
            assert!(ran.code == Some(1) && ran.err.contains(why), "{function}: {ran:?}");
            assert!(!ran.err.contains("--allow-trap"), "{ran:?}");
        }
    }
    // At both ends of a function whose return address has to stay, the entry alone is changed.
    target.tell("p4");
    assert_eq!(target.line(), "5");
    let tool = Tool::armed(&["inject", "-p", &pid, "inject:whole", "--return", "7"]);
    target.tell("p4");
    assert_eq!(target.line(), "7");
    assert_eq!(tool.interrupt().hits("whole", "entry"), 1);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let target = started();
    let pid = target.pid().to_string();
    let refused = |arguments: &[&str], told: &[&str]| {
        let ran = tool::run(&[&["inject", "-p", &pid][..], arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        told.iter().for_each(|text| assert!(ran.err.contains(text), "{arguments:?}: {text}: {ran:?}"));
    };
    refused(&["inject:take"], &["what to do", "--return", "--signal"]);
    refused(&["inject:take", "--errno", "ENOMEM", "--signal", "10"], &["--errno", "--return"]);
    refused(&["inject:take", "--errno", "ENOPE", "--return", "1"], &["ENOPE", "such as ENOMEM"]);
    let (beyond, last) = (format!("arg{IN_REGISTERS}=1"), format!("arg0 to arg{}", IN_REGISTERS - 1));
    refused(&["inject:take", "--set", &beyond], &[&last]);
    refused(&["inject:take", "--set", "arg0=1", "--skip"], &["cannot be used with"]);
    refused(&["inject:take", "--set", "arg0=1", "--set", "arg0=2"], &["arg0 is set twice"]);
    refused(&["inject:take", "--skip", "--inlines"], &["--inlines", "not called"]);
    refused(&["inject:take", "--return", "retval"], &["'retval' is known when functions return", "--result"]);
    refused(&["inject:take", "--return", "1", "--where", "retval > 0"], &["'retval' is known"]);
    refused(&["inject:take", "--return", "1", "--result", "1"], &["cannot be used with"]);
    refused(&["inject:take", "--return", "1", "--probability", "2"], &["up to 1"]);
    refused(&["inject:take", "--return", "\"a\""], &["override() only supports integers and pointers"]);
    refused(&["inject:take", "--return", "signal(9)"], &["are for scripts"]);
    refused(&[INSIDE, "--return", "1"], &["no whole function"]);
    refused(&["uretprobe:inject:take", "--return", "1"], &["name the function alone"]);
    let trapping = ["emulate:inject:take", "--return", "1"];
    let ran = tool::run(&[&["inject", "-p", &pid][..], &trapping].concat());
    assert!(ran.code != Some(0) && ran.err.contains("it changes what a call does"), "{ran:?}");
    let script = format!("uprobe:/proc/{pid}/exe:take {{ override(1); }}");
    let ran = tool::run(&["-p", &pid, "-e", &script]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("override() is unsafe") && ran.err.contains("--unsafe"), "{ran:?}");
    if let Some(narrow) = Program::narrow("inject32", C, &["-g"]) {
        let target = narrow.start(&[]);
        let pid = target.pid().to_string();
        let ran = tool::run(&["inject", "-p", &pid, "inject32:take", "--return", "1"]);
        assert!(ran.code == Some(2) && ran.err.contains("needs compiled code"), "{ran:?}");
    }
}
