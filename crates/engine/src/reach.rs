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
//! Stacks hold the remains of calls and signal frames that are over, and addresses of ours among them: where a routine returned to,
//! where a signal met a detour. They would keep memory for no reason, for as long as the program calls nothing deeper.
//! A word counts as left behind if
//!
//! 1. it lies below the stack pointer of a thread that runs on its own stack (the main thread's `[stack]`, or the mapping
//!    that holds the thread's control block above the stack, as C libraries allocate them), or on a stack without a thread:
//!    `[stack]` or an anonymous mapping into which no stack pointer points, neither a thread's nor one that a handler on another stack goes back
//!    to ([`crate::stacks`]), also not into its guard; and
//! 2. nothing points there. A context that was switched away from keeps its stack pointer somewhere, and that is not above
//!    what it will pop. So if no word outside of such remains, and no register, points to the word or deeper into
//!    this stack, nobody will come to it. (A program may keep stacks of coroutines in a local variable.) A word that points to
//!    where nothing was ever written is none: whoever switches away has pushed something right below where it will go on. Such words
//!    come about when the lower half of an old pointer is overwritten, and a large stack holds the address that results. Nor is one
//!    that is no multiple of a word, or that nobody has written ([`Unwritten`]).

use crate::{
    FoundSession,
    found::find_headers,
    remove::Kept,
    returns::{self, Points},
    scan::{Ranges, address_of, words_near_stack_pointers},
    search::{MOST, Searched, Unwritten, Word, fit, touched, words_into},
    stacks::Stacks,
};
use std::ops::Range;
use trapless_isa::detour::{STACK_LEVEL, STACK_LEVELS, STACK_SHIFT, STACK_USED};
use trapless_process::{
    Mapping, Mappings, MemoryError, Process, ReadRange, RemoteAddr, Stopped, Thread, page_size,
};
use trapless_wire::{Checked, Header};

/// Whether a process has so little memory that all of it could be looked through, if it stood still.
pub fn can_be_searched(process: &Process) -> bool {
    let skip = |all: Vec<Checked>| all.iter().flat_map(|header| regions(header)).collect::<Vec<_>>();
    let skip = find_headers(process).map(skip).unwrap_or_default();
    process.maps().is_ok_and(|maps| fit(process, &maps, &skip, MOST))
}

/// For each session, whether anything leads into its arenas. `all` are the sessions of the process, these among them.
pub fn leads_into(
    process: &Process,
    stopped: &Stopped<'_>,
    sessions: &[&FoundSession],
    all: &[Checked],
) -> Result<Vec<Option<Kept>>, MemoryError> {
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let stacks = Stacks::new(process, stopped, &maps, all);
    let of_bodies = sessions.iter().map(|session| stacks_in_use(process, &session.header));
    let of_bodies: Vec<Vec<(u64, u64)>> = of_bodies.collect::<Result<_, _>>()?;
    let of = |(session, of_bodies): (&&FoundSession, &Vec<(u64, u64)>)| {
        Ranges::new(ranges_of_arenas(process, &session.header).chain(of_bodies.iter().copied()))
    };
    let arenas: Vec<Ranges> = sessions.iter().zip(&of_bodies).map(of).collect();
    let points: Vec<Points> = sessions.iter().map(|session| returns::points(session)).collect();
    let registers = registers(stopped);
    let mut kept: Vec<Option<Kept>> = (0..sessions.len())
        .map(|index| match registers.iter().any(|&value| is_point(&points[index], value)) {
            true => Some(Kept::Unwinding),
            false => registers.iter().find_map(|&value| arenas[index].find(value)).map(|_| Kept::Context),
        })
        .collect();
    if kept.iter().all(|kept| *kept == Some(Kept::Unwinding)) {
        return Ok(kept);
    }

    // What a session's own memory says of its arenas is the protocol's business, and leads nobody there.
    let own: Vec<Vec<Range<u64>>> = sessions.iter().map(|session| regions(&session.header)).collect();
    // Of others, only the instances of followed calls hold addresses to return to.
    let mut skip: Vec<Range<u64>> = all
        .iter()
        .flat_map(|header| {
            let instances = header.returns..header.returns.saturating_add(header.returns_size);
            regions(header).into_iter().filter(move |region| *region != instances)
        })
        .collect();
    if let [only] = own.as_slice() {
        skip.extend(only.iter().cloned());
    }
    let every = sessions.iter().flat_map(|session| ranges_of_arenas(process, &session.header));
    let every = Ranges::new(every.chain(of_bodies.iter().flatten().copied()));
    let is_into = |index: usize, word: &Word| {
        arenas[index].find(word.value).is_some() && !own[index].iter().any(|own| own.contains(&word.at))
    };
    let counts = |word: &Word| (0..sessions.len()).any(|index| is_into(index, word));
    let found = live_words(&stacks, &every, &skip, counts)?;
    // Most often there is no word, and where frames are need not be known.
    let frames = match &found {
        Searched::Whole(words) if !words.is_empty() => Frames::of(&stacks)?,
        _ => Frames::default(),
    };
    for (index, kept) in kept.iter_mut().enumerate() {
        let found = match &found {
            Searched::TooMuch => Some(Kept::Unsearched),
            Searched::Whole(words) => {
                let why = |word: &Word| {
                    let may_ask = frames.hold(word.at);
                    let is_unwinders =
                        returns::is_unwinders(process, sessions[index], &points[index], *word, may_ask);
                    if is_unwinders { Kept::Unwinding } else { Kept::Context }
                };
                surest(words.iter().filter(|word| is_into(index, word)).map(why))
            }
        };
        *kept = surest([*kept, found].into_iter().flatten());
    }
    Ok(kept)
}

