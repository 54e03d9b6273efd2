//! Nothing is lost between threads, nor between a thread and its signal handlers; and a body keeps every register.

use crate::machine::{Hit, MACHINE, Ready, SHARED, STATE, convention, reads_memory};
use crate::random::{self, contents};
use crate::scripts::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::SeqCst};
use trapless_isa::Machine;
use trapless_script::interp::merge;
use trapless_script::ir::*;
use trapless_script::native::{Moment, unmask};
use trapless_testing::asked;
use trapless_wire::{MapKind, MapPlace, TableView, Words};

pub const ENTRY: [(BodyId, Moment); 1] = [(BodyId(0), Moment::Entry)];

/// What a map with a key holds over all threads.
pub fn merged(ready: &Ready, program: &Program, threads: u64) -> std::collections::BTreeMap<u64, Vec<u64>> {
    let MapValue::Aggregate(of) = program.maps[0].value else { panic!("an aggregation") };
    let places: Vec<_> = match ready.native.layout.maps[0] {
        MapPlace::Shared(at, MapKind::Table(table)) => vec![(SHARED + at, table)],
        MapPlace::PerThread(at, MapKind::Table(table)) => {
            (0..threads).map(|thread| (ready.part(thread) + u64::from(at), table)).collect()
        }
        other => panic!("{other:?}"),
    };
    let mut all = std::collections::BTreeMap::new();
    for (at, table) in places {
        let view = TableView::new(&ready.region, at, table);
        let mut here = std::collections::BTreeSet::new();
        view.each(|mut entry| {
            assert!(here.insert(entry.key[0]), "a key is there twice");
            unmask(of, &mut entry.value);
            let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            let into = all.entry(entry.key[0]).or_insert_with(|| vec![0; entry.value.len()]);
            let mut sum = bytes(into);
            merge(of, &mut sum, &bytes(&entry.value));
            *into = sum.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        });
        assert_eq!((view.full(), view.contended()), (0, 0));
    }
    all
}

#[test]
fn sixteen_threads_are_counted_to_the_last_call() {
    const THREADS: u64 = 16;
    let calls: u64 = asked("TRAPLESS_CALLS", 200_000);
    let key = || binary(Binary::UnsignedRemainder, argument(0), Expression::Int(100));
    let aggregations = [
        Aggregation::Count,
        Aggregation::Sum,
        Aggregation::Average,
        Aggregation::Max { signed: true },
        Aggregation::Hist { bits: 2 },
    ];
    for of in aggregations {
        for sharing in [MapSharing::PerThread, MapSharing::Shared] {
            let program = keyed(key(), of, sharing);
            let ready = Ready::new(&program, &ENTRY, THREADS).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let ready = &ready;
                    scope.spawn(move || {
                        for call in 0..calls / THREADS {
                            ready.run(0, thread, &Hit::with(&[call * 7 + thread, call % 50]));
                        }
                    });
                }
            });
            let found = merged(&ready, &program, THREADS);
            let mut expected = std::collections::BTreeMap::new();
            for thread in 0..THREADS {
                for call in 0..calls / THREADS {
                    let words = expected
                        .entry((call * 7 + thread) % 100)
                        .or_insert_with(|| vec![0u8; 8 * of.words() as usize]);
                    let added = trapless_script::interp::Added { value: call % 50, weight: 1, time: 0 };
                    trapless_script::interp::add(of, words, added);
                }
            }
            assert_eq!(found.len(), expected.len(), "{of:?} {sharing:?}");
            for (key, words) in expected {
                let words: Vec<u64> =
                    words.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
                assert_eq!(found[&key], words, "{of:?} {sharing:?} {key}");
            }
        }
    }
}

/// Handlers are the process's.
pub static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
pub static STORM: AtomicPtr<Ready> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// How many handlers are under way, each above another.
static DEPTH: AtomicU64 = AtomicU64::new(0);
/// How many may be, before the next one is sent: on a busy machine hundreds would be, and fill the stack.
const DEEPEST: u64 = 16;

extern "C" fn handler(_: i32) {
    // SAFETY: it is set while the timer runs, to something that lives longer.
    let ready = unsafe { &*STORM.load(SeqCst) };
    DEPTH.fetch_add(1, SeqCst);
    let handled = HANDLED.fetch_add(1, SeqCst);
    let hit = Hit { tid: 1, ..Hit::with(&[handled, 1]) };
    for body in 0..ready.native.code.bodies.len() {
        ready.run(body, 0, &hit);
    }
    DEPTH.fetch_sub(1, SeqCst);
}

