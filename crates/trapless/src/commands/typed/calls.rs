//! From messages to calls: an entry and its return are one line, as they are where calls are traced without types.

use super::body;
use super::code::{Known, RING_BITS, Typed};
use super::tape::Tape;
use crate::cli::validated::Run;
use crate::commands::run::{Armed, Sessions, Source, Untold};
use crate::report::{Hit, Note, ProbeSummary};
use crate::session::{Origin, Probe, Session};
use crate::spec::Kind;
use std::collections::HashMap;
use std::sync::Arc;
use trapless_engine::{AT_RETURN, ScriptMemory};
use trapless_running::rings::{Losses, Rings, Told as Message};
use trapless_session::clock::Rate;
use trapless_session::outcome::TypedCall;

/// Entries that are kept waiting at most. A program that leaves functions by longjmp leaves entries behind.
const MOST_OPEN: usize = 1 << 16;

/// Entries that wait at one slot at most.
const MOST_AT_A_SLOT: usize = 8;

/// The calls of all targets, as their types say.
pub(super) struct Typing<'r> {
    typed: Arc<Typed>,
    /// Hits are counted by sessions.
    sessions: Sessions<'r>,
    targets: HashMap<i32, Calls>,
}

impl<'r> Typing<'r> {
    pub fn new(run: &'r Run, typed: Arc<Typed>) -> Self {
        Self { typed, sessions: Sessions(run), targets: HashMap::new() }
    }
}

impl Source for Typing<'_> {
    fn hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        let of = Of { typed: &self.typed, session: armed.session(), origin };
        self.targets.entry(armed.pid()).or_insert_with(Calls::new).take(of)
    }

    fn last_hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        let of = Of { typed: &self.typed, session: armed.session(), origin };
        self.targets.entry(armed.pid()).or_insert_with(Calls::new).rest(of)
    }

    fn is_behind(&self, _armed: &Armed) -> bool {
        // All that is in the rings is taken each time.
        false
    }

    fn rows(&mut self, armed: &Armed, rate: Rate) -> Vec<ProbeSummary> {
        self.sessions.rows(armed, rate)
    }

    fn rows_since(&mut self, armed: &mut Armed) -> Vec<ProbeSummary> {
        self.sessions.rows_since(armed)
    }

    fn losses(&mut self, armed: &Armed) -> Untold {
        let Some(memory) = armed.session().script() else { return Untold::default() };
        let losses = Losses::of(&memory, RING_BITS, &[]);
        let calls = self.targets.get(&armed.pid());
        let lost = calls.map_or(losses.messages, |calls| calls.rings.lost(&[(armed.pid(), memory)]));
        let note = |(count, what)| Note { code: "untold", text: format!("{count} {what}") };
        Untold { not_shown: lost, notes: losses.sentences().map(note).collect() }
    }

    fn gone(&mut self, pid: i32) {
        self.targets.remove(&pid);
    }
}

/// The calls of one target.
struct Calls {
    rings: Rings,
    /// Entries that wait for their return, by stack slot and site.
    open: HashMap<(u64, u32), Vec<Open>>,
    /// How many those are.
    count: usize,
    /// What had been lost when reading began, this time and the two times before: what is given now was written after the first of them.
    lost: [u64; 3],
    /// By the numbers of sites, the indices of their probes; and of how many probes.
    probes: (HashMap<u32, usize>, usize),
}

/// An entry, and what had been lost before it was written. If more was lost until the return that is found for it was read, the return may be
/// that of a later call at the same slot.
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

impl Of<'_> {
    fn memory(&self) -> Option<[(i32, ScriptMemory); 1]> {
        Some([(self.origin.pid, self.session.script()?)])
    }
}

impl Calls {
    fn new() -> Self {
        let rings = Rings::new(&body::told(), RING_BITS);
        Self { rings, open: HashMap::new(), count: 0, lost: [0; 3], probes: Default::default() }
    }

