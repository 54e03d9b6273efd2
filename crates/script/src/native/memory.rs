//! A script's memory in one process, as the tool sees it: what its shared part begins with, and its maps.
//!
//! The process writes to it at the same time, and may write anything.

use super::unmask;
use crate::interp::{Maps, merge};
use crate::ir::{Aggregation, ClockKind, MapId, MapSharing, MapValue, Program};
use std::collections::BTreeMap;
use std::ops::Range;
use trapless_wire::{
    Atomics, Clock, MapKind, MapPlace, SCRIPT_BEGAN, SCRIPT_CGROUP, SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE,
    SCRIPT_GID, SCRIPT_PARENT, SCRIPT_PID, SCRIPT_PROCESSORS, SCRIPT_SEED, SCRIPT_SYMBOLS, SCRIPT_UID,
    ScriptLayout, TableView, Words, WordsMut,
};

/// What the script is told of a process.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Id of the process, in the tool's namespace.
    pub pid: u64,
    /// Id of its parent.
    pub parent: u64,
    /// Its real user's.
    pub uid: u64,
    /// Its real group's.
    pub gid: u64,
    /// Id of its control group.
    pub cgroup: u64,
    /// A word that nobody can guess.
    pub seed: u64,
    /// How many processors there are.
    pub processors: u64,
    /// When the script began, in nanoseconds of [`ClockKind::Boot`].
    pub began: u64,
    /// The part of its program's file around its entry point that is mapped for reading and not for writing, one mapping behind the other.
    pub constant: Range<u64>,
    /// The clocks, by [`ClockKind`].
    pub clocks: Vec<(ClockKind, Clock)>,
    /// The addresses of [`Program::symbols`]; 0 of those that are not there.
    pub symbols: Vec<u64>,
}

/// What the shared part of a script's memory begins with in a process; all behind it is 0. `maps`: what maps hold already that are shared.
pub fn image(program: &Program, layout: &ScriptLayout, about: &About, maps: &mut dyn Maps) -> Vec<u8> {
    let image = Image::default();
    let words = [
        (SCRIPT_PID, about.pid),
        (SCRIPT_PARENT, about.parent),
        (SCRIPT_UID, about.uid),
        (SCRIPT_GID, about.gid),
        (SCRIPT_CGROUP, about.cgroup),
        (SCRIPT_SEED, about.seed),
        (SCRIPT_PROCESSORS, about.processors),
        (SCRIPT_BEGAN, about.began),
        (SCRIPT_CONSTANT, about.constant.start),
        (SCRIPT_CONSTANT_SIZE, about.constant.end.saturating_sub(about.constant.start)),
    ];
    words.iter().for_each(|(at, value)| image.set_word((*at).into(), *value));
    for (kind, clock) in &about.clocks {
        for (index, word) in (0..).zip(clock.words()) {
            image.set_word(u64::from(Clock::offset(*kind as u32)) + 8 * index, word);
        }
    }
    for (index, address) in (0..).zip(&about.symbols) {
        image.set_word(u64::from(SCRIPT_SYMBOLS) + 8 * index, *address);
    }
    for (bytes, at) in program.constants.iter().zip(&layout.constants) {
        image.put(*at, bytes);
    }
    let memory = Memory { program, layout, words: &image, shared: 0, threads: Vec::new(), overflow: None };
    for map in (0..program.maps.len() as u32).map(MapId) {
        let Some(MapValue::Bytes(size)) = memory.value(map) else { continue };
        if program.maps[map.0 as usize].sharing != MapSharing::Shared {
            // What others have left means nothing there.
            continue;
        }
        for (key, value) in maps.entries(map, size as usize) {
            // It has as much room as the one it comes from.
            memory.set(map, &key, &value);
        }
    }
    image.0.into_inner()
}

/// Memory that is put together here first.
#[derive(Default)]
struct Image(std::cell::RefCell<Vec<u8>>);

impl Image {
    fn put(&self, at: u64, bytes: &[u8]) {
        let mut all = self.0.borrow_mut();
        let end = at as usize + bytes.len();
        if all.len() < end {
            all.resize(end.next_multiple_of(8), 0);
        }
        all[at as usize..end].copy_from_slice(bytes);
    }
}

