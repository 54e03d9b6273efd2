//! Launched commands: one runs only if its probes were armed, starts every time, and finds its signals as it would have.

use crate::support::tool::{Ran, finish, run, trapless};
use crate::support::{PATIENCE, Program, end_with_us, eventually};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Says what it has inherited of SIGTRAP, from a function that can be probed.
const SAYS: &str = r#"
    #include <signal.h>
    #include <stdio.h>
    __attribute__((noinline, noclone)) void say(void) {
        struct sigaction action;
        sigset_t blocked, pending;
        sigaction(SIGTRAP, 0, &action);
        sigprocmask(SIG_BLOCK, 0, &blocked);
        sigpending(&pending);
        printf("ran: %s, %s, %s\n", action.sa_handler == SIG_IGN ? "ignored" : "default",
               sigismember(&blocked, SIGTRAP) ? "blocked" : "open",
               sigismember(&pending, SIGTRAP) ? "pending" : "none");
    }
    #if defined __x86_64__ || defined __i386__
    #define UNDEFINED "ud2"
    #elif defined __aarch64__
    #define UNDEFINED "udf #0"
    #else
    #define UNDEFINED ".long 0"
    #endif
    __attribute__((naked)) void never(void) { __asm__(UNDEFINED); }
    int main(void) { say(); return 7; }"#;

const FREE: &str = "ran: default, open, none\n";

/// Every process that the command made holds its end of the output, so what is read here is all there will ever be.
fn outcome(mechanism: &[&str], probe: &[&str], program: &Program) -> Ran {
    let path = program.path().to_str().unwrap();
    run(&[&["count"], mechanism, probe, &["--", path]].concat())
}

#[test]
fn a_command_whose_probes_cannot_be_armed_does_not_run() {
    let program = Program::build("says", SAYS, &[]);
    for mechanism in [&[][..], &["--allow-trap", "--mechanism", "step"]] {
        for (probe, code) in [
            (&["says:nothing"][..], 5),
            (&["nowhere.so:f"], 5),
            (&["libc.so.6:*", "--max-probes", "1"], 5),
            // What tells that it is armed cannot be written.
            (&["says:say", "-f", "json", "-o", "/dev/full"], 7),
        ] {
            let ran = outcome(mechanism, probe, &program);
            assert_eq!(ran.code, Some(code), "{mechanism:?} {probe:?}: {ran:?}");
            assert_eq!(ran.out, "", "{mechanism:?} {probe:?}");
        }
        let ran = outcome(mechanism, &["says:say", "-o", "/dev/null"], &program);
        assert_eq!((ran.code, ran.out.as_str()), (Some(7), FREE), "{mechanism:?} {:?}", ran.err);
    }
    let ran = outcome(&[], &["says:never"], &program);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{:?}", ran.err);
}

/// Runs the tool, sends it `signal` after a while, and reads what the command has written until nobody is left to write:
/// a command that was left standing would keep that from coming.
fn interrupted(command: &mut Command, signal: i32, time: Duration) -> String {
    let child = end_with_us(command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(time);
    // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
    unsafe { libc::kill(child.id() as i32, signal) };
    let (done, ends) = channel();
    std::thread::spawn(move || done.send(child.wait_with_output().unwrap().stdout));
    let out = ends.recv_timeout(PATIENCE).expect("a command was left standing");
    String::from_utf8(out).unwrap()
}

#[test]
fn ending_the_tool_at_any_moment_of_a_launch_leaves_no_standing_command() {
    let program = Program::build("says", SAYS, &[]);
    let path = program.path().to_str().unwrap();
    for mechanism in [&[][..], &["--allow-trap", "--mechanism", "step"]] {
        let arguments = [&["count", "says:say", "-o", "/dev/null"], mechanism, &["--", path]].concat();
        let start = Instant::now();
        assert_eq!(run(&arguments).code, Some(7));
        let whole = start.elapsed();
        const MOMENTS: u32 = 60;
        for signal in [libc::SIGKILL, libc::SIGINT] {
            for moment in 0..MOMENTS {
                let out = interrupted(&mut trapless(&arguments), signal, whole * moment / MOMENTS);
                assert!(out.is_empty() || out == FREE, "{mechanism:?} {moment}: {out:?}");
            }
        }
    }
}

#[test]
fn a_command_with_a_site_that_traps_starts_every_time() {
    let program = Program::build("says", SAYS, &[]);
    for launch in 0..100 {
        let mechanism = ["--allow-trap", "--mechanism", "step"];
        let ran = outcome(&mechanism, &["says:say", "-o", "/dev/null"], &program);
        assert_eq!((ran.code, ran.out.as_str()), (Some(7), FREE), "launch {launch}: {:?}", ran.err);
    }
}

/// What `command` has of SIGTRAP when it is started.
fn inheriting(command: &mut Command, ignored: bool, blocked: bool) -> &mut Command {
    // SAFETY: the calls are safe between fork and exec, and the set is initialised before it is used.
    unsafe {
        command.pre_exec(move || {
            if ignored {
                libc::signal(libc::SIGTRAP, libc::SIG_IGN);
            }
            if blocked {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGTRAP);
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            }
            Ok(())
        })
    }
}

