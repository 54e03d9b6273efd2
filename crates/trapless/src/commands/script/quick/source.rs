//! What the expressions of a run have told of each process: maps become rows, messages become hits.

use super::super::scripted::Scripted;
use super::program::{Looks, Meaning, Part, TIME_BITS};
use super::values;
use crate::cli::inject::Injection;
use crate::cli::quick::Form;
use crate::commands::run::{Armed, Source, Untold};
use crate::error::Error;
use crate::report::{
    Bucket, Collected, Hit, HitTold, LatencySummary, Note, ProbeSummary, Probed, Values, count,
};
use crate::session::{Origin, Session};
use crate::spec::Kind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trapless_engine::{AT_RETURN, ScriptMemory};
use trapless_running::names::{Names, SiteNames};
use trapless_running::rings::{Losses, Rings, Told};
use trapless_running::store::Entries;
use trapless_script::ir::{Aggregation, MapId, MapValue, PartKind, hist_bucket_start};
use trapless_script::lower::Compiled;
use trapless_script::message::{ErrorKind, Message};
use trapless_script::output;
use trapless_script::shape::Shape;
use trapless_session::clock::Rate;

/// How often it is looked whether a process has loaded code, where stacks are walked.
const LOOK: Duration = Duration::from_millis(100);

/// How much later than it is to a thread may say that it has slept, on a busy machine, before it is taken to have gone elsewhere.
const LATE: Duration = Duration::from_secs(1);

/// What expressions have told.
pub(super) struct Quickly {
    scripted: Arc<Scripted>,
    meaning: Meaning,
    names: Names,
    maps: Vec<Map>,
    kinds: Vec<Vec<PartKind>>,
    messages: Vec<Message>,
    processes: HashMap<i32, Process>,
    is_folded: bool,
    next_look: Option<Instant>,
}

/// A map of the script.
struct Map {
    name: String,
    id: MapId,
    /// The shapes of its keys' parts, each with its offset; the first is the site's.
    key: Vec<(usize, Shape)>,
    value: MapValue,
}

/// A process that is or was probed.
struct Process {
    memory: ScriptMemory,
    rings: Rings,
    sites: Sites,
    /// What its maps held when it was asked for the last time.
    before: Before,
    /// Reads that failed at hits.
    failed: BTreeMap<&'static str, u64>,
    /// How many delays had begun when that was looked at, and when there were first so many.
    begun: Option<(u64, Instant)>,
}

/// The sites of a process by their numbers.
#[derive(Default)]
struct Sites {
    probes: usize,
    known: HashMap<u64, Site>,
    /// In the order of the session.
    order: Vec<u64>,
}

struct Site {
    probe: Arc<Probed>,
    kind: Kind,
    address: u64,
    sites: u32,
}

/// The words of maps' values, by map and key.
type Before = HashMap<(MapId, Vec<u8>), Vec<u64>>;

/// The numbers of a row.
#[derive(Default)]
struct Row {
    hits: Vec<u64>,
    sums: Vec<u64>,
    longest: Option<u64>,
}

impl Quickly {
    /// What this script tells.
    pub fn new(scripted: Arc<Scripted>, compiled: &Compiled, meaning: Meaning, is_folded: bool) -> Self {
        let maps = compiled.program.maps.iter().zip(&compiled.messages.maps).enumerate();
        let map = |(number, (map, print)): (
            usize,
            (&trapless_script::ir::Map, &trapless_script::message::MapPrint),
        )| Map {
            name: map.name.clone(),
            id: MapId(number as u32),
            key: print.key.as_ref().map_or_else(Vec::new, |key| match &key.shape {
                Shape::Tuple(fields) => {
                    fields.fields.iter().map(|field| (field.offset as usize, field.shape.clone())).collect()
                }
                shape => vec![(0, shape.clone())],
            }),
            value: map.value,
        };
        let mut names = Names::default();
        names.tell_lines(false);
        Self {
            maps: maps.map(map).collect(),
            kinds: compiled.program.messages.clone(),
            messages: compiled.messages.messages.clone(),
            meaning,
            names,
            processes: HashMap::new(),
            is_folded,
            next_look: scripted.tables().map(|_| Instant::now() + LOOK),
            scripted,
        }
    }

    fn map(&self, name: &str) -> Option<&Map> {
        self.maps.iter().find(|map| map.name == name)
    }

