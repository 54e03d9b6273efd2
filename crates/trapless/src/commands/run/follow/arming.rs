//! Probes in a process that is followed: those of the root, of a program that was just loaded, and of a forked child.

use super::super::collect::{Aside, Who};
use super::super::{
    Armed,
    pending::{self, News, Pending},
    present::{is_absent, present},
};
use super::worker::{Follower, Member};
use crate::cli::validated::Run;
use crate::error::Error;
use crate::files::Files;
use crate::report::{NotFollowed, Note};
use crate::resolve::Sites;
use crate::session::{Hold, Holder, Session};
use crate::target;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use trapless_process::family::Family;
use trapless_process::{Process, RemoteError, Stopped};
use trapless_session::error::Error as SessionError;

/// Holds a process that is no member of the family yet, from its first stop on.
pub(super) struct Newcomer<'p, 'f> {
    pub process: &'p Process,
    pub family: &'f Family,
    /// Where it stands.
    pub stopped: Option<Stopped<'p>>,
}

impl Holder for Newcomer<'_, '_> {
    fn hold(&mut self, work: &mut dyn FnMut(&mut Stopped<'_>)) -> Result<(), RemoteError> {
        if self.stopped.is_none() {
            self.stopped = Some(self.process.stop_with(self.family.options())?);
        }
        self.stopped.as_mut().into_iter().for_each(work);
        Ok(())
    }
}

/// Holds a member of the family that stands.
struct Standing<'p, 'f> {
    process: &'p Process,
    family: &'f mut Family,
}

impl Holder for Standing<'_, '_> {
    fn hold(&mut self, work: &mut dyn FnMut(&mut Stopped<'_>)) -> Result<(), RemoteError> {
        self.family.hold(self.process, |stopped| {
            work(stopped);
            Ok(())
        })
    }
}

/// What a process has loaded that is to be stopped for it.
pub(super) struct Arriving {
    news: News,
    /// Whether it was asked to stop.
    is_asked: bool,
}

/// A process's session, and what is probed in libraries that it loads later.
pub(super) struct Probed {
    pub session: Session,
    pub pending: Option<Pending>,
    /// Why it has no probes yet, where it has none.
    pub absent: Option<Error>,
}

impl Follower<'_> {
    /// Looks for libraries that were loaded. What is to be armed for them is when the process stands, which it is asked for. Who has a child in
    /// its memory is asked when that has left it: no code is changed under anybody who runs.
    pub(super) fn meet_libraries(&mut self) {
        for index in 0..self.targets.len() {
            let armed = &mut self.targets[index];
            let Some(pending) = &mut armed.pending else { continue };
            let pid = armed.process.pid();
            if self.arriving.contains_key(&pid) {
                pending.acknowledge(&armed.session);
            } else if let Some(news) = pending.news(self.run, &armed.process, &mut armed.session) {
                if news.is_any() {
                    self.arriving.insert(pid, Arriving { news, is_asked: false });
                } else {
                    pending.arm(self.run, &armed.process, &mut armed.session, news, None);
                }
                self.matched.extend(pending.matched());
            }
            self.ask_for_arriving(pid);
        }
    }

    /// Asks a process to stop for what has arrived, if it may be asked and was not.
    fn ask_for_arriving(&mut self, pid: trapless_process::Pid) {
        let waits = self.arriving.get(&pid).is_some_and(|arriving| !arriving.is_asked);
        if !waits || self.sharer_of(pid).is_some() {
            return;
        }
        if let Some(arriving) = self.arriving.get_mut(&pid) {
            arriving.is_asked = true;
            self.family.ask_to_stop(pid);
        }
    }

    /// Whether somebody is to be asked to stop as soon as he may be.
    pub(super) fn waits_for_sharers(&self) -> bool {
        self.arriving.values().any(|arriving| !arriving.is_asked)
    }

