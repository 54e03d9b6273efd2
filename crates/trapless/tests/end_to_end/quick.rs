//! The quick forms: `count`, `latency` and `trace` with expressions, and `hist`. What they show is what the target itself counts.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::tool::{Ran, Tool, trapless};
use crate::support::{self, Program, Target, eventually};
use serde_json::Value;

const C: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone))
struct self { int id; const char *name; };
PROBED int load(const char *path, struct self *self, size_t size) {
    __asm__ volatile("" ::: "memory");
    return self->id % 3 ? (int)size : -2;
}
PROBED long fact(int n) {
    long result = n < 2 ? 1 : n * fact(n - 1);
    __asm__ volatile("" : "+r"(result));
    return result;
}
PROBED int slow(long us) {
    if (us) usleep(us);
    __asm__ volatile("" ::: "memory");
    return 0;
}
PROBED int never(void) { __asm__ volatile("" ::: "memory"); return 0; }

static void *work(void *unused) {
    char path[16];
    for (int i = 0; i < 1000; i++) {
        struct self self = { i, "me" };
        sprintf(path, "/f%d", i % 4);
        load(path, &self, i * 100);
    }
    return unused;
}

/* Where frames have room for a return address that nobody has saved there, it is what calls before have left. That would keep memory. */
__attribute__((noinline)) void overwrite(void) { volatile char junk[8192]; for (unsigned i = 0; i < sizeof junk; i++) junk[i] = 1; }

int main(void) {
    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (*line == 'w') {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, work, 0);
            for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
        }
        if (*line == 'f') fact(10);
        if (*line == 's') for (int i = 0; i < 5; i++) { slow(0); slow(3000); }
        if (*line == 'n') never();
#ifdef __powerpc64__
        overwrite();
#endif
        printf("done\n");
        fflush(stdout);
    }
}
"#;

/// A run whose probes are armed.
#[track_caller]
fn armed(arguments: &[&str], errors: &std::path::Path) -> Tool {
    let mut tool = Tool::armed_to(&mut trapless(arguments), errors);
    let said = || std::fs::read_to_string(errors).unwrap_or_default();
    if arguments.contains(&"json") {
        let line = tool.line();
        assert!(line.contains("\"attached\""), "{arguments:?}: {line} {}", said());
    } else {
        eventually("armed", || said().contains("Ctrl-C ends"));
    }
    tool
}

/// What `verb` with `arguments` shows of a target that does these deeds.
#[track_caller]
fn shown(verb: &str, arguments: &[&str], deeds: &[&str]) -> (Ran, String) {
    let program = Program::build("quick", C, &["-g"]);
    let mut target: Target = program.start(&[]);
    let before = target.text();
    let dir = tempfile::tempdir().unwrap();
    let errors = dir.path().join("errors");
    let pid = target.pid().to_string();
    let arguments = [&[verb, "-p", &pid][..], arguments].concat();
    let tool = armed(&arguments, &errors);
    for deed in deeds {
        target.tell(deed);
        assert_eq!(target.line(), "done", "{deed}");
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    let err = std::fs::read_to_string(&errors).unwrap();
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?} {err}");
    before.assert_restored(target.pid());
    (ran, err)
}

/// The rows of the summary, as JSON has them: what they are grouped by, and the hits.
#[track_caller]
fn rows(verb: &str, arguments: &[&str], deeds: &[&str]) -> (Vec<Value>, Value) {
    let (ran, _) = shown(verb, &[arguments, &["-f", "json"]].concat(), deeds);
    let schema = support::schema::Schema::read();
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter().for_each(|line| schema.check(line));
    let summary = lines.last().unwrap().clone();
    assert_eq!(summary["type"], "summary");
    (summary["probes"].as_array().unwrap().clone(), summary)
}

/// Each row's first key, as text, with its hits; sorted.
fn by(rows: &[Value]) -> Vec<(String, u64)> {
    let row = |row: &Value| (row["by"][0]["value"].to_string(), row["hits"].as_u64().unwrap());
    let mut all: Vec<_> = rows.iter().filter(|row| row["hits"] != 0).map(row).collect();
    all.sort();
    all
}

