//! Calls that are timed without a handler: by the same detours as from outside, which follow each call to its return.
//!
//! A detour takes the return address off the stack, notes it with the time in a return instance, which the address of its stack slot names, and calls the
//! function. What is found by that slot is found again by whoever returns there, on whichever thread ([`trapless_isa::detour::memory`]). So
//! the return instances are one for all detours of the process, and numbers are each thread's own, in blocks.
//!
//! Detours, instances and numbers are never given back. A function has one detour for good: where it is timed no more, its calls go past that, and those that
//! are under way return to it whenever they do. One that is timed again is timed by the same.
//!
//! Blocks are as large as the functions in them need, so they come in *parts*, each with a table of threads and blocks of its own. The next part has
//! room for as many functions as there are. All memory is the process's alone: a forked child goes on with a copy of the instances that its stack
//! needs and of what was counted, and takes blocks of its own.
//!
//! Where return addresses are elsewhere than on the stack, unwinders have to be told. They ask two functions of the C library for each address, and these get a
//! detour that translates it ([`trapless_isa::Hook`]), ahead of the first function that is timed. It stays for good: calls may be under way, and an unwinder may
//! have read what stands on the stack and not have asked yet.

use crate::Error;
use crate::code::Arenas;
use crate::counts::word;
use crate::detours::{Ahead, Detours};
use crate::find::Found;
use crate::patch::Memory;
use crate::points;
use bytemuck::Zeroable;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use trapless_isa::body::Runs;
use trapless_isa::detour::{
    BLOCK_ORIGIN, Layout, POINTS_APART, POINTS_SIZE, POINTS_START, RETURN_ADDRESS, RETURN_OLDER,
};
use trapless_isa::frames::{ARENA_FRAMES, ENTRY_SHIFT};
use trapless_isa::payload::{EntryStep, Followed, Hook, Payload, ReturnStep, Steps, Way};
use trapless_isa::{Machine, model};
use trapless_session::clock::{Clock, Rate};
use trapless_wire::{
    Counter, Counters, Geometry, Header, Histogram, JournalSizes, MAX_ARENAS, Numbers, PAGE, Places, Sizes,
    ThreadMemory, Words,
};

/// Log2 of how many threads are found at first sight, and of the stack pages on which calls can be followed: 128 MiB of stacks.
pub(crate) const SIZES: Sizes = Sizes { thread_bits: 12, return_bits: 15 };

/// How many threads have a block, of those with different thread pointers: one that begins where another has ended mostly has its. The first block is for all others.
pub(crate) const BLOCKS: u64 = 1 << 10;

/// How many functions the first part has room for, and any at most.
const FIRST: u32 = 64;
const MOST: u32 = 4096;

/// Bytes that a function takes in a block.
const OF_A_FUNCTION: u32 = 3 * Counter::SIZE + Histogram::SIZE;

/// Bytes at the beginning of an arena. They say that nothing is known of its instructions.
const HEAD: u64 = (ARENA_FRAMES as u64 + 8).next_multiple_of(1 << ENTRY_SHIFT);

/// All that detours have which time calls.
pub(crate) struct Timing {
    arenas: Arenas,
    /// How many arenas are in the list that detours go by.
    listed: usize,
    /// Once there is any memory for it.
    returns: Option<u64>,
    parts: Vec<Part>,
}

impl Default for Timing {
    fn default() -> Self {
        Self { arenas: Arenas::with_head(HEAD), listed: 0, returns: None, parts: Vec::new() }
    }
}

/// Functions whose numbers are together.
struct Part {
    detours: Detours,
    header: &'static Header,
    /// What is left of the blocks.
    room: Geometry,
}

/// Where the calls of a function are timed.
#[derive(Debug)]
pub(crate) struct Timed {
    /// The detour that does so, and goes on in the function.
    pub detour: u64,
    places: Places,
    header: &'static Header,
}

/// What is done where unwinders ask or land, ahead of the function itself.
#[derive(Debug)]
pub(crate) struct Told {
    /// What does it.
    pub detour: u64,
    /// The word that the detour goes on by.
    pub next: &'static AtomicU64,
}

