//! All that can happen when a few operations work on one table: each order of their steps, a signal handler that runs a whole operation at
//! any step, and a thread that stops for ever at any step.
//!
//! The operations are the real ones. One is brought one step further by running it again from its beginning: what it read so far is
//! given to it again, one access is done on the memory, and whatever it does from there on is thrown away. States that
//! were met before are not gone on from.

use super::*;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

/// Something that is done to the table. Values say of which key they are in their upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    Set(u64, u64),
    Add(u64, u64),
    Delete(u64),
    /// Puts a key in, and takes it out again.
    Pass(u64, u64),
    Get(u64),
    Each,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Done,
    Was(u64),
    Deleted(bool),
    Read(Vec<(u64, Vec<u64>)>),
    Dropped,
}

/// An operation on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    op: Op,
    /// What its accesses gave so far.
    log: Vec<u64>,
    outcome: Option<Outcome>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    run: Run,
    /// A handler that may interrupt it once, anywhere.
    handler: Option<Op>,
    in_handler: Option<Run>,
    is_dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Situation {
    memory: Vec<u64>,
    threads: Vec<Thread>,
    deaths: u32,
}

/// The memory for one more step of an operation.
struct Step<'a> {
    memory: &'a RefCell<Vec<u64>>,
    log: &'a RefCell<Vec<u64>>,
    /// Words that nobody changes: reading them is no step.
    frozen: &'a [bool],
    /// Whether what the table counts is of concern.
    counts: bool,
    next: Cell<usize>,
    steps: Cell<u32>,
    is_over: Cell<bool>,
}

impl Step<'_> {
    fn access(&self, offset: u64, reads: bool, real: impl FnOnce(&mut u64) -> u64) -> Option<u64> {
        let next = self.next.replace(self.next.get() + 1);
        if let Some(&before) = self.log.borrow().get(next) {
            return Some(before);
        }
        let word = (offset / 8) as usize;
        // The table has room for all.
        let is_of_no_concern = offset < u64::from(TABLE_HEADER) && !self.counts;
        if !(reads && self.frozen[word] || is_of_no_concern) {
            if self.steps.get() == 0 {
                self.is_over.set(true);
                return None;
            }
            self.steps.set(0);
        }
        if self.is_over.get() {
            return None;
        }
        let result = real(&mut self.memory.borrow_mut()[word]);
        self.log.borrow_mut().push(result);
        Some(result)
    }
}

impl Words for Step<'_> {
    fn word(&self, offset: u64) -> u64 {
        self.access(offset, true, |word| *word).unwrap_or(0)
    }
}

impl WordsMut for Step<'_> {
    fn set_word(&self, offset: u64, value: u64) {
        self.access(offset, false, |word| {
            *word = value;
            0
        });
    }
}

impl Atomics for Step<'_> {
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let exchange = |word: &mut u64| {
            let before = *word;
            if before == current {
                *word = new;
            }
            before
        };
        match self.access(offset, false, exchange) {
            Some(before) if before == current => Ok(before),
            Some(before) => Err(before),
            None => Err(!current),
        }
    }

    fn fetch_add(&self, offset: u64, value: u64) -> u64 {
        let add = |word: &mut u64| {
            let before = *word;
            *word = before.wrapping_add(value);
            before
        };
        self.access(offset, false, add).unwrap_or(0)
    }
}

/// The name of slots that have keys of no concern.
const OTHER: u64 = 0xfff << 4 | State::Live as u64;

/// What is explored.
struct Model {
    table: Table,
    threads: Vec<(Op, Option<Op>)>,
    /// Keys that are there at the beginning.
    before: Vec<u64>,
    /// How many of the bucket's slots are free for all this; the others have other keys.
    free: u64,
    deaths: u32,
    patience: u32,
    /// Whether the table is the one thread's own.
    is_own: bool,
}

/// The value of a key: two words that say whose they are.
fn value(key: u64, number: u64) -> Vec<u64> {
    vec![key << 32 | number, key << 32 | number]
}

impl Model {
    fn new(change: Change, threads: &[(Op, Option<Op>)]) -> Self {
        let table = Table { key: 8, value: 16, bucket_bits: 0, capacity: 100, change };
        Self {
            table,
            threads: threads.to_vec(),
            before: Vec::new(),
            free: 3,
            deaths: 0,
            patience: 2,
            is_own: false,
        }
    }

