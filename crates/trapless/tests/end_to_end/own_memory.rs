//! What scripts read plainly of a program's memory, and what the program takes away: it lives, and what is told is what was there.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::Program;
use crate::support::live::{Live, does};

const BETWEEN: &str = include_str!("targets/between.c");

#[test]
fn texts_are_read_wherever_they_are() {
    let program = Program::build("between", BETWEEN, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let live =
        Live::run(&target, "uprobe:between:probed { @[str(arg0)] = count(); @first[*arg0] = count(); }");
    for deed in ["file 0", "heap 0", "stacks 0", "coroutine 0", "file 0"] {
        does(&mut target, deed);
    }
    let told = live.end();
    before.assert_restored(target.pid());
    for (text, count) in
        [("in its file", 20), ("in the heap", 10), ("far up", 20), ("near by", 20), ("between", 10)]
    {
        assert_eq!(told.value(&format!("@[{text}]")), count, "{text}: {told:?}");
    }
    // What `framed` gives is empty, and so is what was taken away.
    assert_eq!(told.value("@[]"), 30, "{told:?}");
}

/// A first thread's control block lies on no stack, whatever is mapped below it.
#[test]
fn stacks_are_walked_while_what_lies_between_goes_away() {
    let program = Program::build("between", BETWEEN, &[]);
    for stack in ["ustack", "ustack(perf)"] {
        let mut target = program.start(&[]);
        let before = target.text();
        let live = Live::run(
            &target,
            &format!("uprobe:between:probed {{ @[{stack}] = count(); @calls = count(); }}"),
        );
        for deed in ["stacks 0", "coroutine 0", "stacks 0"] {
            does(&mut target, deed);
        }
        let told = live.end();
        before.assert_restored(target.pid());
        assert_eq!(told.value("@calls"), 120, "{told:?}");
        for function in ["coroutine+", "framed+", "thread+"] {
            assert!(told.out.contains(function), "{function}: {told:?}");
        }
    }
}

/// A child's first thread has the control block of the one that forked it, and another number.
#[test]
fn of_a_followed_child_nothing_below_the_first_threads_control_block_is_a_stack() {
    let program = Program::build("between", BETWEEN, &[]);
    let mut target = program.start(&[]);
    let before = target.text();
    let pid = target.pid().to_string();
    let live = Live::run_with(&["--follow", "-p", &pid], "uprobe:between:probed { @[str(arg0)] = count(); }");
    does(&mut target, "forked 0");
    let told = live.end();
    before.assert_restored(target.pid());
    assert_eq!(told.value("@[between]"), 10, "{told:?}");
    assert_eq!(told.value("@[]"), 30, "{told:?}");
}

#[test]
fn nothing_below_the_stack_pointer_is_read_plainly() {
    let program = Program::build("between", BETWEEN, &[]);
    let mut target = program.start(&[]);
    let live = Live::run(&target, "uprobe:between:probed { @[str(arg0)] = count(); }");
    does(&mut target, "guard 0");
    let told = live.end();
    assert_eq!([told.value("@[deep]"), told.value("@[]")], [10, 10], "{told:?}");
}

/// Whatever a program does with its own memory, it lives.
#[test]
fn memory_of_a_threads_own_that_cannot_be_read_is_not() {
    // With its constants apart from its code, as everywhere but on arm64: what it makes readable again is mapped as it was then.
    let program = Program::build("between", BETWEEN, &["-Wl,-z,separate-code"]);
    for (deed, there, missing) in [("bare 0", 10, 30), ("hide 0", 0, 20)] {
        for what in ["str(arg0)", "ustack(perf)", "ustack"] {
            let mut target = program.start(&[]);
            let before = target.text();
            let script = format!("uprobe:between:probed {{ @[{what}] = count(); @calls = count(); }}");
            let live = Live::run(&target, &script);
            does(&mut target, deed);
            let told = live.end();
            before.assert_restored(target.pid());
            assert_eq!(told.value("@calls"), there + missing, "{deed} {what}: {told:?}");
            if what == "str(arg0)" {
                assert_eq!(told.value("@[]"), missing, "{deed}: {told:?}");
            }
        }
    }
}
