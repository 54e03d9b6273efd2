//! Hard cases I: input that is wrong gets one line that says what, where and what to do, and an exit code.

use crate::support::spinners::{self, PLAIN, Spinners};
use crate::support::tool::{end_of, finish, run, trapless};
use crate::support::{Program, end_with_us, eventually};
use std::process::Stdio;

#[test]
fn i1_wrong_names_are_code_5_with_the_nearest() {
    let program = spinners::build(PLAIN, "", "");
    let spinners = Spinners::start(&program, 1);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    for (probe, nearest) in
        [("spinners:subjct", "subject"), ("spiners:subject", "spinners"), ("spinners:zz*", "list")]
    {
        run(&["count", "-p", &pid, probe]).assert_refused(5, &[nearest]);
    }
    run(&["count", "-p", &pid, "*:*", "--max-probes", "5"])
        .assert_refused(5, &["--max-probes", "limit is 5"]);
    before.assert_restored(spinners.target.pid());
}

#[test]
fn i1_nonsense_on_the_command_line_is_code_2() {
    for arguments in [
        &["count", "-p", "1", ":"][..],
        &["count", "-p", "1", "a:"],
        &["count", "-p", "1", "libc:f+0xzz"],
        &["count", "-p", "1", "-r", "libc:("],
        &["count", "-p", "0", "libc:f"],
        &["count", "-p", "-4", "libc:f"],
        &["count", "-p", "many", "libc:f"],
        &["count", "-p", "1", "libc:f", "-d", "soon"],
        &["count", "-p", "1", "libc:f", "-d", "-1"],
        &["count", "-p", "1", "libc:f", "-d", "1e400"],
        &["count", "-p", "1", "libc:f", "-M", "0"],
        &["count", "-p", "1", "libc:f", "--nonsense"],
        &["count", "-p", "1", "libc:f", "-f", "xml"],
        &["trace", "-p", "1", "libc:f", "--args", "7"],
        &["count", "-p", "1", "libc:f", "--mechanism", "magic"],
        &["count", "-p", "1", "libc:f", "--", "true"],
        &["nonsense"],
        &["list"],
        &["detach"],
    ] {
        let ran = run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {ran:?}");
        assert!(!ran.err.is_empty() && !ran.err.contains("panicked"), "{arguments:?}: {ran:?}");
    }
}

/// A small generator of numbers (xorshift), so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn i1_malformed_files_are_code_1_and_one_line() {
    let program = Program::build("whole", "int main(void) { return 0; }", &["-g"]);
    let whole = std::fs::read(program.path()).unwrap();
    let path = program.dir().join("broken");
    let probe = format!("{}:main", path.display());
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("no ELF", b"#!/bin/sh\necho hello\n".to_vec()),
        ("magic only", whole[..4].to_vec()),
        ("header only", whole[..64].to_vec()),
        ("header cut off", whole[..40].to_vec()),
        ("headers of nothing", [&whole[..64], &[0; 4096][..]].concat()),
        ("headers of ones", [&whole[..64], &[0xff; 65536][..]].concat()),
    ] {
        std::fs::write(&path, bytes).unwrap();
        for verb in ["list", "explain"] {
            let ran = run(&[verb, &probe]);
            // A file with headers of nothing has no functions, and is code 5 for that.
            assert!(matches!(ran.code, Some(1 | 5)), "{what}: {ran:?}");
            assert_eq!((ran.err.lines().count(), ran.out.as_str()), (1, ""), "{what}: {ran:?}");
        }
    }
    run(&["list", "/:main"]).assert_refused(1, &["/"]);
    run(&["list", "/nonexistent/file:main"]).assert_refused(1, &["/nonexistent/file"]);
    run(&["list", "/dev/zero:main"]).assert_refused(1, &["/dev/zero"]);
}

#[test]
fn i1_damaged_files_never_panic() {
    let program = Program::build("whole", "int main(void) { return 0; }", &["-g"]);
    let whole = std::fs::read(program.path()).unwrap();
    let path = program.dir().join("damaged");
    let probe = format!("{}:*", path.display());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for round in 0..150 {
        let mut bytes = whole.clone();
        // The headers at both ends are where damage does most.
        for _ in 0..1 + round % 8 {
            let at = match numbers.below(3) {
                0 => numbers.below(1024),
                1 => bytes.len() - 1 - numbers.below(2048),
                _ => numbers.below(bytes.len()),
            };
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, numbers.below(256) as u8][numbers.below(6)];
        }
        if round % 5 == 0 {
            bytes.truncate(numbers.below(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        let ran = run(&[["list", "explain"][round % 2], &probe]);
        assert!(matches!(ran.code, Some(0 | 1 | 5)), "round {round}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "round {round}: {ran:?}");
    }
}

#[test]
fn i1_a_full_disk_is_code_7_and_the_probes_are_out() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    for verb in ["count", "latency", "trace"] {
        let mut command = trapless(&[verb, "-p", &pid, "spinners:subject", "-d", "0.1", "-o", "/dev/full"]);
        let ran = finish(&mut command);
        assert_eq!(ran.code, Some(7), "{verb}: {ran:?}");
        assert!(ran.err.contains("cannot write to /dev/full: No space left"), "{verb}: {ran:?}");
        before.assert_restored(spinners.target.pid());
    }
    spinners.run_on();
    spinners.finish();
}

#[test]
fn i1_a_file_that_may_grow_no_further_is_code_7_and_the_probes_are_out() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    let file = program.dir().join("limited");
    let path = file.to_str().unwrap();
    let written = || std::fs::metadata(&file).map_or(0, |file| file.len());
    let mut command = trapless(&["trace", "-p", &pid, "spinners:subject", "-d", "200", "-o", path]);
    let tool = end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("hits are written", || written() > 0);
    // Its own memory is a file, too, and is larger than this.
    let most = (written() + 10_000) as libc::rlim_t;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: it reads one structure.
    let limited = unsafe {
        libc::prlimit(tool.id() as i32, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(limited, 0);
    let ran = end_of(tool);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.err.contains("File too large"), "{ran:?}");
    before.assert_restored(spinners.target.pid());
    spinners.run_on();
    spinners.finish();
}

#[test]
fn i1_a_reader_that_leaves_ends_the_run_and_the_probes_are_out() {
    let program = spinners::build(PLAIN, "", "");
    let mut spinners = Spinners::start(&program, 2);
    let (pid, before) = (spinners.pid(), spinners.target.text());
    for (verb, limit) in [("trace", "60"), ("count", "0.1"), ("latency", "0.1")] {
        let mut command = trapless(&[verb, "-p", &pid, "spinners:subject", "-d", limit]);
        let mut child =
            end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if verb == "trace" {
            let mut line = String::new();
            std::io::BufRead::read_line(
                &mut std::io::BufReader::new(child.stdout.take().unwrap()),
                &mut line,
            )
            .unwrap();
            assert!(!line.is_empty());
        }
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{verb}: {output:?}");
        before.assert_restored(spinners.target.pid());
    }
    spinners.run_on();
    spinners.finish();
}

#[test]
fn i1_an_output_that_cannot_be_made_is_code_7_before_anything_is_changed() {
    let program = spinners::build(PLAIN, "", "");
    let spinners = Spinners::start(&program, 1);
    run(&["count", "-p", &spinners.pid(), "spinners:subject", "-o", "/nonexistent/out"])
        .assert_refused(7, &["/nonexistent/out"]);
}
