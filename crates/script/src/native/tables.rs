//! Routines on tables: the protocol of [`trapless_wire::Table`] in machine code.
//!
//! Each routine is of one map, whose sizes and place are constants in it. Keys and values are given by address, and only their bytes are
//! looked at; results are written to memory, since the calling convention has none.

use super::emit::{At, Base, Emit};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{Block, InstBuilder, Value};
use cranelift_frontend::Variable;
use trapless_wire::{
    Change, HASH, META, META_FINGERPRINT, META_NAME, META_STATE, META_VERSION, PATIENCE, SLOTS, State,
    TABLE_CONTENDED, TABLE_FULL, TABLE_HEADER, TABLE_LIVE, TABLE_ONE_META, TABLE_ONE_VALUE, Table,
};

/// A table in code.
#[derive(Clone, Copy)]
pub(super) struct TableCode {
    pub(super) base: Base,
    pub(super) table: Table,
}

/// The live slot of a key.
pub(super) struct Found {
    pub(super) is_there: Variable,
    pub(super) meta_at: Variable,
    pub(super) meta: Variable,
    pub(super) value_at: Variable,
}

impl Found {
    /// It is there.
    fn is_at(&self, e: &mut Emit<'_>, meta_at: Value, meta: Value, value_at: Value) {
        let one = e.int(1);
        e.b.def_var(self.is_there, one);
        e.b.def_var(self.meta_at, meta_at);
        e.b.def_var(self.meta, meta);
        e.b.def_var(self.value_at, value_at);
    }
}

/// Attempts at what others change meanwhile.
struct Retry {
    /// How many are left.
    patience: Variable,
    /// Where each begins.
    again: Block,
    /// Where one goes when something was not as it was found.
    moved: Block,
    /// Where it goes when there are no more.
    contended: Block,
}

/// What is known of a key before it is looked for.
pub(super) struct Named {
    hash: Value,
    bucket: Value,
    /// The name of its meta in no state: its fingerprint.
    fingerprint: Value,
}

impl TableCode {
    pub(super) fn key_size(&self) -> u32 {
        self.table.key.next_multiple_of(8)
    }

    pub(super) fn value_size(&self) -> u32 {
        self.table.value.next_multiple_of(8)
    }

    fn slot_size(&self) -> i64 {
        self.table.slot_size() as i64
    }

    fn count(&self, e: &mut Emit<'_>, counter: u32, by: i64) {
        let at = e.address(self.base.plus(counter));
        let by = e.int(by);
        e.add(self.base.is_own(), at, by);
    }

    /// The hash of a key of which these words are in registers.
    pub(super) fn hash_of(e: &mut Emit<'_>, words: &[Value]) -> Value {
        let factor = e.int(HASH as i64);
        let mut hash = None;
        for &word in words {
            let before = hash.unwrap_or_else(|| e.int(0));
            let mixed = e.b.ins().bxor(before, word);
            let product = e.b.ins().imul(mixed, factor);
            let upper = e.b.ins().ushr_imm_s(product, 32);
            let next = e.b.ins().bxor(product, upper);
            hash = Some(match hash {
                // Of the first word 0 makes 0 anyhow.
                None => next,
                Some(before) => {
                    let is_nothing = e.is_imm(IntCC::Equal, word, 0);
                    e.b.ins().select(is_nothing, before, next)
                }
            });
        }
        let hash = hash.unwrap_or_else(|| e.int(0));
        e.b.ins().imul(hash, factor)
    }

    /// What is not 0 if any of some words is not.
    fn any(e: &mut Emit<'_>, words: &[Value]) -> Value {
        let all = words.iter().copied().reduce(|all, word| e.b.ins().bor(all, word));
        all.unwrap_or_else(|| e.int(0))
    }

