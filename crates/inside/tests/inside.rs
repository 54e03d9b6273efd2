//! Probes in the process of the test itself. Each test has a process of its own, since handlers of signals and masks are a process's.

#![cfg(target_arch = "x86_64")]

mod common;

use common::sums::{SUM, Two, bytes_of, call};
use common::{apart, ready, use_the_c_library, work};
use std::arch::{asm, global_asm};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trapless_inside::{Call, Error, Probe, inside};

#[inline(never)]
extern "C" fn many(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> u64 {
    black_box(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h)
}

#[inline(never)]
extern "C" fn product(a: f64, b: f64) -> f64 {
    black_box(black_box(a) * black_box(b))
}

#[inline(never)]
extern "C" fn difference(a: u64, b: u64) -> u64 {
    black_box(black_box(a).wrapping_sub(black_box(b)))
}

fn callable(at: *const ()) -> Two {
    // SAFETY: only given functions of this kind.
    unsafe { std::mem::transmute(at) }
}

fn counting(count: &Arc<AtomicU64>) -> impl Fn(&mut Call<'_>) + Send + Sync + 'static {
    let count = count.clone();
    move |_| _ = count.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn a_handler_is_called_at_each_call_until_it_is_dropped() {
    apart(|| {
        let before = bytes_of(SUM);
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(SUM, counting(&count)).unwrap();
        assert_eq!((probe.functions(), probe.skipped().len()), (1, 0));
        assert_ne!(bytes_of(SUM), before);
        for n in 0..1000 {
            assert_eq!(call(n, 3), n + 3);
        }
        assert_eq!(count.load(Ordering::Relaxed), 1000);
        drop(probe);
        assert_eq!(bytes_of(SUM), before);
        assert_eq!(call(1, 2), 3);
        assert_eq!(count.load(Ordering::Relaxed), 1000);
        // What the handler has is dropped with it.
        assert_eq!(Arc::strong_count(&count), 1);
    });
}

#[test]
fn arguments_of_all_kinds_are_seen_and_changed() {
    apart(|| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let probe = ready().on_function(many as *const (), {
            let seen = seen.clone();
            move |call| {
                seen.lock().unwrap().extend((0..8).map(|number| call.arg::<u64>(number)));
                assert_eq!(call.function(), many as *const ());
                // SAFETY: it adds numbers up.
                unsafe {
                    call.set_arg(1, 0u64);
                    call.set_arg(7, 100u64);
                }
            }
        });
        let result = black_box(many as extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64) -> u64)(
            1, 2, 3, 4, 5, 6, 7, 8,
        );
        assert_eq!(result, (1..=7).map(|n| n * n).sum::<u64>() - 4 + 800);
        assert_eq!(*seen.lock().unwrap(), (1..=8).collect::<Vec<u64>>());
        drop(probe);
        let probe = ready().on_function(product as *const (), |call| {
            let (a, b) = (call.float(0), call.float(1));
            assert_eq!((a, b), (1.5, 4.0));
            // SAFETY: it multiplies numbers.
            unsafe { call.set_float(1, b + 1.0) };
        });
        let product = black_box(product as extern "C" fn(f64, f64) -> f64);
        assert_eq!(product(1.5, 4.0), 7.5);
        drop(probe);
        assert_eq!(product(1.5, 4.0), 6.0);
    });
}

#[test]
fn a_call_can_be_skipped_with_a_result() {
    apart(|| {
        let probe = ready().on_function(SUM, |call| {
            if call.arg::<u64>(0) % 2 == 1 {
                // SAFETY: its callers take any number.
                unsafe { call.return_with(7u64) };
                assert!(call.is_skipped());
            }
        });
        assert_eq!([call(0, 1), call(1, 1), call(2, 1), call(3, 1)], [1, 7, 3, 7]);
        drop(probe);
        // SAFETY: as above.
        let probe = ready().on_function(product as *const (), |call| unsafe { call.return_with_float(0.25) });
        assert_eq!(black_box(product as extern "C" fn(f64, f64) -> f64)(3.0, 3.0), 0.25);
        drop(probe);
    });
}

#[test]
fn several_handlers_at_a_function_are_called_in_their_order() {
    apart(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let on = |number: u32| {
            let order = order.clone();
            ready().on_function(SUM, move |_| order.lock().unwrap().push(number)).unwrap()
        };
        let [first, second, third] = [on(1), on(2), on(3)];
        call(1, 1);
        drop(second);
        call(1, 1);
        drop((first, third));
        call(1, 1);
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 3]);
    });
}