    /// Takes note of sites that were armed since.
    fn look_at_sites(&mut self, pid: i32, session: &Session) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.sites.probes == session.probes().len() {
            return;
        }
        process.sites = Sites { probes: session.probes().len(), ..Sites::default() };
        let Sites { known, order, .. } = &mut process.sites;
        for (probe, address) in session.probes_at() {
            let number = self.scripted.numbers.of(session.path_of(probe), &probe.probed.function);
            let (kinds, probed) = (probe.kinds, &probe.probed);
            let Looks { at_entry, at_return } = self.meaning.looks;
            // What keeps arguments for returns is no row.
            let entry = (kinds.entry && at_entry).then_some((number, Kind::Entry));
            let returns = (kinds.returns && at_return).then_some((number | AT_RETURN, Kind::Return));
            for (number, kind) in entry.into_iter().chain(returns) {
                let number = u64::from(number);
                let function = probed.function.text().to_owned();
                let named = SiteNames { probe: format!("{}:{function}", probed.module), function };
                self.names.name_site(number, named);
                match known.get_mut(&number) {
                    // The same place again, or a USDT probe that stands at several.
                    Some(site) if probe.usdt.is_some() && probe.again.is_none() => site.sites += 1,
                    Some(_) => {}
                    None => {
                        known.insert(number, Site { probe: Arc::clone(probed), kind, address, sites: 1 });
                        order.push(number);
                    }
                }
            }
        }
    }

    /// The words of a map in a process, by key.
    fn words(&self, pid: i32, name: &str) -> Vec<(MapId, Vec<u8>, Vec<u64>)> {
        let Some(map) = self.map(name) else { return Vec::new() };
        let (entries, _): (Entries, u64) = self.scripted.store().in_process(pid, map.id);
        let words = |bytes: &[u8]| {
            bytes
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .collect()
        };
        entries.into_iter().map(|(key, value)| (map.id, key, words(&value))).collect()
    }

    /// The rows of a process, less what there was before, if it is said what that was.
    fn rows_of(&mut self, pid: i32, before: Option<&Before>) -> Vec<ProbeSummary> {
        let main = match self.meaning.form {
            Form::Count | Form::Inject(_) => "@hits",
            Form::Latency => "@times",
            Form::Hist { .. } => "@values",
            Form::Trace(_) => return self.rows_of_nothing(pid),
        };
        let since = |(map, key, words): (MapId, Vec<u8>, Vec<u64>)| {
            let then = before.and_then(|before| before.get(&(map, key.clone())));
            let less = |(index, word): (usize, u64)| {
                word.saturating_sub(then.and_then(|then| then.get(index)).copied().unwrap_or(0))
            };
            (key, words.into_iter().enumerate().map(less).collect::<Vec<u64>>())
        };
        let mut all: BTreeMap<Vec<u8>, Row> = BTreeMap::new();
        for entry in self.words(pid, main) {
            let (key, hits) = since(entry);
            all.entry(key).or_default().hits = hits;
        }
        for entry in self.words(pid, "@sums") {
            let (key, sums) = since(entry);
            all.entry(key).or_default().sums = sums;
        }
        for (_, key, words) in self.words(pid, "@longest") {
            // The longest of all time says nothing of an interval.
            let longest = words.get(1).copied().filter(|_| before.is_none());
            all.entry(key).or_default().longest = longest;
        }
        let mut seen: Vec<u64> = Vec::new();
        let mut rows = Vec::new();
        for (key, row) in all {
            let Some(summary) = self.row(pid, main, &key, &row) else { continue };
            seen.extend(site_of(&key));
            rows.push(summary);
        }
        let unseen = self.rows_of_nothing(pid);
        let Some(process) = self.processes.get(&pid) else { return rows };
        let unseen = process.sites.order.iter().zip(unseen).filter(|(number, _)| !seen.contains(number));
        rows.extend(unseen.map(|(_, row)| row));
        rows
    }

    /// A row for each site, without numbers.
    fn rows_of_nothing(&self, pid: i32) -> Vec<ProbeSummary> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let sites = process.sites.order.iter().filter_map(|number| process.sites.known.get(number));
        sites.map(|site| site.row(0, Collected::default())).collect()
    }

    fn row(&mut self, pid: i32, main: &str, key: &[u8], row: &Row) -> Option<ProbeSummary> {
        let site = site_of(key)?;
        let map = self.maps.iter().find(|map| map.name == main)?;
        let parts = map.key.iter().skip(1).zip(&self.meaning.by);
        let (mut by, mut folded) = (Vec::new(), Vec::new());
        for ((offset, shape), name) in parts {
            let bytes = key.get(*offset..).unwrap_or_default();
            by.push(values::key(name, shape, bytes, &mut self.names));
            if self.is_folded {
                let frames = output::folded(shape, bytes, &mut self.names);
                folded.extend(frames.iter().map(|frame| String::from_utf8_lossy(frame).into_owned()));
            }
        }
        let site = self.processes.get(&pid)?.sites.known.get(&site)?;
        let folded = (self.is_folded && !by.is_empty()).then(|| folded.join(";"));
        match map.value {
            MapValue::Aggregate(of @ (Aggregation::Hist { .. } | Aggregation::LinearHist { .. }))
                if matches!(self.meaning.form, Form::Hist { .. }) =>
            {
                let hits = row.hits.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
                let values = buckets(of, &row.hits, self.meaning.shift);
                Some(site.row(hits, Collected { by, values, folded, latency: None }))
            }
            MapValue::Aggregate(Aggregation::Hist { .. }) => {
                let hits = row.hits.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
                Some(site.row(hits, Collected { by, folded, latency: times(row), values: Vec::new() }))
            }
            _ => {
                let hits = row.hits.first().copied().unwrap_or(0);
                Some(site.row(hits, Collected { by, folded, ..Collected::default() }))
            }
        }
    }

    /// Hits of the messages of a process.
    fn hits_of(&mut self, origin: Origin, told: Vec<Told>) -> Vec<Hit> {
        told.into_iter().filter_map(|told| self.hit(origin, &told)).collect()
    }

    fn hit(&mut self, origin: Origin, told: &Told) -> Option<Hit> {
        let message = self.messages.get(told.message.0 as usize)?;
        let shapes = match message {
            Message::Print(_, format) => &format.arguments,
            Message::Error(kind, _) => {
                let what = match kind {
                    ErrorKind::Unreadable | ErrorKind::UnreadableText => {
                        "reads of memory that is not there, which gave zeros"
                    }
                    ErrorKind::DivideByZero => "divisions by 0, which gave 0",
                    _ => "other failures in expressions",
                };
                *self.processes.get_mut(&told.pid)?.failed.entry(what).or_default() += 1;
                return None;
            }
            _ => return None,
        };
        let word = |index: usize| {
            let bytes = told.parts.get(index)?.get(..8)?;
            bytes.try_into().ok().map(u64::from_le_bytes)
        };
        let (site, tid) = (word(0)?, word(1)? as i32);
        let site = self.processes.get(&told.pid)?.sites.known.get(&site)?;
        let mut hit = Hit {
            time_ns: origin.rate.nanoseconds(told.ticks.saturating_sub(origin.clock.ticks())),
            pid: told.pid,
            tid,
            of_child: false,
            module: site.probe.module.to_string(),
            function: site.probe.function.text().to_owned(),
            source: site.probe.function.source(),
            kind: site.kind,
            args: Vec::new(),
            usdt: None,
            retval: None,
            duration_ns: None,
            typed: None,
            told: None,
        };
        let mut more = HitTold::default();
        // What only returns have is not in the messages of entries.
        let is_there =
            |part: &&Part| site.kind == Kind::Return || !matches!(part, Part::Result | Part::Duration);
        let parts = self.meaning.parts.iter().filter(is_there).zip(shapes.iter().zip(&told.parts).skip(2));
        for (part, (shape, bytes)) in parts {
            let whole = bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
            match part {
                Part::Word => hit.args.push(whole),
                Part::Duration => hit.duration_ns = Some(whole),
                Part::Result if matches!(shape, Shape::Int { size: 8, signed: false }) => {
                    hit.retval = Some(whole)
                }
                Part::Result => {
                    let name = "retval".into();
                    let format = (Default::default(), false);
                    more.result = Some(values::shown(&name, (shape, bytes), format, &mut self.names));
                }
                Part::Value { name, format, is_word } => {
                    let told = values::shown(name, (shape, bytes), (*format, *is_word), &mut self.names);
                    more.arguments.push(told);
                }
                Part::Stack => {
                    more.stack = output::frames(shape, bytes, &mut self.names).unwrap_or_default();
                }
            }
        }
        if more != HitTold::default() {
            hit.told = Some(Box::new(more));
        }
        Some(hit)
    }

    /// The sum of a map of one number.
    fn single(&self, pid: i32, name: &str) -> u64 {
        self.words(pid, name)
            .iter()
            .filter_map(|(_, _, words)| words.first())
            .fold(0, |sum, n| sum.saturating_add(*n))
    }
}

