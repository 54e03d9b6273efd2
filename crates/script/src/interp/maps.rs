//! Maps in the tool's own memory, for probes that run in the tool itself.

use super::{Added, Maps, add};
use crate::ir::{Aggregation, Map, MapId, MapValue, Program};
use std::collections::BTreeMap;

/// The maps of a program. Memory is taken for the keys that are there, not for the capacity.
#[derive(Clone, Debug)]
pub struct Tables {
    tables: Vec<Table>,
    /// A map of one value whose nanoseconds are the clock of all time series.
    clock: Option<MapId>,
}

#[derive(Clone, Debug)]
struct Table {
    map: Map,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of maps that let go of keys, when each was last used.
    uses: Option<Uses>,
    dropped: u64,
}

/// When keys were last used: the least time is the key that is let go next.
#[derive(Clone, Debug, Default)]
struct Uses {
    time: u64,
    by_time: BTreeMap<u64, Vec<u8>>,
    by_key: BTreeMap<Vec<u8>, u64>,
}

impl Uses {
    fn note(&mut self, key: &[u8]) {
        self.forget(key);
        self.time += 1;
        self.by_time.insert(self.time, key.to_vec());
        self.by_key.insert(key.to_vec(), self.time);
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(time) = self.by_key.remove(key) {
            self.by_time.remove(&time);
        }
    }

    /// The key that was not used for longest.
    fn take_oldest(&mut self) -> Option<Vec<u8>> {
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

impl Table {
    /// The value of a key, which is put in with zeros if it is not there and there is room.
    fn value(&mut self, key: &[u8]) -> Option<&mut Vec<u8>> {
        if !self.entries.contains_key(key) {
            if self.entries.len() as u64 >= u64::from(self.map.capacity) {
                let oldest = self.uses.as_mut().and_then(Uses::take_oldest)?;
                self.entries.remove(&oldest);
            }
            self.entries.insert(key.to_vec(), vec![0; self.map.value.size() as usize]);
        }
        if let Some(uses) = &mut self.uses {
            uses.note(key);
        }
        self.entries.get_mut(key)
    }

    /// The same for an update that nobody is told of if there is no room.
    fn value_or_drop(&mut self, key: &[u8]) -> Option<&mut Vec<u8>> {
        let is_full = self.entries.len() as u64 >= u64::from(self.map.capacity);
        if is_full && self.uses.is_none() && !self.entries.contains_key(key) {
            self.dropped += 1;
        }
        self.value(key)
    }
}

impl Tables {
    /// The maps of a verified program, all empty.
    pub fn new(program: &Program) -> Tables {
        let empty = |(id, map): (u32, &Map)| Table {
            map: map.clone(),
            entries: BTreeMap::new(),
            uses: program.evicting.contains(&MapId(id)).then(Uses::default),
            dropped: 0,
        };
        Tables { tables: (0..).zip(&program.maps).map(empty).collect(), clock: None }
    }

    /// Makes the value of a map of one value the clock of all time series, in nanoseconds, in place of the time of day: so that what they show can
    /// be foretold.
    pub fn set_clock(&mut self, map: MapId) {
        self.clock = Some(map);
    }

    fn get(&self, map: MapId) -> Option<&Table> {
        self.tables.get(map.0 as usize)
    }

    fn get_mut(&mut self, map: MapId) -> Option<&mut Table> {
        self.tables.get_mut(map.0 as usize)
    }

    fn aggregation(&self, map: MapId) -> Option<Aggregation> {
        match self.get(map)?.map.value {
            MapValue::Aggregate(aggregation) => Some(aggregation),
            MapValue::Bytes(_) => None,
        }
    }
}

impl Maps for Tables {
    fn load(&mut self, map: MapId, key: &[u8], into: &mut [u8]) -> bool {
        let Some(table) = self.get_mut(map) else { return false };
        match table.entries.get(key) {
            Some(value) if value.len() == into.len() => {
                into.copy_from_slice(value);
                if let Some(uses) = &mut table.uses {
                    uses.note(key);
                }
                true
            }
            _ => false,
        }
    }

    fn set(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        match self.get_mut(map).and_then(|table| table.value(key)) {
            Some(there) if there.len() == value.len() => {
                there.copy_from_slice(value);
                true
            }
            _ => false,
        }
    }

    fn add(&mut self, map: MapId, key: &[u8], amount: u64) -> Option<u64> {
        let value = self.get_mut(map)?.value_or_drop(key)?;
        let before = u64::from_le_bytes(value.as_slice().try_into().ok()?);
        value.copy_from_slice(&before.wrapping_add(amount).to_le_bytes());
        Some(before)
    }

    fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        let Some(table) = self.get_mut(map) else { return false };
        if let Some(uses) = &mut table.uses {
            uses.forget(key);
        }
        table.entries.remove(key).is_some()
    }

    fn has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.get(map).is_some_and(|table| table.entries.contains_key(key))
    }

