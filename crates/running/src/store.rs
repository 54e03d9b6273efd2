//! The maps of a script that runs: in this process, and in the memory that it shares with those that are probed.
//!
//! | map | where it is |
//! |---|---|
//! | of plain values | here while nobody is probed; in the shared memory of the process that is; here again when that has gone |
//! | of plain values that mean something in one process or thread alone | in the shared memory of that process; here what those have left who have gone, where anybody reads it |
//! | of plain numbers that probed processes only add to | the same, added up when it is read |
//! | of aggregations | what was added here, what those have left who have gone, and what lies in the memory of all who are probed, put together when it is read |
//!
//! Aggregations that each thread has for itself nobody takes away from a thread. What is cleared of them is *set aside*, and taken off from
//! then on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use trapless_engine::ScriptMemory;
use trapless_script::interp::maps::Tables;
use trapless_script::interp::{Added, Maps, merge};
use trapless_script::ir::{Aggregation, Map, MapId, MapSharing, MapValue, Program, Readers};
use trapless_script::native::memory::Memory;
use trapless_wire::ScriptLayout;

/// Keys with their values.
pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// All maps.
pub struct Store {
    program: Program,
    layout: ScriptLayout,
    own: Tables,
    /// Who is probed, by process id.
    attached: BTreeMap<i32, ScriptMemory>,
    /// What those have left who have gone, in aggregations.
    left: HashMap<MapId, Entries>,
    /// What of the threads' own aggregations was cleared or made 0, as it was then, and whether its keys are there still.
    aside: HashMap<MapId, Aside>,
    /// Updates that were dropped by those who have gone.
    dropped: HashMap<MapId, u64>,
}

/// How a map is kept.
enum Kept {
    /// Plain values, in one place.
    One,
    /// Plain values, where each process or each thread has its own.
    Each(Readers),
    /// An aggregation, which is put together.
    Put(Aggregation),
}

/// What is taken off.
#[derive(Default)]
struct Aside {
    entries: Entries,
    /// Keys whose values were made 0, and that stay.
    zeroed: BTreeSet<Vec<u8>>,
}

impl Store {
    /// All empty. `layout`: that of native code, if there is any.
    pub fn new(program: &Program, layout: ScriptLayout) -> Self {
        Self {
            own: Tables::new(program),
            program: program.clone(),
            layout,
            attached: BTreeMap::new(),
            left: HashMap::new(),
            aside: HashMap::new(),
            dropped: HashMap::new(),
        }
    }

    /// Makes a map the clock of time series; whether there is one of that name.
    pub fn set_clock(&mut self, name: &str) -> bool {
        let found = self.program.maps.iter().position(|map| map.name == name && map.key == 0);
        let found = found.and_then(|index| u32::try_from(index).ok());
        found.inspect(|index| self.own.set_clock(MapId(*index))).is_some()
    }

    /// What a process begins with whose maps are to be these.
    pub fn own(&mut self) -> &mut Tables {
        &mut self.own
    }

    /// Whether another process may be probed: plain maps lie in one at a time.
    pub fn may_attach(&self) -> bool {
        self.attached.is_empty() || self.plain().next().is_none()
    }

    /// What a map holds in the memory of one process, and how many updates were dropped there.
    pub fn in_process(&self, pid: i32, map: MapId) -> (Entries, u64) {
        let Some(memory) = self.attached.get(&pid) else { return Default::default() };
        let view = view(&self.program, &self.layout, memory);
        (view.entries(map), view.dropped(map))
    }

    /// A process is probed. What the maps held went into its memory.
    pub fn attach(&mut self, pid: i32, memory: ScriptMemory) {
        for map in self.plain().collect::<Vec<_>>() {
            self.own.clear(map);
        }
        self.attached.insert(pid, memory);
    }

    /// A process is probed no longer: what its maps hold is kept.
    pub fn detach(&mut self, pid: i32) {
        let Some(memory) = self.attached.remove(&pid) else { return };
        for map in self.ids() {
            let view = view(&self.program, &self.layout, &memory);
            *self.dropped.entry(map).or_default() += view.dropped(map);
            let entries = view.entries(map);
            match self.kept(map) {
                Kept::One => {
                    self.own.clear(map);
                    for (key, value) in entries {
                        self.own.set(map, &key, &value);
                    }
                }
                Kept::Each(Readers::Nobody) => {}
                Kept::Each(Readers::Tool) => {
                    let lost = entries.iter().filter(|(key, value)| !self.own.set(map, key, value)).count();
                    *self.dropped.entry(map).or_default() += lost as u64;
                }
                Kept::Each(Readers::Sum) => {
                    let mut add = |(key, value): (&Vec<u8>, &Vec<u8>)| self.own.add(map, key, number(value));
                    let lost = entries.iter().filter(|entry| add(*entry).is_none()).count();
                    *self.dropped.entry(map).or_default() += lost as u64;
                }
                Kept::Put(aggregation) => {
                    put_together(aggregation, self.left.entry(map).or_default(), entries)
                }
            }
        }
    }

