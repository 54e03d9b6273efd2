//! S6, L1: children of vfork and posix_spawn, which run in their parent's memory as its own thread, are counted apart from it.

use crate::support::Program;
use crate::support::assembly::X86;
use crate::support::tool::{Summary, Tool};

/// Makes such children, and says how often it and they have called what is probed.
const SHARERS: &str = include_str!("targets/sharers.c");

const WAYS: [&str; 10] =
    ["spawn", "exec", "vfork", "threads", "system", "nested", "clone", "killed", "jump", "forked"];

/// Hits in children, all of them together.
fn of_children(summary: &Summary) -> u64 {
    let children = summary.0["children"].as_array().unwrap();
    children.iter().map(|child| child["hits"].as_u64().unwrap()).sum()
}

/// Runs every way with `command`, whose probes are those of `library`'s execve and the program's subject.
fn every_way(program: &Program, library: &str, command: &[&str], kinds: &[&str]) {
    let name = program.path().file_name().unwrap().to_str().unwrap().to_owned();
    let probes = [format!("{name}:subject"), format!("{library}:execve")];
    for way in WAYS {
        let told = format!("{way}: {command:?} {name}, 32 bits: {}", program.is_32bit());
        let mut target = program.start(&[]);
        let before = target.text();
        let pid = target.pid().to_string();
        let tool =
            Tool::armed(&[command, &["-p", pid.as_str(), probes[0].as_str(), probes[1].as_str()]].concat());
        target.tell(way);
        let line = target.line();
        let mut numbers =
            line.split(' ').map(|word| word.parse().unwrap_or_else(|_| panic!("{told}: {line}")));
        let [own, others]: [u64; 2] = [(); 2].map(|()| numbers.next().unwrap());
        let summary = tool.interrupt();
        for kind in kinds {
            let hits = summary.hits("subject", kind);
            if X86 {
                assert_eq!(hits, own, "{told}: {summary:?}");
            } else {
                // There they count with their parent, and that is said.
                let notes = summary.0["notes"].as_array().unwrap();
                let is_said =
                    summary.0["sharing_children"] != 0 || notes.iter().any(|n| n["code"] == "clones");
                let most = if is_said { own + others } else { own };
                assert!((own..=most).contains(&hits), "{told}: {summary:?}");
            }
        }
        if X86 {
            assert_eq!(of_children(&summary), others, "{told}: {summary:?}");
            assert_eq!(summary.0["sharing_children"], 0, "{told}: {summary:?}");
        }
        // (A signal may have left words on the stack that lead into a detour, so memory may stay.)
        assert!(before.is_now(target.pid()), "{told}");
        target.tell("none");
        assert_eq!(target.line(), "400 0", "{told}");
    }
}

#[test]
fn s6_children_that_share_the_memory_are_counted_apart() {
    for program in Program::in_both_widths("sharers", SHARERS, &[]) {
        every_way(&program, "libc.so.6", &["count"], &["entry"]);
    }
}

#[test]
fn s6_returns_and_durations_are_the_parents_alone() {
    for program in Program::in_both_widths("sharers", SHARERS, &[]) {
        every_way(&program, "libc.so.6", &["count", "--return"], &["entry", "return"]);
        every_way(&program, "libc.so.6", &["latency"], &["return"]);
    }
}

#[test]
fn s6_children_of_static_programs_are_counted_apart() {
    let musl = Program::try_build("musl-gcc", "sharers-musl", SHARERS, &["-static"]);
    if musl.is_err() {
        trapless_testing::skip!("no musl-gcc");
    }
    let glibc = Program::in_both_widths("sharers-static", SHARERS, &["-static"]);
    for program in glibc.into_iter().chain(musl.ok()) {
        let name = program.path().file_name().unwrap().to_str().unwrap().to_owned();
        every_way(&program, &name, &["count"], &["entry"]);
    }
}

/// The number of the call comes from memory, so nothing tells which one it is. On arm64 and powerpc64le nothing does of any.
#[test]
fn s6_children_that_cannot_be_told_apart_are_said() {
    let source = r#"
#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }
#ifdef __x86_64__
int number = 58;
__asm__(".globl vfork\n.type vfork, @function\n"
        "vfork: pop %rdi\n mov number(%rip), %eax\n syscall\n push %rdi\n ret\n"
        ".size vfork, . - vfork");
#endif
int main(void) {
    puts("ready"); fflush(stdout);
    getchar();
    for (int i = 0; i < 7; i++) {
        pid_t child = vfork();
        if (child == 0) { subject(1); subject(2); _exit(0); }
        waitpid(child, 0, 0);
    }
    puts("done"); fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
"#;
    let program = Program::build("untold", source, &[]);
    let mut target = program.start(&[]);
    let tool = Tool::armed(&["count", "-p", &target.pid().to_string(), "untold:subject"]);
    target.tell("go");
    assert_eq!(target.line(), "done");
    let summary = tool.interrupt();
    assert_eq!((summary.hits("subject", "entry"), of_children(&summary)), (14, 0));
    assert_eq!(summary.0["sharing_children"], 7);
}