impl Site {
    fn row(&self, hits: u64, collected: Collected) -> ProbeSummary {
        ProbeSummary {
            probe: Arc::clone(&self.probe),
            kind: self.kind,
            sites: self.sites,
            address: self.address,
            hits,
            lost: 0,
            collected: (collected != Collected::default()).then(|| Box::new(collected)),
        }
    }
}

/// The number of the site that a key begins with.
fn site_of(key: &[u8]) -> Option<u64> {
    key.get(..8)?.try_into().ok().map(u64::from_le_bytes)
}

/// The buckets of a histogram from the first one that is used to the last.
fn buckets(of: Aggregation, words: &[u64], shift: i64) -> Vec<Values> {
    let (Some(first), Some(last)) =
        (words.iter().position(|count| *count > 0), words.iter().rposition(|count| *count > 0))
    else {
        return Vec::new();
    };
    let bounds = |bucket: usize| match of {
        Aggregation::Hist { bits } => {
            let at = |bucket: usize| hist_bucket_start(bucket as u32, bits);
            (bucket.checked_sub(1).map(|_| at(bucket)), (bucket + 1 < words.len()).then(|| at(bucket + 1)))
        }
        Aggregation::LinearHist { min, max, step } => {
            let at = |number: usize| min.saturating_add(step.saturating_mul(number as i64)).min(max);
            (bucket.checked_sub(1).map(at), (bucket + 1 < words.len()).then(|| at(bucket)))
        }
        _ => (None, None),
    };
    let values = |bucket: usize| {
        let (low, high) = bounds(bucket);
        let shifted = |bound: Option<i64>| bound.map(|bound| bound.saturating_add(shift));
        let (low, high) = (shifted(low), shifted(high));
        Values { low, high, count: words[bucket] }
    };
    (first..=last).map(values).collect()
}