/// The memory of the first part, for whoever meets what detours have put on a stack: return instances and the list of arenas are the same for all. What
/// unwinders leave is counted there, too.
static FIRST_PART: OnceLock<(&'static Layout, &'static Header)> = OnceLock::new();

fn layout() -> Option<&'static Layout> {
    FIRST_PART.get().map(|part| part.0)
}

/// Whether there is code of these detours.
pub(crate) fn are_at(address: u64) -> bool {
    let Some(layout) = layout() else { return false };
    let arenas = (0..MAX_ARENAS as u64).map(|number| layout.arenas + 16 * number);
    let arenas = arenas.map(|at| (word(at).load(Ordering::Acquire), word(at + 8).load(Ordering::Relaxed)));
    arenas.take_while(|arena| arena.0 != 0).any(|(start, size)| address.wrapping_sub(start) < size)
}

/// Where a call of this thread's goes back to, by what is on the stack for it, at this slot.
pub(crate) fn home(slot: u64, there: u64) -> u64 {
    let Some(layout) = layout().filter(|_| are_at(there)) else { return there };
    let real = model::real_address(&mut Own(0), layout, slot, there);
    real.filter(|address| *address != 0).unwrap_or(there)
}

/// Whether a detour may have taken `address` off the stack at `slot`, for a call that is under way, on whatever thread. The caller has seen that address there, or
/// knows that it was, and sees one of ours there before and after this.
///
/// A detour writes the address into the instance before its own goes to the slot, and back into the slot before another one's comes. In between the address is in the
/// instance, but for the time in which calls go on in others by jumps: then there is an older instance, and the address comes back to this one ahead of that one's end. So
/// whoever reads twice that there is no older one and then another address has not missed it.
pub(crate) fn may_have(slot: u64, address: u64) -> bool {
    let Some(layout) = layout() else { return true };
    let Some(instance) = model::instance_of(&mut Own(0), layout, slot) else { return true };
    let read = |offset: u32| word(instance + u64::from(offset)).load(Ordering::Acquire);
    let has_another = || read(RETURN_OLDER) == 0 && read(RETURN_ADDRESS) != address;
    !(has_another() && has_another())
}

/// How long a tick of the clock is; waits for some milliseconds where calls are timed only since just now.
pub(crate) fn rate() -> Rate {
    CLOCK.get_or_init(Clock::now).rate()
}

/// Where the addresses are that points have on stacks, and how far away is the word with where each goes back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointsAt {
    pub start: u64,
    pub size: u64,
    pub apart: u64,
}

/// There are points from now on.
pub(crate) fn there_are_points(points: PointsAt) {
    layout().into_iter().for_each(|layout| tell_of_points(layout, points));
}

fn tell_of_points(layout: &Layout, points: PointsAt) {
    let at = |offset: u32| word(layout.points + u64::from(offset));
    at(POINTS_START).store(points.start, Ordering::Relaxed);
    at(POINTS_APART).store(points.apart, Ordering::Relaxed);
    at(POINTS_SIZE).store(points.size, Ordering::Release);
}

/// When calls began to be timed.
static CLOCK: OnceLock<Clock> = OnceLock::new();

/// How many calls that were timed were left by an exception, in the whole process.
pub(crate) fn unwound() -> u64 {
    FIRST_PART.get().map_or(0, |(_, header)| Counters::new(header, &Own(header.region)).unwound())
}

/// Memory of this process's, from an address on.
struct Own(u64);

impl model::Read for Own {
    fn load(&mut self, address: u64) -> u64 {
        word(self.0 + address).load(Ordering::Acquire)
    }
}

impl Words for Own {
    fn word(&self, offset: u64) -> u64 {
        word(self.0 + offset).load(Ordering::Relaxed)
    }
}

/// Fails where this thread would be ended for reading the clock. Others may have forbidden it to themselves, which nobody can ask.
pub(crate) fn may_read_clock() -> Result<(), Error> {
    let mut answer: libc::c_int = 0;
    // SAFETY: the call writes one integer.
    let asked = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut answer) };
    if asked == 0 && answer == libc::PR_TSC_SIGSEGV { Err(Error::Clock) } else { Ok(()) }
}

/// How far below the libraries memory is mapped. Nearer to them jumps look for addresses that they can lead to, and few suit some of them.
const BELOW: u64 = 64 << 30;

