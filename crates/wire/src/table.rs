//! Tables: what maps of scripts lie in, and the protocol by which probed threads, their signal handlers and the tool work on them at once.
//!
//! There is no lock. Whoever works on a table may be interrupted by a signal handler that works on the same one, may be left by `longjmp`,
//! and may stop for ever at any instruction. Nobody waits without bound for anybody.
//!
//! # Layout
//!
//! A table begins with [`TABLE_HEADER`] bytes: three counters, each on a cache line of its own ([`TABLE_LIVE`], [`TABLE_FULL`],
//! [`TABLE_CONTENDED`]). Then come `1 << bucket_bits` buckets of 8 *slots*. A slot
//! has a *meta*, the key's words and the value's. A key's or a value's last word is filled up with zeros. A key belongs into one bucket, by
//! its [`hash`], and there into the first slot that is free from its preferred one on, round about. So a key that is found where it is
//! looked for first takes one cache line, if it is short.
//!
//! A meta is a word: the slot's [`State`] in bits 0 to 3, the fingerprint of the key's hash in bits 4 to 15, 0 where it is free, and a
//! version in bits 16 to 63. Each change of a meta adds 1 to the version, so a meta that is the same as before says that nothing happened
//! in between. All zeros are an empty table.
//!
//! A table whose key has no bytes has one meta and one slot: [`TABLE_ONE_META`] and [`TABLE_ONE_VALUE`].
//!
//! # States
//!
//! | from | to | by | who |
//! |---|---|---|---|
//! | free | claimed | compare-exchange | who inserts; the slot is its own until the next step, so it writes key and value |
//! | claimed | pending | compare-exchange | the same |
//! | pending | live | compare-exchange | the same, once it has looked at all other slots of the bucket |
//! | pending | free | compare-exchange | anybody else who inserts the same key; or the same, when it finds the key elsewhere |
//! | live | writing | compare-exchange | who writes the value |
//! | writing | live | store | the same |
//! | live | free | compare-exchange | who deletes |
//!
//! # Insert
//!
//! 1. Look for the key. If it is there, that is all.
//! 2. Add 1 to the live keys. If there were as many as may be, take it back: *full*, counted.
//! 3. Claim the first free slot. If there is none, take it back: *full*, counted.
//! 4. Write key and value, and make it pending.
//! 5. Look at the bucket's other slots. Where the same key is *pending*, end that: free it, and take its live key back. Where it is *live*
//!    or *writing*, free one's own, take it back, and begin again with step 1, which finds it.
//! 6. Make it live. If that fails, somebody has ended ours in step 5 (and taken the live key back): begin again with step 1.
//!
//! **No key is there twice.** Of two inserts of a key, one has made its slot pending first. The other one looks at all slots after it has
//! made its own pending, so it sees that slot: pending, and ends it, so that it never becomes live; or live, and gives up its own. **Nobody
//! waits**: a claimed slot is passed over, since whoever has it will look at ours after it is pending. So an insert in a handler that has
//! interrupted an insert of the same key ends that, and the interrupted one begins again. Two that end each other's again and again try
//! [`PATIENCE`] times; then the insert is *contended*, counted. An insert that stops for ever leaves a pending slot, which the next one of
//! that key frees, or a claimed one, which is lost.
//!
//! # Values
//!
//! There are two ways to change the value of a live key, and a table has one of them for all its life ([`Change`]):
//!
//! - *Word by word*, where no key is ever taken out or zeroed: a live slot is the key's for ever. Words are stored, added to, or compared
//!   and exchanged in place, and nothing is ever lost.
//! - *Under the meta*, else: live → writing, the words, live. Who finds it being written tries again, [`PATIENCE`] times, and then gives
//!   up: *contended*, counted.
//!
//! To read: the meta, the words, the meta. If it is live and the same both times the value is what somebody wrote. In tables that are
//! changed word by word, each word is.
//!
//! # Shared tables and a thread's own
//!
//! In a table that all threads share, the operations above are atomic among processors and in one order for all. In a thread's own nobody
//! but the thread changes anything, and its signal handlers, which come back before it goes on or never let it go on. There it is enough
//! that an operation is one instruction, and native code leaves out what makes it more than that; and a claimed slot, which nobody else
//! changes, becomes pending by a store. The tool only reads them.
//!
//! Where a thread's own has no live key, one is put in without a search. Live keys are counted before slots are claimed and after they are freed,
//! so that none are counted says that none is there, nor is being inserted:
//!
//! 1. Make the live keys 1, if they are 0.
//! 2. Claim the preferred slot, write, and make it pending, as above.
//! 3. Make it live if the live keys are 1 yet. Else a handler has inserted in between, maybe the same key: free it, take the live key back, and
//!    insert as above. A handler that comes behind this look finds the slot pending, and ends it if it inserts the same key.

