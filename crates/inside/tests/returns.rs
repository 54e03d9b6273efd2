//! Calls that are followed to their return, in the process of the test itself.

#![cfg(target_arch = "x86_64")]

mod common;
#[path = "returns/foreign.rs"]
mod foreign;

use common::sums::{SUM, call};
use common::{apart, ready, work};
use foreign::{do_all_sorts_of_things, foreign};
use std::arch::{asm, global_asm};
use std::ffi::{c_long, c_void};
use std::hint::black_box;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trapless_inside::{Error, Probe, Return};

#[inline(never)]
extern "C" fn product(a: f64, b: f64) -> f64 {
    black_box(black_box(a) * black_box(b))
}

#[inline(never)]
extern "C" fn depth(n: u64) -> u64 {
    if black_box(n) == 0 { 0 } else { black_box(black_box(depth as extern "C" fn(u64) -> u64)(n - 1) + 1) }
}

/// Counts returns.
fn counting(count: &Arc<AtomicU64>) -> impl Fn(&mut Return<'_>) + Send + Sync + 'static {
    let count = count.clone();
    move |_| _ = count.fetch_add(1, Ordering::Relaxed)
}

fn following(function: *const (), count: &Arc<AtomicU64>) -> Result<Probe, Error> {
    let handler = counting(count);
    ready().around_function(function, |_| (), move |returned, ()| handler(returned))
}

#[test]
fn each_return_is_seen_with_its_result_until_the_probe_is_dropped() {
    apart(|| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let probe = ready()
            .around_function(SUM, |call| call.arg::<u64>(0), {
                let seen = seen.clone();
                move |returned, first| {
                    assert_eq!(returned.function(), SUM);
                    seen.lock().unwrap().push((first, returned.value::<u64>()));
                }
            })
            .unwrap();
        for n in 0..500 {
            assert_eq!(call(n, 3), n + 3);
        }
        let expected: Vec<_> = (0..500).map(|n| (n, n + 3)).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!((probe.panics(), probe.missed(), probe.unwound()), (0, 0, 0));
        drop(probe);
        assert_eq!(call(1, 2), 3);
        assert_eq!(seen.lock().unwrap().len(), 500);
        assert_eq!(Arc::strong_count(&seen), 1);
    });
}

#[test]
fn results_and_errno_are_seen_and_changed() {
    apart(|| {
        let sums = ready().around_function(
            SUM,
            |_| (),
            |returned, ()| {
                let doubled = returned.value::<u64>() * 2;
                // SAFETY: whoever calls it takes any number.
                unsafe { returned.set_value(doubled) }
            },
        );
        let products = ready().around_function(
            product as *const (),
            |_| (),
            |returned, ()| {
                // SAFETY: as above.
                unsafe { returned.set_float(returned.float() + 1.0) }
            },
        );
        assert_eq!(call(20, 1), 42);
        assert_eq!(black_box(product as extern "C" fn(f64, f64) -> f64)(2.0, 3.0), 7.0);
        drop((sums.unwrap(), products.unwrap()));
        assert_eq!(call(20, 1), 21);

        let seen = Arc::new(AtomicI64::new(0));
        let told = seen.clone();
        let close = ready().on_return("libc.so*:close", move |returned| {
            told.store(returned.errno().into(), Ordering::Relaxed);
            // It fails, and leaves another number.
            drop(std::fs::File::open("/nowhere/at/all"));
        });
        // SAFETY: there is no such descriptor.
        let failed = || unsafe { libc::close(-1) };
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!((failed(), errno()), (-1, Some(libc::EBADF)));
        assert_eq!(seen.load(Ordering::Relaxed), libc::EBADF.into());
        drop(close.unwrap());
        let close = ready().on_return("libc.so*:close", |returned| returned.set_errno(libc::EINTR));
        assert_eq!((failed(), errno()), (-1, Some(libc::EINTR)));
        drop(close.unwrap());
        // The same at an entry, of a call that is skipped.
        let close = ready().on("libc.so*:close", |call| {
            drop(std::fs::File::open("/nowhere/at/all"));
            if call.arg::<i32>(0) == -2 {
                call.set_errno(libc::EIO);
                // SAFETY: nobody has that descriptor.
                unsafe { call.return_with(-1) };
            }
        });
        assert_eq!((failed(), errno()), (-1, Some(libc::EBADF)));
        // SAFETY: as above.
        assert_eq!((unsafe { libc::close(-2) }, errno()), (-1, Some(libc::EIO)));
        drop(close.unwrap());
    });
}

