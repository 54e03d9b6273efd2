//! Maps as bodies at traps work on them: by the protocol of tables, beside native code that does the same at the same moment.

use super::Server;
use crate::interp::{Added, Maps, add, is_better};
use crate::ir::*;
use crate::native::memory::{Memory, to_words};
use crate::native::{mask, unmask};
use trapless_wire::{Atomics, Change, MapKind, MapPlace, TableView};

/// The maps of who serves: those that all share, and his own part of the others.
pub(super) struct Own<'a, W: ?Sized>(pub Server<'a, W>);

impl<'a, W: Atomics + ?Sized> Own<'a, W> {
    /// The memory with no other thread's part in it.
    fn memory(&self) -> Memory<'a, W> {
        let Server { program, layout, words, shared, own } = self.0;
        Memory { program, layout, words, shared, threads: vec![own], overflow: None }
    }

    fn place(&self, map: MapId) -> Option<(u64, MapKind)> {
        Some(match *self.0.layout.maps.get(map.0 as usize)? {
            MapPlace::Shared(at, kind) => (self.0.shared + at, kind),
            MapPlace::PerThread(at, kind) => (self.0.own + u64::from(at), kind),
        })
    }

    /// The table of a map of plain values that each thread has its own of.
    fn own_table(&self, map: MapId) -> Option<TableView<'a, W>> {
        match (*self.0.layout.maps.get(map.0 as usize)?, self.aggregation(map)) {
            (MapPlace::PerThread(at, MapKind::Table(table)), None) => {
                let view = TableView::new(self.0.words, self.0.own + u64::from(at), table);
                Some(view.of_one_thread())
            }
            _ => None,
        }
    }

    fn aggregation(&self, map: MapId) -> Option<Aggregation> {
        match self.0.program.maps.get(map.0 as usize)?.value {
            MapValue::Aggregate(aggregation) => Some(aggregation),
            MapValue::Bytes(_) => None,
        }
    }

    /// Changes a word by what comes of it, until nobody has come between; nothing is done where nothing comes of it.
    fn exchange(&self, at: u64, change: impl Fn(u64) -> Option<u64>) {
        /// More than that somebody comes between only to keep us busy: the target may write what it likes.
        const ATTEMPTS: u32 = 1 << 16;
        let words = self.0.words;
        let mut there = words.word(at);
        for _ in 0..ATTEMPTS {
            let Some(new) = change(there) else { return };
            match words.compare_exchange(at, there, new) {
                Ok(_) => return,
                Err(now) => there = now,
            }
        }
    }

    /// Adds to the words of an aggregation that are changed one by one, in the order in which native code does.
    fn add_by_word(&self, aggregation: Aggregation, at: u64, added: Added) {
        let Added { value, weight, .. } = added;
        let count = |index: u64, by: u64| {
            self.0.words.fetch_add(at + 8 * index, by);
        };
        let add_float = |index: u64| {
            let more = f64::from_bits(value) * weight as f64;
            self.exchange(at + 8 * index, |there| Some((f64::from_bits(there) + more).to_bits()));
        };
        match aggregation {
            Aggregation::Count => count(0, weight),
            Aggregation::Sum => count(0, value.wrapping_mul(weight)),
            Aggregation::SumOfFloats => add_float(0),
            Aggregation::Average => {
                count(1, value.wrapping_mul(weight));
                count(0, weight);
            }
            Aggregation::AverageOfFloats => {
                add_float(1);
                count(0, weight);
            }
            Aggregation::Min { .. }
            | Aggregation::Max { .. }
            | Aggregation::MinOfFloats
            | Aggregation::MaxOfFloats => {
                // Of no hits there is no least one.
                if weight != 0 {
                    let mask = mask(aggregation).unwrap_or(0);
                    self.exchange(at + 8, |there| {
                        is_better(aggregation, value, there ^ mask).then_some(value ^ mask)
                    });
                    count(0, weight);
                }
            }
            Aggregation::Hist { bits } => count(hist_bucket(value as i64, bits).into(), weight),
            Aggregation::LinearHist { min, max, step } => {
                count(linear_bucket(value as i64, min, max, step).into(), weight);
            }
            // Their words belong together, so they are changed under the meta.
            Aggregation::TimeSeries { .. } => {}
        }
    }
}

/// Adds to all words of an aggregation, as they are stored.
fn add_to_stored(aggregation: Aggregation, words: &mut [u64], added: Added) {
    unmask(aggregation, words);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    add(aggregation, &mut bytes, added);
    words.iter_mut().zip(to_words(&bytes)).for_each(|(word, new)| *word = new);
    if let (Some(mask), [count, value]) = (mask(aggregation), words) {
        *value = if *count == 0 { 0 } else { *value ^ mask };
    }
}

impl<W: Atomics + ?Sized> Maps for Own<'_, W> {
    fn load(&mut self, map: MapId, key: &[u8], into: &mut [u8]) -> bool {
        match self.memory().load(map, key) {
            Some(value) if value.len() == into.len() => {
                into.copy_from_slice(&value);
                true
            }
            _ => false,
        }
    }

    fn set(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        match self.own_table(map) {
            Some(own) => own.set(&to_words(key), &to_words(value)).is_ok(),
            None => self.memory().set(map, key, value),
        }
    }

    fn add(&mut self, map: MapId, key: &[u8], amount: u64) -> Option<u64> {
        match self.own_table(map) {
            Some(own) => own.add(&to_words(key), amount).ok(),
            None => self.memory().add(map, key, amount),
        }
    }

    fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        match self.own_table(map) {
            Some(own) => own.delete(&to_words(key)).unwrap_or(false),
            None => self.memory().delete(map, key),
        }
    }

    fn has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.memory().load(map, key).is_some()
    }

    fn length(&mut self, map: MapId) -> u64 {
        match self.place(map) {
            Some((at, MapKind::Words(_))) => u64::from(self.0.words.word(at) != 0),
            Some((at, MapKind::Table(table))) => TableView::new(self.0.words, at, table).live(),
            None => 0,
        }
    }

    fn clear(&mut self, map: MapId) {
        self.memory().clear(map);
    }

    fn zero(&mut self, map: MapId) {
        self.memory().zero(map);
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], added: Added) -> bool {
        let (Some(aggregation), Some((at, kind))) = (self.aggregation(map), self.place(map)) else {
            return false;
        };
        let table = match kind {
            MapKind::Words(_) => {
                self.0.words.set_word(at, 1);
                self.add_by_word(aggregation, at + 8, added);
                return true;
            }
            MapKind::Table(table) => table,
        };
        let (view, key) = (TableView::new(self.0.words, at, table), to_words(key));
        match table.change {
            Change::ByWord => {
                let entered = view.enter(&key);
                entered.map(|value_at| self.add_by_word(aggregation, value_at, added)).is_ok()
            }
            Change::UnderMeta => view.update(&key, |words| add_to_stored(aggregation, words, added)).is_ok(),
        }
    }

    fn dropped(&self, map: MapId) -> u64 {
        self.memory().dropped(map)
    }

    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.memory().entries(map).into_keys().collect()
    }
}
