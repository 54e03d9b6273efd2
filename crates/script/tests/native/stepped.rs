//! A signal handler at each instruction of a body, which runs a body: nothing is lost, and tables stay sound.

use crate::machine::{Hit, Ready, SHARED};
use crate::scripts::*;
use crate::threads::{ENTRY, ONE, STORM, merged};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use trapless_script::ir::*;
use trapless_script::native::Moment;
use trapless_wire::{MapKind, MapPlace, TableView};

/// How many instructions are still to pass until the handler runs its body.
static STEPS_LEFT: AtomicU64 = AtomicU64::new(0);
/// Which body it runs then, with which key.
static NESTED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

extern "C" fn step(_: i32) {
    if STEPS_LEFT.fetch_sub(1, SeqCst) == 1 {
        // SAFETY: it is set while code is stepped through, to something that lives longer.
        let ready = unsafe { &*STORM.load(SeqCst) };
        let [body, key] = [0, 1].map(|index: usize| NESTED[index].load(SeqCst));
        ready.run(body as usize, 0, &with_key(key));
    }
}

fn with_key(key: u64) -> Hit {
    Hit { tid: 1, ..Hit::with(&[key, 1]) }
}

/// Runs a body with a key, and at each of its instructions in turn another one in a handler; `check` looks at what came of it.
fn at_each_instruction(
    ready: &Ready,
    outer: usize,
    nested: usize,
    mut prepare: impl FnMut(u64) -> (u64, u64),
    mut check: impl FnMut(u64, u64),
) -> u64 {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    STORM.store(std::ptr::from_ref(ready).cast_mut(), SeqCst);
    // SAFETY: the handler calls nothing but the code under test, and atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = step as *const () as usize;
        libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut());
    }
    // Each step is a trap, and to come to an instruction takes as many as there are ahead of it. Unless all are asked for, every 13th
    // instruction is looked at, from another one on for each pair of bodies.
    let (first, step) = match std::env::var_os("TRAPLESS_EACH_INSTRUCTION") {
        Some(_) => (1, 1),
        None => (1 + (5 * outer + 3 * nested) as u64, 13),
    };
    for at in (first..).step_by(step) {
        let (key, nested_key) = prepare(at);
        NESTED[0].store(nested as u64, SeqCst);
        NESTED[1].store(nested_key, SeqCst);
        STEPS_LEFT.store(at, SeqCst);
        ready.run_stepped(outer, 0, &with_key(key));
        let left = STEPS_LEFT.load(SeqCst) as i64;
        if left > 0 {
            return at;
        }
        check(key, nested_key);
    }
    0
}

#[test]
fn a_handler_at_each_instruction_of_a_count_loses_nothing() {
    for sharing in [MapSharing::PerThread, MapSharing::Shared] {
        for is_same in [true, false] {
            let program = keyed(argument(0), Aggregation::Count, sharing);
            let ready = Ready::new(&program, &ENTRY, 1).unwrap();
            // A new key each time, so that each is put in.
            let mut expected = std::collections::BTreeMap::<u64, u64>::new();
            let instructions = at_each_instruction(
                &ready,
                0,
                0,
                |at| (2 * at, if is_same { 2 * at } else { 2 * at + 1 }),
                |key, nested| {
                    *expected.entry(key).or_default() += 1;
                    *expected.entry(nested).or_default() += 1;
                },
            );
            assert!(instructions > 100, "{instructions}");
            let mut found = merged(&ready, &program, 1);
            found.retain(|key, _| *key < 2 * instructions);
            let found: std::collections::BTreeMap<u64, u64> =
                found.into_iter().map(|(key, words)| (key, words[0])).collect();
            assert_eq!(found, expected, "{sharing:?} {is_same}");
        }
    }
}

#[test]
fn a_handler_at_each_instruction_of_a_set_or_delete_leaves_a_sound_table() {
    for sharing in [MapSharing::PerThread, MapSharing::Shared] {
        for (outer, nested) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            // With an empty table each time, or one that has other keys.
            for (was_there, is_emptied) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut program = latency();
                program.maps[0].sharing = sharing;
                for body in &mut program.bodies {
                    body.code[0] = store(0, argument(0));
                }
                let bodies = [0, 1].map(|body| (BodyId(body), Moment::Entry));
                let ready = Ready::new(&program, &bodies, 1).unwrap();
                let (at, table) = match ready.native.layout.maps[0] {
                    MapPlace::PerThread(at, MapKind::Table(table)) => (ready.part(0) + u64::from(at), table),
                    MapPlace::Shared(at, MapKind::Table(table)) => (SHARED + at, table),
                    other => panic!("{other:?}"),
                };
                let view = TableView::new(&ready.region, at, table);
                let mut contended = 0;
                let prepare = |at: u64| {
                    if was_there {
                        ready.run(0, 0, &with_key(at));
                    }
                    (at, at)
                };
                let instructions = at_each_instruction(&ready, outer, nested, prepare, |key, _| {
                    let mut keys = 0;
                    view.each(|entry| keys += u64::from(entry.key[0] == key));
                    // Both of a kind leave what one leaves; else either may have come last.
                    match (outer, nested) {
                        (0, 0) => assert_eq!(keys, 1),
                        (1, 1) => assert_eq!(keys, 0),
                        _ => assert!(keys < 2),
                    }
                    let mut all = 0;
                    assert_eq!(view.each(|_| all += 1), 0);
                    assert_eq!(view.live(), all);
                    assert_eq!(view.full(), 0);
                    // Only while a value is being written somebody else gives up.
                    let now = view.contended();
                    assert!(now <= contended + 2);
                    contended = now;
                    if is_emptied {
                        ready.run(1, 0, &with_key(key));
                        assert_eq!(view.live(), 0);
                    }
                });
                assert!(instructions > 100, "{instructions}");
                assert!(contended < instructions / 2, "{contended} of {instructions}");
            }
        }
    }
}
