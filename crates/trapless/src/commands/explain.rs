//! `explain`: the original bytes, the displaced instructions and the detour of a site, or why there is none.

use super::sites::Place;
use crate::cli::validated::Listing;
use crate::error::Error;
use crate::report::{ListedUsdt, plural};
use crate::resolve;
use crate::session::Prepared;
use crate::terminal::printable;
use std::fmt::Write as _;
use std::io::Write as _;
use trapless_engine::admit::{Rungs, judge_returns, room_of, rungs, stack_of, turns_of};
use trapless_engine::{Module, PlannedSite, Refusal, Request, Role, Stretch, Wanted};
use trapless_isa::{
    Detour, DetourRequest, Displaced, EntryStep, Followed, Isa, Layout, Machine, Mechanism, Past, Payload,
    Reason, ReturnStep, Site, Stack, Steps, Way,
    detour::{return_sizes, signals::Signals},
};

/// Shows it.
///
/// # Errors
/// Nothing matches, or a file cannot be read.
pub fn run(listing: &Listing) -> Result<u8, Error> {
    let place = Place::open(listing)?;
    let process = place.process();
    let prepared = Prepared::new(process, &place.images, place.sites(listing)?, true)?;
    let asked = |site: &resolve::Site| site.kinds.are_any();
    let entry = |site: &resolve::Site| Wanted { entries: asked(site), ..Wanted::default() };
    let both = |site: &resolve::Site| {
        let returns = asked(site) && site.no_return.is_none();
        Wanted { returns, unwinder: site.unwinder, ..entry(site) }
    };
    let allowed = &listing.selection.mechanisms;
    let (entries, returns) = (prepared.offers(entry, allowed)?, prepared.offers(both, allowed)?);
    let followed = &returns;
    // Those that attaching judges by.
    let facts = entries.facts;
    let (entries, returns) = (entries.answers(), returns.answers());
    let (modules, requests) = prepared.requests(both);
    let judged = judge_returns(&facts, &modules, &requests);
    let mut output = listing.output.open()?;
    for (request, judged) in requests.iter().zip(judged) {
        let site = &prepared.sites().sites[request.id as usize];
        if !asked(site) {
            continue;
        }
        let names: Vec<String> =
            site.names().map(|name| format!("{}:{name}", site.module_name(&place.images))).collect();
        let title = names.join(" and ");
        let usdt = site.usdt.iter().map(|usdt| place.told_usdt(site, usdt, prepared.notes(request.id)));
        let usdt: Vec<ListedUsdt> = usdt.collect::<Result<_, _>>()?;
        let entry = entries.get(&request.id);
        let planned = returns.get(&request.id);
        let exits: Vec<&PlannedSite<'_>> = followed.exits(request.id).collect();
        // What is said of the entry is said once.
        let refused = planned.and_then(|answer| answer.err());
        let refused = refused
            .filter(|refusal| matches!(refusal, Refusal::Unwinder | Refusal::Exit(..) | Refusal::NoSplit));
        // What is in the way of following its calls is told apart.
        let counted = Wanted { returns: false, ..request.wanted };
        let rungs = rungs(&facts, &modules, &Request { wanted: counted, ..*request });
        let verdicts = Verdicts {
            room: rungs
                .short
                .as_ref()
                .ok()
                .and_then(|displaced| room_of(&facts, &modules, request, *displaced).ok()),
            rungs,
            chosen: entry.and_then(|answer| answer.ok()).map(|planned| planned.mechanism),
            refused: entry.and_then(|answer| answer.err()),
            returns: match (&site.no_return, planned, refused, judged) {
                (Some(why), ..) => Returns::No(why.reason.clone()),
                (_, _, Some(refusal), _) => Returns::No(refusal.to_string()),
                (_, Some(Ok(entry)), _, Err(_)) => Returns::ByExits(entry, exits),
                (_, _, _, Ok(())) => Returns::Paired,
                (_, _, _, Err(refusal)) => Returns::No(refusal.to_string()),
            },
            usdt,
        };
        let facts = &facts;
        let turns = |displaced| turns_of(facts, &modules, request, displaced).unwrap_or_default();
        let text = explain(&title, &modules, request, site.kinds.returns, &verdicts, turns);
        for line in text.lines() {
            writeln!(output, "{}", printable(line)).map_err(|error| listing.output.error(error))?;
        }
    }
    for skipped in &prepared.sites().skipped {
        let site = printable(&format!("{}:{}", skipped.module, skipped.function));
        writeln!(output, "{site}\n  {}\n", printable(&skipped.why.reason))
            .map_err(|error| listing.output.error(error))?;
    }
    output.flush().map_err(|error| listing.output.error(error))?;
    Ok(0)
}

