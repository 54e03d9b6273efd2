//! The end of a run that follows: everybody is cleaned and let go.
//!
//! 1. All are asked to stop, at once: who stands creates nobody.
//! 2. Whoever stands is cleaned, and stands on: beside those who run and create others, the rest would wait for us for long. When all
//!    stand, or nobody has come for [`QUIET`], those who are cleaned leave the family; what they create from then on has no probes and no
//!    tracer. One that is born meanwhile is cleaned before it runs, one that runs another program is let go with it.
//! 3. A child that runs in its parent's memory is let run until it does not: its parent waits for it in the kernel and cannot stand,
//!    and what it runs must not be taken away.
//! 4. Copies that nobody was told of (`CLONE_UNTRACED`) are found by the memory that they have mapped.
//!
//! No time decides whether there is a report. Where nobody has left for [`HOPELESS`], those who remain keep their probes, which is told.

use super::super::collect::{Aside, End};
use super::exit_of;
use super::worker::Follower;
use crate::attach::ENDING;
use crate::error::Error;
use crate::report::{Note, count};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};
use trapless_engine::{EngineError, FoundSession, Removed, find_sessions, remove, remove_again, remove_held};
use trapless_process::family::FamilyEvent;
use trapless_process::{Pid, Process, StopError, processes, same_memory};
use trapless_session::session::notes::{of_handlers, of_memory};

/// How long nobody may leave before those who remain are given up.
const HOPELESS: Duration = Duration::from_secs(10);

/// How long those who are cleaned stand for the others.
const QUIET: Duration = Duration::from_millis(20);

/// How often copies are looked for: one that is found may have been copied meanwhile.
const LOOKS: usize = 8;

/// One that has no probes any more, and stands.
#[derive(Debug)]
pub(super) struct Cleaned {
    process: Rc<Process>,
    session: Option<FoundSession>,
    removed: Result<Removed, EngineError>,
    since: Instant,
}

