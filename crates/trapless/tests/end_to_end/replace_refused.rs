//! Functions that are not replaced, and why: nothing is patched then, and where it can be told before, nothing is loaded.

use crate::support::replacing::*;
use crate::support::text;
use crate::support::tool::{Ran, finish, run};
use crate::support::{Program, Target};
use std::path::Path;
use std::process::Command;

/// A refusal that leaves the program as it was: its code, its memory and its libraries.
#[track_caller]
fn refused(target: &Target, ran: &Ran, code: i32, words: &[&str]) {
    ran.assert_refused(code, words);
    assert!(!has_mapped(target.pid(), Path::new("fix.so")), "{ran:?}");
}

#[test]
fn what_is_no_library_with_the_function_is_refused_before_the_process_is_touched() {
    let (program, fix) = (program("untouched"), library("fix.so", LIBRARY, &[]));
    let target = program.start(&[]);
    let before = target.text();
    let dir = fix.dir();
    let file = |name: &str| dir.join(name).display().to_string();
    std::fs::write(file("text.so"), "long slow_fixed(long x);\n").unwrap();
    std::fs::write(file("empty.so"), "").unwrap();
    let whole = std::fs::read(fix.path()).unwrap();
    std::fs::write(file("truncated.so"), &whole[..whole.len() / 3]).unwrap();
    std::fs::write(file("header.so"), &whole[..64]).unwrap();
    let fifo = std::ffi::CString::new(file("fifo.so")).unwrap();
    // SAFETY: mkfifo reads a text that ends.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let plain = "long slow_fixed(long x) { return x; }";
    let object = Program::try_build("gcc", "fix.o", plain, &["-c"]).unwrap();
    let executable = library("stacks.so", plain, &["-Wl,-z,execstack"]);
    let unopened = library("unopened.so", plain, &["-Wl,-z,nodlopen"]);
    let chooses = "static long is(long x) { return x; }\nstatic void *choose(void) { return is; }\nlong slow_fixed(long) __attribute__((ifunc(\"choose\")));";
    let ifunc = library("ifunc.so", chooses, &[]);
    let of_fix = |function: &str| of(fix.path(), function);
    let original = |symbol: &'static str| vec!["--original", symbol];
    let mut cases: Vec<(String, Vec<&str>, &[&str])> = vec![
        (format!("{}:slow_fixed", file("missing.so")), vec![], &["missing.so", "No such file"]),
        (format!("{}:slow_fixed", dir.display()), vec![], &["no regular file"]),
        (format!("{}:slow_fixed", file("fifo.so")), vec![], &["no regular file"]),
        (format!("{}:slow_fixed", file("text.so")), vec![], &["no shared object", "-shared"]),
        (format!("{}:slow_fixed", file("empty.so")), vec![], &["no shared object"]),
        (format!("{}:slow_fixed", file("truncated.so")), vec![], &["damaged", "ends before"]),
        (format!("{}:slow_fixed", file("header.so")), vec![], &["damaged"]),
        (of(object.path(), "slow_fixed"), vec![], &["another kind", "-shared"]),
        (of(program.path(), "slow"), vec![], &["it is a program", "-shared"]),
        (of(executable.path(), "slow_fixed"), vec![], &["executable stacks", "noexecstack"]),
        (of(unopened.path(), "slow_fixed"), vec![], &["nodlopen"]),
        (of(ifunc.path(), "slow_fixed"), vec![], &["ifunc"]),
        (of_fix("slow_fixd"), vec![], &["exports no slow_fixd", "did you mean slow_fixed"]),
        (of_fix("no_pointer"), vec![], &["no_pointer is no function"]),
        (of_fix("slow_fixed"), original("slow_orig"), &["exports no slow_orig"]),
        (
            of_fix("slow_fixed"),
            original("short_pointer"),
            &["short_pointer is no variable of the size of a pointer"],
        ),
        (of_fix("slow_fixed"), original("rec_fixed"), &["rec_fixed is no variable"]),
    ];
    // One of each machine, by what its header says, and one of the other order of bytes.
    let foreign = |name: &str, [data, machine @ ..]: [u8; 3]| {
        let mut bytes = whole.clone();
        bytes[5] = data;
        bytes[18..20].copy_from_slice(&machine);
        std::fs::write(file(name), bytes).unwrap();
        format!("{}:slow_fixed", file(name))
    };
    let machines: [(&str, [u8; 3], &[&str]); 5] = [
        ("x86-64", [1, 62, 0], &["it is for x86-64, and the process runs"]),
        ("arm64", [1, 183, 0], &["it is for arm64, and the process runs"]),
        ("powerpc64le", [1, 21, 0], &["it is for powerpc64le, and the process runs"]),
        ("riscv", [1, 243, 0], &["it is for RISC-V, and the process runs"]),
        ("powerpc64", [2, 0, 21], &["it is for powerpc64, and the process runs"]),
    ];
    for (name, header, words) in machines {
        let is_own = [header[1], header[2]] == whole[18..20];
        if !is_own {
            cases.push((foreign(&format!("{name}.so"), header), vec![], words));
        }
    }
    for (with, more, words) in cases {
        refused(&target, &replace(target.pid(), "untouched:slow", &with, &more), 1, words);
    }
    for (with, words) in [
        ("fix.so", &["FILE:FUNCTION"][..]),
        (":slow_fixed", &["FILE:FUNCTION"]),
        ("./a:", &["FILE:FUNCTION"]),
    ] {
        refused(&target, &replace(target.pid(), "untouched:slow", with, &[]), 2, words);
    }
    before.assert_restored(target.pid());
}