/// That of several reasons which asks for most: where not all was looked at, nothing is known of unwinders either.
fn surest(reasons: impl Iterator<Item = Kept>) -> Option<Kept> {
    reasons.max_by_key(|kept| match kept {
        Kept::Unwinding => 2,
        Kept::Unsearched => 1,
        _ => 0,
    })
}

/// Whether a thread holds a return point of a session that an unwinder may be about to ask about, in a register or near its stack
/// pointer. Quick, however much memory there is.
pub fn may_be_unwinding(
    process: &Process,
    stopped: &Stopped<'_>,
    session: &FoundSession,
) -> Result<bool, MemoryError> {
    let points = returns::points(session);
    if registers(stopped).iter().any(|&value| is_point(&points, value)) {
        return Ok(true);
    }
    let words =
        words_near_stack_pointers(process, stopped, &session.header, &arenas(process, &session.header))?;
    let is_unwinders = |word: Word| returns::is_unwinders(process, session, &points, word, true);
    Ok(words.is_none_or(|words| words.into_iter().any(is_unwinders)))
}

/// A return point, or the address before it.
fn is_point(points: &Points, value: u64) -> bool {
    points.contains_key(&value) || points.contains_key(&value.wrapping_add(1))
}

/// The words that lead into `ranges`, without those for which `counts` says no, and without those that were left behind.
///
/// The sessions of the process note addresses of stack slots, and switch to none.
pub fn live_words(
    stacks: &Stacks<'_>,
    ranges: &Ranges,
    skip: &[Range<u64>],
    counts: impl Fn(&Word) -> bool,
) -> Result<Searched, MemoryError> {
    let &Stacks { process, stopped, maps, all, .. } = stacks;
    let Searched::Whole(mut words) = words_into(process, maps, ranges, skip)? else {
        return Ok(Searched::TooMuch);
    };
    words.retain(counts);
    if words.is_empty() {
        return Ok(Searched::Whole(words));
    }
    let apart = stacks.apart();
    let stack_pointers = stacks.stack_pointers()?;
    let mut remains = below_stack_pointers(stopped, apart);
    let (left, mut live): (Vec<Word>, Vec<Word>) =
        words.into_iter().partition(|word| note(&mut remains, apart, &stack_pointers, word.at));
    if !left.is_empty() {
        let ours = all.iter().flat_map(|header| regions(header)).chain(skip.iter().cloned());
        let skip: Vec<_> = remains.iter().map(|remains| remains.range.clone()).chain(ours).collect();
        let deep = Ranges::new(remains.iter().map(|remains| (remains.deep.start, remains.deep.end)));
        // Where a handler on another stack goes back to, not all is left behind, and what leads on from there was not
        // looked at.
        let is_among = |sp: &u64| remains.iter().any(|remains| remains.range.contains(sp));
        let is_held = registers(stopped).iter().any(|&value| deep.find(value).is_some())
            || stacks.left()?.iter().any(is_among);
        let leads = |words: &[Word]| {
            let Ok(touched) = touched(process, remains.iter().map(|remains| remains.deep.clone())) else {
                return true;
            };
            let mut unwritten = Unwritten::new(process, maps);
            let may_be_saved = |word: &&Word| may_be_saved(word.value, process.word_size(), &touched);
            words.iter().filter(may_be_saved).any(|word| !unwritten.holds(word))
        };
        let is_held = is_held
            || match words_into(process, maps, &deep, &skip)? {
                Searched::TooMuch => true,
                Searched::Whole(words) => !words.is_empty() && leads(&words),
            };
        if is_held {
            live.extend(left);
        }
    }
    Ok(Searched::Whole(live))
}