use crate::{Words, WordsMut};

/// The shared region of somebody who takes part in the protocol of tables. All operations are in one order for all who take part
/// (sequentially consistent); what is out of range is 0 and stays so.
pub trait Atomics: WordsMut {
    /// Replaces the word at a byte offset, a multiple of 8, if it is `current`. What it was, as an error if it was something else.
    ///
    /// # Errors
    /// The word that it was instead.
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Adds to the word at a byte offset, a multiple of 8, wrapping. What it was.
    fn fetch_add(&self, offset: u64, value: u64) -> u64;
}

/// Size of a table's header.
pub const TABLE_HEADER: u32 = 256;
/// Table: how many keys there are, with those that are being inserted.
pub const TABLE_LIVE: u32 = 0;
/// Table: how many keys found no room.
pub const TABLE_FULL: u32 = 64;
/// Table: how many changes were given up because others were in the way.
pub const TABLE_CONTENDED: u32 = 128;
/// Table without a key: its meta.
pub const TABLE_ONE_META: u32 = TABLE_HEADER;
/// Table without a key: its value.
pub const TABLE_ONE_VALUE: u32 = TABLE_HEADER + 8;
/// Slots of a bucket.
pub const SLOTS: u32 = 8;
/// Bytes of a slot's meta.
pub const META: u32 = 8;
/// How often something is tried before it is given up.
pub const PATIENCE: u32 = 64;
/// Log2 of the most buckets.
pub const MAX_BUCKET_BITS: u32 = 24;

/// Mask of a meta's state.
pub const META_STATE: u64 = 0xf;
/// Mask of a meta's state and fingerprint.
pub const META_NAME: u64 = 0xffff;
/// Shift of a meta's fingerprint.
pub const META_FINGERPRINT: u32 = 4;
/// What a change adds to a meta for its version.
pub const META_VERSION: u64 = 1 << 16;

/// What hashes are multiplied with: odd, and without a pattern.
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// Nobody's.
    Free = 0,
    /// Somebody writes a key and a value.
    Claimed = 1,
    /// Key and value are there, and whether the key is there twice is not known yet.
    Pending = 2,
    /// A key and its value.
    Live = 3,
    /// A key whose value is being written.
    Writing = 4,
}

/// How values of live keys are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Word by word, in place.
    ByWord,
    /// Under the meta.
    UnderMeta,
}

/// Where a table is and how it is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Length of a key in bytes; 0: there is one slot, and no buckets.
    pub key: u32,
    /// Length of a value in bytes.
    pub value: u32,
    /// Log2 of the number of buckets, at most [`MAX_BUCKET_BITS`].
    pub bucket_bits: u32,
    /// The most keys.
    pub capacity: u32,
    /// How values are changed.
    pub change: Change,
}

/// Hash of a key, given as its words. Words that are 0 make no difference: long strings mostly end in them.
///
/// Bits 0 to 11 of `>> 8` are the fingerprint, those of `>> 29` the preferred slot, those from 32 on the bucket.
pub fn hash(key: &[u64]) -> u64 {
    let mut hash = 0u64;
    for &word in key.iter().filter(|word| **word != 0) {
        hash = (hash ^ word).wrapping_mul(HASH);
        hash ^= hash >> 32;
    }
    hash.wrapping_mul(HASH)
}