/// By its name, by another of its names, and by its address.
#[test]
fn a_function_is_one_by_whatever_it_is_named() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let by_name = ready().on("libc.so*:getppid", counting(&count)).unwrap();
        let by_address = ready().on_function(libc::getppid as *const (), counting(&count)).unwrap();
        let by_other = ready().on("libc.so*:*getppid", counting(&count)).unwrap();
        black_box(std::os::unix::process::parent_id());
        assert_eq!(count.load(Ordering::Relaxed), 3);
        drop(by_name);
        black_box(std::os::unix::process::parent_id());
        assert_eq!(count.load(Ordering::Relaxed), 5);
        drop((by_address, by_other));
        black_box(std::os::unix::process::parent_id());
        assert_eq!(count.load(Ordering::Relaxed), 5);
    });
}

#[test]
fn a_function_is_replaced_and_the_original_can_be_called() {
    static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn twice(a: u64, b: u64) -> u64 {
        let original = callable(std::ptr::with_exposed_provenance(ORIGINAL.load(Ordering::Relaxed)));
        2 * original(a, b)
    }
    apart(|| {
        // SAFETY: both are alike.
        let replacement = unsafe { ready().replace(SUM, twice as *const ()) }.unwrap();
        ORIGINAL.store(replacement.original().expose_provenance(), Ordering::Relaxed);
        assert_eq!(call(3, 4), 14);
        // SAFETY: as above.
        let again = unsafe { ready().replace(SUM, difference as *const ()) };
        assert!(matches!(again, Err(Error::Replaced(_))), "{again:?}");
        // SAFETY: it is refused.
        let itself = unsafe { ready().replace(SUM, SUM) };
        assert!(matches!(itself, Err(Error::Itself(_))), "{itself:?}");
        // Handlers come ahead of what replaces it, and stay without it.
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(SUM, counting(&count)).unwrap();
        assert_eq!(call(3, 4), 14);
        drop(replacement);
        assert_eq!(call(3, 4), 7);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        // SAFETY: as above.
        let replacement = unsafe { ready().replace(SUM, difference as *const ()) }.unwrap();
        drop(probe);
        assert_eq!((call(5, 4), count.load(Ordering::Relaxed)), (1, 2));
        drop(replacement);
        assert_eq!(call(3, 4), 7);
    });
}

#[test]
fn a_handler_that_was_not_put_in_is_dropped_where_probes_can_be_changed() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        // What the handler has is a probe itself, which is taken out with it.
        let has_a_probe = || {
            let probe = ready().on_function(SUM, counting(&count)).unwrap();
            move |_: &mut Call<'_>| _ = probe.functions()
        };
        assert!(ready().on("libc.so*:nothing_like_it", has_a_probe()).is_err());
        assert!(ready().on_function(std::ptr::without_provenance(1), has_a_probe()).is_err());
        assert_eq!(call(1, 2), 3);
        assert_eq!((count.load(Ordering::Relaxed), Arc::strong_count(&count)), (0, 1));
    });
}