#[test]
fn calls_within_calls_and_on_many_threads_keep_their_own() {
    apart(|| {
        let (returned, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let numbers = ready().around_function(depth as *const (), |call| call.arg::<u64>(0), {
            let (returned, wrong) = (returned.clone(), wrong.clone());
            move |now, n| {
                wrong.fetch_add(u64::from(now.value::<u64>() != n), Ordering::Relaxed);
                returned.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Another one at the same function has its own.
        let times = ready().around_function(depth as *const (), |_| Instant::now(), {
            let wrong = wrong.clone();
            move |_, began| {
                let is_odd = Instant::now() < began || began.elapsed() > Duration::from_secs(3600);
                wrong.fetch_add(u64::from(is_odd), Ordering::Relaxed);
            }
        });
        let probes = [numbers.unwrap(), times.unwrap()];
        let recurses = black_box(depth as extern "C" fn(u64) -> u64);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let builder = std::thread::Builder::new().stack_size(8 << 20);
                builder.spawn(move || (0..20).for_each(|_| assert_eq!(recurses(2000), 2000))).unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((returned.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed)), (8 * 20 * 2001, 0));
        assert_eq!(probes[0].missed(), 0);
    });
}

/// More calls at a time than can be followed: those are told, and the others are whole.
#[test]
fn too_many_calls_at_a_time_are_told() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probe = following(depth as *const (), &count).unwrap();
        let recurses = black_box(depth as extern "C" fn(u64) -> u64);
        let deep = move || recurses(40_000);
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(deep).unwrap();
        assert_eq!(thread.join().unwrap(), 40_000);
        assert_eq!(count.load(Ordering::Relaxed) + probe.missed(), 40_001);
        assert!(probe.missed() > 7000, "{}", probe.missed());
        // All of them were given back.
        assert_eq!(recurses(100), 100);
        assert_eq!(count.load(Ordering::Relaxed) + probe.missed(), 40_102);
        assert!(count.load(Ordering::Relaxed) > 32_768);
    });
}

// A function that goes on in another, one that puts a number in every register which may have a result or be lost, and one that looks
// at them.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl returns_first",
    ".type returns_first, @function",
    "returns_first:",
    ".cfi_startproc",
    "add rdi, 1",
    "nop dword ptr [rax]",
    "jmp returns_second",
    ".cfi_endproc",
    ".size returns_first, . - returns_first",
    ".p2align 4",
    ".globl returns_second",
    ".type returns_second, @function",
    "returns_second:",
    ".cfi_startproc",
    "lea rax, [rdi + rdi]",
    "nop dword ptr [rax]",
    "ret",
    ".cfi_endproc",
    ".size returns_second, . - returns_second",
    ".p2align 4",
    ".globl returns_all",
    ".type returns_all, @function",
    "returns_all:",
    ".cfi_startproc",
    "mov eax, 0x1000",
    "mov ecx, 0x1001",
    "mov edx, 0x1002",
    "mov esi, 0x1006",
    "mov edi, 0x1007",
    "mov r8d, 0x1008",
    "mov r9d, 0x1009",
    "mov r10d, 0x100a",
    "mov r11d, 0x100b",
    "movq xmm0, rax",
    "movq xmm1, rcx",
    "movq xmm15, r11",
    "stc",
    "ret",
    ".cfi_endproc",
    ".size returns_all, . - returns_all",
);

unsafe extern "C" {
    fn returns_first(n: u64) -> u64;
    fn returns_second(n: u64) -> u64;
    fn returns_all();
}