/// The name of a key in a state: what the low 16 bits of its meta are.
fn name(hash: u64, state: State) -> u64 {
    (hash >> 8 & 0xfff) << META_FINGERPRINT | state as u64
}

/// The meta that follows, with this name.
fn next(meta: u64, name: u64) -> u64 {
    (meta & !META_NAME).wrapping_add(META_VERSION) | name
}

fn is(meta: u64, state: State) -> bool {
    meta & META_STATE == state as u64
}

impl Table {
    /// Bytes of a slot: its meta, a key and a value.
    pub fn slot_size(&self) -> u64 {
        u64::from(META) + u64::from(self.key.next_multiple_of(8)) + u64::from(self.value.next_multiple_of(8))
    }

    /// Bytes of a bucket.
    pub fn bucket_size(&self) -> u64 {
        u64::from(SLOTS) * self.slot_size()
    }

    /// Bytes of the table. A multiple of a cache line's.
    pub fn size(&self) -> u64 {
        let rest = if self.key == 0 {
            8 + u64::from(self.value.next_multiple_of(8))
        } else {
            self.bucket_size() << self.bucket_bits.min(MAX_BUCKET_BITS)
        };
        (u64::from(TABLE_HEADER) + rest).next_multiple_of(64)
    }

    fn words(bytes: u32) -> usize {
        bytes.div_ceil(8) as usize
    }

    /// Where a key's bucket is in the table.
    fn bucket(&self, hash: u64) -> u64 {
        let mask = (1u64 << self.bucket_bits.min(MAX_BUCKET_BITS)) - 1;
        u64::from(TABLE_HEADER) + (hash >> 32 & mask) * self.bucket_size()
    }
}

/// A key with its value, as words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key's.
    pub key: Vec<u64>,
    /// The value's.
    pub value: Vec<u64>,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// There is no room for another key.
    Full,
    /// Others were in the way for too long.
    Contended,
}

/// A table in a region that others may write.
///
/// What is there may be anything: all that is read is taken for words of keys and values and for counters, and nothing else depends on it.
#[derive(Clone, Copy)]
pub struct TableView<'a, W: ?Sized> {
    words: &'a W,
    at: u64,
    table: Table,
    patience: u32,
    is_own: bool,
}

/// A live key's slot.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Where its meta is.
    meta_at: u64,
    /// Its meta when the key was looked at.
    meta: u64,
    /// Where its value is.
    value_at: u64,
}

/// What became of an insert.
enum Inserted {
    /// It is there now, with the value.
    Now,
    /// It was there already.
    Before(Found),
}

impl<'a, W: Words + ?Sized> TableView<'a, W> {
    /// The table at a byte offset of the region, a multiple of 8.
    pub fn new(words: &'a W, at: u64, table: Table) -> Self {
        Self { words, at, table, patience: PATIENCE, is_own: false }
    }