/// Addresses of probe memory in the explanation, but for what is `near`: round numbers that stand for what arming chooses.
fn example_layout(machine: Machine, near: u64) -> Layout {
    if machine == Machine::I386 {
        return Layout {
            threads: 0xa000_1000,
            thread_bits: 9,
            origin: 0xa000_0000,
            block_cursor: 0xa010_0d00,
            blocks: 0xa011_0000,
            block_count: 513,
            pages: 0xb000_0000,
            returns: 0xb000_0000 + return_sizes(11, 2)[0],
            return_bits: 11,
            slot_shift: 2,
            arenas: 0xa010_0100,
            signals: None,
            gate: 0,
            ..example_layout(Machine::X86_64, near)
        };
    }
    Layout {
        threads: 0x2000_0000_1000,
        thread_bits: 13,
        origin: 0x2000_0000_0000,
        block_cursor: 0x2000_1000_0d00,
        blocks: 0x2000_1001_0000,
        block_stride: 0x1000,
        block_count: 8193,
        ring: 0,
        ring_bits: 0,
        self_pointer: true,
        tid_offset: None,
        selector: 0x63,
        pages: 0x2100_0000_0000,
        returns: 0x2100_0000_0000 + return_sizes(17, machine.isa().facts().slot_shift)[0],
        return_bits: 17,
        slot_shift: machine.isa().facts().slot_shift,
        arenas: 0x2000_1000_0100,
        signals: machine.isa().shows_handlers_the_program().then_some(Signals {
            table: 0x2200_0000_0000,
            arena: 0x2200_0000_1000,
            stops: 0,
            hops: (0, 0),
            program: 0,
            key: 1,
        }),
        gate: 0x2000_1000_0d08,
        near,
        stacks: 0,
        points: 0,
        additions: trapless_isa::Additions::Loops,
    }
}

/// How its calls would be followed to their return.
enum Returns<'p> {
    Paired,
    /// From this entry to these places where it is left, or the one among its own displaced instructions.
    ByExits(&'p PlannedSite<'p>, Vec<&'p PlannedSite<'p>>),
    /// Not at all, and why.
    No(String),
}

/// What the judge says of a site.
struct Verdicts<'p> {
    rungs: Rungs,
    /// What a short jump takes, where one is possible.
    room: Option<Stretch<'p>>,
    chosen: Option<Mechanism>,
    /// Why none is chosen.
    refused: Option<&'p Refusal>,
    returns: Returns<'p>,
    /// The USDT probes there: those have no return.
    usdt: Vec<ListedUsdt>,
}

