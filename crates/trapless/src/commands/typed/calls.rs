//! From messages to calls: an entry and its return are one line, as they are where calls are traced without types.

use super::code::{Known, RING_BITS, Typed};
use super::tape::Tape;
use crate::commands::script::Losses;
use crate::report::Hit;
use crate::session::{Origin, Probe, Session};
use crate::spec::Kind;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use trapless_engine::AT_RETURN;
use trapless_process::ticks;
use trapless_session::outcome::TypedCall;
use trapless_wire::{Incomplete, Message, MessageRing};

/// A record that is not complete for so long never will be.
const HOPELESS: Duration = Duration::from_secs(1);

/// Entries that are kept waiting at most. A program that leaves functions by longjmp leaves entries behind.
const MOST_OPEN: usize = 1 << 16;

/// Entries that wait at one slot at most.
const MOST_AT_A_SLOT: usize = 8;

/// The calls of one target.
#[derive(Debug, Default)]
pub(in crate::commands) struct Calls {
    /// Messages that wait for earlier ones.
    waiting: Vec<Message>,
    /// Ticks when the rings were read last: what was told before is all here.
    read_at: u64,
    /// Since when a ring waits for a record.
    stuck: HashMap<u64, Instant>,
    /// Records that were begun and never completed.
    left: u64,
    /// Entries that wait for their return, by stack slot and site.
    open: HashMap<(u64, u32), Vec<Open>>,
    /// How many those are.
    count: usize,
    /// By the numbers of sites, the indices of their probes; and of how many probes.
    probes: (HashMap<u32, usize>, usize),
}

/// An entry, and what had been lost before it was read.
#[derive(Debug)]
struct Open {
    told: Told,
    lost: u64,
}

/// What was told of a hit.
#[derive(Debug)]
struct Told {
    ticks: u64,
    tid: u32,
    site: u32,
    tape: Tape,
}

/// Whose hits they are.
#[derive(Clone, Copy)]
struct Of<'a> {
    typed: &'a Typed,
    session: &'a Session,
    origin: Origin,
}

impl Calls {
    /// What has been missed so far.
    pub fn losses(&self, session: &Session) -> Losses {
        session.script().map_or_else(Losses::default, |memory| {
            let mut losses = Losses::of(&memory, RING_BITS);
            losses.messages += self.left;
            losses
        })
    }

    /// Reads what was told, and gives the calls up to the last time that this was done, in the order of their time.
    pub fn take(&mut self, typed: &Typed, session: &Session, origin: Origin) -> Vec<Hit> {
        let (before, now) = (self.read_at, ticks());
        self.read(session, Incomplete::Wait);
        self.read_at = now;
        self.calls_before(before, Of { typed, session, origin })
    }

    /// At the end: all that is left, and the entries whose return was never seen.
    pub fn rest(&mut self, typed: &Typed, session: &Session, origin: Origin) -> Vec<Hit> {
        let of = Of { typed, session, origin };
        self.read(session, Incomplete::Leave);
        let mut hits = self.calls_before(u64::MAX, of);
        let mut open: Vec<Told> = self.open.drain().flat_map(|(_, all)| all).map(|open| open.told).collect();
        self.count = 0;
        open.sort_by_key(|told| told.ticks);
        hits.extend(open.into_iter().filter_map(|told| self.entered(of, told)));
        hits
    }

    fn read(&mut self, session: &Session, incomplete: Incomplete) {
        let Some(memory) = session.script() else { return };
        for block in memory.blocks() {
            let is_hopeless = self.stuck.get(&block.start).is_some_and(|since| since.elapsed() >= HOPELESS);
            let incomplete = if is_hopeless { Incomplete::Leave } else { incomplete };
            let ring = MessageRing { at: block.start, bits: RING_BITS };
            let waiting = &mut self.waiting;
            let drained = ring.drain(memory.region(), incomplete, |message| waiting.push(message));
            self.left += drained.left;
            match drained.is_waiting && drained.taken == 0 {
                true => drop(self.stuck.entry(block.start).or_insert_with(Instant::now)),
                false => drop(self.stuck.remove(&block.start)),
            }
        }
    }

    fn calls_before(&mut self, moment: u64, of: Of<'_>) -> Vec<Hit> {
        self.waiting.sort_by_key(|message| message.ticks);
        let end = self.waiting.partition_point(|message| message.ticks < moment);
        if end == 0 {
            return Vec::new();
        }
        self.name_probes(of);
        let lost = self.losses(of.session).all();
        let messages: Vec<Message> = self.waiting.drain(..end).collect();
        messages.into_iter().flat_map(|message| self.call(of, &message, lost)).collect()
    }

