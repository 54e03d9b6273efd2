//! Reading counters, histograms and rings out of the shared region.
//!
//! The region is sparse, and most of it is never written: reading takes no memory for it. So numbers are gathered block by
//! block, from the parts of each block that were ever written.

use crate::{Counter, Header, Histogram};
use std::ops::Range;
use trapless_isa::detour::*;

/// The shared region as 64-bit words, read while others write it.
///
/// Implemented by whoever maps or reads the region. Each read is one load and takes no memory of the region's file; what is out
/// of range, and what nobody has written, is 0.
pub trait Words {
    /// The word at a byte offset, a multiple of 8.
    fn word(&self, offset: u64) -> u64;

    /// The parts of a range of byte offsets that may hold anything but 0, in order.
    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }
}

/// The shared region of a reader that takes records out of rings.
pub trait WordsMut: Words {
    /// Replaces the word at a byte offset, a multiple of 8.
    fn set_word(&self, offset: u64, value: u64);

    /// The reader will not soon look at these byte offsets again. What they hold stays.
    fn release(&self, _range: Range<u64>) {}
}

/// The blocks of a region.
#[derive(Clone, Copy)]
pub struct Counters<'a, W: ?Sized> {
    header: &'a Header,
    words: &'a W,
}

/// One block.
#[derive(Clone, Copy)]
pub struct BlockView<'a, W: ?Sized> {
    words: &'a W,
    base: u64,
    ring: u32,
    ring_bits: u32,
    index: u64,
}

/// A latency histogram summed over threads. Durations are in time-stamp ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Number of calls.
    pub count: u64,
    /// Sum of their durations.
    pub sum: u64,
    /// The longest.
    pub max: u64,
    /// Calls per bucket ([`latency_bucket`]).
    pub buckets: Vec<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { count: 0, sum: 0, max: 0, buckets: vec![0; LATENCY_LENGTH as usize] }
    }
}

impl Latency {
    pub(crate) fn add<W: Words + ?Sized>(&mut self, block: &BlockView<'_, W>, histogram: u32) {
        self.count = self.count.wrapping_add(block.word(histogram + LATENCY_COUNT));
        self.sum = self.sum.wrapping_add(block.word(histogram + LATENCY_SUM));
        self.max = self.max.max(block.word(histogram + LATENCY_MAX));
        let buckets = histogram + LATENCY_BUCKETS;
        block.each_written(buckets..buckets + 8 * LATENCY_LENGTH, |at, calls| {
            let sum = &mut self.buckets[((at - buckets) / 8) as usize];
            *sum = sum.wrapping_add(calls);
        });
    }

    /// Adds another one of the same process. Numbers are what a target says, so a sum stays at the most that a number holds.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*more);
        }
    }

    /// What has come since `before`. Numbers only grow; one that a target has set back has not grown.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.count = since.count.saturating_sub(before.count);
        since.sum = since.sum.saturating_sub(before.sum);
        for (bucket, then) in since.buckets.iter_mut().zip(&before.buckets) {
            *bucket = bucket.saturating_sub(*then);
        }
        // The longest of the interval is known to its bucket.
        let highest = since.buckets.iter().rposition(|&calls| calls > 0).unwrap_or(0) as u32;
        since.max = since.max.min(latency_bucket_start(highest + 1).saturating_sub(1));
        since
    }

    /// The duration below which the share `quantile` (0 to 1) of the calls lie, interpolated within its bucket. 0
    /// when there are none.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let total = self.buckets.iter().fold(0u64, |sum, calls| sum.wrapping_add(*calls));
        let wanted = (quantile * total as f64).max(1.0);
        let mut below = 0.0;
        for (bucket, &calls) in self.buckets.iter().enumerate() {
            let calls = calls as f64;
            if calls > 0.0 && below + calls >= wanted {
                let start = latency_bucket_start(bucket as u32) as f64;
                let end = latency_bucket_start(bucket as u32 + 1) as f64;
                let value = start + (end - start) * (wanted - below) / calls;
                return (value as u64).min(self.max);
            }
            below += calls;
        }
        self.max
    }
}

impl<'a, W: Words + ?Sized> Counters<'a, W> {
    /// The blocks of the region that `header` describes.
    pub fn new(header: &'a Header, words: &'a W) -> Self {
        Self { header, words }
    }

    /// The overflow block, then the claimed ones.
    pub fn blocks(&self) -> impl Iterator<Item = BlockView<'a, W>> + use<'a, W> {
        let (header, words) = (self.header, self.words);
        let claimed = words.word(Header::CURSOR_OFFSET).min(header.block_count);
        (0..claimed).map(move |index| BlockView {
            words,
            base: header.blocks_offset + index * header.block_stride,
            ring: header.ring,
            ring_bits: header.ring_bits,
            index,
        })
    }