#[test]
fn a_command_keeps_what_it_inherits_of_sigtrap_and_then_gets_no_traps() {
    for program in Program::in_both_widths("says", SAYS, &[]) {
        let path = program.path().to_str().unwrap();
        for (ignored, blocked, says) in [
            (false, false, FREE),
            (true, false, "ran: ignored, open, none\n"),
            (false, true, "ran: default, blocked, none\n"),
            (true, true, "ran: ignored, blocked, none\n"),
        ] {
            let jump = ["count", "says:say", "-o", "/dev/null", "--", path];
            let ran = finish(inheriting(&mut trapless(&jump), ignored, blocked));
            assert_eq!((ran.code, ran.out.as_str()), (Some(7), says), "{:?}", ran.err);
            let step = [&["count", "--allow-trap", "--mechanism", "step"], &jump[1..]].concat();
            let ran = finish(inheriting(&mut trapless(&step), ignored, blocked));
            match ignored || blocked {
                false => assert_eq!((ran.code, ran.out.as_str()), (Some(7), says), "{:?}", ran.err),
                true => {
                    let word = if ignored { "ignores SIGTRAP" } else { "blocks SIGTRAP" };
                    ran.assert_refused(1, &[word]);
                    assert_eq!(ran.out, "", "a refused command does not run");
                }
            }
        }
    }
}

#[test]
fn a_command_that_runs_another_program_is_said_to() {
    let run = |mechanism: &[&str], script: &[&str]| {
        let verb = ["count", "libc.so.6:malloc", "-f", "json"];
        let mut command = trapless(&[&verb, mechanism, &["--"], script].concat());
        let mut child = end_with_us(command.stdin(Stdio::piped()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let pid = child.id();
        eventually("the last program runs", || {
            let of = |what: String| fs::read_to_string(format!("/proc/{what}")).unwrap_or_default();
            let children = of(format!("{pid}/task/{pid}/children"));
            let is_last = |pid: &str| {
                of(format!("{pid}/comm")) == "cat\n" || !of(format!("{pid}/task/{pid}/children")).is_empty()
            };
            children.split_whitespace().any(is_last)
        });
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        unsafe { libc::kill(pid as i32, libc::SIGINT) };
        // It lives until the run has said what it saw.
        let (mut out, mut err) = (String::new(), String::new());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !out.contains("\"summary\"") && lines.read_line(&mut out).unwrap() > 0 {}
        drop(input);
        lines.read_to_string(&mut out).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Ran { code: child.wait().unwrap().code(), out, err }
    };
    for mechanism in [&[][..], &["--allow-trap", "--mechanism", "step"]] {
        let ran = run(mechanism, &["sh", "-c", "exec cat"]);
        assert!(ran.err.contains("ran another program, whose calls were not counted"), "{ran:?}");
        assert_eq!(ran.summary().0["ran_another_program"], true, "{ran:?}");
    }
    let ran = run(&[], &["sh", "-c", "cat; true"]);
    assert!(!ran.err.contains("another program"), "{ran:?}");
    assert!(ran.summary().0["ran_another_program"].is_null(), "{ran:?}");
}