/// Without the first byte: nothing runs there, but what was mapped there before may have left its address somewhere. And without what a thread pointer
/// may lead to whose stack ends there: see [`crate::arenas::lead`].
///
/// And without the code of a script: bodies are called by detours, and who is in one, or in a routine of one, has on his stack where in the
/// detour it goes on, which detours forget behind each call. What calls of bodies and routines have left behind leads to nobody. Where bodies
/// have stacks of their own, whoever will come back to one has saved his stack pointer, which leads to where it is in use ([`stacks_in_use`]).
fn ranges_of_arenas<'h>(process: &Process, header: &'h Header) -> impl Iterator<Item = (u64, u64)> + use<'h> {
    let ahead = u64::from(crate::target::isa(process).facts().ahead_of_pointer).max(1);
    let arenas = header.arenas().filter(|arena| arena.address != header.program);
    arenas.map(move |arena| (arena.address.saturating_add(ahead), arena.address.saturating_add(arena.size)))
}

/// What is in use of the stacks that bodies run on.
///
/// Threads that were in a body have been stepped out of it, and so it is in use for those that are in a handler which has interrupted a body; and for
/// those that never came back to it: then nothing leads there.
fn stacks_in_use(process: &Process, header: &Header) -> Result<Vec<(u64, u64)>, MemoryError> {
    let stacks = header.stacks();
    if stacks.is_empty() {
        return Ok(Vec::new());
    }
    let claimed =
        process.read_word(RemoteAddr(header.region + Header::CURSOR_OFFSET))?.min(header.block_count);
    let mut used = vec![[0; 8]; claimed as usize];
    let stack = |number: usize| stacks.start + ((number as u64) << STACK_SHIFT);
    let at = |number: usize| RemoteAddr(stack(number) + u64::from(STACK_USED));
    let mut reads: Vec<_> =
        used.iter_mut().enumerate().map(|(number, word)| ReadRange::new(at(number), word)).collect();
    process.read_vectored(&mut reads)?;
    let is_whole = reads.iter().all(|read| read.done == 8);
    let most = u64::from(STACK_LEVEL * STACK_LEVELS);
    // What could not be read, or makes no sense, may be in use.
    let used =
        used.into_iter().map(u64::from_le_bytes).map(|used| if is_whole { used.min(most) } else { most });
    let used = used.enumerate().filter(|used| used.1 > 0);
    Ok(used.map(|(number, used)| (stack(number + 1) - used, stack(number + 1))).collect())
}

fn arenas(process: &Process, header: &Header) -> Ranges {
    Ranges::new(ranges_of_arenas(process, header))
}

/// All memory of a session.
pub fn regions(header: &Header) -> Vec<Range<u64>> {
    let data = [
        (header.region, header.region_size),
        (header.threads, header.threads_size),
        (header.returns, header.returns_size),
        header.near(),
    ];
    let data = data.into_iter().map(|(address, size)| address..address.saturating_add(size));
    let data = data.filter(|data| !data.is_empty());
    let arenas = header.arenas().map(|arena| arena.address..arena.address.saturating_add(arena.size));
    data.chain(arenas).collect()
}

/// Whether somebody may go on at a stack pointer of this value: what was saved lies there, or right below.
fn may_be_saved(stack_pointer: u64, word_size: usize, touched: &Ranges) -> bool {
    stack_pointer.is_multiple_of(word_size as u64)
        && (touched.find(stack_pointer).is_some() || touched.find(stack_pointer.wrapping_sub(1)).is_some())
}

/// What all threads hold, but their stack pointers; and their thread pointers, which are none, and on powerpc64le lie in the next stack above.
fn registers(stopped: &Stopped<'_>) -> Vec<u64> {
    let registers = stopped.threads().iter().map(|thread| thread.registers());
    registers
        .flat_map(|registers| {
            let thread_pointer = registers.thread_pointer().0;
            let all = registers.all_but_sp().chain([registers.ip_value()]);
            all.filter(move |&value| value != thread_pointer)
        })
        .map(address_of)
        .collect()
}