/// Times of calls, by their histogram.
fn times(row: &Row) -> Option<LatencySummary> {
    let (calls, sum) = (row.sums.first().copied().unwrap_or(0), row.sums.get(1).copied().unwrap_or(0));
    let at = |bucket: usize| hist_bucket_start(bucket as u32, TIME_BITS).max(0) as u64;
    let bucket = |(index, count): (usize, &u64)| Bucket {
        low: at(index),
        high: if index + 1 < row.hits.len() { at(index + 1) } else { u64::MAX },
        count: *count,
    };
    let buckets: Vec<Bucket> =
        row.hits.iter().enumerate().filter(|(_, count)| **count > 0).map(bucket).collect();
    let highest = buckets.last()?.high.saturating_sub(1);
    let max = row.longest.map_or(highest, |longest| longest.min(highest));
    let total = buckets.iter().fold(0u128, |sum, bucket| sum + u128::from(bucket.count));
    let quantile = |share: f64| {
        let wanted = (share * total as f64).max(1.0);
        let mut below = 0.0;
        for bucket in &buckets {
            let count = bucket.count as f64;
            if below + count >= wanted {
                let width = bucket.high.saturating_sub(bucket.low) as f64;
                return (bucket.low + (width * (wanted - below) / count) as u64).min(max);
            }
            below += count;
        }
        max
    };
    Some(LatencySummary {
        avg: sum.checked_div(calls).unwrap_or(0),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max,
        buckets,
    })
}

impl Source for Quickly {
    fn joined(&mut self, pid: i32, session: &Session) -> Result<(), Error> {
        let Some(memory) = session.script() else { return Ok(()) };
        let process = Process {
            memory: memory.clone(),
            rings: Rings::new(&self.kinds, self.scripted.layout().ring_bits),
            sites: Sites { probes: usize::MAX, ..Sites::default() },
            before: HashMap::new(),
            failed: BTreeMap::new(),
            begun: None,
        };
        self.processes.insert(pid, process);
        self.look_at_sites(pid, session);
        self.names.look_at(pid);
        if let Some(mut tables) = self.scripted.tables() {
            tables.join(pid, memory.clone());
            self.names.watch_stacks(pid, memory.clone(), self.scripted.layout());
        }
        self.scripted.store().attach(pid, memory);
        Ok(())
    }