    /// Arms what has arrived in a process that stands; whether something has.
    pub(super) fn arm_arrived(&mut self, pid: trapless_process::Pid) -> bool {
        let Some(mut arriving) = self.arriving.remove(&pid) else { return false };
        if self.sharer_of(pid).is_some() {
            arriving.is_asked = false;
            self.arriving.insert(pid, arriving);
            return true;
        }
        let family = &mut self.family;
        if let Some(armed) = self.targets.iter_mut().find(|armed| armed.pid() == pid.0)
            && let Some(pending) = &mut armed.pending
        {
            let process = Rc::clone(&armed.process);
            let mut standing = Standing { process: &process, family };
            let hold = Hold::Held(&mut standing);
            pending.arm(self.run, &process, &mut armed.session, arriving.news, Some(hold));
        }
        true
    }

    /// Arms a process that `holder` holds, if something matches in it; `None` otherwise.
    pub(super) fn attach(
        run: &Run,
        matched: &mut BTreeSet<usize>,
        process: &Process,
        files: &Files,
        holder: impl FnOnce(
            &mut dyn FnMut(&mut dyn Holder) -> Result<Session, SessionError>,
        ) -> Result<Session, SessionError>,
    ) -> Result<Result<Probed, Error>, Error> {
        let images = target::images(process, files)?;
        let later = pending::later(run);
        let present = present(run, process, &images, is_absent)?;
        matched.extend(present.matched());
        let mut sites = present.sites;
        let absent = present.absent.into_values().next().filter(|_| sites.is_none()).map(Error::from);
        let absent = match (absent, later) {
            (Some(absent), None) => return Ok(Err(absent)),
            (absent, _) => absent,
        };
        let none = Sites::default();
        let asked = super::super::asked(run, process, &images, sites.as_ref().unwrap_or(&none), later)?;
        let session = holder(&mut |holder| {
            let sites = sites.take().unwrap_or_default();
            Session::attach(process, &images, sites, asked.clone(), Hold::Held(holder))
        });
        match (session, absent) {
            (Ok(session), absent) => {
                let pending =
                    later.map(|_| Pending::of(process, &session, (&images, files), BTreeMap::new()));
                Ok(Ok(Probed { session, pending, absent }))
            }
            // It has no loader that tells, and nothing to be probed.
            (Err(SessionError::NothingProbed { .. }), Some(absent)) => Ok(Err(absent)),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Arms a program that stands where its libraries are loaded. What is in the way is told, and the program runs without probes.
    pub(super) fn arm_program(&mut self, process: &Rc<Process>) -> Result<(), Error> {
        let (family, matched) = (&mut self.family, &mut self.matched);
        let attached = Self::attach(self.run, matched, process, &self.files, |attach| {
            attach(&mut Standing { process, family })
        });
        match attached {
            Ok(Ok(probed)) => self.add(process, probed)?,
            Ok(Err(absent)) => self.note_absent(process.pid().0, absent),
            Err(error) => self.not_followed(process.pid().0, &error),
        }
        Ok(())
    }

    /// Gives a forked child numbers of its own: the copy of `of`'s probes that it has inherited counts there.
    pub(super) fn arm_child(&mut self, process: &Rc<Process>, of: usize) {
        if let Some(Err(error)) = self.run.script.as_ref().map(|code| code.check_shared()) {
            self.not_followed(process.pid().0, &error);
            return;
        }
        let parent = &self.targets[of].session;
        let child = self.family.hold(process, |stopped| parent.of_forked_child(process, stopped));
        match child {
            Ok(session) => {
                let who = self.who.get(&self.targets[of].pid());
                let command = who.map_or_else(String::new, |who| who.command.clone());
                let pending =
                    self.targets[of].pending.as_ref().map(|own| own.of_forked_child(process, &session));
                let absent = None;
                self.add_named(process, Probed { session, pending, absent }, command);
            }
            Err(error) => self.not_followed(process.pid().0, &error),
        }
    }

    pub(super) fn add(&mut self, process: &Rc<Process>, probed: Probed) -> Result<(), Error> {
        if !std::mem::replace(&mut self.announced, true) {
            self.collector.armed(process.pid().0, &probed.session)?;
        }
        self.add_named(process, probed, name_of(process.pid().0));
        Ok(())
    }

    fn add_named(&mut self, process: &Rc<Process>, probed: Probed, command: String) {
        let Probed { session, pending, absent } = probed;
        let pid = process.pid();
        let beginning = *self.beginning.get_or_insert(session.clock());
        let parent = self.members.get(&pid).map_or(0, |member| member.parent);
        self.who.insert(pid.0, Who { command, parent, told_apart: 0 });
        let armed = Armed::new(Rc::clone(process), session);
        let armed = Armed { announced: true, beginning, pending, absent, ..armed };
        if let Err(error) = self.collector.joined(pid.0, &armed.session) {
            self.not_followed(pid.0, &error);
        }
        self.targets.push(armed);
    }

    /// Takes note of a program in which nothing matches.
    pub(super) fn note_absent(&mut self, pid: i32, absent: Error) {
        self.collector.note(Aside::WithoutMatch);
        self.absent.get_or_insert(absent);
        if let Some(member) = self.members.get_mut(&trapless_process::Pid(pid)) {
            member.is_without_match = true;
        }
    }

    /// Takes note of the probes that have matched nowhere, where others have.
    pub(super) fn note_unmatched(&mut self) {
        // Files were looked at before anybody was waited for.
        if self.looks_for_files() {
            return;
        }
        let probes = self.run.selection.probes.iter().enumerate();
        for (_, probe) in probes.filter(|(index, _)| !self.matched.contains(index)) {
            let text = format!("'{}' matched nothing in any program", probe.spec.text);
            self.collector.note(Aside::Note(Note { code: "no-match", text }));
        }
    }

    /// Takes note of a process that lives and is not followed.
    pub(super) fn not_followed(&mut self, pid: i32, why: &impl std::fmt::Display) {
        // Where no descriptor is left, nobody knows.
        if Process::known_start_of(trapless_process::Pid(pid)).map_or(true, |start| start.is_some()) {
            let (command, reason) = (name_of(pid), why.to_string());
            self.collector.note(Aside::NotFollowed(NotFollowed { pid, command, reason }));
        }
    }

    /// A program with the set-uid bit has its owner's rights, unless a tracer without rights of its own was there when it was started.
    pub(super) fn note_lost_rights(&mut self, process: &Process) {
        let pid = process.pid();
        let Ok(file) = std::fs::metadata(format!("/proc/{pid}/exe")) else { return };
        let Ok(status) = process.status() else { return };
        let set_uid = file.mode() & libc::S_ISUID != 0 && file.uid() != status.uid[1];
        let set_gid = file.mode() & libc::S_ISGID != 0
            && file.mode() & libc::S_IXGRP != 0
            && file.gid() != status.gid[1];
        if (set_uid || set_gid) && !has_given_up_rights(pid.0) {
            self.collector.note(Aside::Note(rights_lost(pid.0, &name_of(pid.0))));
        }
    }

    pub(super) fn open_member(&mut self, pid: trapless_process::Pid, parent: i32) -> Option<Rc<Process>> {
        let opened = Process::open(pid);
        let process = match opened {
            Ok(process) => Some(Rc::new(process)),
            Err(error) => {
                self.not_followed(pid.0, &error);
                None
            }
        };
        self.members.insert(pid, Member { parent, process: process.clone(), ..Member::default() });
        process
    }
}

/// Whether it would have got no rights anyway (`PR_SET_NO_NEW_PRIVS`).
fn has_given_up_rights(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1'))
}

fn rights_lost(pid: i32, command: &str) -> Note {
    Note {
        code: "rights-lost",
        text: format!(
            "{command} (process {pid}) is set-uid or set-gid and did not get its rights, because it was traced: run trapless as root, or without --follow"
        ),
    }
}

/// The short name of the program that a process runs.
pub(super) fn name_of(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()
}
