//! L1 with `--follow`: whatever a program creates and runs is counted under its own process id.

use crate::support::family::{FAMILY, TELLS_SHARING_CHILDREN, counted, follow, hits, said, total};
use crate::support::schema::Schema;
use crate::support::tool::{Tool, run};
use crate::support::{self, Program};
use std::os::unix::fs::PermissionsExt;

const WAYS: [&str; 9] = ["fork", "vfork", "clone", "spawn", "threads", "exec", "daemon", "many", "killed"];

#[test]
fn l1_every_process_is_counted_exactly_under_its_own_id() {
    for program in Program::in_both_widths("family", FAMILY, &[]) {
        for way in WAYS {
            let told = format!("{way}, 32 bits: {}", program.is_32bit());
            let followed = follow(&program, &[way], &["count", "--follow", "family:subject"]);
            followed.assert_transparent(&told);
            followed.assert_exact(&told);
            followed.lines.iter().for_each(|line| Schema::read().check(line));
        }
    }
}

#[test]
fn l1_static_programs_are_followed() {
    let musl = Program::try_build("musl-gcc", "family", FAMILY, &["-static"]);
    if musl.is_err() {
        trapless_testing::skip!("no musl-gcc");
    }
    for program in [Program::build("family", FAMILY, &["-static"])].into_iter().chain(musl.ok()) {
        for way in ["fork", "vfork", "spawn", "exec"] {
            let followed = follow(&program, &[way], &["count", "--follow", "family:subject"]);
            followed.assert_transparent(way);
            followed.assert_exact(way);
        }
    }
}

#[test]
fn l1_a_program_that_runs_itself_again_is_counted_each_time() {
    let program = Program::build("family", FAMILY, &[]);
    let followed = follow(&program, &["chain", "6"], &["count", "-F", "family:subject"]);
    followed.assert_transparent("chain");
    followed.assert_exact("chain");
    let summaries = followed.lines.iter().filter(|line| line["type"] == "summary");
    let hits: Vec<u64> = summaries.map(|line| hits(line).values().sum()).collect();
    assert_eq!(hits, [6, 5, 4, 3, 2, 1, 0]);
    let command = followed.lines.iter().find(|line| line["type"] == "command").unwrap();
    assert_eq!((&command["command"], &command["processes"]), (&"family".into(), &1.into()));
}

/// A shell script that runs env, which runs the program by another name: what is probed is in the last one alone.
#[test]
fn l1_a_chain_of_programs_is_followed_to_the_one_that_matches() {
    let program = Program::build("family", FAMILY, &[]);
    let shim = program.dir().join("shim");
    let script = format!("#!/bin/sh\nexec env sh -c '{} fork; exit $?'\n", program.path().display());
    std::fs::write(&shim, script).unwrap();
    std::fs::set_permissions(&shim, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shim = shim.to_str().unwrap();
    let results = program.dir().join("results");
    let ran =
        run(&["count", "-F", "family:subject", "-f", "json", "-o", results.to_str().unwrap(), "--", shim]);
    assert_eq!(ran.code, Some(17), "{ran:?}");
    let text = std::fs::read_to_string(results).unwrap();
    let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(counted(&lines), said(&ran.out), "{ran:?}");
    assert!(total(&lines)["without_match"].as_u64().unwrap() >= 2, "{text}");
    assert_eq!(total(&lines)["notes"], serde_json::json!([]), "{text}");
}

/// What is probed is the C library's, which all of them have: the numbers of all commands are those of all processes.
#[test]
fn l1_totals_are_by_command_and_in_all() {
    let script = "/bin/true; /bin/echo a; (/bin/echo b); /bin/echo c | cat";
    let ran =
        run(&["count", "-F", "libc.so.6:exit", "-f", "json", "-o", "/dev/stderr", "--", "sh", "-c", script]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "a\nb\nc\n"), "{ran:?}");
    let lines: Vec<serde_json::Value> =
        ran.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let command = |name: &str| lines.iter().find(|l| l["type"] == "command" && l["command"] == name).unwrap();
    assert_eq!(command("echo")["processes"], 3, "{ran:?}");
    assert_eq!(hits(command("echo"))["exit"], 3, "{ran:?}");
    assert_eq!(hits(command("true"))["exit"], 1, "{ran:?}");
    let all: u64 = counted(&lines).values().sum();
    assert_eq!(hits(total(&lines))["exit"], all, "{ran:?}");
}