#[test]
fn what_cannot_be_replaced_is_refused_before_anything_is_loaded() {
    let (program, fix) = (program("picky"), library("fix.so", LIBRARY, &[]));
    let target = program.start(&[]);
    let (pid, with, before) = (target.pid(), of(fix.path(), "slow_fixed"), target.text());
    for (function, code, words) in [
        ("picky:missing", 5, &["missing"][..]),
        ("picky:*", 5, &["functions; name one"]),
        ("picky:slow+4", 5, &["no whole function"]),
        ("uretprobe:picky:slow", 5, &["no whole function"]),
        ("picky:_start", 1, &["picky:_start", "nobody calls the entry point"]),
        ("libc.so.6:abort", 1, &["libc.so.6:abort"]),
        ("libc.so.6:setjmp", 1, &["libc.so.6:"]),
    ] {
        refused(&target, &replace(pid, function, &with, &[]), code, words);
    }
    refused(&target, &replace(1 << 22, "picky:slow", &with, &[]), 3, &["no process"]);
    before.assert_restored(pid);
}

#[test]
fn a_static_program_and_one_of_go_have_no_loader_of_c() {
    let fix = library("fix.so", LIBRARY, &[]);
    let with = of(fix.path(), "slow_fixed");
    let program = Program::build("alone", PROGRAM, &["-static"]);
    let mut target = program.start(&[]);
    let ran = replace(target.pid(), "alone:slow", &with, &[]);
    refused(&target, &ran, 1, &["statically linked", "no dynamic loader"]);
    assert_eq!(ask(&mut target, "c41"), "42");

    const GO: &str = r#"
package main
import ("bufio"; "fmt"; "os")
//go:noinline
func slow(x int) int { return x + 1 }
func main() {
    fmt.Println("ready")
    for input := bufio.NewScanner(os.Stdin); input.Scan(); { fmt.Println(slow(41)) }
}
"#;
    let Some(program) = Program::go("gopher", GO, &[]) else { return };
    let target = program.start(&[]);
    let ran = replace(target.pid(), "gopher:main.slow", &with, &[]);
    refused(&target, &ran, 1, &["gopher is a Go program"]);
}