#[test]
fn what_was_taken_out_is_waited_for_and_reclaimed() {
    apart(|| {
        let (began, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let wait = |flag: &AtomicBool| {
            while !flag.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        let probe = ready().on_function(SUM, {
            let (began, ends) = (began.clone(), ends.clone());
            move |_| {
                began.store(true, Ordering::Relaxed);
                wait(&ends);
            }
        });
        let thread = std::thread::spawn(|| call(1, 2));
        wait(&began);
        drop(probe);
        assert_eq!((trapless_inside::reclaim(), Arc::strong_count(&ends)), (1, 2));
        // What reclaiming allocates calls no handler that wants to reclaim, too, and would wait for itself.
        let allocator = ready().on("libc.so.6:malloc", |_| _ = trapless_inside::reclaim()).unwrap();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(thread.join().unwrap(), 3);
        assert_eq!((trapless_inside::reclaim(), Arc::strong_count(&ends)), (0, 1));
        drop(allocator);
    });
}

#[test]
fn the_original_is_there_ahead_of_what_replaces_it() {
    apart(|| {
        let before = bytes_of(SUM);
        let original = ready().original(SUM).unwrap();
        assert_eq!(bytes_of(SUM), before);
        assert_eq!(callable(original)(3, 4), 7);
        // SAFETY: both are alike.
        let replacement = unsafe { ready().replace(SUM, difference as *const ()) }.unwrap();
        assert_eq!(replacement.original(), original);
        assert_eq!((call(9, 4), callable(original)(9, 4)), (5, 13));
        drop(replacement);
        assert_eq!((call(9, 4), callable(original)(9, 4)), (13, 13));
        assert!(ready().original(std::ptr::without_provenance(1)).is_err());
    });
}

#[test]
fn no_more_of_the_callers_stack_is_read_than_arguments_take() {
    apart(|| {
        let probe = ready().on_function(SUM, |call| _ = call.arg::<u64>(64)).unwrap();
        assert_eq!((call(1, 2), probe.panics()), (3, 1));
    });
}

#[test]
fn what_a_handler_calls_calls_no_handler() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(SUM, {
            let count = count.clone();
            move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                assert_eq!(call(2, 2), 4);
            }
        });
        assert_eq!(call(1, 1), 2);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(probe);
    });
}

/// Allocators are called by whatever a handler does, and by what calls it for the first time on a thread.
#[test]
fn the_allocator_can_be_probed() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let on = |function: &str| {
            let count = count.clone();
            ready().on(function, move |call| {
                let text = format!("{:?}", call.arg::<*const u8>(0));
                count.fetch_add(text.len() as u64, Ordering::Relaxed);
            })
        };
        let probes = ["libc.so*:malloc", "libc.so*:free", "libc.so*:calloc", "libc.so*:realloc"].map(on);
        let probes = probes.map(Result::unwrap);
        let work = || (0..1000).map(|n| format!("{n}")).collect::<Vec<_>>().join("").len();
        let threads: Vec<_> = (0..20).map(|_| std::thread::spawn(work)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 2890);
        }
        assert_eq!(probes.each_ref().map(Probe::missed), [0; 4]);
        drop(probes);
        assert!(count.load(Ordering::Relaxed) > 1000);
    });
}

#[test]
fn a_panic_of_a_handler_does_not_reach_the_program() {
    apart(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let probe = ready().on_function(SUM, |call| assert_ne!(call.arg::<u64>(0), 13)).unwrap();
        assert_eq!((call(13, 1), call(14, 1), call(13, 2)), (14, 15, 15));
        assert_eq!(probe.panics(), 2);
        drop(probe);
        let _ = std::panic::take_hook();
    });
}

#[test]
fn a_probe_can_be_taken_out_and_put_in_by_a_handler() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let kept: Arc<Mutex<Option<Probe>>> = Arc::default();
        let other: Arc<Mutex<Option<Probe>>> = Arc::default();
        let probe = ready().on_function(SUM, {
            let (count, kept, other) = (count.clone(), kept.clone(), other.clone());
            move |_| {
                kept.lock().unwrap().take();
                let counting = counting(&count);
                *other.lock().unwrap() =
                    Some(ready().on_function(difference as *const (), counting).unwrap());
            }
        });
        *kept.lock().unwrap() = Some(probe.unwrap());
        let before = bytes_of(SUM);
        assert_eq!((call(1, 1), call(1, 1)), (2, 2));
        assert_ne!(bytes_of(SUM), before);
        assert_eq!(black_box(difference as Two)(5, 3), 2);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        other.lock().unwrap().take();
        // What is left is dropped by whoever comes next.
        drop(ready().on_function(SUM, |_| {}));
        assert_eq!((Arc::strong_count(&count), Arc::strong_count(&kept)), (1, 1));
    });
}