    /// The same of a thread's own table, in which nothing is at the beginning.
    fn of_one(change: Change, op: Op, handler: Op) -> Self {
        Self { is_own: true, free: SLOTS.into(), ..Self::new(change, &[(op, Some(handler))]) }
    }

    fn act<W: Atomics>(&self, op: Op, words: &W) -> Outcome {
        let view = TableView::new(words, 0, self.table).with_patience(self.patience);
        let view = if self.is_own { view.of_one_thread() } else { view };
        let done = |result: Result<Outcome, Dropped>| result.unwrap_or(Outcome::Dropped);
        match op {
            Op::Set(key, number) => done(view.set(&[key], &value(key, number)).map(|()| Outcome::Done)),
            Op::Add(key, amount) => done(view.add(&[key], amount).map(Outcome::Was)),
            Op::Delete(key) => done(view.delete(&[key]).map(Outcome::Deleted)),
            Op::Pass(key, number) => {
                let set = view.set(&[key], &value(key, number));
                done(set.and_then(|()| view.delete(&[key]).map(Outcome::Deleted)))
            }
            Op::Get(key) => match view.get(&[key]) {
                Ok(value) => Outcome::Read(value.map(|value| (key, value)).into_iter().collect()),
                Err(_) => Outcome::Read(Vec::new()),
            },
            Op::Each => {
                let mut seen = Vec::new();
                view.each(|entry| seen.push((entry.key[0], entry.value)));
                Outcome::Read(seen)
            }
        }
    }

    fn start(&self) -> (Situation, Vec<bool>) {
        let words = (self.table.size() / 8) as usize;
        let mut frozen = vec![false; words];
        let memory = RefCell::new(vec![0; words]);
        let first = TABLE_HEADER as usize / 8;
        // Slots of others: live, with a fingerprint that is none of our keys'.
        let preferred = hash(&[1]) >> 29;
        for turn in self.free..u64::from(SLOTS) {
            let index = ((preferred + turn) & 7) as usize;
            let at = first + index * (self.table.slot_size() / 8) as usize;
            memory.borrow_mut()[at] = (5 * META_VERSION) | OTHER;
            frozen[at] = true;
            memory.borrow_mut()[TABLE_LIVE as usize / 8] += 1;
        }
        let plain = Plain(&memory);
        for &key in &self.before {
            assert_eq!(self.act(Op::Set(key, 1), &plain), Outcome::Done);
        }
        let run = |op| Run { op, log: Vec::new(), outcome: None };
        let threads = self.threads.iter().map(|&(op, handler)| Thread {
            run: run(op),
            handler,
            in_handler: None,
            is_dead: false,
        });
        let threads = threads.collect();
        (Situation { memory: memory.into_inner(), threads, deaths: self.deaths }, frozen)
    }

    fn step(&self, memory: &mut Vec<u64>, run: &mut Run, frozen: &[bool]) {
        let (cell, log) = (RefCell::new(std::mem::take(memory)), RefCell::new(std::mem::take(&mut run.log)));
        let step = Step {
            memory: &cell,
            log: &log,
            frozen,
            counts: self.is_own,
            next: Cell::new(0),
            steps: Cell::new(1),
            is_over: Cell::new(false),
        };
        let outcome = self.act(run.op, &step);
        if !step.is_over.get() {
            run.outcome = Some(outcome);
        }
        *memory = cell.into_inner();
        run.log = log.into_inner();
    }

    /// Goes everywhere. How many situations there are, and how many ends.
    fn explore(&self, check: impl Fn(&Situation, &[(u64, Vec<u64>)])) -> (usize, usize) {
        let (start, frozen) = self.start();
        let mut seen = HashSet::new();
        let mut open = vec![start];
        let mut ends = 0;
        while let Some(situation) = open.pop() {
            if !seen.insert(digest(&situation)) {
                continue;
            }
            let live = self.live(&situation.memory);
            self.always(&situation, &live);
            let mut is_end = true;
            for (index, thread) in situation.threads.iter().enumerate() {
                let is_over = thread.run.outcome.is_some();
                if thread.is_dead || is_over {
                    continue;
                }
                is_end = false;
                let mut next = |change: &dyn Fn(&mut Situation)| {
                    let mut next = situation.clone();
                    change(&mut next);
                    open.push(next);
                };
                let handles = thread.in_handler.as_ref().is_some_and(|run| run.outcome.is_none());
                next(&|next| {
                    let Situation { memory, threads, .. } = next;
                    let thread = &mut threads[index];
                    let run = if handles { thread.in_handler.as_mut().unwrap() } else { &mut thread.run };
                    self.step(memory, run, &frozen);
                });
                if let (Some(op), None) = (thread.handler, &thread.in_handler) {
                    let run = Run { op, log: Vec::new(), outcome: None };
                    next(&|next| next.threads[index].in_handler = Some(run.clone()));
                }
                if situation.deaths > 0 {
                    next(&|next| {
                        next.threads[index].is_dead = true;
                        next.deaths -= 1;
                    });
                }
            }
            if is_end {
                ends += 1;
                check(&situation, &live);
            }
        }
        (seen.len(), ends)
    }

