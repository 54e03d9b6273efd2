//! Hard case R4: Go's calls are followed to their exits. Stacks grow and are moved, goroutines go from thread to thread, panic, recover and exit, and
//! every call is counted once, and once where it returns.

use crate::support::tool::{Ran, Tool, detach, run};
use crate::support::{Program, Target};
use std::collections::BTreeMap;

/// What it does is told at its beginning.
const SOURCE: &str = include_str!("programs/goroutines.go");

const GOROUTINES: u64 = 200;

fn program(name: &str, flags: &[&str]) -> Option<Program> {
    Program::go(name, SOURCE, flags)
}

/// Has it work, and gives what came of it.
fn work(target: &mut Target) -> String {
    target.tell("go");
    target.line()
}

/// How often each function is entered in one round of work, and how often it returns.
fn calls() -> BTreeMap<&'static str, [u64; 2]> {
    let sum = |of: fn(u64) -> u64| (0..GOROUTINES).map(of).sum::<u64>();
    let whole = |calls| [calls, calls];
    BTreeMap::from([
        ("main.Grow", whole(sum(|n| n + 1))),
        ("main.Recovers", whole(GOROUTINES)),
        ("main.Recovers.func1", whole(GOROUTINES)),
        // The last of them faults, and all are left.
        ("main.Panics", [sum(|n| n % 20 + 1), 0]),
        ("main.Yields", whole(GOROUTINES)),
        ("main.Branches", whole(20 * GOROUTINES)),
        ("main.Callers", whole(sum(|n| (n..n + 20).filter(|n| n % 3 != 0).count() as u64))),
        ("main.Exits", [sum(|n| if n % 10 == 0 { n % 7 + 1 } else { 0 }), 0]),
        ("main.Works", [GOROUTINES, GOROUTINES - GOROUTINES / 10]),
        ("main.Six", whole(GOROUTINES)),
    ])
}

