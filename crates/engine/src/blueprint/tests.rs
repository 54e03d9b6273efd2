//! What holds of every blueprint: each piece stands where its journal says, by itself, and is what the encoder writes for that place.

use super::*;
use crate::admit::{Arrival, Facts, Functions, Known, Runtimes};
use crate::{Function, Home, Meant, Module, Request, Role, Wanted};
use trapless_isa::{BranchTargets, DetourRequest, Machine, Mechanism, Stack};

/// The beginnings of functions, each as long as a jump or longer, with registers that are dead there and some that are not.
const BEGINNINGS: [&[u8]; 5] = [
    &[0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0], // push rbp; mov rbp,rsp; xor eax,eax
    &[0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x0e], // mov rax,[rdi+8]; mov rcx,[rsi]
    &[0x48, 0x8b, 0x05, 0x00, 0x01, 0x00, 0x00], // mov rax,[rip+256]
    &[0x41, 0x57, 0x41, 0x56, 0x41, 0x55], // push r15; push r14; push r13
    &[0x31, 0xc9, 0x31, 0xd2, 0x31, 0xf6, 0x31, 0xff, 0x45, 0x31, 0xc0], // xor ecx,ecx; …; xor r8d,r8d
];
const RET: u8 = 0xc3;

const LIBRARIES: [u64; 2] = [0x7f00_0000_0000, 0x7f00_2000_0000];
const SIZE: u64 = 0x10_0000;

/// A library of so many functions, and where each begins.
fn library(functions: usize) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut text = Vec::new();
    let ranges = (0..functions).map(|n| {
        let start = text.len();
        text.extend_from_slice(BEGINNINGS[n % BEGINNINGS.len()]);
        text.push(RET);
        start..text.len()
    });
    let ranges = ranges.collect();
    (text, ranges)
}

fn space() -> Space {
    let mut maps = String::new();
    for start in LIBRARIES {
        maps += &format!("{start:x}-{:x} r-xp 00000000 08:01 7 /lib/one.so\n", start + SIZE);
    }
    Space::of_maps(&maps)
}

/// Two libraries with every function probed, in one of three ways.
fn with_plan(functions: usize, allowed: &[Mechanism], check: impl FnOnce(&Plan<'_>)) {
    let (text, ranges) = library(functions);
    let targets = BranchTargets::default();
    let function = |start: u64, range: &Range<usize>| Function {
        address: start + range.start as u64,
        bytes: &text[range.clone()],
        size: range.len(),
    };
    let known = LIBRARIES.map(|start| {
        let known = ranges.iter().map(|range| {
            let function = function(start, range);
            let known = Known {
                function,
                names: vec!["f"],
                arrival: Arrival::Called,
                is_told: true,
                goes_on: vec![],
            };
            (function.address, known)
        });
        known.collect::<Functions<'_>>()
    });
    let modules = LIBRARIES.iter().zip(&known).map(|(&start, functions)| Module {
        machine: Machine::X86_64,
        start,
        end: start + SIZE,
        targets: &targets,
        observed: Vec::new(),
        runtimes: Runtimes::default(),
        entry: 0,
        goroutines: None,
        functions,
        code: &(),
    });
    let entry = Wanted { entries: true, ..Wanted::default() };
    let ways = [
        entry,
        Wanted { returns: true, ..entry },
        Wanted { returns: true, latency: true, record_entry: Some(1), ..entry },
    ];
    let places = LIBRARIES.iter().enumerate().flat_map(|(module, &start)| {
        ranges.iter().map(move |range| (module, function(start, range))).collect::<Vec<_>>()
    });
    let requests: Vec<Request<'_>> = (0..)
        .zip(places)
        .map(|(id, (module, function))| Request {
            id,
            role: Role::Whole,
            module,
            function,
            address: function.address,
            wanted: ways[id as usize % ways.len()],
            mechanism: None,
            semaphores: &[],
            operands: None,
            clauses: Default::default(),
            live_patch: None,
            unread: None,
            meant: Meant::Calls,
        })
        .collect();
    let plan = Plan::new(&Facts::default(), modules.collect(), &requests, allowed, Home::default());
    assert_eq!(plan.sites.len(), requests.len(), "{:?}", plan.skipped);
    check(&plan);
}

fn draw<'p, 'm>(plan: &'p Plan<'m>) -> Blueprint<'p, 'm> {
    let blueprint =
        Blueprint::draw(&space(), plan, Sizes::ALL[0], ThreadMemory::of_c_library(Some(8))).unwrap();
    assert_eq!(blueprint.plan().skipped, []);
    assert_eq!((blueprint.journal.len(), blueprint.places.len()), (plan.sites.len(), plan.sites.len()));
    blueprint
}

/// What stands in an arena.
fn code_at<'b>(blueprint: &'b Blueprint<'_, '_>, address: u64, length: usize) -> &'b [u8] {
    let arenas = blueprint.header.arenas().zip(&blueprint.code);
    let mut holding =
        arenas.filter(|(arena, _)| (arena.address..arena.address + arena.size).contains(&address));
    let (arena, code) = holding.next().expect("an arena");
    let offset = (address - arena.address) as usize;
    &code[offset..offset + length]
}

