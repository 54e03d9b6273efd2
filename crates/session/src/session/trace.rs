//! From ring records to calls: an entry and its return are one line.

use super::{Probe, Session};
use crate::clock::{Clock, Rate};
use crate::outcome::Hit;
use crate::spec::Kind;
use std::collections::HashMap;
use trapless_isa::detour::{GOROUTINE_BIT, RECORD_NO_RESULT};
use trapless_wire::RecordView;

/// Entries that wait for their return.
#[derive(Debug, Default)]
pub struct Calls {
    /// Those of one slot in the order of their time. There are several where a call was left, by longjmp or a panic; where one was reached from
    /// another by a tail call; and of goroutines, where the ring of one thread was read later than that of another.
    open: HashMap<Slot, Vec<Open>>,
    /// How many those are.
    waiting: usize,
    /// Returns of goroutines' calls whose entry was in no ring yet.
    early: Vec<(u64, Record)>,
    /// The processes of children's threads. One that shares the memory shows the thread that has made it.
    children: HashMap<i32, i32>,
    /// How many records had been lost before all rings were read to the end the last time: those that came since were written after that.
    lost: u64,
    /// The block to begin with.
    next: usize,
    behind: bool,
}

/// The block that the records of a call are in, its stack slot, and its probe. A goroutine's call may return on another thread, into its block;
/// what stands for its slot says enough, so the block is 0.
type Slot = (u64, u64, u32);

/// An entry, and how many records were lost at least when it was written.
#[derive(Clone, Copy, Debug)]
struct Open {
    record: Record,
    lost: u64,
}

/// A record, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Record {
    view: RecordView,
    of_child: bool,
}

impl Record {
    /// The number of its probe.
    fn probe(&self) -> u32 {
        (self.view.id & !RECORD_NO_RESULT) / 2
    }

    /// The arguments that are told of it at this probe.
    fn arguments_of(&self, probe: &Probe) -> Vec<u64> {
        let count = probe.kinds.traced.unwrap_or(0);
        self.view.values.iter().copied().take(count.into()).collect()
    }

    fn is_return(&self) -> bool {
        self.view.id & 1 != 0
    }

    /// Of a return: when the call began.
    fn entered(&self) -> u64 {
        self.view.values[1]
    }

    fn of_goroutine(&self) -> bool {
        self.view.slot >> GOROUTINE_BIT != 0
    }

    fn slot(&self, block: u64) -> Slot {
        (if self.of_goroutine() { 0 } else { block }, self.view.slot, self.probe())
    }
}

/// Whose hits they are, and since when their times count.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The target.
    pub pid: i32,
    /// When time began.
    pub clock: Clock,
    /// How long a tick is.
    pub rate: Rate,
}

/// Records that are taken at a time. A target can fill rings faster than anybody reads them, so the limits of a run are looked at in
/// between.
const AT_ONCE: u64 = 1 << 16;

/// Entries that are kept waiting at most. A program that leaves functions by longjmp leaves entries behind.
const MOST_OPEN: usize = 1 << 20;

/// Entries that wait at one slot at most. Calls that go on in each other by tail calls come back the other way; other ones were left.
const MOST_AT_A_SLOT: usize = 8;

impl Calls {
    /// Whether the rings held more than was taken the last time.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Takes complete records out of the rings, as many as are taken at a time, and gives the calls in the order of their time.
    pub fn take(&mut self, session: &Session, origin: Origin) -> Vec<Hit> {
        let mut by_id: HashMap<u32, Vec<&Probe>> = HashMap::new();
        for probe in session.probes.iter() {
            by_id.entry(probe.id).or_default().push(probe);
        }
        let blocks: Vec<_> = session.engine.counters().blocks().collect();
        let lost = || blocks.iter().map(|block| block.ring_lost()).sum::<u64>();
        let (lost_before, lost_at_first) = (lost(), self.lost);
        // Those that have waited do so until all rings were read once more.
        let mut records: Vec<_> = self.early.drain(..).map(|(block, record)| (block, record, true)).collect();
        let mut left = AT_ONCE;
        let first = self.next % blocks.len().max(1);
        for place in (first..blocks.len()).chain(0..first) {
            let block = &blocks[place];
            let of_child = block.is_of_child();
            left -= block.drain(left, |view| records.push((block.index(), Record { view, of_child }, false)));
            if left == 0 {
                // Another block is first the next time, so that none waits for ever.
                self.next = place + 1;
                break;
            }
        }
        self.behind = left == 0;
        let lost = lost();
        if !self.behind {
            self.lost = lost_before;
        }
        records.sort_by_key(|(_, record, _)| record.view.time);
        let mut hits = Vec::new();
        for (block, record, has_waited) in records {
            let Some([probe, others @ ..]) = by_id.get(&record.probe()).map(Vec::as_slice) else { continue };
            // Where one is, its operands are recorded, and of returns nothing.
            let is_usdt = probe.usdt.is_some() || others.iter().any(|other| other.usdt.is_some());
            if record.is_return() {
                let (entry, left) = self.entry_of(block, &record);
                for left in left {
                    hits.push(self.entered(probe, origin, &left.record));
                }
                let may_come = record.of_goroutine() && (!has_waited || self.behind);
                if entry.is_none() && may_come && self.early.len() < MOST_OPEN {
                    self.early.push((block, record));
                    continue;
                }
                // Where any record was lost since, it may be another call's.
                let entry = entry.filter(|entry| entry.lost == lost);
                hits.push(self.returned(probe, origin, &record, entry));
            } else if probe.kinds.follows() && !is_usdt {
                if let Some(left) = self.wait(block, Open { record, lost: lost_at_first }) {
                    hits.push(self.entered(probe, origin, &left.record));
                }
            } else {
                for probe in std::iter::once(probe).chain(others) {
                    hits.push(self.entered(probe, origin, &record));
                }
            }
        }
        hits
    }