fn finished(tool: Tool) -> Ran {
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

#[test]
fn r4_every_call_of_a_goroutine_is_counted_and_timed_to_its_return() {
    const STRIPPED: &str = "-ldflags=-s -w";
    for (name, flags, arguments) in [
        ("gofixed", &[][..], &[][..]),
        ("gopie", &["-buildmode=pie"], &["profile"]),
        ("gostripped", &[STRIPPED], &[]),
        ("gopiestripped", &[STRIPPED, "-buildmode=pie"], &["profile"]),
    ] {
        let Some(program) = program(name, flags) else { return };
        let expected = work(&mut program.start(arguments));
        assert!(expected.parse::<u64>().unwrap() > 1_000_000, "{expected}");
        for verb in [&["count", "--return"][..], &["latency"]] {
            let mut target = program.start(arguments);
            let pid = target.pid().to_string();
            let pattern = format!("{name}:main.*");
            let tool = Tool::armed(&[verb, &["-p", &pid, &pattern]].concat());
            for _ in 0..3 {
                assert_eq!(work(&mut target), expected, "{name} {verb:?}");
            }
            let summary = finished(tool).summary();
            for (function, [entries, returns]) in calls() {
                if verb[0] == "count" {
                    assert_eq!(summary.hits(function, "entry"), 3 * entries, "{function}");
                }
                assert_eq!(summary.hits(function, "return"), 3 * returns, "{function}");
            }
            let lost = summary.0["lost_sites"].as_array().map_or(0, Vec::len);
            assert_eq!(lost, 0, "{summary:?}");
            target.text().assert_is_of_files(target.pid());
            assert_eq!(work(&mut target), expected);
        }
    }
}

fn arguments(line: &serde_json::Value) -> Vec<u64> {
    line["args"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

#[test]
fn r4_a_goroutines_return_is_one_line_with_its_entry_whatever_thread_it_is_on() {
    let Some(program) = program("gotraced", &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let patterns = ["Yields", "Works", "Recovers", "Six"].map(|name| format!("gotraced:main.{name}"));
    let patterns = patterns.each_ref().map(String::as_str);
    let options = ["trace", "--return", "--args", "6", "-p", &pid];
    let tool = Tool::armed(&[&options[..], &patterns].concat());
    work(&mut target);
    let lines = finished(tool).json();
    for (function, [entries, returns]) in calls() {
        let of = |kind: &str| {
            let is = |line: &&serde_json::Value| line["function"] == function && line["kind"] == kind;
            lines.iter().filter(is).collect::<Vec<_>>()
        };
        if patterns.iter().all(|pattern| !pattern.ends_with(function)) {
            continue;
        }
        // A call that has not returned is a line, too.
        let (left, returned) = (of("entry"), of("return"));
        assert_eq!((left.len() as u64, returned.len() as u64), (entries - returns, returns), "{function}");
        for line in &returned {
            assert_eq!(line["args"].as_array().map(Vec::len), Some(6), "{line}");
            assert!(line["duration_ns"].as_u64().is_some(), "{line}");
        }
        // Called once by each goroutine, with its number and those behind it.
        let mut called: Vec<Vec<u64>> = left.iter().chain(&returned).map(|line| arguments(line)).collect();
        called.sort_unstable();
        let known = match function {
            "main.Yields" | "main.Works" => 1,
            "main.Six" => 6,
            _ => 0,
        };
        for (n, arguments) in (0..).zip(called).filter(|_| known > 0) {
            assert!(arguments.into_iter().take(known).eq(n..n + known as u64), "{function} {n}");
        }
    }
}

#[test]
fn r4_all_of_a_go_program_is_followed_while_sessions_come_and_go() {
    let Some(program) = program("gostorm", &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid();
    let expected = work(&mut target);
    for round in 0..8 {
        let (verb, functions) = [
            (&["count", "--return"][..], "gostorm:*"),
            (&["latency"], "gostorm:*"),
            (&["trace", "--return"], "gostorm:main.*"),
            (&["count"], "gostorm:*"),
        ][round % 4];
        let options = ["-p", &pid.to_string(), functions, "--max-probes", "100000"];
        let tool = Tool::armed(&[verb, &options].concat());
        assert_eq!(work(&mut target), expected, "{verb:?}");
        if round < 4 {
            finished(tool);
        } else {
            tool.kill();
        }
        assert_eq!(work(&mut target), expected, "{verb:?}");
    }
    detach(pid);
    assert_eq!(work(&mut target), expected);
    // What signals have left on stacks may look like a saved context, and keep memory.
    target.text().assert_is_of_files(pid);
}

/// Functions that do not check for stack space, called where a goroutine's stack is about to end.
const NOSPLIT: &str = include_str!("programs/nosplit.go");

#[test]
fn r4_functions_without_stack_are_counted_wherever_a_stack_ends() {
    for (name, flags) in [("nosplit", &[][..]), ("nosplitpie", &["-buildmode=pie"])] {
        let Some(program) = Program::go(name, NOSPLIT, flags) else { return };
        let calls: u64 = (1000..1050).sum();
        let expected = work(&mut program.start(&[]));
        let all = format!("{name}:*");
        // Alone, so that no thread has memory of its own; and with all others.
        for functions in [format!("{name}:main.Leaf"), all] {
            let mut target = program.start(&[]);
            let pid = target.pid().to_string();
            let tool = Tool::armed(&["count", "-p", &pid, &functions, "--max-probes", "100000"]);
            for _ in 0..3 {
                assert_eq!(work(&mut target), expected, "{functions}");
            }
            let summary = finished(tool).summary();
            assert_eq!(summary.hits("main.Leaf", "entry"), 3 * calls, "{functions}");
            if functions.ends_with('*') {
                assert_eq!(summary.hits("main.Deep", "entry"), 3 * calls);
            }
            target.text().assert_is_of_files(target.pid());
            assert_eq!(work(&mut target), expected, "{functions}");
        }
    }
}

#[test]
fn r4_calls_of_functions_without_stack_are_followed_wherever_there_is_some() {
    for (name, flags) in [("nosplitfollowed", &[][..]), ("nosplitfollowedpie", &["-buildmode=pie"])] {
        let Some(program) = Program::go(name, NOSPLIT, flags) else { return };
        let calls: u64 = (1000..1050).sum();
        let expected = work(&mut program.start(&[]));
        let (leaf, deep, all) =
            (format!("{name}:main.Leaf"), format!("{name}:main.Deep"), format!("{name}:*"));
        let mut lost = 0;
        for (verb, functions) in [
            (&["count", "--return"][..], &[&leaf, &deep][..]),
            (&["latency"], &[&leaf, &deep]),
            (&["count", "--return"], &[&all]),
            (&["latency"], &[&all]),
        ] {
            let mut target = program.start(&[]);
            let pid = target.pid().to_string();
            let functions: Vec<&str> = functions.iter().map(|function| function.as_str()).collect();
            let tool = Tool::armed(&[verb, &["-p", &pid, "--max-probes", "100000"], &functions].concat());
            for _ in 0..3 {
                assert_eq!(work(&mut target), expected, "{verb:?} {functions:?}");
            }
            let summary = finished(tool).summary();
            for function in ["main.Leaf", "main.Deep"] {
                let (returned, missed) = (summary.hits(function, "return"), summary.lost(function));
                assert_eq!(returned + missed, 3 * calls, "{verb:?} {functions:?} {function}: {summary:?}");
                assert!(missed < calls / 50, "{function}: {missed}");
                if verb[0] == "count" {
                    assert_eq!(summary.hits(function, "entry"), 3 * calls, "{functions:?} {function}");
                }
                lost += missed;
            }
            target.text().assert_is_of_files(target.pid());
            assert_eq!(work(&mut target), expected, "{verb:?} {functions:?}");
        }
        // Else no stack has ended so close, and nothing of that was tried.
        println!("{lost} calls were at the end of a stack");
        assert!(lost > 0);
    }
}

#[test]
fn r4_functions_without_stack_are_traced_with_their_arguments_and_results() {
    let Some(program) = Program::go("nosplittraced", NOSPLIT, &[]) else { return };
    let mut target = program.start(&["slowly"]);
    let pid = target.pid().to_string();
    let traced = ["trace", "--args", "1", "--return", "-p", &pid, "nosplittraced:main.Leaf"];
    let tool = Tool::armed(&traced);
    work(&mut target);
    let ran = finished(tool);
    let lines = ran.json();
    let returned: Vec<_> = lines.iter().filter(|line| line["kind"] == "return").collect();
    for line in &returned {
        assert_eq!(line["retval"].as_u64(), Some(3 * arguments(line)[0] + 1), "{line}");
    }
    let summary = ran.summary();
    let (calls, lost) = ((100..150).sum::<u64>(), summary.lost("main.Leaf"));
    assert_eq!(returned.len() as u64 + lost, calls, "{summary:?}");
    // What was lost is an entry that no line was written of.
    assert_eq!(summary.0["without_stack"].as_u64(), Some(lost), "{summary:?}");
    assert!((1..calls / 50).contains(&lost), "{lost}");
    // Nor is another entry taken for a lost one.
    assert!(returned.iter().all(|line| line["args"].is_array()));
}

/// Has functions of C's that stand in Go's table of functions.
const LINKED_C: &str = include_str!("programs/linked_c.go");

#[test]
fn r4_functions_of_c_that_gos_linker_has_linked_keep_their_registers() {
    let Some(program) = Program::go("linkedc", LINKED_C, &[]) else { return };
    let path = program.path().to_str().unwrap();
    let listed = run(&["list", &format!("{path}:_cgo_sys_thread_start"), "-f", "json"]);
    if listed.code != Some(0) {
        trapless_testing::skip!("Go links no C here: {}", listed.err);
        return;
    }
    // It keeps r12 for its caller, and has its own callers' there; nothing of the stack is sure.
    assert_eq!(listed.json()[0]["no_return_code"], "nosplit", "{listed:?}");
    let mut target = program.start(&[]);
    let expected = work(&mut target);
    let pid = target.pid().to_string();
    for verb in ["count", "latency"] {
        let tool = Tool::armed(&[verb, "-p", &pid, "linkedc:*", "--max-probes", "100000"]);
        for _ in 0..5 {
            assert_eq!(work(&mut target), expected, "{verb}");
        }
        finished(tool);
        assert_eq!(work(&mut target), expected, "{verb}");
    }
}

#[test]
fn l1_children_of_a_go_program_that_share_its_memory_are_said() {
    let Some(program) = Program::go("gochildren", LINKED_C, &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let tool = Tool::armed(&["count", "-p", &pid, "gochildren:syscall.*"]);
    target.tell("children");
    assert_eq!(target.line(), "10");
    let summary = finished(tool).summary();
    assert_eq!(summary.0["sharing_children"], 10, "{summary:?}");
}

#[test]
fn r4_what_checks_for_stack_space_is_probed_behind_that_and_followed() {
    let Some(program) = program("golisted", &[]) else { return };
    let path = program.path().to_str().unwrap();
    let list = |what: &str| run(&["list", what, "-f", "json", "--max-probes", "100000"]).json();
    let rows = list(&format!("{path}:*"));
    let is_probed = |row: &&serde_json::Value| row["mechanism"] == "jump" || row["mechanism"] == "short";
    let probed: Vec<_> = rows.iter().filter(is_probed).collect();
    let followed = probed.iter().filter(|row| row["no_return"].is_null()).count();
    println!("of {} functions {} are probed and {followed} followed", rows.len(), probed.len());
    assert!(probed.len() > rows.len() * 99 / 100);
    // Go's assembler, and no compiler, made the others.
    let assembled = rows.iter().filter(|row| row["no_return_code"] == "nosplit").count();
    assert!(assembled < rows.len() / 10 && followed > (rows.len() - assembled) * 97 / 100, "{assembled}");
    // Where programs may lie anywhere, whoever links them, the goroutine is loaded in other ways.
    let linked = Program::go("gopielinked", LINKED_C, &["-buildmode=pie"]);
    for pie in [Program::go("gopielisted", SOURCE, &["-buildmode=pie"]), linked].into_iter().flatten() {
        let rows = list(&format!("{}:*", pie.path().to_str().unwrap()));
        let followed = rows.iter().filter(|row| row["mechanism"] == "jump" && row["no_return"].is_null());
        let followed = followed.count();
        println!("of {} functions of {:?} {followed} are followed", rows.len(), pie.path());
        assert!(followed > rows.len() * 17 / 20, "{followed} of {}", rows.len());
    }
    // The patch is behind `cmp` and `jbe`. Ahead of them there is no stack, and all threads count in one place.
    let entry = run(&["explain", &format!("{path}:main.Grow")]).out;
    assert!(entry.contains("sub rsp") && !entry.contains("[r14+0x10]"), "{entry}");
    let ahead = run(&["explain", &format!("{path}:main.Grow+8")]).out;
    assert!(ahead.contains("all threads count in one place"), "{ahead}");
}

#[test]
fn r4_a_goroutine_that_was_stopped_anywhere_goes_on_there_however_large_the_program_is() {
    let Some(program) = program("gospins", &[]) else { return };
    let mut target = program.start(&["spin"]);
    let pid = target.pid().to_string();
    for round in 0..6 {
        let functions = ["gospins:main.Middle", "gospins:main.Spins", "gospins:main.Inner"];
        let tool = Tool::armed(&[&["latency", "-p", &pid][..], &functions].concat());
        // Long enough for the scheduler to stop each of them, and to let it go on.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let summary = finished(tool).summary();
        assert!(target.is_alive(), "{round}: {summary:?}");
        // One that was stopped inside keeps its function out, which the next session may have.
        if let Some(why) = summary.skipped("main.Middle") {
            assert!(why.contains("holds an address inside"), "{why}");
        }
    }
    target.text().assert_is_of_files(target.pid());
    let expected = work(&mut program.start(&[]));
    assert_eq!(work(&mut target), expected);
}

/// Notes each address of a function in its heap, as profiles and traces do, and calls it for each line of input.
const NOTES: &str = r#"
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
)

var notes []uintptr

//go:noinline
func Noted(n int) int {
	if n == 0 {
		return 0
	}
	return Noted(n-1) + n
}

func main() {
	entry := reflect.ValueOf(Noted).Pointer()
	for offset := uintptr(0); offset < 200; offset++ {
		notes = append(notes, entry+offset)
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(Noted(9), len(notes))
	}
}
"#;

#[test]
fn r4_addresses_that_a_go_program_has_noted_keep_no_function_out() {
    let Some(program) = Program::go("gonotes", NOTES, &[]) else { return };
    let mut target = program.start(&[]);
    let tool = Tool::armed(&["count", "--return", "-p", &target.pid().to_string(), "gonotes:main.Noted"]);
    assert_eq!(work(&mut target), "45 200");
    let summary = finished(tool).summary();
    assert_eq!(summary.skipped("main.Noted"), None);
    assert_eq!(["entry", "return"].map(|kind| summary.hits("main.Noted", kind)), [10; 2]);
    target.text().assert_is_of_files(target.pid());
}