#[test]
fn what_stands_in_an_arena_is_what_the_encoder_writes_for_that_place() {
    // More than one thread's share, and fewer than make a template worth it.
    for functions in [1, 12, 900] {
        with_plan(functions, &[Mechanism::Jump], |plan| {
            let blueprint = draw(plan);
            let layout = blueprint.header.layout(ThreadMemory::of_c_library(Some(8)));
            let isa = Machine::X86_64.isa();
            let runtimes = blueprint.header.arenas().map(|arena| {
                // The routines stand first, behind a line in which nothing runs.
                let runtime = isa.runtime(arena.address + 32, &layout).unwrap();
                assert_eq!(code_at(&blueprint, arena.address + 32, runtime.code.len()), runtime.code);
                runtime
            });
            let runtimes: Vec<_> = runtimes.collect();
            let mut taken = Vec::new();
            for (site, journaled) in plan.sites.iter().zip(blueprint.journal.sites()) {
                assert_eq!(journaled.site, site.displaced.start);
                let address = journaled.detour;
                let detour = isa
                    .detour(&DetourRequest {
                        runs: trapless_isa::body::Runs::default(),
                        address,
                        displaced: site.displaced,
                        original: site.original(),
                        site: &site.site(&plan.modules),
                        payload: site.payload(),
                        stack: Stack::Enough,
                        layout: &layout,
                        runtime: &runtimes[site.request.module],
                        operands: &[],
                        tells: false,
                    })
                    .unwrap();
                let arena = blueprint.header.arenas().nth(site.request.module).unwrap();
                let runtime_ends = arena.address + 32 + runtimes[site.request.module].code.len() as u64;
                // So close to the routines the encoder finds shorter branches.
                if address - runtime_ends > 512 {
                    let length = journaled.detour_size as usize;
                    assert_eq!(code_at(&blueprint, address, length), detour.code, "{site:?}");
                    let point = detour.return_point.map_or(0, |offset| address + u64::from(offset));
                    assert_eq!(journaled.return_point(), point);
                }
                taken.push((address, address + u64::from(journaled.detour_size)));
            }
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "pieces overlap");
        });
    }
}

#[test]
fn arenas_are_no_larger_than_what_stands_in_them() {
    with_plan(300, &[Mechanism::Jump], |plan| {
        let blueprint = draw(plan);
        for (arena, code) in blueprint.header.arenas().zip(&blueprint.code) {
            assert!(arena.size >= code.len() as u64 && arena.size < code.len() as u64 + PAGE);
        }
        let ends = blueprint.journal.sites().map(|site| site.detour + u64::from(site.detour_size)).max();
        let last = blueprint.header.arenas().map(|arena| arena.address + arena.size).max();
        assert!(last.zip(ends).is_some_and(|(last, ends)| last - ends < PAGE));
    });
}

#[test]
fn slots_stand_where_their_sites_say() {
    with_plan(40, &[Mechanism::Boost, Mechanism::Step], |plan| {
        let blueprint = draw(plan);
        assert_eq!(blueprint.traps.len(), plan.sites.len());
        for (trap, site) in blueprint.traps.iter().zip(&plan.sites) {
            assert_eq!(trap.address, site.displaced.start);
            let slot = code_at(&blueprint, trap.slot_address, trap.slot.code.len() + 2);
            assert_eq!(slot, [&trap.slot.code[..], &[0xcc, 0xcc]].concat());
            assert_eq!(trap.pad, trap.slot_address + trap.slot.code.len() as u64 + 1);
        }
    });
}