    /// Sums of all counters from the first of these to the last.
    pub fn totals(&self, counters: impl IntoIterator<Item = Counter>) -> Totals {
        let offsets = counters.into_iter().map(Counter::offset);
        let (start, last) = offsets.fold((u32::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
        let counters = start..if start > last { start } else { last + Counter::SIZE };
        let length = counters.len().div_ceil(8);
        let mut totals = Totals { start, own: vec![0; length], ..Totals::default() };
        totals.children.clone_from(&totals.own);
        let may_be_anybodys = self.has_no_block_left() && self.blocks().any(|block| block.is_of_child());
        for block in self.blocks() {
            let is_anybodys = may_be_anybodys && block.index == 0;
            let sums = if block.is_of_child() { &mut totals.children } else { &mut totals.own };
            block.each_written(counters.clone(), |counter, value| {
                let sum: &mut u64 = &mut sums[((counter - start) / 8) as usize];
                *sum = sum.wrapping_add(value);
                totals.anybody = totals.anybody.wrapping_add(if is_anybodys { value } else { 0 });
            });
        }
        totals
    }

    /// Whether all blocks are taken: whoever comes now counts in the overflow block.
    fn has_no_block_left(&self) -> bool {
        self.words.word(Header::CURSOR_OFFSET) >= self.header.block_count
    }

    /// How often children have hit these that share the memory of the thread with this thread pointer.
    pub fn sums_of_sharing(&self, thread_pointer: u64, counters: &[Counter]) -> Vec<u64> {
        let mut sums = vec![0u64; counters.len()];
        for block in self.blocks().filter(|b| b.is_of_child() && b.owner() == thread_pointer) {
            for (sum, counter) in sums.iter_mut().zip(counters) {
                *sum = sum.wrapping_add(block.word(counter.0));
            }
        }
        sums
    }

    /// Sum of a counter over the attached process's threads.
    pub fn sum(&self, counter: Counter) -> u64 {
        self.sum_at(counter.0)
    }

    fn sum_at(&self, offset: u32) -> u64 {
        self.blocks().filter(|b| !b.is_of_child()).fold(0, |sum, b| sum.wrapping_add(b.word(offset)))
    }

    /// Followed calls that an exception has left, or whose return address was put back for an unwinder.
    pub fn unwound(&self) -> u64 {
        self.sum_at(BLOCK_UNWOUND)
    }

    /// Histograms summed over the attached process's threads, of those of `probes` that have one. Each is given as the counter of its
    /// returns and the place of its histogram, in the order of the former; a block where the counter is 0 has no histogram.
    pub fn latencies(&self, probes: &[(Counter, Histogram)]) -> Vec<Option<Latency>> {
        let mut totals = vec![None; probes.len()];
        let (Some(first), Some(last)) = (probes.first(), probes.last()) else { return totals };
        for block in self.blocks().filter(|b| !b.is_of_child()) {
            block.each_written(first.0.0..last.0.0 + Counter::SIZE, |counter, _| {
                if let Ok(index) = probes.binary_search_by_key(&counter, |probe| probe.0.0) {
                    totals[index].get_or_insert_with(Latency::default).add(&block, probes[index].1.0);
                }
            });
        }
        totals
    }
}

/// Sums of counters, by their offsets in the blocks.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    start: u32,
    own: Vec<u64>,
    children: Vec<u64>,
    anybody: u64,
}

impl Totals {
    fn index(&self, counter: Counter) -> Option<usize> {
        Some(counter.0.checked_sub(self.start)? as usize / 8)
    }

    /// Of the attached process's threads. 0 for what was not gathered.
    pub fn own(&self, counter: Counter) -> u64 {
        self.index(counter).and_then(|index| self.own.get(index)).copied().unwrap_or(0)
    }

    /// What of [`Self::own`], of all counters together, may be children's, too: it was counted by threads that found no block left.
    pub fn of_anybody(&self) -> u64 {
        self.anybody
    }

    /// Of the threads of forked children. 0 for what was not gathered.
    pub fn of_children(&self, counter: Counter) -> u64 {
        self.index(counter).and_then(|index| self.children.get(index)).copied().unwrap_or(0)
    }
}

/// A record taken from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView {
    /// Time stamp.
    pub time: u64,
    /// What was hit ([`RECORD_ID`]).
    pub id: u32,
    /// Thread id, or 0.
    pub tid: u32,
    /// Address of the return address's stack slot.
    pub slot: u64,
    /// Arguments, or return value and time stamp of the entry.
    pub values: [u64; RECORD_MAX_VALUES as usize],
}

