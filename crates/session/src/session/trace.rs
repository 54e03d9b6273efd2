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
    /// By block, stack slot and probe: the entry's record.
    open: HashMap<(u64, u64, u32), Record>,
    /// The same of goroutines, which go from thread to thread: by what stands for the slot, and the probe. Several, where a panic has left some, or one ring
    /// was read after the other.
    of_goroutines: HashMap<(u64, u32), Vec<Record>>,
    /// Returns of goroutines' calls whose entry was in no ring yet.
    early: Vec<(u64, Record)>,
    /// The processes of children's threads. One that shares the memory shows the thread that has made it.
    children: HashMap<i32, i32>,
    /// The block to begin with.
    next: usize,
    behind: bool,
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

/// Entries of goroutines that are kept for one slot. All but the last were left, or their returns are about to be read.
const MOST_AT_A_SLOT: usize = 8;

impl Calls {
    /// Whether the rings held more than was taken the last time.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Takes complete records out of the rings, as many as are taken at a time, and gives the calls in the order of their time.
    pub fn take(&mut self, session: &Session, origin: Origin, arguments: usize) -> Vec<Hit> {
        let mut by_id: HashMap<u32, Vec<&Probe>> = HashMap::new();
        for probe in session.probes.iter() {
            by_id.entry(probe.id).or_default().push(probe);
        }
        let mut records = Vec::new();
        let early = std::mem::take(&mut self.early);
        let mut left = AT_ONCE;
        let blocks: Vec<_> = session.engine.counters().blocks().collect();
        let first = self.next % blocks.len().max(1);
        for place in (first..blocks.len()).chain(0..first) {
            let block = &blocks[place];
            let of_child = block.is_of_child();
            left -= block.drain(left, |view| records.push((block.index(), Record { view, of_child })));
            if left == 0 {
                // Another block is first the next time, so that none waits for ever.
                self.next = place + 1;
                break;
            }
        }
        self.behind = left == 0;
        records.sort_by_key(|(_, record)| record.view.time);
        let mut hits = Vec::new();
        for (block, record) in records {
            let (id, is_return) = (record.probe(), record.is_return());
            let Some([probe, others @ ..]) = by_id.get(&id).map(Vec::as_slice) else { continue };
            if is_return {
                let entry = self.entry_of(block, &record);
                if entry.is_none() && record.of_goroutine() && self.early.len() < MOST_OPEN {
                    self.early.push((block, record));
                    continue;
                }
                hits.push(self.returned(probe, origin, &record, entry, arguments));
            } else if probe.kinds.returns {
                self.wait(block, record);
            } else {
                let is_usdt = probe.usdt.is_some() || others.iter().any(|other| other.usdt.is_some());
                for probe in std::iter::once(probe).chain(others) {
                    // What is recorded at a USDT probe are the operands of its notes.
                    let args = if is_usdt { Vec::new() } else { record.view.values[..arguments].to_vec() };
                    hits.push(Hit { args, ..self.hit(probe, origin, &record, Kind::Entry) });
                }
            }
        }
        // All rings were read since these came, so now their entries are there, or are lost; unless not all could be read to the end.
        for (block, record) in early {
            let Some([probe, ..]) = by_id.get(&record.probe()).map(Vec::as_slice) else { continue };
            match self.entry_of(block, &record) {
                None if self.behind && self.early.len() < MOST_OPEN => self.early.push((block, record)),
                entry => hits.push(self.returned(probe, origin, &record, entry, arguments)),
            }
        }
        hits
    }

    /// Keeps an entry until its call returns.
    fn wait(&mut self, block: u64, record: Record) {
        if self.open.len() + self.of_goroutines.len() >= MOST_OPEN {
            return;
        }
        let (slot, id) = (record.view.slot, record.probe());
        if record.of_goroutine() {
            let entries = self.of_goroutines.entry((slot, id)).or_default();
            if entries.len() == MOST_AT_A_SLOT {
                entries.remove(0);
            }
            entries.push(record);
        } else {
            self.open.insert((block, slot, id), record);
        }
    }

    /// The entry of the call that `record` is the return of.
    fn entry_of(&mut self, block: u64, record: &Record) -> Option<Record> {
        let (slot, id) = (record.view.slot, record.probe());
        if !record.of_goroutine() {
            return self.open.remove(&(block, slot, id));
        }
        // Of one goroutine at one depth that before the return's own note of the time. Those before it were left by panics.
        let entries = self.of_goroutines.get_mut(&(slot, id))?;
        let last = entries.iter().rposition(|entry| entry.view.time <= record.entered())?;
        let entry = entries.drain(..=last).next_back();
        if entries.is_empty() {
            self.of_goroutines.remove(&(slot, id));
        }
        entry
    }

    fn returned(
        &mut self,
        probe: &Probe,
        origin: Origin,
        record: &Record,
        entry: Option<Record>,
        arguments: usize,
    ) -> Hit {
        let is_known = record.view.id & RECORD_NO_RESULT == 0;
        let ticks = record.view.time.saturating_sub(record.entered());
        Hit {
            args: entry.map_or(Vec::new(), |entry| entry.view.values[..arguments].to_vec()),
            retval: is_known.then_some(record.view.values[0]),
            duration_ns: Some(origin.rate.nanoseconds(ticks)),
            ..self.hit(probe, origin, record, Kind::Return)
        }
    }

    /// At the end: the entries whose return was never seen.
    pub fn rest(&mut self, session: &Session, origin: Origin, arguments: usize) -> Vec<Hit> {
        let of_goroutines = self.of_goroutines.drain().flat_map(|(_, records)| records);
        let mut records: Vec<_> = self.open.drain().map(|(_, record)| record).chain(of_goroutines).collect();
        records.extend(self.early.drain(..).map(|(_, record)| record));
        records.sort_by_key(|record| record.view.time);
        let mut hits = Vec::with_capacity(records.len());
        for record in records {
            let Some(probe) = session.probes.iter().find(|p| p.id == record.probe()) else { continue };
            if record.is_return() {
                hits.push(self.returned(probe, origin, &record, None, arguments));
                continue;
            }
            let args = record.view.values[..arguments].to_vec();
            hits.push(Hit { args, ..self.hit(probe, origin, &record, Kind::Entry) });
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
            module: probe.module.to_string(),
            function: probe.function.text().to_owned(),
            source: probe.function.source(),
            kind,
            args: Vec::new(),
            usdt: probe.usdt.as_ref().map(|told| told.iter().map(|a| a.value(&record.view)).collect()),
            retval: None,
            duration_ns: None,
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