fn explain<'m>(
    title: &str,
    modules: &[Module<'m>],
    request: &Request<'m>,
    returns: bool,
    verdicts: &Verdicts<'_>,
    turns: impl FnOnce(Displaced) -> Vec<Stretch<'m>>,
) -> String {
    let module = &modules[request.module];
    let isa = module.machine.isa();
    let site = Site {
        address: request.address,
        padding: request.function.padding(),
        ..Site::new(request.function.address, request.function.code(), module.targets)
    };
    let mut text = format!("{title} at {:#x}\n", request.address);
    for usdt in &verdicts.usdt {
        let _ = writeln!(text, "  {:<8} {}:{} {}", "usdt", usdt.provider, usdt.name, usdt.text());
    }
    for (mechanism, rung) in verdicts.rungs.all() {
        let _ = match rung {
            Ok(displaced) => {
                let together = match mechanism {
                    Mechanism::Emulate => together(isa, &site, *displaced),
                    _ => String::new(),
                };
                let chosen = if verdicts.chosen == Some(mechanism) { ", chosen" } else { "" };
                writeln!(text, "  {mechanism:<8} possible{together}{chosen}")
            }
            Err(refusal) => writeln!(text, "  {mechanism:<8} no: {refusal}"),
        };
    }
    let _ = match &verdicts.returns {
        _ if !verdicts.usdt.is_empty() => {
            writeln!(text, "  {:<8} no: a USDT probe is a place in a function, which has no return", "return")
        }
        Returns::Paired => writeln!(text, "  {:<8} possible", "return"),
        Returns::ByExits(entry, exits) => {
            let own = usize::from(matches!(entry.request.role, Role::Through { .. }));
            let count = plural((exits.len() + own) as u64, "place");
            writeln!(text, "  {:<8} possible, by the {count} where it is left", "return")
        }
        Returns::No(refusal) => writeln!(text, "  {:<8} no: {refusal}", "return"),
    };
    // What no mechanism can change: memory, other tools, other probes.
    if let Some(refusal) =
        verdicts.refused.filter(|r| verdicts.rungs.all().all(|(_, rung)| rung.as_ref().err() != Some(r)))
    {
        let _ = writeln!(text, "  {:<8} no: {refusal}", "here");
    }
    let short = verdicts.rungs.short.as_ref().ok().and_then(|displaced| verdicts.room.zip(Some(*displaced)));
    if let Some((room, displaced)) = short.filter(|_| verdicts.rungs.jump.is_err()) {
        let Stretch { displaced: room, original } = room;
        let entrance = isa.entrance(&room);
        let _ = writeln!(text, "\n  a short jump leads from {:#x} to {entrance:#x}", displaced.start);
        let _ = match room.instructions {
            0 => writeln!(text, "  its room: {} of padding", plural(room.length.into(), "byte")),
            moved => writeln!(
                text,
                "  its room: {}, {} moved away",
                plural(room.length.into(), "byte"),
                plural(moved.into(), "instruction")
            ),
        };
        listing(&mut text, isa, original, room.start, &[]);
    }
    let jump = verdicts.rungs.jump.as_ref().ok().copied();
    let displaced = match &verdicts.returns {
        Returns::ByExits(entry, _) if returns => Some(entry.displaced),
        _ => jump.or(short.map(|(_, displaced)| displaced)),
    };
    if let Some(displaced) = displaced {
        let original = original(request, &displaced);
        let _ = writeln!(
            text,
            "\n  displaced: {}, {}",
            plural(displaced.length.into(), "byte"),
            plural(displaced.instructions.into(), "instruction")
        );
        listing(&mut text, isa, original, displaced.start, &[]);
        match detour(
            isa,
            &site,
            displaced,
            original,
            stack_of(module, request),
            match &verdicts.returns {
                _ if !returns || !verdicts.usdt.is_empty() => None,
                Returns::Paired => Some(Way::Paired),
                Returns::ByExits(entry, _) => entry.payload().followed.map(|followed| followed.way),
                Returns::No(_) => None,
            },
        ) {
            Ok((address, detour)) => {
                let Detour { code, comments, .. } = &detour;
                let _ = writeln!(text, "\n  detour: {}, counting", plural(code.len() as u64, "byte"));
                listing(&mut text, isa, code, address, comments);
                for turn in turns(displaced) {
                    let copy = address + u64::from(detour.copy_of(displaced.start).unwrap_or_default());
                    let past = Past { function: site.function, start: displaced.start, copy };
                    turned(&mut text, isa, &turn, past, address + code.len() as u64);
                }
            }
            Err(reason) => {
                let _ = writeln!(text, "\n  no detour: {reason}");
            }
        }
    }
    if let Returns::ByExits(_, exits) = &verdicts.returns {
        for exit in exits {
            let (address, displaced) = (exit.request.address, exit.displaced);
            let _ = writeln!(
                text,
                "\n  left at {address:#x} by a {}, displaced: {}, {}",
                exit.mechanism,
                plural(displaced.length.into(), "byte"),
                plural(displaced.instructions.into(), "instruction")
            );
            listing(&mut text, isa, exit.original(), displaced.start, &[]);
        }
    }
    text.push('\n');
    text
}

