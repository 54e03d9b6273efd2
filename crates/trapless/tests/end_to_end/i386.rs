//! A3, L5: 32-bit programs under the 64-bit tool, end to end. `programs/i386.c` makes known numbers of calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const COMPILER: &str = "i686-linux-gnu-gcc";
const THREADS: u64 = 4;
const CALLS: u64 = 50_000;

#[derive(Clone, Copy)]
enum Linked {
    Static,
    Dynamic,
}

/// The program, built and known to run; `None` where that is not possible, with the reason printed.
fn program(name: &str, linked: Linked) -> Option<PathBuf> {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("i386-{name}"));
    let flags: &[&str] = match linked {
        Linked::Static => &["-static", "-no-pie"],
        Linked::Dynamic => &["-fPIC", "-pie"],
    };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/programs/i386.c");
    let built =
        Command::new(COMPILER).args(["-O2", "-pthread"]).args(flags).arg("-o").arg(&to).arg(source).output();
    match built {
        Err(error) => {
            trapless_testing::skip!("{COMPILER}: {error}");
            return None;
        }
        Ok(built) if !built.status.success() => {
            trapless_testing::skip!(
                "{COMPILER} has no 32-bit libraries: {}",
                String::from_utf8_lossy(&built.stderr)
            );
            return None;
        }
        Ok(_) => {}
    }
    if !Command::new(&to).output().is_ok_and(|out| out.status.success()) {
        trapless_testing::skip!("32-bit programs do not run here (libc6-i386?)");
        return None;
    }
    Some(to)
}

fn trapless(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapless"));
    command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// What the tool and the program say, when the tool launches it.
fn launched(arguments: &[&str], program: &Path) -> String {
    let output = trapless(arguments).arg("--").arg(program).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {:?}\n{out}{err}", output.status);
    format!("{out}{err}")
}

/// The number in the first column of the row that ends in `words`.
fn row(text: &str, words: &[&str]) -> Option<u64> {
    text.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = columns.first()?.replace(',', "").parse().ok()?;
        columns.ends_with(words).then_some(number)
    })
}

fn expected_output(program: &Path) -> String {
    String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap()
}

#[test]
fn entries_and_returns_are_exact_on_every_thread() {
    for (name, linked) in [("counts-static", Linked::Static), ("counts-dynamic", Linked::Dynamic)] {
        let Some(program) = program(name, linked) else { return };
        let module = format!("i386-{name}");
        let probes: Vec<String> =
            ["leaf", "wide", "floating", "recurse", "keeps_everything", "get_pc", "thread_word"]
                .iter()
                .map(|function| format!("{module}:{function}"))
                .collect();
        let mut arguments = vec!["count", "--return"];
        arguments.extend(probes.iter().map(String::as_str));
        let text = launched(&arguments, &program);
        assert!(text.contains(&expected_output(&program)), "{text}");
        for (function, calls) in [
            ("leaf", THREADS * (CALLS + 100)),
            ("wide", THREADS * CALLS),
            ("floating", THREADS * CALLS),
            ("recurse", THREADS * 100 * 201),
            ("keeps_everything", 5000),
            ("get_pc", 1),
            ("thread_word", 1),
        ] {
            for kind in ["entry", "return"] {
                let found = row(&text, &[kind, &module, function]);
                assert_eq!(found, Some(calls), "{kind} of {function}\n{text}");
            }
        }
    }
}

#[test]
fn every_call_has_a_duration() {
    let Some(program) = program("latency", Linked::Dynamic) else { return };
    let text = launched(&["latency", "i386-latency:leaf", "i386-latency:recurse"], &program);
    assert!(text.contains(&expected_output(&program)), "{text}");
    for (function, calls) in [("leaf", THREADS * (CALLS + 100)), ("recurse", THREADS * 100 * 201)] {
        assert_eq!(row(&text, &[function]), Some(calls), "{text}");
    }
}

#[test]
fn arguments_are_read_from_the_stack() {
    let Some(program) = program("trace", Linked::Dynamic) else { return };
    let text = launched(&["trace", "--args", "1", "i386-trace:check_everything"], &program);
    assert!(text.contains("check_everything(5000)"), "{text}");
}

#[test]
fn entries_into_the_kernel_are_refused_with_their_reason() {
    let Some(program) = program("refused", Linked::Dynamic) else { return };
    let text = launched(&["count", "i386-refused:*_system_call", "i386-refused:leaf"], &program);
    for reason in ["int 0x80 cannot be moved", "sysenter cannot be moved"] {
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_program_with_all_of_its_functions_probed_does_the_same() {
    for (name, linked, probes) in [
        ("all-static", Linked::Static, &["i386-all-static:*"][..]),
        ("all-dynamic", Linked::Dynamic, &["i386-all-dynamic:*", "libc.so.6:*"]),
    ] {
        let Some(program) = program(name, linked) else { return };
        let mut arguments = vec!["count", "--return", "-x", "_Unwind_*"];
        arguments.extend(probes);
        let text = launched(&arguments, &program);
        assert!(text.contains(&expected_output(&program)), "{text}");
        let module = format!("i386-{name}");
        let calls = THREADS * (CALLS + 100);
        assert_eq!(row(&text, &["return", &module, "leaf"]), Some(calls), "{text}");
    }
}

/// Ended with the test, whatever becomes of it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The executable memory of the program and its libraries.
fn text_of(pid: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains("r-xp") && line.contains('/')) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, start).unwrap();
        all.extend(bytes);
    }
    all
}

#[test]
fn attaching_to_a_running_program_leaves_no_trace_behind() {
    let Some(program) = program("attached", Linked::Dynamic) else { return };
    let child = Command::new(&program).arg("wait").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut target = Ended(child.unwrap());
    let mut output = BufReader::new(target.0.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("stack") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the target ended");
    }
    let pid = target.0.id();
    let before = text_of(pid);
    let arguments =
        ["count", "--return", "i386-attached:*", "libc.so.6:*", "-p", &pid.to_string(), "--duration", "1"];
    let mut tool = trapless(&arguments);
    let mut tool = Ended(tool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    // Armed once it says so.
    let mut said = BufReader::new(tool.0.stderr.take().unwrap());
    let mut armed = String::new();
    said.read_line(&mut armed).unwrap();
    let during = text_of(pid);
    let mut input = target.0.stdin.take().unwrap();
    input.write_all(b"xyz").unwrap();
    for _ in 0..3 {
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "5\n");
    }
    let mut text = String::new();
    tool.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(tool.0.wait().unwrap().success(), "{armed}{text}");
    assert_ne!(before, during, "{armed}");
    assert_eq!(row(&text, &["entry", "i386-attached", "leaf"]), Some(3), "{text}");
    assert!(before == text_of(pid), "the text is not what it was");
    drop(input);
    assert!(target.0.wait().unwrap().success());
}
