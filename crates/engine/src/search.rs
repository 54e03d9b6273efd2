//! Looking through all memory of a stopped process for words that lead somewhere.
//!
//! A saved context may lie anywhere in memory that the process can write: on a stack that no thread runs on, in the heap, in
//! a variable, in memory or a file that it shares. So may a copy of a part of a stack. All have in common that the address at which the thread
//! would go on is a word of memory, aligned as the ABI demands of stacks and structures. (glibc's `jmp_buf` is the exception, its
//! words are scrambled. What is in there was the return address of a call of the program's own, never one of ours.)
//!
//! Looked at are the process's own pages, whatever their protection is now, and the pages of shared memory and files that it maps
//! writable and has touched. Devices are left alone, and so is a page of a file that the process has not written: it is the
//! file's. Nothing is read that is not there, so nothing blocks and the target's memory does not grow; a shared page
//! that the kernel has taken away from the process under memory pressure is not seen.

use crate::{
    scan::{Ranges, address_of},
    spread,
};
use rustix::io::{ReadWriteFlags, preadv2};
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use trapless_process::{
    Errno, Mapping, Mappings, MemoryError, PageRanges, Pagemap, Pages, ProcError, Process, ReadRange,
    RemoteAddr, page_size,
};

/// A word of the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its address.
    pub at: u64,
    /// The address that it is.
    pub value: u64,
}

/// Tells the words that nobody has written. A page of a file that the process maps for itself becomes its own where anything on it is
/// relocated or patched, and then holds what lies beside that in the file: code, constants, what unwinders read. In a 32-bit
/// process the distances among these look like addresses of the stack.
pub struct Unwritten<'p> {
    process: &'p Process,
    maps: &'p Mappings,
    /// By the first byte of the mapping.
    files: HashMap<RemoteAddr, Option<File>>,
}

impl<'p> Unwritten<'p> {
    /// Of a process that stands.
    pub fn new(process: &'p Process, maps: &'p Mappings) -> Self {
        Self { process, maps, files: HashMap::new() }
    }

    /// Whether the file has this word at this place, too. Not waited for: what is in no cache of the kernel's is not known.
    pub fn holds(&mut self, word: &Word) -> bool {
        let Some(mapping) = self.maps.find(RemoteAddr(word.at)).filter(|mapping| !mapping.perms.shared)
        else {
            return false;
        };
        let open = || mapping.path().and_then(|_| self.process.open_mapped_file(mapping).ok());
        let file = self.files.entry(mapping.start).or_insert_with(open);
        let (Some(file), Some(offset)) = (file, mapping.file_offset(RemoteAddr(word.at))) else {
            return false;
        };
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..self.process.word_size()];
        let read = preadv2(file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        read == Ok(bytes.len()) && crate::scan::little_endian(bytes) == word.value
    }
}

/// What came of a search.
#[derive(Debug, PartialEq, Eq)]
pub enum Searched {
    /// All words that lead into the ranges, ascending.
    Whole(Vec<Word>),
    /// There is more memory than may be looked at while a process stands still, or it cannot be looked at.
    TooMuch,
}

/// How much is looked through while the target stands still, by each processor: 10 to 20 ms.
pub const MOST: u64 = 96 << 20;

/// More processors than these do not make memory faster.
const MOST_THREADS: usize = 4;

/// Less than this is not worth another thread.
const SHARE: u64 = 8 << 20;

/// How much may have to come back from a swap device.
const MOST_SWAPPED: u64 = 1 << 20;

/// How much address space may be mapped where looking for pages takes time for each that is not there.
const MOST_MAPPED: u64 = 16 << 30;

/// Words that lead into the ranges are a handful, or there is something that these are not told apart from.
const MOST_WORDS: usize = 1 << 14;

/// So much is read at a time: it stays in a processor's cache.
const CHUNK: u64 = 256 << 10;

/// Whether what is to be looked at is at most `most` for each processor.
pub fn fit(process: &Process, maps: &Mappings, skip: &[Range<u64>], most: u64) -> bool {
    matches!(pages(process, maps, skip), Ok(Some(found)) if fits(&found, most))
}

fn fits(found: &PageRanges, most: u64) -> bool {
    found.bytes <= most * processors() as u64 && found.swapped <= MOST_SWAPPED
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS)
}

/// Looks for the words that lead into `ranges`, everywhere but in `skip`.
pub fn words_into(
    process: &Process,
    maps: &Mappings,
    ranges: &Ranges,
    skip: &[Range<u64>],
) -> Result<Searched, MemoryError> {
    let found = match pages(process, maps, skip) {
        Ok(Some(found)) if fits(&found, MOST) => found,
        _ => return Ok(Searched::TooMuch),
    };
    let threads = processors().min((found.bytes / SHARE) as usize).max(1);
    let shares = split(&found.ranges, found.bytes.div_ceil(threads as u64).next_multiple_of(page_size()));
    let read = |own: &mut Vec<_>, share: &Vec<Range<u64>>| own.push(words_in(process, ranges, share));
    let all = spread::share_out(&shares, read).map_err(|_| MemoryError::Gone)?;
    let words: Vec<Option<Vec<Word>>> = all.into_iter().flatten().collect::<Result<_, _>>()?;
    let Some(words) = words.into_iter().collect::<Option<Vec<_>>>() else { return Ok(Searched::TooMuch) };
    let mut words = words.concat();
    words.sort_unstable_by_key(|word| word.at);
    words.retain(|word| !skip.iter().any(|skip| skip.contains(&word.at)));
    Ok(Searched::Whole(words))
}

