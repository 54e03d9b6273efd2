//! Probes in libraries that are loaded later.
//!
//! A probe whose library a process has not mapped is *pending*. Its session has a gate then: the dynamic loader waits there whenever its
//! list of libraries has changed, until what is new has been looked at and armed. So no call in a library is missed, its constructors
//! among them, and one that is unloaded and loaded again is probed again. Where there can be no gate the mapped files are looked at again and again,
//! and what was called before is not counted, which the summary says.

mod search;

use super::present::present;
use crate::cli::validated::{Probe, Run};
use crate::error::Error;
use crate::report::{Note, plural};
use crate::resolve::{self, Kinds, Sites};
use crate::session::{Change, Changes, Hold, Session};
use crate::target::{self, Image};
use crate::terminal::{printable, tell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use trapless_process::Process;
use trapless_session::error::Error as SessionError;
use trapless_session::files::Files;
use trapless_session::select::SelectError;

/// How often mapped files are looked at where nobody tells of them.
const LOOK: Duration = Duration::from_millis(20);

/// How often it is looked whether a process tells of its libraries yet.
const CHECK: Duration = Duration::from_millis(200);

/// A look may take one part of so many of the time.
const SHARE: u32 = 20;

/// What is probed in a process now, and what may be later.
pub(super) struct Wanted {
    /// The sites that there are.
    pub sites: Sites,
    /// What is asked for in libraries that are not there; `None`: all is there, and nothing is waited for.
    pub later: Option<Kinds>,
    /// The probes that wait, by their place on the command line.
    pub pending: BTreeMap<usize, String>,
}

/// Finds the sites of a run's probes in a process. A probe in a file that it has not mapped is pending, if that file is found where the process
/// would look for it, or if the user says so.
///
/// # Errors
/// A probe means nothing, and nothing that could be loaded.
pub(super) fn wanted(run: &Run, process: &Process, images: &[Image]) -> Result<Wanted, Error> {
    let selection = &run.selection;
    let resolve = |probes: &[&Probe]| {
        let probes = probes.iter().map(|probe| (&probe.spec, kinds(probe)));
        resolve::resolve(Some(process), images, probes, &selection.exclusions, selection.max_probes)
    };
    let all: Vec<&Probe> = selection.probes.iter().collect();
    let missing = match resolve(&all) {
        Err(SessionError::Select(error @ SelectError::NoModule { .. })) => error,
        sites => {
            return Ok(Wanted { sites: sites?, later: later(run), pending: BTreeMap::new() });
        }
    };
    let (mut there, mut pending) = (Vec::new(), BTreeMap::new());
    for (index, &probe) in all.iter().enumerate() {
        match resolve(&[probe]) {
            Err(SessionError::Select(error @ SelectError::NoModule { .. })) => {
                if !run.pending && !search::can_be_loaded(run, process, images, probe)? {
                    return Err(Error::NotLoaded(error));
                }
                pending.insert(index, probe.spec.text.clone());
            }
            sites => {
                sites?;
                there.push(probe);
            }
        }
    }
    if pending.is_empty() {
        // It is there when it is asked for alone.
        return Err(Error::NotLoaded(missing));
    }
    for text in pending.values() {
        let (text, pid) = (printable(text), process.pid());
        tell(format_args!("'{text}' is armed when its library is loaded into process {pid}"));
    }
    let sites = if there.is_empty() { Sites::default() } else { resolve(&there)? };
    Ok(Wanted { sites, later: Some(of_all(&all)), pending })
}

fn kinds(probe: &Probe) -> Kinds {
    Kinds { entry: probe.entry, returns: probe.returns }
}

/// What is asked for at any of them.
fn of_all(probes: &[&Probe]) -> Kinds {
    let entry = probes.iter().any(|probe| probe.entry);
    Kinds { entry, returns: probes.iter().any(|probe| probe.returns) }
}

/// What a run asks for in libraries that come later, if it waits for all of them.
pub(super) fn later(run: &Run) -> Option<Kinds> {
    run.pending.then(|| of_all(&run.selection.probes.iter().collect::<Vec<_>>()))
}

/// A process whose libraries are watched.
pub(super) struct Pending {
    /// What is known of the run's files.
    files: Files,
    /// Who tells of changes; `None`: nobody does.
    changes: Option<Changes>,
    /// The files that were mapped at the last look: from where, which, and to where.
    known: BTreeMap<FileAt, u64>,
    /// Files that were unmapped.
    gone: BTreeSet<FileAt>,
    /// The probes that have waited, and those that have matched something since, by their place on the command line.
    waiting: BTreeMap<usize, String>,
    matched: BTreeSet<usize>,
    next_look: Instant,
    /// How many files were found by looking.
    late: u64,
    /// The names of libraries that were told of.
    told: BTreeSet<String>,
    /// What was in the way of arming.
    failed: BTreeSet<String>,
    /// The change that was looked at last.
    seen: Option<Change>,
    next_check: Instant,
    /// The probes are out, or were.
    is_over: bool,
    /// Why the probes that wait match nothing in libraries that were loaded, by their place on the command line.
    absent: BTreeMap<usize, String>,
}

/// What a look at a process's files has found.
#[derive(Default)]
pub(super) struct News {
    change: Option<Change>,
    /// The files that were there before, at the same place.
    back: Vec<Image>,
    /// The others, and what is asked for in them.
    images: Vec<Image>,
    sites: Option<Sites>,
}

impl News {
    /// Whether there is something to be armed.
    pub fn is_any(&self) -> bool {
        self.sites.is_some() || !self.back.is_empty()
    }
}

impl Pending {
    /// Watches a forked child from now on, whose parent was watched by this one.
    pub fn of_forked_child(&self, child: &Process, session: &Session) -> Self {
        let of_child = Self::of(child, session, (&[], &self.files), BTreeMap::new());
        Self { known: self.known.clone(), gone: self.gone.clone(), ..of_child }
    }

    /// Watches a process from now on, which had mapped these files. `waiting`: [`Wanted::pending`].
    pub fn of(
        process: &Process,
        session: &Session,
        (images, files): (&[Image], &Files),
        waiting: BTreeMap<usize, String>,
    ) -> Self {
        let files = files.clone();
        let known = images.iter().map(|image| identity(process, image)).collect();
        // Where no thread or descriptor is to be had, it is looked for without being told.
        let changes = session.changes().ok().flatten();
        let (matched, next_look) = (BTreeSet::new(), Instant::now());
        let (gone, told, failed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self {
            files,
            changes,
            known,
            gone,
            waiting,
            matched,
            next_look,
            late: 0,
            told,
            failed,
            seen: None,
            next_check: next_look,
            is_over: false,
            absent: BTreeMap::new(),
        }
    }

    /// What becomes readable when something has changed.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.changes.as_ref().map(Changes::descriptor)
    }

    /// When to look, whether or not somebody tells.
    pub fn next_look(&self) -> Option<Instant> {
        match (self.is_over, &self.changes) {
            (true, _) => None,
            (false, Some(_)) => Some(self.next_check),
            (false, None) => Some(self.next_look),
        }
    }

    /// Looks at the mapped files if there is a reason, and arms what is asked for in those that are new. Whoever has waited for it goes on.
    pub fn look(&mut self, run: &Run, process: &Process, session: &mut Session, hold: Hold<'_>) {
        if let Some(news) = self.news(run, process, session) {
            self.arm(run, process, session, news, Some(hold));
        }
    }

    /// Looks at the mapped files, if they may have changed; `None` if not. Whoever waits for it does so until it is [armed](Self::arm).
    pub fn news(&mut self, run: &Run, process: &Process, session: &mut Session) -> Option<News> {
        if self.is_over || !session.is_armed(process) {
            self.close(session);
            return None;
        }
        let now = Instant::now();
        if self.changes.is_some() && now >= self.next_check {
            self.next_check = now + CHECK;
            if !session.tells_changes(process) {
                // Nobody is to wait who would not be answered, or must not make the call.
                session.ignore_changes();
                self.changes = None;
            }
        }
        let change = self.changes.as_ref().map(|changes| session.change(changes));
        let is_due = match change {
            Some(_) => self.seen != change,
            None => now >= self.next_look,
        };
        if !is_due {
            return None;
        }
        self.seen = change;
        let found = self.find(run, process, session);
        self.next_look = Instant::now() + LOOK.max(now.elapsed() * SHARE);
        let news = found.unwrap_or_else(|error| {
            self.fail(process, &error);
            News::default()
        });
        Some(News { change, ..news })
    }

    /// The session is over: nothing is looked for, and nobody waits.
    fn close(&mut self, session: &Session) {
        if !std::mem::replace(&mut self.is_over, true) {
            session.ignore_changes();
            self.changes = None;
        }
    }

    /// Takes note that somebody waits who is served already.
    pub fn is_served(&self, session: &Session) {
        if let Some(changes) = &self.changes {
            session.change(changes);
        }
    }

    /// The files that are new, those that have come back, and what is asked for in the new ones.
    fn find(&mut self, run: &Run, process: &Process, session: &mut Session) -> Result<News, Error> {
        let images = target::images(process, &self.files)?;
        let all: Vec<(FileAt, u64)> = images.iter().map(|image| identity(process, image)).collect();
        let before = std::mem::replace(&mut self.known, all.iter().cloned().collect());
        let new = images.into_iter().zip(all).filter(|(_, (file, _))| !before.contains_key(file));
        let (back, images): (Vec<_>, Vec<_>) = new.partition(|(_, (file, _))| self.gone.contains(file));
        let [back, images] =
            [back, images].map(|all| all.into_iter().map(|(image, _)| image).collect::<Vec<_>>());
        let gone: Vec<_> = before.into_iter().filter(|(file, _)| !self.known.contains_key(file)).collect();
        if !gone.is_empty() {
            let ranges: Vec<Range<u64>> = gone.iter().map(|((start, ..), end)| *start..*end).collect();
            session.forget(process, &ranges)?;
            self.gone.extend(gone.into_iter().map(|(file, _)| file));
        }
        let sites = match images.is_empty() {
            true => None,
            false => present(run, &mut self.matched, process, &images)?.ok(),
        };
        self.note_absent(run, process, &images);
        Ok(News { change: None, back, images, sites })
    }

    /// Arms what was found, and lets whoever has waited for it go on. `hold`: how the process is held; needed where there is
    /// something to be armed.
    pub fn arm(
        &mut self,
        run: &Run,
        process: &Process,
        session: &mut Session,
        news: News,
        hold: Option<Hold<'_>>,
    ) {
        let News { change, back, images, sites } = news;
        if let Some(mut hold) = hold {
            let mut others = Vec::new();
            for image in back {
                match session.come_back(process, &image, hold.again()) {
                    Ok(true) => {
                        tell(format_args!(
                            "{} is back in process {}",
                            printable(image.name()),
                            process.pid()
                        ));
                    }
                    Ok(false) => others.push(image),
                    Err(error) => self.fail(process, &error.into()),
                }
            }
            match present(run, &mut self.matched, process, &others) {
                Ok(Ok(found)) if !others.is_empty() => {
                    self.add(process, session, &others, found, hold.again());
                }
                Ok(_) => {}
                Err(error) => self.fail(process, &error),
            }
            if let Some(sites) = sites {
                self.add(process, session, &images, sites, hold);
            }
        }
        if let Some(change) = change {
            session.answer(change);
        }
    }

    fn add(
        &mut self,
        process: &Process,
        session: &mut Session,
        images: &[Image],
        sites: Sites,
        hold: Hold<'_>,
    ) {
        let names: BTreeSet<&str> = sites.sites.iter().map(|site| site.module_name(images)).collect();
        let names: Vec<String> = names.into_iter().map(printable).collect();
        match session.add(process, images, sites, hold) {
            Ok(0) => {}
            Ok(armed) => {
                self.late += u64::from(self.changes.is_none());
                let (names, functions) = (names.join(", "), plural(armed as u64, "function"));
                // One that comes and goes is told of once.
                if self.told.insert(names.clone()) {
                    tell(format_args!("{names} loaded by process {}: {functions} armed", process.pid()));
                }
            }
            Err(error) => self.fail(process, &error.into()),
        }
    }

    /// Takes note of what waits for a library that is there by now, and has not got it.
    fn note_absent(&mut self, run: &Run, process: &Process, images: &[Image]) {
        let waiting = self.waiting.keys().filter(|index| !self.matched.contains(index));
        for (&index, probe) in waiting.filter_map(|index| Some((index, run.selection.probes.get(*index)?))) {
            let selection = &run.selection;
            let asked = [(&probe.spec, kinds(probe))];
            match resolve::resolve(Some(process), images, asked, &selection.exclusions, selection.max_probes)
            {
                Ok(_) | Err(SessionError::Select(SelectError::NoModule { .. })) => {}
                Err(error) => drop(self.absent.insert(index, error.to_string())),
            }
        }
    }

    fn fail(&mut self, process: &Process, why: &Error) {
        if process.is_alive() {
            self.failed.insert(why.to_string());
        }
    }

    /// The probes that have matched something in libraries, by their place on the command line.
    pub fn matched(&self) -> &BTreeSet<usize> {
        &self.matched
    }

    /// What is to be known of it at the end.
    pub fn notes(&self, session: &Session) -> Vec<Note> {
        let mut notes = Vec::new();
        for (index, text) in self.waiting.iter().filter(|(index, _)| !self.matched.contains(index)) {
            let why = match self.absent.get(index) {
                Some(why) => why.as_str(),
                None if session.unanswered() > 0 => "its library was not loaded, or not seen in time",
                None => "its library was not loaded",
            };
            let text = format!("'{}' was not armed: {}", printable(text), printable(why));
            notes.push(Note { code: "pending", text });
        }
        if self.changes.is_none() && !self.is_over {
            let text = format!(
                "the process does not tell of libraries that it loads, or not to the end; they were found by looking, every {} ms, and what was called before is not counted. Found so: {}",
                LOOK.as_millis(),
                self.late
            );
            notes.push(Note { code: "found-late", text });
        }
        for why in &self.failed {
            let text = format!("a library was loaded and could not be probed: {}", printable(why));
            notes.push(Note { code: "missed", text });
        }
        let unanswered = session.unanswered();
        if unanswered > 0 {
            let text = format!(
                "libraries were loaded and trapless did not come in time, so that calls may be missing in those that came from then on until it did: {unanswered} times"
            );
            notes.push(Note { code: "missed", text });
        }
        notes
    }
}

/// By what a mapped file is known again: from where it is mapped, its inode, when that was changed, and its path.
type FileAt = (u64, u64, (i64, i64), String);

/// That of a file, and where its mappings end.
fn identity(process: &Process, image: &Image) -> (FileAt, u64) {
    let file = std::fs::metadata(process.path_in_root(Path::new(&image.path)));
    let changed = file.ok().filter(|file| file.ino() == image.inode());
    let changed = changed.map_or((0, 0), |file| (file.ctime(), file.ctime_nsec()));
    ((image.range.start, image.inode(), changed, image.path.clone()), image.range.end)
}