    fn hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        let pid = armed.pid();
        self.look_at_sites(pid, armed.session());
        let Some(process) = self.processes.get_mut(&pid) else { return Vec::new() };
        let told = process.rings.read(&[(pid, process.memory.clone())], None);
        self.hits_of(origin, told)
    }

    fn last_hits(&mut self, armed: &mut Armed, origin: Origin) -> Vec<Hit> {
        let pid = armed.pid();
        self.look_at_sites(pid, armed.session());
        let Some(process) = self.processes.get_mut(&pid) else { return Vec::new() };
        let mut told = process.rings.read(&[(pid, process.memory.clone())], Some(pid));
        told.extend(process.rings.rest());
        self.hits_of(origin, told)
    }

    fn is_behind(&self, _armed: &Armed) -> bool {
        false
    }

    fn rows(&mut self, armed: &Armed, _rate: Rate) -> Vec<ProbeSummary> {
        self.look_at_sites(armed.pid(), armed.session());
        self.rows_of(armed.pid(), None)
    }

    fn rows_since(&mut self, armed: &mut Armed) -> Vec<ProbeSummary> {
        let pid = armed.pid();
        self.look_at_sites(pid, armed.session());
        let Some(process) = self.processes.get_mut(&pid) else { return Vec::new() };
        let before = std::mem::take(&mut process.before);
        let now = ["@hits", "@times", "@values", "@sums"];
        let now: HashMap<_, _> = now
            .iter()
            .flat_map(|name| self.words(pid, name))
            .map(|(map, key, words)| ((map, key), words))
            .collect();
        let rows = self.rows_of(pid, Some(&before));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.before = now;
        }
        rows
    }

    fn losses(&mut self, armed: &Armed) -> Untold {
        let pid = armed.pid();
        let Some(process) = self.processes.get(&pid) else { return Untold::default() };
        let layout = self.scripted.layout();
        let losses = Losses::of(&process.memory, layout.ring_bits, &layout.maps);
        let not_shown = process.rings.lost(&[(pid, process.memory.clone())]);
        let note = |code: &'static str, text: String| Note { code, text };
        let mut notes: Vec<Note> = losses
            .sentences()
            .map(|(hits, what)| note("not-run", format!("{} {what}", count(hits))))
            .collect();
        for (what, times) in &process.failed {
            notes.push(note("failed", format!("{} {what}", count(*times))));
        }
        let left_out = self.single(pid, "@unsampled");
        if left_out > 0 {
            let text = format!("{} hits were left out by --sample, at random", count(left_out));
            notes.push(note("sampled", text));
        }
        let limited = self.single(pid, "@limited");
        if limited > 0 {
            notes.push(note("limited", format!("{} hits were not shown, by --rate", count(limited))));
        }
        for map in &self.maps {
            let (_, dropped) = self.scripted.store().in_process(pid, map.id);
            let text = match (dropped, map.name.as_str()) {
                (0, _) => continue,
                (_, "(arguments)") => format!(
                    "{} calls were left out: their arguments could not be kept until they returned, as too many calls were under way",
                    count(dropped)
                ),
                (_, "@sums" | "@longest" | "@since" | "@shown") => continue,
                _ => format!(
                    "{} hits are in no group, as there were more than {} of them: a larger --max-keys keeps more",
                    count(dropped),
                    count(self.meaning.keys.into())
                ),
            };
            notes.push(note("left-out", text));
        }
        Untold { not_shown, notes }
    }

    fn counted(&mut self, armed: &Armed) -> Option<u64> {
        match self.meaning.form {
            Form::Trace(_) => None,
            _ => Some(self.taken(armed.pid())),
        }
    }

    fn is_tallied(&self) -> bool {
        false
    }

    fn needs_ticks(&self) -> bool {
        self.next_look.is_some()
    }

    fn tend(&mut self) {
        if self.next_look.is_some_and(|at| Instant::now() >= at) {
            self.next_look = Some(Instant::now() + LOOK);
            if let Some(mut tables) = self.scripted.tables() {
                tables.look(self.names.files());
            }
        }
    }

    fn gone(&mut self, pid: i32) {
        self.names.leave_stacks(pid);
        self.scripted.store().detach(pid);
        if let Some(mut tables) = self.scripted.tables() {
            tables.leave(pid);
        }
        self.processes.remove(&pid);
    }
}

impl Quickly {
    /// How many hits were taken of those that a limit allows; where each takes a time, how many are over.
    fn taken(&mut self, pid: i32) -> u64 {
        let most = self.meaning.most.unwrap_or(u64::MAX);
        let taken = self.single(pid, "@taken").min(most);
        let Form::Inject(Injection { delay: Some(delay), .. }) = self.meaning.form else { return taken };
        let done = self.single(pid, "@done").min(most);
        let Some(process) = self.processes.get_mut(&pid).filter(|_| done < taken) else { return done };
        if process.begun.is_none_or(|(begun, _)| begun != taken) {
            process.begun = Some((taken, Instant::now()));
        }
        // Who leaves a delay by longjmp, or whose thread ends in one, never says that it is over.
        let ends_within = Duration::from_nanos(delay) + LATE;
        match process.begun.is_some_and(|(_, since)| since.elapsed() > ends_within) {
            true => taken,
            false => done,
        }
    }
}