/// Runs bodies over and over while a timer interrupts them and runs them once more in its handler.
pub fn storm(ready: &Ready, seconds: f64, mut run: impl FnMut(u64)) -> (u64, u64) {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    STORM.store(std::ptr::from_ref(ready).cast_mut(), SeqCst);
    HANDLED.store(0, SeqCst);
    let stop = Arc::new(AtomicBool::new(false));
    // SAFETY: the handler calls nothing but the code under test, and atomics.
    let me = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        // Handlers interrupt each other, but where an emulator is so slow that they would pile up, each with a slot of a table.
        let nested = if reads_memory() { libc::SA_NODEFER } else { 0 };
        action.sa_flags = libc::SA_RESTART | nested;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::pthread_self()
    };
    let sender = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(SeqCst) {
                if DEPTH.load(SeqCst) >= DEEPEST {
                    std::hint::spin_loop();
                    continue;
                }
                let before = HANDLED.load(SeqCst);
                // SAFETY: the thread lives until this one is joined.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                for _ in 0..2000 {
                    if HANDLED.load(SeqCst) != before {
                        break;
                    }
                    std::hint::spin_loop();
                }
            }
        })
    };
    let start = std::time::Instant::now();
    let mut turns = 0;
    // On a busy machine the storm takes longer to come.
    let is_calm = || HANDLED.load(SeqCst) < 2000 && start.elapsed().as_secs() < 60;
    while start.elapsed().as_secs_f64() < seconds || is_calm() {
        for _ in 0..100 {
            run(turns);
            turns += 1;
        }
    }
    stop.store(true, SeqCst);
    sender.join().unwrap();
    (turns, HANDLED.load(SeqCst))
}

#[test]
fn handlers_that_interrupt_bodies_lose_nothing_and_make_nothing_lost() {
    let key = || binary(Binary::UnsignedRemainder, argument(0), Expression::Int(5));
    for sharing in [MapSharing::PerThread, MapSharing::Shared] {
        for of in [Aggregation::Count, Aggregation::Hist { bits: 0 }] {
            let program = keyed(key(), of, sharing);
            let ready = Ready::new(&program, &ENTRY, 1).unwrap();
            let (turns, handled) = storm(&ready, 1.0, |turn| {
                ready.run(0, 0, &Hit { tid: 1, ..Hit::with(&[turn, 1]) });
            });
            let found = merged(&ready, &program, 1);
            let sum: u64 = found.values().flatten().sum();
            assert_eq!(sum, turns + handled, "{sharing:?} {of:?}");
            assert!(handled > 1000, "the storm was none: {handled}");
        }
    }
}

#[test]
fn keys_come_and_go_under_a_storm() {
    // Each turn puts its key in, finds it and takes it out; what handlers do to the same key meanwhile is their own turn.
    let mut program = latency();
    // The two bodies by two keys: handlers have another than those that they interrupt, or the same one.
    for body in &mut program.bodies {
        body.code[0] = store(0, binary(Binary::And, argument(0), Expression::Int(3)));
    }
    let bodies = [0, 1].map(|body| (BodyId(body), Moment::Entry));
    let ready = Ready::new(&program, &bodies, 1).unwrap();
    storm(&ready, 1.0, |turn| {
        for body in 0..2 {
            ready.run(body, 0, &Hit { tid: 1, ..Hit::with(&[turn, 1]) });
        }
    });
    let MapPlace::PerThread(at, MapKind::Table(table)) = ready.native.layout.maps[0] else {
        panic!("a table of a thread's own")
    };
    let view = TableView::new(&ready.region, ready.part(0) + u64::from(at), table);
    let mut keys = 0;
    view.each(|entry| {
        assert!(entry.key[0] < 4);
        keys += 1;
    });
    assert_eq!(view.live(), keys);
    assert_eq!((view.full(), view.contended()), (0, 0));
    let histogram: u64 = contents(&ready, &program, 1)
        .values()
        .flat_map(|value| value.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())))
        .sum();
    assert!(histogram > 1000);
}

/// Where the registers are that say nothing: the stack pointer, what the trampoline has in rbx; what bodies may lose, and the link.
const LEFT_OUT: &[usize] = match MACHINE {
    Machine::X86_64 => &[1, 7],
    Machine::PowerPc64Le => &[0, 1, 2, 11, 12, 13, 32, 35],
    _ => &[16, 17, 30, 31],
};

#[test]
fn a_body_keeps_every_register() {
    let (_memory, addresses) = random::memory();
    let options = random::options(addresses);
    let programs =
        (1..random::seeds().min(150)).map(|seed| trapless_script::arbitrary::program(seed, &options));
    for (seed, program) in (1..).zip(programs.chain([latency(), printf(), by_string(64), by_string(1024)])) {
        let ready = Ready::new(&program, &ENTRY, 1).unwrap();
        let mut before = [0u64; STATE];
        for (index, word) in before.iter_mut().enumerate() {
            *word = (index as u64 + 1).wrapping_mul(0x0101_0203_0407_0b0d);
        }
        for turn in 0..4 {
            let after = ready.run_watched(0, 0, &random::hit(seed * 7 + turn, &[]), &before);
            for (index, (&now, &was)) in after.iter().zip(&before).enumerate() {
                let convention = convention();
                if index == usize::from(convention.block) {
                    assert_eq!(now, ready.block(0), "seed {seed}");
                } else if !LEFT_OUT.contains(&index) {
                    assert_eq!(now, was, "seed {seed}: register {index}");
                }
            }
        }
        let _ = ready.region.word(0);
    }
}