    /// The live keys that are ours.
    fn live(&self, memory: &[u64]) -> Vec<(u64, Vec<u64>)> {
        let first = TABLE_HEADER as usize / 8;
        let size = (self.table.slot_size() / 8) as usize;
        let is_ours = |index: &usize| {
            let meta = memory[first + index * size];
            (is(meta, State::Live) || is(meta, State::Writing)) && meta & META_NAME != OTHER
        };
        let entry = |index: usize| {
            let slot = &memory[first + index * size..][1..size];
            (slot[0], slot[1..].to_vec())
        };
        (0..SLOTS as usize).filter(is_ours).map(entry).collect()
    }

    /// What holds at every moment.
    fn always(&self, situation: &Situation, live: &[(u64, Vec<u64>)]) {
        let mut keys: Vec<u64> = live.iter().map(|entry| entry.0).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), live.len(), "a key is there twice: {situation:#?}");
        let others = u64::from(SLOTS) - self.free;
        let count = situation.memory[TABLE_LIVE as usize / 8];
        assert!(count >= others + live.len() as u64, "more keys than were counted: {situation:#?}");
        for thread in &situation.threads {
            for run in std::iter::once(&thread.run).chain(&thread.in_handler) {
                let Some(Outcome::Read(read)) = &run.outcome else { continue };
                for (key, words) in read.iter().filter(|(key, _)| *key < 16 && *key > 0) {
                    assert!(words.iter().all(|word| word >> 32 == *key || *word < 1000), "{situation:#?}");
                    let adds = self.threads.iter().any(|(op, handler)| {
                        matches!(op, Op::Add(..)) || matches!(handler, Some(Op::Add(..)))
                    });
                    assert!(adds || words[0] >> 32 == 0 || words[0] == words[1], "torn: {situation:#?}");
                }
            }
        }
    }
}

/// 128 bits of a situation: two of them that meet would be a wonder.
fn digest(situation: &Situation) -> [u64; 2] {
    [1u64, 2].map(|salt| {
        let mut hasher = std::hash::DefaultHasher::new();
        (salt, situation).hash(&mut hasher);
        hasher.finish()
    })
}

/// The memory with nobody else in it.
struct Plain<'a>(&'a RefCell<Vec<u64>>);

impl Words for Plain<'_> {
    fn word(&self, offset: u64) -> u64 {
        self.0.borrow()[(offset / 8) as usize]
    }
}

impl WordsMut for Plain<'_> {
    fn set_word(&self, offset: u64, value: u64) {
        self.0.borrow_mut()[(offset / 8) as usize] = value;
    }
}

impl Atomics for Plain<'_> {
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

fn runs(situation: &Situation) -> impl Iterator<Item = &Run> {
    situation.threads.iter().flat_map(|thread| std::iter::once(&thread.run).chain(&thread.in_handler))
}

/// How many operations were dropped, as they say themselves and as the table has counted.
fn drops(situation: &Situation) -> (u64, u64) {
    let said = runs(situation).filter(|run| run.outcome == Some(Outcome::Dropped)).count() as u64;
    let words = &situation.memory;
    (said, words[TABLE_FULL as usize / 8] + words[TABLE_CONTENDED as usize / 8])
}

/// How many keys the table has counted, less the other slots' ([`Model::free`]).
fn counted_live(situation: &Situation) -> u64 {
    let first = TABLE_HEADER as usize / 8;
    // Nothing but a meta of theirs has this name: our keys and values are none.
    let others = situation.memory[first..].iter().filter(|word| *word & META_NAME == OTHER).count() as u64;
    situation.memory[TABLE_LIVE as usize / 8] - others
}

