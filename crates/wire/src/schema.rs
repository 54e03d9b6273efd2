//! The schema: which probe's numbers are where in the blocks, written into the region for whoever reads it later.
//!
//! A list of [`RawPlace`]s lies behind the journal. Each says of one probe that something of it is collected, and where: a counter, a
//! histogram, records in the ring. A probe is named by its id; the journal's site of the same id says which code it is at. So whoever knows the
//! region and nothing else can read all that a session collects.
//!
//! Offsets that can be worked with are types: [`Counter`] and [`Histogram`] are made by [`Geometry`](crate::Geometry), for a
//! session of one's own, or by [`Schema::read`], which looks at what somebody else may have written. Both lie within a block.

use crate::{BlockView, Counters, Header, Latency, Words};
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;
use std::ops::Range;
use trapless_isa::detour::{
    BLOCK_COUNTERS, LATENCY_BUCKETS, LATENCY_LENGTH, RECORD_MAX_VALUES, RECORD_SHIFT,
};

/// The place of a 64-bit counter in every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter(pub(crate) u32);

impl Counter {
    /// Bytes it takes.
    pub const SIZE: u32 = 8;

    /// Offset in a block.
    pub fn offset(self) -> u32 {
        self.0
    }
}

/// The place of a latency histogram in every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Histogram(pub(crate) u32);

impl Histogram {
    /// Bytes it takes.
    pub const SIZE: u32 = LATENCY_BUCKETS + 8 * LATENCY_LENGTH;

    /// Offset in a block.
    pub fn offset(self) -> u32 {
        self.0
    }
}

/// What is collected of one probe, and where its numbers are in each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Entries.
    pub entries: Option<Counter>,
    /// Returns.
    pub returns: Option<Counter>,
    /// Calls that could not be followed.
    pub lost: Option<Counter>,
    /// Histogram of durations.
    pub latency: Option<Histogram>,
    /// Entries are recorded in the ring, with so many arguments.
    pub recorded_entries: Option<u8>,
    /// Returns are recorded in the ring.
    pub recorded_returns: bool,
}

impl Places {
    /// How many places there are.
    pub fn count(&self) -> usize {
        self.raw(0, 0).count()
    }

    /// As they stand in a region whose rings are at `ring`.
    pub fn raw(self, probe: u32, ring: u32) -> impl Iterator<Item = RawPlace> {
        let place =
            move |kind: PlaceKind, offset| RawPlace { probe, offset, kind: kind as u8, ..RawPlace::zeroed() };
        let counter = move |kind, counter: Option<Counter>| counter.map(|counter| place(kind, counter.0));
        let entries =
            self.recorded_entries.map(|arguments| RawPlace { arguments, ..place(PlaceKind::Entered, ring) });
        [
            counter(PlaceKind::Entries, self.entries),
            counter(PlaceKind::Returns, self.returns),
            counter(PlaceKind::Lost, self.lost),
            self.latency.map(|histogram| place(PlaceKind::Latency, histogram.0)),
            entries,
            self.recorded_returns.then(|| place(PlaceKind::Returned, ring)),
        ]
        .into_iter()
        .flatten()
    }
}

/// What lies at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PlaceKind {
    /// A counter of entries.
    Entries = 1,
    /// A counter of returns.
    Returns = 2,
    /// A counter of calls that could not be followed.
    Lost = 3,
    /// A histogram of durations.
    Latency = 4,
    /// The ring, in which entries are recorded.
    Entered = 5,
    /// The ring, in which returns are recorded.
    Returned = 6,
}

impl PlaceKind {
    /// All of them.
    pub const ALL: [PlaceKind; 6] =
        [Self::Entries, Self::Returns, Self::Lost, Self::Latency, Self::Entered, Self::Returned];

    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// A place as it stands in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawPlace {
    /// Id of the probe.
    pub probe: u32,
    /// Offset in a block. Never 0.
    pub offset: u32,
    /// A [`PlaceKind`].
    pub kind: u8,
    /// How many arguments are recorded of an entry; else 0.
    pub arguments: u8,
    /// Unused.
    pub _pad: [u8; 6],
}

// The region is read by other tools of the same version.
const _: () = assert!(size_of::<RawPlace>() == 16);

/// The places of all probes of a session, by the ids of the probes.
#[derive(Clone, Debug, Default)]
pub struct Schema(BTreeMap<u32, Places>);

