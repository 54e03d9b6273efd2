//! From ring records to calls: an entry and its return are one line.

use super::{Probe, Session};
use crate::clock::{Clock, Rate};
use crate::outcome::Hit;
use crate::spec::Kind;
use std::collections::HashMap;
use trapless_isa::detour::RECORD_NO_RESULT;
use trapless_wire::RecordView;

/// Entries that wait for their return, per thread block.
#[derive(Debug, Default)]
pub struct Calls {
    /// By block, stack slot and probe: the entry's record.
    open: HashMap<(u64, u64, u32), Record>,
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
            let number = record.view.id & !RECORD_NO_RESULT;
            let (id, is_return) = (number / 2, number % 2 == 1);
            let Some([probe, others @ ..]) = by_id.get(&id).map(Vec::as_slice) else { continue };
            let key = (block, record.view.slot, id);
            if is_return {
                let entry = self.open.remove(&key);
                let args = entry.map_or(Vec::new(), |entry| entry.view.values[..arguments].to_vec());
                let [value, entered, ..] = record.view.values;
                hits.push(Hit {
                    args,
                    retval: (number == record.view.id).then_some(value),
                    duration_ns: Some(origin.rate.nanoseconds(record.view.time.saturating_sub(entered))),
                    ..self.hit(probe, origin, &record, Kind::Return)
                });
            } else if probe.kinds.returns {
                if self.open.len() < MOST_OPEN {
                    self.open.insert(key, record);
                }
            } else {
                let is_usdt = probe.usdt.is_some() || others.iter().any(|other| other.usdt.is_some());
                for probe in std::iter::once(probe).chain(others) {
                    // What is recorded at a USDT probe are the operands of its notes.
                    let args = if is_usdt { Vec::new() } else { record.view.values[..arguments].to_vec() };
                    hits.push(Hit { args, ..self.hit(probe, origin, &record, Kind::Entry) });
                }
            }
        }
        hits
    }

    /// At the end: the entries whose return was never seen.
    pub fn rest(&mut self, session: &Session, origin: Origin, arguments: usize) -> Vec<Hit> {
        let mut records: Vec<_> = self.open.drain().map(|(_, record)| record).collect();
        records.sort_by_key(|record| record.view.time);
        let mut hits = Vec::with_capacity(records.len());
        for record in records {
            let Some(probe) = session.probes.iter().find(|p| p.id == record.view.id / 2) else { continue };
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