#[test]
fn a_function_that_nobody_calls_is_waited_for_and_left() {
    let (program, fix) = (program("lonely"), library("fix.so", LIBRARY, &[]));
    let mut target = program.start(&[]);
    let before = target.text();
    let with = of(fix.path(), "slow_fixed");
    let ran = replace(target.pid(), "lonely:slow", &with, &["--wait", "0.3"]);
    refused(&target, &ran, 1, &["nobody called lonely:slow for 0.3 s", "--wait"]);
    text::eventually_nothing_is_left(target.pid());
    before.assert_restored(target.pid());
    // Ctrl-C ends the wait as well.
    let begun = Replaced::begun(&target, "lonely:slow", &with, &["--wait", "60"]);
    text::wait_until_written(target.pid(), &program.path().display().to_string());
    // SAFETY: kill takes two integers; the child is not reaped yet.
    assert_eq!(unsafe { libc::kill(begun.tool_pid(), libc::SIGINT) }, 0);
    let ran = begun.ran();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.err.contains("nothing was changed"), "{ran:?}");
    before.assert_restored(target.pid());
    assert_eq!(ask(&mut target, "c41"), "42");
}

/// Calls in which no library can be loaded go on into the original, each for its reason, and nothing is left in the end.
#[test]
fn calls_on_whose_stack_something_is_under_way_are_let_pass() {
    let fix = library("fix.so", LIBRARY, &[]);
    let with = of(fix.path(), "slow_fixed");
    // A constructor that calls it has the loader below it.
    const CALLS: &str =
        "extern long slow(long);\n__attribute__((constructor)) static void begin(void) { slow(1); }";
    let calls = library("calls.so", CALLS, &[]);
    for (command, answer, words) in [
        ("h", "11", &["came from a handler of a signal"][..]),
        ("a", "11", &["stack"]),
        ("v", "", &["shares the process's memory"]),
    ] {
        let program = program("passing");
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid(), target.text());
        let ran =
            while_called(&mut target, command, || replace(pid, "passing:slow", &with, &["--wait", "2"]));
        let words = [&["no call of passing:slow was one in which a library can be loaded"], words].concat();
        refused(&target, &ran, 1, &words);
        assert_eq!(ask(&mut target, command), answer);
        assert_eq!(ask(&mut target, "c41"), "42");
        text::eventually_nothing_is_left(pid);
        before.assert_restored(pid);
    }
    for (command, word) in [("w", "KiB of room"), ("d", "")] {
        let program = program("small");
        let mut target = program.start(&[]);
        let pid = target.pid();
        assert_eq!(ask(&mut target, command), "started");
        let ran = replace(pid, "small:slow", &with, &["--wait", "2", "-d", "0.1"]);
        match word {
            "" => assert_eq!(ran.code, Some(0), "a deep stack with room enough: {ran:?}"),
            word => refused(&target, &ran, 1, &[word]),
        }
        assert_eq!(ask(&mut target, "c41"), "42");
        ask(&mut target, "s");
        text::eventually_nothing_is_left(pid);
    }
    let program = program("loading");
    let mut target = program.start(&[]);
    let pid = target.pid();
    // Each is loaded once: so there is a copy for each call.
    let dir = tempfile::tempdir().unwrap();
    let mut copies = 0;
    let load = || {
        copies += 1;
        let copy = dir.path().join(format!("{copies}.so"));
        std::fs::copy(calls.path(), &copy).unwrap();
        assert_eq!(ask(&mut target, &format!("l{}", copy.display())), "1");
    };
    let ran = while_done(load, || replace(pid, "loading:slow", &with, &["--wait", "2"]));
    refused(&target, &ran, 1, &["the dynamic loader was at work below it"]);
    text::eventually_nothing_is_left(pid);
}

