//! Bodies in which threads sleep: as long as they are to, whatever interrupts them, and no longer than the script is there.

use crate::machine::{Hit, Ready, SHARED};
use crate::scripts::argument;
use crate::threads::{ENTRY, storm};
use std::time::{Duration, Instant};
use trapless_script::ir::*;
use trapless_wire::{SCRIPT_LEAVE, WordsMut};

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

/// As by a stop, a call that was interrupted is made again, and finds the word.
#[test]
fn who_is_interrupted_once_he_is_to_leave_sleeps_no_longer() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the handler does nothing, and this signal is nobody else's.
    unsafe { libc::signal(libc::SIGUSR2, nothing as *const () as usize) };
    let ready = &sleeper(1);
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            // SAFETY: it has no preconditions.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            taken(ready, 0, MINUTE)
        });
        let thread = receive.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        ready.region.set_word(SHARED + u64::from(SCRIPT_LEAVE), 1);
        // SAFETY: the thread is joined behind it.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
        assert!(sleeper.join().unwrap() < SOON);
    });
}
