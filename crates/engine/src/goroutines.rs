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
//!
//! Go's heap holds no other saved context. What else leads into code there is what a profile has noted, and what is left of stacks that were
//! given back or moved: it may be there for as long as the program runs, so in mappings that hold stacks of goroutines nothing else is looked at, but for
//! the stacks that Go's threads schedule and handle signals on ([`end_of_stack`]).

use crate::scan::{Ranges, little_endian};
use crate::search::{Word, words_of};
use std::collections::BTreeSet;
use trapless_process::{Mappings, MemoryError, Process, ReadRange, Registers, RemoteAddr};

/// How large a stack is at the most in Go's heap that is no goroutine's: they have 32 KiB, twice that where the race detector is built in.
const LARGEST_OF_THREADS: u64 = 64 << 10;

/// Most goroutines that are looked at.
const MOST_GOROUTINES: u64 = 1 << 20;
/// Most that is looked at of their stacks: some 20 ms.
const MOST_OF_STACKS: u64 = 192 << 20;
/// The deepest stack that Go allows.
const DEEPEST: u64 = 1 << 30;
/// The smallest; the others are twice that, four times, and so on.
const SMALLEST: u64 = 2 << 10;
/// How much of a goroutine is read.
const HEAD: usize = 64;
/// How much is read at a time.
const BATCH: usize = 4 << 20;

/// What is in use of the stacks of all goroutines.
#[derive(Debug)]
pub(crate) struct Stacks(Vec<(u64, u64)>);

impl Stacks {
    /// Of the goroutines in these lists ([`crate::Module::goroutines`]); `None` where not all of them can be looked at.
    pub fn of(process: &Process, lists: &[[u64; 2]]) -> Result<Option<Self>, MemoryError> {
        let mut all = Vec::new();
        for [list, count] in lists {
            let Some(stacks) = stacks(process, *list, *count)? else { return Ok(None) };
            all.extend(stacks);
        }
        Ok(Some(Self(all)))
    }

    /// The mappings that hold any: Go's heap.
    pub fn heap(&self, maps: &Mappings) -> Ranges {
        let held = self.0.iter().filter_map(|(start, _)| maps.find(RemoteAddr(*start)));
        let held: BTreeSet<_> = held.map(|mapping| (mapping.start.0, mapping.end.0)).collect();
        Ranges::new(held)
    }

    /// Adds the words that lead into `ranges`; `false` where not all of them can be read.
    pub fn words_into(
        &self,
        process: &Process,
        ranges: &Ranges,
        words: &mut Vec<Word>,
    ) -> Result<bool, MemoryError> {
        let mut rest = self.0.as_slice();
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
}

/// Where the stack in Go's heap ends that a thread is on, whose stack pointer there is `sp`. What runs on it, be it a goroutine or what the thread itself
/// schedules and handles signals by, is a `runtime.g` that says so, and which Go's code keeps in a register and below the thread pointer. Where there is
/// none, as far on as such a stack could go.
pub(crate) fn end_of_stack(process: &Process, registers: &Registers, sp: u64) -> Result<u64, MemoryError> {
    let named = process.read_word(RemoteAddr(registers.thread_pointer().0.wrapping_sub(8)));
    let pointers: Vec<u64> = registers.all_but_sp().chain(named).collect();
    let mut bounds = vec![[0; 16]; pointers.len()];
    let reads = pointers.iter().zip(&mut bounds);
    let mut reads: Vec<_> =
        reads.map(|(pointer, bounds)| ReadRange::new(RemoteAddr(*pointer), bounds)).collect();
    process.read_vectored(&mut reads)?;
    let whole = reads.iter().filter(|read| read.done == read.buffer.len());
    let ends = whole.filter_map(|read| {
        let [start, end] = [0, 8].map(|offset| little_endian(&read.buffer[offset..offset + 8]));
        let is_around = start < sp && sp <= end && start % SMALLEST == 0;
        let is_stack = || (SMALLEST..=DEEPEST).contains(&(end - start)) && (end - start).is_power_of_two();
        (is_around && is_stack()).then_some(end)
    });
    Ok(ends.max().unwrap_or(sp.saturating_add(LARGEST_OF_THREADS)))
}

/// What is in use of the stacks of the goroutines in a list.
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