// Instructions of one byte each, then one of four: a jump over them has a beginning at three of its bytes. And one whose flags and registers are
// all looked at.
global_asm!(
    ".text",
    ".p2align 4",
    ".globl inside_slide",
    ".type inside_slide,@function",
    "inside_slide:",
    "nop",
    "nop",
    "nop",
    "lea rax, [rdi + 1]",
    "ret",
    ".size inside_slide, . - inside_slide",
    ".p2align 4",
    ".globl inside_looks",
    ".type inside_looks,@function",
    "inside_looks:",
    "mov [rip + inside_state], rax",
    "mov [rip + inside_state + 8], rcx",
    "mov [rip + inside_state + 16], rdx",
    "mov [rip + inside_state + 24], rbx",
    "mov [rip + inside_state + 32], rsp",
    "mov [rip + inside_state + 40], rbp",
    "mov [rip + inside_state + 48], rsi",
    "mov [rip + inside_state + 56], rdi",
    "mov [rip + inside_state + 64], r8",
    "mov [rip + inside_state + 72], r9",
    "mov [rip + inside_state + 80], r10",
    "mov [rip + inside_state + 88], r11",
    "mov [rip + inside_state + 96], r12",
    "mov [rip + inside_state + 104], r13",
    "mov [rip + inside_state + 112], r14",
    "mov [rip + inside_state + 120], r15",
    "lahf",
    "seto al",
    "mov [rip + inside_state + 128], rax",
    "ret",
    ".size inside_looks, . - inside_looks",
    ".data",
    ".p2align 4",
    ".globl inside_state",
    "inside_state:",
    ".zero 136",
    ".text",
);

unsafe extern "C" {
    fn inside_slide(n: u64) -> u64;
    fn inside_looks();
    static inside_state: [u64; 17];
}

/// A thread that stands in the midst of what is displaced, or comes back there, does what it would have done.
#[test]
fn whoever_comes_to_the_midst_of_displaced_instructions_is_sent_on() {
    apart(|| {
        let entry = (inside_slide as *const ()).cast::<u8>();
        let before = bytes_of(entry.cast());
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(entry.cast(), counting(&count)).unwrap();
        let jump = bytes_of(entry.cast());
        assert_eq!((jump[0], &jump[1..4]), (0xe9, &[0xcc; 3][..]), "{jump:x?}");
        for (offset, counted) in [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2)] {
            // SAFETY: instructions begin at each of them, and do the same.
            let from: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(entry.wrapping_add(offset)) };
            assert_eq!(from(41), 42, "from {offset}");
            assert_eq!(count.load(Ordering::Relaxed), counted, "from {offset}");
        }
        drop(probe);
        assert_eq!(bytes_of(entry.cast()), before);
        // SAFETY: it takes any number.
        assert_eq!(unsafe { inside_slide(1) }, 2);
    });
}