    /// Reads what was told, and gives the calls up to the last time that this was done, in the order of their time.
    fn take(&mut self, of: Of<'_>) -> Vec<Hit> {
        let Some(memory) = of.memory() else { return Vec::new() };
        self.lost = [self.lost_now(of), self.lost[0], self.lost[1]];
        let messages = self.rings.read(&memory, None);
        self.calls(of, messages)
    }

    /// At the end: all that is left, and the entries whose return was never seen.
    fn rest(&mut self, of: Of<'_>) -> Vec<Hit> {
        let Some(memory) = of.memory() else { return Vec::new() };
        let mut messages = self.rings.read(&memory, Some(of.origin.pid));
        messages.extend(self.rings.rest());
        let mut hits = self.calls(of, messages);
        let mut open: Vec<Told> = self.open.drain().flat_map(|(_, all)| all).map(|open| open.told).collect();
        self.count = 0;
        open.sort_by_key(|told| told.ticks);
        hits.extend(open.into_iter().filter_map(|told| self.entered(of, told)));
        hits
    }

    fn calls(&mut self, of: Of<'_>, messages: Vec<Message>) -> Vec<Hit> {
        if messages.is_empty() {
            return Vec::new();
        }
        self.name_probes(of);
        let lost = self.lost_now(of);
        messages.into_iter().flat_map(|message| self.call(of, &message, lost)).collect()
    }

    /// How many hits have told nothing so far.
    fn lost_now(&self, of: Of<'_>) -> u64 {
        let Some(memory) = of.memory() else { return 0 };
        let unrun = |(_, memory): &(i32, ScriptMemory)| {
            let Losses { out_of_fuel, no_scratch, without_block, .. } = Losses::of(memory, RING_BITS, &[]);
            out_of_fuel + no_scratch + without_block
        };
        self.rings.lost(&memory) + memory.iter().map(unrun).sum::<u64>()
    }

    /// The hits that a message tells of: those that need not wait for another.
    fn call(&mut self, of: Of<'_>, message: &Message, lost: u64) -> Vec<Hit> {
        let Some((tape, words)) = message.parts.split_last() else { return Vec::new() };
        let word = |index: usize| {
            words.get(index).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
        };
        let tape = Tape::new(tape, message.tid);
        let site = message.site & !AT_RETURN;
        let told = Told { ticks: message.ticks, tid: message.tid, site, tape };
        let slot = (word(0), site);
        if message.site & AT_RETURN != 0 {
            let Some(entry) = self.entry_of(slot) else {
                return self.returned(of, told, None, word(1)).into_iter().collect();
            };
            if entry.lost == lost {
                return self.returned(of, told, Some(entry), word(1)).into_iter().collect();
            }
            // Both are shown, and not taken for one call.
            let hits = [self.entered(of, entry.told), self.returned(of, told, None, word(1))];
            return hits.into_iter().flatten().collect();
        }
        let waits = self.probe(of, site).is_some_and(|probe| probe.kinds.returns);
        let is_call = words.len() == 1;
        match waits && is_call {
            true => self
                .wait(slot, Open { told, lost: self.lost[2] })
                .and_then(|left| self.entered(of, left.told)),
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
            told: None,
            typed: None,
        })
    }

    fn probe<'s>(&self, of: Of<'s>, site: u32) -> Option<&'s Probe> {
        of.session.probes().get(*self.probes.0.get(&site)?)
    }

    /// Learns which numbers the session's probes have.
    fn name_probes(&mut self, of: Of<'_>) {
        let probes = of.session.probes();
        let first = self.probes.1;
        if first == probes.len() {
            return;
        }
        let mut names = Vec::new();
        for (index, probe) in probes.iter().enumerate().skip(first) {
            let number = of.typed.numbers().of(of.session.path_of(probe), &probe.probed.function);
            self.probes.0.insert(number, index);
            names.push((number, probe.probed.function.text().to_owned()));
        }
        self.probes.1 = probes.len();
        of.typed.tell_unplanned(names.into_iter());
    }
}
