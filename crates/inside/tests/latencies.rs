//! Calls that are timed in the process of the test itself, without a handler.

#![cfg(target_arch = "x86_64")]

mod common;
#[path = "returns/foreign.rs"]
mod foreign;

use common::sums::{SUM, bytes_of, call};
use common::{apart, ready, use_the_c_library, work};
use foreign::{do_all_sorts_of_things, foreign};
use std::arch::global_asm;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use trapless_inside::{Error, Latency, LatencySummary};

/// How long anything may take before it is a hang.
const PATIENCE: Duration = Duration::from_secs(300);

#[inline(never)]
extern "C" fn product(a: u64, b: u64) -> u64 {
    black_box(black_box(a).wrapping_mul(black_box(b)))
}

type One = extern "C" fn(u64) -> u64;

#[inline(never)]
extern "C" fn depth(n: u64) -> u64 {
    if black_box(n) == 0 { 0 } else { black_box(black_box(depth as One)(n - 1) + 1) }
}

#[inline(never)]
extern "C" fn sleeps(milliseconds: u64) -> u64 {
    std::thread::sleep(Duration::from_millis(black_box(milliseconds)));
    milliseconds
}

fn call_often(times: u64) {
    (0..times).for_each(|n| assert_eq!(call(n, 3), n + 3));
}

fn in_buckets(times: &LatencySummary) -> u64 {
    times.buckets.iter().map(|bucket| bucket.count).sum()
}

/// How many calls have returned and were lost.
fn seen(latency: &Latency) -> (u64, u64) {
    (latency.calls(), latency.lost())
}

#[test]
fn calls_are_timed_from_then_on_until_it_is_dropped() {
    apart(|| {
        let before = bytes_of(SUM);
        let first = ready().latency_function(SUM).unwrap();
        assert_eq!((first.functions(), first.skipped().len(), seen(&first)), (1, 0, (0, 0)));
        assert_eq!(first.times(), LatencySummary::default());
        assert_ne!(bytes_of(SUM), before);
        call_often(1000);
        // Another one begins at 0.
        let second = ready().latency_function(SUM).unwrap();
        call_often(10);
        assert_eq!([first.calls(), second.calls()], [1010, 10]);
        let by_function: Vec<_> = second.by_function().collect();
        let [(name, times)] = &by_function[..] else { panic!("{by_function:?}") };
        assert!(name.ends_with("sum") && (times.calls, times.lost) == (10, 0), "{by_function:?}");
        assert_eq!((in_buckets(&times.times), second.times_of(1)), (10, None));
        drop(first);
        call_often(5);
        assert_eq!(second.calls(), 15);
        drop(second);
        assert_eq!(bytes_of(SUM), before);
        call_often(7);
        let third = ready().latency_function(SUM).unwrap();
        call_often(1);
        assert_eq!((seen(&third), in_buckets(&third.times())), ((1, 0), 1));
        let times = third.times();
        assert!(times.p50 <= times.max && times.p999 <= times.max, "{times:?}");
    });
}

#[test]
fn a_call_is_in_the_bucket_of_its_time() {
    apart(|| {
        let latency = ready().latency_function(sleeps as *const ()).unwrap();
        assert_eq!(black_box(sleeps as One)(20), 20);
        let times = latency.times();
        let [bucket] = times.buckets[..] else { panic!("{times:?}") };
        // The rate was measured over little more than that.
        assert!(bucket.count == 1 && bucket.high > 19_000_000 && times.max > 18_000_000, "{times:?}");
    });
}

#[test]
fn calls_of_many_threads_are_all_there() {
    apart(|| {
        let latency = ready().latency_function(SUM).unwrap();
        const THREADS: u64 = 16;
        const CALLS: u64 = 20_000;
        std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(|| call_often(CALLS))));
        assert_eq!((seen(&latency), latency.unwound()), ((THREADS * CALLS, 0), 0));
        assert_eq!(in_buckets(&latency.times()), THREADS * CALLS);
    });
}