impl Follower<'_> {
    /// Takes the probes out everywhere and lets all go.
    ///
    /// # Errors
    /// Probes had to stay somewhere, or the output broke. All others are out.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.end();
        }
        let mut result = Ok(());
        let mut pids: Vec<Pid> = self.family.pids().collect();
        pids.sort();
        for pid in pids.into_iter().filter(|pid| !self.is_sharing(*pid)).collect::<Vec<_>>() {
            self.family.ask_to_stop(pid);
        }
        // Those that stood and were let run again for somebody who runs in their memory.
        let mut waiting = BTreeSet::new();
        let mut last_left = Instant::now();
        while !self.family.is_empty() {
            let Some(event) = self.family.next_event() else {
                let all_stand = self.family.pids().all(|pid| self.cleaned.contains_key(&pid));
                if !self.cleaned.is_empty() && (all_stand || last_left.elapsed() >= QUIET) {
                    result = result.and(self.release_cleaned());
                } else if last_left.elapsed() >= HOPELESS {
                    break;
                } else {
                    let patience = if self.cleaned.is_empty() { HOPELESS } else { QUIET };
                    self.sleep_for_family(last_left + patience);
                }
                continue;
            };
            let left = self.end_of(event, &mut waiting);
            match left {
                Ok(false) => {}
                Ok(true) => last_left = Instant::now(),
                Err(error) => {
                    last_left = Instant::now();
                    result = result.and(Err(error));
                }
            }
        }
        let remaining: BTreeSet<Pid> = self.family.pids().collect();
        for &pid in &remaining {
            let waits = || StopError::SharesMemory { pid, other: self.sharer_of(pid).unwrap_or(pid) };
            let why = trapless_session::error::Error::other(waits());
            result = result.and(Err(Error::StillProbed { pid: pid.0, why }));
            let kept = self.retire(pid, End::default());
            result = result.and(kept);
        }
        result.and(self.clean_copies(&remaining))
    }

    /// Whether somebody has left, or was cleaned.
    fn end_of(&mut self, event: FamilyEvent, waiting: &mut BTreeSet<Pid>) -> Result<bool, Error> {
        let of = |follower: &Self, pid: &Pid| {
            follower.members.get(pid).and_then(|member| member.sharing.as_ref()).map(|sharing| sharing.of)
        };
        match event {
            FamilyEvent::Born { pid, parent } => {
                self.meet(pid, parent);
                if self.is_sharing(pid) {
                    self.family.go_on(pid);
                    return Ok(false);
                }
                self.clean(pid).map(|()| true)
            }
            FamilyEvent::Stopped { pid } if self.cleaned.contains_key(&pid) => Ok(false),
            FamilyEvent::Stopped { pid } if self.sharer_of(pid).is_some() => {
                self.family.go_on(pid);
                waiting.insert(pid);
                Ok(false)
            }
            FamilyEvent::Stopped { pid }
            | FamilyEvent::Loaded { pid }
            | FamilyEvent::NotLoaded { pid, .. } => self.clean(pid).map(|()| true),
            FamilyEvent::Execed { pid } => {
                let of = of(self, &pid);
                let kept = self.retire(pid, End::default());
                self.family.let_go(pid);
                self.stop_waiting(of, waiting);
                kept.map(|()| true)
            }
            FamilyEvent::Ended { pid, status } => {
                let of = of(self, &pid);
                let kept = self.ended(pid, exit_of(status));
                self.stop_waiting(of, waiting);
                kept.map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// One whose memory somebody has left is asked to stop again.
    fn stop_waiting(&mut self, of: Option<Pid>, waiting: &mut BTreeSet<Pid>) {
        if let Some(of) = of
            && self.sharer_of(of).is_none()
            && waiting.remove(&of)
        {
            self.family.ask_to_stop(of);
        }
    }

    /// Somebody who runs in a process's memory.
    pub(super) fn sharer_of(&self, pid: Pid) -> Option<Pid> {
        let shares = |member: &super::worker::Member| member.sharing.as_ref().is_some_and(|s| s.of == pid);
        self.members.iter().find(|(_, member)| shares(member)).map(|(sharer, _)| *sharer)
    }

    /// Takes the probes out of a process that stands. It stands on.
    fn clean(&mut self, pid: Pid) -> Result<(), Error> {
        let since = Instant::now();
        let known = self.members.get(&pid).and_then(|member| member.process.clone());
        let Some(process) = known.or_else(|| Process::open(pid).ok().map(Rc::new)) else {
            // Those who leave give descriptors back; it is found again with the copies.
            self.family.let_go(pid);
            return self.retire(pid, End::default());
        };
        let session = match self.targets.iter().find(|armed| armed.pid() == pid.0) {
            Some(armed) => {
                armed.session.look_again(&process, true);
                Some(armed.session.to_remove(&process))
            }
            None => self.copy_in(&process),
        };
        let removed = match &session {
            Some(session) => self.family.hold(&process, |stopped| remove_held(stopped, session)),
            None => Ok(Removed::default()),
        };
        self.cleaned.insert(pid, Cleaned { process, session, removed, since });
        Ok(())
    }

    /// The session that a process has inherited and that does not count under its own id. Its memory becomes its own first: taking the
    /// session out is noted there, and whoever it was inherited from is to have no note of it.
    fn copy_in(&mut self, process: &Process) -> Option<FoundSession> {
        let pid = process.pid().leader();
        let is_copy = |of: usize| same_memory(pid, Pid(self.targets[of].pid()).leader()) == Some(false);
        if let Some(of) = self.inherited(process).filter(|of| is_copy(*of)) {
            let parent = &self.targets[of].session;
            if let Ok(own) = self.family.hold(process, |stopped| parent.of_forked_child(process, stopped)) {
                return Some(own.to_remove(process));
            }
        }
        own_sessions(process).into_iter().next()
    }

    /// Lets those go who are cleaned, and takes their numbers down.
    fn release_cleaned(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        let cleaned = std::mem::take(&mut self.cleaned);
        // One that has ended tells of it.
        let released: Vec<bool> =
            cleaned.values().map(|cleaned| self.family.release(&cleaned.process).is_ok()).collect();
        for ((pid, cleaned), _) in cleaned.into_iter().zip(released).filter(|(_, released)| *released) {
            self.left.insert(pid);
            let stopped = cleaned.since.elapsed();
            let (end, kept) = self.end_cleaned(pid, cleaned);
            let retired = self.retire(pid, End { stopped, ..end });
            result = result.and(retired).and(kept);
        }
        result
    }

    /// What became of the probes of one that was let go.
    fn end_cleaned(&self, pid: Pid, cleaned: Cleaned) -> (End, Result<(), Error>) {
        let Cleaned { process, session, removed, .. } = cleaned;
        let removed = match (removed, session) {
            // Mostly it is what a call has just left behind.
            (Ok(first), Some(session)) if first.may_pass() => {
                let options = super::super::super::stop_options(self.run.allow_seccomp);
                remove_again(&process, &session, &options, first)
            }
            (removed, _) => removed,
        };
        match removed {
            Ok(removed) => {
                let mut memory = of_memory(removed.freed, removed.kept);
                memory.extend(of_handlers(&removed));
                (End { memory, ..End::default() }, Ok(()))
            }
            Err(_) if process.has_ended_within(ENDING) => (End::default(), Ok(())),
            Err(why) => {
                let why = trapless_session::error::Error::other(why);
                (End::default(), Err(Error::StillProbed { pid: pid.0, why }))
            }
        }
    }

    /// Takes the probes out of copies that no tracer was told of.
    fn clean_copies(&mut self, besides: &BTreeSet<Pid>) -> Result<(), Error> {
        let (mut copies, mut result) = (0, Ok(()));
        for _ in 0..LOOKS {
            let mut found = false;
            for pid in processes_with_memory() {
                if besides.contains(&pid) || self.left.contains(&pid) {
                    continue;
                }
                let Ok(process) = Process::open(pid) else { continue };
                // It may say of itself that it is removed: a copy has the shared memory of what it was copied from.
                let Some(session) = own_sessions(&process).into_iter().next() else { continue };
                found = true;
                self.left.insert(pid);
                let options = super::super::super::stop_options(self.run.allow_seccomp);
                let removed = process
                    .stop_with(&options)
                    .map_err(EngineError::from)
                    .and_then(|stopped| remove(&process, stopped, &session));
                match removed {
                    Ok(removed) => copies += u64::from(removed.restored > 0),
                    Err(_) if process.has_ended_within(ENDING) => {}
                    Err(why) => {
                        let why = trapless_session::error::Error::other(why);
                        result = result.and(Err(Error::StillProbed { pid: pid.0, why }));
                    }
                }
            }
            if !found {
                break;
            }
        }
        if copies > 0 {
            let text = format!(
                "the probes were taken out of processes that had inherited them and could not be followed (CLONE_UNTRACED, or for want of descriptors): {}",
                count(copies)
            );
            self.collector.note(Aside::Note(Note { code: "copies", text }));
        }
        result
    }
}

/// Our sessions in a process, as it tells them.
fn own_sessions(process: &Process) -> Vec<FoundSession> {
    let mut sessions = find_sessions(process).unwrap_or_default();
    sessions.retain(|session| session.header.tool == std::process::id());
    sessions
}

/// Whether a process has probes of ours.
pub(super) fn has_own_session(process: &Process) -> bool {
    !own_sessions(process).is_empty()
}

/// The processes that have memory mapped under our name.
fn processes_with_memory() -> Vec<Pid> {
    let has = |pid: &Pid| {
        std::fs::read(format!("/proc/{pid}/maps"))
            .is_ok_and(|maps| maps.windows(NAME.len()).any(|text| text == NAME))
    };
    processes().filter(|pid| pid.0 != std::process::id() as i32).filter(has).collect()
}

/// How `/proc` shows it.
const NAME: &[u8] = b"/memfd:trapless";
