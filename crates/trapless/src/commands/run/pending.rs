//! Probes in libraries that are loaded later.
//!
//! A probe whose library a process has not mapped is *pending*. Its session has a gate then: the dynamic loader waits there whenever its
//! list of libraries has changed, until what is new has been looked at and armed. So no call in a library is missed, its constructors
//! among them, and one that is unloaded and loaded again is probed again. Where there can be no gate the mapped files are looked at again and again,
//! and what was called before is not counted, which the summary says.

mod asked;
mod search;

use super::present::{is_absent, present};
use crate::cli::validated::Run;
use crate::error::Error;
use crate::report::{Note, plural};
use crate::resolve::Sites;
use crate::session::{Change, Changes, Hold, Session};
use crate::target::{self, Image};
use crate::terminal::{printable, tell};
pub(super) use asked::{Wanted, later, wanted};
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

/// A process whose libraries are watched.
pub(super) struct Pending {
    /// What is known of the run's files.
    files: Files,
    /// Who tells of changes; `None`: nobody does.
    changes: Option<Changes>,
    /// The files that were mapped at the last look.
    known: BTreeMap<FileAt, Mapped>,
    /// Files that were unmapped, and when they had been changed.
    gone: BTreeMap<FileAt, Changed>,
    /// The probes that have waited, and those that have matched something since, by their place on the command line.
    waiting: BTreeMap<usize, String>,
    matched: BTreeSet<usize>,
    /// When to look, whether or not somebody tells.
    next_look: Instant,
    /// How many files were found by looking.
    late: u64,
    /// The names of libraries that were told of.
    told: BTreeSet<String>,
    /// What was in the way of arming.
    failed: BTreeSet<String>,
    /// The change that was looked at last.
    seen: Option<Change>,
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
        let mapped = |image: &Image| {
            let (file, end) = identity(image);
            (file, Mapped { end, changed: changed(process, image) })
        };
        let known = images.iter().map(mapped).collect();
        // Where no thread or descriptor is to be had, it is looked for without being told.
        let changes = session.changes().ok().flatten();
        let (matched, next_look) = (BTreeSet::new(), Instant::now());
        let (gone, told, failed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
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
        (!self.is_over).then_some(self.next_look)
    }

    /// Looks at the mapped files if there is a reason, and arms what is asked for in those that are new. Whoever has waited for it goes on.
    pub fn look(&mut self, run: &Run, process: &Process, session: &mut Session, hold: Hold<'_>) {
        if let Some(news) = self.news(run, process, session) {
            self.arm(run, process, session, news, Some(hold));
        }
    }

    /// Looks at the mapped files, if they may have changed; `None` if not. Whoever waits for it does so until it is [armed](Self::arm).
    pub fn news(&mut self, run: &Run, process: &Process, session: &mut Session) -> Option<News> {
        if self.is_over {
            return None;
        }
        let now = Instant::now();
        let is_time = now >= self.next_look;
        if is_time && self.changes.is_some() {
            self.next_look = now + CHECK;
            self.check(process, session);
        }
        let change = self.changes.as_ref().map(|changes| session.change(changes));
        let is_due = match change {
            Some(_) => self.seen != change,
            None => is_time,
        };
        if !is_due {
            return None;
        }
        self.seen = change;
        if !session.is_armed(process) {
            self.close(session);
            return None;
        }
        let found = self.find(run, process, session);
        if self.changes.is_none() {
            self.next_look = Instant::now() + LOOK.max(now.elapsed() * SHARE);
        }
        let news = found.unwrap_or_else(|error| {
            self.fail(process, &error);
            News::default()
        });
        Some(News { change, ..news })
    }

    /// Looks whether the process tells of its libraries yet. A run may end before it is time for that.
    pub fn check(&mut self, process: &Process, session: &Session) {
        if self.changes.is_some() && !session.tells_changes(process) {
            // Nobody is to wait who would not be answered, or must not make the call.
            session.ignore_changes();
            self.changes = None;
        }
    }

    /// The session is over: nothing is looked for, and nobody waits.
    fn close(&mut self, session: &Session) {
        if !std::mem::replace(&mut self.is_over, true) {
            session.ignore_changes();
            self.changes = None;
        }
    }

    /// Takes note that somebody waits who is served already.
    pub fn acknowledge(&self, session: &Session) {
        if let Some(changes) = &self.changes {
            session.change(changes);
        }
    }

    /// The files that are new, those that have come back, and what is asked for in the new ones.
    fn find(&mut self, run: &Run, process: &Process, session: &mut Session) -> Result<News, Error> {
        let images = target::images(process, &self.files)?;
        let mut known = std::mem::take(&mut self.known);
        let (mut back, mut new) = (Vec::new(), Vec::new());
        for image in images {
            let (file, end) = identity(&image);
            if let Some(of_file) = known.remove(&file) {
                self.known.insert(file, Mapped { end, ..of_file });
                continue;
            }
            let changed = changed(process, &image);
            let is_back = self.gone.get(&file) == Some(&changed);
            self.known.insert(file, Mapped { end, changed });
            if is_back { back.push(image) } else { new.push(image) }
        }
        // What is left of them is not mapped any more.
        if !known.is_empty() {
            let ranges: Vec<Range<u64>> = known.iter().map(|((start, ..), file)| *start..file.end).collect();
            session.forget(process, &ranges)?;
            self.gone.extend(known.into_iter().map(|(file, mapped)| (file, mapped.changed)));
        }
        let images = new;
        let sites = self.sites_in(run, process, &images)?;
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
                    Ok(true) => {}
                    Ok(false) => others.push(image),
                    Err(error) => self.fail(process, &error.into()),
                }
            }
            match self.sites_in(run, process, &others) {
                Ok(Some(found)) => self.add(process, session, &others, found, hold.again()),
                Ok(None) => {}
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

    /// What is asked for in files that are new. Takes note of what has waited for one of them and is not in it.
    fn sites_in(&mut self, run: &Run, process: &Process, images: &[Image]) -> Result<Option<Sites>, Error> {
        if images.is_empty() {
            return Ok(None);
        }
        let present = present(run, process, images, is_absent)?;
        self.matched.extend(present.matched());
        for (index, error) in present.absent {
            if !matches!(error, SessionError::Select(SelectError::NoModule { .. })) {
                self.absent.insert(index, error.to_string());
            }
        }
        Ok(present.sites)
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

    /// Whether nothing has come, and there is nothing to be said of it.
    pub fn is_vain(&self, session: &Session) -> bool {
        session.probes().is_empty() && self.notes(session).is_empty()
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

/// By what a mapped file is known again: from where it is mapped, its inode, and its path.
type FileAt = (u64, u64, String);

/// When a file was changed last, in seconds and nanoseconds.
type Changed = (i64, i64);

/// What is known of a mapped file besides.
#[derive(Clone, Copy)]
struct Mapped {
    /// Where its mappings end.
    end: u64,
    /// When it had been changed by the time it was seen.
    changed: Changed,
}

fn identity(image: &Image) -> (FileAt, u64) {
    ((image.range.start, image.inode(), image.path.clone()), image.range.end)
}

fn changed(process: &Process, image: &Image) -> Changed {
    let file = std::fs::metadata(process.path_in_root(Path::new(&image.path)));
    file.ok()
        .filter(|file| file.ino() == image.inode())
        .map_or((0, 0), |file| (file.ctime(), file.ctime_nsec()))
}