#[test]
fn functions_that_go_on_in_each_other_return_one_after_the_other() {
    apart(|| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let at = |name: &'static str, function: *const ()| {
            let seen = seen.clone();
            let enter = |call: &mut trapless_inside::Call<'_>| call.arg::<u64>(0);
            ready().around_function(function, enter, move |returned, n| {
                seen.lock().unwrap().push((name, n, returned.value::<u64>()));
            })
        };
        let first = at("first", returns_first as *const ()).unwrap();
        let second = at("second", returns_second as *const ()).unwrap();
        // SAFETY: they take any number.
        assert_eq!(unsafe { returns_first(20) }, 42);
        assert_eq!(seen.lock().unwrap().split_off(0), [("second", 21, 42), ("first", 20, 42)]);
        drop(first);
        // SAFETY: as above.
        assert_eq!(unsafe { returns_first(20) }, 42);
        assert_eq!(seen.lock().unwrap().split_off(0), [("second", 21, 42)]);
        drop(second);
    });
}

#[test]
fn a_handler_at_a_return_changes_no_register() {
    apart(|| {
        let probe = ready().around_function(returns_all as *const (), |_| (), |_, ()| {
            // SAFETY: they are lost by declaration.
            unsafe { asm!("pxor xmm0, xmm0", "pxor xmm1, xmm1", "pxor xmm15, xmm15", "clc", out("xmm0") _, out("xmm1") _, out("xmm15") _) };
        });
        let probe = probe.unwrap();
        let mut general = [0u64; 9];
        let mut vectors = [0f64; 3];
        let carry: u8;
        // SAFETY: the function sets what is declared.
        unsafe {
            asm!(
                "call {function}", "setc {carry}",
                function = sym returns_all, carry = out(reg_byte) carry,
                out("rax") general[0], out("rcx") general[1], out("rdx") general[2], out("rsi") general[3], out("rdi") general[4],
                out("r8") general[5], out("r9") general[6], out("r10") general[7], out("r11") general[8],
                out("xmm0") vectors[0], out("xmm1") vectors[1], out("xmm15") vectors[2],
            );
        }
        let expected = [0x1000, 0x1001, 0x1002, 0x1006, 0x1007, 0x1008, 0x1009, 0x100a, 0x100b];
        assert_eq!((general, carry), (expected, 1));
        assert_eq!(vectors.map(f64::to_bits), [0x1000, 0x1001, 0x100b]);
        drop(probe);
    });
}

#[inline(never)]
fn panics(n: u64) -> u64 {
    assert!(black_box(n) != 3, "three");
    black_box(n) * 2
}

#[test]
fn panics_pass_and_are_counted_and_backtraces_see_the_callers() {
    #[inline(never)]
    fn outermost_of_all() -> String {
        #[inline(never)]
        extern "C" fn looks_around() -> *mut String {
            Box::into_raw(Box::new(black_box(std::backtrace::Backtrace::force_capture().to_string())))
        }
        let count = Arc::new(AtomicU64::new(0));
        let probe = following(looks_around as *const (), &count).unwrap();
        // SAFETY: it was made of a box.
        let seen = unsafe { *Box::from_raw(black_box(looks_around as extern "C" fn() -> *mut String)()) };
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(probe);
        black_box(seen)
    }
    apart(|| {
        let seen = outermost_of_all();
        assert!(seen.contains("outermost_of_all") && seen.contains("panics_pass_and_are_counted"), "{seen}");
        let count = Arc::new(AtomicU64::new(0));
        let probe = following(panics as *const (), &count).unwrap();
        let function = black_box(panics as fn(u64) -> u64);
        for n in 0..100 {
            let result = catch_unwind(|| function(n % 5));
            assert_eq!(result.ok(), (n % 5 != 3).then_some(n % 5 * 2));
        }
        assert_eq!((count.load(Ordering::Relaxed), probe.unwound()), (80, 20));
    });
}

