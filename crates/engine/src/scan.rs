//! Saved contexts that lead into code that is about to change.
//!
//! A thread that is interrupted by a signal inside displaced instructions will go on there, in the middle of a patch. Nobody
//! else comes to the inside: it holds no branch target, and no displaced call returns to it. So the question is where the instruction
//! pointers are that signals have saved:
//!
//! 1. In the frame of a handler that is still running, on the stack of its thread; or on another stack that the thread
//!    comes back to, where a second handler has interrupted the first one and has a stack of its own
//!    ([`crate::stacks`]). Stacks are looked at from the stack pointer to their end, however far that is and however
//!    many mappings they have.
//! 2. Anywhere, where a handler has switched to another context (`swapcontext`, or by hand). That can be only in a program that
//!    handles signals. All its memory is looked through as it is when sessions are taken out ([`live_words`]), if it is at most
//!    [`MOST_AT_ARMING`]: the stop is to be short. A program that is larger and switches contexts in signal handlers
//!    is the one case that is not seen. Go's does so all the time; of it the stacks of all goroutines are looked at ([`goroutines`]), and
//!    of its heap nothing else; or nothing is displaced that has an inside.
//!
//! A number that leads between two instructions is none of these: nobody is interrupted there. Among the others there is no telling a
//! saved instruction pointer from a number that happens to look like one, so either keeps its site unpatched. Sites that displace one
//! instruction have no inside.

use crate::{
    goroutines,
    reach::live_words,
    search::{Searched, Word, fit},
    stacks::{MOST_OF_STACKS, Stacks},
};
use std::ops::Range;
use std::slice;
use trapless_isa::ADDRESS_MASK;
use trapless_process::{MemoryError, Process, Stopped, Thread};
use trapless_wire::Checked;

/// How much memory is looked through at arming: about 3 ms.
const MOST_AT_ARMING: u64 = 16 << 20;

/// Address ranges, sorted, that do not overlap.
#[derive(Debug, Default)]
pub struct Ranges {
    ranges: Vec<(u64, u64)>,
    /// Few and wide ones that hold all of them.
    clusters: Vec<Cluster>,
}

/// A wide range that holds some.
#[derive(Debug)]
struct Cluster {
    start: u64,
    length: u64,
    /// For each page of it, from its start on, how many ranges begin before that: pointers to functions of which most are probed are
    /// a million, and each is asked about.
    before: Vec<u32>,
}

impl Cluster {
    const PAGE_SHIFT: u32 = 12;

    fn new(ranges: &[(u64, u64)], start: u64, length: u64) -> Self {
        let pages = (length >> Self::PAGE_SHIFT) + 2;
        let count = |page: u64| ranges.partition_point(|range| range.0 < start + (page << Self::PAGE_SHIFT));
        // Where they lie far apart there is little to choose from.
        let is_dense = pages <= 64 + 64 * ranges.len() as u64;
        let pages = if is_dense { pages } else { 0 };
        Self { start, length, before: (0..pages).map(|page| count(page) as u32).collect() }
    }

    /// Those of `ranges` that begin on the page of an address in the cluster, and the one before.
    fn near<'r>(&self, ranges: &'r [(u64, u64)], address: u64) -> &'r [(u64, u64)] {
        let page = ((address - self.start) >> Self::PAGE_SHIFT) as usize;
        let count = |page: usize| self.before.get(page).map(|&count| count as usize);
        let (Some(first), Some(end)) = (count(page), count(page + 1)) else { return ranges };
        ranges.get(first.saturating_sub(1)..end).unwrap_or_default()
    }
}

/// The address that a pointer of a program is, whatever else is in it.
pub(crate) fn address_of(pointer: u64) -> u64 {
    pointer & ADDRESS_MASK
}

/// Ranges closer than this are one cluster: those of one module, and of its neighbours.
const CLUSTER_GAP: u64 = 64 << 20;

impl Ranges {
    /// From (start, end) pairs in any order.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|r| r.0 < r.1).collect();
        ranges.sort_unstable();
        let mut wide: Vec<(u64, u64)> = Vec::new();
        for &(start, end) in &ranges {
            match wide.last_mut() {
                Some((low, length)) if start - (*low + *length) < CLUSTER_GAP => *length = end - *low,
                _ => wide.push((start, end - start)),
            }
        }
        let clusters = wide.into_iter().map(|(start, length)| Cluster::new(&ranges, start, length)).collect();
        Self { ranges, clusters }
    }

    /// Whether any word of `bytes` may lie in one of the ranges: quick, and mostly the answer is no.
    pub fn may_hold_any(&self, bytes: &[u8], word_size: usize) -> bool {
        let any = |low: u64, length: u64| match word_size {
            8 => bytes.as_chunks::<8>().0.iter().fold(false, |any, word| {
                any | (address_of(u64::from_le_bytes(*word)).wrapping_sub(low) < length)
            }),
            _ => bytes.as_chunks::<4>().0.iter().fold(false, |any, word| {
                any | (u64::from(u32::from_le_bytes(*word)).wrapping_sub(low) < length)
            }),
        };
        self.clusters.iter().any(|cluster| any(cluster.start, cluster.length))
    }

    /// Start of the range that a pointer leads into.
    pub fn find(&self, pointer: u64) -> Option<u64> {
        let address = address_of(pointer);
        let is_in = |cluster: &&Cluster| address.wrapping_sub(cluster.start) < cluster.length;
        let near = self.clusters.iter().find(is_in)?.near(&self.ranges, address);
        let after = near.partition_point(|r| r.0 <= address);
        let (start, end) = *near.get(after.checked_sub(1)?)?;
        (address < end).then_some(start)
    }
}