    /// The hits that a message tells of: those that need not wait for another.
    fn call(&mut self, of: Of<'_>, message: &Message, lost: u64) -> Vec<Hit> {
        let Some(parts) = message.parts(super::body::parts(message.number)) else { return Vec::new() };
        let Some((tape, words)) = parts.split_last() else { return Vec::new() };
        let word = |index: usize| {
            words.get(index).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
        };
        let tape = Tape::new(tape, message.tid);
        let site = message.site & !AT_RETURN;
        let told = Told { ticks: message.ticks, tid: message.tid, site, tape };
        let slot = (word(0), site);
        if message.site & AT_RETURN != 0 {
            let entry = self.entry_of(slot).filter(|entry| entry.lost == lost);
            return self.returned(of, told, entry, word(1)).into_iter().collect();
        }
        let waits = self.probe(of, site).is_some_and(|probe| probe.kinds.returns);
        let is_call = words.len() == 1;
        match waits && is_call {
            true => self.wait(slot, Open { told, lost }).and_then(|left| self.entered(of, left.told)),
            false => self.entered(of, told),
        }
        .into_iter()
        .collect()
    }

    /// Keeps an entry until its call returns. Gives one that is not waited for any longer.
    fn wait(&mut self, slot: (u64, u32), entry: Open) -> Option<Open> {
        if self.count >= MOST_OPEN {
            return Some(entry);
        }
        let entries = self.open.entry(slot).or_default();
        entries.push(entry);
        if entries.len() > MOST_AT_A_SLOT {
            return Some(entries.remove(0));
        }
        self.count += 1;
        None
    }

    /// The latest entry at a slot: calls that go on in each other by tail calls come back the other way.
    fn entry_of(&mut self, slot: (u64, u32)) -> Option<Open> {
        let entries = self.open.get_mut(&slot)?;
        let entry = entries.pop()?;
        if entries.is_empty() {
            self.open.remove(&slot);
        }
        self.count -= 1;
        Some(entry)
    }

    fn returned(&self, of: Of<'_>, told: Told, entry: Option<Open>, duration_ns: u64) -> Option<Hit> {
        let hit = self.hit(of, &told, Kind::Return)?;
        let entry = entry.map(|entry| entry.told);
        Some(match of.typed.known(of.origin.pid, told.site) {
            Known::Typed(function, types) => {
                let arguments: Vec<_> = function.arguments.iter().collect();
                let arguments = entry.map(|entry| entry.tape.shown(&types, &arguments));
                let result = function.result.as_ref();
                let result = result.and_then(|result| told.tape.shown(&types, &[result]).pop());
                let typed = Some(TypedCall { arguments, result });
                Hit { typed, duration_ns: Some(duration_ns), ..hit }
            }
            Known::Words => Hit {
                args: entry.map_or_else(Vec::new, |entry| entry.tape.words()),
                retval: told.tape.words().first().copied(),
                duration_ns: Some(duration_ns),
                ..hit
            },
        })
    }

    fn entered(&self, of: Of<'_>, told: Told) -> Option<Hit> {
        let hit = self.hit(of, &told, Kind::Entry)?;
        Some(match of.typed.known(of.origin.pid, told.site) {
            Known::Typed(function, types) => {
                let arguments: Vec<_> = function.arguments.iter().collect();
                let arguments = Some(told.tape.shown(&types, &arguments));
                Hit { typed: Some(TypedCall { arguments, result: None }), ..hit }
            }
            Known::Words => Hit { args: told.tape.words(), ..hit },
        })
    }

    fn hit(&self, of: Of<'_>, told: &Told, kind: Kind) -> Option<Hit> {
        let probe = self.probe(of, told.site)?;
        let since = told.ticks.saturating_sub(of.origin.clock.ticks());
        Some(Hit {
            time_ns: of.origin.rate.nanoseconds(since),
            pid: of.origin.pid,
            tid: told.tid as i32,
            of_child: false,
            module: probe.probed.module.to_string(),
            function: probe.probed.function.text().to_owned(),
            source: probe.probed.function.source(),
            kind,
            args: Vec::new(),
            usdt: None,
            retval: None,
            duration_ns: None,
            typed: None,
        })
    }

    fn probe<'s>(&self, of: Of<'s>, site: u32) -> Option<&'s Probe> {
        of.session.probes().get(*self.probes.0.get(&site)?)
    }

    /// Learns which numbers the session's probes have.
    fn name_probes(&mut self, of: Of<'_>) {
        let probes = of.session.probes();
        for (index, probe) in probes.iter().enumerate().skip(self.probes.1) {
            let number = of.typed.numbers().of(of.session.path_of(probe), &probe.probed.function);
            self.probes.0.insert(number, index);
        }
        self.probes.1 = probes.len();
    }
}