/// All general registers, the flags, and vector registers in whole, whatever a handler does with them.
#[test]
fn a_handler_changes_no_register() {
    fn lose_vectors() {
        // It is not exact, which is an exception.
        black_box(black_box(1.0f64) / black_box(3.0));
        if std::is_x86_feature_detected!("avx") {
            // SAFETY: they are lost by declaration.
            unsafe {
                asm!("vpcmpeqd xmm0, xmm0, xmm0", "vinsertf128 ymm0, ymm0, xmm0, 1", "vmovaps ymm7, ymm0", "vmovaps ymm15, ymm0",
                    out("ymm0") _, out("ymm7") _, out("ymm15") _);
            }
        }
        // SAFETY: as above.
        unsafe { asm!("pxor xmm3, xmm3", "pxor xmm12, xmm12", out("xmm3") _, out("xmm12") _) };
    }
    apart(|| {
        let probe = ready().on_function(inside_looks as *const (), |_| lose_vectors()).unwrap();
        for flags in [0u64, 0x8d5, 0x8d4, 0x801, 0x54] {
            let mut results = [0f64; 4];
            // SAFETY: the function stores registers and changes rax; all that is set here is declared.
            unsafe {
                asm!(
                    "push rbx", "push rbp", "mov rbx, 0x1003", "mov rbp, 0x1005",
                    "push {flags}", "popfq",
                    "mov rax, 0x1000",
                    "call {function}",
                    "pop rbp", "pop rbx",
                    function = sym inside_looks,
                    flags = in(reg) flags | 0x202,
                    out("rax") _, inout("rcx") 0x1001u64 => _, inout("rdx") 0x1002u64 => _, inout("rsi") 0x1006u64 => _, inout("rdi") 0x1007u64 => _,
                    inout("r8") 0x1008u64 => _, inout("r9") 0x1009u64 => _, inout("r10") 0x100au64 => _, inout("r11") 0x100bu64 => _,
                    inout("r12") 0x100cu64 => _, inout("r13") 0x100du64 => _, inout("r14") 0x100eu64 => _,
                    inout("xmm3") 3.0f64 => results[0], inout("xmm12") 12.0f64 => results[1],
                    inout("xmm0") 0.5f64 => results[2], inout("xmm15") 15.0f64 => results[3],
                );
                let state = std::ptr::read_volatile(&raw const inside_state);
                let expected: Vec<u64> = (0..15).map(|n| 0x1000 + n).collect();
                for number in (0..15).filter(|number| *number != 4) {
                    assert_eq!(state[number], expected[number], "register {number}");
                }
                let told = |flags: u64| ((flags & 0xd5) << 8 | 2 << 8, flags >> 11 & 1);
                assert_eq!((state[16] & 0xff00, state[16] & 0xff), told(flags), "flags {flags:#x}");
            }
            assert_eq!(results, [3.0, 12.0, 0.5, 15.0]);
        }
        let (mut before, mut after) = (0x1f80u32, 0u32);
        // SAFETY: no exception is raised but by the handler.
        unsafe {
            asm!(
                "ldmxcsr [{before}]", "call {function}", "stmxcsr [{after}]",
                function = sym inside_looks, before = in(reg) &raw mut before, after = in(reg) &raw mut after, out("rax") _,
            );
        }
        assert_eq!(after, before, "{after:#x}");
        if std::is_x86_feature_detected!("avx") {
            let (given, mut got) = ([1u64, 2, 3, 4], [[0u64; 4]; 3]);
            // SAFETY: as above.
            unsafe {
                asm!(
                    "vmovups ymm0, [{given}]", "vmovups ymm7, [{given}]", "vmovups ymm15, [{given}]",
                    "call {function}",
                    "vmovups [{got}], ymm0", "vmovups [{got} + 32], ymm7", "vmovups [{got} + 64], ymm15", "vzeroupper",
                    function = sym inside_looks, given = in(reg) given.as_ptr(), got = in(reg) got.as_mut_ptr(),
                    out("rax") _, out("ymm0") _, out("ymm7") _, out("ymm15") _,
                );
            }
            assert_eq!(got, [given; 3]);
        }
        drop(probe);
    });
}