fn total(live: &[(u64, Vec<u64>)], key: u64) -> u64 {
    live.iter().filter(|entry| entry.0 == key).map(|entry| entry.1[0]).sum()
}

/// Checks additions to key 1: what was not dropped is there, and nothing else.
fn exact(situation: &Situation, live: &[(u64, Vec<u64>)]) {
    let (mut least, mut most) = (0, 0);
    for run in runs(situation) {
        let Op::Add(1, amount) = run.op else { continue };
        match run.outcome {
            Some(Outcome::Was(_)) => (least, most) = (least + amount, most + amount),
            // One that has stopped for ever may have done it.
            None => most += amount,
            _ => {}
        }
    }
    assert!((least..=most).contains(&total(live, 1)), "{least} to {most}: {situation:#?}");
    let (said, counted) = drops(situation);
    assert!(counted >= said, "{situation:#?}");
    if situation.threads.iter().all(|thread| !thread.is_dead) {
        assert_eq!(said, counted, "{situation:#?}");
        assert_eq!(counted_live(situation), live.len() as u64, "{situation:#?}");
    }
}

#[test]
fn two_inserts_of_a_key_make_one() {
    let model = Model::new(Change::ByWord, &[(Op::Add(1, 1), None), (Op::Add(1, 10), None)]);
    let (situations, ends) = model.explore(|situation, live| {
        exact(situation, live);
        // Two can end each other's until they have lost patience, which is counted.
        let (dropped, _) = drops(situation);
        assert!(dropped > 0 || total(live, 1) == 11, "{situation:#?}");
    });
    assert!(situations > 100 && ends > 1, "{situations} {ends}");
}

#[test]
fn a_handler_that_inserts_what_is_being_inserted_loses_nothing() {
    let model = Model::new(Change::ByWord, &[(Op::Add(1, 1), Some(Op::Add(1, 10)))]);
    model.explore(|situation, live| {
        exact(situation, live);
        assert_eq!(drops(situation), (0, 0));
    });
}

#[test]
fn two_threads_and_a_handler_add_exactly() {
    for before in [vec![1], vec![]] {
        let mut model =
            Model::new(Change::ByWord, &[(Op::Add(1, 1), Some(Op::Add(1, 10))), (Op::Add(1, 100), None)]);
        let was = if before.is_empty() { 0 } else { 1 << 32 | 1 };
        // Without a key at the beginning there is so much that can happen that one attempt has to do.
        model.patience = if before.is_empty() { 1 } else { 2 };
        (model.before, model.free, model.table.value) = (before, 2, 8);
        model.explore(|situation, live| {
            let live: Vec<_> =
                live.iter().map(|(key, value)| (*key, vec![value[0].wrapping_sub(was)])).collect();
            let dead = situation.threads.iter().any(|thread| thread.is_dead);
            assert!(!dead);
            let dropped = drops(situation);
            assert_eq!(dropped.0, dropped.1);
            let added: u64 = runs(situation)
                .filter_map(|run| match (run.op, &run.outcome) {
                    (Op::Add(_, amount), Some(Outcome::Was(_))) => Some(amount),
                    _ => None,
                })
                .sum();
            assert_eq!(total(&live, 1), added, "{situation:#?}");
        });
    }
}

#[test]
fn one_that_stops_for_ever_takes_nothing_with_it() {
    for change in [Change::ByWord, Change::UnderMeta] {
        let mut model = Model::new(change, &[(Op::Add(1, 1), None), (Op::Add(1, 10), None)]);
        (model.deaths, model.free) = (1, 3);
        model.explore(|situation, live| {
            exact(situation, live);
            let has_died = situation.threads.iter().any(|thread| thread.is_dead);
            assert!(!has_died || !live.is_empty() || drops(situation).0 > 0, "{situation:#?}");
        });
    }
}

#[test]
fn additions_under_the_meta_are_exact_or_counted() {
    for handler in [None, Some(Op::Add(1, 10))] {
        let mut model = Model::new(Change::UnderMeta, &[(Op::Add(1, 1), handler), (Op::Add(1, 100), None)]);
        (model.free, model.table.value) = (1, 8);
        model.explore(exact);
    }
}