    /// The same of a table that one thread has for its own: whoever works on it, the thread stands meanwhile, or it is in a handler of its own.
    #[must_use]
    pub fn of_one_thread(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// The same, with another number of attempts.
    #[must_use]
    pub fn with_patience(self, patience: u32) -> Self {
        Self { patience, ..self }
    }

    /// How many keys there are, about: with those that are being inserted.
    pub fn live(&self) -> u64 {
        if self.table.key == 0 {
            let meta = self.words.word(self.at + u64::from(TABLE_ONE_META));
            return u64::from(is(meta, State::Live) || is(meta, State::Writing));
        }
        self.words.word(self.at + u64::from(TABLE_LIVE))
    }

    /// How many keys found no room.
    pub fn full(&self) -> u64 {
        self.words.word(self.at + u64::from(TABLE_FULL))
    }

    /// How many changes were given up because others were in the way.
    pub fn contended(&self) -> u64 {
        self.words.word(self.at + u64::from(TABLE_CONTENDED))
    }

    fn read(&self, at: u64, bytes: u32) -> Vec<u64> {
        (0..u64::from(bytes.div_ceil(8))).map(|word| self.words.word(at + 8 * word)).collect()
    }

    fn has_key(&self, at: u64, key: &[u64]) -> bool {
        key.iter().zip(0..).all(|(&word, index)| self.words.word(at + 8 * index) == word)
    }

    /// Where a slot's meta and its key are.
    fn slot(&self, bucket: u64, index: u64) -> (u64, u64) {
        let meta_at = bucket + index * self.table.slot_size();
        (meta_at, meta_at + u64::from(META))
    }

    fn key_size(&self) -> u64 {
        u64::from(self.table.key.next_multiple_of(8))
    }

    /// The live slot of a key. Contended: a slot did not stand still.
    fn find(&self, key: &[u64]) -> Result<Option<Found>, Dropped> {
        if self.table.key == 0 {
            let meta_at = self.at + u64::from(TABLE_ONE_META);
            let meta = self.words.word(meta_at);
            let is_there = is(meta, State::Live) || is(meta, State::Writing);
            let found = Found { meta_at, meta, value_at: self.at + u64::from(TABLE_ONE_VALUE) };
            return Ok(is_there.then_some(found));
        }
        let hash = hash(key);
        let bucket = self.at + self.table.bucket(hash);
        let named = [State::Live, State::Writing].map(|state| name(hash, state));
        for turn in 0..u64::from(SLOTS) {
            let (meta_at, slot) = self.slot(bucket, (hash >> 29).wrapping_add(turn) & 7);
            let mut meta = self.words.word(meta_at);
            let mut patience = self.patience;
            while named.contains(&(meta & META_NAME)) {
                let is_same = self.has_key(slot, key);
                let again = self.words.word(meta_at);
                if again == meta {
                    if is_same {
                        return Ok(Some(Found { meta_at, meta, value_at: slot + self.key_size() }));
                    }
                    break;
                }
                meta = again;
                patience = patience.checked_sub(1).ok_or(Dropped::Contended)?;
            }
        }
        Ok(None)
    }

    /// The value of a key; `None` if it is not there.
    ///
    /// # Errors
    /// [`Dropped::Contended`]: somebody writes it, and does not come to an end.
    pub fn get(&self, key: &[u64]) -> Result<Option<Vec<u64>>, Dropped> {
        for _ in 0..self.patience {
            let Some(found) = self.find(key)? else { return Ok(None) };
            if !is(found.meta, State::Live) {
                continue;
            }
            let value = self.read(found.value_at, self.table.value);
            if self.words.word(found.meta_at) == found.meta {
                return Ok(Some(value));
            }
        }
        Err(Dropped::Contended)
    }

    /// Looks at the key and the value of each live slot, and says how many could not be read because somebody writes them.
    pub fn each(&self, mut see: impl FnMut(Entry)) -> u64 {
        if self.table.key == 0 {
            return match self.get(&[]) {
                Ok(Some(value)) => {
                    see(Entry { key: Vec::new(), value });
                    0
                }
                Ok(None) => 0,
                Err(_) => 1,
            };
        }
        let (first, size) = (self.at + u64::from(TABLE_HEADER), self.table.bucket_size());
        let end = first + (size << self.table.bucket_bits.min(MAX_BUCKET_BITS));
        let (mut missed, mut next) = (0, 0);
        for part in self.words.written(first..end) {
            // Buckets that the part touches, and that were not looked at for the part before.
            let start = (part.start.max(first) - first) / size;
            let past = (part.end.min(end).max(first) - first).div_ceil(size);
            for bucket in start.max(next)..past {
                for index in 0..u64::from(SLOTS) {
                    missed += u64::from(!self.look(first + bucket * size, index, &mut see));
                }
            }
            next = next.max(past);
        }
        missed
    }

    /// Looks at one slot; whether it could be read.
    fn look(&self, bucket: u64, index: u64, see: &mut impl FnMut(Entry)) -> bool {
        let (meta_at, slot) = self.slot(bucket, index);
        for _ in 0..self.patience {
            let meta = self.words.word(meta_at);
            if is(meta, State::Writing) {
                continue;
            }
            if !is(meta, State::Live) {
                return true;
            }
            let key = self.read(slot, self.table.key);
            let value = self.read(slot + self.key_size(), self.table.value);
            if self.words.word(meta_at) == meta {
                see(Entry { key, value });
                return true;
            }
        }
        false
    }
}

impl<W: Atomics + ?Sized> TableView<'_, W> {
    fn write(&self, at: u64, words: &[u64]) {
        for (&word, index) in words.iter().zip(0..) {
            self.words.set_word(at + 8 * index, word);
        }
    }