/// How many instructions are emulated at once, where it is more than one.
fn together(isa: &dyn Isa, site: &Site<'_>, first: Displaced) -> String {
    match isa.together(site, first, None).instructions {
        1 => String::new(),
        instructions => format!(" ({instructions} instructions in one trap)"),
    }
}

fn original<'m>(request: &Request<'m>, displaced: &Displaced) -> &'m [u8] {
    let start = (displaced.start - request.function.address) as usize;
    request.function.bytes.get(start..start + usize::from(displaced.length)).unwrap_or_default()
}

/// A jump back to the entry, and what it becomes where a detour ends at `end`.
fn turned(text: &mut String, isa: &dyn Isa, turn: &Stretch<'_>, past: Past, end: u64) {
    let Stretch { displaced, original } = turn;
    let length = plural(displaced.length.into(), "byte");
    let start = displaced.start;
    let _ = match displaced.instructions {
        0 => writeln!(text, "\n  jumps back to the entry at {start:#x}, {length}, and leads past the probe"),
        moved => writeln!(
            text,
            "\n  jumps back to the entry at {start:#x}, {length}, {} moved away",
            plural(moved.into(), "instruction")
        ),
    };
    listing(text, isa, original, start, &[]);
    let to = (end + 1).next_multiple_of(16);
    match (displaced.instructions, isa.turned(displaced, original, past.copy)) {
        (0, Ok(code)) => listing(text, isa, &code, start, &[(0, String::from("led past the probe"))]),
        _ => {
            if let Ok(moved) = isa.moved(displaced, original, to, Some(past)) {
                listing(text, isa, &moved.code, to, &[(0, String::from("the copy, led past the probe"))]);
            }
        }
    }
}

/// The detour as it would be a little behind the module, and where.
fn detour(
    isa: &dyn Isa,
    site: &Site<'_>,
    displaced: Displaced,
    original: &[u8],
    stack: Stack,
    way: Option<Way>,
) -> Result<(u64, Detour), Reason> {
    let arena = (site.address & !0xf_ffff) + 0x10_0000;
    let layout = example_layout(isa.machine(), arena + 0x10_0000);
    let runtime = isa.runtime(arena, &layout)?;
    let address = arena + 0x4000;
    let followed = |way| Followed { lost: 144, steps: Steps::of([ReturnStep::Count(136)]), way };
    let payload = Payload {
        hooks: Steps::default(),
        entry: Steps::of([EntryStep::Count(128)]),
        followed: way.map(followed),
    };
    let request = DetourRequest {
        runs: trapless_isa::body::Runs::default(),
        address,
        displaced,
        original,
        site,
        payload,
        stack,
        layout: &layout,
        runtime: &runtime,
        operands: &[],
        tells: false,
    };
    Ok((address, isa.detour(&request)?))
}

/// Instructions with their addresses and bytes, comments above the instruction they belong to.
fn listing(text: &mut String, isa: &dyn Isa, code: &[u8], address: u64, comments: &[(u32, String)]) {
    let mut at = 0;
    while at < code.len() {
        for (_, comment) in comments.iter().filter(|(offset, _)| *offset as usize == at) {
            let _ = writeln!(text, "    ; {comment}");
        }
        let here = address + at as u64;
        let length = isa.decode(&code[at..], here).map_or(1, |i| usize::from(i.length).max(1));
        let bytes: Vec<String> = code[at..].iter().take(length).map(|byte| format!("{byte:02x}")).collect();
        let _ =
            writeln!(text, "    {here:12x}  {:<24}  {}", bytes.join(" "), isa.disassemble(&code[at..], here));
        at += length;
    }
}
