//! Calls that are counted in the process of the test itself, without a handler.

#![cfg(target_arch = "x86_64")]

mod common;

use common::sums::{SUM, Two, bytes_of, call};
use common::{apart, ready, use_the_c_library};
use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use trapless_inside::{Error, inside};

#[inline(never)]
extern "C" fn product(a: u64, b: u64) -> u64 {
    black_box(black_box(a).wrapping_mul(black_box(b)))
}

fn call_often(times: u64) {
    (0..times).for_each(|n| assert_eq!(call(n, 3), n + 3));
}

#[test]
fn calls_are_counted_from_then_on_until_it_is_dropped() {
    apart(|| {
        let before = bytes_of(SUM);
        let first = ready().count_function(SUM).unwrap();
        assert_eq!((first.functions(), first.skipped().len(), first.calls()), (1, 0, 0));
        assert_ne!(bytes_of(SUM), before);
        call_often(1000);
        // Another one begins at 0.
        let second = ready().count_function(SUM).unwrap();
        call_often(10);
        assert_eq!([first.calls(), second.calls()], [1010, 10]);
        let by_function: Vec<(String, u64)> = second.by_function().collect();
        assert!(by_function.len() == 1 && by_function[0].0.ends_with("sum"), "{by_function:?}");
        drop(first);
        call_often(5);
        assert_eq!(second.calls(), 15);
        drop(second);
        assert_eq!(bytes_of(SUM), before);
        call_often(7);
        let third = ready().count_function(SUM).unwrap();
        call_often(1);
        assert_eq!(third.calls(), 1);
    });
}

#[test]
fn no_thread_is_lost_however_many_there_are() {
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        // More than have a place of their own, all at once.
        const THREADS: usize = 700;
        const CALLS: u64 = 2000;
        let all = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let all = all.clone();
                let work = move || {
                    all.wait();
                    call_often(CALLS);
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(count.calls(), THREADS as u64 * CALLS);
    });
}

#[test]
fn handlers_and_replacements_come_and_go_and_each_call_counts_once() {
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut calls = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        assert!([7, 12].contains(&call(3, 4)));
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        for round in 0..200 {
            let handler = {
                let heard = heard.clone();
                move |_: &mut trapless_inside::Call<'_>| _ = heard.fetch_add(1, Ordering::Relaxed)
            };
            let probe = ready().on_function(SUM, handler).unwrap();
            // SAFETY: both are alike.
            let replacement =
                (round % 2 == 0).then(|| unsafe { ready().replace(SUM, product as *const ()) }.unwrap());
            if round % 3 == 0 {
                drop(probe);
                std::thread::yield_now();
            }
            drop(replacement);
        }
        stop.store(true, Ordering::Relaxed);
        let calls: u64 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert_eq!(count.calls(), calls);
        assert!(heard.load(Ordering::Relaxed) <= calls);
    });
}

#[test]
fn what_handlers_call_is_counted() {
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        let probe = ready().on_function(product as *const (), |_| _ = call(1, 1)).unwrap();
        (0..100).for_each(|n| _ = black_box(product as Two)(n, 2));
        assert_eq!(count.calls(), 100);
        drop(probe);
    });
}

#[test]
fn a_forked_child_goes_on_from_what_was_counted() {
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        call_often(100);
        // SAFETY: the child counts, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            call_often(11);
            let thread = std::thread::spawn(|| call_often(20));
            let counted = thread.join().map(|()| count.calls()).unwrap_or(0);
            // SAFETY: it takes an integer.
            unsafe { libc::_exit(i32::from(counted != 131)) };
        }
        call_often(1000);
        let mut status = 0;
        // SAFETY: the call writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(count.calls(), 1100);
    });
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

#[test]
fn handlers_of_signals_that_call_it_lose_nothing() {
    extern "C" fn handle(_: i32) {
        call(1, 2);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        let often = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        // SAFETY: the handler does what handlers may; the calls read what they are given.
        unsafe {
            libc::signal(libc::SIGALRM, handle as *const () as usize);
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
        }
        let mut calls = 0;
        while HANDLED.load(Ordering::Relaxed) < 1000 {
            call_often(100);
            calls += 100;
        }
        let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let timer = libc::itimerval { it_interval: never, it_value: never };
        // SAFETY: as above.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
        assert_eq!(count.calls(), calls + HANDLED.load(Ordering::Relaxed));
    });
}

#[test]
fn the_whole_c_library_is_counted_while_it_is_used() {
    apart(|| {
        let count = ready().count("libc.so*:*").unwrap();
        assert!(count.functions() > 2000, "{count:?}");
        let expected = use_the_c_library();
        assert_eq!(use_the_c_library(), expected);
        let most = count.by_function().max_by_key(|counted| counted.1).unwrap();
        assert!(most.1 > 1000, "{most:?}");
        assert!(count.calls() > 10_000);
        drop(count);
        assert_eq!(use_the_c_library(), expected);
    });
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let Ok(inside) = inside() else { return };
    assert!(matches!(inside.count("libc.so*:no_such_function"), Err(Error::Find(_))));
    assert!(matches!(inside.count("libc.so*:getppid+4"), Err(Error::NoFunction(_))));
    assert!(matches!(
        inside.count_function(std::ptr::without_provenance(0x1000)),
        Err(Error::Nowhere(0x1000))
    ));
}

