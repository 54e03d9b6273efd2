//! A launched command stands still before its own code runs, then runs as if it had been started by a shell.

mod common;

use common::Program;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use trapless_process::launch::{self, Child, LaunchError, Place};
use trapless_process::{RemoteError, StopOptions};

/// Runs `body` in a forked child whose standard output is a file, and returns what was written: a launched command inherits
/// our standard streams, and the other tests write to them too.
fn output_of(body: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    // SAFETY: the child redirects its output, runs the test's code, which only this thread of it has, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: both descriptors are open.
        unsafe { libc::dup2(file.as_file().as_raw_fd(), 1) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: nothing of the child is to be cleaned up.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the launching process failed");
    std::fs::read_to_string(file.path()).unwrap()
}

/// Writes to the real standard output, not to the test harness's.
fn say(text: &str) {
    // SAFETY: the call reads `text` only.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// A deadlock of ours must fail the test, not hang it.
fn end_of(child: &mut Child) -> ExitStatus {
    child.wait_for(Duration::from_secs(60)).unwrap().expect("it ends")
}

fn programs() -> Vec<(&'static str, Program, Place)> {
    let table: &[(&str, &str, &[&str], Place)] = &[
        ("dynamic", "gcc", &[], Place::Loaded),
        ("not position-independent", "gcc", &["-no-pie"], Place::Loaded),
        ("static", "gcc", &["-static"], Place::Entry),
        ("static, position-independent", "gcc", &["-static-pie"], Place::Entry),
        ("musl", "musl-gcc", &[], Place::Loaded),
        ("musl, static", "musl-gcc", &["-static"], Place::Entry),
        ("32-bit", "i686-linux-gnu-gcc", &["-static"], Place::Entry),
        ("32-bit, dynamic", "i686-linux-gnu-gcc", &[], Place::Loaded),
    ];
    let compile = |&(name, compiler, flags, place): &(&'static str, &str, &[&str], Place)| {
        Some((name, Program::compile_with(compiler, "order", flags)?, place))
    };
    table.iter().filter_map(compile).collect()
}

#[test]
fn nothing_of_the_program_has_run_and_then_all_of_it_does() {
    for (name, program, place) in programs() {
        let output = output_of(|| {
            let command = match launch::launch(program.path().as_os_str(), &["3"]) {
                Err(LaunchError::MissingInterpreter(path)) => {
                    say(&format!("no loader: {}", path.display()));
                    return;
                }
                command => command.unwrap(),
            };
            assert_eq!(command.place(), place, "{name}");
            say("launched\n");
            let mut stopped = command.hold(&StopOptions::default()).unwrap();
            assert_eq!(stopped.threads().len(), 1);
            let pid = stopped.process().pid();
            let made = stopped.remote(|remote| {
                let getpid = remote.abi().getpid;
                remote.syscall(getpid, [0; 6])
            });
            assert_eq!(made.map_err(|error: RemoteError| error.to_string()), Ok(pid.0 as u64), "{name}");
            drop(stopped);
            let (_, mut child) = command.let_run().unwrap();
            assert_eq!(end_of(&mut child).code(), Some(3), "{name}");
        });
        if output.starts_with("no loader") {
            trapless_testing::skip!("{name}: {output}");
            continue;
        }
        assert_eq!(output, "launched\nconstructor\nmain 3: SIGPIPE default, 0 blocked\n", "{name}");
    }
}

#[test]
fn the_loader_is_put_back_byte_for_byte() {
    let program = Program::compile("order", &[]);
    let command = launch::launch(program.path().as_os_str(), &[] as &[&str]).unwrap();
    let process = command.process();
    let mut compared = 0;
    for mapping in
        process.maps().unwrap().iter().filter(|mapping| mapping.perms.exec && mapping.path().is_some())
    {
        use std::os::unix::fs::FileExt;
        let mut memory = vec![0; mapping.len() as usize];
        process.read_exact(mapping.start, &mut memory).unwrap();
        let mut file = vec![0; memory.len()];
        let read = process.open_mapped_file(mapping).unwrap().read_at(&mut file, mapping.offset).unwrap();
        assert_eq!(memory[..read], file[..read], "{:?}", mapping.name);
        compared += 1;
    }
    assert!(compared >= 3, "the program, libc and the loader");
}

#[test]
fn commands_along_path_and_their_ends() {
    let run = |program: &str, args: &[&str]| {
        let launched = launch::launch(OsStr::new(program), args).unwrap();
        end_of(&mut launched.let_run().unwrap().1)
    };
    assert!(run("true", &[]).success());
    assert_eq!(run("sh", &["-c", "kill -TERM $$"]).signal(), Some(libc::SIGTERM));
}

#[test]
fn a_command_dropped_before_it_ran_is_gone() {
    let command = launch::launch(OsStr::new("sleep"), &["1000"]).unwrap();
    let pid = command.process().pid();
    drop(command);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn what_cannot_be_launched_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: &str| {
        let path = dir.path().join(name);
        // A process that another test forks meanwhile would hold a descriptor of ours, and what is open for writing cannot be run.
        let write = "printf %s \"$1\" >\"$0\" && chmod \"$2\" \"$0\"";
        let mut command = std::process::Command::new("sh");
        let written = command.args(["-c", write]).arg(&path).args([content, mode]).status().unwrap();
        assert!(written.success(), "{name}: {written}");
        path
    };
    let kind = |program: &OsStr| match launch::launch(program, &[] as &[&str]) {
        Ok(_) => "launched",
        Err(LaunchError::NotFound { .. }) => "not found",
        Err(LaunchError::NotExecutable(_)) => "not executable",
        Err(LaunchError::Directory(_)) => "directory",
        Err(LaunchError::UnknownFormat(_)) => "unknown format",
        Err(LaunchError::MissingInterpreter(_)) => "missing interpreter",
        Err(error) => panic!("{error}"),
    };
    for (program, expected) in [
        (OsStr::new("no-such-command-anywhere"), "not found"),
        (OsStr::new(""), "not found"),
        (OsStr::new("/no/such/file"), "not found"),
        (dir.path().as_os_str(), "directory"),
        (file("text", "echo hello\n", "644").as_os_str(), "not executable"),
        (file("no-line", "echo hello\n", "755").as_os_str(), "unknown format"),
        (file("empty", "", "755").as_os_str(), "unknown format"),
        (file("bad-line", "#!/no/such/interpreter\n", "755").as_os_str(), "missing interpreter"),
        (file("script", "#!/bin/sh\nexit 0\n", "755").as_os_str(), "launched"),
    ] {
        assert_eq!(kind(program), expected, "{program:?}");
    }
}
