//! Calls that are counted without a handler: by the same detours as from outside, in memory of each thread's own.
//!
//! A function's counter is a word in each thread's block, which detours find by the thread pointer ([`trapless_isa::detour::memory`]). Nothing is locked, and
//! threads that find no place of their own count in a block for all, by one instruction that others wait for. The memory is the process's alone: a
//! forked child goes on with what was counted so far, and finds blocks of its own, since the table of threads is empty there.

use crate::Error;
use crate::code::Arenas;
use crate::detours::{Ahead, Detours};
use crate::find::Found;
use crate::patch::Memory;
use std::sync::atomic::{AtomicU64, Ordering};
use trapless_isa::Additions;
use trapless_isa::body::Runs;
use trapless_isa::detour::{BLOCK_COUNTERS, Layout, THREAD_SHIFT};
use trapless_isa::payload::{EntryStep, Payload, Steps};

/// Log2 of how many threads are found at first sight, and of how many have a block.
const THREAD_BITS: u32 = 12;
const BLOCK_BITS: u32 = 9;

/// Bytes of a block: so many counters. Only what is counted in takes memory.
const STRIDE: u64 = 256 << 10;

/// Bytes of the words that threads agree by, ahead of their table.
const PAGE: u64 = 4096;
const TABLE: u64 = 1 << (THREAD_BITS + THREAD_SHIFT);
const BLOCKS: u64 = STRIDE << BLOCK_BITS;

/// What the detours share.
#[derive(Default)]
pub(crate) struct Counting {
    /// Once there is any memory for them.
    detours: Option<Detours>,
    /// Counters that were given out.
    counters: u32,
}

/// Where the calls of a site are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    /// The detour that does so, and goes on in the function.
    pub detour: u64,
    counter: u32,
    layout: &'static Layout,
}

/// A word of the memory.
pub(crate) fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: whoever asks has it from the layout; the memory stays for good, and its words are aligned.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at as usize)) }
}

fn map() -> Result<Layout, Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let size = (PAGE + TABLE + BLOCKS) as usize;
    // SAFETY: it is mapped where nothing is.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Error::last("memory for counters"));
    }
    let start = start.expose_provenance() as u64;
    let threads = start + PAGE;
    // SAFETY: it was mapped above, and nobody has it yet.
    unsafe {
        let table = std::ptr::with_exposed_provenance_mut(threads as usize);
        if libc::madvise(table, TABLE as usize, libc::MADV_WIPEONFORK) != 0 {
            let error = Error::last("memory that is empty in forked children");
            libc::munmap(std::ptr::with_exposed_provenance_mut(start as usize), size);
            return Err(error);
        }
    }
    let [origin, block_cursor] = [start, start + 8];
    word(origin).store(1, Ordering::Relaxed);
    word(block_cursor).store(1, Ordering::Relaxed);
    Ok(Layout {
        threads,
        thread_bits: THREAD_BITS,
        origin,
        block_cursor,
        blocks: threads + TABLE,
        block_stride: STRIDE,
        block_count: 1 << BLOCK_BITS,
        ring: 0,
        ring_bits: 0,
        // Of both C libraries, which Rust's programs have.
        self_pointer: true,
        tid_offset: None,
        selector: 0,
        // No calls are followed, and no unwinder is told anything.
        pages: start,
        returns: start,
        return_bits: 1,
        slot_shift: 3,
        arenas: start + 16,
        signals: None,
        gate: 0,
        near: 0,
        stacks: 0,
        points: 0,
        additions: Additions::default(),
    })
}

impl Counting {
    /// What counts the calls of a function, ahead of it.
    pub fn count(&mut self, arenas: &mut Arenas, memory: &Memory, found: &Found) -> Result<Counted, Error> {
        let detours = match &mut self.detours {
            Some(detours) => detours,
            none => none.insert(Detours::new(Box::leak(Box::new(map()?)))),
        };
        let counter = BLOCK_COUNTERS + 8 * self.counters;
        if u64::from(counter) + 8 > STRIDE {
            return Err(Error::TooMany(found.displaced.start));
        }
        let payload = Payload { entry: Steps::of([EntryStep::Count(counter)]), ..Payload::default() };
        let detour = detours.write(arenas, memory, &Ahead::from(found), payload, Runs::default())?;
        self.counters += 1;
        Ok(Counted { detour, counter, layout: detours.layout })
    }
}

impl Counted {
    /// The counter in a block.
    fn in_block(&self, index: u64) -> &'static AtomicU64 {
        word(self.layout.blocks + index * self.layout.block_stride + u64::from(self.counter))
    }

    /// Counts a call that goes another way, in the block for all.
    pub fn add_one(&self) {
        self.in_block(0).fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls were counted so far.
    pub fn total(&self) -> u64 {
        let cursor = word(self.layout.block_cursor).load(Ordering::Relaxed);
        let claimed = cursor.min(self.layout.block_count.into());
        (0..claimed).map(|index| self.in_block(index).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}