/// Where so much memory is asked for: below what was asked for before.
pub(crate) fn far(size: u64) -> *mut std::ffi::c_void {
    static LOWEST: AtomicU64 = AtomicU64::new(0);
    let near = match LOWEST.load(Ordering::Relaxed) {
        0 => (libc::mmap as *const () as u64).saturating_sub(BELOW),
        lowest => lowest,
    };
    let place = near.saturating_sub(size) & !(PAGE - 1);
    LOWEST.store(place, Ordering::Relaxed);
    std::ptr::without_provenance_mut(place as usize)
}

/// Memory that is all 0, and takes as much as is used of it.
pub(crate) fn map(size: u64) -> Result<u64, Error> {
    const WHAT: &str = "memory for calls that are timed";
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let length = size as usize;
    // SAFETY: it is mapped where nothing is, and nobody has it yet.
    unsafe {
        // Elsewhere, if something is there.
        let start = libc::mmap(far(size), length, libc::PROT_NONE, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(Error::last(WHAT));
        }
        // A program that has all of its memory locked does not mean this, nor one that has large pages: a word is used here and there.
        libc::munlock(start, length);
        libc::madvise(start, length, libc::MADV_NOHUGEPAGE);
        if libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            let error = Error::last(WHAT);
            libc::munmap(start, length);
            return Err(error);
        }
        Ok(start.expose_provenance() as u64)
    }
}

impl Part {
    /// One with room for so many functions; `returns`: the memory for what is one for all, once there is any.
    fn new(functions: u32, returns: &mut Option<u64>) -> Result<Self, Error> {
        let isa = Machine::HOST.ok_or(Error::Machine)?.isa();
        let mut header = Header::zeroed();
        let mut room = Geometry::default();
        room.keep_free(functions * OF_A_FUNCTION);
        room.describe(&mut header, SIZES, JournalSizes::default(), Some(isa.facts().slot_shift));
        header.block_count = BLOCKS;
        header.region_size = header.blocks_offset + header.block_stride * header.block_count;
        header.returns = match *returns {
            Some(mapped) => mapped,
            None => *returns.insert(map(header.returns_size)?),
        };
        header.region = map(header.region_size + header.threads_size)?;
        header.threads = header.region + header.region_size;
        let mut layout = header.layout(ThreadMemory { self_pointer: true, tid_offset: None });
        // On the private page, where the table of signals' handlers would be.
        layout.points = header.signal_table();
        // SAFETY: it was mapped above, in whole pages, and nobody has it yet.
        unsafe {
            let table = std::ptr::with_exposed_provenance_mut(layout.threads as usize);
            let size = header.threads + header.threads_size - layout.threads;
            if libc::madvise(table, size as usize, libc::MADV_WIPEONFORK) != 0 {
                let error = Error::last("memory that is empty in forked children");
                let size = header.region_size + header.threads_size;
                libc::munmap(std::ptr::with_exposed_provenance_mut(header.region as usize), size as usize);
                return Err(error);
            }
        }
        word(layout.origin).store(1, Ordering::Relaxed);
        word(layout.block_cursor).store(header.block_cursor, Ordering::Relaxed);
        word(layout.blocks + u64::from(BLOCK_ORIGIN)).store(1, Ordering::Relaxed);
        let layout: &'static Layout = Box::leak(Box::new(layout));
        let header: &'static Header = Box::leak(Box::new(header));
        Ok(Self { detours: Detours::new(layout), header, room: room.within(header.block_stride) })
    }

    /// Room for a function's numbers.
    fn take(&mut self) -> Option<Places> {
        let mut room = self.room;
        let places = Places {
            entries: Some(room.counter()?),
            returns: Some(room.counter()?),
            lost: Some(room.counter()?),
            latency: Some(room.latency()?),
            ..Places::default()
        };
        self.room = room;
        Some(places)
    }
}

impl Timing {
    /// Makes the first part, if there is none yet.
    fn first(&mut self) -> Result<&mut Part, Error> {
        if self.parts.is_empty() {
            let part = Part::new(FIRST, &mut self.returns)?;
            let (layout, _) = FIRST_PART.get_or_init(|| (part.detours.layout, part.header));
            points::places().into_iter().for_each(|points| tell_of_points(layout, points));
            CLOCK.get_or_init(Clock::now);
            self.parts.push(part);
        }
        Ok(&mut self.parts[0])
    }