#[test]
fn a_deleted_key_is_nobody_elses() {
    let ops = [
        [(Op::Set(1, 2), None), (Op::Delete(1), Some(Op::Set(2, 3)))],
        [(Op::Get(1), None), (Op::Delete(1), Some(Op::Set(2, 3)))],
        [(Op::Add(1, 1), None), (Op::Each, None)],
        [(Op::Set(1, 2), Some(Op::Delete(1))), (Op::Set(1, 3), None)],
        [(Op::Delete(1), Some(Op::Delete(1))), (Op::Set(1, 5), None)],
    ];
    for threads in ops {
        // Threads that do not stop for ever are in it, too.
        let mut model = Model::new(Change::UnderMeta, &threads);
        (model.before, model.deaths, model.free) = (vec![1], 1, 2);
        model.explore(|situation, live| {
            for (key, words) in live {
                let stuck = situation.threads.iter().any(|thread| thread.is_dead);
                assert!(stuck || words[0] >> 32 == *key || words[0] < 1000, "{situation:#?}");
            }
            if situation.threads.iter().all(|thread| !thread.is_dead) {
                assert_eq!(counted_live(situation), live.len() as u64, "{situation:#?}");
                let (said, counted) = drops(situation);
                assert_eq!(said, counted, "{situation:#?}");
            }
        });
    }
}

#[test]
fn different_keys_do_not_meet() {
    let model = Model::new(Change::ByWord, &[(Op::Add(1, 1), Some(Op::Add(2, 1))), (Op::Set(3, 100), None)]);
    model.explore(|situation, live| {
        assert_eq!(drops(situation), (0, 0), "{situation:#?}");
        assert_eq!((total(live, 1), total(live, 2)), (1, u64::from(live.len() == 3)));
    });
}

#[test]
fn an_insert_that_has_stopped_for_ever_does_not_stop_the_next_one() {
    // The first one alone is brought to each of its steps and left there; then comes the second one.
    let mut model = Model::new(Change::ByWord, &[(Op::Add(1, 1), Some(Op::Add(1, 10)))]);
    model.deaths = 1;
    let ends = Cell::new(0);
    model.explore(|situation, live| {
        ends.set(ends.get() + 1);
        let memory = RefCell::new(situation.memory.clone());
        assert!(matches!(model.act(Op::Add(1, 100), &Plain(&memory)), Outcome::Was(_)), "{situation:#?}");
        let after = model.live(&memory.borrow());
        assert_eq!(total(&after, 1), total(live, 1) + 100, "{situation:#?}");
    });
    assert!(ends.get() > 30);
}

#[test]
fn the_first_key_of_a_threads_own_table_is_put_in_once_whatever_its_handlers_do() {
    for handler in [Op::Add(1, 10), Op::Add(2, 10), Op::Pass(1, 4), Op::Pass(2, 4), Op::Delete(1), Op::Each] {
        for deaths in [0, 1] {
            let mut model = Model::of_one(Change::UnderMeta, Op::Add(1, 1), handler);
            model.deaths = deaths;
            let (situations, _) = model.explore(|situation, live| {
                let thread = &situation.threads[0];
                let handled = thread.in_handler.as_ref().and_then(|run| run.outcome.clone());
                if let (Op::Add(..), Some(Outcome::Was(_))) = (handler, &handled) {
                    exact(situation, live);
                }
                if thread.is_dead {
                    return;
                }
                assert_eq!(drops(situation), (0, 0), "{situation:#?}");
                assert_eq!(counted_live(situation), live.len() as u64, "{situation:#?}");
                match handler {
                    Op::Pass(1, number) => assert!(
                        // It came between others, and so the sum may have been its value's.
                        live.is_empty() || [1, (1 << 32 | number) + 1].contains(&total(live, 1)),
                        "{situation:#?}"
                    ),
                    Op::Delete(1) => assert!(live.is_empty() || total(live, 1) == 1, "{situation:#?}"),
                    _ => assert!(total(live, 1) == 1 || total(live, 1) == 11, "{situation:#?}"),
                }
            });
            assert!(situations > 30, "{situations}");
        }
    }
}

#[test]
fn what_has_stopped_for_ever_in_a_threads_own_table_is_no_ones_key() {
    let mut model = Model::of_one(Change::UnderMeta, Op::Add(1, 1), Op::Pass(1, 4));
    model.deaths = 1;
    model.explore(|situation, live| {
        let memory = RefCell::new(situation.memory.clone());
        assert!(matches!(model.act(Op::Add(1, 100), &Plain(&memory)), Outcome::Was(_)), "{situation:#?}");
        let after = model.live(&memory.borrow());
        assert_eq!(total(&after, 1), total(live, 1) + 100, "{situation:#?}");
    });
}
