use super::{Run, TraceEvent};
use crate::wait::{self, Event, OnExit, Stop};
use crate::{Pid, Process, Tid, ptrace};
use std::time::{Duration, Instant};
use trapless_testing::Idle;

/// Between the wait that finds a thread at a breakpoint and the look at its registers another thread may exec or exit.
#[test]
fn a_stop_that_is_over_when_it_is_looked_at_is_no_error() {
    let mut idle = Idle::start();
    let process = Process::open(Pid(idle.pid())).unwrap();
    let leader = process.pid().leader();
    let mut tracer = process.stop().unwrap().trace().unwrap();
    for stop in [Stop::Signal(libc::SIGTRAP), Stop::Event(libc::PTRACE_EVENT_FORK)] {
        let beyond_all = Tid(i32::MAX);
        tracer.threads.insert(beyond_all, Run::Running);
        assert_eq!(tracer.tell(beyond_all, Event::Stop(stop)).unwrap(), None, "{stop:?}");
        assert_eq!(tracer.threads.remove(&beyond_all), Some(Run::Running), "its end is waited for");
    }
    idle.kill();
    while process.is_alive() {
        std::thread::yield_now();
    }
    let gone = tracer.tell(leader, Event::Stop(Stop::Signal(libc::SIGTRAP))).unwrap();
    assert_eq!(gone, Some(TraceEvent::ProcessGone));
}

/// A creator that is killed on its way into the stop of its fork never tells of the child.
#[test]
fn a_child_nobody_told_of_is_handed_over_and_let_go() {
    let (idle, orphan) = (Idle::start(), Idle::start());
    let process = Process::open(Pid(idle.pid())).unwrap();
    let mut tracer = process.stop().unwrap().trace().unwrap();
    let child = Tid(orphan.pid());
    ptrace::seize(child, 0).unwrap();
    ptrace::interrupt(child, 0).unwrap();
    let stop = wait::until(child, OnExit::Leave, Instant::now() + Duration::from_secs(300));
    assert!(matches!(stop, Some(Event::Stop(_))), "{stop:?}");
    tracer.early.insert(child);
    let mut told = Vec::new();
    drop(tracer.stop(|born| told.push(born)).unwrap());
    assert_eq!(told, [Pid(child.0)]);
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
}