/// What is loaded by then has unwind tables: so it is the frames that tell, and not words that are left of calls long over.
#[test]
fn a_call_below_the_loader_is_let_pass_where_the_whole_stack_can_be_walked() {
    const CALLS: &str =
        "extern long slow(long);\n__attribute__((destructor)) static void end(void) { slow(1); }";
    let (program, fix) = (program("unloading"), library("fix.so", LIBRARY, &[]));
    let calls = library("calls.so", CALLS, &[]);
    let mut target = program.start(&[]);
    let (pid, with, dir) = (target.pid(), of(fix.path(), "slow_fixed"), tempfile::tempdir().unwrap());
    for number in 0..60 {
        let copy = dir.path().join(format!("{number}.so"));
        std::fs::copy(calls.path(), &copy).unwrap();
        assert_eq!(ask(&mut target, &format!("k{}", copy.display())), "1");
    }
    let unload = || {
        ask(&mut target, "u");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let ran = while_done(unload, || replace(pid, "unloading:slow", &with, &["--wait", "2"]));
    refused(&target, &ran, 1, &["the dynamic loader was at work below it"]);
    // The same thread may load where it does not come from there, whatever is left on its stack. Of our memory some may stay: it may lie where
    // libraries were that the loader has unloaded, and remembers.
    let before = target.read(target.address(0), 64);
    let replaced = while_called(&mut target, "c1", || Replaced::by_pid(pid, "unloading:slow", &with));
    replaced.interrupt();
    assert_eq!(target.read(target.address(0), 64), before);
}

#[test]
fn a_function_that_the_allocator_calls_is_not_where_a_library_is_loaded() {
    const OWN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
extern void *__libc_malloc(size_t);
__attribute__((noinline, noclone)) long slow(long x) { __asm__ volatile("nop\nnop\nnop"); return x + 1; }
static volatile long last;
__attribute__((noinline)) void *malloc(size_t size) { last = slow(size); return __libc_malloc(size); }
void *(*volatile get)(size_t) = malloc;
int main(void) {
    char line[64];
    printf("ready\n"); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) { free(get(64)); printf("%ld\n", last); fflush(stdout); }
}
"#;
    let (program, fix) = (Program::build("allocating", OWN, &[]), library("fix.so", LIBRARY, &[]));
    let mut target = program.start(&[]);
    let (pid, with) = (target.pid(), of(fix.path(), "slow_fixed"));
    let ran = while_called(&mut target, "", || replace(pid, "allocating:slow", &with, &["--wait", "2"]));
    refused(&target, &ran, 1, &["the allocator was at work below it"]);
    text::eventually_nothing_is_left(pid);
}

#[test]
fn a_library_that_the_loader_of_the_process_refuses_is_told_of_and_nothing_is_patched() {
    let needs =
        library("fix.so", "extern long nowhere(long);\nlong slow_fixed(long x) { return nowhere(x); }", &[]);
    let program = program("loaded");
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid(), target.text());
    let with = of(needs.path(), "slow_fixed");
    let ran = while_called(&mut target, "c41", || replace(pid, "loaded:slow", &with, &[]));
    refused(&target, &ran, 1, &["could not load", "undefined symbol: nowhere"]);
    text::eventually_nothing_is_left(pid);
    before.assert_restored(pid);
    // What is constant is found out where it is mapped.
    let constant = library(
        "fix.so",
        "long slow_fixed(long x) { return x; }\nlong (*const slow_original)(long) = slow_fixed;",
        &["-Wl,-z,relro,-z,now"],
    );
    let with = of(constant.path(), "slow_fixed");
    let more = ["--original", "slow_original"];
    let ran = while_called(&mut target, "c41", || replace(pid, "loaded:slow", &with, &more));
    ran.assert_refused(1, &["slow_original", "cannot be written", "stays loaded"]);
    assert_eq!(ask(&mut target, "c41"), "42");
    text::eventually_nothing_is_left(pid);
}

