//! The return addresses of calls that are still running when probes are taken out: back into their slots.
//!
//! A followed call's slot holds a return point of ours. All stack pages on which there may be one are listed in the return
//! memory. So the pages are looked through for return points, and where one is found, the slot's instance tells the real address.
//! What was left behind by longjmp or an exception is put back as well, where nobody reads it.

use crate::{EngineError, FoundSession, scan::little_endian, search::Word};
use std::collections::HashSet;
use trapless_isa::detour::{GOROUTINE_BIT, PAGES_COUNT, PAGES_FIRST, STACK_PAGE_SHIFT};
use trapless_isa::model::{self, Read};
use trapless_process::{Process, ReadRange, RemoteAddr};
use trapless_wire::ThreadMemory;

/// Pages that are read at a time.
const BATCH: usize = 256;

/// The most words of return memory that are read: more than all calls of a program that runs need. Only one that has forged its instances asks
/// for more, and keeps its return points.
const MAX_LOADS: u32 = 1 << 22;

/// The most for one word that may be an unwinder's: the word beside it, and more than a search for its instance takes. A longer chain of tail
/// calls counts as one.
const MAX_LOADS_OF_A_WORD: u32 = 1 + 128;

/// Puts back return addresses in a process that stands, and says how many.
pub(crate) fn put_back(process: &Process, session: &FoundSession) -> Result<usize, EngineError> {
    let points = points(session);
    if points.is_empty() {
        return Ok(0);
    }
    let layout = session.header.layout(ThreadMemory::default());
    let word = process.word_size();
    let mut remote = Remote { process, word, left: MAX_LOADS, is_whole: true };
    let mut count = 0;
    for pages in pages(process, session)?.chunks(BATCH) {
        let mut buffers = vec![0u8; pages.len() << STACK_PAGE_SHIFT];
        let mut reads: Vec<_> = pages
            .iter()
            .zip(buffers.chunks_exact_mut(1 << STACK_PAGE_SHIFT))
            .map(|(page, buffer)| ReadRange::new(RemoteAddr(page << STACK_PAGE_SHIFT), buffer))
            .collect();
        // A stack may be gone by now, and then nothing is read of it.
        process.read_vectored(&mut reads)?;
        for (read, page) in reads.iter().zip(pages) {
            for (index, bytes) in read.buffer[..read.done].chunks_exact(word).enumerate() {
                let point = little_endian(bytes);
                if !points.contains(&point) {
                    continue;
                }
                let slot = (page << STACK_PAGE_SHIFT) + (index * word) as u64;
                let address = model::real_address(&mut remote, &layout, slot, point);
                if let Some(address) = address.filter(|&address| address != 0 && remote.is_whole) {
                    process.write(RemoteAddr(slot), &address.to_le_bytes()[..word])?;
                    count += 1;
                }
            }
        }
    }
    Ok(count)
}

/// Whether a word looks like an unwinder's that has read a return point: where it `may_ask` from, in its own frames, the address before a
/// point, which nobody else has there; or a point in a context, beside the frame address of the very call that has it. Any other is what a
/// call has left behind.
pub(crate) fn is_unwinders(
    process: &Process,
    session: &FoundSession,
    points: &HashSet<u64>,
    word: Word,
    may_ask: bool,
) -> bool {
    let Word { at, value } = word;
    if may_ask && points.contains(&value.wrapping_add(1)) {
        return true;
    }
    if !points.contains(&value) {
        return false;
    }
    let facts = crate::target::isa(process).facts();
    let size = process.word_size();
    let layout = session.header.layout(ThreadMemory::default());
    facts.contexts.iter().any(|&words| {
        let mut remote = Remote { process, word: size, left: MAX_LOADS_OF_A_WORD, is_whole: true };
        let frame = remote.load(at.wrapping_add_signed(-i64::from(words) * size as i64));
        if !remote.is_whole {
            return false;
        }
        let slot = frame.wrapping_sub(facts.slot_below_frame.into());
        let real = model::real_address(&mut remote, &layout, slot, value);
        // Where an instance cannot be read, nothing is known.
        real.is_some() || !remote.is_whole
    })
}

/// The return points of a session.
pub(crate) fn points(session: &FoundSession) -> HashSet<u64> {
    session.journal.sites().map(|site| site.return_point).filter(|&point| point != 0).collect()
}

/// Numbers of the stack pages on which calls were followed.
fn pages(process: &Process, session: &FoundSession) -> Result<Vec<u64>, EngineError> {
    let header = &session.header;
    let layout = header.layout(ThreadMemory::default());
    let count = process.read_word(RemoteAddr(layout.pages + u64::from(PAGES_COUNT)))?;
    let count = count.min(1 << layout.return_bits);
    let mut list = vec![0u8; 8 * count as usize];
    process.read_exact(RemoteAddr(layout.pages + u64::from(PAGES_FIRST)), &mut list)?;
    // What stands for goroutines' pages holds no return points.
    let highest = (1 << GOROUTINE_BIT) >> STACK_PAGE_SHIFT;
    let mut pages: Vec<u64> =
        list.chunks_exact(8).map(little_endian).filter(|&page| page != 0 && page < highest).collect();
    pages.sort_unstable();
    pages.dedup();
    Ok(pages)
}

/// The return memory of a process, to be read.
struct Remote<'p> {
    process: &'p Process,
    word: usize,
    left: u32,
    /// Whether all could be read so far. If not, nothing that was read is believed.
    is_whole: bool,
}

impl Read for Remote<'_> {
    fn load(&mut self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..self.word];
        self.is_whole &= self.left > 0 && self.process.read_exact(RemoteAddr(address), bytes).is_ok();
        self.left = self.left.saturating_sub(1);
        if self.is_whole { little_endian(bytes) } else { 0 }
    }
}