    fn count(&self, counter: u32, by: i64) -> u64 {
        self.words.fetch_add(self.at + u64::from(counter), by as u64)
    }

    fn drop_it(&self, why: Dropped) -> Dropped {
        self.count(if why == Dropped::Full { TABLE_FULL } else { TABLE_CONTENDED }, 1);
        why
    }

    fn exchange(&self, at: u64, from: u64, to: u64) -> bool {
        self.words.compare_exchange(at, from, to).is_ok()
    }

    /// Puts a key in with its first value, or finds it.
    fn insert(&self, key: &[u64], value: &[u64]) -> Result<Inserted, Dropped> {
        if self.table.key == 0 {
            return self.insert_one(value);
        }
        let hash = hash(key);
        let bucket = self.at + self.table.bucket(hash);
        if self.is_own && self.insert_first(bucket, hash, key, value) {
            return Ok(Inserted::Now);
        }
        for _ in 0..self.patience {
            if let Some(found) = self.find(key)? {
                return Ok(Inserted::Before(found));
            }
            if self.count(TABLE_LIVE, 1) >= u64::from(self.table.capacity) {
                self.count(TABLE_LIVE, -1);
                return Err(Dropped::Full);
            }
            let Some((index, claimed)) = self.claim(bucket, hash) else {
                self.count(TABLE_LIVE, -1);
                return Err(Dropped::Full);
            };
            let slot = self.slot(bucket, index);
            let pending = self.fill(slot, hash, claimed, key, value);
            match self.look_for_others(bucket, hash, index, key) {
                Ok(false) => {
                    if self.make_live(slot.0, hash, pending) {
                        return Ok(Inserted::Now);
                    }
                }
                seen => {
                    self.withdraw(slot.0, pending);
                    seen?;
                }
            }
        }
        Err(Dropped::Contended)
    }

    /// Puts a key into a thread's own table that has none; `false` if it has, or its preferred slot is not free.
    fn insert_first(&self, bucket: u64, hash: u64, key: &[u64], value: &[u64]) -> bool {
        if self.live() != 0 || !self.exchange(self.at + u64::from(TABLE_LIVE), 0, 1) {
            return false;
        }
        let slot = self.slot(bucket, hash >> 29 & 7);
        let Some(claimed) = self.claim_slot(slot.0) else {
            self.count(TABLE_LIVE, -1);
            return false;
        };
        let pending = self.fill(slot, hash, claimed, key, value);
        if self.live() == 1 && self.make_live(slot.0, hash, pending) {
            return true;
        }
        self.withdraw(slot.0, pending);
        false
    }

    /// Writes a key with its value into a slot that was claimed, and makes it pending: its meta then.
    fn fill(&self, (meta_at, slot): (u64, u64), hash: u64, claimed: u64, key: &[u64], value: &[u64]) -> u64 {
        self.write(slot, key);
        self.write(slot + self.key_size(), value);
        let pending = next(claimed, name(hash, State::Pending));
        self.exchange(meta_at, claimed, pending);
        pending
    }

    /// Makes a pending slot live, unless somebody has ended it.
    fn make_live(&self, meta_at: u64, hash: u64, pending: u64) -> bool {
        self.exchange(meta_at, pending, next(pending, name(hash, State::Live)))
    }

    /// Frees a pending slot and takes its live key back, unless somebody has done so.
    fn withdraw(&self, meta_at: u64, pending: u64) {
        if self.exchange(meta_at, pending, next(pending, 0)) {
            self.count(TABLE_LIVE, -1);
        }
    }

