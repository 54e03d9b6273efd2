//! What a run prints, and when: nothing is said that is not so, and no reader holds anything up.

use crate::support::tool::{run, trapless};
use crate::support::{self, Program, Target, end_with_us, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::process::Stdio;

/// Calls `subject` as often as each line of input says.
const CALLER: &str = include_str!("targets/caller.c");

fn caller() -> Program {
    Program::build("caller", CALLER, &[])
}

/// Calls `subject` that often.
fn call(target: &mut Target, times: u32) {
    target.tell(&times.to_string());
    assert_eq!(target.line(), "done");
}

#[test]
fn d3_a_reader_that_stands_still_keeps_no_probe_in_any_target() {
    let program = Program::build(
        "many",
        &format!(
            "#include <stdio.h>\n{}\nint main(void) {{ puts(\"ready\"); fflush(stdout); return getchar() < 0; }}",
            (0..3000).fold(String::new(), |text, n| text
                + &format!("__attribute__((noipa)) long a_function_with_a_long_name_{n}(long x) {{ return 3 * x + {n}; }}\n"))
        ),
        &[],
    );
    let (first, second) = (program.start(&[]), program.start(&[]));
    let before = [first.text(), second.text()];
    let pids = format!("{},{}", first.pid(), second.pid());
    let mut command = trapless(&["count", "many:a_function*", "-f", "json", "-d", "2", "-p", &pids]);
    let child = end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap();
    // A summary is far longer than what a pipe holds, and nobody reads.
    eventually("probes are in", || !before[1].is_now(second.pid()));
    for (text, target) in before.iter().zip([&first, &second]) {
        eventually("the probes are out", || text.is_now(target.pid()));
    }
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let summaries = out.lines().filter(|line| line.contains("\"type\":\"summary\"")).count();
    assert_eq!(summaries, 2, "{} lines", out.lines().count());
}

#[test]
fn d3_a_trace_that_nobody_reads_ends_in_time_and_keeps_no_probe() {
    let program = caller();
    let mut target = program.start(&[]);
    let before = target.text();
    let mut command = trapless(&["trace", "caller:subject", "-d", "3", "-p", &target.pid().to_string()]);
    let child = end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap();
    eventually("the probe is in", || !before.is_now(target.pid()));
    call(&mut target, 10_000);
    eventually("the probe is out", || before.is_now(target.pid()));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // What had been read from the rings is told to a reader who comes late.
    assert_eq!(out.lines().filter(|line| line.contains("subject")).count(), 10_000);
}

#[test]
fn d3_a_signal_that_comes_behind_the_end_of_a_run_leaves_it_its_report() {
    let target = caller().start(&[]);
    let before = target.text();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let pid = target.pid().to_string();
        let mut command = trapless(&["count", "-a", "libc.so.6:*", "-d", "0.01", "-f", "json", "-p", &pid]);
        let child = end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut out = child.stdout.take().unwrap();
        eventually("the report has begun, and nobody reads it", || {
            let mut waiting = 0;
            // SAFETY: the request writes one integer.
            assert_eq!(unsafe { libc::ioctl(out.as_raw_fd(), libc::FIONREAD, &mut waiting) }, 0);
            waiting > 32 << 10
        });
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        let last = text.lines().last().unwrap();
        let last: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}"));
        assert_eq!(last["type"], "summary");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        before.assert_restored(target.pid());
    }
}

#[test]
fn several_processes_have_a_total() {
    let program = caller();
    let (mut first, mut second) = (program.start(&[]), program.start(&[]));
    let pids = format!("{},{}", first.pid(), second.pid());
    let tool = support::tool::Tool::armed(&["count", "caller:subject", "-p", &pids]);
    call(&mut first, 3);
    call(&mut second, 4);
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    let total = ran.json().into_iter().find(|line| line["type"] == "total").unwrap();
    assert_eq!((&total["processes"], &total["probes"][0]["hits"]), (&2.into(), &7.into()), "{total}");
}