/// Loads a library of C with a function `f`, which gives `formula` of its argument, and tells where that is.
fn library(formula: &str) -> Option<(*mut c_void, *const ())> {
    let path = std::env::temp_dir().join(format!("trapless-counts-{}.so", std::process::id()));
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-O2", "-x", "c", "-", "-o"]).arg(&path);
    let mut compiler = match command.stdin(std::process::Stdio::piped()).spawn() {
        Ok(compiler) => compiler,
        Err(error) => {
            trapless_testing::skipped(format_args!("gcc: {error}"));
            return None;
        }
    };
    let source = format!("long f(long x) {{ volatile long y = x; return {formula}; }}");
    std::io::Write::write_all(&mut compiler.stdin.take().unwrap(), source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: it has no constructors.
    let (handle, function) = unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        (handle, libc::dlsym(handle, c"f".as_ptr()))
    };
    std::fs::remove_file(&path).unwrap();
    Some((handle, function.cast_const().cast()))
}

/// What was found of a function holds for no other that comes to be in its place.
#[test]
fn functions_of_libraries_that_take_turns_in_one_place_are_told_apart() {
    apart(|| {
        let mut places = Vec::new();
        for round in 0..6 {
            let (formula, expected) = [("y * 3 + 1", 22), ("(y ^ 5) - 2", 0)][round % 2];
            let Some((handle, function)) = library(formula) else { return };
            // SAFETY: it is such a function.
            let f: extern "C" fn(i64) -> i64 = unsafe { std::mem::transmute(function) };
            let before = bytes_of(function);
            for _ in 0..3 {
                let count = ready().count_function(function).unwrap();
                assert_ne!(bytes_of(function), before);
                assert_eq!([f(7), f(7), count.calls() as i64], [expected, expected, 2]);
                drop(count);
                assert_eq!((bytes_of(function), f(7)), (before, expected));
            }
            places.push(function);
            // SAFETY: nobody is in it.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        }
        if places[0] != places[1] {
            trapless_testing::inapplicable!("the loader has not put the one where the other was");
        }
    });
}

/// Two functions with padding behind them, of which the jump's last byte begins an instruction.
macro_rules! crowded {
    ($name:literal, $third:literal, $pops:literal) => {
        std::arch::global_asm!(
            ".pushsection .text.counts_crowded, \"ax\", @progbits",
            ".balign 64, 0x90",
            concat!(".type ", $name, ", @function"),
            concat!(".globl ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            "push r15",
            "push r14",
            $third,
            "lea rax, [rdi + rsi]",
            $pops,
            "pop r14",
            "pop r15",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".balign 64, 0x90",
            ".popsection",
        );
    };
}

crowded!("crowded_of_five", "push rbx", "pop rbx");
crowded!("crowded_of_six", "push r13", "pop r13");

unsafe extern "C" {
    fn crowded_of_five(a: u64, b: u64) -> u64;
    fn crowded_of_six(a: u64, b: u64) -> u64;
}

/// Where memory is taken that a jump could lead to with a breakpoint in its distance, as by the heaps of many threads, one with a byte ahead of it leads elsewhere, or a short one
/// to padding.
#[test]
fn a_function_is_probed_though_no_address_suits_its_jump() {
    type Function = unsafe extern "C" fn(u64, u64) -> u64;
    for (function, first) in [(crowded_of_five as Function, &[0xeb][..]), (crowded_of_six, &[0x48, 0xe9])] {
        apart(|| probe_in_a_crowd(function, first));
    }
    fn probe_in_a_crowd(callable: Function, first: &[u8]) {
        let function = callable as *const ();
        let before = bytes_of(function);
        const PAGE: u64 = 4096;
        let lowest = function.addr() as u64 - 0x3400_0000 - PAGE;
        for at in (lowest & !(PAGE - 1)..lowest + 0x100_0000 + 3 * PAGE).step_by(PAGE as usize) {
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let place = std::ptr::without_provenance_mut(at as usize);
            // SAFETY: nothing that is mapped is replaced.
            unsafe { libc::mmap(place, PAGE as usize, libc::PROT_NONE, flags, -1, 0) };
        }
        let count = ready().count_function(function).unwrap();
        let now = bytes_of(function);
        assert!(now.starts_with(first), "{now:x?}");
        let stop = AtomicBool::new(false);
        let calls = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // SAFETY: it takes any numbers.
                        assert_eq!(unsafe { black_box(callable)(3, 4) }, 7);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..300 {
                let latency = ready().latency_function(function).unwrap();
                let probe = ready().on_function(function, |_| {}).unwrap();
                drop((latency, probe));
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(count.calls(), calls.load(Ordering::Relaxed));
        drop(count);
        // Behind the function is padding, where a jump stays.
        assert_eq!(bytes_of(function)[..15], before[..15]);
        for _ in 0..50 {
            drop(ready().count_function(function).unwrap());
            // SAFETY: as above.
            assert_eq!(unsafe { callable(1, 2) }, 3);
        }
    }
}
