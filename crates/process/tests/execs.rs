//! Who is about to run a file waits for us, and not for long.

mod common;

use common::{Program, is_root};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use trapless_process::Pid;
use trapless_process::StopOptions;
use trapless_process::execs::{ExecWatch, PendingExec};
use trapless_process::family::{ChildSignal, Family, FamilyEvent};

/// A copy of the program that only this test runs, and who is told of it.
fn watched() -> Option<(Program, ExecWatch)> {
    if !is_root() {
        trapless_testing::skip!("only root is told of programs before they run");
        return None;
    }
    let program = Program::compile("execs", &[]);
    let watch = ExecWatch::new([program.path()]).expect("the kernel tells");
    Some((program, watch))
}

fn take(watch: &mut ExecWatch) -> PendingExec {
    let start = Instant::now();
    loop {
        if let Some(pending) = watch.take() {
            return pending;
        }
        assert!(start.elapsed() < Duration::from_secs(300), "nobody is told of");
        std::thread::yield_now();
    }
}

/// Starts it by another program: who starts one waits for its exec.
fn start(program: &Program) -> Child {
    Command::new("sh").args(["-c", &format!("exec {} 0", program.path().display())]).spawn().unwrap()
}

#[test]
#[allow(clippy::zombie_processes, reason = "the family takes its end")]
fn whoever_is_told_of_can_be_followed_into_the_new_program() {
    let Some((program, mut watch)) = watched() else { return };
    let child = start(&program);
    let pending = take(&mut watch);
    let pid = Pid(child.id() as i32);
    assert_eq!(pending.tid, pid.leader());
    let mut family = Family::new(StopOptions::default(), ChildSignal::new().unwrap());
    family.seize(pid).unwrap();
    drop(pending);
    let mut has_execed = false;
    let status = loop {
        match family.next_event() {
            None => std::thread::yield_now(),
            Some(FamilyEvent::Execed { .. }) => {
                has_execed = true;
                family.go_on(pid);
            }
            Some(FamilyEvent::Ended { status, .. }) => break status,
            Some(event) => panic!("{event:?}"),
        }
    };
    assert!(has_execed);
    assert_eq!((status.code(), watch.missed()), (Some(7), 0));
}

#[test]
fn whom_nobody_takes_goes_on() {
    let Some((program, watch)) = watched() else { return };
    let mut child = start(&program);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert_eq!(watch.missed(), 1);
    // Those who wait when nobody is told any more go on, too.
    let mut child = start(&program);
    drop(watch);
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

/// Who takes somebody may need long for it, and is asleep only where the one that was taken is in the way.
#[test]
fn who_was_taken_waits_as_long_as_his_taker_is_at_work_and_no_longer() {
    let Some((program, mut watch)) = watched() else { return };
    let (at_work, most) = (Duration::from_millis(100), Duration::from_secs(1));
    let is_over_after_work = loop {
        let since = Instant::now();
        let mut child = start(&program);
        let pending = take(&mut watch);
        let taken = Instant::now();
        while taken.elapsed() < at_work {
            std::hint::spin_loop();
        }
        let is_over = pending.is_over();
        let is_conclusive = since.elapsed() < most / 2;
        drop(pending);
        assert_eq!(child.wait().unwrap().code(), Some(7));
        if is_conclusive {
            break is_over;
        }
    };
    assert!(!is_over_after_work);
    let mut child = start(&program);
    let pending = take(&mut watch);
    let since = Instant::now();
    while !pending.is_over() {
        assert!(since.elapsed() < Duration::from_secs(300), "he waits for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert_eq!(watch.missed(), 0);
}
