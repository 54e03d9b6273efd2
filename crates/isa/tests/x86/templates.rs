//! Detours that are filled in are those that the encoder writes, byte for byte.

use crate::files::{LIBRARIES, Library};
use crate::machine::layout;
use trapless_isa::detour::*;
use trapless_isa::{Detours, Machine, Site, Spare};

/// Out of the way of every library's own addresses, and in reach of them.
const ARENA: u64 = 0x2000_0000;

/// What is asked of the `n`-th function.
fn asked(n: u32) -> [(&'static str, Actions); 5] {
    let at = 128 + 24 * n;
    let entry = EntryActions { hits: Some(at), record: None };
    let ret = ReturnActions { lost: 0x40_0000 + 8 * n, hits: Some(at + 8), latency: None, record: None };
    let timed = ReturnActions { latency: Some(0x80_0000 + 5016 * n), ..ret };
    let record = EntryActions { record: Some(Record { id: 2 * n, arguments: 3 }), ..entry };
    [
        ("count", Actions { entry, ..Actions::default() }),
        ("return", Actions { ret: Some(ret), ..Actions::default() }),
        ("both", Actions { entry, ret: Some(ret), ..Actions::default() }),
        ("latency", Actions { entry, ret: Some(timed), ..Actions::default() }),
        ("trace", Actions { entry: record, ret: Some(timed), ..Actions::default() }),
    ]
}

#[test]
fn filled_in_detours_are_those_that_the_encoder_writes() {
    let isa = Machine::X86_64.isa();
    let layout = layout(true);
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    // The C library's functions have all shapes.
    for (name, paths) in LIBRARIES.iter().filter(|(name, _)| *name == "libc") {
        let Some(library) = Library::open(paths).filter(|l| l.machine == Machine::X86_64) else {
            continue;
        };
        let mut detours = [(); 5].map(|()| Detours::new(Machine::X86_64));
        let (mut at, mut n) = (ARENA + 0x4000, 0);
        library.each(|function, site: &Site<'_>| {
            let Ok(displaced) = isa.verdict(site).jump else { return };
            let from = (displaced.start - site.function) as usize;
            let Some(original) = site.code.get(from..from + usize::from(displaced.length)) else {
                return;
            };
            let spare = Spare::at(Machine::X86_64, site, displaced.start);
            for ((what, actions), detours) in asked(n).into_iter().zip(&mut detours) {
                let request = DetourRequest {
                    address: at,
                    displaced,
                    original,
                    site,
                    actions,
                    layout: &layout,
                    runtime: &runtime,
                    tells: true,
                };
                let encoded = isa.detour(&request);
                let filled = detours.detour(&request, spare);
                match (encoded, filled) {
                    (Ok(encoded), Ok(filled)) => {
                        let context = format!("{what} of {function} in {name}");
                        assert_eq!(filled.code, encoded.code, "{context}");
                        assert_eq!(filled.places, encoded.places, "{context}");
                        assert_eq!(filled.return_point, encoded.return_point, "{context}");
                        assert_eq!(filled.frames, encoded.frames, "{context}");
                        at += (filled.code.len() as u64).next_multiple_of(32);
                    }
                    (encoded, filled) => assert_eq!(encoded.err(), filled.err(), "{what} of {function}"),
                }
            }
            n += 1;
        });
        let filled = detours.each_ref().map(Detours::filled);
        println!("{name}: of {n} functions, filled in: {filled:?}");
        if n > 1000 {
            let least = n as usize * 8 / 10;
            assert!(filled[..4].iter().all(|&filled| filled > least), "{name}: {filled:?} of {n}");
        }
        assert_eq!(filled[4], 0, "records go through the encoder");
    }
}