/// Probes go in and out while threads are in the function all the time; whatever is called while one is in is told.
#[test]
fn toggles_under_threads_lose_nothing_and_disturb_nobody() {
    let rounds: u64 = trapless_testing::asked("TRAPLESS_TOGGLES", 2000);
    apart(|| {
        let before = bytes_of(SUM);
        let (stop, called) = (AtomicBool::new(false), AtomicU64::new(0));
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        std::thread::scope(|scope| {
            for number in 0..8u64 {
                let (stop, called) = (&stop, &called);
                scope.spawn(move || {
                    let mut n = number;
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(call(n, number), n + number);
                        // SAFETY: it takes any number.
                        assert_eq!(unsafe { inside_slide(n) }, n + 1);
                        n += 1;
                    }
                    called.fetch_add(n, Ordering::Relaxed);
                });
            }
            let mut kept = 0;
            for round in 0..rounds {
                let (mine, all) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
                let own = std::thread::current().id();
                let handler = {
                    let (mine, all) = (mine.clone(), all.clone());
                    move |_: &mut Call<'_>| {
                        all.fetch_add(1, Ordering::Relaxed);
                        if std::thread::current().id() == own {
                            mine.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                };
                let probe = ready().on_function(SUM, handler).unwrap();
                let slide = ready().on_function(inside_slide as *const (), |_| {}).unwrap();
                for n in 0..10 {
                    assert_eq!(call(n, round), n + round);
                }
                drop((probe, slide));
                assert_eq!(mine.load(Ordering::Relaxed), 10, "round {round}");
                let told = all.load(Ordering::Relaxed);
                call(1, 1);
                assert!(mine.load(Ordering::Relaxed) == 10 && all.load(Ordering::Relaxed) >= told);
                if round == rounds / 10 {
                    kept = maps();
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(maps() <= kept + 16, "{} mappings, and {kept} before", maps());
        });
        assert_eq!(bytes_of(SUM), before);
        assert!(called.load(Ordering::Relaxed) > 0);
    });
}

/// Signals interrupt the threads anywhere, and their handlers come back late.
#[test]
fn toggles_under_threads_that_signals_interrupt() {
    extern "C" fn nothing(_: i32) {
        for n in 0..200u64 {
            black_box(n);
        }
    }
    let rounds: u64 = trapless_testing::asked("TRAPLESS_TOGGLES", 500);
    apart(|| {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as usize) };
        let stop = AtomicBool::new(false);
        let threads: Mutex<Vec<libc::pthread_t>> = Mutex::default();
        std::thread::scope(|scope| {
            for number in 0..4u64 {
                let (stop, threads) = (&stop, &threads);
                scope.spawn(move || {
                    // SAFETY: it names the calling thread.
                    threads.lock().unwrap().push(unsafe { libc::pthread_self() });
                    let mut n = number;
                    while !stop.load(Ordering::Relaxed) {
                        // SAFETY: it takes any number.
                        assert_eq!(unsafe { inside_slide(n) }, n + 1);
                        n += 1;
                    }
                });
            }
            while threads.lock().unwrap().len() < 4 {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for thread in threads.lock().unwrap().iter() {
                        // SAFETY: they run until they are told to stop, which is after this.
                        unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) };
                    }
                    std::thread::yield_now();
                }
            });
            for _ in 0..rounds {
                drop(ready().on_function(inside_slide as *const (), |_| {}).unwrap());
            }
            let _all = threads.lock().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
    });
}

static TRAPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn counts_traps(_: i32) {
    TRAPS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn the_programs_own_traps_are_its_own() {
    apart(|| {
        // SAFETY: the handler counts.
        unsafe { libc::signal(libc::SIGTRAP, counts_traps as *const () as usize) };
        let probe = ready().on_function(inside_slide as *const (), |_| {}).unwrap();
        // SAFETY: a breakpoint, and a signal.
        unsafe {
            asm!("int3");
            libc::raise(libc::SIGTRAP);
        }
        assert_eq!(TRAPS.load(Ordering::Relaxed), 2);
        let entry = (inside_slide as *const ()).cast::<u8>();
        // SAFETY: an instruction begins there.
        let midst: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(entry.wrapping_add(2)) };
        assert_eq!((midst(1), TRAPS.load(Ordering::Relaxed)), (2, 2));
        drop(probe);
        // One that is installed later takes its place until something is done, and is called behind ours then.
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGTRAP, counts_traps as *const () as usize) };
        let probe = ready().on_function(inside_slide as *const (), |_| {}).unwrap();
        assert_eq!(midst(1), 2);
        // SAFETY: as above.
        unsafe { asm!("int3") };
        assert_eq!(TRAPS.load(Ordering::Relaxed), 3);
        drop(probe);
    });
}

