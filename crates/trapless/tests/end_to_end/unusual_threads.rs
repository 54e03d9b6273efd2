//! Threads that are listed as others are: those that the kernel has in a process for work of its own, and those whose system calls become signals.

use crate::support::tool::{detach, run};
use crate::support::{Program, Target};
use std::process::Command;

/// What is asked, and what it counts.
const VERBS: [(&[&str], &str); 3] =
    [(&["count"], "entry"), (&["count", "--return"], "return"), (&["latency"], "return")];

/// The kernel's threads of io_uring and vhost run nothing of a program. They can be attached to, once or twice, and stop when they like.
#[test]
fn l4_the_kernels_own_threads_in_a_process_are_left_alone() {
    let program = Program::build("uring", include_str!("targets/uring.c"), &[]);
    let Some(mut target) = Target::try_start(&mut Command::new(program.path())) else {
        return trapless_testing::inapplicable!("io_uring is not to be had here");
    };
    let (pid, before) = (target.pid().to_string(), target.text());
    // Each more than once: what was not let go well the first time shows at the next.
    for (verb, kind) in VERBS.into_iter().chain([(&["count"][..], "entry")]) {
        let ran = run(&[verb, &["-p", &pid, "uring:subject", "-d", "0.1", "-f", "json"]].concat());
        assert_eq!(ran.code, Some(0), "{verb:?}: {ran:?}");
        assert!(!ran.err.contains("thread pointer"), "{verb:?}: {ran:?}");
        assert!(ran.summary().hits("subject", kind) > 0, "{verb:?}: {ran:?}");
    }
    let ran = run(&[
        "trace",
        "-p",
        &pid,
        "uring:subject",
        "-d",
        "0.1",
        "-f",
        "json",
        "--mechanism",
        "step",
        "--allow-trap",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    before.assert_restored(target.pid());
    target.tell("?");
    assert!(target.line().ends_with(" wrong 0"));
}

/// Such a program, as Wine is one; `None` where the kernel has none.
fn dispatching() -> Option<(Program, Target)> {
    let program = Program::build("dispatching", include_str!("targets/dispatching.c"), &[]);
    let target = Target::try_start(&mut Command::new(program.path()))?;
    Some((program, target))
}

/// How many calls have become signals, if all have.
fn signals(target: &mut Target) -> u64 {
    target.tell("?");
    let line = target.line();
    let (signals, wrong) = line.split_once(" wrong ").expect("it answers");
    assert_eq!(wrong, "0", "{line}");
    signals.parse().unwrap()
}

#[test]
fn l4_threads_whose_calls_become_signals_make_ours_and_keep_their_handler() {
    let Some((_program, mut target)) = dispatching() else {
        return trapless_testing::inapplicable!("the kernel makes no signals of system calls");
    };
    let (pid, before) = (target.pid().to_string(), target.text());
    let mut so_far = signals(&mut target);
    // Calls are made by the thread that is found first, and its byte says now this, now that.
    for (verb, kind) in VERBS.into_iter().cycle().take(9) {
        let ran = run(&[verb, &["-p", &pid, "dispatching:subject", "-d", "0.05", "-f", "json"]].concat());
        assert_eq!(ran.code, Some(0), "{verb:?}: {ran:?}");
        assert!(ran.summary().hits("subject", kind) > 0, "{verb:?}: {ran:?}");
        // Both kinds go on as they have: a call that is not made into a signal is wrong.
        let now = signals(&mut target);
        assert!(now > so_far, "{verb:?}");
        so_far = now;
    }
    let counts = "uprobe:dispatching:subject { @ = count() } interval:ms:100 { exit() }";
    let ran = run(&["script", "-p", &pid, "-e", counts]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    before.assert_restored(target.pid());
    assert!(signals(&mut target) > so_far);
}

#[test]
fn l4_probes_that_make_calls_are_refused_where_those_become_signals() {
    let Some((_program, mut target)) = dispatching() else {
        return trapless_testing::inapplicable!("the kernel makes no signals of system calls");
    };
    let (pid, before) = (target.pid().to_string(), target.text());
    let reads = "uprobe:dispatching:subject { @[str(arg0)] = count() }";
    for refused in [
        run(&["script", "-p", &pid, "-e", reads]),
        run(&["inject", "-p", &pid, "dispatching:subject", "--delay", "1ms"]),
    ] {
        assert_eq!(refused.code, Some(1), "{refused:?}");
        for word in ["PR_SET_SYSCALL_USER_DISPATCH", "as Wine does"] {
            assert!(refused.err.contains(word), "{word:?}: {refused:?}");
        }
    }
    before.assert_restored(target.pid());
    signals(&mut target);
    detach(target.pid());
}
