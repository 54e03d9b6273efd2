//! Detours that are filled in are those that the encoder writes, byte for byte.

use crate::files::{LIBRARIES, Library};
use crate::machine::layout;
use std::collections::BTreeMap;
use trapless_isa::body::{Extra, Run, Runs, Takes};
use trapless_isa::detour::*;
use trapless_isa::payload::*;
use trapless_isa::{Displaced, Kinds, Machine, Mechanism, Site, Sketch, Spare, Template};

/// Out of the way of every library's own addresses, and in reach of them.
const ARENA: u64 = 0x2000_0000;

/// How many payloads are asked for.
const ASKED: usize = 9;

/// What is asked of the `n`-th function.
fn asked(n: u32) -> [(&'static str, Payload); ASKED] {
    let offset = 128 + 24 * n;
    let (count, record) = (EntryStep::Count(offset), EntryStep::Record { id: 2 * n, arguments: 3 });
    let (counted, timed) = (ReturnStep::Count(offset + 8), ReturnStep::Time(0x80_0000 + 5016 * n));
    let payload = |entry, at_return: Option<Steps<ReturnStep>>| Payload {
        hooks: Steps::default(),
        entry,
        followed: at_return.map(|steps| Followed { lost: 0x40_0000 + 8 * n, steps, way: Way::Paired }),
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
        ("run", payload(Steps::of([EntryStep::Run(RUN.takes)]), None)),
        (
            "run both",
            payload(
                Steps::of([count, EntryStep::Run(RUN.takes)]),
                Some(Steps::of([counted, ReturnStep::Run(RUN.takes)])),
            ),
        ),
        ("note", noted(payload(Steps::of([count]), times), Way::Noted(by_slot(n)))),
    ]
}

/// A body that every function calls.
const RUN: Run<'_> = Run {
    operands: &[],
    body: 0x7fff_1234_5678,
    takes: Takes::of(&[Extra::Site, Extra::Time, Extra::InstructionPointer]),
    frame: 256,
    vectors: false,
    calculates: false,
    site: 0,
};

fn by_slot(probe: u32) -> Noted {
    Noted { probe, by: Identity::Slot }
}

fn noted(payload: Payload, way: Way) -> Payload {
    Payload { followed: payload.followed.map(|followed| Followed { way, ..followed }), ..payload }
}

/// A function of the library, as a detour of it is asked for.
struct Found<'f> {
    function: String,
    site: Site<'f>,
    displaced: Displaced,
    original: &'f [u8],
}

impl Found<'_> {
    fn spare(&self, stack: Stack) -> Spare {
        let begins = self.displaced.start.max(self.site.address);
        Spare::at(Machine::X86_64, &self.site, begins, stack)
    }
}

/// All functions of the library, less those that no jump fits.
fn found<'l>(library: &'l Library) -> Vec<Found<'l>> {
    let isa = Machine::X86_64.isa();
    let mut all = Vec::new();
    library.each(|function, site: &Site<'l>| {
        let Ok(displaced) = isa.verdict(site).jump else { return };
        let from = (displaced.start - site.function) as usize;
        if let Some(original) = site.code.get(from..from + usize::from(displaced.length)) {
            all.push(Found { function: function.to_string(), site: *site, displaced, original });
        }
    });
    all
}

#[test]
fn filled_in_detours_are_those_that_the_encoder_writes() {
    let isa = Machine::X86_64.isa();
    let layout = layout(true);
    // What is learned in one arena is filled in in another.
    let arenas =
        [ARENA, ARENA + 0x2345_6000].map(|address| (address, isa.runtime(address, &layout).unwrap()));
    // The C library's functions have all shapes.
    let library = LIBRARIES.iter().filter(|(name, _)| *name == "libc");
    let library =
        library.filter_map(|(_, paths)| Library::open(paths)).find(|l| l.machine == Machine::X86_64);
    let Some(library) = library else { return };
    let functions = found(&library);
    let runs: Vec<[Run<'_>; 1]> = (0..functions.len()).map(|n| [Run { site: n as u32, ..RUN }]).collect();
    let usual = (0..ASKED).map(|which| (which, Stack::Enough));
    for (which, stack) in usual.chain([(0, Stack::NoneInGo)]) {
        let what = asked(0)[which].0;
        let request = |n: usize, arena: usize| DetourRequest {
            runs: match what {
                "run" => Runs { entry: &runs[n], at_return: &[] },
                "run both" => Runs { entry: &runs[n], at_return: &runs[n] },
                _ => Runs::default(),
            },
            address: arenas[arena].0 + 0x4000 + 2048 * n as u64,
            displaced: functions[n].displaced,
            original: functions[n].original,
            site: &functions[n].site,
            payload: asked(n as u32)[which].1,
            stack,
            layout: &layout,
            runtime: &arenas[arena].1,
            operands: &[],
            tells: true,
        };
        let mut kinds = Kinds::default();
        let numbers: Vec<Option<usize>> = (0..functions.len())
            .map(|n| {
                let request = request(n, n % 2);
                Some(kinds.number(Sketch::of(&request, functions[n].spare(stack))?, &request.payload))
            })
            .collect();
        let mut filled = 0;
        let mut templates: BTreeMap<usize, Option<Template>> = BTreeMap::new();
        for (n, number) in numbers.iter().enumerate() {
            let Some(number) = *number else { continue };
            let template = templates.entry(number).or_insert_with(|| {
                let other =
                    (0..n).chain(n + 1..numbers.len()).find(|&other| numbers[other] == Some(number))?;
                Template::learn(&request(n, 0), &request(other, 1))
            });
            let Some(template) = template else { continue };
            for arena in 0..arenas.len() {
                let request = request(n, arena);
                let Some(detour) = template.fill(&request) else { continue };
                let encoded = isa.detour(&request).unwrap();
                let context = format!("{what} of {}", functions[n].function);
                assert_eq!(detour.code, encoded.code, "{context}");
                assert_eq!(detour.code.len(), template.length(), "{context}");
                assert_eq!(detour.places, encoded.places, "{context}");
                assert_eq!(detour.return_point, encoded.return_point, "{context}");
                assert_eq!(detour.frames, encoded.frames, "{context}");
                filled += 1;
            }
        }
        println!("{what}: of {} functions in two arenas, filled in: {filled}", functions.len());
        match what {
            "trace" | "many" => assert_eq!(filled, 0, "{what} goes through the encoder"),
            _ => assert!(filled > 2 * functions.len() * 8 / 10, "{what}: {filled}"),
        }
    }
}

/// The exits of all functions of the library, less those that no jump fits; and the entries whose instructions reach to one, each with how
/// far.
fn found_exits<'l>(library: &'l Library) -> Vec<(Found<'l>, Option<u8>)> {
    let isa = Machine::X86_64.isa();
    let mut all = Vec::new();
    library.each(|function, entry: &Site<'l>| {
        let exits = isa.exits(entry, entry.function, Some(0), false).unwrap_or_default();
        let alone = exits.iter().map(|exit| (Site { address: exit.address, ..*entry }, None));
        let through = exits.first().map(|exit| (*entry, Some(exit.address)));
        for (site, exit) in alone.chain(through) {
            let displaced = match exit {
                Some(exit) => isa.through(&site, exit),
                None => isa.rung(&site, Mechanism::Jump),
            };
            let Ok(displaced) = displaced else { continue };
            let from = (displaced.start - site.function) as usize;
            let bytes = [site.code, site.padding].concat();
            let Some(original) = bytes.get(from..from + usize::from(displaced.length)) else { continue };
            let original = original.to_vec().leak();
            let exit = exit.map(|exit| (exit - displaced.start) as u8);
            all.push((Found { function: function.to_string(), site, displaced, original }, exit));
        }
    });
    all
}