/// As without us: a breakpoint that nobody handles ends the process.
#[test]
fn a_trap_that_is_nobodys_ends_the_program() {
    // SAFETY: the child puts a probe in and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let probe = ready().on_function(SUM, |_| {});
        // SAFETY: it is the child's end.
        unsafe {
            if probe.is_ok() {
                asm!("int3");
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the call writes one integer.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP, "{status:#x}");
}

#[test]
fn where_sigtrap_is_blocked_nothing_is_done() {
    apart(|| {
        let before = bytes_of(SUM);
        let (blocked, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a set of signals is bits.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigfillset(&mut set);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                }
                blocked.store(true, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    call(1, 1);
                }
            });
            while !blocked.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let probe = ready().on_function(SUM, |_| {});
            assert!(matches!(probe, Err(Error::TrapBlocked { tid }) if tid > 0), "{probe:?}");
            assert_eq!(bytes_of(SUM), before);
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: a structure of integers and a set of bits; the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = counts_traps as *const () as usize;
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
        let probe = ready().on_function(SUM, |_| {});
        assert!(matches!(probe, Err(Error::HandlerBlocks { signal: libc::SIGUSR2 })), "{probe:?}");
        assert_eq!(bytes_of(SUM), before);
    });
}

#[test]
fn what_is_no_function_or_cannot_be_probed_is_refused() {
    apart(|| {
        let inside = ready();
        let on = |pattern: &str| inside.on(pattern, |_| {}).unwrap_err();
        assert!(matches!(on("nothing"), Error::Find(_)));
        assert!(matches!(on("libc.so*:no_such_function_here"), Error::Find(_)));
        assert!(matches!(on("usdt:libc.so*:libc:setjmp"), Error::NoFunction(_)));
        assert!(matches!(on("libc.so*:malloc+4"), Error::NoFunction(_)));
        assert!(matches!(on("ld-linux*:*"), Error::Refused { .. }));
        let at = |address: *const ()| inside.on_function(address, |_| {}).unwrap_err();
        assert!(matches!(at(std::ptr::null()), Error::Nowhere(0)));
        assert!(matches!(at(std::hint::black_box(SUM).wrapping_byte_add(3)), Error::Nowhere(_)));
        assert!(matches!(at((&raw const TRAPS).cast()), Error::Nowhere(_)));
        let local = 0u64;
        assert!(matches!(at((&raw const local).cast()), Error::Nowhere(_)));
    });
}

#[test]
fn a_forked_child_has_the_probes_and_can_take_them_out() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let mut probe = Some(ready().on_function(SUM, counting(&count)).unwrap());
        call(1, 1);
        apart(|| {
            call(1, 1);
            assert_eq!(count.load(Ordering::Relaxed), 2);
            let other = ready().on_function(difference as *const (), counting(&count)).unwrap();
            black_box(difference as Two)(2, 1);
            assert_eq!(count.load(Ordering::Relaxed), 3);
            drop((other, probe.take()));
            call(1, 1);
            assert_eq!(count.load(Ordering::Relaxed), 3);
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        call(1, 1);
        assert_eq!(count.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_seccomp_filter_is_respected() {
    apart(|| {
        const ALLOW: libc::sock_filter = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0x7fff_0000 };
        let mut filter = [ALLOW];
        let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
        // SAFETY: the program lets everything pass.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
        assert!(matches!(inside(), Err(Error::Seccomp)));
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(SUM, counting(&count)).unwrap();
        call(1, 1);
        drop(probe);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    });
}

/// Threads end while they are known, and others take their places.
#[test]
fn threads_come_and_go() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on_function(SUM, counting(&count)).unwrap();
        for _ in 0..500 {
            let threads: Vec<_> = (0..10).map(|n| std::thread::spawn(move || call(n, n))).collect();
            threads.into_iter().for_each(|thread| _ = thread.join().unwrap());
        }
        assert_eq!((count.load(Ordering::Relaxed), probe.missed()), (5000, 0));
        drop(probe);
    });
}

