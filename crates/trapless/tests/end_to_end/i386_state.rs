//! S1 to S4, C3 and A3 in 32-bit programs, under the jump and under every mechanism that traps: `targets/state32.c` calls each probed
//! function and its unprobed twin with the same registers, flags, x87 and SSE state, and compares what they leave.
#![cfg(any(target_arch = "x86_64", target_arch = "x86"))]

use crate::support::Program;
use crate::support::tool::{Ran, run};

/// The calls of each function: every combination of seven flags.
const CALLS: u64 = 128;

/// What the tool and the program say when the tool launches it with `arguments`.
fn launched(program: &Program, verb: &[&str], arguments: &[&str]) -> (Ran, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = ["-f", "json", "-o", file.path().to_str().unwrap(), "--", program.path().to_str().unwrap()];
    let ran = run(&[verb, &options, arguments].concat());
    let said = ran.out.clone();
    (Ran { out: std::fs::read_to_string(file.path()).unwrap(), ..ran }, said)
}

#[test]
fn a3_every_kind_of_entry_does_what_it_does_unprobed() {
    let source = include_str!("targets/state32.c");
    // At low addresses: neither widths nor displacements may be taken for signed 64-bit ones.
    let Some(program) = Program::narrow("state32", source, &["-no-pie", "-fno-pie"]) else { return };
    // How many of the 52 functions each can probe, at the least: what it refuses it must not get wrong.
    for (mechanism, least) in [("jump", 51), ("step", 52), ("emulate", 35), ("boost", 43), ("step,jump", 52)]
    {
        for returns in [false, true] {
            let verb = ["count", "--all", "--mechanism", mechanism, "state32:probed_*"];
            let flags: &[&str] = if returns { &["--return"] } else { &[] };
            let (ran, said) = launched(&program, &[&verb[..], flags].concat(), &[]);
            assert_eq!((ran.code, said.as_str()), (Some(0), "calls 128 bad 0\n"), "{mechanism}: {ran:?}");
            let summary = ran.summary();
            let probes = summary.0["probes"].as_array().unwrap();
            // One function, which leaves its frame by popa, is not followed.
            let least = if returns { 2 * (least - 1) } else { least };
            assert!(probes.len() >= least, "{mechanism}: {} probes", probes.len());
            for probe in probes {
                assert_eq!(probe["hits"], CALLS, "{mechanism}: {probe}");
            }
        }
    }
}

#[test]
fn a3_arguments_are_read_under_traps() {
    let source = include_str!("programs/i386.c");
    let Some(program) = Program::narrow("arguments", source, &["-O2"]) else { return };
    for mechanism in ["step", "emulate", "boost"] {
        let verb = ["trace", "--args", "1", "--mechanism", mechanism, "arguments:check_everything"];
        let (ran, _) = launched(&program, &verb, &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let event =
            ran.json().into_iter().find(|line| line["args"].is_array() || line["arguments"].is_array());
        assert!(event.is_some_and(|event| event.to_string().contains("5000")), "{mechanism}: {}", ran.out);
    }
}

/// A function that goes on in one that pops its arguments returns with another stack pointer than was seen to.
const TAIL: &str = r#"
#include <stdio.h>
__attribute__((noipa, stdcall)) int pops(int x, int y) { return x - y; }
int (*volatile target)(int, int) __attribute__((stdcall)) = pops;
__attribute__((noipa, stdcall)) int direct(int x, int y) { return pops(x + 1, y); }
__attribute__((noipa, stdcall)) int indirect(int x, int y) { return target(x + 1, y); }
int main(void) { printf("%d\n", direct(1, 2) + indirect(3, 4)); return 0; }
"#;

#[test]
fn r5_a_tail_call_that_may_pop_arguments_is_not_followed() {
    let Some(program) = Program::narrow("tail", TAIL, &["-O2"]) else { return };
    for mechanism in ["jump", "step"] {
        let verb = ["count", "--return", "--mechanism", mechanism, "tail:*direct", "tail:main"];
        let (ran, said) = launched(&program, &verb, &[]);
        assert_eq!((ran.code, said.as_str()), (Some(0), "0\n"), "{mechanism}: {ran:?}");
        let summary = ran.summary();
        let reason = summary.skipped("indirect").unwrap();
        assert!(reason.contains("may pop arguments"), "{reason}");
        let reason = summary.skipped("direct").unwrap();
        assert!(reason.contains("pops"), "{reason}");
    }
}
