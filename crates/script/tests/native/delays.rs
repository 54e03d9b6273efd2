//! Bodies in which threads sleep: as long as they are to, whatever interrupts them, and no longer than the script is there.

use crate::machine::{Hit, Ready, SHARED};
use crate::scripts::argument;
use crate::threads::{ENTRY, storm};
use std::time::{Duration, Instant};
use trapless_script::ir::*;
use trapless_wire::{SCRIPT_LEAVE, SCRIPT_ORIGIN, WordsMut};

/// `delay(arg0)`
fn sleeper(threads: u64) -> Ready {
    let body = Body { code: vec![Statement::Delay(argument(0))], ..Body::default() };
    Ready::new(&Program { bodies: vec![body], ..Program::default() }, &ENTRY, threads).unwrap()
}

fn taken(ready: &Ready, thread: u64, nanoseconds: u64) -> Duration {
    let start = Instant::now();
    ready.run(0, thread, &Hit { tid: 1, ..Hit::with(&[nanoseconds]) });
    start.elapsed()
}

const MINUTE: u64 = 60_000_000_000;
/// Less than what was to be slept, and enough for any machine.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_thread_sleeps_as_long_as_it_is_to_and_not_at_all_for_what_is_no_time() {
    let ready = sleeper(1);
    assert!(ready.native.makes_system_calls);
    for nanoseconds in [1, 999_999_999, 1_000_000_000, 1_000_000_001] {
        assert!(taken(&ready, 0, nanoseconds) >= Duration::from_nanos(nanoseconds), "{nanoseconds}");
    }
    for none in [0, u64::MAX, 1 << 63] {
        assert!(taken(&ready, 0, none) < SOON, "{none}");
    }
}

#[test]
fn signals_do_not_shorten_a_sleep_and_their_handlers_sleep_too() {
    let ready = sleeper(1);
    let (turns, handled) = storm(&ready, 1.0, |turn| {
        let nanoseconds = 100_000 + 100_000 * (turn % 10);
        assert!(taken(&ready, 0, nanoseconds) >= Duration::from_nanos(nanoseconds));
    });
    assert!(turns > 0 && handled > 0);
}

#[test]
fn who_is_to_leave_does_not_sleep() {
    let ready = sleeper(1);
    ready.region.set_word(SHARED + u64::from(SCRIPT_LEAVE), 1);
    for nanoseconds in [MINUTE, i64::MAX as u64] {
        assert!(taken(&ready, 0, nanoseconds) < SOON);
    }
}

/// What a thread does that is interrupted in its sleep once something was changed.
fn interrupted<T: Send>(ready: &Ready, change: impl FnOnce(), sleep: impl FnOnce() -> T + Send) -> T {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing, and this signal is nobody else's.
    unsafe { libc::signal(libc::SIGUSR2, nothing as *const () as usize) };
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            // SAFETY: it has no preconditions.
            send.send(unsafe { (libc::gettid(), libc::pthread_self()) }).unwrap();
            sleep()
        });
        let (tid, thread) = receive.recv().unwrap();
        let word = format!("{:#x}", ready.region.address as u64 + SHARED + u64::from(SCRIPT_LEAVE));
        let call = || std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap_or_default();
        // An emulator's calls are others.
        let most = Instant::now() + Duration::from_millis(500);
        while !call().contains(&word) && Instant::now() < most {
            std::thread::sleep(Duration::from_millis(1));
        }
        change();
        // SAFETY: the thread is joined behind it.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
        sleeper.join().unwrap()
    })
}

/// As by a stop, a call that was interrupted is made again, and finds the word.
#[test]
fn who_is_interrupted_once_he_is_to_leave_sleeps_no_longer() {
    let ready = &sleeper(1);
    let leave = || ready.region.set_word(SHARED + u64::from(SCRIPT_LEAVE), 1);
    assert!(interrupted(ready, leave, || taken(ready, 0, MINUTE)) < SOON);
}

/// `delay(arg0); override(7);`
#[test]
fn who_wakes_up_in_a_child_sleeps_no_longer_and_leaves_the_body() {
    let code = vec![Statement::Delay(argument(0)), Statement::Change(Change::Result, Expression::Int(7))];
    let program = Program { bodies: vec![Body { code, ..Body::default() }], ..Program::default() };
    let ready = &Ready::new(&program, &ENTRY, 1).unwrap();
    let result = |nanoseconds| {
        let hit = Hit { tid: 1, ..Hit::with(&[nanoseconds]) };
        ready.run(0, 0, &hit);
        hit.changed.get()[trapless_isa::body::Change::Result as usize]
    };
    assert_eq!(result(1000), 7);
    // Its origin word is wiped.
    let other = 0u64;
    let forks = || ready.region.set_word(SHARED + u64::from(SCRIPT_ORIGIN), &raw const other as u64);
    let start = Instant::now();
    assert_eq!(interrupted(ready, forks, || result(MINUTE)), 0);
    assert!(start.elapsed() < SOON);
}
