//! Hard cases S3 and W1 in Go: its handler of signals is shown the program, whichever instruction of a detour faults or is interrupted, and
//! whenever it was installed.

use crate::support::tool::{Ran, Tool, run};
use crate::support::{Program, Target};

/// What it does is told at its beginning.
const SOURCE: &str = include_str!("programs/gofaults.go");

/// Calls in one round of work.
const CALLS: [(&str, u64); 4] =
    [("main.First", 8), ("main.Later", 8), ("main.Last", 8 * 200), ("main.Where", 16)];

fn program(name: &str, flags: &[&str]) -> Option<Program> {
    Program::go(name, SOURCE, flags)
}

fn work(target: &mut Target) -> String {
    target.tell("go");
    target.line()
}

/// Whether the profile has samples at places that are not the program's. Some dozens of our instructions are shown as they are: hardly any sample is
/// of those.
fn is_outside(line: &str) -> bool {
    line.ends_with("outside: true")
}

/// What came of a round but for that.
fn result(line: &str) -> &str {
    line.split(" outside").next().unwrap_or_default()
}

fn finished(tool: Tool) -> Ran {
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

#[test]
fn s3_panics_and_profiles_of_a_go_program_name_its_own_places() {
    for (name, flags) in [("gofixed", &[][..]), ("gopie", &["-buildmode=pie"])] {
        let Some(program) = program(name, flags) else { return };
        let mut plain = program.start(&["profile"]);
        let expected = work(&mut plain);
        let parts = ["main.First:", "main.Later:", "outside: false"];
        assert!(parts.iter().all(|part| expected.contains(part)), "{expected}");
        let mut outside = 0;
        // A panic leaves the places of faults in Go's memory: each session gets a program that has had none.
        for verb in [&["count"][..], &["count", "--return"], &["latency"]] {
            let mut target = program.start(&["profile"]);
            let pid = target.pid().to_string();
            let all = format!("{name}:*");
            let tool = Tool::armed(&[verb, &["-p", &pid, "--max-probes", "100000", &all]].concat());
            for _ in 0..4 {
                let line = work(&mut target);
                assert_eq!(result(&line), result(&expected), "{name} {verb:?}");
                outside += usize::from(is_outside(&line));
            }
            let summary = finished(tool).summary();
            if verb[0] == "count" {
                for (function, calls) in CALLS {
                    assert_eq!(summary.hits(function, "entry"), 4 * calls, "{name} {verb:?} {function}");
                }
            }
            target.text().assert_is_of_files(target.pid());
            assert_eq!(work(&mut target), expected, "{name} {verb:?}");
        }
        assert!(outside <= 1, "{name}: {outside} of 12");
    }
}

#[test]
fn s3_handlers_that_come_later_are_shown_the_program_and_no_call_is_counted_twice() {
    let Some(program) = program("golater", &[]) else { return };
    let expected = work(&mut program.start(&["profile"]));
    // Launched, so that nothing is handled yet when it is probed.
    let path = program.path().to_str().unwrap();
    let ran = run(&["count", "-f", "json", "golater:main.*", "--", path, "profile", "3"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.err.matches(result(&expected)).count(), 3, "{ran:?}");
    let summary = ran.summary();
    for (function, calls) in CALLS {
        assert_eq!(summary.hits(function, "entry"), 3 * calls, "{function}");
    }
}

#[test]
fn c2_short_jumps_lead_through_other_functions_of_a_running_go_program() {
    let Some(program) = program("gohops", &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let listed = run(&["list", "-p", &pid, "gohops:main.Last", "-f", "json"]).json();
    assert_eq!(listed[0]["mechanism"], "short", "{listed:?}");
    let expected = work(&mut target);
    // Stopped for garbage collection wherever they are, through sessions that come and go, and are killed.
    for round in 0..6 {
        let tool = Tool::armed(&["count", "-p", &pid, "gohops:main.Last", "gohops:main.Hot"]);
        for _ in 0..2 {
            assert_eq!(work(&mut target), expected, "round {round}");
        }
        if round % 3 == 2 {
            tool.signal(libc::SIGKILL);
            drop(tool);
            assert_eq!(work(&mut target), expected, "round {round}");
            assert_eq!(run(&["detach", "-p", &pid]).code, Some(0));
        } else {
            let summary = finished(tool).summary();
            assert_eq!(summary.hits("main.Last", "entry"), 2 * 8 * 200);
            assert_eq!(summary.hits("main.Hot", "entry"), 2 * (8 * 200 * 1000));
        }
        target.text().assert_is_of_files(target.pid());
    }
}

/// What it does is told at its beginning.
const STOPS: &str = include_str!("programs/gostops.go");

#[test]
fn w1_goroutines_are_stopped_at_places_that_go_knows_and_go_on_there_with_their_flags() {
    let Some(program) = Program::go("gostops", STOPS, &[]) else { return };
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let preempt = "gostops:runtime.asyncPreempt";
    let listed = run(&["list", "-p", &pid, &format!("{preempt}*"), "-f", "json"]).json();
    let start = listed[0]["address"].as_u64().unwrap();
    let size = listed[0]["size"].as_u64().unwrap();
    // The only room there is lies at the very end of what handlers hop over; and behind the last `popf`, Go's own code goes on with the flags.
    let behind: Vec<String> = (1..12).map(|back| format!("gostops:{:#x}", start + size - back)).collect();
    for patterns in [vec!["gostops:main.Last"], behind.iter().map(String::as_str).collect()] {
        let arguments = [&["count", "-p", &pid, "--max-probes", "100"][..], &patterns].concat();
        let ran = run(&[&arguments[..], &["-d", "0.1"]].concat());
        if ran.code == Some(1) {
            // None of them can be probed, and so none is.
            continue;
        }
        let tool = Tool::armed(&arguments);
        for _ in 0..3 {
            assert_eq!(work(&mut target), "true true", "{patterns:?}");
        }
        finished(tool);
    }
    assert_eq!(work(&mut target), "true true");
    target.text().assert_is_of_files(target.pid());
}
