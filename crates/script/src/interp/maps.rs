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
    dropped: u64,
}

impl Table {
    /// The value of a key, which is put in with zeros if it is not there and there is room.
    fn value(&mut self, key: &[u8]) -> Option<&mut Vec<u8>> {
        if !self.entries.contains_key(key) {
            if self.entries.len() as u64 >= u64::from(self.map.capacity) {
                self.dropped += 1;
                return None;
            }
            self.entries.insert(key.to_vec(), vec![0; self.map.value.size() as usize]);
        }
        self.entries.get_mut(key)
    }
}

impl Tables {
    /// The maps of a verified program, all empty.
    pub fn new(program: &Program) -> Tables {
        let empty = |map: &Map| Table { map: map.clone(), entries: BTreeMap::new(), dropped: 0 };
        Tables { tables: program.maps.iter().map(empty).collect(), clock: None }
    }

    /// Makes the value of a map of one value the clock of all time series, in nanoseconds, in place of the time of day: so that what they show can
    /// be foretold.
    pub fn set_clock(&mut self, map: MapId) {
        self.clock = Some(map);
    }

    /// How many keys of a map were not put in because it was full, so far.
    pub fn dropped(&self, map: MapId) -> u64 {
        self.get(map).map_or(0, |table| table.dropped)
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
        match self.get(map).and_then(|table| table.entries.get(key)) {
            Some(value) if value.len() == into.len() => {
                into.copy_from_slice(value);
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
        let value = self.get_mut(map)?.value(key)?;
        let before = u64::from_le_bytes(value.as_slice().try_into().ok()?);
        value.copy_from_slice(&before.wrapping_add(amount).to_le_bytes());
        Some(before)
    }

    fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        self.get_mut(map).is_some_and(|table| table.entries.remove(key).is_some())
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
        let Some(words) = self.get_mut(map).and_then(|table| table.value(key)) else { return false };
        add(aggregation, words, added);
        true
    }

    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.get(map).map(|table| table.entries.keys().cloned().collect()).unwrap_or_default()
    }
}