#[test]
fn an_idle_run_sleeps() {
    let program = caller();
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let command = &mut trapless(&["count", "caller:subject", "-d", "2", "-p", &pid]);
    let mut child = end_with_us(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let switches = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|n| n.trim().parse::<u64>().ok())
    };
    eventually("the probe is in", || run(&["status", "-p", &pid]).out.contains("caller:subject"));
    let armed = switches(child.id()).unwrap();
    let mut last = armed;
    while child.try_wait().unwrap().is_none() {
        // A zombie has none.
        last = switches(child.id()).filter(|n| *n > 0).unwrap_or(last);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // A tick each 5 ms would be hundreds; removal and its keeper are some.
    assert!(last - armed < 60, "woke {} times", last - armed);
}
#[test]
fn all_json_is_as_its_schema_says() {
    let schema = support::schema::Schema::read();
    let program = caller();
    let path = program.path().to_str().unwrap().to_owned();
    let mut target = program.start(&[]);
    let pid = target.pid().to_string();
    let check = |lines: Vec<serde_json::Value>, kinds: &[&str]| {
        assert_eq!(lines[0]["version"], 1, "{}", lines[0]);
        assert!(lines[1..].iter().all(|line| line.get("version").is_none()));
        lines.iter().for_each(|line| schema.check(line));
        for kind in kinds {
            assert!(lines.iter().any(|line| line["type"] == *kind), "no {kind}");
        }
    };
    let mut run_with = |arguments: &[&str], kinds: &[&str]| {
        let mut tool = trapless(&[arguments, &["-f", "json", "-p", &pid]].concat());
        let mut child = end_with_us(&mut tool).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut out = String::new();
        let mut comes = |kind: &str| {
            let kind = format!("\"type\":\"{kind}\"");
            while !out.contains(&kind) && output.read_line(&mut out).unwrap() > 0 {}
        };
        comes("attached");
        check(run(&["status", "-f", "json", "-p", &pid]).json(), &["armed"]);
        call(&mut target, 3);
        kinds[..kinds.len() - 1].iter().for_each(|kind| comes(kind));
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        comes("summary");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        check(out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), kinds);
    };
    run_with(&["count", "--return", "-i", "0.2", "caller:*"], &["attached", "interval", "summary"]);
    run_with(&["latency", "-i", "0.2", "caller:subject"], &["attached", "interval", "summary"]);
    run_with(&["trace", "--args", "2", "--return", "caller:subject"], &["attached", "hit", "summary"]);
    check(run(&["list", "-f", "json", "-p", &pid]).json(), &["module"]);
    check(run(&["list", "-f", "json", &path]).json(), &["site"]);
    check(run(&["list", "--summary", "-f", "json", &path]).json(), &["coverage"]);
    let placed = Program::build("placed", "int main(void)\n{\n\treturn 0;\n}\n", &["-g"]);
    let (main, line) =
        (format!("{}:main", placed.path().display()), format!("{}:placed.c:3", placed.path().display()));
    check(run(&["list", "-f", "json", &line]).json(), &["site"]);
    check(run(&["list", "--lines", "-f", "json", &main]).json(), &["line"]);
    let command = ["--", placed.path().to_str().unwrap()];
    check(run(&[&["count", "-f", "json", "placed:placed.c:3"], &command[..]].concat()).json(), &["summary"]);
    check(run(&[&["trace", "-f", "json", "placed:placed.c:3"], &command[..]].concat()).json(), &["hit"]);
    let tool = support::tool::Tool::armed(&["count", "caller:subject", "-p", &pid]);
    check(run(&["detach", "-f", "json", "-p", &pid]).json(), &["detached"]);
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    // Its first line was read before.
    ran.json().iter().for_each(|line| schema.check(line));
    assert_eq!(ran.summary().0["lost_sites"][0]["code"], "detached");
}

#[test]
fn a_launched_commands_output_stays_out_of_json() {
    let program = Program::build(
        "talker",
        "#include <stdio.h>\n__attribute__((noipa)) long subject(long x) { return 3 * x; }\n\
         int main(void) { puts(\"this is no JSON\"); return subject(0) != 0; }",
        &[],
    );
    let path = program.path().to_str().unwrap();
    let ran = run(&["count", "talker:subject", "-f", "json", "--", path]);
    assert_eq!(ran.summary().hits("subject", "entry"), 1);
    assert!(ran.err.contains("this is no JSON"), "{ran:?}");
    // With a file for the JSON, or text, all stays as it is.
    let file = program.dir().join("out.json");
    let ran = run(&["count", "talker:subject", "-f", "json", "-o", file.to_str().unwrap(), "--", path]);
    assert_eq!(ran.out, "this is no JSON\n");
}

#[test]
fn values_of_64_bits_survive_readers_that_keep_doubles() {
    let program = Program::build(
        "wide",
        "__attribute__((noipa)) unsigned long subject(unsigned long x) { return x + 1; }\n\
         int main(void) { return subject(0x8000000000000000) == 0; }",
        &[],
    );
    let path = program.path().to_str().unwrap();
    let ran = run(&["trace", "--args", "1", "--return", "wide:subject", "-f", "json", "--", path]);
    let hit = ran.json().into_iter().find(|line| line["type"] == "hit").unwrap();
    assert_eq!(hit["args_hex"][0], "0x8000000000000000", "{hit}");
    assert_eq!(hit["retval_hex"], "0x8000000000000001", "{hit}");
}

