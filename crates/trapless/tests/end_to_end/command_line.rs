//! The binary as a shell sees it: streams and exit codes of what needs no target.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn trapless(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

fn finished(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = trapless(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn help_and_version_go_to_standard_output() {
    for arguments in [&["--help"][..], &["-h"], &["count", "--help"], &["help", "latency"], &["--version"]] {
        let (code, out, err) = finished(arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(out.contains("trapless"), "{arguments:?}");
    }
}

#[test]
fn wrong_usage_is_code_2_and_one_message_on_standard_error() {
    for (arguments, message) in [
        (
            &["count", "malloc", "-p", "1"][..],
            "trapless: bad probe: no module; write MODULE:FUNCTION, or '*:malloc' for every module\n  malloc\n        ^\n",
        ),
        (
            &["count", "libc:malloc"],
            "trapless: no target; give -p PID, -n NAME or -- COMMAND, or probes with a file's path, for whoever runs it\n",
        ),
        (
            &["trace", "-p", "1"],
            "trapless: no probe; name functions as MODULE:FUNCTION, such as 'libc.so.6:malloc'\n",
        ),
    ] {
        assert_eq!(finished(arguments), (Some(2), String::new(), message.to_owned()), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_code_7_and_says_so() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = trapless(&["man"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("trapless: cannot write to standard output: No space left"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run_quietly() {
    let mut child =
        trapless(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn manual_pages_are_written_one_per_verb() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("man");
    let (code, out, err) = finished(&["man", "--directory", directory.to_str().unwrap()]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
    for page in ["trapless.1", "trapless-count.1", "trapless-trace.1"] {
        assert!(std::fs::read_to_string(directory.join(page)).unwrap().contains(".TH trapless"), "{page}");
    }
}
