//! Time series by a clock that the script sets itself, for tests of what they show.

use crate::interp::{Added, Maps};
use crate::ir::MapId;

/// Maps whose time series go by the value of one of them.
pub(super) struct Clocked<'a> {
    pub(super) maps: &'a mut dyn Maps,
    /// `None`: they go by the time of day.
    pub(super) clock: Option<MapId>,
}

impl Maps for Clocked<'_> {
    fn load(&mut self, map: MapId, key: &[u8], into: &mut [u8]) -> bool {
        self.maps.load(map, key, into)
    }

    fn set(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        self.maps.set(map, key, value)
    }

    fn add(&mut self, map: MapId, key: &[u8], amount: u64) -> Option<u64> {
        self.maps.add(map, key, amount)
    }

    fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps.delete(map, key)
    }

    fn has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps.has(map, key)
    }

    fn length(&mut self, map: MapId) -> u64 {
        self.maps.length(map)
    }

    fn clear(&mut self, map: MapId) {
        self.maps.clear(map);
    }

    fn zero(&mut self, map: MapId) {
        self.maps.zero(map);
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], added: Added) -> bool {
        let mut added = added;
        if let Some(clock) = self.clock {
            let mut time = [0; 8];
            // A clock that was never set stands at 0.
            let is_set = self.maps.load(clock, &[], &mut time);
            added.time = if is_set { u64::from_le_bytes(time) } else { 0 };
        }
        self.maps.aggregate(map, key, added)
    }

    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.maps.keys(map)
    }

    fn dropped(&mut self, map: MapId) -> u64 {
        self.maps.dropped(map)
    }

    fn entries(&mut self, map: MapId, size: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.maps.entries(map, size)
    }
}