/// The pages to look at; `None` where finding them would take too long.
fn pages(process: &Process, maps: &Mappings, skip: &[Range<u64>]) -> Result<Option<PageRanges>, ProcError> {
    let mut map = Pagemap::open(process)?;
    let searched = || maps.iter().filter_map(|mapping| Some((mapping, pages_of(mapping)?)));
    if !map.is_quick() && searched().map(|(mapping, _)| mapping.len()).sum::<u64>() > MOST_MAPPED {
        return Ok(None);
    }
    let mut found = PageRanges::default();
    let skip = whole_pages(skip);
    for (mapping, pages) in searched() {
        for part in without(mapping.start.0..mapping.end.0, &skip) {
            map.find(part, pages, &mut found).map_err(|errno| unreadable(process, errno))?;
        }
    }
    Ok(Some(found))
}

/// The pages of stacks to which something was written.
pub fn touched(process: &Process, stacks: impl Iterator<Item = Range<u64>>) -> Result<Ranges, ProcError> {
    let mut map = Pagemap::open(process)?;
    map.is_quick();
    let mut found = PageRanges::default();
    for stack in stacks.filter(|stack| !stack.is_empty()) {
        let pages = stack.start & !(page_size() - 1)..stack.end.next_multiple_of(page_size());
        map.find(pages, Pages::Own, &mut found).map_err(|errno| unreadable(process, errno))?;
    }
    Ok(Ranges::new(found.ranges.iter().map(|range| (range.start, range.end))))
}

fn unreadable(process: &Process, errno: Errno) -> ProcError {
    ProcError::Unreadable { path: format!("/proc/{}/pagemap", process.pid()).into(), source: errno.into() }
}

/// Which pages of a mapping may hold what the program has saved.
fn pages_of(mapping: &Mapping) -> Option<Pages> {
    let name = mapping.name.as_encoded_bytes();
    let is_memory = [&b"/dev/zero"[..], b"/dev/shm/", b"/dev/hugepages/"].iter().any(|n| name.starts_with(n));
    let is_file = name.starts_with(b"/") && (is_memory || !name.starts_with(b"/dev/"));
    match mapping.perms.shared {
        // Of the kernel's own there are the clock ([vvar]) and its code ([vdso]).
        false if name.starts_with(b"[v") => None,
        false => (is_file || !name.starts_with(b"/dev/")).then_some(Pages::Own),
        true => (mapping.perms.write && is_file).then_some(Pages::Shared),
    }
}

/// The whole pages that lie in `skip`, ascending and apart: of threads there may be many, and each has its own.
fn whole_pages(skip: &[Range<u64>]) -> Vec<Range<u64>> {
    let whole = |skip: &Range<u64>| skip.start.next_multiple_of(page_size())..skip.end & !(page_size() - 1);
    let mut all: Vec<_> = skip.iter().map(whole).filter(|skip| skip.start < skip.end).collect();
    all.sort_unstable_by_key(|skip| skip.start);
    all.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    all
}

/// What is left of `range` without what is skipped.
fn without(range: Range<u64>, skip: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut start = range.start;
    let first = skip.partition_point(|skip| skip.end <= start);
    for skip in skip[first..].iter().take_while(|skip| skip.start < range.end) {
        left.push(start..skip.start);
        start = skip.end;
    }
    left.push(start..range.end);
    left.retain(|range| range.start < range.end);
    left
}

/// Shares of `size` bytes each, in pieces of a chunk at most.
fn split(ranges: &[Range<u64>], size: u64) -> Vec<Vec<Range<u64>>> {
    let mut shares: Vec<Vec<Range<u64>>> = Vec::new();
    let mut room = 0;
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            if room == 0 {
                shares.push(Vec::new());
                room = size;
            }
            let end = range.end.min(start + CHUNK.min(room));
            if let Some(share) = shares.last_mut() {
                share.push(start..end);
            }
            room -= end - start;
            start = end;
        }
    }
    shares
}