    /// The hash of a key in memory.
    fn hash(&self, e: &mut Emit<'_>, key: At) -> Value {
        let words = self.key_size() / 8;
        if words <= 4 {
            let words = self.key_words(e, key);
            return Self::hash_of(e, &words);
        }
        let (zero, factor) = (e.int(0), e.int(HASH as i64));
        let hash = e.set_new(zero);
        let add = |e: &mut Emit<'_>, word| {
            e.when(word, |e| {
                let before = e.b.use_var(hash);
                let mixed = e.b.ins().bxor(before, word);
                let product = e.b.ins().imul(mixed, factor);
                let upper = e.b.ins().ushr_imm_s(product, 32);
                let next = e.b.ins().bxor(product, upper);
                e.b.def_var(hash, next);
            });
        };
        // What is 0 adds nothing: most of a string's room.
        e.rounds(self.table.key & !7, [key], |e, [key], offsets| {
            let words: Vec<Value> = offsets.map(|at| e.load(key.plus(at))).collect();
            let any = Self::any(e, &words);
            e.when(any, |e| words.iter().for_each(|word| add(e, *word)));
        });
        if let Some((at, rest)) = self.tail() {
            let word = e.load_tail(key.plus(at), rest);
            add(e, word);
        }
        let hash = e.b.use_var(hash);
        e.b.ins().imul(hash, factor)
    }

    /// Where a key's last word begins that is not whole, and how many bytes it has.
    fn tail(&self) -> Option<(u32, u32)> {
        let rest = self.table.key & 7;
        (rest != 0).then_some((self.table.key & !7, rest))
    }

    /// The words of a key in memory, of which there are few.
    pub(super) fn key_words(&self, e: &mut Emit<'_>, key: At) -> Vec<Value> {
        let mut words: Vec<Value> = (0..self.table.key / 8).map(|word| e.load(key.plus(8 * word))).collect();
        if let Some((at, rest)) = self.tail() {
            words.push(e.load_tail(key.plus(at), rest));
        }
        words
    }

    /// Where a key belongs.
    pub(super) fn bucket(&self, e: &mut Emit<'_>, hash: Value) -> Named {
        let upper = e.b.ins().ushr_imm_s(hash, 32);
        let number = e.b.ins().band_imm_s(upper, (1i64 << self.table.bucket_bits) - 1);
        let offset = e.b.ins().imul_imm_s(number, self.table.bucket_size() as i64);
        let first = e.address(self.base.plus(TABLE_HEADER));
        let first = e.pointer(first);
        let bucket = e.b.ins().iadd(first, offset);
        let shifted = e.b.ins().ushr_imm_s(hash, 8 - i64::from(META_FINGERPRINT));
        let fingerprint = e.b.ins().band_imm_s(shifted, (META_NAME & !META_STATE) as i64);
        Named { hash, bucket, fingerprint }
    }

    fn named(&self, e: &mut Emit<'_>, key: At) -> Option<Named> {
        (self.table.key != 0).then(|| {
            let hash = self.hash(e, key);
            self.bucket(e, hash)
        })
    }

    /// The slot at a turn: its number, its meta's address and its own.
    fn slot(&self, e: &mut Emit<'_>, named: &Named, turn: Value) -> (Value, Value, Value) {
        let preferred = e.b.ins().ushr_imm_s(named.hash, 29);
        let sum = e.b.ins().iadd(preferred, turn);
        let index = e.b.ins().band_imm_s(sum, i64::from(SLOTS) - 1);
        let (meta_at, slot) = self.slot_at(e, named, index);
        (index, meta_at, slot)
    }

    fn slot_at(&self, e: &mut Emit<'_>, named: &Named, index: Value) -> (Value, Value) {
        let offset = e.b.ins().imul_imm_s(index, self.slot_size());
        let meta_at = e.b.ins().iadd(named.bucket, offset);
        let slot = e.b.ins().iadd_imm_s(meta_at, i64::from(META));
        (meta_at, slot)
    }

    /// Looks whether a slot in the table is the preferred one of a key of some words, live in a table that is changed word by word; where
    /// it is not, goes to a block. Gives the address of the value. This is what bodies do themselves.
    pub(super) fn preferred(&self, e: &mut Emit<'_>, words: &[Value], other: Block) -> Value {
        let hash = Self::hash_of(e, words);
        let named = self.bucket(e, hash);
        let zero = e.int(0);
        let (_, meta_at, slot) = self.slot(e, &named, zero);
        let meta = e.watch(At(meta_at, 0));
        let name = e.b.ins().band_imm_s(meta, META_NAME as i64);
        let live = e.b.ins().bor_imm_s(named.fingerprint, State::Live as i64);
        let differs = e.is(IntCC::NotEqual, name, live);
        e.leave_if(differs, other);
        for (&word, at) in words.iter().zip((0..).step_by(8)) {
            let there = e.load(At(slot, at));
            let differs = e.is(IntCC::NotEqual, there, word);
            e.leave_if(differs, other);
        }
        e.b.ins().iadd_imm_s(slot, i64::from(self.key_size()))
    }

    /// Reads the first word of the value of a key of some words, live in its preferred slot and not being written; goes to a block where
    /// that is not so.
    pub(super) fn preferred_word(&self, e: &mut Emit<'_>, words: &[Value], other: Block) -> Value {
        let hash = Self::hash_of(e, words);
        let named = self.bucket(e, hash);
        let zero = e.int(0);
        let (_, meta_at, slot) = self.slot(e, &named, zero);
        let meta = e.watch(At(meta_at, 0));
        let live = e.b.ins().bor_imm_s(named.fingerprint, State::Live as i64);
        let differs = e.b.ins().bxor(meta, live);
        let differs = e.b.ins().band_imm_s(differs, META_NAME as i64);
        e.leave_if(differs, other);
        for (&word, at) in words.iter().zip((0..).step_by(8)) {
            let there = e.load(At(slot, at));
            let differs = e.is(IntCC::NotEqual, there, word);
            e.leave_if(differs, other);
        }
        let value = e.load(At(slot, self.key_size() as i32));
        let now = e.watch_again(At(meta_at, 0));
        let moved = e.is(IntCC::NotEqual, now, meta);
        e.leave_if(moved, other);
        value
    }

    /// Whether the words of a key are at an address.
    fn has_key(&self, e: &mut Emit<'_>, slot: At, key: At) -> Value {
        let words = self.key_size() / 8;
        if words <= 4 {
            let mut differs = e.int(0);
            let key = self.key_words(e, key);
            for (other, at) in key.into_iter().zip((0u32..).step_by(8)) {
                let one = e.load(slot.plus(at));
                let differ = e.b.ins().bxor(one, other);
                differs = e.b.ins().bor(differs, differ);
            }
            return e.is_imm(IntCC::Equal, differs, 0);
        }
        let zero = e.int(0);
        let differs = e.set_new(zero);
        let over = e.block();
        e.rounds(self.table.key & !7, [slot, key], |e, [slot, key], offsets| {
            let word = |at: u32| {
                let (one, other) = (e.load(slot.plus(at)), e.load(key.plus(at)));
                e.b.ins().bxor(one, other)
            };
            let words: Vec<Value> = offsets.map(word).collect();
            let differ = Self::any(e, &words);
            e.b.def_var(differs, differ);
            e.leave_if(differ, over);
        });
        if let Some((at, rest)) = self.tail() {
            let (one, other) = (e.load(slot.plus(at)), e.load_tail(key.plus(at), rest));
            let differ = e.b.ins().bxor(one, other);
            e.b.def_var(differs, differ);
        }
        e.go_on(over);
        let differs = e.b.use_var(differs);
        e.is_imm(IntCC::Equal, differs, 0)
    }

    /// What follows a meta, with this name.
    fn next(e: &mut Emit<'_>, meta: Value, name: Value) -> Value {
        let version = e.b.ins().band_imm_s(meta, !META_NAME as i64);
        let version = e.b.ins().iadd_imm_s(version, META_VERSION as i64);
        e.b.ins().bor(version, name)
    }

    fn state(e: &mut Emit<'_>, meta: Value, state: State) -> Value {
        let found = e.b.ins().band_imm_s(meta, META_STATE as i64);
        e.is_imm(IntCC::Equal, found, state as i64)
    }

    /// Takes one from a number of attempts; goes to a block when there are none left.
    fn try_again(e: &mut Emit<'_>, patience: Variable, otherwise: Block) {
        let left = e.b.use_var(patience);
        let left = e.b.ins().iadd_imm_s(left, -1);
        e.b.def_var(patience, left);
        let is_over = e.is_imm(IntCC::Equal, left, 0);
        e.leave_if(is_over, otherwise);
    }

    fn patience(e: &mut Emit<'_>) -> Variable {
        let value = e.int(PATIENCE.into());
        e.set_new(value)
    }

    fn retry(e: &mut Emit<'_>) -> Retry {
        Retry { patience: Self::patience(e), again: e.block(), moved: e.block(), contended: e.block() }
    }

    /// What is done where something was not as it was found; in the end it is counted, and left for a block.
    fn end_of_retry(&self, e: &mut Emit<'_>, retry: &Retry, otherwise: Block) {
        e.b.switch_to_block(retry.moved);
        Self::try_again(e, retry.patience, retry.contended);
        e.jump(retry.again);
        e.b.switch_to_block(retry.contended);
        self.count(e, TABLE_CONTENDED, 1);
        e.jump(otherwise);
    }

    pub(super) fn found(e: &mut Emit<'_>) -> Found {
        let mut variable = || {
            let zero = e.int(0);
            e.set_new(zero)
        };
        Found { is_there: variable(), meta_at: variable(), meta: variable(), value_at: variable() }
    }

    /// Looks for a key. Where a slot does not stand still it goes to a block.
    fn find(&self, e: &mut Emit<'_>, named: Option<&Named>, key: At, found: &Found, contended: Block) {
        let zero = e.int(0);
        e.b.def_var(found.is_there, zero);
        let Some(named) = named else {
            let meta_at = e.address(self.base.plus(TABLE_ONE_META));
            let meta = e.watch(meta_at);
            let meta_at = e.pointer(meta_at);
            let value_at = e.address(self.base.plus(TABLE_ONE_VALUE));
            let value_at = e.pointer(value_at);
            let [live, writing] = [State::Live, State::Writing].map(|state| Self::state(e, meta, state));
            let either = e.b.ins().bor(live, writing);
            let is_there = e.b.ins().uextend(I64, either);
            e.b.def_var(found.is_there, is_there);
            e.b.def_var(found.meta_at, meta_at);
            e.b.def_var(found.meta, meta);
            e.b.def_var(found.value_at, value_at);
            return;
        };
        let states = [State::Live, State::Writing];
        let patience = Self::patience(e);
        let [after, elsewhere] = [(); 2].map(|()| e.block());
        let first = e.int(0);
        let (_, meta_at, slot) = self.slot(e, named, first);
        let (meta, is_same) = self.is_it(e, At(meta_at, 0), At(slot, 0), key, named, &states, elsewhere);
        let differs = e.is_imm(IntCC::Equal, is_same, 0);
        e.leave_if(differs, elsewhere);
        let now = e.watch_again(At(meta_at, 0));
        let moved = e.is(IntCC::NotEqual, now, meta);
        e.leave_if(moved, elsewhere);
        let value_at = e.b.ins().iadd_imm_s(slot, i64::from(self.key_size()));
        found.is_at(e, meta_at, meta, value_at);
        e.jump(after);
        e.b.switch_to_block(elsewhere);
        self.each_named(e, named, &states, |e, index, next| {
            let (meta_at, slot) = self.numbered_slot(named, index);
            let [again, same] = [(); 2].map(|()| e.block());
            e.go_on(again);
            let (meta, is_same) = self.is_it(e, meta_at, slot, key, named, &states, next);
            let now = e.watch_again(meta_at);
            let still = e.is(IntCC::Equal, now, meta);
            e.leave_if(still, same);
            Self::try_again(e, patience, contended);
            e.jump(again);
            e.b.switch_to_block(same);
            let differs = e.is_imm(IntCC::Equal, is_same, 0);
            e.leave_if(differs, next);
            let (meta_at, value_at) = (e.pointer(meta_at), e.pointer(slot.plus(self.key_size())));
            found.is_at(e, meta_at, meta, value_at);
            e.jump(after);
        });
        e.go_on(after);
    }

    /// The meta and the key of a slot whose number is known.
    fn numbered_slot(&self, named: &Named, index: u32) -> (At, At) {
        let meta_at = At(named.bucket, (i64::from(index) * self.slot_size()) as i32);
        (meta_at, meta_at.plus(META))
    }

    /// Goes through the slots of a bucket, without a loop, and does something for each that is in one of these states with the key's
    /// fingerprint. That is given the slot's number and where to go on, and goes somewhere.
    fn each_named(
        &self,
        e: &mut Emit<'_>,
        named: &Named,
        states: &[State],
        see: impl Fn(&mut Emit<'_>, u32, Block),
    ) {
        let least = states.iter().map(|state| *state as i64).min().unwrap_or(0);
        let first = e.b.ins().bor_imm_s(named.fingerprint, least);
        for index in 0..SLOTS {
            let [seen, next] = [(); 2].map(|()| e.block());
            let (meta_at, _) = self.numbered_slot(named, index);
            let meta = e.watch(meta_at);
            let beyond = e.b.ins().isub(meta, first);
            let beyond = e.b.ins().band_imm_s(beyond, META_NAME as i64);
            let is_one = e.is_imm(IntCC::UnsignedLessThan, beyond, states.len() as i64);
            e.b.ins().brif(is_one, seen, &[], next, &[]);
            e.b.set_cold_block(seen);
            e.b.switch_to_block(seen);
            see(e, index, next);
            e.b.switch_to_block(next);
        }
    }

    /// A slot's meta, and whether its key is this one; goes to a block if it is in none of these states or has another fingerprint.
    #[expect(clippy::too_many_arguments, reason = "what a slot and a key are")]
    fn is_it(
        &self,
        e: &mut Emit<'_>,
        meta_at: At,
        slot: At,
        key: At,
        named: &Named,
        states: &[State],
        no: Block,
    ) -> (Value, Value) {
        let meta = e.watch(meta_at);
        let name = e.b.ins().band_imm_s(meta, META_NAME as i64);
        // States that are asked for follow each other.
        let least = states.iter().map(|state| *state as i64).min().unwrap_or(0);
        let first = e.b.ins().bor_imm_s(named.fingerprint, least);
        let beyond = e.b.ins().isub(name, first);
        let is_none = e.is_imm(IntCC::UnsignedGreaterThanOrEqual, beyond, states.len() as i64);
        e.leave_if(is_none, no);
        let is_same = self.has_key(e, slot, key);
        (meta, is_same)
    }

    /// Finds a key, or puts it in with what `write` writes. Goes to a block if it was dropped, which is counted. Whether it was there,
    /// `found` says.
    pub(super) fn enter(
        &self,
        e: &mut Emit<'_>,
        key: At,
        found: &Found,
        write: &dyn Fn(&mut Emit<'_>, At),
        dropped: Block,
    ) {
        let named = self.named(e, key);
        let [again, done, full, contended] = [(); 4].map(|()| e.block());
        let patience = Self::patience(e);
        if let Some(named) = named.as_ref().filter(|_| self.base.is_own()) {
            let zero = e.int(0);
            e.b.def_var(found.is_there, zero);
            self.insert_first(e, named, key, write, done);
        }
        e.go_on(again);
        self.find(e, named.as_ref(), key, found, contended);
        let is_there = e.b.use_var(found.is_there);
        e.leave_if(is_there, done);
        match &named {
            None => self.insert_one(e, found, write, done),
            Some(named) => self.insert(e, named, key, write, done, full, contended),
        }
        Self::try_again(e, patience, contended);
        e.jump(again);
        for (block, counter) in [(full, TABLE_FULL), (contended, TABLE_CONTENDED)] {
            e.b.switch_to_block(block);
            self.count(e, counter, 1);
            e.jump(dropped);
        }
        e.b.switch_to_block(done);
    }

    /// Puts a key into a thread's own table that has none; comes back where it has, or where its preferred slot is not free.
    fn insert_first(
        &self,
        e: &mut Emit<'_>,
        named: &Named,
        key: At,
        write: &dyn Fn(&mut Emit<'_>, At),
        done: Block,
    ) {
        let [not_claimed, not_first, has_keys] = [(); 3].map(|()| e.block());
        let live_at = e.address(self.base.plus(TABLE_LIVE));
        let live = e.watch(live_at);
        e.leave_if(live, has_keys);
        let [none, one] = [0, 1].map(|count| e.int(count));
        let was = e.exchange(live_at, none, one);
        e.leave_if(was, has_keys);
        let (_, meta_at, slot) = self.slot(e, named, none);
        let claimed = Self::claim(e, At(meta_at, 0), not_claimed);
        let pending = self.fill(e, named, key, write, [meta_at, slot], claimed);
        let count = e.watch(live_at);
        let has_more = e.is_imm(IntCC::NotEqual, count, 1);
        e.leave_if(has_more, not_first);
        Self::make_live(e, named, meta_at, pending, done, not_first);

        e.b.set_cold_block(not_first);
        e.b.switch_to_block(not_first);
        self.withdraw(e, meta_at, pending);
        e.jump(has_keys);
        e.b.set_cold_block(not_claimed);
        e.b.switch_to_block(not_claimed);
        self.count(e, TABLE_LIVE, -1);
        e.jump(has_keys);
        e.b.switch_to_block(has_keys);
    }

    /// Claims a slot: its meta then. Goes to a block if it is not free.
    fn claim(e: &mut Emit<'_>, meta_at: At, otherwise: Block) -> Value {
        let meta = e.watch(meta_at);
        let is_free = Self::state(e, meta, State::Free);
        let is_taken = e.is_imm(IntCC::Equal, is_free, 0);
        e.leave_if(is_taken, otherwise);
        let name = e.int(State::Claimed as i64);
        let claimed = Self::next(e, meta, name);
        let was = e.exchange(meta_at, meta, claimed);
        let lost = e.is(IntCC::NotEqual, was, meta);
        e.leave_if(lost, otherwise);
        claimed
    }

    /// Writes a key with its value into a slot that was claimed, given by its meta's address and its own, and makes it pending: its meta then.
    fn fill(
        &self,
        e: &mut Emit<'_>,
        named: &Named,
        key: At,
        write: &dyn Fn(&mut Emit<'_>, At),
        [meta_at, slot]: [Value; 2],
        claimed: Value,
    ) -> Value {
        e.copy(At(slot, 0), key, self.table.key, true);
        write(e, At(slot, self.key_size() as i32));
        let name = e.b.ins().bor_imm_s(named.fingerprint, State::Pending as i64);
        let pending = Self::next(e, claimed, name);
        if self.base.is_own() {
            e.publish(pending, At(meta_at, 0));
        } else {
            // Not a plain store: the looks at the other slots come behind it.
            e.exchange(At(meta_at, 0), claimed, pending);
        }
        pending
    }

    /// Makes a pending slot live, and goes on at `done`, or at `ended` if somebody has ended it.
    fn make_live(e: &mut Emit<'_>, named: &Named, meta_at: Value, pending: Value, done: Block, ended: Block) {
        let name = e.b.ins().bor_imm_s(named.fingerprint, State::Live as i64);
        let live = Self::next(e, pending, name);
        let was = e.exchange(At(meta_at, 0), pending, live);
        let is_live = e.is(IntCC::Equal, was, pending);
        e.b.ins().brif(is_live, done, &[], ended, &[]);
    }

    /// Frees a pending slot and takes its live key back, unless somebody has done so.
    fn withdraw(&self, e: &mut Emit<'_>, meta_at: Value, pending: Value) {
        let nobody = e.int(0);
        let free = Self::next(e, pending, nobody);
        let was = e.exchange(At(meta_at, 0), pending, free);
        let is_ours = e.is(IntCC::Equal, was, pending);
        e.when(is_ours, |e| self.count(e, TABLE_LIVE, -1));
    }

    fn insert_one(&self, e: &mut Emit<'_>, found: &Found, write: &dyn Fn(&mut Emit<'_>, At), done: Block) {
        let meta_at = At(e.b.use_var(found.meta_at), 0);
        let again = e.block();
        let claimed = Self::claim(e, meta_at, again);
        let value_at = At(e.b.use_var(found.value_at), 0);
        write(e, value_at);
        let live = e.int(State::Live as i64);
        let live = Self::next(e, claimed, live);
        e.publish(live, meta_at);
        e.jump(done);
        e.b.switch_to_block(again);
    }

    /// One attempt to insert; comes back when another one is due.
    #[expect(clippy::too_many_arguments, reason = "each end of an insert is a block")]
    fn insert(
        &self,
        e: &mut Emit<'_>,
        named: &Named,
        key: At,
        write: &dyn Fn(&mut Emit<'_>, At),
        done: Block,
        full: Block,
        contended: Block,
    ) {
        let [no_room, claimed_one, give_up, live_elsewhere, again] = [(); 5].map(|()| e.block());
        let live_at = e.address(self.base.plus(TABLE_LIVE));
        let one = e.int(1);
        let before = e.add_shared(live_at, one);
        let capacity = e.int(self.table.capacity.into());
        let is_full = e.is(IntCC::UnsignedGreaterThanOrEqual, before, capacity);
        e.leave_if(is_full, no_room);
        let zero = e.int(0);
        let [own, claimed] = [(); 2].map(|()| e.set_new(zero));
        let end = e.int(SLOTS.into());
        e.each(end, 1, |e, turn, _| {
            let (index, meta_at, _) = self.slot(e, named, turn);
            let next = e.block();
            let new = Self::claim(e, At(meta_at, 0), next);
            e.b.def_var(own, index);
            e.b.def_var(claimed, new);
            e.jump(claimed_one);
            e.b.switch_to_block(next);
        });
        e.jump(no_room);

        e.b.switch_to_block(no_room);
        self.count(e, TABLE_LIVE, -1);
        e.jump(full);

        e.b.switch_to_block(claimed_one);
        let own = e.b.use_var(own);
        let claimed = e.b.use_var(claimed);
        let (meta_at, slot) = self.slot_at(e, named, own);
        let pending = self.fill(e, named, key, write, [meta_at, slot], claimed);
        self.look_for_others(e, named, own, key, live_elsewhere, give_up);
        Self::make_live(e, named, meta_at, pending, done, again);

        for (block, then) in [(live_elsewhere, again), (give_up, contended)] {
            e.b.switch_to_block(block);
            self.withdraw(e, meta_at, pending);
            e.jump(then);
        }
        e.b.switch_to_block(again);
    }

    /// Looks at all slots but one's own, and ends inserts of the same key. Goes to a block if the key is live in one of them.
    fn look_for_others(
        &self,
        e: &mut Emit<'_>,
        named: &Named,
        own: Value,
        key: At,
        live_elsewhere: Block,
        give_up: Block,
    ) {
        let states = [State::Pending, State::Live, State::Writing];
        let patience = Self::patience(e);
        self.each_named(e, named, &states, |e, index, next| {
            let [again, retry] = [(); 2].map(|()| e.block());
            let is_own = e.is_imm(IntCC::Equal, own, index.into());
            e.leave_if(is_own, next);
            let (meta_at, slot) = self.numbered_slot(named, index);
            e.go_on(again);
            let (meta, is_same) = self.is_it(e, meta_at, slot, key, named, &states, next);
            let now = e.watch_again(meta_at);
            let moved = e.is(IntCC::NotEqual, now, meta);
            e.leave_if(moved, retry);
            let differs = e.is_imm(IntCC::Equal, is_same, 0);
            e.leave_if(differs, next);
            let is_pending = Self::state(e, meta, State::Pending);
            let is_live = e.is_imm(IntCC::Equal, is_pending, 0);
            e.leave_if(is_live, live_elsewhere);
            let nobody = e.int(0);
            let free = Self::next(e, meta, nobody);
            let was = e.exchange(meta_at, meta, free);
            let lost = e.is(IntCC::NotEqual, was, meta);
            e.leave_if(lost, retry);
            self.count(e, TABLE_LIVE, -1);
            e.jump(next);
            e.b.switch_to_block(retry);
            Self::try_again(e, patience, give_up);
            e.jump(again);
        });
    }

    /// Finds a key or puts it in, and changes its value under its meta. `first` writes the value of a key that is put in.
    pub(super) fn change(
        &self,
        e: &mut Emit<'_>,
        key: At,
        first: &dyn Fn(&mut Emit<'_>, At),
        change: &dyn Fn(&mut Emit<'_>, At),
        dropped: Block,
    ) {
        let (retry, done) = (Self::retry(e), e.block());
        let found = Self::found(e);
        e.go_on(retry.again);
        self.enter(e, key, &found, first, dropped);
        let is_there = e.b.use_var(found.is_there);
        let is_new = e.is_imm(IntCC::Equal, is_there, 0);
        e.leave_if(is_new, done);
        self.write(e, &found, change, retry.moved);
        e.jump(done);
        self.end_of_retry(e, &retry, dropped);
        e.b.switch_to_block(done);
    }

    /// Finds a key or puts it in, in a table that is changed word by word. `first` writes the value of a key that is put in, `change`
    /// changes it in place.
    pub(super) fn in_place(
        &self,
        e: &mut Emit<'_>,
        key: At,
        first: &dyn Fn(&mut Emit<'_>, At),
        change: &dyn Fn(&mut Emit<'_>, At),
        dropped: Block,
    ) {
        let found = Self::found(e);
        self.enter(e, key, &found, first, dropped);
        let is_there = e.b.use_var(found.is_there);
        e.when(is_there, |e| {
            let at = At(e.b.use_var(found.value_at), 0);
            change(e, at);
        });
    }

    /// Writes a value, which has a new one for all of the old.
    pub(super) fn set(&self, e: &mut Emit<'_>, key: At, write: &dyn Fn(&mut Emit<'_>, At), dropped: Block) {
        match self.table.change {
            Change::ByWord => self.in_place(e, key, write, write, dropped),
            Change::UnderMeta => self.change(e, key, write, write, dropped),
        }
    }

    /// Changes the value of a live key under its meta. Goes to a block if it is not as it was found.
    fn write(&self, e: &mut Emit<'_>, found: &Found, change: &dyn Fn(&mut Emit<'_>, At), otherwise: Block) {
        let meta = e.b.use_var(found.meta);
        let meta_at = At(e.b.use_var(found.meta_at), 0);
        let value_at = At(e.b.use_var(found.value_at), 0);
        let is_live = Self::state(e, meta, State::Live);
        let is_busy = e.is_imm(IntCC::Equal, is_live, 0);
        e.leave_if(is_busy, otherwise);
        let fingerprint = e.b.ins().band_imm_s(meta, (META_NAME & !META_STATE) as i64);
        let [writing, live] =
            [State::Writing, State::Live].map(|state| e.b.ins().bor_imm_s(fingerprint, state as i64));
        let writing = Self::next(e, meta, writing);
        let was = e.exchange(meta_at, meta, writing);
        let lost = e.is(IntCC::NotEqual, was, meta);
        e.leave_if(lost, otherwise);
        change(e, value_at);
        let live = Self::next(e, writing, live);
        e.publish(live, meta_at);
    }

    /// Reads the value of a key. Goes to `missing` if it is not there, or does not stand still, which is counted.
    pub(super) fn read(&self, e: &mut Emit<'_>, key: At, read: &dyn Fn(&mut Emit<'_>, At), missing: Block) {
        let named = self.named(e, key);
        let (retry, done) = (Self::retry(e), e.block());
        let found = Self::found(e);
        e.go_on(retry.again);
        self.find(e, named.as_ref(), key, &found, retry.contended);
        let is_there = e.b.use_var(found.is_there);
        let is_missing = e.is_imm(IntCC::Equal, is_there, 0);
        e.leave_if(is_missing, missing);
        let meta = e.b.use_var(found.meta);
        let is_live = Self::state(e, meta, State::Live);
        let is_busy = e.is_imm(IntCC::Equal, is_live, 0);
        e.leave_if(is_busy, retry.moved);
        let value_at = At(e.b.use_var(found.value_at), 0);
        read(e, value_at);
        let meta_at = At(e.b.use_var(found.meta_at), 0);
        let now = e.watch_again(meta_at);
        let still = e.is(IntCC::Equal, now, meta);
        e.b.ins().brif(still, done, &[], retry.moved, &[]);
        self.end_of_retry(e, &retry, missing);
        e.b.switch_to_block(done);
    }

    /// Takes a key out. Goes to `missing` if it is not there, or does not stand still, which is counted.
    pub(super) fn delete(&self, e: &mut Emit<'_>, key: At, missing: Block) {
        let named = self.named(e, key);
        let (retry, done) = (Self::retry(e), e.block());
        let found = Self::found(e);
        e.go_on(retry.again);
        self.find(e, named.as_ref(), key, &found, retry.contended);
        let is_there = e.b.use_var(found.is_there);
        let is_missing = e.is_imm(IntCC::Equal, is_there, 0);
        e.leave_if(is_missing, missing);
        self.free(e, &found, retry.moved);
        e.jump(done);
        self.end_of_retry(e, &retry, missing);
        e.b.switch_to_block(done);
    }

    /// Frees a live slot. Goes to a block if it is not as it was found.
    fn free(&self, e: &mut Emit<'_>, found: &Found, otherwise: Block) {
        let meta = e.b.use_var(found.meta);
        let meta_at = At(e.b.use_var(found.meta_at), 0);
        let is_live = Self::state(e, meta, State::Live);
        let is_busy = e.is_imm(IntCC::Equal, is_live, 0);
        e.leave_if(is_busy, otherwise);
        let nobody = e.int(0);
        let free = Self::next(e, meta, nobody);
        let was = e.exchange(meta_at, meta, free);
        let lost = e.is(IntCC::NotEqual, was, meta);
        e.leave_if(lost, otherwise);
        if self.table.key != 0 {
            self.count(e, TABLE_LIVE, -1);
        }
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> i64 {
        if self.table.key == 0 { 1 } else { i64::from(SLOTS) << self.table.bucket_bits }
    }

    /// The slot with a number below [`Self::slots`], as it is found when it has a live key; the address of its key.
    fn numbered(&self, e: &mut Emit<'_>, number: Value, found: &Found) -> Value {
        if self.table.key == 0 {
            let meta_at = e.address(self.base.plus(TABLE_ONE_META));
            let meta = e.watch(meta_at);
            let meta_at = e.pointer(meta_at);
            let value_at = e.b.ins().iadd_imm_s(meta_at, i64::from(TABLE_ONE_VALUE - TABLE_ONE_META));
            e.b.def_var(found.meta_at, meta_at);
            e.b.def_var(found.meta, meta);
            e.b.def_var(found.value_at, value_at);
            return value_at;
        }
        let bucket = e.b.ins().ushr_imm_s(number, 3);
        let index = e.b.ins().band_imm_s(number, i64::from(SLOTS) - 1);
        let offset = e.b.ins().imul_imm_s(bucket, self.table.bucket_size() as i64);
        let first = e.address(self.base.plus(TABLE_HEADER));
        let first = e.pointer(first);
        let bucket = e.b.ins().iadd(first, offset);
        let named = Named { hash: bucket, bucket, fingerprint: bucket };
        let (meta_at, slot) = self.slot_at(e, &named, index);
        let meta = e.watch(At(meta_at, 0));
        let value_at = e.b.ins().iadd_imm_s(slot, i64::from(self.key_size()));
        e.b.def_var(found.meta_at, meta_at);
        e.b.def_var(found.meta, meta);
        e.b.def_var(found.value_at, value_at);
        slot
    }

    /// Does something to every live key: frees its slot, or zeroes its value.
    pub(super) fn all(&self, e: &mut Emit<'_>, frees: bool) {
        let end = e.int(self.slots());
        e.each(end, 1, |e, number, _| {
            let (retry, next) = (Self::retry(e), e.block());
            let found = Self::found(e);
            e.go_on(retry.again);
            self.numbered(e, number, &found);
            let meta = e.b.use_var(found.meta);
            let is_writing = Self::state(e, meta, State::Writing);
            e.leave_if(is_writing, retry.moved);
            let is_live = Self::state(e, meta, State::Live);
            let is_none = e.is_imm(IntCC::Equal, is_live, 0);
            e.leave_if(is_none, next);
            if frees {
                self.free(e, &found, retry.moved);
            } else {
                self.write(e, &found, &|e, at| e.zero(at, self.value_size()), retry.moved);
            }
            e.jump(next);
            self.end_of_retry(e, &retry, next);
            e.b.switch_to_block(next);
        });
    }

    /// The next live key from a number on, which is in memory: copies key and value, and writes where to go on; -1 if there is none.
    pub(super) fn next_key(
        &self,
        e: &mut Emit<'_>,
        number_at: At,
        key: At,
        value: At,
        read: &dyn Fn(&mut Emit<'_>, At, At),
    ) {
        let start = e.load(number_at);
        let number = e.set_new(start);
        let [again, look, retry, next, none, done] = [(); 6].map(|()| e.block());
        let patience = Self::patience(e);
        let found = Self::found(e);
        e.go_on(again);
        let now = e.b.use_var(number);
        let end = e.int(self.slots());
        let is_over = e.is(IntCC::UnsignedGreaterThanOrEqual, now, end);
        e.leave_if(is_over, none);
        let many = e.int(PATIENCE.into());
        e.b.def_var(patience, many);
        e.go_on(look);
        let now = e.b.use_var(number);
        let slot = self.numbered(e, now, &found);
        let meta = e.b.use_var(found.meta);
        let is_writing = Self::state(e, meta, State::Writing);
        e.leave_if(is_writing, retry);
        let is_live = Self::state(e, meta, State::Live);
        let is_none = e.is_imm(IntCC::Equal, is_live, 0);
        e.leave_if(is_none, next);
        e.copy(key, At(slot, 0), self.table.key, false);
        let value_at = At(e.b.use_var(found.value_at), 0);
        read(e, value_at, value);
        let meta_at = At(e.b.use_var(found.meta_at), 0);
        let after = e.watch_again(meta_at);
        let still = e.is(IntCC::Equal, after, meta);
        e.leave_if(still, done);
        e.jump(retry);
        e.b.switch_to_block(retry);
        // One that does not stand still is passed.
        Self::try_again(e, patience, next);
        e.jump(look);
        e.b.switch_to_block(next);
        let now = e.b.use_var(number);
        let following = e.b.ins().iadd_imm_s(now, 1);
        e.b.def_var(number, following);
        e.jump(again);
        e.b.switch_to_block(done);
        let now = e.b.use_var(number);
        let following = e.b.ins().iadd_imm_s(now, 1);
        e.store(following, number_at);
        e.finish();
        e.b.switch_to_block(none);
        let none = e.int(-1);
        e.store(none, number_at);
        e.finish();
    }
}