#[test]
fn calls_of_more_threads_than_have_a_place_are_told() {
    apart(|| {
        let latency = ready().latency_function(SUM).unwrap();
        const THREADS: usize = 1100;
        const CALLS: u64 = 200;
        let all = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let all = all.clone();
                let work = move || {
                    all.wait();
                    call_often(CALLS);
                    all.wait();
                };
                std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (calls, lost) = seen(&latency);
        assert_eq!(calls + lost, THREADS as u64 * CALLS);
        // All but the first block are threads' own.
        assert_eq!(calls, 1023 * CALLS);
    });
}

#[test]
fn calls_within_calls_are_each_there() {
    apart(|| {
        let latency = ready().latency_function(depth as *const ()).unwrap();
        let down = |n| assert_eq!(black_box(depth as One)(n), n);
        down(100);
        assert_eq!(seen(&latency), (101, 0));
        let deep = std::thread::Builder::new().stack_size(48 << 20);
        deep.spawn(move || down(300_000)).unwrap().join().unwrap();
        assert_eq!(seen(&latency), (101 + 300_001, 0));
    });
}

global_asm!(
    ".pushsection .text.latency_tails, \"ax\", @progbits",
    ".type tails_first, @function",
    ".globl tails_first",
    "tails_first:",
    ".cfi_startproc",
    "mov rax, rdi",
    "add rdi, 1",
    "nop",
    "jmp tails_second",
    ".cfi_endproc",
    ".size tails_first, . - tails_first",
    ".type tails_second, @function",
    ".globl tails_second",
    "tails_second:",
    ".cfi_startproc",
    "lea rdi, [rdi + rdi]",
    "nop",
    "jmp tails_third",
    ".cfi_endproc",
    ".size tails_second, . - tails_second",
    ".type tails_third, @function",
    ".globl tails_third",
    "tails_third:",
    ".cfi_startproc",
    "mov rax, rdi",
    "nop dword ptr [rax + rax]",
    "ret",
    ".cfi_endproc",
    ".size tails_third, . - tails_third",
    ".popsection",
);

unsafe extern "C" {
    fn tails_first(n: u64) -> u64;
    fn tails_second(n: u64) -> u64;
    fn tails_third(n: u64) -> u64;
}

/// All sorts of probes at functions that go on in each other by jumps. What a detour has put on the stack is no place for a handler's point.
#[test]
fn functions_that_go_on_in_each_other_return_whatever_else_is_there() {
    apart(|| {
        let functions = [tails_first, tails_second, tails_third].map(|function| function as *const ());
        let go = || {
            for n in 0..50 {
                let first = black_box(tails_first as unsafe extern "C" fn(u64) -> u64);
                // SAFETY: it takes any number.
                assert_eq!(unsafe { first(n) }, 2 * n + 2);
            }
        };
        for timed in 0..8u32 {
            for heard in 0..8u32 {
                let returned = Arc::new(AtomicU64::new(0));
                let chosen = |set: u32| (0..3).filter(move |n| set >> n & 1 != 0);
                let handlers: Vec<_> = chosen(heard)
                    .map(|n| {
                        let returned = returned.clone();
                        let leave = move |_: &mut trapless_inside::Return<'_>, ()| {
                            _ = returned.fetch_add(1, Ordering::Relaxed)
                        };
                        ready().around_function(functions[n], |_| (), leave).unwrap()
                    })
                    .collect();
                let missed = handlers.first().map_or(0, |probe| probe.missed());
                let timers: Vec<_> =
                    chosen(timed).map(|n| ready().latency_function(functions[n]).unwrap()).collect();
                go();
                timers.iter().for_each(|latency| assert_eq!(seen(latency), (50, 0), "{timed} {heard}"));
                let missed = handlers.first().map_or(0, |probe| probe.missed()) - missed;
                let returned = returned.load(Ordering::Relaxed);
                assert_eq!(returned + missed, 50 * u64::from(heard.count_ones()), "{timed} {heard}");
                // Only those are missed that a timed function has gone on in.
                let behind = |n: &usize| timed & ((1 << n) - 1) != 0;
                assert_eq!(missed, 50 * chosen(heard).filter(behind).count() as u64, "{timed} {heard}");
                // In either order they are taken out.
                if heard % 2 == 0 {
                    drop(handlers);
                    go();
                    timers.iter().for_each(|latency| assert_eq!(seen(latency), (100, 0)));
                } else {
                    drop(timers);
                    go();
                }
            }
        }
    });
}

