//! Hard case R4: Go's calls are followed to their exits. Stacks grow and are moved, goroutines go from thread to thread, panic, recover and exit, and
//! every call is counted once, and once where it returns.

mod support;

use std::collections::BTreeMap;
use support::tool::{Ran, Tool, detach, run};
use support::{Program, Target};

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
    for (name, flags, arguments) in
        [("gofixed", &[][..], &[][..]), ("gopie", &["-buildmode=pie"], &["profile"])]
    {
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

#[test]
fn r4_a_goroutines_return_is_one_line_with_its_entry_whatever_thread_it_is_on() {
    let Some(program) = program("gotraced", &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let patterns = ["gotraced:main.Yields", "gotraced:main.Works", "gotraced:main.Recovers"];
    let options = ["trace", "--return", "--args", "3", "-p", &pid];
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
        for line in returned {
            assert_eq!(line["args"].as_array().map(Vec::len), Some(3), "{line}");
            assert!(line["duration_ns"].as_u64().is_some(), "{line}");
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

#[test]
fn r4_what_checks_for_stack_space_is_probed_behind_that_and_followed() {
    let Some(program) = program("golisted", &[]) else { return };
    let path = program.path().to_str().unwrap();
    let list = |what: &str| run(&["list", what, "-f", "json", "--max-probes", "100000"]).json();
    let rows = list(&format!("{path}:*"));
    let probed: Vec<_> = rows.iter().filter(|row| row["mechanism"] == "jump").collect();
    let followed = probed.iter().filter(|row| row["no_return"].is_null()).count();
    println!("of {} functions {} are probed and {followed} followed", rows.len(), probed.len());
    assert!(probed.len() > rows.len() * 7 / 10 && followed > probed.len() * 97 / 100);
    // Those that do not check have no room.
    let nosplit = rows.iter().filter(|row| row["reason"].as_str().is_some_and(|why| why.contains("nosplit")));
    assert!(nosplit.count() > (rows.len() - probed.len()) * 9 / 10);
    // The patch is behind `cmp` and `jbe`, and ahead of them there is no room.
    let ahead = run(&["explain", &format!("{path}:main.Grow")]).out;
    assert!(ahead.contains("sub rsp") && !ahead.contains("[r14+0x10]"), "{ahead}");
    let refused = run(&["explain", &format!("{path}:main.Grow+8")]);
    assert!(refused.out.contains("jump     no: Go runs this on what is left"), "{refused:?}");
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
