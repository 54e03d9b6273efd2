//! The examples, run as their first lines say.

use crate::support::tool::{Tool, finish};
use crate::support::{Program, Target};
use std::path::PathBuf;
use std::process::Command;

/// An example as `cargo test` has built it, beside the directory of the tests.
fn example(name: &str, arguments: &[&str]) -> Vec<String> {
    let tests = std::env::current_exe().unwrap();
    let built: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(built.exists(), "cargo build --examples makes {}", built.display());
    let ran = finish(Command::new(built).args(arguments));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn malloc_is_counted_in_a_shell_that_does_not_notice() {
    let lines = example("count_malloc", &[]);
    let hits: u64 = lines[0].split_whitespace().next().unwrap().parse().unwrap();
    assert!(hits > 0, "{lines:?}");
    assert_eq!(lines[1], "it says 1890 without the probe, 1890 with it, 1890 after it");
}

const SOURCE: &str = "
    #include <stdio.h>
    #include <unistd.h>
    __attribute__((noinline)) int subject(int n) { return n * 3 + getpid(); }
    int main(void) {
        int sum = 0;
        printf(\"ready\\n\");
        fflush(stdout);
        for (char c; read(0, &c, 1) == 1;) {
            sum += subject(c);
            printf(\"called\\n\");
            fflush(stdout);
        }
        return sum == 0;
    }";

#[test]
fn a_function_of_a_file_is_explained_for_each_mechanism() {
    let program = Program::build("explained", SOURCE, &[]);
    let lines = example("explain_file", &[program.path().to_str().unwrap(), "subject"]);
    let starts: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(starts, ["subject", "jump", "short", "boost", "emulate", "step", "return"], "{lines:?}");
    assert!(lines[1].starts_with("jump     possible, displaces "), "{lines:?}");
}

#[test]
fn the_journal_of_a_probed_process_is_read() {
    let program = Program::build("journaled", SOURCE, &[]);
    let mut target: Target = program.start(&[]);
    let pid = target.pid().to_string();
    assert_eq!(example("read_journal", &[&pid]), ["nothing is armed"]);
    let tool = Tool::armed(&["count", "-p", &pid, "journaled:subject"]);
    target.tell("");
    assert_eq!(target.line(), "called");
    let lines = example("read_journal", &[&pid]);
    assert!(lines[0].ends_with("which runs"), "{lines:?}");
    // The others serve handlers of signals, and nothing is counted there.
    let counted: Vec<_> = lines.windows(2).filter(|pair| pair[0].ends_with(" jump, 1 hits")).collect();
    // The opcode of a branch, which is in the last byte where instructions are words.
    let branches: &[&str] = match trapless_isa::Machine::HOST {
        Some(trapless_isa::Machine::AArch64) => &[", 14]", ", 15]", ", 16]", ", 17]"],
        Some(trapless_isa::Machine::PowerPc64Le) => &[", 48]", ", 49]", ", 4a]", ", 4b]"],
        _ => &[" [e9, "],
    };
    let is_branch = |line: &String| branches.iter().any(|branch| line.contains(branch));
    assert!(counted.len() == 1 && is_branch(&counted[0][1]), "{lines:?}");
    tool.interrupt();
    assert_eq!(example("read_journal", &[&pid]), ["nothing is armed"]);
}
