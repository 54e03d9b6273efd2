//! A script's run with processes: its messages are read from their memory and printed, in the order in which they were told.

use super::course::Course;
use super::probed::Written;
use super::scripted::Scripted;
use crate::commands::run::{Armed, Aside, Collector, End, Finished, Flow, Who, beside_numbers};
use crate::error::Error;
use crate::report::{Exit, Note, ProbeSummary, count};
use crate::session::Session;
use crate::terminal::tell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trapless_engine::{AT_RETURN, ScriptMemory};
use trapless_running::names::SiteNames;
use trapless_running::rings::{Losses, Rings, Told};
use trapless_session::outcome::Skipped;

/// How often rings of messages are read.
const TICK: Duration = Duration::from_millis(5);

/// How often it is looked whether a process has loaded code, where stacks are walked.
const LOOK: Duration = Duration::from_millis(100);

/// A script's run with processes.
pub(in crate::commands) struct Scripting<'t> {
    course: Course<'t>,
    scripted: Arc<Scripted>,
    rings: Rings,
    /// Messages that were lost and told of.
    lost: u64,
    /// Of processes that are gone.
    gone: Losses,
    /// Children of theirs that could not be told from them.
    sharing: u64,
    /// What else is to be known, and of which processes.
    asides: BTreeMap<String, Vec<i32>>,
    /// Processes that had probes and have none any more.
    left: u64,
    next_read: Option<Instant>,
    /// When it is looked next whether a process has other code than before.
    next_look: Option<Instant>,
    /// How the script writes the files that it names.
    written: Written,
    /// How many probes the files have that are named, where no process is given.
    in_files: Option<u64>,
    is_told: bool,
    exit_code: u8,
}

impl<'t> Scripting<'t> {
    /// `in_files`: how many probes are in the files that are named, where no process is given.
    pub fn new(course: Course<'t>, scripted: Arc<Scripted>, written: Written, in_files: Option<u64>) -> Self {
        let rings = Rings::new(course.messages(), scripted.layout().ring_bits);
        let next_look = scripted.tables().map(|_| Instant::now() + LOOK);
        Self {
            course,
            scripted,
            next_read: rings.tell().then(Instant::now),
            rings,
            lost: 0,
            gone: Losses::default(),
            sharing: 0,
            asides: BTreeMap::new(),
            left: 0,
            next_look,
            written,
            in_files,
            is_told: false,
            exit_code: 0,
        }
    }

    /// Runs the beginning, before anything is armed. What it says is printed when it is told that all is attached.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.course.begin_quietly()
    }

    /// Says that all is attached, and prints what was said before.
    fn tell_attached(&mut self, probes: u64) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_told, true) {
            self.course.tell_attached(probes)?;
            self.course.print_begun()?;
        }
        Ok(())
    }

    /// Whether the script has ended itself already.
    pub fn is_over(&self) -> bool {
        self.course.machine.is_over()
    }

    /// Ends a script that has ended itself at its beginning.
    pub fn end_early(mut self) -> Result<u8, Error> {
        self.end()?;
        Ok(self.exit_code)
    }

    fn memories(&self) -> Vec<(i32, ScriptMemory)> {
        let store = self.scripted.store();
        store.attached().map(|(pid, memory)| (pid, memory.clone())).collect()
    }

    /// Reads all rings, and prints what was told before the last time. `leaving`: whose probes are gone, so that nothing more comes from it.
    fn read(&mut self, leaving: Option<i32>) -> Result<(), Error> {
        if !self.rings.tell() {
            return Ok(());
        }
        let memories = self.memories();
        let told = self.rings.read(&memories, leaving);
        let lost = self.gone.messages + self.rings.lost(&memories);
        if lost > self.lost {
            let more = lost - self.lost;
            self.lost = lost;
            self.course.step(|machine, outside| machine.printer().lost(more, &mut outside.streams))?;
        }
        self.print(&told)
    }

    fn print(&mut self, told: &[Told]) -> Result<(), Error> {
        if told.is_empty() {
            return Ok(());
        }
        self.course.step(|machine, outside| {
            for Told { message, parts, .. } in told {
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                machine.message(*message, &parts, outside)?;
            }
            Ok(())
        })
    }

    /// A process has no probes any more: what it has told and left is taken. `beside`: what else is to be known of it.
    fn leave(&mut self, armed: &Armed, beside: impl IntoIterator<Item = Note>) -> Result<(), Error> {
        let pid = armed.pid();
        self.left += 1;
        for note in beside {
            self.asides.entry(note.text).or_default().push(pid);
        }
        self.sharing += armed.session().sharing_children();
        self.read(Some(pid))?;
        let mut store = self.scripted.store();
        let memory = store.attached().find(|(other, _)| *other == pid).map(|(_, memory)| memory.clone());
        if let Some(memory) = memory {
            let layout = self.scripted.layout();
            self.gone.add(Losses::of(&memory, layout.ring_bits, &layout.maps));
        }
        store.detach(pid);
        self.course.names.leave_stacks(pid);
        if let Some(mut tables) = self.scripted.tables() {
            tables.leave(pid);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        self.tell_attached(self.in_files.unwrap_or(0))?;
        let rest = self.rings.rest();
        self.print(&rest)?;
        self.exit_code = self.course.finish()?;
        for (count, what) in self.gone.sentences() {
            tell(format_args!("{count} {what}"));
        }
        crate::report::sharing(self.sharing).iter().for_each(tell);
        for (aside, processes) in self.asides.iter().take(NAMED) {
            match processes[..] {
                [_] if self.left == 1 => tell(aside),
                [pid] => tell(format_args!("process {pid}: {aside}")),
                _ => tell(format_args!("{} processes: {aside}", count(processes.len() as u64))),
            }
        }
        if let Some(more @ 1..) = self.asides.len().checked_sub(NAMED) {
            tell(format_args!("and {more} more of the kind"));
        }
        Ok(())
    }
}

