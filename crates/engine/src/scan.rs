//! Looking through stopped threads for addresses inside code that is about to change.
//!
//! A signal frame, or any other saved context, holds an instruction pointer that the thread will continue at. If it lies
//! inside displaced instructions, the thread would continue in the middle of a patch. There is no telling a saved
//! instruction pointer from a number that happens to look like one, so either keeps its site unpatched.

use trapless_process::{MemoryError, Process, ReadRange, RemoteAddr};

/// The most of a stack that is looked at. A handler runs close to the frame it interrupted.
const MAX_STACK: u64 = 2 << 20;

/// Words below the stack pointer that may still hold a program's own addresses.
///
/// Not for a look at addresses of ours: the program keeps none, and below the stack pointer lie those that returns and
/// routines of detours have left behind.
pub const RED_ZONE: u64 = 128;

/// Address ranges, sorted, that do not overlap.
#[derive(Debug, Default)]
pub struct Ranges {
    ranges: Vec<(u64, u64)>,
    /// Few and wide ones that hold all of them: first address and length.
    clusters: Vec<(u64, u64)>,
}

/// Ranges closer than this are one cluster: those of one module, and of its neighbours.
const CLUSTER_GAP: u64 = 64 << 20;

impl Ranges {
    /// From (start, end) pairs in any order.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|r| r.0 < r.1).collect();
        ranges.sort_unstable();
        let mut clusters: Vec<(u64, u64)> = Vec::new();
        for &(start, end) in &ranges {
            match clusters.last_mut() {
                Some((low, length)) if start - (*low + *length) < CLUSTER_GAP => *length = end - *low,
                _ => clusters.push((start, end - start)),
            }
        }
        Self { ranges, clusters }
    }

    /// Whether any word of `bytes` may lie in one of the ranges: quick, and mostly the answer is no.
    pub fn may_hold_any(&self, bytes: &[u8], word_size: usize) -> bool {
        let any = |low: u64, length: u64| match word_size {
            8 => bytes.as_chunks::<8>().0.iter().fold(false, |any, word| {
                any | (u64::from_le_bytes(*word).wrapping_sub(low) < length)
            }),
            _ => bytes.as_chunks::<4>().0.iter().fold(false, |any, word| {
                any | (u64::from(u32::from_le_bytes(*word)).wrapping_sub(low) < length)
            }),
        };
        self.clusters.iter().any(|&(low, length)| any(low, length))
    }

    /// Start of the range that holds `address`.
    pub fn find(&self, address: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|r| r.0 <= address);
        let (start, end) = *self.ranges.get(after.checked_sub(1)?)?;
        (address < end).then_some(start)
    }

    fn bounds(&self) -> (u64, u64) {
        (self.ranges.first().map_or(0, |r| r.0), self.ranges.iter().map(|r| r.1).max().unwrap_or(0))
    }
}

/// Starts of the ranges that a word on one of the stacks points into. `stacks` are stack pointers; `below` is how many bytes
/// below them are looked at, too.
pub fn pointed_into(
    process: &Process,
    stacks: &[u64],
    below: u64,
    ranges: &Ranges,
) -> Result<Vec<u64>, MemoryError> {
    let mut found = Vec::new();
    let (low, high) = ranges.bounds();
    if low == high {
        return Ok(found);
    }
    let Ok(maps) = process.maps() else { return Err(MemoryError::Gone) };
    let mut buffers: Vec<(u64, Vec<u8>)> = stacks
        .iter()
        .filter_map(|&sp| {
            let start = sp.saturating_sub(below) & !7;
            let end = maps.find(RemoteAddr(sp))?.end.0.min(start + MAX_STACK);
            Some((start, vec![0; end.saturating_sub(start) as usize]))
        })
        .collect();
    let mut reads: Vec<_> =
        buffers.iter_mut().map(|(at, buffer)| ReadRange::new(RemoteAddr(*at), buffer)).collect();
    process.read_vectored(&mut reads)?;
    for read in &reads {
        for word in read.buffer[..read.done].chunks_exact(process.word_size()) {
            let word = little_endian(word);
            if (low..high).contains(&word) {
                found.extend(ranges.find(word));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
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
}