/// The words of some pieces; `None` when they are too many.
fn words_in(
    process: &Process,
    ranges: &Ranges,
    pieces: &[Range<u64>],
) -> Result<Option<Vec<Word>>, MemoryError> {
    let mut words = Vec::new();
    let mut buffer = vec![0; CHUNK as usize];
    for piece in pieces {
        let mut at = piece.start;
        while at < piece.end {
            let bytes = &mut buffer[..(piece.end - at) as usize];
            let mut read = [ReadRange::new(RemoteAddr(at), bytes)];
            process.read_vectored(&mut read)?;
            // What nobody can read, such as a guard page that the kernel keeps in a page table, holds nothing.
            let done = read[0].done as u64 & !(page_size() - 1);
            words_of(ranges, at, &buffer[..done as usize], process.word_size(), &mut words);
            at += done.max(page_size());
            if words.len() > MOST_WORDS {
                return Ok(None);
            }
        }
    }
    Ok(Some(words))
}

/// The words of bytes that stand at `at`.
pub fn words_of(ranges: &Ranges, at: u64, bytes: &[u8], word_size: usize, words: &mut Vec<Word>) {
    /// Looked at together: nearly never is there anything.
    const TOGETHER: usize = 256;
    for (block, at) in bytes.chunks(TOGETHER).zip((at..).step_by(TOGETHER)) {
        if !ranges.may_hold_any(block, word_size) {
            continue;
        }
        for (word, at) in block.chunks_exact(word_size).zip((at..).step_by(word_size)) {
            let value = address_of(crate::scan::little_endian(word));
            if ranges.find(value).is_some() {
                words.push(Word { at, value });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_process::Pid;
    use trapless_testing::Idle;
    use trapless_wire::PAGE;

    #[test]
    fn words_are_found_in_both_widths() {
        let ranges = Ranges::new([(0x7f00_0000_1000, 0x7f00_0000_2000), (0x5000, 0x5010)]);
        let mut bytes = vec![0; 1024];
        bytes[264..272].copy_from_slice(&0x7f00_0000_1fff_u64.to_le_bytes());
        bytes[280..288].copy_from_slice(&0x7f00_0000_2000_u64.to_le_bytes());
        bytes[1016..1024].copy_from_slice(&0x5001_u64.to_le_bytes());
        // Not aligned.
        bytes[514..522].copy_from_slice(&0x5001_u64.to_le_bytes());
        let mut words = Vec::new();
        words_of(&ranges, 0x10_0000, &bytes, 8, &mut words);
        let expected = [(0x10_0000 + 264, 0x7f00_0000_1fff), (0x10_0000 + 1016, 0x5001)];
        assert_eq!(words.iter().map(|w| (w.at, w.value)).collect::<Vec<_>>(), expected);
        words.clear();
        words_of(&ranges, 0x10_0000, &bytes[512..], 4, &mut words);
        assert_eq!(words, [Word { at: 0x10_0000 + 504, value: 0x5001 }]);
    }

    #[test]
    fn words_of_files_are_told_from_those_that_were_written() {
        let idle = Idle::start();
        let process = Process::open(Pid(idle.pid())).unwrap();
        let maps = process.maps().unwrap();
        let code = maps.iter().find(|mapping| mapping.perms.exec && mapping.path().is_some()).unwrap();
        let read = |at: u64| Word { at, value: process.read_word(RemoteAddr(at)).unwrap() };
        let [kept, written] = [64, 128].map(|offset| code.start.0 + offset);
        process.write(RemoteAddr(written), &(!read(written).value).to_le_bytes()).unwrap();
        let mut unwritten = Unwritten::new(&process, &maps);
        assert!(unwritten.holds(&read(kept)));
        assert!(!unwritten.holds(&read(written)));
        assert!(!unwritten.holds(&Word { at: kept, value: !read(kept).value }));
        let stack = maps.iter().find(|mapping| mapping.is_special("[stack]")).unwrap();
        assert!(!unwritten.holds(&read(stack.end.0 - PAGE)));
    }

    #[test]
    fn what_is_skipped_is_cut_out() {
        let pages = |range: &Range<u64>| range.start * PAGE..range.end * PAGE;
        // In any order, and one in the other.
        let skip = [32..35, 30..40, 10..15, 15..20].map(|skip| pages(&skip));
        let cases = [(0..50, vec![0..10, 20..30, 40..50]), (12..18, vec![]), (15..50, vec![20..30, 40..50])];
        for (range, left) in cases {
            let left: Vec<_> = left.iter().map(pages).collect();
            assert_eq!(without(pages(&range), &whole_pages(&skip)), left, "{range:?}");
            // A page of which a part is not skipped is looked at.
            let inner = skip.clone().map(|skip| skip.start - 8..skip.end + 8);
            assert_eq!(without(pages(&range), &whole_pages(&inner)), left, "{range:?}");
        }
    }

    #[test]
    fn shares_hold_all_pages_once() {
        let ranges = [0..3 * CHUNK + PAGE, 10 * CHUNK..10 * CHUNK + PAGE];
        let shares = split(&ranges, 2 * CHUNK);
        assert_eq!(shares.len(), 2);
        let mut all: Vec<_> = shares.concat();
        assert!(all.iter().all(|piece| piece.end - piece.start <= CHUNK));
        all.dedup_by(|next, last| {
            last.end == next.start && {
                last.end = next.end;
                true
            }
        });
        assert_eq!(all, ranges);
    }
}
