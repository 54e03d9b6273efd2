//! A run reads each file once, whoever maps it, and never takes one for another.
//!
//! How much was read is what the kernel has counted for this process and for all that it has waited for. Whatever runs beside it would be
//! counted, too, so this is a program of its own with one test in it.

#[path = "end_to_end/support/mod.rs"]
mod support;

use std::process::Command;
use std::time::Duration;
use support::Program;
use support::family::{hits, total};
use support::tool::{finish, run};

/// Calls `subject` as often as its argument says. With `PADDING` all is somewhere else, and with `BALLAST` the file is large.
const CALLER: &str = r#"
#include <stdlib.h>
#ifdef BALLAST
__asm__(".section .note.ballast, \"\", @progbits\n.fill 25165824, 1, 0x5a\n.text\n");
#endif
#ifdef PADDING
__attribute__((noipa, used)) long ahead(long x) { __asm__ volatile(".fill 333, 1, 0x90" ::: "memory"); return x; }
#endif
__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }
int main(int argc, char **argv) {
    for (long n = 0; n < atol(argv[1]); n++) if (subject(n) != n * 3 + 7) return 99;
    return 0;
}
"#;

/// Longer than any file system's clock stands still: what was written before is taken for what it looks like.
const SETTLED: Duration = Duration::from_millis(2100);

/// Follows a shell's script, and tells how often `subject` was called, by the processes in the order of their ends.
#[track_caller]
fn followed(script: &str) -> Vec<u64> {
    let ran = run(&[
        "count",
        "--follow",
        "caller:subject",
        "-f",
        "json",
        "-o",
        "/dev/stderr",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<serde_json::Value> =
        ran.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(total(&lines)["not_followed"], serde_json::json!([]), "{ran:?}");
    let summaries = lines.iter().filter(|line| line["type"] == "summary");
    summaries.map(|line| hits(line).values().sum()).collect()
}

/// How much this process and those that it has waited for have read, in bytes.
fn read_so_far() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

fn a_file_is_read_once_however_many_processes_map_it() {
    let program = Program::build("caller", CALLER, &["-DBALLAST"]);
    let size = std::fs::metadata(program.path()).unwrap().len();
    std::thread::sleep(SETTLED);
    let path = program.path().display();
    let Some(before) = read_so_far() else {
        trapless_testing::inapplicable!("the kernel does not count what is read");
        return;
    };
    assert_eq!(
        followed(&format!("for i in 1 2 3 4 5 6 7 8 9 10; do {path} $i; done")),
        Vec::from_iter(1..=10)
    );
    let read = read_so_far().unwrap() - before;
    assert!((size..2 * size).contains(&read), "{read} bytes were read, the file has {size}");
}

fn a_file_that_is_replaced_between_two_processes_is_another() {
    let [program, other] = [&[][..], &["-DPADDING"]].map(|flags| Program::build("caller", CALLER, flags));
    let (path, other) = (program.path().display(), other.path().display());
    let kept = program.dir().join("kept");
    let kept = kept.display();
    std::fs::copy(program.path(), program.dir().join("kept")).unwrap();
    std::thread::sleep(SETTLED);
    let renamed =
        format!("{path} 1; {path} 2; cp {other} {path}.new; mv {path}.new {path}; {path} 3; {path} 4");
    assert_eq!(followed(&renamed), [1, 2, 3, 4]);
    std::thread::sleep(SETTLED);
    // In its place, again and again, faster than the clock of some file systems goes on.
    let rewritten = format!(
        "{path} 1; for i in 2 4 6 8; do cat {kept} > {path}; {path} $i; cat {other} > {path}; {path} $((i+1)); done"
    );
    assert_eq!(followed(&rewritten), Vec::from_iter(1..=9));
}

fn a_file_at_the_same_path_of_another_mount_namespace_is_another() {
    if finish(Command::new("unshare").args(["-m", "true"])).code != Some(0) {
        trapless_testing::inapplicable!("no mount namespace of one's own may be made");
        return;
    }
    let [program, other] = [&[][..], &["-DPADDING"]].map(|flags| Program::build("caller", CALLER, flags));
    let (path, other) = (program.path().display(), other.path().display());
    std::thread::sleep(SETTLED);
    let elsewhere = |script: &str| format!("unshare -m sh -c '{script}'");
    let (same, hidden) = (
        elsewhere(&format!("{path} 2")),
        elsewhere(&format!("mount --bind {other} {path} && {path} 3 && {path} 4")),
    );
    assert_eq!(followed(&format!("{path} 1; {same}; {hidden}; {path} 5")), [1, 2, 3, 4, 5]);
}

#[test]
fn files_are_known_by_what_they_are() {
    a_file_is_read_once_however_many_processes_map_it();
    a_file_that_is_replaced_between_two_processes_is_another();
    a_file_at_the_same_path_of_another_mount_namespace_is_another();
}