#[test]
fn exceptions_of_cpp_pass_and_restore_what_callers_keep() {
    apart(|| {
        let Some(library) = foreign("exceptions", &[]) else { return };
        let calls = [
            ("catches", &[1, 2, 3, 4, -5][..]),
            ("catches", &[1, 2, 3, 4, 5]),
            ("catches_outer", &[-9]),
            ("catches_outer", &[9]),
            ("catches_tail", &[-50]),
        ];
        let all = || calls.map(|(name, arguments)| library.call(name, arguments));
        let bare = all();
        assert_eq!(bare[4], -57);
        let count = Arc::new(AtomicU64::new(0));
        let pattern = format!("{}:*", library.name);
        let probe = ready().on_return(&pattern, counting(&count)).unwrap();
        assert!(probe.functions() >= 10, "{probe:?} {:?}", probe.skipped());
        for round in 1..=1000 {
            let [caught, plain, outer, plainer, tail] = all();
            assert_eq!([caught, plain, plainer, tail], [bare[0], bare[1], bare[3], bare[4]]);
            // What was destroyed is counted on.
            assert_eq!(outer, bare[2] + 2 * round);
        }
        // Of each round: the three that throw leave five calls, and the others return.
        assert_eq!((probe.unwound(), probe.missed()), (5000, 0));
        assert_eq!(count.load(Ordering::Relaxed), 1000 * (5 + 3));
    });
}

#[test]
fn results_in_registers_of_the_x87_are_kept() {
    apart(|| {
        let Some(library) = foreign("doubles", &[]) else { return };
        let uses_all_of_them = |_: &mut Return<'_>, ()| {
            // SAFETY: eight numbers come and go.
            unsafe {
                asm!("fld1", "fld1", "fld1", "fld1", "fld1", "fld1", "fld1", "fld1");
                asm!(
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)",
                    "fstp st(0)"
                );
            }
        };
        let probe = ready().around_function(library.at("doubles"), |_| (), uses_all_of_them).unwrap();
        assert_eq!(library.call("doubles_well", &[1000]), 1000);
        drop(probe);
    });
}

/// A child of `vfork` that calls has the memory of a thread which is none of its own.
#[test]
fn children_of_vfork_take_no_record() {
    apart(|| {
        let Some(library) = foreign("vforks", &[]) else { return };
        let count = Arc::new(AtomicU64::new(0));
        let probe = following(library.at("plain"), &count).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(library.call("vforks", &[]), 3);
                assert_eq!((count.load(Ordering::Relaxed), probe.missed()), (0, 1));
                assert_eq!(library.call("plain", &[1]), 2);
                assert_eq!((count.load(Ordering::Relaxed), probe.missed()), (1, 1));
            });
        });
    });
}

/// The search for points that nobody gives back is nothing that the program sees.
#[test]
fn errno_stays_where_points_run_out() {
    #[inline(never)]
    extern "C" fn down(n: u64) -> u64 {
        if black_box(n) > 0 {
            return black_box(black_box(down as extern "C" fn(u64) -> u64)(n - 1) + 1);
        }
        // SAFETY: it is this thread's.
        unsafe { *libc::__errno_location() = 0 };
        assert_eq!(call(1, 2), 3);
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as u64
    }
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probes = [down as *const (), SUM].map(|function| following(function, &count).unwrap());
        let goes_down = || {
            (32_764..32_772).map(|depth| black_box(down as extern "C" fn(u64) -> u64)(depth) - depth).max()
        };
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(goes_down).unwrap();
        assert_eq!(thread.join().unwrap(), Some(0));
        drop(probes);
    });
}

#[test]
fn calls_that_are_left_by_jumps_are_given_back() {
    apart(|| {
        let Some(library) = foreign("jumps", &[]) else { return };
        let count = Arc::new(AtomicU64::new(0));
        let leaps = following(library.at("leaps"), &count).unwrap();
        let plain = following(SUM, &count).unwrap();
        assert_eq!(library.call("jumps", &[100_000]), 100_000);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        // At the same place on the stack only the last one looks as if it were under way.
        for n in 0..1000 {
            assert_eq!(call(n, 1), n + 1);
        }
        assert_eq!((count.load(Ordering::Relaxed), leaps.missed()), (1000, 0));
        drop((leaps, plain));
    });
}