#[inline(never)]
fn panics(n: u64) -> u64 {
    if black_box(n) == 3 {
        // Without the hook, which would say it.
        std::panic::resume_unwind(Box::new(n));
    }
    black_box(n) * 2
}

#[inline(never)]
fn catches(n: u64) -> u64 {
    catch_unwind(|| black_box(panics as fn(u64) -> u64)(n)).unwrap_or(100) + 1
}

#[test]
fn panics_pass_and_are_counted_and_backtraces_see_the_callers() {
    #[inline(never)]
    fn outermost_of_all() -> String {
        #[inline(never)]
        extern "C" fn looks_around() -> *mut String {
            Box::into_raw(Box::new(black_box(std::backtrace::Backtrace::force_capture().to_string())))
        }
        let latency = ready().latency_function(looks_around as *const ()).unwrap();
        // SAFETY: it was made of a box.
        let seen_there =
            unsafe { *Box::from_raw(black_box(looks_around as extern "C" fn() -> *mut String)()) };
        assert_eq!(seen(&latency), (1, 0));
        black_box(seen_there)
    }
    apart(|| {
        let seen_there = outermost_of_all();
        for name in ["looks_around", "outermost_of_all", "panics_pass_and_are_counted"] {
            assert!(seen_there.contains(name), "{name}: {seen_there}");
        }
        let inner = ready().latency_function(panics as *const ()).unwrap();
        let outer = ready().latency_function(catches as *const ()).unwrap();
        for n in 0..100 {
            let result = black_box(catches as fn(u64) -> u64)(n % 5);
            assert_eq!(result, if n % 5 == 3 { 101 } else { n % 5 * 2 + 1 });
        }
        assert_eq!((seen(&inner), seen(&outer)), ((80, 0), (100, 0)));
        assert_eq!(inner.unwound(), 20);
    });
}

#[test]
fn exceptions_of_cpp_pass_and_restore_what_callers_keep() {
    apart(|| {
        let Some(library) = foreign("latency-exceptions", &[]) else { return };
        let calls = [
            ("catches", &[1, 2, 3, 4, -5][..]),
            ("catches", &[1, 2, 3, 4, 5]),
            ("catches_outer", &[-9]),
            ("catches_outer", &[9]),
            ("catches_tail", &[-50]),
        ];
        let all = || calls.map(|(name, arguments)| library.call(name, arguments));
        let bare = all();
        let pattern = format!("{}:*", library.name);
        let latency = ready().latency(&pattern).unwrap();
        assert!(latency.functions() >= 10, "{latency:?} {:?}", latency.skipped());
        let check = |round: i64| {
            let [caught, plain, outer, plainer, tail] = all();
            assert_eq!([caught, plain, plainer, tail], [bare[0], bare[1], bare[3], bare[4]]);
            assert_eq!(outer, bare[2] + 2 * round);
        };
        (1..=1000).for_each(check);
        // As with handlers at returns.
        assert_eq!((latency.unwound(), latency.calls(), latency.lost()), (5000, 1000 * (5 + 3), 0));
        // And together with them.
        let returned = Arc::new(AtomicU64::new(0));
        let leave = {
            let returned = returned.clone();
            move |_: &mut trapless_inside::Return<'_>| _ = returned.fetch_add(1, Ordering::Relaxed)
        };
        let probe = ready().on_return(&pattern, leave).unwrap();
        // Each round leaves five points behind, and there are 32,768.
        (1001..=10_000).for_each(check);
        assert_eq!((latency.calls(), latency.lost()), (10_000 * (5 + 3), 0));
        // But that of the function which another one goes on in: what that has put on the stack is not to be taken for a place to go back to.
        let seen_there = returned.load(Ordering::Relaxed) + probe.missed();
        assert!(seen_there >= 9000 * (5 + 3), "{seen_there}");
        assert!(returned.load(Ordering::Relaxed) >= 9000 * (5 + 3), "{probe:?} missed {}", probe.missed());
        drop(latency);
        (10_001..=10_100).for_each(check);
        drop(probe);
        (10_101..=10_200).for_each(check);
    });
}

