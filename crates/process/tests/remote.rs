//! A target in whatever wait, stopped again and again and made to run system calls, gets what it waited for and never an EINTR.

mod common;

use common::Program;
use std::time::Duration;
use trapless_process::{Process, RemoteError};

/// Stops the target, makes it run `calls` system calls, checks that nothing of it has changed, and lets it go.
fn disturb(process: &Process, calls: u32) {
    let mut stopped = process.stop().expect("it can be stopped");
    let before: Vec<_> =
        stopped.threads().iter().map(|t| (t.tid(), *t.registers(), t.pending_signal())).collect();
    let maps = process.maps().unwrap();
    stopped
        .remote(|remote| {
            for _ in 0..calls {
                let getpid = remote.abi().getpid;
                assert_eq!(remote.syscall(getpid, [0; 6])?, process.pid().0 as u64);
            }
            Ok::<_, RemoteError>(())
        })
        .expect("a thread makes system calls");
    let after: Vec<_> =
        stopped.threads().iter().map(|t| (t.tid(), *t.registers(), t.pending_signal())).collect();
    assert_eq!(before, after);
    assert_eq!(maps, process.maps().unwrap());
    stopped.resume_and_detach();
}

const MODES: &[&str] = &[
    "read",
    "poll",
    "poll-timeout",
    "ppoll",
    "select",
    "epoll",
    "nanosleep",
    "wait4",
    "pause",
    "sigsuspend",
    "sigtimedwait",
    "join",
    "cond",
    "socket",
    "semop",
    "spin",
    "alarm",
    "queue",
];

#[test]
fn every_wait_goes_on_as_if_nothing_had_happened() {
    let program = Program::compile("blocked", &[]);
    for mode in MODES {
        let mut target = program.start(&[mode]);
        let process = target.open();
        for _ in 0..20 {
            disturb(&process, 20);
            std::thread::sleep(Duration::from_millis(2));
        }
        target.poke();
        assert_eq!(target.line(), "ok", "{mode}");
        assert!(target.wait().success(), "{mode}");
    }
}