#[test]
fn names_are_shown_as_they_were_asked_for() {
    let program = Program::build(
        "names",
        "#include <stdio.h>\n__attribute__((noipa)) long subject64(long x) { return 3 * x; }\n\
         long subject(long) __attribute__((alias(\"subject64\")));\n\
         int main(void) { return subject(0) != 0; }",
        &[],
    );
    let link = program.dir().join("linked");
    std::os::unix::fs::symlink(program.path(), &link).unwrap();
    let link = link.to_str().unwrap();
    for function in ["subject", "subject64"] {
        let ran = run(&["count", &format!("linked:{function}"), "-f", "json", "--", link]);
        let summary = ran.summary();
        assert_eq!(summary.hits(function, "entry"), 1, "{ran:?}");
        assert_eq!(summary.0["probes"][0]["module"], "linked", "{ran:?}");
    }
}

#[test]
fn d8_what_is_left_out_is_not_what_does_not_exist() {
    let program = caller();
    let path = program.path().to_str().unwrap();
    run(&["count", "caller:subject", "-x", "*", "--", path])
        .assert_refused(5, &["the function that 'caller:subject' matches is left out by --exclude"]);
    run(&["count", "caller:nonesuch", "-x", "*", "--", path]).assert_refused(5, &["no function matches"]);
}

#[test]
fn options_of_other_tools_are_one_line_and_code_2() {
    for option in ["-e", "-T", "-U", "--filter", "-L", "--stacks", "--key", "--children", "--fork"] {
        run(&["count", option, "libc:malloc"]).assert_refused(2, &["no option", option]);
    }
}

#[test]
fn a_run_that_ends_after_so_many_hits_has_as_many() {
    let program = caller();
    for verb in [&["count"][..], &["count", "--return"], &["latency"], &["trace"], &["trace", "--return"]] {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let tool = support::tool::Tool::armed(&[verb, &["caller:subject", "-M", "10", "-p", &pid]].concat());
        target.tell("5000");
        let ran = tool.ran();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let summary = ran.summary();
        for row in summary.0["probes"].as_array().unwrap() {
            assert_eq!(row["hits"], 10, "{verb:?}: {row}");
            if verb[0] == "latency" {
                let buckets = row["latency_ns"]["buckets"].as_array().unwrap();
                let calls: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
                assert_eq!(calls, 10, "{row}");
            }
        }
        if verb[0] == "trace" {
            assert_eq!(summary.0["shown"], 10);
            assert_eq!(ran.json().iter().filter(|line| line["type"] == "hit").count(), 10);
        }
    }
}

#[test]
fn a_command_that_runs_another_program_says_so() {
    for (script, how) in [("exec sleep 2", "ran another program, "), ("exec true", "another program, ")] {
        let ran = run(&["count", "libc.so.6:malloc", "-f", "json", "--", "sh", "-c", script]);
        let summary = ran.summary();
        assert_eq!(summary.0["notes"][0]["code"], "exec", "{script}: {ran:?}");
        assert!(ran.err.contains(how) && ran.err.contains("whose calls were not counted"), "{ran:?}");
    }
    let ran = run(&["count", "libc.so.6:malloc", "-f", "json", "--", "sh", "-c", "echo"]);
    assert_eq!(ran.summary().0["notes"].as_array().unwrap().len(), 0, "{ran:?}");
}

#[test]
fn hits_of_forked_children_are_told_with_their_own_numbers() {
    let program = Program::build(
        "forks",
        "#include <stdio.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
         __attribute__((noipa)) long subject(long x) { return 3 * x; }\n\
         int main(void) { subject(1); pid_t child = fork(); if (child == 0) { subject(2); subject(3); _exit(0); }\n\
         waitpid(child, 0, 0); fprintf(stderr, \"child %d\\n\", child); return 0; }",
        &[],
    );
    let path = program.path().to_str().unwrap();
    let ran = run(&["trace", "forks:subject", "-f", "json", "--", path]);
    let child = ran.err.lines().find_map(|line| line.strip_prefix("child ")).unwrap().to_owned();
    let summary = ran.summary();
    assert_eq!(summary.0["children"], serde_json::json!([{"pid": child.parse::<i32>().unwrap(), "hits": 2}]));
    let of_child =
        ran.json().iter().filter(|line| line["child"] == true && line["pid"] != summary.0["pid"]).count();
    assert_eq!(of_child, 2, "{ran:?}");
    let ran = run(&["count", "forks:subject", "-f", "json", "--", path]);
    assert_eq!(ran.summary().hits("subject", "entry"), 1, "{ran:?}");
    assert_eq!(ran.summary().0["children"][0]["hits"], 2, "{ran:?}");
    assert!(ran.err.contains("2 hits in children, not counted above"), "{ran:?}");
}