/// A library that has its own unwinder asks the C library as all do.
#[test]
fn another_unwinder_is_told_as_well() {
    apart(|| {
        let flags = ["-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL"];
        let Some(library) = foreign("latency-unwinder", &flags) else { return };
        let pattern = format!("{}:*", library.name);
        let names = ["thrower", "passes", "catches_outer", "catches", "tails", "catches_tail"];
        let all = || {
            assert_eq!(library.call("catches_tail", &[-50]), -57);
            library.call("catches_outer", &[-9])
        };
        let bare = all();
        let timers: Vec<_> =
            names.iter().map(|name| ready().latency_function(library.at(name)).unwrap()).collect();
        for round in 1..=1000 {
            assert_eq!(all(), bare + round, "{pattern}");
        }
        assert_eq!(seen(&timers[2]), (1000, 0));
    });
}

#[test]
fn calls_that_are_left_by_jumps_are_forgotten() {
    apart(|| {
        let Some(library) = foreign("latency-jumps", &[]) else { return };
        let leaps = ready().latency_function(library.at("leaps")).unwrap();
        let plain = ready().latency_function(SUM).unwrap();
        assert_eq!(library.call("jumps", &[100_000]), 100_000);
        assert_eq!(seen(&leaps), (0, 0));
        call_often(1000);
        assert_eq!(seen(&plain), (1000, 0));
    });
}

#[test]
fn threads_end_within_calls() {
    apart(|| {
        let Some(library) = foreign("latency-ends", &[]) else { return };
        assert_eq!(library.call("ends_a_thread", &[]), 71);
        let latency = ready().latency(&format!("{}:ends*", library.name)).unwrap();
        for _ in 0..200 {
            assert_eq!(library.call("ends_a_thread", &[]), 71);
        }
        // Of what starts a thread, and of what ends it, no call returns.
        assert_eq!(seen(&latency), (200, 0));
    });
}

#[test]
fn stacks_go_on_in_other_threads() {
    apart(|| {
        let Some(library) = foreign("latency-stacks", &[]) else { return };
        let latency = ready().latency_function(library.at("yields")).unwrap();
        library.call("begins", &[]);
        assert_eq!(seen(&latency), (0, 0));
        let other = std::thread::scope(|scope| scope.spawn(|| library.call("goes_on", &[])).join().unwrap());
        assert_eq!((other, seen(&latency)), (42, (1, 0)));
    });
}

#[test]
fn children_of_vfork_count_as_their_parent() {
    apart(|| {
        let Some(library) = foreign("latency-vforks", &[]) else { return };
        let latency = ready().latency_function(library.at("plain")).unwrap();
        assert_eq!(library.call("vforks", &[]), 3);
        assert_eq!(library.call("plain", &[1]), 2);
        assert_eq!(seen(&latency), (2, 0));
    });
}

#[inline(never)]
extern "C" fn forks(n: u64) -> u64 {
    // SAFETY: the child does what a forked child may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        return black_box(n) + 1;
    }
    let mut status = 0;
    // SAFETY: the call writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    n
}

