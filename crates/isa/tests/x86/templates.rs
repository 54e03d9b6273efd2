//! Detours that are filled in are those that the encoder writes, byte for byte.

use crate::files::{LIBRARIES, Library};
use crate::machine::layout;
use trapless_isa::detour::*;
use trapless_isa::payload::*;
use trapless_isa::{Detours, Machine, Site, Spare};

/// Out of the way of every library's own addresses, and in reach of them.
const ARENA: u64 = 0x2000_0000;

/// How many payloads are asked for.
const ASKED: usize = 6;

/// What is asked of the `n`-th function.
fn asked(n: u32) -> [(&'static str, Payload); ASKED] {
    let offset = 128 + 24 * n;
    let (count, record) = (EntryStep::Count(offset), EntryStep::Record { id: 2 * n, arguments: 3 });
    let (counted, timed) = (ReturnStep::Count(offset + 8), ReturnStep::Time(0x80_0000 + 5016 * n));
    let payload = |entry, at_return: Option<Steps<ReturnStep>>| Payload {
        hooks: Steps::default(),
        entry,
        followed: at_return.map(|steps| Followed { lost: 0x40_0000 + 8 * n, steps }),
    };
    let (counts, times) = (Some(Steps::of([counted])), Some(Steps::of([counted, timed])));
    let many = [ReturnStep::Count(offset + 16), counted, timed];
    [
        ("count", payload(Steps::of([count]), None)),
        ("return", payload(Steps::of([]), counts)),
        ("both", payload(Steps::of([count]), counts)),
        ("latency", payload(Steps::of([count]), times)),
        ("trace", payload(Steps::of([count, record]), times)),
        ("many", payload(Steps::of([count, count]), Some(Steps::of(many)))),
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
        let mut detours = [(); ASKED].map(|()| Detours::new(Machine::X86_64));
        let (mut at, mut n) = (ARENA + 0x4000, 0);
        library.each(|function, site: &Site<'_>| {
            let Ok(displaced) = isa.verdict(site).jump else { return };
            let from = (displaced.start - site.function) as usize;
            let Some(original) = site.code.get(from..from + usize::from(displaced.length)) else {
                return;
            };
            let spare = Spare::at(Machine::X86_64, site, displaced.start);
            for ((what, payload), detours) in asked(n).into_iter().zip(&mut detours) {
                let request = DetourRequest {
                    address: at,
                    displaced,
                    original,
                    site,
                    payload,
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
        assert_eq!(filled[5], 0, "more offsets than templates have parameters go through the encoder");
    }
}
