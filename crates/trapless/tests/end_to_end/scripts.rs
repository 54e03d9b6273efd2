//! Scripts that need no target: what they print, where, and how they end; by trapless's command line and by bpftrace's.

use crate::support::end_with_us;
use crate::support::tool::{Ran, finish, run, trapless};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The tool called by bpftrace's name.
fn bpftrace(arguments: &[&str]) -> Command {
    let mut command = trapless(arguments);
    command.arg0("bpftrace");
    command
}

/// What a program prints, without what is said about it.
#[track_caller]
fn printed(program: &str) -> String {
    let ran = run(&["-e", program]);
    assert_eq!(ran.code, Some(0), "{program}: {ran:?}");
    ran.out
}

/// Lines that are not empty.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty()).collect()
}

#[test]
fn programs_print_what_they_say() {
    for (program, out) in [
        ("begin { print(6 * 7); }", &["42"][..]),
        ("begin { printf(\"%d apples, %s\\n\", 3, \"ripe\"); }", &["3 apples, ripe"]),
        ("begin { let $n = 0; while ($n < 3) { $n++; } print($n); }", &["3"]),
        ("begin { for $i : 1..4 { print($i * $i); } }", &["1", "4", "9"]),
        ("begin { @color[\"red\"] = 1; @color[\"blue\"] = 2; }", &["@color[red]: 1", "@color[blue]: 2"]),
        ("begin { @n = count(); @n = count(); }", &["@n: 2"]),
        ("begin { @s = sum(5); @s = sum(-7); }", &["@s: -2"]),
        ("begin { @gone = 1; delete(@gone); }", &[]),
        ("begin { print((1, \"two\", true)); }", &["(1, two, true)"]),
        ("macro twice(x) { x + x } begin { print(twice(21)); }", &["42"]),
        ("begin { print(1); } end { print(2); }", &["1", "2"]),
        ("begin { if (comm == \"nobody\") { print(1); } else { print(2); } }", &["2"]),
        ("interval:us:2000 { @++; if (@ == 3) { exit(); } }", &["@: 3"]),
    ] {
        assert_eq!(lines(&printed(program)), out, "{program}");
    }
}

#[test]
fn exit_codes_are_the_scripts_own() {
    for (program, code) in [
        ("begin { }", 0),
        ("begin { exit(); }", 0),
        ("begin { exit(7); }", 7),
        ("begin { exit(256 + 3); }", 3),
        ("begin { exit(7); } end { print(1); }", 7),
        ("interval:ms:1 { exit(9); }", 9),
    ] {
        for ran in [run(&["-e", program]), finish(&mut bpftrace(&["-e", program]))] {
            assert_eq!(ran.code, Some(code), "{program}: {ran:?}");
        }
    }
}

#[test]
fn what_is_wrong_is_shown_at_its_place_and_nothing_runs() {
    for (program, place, what) in [
        ("begin { print(1); $a = ; }", "stdin:1:24", "ERROR: syntax"),
        ("begin { print(1); print(nobody_knows); }", "stdin:1:25", "nobody_knows"),
        ("begin { print(1); $a = 1; $a = \"x\"; }", "stdin:1:27", "Type mismatch"),
        ("begin { print(1); system(\"true\"); }", "stdin:1:19", "unsafe"),
        ("begin { print(1); } kprobe:vfs_read { }", "stdin:1:21", "kernel"),
        ("begin { print(1); } nothing:at:all { }", "stdin:1:21", "nothing"),
    ] {
        let own = run(&["-e", program]);
        let theirs = finish(&mut bpftrace(&["-e", program]));
        assert_eq!((own.code, theirs.code), (Some(2), Some(1)), "{own:?} {theirs:?}");
        assert_eq!(own.err, theirs.err);
        assert!(own.out.is_empty() && theirs.out.is_empty(), "{own:?} {theirs:?}");
        assert!(own.err.starts_with(place) && own.err.contains(what), "{program}: {}", own.err);
        let mut shown = own.err.lines().skip(1);
        assert_eq!(shown.next(), Some(program), "the line");
        assert!(
            shown.next().is_some_and(|mark| mark.trim_start().starts_with('~')),
            "a mark under the place"
        );
    }
}