impl Schema {
    /// What a list of places says, as far as it is what arming writes for blocks as `header` describes them; and how many of the list
    /// say something else.
    pub fn read(header: &Header, list: &[RawPlace]) -> (Self, usize) {
        let mut schema = Self::default();
        let mut taken = Taken { header, ranges: BTreeMap::new() };
        let doubted = list.iter().filter(|raw| schema.add(raw, &mut taken).is_none()).count();
        (schema, doubted)
    }

    fn add(&mut self, raw: &RawPlace, taken: &mut Taken<'_>) -> Option<()> {
        let kind = PlaceKind::from_raw(raw.kind)?;
        let records = kind == PlaceKind::Entered && u32::from(raw.arguments) <= RECORD_MAX_VALUES;
        if raw.arguments != 0 && !records {
            return None;
        }
        let mut places = self.places(raw.probe);
        let mut counter = |place: &mut Option<Counter>| {
            unset(place)?;
            *place = Some(Counter(taken.take(raw.offset, Counter::SIZE)?));
            Some(())
        };
        match kind {
            PlaceKind::Entries => counter(&mut places.entries)?,
            PlaceKind::Returns => counter(&mut places.returns)?,
            PlaceKind::Lost => counter(&mut places.lost)?,
            PlaceKind::Latency => {
                unset(&places.latency)?;
                places.latency = Some(Histogram(taken.take(raw.offset, Histogram::SIZE)?));
            }
            PlaceKind::Entered => {
                unset(&places.recorded_entries)?;
                places.recorded_entries = taken.is_ring(raw.offset).then_some(Some(raw.arguments))?;
            }
            PlaceKind::Returned => {
                let is_new = !places.recorded_returns && taken.is_ring(raw.offset);
                places.recorded_returns = is_new.then_some(true)?;
            }
        }
        self.0.insert(raw.probe, places);
        Some(())
    }

    /// What is collected of a probe: nothing, where the schema does not know it.
    pub fn places(&self, probe: u32) -> Places {
        self.0.get(&probe).copied().unwrap_or_default()
    }

    /// The probes of which anything is collected.
    pub fn probes(&self) -> impl Iterator<Item = (u32, Places)> + '_ {
        self.0.iter().map(|(probe, places)| (*probe, *places))
    }
}

fn unset<T>(place: &Option<T>) -> Option<()> {
    place.is_none().then_some(())
}

/// The parts of a block that are known to hold something.
struct Taken<'h> {
    header: &'h Header,
    /// Their ends, by their starts.
    ranges: BTreeMap<u32, u32>,
}

impl Taken<'_> {
    fn is_ring(&self, offset: u32) -> bool {
        offset != 0 && offset == self.header.ring
    }

    fn ring(&self) -> Range<u64> {
        let start = u64::from(self.header.ring);
        let size = if start == 0 { 0 } else { 1u64 << (self.header.ring_bits + RECORD_SHIFT) };
        start..start + size
    }

    /// Takes a part of the block that lies behind its first fields, in whole words, and is nobody else's.
    fn take(&mut self, offset: u32, size: u32) -> Option<u32> {
        let end = offset.checked_add(size)?;
        let ring = self.ring();
        let before = self.ranges.range(..end).next_back();
        let is_free = offset >= BLOCK_COUNTERS
            && offset.is_multiple_of(8)
            && u64::from(end) <= self.header.block_stride
            && (u64::from(end) <= ring.start || ring.end <= u64::from(offset))
            && before.is_none_or(|(_, &other)| other <= offset);
        is_free.then(|| {
            self.ranges.insert(offset, end);
            offset
        })
    }
}

/// The numbers of one probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Entries on the attached process's threads.
    pub entries: u64,
    /// Returns.
    pub returns: u64,
    /// Calls that could not be followed.
    pub lost: u64,
    /// Entries, or where they are not counted returns, in forked children.
    pub in_children: u64,
    /// The durations; `None` if there are none yet, or they are not collected.
    pub latency: Option<Latency>,
}

