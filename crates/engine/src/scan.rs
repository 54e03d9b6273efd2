//! Saved contexts that lead into code that is about to change.
//!
//! A thread that is interrupted by a signal inside displaced instructions will go on there, in the middle of a patch. Nobody
//! else comes to the inside: it holds no branch target, and no displaced call returns to it. So the question is where the instruction
//! pointers are that signals have saved:
//!
//! 1. In the frame of a handler that is still running, on the stack of its thread. The stack is looked at from
//!    the stack pointer to its end, however far that is and however many mappings it has.
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
    search::{Searched, Word, fit, words_of},
    target,
};
use std::ops::Range;
use std::slice;
use trapless_isa::detour::{LEVEL_POINTER, STACK_LEVEL, STACK_LEVELS, STACK_SHIFT};
use trapless_process::{Mapping, Mappings, MemoryError, Process, ReadRange, RemoteAddr, Stopped, Thread};
use trapless_wire::Checked;

/// How much memory is looked through at arming: about 3 ms.
const MOST_AT_ARMING: u64 = 16 << 20;

/// The most that is looked at of all stacks together.
const MOST_OF_STACKS: u64 = 64 << 20;

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
            8 => bytes
                .as_chunks::<8>()
                .0
                .iter()
                .fold(false, |any, word| any | (u64::from_le_bytes(*word).wrapping_sub(low) < length)),
            _ => bytes.as_chunks::<4>().0.iter().fold(false, |any, word| {
                any | (u64::from(u32::from_le_bytes(*word)).wrapping_sub(low) < length)
            }),
        };
        self.clusters.iter().any(|cluster| any(cluster.start, cluster.length))
    }

    /// Start of the range that holds `address`.
    pub fn find(&self, address: u64) -> Option<u64> {
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
    let most = |thread: &Thread, sp: u64| match heap.find(sp) {
        Some(_) => Ok(goroutines::end_of_stack(process, thread.registers(), sp)? - sp),
        None => Ok(MOST_OF_STACKS),
    };
    let mut words = on_stacks(process, stopped, &maps, all, ranges, most)?;
    let mut is_whole = !handles_signals(process);
    if !is_whole
        && fit(process, &maps, skip, MOST_AT_ARMING)
        && let Searched::Whole(found) =
            live_words(process, stopped, &maps, ranges, skip, all, |word| heap.find(word.at).is_none())?
    {
        words.extend(found);
        is_whole = true;
    }
    if let Some(stacks) = goroutines {
        is_whole = stacks.words_into(process, ranges, &mut words)?;
    }
    let mut to: Vec<u64> = words.iter().map(|word| word.value).collect();
    to.sort_unstable();
    to.dedup();
    Ok(Led { to, is_whole })
}

/// The words near the stack pointers of all threads that lead into `ranges`: where an unwinder has its frames. `None` where they are so
/// many that they tell nothing.
pub fn words_near_stack_pointers(
    process: &Process,
    stopped: &Stopped<'_>,
    session: &Checked,
    ranges: &Ranges,
) -> Result<Option<Vec<Word>>, MemoryError> {
    const NEAR: u64 = 64 << 10;
    const MOST_WORDS: usize = 1 << 12;
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let words = on_stacks(process, stopped, &maps, slice::from_ref(session), ranges, |_, _| Ok(NEAR))?;
    Ok((words.len() <= MOST_WORDS).then_some(words))
}

/// The words of what is in use of the stacks that threads run on; of each so many bytes from its stack pointer on, at the most, as
/// `most` says.
fn on_stacks(
    process: &Process,
    stopped: &Stopped<'_>,
    maps: &Mappings,
    all: &[Checked],
    ranges: &Ranges,
    most: impl Fn(&Thread, u64) -> Result<u64, MemoryError>,
) -> Result<Vec<Word>, MemoryError> {
    let mut words = Vec::new();
    let mut left = MOST_OF_STACKS;
    // Words below the stack pointer that may still hold a program's own addresses.
    let red_zone = target::isa(process).facts().red_zone.into();
    for thread in stopped.threads() {
        let sp = programs(process, all, thread.registers().sp_value())?;
        let Some((start, end)) = stack(maps, sp, red_zone) else { continue };
        let most = most(thread, sp)?.saturating_add(sp.saturating_sub(start));
        let end = end.min(start.saturating_add(left.min(most)));
        left -= end - start;
        on_stack(process, start..end, ranges, &mut words)?;
    }
    Ok(words)
}

/// The stack pointer on the program's stack of a thread with this one: a body of some session may run on a stack of ours
/// ([`trapless_wire::Header::stacks`]).
fn programs(process: &Process, all: &[Checked], mut sp: u64) -> Result<u64, MemoryError> {
    // One session's bodies may be called from the handler that has interrupted another one's.
    for _ in 0..=all.len() * STACK_LEVELS as usize {
        let Some(stacks) = all.iter().map(|header| header.stacks()).find(|stacks| stacks.contains(&sp))
        else {
            break;
        };
        let number = (sp - stacks.start) >> STACK_SHIFT;
        let end = stacks.start + ((number + 1) << STACK_SHIFT);
        let above = (end - sp - 1) / u64::from(STACK_LEVEL);
        sp =
            process.read_word(RemoteAddr(end - above * u64::from(STACK_LEVEL) - u64::from(LEVEL_POINTER)))?;
    }
    Ok(sp)
}

/// What is in use of the stack that `sp` points into.
fn stack(maps: &Mappings, sp: u64, red_zone: u64) -> Option<(u64, u64)> {
    let first = maps.find(RemoteAddr(sp))?;
    let is_of_stack = |mapping: &&Mapping| mapping.perms.read && mapping.perms.write;
    let rest = maps.iter().skip_while(|mapping| mapping.start < first.end).take_while(is_of_stack);
    let end = rest.fold(first.end, |end, mapping| if mapping.start == end { mapping.end } else { end });
    let start = sp.saturating_sub(red_zone).max(first.start.0) & !7;
    Some((start, end.0))
}

/// Adds the words of a part of a stack. Pages that are not there hold none, and a stack without a hole ends at the first.
fn on_stack(
    process: &Process,
    part: Range<u64>,
    ranges: &Ranges,
    words: &mut Vec<Word>,
) -> Result<(), MemoryError> {
    /// Most stacks end within.
    const PIECE: u64 = 64 << 10;
    let mut buffer = vec![0; PIECE.min(part.end - part.start) as usize];
    let mut at = part.start;
    while at < part.end {
        let length = (part.end - at).min(PIECE) as usize;
        let mut read = [ReadRange::new(RemoteAddr(at), &mut buffer[..length])];
        process.read_vectored(&mut read)?;
        let done = read[0].done;
        words_of(ranges, at, &buffer[..done], process.word_size(), words);
        if done < length {
            break;
        }
        at += length as u64;
    }
    Ok(())
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