#[test]
fn parent_and_child_both_return_from_a_call_that_forks() {
    apart(|| {
        let latency = ready().latency_function(forks as *const ()).unwrap();
        let sum = ready().latency_function(SUM).unwrap();
        call_often(10);
        if black_box(forks as One)(5) == 6 {
            call_often(11);
            let threads = std::thread::spawn(|| call_often(20)).join().is_ok();
            let right = threads && seen(&latency) == (1, 0) && seen(&sum) == (41, 0);
            // SAFETY: it takes an integer.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        call_often(1);
        assert_eq!((seen(&latency), seen(&sum)), ((1, 0), (11, 0)));
    });
}

static MAY_GO_ON: AtomicBool = AtomicBool::new(false);

#[inline(never)]
extern "C" fn waits(n: u64) -> u64 {
    while !MAY_GO_ON.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    black_box(n)
}

#[test]
fn calls_under_way_return_after_it_was_dropped_and_those_before_it_are_not_counted() {
    apart(|| {
        let begin = |n: u64| {
            let began = Arc::new(Barrier::new(2));
            let begins = began.clone();
            let thread = std::thread::spawn(move || {
                begins.wait();
                black_box(waits as One)(n)
            });
            began.wait();
            std::thread::sleep(Duration::from_millis(50));
            thread
        };
        let earlier = begin(1);
        let before = bytes_of(waits as *const ());
        let latency = ready().latency_function(waits as *const ()).unwrap();
        let timed = begin(2);
        drop(latency);
        assert_eq!(bytes_of(waits as *const ()), before);
        MAY_GO_ON.store(true, Ordering::Relaxed);
        assert_eq!([earlier, timed].map(|thread| thread.join().unwrap()), [1, 2]);
        let latency = ready().latency_function(waits as *const ()).unwrap();
        assert_eq!(black_box(waits as One)(3), 3);
        assert_eq!(seen(&latency), (1, 0));
    });
}

#[test]
fn all_that_can_be_at_a_function_is_there_together() {
    apart(|| {
        let count = ready().count_function(SUM).unwrap();
        let latency = ready().latency_function(SUM).unwrap();
        call_often(10);
        assert_eq!((count.calls(), seen(&latency)), (10, (10, 0)));
        let heard = Arc::new(Mutex::new((0u64, 0u64)));
        let probe = ready()
            .around_function(
                SUM,
                {
                    let heard = heard.clone();
                    move |call: &mut trapless_inside::Call<'_>| {
                        heard.lock().unwrap().0 += 1;
                        if call.arg::<u64>(0) == 77 {
                            // SAFETY: the caller takes any number.
                            unsafe { call.return_with(5u64) };
                        }
                    }
                },
                {
                    let heard = heard.clone();
                    move |_, ()| heard.lock().unwrap().1 += 1
                },
            )
            .unwrap();
        call_often(10);
        assert_eq!((count.calls(), seen(&latency), *heard.lock().unwrap()), (20, (20, 0), (10, 10)));
        // A call that is skipped is one, and has no time.
        assert_eq!(call(77, 1), 5);
        assert_eq!((count.calls(), seen(&latency), *heard.lock().unwrap()), (21, (20, 0), (11, 10)));
        // SAFETY: both are alike.
        let replacement = unsafe { ready().replace(SUM, product as *const ()) }.unwrap();
        assert_eq!(call(6, 7), 42);
        assert_eq!((count.calls(), seen(&latency), *heard.lock().unwrap()), (22, (20, 1), (12, 11)));
        drop(probe);
        assert_eq!(call(6, 7), 42);
        assert_eq!((count.calls(), seen(&latency)), (23, (20, 2)));
        drop(replacement);
        call_often(10);
        assert_eq!((count.calls(), seen(&latency)), (33, (30, 2)));
        drop(count);
        call_often(10);
        assert_eq!(seen(&latency), (40, 2));
        let count = ready().count_function(SUM).unwrap();
        drop(latency);
        call_often(10);
        assert_eq!(count.calls(), 10);
    });
}

#[inline(never)]
fn looks_around_here() -> String {
    black_box(std::backtrace::Backtrace::force_capture().to_string())
}

#[test]
fn what_unwinders_ask_can_be_probed_itself() {
    apart(|| {
        let latency = ready().latency_function(panics as *const ()).unwrap();
        let count = ready().count("libc.so*:dl_iterate_phdr").unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let probe = ready().on("libc.so*:dl_iterate_phdr", {
            let heard = heard.clone();
            move |_| _ = heard.fetch_add(1, Ordering::Relaxed)
        });
        let probe = probe.unwrap();
        let text = black_box(looks_around_here as fn() -> String)();
        assert!(text.contains("looks_around_here") && text.contains("apart"), "{text}");
        assert!(catch_unwind(|| black_box(panics as fn(u64) -> u64)(3)).is_err());
        extern "C" fn ends(_: *mut libc::dl_phdr_info, _: usize, _: *mut std::ffi::c_void) -> i32 {
            1
        }
        // SAFETY: the function looks at nothing.
        assert_eq!(unsafe { libc::dl_iterate_phdr(Some(ends), std::ptr::null_mut()) }, 1);
        assert!(count.calls() >= 1);
        let heard = heard.load(Ordering::Relaxed);
        assert_eq!(heard, count.calls());
        drop((probe, count));
        assert!(catch_unwind(|| black_box(panics as fn(u64) -> u64)(3)).is_err());
        assert_eq!(latency.unwound(), 2);
    });
}