/// Where frames of functions that run may lie: on the stacks of threads, above what their calls have left behind. In a program that lies low
/// in its address space, elsewhere any number may look like an address of ours.
#[derive(Default)]
struct Frames<'m> {
    stacks: Vec<&'m Mapping>,
    over: Vec<Remains>,
    red_zone: u64,
}

impl<'m> Frames<'m> {
    fn of(stacks: &'m Stacks<'_>) -> Result<Self, MemoryError> {
        let &Stacks { process, stopped, .. } = stacks;
        let (maps, left) = (stacks.apart(), stacks.left()?);
        let blocks = stopped.threads().iter().map(|thread| RemoteAddr(control_block(process, thread)));
        let stack_pointers = stacks.stack_pointers()?;
        let on_stacks = left.iter().chain(&stack_pointers).copied().map(RemoteAddr);
        let places: Vec<RemoteAddr> = blocks.chain(on_stacks).collect();
        let is_stack = |mapping: &&Mapping| {
            mapping.is_special("[stack]") || places.iter().any(|&place| mapping.contains(place))
        };
        let mut over = below_stack_pointers(stopped, maps);
        over.retain(|remains| !left.iter().any(|sp| remains.range.contains(sp)));
        Ok(Self {
            stacks: maps.iter().filter(is_stack).collect(),
            over,
            red_zone: crate::target::isa(process).facts().red_zone.into(),
        })
    }

    fn hold(&self, at: u64) -> bool {
        let is_over =
            |remains: &Remains| remains.range.contains(&at) && at + self.red_zone < remains.range.end;
        self.stacks.iter().any(|stack| stack.contains(RemoteAddr(at))) && !self.over.iter().any(is_over)
    }
}

/// Memory where calls that are over have left words.
struct Remains {
    /// All of it: what lies below the stack pointer, or what has been seen of a stack without a thread.
    range: Range<u64>,
    /// Where a pointer to what is in use would lead: up to the highest word of ours.
    deep: Range<u64>,
}

/// Adds a word to what may have been left behind. False when it cannot have been.
fn note(remains: &mut Vec<Remains>, maps: &Mappings, stack_pointers: &[u64], at: u64) -> bool {
    if let Some(known) = remains.iter_mut().find(|remains| remains.range.contains(&at)) {
        known.deep.end = known.deep.end.max(at + 1);
        return true;
    }
    let Some(mapping) = maps.find(RemoteAddr(at)) else { return false };
    let is_stack = mapping.is_special("[stack]") || mapping.name.is_empty() && !mapping.perms.shared;
    if !is_stack || stack_pointers.iter().any(|&sp| mapping.contains(RemoteAddr(sp))) {
        return false;
    }
    // Words come in ascending order, so the next one of this stack extends it.
    let start = mapping.start.0;
    match remains.iter_mut().find(|remains| remains.range.start == start) {
        Some(known) => *known = Remains { range: start..at + 8, deep: start..at + 1 },
        None => remains.push(Remains { range: start..at + 8, deep: start..at + 1 }),
    }
    true
}

/// An address in a thread's control block.
fn control_block(process: &Process, thread: &Thread) -> u64 {
    let ahead = crate::target::isa(process).facts().ahead_of_pointer;
    thread.registers().thread_pointer().0.saturating_sub(ahead.into())
}

/// What lies below the stack pointers of threads on their own stacks.
fn below_stack_pointers(stopped: &Stopped<'_>, maps: &Mappings) -> Vec<Remains> {
    let process = stopped.process();
    let places: Vec<(u64, u64)> = stopped
        .threads()
        .iter()
        .map(|thread| (thread.registers().sp_value(), control_block(process, thread)))
        .collect();
    let mut remains = Vec::new();
    for (thread, &(sp, block)) in stopped.threads().iter().zip(&places) {
        let Some(mapping) = maps.find(RemoteAddr(sp)) else { continue };
        let is_main = mapping.is_special("[stack]") && thread.tid() == process.pid().leader();
        let is_own = block > sp && mapping.contains(RemoteAddr(block));
        if !is_main && !is_own {
            continue;
        }
        // Stacks without guard pages are one mapping: the next one below ends behind its thread's control block.
        let others = places.iter().flat_map(|&(sp, block)| [sp, block]);
        let next = others.filter(|&at| at < sp && mapping.contains(RemoteAddr(at))).max();
        let start = next.map_or(mapping.start.0, |at| at.next_multiple_of(page_size()));
        remains.push(Remains { range: start..sp.max(start), deep: start + 1..start + 1 });
    }
    remains
}
