//! Goroutines that were stopped inside displaced instructions.
//!
//! Go's scheduler stops a goroutine that runs for long by a signal, at whatever instruction that finds it, and the goroutine goes on there later,
//! on any thread. Meanwhile the address lies on the goroutine's stack, somewhere in the heap. A program with a large heap is not looked through
//! whole in a short stop; but Go lists its goroutines, and each tells where its stack is:
//!
//! | offset in `runtime.g` | field | |
//! |---|---|---|
//! | 0, 8 | `stack` | where the stack begins, and its end; 0: it has none |
//! | 48 | `m` | the thread that it runs on, or makes a system call; 0: it waits |
//! | 56 | `sched.sp` | where it waits, its stack pointer |
//!
//! (`runtime/runtime2.go`; so from Go 1.17 to 1.25 at least.) What waits has in use what is above its stack pointer; of the others all is looked at. Where the
//! list does not look like one, nothing is known.

use crate::scan::{Ranges, little_endian};
use crate::search::{Word, words_of};
use trapless_process::{MemoryError, Process, ReadRange, RemoteAddr};

/// Most goroutines that are looked at.
const MOST_GOROUTINES: u64 = 1 << 20;
/// Most that is looked at of their stacks: some 20 ms.
const MOST_OF_STACKS: u64 = 192 << 20;
/// The deepest stack that Go allows.
const DEEPEST: u64 = 1 << 30;
/// How much of a goroutine is read.
const HEAD: usize = 64;
/// How much is read at a time.
const BATCH: usize = 4 << 20;

/// Adds the words of all goroutines' stacks that lead into `ranges`; `false` where not all of them can be looked at. `list`:
/// [`crate::Module::goroutines`].
pub(crate) fn words_into(
    process: &Process,
    [list, count]: [u64; 2],
    ranges: &Ranges,
    words: &mut Vec<Word>,
) -> Result<bool, MemoryError> {
    let Some(stacks) = stacks(process, list, count)? else { return Ok(false) };
    let mut rest = stacks.as_slice();
    while let [first, ..] = rest {
        let mut size = (first.1 - first.0) as usize;
        let mut taken = 1;
        while let Some((start, end)) = rest.get(taken).filter(|_| size < BATCH) {
            size += (end - start) as usize;
            taken += 1;
        }
        let mut buffer = vec![0; size];
        let mut left = buffer.as_mut_slice();
        let mut reads = Vec::with_capacity(taken);
        for (start, end) in &rest[..taken] {
            let (own, others) = left.split_at_mut((end - start) as usize);
            reads.push(ReadRange::new(RemoteAddr(*start), own));
            left = others;
        }
        process.read_vectored(&mut reads)?;
        for (read, (start, _)) in reads.iter().zip(rest) {
            if read.done < read.buffer.len() {
                return Ok(false);
            }
            words_of(ranges, *start, read.buffer, process.word_size(), words);
        }
        rest = &rest[taken..];
    }
    Ok(true)
}

/// What is in use of all goroutines' stacks.
fn stacks(process: &Process, list: u64, count: u64) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
    let count = process.read_word(RemoteAddr(count))?;
    if count == 0 || count > MOST_GOROUTINES {
        return Ok(None);
    }
    let list = process.read_word(RemoteAddr(list))?;
    let mut pointers = vec![0; 8 * count as usize];
    let mut heads = vec![[0; HEAD]; count as usize];
    let mut reads = [ReadRange::new(RemoteAddr(list), &mut pointers)];
    process.read_vectored(&mut reads)?;
    if reads[0].done < 8 * count as usize {
        return Ok(None);
    }
    let mut reads: Vec<_> = pointers
        .chunks_exact(8)
        .zip(&mut heads)
        .map(|(pointer, head)| ReadRange::new(RemoteAddr(little_endian(pointer)), head))
        .collect();
    process.read_vectored(&mut reads)?;
    if reads.iter().any(|read| read.done < HEAD) {
        return Ok(None);
    }
    let mut all = Vec::with_capacity(heads.len());
    let mut left = MOST_OF_STACKS;
    for head in &heads {
        let field = |offset: usize| little_endian(&head[offset..offset + 8]);
        let [start, end, thread, pointer] = [0, 8, 48, 56].map(field);
        if start == 0 && end == 0 {
            continue;
        }
        if start >= end || end - start > DEEPEST || start % 8 != 0 || end % 8 != 0 {
            return Ok(None);
        }
        let waits = thread == 0 && (start..=end).contains(&pointer) && pointer % 8 == 0;
        let start = if waits { pointer } else { start };
        let Some(rest) = left.checked_sub(end - start) else { return Ok(None) };
        left = rest;
        if start < end {
            all.push((start, end));
        }
    }
    Ok(Some(all))
}