/// As by the heaps and stacks of many threads.
fn crowd_below(function: *const ()) {
    const PAGE: u64 = 4096;
    let lowest = (function.addr() as u64 - 0x3400_0000 - PAGE) & !(PAGE - 1);
    for at in (lowest..lowest + 0x100_0000 + 4 * PAGE).step_by(PAGE as usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let place = std::ptr::without_provenance_mut(at as usize);
        // SAFETY: nothing that is mapped is replaced.
        unsafe { libc::mmap(place, PAGE as usize, libc::PROT_NONE, flags, -1, 0) };
    }
}

#[test]
fn unwinders_are_told_where_no_address_suits_a_jump_in_what_they_ask() {
    apart(|| {
        crowd_below(libc::dl_iterate_phdr as *const ());
        let latency = ready().latency_function(panics as *const ()).unwrap();
        assert!(catch_unwind(|| black_box(panics as fn(u64) -> u64)(3)).is_err());
        let text = black_box(looks_around_here as fn() -> String)();
        assert!(text.contains("looks_around_here") && text.contains("apart"), "{text}");
        assert_eq!((seen(&latency), latency.unwound()), ((0, 0), 1));
    });
}

#[test]
fn functions_whose_calls_cannot_be_followed_are_refused() {
    apart(|| {
        for name in ["setjmp", "_setjmp", "vfork", "getcontext", "swapcontext", "longjmp", "makecontext"] {
            match ready().latency(&format!("libc.so*:{name}")) {
                Err(Error::Refused { reason, .. }) => assert!(!reason.is_empty(), "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(ready().latency("libc.so*:no_such_function").is_err());
        assert!(ready().latency("nothing").is_err());
        assert!(matches!(ready().latency_function(std::ptr::null()), Err(Error::Nowhere(0))));
        // SAFETY: the calls take integers.
        unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) };
        let refused = ready().latency_function(SUM);
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) };
        assert!(matches!(refused, Err(Error::Clock)), "{refused:?}");
        assert!(ready().latency_function(SUM).is_ok());
    });
}