    /// Who is probed.
    pub fn attached(&self) -> impl Iterator<Item = (i32, &ScriptMemory)> {
        self.attached.iter().map(|(pid, memory)| (*pid, memory))
    }

    fn ids(&self) -> impl Iterator<Item = MapId> + use<> {
        (0..self.program.maps.len() as u32).map(MapId)
    }

    /// Maps of plain values, without those that each process has for itself.
    fn plain(&self) -> impl Iterator<Item = MapId> + '_ {
        self.ids().filter(|map| matches!(self.kept(*map), Kept::One))
    }

    /// How a map is kept.
    fn kept(&self, map: MapId) -> Kept {
        match self.program.maps.get(map.0 as usize) {
            Some(Map { value: MapValue::Aggregate(aggregation), .. }) => Kept::Put(*aggregation),
            Some(Map { sharing: MapSharing::PerProcess(readers), .. }) => Kept::Each(*readers),
            Some(Map { sharing: MapSharing::PerThread, .. }) => Kept::Each(Readers::Tool),
            _ => Kept::One,
        }
    }

    fn value_size(&self, map: MapId) -> usize {
        self.program.maps.get(map.0 as usize).map_or(0, |map| map.value.size() as usize)
    }

    fn is_per_thread(&self, map: MapId) -> bool {
        self.program.maps.get(map.0 as usize).is_some_and(|map| map.sharing == MapSharing::PerThread)
    }

    /// The maps of all who are probed.
    fn views(&self) -> impl Iterator<Item = Memory<'_, trapless_engine::Region>> {
        self.attached.values().map(|memory| view(&self.program, &self.layout, memory))
    }

    /// The memory that plain maps lie in, if they lie in one.
    fn home(&self) -> Option<Memory<'_, trapless_engine::Region>> {
        self.views().next()
    }

    /// Whether values of a map may be here.
    fn is_here(&self, map: MapId) -> bool {
        match self.kept(map) {
            Kept::One => self.attached.is_empty(),
            Kept::Each(Readers::Sum) | Kept::Put(_) => false,
            Kept::Each(_) => true,
        }
    }

    /// What all processes hold in a map of which each has its own, and have left.
    fn gathered(&self, map: MapId) -> Entries {
        let mut all: Entries = self.own.clone().entries(map, self.value_size(map)).into_iter().collect();
        self.views().for_each(|view| all.extend(view.entries(map)));
        all
    }

    /// What all processes have added to numbers, with those that have gone.
    fn added_up(&self, map: MapId) -> Entries {
        let mut all: Entries = self.own.clone().entries(map, self.value_size(map)).into_iter().collect();
        for (key, value) in self.views().flat_map(|view| view.entries(map)) {
            let sum = all.get(&key).map_or(0, |there| number(there)).wrapping_add(number(&value));
            all.insert(key, sum.to_le_bytes().to_vec());
        }
        all
    }

    /// All that was ever added to an aggregation and is not out of it: what was cleared is in it, where it cannot be taken out.
    fn added(&self, map: MapId, aggregation: Aggregation) -> Entries {
        let mut own = self.own.clone();
        let size = self.value_size(map);
        let mut all: Entries = own.entries(map, size).into_iter().collect();
        if let Some(left) = self.left.get(&map) {
            put_together(aggregation, &mut all, left.clone());
        }
        for memory in self.attached.values() {
            put_together(aggregation, &mut all, view(&self.program, &self.layout, memory).entries(map));
        }
        all
    }

    /// What an aggregation holds.
    fn aggregated(&self, map: MapId, aggregation: Aggregation) -> Entries {
        let mut all = self.added(map, aggregation);
        let Some(aside) = self.aside.get(&map) else { return all };
        for (key, value) in &aside.entries {
            let Some(now) = all.get_mut(key) else { continue };
            if now == value && !aside.zeroed.contains(key) {
                all.remove(key);
            } else {
                take_off(aggregation, now, value);
            }
        }
        all
    }

    /// Sets aside what threads have in their own aggregations, of one key or all, and takes out all else.
    fn set_aside(&mut self, map: MapId, aggregation: Aggregation, only: Option<&[u8]>, zeroed: bool) {
        let added = self.added(map, aggregation);
        let aside = self.aside.entry(map).or_default();
        for (key, value) in added.into_iter().filter(|(key, _)| only.is_none_or(|only| only == key)) {
            match zeroed {
                true => aside.zeroed.insert(key.clone()),
                false => aside.zeroed.remove(&key),
            };
            aside.entries.insert(key, value);
        }
    }
}

fn view<'a>(
    program: &'a Program,
    layout: &'a ScriptLayout,
    memory: &'a ScriptMemory,
) -> Memory<'a, trapless_engine::Region> {
    Memory {
        program,
        layout,
        words: memory.region(),
        shared: memory.shared().start,
        threads: memory.blocks().map(|block| block.start).collect(),
        overflow: Some(memory.overflow().start),
    }
}

