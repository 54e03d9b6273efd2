//! Tables with nobody else in them, and tables that hold anything.

use super::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// A region of nobody else's.
struct Region(RefCell<Vec<u64>>);

impl Region {
    fn of(table: &Table) -> Self {
        Self(RefCell::new(vec![0; (table.size() / 8) as usize]))
    }
}

impl Words for Region {
    fn word(&self, offset: u64) -> u64 {
        self.0.borrow().get((offset / 8) as usize).copied().unwrap_or(0)
    }
}

impl WordsMut for Region {
    fn set_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.0.borrow_mut().get_mut((offset / 8) as usize) {
            *word = value;
        }
    }
}

impl Atomics for Region {
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let before = self.word(offset);
        if before != current {
            return Err(before);
        }
        self.set_word(offset, new);
        Ok(before)
    }

    fn fetch_add(&self, offset: u64, value: u64) -> u64 {
        let before = self.word(offset);
        self.set_word(offset, before.wrapping_add(value));
        before
    }
}

const PLAIN: Table = Table { key: 8, value: 8, bucket_bits: 12, capacity: 4096, change: Change::UnderMeta };

#[test]
fn every_key_finds_room_up_to_the_capacity() {
    // Numbers, addresses of functions, pages, and numbers without a pattern.
    let kinds: [fn(u64) -> u64; 5] =
        [|n| n, |n| 0x5555_5555_4000 + 16 * n, |n| n << 12, |n| n.wrapping_mul(HASH), |n| n << 48];
    for kind in kinds {
        let region = Region::of(&PLAIN);
        let view = TableView::new(&region, 0, PLAIN);
        for number in 0..4096 {
            assert_eq!(view.set(&[kind(number)], &[number]), Ok(()), "{number}");
        }
        assert_eq!(view.set(&[u64::MAX - 1], &[0]), Err(Dropped::Full));
        assert_eq!((view.live(), view.full(), view.contended()), (4096, 1, 0));
        for number in 0..4096 {
            assert_eq!(view.get(&[kind(number)]), Ok(Some(vec![number])));
        }
        let mut seen = 0;
        assert_eq!(view.each(|_| seen += 1), 0);
        assert_eq!(seen, 4096);
        assert_eq!((view.clear(), view.live()), (0, 0));
    }
}

#[test]
fn operations_are_those_of_a_map() {
    for (key, change) in
        [0, 8, 24].into_iter().flat_map(|key| [Change::ByWord, Change::UnderMeta].map(|change| (key, change)))
    {
        let table = Table { key, value: 24, bucket_bits: 3, capacity: 20, change };
        let region = Region::of(&table);
        let view = TableView::new(&region, 0, table);
        let mut map: HashMap<Vec<u64>, Vec<u64>> = HashMap::new();
        let mut random = 1u64;
        for turn in 0..20_000 {
            random = hash(&[random, turn]);
            let key: Vec<u64> = (0..u64::from(key) / 8).map(|word| (random >> 8) % 40 + word).collect();
            match random % 7 {
                0 => {
                    let value = vec![turn, random, 3];
                    let set = view.set(&key, &value);
                    if set.is_ok() {
                        map.insert(key.clone(), value);
                    } else {
                        assert!(!map.contains_key(&key), "a key that is there has room");
                    }
                }
                1 => {
                    if let Ok(before) = view.add(&key, random) {
                        let value = map.entry(key.clone()).or_insert_with(|| vec![0; 3]);
                        assert_eq!(value[0], before);
                        value[0] = before.wrapping_add(random);
                    }
                }
                2 if change == Change::UnderMeta => {
                    assert_eq!(view.delete(&key), Ok(map.remove(&key).is_some()));
                }
                3 if turn % 500 == 0 => {
                    assert_eq!(view.zero(), 0);
                    map.values_mut().for_each(|value| value.fill(0));
                }
                5 if change == Change::ByWord => {
                    if let Ok(value_at) = view.enter(&key) {
                        region.fetch_add(value_at + 8, turn);
                        let value = map.entry(key.clone()).or_insert_with(|| vec![0; 3]);
                        value[1] = value[1].wrapping_add(turn);
                    }
                }
                6 if change == Change::UnderMeta => {
                    let add = |words: &mut [u64]| words[2] = words[2].wrapping_add(random);
                    if view.update(&key, add).is_ok() {
                        add(map.entry(key.clone()).or_insert_with(|| vec![0; 3]));
                    } else {
                        assert!(!map.contains_key(&key), "a key that is there has room");
                    }
                }
                4 if turn % 999 == 0 && change == Change::UnderMeta => {
                    assert_eq!(view.clear(), 0);
                    map.clear();
                }
                _ => {}
            }
            assert_eq!(view.get(&key), Ok(map.get(&key).cloned()));
        }
        let mut seen = HashMap::new();
        view.each(|entry| assert!(seen.insert(entry.key, entry.value).is_none()));
        assert_eq!(seen, map);
        assert_eq!(view.live(), map.len() as u64);
    }
}

#[test]
fn whatever_a_table_holds_is_read_and_written_to_an_end() {
    let table = Table { key: 16, value: 8, bucket_bits: 2, capacity: 9, change: Change::UnderMeta };
    let region = Region::of(&table);
    let view = TableView::new(&region, 0, table);
    let mut random = 7u64;
    for turn in 0..300 {
        for word in region.0.borrow_mut().iter_mut() {
            random = hash(&[random, turn]);
            // Mostly states that mean something, of fingerprints that are met.
            *word = match random % 4 {
                0 => random,
                1 => random << 16 | name(hash(&[1, 2]), State::Writing),
                2 => random << 16 | name(hash(&[1, 2]), State::Live),
                _ => random << 16 | (random >> 60),
            };
        }
        let mut seen = 0;
        assert!(view.each(|_| seen += 1) + seen <= 4 * u64::from(SLOTS));
        let _ = (view.get(&[1, 2]), view.set(&[1, 2], &[3]), view.add(&[1, 2], 3), view.delete(&[1, 2]));
        view.zero();
        view.clear();
    }
}

#[test]
fn sizes_are_whole_cache_lines() {
    assert_eq!((PLAIN.slot_size(), PLAIN.bucket_size()), (24, 192));
    assert_eq!(PLAIN.size(), 256 + (192 << 12));
    let odd = Table { key: 3, value: 13, bucket_bits: 0, capacity: 1, change: Change::ByWord };
    assert_eq!(odd.size(), 256 + 8 * 32);
    assert_eq!(Table { key: 0, ..odd }.size(), 320);
}

/// The hash is in native code, too: these numbers are the protocol's.
#[test]
fn hashes_stay_as_they_are() {
    assert_eq!(hash(&[]), 0);
    let once = HASH ^ HASH >> 32;
    assert_eq!(hash(&[1]), once.wrapping_mul(HASH));
    assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
}