impl Words for Image {
    fn word(&self, offset: u64) -> u64 {
        let all = self.0.borrow();
        let bytes = all.get(offset as usize..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl WordsMut for Image {
    fn set_word(&self, offset: u64, value: u64) {
        self.put(offset, &value.to_le_bytes());
    }
}

impl Atomics for Image {
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let there = self.word(offset);
        if there != current {
            return Err(there);
        }
        self.set_word(offset, new);
        Ok(there)
    }

    fn fetch_add(&self, offset: u64, value: u64) -> u64 {
        let there = self.word(offset);
        self.set_word(offset, there.wrapping_add(value));
        there
    }
}

/// The maps of a script in the memory of one process.
pub struct Memory<'a, W: ?Sized> {
    /// The script.
    pub program: &'a Program,
    /// How its memory is laid out.
    pub layout: &'a ScriptLayout,
    /// The region that it lies in.
    pub words: &'a W,
    /// Offset of the shared part in the region.
    pub shared: u64,
    /// Offsets of the threads' parts.
    pub threads: Vec<u64>,
    /// Offset of the part where all count who have none of their own, if that is to be looked at: a detour that counts without calling a body does for threads without a block.
    pub overflow: Option<u64>,
}

pub(crate) fn to_words(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

pub(crate) fn to_bytes(words: &[u64], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(size, 0);
    bytes
}

impl<W: Atomics + ?Sized> Memory<'_, W> {
    fn value(&self, map: MapId) -> Option<MapValue> {
        self.program.maps.get(map.0 as usize).map(|map| map.value)
    }

    fn key_size(&self, map: MapId) -> usize {
        self.program.maps.get(map.0 as usize).map_or(0, |map| map.key as usize)
    }

    /// Where all parts of a map are.
    fn places(&self, map: MapId) -> Vec<(u64, MapKind)> {
        match self.layout.maps.get(map.0 as usize) {
            Some(MapPlace::Shared(at, kind)) => vec![(self.shared + at, *kind)],
            Some(MapPlace::PerThread(at, kind)) => {
                let overflow = self.overflow.filter(|_| is_counter(self.value(map), *kind));
                let parts = self.threads.iter().copied().chain(overflow);
                parts.map(|part| (part + u64::from(*at), *kind)).collect()
            }
            None => Vec::new(),
        }
    }

    fn shared_place(&self, map: MapId) -> Option<(u64, MapKind)> {
        match self.layout.maps.get(map.0 as usize)? {
            MapPlace::Shared(at, kind) => Some((self.shared + at, *kind)),
            MapPlace::PerThread(..) => None,
        }
    }

    /// Whether each thread has its own.
    pub fn is_per_thread(&self, map: MapId) -> bool {
        matches!(self.layout.maps.get(map.0 as usize), Some(MapPlace::PerThread(..)))
    }

    /// All keys with their values, those of all threads put together. An aggregation's words are as [`Aggregation`] says.
    pub fn entries(&self, map: MapId) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = BTreeMap::new();
        let Some(value) = self.value(map) else { return all };
        for (at, kind) in self.places(map) {
            self.each(at, kind, value, |key, words| self.take(map, value, key, words, &mut all));
        }
        all
    }

    fn each(&self, at: u64, kind: MapKind, value: MapValue, mut see: impl FnMut(&[u64], Vec<u64>)) {
        match kind {
            MapKind::Words(count) => {
                let words: Vec<u64> =
                    (0..count.into()).map(|index| self.words.word(at + 8 + 8 * index)).collect();
                // A detour that counts by itself marks nothing.
                let has_counted = is_counter(Some(value), kind) && words != [0];
                if self.words.word(at) != 0 || has_counted {
                    see(&[], words);
                }
            }
            MapKind::Table(table) => {
                TableView::new(self.words, at, table).each(|entry| see(&entry.key, entry.value));
            }
        }
    }

    fn take(
        &self,
        map: MapId,
        value: MapValue,
        key: &[u64],
        words: Vec<u64>,
        all: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) {
        let key = to_bytes(key, self.key_size(map));
        let size = value.size() as usize;
        let MapValue::Aggregate(aggregation) = value else {
            all.insert(key, to_bytes(&words, size));
            return;
        };
        let words = unmasked(aggregation, words);
        match all.get_mut(&key) {
            Some(there) => merge(aggregation, there, &to_bytes(&words, size)),
            None => drop(all.insert(key, to_bytes(&words, size))),
        }
    }

    /// The value of a key, as [`Memory::entries`] has it.
    pub fn load(&self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        let value = self.value(map)?;
        let key = to_words(key);
        let mut all = BTreeMap::new();
        for (at, kind) in self.places(map) {
            match kind {
                MapKind::Words(_) => {
                    self.each(at, kind, value, |key, words| self.take(map, value, key, words, &mut all));
                }
                MapKind::Table(table) => {
                    if let Ok(Some(words)) = TableView::new(self.words, at, table).get(&key) {
                        self.take(map, value, &key, words, &mut all);
                    }
                }
            }
        }
        all.into_values().next()
    }

    /// Writes the value of a key of a map that all share; whether there was room.
    pub fn set(&self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        let words = to_words(value);
        match self.shared_place(map) {
            Some((at, MapKind::Words(_))) => {
                for (index, word) in (0..).zip(words) {
                    self.words.set_word(at + 8 + 8 * index, word);
                }
                self.words.set_word(at, 1);
                true
            }
            Some((at, MapKind::Table(table))) => {
                TableView::new(self.words, at, table).set(&to_words(key), &words).is_ok()
            }
            None => false,
        }
    }

