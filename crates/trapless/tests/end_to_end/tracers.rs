//! Hard case L4: targets that somebody else traces, from the start, or just when the probes are to be taken out.

use crate::support::park::Stepper;
use crate::support::tool::{Tool, detach, run};
use crate::support::{Program, Target};
use std::time::Duration;

fn lives() -> Program {
    Program::build("lives", include_str!("targets/lives.c"), &[])
}

/// Long enough for a tool to come upon the tracer. Where the machine is slower, it comes later and finds none.
const MOMENT: Duration = Duration::from_millis(100);

fn armed(target: &Target) -> Tool {
    Tool::armed(&["count", "-p", &target.pid().to_string(), "lives:subject"])
}

fn trace(target: &Target) -> Stepper {
    target.freeze();
    Stepper::seize(target, target.pid())
}

#[test]
fn l4_a_target_that_is_traced_already_is_code_4() {
    let target = lives().start(&[]);
    let pid = target.pid().to_string();
    let tracer = trace(&target);
    for verb in ["count", "latency"] {
        run(&[verb, "-p", &pid, "lives:subject"]).assert_refused(4, &[&pid, "trace"]);
    }
    drop(tracer);
    run(&["count", "-p", &pid, "lives:subject", "-d", "0.01", "-o", "/dev/null"]);
    detach(target.pid());
}

#[test]
fn l4_a_tracer_that_leaves_is_waited_for_when_probes_are_taken_out() {
    let target = lives().start(&[]);
    let before = target.text();
    let tool = armed(&target);
    let tracer = trace(&target);
    tool.signal(libc::SIGINT);
    std::thread::sleep(MOMENT);
    drop(tracer);
    tool.ended();
    before.assert_restored(target.pid());
}

#[test]
fn l4_probes_that_a_tracer_keeps_in_are_told_and_can_be_taken_out_later() {
    let target = lives().start(&[]);
    let before = target.text();
    let tool = armed(&target);
    let tracer = trace(&target);
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!((ran.code, ran.err.lines().count()), (Some(1), 1), "{ran:?}");
    for words in ["could not be taken out", "traced by", &format!("trapless detach -p {}", target.pid())] {
        assert!(ran.err.contains(words), "{words:?}: {ran:?}");
    }
    // What was counted is told all the same.
    assert_eq!(ran.summary().hits("subject", "entry"), 0);
    drop(tracer);
    detach(target.pid());
    before.assert_restored(target.pid());
}