fn put_together(aggregation: Aggregation, all: &mut Entries, more: Entries) {
    for (key, value) in more {
        match all.get_mut(&key) {
            Some(there) => merge(aggregation, there, &value),
            None => drop(all.insert(key, value)),
        }
    }
}

/// A number of eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Takes off what was set aside.
fn take_off(aggregation: Aggregation, from: &mut [u8], what: &[u8]) {
    for (index, (from, what)) in from.chunks_exact_mut(8).zip(what.chunks_exact(8)).enumerate() {
        let [there, off] =
            [&*from, what].map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let is_float = match aggregation {
            Aggregation::SumOfFloats => true,
            Aggregation::AverageOfFloats => index == 1,
            _ => false,
        };
        let rest = match is_float {
            true => (f64::from_bits(there) - f64::from_bits(off)).to_bits(),
            false => there.wrapping_sub(off),
        };
        from.copy_from_slice(&rest.to_le_bytes());
    }
}

impl Maps for Store {
    fn load(&mut self, map: MapId, key: &[u8], into: &mut [u8]) -> bool {
        let found = match (self.kept(map), self.home()) {
            (Kept::Put(aggregation), _) => self.aggregated(map, aggregation).remove(key),
            (Kept::Each(Readers::Sum), _) => self.added_up(map).remove(key),
            (Kept::One, Some(home)) => home.load(map, key),
            (Kept::Each(_), _) => self.views().find_map(|view| view.load(map, key)),
            (Kept::One, None) => None,
        };
        match found {
            Some(value) if value.len() == into.len() => {
                into.copy_from_slice(&value);
                true
            }
            Some(_) => false,
            None => self.is_here(map) && self.own.load(map, key, into),
        }
    }

    fn set(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        match self.home() {
            Some(home) => home.set(map, key, value),
            None => self.own.set(map, key, value),
        }
    }

    fn add(&mut self, map: MapId, key: &[u8], amount: u64) -> Option<u64> {
        match self.home() {
            Some(home) => home.add(map, key, amount),
            None => self.own.add(map, key, amount),
        }
    }

    fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        let was_there = self.has(map, key);
        match self.kept(map) {
            Kept::Put(aggregation) if self.is_per_thread(map) => {
                self.set_aside(map, aggregation, Some(key), false)
            }
            _ => {
                self.own.delete(map, key);
                self.left.entry(map).or_default().remove(key);
                self.views().for_each(|view| {
                    view.delete(map, key);
                });
            }
        }
        was_there
    }

    fn has(&mut self, map: MapId, key: &[u8]) -> bool {
        match (self.kept(map), self.home()) {
            (Kept::Put(aggregation), _) => self.aggregated(map, aggregation).contains_key(key),
            (Kept::Each(Readers::Sum), _) => self.added_up(map).contains_key(key),
            (Kept::Each(_), _) => self.gathered(map).contains_key(key),
            (Kept::One, Some(home)) => home.load(map, key).is_some(),
            (Kept::One, None) => self.own.has(map, key),
        }
    }

    fn length(&mut self, map: MapId) -> u64 {
        self.entries(map, self.value_size(map)).len() as u64
    }

    fn clear(&mut self, map: MapId) {
        match self.kept(map) {
            Kept::Put(aggregation) if self.is_per_thread(map) => {
                self.set_aside(map, aggregation, None, false)
            }
            _ => {
                self.own.clear(map);
                self.left.remove(&map);
                self.views().for_each(|view| view.clear(map));
            }
        }
    }

    fn zero(&mut self, map: MapId) {
        match self.kept(map) {
            Kept::Put(aggregation) if self.is_per_thread(map) => self.set_aside(map, aggregation, None, true),
            _ => {
                self.own.zero(map);
                if let Some(left) = self.left.get_mut(&map) {
                    left.values_mut().for_each(|value| value.fill(0));
                }
                self.views().for_each(|view| view.zero(map));
            }
        }
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], added: Added) -> bool {
        self.own.aggregate(map, key, added)
    }

    fn keys(&mut self, map: MapId) -> Vec<Vec<u8>> {
        let size = self.value_size(map);
        self.entries(map, size).into_iter().map(|(key, _)| key).collect()
    }

    fn entries(&mut self, map: MapId, _size: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        match (self.kept(map), self.home()) {
            (Kept::Put(aggregation), _) => self.aggregated(map, aggregation).into_iter().collect(),
            (Kept::Each(Readers::Sum), _) => self.added_up(map).into_iter().collect(),
            (Kept::Each(_), _) => self.gathered(map).into_iter().collect(),
            (Kept::One, Some(home)) => home.entries(map).into_iter().collect(),
            (Kept::One, None) => self.own.entries(map, self.value_size(map)),
        }
    }

    fn dropped(&self, map: MapId) -> u64 {
        let gone = self.dropped.get(&map).copied().unwrap_or(0);
        let now = self.views().map(|view| view.dropped(map));
        self.own.dropped(map).wrapping_add(gone).wrapping_add(now.fold(0, u64::wrapping_add))
    }
}
