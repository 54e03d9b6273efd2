//! A signal's handler that interrupts a detour and forks: its child goes on in the detour, with a thread table that is empty.

use crate::support::park::Stepper;
use crate::support::tool::Tool;
use crate::support::{Program, arenas};

const FORKED_INSIDE: &str = include_str!("targets/forked_inside.c");

/// Has a child born at every instruction of ours, from the first hit on, in which the thread is not known yet; how many there were.
fn fork_everywhere(program: &Program, name: &str, verb: &[&str]) {
    let mut target = program.start(&[]);
    let tool = Tool::armed(&[verb, &[&format!("{name}:subject"), "-p", &target.pid().to_string()]].concat());
    let arenas = arenas(target.pid());
    target.freeze();
    target.tell("");
    let stepper = Stepper::seize(&target, target.pid());
    stepper.walk_to(target.address(0));
    let mut forks = 0;
    for _ in 0..250 {
        stepper.step();
        let ip = stepper.ip();
        if arenas.iter().any(|arena| arena.contains(&ip)) {
            stepper.interrupt(libc::SIGUSR1);
            stepper.walk_to(ip);
            forks += 1;
        }
    }
    assert!(forks > 80, "{name} {verb:?}: {forks}");
    drop(stepper);
    target.signal(libc::SIGUSR2);
    target.thaw();
    let end = target.line();
    let (calls, children) =
        end.strip_prefix("wrong 0 calls ").and_then(|end| end.split_once(" children ")).expect(&end);
    assert_eq!(children, forks.to_string(), "{name} {verb:?}");
    assert!(target.wait().success());
    let summary = tool.ended();
    let calls: u64 = calls.parse().unwrap();
    // The last one was not over when the program counted; and a child that had found its parent's block before it was born adds there.
    let kinds: &[_] = if verb.contains(&"--return") { &["entry", "return"] } else { &["entry"] };
    for kind in if verb[0] == "count" { kinds } else { &[] } {
        let hits = summary.hits("subject", kind);
        assert!(
            (calls..=calls + 1 + forks).contains(&hits),
            "{name} {verb:?}: {hits} of {kind}, {calls} calls"
        );
    }
}

#[test]
fn a_child_that_is_born_in_a_detour_goes_on() {
    for program in Program::in_both_widths("forked_inside", FORKED_INSIDE, &[]) {
        for verb in [&["count"][..], &["count", "--return"], &["latency"]] {
            fork_everywhere(&program, "forked_inside", verb);
        }
    }
}
