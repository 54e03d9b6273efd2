//! The keeper does its work whatever becomes of its parent.

use std::io::{Read, Write};
use std::time::Duration;
use trapless_process::keeper::{self, Keeper, KeeperError};

#[test]
fn results_of_any_size_come_back() {
    for len in [0usize, 1, 4096, 65536, 10 << 20] {
        let result = keeper::run(|_| vec![7; len]).unwrap();
        assert!(result.len() == len && result.iter().all(|&byte| byte == 7));
    }
}

#[test]
fn a_panic_and_a_death_are_told_apart() {
    let panic = keeper::run(|_| panic!("out of cheese"));
    assert!(matches!(&panic, Err(KeeperError::Panicked(text)) if text == "out of cheese"), "{panic:?}");
    let killed = Keeper::start(|_| {
        loop {
            std::thread::sleep(Duration::from_secs(1))
        }
    })
    .unwrap();
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(killed.pid().0, libc::SIGKILL) };
    let killed = killed.wait();
    assert!(matches!(killed, Err(KeeperError::Died(_))), "{killed:?}");
}

#[test]
fn what_a_terminal_sends_does_not_reach_it() {
    let (mut started_read, mut started) = std::io::pipe().unwrap();
    let mut keeper = Keeper::start(move |watch| {
        started.write_all(b"x").unwrap();
        while !watch.should_end_within(Duration::from_secs(1)) {}
        // SAFETY: getsid and getpid cannot fail for the caller itself.
        assert!(unsafe { libc::getsid(0) == libc::getpid() }, "a session of its own");
        b"survived".to_vec()
    })
    .unwrap();
    started_read.read_exact(&mut [0]).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP] {
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(keeper.pid().0, signal) };
    }
    assert!(!keeper.is_done_within(Duration::from_millis(20)));
    keeper.ask_to_end();
    assert_eq!(keeper.wait().unwrap(), b"survived");
}

#[test]
fn it_works_on_after_its_parent_was_killed_and_knows() {
    let (mut report_read, mut report) = std::io::pipe().unwrap();
    // The outer keeper is the parent of the inner one.
    let outer = Keeper::start(move |_| {
        let inner = Keeper::start(move |watch| {
            assert!(!watch.gone());
            report.write_all(b"started ").unwrap();
            while !watch.gone() {
                watch.should_end_within(Duration::from_millis(1));
            }
            report.write_all(b"undone").unwrap();
            Vec::new()
        });
        inner.unwrap().wait().unwrap()
    })
    .unwrap();
    let mut started = [0; 8];
    report_read.read_exact(&mut started).unwrap();
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(outer.pid().0, libc::SIGKILL) };
    let mut rest = String::new();
    report_read.read_to_string(&mut rest).unwrap();
    assert_eq!((&started[..], rest.as_str()), (&b"started "[..], "undone"));
    assert!(outer.wait().is_err());
}

#[test]
fn a_parent_with_busy_threads_can_have_one() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut hoard = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                hoard.push(vec![1u8; 1000 + hoard.len() % 5000]);
                if hoard.len() > 1000 {
                    hoard.clear();
                }
            }
        });
        for n in 0..50u8 {
            assert_eq!(keeper::run(|_| vec![n; 100_000]).unwrap().len(), 100_000);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