#[test]
fn exits_with_instructions_ahead_of_them_are_filled_in_as_the_encoder_writes_them() {
    let isa = Machine::X86_64.isa();
    let layout = layout(true);
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let library = LIBRARIES.iter().find(|(name, _)| *name == "libc");
    let Some(library) = library.and_then(|(_, paths)| Library::open(paths)) else { return };
    let exits = found_exits(&library);
    let payload = |n: usize| {
        let (probe, payload) = (n as u32, asked(n as u32)[3].1);
        match exits[n].1 {
            None => noted(Payload { entry: Steps::default(), ..payload }, Way::Left(by_slot(probe))),
            Some(exit) => noted(payload, Way::Through { noted: by_slot(probe), exit }),
        }
    };
    let request = |n: usize| DetourRequest {
        runs: Runs::default(),
        address: ARENA + 0x4000 + 1024 * n as u64,
        displaced: exits[n].0.displaced,
        original: exits[n].0.original,
        site: &exits[n].0.site,
        payload: payload(n),
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        operands: &[],
        tells: true,
    };
    let (mut kinds, mut by_kind) = (Kinds::default(), BTreeMap::<usize, Vec<usize>>::new());
    for (n, (exit, _)) in exits.iter().enumerate() {
        let request = request(n);
        let Some(sketch) = Sketch::of(&request, exit.spare(Stack::Enough)) else { continue };
        by_kind.entry(kinds.number(sketch, &request.payload)).or_default().push(n);
    }
    let (mut filled, mut ahead, mut through) = (0, 0, 0);
    for all in by_kind.values().filter(|all| all.len() > 1) {
        let Some(template) = Template::learn(&request(all[0]), &request(all[1])) else { continue };
        for &n in all {
            let request = request(n);
            let Some(detour) = template.fill(&request) else { continue };
            let encoded = isa.detour(&request).unwrap();
            let context = format!("{} at {:#x}", exits[n].0.function, exits[n].0.site.address);
            assert_eq!(detour.code, encoded.code, "{context}");
            assert_eq!((&detour.places, detour.return_point), (&encoded.places, None), "{context}");
            assert!(detour.frames == encoded.frames, "{context}");
            filled += 1;
            ahead += usize::from(request.displaced.start < request.site.address);
            through += usize::from(exits[n].1.is_some());
        }
    }
    let all = exits.len();
    println!("of {all}, filled in: {filled}, with instructions ahead: {ahead}, of both: {through}");
    assert!(filled > all * 8 / 10 && ahead > all / 10 && through > all / 50);
}

#[test]
fn a_template_is_for_arenas_whose_routines_lie_alike() {
    let isa = Machine::X86_64.isa();
    let layout = layout(true);
    let runtime = isa.runtime(ARENA, &layout).unwrap();
    let library = LIBRARIES.iter().find(|(name, _)| *name == "libc");
    let Some(library) = library.and_then(|(_, paths)| Library::open(paths)) else { return };
    let functions = found(&library);
    let one = &functions[0];
    let request = DetourRequest {
        runs: Runs::default(),
        address: ARENA + 0x4000,
        displaced: one.displaced,
        original: one.original,
        site: &one.site,
        payload: asked(0)[1].1,
        stack: Stack::Enough,
        layout: &layout,
        runtime: &runtime,
        operands: &[],
        tells: false,
    };
    let template = Template::learn(&request, &request).unwrap();
    assert!(template.fill(&request).is_some());
    let mut other = runtime.clone();
    *other.routines.last_mut().unwrap() += 1;
    assert!(template.fill(&DetourRequest { runtime: &other, ..request }).is_none());
}