/// How many sites are named that were left alone for one reason, and how many other things are told.
const NAMED: usize = 8;

/// Says which sites have no probe, and why: what the script counts is without them.
fn tell_skipped(skipped: &[Skipped]) {
    let mut groups: BTreeMap<&str, Vec<&Skipped>> = BTreeMap::new();
    for site in skipped {
        groups.entry(&site.why.group).or_default().push(site);
    }
    for (why, sites) in groups {
        let name = |site: &&Skipped| format!("{}:{}", site.module, site.function);
        let mut names: Vec<String> = sites.iter().take(NAMED).map(name).collect();
        if let more @ 1.. = sites.len().saturating_sub(NAMED) {
            names.push(format!("{more} more"));
        }
        let noun = if sites.len() == 1 { "site has" } else { "sites have" };
        tell(format_args!("{} {noun} no probe: {why}: {}", sites.len(), names.join(", ")));
    }
}

impl Collector for Scripting<'_> {
    fn armed(&mut self, _pid: i32, session: &Session) -> Result<(), Error> {
        // A USDT probe is one, at however many places it stands.
        let (mut probes, mut usdt) = (0, BTreeSet::new());
        for probe in session.probes() {
            if probe.usdt.is_none() || usdt.insert((session.path_of(probe), probe.probed.function.text())) {
                probes += u64::from(probe.kinds.entry) + u64::from(probe.kinds.returns);
            }
        }
        self.tell_attached(self.in_files.unwrap_or(probes))
    }

    fn joined(&mut self, pid: i32, session: &Session) -> Result<(), Error> {
        let Some(memory) = session.script() else { return Ok(()) };
        for probe in session.probes() {
            let (path, name) = (session.path_of(probe), &probe.probed.function);
            let site = self.scripted.numbers.of(path, name);
            let entry = if probe.usdt.is_some() { "usdt" } else { "uprobe" };
            for (number, provider) in [(site, entry), (site | AT_RETURN, "uretprobe")] {
                let function = name.text().to_owned();
                let probe = self.written.probe(provider, path, &function);
                let names = SiteNames { probe, function };
                self.course.names.name_site(number.into(), names);
            }
        }
        self.course.names.look_at(pid);
        tell_skipped(session.skipped());
        let mut store = self.scripted.store();
        if let Some(mut tables) = self.scripted.tables() {
            tables.join(pid, memory.clone());
            self.course.names.watch_stacks(pid, memory.clone(), self.scripted.layout());
        }
        store.attach(pid, memory);
        Ok(())
    }

    fn take(&mut self, _targets: &mut [Armed]) -> Result<Flow, Error> {
        // Whoever runs one of the files is probed from here on. Who starts one when he hears of it is not to wait for himself.
        if let Some(probes) = self.in_files {
            self.tell_attached(probes)?;
        }
        if self.next_read.is_some_and(|at| Instant::now() >= at) {
            self.read(None)?;
            self.next_read = Some(Instant::now() + TICK);
        }
        if self.next_look.is_some_and(|at| Instant::now() >= at) {
            self.next_look = Some(Instant::now() + LOOK);
            if let Some(mut tables) = self.scripted.tables() {
                tables.look(self.course.names.files());
            }
        }
        Ok(if self.is_over() { Flow::Enough } else { Flow::On })
    }

    fn next(&self) -> Option<Instant> {
        [self.next_read, self.next_look, self.course.next()].into_iter().flatten().min()
    }

    fn tick(&mut self, _now: Instant, _targets: &mut [Armed]) -> Result<(), Error> {
        self.course.tick()
    }

    fn gone(&mut self, armed: Armed, _who: Who, end: End) -> Result<(), Error> {
        // Who runs another program is followed there.
        let beside = beside_numbers(&armed, end.memory).into_iter().filter(|note| note.code != "exec");
        self.leave(&armed, beside)
    }

    fn of_sharing(&mut self, _pid: i32, _who: Who, _probes: Vec<ProbeSummary>, _exit: Option<Exit>) {}

    fn note(&mut self, aside: Aside) {
        match aside {
            Aside::WithoutMatch => {}
            Aside::NotFollowed(process) => {
                let of = if process.command.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", process.command)
                };
                tell(format_args!("process {}{of} is not probed: {}", process.pid, process.reason));
            }
            Aside::Note(note) if note.code == "nobody" => {}
            Aside::Note(note) => tell(&note.text),
        }
    }

    fn is_empty(&self) -> bool {
        false
    }

    fn finish(&mut self, targets: Vec<Finished>, _exit: Option<Exit>) -> Result<(), Error> {
        targets.into_iter().try_for_each(|target| {
            let beside = beside_numbers(&target.armed, target.memory);
            self.leave(&target.armed, beside)
        })?;
        self.end()
    }

    fn finish_followed(&mut self) -> Result<(), Error> {
        self.end()
    }

    fn exit_code(&self) -> u8 {
        self.exit_code
    }
}