    /// Keeps an entry until its call returns. Gives one that is not waited for any longer.
    fn wait(&mut self, block: u64, entry: Open) -> Option<Open> {
        if self.waiting >= MOST_OPEN {
            return Some(entry);
        }
        let entries = self.open.entry(entry.record.slot(block)).or_default();
        entries.push(entry);
        if entries.len() > MOST_AT_A_SLOT {
            return Some(entries.remove(0));
        }
        self.waiting += 1;
        None
    }

    /// The entry of the call that `record` is the return of: the last one before the return's own note of the time. And those that were left.
    fn entry_of(&mut self, block: u64, record: &Record) -> (Option<Open>, Vec<Open>) {
        let slot = record.slot(block);
        let Some(entries) = self.open.get_mut(&slot) else { return (None, Vec::new()) };
        let last = entries.iter().rposition(|entry| entry.record.view.time <= record.entered());
        let Some(last) = last else { return (None, Vec::new()) };
        let entry = entries.remove(last);
        // A goroutine's call is over where the next one begins at its depth. Others may be those that this one was reached from.
        let left: Vec<Open> = match record.of_goroutine() {
            true => entries.drain(..last).collect(),
            false => Vec::new(),
        };
        if entries.is_empty() {
            self.open.remove(&slot);
        }
        self.waiting -= 1 + left.len();
        (Some(entry), left)
    }

    fn returned(&mut self, probe: &Probe, origin: Origin, record: &Record, entry: Option<Open>) -> Hit {
        let is_known = record.view.id & RECORD_NO_RESULT == 0;
        let ticks = record.view.time.saturating_sub(record.entered());
        Hit {
            args: entry.map_or(Vec::new(), |entry| entry.record.arguments_of(probe)),
            retval: is_known.then_some(record.view.values[0]),
            duration_ns: Some(origin.rate.nanoseconds(ticks)),
            ..self.hit(probe, origin, record, Kind::Return)
        }
    }

    fn entered(&mut self, probe: &Probe, origin: Origin, record: &Record) -> Hit {
        let args = record.arguments_of(probe);
        Hit { args, ..self.hit(probe, origin, record, Kind::Entry) }
    }

    /// At the end: the entries whose return was never seen.
    pub fn rest(&mut self, session: &Session, origin: Origin) -> Vec<Hit> {
        self.waiting = 0;
        let open = self.open.drain().flat_map(|(_, entries)| entries).map(|entry| entry.record);
        let mut records: Vec<_> = open.chain(self.early.drain(..).map(|(_, record)| record)).collect();
        records.sort_by_key(|record| record.view.time);
        let mut hits = Vec::with_capacity(records.len());
        for record in records {
            let Some(probe) = session.probes.iter().find(|p| p.id == record.probe()) else { continue };
            hits.push(match record.is_return() {
                true => self.returned(probe, origin, &record, None),
                false => self.entered(probe, origin, &record),
            });
        }
        hits
    }

    fn hit(&mut self, probe: &Probe, origin: Origin, record: &Record, kind: Kind) -> Hit {
        let tid = record.view.tid as i32;
        let pid = match record.of_child {
            true => *self.children.entry(tid).or_insert_with(|| process_of(tid)),
            false => origin.pid,
        };
        Hit {
            time_ns: origin.rate.nanoseconds(record.view.time.saturating_sub(origin.clock.ticks())),
            pid,
            tid,
            of_child: record.of_child,
            module: probe.probed.module.to_string(),
            function: probe.probed.function.text().to_owned(),
            source: probe.probed.function.source(),
            kind,
            args: Vec::new(),
            usdt: probe.usdt.as_ref().map(|told| told.iter().map(|a| a.value(&record.view)).collect()),
            retval: None,
            duration_ns: None,
            typed: None,
            told: None,
        }
    }
}

/// The process that a thread is of. The first thread of a child bears its process's number, so that is the answer for one that has
/// ended, too.
fn process_of(tid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let tgid = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    tgid.and_then(|pid| pid.trim().parse().ok()).unwrap_or(tid)
}