/// Whatever the machinery itself uses of the C library is probed as well, while it works.
#[test]
fn all_of_the_c_library_is_probed_at_once() {
    apart(|| {
        let count = Arc::new(AtomicU64::new(0));
        let probe = ready().on("libc.so*:*", counting(&count)).unwrap();
        assert!(probe.functions() > 1500, "{} functions; {:?}", probe.functions(), probe.skipped());
        let expected = use_the_c_library();
        let again = ready().on_function(SUM, counting(&count)).unwrap();
        assert_eq!(call(1, 2), 3);
        drop(again);
        assert!(count.load(Ordering::Relaxed) > 1000);
        let before = count.load(Ordering::Relaxed);
        drop(probe);
        let after = count.load(Ordering::Relaxed);
        assert_eq!(work(11), expected);
        assert!(after >= before && count.load(Ordering::Relaxed) == after);
    });
}

#[test]
fn forks_in_the_midst_of_toggles_find_whole_probes() {
    apart(|| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for is_slide in [false, true] {
                let stop = &stop;
                scope.spawn(move || {
                    let function = if is_slide { inside_slide as *const () } else { SUM };
                    while !stop.load(Ordering::Relaxed) {
                        drop(ready().on_function(function, |_| {}).unwrap());
                    }
                });
            }
            for round in 0..100 {
                apart(|| {
                    let count = Arc::new(AtomicU64::new(0));
                    let probe = ready().on_function(SUM, counting(&count)).unwrap();
                    assert_eq!((call(round, 2), count.load(Ordering::Relaxed)), (round + 2, 1));
                    drop(probe);
                    assert_eq!((call(round, 2), Arc::strong_count(&count)), (round + 2, 1));
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

static OLD: AtomicUsize = AtomicUsize::new(0);

/// Calls the handler that was there before, as well-behaved ones do.
extern "C" fn chains(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    assert!(TRAPS.fetch_add(1, Ordering::Relaxed) < 10, "it goes round");
    // SAFETY: it was installed with SA_SIGINFO.
    let old: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(OLD.load(Ordering::Relaxed)) };
    old(signal, info, context);
}

#[test]
fn a_handler_that_calls_ours_is_not_called_in_a_circle() {
    apart(|| {
        // SAFETY: the handlers are made for it.
        unsafe {
            libc::signal(libc::SIGTRAP, counts_traps as *const () as usize);
            drop(ready().on_function(inside_slide as *const (), |_| {}));
            let (mut action, mut old): (libc::sigaction, libc::sigaction) =
                (std::mem::zeroed(), std::mem::zeroed());
            (action.sa_sigaction, action.sa_flags) = (chains as *const () as usize, libc::SA_SIGINFO);
            libc::sigaction(libc::SIGTRAP, &action, &mut old);
            OLD.store(old.sa_sigaction, Ordering::Relaxed);
            let probe = ready().on_function(inside_slide as *const (), |_| {}).unwrap();
            for _ in 0..2 {
                TRAPS.store(0, Ordering::Relaxed);
                asm!("int3");
                // Once the one that chains, and once the first one.
                assert_eq!(TRAPS.load(Ordering::Relaxed), 2);
            }
            drop(probe);
        }
    });
}

#[test]
fn what_handlers_are_called_by_is_left_alone() {
    apart(|| {
        let own = std::env::current_exe().unwrap();
        let on = |functions: &str| ready().on(&format!("{}:{functions}", own.display()), |_| {});
        for functions in ["*trapless_inside*", "core::ptr::*"] {
            let refused = on(functions);
            assert!(matches!(refused, Err(Error::Refused { .. })), "{functions}: {refused:?}");
        }
        let probe = on("*").unwrap();
        assert!(probe.functions() > 100 && probe.skipped().len() > 100, "{}", probe.functions());
        assert_eq!(call(1, 2), 3);
        drop(probe);
    });
}