#[track_caller]
fn refused(arguments: &[&str], told: &[&str]) {
    let program = Program::build("quick", C, &["-g"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let (verb, rest) = arguments.split_first().unwrap();
    let ran = support::tool::run(&[&[*verb, "-p", &pid][..], rest].concat());
    assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
    for text in told {
        assert!(ran.err.contains(text), "{arguments:?}: {text}: {}", ran.err);
    }
    assert!(!ran.err.contains("(frame)"), "{}", ran.err);
}

#[test]
fn filters_count_what_they_say() {
    for (filter, hits) in [
        ("size >= 50000", 2000),
        ("arg2 >= 50000", 2000),
        ("size >= 64k", 4 * 344),
        ("self.id % 2 == 1 && size < 1000", 20),
        ("str(path) == \"/f1\"", 1000),
        ("retval < 0", 334 * 4),
        ("retval < 0 && size > 90000", 33 * 4),
        ("args.size == 100", 4),
        ("false", 0),
    ] {
        let (rows, _) = rows("count", &["quick:load", "--where", filter], &["w"]);
        let all: u64 = rows.iter().map(|row| row["hits"].as_u64().unwrap()).sum();
        assert_eq!((rows.len(), all), (1, hits), "{filter}: {rows:?}");
    }
    let both = ["quick:load", "quick:lo*", "--where", "size >= 50000", "--where", "self.id < 600"];
    assert_eq!(rows("count", &both, &["w"]).0[0]["hits"], 400, "once, however many patterns mean it");
}

#[test]
fn hits_are_grouped() {
    let (of_paths, _) = rows("count", &["quick:load", "--by", "str(path)"], &["w"]);
    let expected = (0..4).map(|n| (format!("\"/f{n}\""), 1000)).collect::<Vec<_>>();
    assert_eq!(by(&of_paths), expected);
    let (of_both, _) = rows("count", &["quick:load", "--by", "(self.id % 2, size > 50000)"], &["w"]);
    assert_eq!(of_both.iter().map(|row| row["hits"].as_u64().unwrap()).sum::<u64>(), 4000);
    assert_eq!(of_both[0]["by"].as_array().unwrap().len(), 2);
    let (few, summary) = rows("count", &["quick:load", "--by", "size", "--max-keys", "3"], &["w"]);
    let kept: u64 = few.iter().map(|row| row["hits"].as_u64().unwrap()).sum();
    let note = summary["notes"].to_string();
    assert!(kept < 4000 && note.contains("left-out"), "{kept} {note}");
}

#[test]
fn call_stacks_are_keys_and_lines_for_flame_graphs() {
    let (rows, _) = rows("count", &["quick:load", "--stack=2"], &["w"]);
    let frames = rows[0]["by"][0]["value"].as_array().unwrap();
    assert_eq!((rows.len(), frames.len(), rows[0]["hits"].as_u64()), (1, 2, Some(4000)));
    assert!(
        frames[0].as_str().unwrap().starts_with("load+") && frames[1].as_str().unwrap().starts_with("work+")
    );
    let (ran, _) = shown("count", &["quick:load", "--stack=2", "-f", "folded"], &["w"]);
    assert_eq!(ran.out, "work;load 4000\n");
    let (ran, _) = shown("count", &["quick:load", "--by", "ustack(1)"], &["w"]);
    assert!(ran.out.contains("\n4,000\n    load+0\n"), "{}", ran.out);
}

#[test]
fn times_are_filtered_and_grouped() {
    let (rows, _) = rows("latency", &["quick:slow", "--by", "us", "--slower", "1ms"], &["s"]);
    assert_eq!(by(&rows), [("3000".to_owned(), 5)]);
    let times = &rows[0]["latency_ns"];
    let time = |name: &str| times[name].as_u64().unwrap();
    assert!(time("p50") >= 2_900_000 && time("p50") <= time("p99") && time("p99") <= time("max"), "{times}");
    let buckets = times["buckets"].as_array().unwrap();
    assert_eq!(buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>(), 5);
    // Each of the calls that are under way has its own arguments.
    let (rows, _) =
        self::rows("latency", &["quick:fact", "--by", "n", "--where", "retval == 0 || n > 2"], &["f"]);
    assert_eq!(by(&rows).len(), 8, "{rows:?}");
    assert!(by(&rows).iter().all(|(_, hits)| *hits == 1));
}

#[test]
fn lines_show_arguments_results_and_stacks() {
    let asked = ["quick:load", "--arg", "path:str", "--arg", "self.id", "--arg", "size:hex", "--return"];
    let more = ["--where", "retval < 0 && self.id > 990", "--stack=1"];
    let (ran, err) = shown("trace", &[&asked[..], &more].concat(), &["w"]);
    let calls: Vec<&str> = ran.out.lines().filter(|line| line.contains("quick:load(")).collect();
    assert_eq!(calls.len(), 12, "{}", ran.out);
    for (path, id, size) in [("/f1", 993, "0x183e4"), ("/f0", 996, "0x18510"), ("/f3", 999, "0x1863c")] {
        let call = format!("quick:load(path=\"{path}\", self.id={id}, size={size}) = -2 <");
        assert_eq!(calls.iter().filter(|line| line.contains(&call)).count(), 4, "{call}: {}", ran.out);
    }
    assert_eq!(ran.out.lines().filter(|line| line.trim().starts_with("work+")).count(), 12);
    assert!(err.contains("12 hits"), "{err}");
    // Recursion: each call has its own argument and result.
    let (ran, _) = shown("trace", &["quick:fact", "--arg", "n", "--return", "-f", "json"], &["f"]);
    let hits: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let schema = support::schema::Schema::read();
    hits.iter().for_each(|line| schema.check(line));
    let hits = hits.iter().filter(|line| line["type"] == "hit");
    let pairs: Vec<(u64, u64)> = hits
        .map(|hit| (hit["values"][0]["value"].as_u64().unwrap(), hit["result"].as_u64().unwrap()))
        .collect();
    let expected = (1..=10).map(|n| (n, (1..=n).product())).collect::<Vec<_>>();
    assert_eq!(pairs, expected);
}

#[test]
fn values_are_drawn() {
    let (rows, _) = rows("hist", &["quick:load", "size"], &["w"]);
    let buckets = rows[0]["values"].as_array().unwrap();
    for bucket in buckets {
        let (low, high) = (bucket["low"].as_i64().unwrap(), bucket["high"].as_i64().unwrap());
        let expected = (0..1000i64).filter(|i| (low..high).contains(&(i * 100))).count() * 4;
        assert_eq!(bucket["count"], expected, "{bucket}");
    }
    let (rows, _) = self::rows("hist", &["quick:load", "retval", "--linear", "-10,10,5"], &["w"]);
    let buckets = rows[0]["values"].as_array().unwrap();
    assert_eq!((buckets[0]["low"].as_i64(), buckets[0]["high"].as_i64()), (Some(-5), Some(0)));
    assert_eq!((buckets[0]["count"].as_u64(), rows[0]["hits"].as_u64()), (Some(334 * 4), Some(4000)));
    assert!(buckets.last().unwrap()["high"].is_null());
    let (ran, _) = shown("hist", &["quick:load", "size", "--linear", "0,100k,50k"], &["w"]);
    assert!(ran.out.contains("[0, 50k)") && ran.out.contains("(4,000 hits)"), "{}", ran.out);
}

#[test]
fn what_is_left_out_is_told() {
    let (rows, summary) = rows("count", &["quick:load", "--sample", "1/10"], &["w"]);
    let taken = rows[0]["hits"].as_u64().unwrap();
    let note = summary["notes"][0]["text"].as_str().unwrap().replace(',', "");
    let left: u64 = note.split(' ').next().unwrap().parse().unwrap();
    assert_eq!((taken + left, taken > 0), (4000, true), "{note}");
    let (ran, err) = shown("trace", &["quick:load", "--arg", "size", "--rate", "2/h"], &["w"]);
    assert_eq!(ran.out.lines().filter(|line| line.contains("quick:load(size=")).count(), 8, "{}", ran.out);
    assert!(err.contains("3,992 hits were not shown, by --rate"), "{err}");
    let (rows, _) = self::rows("count", &["quick:load", "--tid", "1"], &["w"]);
    assert_eq!(rows[0]["hits"], 0);
}

#[test]
fn a_limit_is_kept_to_the_hit() {
    let program = Program::build("quick", C, &["-g"]);
    let mut target = program.start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let errors = dir.path().join("errors");
    let pid = target.pid().to_string();
    let arguments = ["count", "-p", &pid, "quick:load", "--by", "str(path)", "-M", "100", "-f", "json"];
    let tool = armed(&arguments, &errors);
    target.tell("w");
    let ran = tool.ran();
    let summary: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let hits: u64 =
        summary["probes"].as_array().unwrap().iter().map(|row| row["hits"].as_u64().unwrap()).sum();
    assert_eq!(hits, 100, "{ran:?}");
}

#[test]
fn what_is_wrong_is_told_where_it_was_written() {
    for (arguments, told) in [
        (
            &["count", "quick:load", "--where", "siz > 3"][..],
            &[
                "--where:1:1-4: ERROR: Unknown identifier: 'siz'\nsiz > 3\n~~~\n",
                "did you mean 'size'?",
                "path, self, size",
            ][..],
        ),
        (&["count", "quick:load", "--where", "size >"], &["--where:1:7", "expected expression"]),
        (&["count", "quick:load", "--where", "str(path)"], &["--where:1:1-10: ERROR: Invalid condition"]),
        (
            &["count", "quick:load", "--where", "true", "--where", "str(path)"],
            &["--where:1:1-10: ERROR: Invalid condition"],
        ),
        (&["count", "quick:load", "--where", "self.idd > 3"], &["did you mean 'id'?"]),
        (&["count", "quick:load", "--where", "args.pth == 0"], &["did you mean 'path'?"]),
        (&["count", "quick:load", "--where", "@x > 3"], &["maps are for scripts"]),
        (
            &["count", "quick:load", "--where", "exit() == 3"],
            &["functions that do something are for scripts"],
        ),
        (&["count", "quick:load", "--where", "arg0 < 0"], &["a word without a sign", "(int32)arg0"]),
        (
            &["count", "quick:load+4", "--where", "retval > 0"],
            &["names no whole function", "'retval' is known when"],
        ),
        (&["count", "quick:load", "--where", "kstack == 1"], &["is about the kernel"]),
        (&["count", "quick:load", "--by", "size", "-f", "folded"], &["--stack -f folded"]),
        (&["hist", "quick:load", "str(path)"], &["EXPR:1:1-10: ERROR: hist() only supports integer"]),
        (&["hist", "quick:load"], &["behind them an expression"]),
        (&["latency", "quick:slow", "quick:load", "--by", "us"], &["--by:1:1-3", "this is so at load"]),
        (&["trace", "quick:load", "--arg", "path:st"], &["no format 'st'", "did you mean str?"]),
        (&["trace", "quick:load", "--slower", "5"], &["with its unit"]),
    ] {
        refused(arguments, told);
    }
    // That there is no such function is the matter, and not that its arguments have no names.
    let program = Program::build("quick", C, &["-g"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    support::tool::run(&["count", "-p", &pid, "quick:loda", "--where", "size > 3"])
        .assert_refused(5, &["no function matches 'quick:loda'", "load"]);
}

#[test]
fn several_processes_have_numbers_of_their_own() {
    let program = Program::build("quick", C, &["-g"]);
    let (mut one, mut other) = (program.start(&[]), program.start(&[]));
    let dir = tempfile::tempdir().unwrap();
    let errors = dir.path().join("errors");
    let pids = format!("{},{}", one.pid(), other.pid());
    // Arguments are kept until the return in each of them.
    let arguments =
        ["count", "-p", &pids, "quick:load", "--where", "retval < 0 && size > 90000", "-f", "json"];
    let mut tool = armed(&arguments, &errors);
    tool.line();
    one.tell("w");
    one.line();
    for _ in 0..2 {
        other.tell("w");
        other.line();
    }
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let hits = |kind: &str| -> Vec<u64> {
        let of = lines.iter().filter(|line| line["type"] == kind);
        of.map(|line| line["probes"][0]["hits"].as_u64().unwrap()).collect()
    };
    assert_eq!((hits("summary"), hits("total")), (vec![132, 264], vec![396]), "{ran:?}");
}