    fn insert_one(&self, value: &[u64]) -> Result<Inserted, Dropped> {
        let (meta_at, value_at) = (self.at + u64::from(TABLE_ONE_META), self.at + u64::from(TABLE_ONE_VALUE));
        for _ in 0..self.patience {
            let meta = self.words.word(meta_at);
            if is(meta, State::Live) || is(meta, State::Writing) {
                return Ok(Inserted::Before(Found { meta_at, meta, value_at }));
            }
            if let Some(claimed) = self.claim_slot(meta_at) {
                self.write(value_at, value);
                self.words.set_word(meta_at, next(claimed, State::Live as u64));
                return Ok(Inserted::Now);
            }
        }
        Err(Dropped::Contended)
    }

    /// Claims the first free slot of a bucket: its number and its meta then.
    fn claim(&self, bucket: u64, hash: u64) -> Option<(u64, u64)> {
        (0..u64::from(SLOTS)).find_map(|turn| {
            let index = (hash >> 29).wrapping_add(turn) & 7;
            Some((index, self.claim_slot(self.slot(bucket, index).0)?))
        })
    }

    /// Claims a slot if it is free: its meta then.
    fn claim_slot(&self, meta_at: u64) -> Option<u64> {
        let meta = self.words.word(meta_at);
        let claimed = next(meta, State::Claimed as u64);
        (is(meta, State::Free) && self.exchange(meta_at, meta, claimed)).then_some(claimed)
    }

    /// Looks at all slots but one's own: ends inserts of the same key; whether it is live in one of them.
    fn look_for_others(&self, bucket: u64, hash: u64, own: u64, key: &[u64]) -> Result<bool, Dropped> {
        let [pending, live, writing] =
            [State::Pending, State::Live, State::Writing].map(|state| name(hash, state));
        for index in (0..u64::from(SLOTS)).filter(|index| *index != own) {
            let (meta_at, slot) = self.slot(bucket, index);
            let mut meta = self.words.word(meta_at);
            let mut patience = self.patience;
            while [pending, live, writing].contains(&(meta & META_NAME)) {
                let is_same = self.has_key(slot, key);
                let again = self.words.word(meta_at);
                if again == meta {
                    if !is_same {
                        break;
                    }
                    if meta & META_NAME != pending {
                        return Ok(true);
                    }
                    if self.exchange(meta_at, meta, next(meta, 0)) {
                        self.count(TABLE_LIVE, -1);
                        break;
                    }
                    meta = self.words.word(meta_at);
                } else {
                    meta = again;
                }
                patience = patience.checked_sub(1).ok_or(Dropped::Contended)?;
            }
        }
        Ok(false)
    }

    /// Changes the value of a key that is there, under its meta; `None` if it does not stand still.
    fn change<T>(&self, found: Found, change: impl FnOnce(u64) -> T) -> Option<T> {
        if !is(found.meta, State::Live) {
            return None;
        }
        let fingerprint = found.meta & META_NAME & !META_STATE;
        let writing = next(found.meta, fingerprint | State::Writing as u64);
        self.exchange(found.meta_at, found.meta, writing).then(|| {
            let done = change(found.value_at);
            self.words.set_word(found.meta_at, next(writing, fingerprint | State::Live as u64));
            done
        })
    }

    /// Writes the value of a key, and puts the key in if it is not there.
    ///
    /// # Errors
    /// [`Dropped`], which is counted.
    pub fn set(&self, key: &[u64], value: &[u64]) -> Result<(), Dropped> {
        for _ in 0..self.patience {
            match self.insert(key, value).map_err(|why| self.drop_it(why))? {
                Inserted::Now => return Ok(()),
                Inserted::Before(found) => {
                    if self.table.change == Change::ByWord {
                        self.write(found.value_at, value);
                        return Ok(());
                    }
                    if self.change(found, |at| self.write(at, value)).is_some() {
                        return Ok(());
                    }
                }
            }
        }
        Err(self.drop_it(Dropped::Contended))
    }

