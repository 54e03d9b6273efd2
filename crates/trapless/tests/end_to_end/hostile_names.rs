//! Hard case H2: names of processes, threads, files and functions that carry escapes. None reaches a terminal as it is, and JSON
//! stays JSON.

use crate::support::tool::run;
use crate::support::{Program, Target};

/// Everything that a terminal would act on.
fn is_harmful(c: char) -> bool {
    c.is_control() && c != '\n'
}

/// Maps a file, makes a child that has ended and one that is traced, and bears a name of escapes itself.
const NAMES: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    prctl(PR_SET_NAME, "n\033[31mX\007\x9b");
    int fd = open(argv[1], O_RDONLY);
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) return 1;
    close(fd);
    int dead = fork();
    if (dead == 0) _exit(0);
    int traced = fork();
    if (traced == 0) { prctl(PR_SET_PDEATHSIG, 9); for (;;) pause(); }
    ptrace(PTRACE_SEIZE, traced, 0, 0);
    siginfo_t info;
    waitid(P_PID, dead, &info, WEXITED | WNOWAIT);
    printf("ready %x %x\n", dead, traced); fflush(stdout);
    for (;;) pause();
}
"#;

#[test]
fn h2_no_name_gives_orders_to_a_terminal() {
    let program = Program::build("names", NAMES, &[]);
    // No ELF file, so that it is named in an error.
    let bad = program.dir().join("bad\u{1b}]0;title\u{7}\u{9b}2J\n.so");
    std::fs::write(&bad, "no code").unwrap();
    let target = Target::start(std::process::Command::new(program.path()).arg(&bad));
    let (own, dead, traced) = (target.pid() as u64, target.address(0), target.address(1));
    for (pid, arguments) in [
        (dead, &["count", "libc.so.6:malloc"][..]),
        (traced, &["count", "libc.so.6:malloc"]),
        (own, &["count", "bad*:f", "-d", "0.01"]),
        (own, &["list", "bad*:*"]),
        (own, &["explain", "bad*:f"]),
        (own, &["count", "libc.so.6:no\u{1b}[31msuch", "-d", "0.01"]),
        (own, &["count", "\u{9b}2J:f", "-d", "0.01"]),
    ] {
        let pid = pid.to_string();
        let ran = run(&[&arguments[..1], &["-p", &pid], &arguments[1..]].concat());
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
        assert!(!ran.err.is_empty() && ran.err.lines().count() == 1, "one line: {ran:?}");
        assert!(!ran.err.contains(is_harmful) && !ran.out.contains(is_harmful), "{ran:?}");
    }
}

#[test]
fn h2_functions_named_by_escapes_are_shown_and_stay_themselves_in_json() {
    let source = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((noipa)) long subject_of_15_b(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
int main(void) {
    puts("ready"); fflush(stdout);
    for (long i = 0;; i++) { subject_of_15_b(i); usleep(1000); }
}
"#;
    let program = Program::build("named", source, &[]);
    // No assembler takes such a name, so it is written over one of the same length.
    let name = b"sub\x1b[2J\xc2\x9bject__";
    let mut file = std::fs::read(program.path()).unwrap();
    let at = file.windows(15).position(|bytes| bytes == b"subject_of_15_b").unwrap();
    file[at..at + 15].copy_from_slice(name);
    let (patched, running) = (program.dir().join("patched"), program.dir().join("renamed"));
    std::fs::copy(program.path(), &patched).unwrap();
    std::fs::write(&patched, file).unwrap();
    trapless_testing::copy_program(&patched, &running);
    let target = Target::start(&mut std::process::Command::new(&running));
    let pid = target.pid().to_string();
    for verb in ["count", "latency", "trace", "list", "explain"] {
        let arguments = [verb, "-p", &pid, "renamed:sub*"];
        let last: &[&str] = if matches!(verb, "list" | "explain") { &[] } else { &["-d", "0.05"] };
        let text = run(&[&arguments, last].concat());
        assert_eq!(text.code, Some(0), "{text:?}");
        assert!(text.out.contains("ject"), "{text:?}");
        assert!(!text.out.contains(is_harmful) && !text.err.contains(is_harmful), "{text:?}");
        if verb == "explain" {
            continue;
        }
        let json = run(&[&arguments, last, &["-f", "json"]].concat());
        assert!(!json.out.contains(is_harmful), "{json:?}");
        assert!(!json.json().is_empty(), "{json:?}");
        assert!(
            json.json().iter().any(|line| line.to_string().contains("sub\\u001b[2J\u{9b}ject__")),
            "{json:?}"
        );
    }
}