    fn length(&mut self, map: MapId) -> u64 {
        self.get(map).map_or(0, |table| table.entries.len() as u64)
    }

    fn clear(&mut self, map: MapId) {
        if let Some(table) = self.get_mut(map) {
            table.entries.clear();
            table.uses = table.uses.is_some().then(Uses::default);
        }
    }

    fn zero(&mut self, map: MapId) {
        if let Some(table) = self.get_mut(map) {
            table.entries.values_mut().for_each(|value| value.fill(0));
        }
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], added: Added) -> bool {
        let Some(aggregation) = self.aggregation(map) else { return false };
        let mut added = added;
        if let Some(clock) = self.clock {
            let mut time = [0; 8];
            added.time = if self.load(clock, &[], &mut time) { u64::from_le_bytes(time) } else { 0 };
        }
        let Some(words) = self.get_mut(map).and_then(|table| table.value_or_drop(key)) else {
            return false;
        };
        add(aggregation, words, added);
        true
    }

    fn dropped(&self, map: MapId) -> u64 {
        self.get(map).map_or(0, |table| table.dropped)
    }

    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.get(map).map(|table| table.entries.keys().cloned().collect()).unwrap_or_default()
    }

    /// Being printed is no use.
    fn entries(&mut self, map: MapId, size: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = self.get(map).into_iter().flat_map(|table| &table.entries);
        let entries = entries.filter(|(_, value)| value.len() == size);
        entries.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::MapSharing;

    /// Two maps with room for two keys of one byte: of bytes, and of counts.
    fn tables(evicting: Vec<MapId>) -> Tables {
        let map =
            |value| Map { name: String::new(), key: 1, value, capacity: 2, sharing: MapSharing::Shared };
        let maps = vec![map(MapValue::Bytes(8)), map(MapValue::Aggregate(Aggregation::Count))];
        Tables::new(&Program { maps, evicting, ..Program::default() })
    }

    const COUNT: Added = Added { value: 0, weight: 1, time: 0 };

    #[test]
    fn a_full_map_refuses_and_counts_what_nobody_is_told() {
        let (bytes, counts) = (MapId(0), MapId(1));
        let mut tables = tables(vec![]);
        for key in [1, 2, 3, 1] {
            assert_eq!(tables.set(bytes, &[key], &[key; 8]), key < 3, "{key}");
            assert_eq!(tables.aggregate(counts, &[key], COUNT), key < 3, "{key}");
        }
        assert_eq!(tables.add(bytes, &[3], 1), None);
        assert_eq!((tables.dropped(bytes), tables.dropped(counts)), (1, 1));
        assert_eq!((tables.keys(bytes), tables.length(counts)), (vec![vec![1], vec![2]], 2));
    }

    #[test]
    fn a_full_map_lets_go_of_the_key_that_was_not_used_for_longest() {
        let (bytes, counts) = (MapId(0), MapId(1));
        let mut tables = tables(vec![bytes, counts]);
        let mut value = [0; 8];
        tables.set(bytes, &[1], &[1; 8]);
        tables.set(bytes, &[2], &[2; 8]);
        // Reading is a use, being printed or asked for is none.
        assert!(tables.load(bytes, &[1], &mut value));
        assert!(tables.has(bytes, &[2]));
        assert_eq!(tables.entries(bytes, 8).len(), 2);
        assert!(tables.set(bytes, &[3], &[3; 8]));
        assert_eq!(tables.keys(bytes), [[1], [3]]);
        assert!(tables.delete(bytes, &[1]));
        assert!(tables.set(bytes, &[4], &[4; 8]));
        assert_eq!(tables.keys(bytes), [[3], [4]]);
        assert_eq!(tables.add(bytes, &[5], 7), Some(0));
        assert_eq!(tables.keys(bytes), [[4], [5]]);
        tables.clear(bytes);
        tables.set(bytes, &[6], &[6; 8]);
        assert_eq!(tables.keys(bytes), [[6]]);
        for key in [1, 2, 1, 3] {
            assert!(tables.aggregate(counts, &[key], COUNT));
        }
        assert_eq!(tables.keys(counts), [[1], [3]]);
        assert_eq!((tables.dropped(bytes), tables.dropped(counts)), (0, 0));
    }
}