    /// Adds to the first word of a key's value, wrapping, and puts the key in if it is not there. What it was; 0 if it was not there.
    ///
    /// # Errors
    /// [`Dropped`], which is counted.
    pub fn add(&self, key: &[u64], amount: u64) -> Result<u64, Dropped> {
        let mut value = vec![0; Table::words(self.table.value)];
        if let Some(first) = value.first_mut() {
            *first = amount;
        }
        for _ in 0..self.patience {
            match self.insert(key, &value).map_err(|why| self.drop_it(why))? {
                Inserted::Now => return Ok(0),
                Inserted::Before(found) => {
                    if self.table.change == Change::ByWord {
                        return Ok(self.words.fetch_add(found.value_at, amount));
                    }
                    let add = |at| {
                        let before = self.words.word(at);
                        self.words.set_word(at, before.wrapping_add(amount));
                        before
                    };
                    if let Some(before) = self.change(found, add) {
                        return Ok(before);
                    }
                }
            }
        }
        Err(self.drop_it(Dropped::Contended))
    }

    /// Where the value of a key is, as an offset in the region, in a table that is changed word by word; the key is put in with zeros if it is
    /// not there.
    ///
    /// # Errors
    /// [`Dropped`], which is counted.
    pub fn enter(&self, key: &[u64]) -> Result<u64, Dropped> {
        let zeros = vec![0; Table::words(self.table.value)];
        match self.insert(key, &zeros).map_err(|why| self.drop_it(why))? {
            Inserted::Before(found) => Ok(found.value_at),
            // It stays where it is for ever.
            Inserted::Now => match self.find(key) {
                Ok(Some(found)) => Ok(found.value_at),
                Ok(None) | Err(_) => Err(self.drop_it(Dropped::Contended)),
            },
        }
    }

    /// Changes the words of a key's value, in a table that is changed under the meta; a key that is not there is put in with what becomes of
    /// zeros.
    ///
    /// # Errors
    /// [`Dropped`], which is counted.
    pub fn update(&self, key: &[u64], change: impl Fn(&mut [u64])) -> Result<(), Dropped> {
        let mut first = vec![0; Table::words(self.table.value)];
        change(&mut first);
        for _ in 0..self.patience {
            match self.insert(key, &first).map_err(|why| self.drop_it(why))? {
                Inserted::Now => return Ok(()),
                Inserted::Before(found) => {
                    let changed = self.change(found, |at| {
                        let mut words = self.read(at, self.table.value);
                        change(&mut words);
                        self.write(at, &words);
                    });
                    if changed.is_some() {
                        return Ok(());
                    }
                }
            }
        }
        Err(self.drop_it(Dropped::Contended))
    }

    /// Takes a key out; whether it was there.
    ///
    /// # Errors
    /// [`Dropped::Contended`], which is counted: somebody writes its value, and does not come to an end.
    pub fn delete(&self, key: &[u64]) -> Result<bool, Dropped> {
        for _ in 0..self.patience {
            match self.find(key).map_err(|why| self.drop_it(why))? {
                None => return Ok(false),
                Some(found) => {
                    if is(found.meta, State::Live)
                        && self.exchange(found.meta_at, found.meta, next(found.meta, 0))
                    {
                        if self.table.key != 0 {
                            self.count(TABLE_LIVE, -1);
                        }
                        return Ok(true);
                    }
                }
            }
        }
        Err(self.drop_it(Dropped::Contended))
    }

    /// The live keys.
    fn keys(&self) -> Vec<Vec<u64>> {
        let mut keys = Vec::new();
        self.each(|entry| keys.push(entry.key));
        keys
    }

    /// Takes all keys out that are there now. How many could not be, which is counted.
    pub fn clear(&self) -> u64 {
        self.keys().iter().filter(|key| self.delete(key).is_err()).count() as u64
    }

    /// Makes the values of all keys 0 that are there now. How many could not be, which is counted.
    pub fn zero(&self) -> u64 {
        let zeros = vec![0; Table::words(self.table.value)];
        let zero = |key: &Vec<u64>| {
            for _ in 0..self.patience {
                match self.find(key) {
                    Ok(None) => return true,
                    Ok(Some(found)) => {
                        if self.change(found, |at| self.write(at, &zeros)).is_some() {
                            return true;
                        }
                    }
                    Err(_) => {}
                }
            }
            self.drop_it(Dropped::Contended);
            false
        };
        self.keys().iter().filter(|key| !zero(key)).count() as u64
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
