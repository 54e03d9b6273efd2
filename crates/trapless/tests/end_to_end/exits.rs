//! Functions that look at their return addresses are followed to the places where they are left. The program (`targets/readers.c`) checks
//! what it sees and tells how often each function was entered and left, which is compared call by call.

use crate::support::assembly::GUARDED;
use crate::support::tool::{Ran, Tool, detach, finish, kill_after, length_of, moments, run, trapless};
use crate::support::{Program, Target, eventually};
use std::process::Command;
use std::time::Duration;

const READERS: &str = include_str!("targets/readers.c");
/// The functions whose numbers the program tells.
const COUNTED: [&str; 8] =
    ["branches", "framed", "tail", "indirect", "recurses", "leaves", "switches", "parts"];

fn readers(flags: &[&str]) -> Program {
    Program::build("readers", READERS, &[&["-O2"], flags].concat())
}

/// What the program told of a function: how often it was entered, and left.
fn told(out: &str, function: &str) -> [u64; 2] {
    let line = out.lines().find_map(|line| line.strip_prefix(function)?.strip_prefix(' '));
    let numbers: Vec<u64> = line.unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The program's output without the address that it is ready at.
fn results(out: &str) -> Vec<&str> {
    out.lines().filter(|line| !line.starts_with("ready")).collect()
}

#[test]
fn r5_functions_that_look_at_their_return_address_are_followed_exactly() {
    for flags in [&GUARDED[1..], &GUARDED[..1], &["-no-pie"]] {
        let program = readers(flags);
        let path = program.path().to_str().unwrap();
        let bare = finish(Command::new(path).arg("300"));
        assert_eq!(bare.code, Some(0), "{bare:?}");
        let output = program.dir().join("numbers");
        for verb in [&["count", "--return"][..], &["latency"]] {
            let options = ["readers:*", "-f", "json", "-o", output.to_str().unwrap(), "--", path, "300"];
            let ran = run(&[verb, &options].concat());
            assert_eq!((ran.code, results(&ran.out)), (bare.code, results(&bare.out)), "{flags:?}: {ran:?}");
            let numbers = Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
            for function in COUNTED {
                let [entered, left] = told(&bare.out, function);
                assert_eq!(numbers.hits(function, "return"), left, "{flags:?} {verb:?}: {function}");
                if verb[0] == "count" {
                    assert_eq!(numbers.hits(function, "entry"), entered, "{flags:?}: {function}");
                    let leaf = ["entry", "return"].map(|kind| numbers.hits("leaf", kind));
                    assert!(leaf[0] > 1200 && leaf[0] == leaf[1], "{flags:?}: {leaf:?}");
                }
            }
        }
    }
}

#[test]
fn a_trace_has_the_results_that_are_there_and_no_others() {
    let program = readers(&[]);
    let path = program.path().to_str().unwrap();
    let output = program.dir().join("calls");
    let probes = ["readers:framed", "readers:tail", "readers:parts", "readers:leaf"];
    let options = ["--return", "--args", "1", "-f", "json", "-o", output.to_str().unwrap(), "--", path, "20"];
    let ran = run(&[&["trace"], &probes[..], &options].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let hits = Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.json();
    let of = |function: &str| {
        let hits = hits.iter().filter(|hit| hit["type"] == "hit" && hit["function"] == function);
        hits.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("tail").len(), 80);
    assert!(of("tail").iter().all(|hit| hit["retval"].is_null() && hit["duration_ns"].is_u64()));
    assert!(of("framed").iter().all(|hit| hit["retval"].is_u64() && hit["duration_ns"].is_u64()));
    let leaf = of("leaf");
    assert!(leaf.len() > 80);
    for hit in leaf {
        assert_eq!(hit["retval"].as_u64().unwrap(), hit["args"][0].as_u64().unwrap() + 1, "{hit}");
    }
    // It is left for its part, which returns, and for another function.
    let parts = of("parts");
    let returned = parts.iter().filter(|hit| hit["retval"].is_u64()).count();
    assert!(parts.len() == 80 && (1..80).contains(&returned), "{returned}");
}

#[test]
fn the_places_are_told_and_each_function_once() {
    let program = readers(&[]);
    let path = program.path().display().to_string();
    let rows = run(&["list", &format!("{path}:*"), "-f", "json"]).json();
    for function in COUNTED {
        let row = rows.iter().find(|row| row["function"] == function).unwrap();
        assert!(row["mechanism"] == "jump" && row["no_return"].is_null(), "{row}");
    }
    let explain = run(&["explain", &format!("{path}:branches")]).out;
    assert!(explain.contains("  return   possible, by the "), "{explain}");
    assert!(explain.contains("\n  left at 0x"), "{explain}");
    let explain = run(&["explain", &format!("uretprobe:{path}:leaf")]).out;
    assert!(explain.contains("by the 1 place where it is left"), "{explain}");

    let mut target = program.start(&["-1"]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "--return", "-p", &pid, "readers:branches", "readers:leaf"]);
    let status = run(&["status", "-p", &pid, "-f", "json"]).json();
    let own = status.iter().filter(|row| row["module"] == "readers");
    let mut armed: Vec<&str> = own.filter_map(|row| row["function"].as_str()).collect();
    armed.sort_unstable();
    assert_eq!(armed, ["branches", "leaf"], "{status:?}");
    tool.interrupt();
    assert!(target.is_alive());
}

#[test]
fn a_running_program_is_followed_again_and_again_and_left_as_it_was() {
    let program = readers(&[]);
    let mut target = program.start(&["-1"]);
    let (pid, text) = (target.pid(), target.text());
    for round in 0..6 {
        let verb = [&["count", "--return"][..], &["latency"], &["trace", "--return", "-o", "/dev/null"]];
        let probes = ["-p", &pid.to_string(), "readers:*", "libc.so.6:*longjmp*"];
        let tool = Tool::armed(&[verb[round % 2], &probes].concat());
        let before = target.read_word(target.address(0));
        eventually("it goes on", || target.read_word(target.address(0)) > before + 1000);
        let summary = tool.interrupt();
        let returns = COUNTED.map(|function| summary.hits(function, "return"));
        assert!(returns.iter().all(|&returns| returns > 500), "{returns:?}");
        assert!(target.is_alive());
        // A stack may hold words of ours for now.
        eventually("it is as it was", || {
            detach(pid);
            text.is_now(pid)
        });
    }
}

#[test]
fn p9_killing_the_tool_at_any_moment_leaves_what_detach_removes() {
    let program = readers(&[]);
    let mut target = program.start(&["-1"]);
    let (pid, text) = (target.pid(), target.text());
    let number = pid.to_string();
    let arguments = ["count", "--return", "-p", &number, "readers:*", "-d", "0.001"];
    let whole = length_of(&mut trapless(&arguments));
    for moment in moments(24, whole * 24 / 21) {
        kill_after(&mut trapless(&arguments), moment + Duration::from_micros(50));
        assert!(target.is_alive(), "killed after {moment:?}");
        let before = target.read_word(target.address(0));
        eventually("it goes on", || target.read_word(target.address(0)) > before + 100);
        eventually("it is as it was", || {
            detach(pid);
            text.is_now(pid)
        });
    }
    assert!(target.is_alive());
}

/// Addresses in the program at which a function is left, as `explain` tells them.
fn exits(path: &str, function: &str) -> Vec<u64> {
    let explain = run(&["explain", &format!("{path}:{function}")]).out;
    let lines = explain.lines().filter_map(|line| line.trim().strip_prefix("left at 0x"));
    lines.map(|line| u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()).collect()
}

#[test]
fn a_function_is_probed_at_all_of_its_exits_or_not_at_all() {
    let program = readers(&["-no-pie"]);
    let path = program.path().to_str().unwrap();
    let exits = exits(path, "parts");
    assert!(exits.len() > 1, "{exits:?}");
    for &exit in &exits {
        let mut target = Target::start(Command::new(path).arg("-1"));
        target.freeze();
        // Somebody else's, and nobody stands there: it says what stood there.
        let original = target.read(exit, 1);
        target.write(exit, &[original[0] ^ 1]);
        let pid = target.pid().to_string();
        let tool = Tool::armed(&["count", "--return", "-p", &pid, "readers:parts", "readers:framed"]);
        target.write(exit, &original);
        target.thaw();
        let before = target.read_word(target.address(0));
        eventually("it goes on", || target.read_word(target.address(0)) > before + 1000);
        let summary = tool.interrupt();
        let reason = summary.skipped("parts").unwrap();
        assert!(reason.contains("not the file's"), "{reason}");
        assert!(summary.hits("framed", "return") > 1000);
        assert!(target.is_alive());
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn any_instruction_may_have_others_ahead_of_it() {
    // Into the middle of what precedes the last two nobody jumps; the first byte of each is all that fits there.
    let source = r#"
    #include <stdio.h>
    long f(long n), g(long n);
    asm(".text; .globl f; .type f, @function; f: push %rbx; mov %rdi, %rbx; add $3, %rbx; lea (%rbx,%rbx), %rax; pop %rbx; ret; .size f, . - f;"
        ".globl g; .type g, @function; g: call f; sub %rdi, %rax; jz 1f; add $1, %rax; 1: ret; .size g, . - g");
    int main(void) { long sum = 0; for (long i = 0; i < 5000; i++) sum += f(i) + g(i); printf("%ld\n", sum); return 0; }"#;
    let program = Program::build("ahead", source, &[]);
    let path = program.path().to_str().unwrap();
    let bare = finish(&mut Command::new(path));
    let output = program.dir().join("numbers");
    // f's `pop` and `ret`, each alone: a jump would not fit behind them.
    for (probe, hits) in [("f+0xc", 10_000), ("f+0xd", 10_000), ("g+0xe", 5000)] {
        let name = format!("ahead:{probe}");
        let row = &run(&["list", &format!("{path}:{probe}"), "-f", "json"]).json()[0];
        if probe == "g+0xe" {
            // Somebody jumps to it.
            assert_ne!(row["mechanism"], "jump", "{row}");
            continue;
        }
        assert_eq!(row["mechanism"], "jump", "{row}");
        let explain = run(&["explain", &format!("{path}:{probe}")]).out;
        assert!(explain.contains("; instructions ahead of the probed one"), "{explain}");
        let options = ["-f", "json", "-o", output.to_str().unwrap(), "--", path];
        let ran = run(&[&["count", &name], &options[..]].concat());
        assert_eq!((ran.code, &ran.out), (bare.code, &bare.out), "{ran:?}");
        let numbers = Ran { out: std::fs::read_to_string(&output).unwrap(), ..ran }.summary();
        assert_eq!(numbers.hits(probe, "entry"), hits, "{probe}");
    }
}