    /// What times the calls of a function, ahead of it.
    pub fn time(&mut self, memory: &Memory, found: &Found) -> Result<Timed, Error> {
        self.first()?;
        let last = self.parts.len() - 1;
        let (places, number) = match self.parts[last].take() {
            Some(places) => (places, last),
            None => {
                let functions = FIRST << last.min((MOST / FIRST).ilog2() as usize);
                self.parts.push(Part::new(functions, &mut self.returns)?);
                let places = self.parts[last + 1].take().ok_or(Error::TooMany(found.displaced.start))?;
                (places, last + 1)
            }
        };
        let Places {
            entries: Some(entries),
            returns: Some(returns),
            lost: Some(lost),
            latency: Some(latency),
            ..
        } = places
        else {
            return Err(Error::TooMany(found.displaced.start));
        };
        let payload = Payload {
            entry: Steps::of([EntryStep::Count(entries.offset())]),
            followed: Some(Followed {
                lost: lost.offset(),
                steps: Steps::of([ReturnStep::Count(returns.offset()), ReturnStep::Time(latency.offset())]),
                way: Way::Paired,
            }),
            ..Payload::default()
        };
        let part = &mut self.parts[number];
        let detour =
            part.detours.write(&mut self.arenas, memory, &Ahead::from(found), payload, Runs::default())?;
        let header = part.header;
        self.list(found.displaced.start)?;
        Ok(Timed { detour, places, header })
    }

    /// What does `hook` ahead of a function.
    pub fn tell(&mut self, memory: &Memory, found: &Found, hook: Hook) -> Result<Told, Error> {
        self.first()?;
        let start = found.displaced.start;
        let payload = Payload { hooks: Steps::of([hook]), ..Payload::default() };
        let (detour, next) =
            self.parts[0].detours.write_ahead(&mut self.arenas, memory, start, payload, Runs::default())?;
        self.list(start)?;
        Ok(Told { detour, next })
    }

    /// What is one for all detours that follow calls.
    #[cfg(feature = "script")]
    pub fn returns(&mut self) -> Result<u64, Error> {
        self.first()?;
        self.returns.ok_or(Error::Machine)
    }

    /// Writes a detour of others' that follows calls ahead of a function, and goes on where a word says; where it is, and the word.
    #[cfg(feature = "script")]
    pub fn follow(
        &mut self,
        memory: &Memory,
        start: u64,
        detours: &mut Detours,
        payload: Payload,
        runs: Runs<'_>,
    ) -> Result<(u64, &'static AtomicU64), Error> {
        let written = detours.write_ahead(&mut self.arenas, memory, start, payload, runs)?;
        self.list(start)?;
        Ok(written)
    }

    /// Enters new arenas in the list by which detours and unwinders know them, ahead of anybody who comes there.
    fn list(&mut self, site: u64) -> Result<(), Error> {
        let Some(layout) = layout() else { return Ok(()) };
        for (number, (start, size)) in self.arenas.code().enumerate().skip(self.listed) {
            if number >= MAX_ARENAS {
                return Err(Error::TooMany(site));
            }
            let at = layout.arenas + 16 * number as u64;
            word(at + 8).store(size, Ordering::Relaxed);
            word(at).store(start, Ordering::Release);
            self.listed = number + 1;
        }
        Ok(())
    }
}

impl Timed {
    /// All numbers so far, whoever asked for them.
    pub fn numbers(&self) -> Numbers {
        let own = Own(self.header.region);
        Counters::new(self.header, &own).numbers(&[self.places]).pop().unwrap_or_default()
    }

    /// How many calls have come here so far.
    pub fn entries(&self) -> u64 {
        let own = Own(self.header.region);
        self.places.entries.map_or(0, |entries| Counters::new(self.header, &own).sum(entries))
    }

    /// Counts a call that goes another way.
    pub fn lose_one(&self) {
        if let Some(lost) = self.places.lost {
            let block = self.header.region + self.header.blocks_offset;
            word(block + u64::from(lost.offset())).fetch_add(1, Ordering::Relaxed);
        }
    }
}