    /// Adds to the integer of a key of a map that all share; what it was, unless there was no room.
    pub fn add(&self, map: MapId, key: &[u8], amount: u64) -> Option<u64> {
        match self.shared_place(map)? {
            (at, MapKind::Words(_)) => {
                let before = self.words.fetch_add(at + 8, amount);
                self.words.set_word(at, 1);
                Some(before)
            }
            (at, MapKind::Table(table)) => {
                TableView::new(self.words, at, table).add(&to_words(key), amount).ok()
            }
        }
    }

    /// Takes a key out of a map that all share; whether it was there.
    pub fn delete(&self, map: MapId, key: &[u8]) -> bool {
        match self.shared_place(map) {
            Some((at, MapKind::Words(count))) => {
                let was_there = self.words.word(at) != 0;
                (0..=u64::from(count)).for_each(|index| self.words.set_word(at + 8 * index, 0));
                was_there
            }
            Some((at, MapKind::Table(table))) => {
                TableView::new(self.words, at, table).delete(&to_words(key)).unwrap_or(false)
            }
            None => false,
        }
    }

    /// Takes all keys out of a map that all share.
    pub fn clear(&self, map: MapId) {
        match self.shared_place(map) {
            Some((_, MapKind::Words(_))) => drop(self.delete(map, &[])),
            Some((at, MapKind::Table(table))) => drop(TableView::new(self.words, at, table).clear()),
            None => {}
        }
    }

    /// Makes all values of a map that all share 0.
    pub fn zero(&self, map: MapId) {
        match self.shared_place(map) {
            Some((at, MapKind::Words(count))) => {
                (1..=u64::from(count)).for_each(|index| self.words.set_word(at + 8 * index, 0));
            }
            Some((at, MapKind::Table(table))) => drop(TableView::new(self.words, at, table).zero()),
            None => {}
        }
    }

    /// How many updates found no room, or were given up.
    pub fn dropped(&self, map: MapId) -> u64 {
        let of = |(at, kind): (u64, MapKind)| match kind {
            MapKind::Words(_) => 0,
            MapKind::Table(table) => {
                let view = TableView::new(self.words, at, table);
                view.full().wrapping_add(view.contended())
            }
        };
        self.places(map).into_iter().map(of).fold(0, u64::wrapping_add)
    }
}

/// Whether a map of each thread's own is one number of calls.
fn is_counter(value: Option<MapValue>, kind: MapKind) -> bool {
    value == Some(MapValue::Aggregate(Aggregation::Count)) && kind == MapKind::Words(1)
}

fn unmasked(aggregation: Aggregation, mut words: Vec<u64>) -> Vec<u64> {
    unmask(aggregation, &mut words);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Body, Map, Statement};
    use crate::native::{Target, compile};

    /// Offsets of two threads' parts, and of the one of all who have none.
    const THREADS: [u64; 2] = [0x2_0000, 0x4_0000];
    const OVERFLOW: u64 = 0x6_0000;

    #[test]
    fn what_detours_count_themselves_is_there_unmarked_also_of_threads_without_a_part() {
        let map = |value| Map {
            name: "@".into(),
            key: 0,
            value: MapValue::Aggregate(value),
            capacity: 1,
            sharing: MapSharing::PerThread,
        };
        let body = Body { locals: Vec::new(), scratch: 0, code: Vec::<Statement>::new() };
        let maps = vec![map(Aggregation::Count), map(Aggregation::Sum)];
        let program = Program { maps, bodies: vec![body], ..Program::default() };
        let Ok(target) = Target::here(12) else { return };
        let layout = compile(&program, &[], &target).unwrap().layout;
        let words = Image::default();
        let memory = |overflow| Memory {
            program: &program,
            layout: &layout,
            words: &words,
            shared: 0,
            threads: THREADS.to_vec(),
            overflow,
        };
        let [count, sum] = [0, 1].map(MapId);
        let read = |map| memory(Some(OVERFLOW)).load(map, &[]).map(|bytes| to_words(&bytes));
        let at = |part: u64, map: usize| match layout.maps[map] {
            MapPlace::PerThread(at, MapKind::Words(1)) => part + u64::from(at),
            other => panic!("{other:?}"),
        };
        assert_eq!([read(count), read(sum)], [None, None]);
        words.set_word(at(OVERFLOW, 0) + 8, 5);
        words.set_word(at(OVERFLOW, 1) + 8, 5);
        assert_eq!([read(count), read(sum)], [Some(vec![5]), None], "only counters are anybody's");
        assert_eq!(memory(None).load(count, &[]), None);
        words.set_word(at(THREADS[0], 0) + 8, 7);
        words.set_word(at(THREADS[0], 1) + 8, 7);
        assert_eq!([read(count), read(sum)], [Some(vec![12]), None], "only counters are unmarked");
        for map in [0, 1] {
            words.set_word(at(THREADS[1], map), 1);
        }
        assert_eq!([read(count), read(sum)], [Some(vec![12]), Some(vec![0])]);
        assert_eq!(memory(Some(OVERFLOW)).entries(count).len(), 1);
    }
}