impl<W: Words + ?Sized> Counters<'_, W> {
    /// The numbers of some probes, in the same order. Reads the words that they name and no others; what lies together is read together.
    pub fn numbers(&self, probes: &[Places]) -> Vec<Numbers> {
        let mut all = vec![Numbers::default(); probes.len()];
        for block in self.blocks() {
            let read = |counter: Option<Counter>| counter.map_or(0, |counter| block.word(counter.0));
            let mut is_timed = Vec::new();
            for (index, (places, numbers)) in probes.iter().zip(&mut all).enumerate() {
                let (entries, returns) = (read(places.entries), read(places.returns));
                if block.is_of_child() {
                    let hits = if places.entries.is_some() { entries } else { returns };
                    numbers.in_children = numbers.in_children.wrapping_add(hits);
                    continue;
                }
                numbers.entries = numbers.entries.wrapping_add(entries);
                numbers.returns = numbers.returns.wrapping_add(returns);
                // Where no call has returned there is no histogram.
                if let Some(histogram) = places.latency.filter(|_| returns != 0) {
                    is_timed.push((index, histogram));
                }
            }
            if block.is_of_child() {
                continue;
            }
            for (places, numbers) in probes.iter().zip(&mut all) {
                numbers.lost = numbers.lost.wrapping_add(read(places.lost));
            }
            for (index, histogram) in is_timed {
                add_histogram(&mut all[index], &block, histogram);
            }
        }
        all
    }
}

