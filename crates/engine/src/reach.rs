//! Can anything still lead into the arenas of sessions that were taken out?
//!
//! # Why a search can tell
//!
//! The patches are out, threads that were in an arena have been stepped out, and return addresses are put back. From then on a thread
//! gets into an arena only by an address that somebody holds already: a register of a thread, or a word of memory.
//! The target stands still, so no word moves while we look. If there is none, none will ever be, and the arenas can
//! go. If there is one, or memory was too much to be looked through ([`words_into`]), everything stays as it is
//! and the next removal or attach looks again: arenas can be run, and the regions that their detours write to are mapped.
//!
//! # Words that were left behind
//!
//! Below the stack pointer lie the remains of calls and signal frames that are over, and addresses of ours among them: where a
//! routine returned to, where a signal met a detour. They would keep memory for no reason, for as long as the program calls
//! nothing deeper. A word counts as left behind if
//!
//! 1. it lies below the stack pointer of a thread that runs on its own stack: the main thread's `[stack]`, or the mapping
//!    that holds the thread's control block above the stack, as C libraries allocate them; and
//! 2. nothing points there. A context that was switched away from keeps its stack pointer somewhere, and that is not above
//!    what it will pop. So if no word outside of what lies below the stack pointers, and no register, points to the word or
//!    deeper into this stack, nobody will come to it. (A program may keep stacks of coroutines in a local variable.)

use crate::{
    FoundSession,
    remove::Kept,
    scan::Ranges,
    search::{Searched, Word, words_into},
};
use std::ops::Range;
use trapless_process::{Mappings, MemoryError, Process, RemoteAddr, Stopped};
use trapless_wire::{Header, PAGE};

/// For each session, whether anything leads into its arenas. `all` are the sessions of the process, these among them.
pub fn leads_into(
    process: &Process,
    stopped: &Stopped<'_>,
    sessions: &[&FoundSession],
    all: &[FoundSession],
) -> Result<Vec<Option<Kept>>, MemoryError> {
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let arenas: Vec<Ranges> = sessions.iter().map(|session| arenas(&session.header)).collect();
    let registers = registers(stopped);
    let mut kept: Vec<Option<Kept>> = arenas
        .iter()
        .map(|arenas| registers.iter().any(|&value| arenas.find(value).is_some()).then_some(Kept::Context))
        .collect();
    if kept.iter().all(Option::is_some) {
        return Ok(kept);
    }

    // What a session's own memory says of its arenas is the protocol's business, and leads nobody there.
    let own: Vec<Vec<Range<u64>>> = sessions.iter().map(|session| regions(&session.header)).collect();
    let skip = if let [only] = own.as_slice() { only.as_slice() } else { &[] };
    let every = Ranges::new(sessions.iter().flat_map(|session| ranges_of_arenas(&session.header)));
    let Searched::Whole(words) = words_into(process, &maps, &every, skip)? else {
        kept.iter_mut().for_each(|kept| {
            kept.get_or_insert(Kept::Unsearched);
        });
        return Ok(kept);
    };
    let mut below = stacks_below(stopped, &maps);
    let mut left_behind = vec![false; sessions.len()];
    for (index, kept) in kept.iter_mut().enumerate() {
        let is_foreign = |word: &&Word| !own[index].iter().any(|own| own.contains(&word.at));
        for word in words.iter().filter(|word| arenas[index].find(word.value).is_some()).filter(is_foreign) {
            match below.iter_mut().find(|below| below.range.contains(&word.at)) {
                Some(below) => {
                    below.highest = below.highest.max(word.at);
                    left_behind[index] = true;
                }
                None => *kept = Some(Kept::Context),
            }
        }
    }
    let undecided = kept.iter().zip(&left_behind).any(|(kept, left_behind)| kept.is_none() && *left_behind);
    if undecided && pointed_to(process, &maps, &below, &registers, all)? {
        for (kept, left_behind) in kept.iter_mut().zip(left_behind) {
            if left_behind {
                *kept = Some(Kept::Context);
            }
        }
    }
    Ok(kept)
}

fn ranges_of_arenas(header: &Header) -> impl Iterator<Item = (u64, u64)> + use<'_> {
    header.arenas().map(|arena| (arena.address, arena.address.saturating_add(arena.size)))
}

fn arenas(header: &Header) -> Ranges {
    Ranges::new(ranges_of_arenas(header))
}

/// All memory of a session.
fn regions(header: &Header) -> Vec<Range<u64>> {
    let data = [
        (header.region, header.region_size),
        (header.threads, header.threads_size),
        (header.returns, header.returns_size),
    ];
    let data = data.into_iter().map(|(address, size)| address..address.saturating_add(size));
    data.chain(ranges_of_arenas(header).map(|(start, end)| start..end)).collect()
}

/// What all threads hold, but their stack pointers.
fn registers(stopped: &Stopped<'_>) -> Vec<u64> {
    const STACK_POINTER: u8 = 4;
    let of_thread = |registers: trapless_process::Registers| {
        let general = (0..16).filter(|&number| number != STACK_POINTER);
        general.map(move |number| registers.general(number)).chain([registers.ip_value()])
    };
    stopped.threads().iter().flat_map(|thread| of_thread(*thread.registers())).collect()
}

/// What lies below the stack pointer of a thread on its own stack.
struct Below {
    range: Range<u64>,
    /// The highest word that may have been left behind there.
    highest: u64,
}

fn stacks_below(stopped: &Stopped<'_>, maps: &Mappings) -> Vec<Below> {
    let leader = stopped.process().pid().leader();
    let places: Vec<(u64, u64)> = stopped
        .threads()
        .iter()
        .map(|thread| (thread.registers().sp_value(), thread.registers().thread_pointer().0))
        .collect();
    let mut stacks = Vec::new();
    for (thread, &(sp, thread_pointer)) in stopped.threads().iter().zip(&places) {
        let Some(mapping) = maps.find(RemoteAddr(sp)) else { continue };
        let is_main = mapping.is_special("[stack]") && thread.tid() == leader;
        let is_own = thread_pointer > sp && mapping.contains(RemoteAddr(thread_pointer));
        if !is_main && !is_own {
            continue;
        }
        // Stacks without guard pages are one mapping: the next one below ends behind its thread's control block.
        let others = places.iter().flat_map(|&(sp, thread_pointer)| [sp, thread_pointer]);
        let next = others.filter(|&at| at < sp && mapping.contains(RemoteAddr(at))).max();
        let start = next.map_or(mapping.start.0, |at| at.next_multiple_of(PAGE));
        stacks.push(Below { range: start..sp.max(start), highest: 0 });
    }
    stacks
}

/// Whether anything points to what may have been left behind, or deeper.
fn pointed_to(
    process: &Process,
    maps: &Mappings,
    below: &[Below],
    registers: &[u64],
    all: &[FoundSession],
) -> Result<bool, MemoryError> {
    let deep = below.iter().filter(|below| below.highest != 0);
    let deep = Ranges::new(deep.map(|below| (below.range.start + 1, below.highest + 1)));
    if registers.iter().any(|&value| deep.find(value).is_some()) {
        return Ok(true);
    }
    // Sessions note addresses of stack slots, and switch to none.
    let ours = all.iter().flat_map(|session| regions(&session.header));
    let skip: Vec<_> = below.iter().map(|below| below.range.clone()).chain(ours).collect();
    Ok(words_into(process, maps, &deep, &skip)? != Searched::Whole(Vec::new()))
}