#[test]
fn l1_running_processes_are_followed_from_now_on() {
    let program = Program::build("family", FAMILY, &[]);
    let mut target = program.start(&["wait"]);
    let before = target.text();
    let tool = Tool::armed(&["count", "-F", "-p", &target.pid().to_string(), "family:subject"]);
    let mut out = String::new();
    for way in WAYS {
        target.tell(way);
        loop {
            let line = target.line();
            if line == "done" {
                break;
            }
            assert!(line.starts_with("calls "), "{way}: {line:?}");
            out += &(line + "\n");
        }
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (counted, mut said) = (counted(&ran.json()), said(&out));
    if !TELLS_SHARING_CHILDREN {
        assert!(ran.err.contains("2 children started by vfork"), "{ran:?}");
        // The one that ended was never seen, and the other one, which called 6 times ahead of its exec, only then.
        let child = |calls: u64, hits: Option<u64>| {
            let is_it = |pid: &i64| said[pid] == calls && counted.get(pid).copied() == hits;
            said.keys().copied().find(is_it).expect("a child of vfork")
        };
        let (ended, execed) = (child(5, None), child(13, Some(7)));
        said.remove(&ended);
        said.insert(execed, 7);
        *said.entry(target.pid().into()).or_default() += 11;
    }
    assert_eq!(counted, said, "{ran:?}");
    before.assert_restored(target.pid());
    target.tell("killed");
    assert!(target.line().starts_with("calls "), "it runs on");
}

#[test]
fn l1_durations_and_traces_are_by_process_too() {
    let program = Program::build("family", FAMILY, &[]);
    for way in ["fork", "spawn", "threads", "exec"] {
        let followed = follow(&program, &[way], &["latency", "-F", "family:subject"]);
        followed.assert_transparent(way);
        followed.assert_exact(way);
        let total = total(&followed.lines);
        let buckets = total["probes"][0]["latency_ns"]["buckets"].as_array().unwrap();
        let calls: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
        assert_eq!(calls, hits(total)["subject"], "{way}");

        let followed = follow(&program, &[way], &["trace", "-F", "--return", "family:subject"]);
        followed.assert_transparent(way);
        let mut traced = support::family::Calls::new();
        for hit in followed.lines.iter().filter(|line| line["type"] == "hit") {
            assert!(hit.get("child").is_none(), "{way}: {hit}");
            *traced.entry(hit["pid"].as_i64().unwrap()).or_default() += 1;
        }
        assert_eq!(traced, said(&followed.ran.out), "{way}");
    }
}

#[test]
fn l1_intervals_and_limits_hold_for_all_processes_together() {
    let program = Program::build("family", FAMILY, &[]);
    let followed = follow(&program, &["many"], &["count", "-F", "-i", "0.05", "family:subject"]);
    followed.assert_exact("many");
    let intervals = followed.lines.iter().filter(|line| line["type"] == "interval");
    let shown: u64 = intervals.map(|line| hits(line).values().sum::<u64>()).sum();
    assert!(shown <= hits(total(&followed.lines))["subject"]);

    let followed = follow(&program, &["many"], &["count", "-F", "-M", "500", "family:subject"]);
    // It is let go, and may not have ended by then.
    assert!(matches!(followed.ran.code, Some(0 | 17)), "{:?}", followed.ran);
    assert_eq!(hits(total(&followed.lines))["subject"], 500);
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let refuse = |arguments: &[&str], code, words: &[&str]| run(arguments).assert_refused(code, words);
    for verb in ["count", "latency", "trace"] {
        refuse(
            &[verb, "-F", "--allow-trap", "libc.so.6:exit", "--", "true"],
            2,
            &["--follow", "--allow-trap"],
        );
        refuse(&[verb, "-F", "step:libc.so.6:exit", "--", "true"], 2, &["--follow"]);
    }
    refuse(&["count", "-F", "libc.so.6:exit"], 2, &["no target"]);
    refuse(&["count", "-F", "libc.so.6:exit", "-p", "999999999"], 3, &["no process"]);
    refuse(&["count", "-F", "libc.so.6:exit", "--", "/nowhere/at/all"], 127, &["no such command"]);
    assert_eq!(run(&["list", "--follow", "libc.so.6:exit"]).code, Some(2));
    // Whether there is such a function nobody knows before the end.
    let ran = run(&["count", "-F", "libc.so.6:no_such_function", "--", "sh", "-c", "echo ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(5), "ran\n"), "{ran:?}");
    assert!(ran.err.contains("no function matches"), "{ran:?}");
}

#[test]
fn text_for_people_fits_in_a_terminal() {
    let script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do /bin/true; (/bin/true); done";
    let ran = run(&["count", "-F", "libc.so.6:exit", "--", "sh", "-c", script]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    for words in ["processes", "true, 24 processes", "more; --all shows them", "all "] {
        assert!(ran.out.contains(words), "{words}: {}", ran.out);
    }
}