#[test]
fn the_allocator_can_be_timed() {
    apart(|| {
        let latency = ready().latency("libc.so*:malloc");
        let (malloc, free) = (latency.unwrap(), ready().latency("libc.so*:free").unwrap());
        let before = (malloc.calls(), free.calls());
        let threads: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(|| {
                    (0..10_000).for_each(|n| {
                        // SAFETY: it is freed once.
                        unsafe { libc::free(black_box(libc::malloc(black_box(n % 5000)))) }
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        use_the_c_library();
        assert!(malloc.calls() - before.0 >= 80_000 && free.calls() - before.1 >= 80_000);
        assert_eq!((malloc.lost(), free.lost()), (0, 0));
    });
}

/// All functions of the C library whose calls can be followed, while it is used for all sorts of things.
#[test]
fn all_of_the_c_library_is_timed_at_once() {
    apart(|| {
        let library = foreign("latency-sorts", &[]);
        let latency = ready().latency("libc.so*:*").unwrap();
        assert!(latency.functions() > 1500, "{} functions; {:?}", latency.functions(), latency.skipped());
        let expected = do_all_sorts_of_things(library.as_ref());
        assert!(latency.calls() > 1000);
        let probe = ready().on_return("libc.so*:*", |_| {}).unwrap();
        assert_eq!(use_the_c_library(), expected);
        drop(latency);
        assert_eq!(use_the_c_library(), expected);
        drop(probe);
        assert_eq!(work(11), expected);
    });
}

unsafe extern "C" {
    fn backtrace(buffer: *mut *mut std::ffi::c_void, size: i32) -> i32;
}

#[inline(never)]
extern "C" fn works_below(n: u64) -> u64 {
    if black_box(n) == 0 {
        return (0..1000).fold(0, |all, _| black_box(all));
    }
    black_box(black_box(works_below as One)(n - 1) + 1)
}

/// Walks of handlers of signals, wherever those interrupt: in the program, in detours, and in what returns from there.
#[test]
fn handlers_of_signals_walk_the_stack_at_any_moment() {
    static WALKS: AtomicU64 = AtomicU64::new(0);
    static WHOLE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_signal(_: i32) {
        let mut frames = [std::ptr::null_mut(); 64];
        // SAFETY: there is room for so many.
        let count = unsafe { backtrace(frames.as_mut_ptr(), 64) };
        assert!(count > 0);
        WALKS.fetch_add(1, Ordering::Relaxed);
        // It ends where no table knows the code that was interrupted, or goes on to where the thread began.
        WHOLE.fetch_add(u64::from(count > 24), Ordering::Relaxed);
    }
    apart(|| {
        // SAFETY: there is room for one; the handler is one of signals; the call takes what it is given.
        unsafe {
            let mut first = std::ptr::null_mut();
            backtrace(&raw mut first, 1);
            libc::signal(libc::SIGPROF, on_signal as *const () as usize);
        }
        let timers =
            [works_below as *const (), SUM].map(|function| ready().latency_function(function).unwrap());
        let interval = libc::timeval { tv_sec: 0, tv_usec: 200 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: as above.
        unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
        let start = std::time::Instant::now();
        let mut calls = 0;
        while WALKS.load(Ordering::Relaxed) < 200 && start.elapsed() < PATIENCE {
            for n in 0..100 {
                assert_eq!(black_box(works_below as One)(20), 20);
                assert_eq!(call(n, 1), n + 1);
                calls += 1;
            }
        }
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let timer = libc::itimerval { it_interval: none, it_value: none };
        // SAFETY: as above.
        unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
        let walks = [&WALKS, &WHOLE].map(|walks| walks.load(Ordering::Relaxed));
        assert!(walks[0] >= 200 && walks[1] > walks[0] / 10, "{walks:?}");
        assert_eq!(timers.each_ref().map(seen), [(21 * calls, 0), (calls, 0)]);
    });
}

/// Kilobytes that the process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// It goes in and out while threads call, signals interrupt them, and their handlers call too and look at their stack.
#[test]
fn toggles_under_threads_that_signals_interrupt_lose_nothing_and_take_no_memory() {
    let rounds: u64 = trapless_testing::asked("TRAPLESS_TOGGLES", 500);
    extern "C" fn on_signal(_: i32) {
        let right = call(5, 6) == 11;
        IN_HANDLERS.fetch_add(u64::from(right), Ordering::Relaxed);
        WRONG.fetch_add(u64::from(!right), Ordering::Relaxed);
    }
    static IN_HANDLERS: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    apart(|| {
        // SAFETY: the handler calls a function that does nothing unusual.
        unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
        let stop = AtomicBool::new(false);
        let calls = AtomicU64::new(0);
        let count = ready().count_function(SUM).unwrap();
        // Once unwinders are told, they stay so: where there are many threads, there may be no room for it.
        drop(ready().latency_function(panics as *const ()).unwrap());
        let (mut timed, mut grown) = (0, 0);
        std::thread::scope(|scope| {
            let (says, hears) = std::sync::mpsc::channel();
            for n in 0..8 {
                let (stop, calls, says) = (&stop, &calls, says.clone());
                scope.spawn(move || {
                    // SAFETY: the call takes nothing.
                    says.send(unsafe { libc::pthread_self() }).unwrap();
                    let mut own = 0;
                    while !stop.load(Ordering::Relaxed) {
                        own += 1;
                        let right = match own % 64 {
                            0 => black_box(catches as fn(u64) -> u64)(3) == 101,
                            _ => call(own, n) == own + n,
                        };
                        calls.fetch_add(u64::from(own % 64 != 0), Ordering::Relaxed);
                        WRONG.fetch_add(u64::from(!right), Ordering::Relaxed);
                    }
                });
            }
            let threads: Vec<_> = hears.iter().take(8).collect();
            let mut at_first = 0;
            for round in 0..rounds {
                let latency = ready().latency_function(SUM).unwrap();
                let other = (round % 2 == 0).then(|| ready().latency_function(panics as *const ()).unwrap());
                // SAFETY: the threads run until they are told to stop.
                threads.iter().for_each(|thread| _ = unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) });
                timed += latency.calls();
                drop((latency, other));
                if round == rounds / 2 {
                    at_first = resident();
                }
            }
            grown = resident().saturating_sub(at_first);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(WRONG.load(Ordering::Relaxed), 0);
        let all = calls.load(Ordering::Relaxed) + IN_HANDLERS.load(Ordering::Relaxed);
        assert_eq!(count.calls(), all);
        assert!(timed > 0 && timed <= all, "{timed} of {all}");
        assert!(grown < 4096, "{grown} KB more");
    });
}