#[test]
fn threads_end_within_calls() {
    apart(|| {
        let Some(library) = foreign("ends", &[]) else { return };
        let bare = library.call("ends_a_thread", &[]);
        assert_eq!(bare, 71);
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_return(&format!("{}:ends*", library.name), counting(&count)).unwrap();
        for _ in 0..200 {
            assert_eq!(library.call("ends_a_thread", &[]), bare);
        }
        // What starts a thread is called by nobody of ours; it is followed all the same, where it looks like a function.
        assert!(probe.unwound() >= 200, "{}", probe.unwound());
        assert_eq!((count.load(Ordering::Relaxed), probe.missed()), (200, 0));
    });
}

#[test]
fn stacks_go_on_in_other_threads() {
    apart(|| {
        let Some(library) = foreign("stacks", &[]) else { return };
        let seen = Arc::new(Mutex::new(Vec::new()));
        // SAFETY: the calls take nothing.
        let tid = || unsafe { libc::gettid() };
        let probe = ready().around_function(library.at("yields"), move |_| tid(), {
            let seen = seen.clone();
            move |returned, began| seen.lock().unwrap().push((returned.value::<c_long>(), began, tid()))
        });
        let probe = probe.unwrap();
        library.call("begins", &[]);
        let own = tid();
        let other =
            std::thread::scope(|scope| scope.spawn(|| (library.call("goes_on", &[]), tid())).join().unwrap());
        assert_eq!(other.0, 42);
        assert_eq!(*seen.lock().unwrap(), [(42, own, other.1)]);
        drop(probe);
    });
}

#[test]
fn what_follows_calls_stops_at_a_few_and_where_calls_are_skipped() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let all: Vec<Probe> = (0..4).map(|_| following(SUM, &count).unwrap()).collect();
        assert!(matches!(following(SUM, &count), Err(Error::Full(_))));
        assert_eq!(call(1, 2), 3);
        assert_eq!(count.load(Ordering::Relaxed), 4);
        // SAFETY: it is any number.
        let skips = ready().on_function(SUM, |call| unsafe { call.return_with(9) }).unwrap();
        assert_eq!(call(1, 2), 9);
        assert_eq!(count.load(Ordering::Relaxed), 4);
        drop((skips, all));
        let mut one = Some(following(SUM, &count).unwrap());
        assert_eq!(call(1, 2), 3);
        assert_eq!(count.load(Ordering::Relaxed), 5);
        drop(one.take());
    });
}

/// One that is put in while a call is under way is not told of its return; one that is taken out is not either.
#[test]
fn only_those_are_told_of_a_return_who_were_told_of_the_call() {
    static PROBES: Mutex<Vec<Probe>> = Mutex::new(Vec::new());
    #[inline(never)]
    extern "C" fn changes(which: u64) {
        if black_box(which) == 0 {
            PROBES.lock().unwrap().clear();
        }
        let late = ready().around_function(
            changes as *const (),
            |_| (),
            |_, ()| _ = LATE.fetch_add(1, Ordering::Relaxed),
        );
        PROBES.lock().unwrap().push(late.unwrap());
    }
    static LATE: AtomicU64 = AtomicU64::new(0);
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let function = black_box(changes as extern "C" fn(u64));
        PROBES.lock().unwrap().push(following(changes as *const (), &count).unwrap());
        // It is taken out, and the late one has its place.
        function(0);
        assert_eq!((count.load(Ordering::Relaxed), LATE.load(Ordering::Relaxed)), (0, 0));
        function(1);
        assert_eq!((count.load(Ordering::Relaxed), LATE.load(Ordering::Relaxed)), (0, 1));
        PROBES.lock().unwrap().clear();
    });
}