/// Ranges that saved contexts may lead into.
pub struct Led {
    /// Where they lead, ascending.
    pub to: Vec<u64>,
    /// Whether all memory was looked at where contexts may be.
    pub is_whole: bool,
}

/// The ranges that some saved context may lead into. `skip` is memory of ours, `all` the sessions of the process; `goroutines`: where
/// goroutines are listed ([`crate::Module::goroutines`]).
pub fn led_into(
    process: &Process,
    stopped: &Stopped<'_>,
    ranges: &Ranges,
    skip: &[Range<u64>],
    all: &[Checked],
    goroutines: &[[u64; 2]],
) -> Result<Led, MemoryError> {
    if ranges.ranges.is_empty() {
        return Ok(Led { to: Vec::new(), is_whole: true });
    }
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let goroutines = match goroutines {
        [] => None,
        lists => goroutines::Stacks::of(process, lists)?,
    };
    let heap = goroutines.as_ref().map(|stacks| stacks.heap(&maps)).unwrap_or_default();
    let most = |thread: Option<&Thread>, sp: u64| match (heap.find(sp), thread) {
        (Some(_), Some(thread)) => Ok(goroutines::end_of_stack(process, thread.registers(), sp)? - sp),
        // A goroutine's, which are all looked at, or what a thread schedules on: Go has no handler without a stack of
        // its own, and so nothing is saved there.
        (Some(_), None) => Ok(0),
        (None, _) => Ok(MOST_OF_STACKS),
    };
    let stacks = Stacks::new(process, stopped, &maps, all);
    let mut words = stacks.words_into(ranges, most)?;
    let mut is_whole = !handles_signals(process);
    if !is_whole
        && fit(process, &maps, skip, MOST_AT_ARMING)
        && let Searched::Whole(found) =
            live_words(&stacks, ranges, skip, |word| heap.find(word.at).is_none())?
    {
        words.extend(found);
        is_whole = true;
    }
    if let Some(goroutines) = goroutines {
        is_whole = goroutines.words_into(process, ranges, &mut words)?;
    }
    let mut to: Vec<u64> = words.iter().map(|word| word.value).collect();
    to.sort_unstable();
    to.dedup();
    Ok(Led { to, is_whole })
}

/// The words near the stack pointers of all threads, and near those that they come back to, that lead into
/// `ranges`: where an unwinder has its frames. `None` where they are so many that they tell nothing.
pub fn words_near_stack_pointers(
    process: &Process,
    stopped: &Stopped<'_>,
    session: &Checked,
    ranges: &Ranges,
) -> Result<Option<Vec<Word>>, MemoryError> {
    const NEAR: u64 = 64 << 10;
    const MOST_WORDS: usize = 1 << 12;
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let stacks = Stacks::new(process, stopped, &maps, slice::from_ref(session));
    let words = stacks.words_into(ranges, |_, _| Ok(NEAR))?;
    Ok((words.len() <= MOST_WORDS).then_some(words))
}

/// Whether the program has a handler for any signal, but those of the C library's own (32 and 33).
fn handles_signals(process: &Process) -> bool {
    const OF_THE_C_LIBRARY: u64 = 3 << 31;
    process.status().map_or(true, |status| status.sig_caught & !OF_THE_C_LIBRARY != 0)
}

/// The value of up to eight bytes.
pub fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_find_their_start() {
        let ranges = Ranges::new([(20, 25), (10, 12), (30, 30)]);
        let cases =
            [(9, None), (10, Some(10)), (11, Some(10)), (12, None), (24, Some(20)), (25, None), (30, None)];
        for (address, expected) in cases {
            assert_eq!(ranges.find(address), expected, "{address}");
        }
    }

    #[test]
    fn many_ranges_over_many_pages_are_found_as_few_are() {
        // Over the ends of pages, pages without any, and gaps between clusters.
        let range = |n: u64| {
            let start = n * 1000 + n / 100 * 9_000 + n / 1000 * (200 << 20);
            (start, start + 1 + n % 999)
        };
        let all: Vec<_> = (1..3000).map(range).collect();
        let ranges = Ranges::new(all.iter().copied());
        assert!(ranges.clusters.len() > 1);
        for &(start, end) in &all {
            for (address, expected) in [(start - 1, None), (start, Some(start)), (end - 1, Some(start))] {
                assert_eq!(ranges.find(address), expected, "{address}");
            }
        }
    }
}