/// One function leads to another, and that is to lead back.
#[test]
fn calls_are_not_led_round_in_a_circle() {
    let source = "__attribute__((noinline)) long slow_fixed(long x) { __asm__ volatile(\"nop\\nnop\\nnop\"); return x + 1001; }\n\
        __attribute__((noinline)) long other(long x) { return x + 2001; }";
    let (program, fix) = (program("round"), library("fix.so", source, &[]));
    let mut target = program.start(&[]);
    let (pid, [with, other]) = (target.pid(), ["slow_fixed", "other"].map(|name| of(fix.path(), name)));
    let first = while_called(&mut target, "c41", || Replaced::by_pid(pid, "round:slow", &with));
    let second = while_called(&mut target, "c41", || Replaced::by_pid(pid, "fix.so:slow_fixed", &other));
    assert_eq!(ask(&mut target, "c41"), "2042");
    first.interrupt();
    // What leads elsewhere itself is not where calls are led to.
    let ran = while_called(&mut target, "c41", || replace(pid, "round:slow", &with, &[]));
    ran.assert_refused(1, &["slow_fixed is patched by another tool", "circle"]);
    second.interrupt();
    assert_eq!(ask(&mut target, "c41"), "42");
    text::eventually_nothing_is_left(pid);
}

#[test]
fn a_process_that_does_not_see_the_library_is_not_told_to_load_it() {
    let has = finish(Command::new("unshare").args(["-m", "true"])).code == Some(0);
    if !has {
        return trapless_testing::skip!("no mount namespace can be made");
    }
    let (program, fix) = (program("inside"), library("fix.so", LIBRARY, &[]));
    // In its namespace, an empty directory lies over that of the library.
    let script = format!("mount -t tmpfs none {} && exec {}", fix.dir().display(), program.path().display());
    let mut target = Target::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let (pid, with) = (target.pid(), of(fix.path(), "slow_fixed"));
    refused(&target, &replace(pid, "inside:slow", &with, &[]), 1, &["does not see the library", "not there"]);
    // Another file at the path is none, either.
    let seen = format!("/proc/{pid}/root{}", fix.path().display());
    std::fs::copy(fix.path(), &seen).unwrap();
    refused(
        &target,
        &replace(pid, "inside:slow", &with, &[]),
        1,
        &["does not see the library", "another file"],
    );
    // What is given as it is seen there is loaded there.
    let there = format!("{seen}:slow_fixed");
    let more = ["--original", "slow_original"];
    let replaced =
        while_called(&mut target, "c41", || Replaced::by_pid_with(pid, "inside:slow", &there, &more));
    assert_eq!(ask(&mut target, "c41"), "1042");
    replaced.interrupt();
    text::eventually_nothing_is_left(pid);
}

#[test]
fn a_seccomp_filter_is_not_risked_unless_somebody_says_so() {
    const FILTERED: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
__attribute__((noinline, noclone)) long slow(long x) { __asm__ volatile("nop\nnop\nnop"); return x + 1; }
int main(void) {
    char line[64];
    struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { 1, all };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    printf("ready\n"); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) { printf("%ld\n", slow(41)); fflush(stdout); }
}
"#;
    let program = Program::build("filtered", FILTERED, &[]);
    let fix = library("fix.so", "long slow_fixed(long x) { return x + 1001; }", &[]);
    let mut target = program.start(&[]);
    let (pid, with) = (target.pid(), of(fix.path(), "slow_fixed"));
    refused(&target, &replace(pid, "filtered:slow", &with, &[]), 1, &["seccomp", "--allow-seccomp"]);
    let replaced = while_called(&mut target, "", || {
        Replaced::by_pid_with(pid, "filtered:slow", &with, &["--allow-seccomp"])
    });
    assert_eq!(ask(&mut target, ""), "1042");
    replaced.interrupt();
    text::eventually_nothing_is_left(pid);
}

#[test]
fn the_manual_and_the_completions_know_the_verb() {
    assert!(run(&["replace", "--help"]).out.contains("--original"));
    assert!(run(&["man"]).out.contains("replace"));
    assert!(run(&["completions", "bash"]).out.contains("replace"));
}
