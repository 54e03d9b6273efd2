//! Which memory is a thread's own stack, and stays mapped as long as it runs?
//!
//! The first thread's is the kernel's to make: it grows downwards, and never becomes smaller. All other threads' are the C library's, which notes
//! in each thread's control block where it lies (glibc: `stackblock`, `stackblock_size` and `guardsize` of `struct pthread`, in this order, since
//! 2.1). How far from the thread pointer that is depends on its version, and so it is looked for: three words that say just what holds of each
//! thread that there is.

use std::collections::BTreeSet;
use trapless_process::{MemoryError, Process, ReadRange, RemoteAddr, Stopped, page_size};
use trapless_wire::{MOST_ABOVE_POINTER, SCRIPT_BOUNDS, SCRIPT_STACK_END, SCRIPT_STACK_START};

/// Where a script's code finds the stacks of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnStacks {
    /// The first thread's as it is now.
    pub first: (u64, u64),
    /// Offset from the thread pointer of the three words; 0 where no thread shows it.
    pub bounds: i64,
}

/// The words lie no further from the thread pointer: on x86-64 behind it, on arm64 ahead.
const FAR: u64 = 4096;

/// So many threads are asked at most: they have all the same library.
const MOST_ASKED: usize = 32;

impl OwnStacks {
    /// Those of a process that stands.
    pub(crate) fn of(process: &Process, stopped: &Stopped<'_>) -> Result<Self, MemoryError> {
        let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
        let first = maps.special("[stack]").map_or((0, 0), |stack| (stack.start.0, stack.end.0));
        let leader = process.pid().leader();
        let others = stopped.threads().iter().filter(|thread| thread.tid() != leader);
        let mut common: Option<BTreeSet<i64>> = None;
        for pointer in others.take(MOST_ASKED).map(|thread| thread.registers().thread_pointer().0) {
            let found = bounds_near(process, pointer)?;
            // One that was made without the C library, or has just begun, says nothing.
            if found.is_empty() {
                continue;
            }
            common = Some(match common {
                Some(common) => common.intersection(&found).copied().collect(),
                None => found,
            });
        }
        let common = common.unwrap_or_default();
        let bounds = if common.len() == 1 { common.first().copied().unwrap_or(0) } else { 0 };
        Ok(Self { first, bounds })
    }

    /// Those of the process of whoever calls this, whose thread pointer that is: of a thread that the C library has made, and not the first one.
    ///
    /// # Errors
    /// The process cannot be read.
    pub fn of_own(process: &Process, pointer: u64) -> Result<Self, MemoryError> {
        let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
        let first = maps.special("[stack]").map_or((0, 0), |stack| (stack.start.0, stack.end.0));
        let found = bounds_near(process, pointer)?;
        let bounds = if found.len() == 1 { found.first().copied().unwrap_or(0) } else { 0 };
        Ok(Self { first, bounds })
    }

    /// The words of a script's memory that say so, by their offsets.
    pub fn words(self) -> [(u32, u64); 3] {
        let (start, end) = self.first;
        [(SCRIPT_STACK_START, start), (SCRIPT_STACK_END, end), (SCRIPT_BOUNDS, self.bounds as u64)]
    }
}

/// Offsets from a thread pointer of three words that may say where the thread's stack lies.
fn bounds_near(process: &Process, pointer: u64) -> Result<BTreeSet<i64>, MemoryError> {
    if pointer == 0 || process.word_size() != 8 {
        return Ok(BTreeSet::new());
    }
    let mut found = BTreeSet::new();
    for (start, size) in [(pointer.saturating_sub(FAR), FAR), (pointer, FAR)] {
        let mut bytes = vec![0; size as usize];
        let mut read = [ReadRange::new(RemoteAddr(start), &mut bytes)];
        process.read_vectored(&mut read)?;
        let done = read[0].done;
        let words: Vec<u64> =
            bytes[..done].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        for (triple, at) in words.windows(3).zip((start..).step_by(8)) {
            if says_bounds(triple, pointer) {
                found.insert(at.wrapping_sub(pointer) as i64);
            }
        }
    }
    Ok(found)
}

/// Whether three words may be what is noted of the stack of a thread with this thread pointer.
fn says_bounds(words: &[u64], pointer: u64) -> bool {
    let &[low, size, guard] = words else { return false };
    let is_whole = [low, size, guard].iter().all(|word| word.is_multiple_of(page_size()));
    let above = pointer.wrapping_sub(low);
    let behind = size.wrapping_sub(above);
    is_whole && low != 0 && low < pointer && above <= size && behind <= MOST_ABOVE_POINTER && guard < above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_noted_of_a_stack() {
        const LOW: u64 = 0x7f00_0000_0000;
        const SIZE: u64 = 0x80_0000;
        for (words, pointer, expected) in [
            ([LOW, SIZE, 0x1000], LOW + SIZE - 0x940, true),
            ([LOW, SIZE, 0], LOW + SIZE - 0x940, true),
            ([LOW, SIZE, 0x1000], LOW + SIZE, true),
            ([LOW, SIZE, 0x1000], LOW + SIZE - MOST_ABOVE_POINTER, true),
            ([LOW, SIZE, 0x1000], LOW + SIZE - MOST_ABOVE_POINTER - 8, false),
            ([LOW, SIZE, 0x1000], LOW + SIZE + 8, false),
            ([LOW, SIZE, SIZE], LOW + SIZE - 0x940, false),
            ([LOW + 8, SIZE, 0x1000], LOW + SIZE - 0x940, false),
            ([LOW, SIZE, 0x1008], LOW + SIZE - 0x940, false),
            ([LOW, SIZE, 0x1000], LOW, false),
            ([0, SIZE, 0], SIZE - 8, false),
        ] {
            assert_eq!(says_bounds(&words, pointer), expected, "{words:x?} {pointer:x}");
        }
    }
}
