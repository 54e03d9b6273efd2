//! From ring records to calls: an entry and its return are one line.

use super::{Probe, Session};
use crate::clock::Rate;
use crate::outcome::Hit;
use crate::spec::Kind;
use std::collections::HashMap;
use trapless_wire::RecordView;

/// Entries that wait for their return, per thread block.
#[derive(Debug, Default)]
pub struct Calls {
    /// By block, stack slot and probe: the entry's record.
    open: HashMap<(u64, u64, u32), RecordView>,
}

/// Entries that are kept waiting at most. A program that leaves functions by longjmp leaves entries behind.
const MOST_OPEN: usize = 1 << 20;

impl Calls {
    /// Takes all complete records out of the rings, and gives the calls in the order of their time.
    pub fn take(&mut self, session: &Session, pid: i32, arguments: usize, rate: Rate) -> Vec<Hit> {
        let by_id: HashMap<u32, &Probe> = session.probes.iter().map(|probe| (probe.id, probe)).collect();
        let mut records = Vec::new();
        for block in session.engine.counters().blocks() {
            block.drain(|record| {
                records.push((block.index(), record));
                true
            });
        }
        records.sort_by_key(|(_, record)| record.time);
        let mut hits = Vec::new();
        for (block, record) in records {
            let (id, is_return) = (record.id / 2, record.id % 2 == 1);
            let Some(probe) = by_id.get(&id) else { continue };
            let key = (block, record.slot, id);
            if is_return {
                let entry = self.open.remove(&key);
                let args = entry.map_or(Vec::new(), |entry| entry.values[..arguments].to_vec());
                let entered = record.values[1];
                hits.push(Hit {
                    args,
                    retval: Some(record.values[0]),
                    duration_ns: Some(rate.nanoseconds(record.time.saturating_sub(entered))),
                    ..hit(session, probe, pid, &record, Kind::Return, rate)
                });
            } else if probe.kinds.returns {
                if self.open.len() < MOST_OPEN {
                    self.open.insert(key, record);
                }
            } else {
                let args = record.values[..arguments].to_vec();
                hits.push(Hit { args, ..hit(session, probe, pid, &record, Kind::Entry, rate) });
            }
        }
        hits
    }

    /// At the end: the entries whose return was never seen.
    pub fn rest(&mut self, session: &Session, pid: i32, arguments: usize, rate: Rate) -> Vec<Hit> {
        let mut records: Vec<_> = self.open.drain().map(|(_, record)| record).collect();
        records.sort_by_key(|record| record.time);
        let probe_of = |record: &RecordView| session.probes.iter().find(|p| p.id == record.id / 2);
        records
            .iter()
            .filter_map(|record| {
                let args = record.values[..arguments].to_vec();
                Some(Hit { args, ..hit(session, probe_of(record)?, pid, record, Kind::Entry, rate) })
            })
            .collect()
    }
}

fn hit(session: &Session, probe: &Probe, pid: i32, record: &RecordView, kind: Kind, rate: Rate) -> Hit {
    Hit {
        time_ns: rate.nanoseconds(record.time.saturating_sub(session.clock.ticks())),
        pid,
        tid: record.tid as i32,
        module: probe.module.clone(),
        function: probe.function.clone(),
        kind,
        args: Vec::new(),
        retval: None,
        duration_ns: None,
    }
}