impl<W: Words + ?Sized> BlockView<'_, W> {
    /// Calls `see` with the offset and the value of each word between two offsets that is not 0.
    fn each_written(&self, words: Range<u32>, mut see: impl FnMut(u32, u64)) {
        let range = self.base + u64::from(words.start)..self.base + u64::from(words.end);
        for part in self.words.written(range) {
            for at in part.step_by(8) {
                let value = self.words.word(at);
                if value != 0 {
                    see((at - self.base) as u32, value);
                }
            }
        }
    }

    /// A word of the block.
    pub fn word(&self, offset: u32) -> u64 {
        self.words.word(self.base + u64::from(offset))
    }

    /// Index of the block; 0 is the overflow block.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Thread pointer of the thread that claimed the block.
    pub fn owner(&self) -> u64 {
        self.word(BLOCK_OWNER)
    }

    /// Whether a forked child claimed it. Threads of children that had to use the overflow block are counted as the parent's:
    /// for want of blocks, or where they had no stack to claim one.
    pub fn is_of_child(&self) -> bool {
        self.index != 0 && self.word(BLOCK_ORIGIN) == 0
    }

    /// Records that found the ring full, or no ring.
    pub fn ring_lost(&self) -> u64 {
        self.word(BLOCK_RING_LOST)
    }

    /// Entries that were not recorded, of calls that are not followed either.
    pub fn unrecorded(&self) -> u64 {
        self.word(BLOCK_UNRECORDED)
    }
}

impl<W: WordsMut + ?Sized> BlockView<'_, W> {
    /// Takes complete records out of the ring, oldest first, until there is none, `most` are taken, or the ring was gone through
    /// once: whoever fills it while we read must not keep us. How many were taken.
    ///
    /// A record that was reserved but is not complete ends the reading: its thread is in the middle of it.
    pub fn drain(&self, most: u64, mut take: impl FnMut(RecordView)) -> u64 {
        if self.ring == 0 {
            return 0;
        }
        let size = 1u64 << self.ring_bits;
        let start = self.word(BLOCK_RING_TAIL);
        let mut taken = 0;
        while taken < most.min(size) {
            let tail = start.wrapping_add(taken);
            // 32-bit programs count records in 32 bits; in a ring that is far shorter they tell enough.
            let record = self.ring + (((tail & (size - 1)) as u32) << RECORD_SHIFT);
            if self.word(record + RECORD_SEQUENCE) as u32 != tail.wrapping_add(1) as u32 {
                break;
            }
            let who = self.word(record + RECORD_ID);
            let values = std::array::from_fn(|i| self.word(record + RECORD_VALUES + 8 * i as u32));
            take(RecordView {
                time: self.word(record + RECORD_TIME),
                id: who as u32,
                tid: (who >> 32) as u32,
                slot: self.word(record + RECORD_SLOT),
                values,
            });
            taken += 1;
        }
        if taken > 0 {
            self.words.set_word(self.base + u64::from(BLOCK_RING_TAIL), start.wrapping_add(taken));
        }
        if taken >= MANY {
            let ring = self.base + u64::from(self.ring);
            self.words.release(ring..ring + (size << RECORD_SHIFT));
        }
        taken
    }
}

/// From so many records on, the pages of a ring that was read are not kept in the reader's memory.
const MANY: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(durations: &[u64]) -> Latency {
        let mut latency = Latency::default();
        for &d in durations {
            latency.count += 1;
            latency.sum += d;
            latency.max = latency.max.max(d);
            latency.buckets[latency_bucket(d) as usize] += 1;
        }
        latency
    }

    struct Region(std::collections::BTreeMap<u64, u64>);

    impl Words for Region {
        fn word(&self, offset: u64) -> u64 {
            self.0.get(&offset).copied().unwrap_or(0)
        }
    }

    #[test]
    fn what_is_counted_where_no_block_is_left_may_be_childrens() {
        const COUNTER: Counter = Counter(1024);
        let mut header: Header = bytemuck::Zeroable::zeroed();
        (header.block_count, header.block_stride, header.blocks_offset) = (3, 4096, 8192);
        // How many blocks are taken, the origins of those two behind the overflow block, and what may be anybody's then.
        for (taken, origins, expected) in
            [(3, [7, 0], 5), (9, [0, 7], 5), (3, [7, 7], 0), (2, [7, 0], 0), (2, [0, 7], 0)]
        {
            let mut words = std::collections::BTreeMap::from([(Header::CURSOR_OFFSET, taken)]);
            for (block, (origin, hits)) in (0..).zip([(7, 5), (origins[0], 10), (origins[1], 100)]) {
                let at = header.blocks_offset + block * header.block_stride;
                words.insert(at + u64::from(BLOCK_ORIGIN), origin);
                words.insert(at + u64::from(COUNTER.0), hits);
            }
            let region = Region(words);
            let totals = Counters::new(&header, &region).totals([COUNTER]);
            assert_eq!(totals.of_anybody(), expected, "{taken} {origins:?}");
            assert_eq!(totals.own(COUNTER) % 10, 5, "they are counted nevertheless");
        }
    }

    #[test]
    fn quantiles_are_exact_to_a_sixteenth() {
        let latency = of(&(1..=10_000).collect::<Vec<_>>());
        for (quantile, exact) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0), (0.999, 9_990.0)] {
            let found = latency.quantile(quantile) as f64;
            assert!((found / exact - 1.0).abs() < 1.0 / 16.0, "{quantile}: {found} for {exact}");
        }
        assert_eq!(latency.quantile(1.0), 10_000);
    }

    #[test]
    fn quantile_of_nothing_is_zero() {
        assert_eq!(Latency::default().quantile(0.5), 0);
    }
}