/// What calls go by is nothing that can be probed, and its name is no file's.
#[test]
fn points_are_left_alone() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probe = following(SUM, &count).unwrap();
        let found = ready().on("*memfd:trapless*:*", |_| {});
        assert!(matches!(found, Err(Error::Refused { .. } | Error::Find(_))), "{found:?}");
        let all = ready().on("*:*", |_| {});
        assert_eq!(call(1, 2), 3);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop((probe, all));
        extern "C" fn look(library: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> i32 {
            // SAFETY: the loader gives a string, and the caller a number.
            unsafe {
                let name = std::ffi::CStr::from_ptr((*library).dlpi_name).to_bytes();
                assert!(!name.starts_with(b"/proc/"), "{name:?}");
                *found.cast::<u32>() += u32::from(name == b"/memfd:trapless");
            }
            0
        }
        let mut found = 0u32;
        // SAFETY: the function looks at what it is given.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        assert_eq!(found, 1);
    });
}

#[test]
fn another_unwinder_is_refused() {
    for strips in [&[][..], &["-s"]] {
        apart(|| {
            let count = Arc::new(AtomicU64::new(0));
            drop(following(SUM, &count).unwrap());
            let flags = [&["-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL"], strips].concat();
            let Some(library) = foreign("unwinder", &flags) else { return };
            assert_eq!(library.call("catches_outer", &[-9]), -89);
            let refused = following(SUM, &count).unwrap_err();
            assert!(matches!(&refused, Error::Unwinder(why) if why.contains(&library.name)), "{refused}");
            // Entries need none.
            let probe = ready().on_function(library.at("passes"), |_| {}).unwrap();
            assert_eq!(library.call("catches_outer", &[-9]), -88);
            drop(probe);
        });
    }
}

/// All functions of the C library whose calls can be followed, while it is used for all sorts of things.
#[test]
fn all_of_the_c_library_is_followed_at_once() {
    apart(|| {
        let library = foreign("sorts", &[]);
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_return("libc.so*:*", counting(&count)).unwrap();
        assert!(probe.functions() > 1500, "{} functions; {:?}", probe.functions(), probe.skipped());
        let expected = do_all_sorts_of_things(library.as_ref());
        assert!(count.load(Ordering::Relaxed) > 1000);
        drop(probe);
        let after = count.load(Ordering::Relaxed);
        assert_eq!(work(11), expected);
        assert_eq!(count.load(Ordering::Relaxed), after);
    });
}

/// Probes go in and out while threads call, signals interrupt them, and their handlers call too.
#[test]
fn toggles_under_threads_that_signals_interrupt() {
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
        let (entered, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            let (says, hears) = std::sync::mpsc::channel();
            for n in 0..6 {
                let (stop, says) = (&stop, says.clone());
                scope.spawn(move || {
                    // SAFETY: the call takes nothing.
                    says.send(unsafe { libc::pthread_self() }).unwrap();
                    let mut calls = n;
                    while !stop.load(Ordering::Relaxed) {
                        calls += 1;
                        if call(calls, n) != calls + n {
                            WRONG.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let threads: Vec<_> = hears.iter().take(6).collect();
            for round in 0..rounds {
                let probe = ready().around_function(
                    SUM,
                    {
                        let entered = entered.clone();
                        move |call| {
                            entered.fetch_add(1, Ordering::Relaxed);
                            call.arg::<u64>(0) ^ round
                        }
                    },
                    {
                        let left = left.clone();
                        move |returned, kept| {
                            left.fetch_add(1, Ordering::Relaxed);
                            // What is added is small.
                            let is_own = returned.value::<u64>().wrapping_sub(kept ^ round) < 7;
                            WRONG.fetch_add(u64::from(!is_own), Ordering::Relaxed);
                        }
                    },
                );
                // SAFETY: the threads run until they are told to stop.
                threads.iter().for_each(|thread| _ = unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) });
                drop(probe.unwrap());
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(WRONG.load(Ordering::Relaxed), 0);
        assert!(IN_HANDLERS.load(Ordering::Relaxed) > 0);
        let [entered, left] = [entered, left].map(|count| count.load(Ordering::Relaxed));
        assert!(entered >= left && left > 0, "{entered} {left}");
    });
}