#[test]
fn a_script_is_a_file_a_text_or_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hello.bt");
    let text = format!(
        "#!{}\n// Greets.\nbegin {{ printf(\"hello %s\\n\", str($1)); }}\n",
        env!("CARGO_BIN_EXE_trapless")
    );
    std::fs::write(&file, &text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = file.to_str().unwrap();
    let by_line = || finish(Command::new(&file).arg("world").stdin(Stdio::null()));
    let by_input = || {
        let mut command = trapless(&["-", "world"]);
        let mut child = end_with_us(command.stdin(Stdio::piped()).stdout(Stdio::piped())).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        Ran { code: output.status.code(), out, err: String::new() }
    };
    for ran in [run(&[path, "world"]), by_line(), by_input(), finish(&mut bpftrace(&[path, "world"]))] {
        assert_eq!((ran.code, lines(&ran.out)), (Some(0), vec!["hello world"]), "{ran:?}");
    }
}

#[test]
fn parameters_are_read_by_place_and_by_name() {
    let program =
        "begin { printf(\"%d %s %d %d %d\\n\", $1, str($2), $#, getopt(\"size\", 5), getopt(\"fast\")); }";
    for (ran, out) in [
        (run(&["-e", program, "12", "word"]), "12 word 2 5 0"),
        (run(&["-e", program, "0x10", "w", "-P", "size=9", "-P", "fast"]), "16 w 2 9 1"),
        (finish(&mut bpftrace(&["-e", program, "1", "w", "--", "--size=-9", "--fast=false"])), "1 w 2 -9 0"),
    ] {
        assert_eq!((ran.code, lines(&ran.out)), (Some(0), vec![out]), "{ran:?}");
    }
    let ran = run(&["-e", program, "1", "w", "-P", "colour=red"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(
        ran.err.contains("--colour") && ran.err.contains("--size") && ran.err.contains("--fast"),
        "{ran:?}"
    );
    let help = finish(&mut bpftrace(&["-e", program, "--", "--help"]));
    assert_eq!((help.code, help.out.as_str()), (Some(1), ""));
    assert!(lines(&help.err).contains(&"--size") && lines(&help.err).contains(&"--fast"), "{help:?}");
}

#[test]
fn json_is_one_object_a_line() {
    let ran =
        run(&["-f", "json", "-e", "begin { printf(\"a\\tb\\n\"); print((1, \"x\")); @m[\"k\", 2] = 5; }"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told: Vec<_> =
        ran.json().into_iter().map(|line| (line["type"].clone(), line["data"].clone())).collect();
    let told: Vec<String> =
        told.iter().map(|(kind, data)| format!("{} {data}", kind.as_str().unwrap())).collect();
    assert_eq!(
        told,
        [
            "attached_probes {\"probes\":1}",
            "printf \"a\\tb\\n\"",
            "value [1,\"x\"]",
            "map {\"@m\":{\"k,2\":5}}"
        ]
    );
}

#[test]
fn results_and_what_is_said_of_them_go_apart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out");
    let program = "begin { print(1); errorf(\"worse\"); @m = 2; }";
    let ran = run(&["-e", program, "-o", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(lines(&std::fs::read_to_string(&file).unwrap()), ["1", "@m: 2"]);
    assert!(ran.err.contains("Attached 1 probe") && ran.err.contains("ERROR: worse"), "{ran:?}");
    let quiet = run(&["-q", "-e", "begin { print(1); }"]);
    assert_eq!((lines(&quiet.out), quiet.err.as_str()), (vec!["1"], ""), "{quiet:?}");
}

#[test]
fn an_output_that_cannot_be_written_ends_the_run() {
    for arguments in [
        &["-e", "begin { print(1); }", "-o", "/dev/full"][..],
        &["-e", "interval:ms:1 { print(1); }", "-o", "/dev/full"],
        &["-f", "json", "-e", "interval:ms:1 { print(1); }", "-o", "/dev/full"],
    ] {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(7), "{ran:?}");
        assert!(ran.err.contains("/dev/full") && ran.err.contains("make room"), "{ran:?}");
    }
    let ran = run(&["-e", "begin { print(1); }", "-o", "/nowhere/out"]);
    assert_eq!(ran.code, Some(7), "{ran:?}");
}

/// A script that is running.
struct Running(Child, BufReader<std::process::ChildStdout>);

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = end_with_us(command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running(child, out)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the process is ours and was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// The rest of what it prints, and its exit code.
    fn finish(mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.1.read_to_string(&mut rest).unwrap();
        (rest, self.0.wait().unwrap().code())
    }
}

#[test]
fn a_signal_ends_the_run_with_its_end_and_its_maps() {
    const PROGRAM: &str = "begin { @m = 3; print(\"running\"); } interval:s:100 { } end { print(\"over\"); }";
    for signal in [libc::SIGINT, libc::SIGTERM] {
        for mut command in [trapless(&["-e", PROGRAM]), bpftrace(&["-e", PROGRAM])] {
            let mut running = Running::start(&mut command);
            assert_eq!(running.line(), "running");
            running.signal(signal);
            let (rest, code) = running.finish();
            assert_eq!((lines(&rest), code), (vec!["over", "@m: 3"], Some(0)));
        }
    }
}

#[test]
fn sigusr1_shows_the_maps_meanwhile_or_runs_its_probe() {
    let mut running =
        Running::start(&mut trapless(&["-e", "begin { @m = 3; print(\"running\"); } interval:s:100 { }"]));
    assert_eq!(running.line(), "running");
    running.signal(libc::SIGUSR1);
    let mut line = running.line();
    while line.is_empty() {
        line = running.line();
    }
    assert_eq!(line, "@m: 3");
    running.signal(libc::SIGINT);
    let (rest, code) = running.finish();
    assert_eq!((lines(&rest), code), (vec!["@m: 3"], Some(0)));

    let program =
        "begin { @m = 3; print(\"running\"); } self:signal:SIGUSR1 { print(\"heard\"); clear(@m); exit(4); }";
    let mut running = Running::start(&mut trapless(&["-e", program]));
    assert_eq!(running.line(), "running");
    running.signal(libc::SIGUSR1);
    let (rest, code) = running.finish();
    assert_eq!((lines(&rest), code), (vec!["heard"], Some(4)));
}

#[test]
fn a_reader_that_goes_away_ends_the_run_without_a_word() {
    let mut command = trapless(&["-e", "interval:ms:1 { print(1); }"]);
    let mut child = end_with_us(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    drop(out);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert_eq!(lines(&said), ["Attached 1 probe"]);
}

#[test]
fn bpftrace_is_another_command_line() {
    for (arguments, words) in [
        (&["-p", "12x4", "-e", "begin { }"][..], "ERROR: Failed to parse pid: invalid trailing bytes: 12x4"),
        (&["-p", "x", "-e", "begin { }"], "ERROR: Failed to parse pid: invalid integer: x"),
        (&["-f", "xml", "-e", "begin { }"], "ERROR: Invalid output format \"xml\""),
        (&["--colour", "-e", "begin { }"], "USAGE:"),
        (
            &["/nowhere/script.bt"],
            "ERROR: failed to open file '/nowhere/script.bt': No such file or directory",
        ),
        (
            &["-e", "#include <no/such.h>\nbegin { }"],
            "definitions.h:2:10: fatal error: 'no/such.h' file not found",
        ),
    ] {
        let ran = finish(&mut bpftrace(arguments));
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.err.lines().any(|line| line == words), "{words}: {ran:?}");
    }
    let help = finish(&mut bpftrace(&["--help"]));
    assert!(help.code == Some(0) && help.out.contains("USAGE:"), "{help:?}");
    let version = finish(&mut bpftrace(&["-V"]));
    assert!(version.out.starts_with("bpftrace v0."), "{version:?}");
    let mut told = bpftrace(&["-e", "begin { print(1); }"]);
    let told = finish(told.env("__BPFTRACE_NOTIFY_PROBES_ATTACHED", "1"));
    assert_eq!(lines(&told.out), ["__BPFTRACE_NOTIFY_PROBES_ATTACHED", "1"]);
    assert_eq!(lines(&told.err), ["Attached 1 probe"]);
}

#[test]
fn a_dry_run_prints_nothing_and_fmt_prints_the_script() {
    let dry = run(&["--dry-run", "-e", "begin { print(1); }"]);
    assert_eq!((dry.code, dry.out.as_str()), (Some(0), ""), "{dry:?}");
    let once = run(&["--fmt", "-e", "begin{print( 1+2 );}"]);
    assert_eq!(once.code, Some(0), "{once:?}");
    let again = run(&["--fmt", "-e", &once.out]);
    assert_eq!(once.out, again.out, "what is printed is in the usual form already");
    assert_eq!(lines(&printed(&once.out)), ["3"]);
}