fn add_histogram<W: Words + ?Sized>(numbers: &mut Numbers, block: &BlockView<'_, W>, histogram: Histogram) {
    numbers.latency.get_or_insert_with(Latency::default).add(block, histogram.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, JournalSizes, PAGE, Sizes};
    use std::cell::RefCell;
    use trapless_isa::detour::{BLOCK_ORIGIN, LATENCY_COUNT, LATENCY_MAX, LATENCY_SUM};

    /// A header as arming writes it, and what is collected of three probes.
    fn written(ring: bool) -> (Header, [(u32, Places); 3]) {
        let mut geometry = Geometry::default();
        if ring {
            geometry.ring(10).unwrap();
        }
        let mut counter = || geometry.counter().unwrap();
        let count = Places { entries: Some(counter()), ..Places::default() };
        let [returns, lost] = [(); 2].map(|()| Some(counter()));
        let trace = Places {
            entries: Some(counter()),
            recorded_entries: ring.then_some(3),
            recorded_returns: ring,
            ..Places::default()
        };
        let latency = Places { returns, lost, latency: geometry.latency(), ..Places::default() };
        let mut header = Header::zeroed();
        geometry.describe(&mut header, Sizes::ALL[2], JournalSizes::default(), None);
        header.block_cursor = 4;
        (header, [(7, count), (9, latency), (0, trace)])
    }

    fn raw(header: &Header, probes: &[(u32, Places)]) -> Vec<RawPlace> {
        probes.iter().flat_map(|(probe, places)| places.raw(*probe, header.ring)).collect()
    }

    #[test]
    fn what_arming_writes_is_read_again() {
        for ring in [false, true] {
            let (header, probes) = written(ring);
            let list = raw(&header, &probes);
            assert_eq!(list.len(), probes.iter().map(|(_, places)| places.count()).sum::<usize>());
            let (schema, doubted) = Schema::read(&header, &list);
            assert_eq!(doubted, 0);
            for (probe, places) in probes {
                assert_eq!(schema.places(probe), places, "{probe}");
            }
            assert_eq!(schema.probes().map(|(probe, _)| probe).collect::<Vec<_>>(), [0, 7, 9]);
            assert_eq!(schema.places(8), Places::default());
        }
    }

    #[test]
    fn whatever_else_a_place_says_is_doubted() {
        type Forge = fn(&mut RawPlace, &Header);
        // Which place of the list, and what is made of it.
        let forgeries: [(usize, Forge); 17] = [
            (0, |p, _| p.kind = 0),
            (0, |p, _| p.kind = 7),
            (0, |p, _| p.arguments = 1),
            (0, |p, _| p.offset = 0),
            (0, |p, _| p.offset = BLOCK_COUNTERS - 8),
            (0, |p, _| p.offset += 1),
            (0, |p, _| p.offset = u32::MAX - 7),
            (0, |p, h| p.offset = h.block_stride as u32),
            (0, |p, h| p.offset = h.ring),
            (0, |p, h| p.offset = h.ring + (1 << (h.ring_bits + RECORD_SHIFT)) - 8),
            (2, |p, _| p.offset -= 8),
            (3, |p, h| p.offset = h.block_stride as u32 - Histogram::SIZE + 8),
            (3, |p, _| p.offset -= 8),
            (5, |p, _| p.offset += 8),
            (5, |p, _| p.arguments = 255),
            (6, |p, _| p.arguments = 1),
            (6, |p, _| p.offset = 0),
        ];
        let (header, probes) = written(true);
        for (index, (place, forge)) in forgeries.into_iter().enumerate() {
            let mut list = raw(&header, &probes);
            forge(&mut list[place], &header);
            let (schema, doubted) = Schema::read(&header, &list);
            assert_eq!(doubted, 1, "forgery {index}");
            let known: usize = schema.probes().map(|(_, places)| places.count()).sum();
            assert_eq!(known, list.len() - 1, "forgery {index}");
        }
    }

    #[test]
    fn a_probe_has_one_place_of_a_kind() {
        let (header, probes) = written(true);
        let list = raw(&header, &probes);
        for place in &list {
            let mut twice = list.clone();
            twice.push(RawPlace {
                offset: if place.kind < 4 { place.offset + 64 } else { place.offset },
                ..*place
            });
            let (schema, doubted) = Schema::read(&header, &twice);
            assert_eq!(doubted, 1, "{place:?}");
            assert_eq!(schema.places(7), probes[0].1);
        }
    }

    /// The region of a header, of which the words named here are not 0. Remembers what was read.
    struct Region {
        words: BTreeMap<u64, u64>,
        read: RefCell<Vec<u64>>,
    }

    impl Words for Region {
        fn word(&self, offset: u64) -> u64 {
            self.read.borrow_mut().push(offset);
            self.words.get(&offset).copied().unwrap_or(0)
        }
    }

    #[test]
    fn numbers_are_read_by_the_schema_alone() {
        let (header, probes) = written(false);
        let (schema, _) = Schema::read(&header, &raw(&header, &probes));
        let places: Vec<Places> = [7, 9, 0].map(|probe| schema.places(probe)).to_vec();
        let [count, latency, trace] = places[..] else { panic!("three probes") };
        let mut words = BTreeMap::from([(Header::CURSOR_OFFSET, 4)]);
        let mut set = |block: u64, offset: u32, value: u64| {
            words.insert(header.blocks_offset + block * header.block_stride + u64::from(offset), value);
        };
        let histogram = latency.latency.unwrap().0;
        for (block, origin) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
            set(block, BLOCK_ORIGIN, origin);
            set(block, count.entries.unwrap().0, 10 + block);
            set(block, trace.entries.unwrap().0, 100);
        }
        for (block, duration) in [(0, 5), (2, 7), (3, 1000)] {
            set(block, latency.returns.unwrap().0, 1);
            set(block, latency.lost.unwrap().0, 2);
            set(block, histogram + LATENCY_COUNT, 1);
            set(block, histogram + LATENCY_SUM, duration);
            set(block, histogram + LATENCY_MAX, duration);
            set(block, histogram + LATENCY_BUCKETS + 8 * duration.min(8) as u32, 1);
        }
        let region = Region { words, read: RefCell::default() };
        let numbers = Counters::new(&header, &region).numbers(&places);
        assert_eq!((numbers[0].entries, numbers[0].in_children, &numbers[0].latency), (33, 13, &None));
        assert_eq!((numbers[1].returns, numbers[1].lost, numbers[1].in_children), (2, 4, 1));
        let durations = numbers[1].latency.as_ref().unwrap();
        assert_eq!((durations.count, durations.sum, durations.max), (2, 12, 7));
        assert_eq!((durations.buckets[5], durations.buckets[7], durations.buckets[8]), (1, 1, 0));
        assert_eq!((numbers[2].entries, numbers[2].in_children), (300, 100));
        // Block 1 has seen no return, so its histogram is not looked at; nor is that of a child.
        let in_histogram = |at: &u64, block: u64| {
            let start = header.blocks_offset + block * header.block_stride + u64::from(histogram);
            (start..start + u64::from(Histogram::SIZE)).contains(at)
        };
        assert!(!region.read.borrow().iter().any(|at| in_histogram(at, 1) || in_histogram(at, 3)));
        assert!(header.block_stride >= 2 * PAGE);
    }
}
