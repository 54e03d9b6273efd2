//! Probes in a process that is followed: those of the root, of a program that was just loaded, and of a forked child.

use super::super::{Armed, measure, watch};
use super::kept::Who;
use super::worker::{Follower, Member};
use crate::cli::validated::{Probe, Run};
use crate::error::Error;
use crate::report::{NotFollowed, Note, Reporter};
use crate::resolve::{self, Kinds, Sites};
use crate::session::{Hold, Holder, Session};
use crate::target::{self, Image};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use trapless_process::family::Family;
use trapless_process::{Process, RemoteError, Stopped};
use trapless_session::error::Error as SessionError;
use trapless_session::select::SelectError;

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

impl Follower<'_> {
    /// Arms a process that `holder` holds, if something matches in it; `None` otherwise.
    pub(super) fn attach(
        run: &Run,
        matched: &mut BTreeSet<usize>,
        process: &Process,
        holder: impl FnOnce(
            &mut dyn FnMut(&mut dyn Holder) -> Result<Session, SessionError>,
        ) -> Result<Session, SessionError>,
    ) -> Result<Result<Session, Error>, Error> {
        let images = target::images(process)?;
        let sites = match present(run, matched, process, &images)? {
            Ok(sites) => sites,
            Err(absent) => return Ok(Err(absent)),
        };
        let mut sites = Some(sites);
        let mechanisms = &run.selection.mechanisms;
        let session = holder(&mut |holder| {
            let sites = sites.take().unwrap_or_default();
            Session::attach(process, &images, sites, measure(run), mechanisms, Hold::Held(holder))
        });
        Ok(Ok(session?))
    }

    /// Arms a program that stands where its libraries are loaded. What is in the way is told, and the program runs without probes.
    pub(super) fn arm_program(
        &mut self,
        process: &Rc<Process>,
        reporter: &mut dyn Reporter,
    ) -> Result<(), Error> {
        let (family, matched) = (&mut self.family, &mut self.matched);
        let attached =
            Self::attach(self.run, matched, process, |attach| attach(&mut Standing { process, family }));
        match attached {
            Ok(Ok(session)) => self.add(process, session, reporter)?,
            Ok(Err(absent)) => self.note_absent(process.pid().0, absent),
            Err(error) => self.not_followed(process.pid().0, &error),
        }
        Ok(())
    }

    /// Gives a forked child numbers of its own: the copy of `of`'s probes that it has inherited counts there.
    pub(super) fn arm_child(&mut self, process: &Rc<Process>, of: usize) {
        let parent = &self.targets[of].session;
        let child = self.family.hold(process, |stopped| parent.of_forked_child(process, stopped));
        match child {
            Ok(session) => {
                let who = self.who.get(&self.targets[of].pid());
                let command = who.map_or_else(String::new, |who| who.command.clone());
                self.add_named(process, session, command);
            }
            Err(error) => self.not_followed(process.pid().0, &error),
        }
    }

    pub(super) fn add(
        &mut self,
        process: &Rc<Process>,
        session: Session,
        reporter: &mut dyn Reporter,
    ) -> Result<(), Error> {
        if !std::mem::replace(&mut self.announced, true) {
            watch::announce(process.pid().0, &session, reporter)
                .map_err(|error| self.run.output.error(error))?;
        }
        self.add_named(process, session, name_of(process.pid().0));
        Ok(())
    }

    fn add_named(&mut self, process: &Rc<Process>, session: Session, command: String) {
        let pid = process.pid();
        let beginning = *self.beginning.get_or_insert(session.clock());
        let parent = self.members.get(&pid).map_or(0, |member| member.parent);
        self.who.insert(pid.0, Who { command, parent, told_apart: 0 });
        self.targets.push(Armed { announced: true, beginning, ..Armed::new(Rc::clone(process), session) });
    }

    /// Takes note of a program in which nothing matches.
    pub(super) fn note_absent(&mut self, pid: i32, absent: Error) {
        self.kept.without_match += 1;
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
            self.kept.notes.push(Note { code: "no-match", text });
        }
    }

    /// Takes note of a process that lives and is not followed.
    pub(super) fn not_followed(&mut self, pid: i32, why: &impl std::fmt::Display) {
        // Where no descriptor is left, nobody knows.
        if Process::known_start_of(trapless_process::Pid(pid)).map_or(true, |start| start.is_some()) {
            let (command, reason) = (name_of(pid), why.to_string());
            self.kept.not_followed.push(NotFollowed { pid, command, reason });
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
            self.kept.notes.push(rights_lost(pid.0, &name_of(pid.0)));
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

/// The sites of those probes that match something in a process; what was said of one that does not, if none does. `matched`: the
/// probes that have matched anywhere.
fn present(
    run: &Run,
    matched: &mut BTreeSet<usize>,
    process: &Process,
    images: &[Image],
) -> Result<Result<Sites, Error>, Error> {
    let selection = &run.selection;
    let kinds = |probe: &Probe| Kinds { entry: probe.entry, returns: probe.returns };
    let all: Vec<_> = selection.probes.iter().map(|probe| (&probe.spec, kinds(probe))).collect();
    let resolve = |probes: &[_]| {
        let probes = probes.iter().copied();
        resolve::resolve(Some(process), images, probes, &selection.exclusions, selection.max_probes)
    };
    let absent = match resolve(&all) {
        Err(error) if is_absent(&error) => error,
        sites => {
            let sites = sites?;
            matched.extend(0..all.len());
            return Ok(Ok(sites));
        }
    };
    let mut matching = Vec::new();
    for (index, probe) in all.into_iter().enumerate() {
        match resolve(&[probe]) {
            Err(error) if is_absent(&error) => {}
            sites => {
                sites?;
                matched.insert(index);
                matching.push(probe);
            }
        }
    }
    if matching.is_empty() {
        return Ok(Err(absent.into()));
    }
    Ok(Ok(resolve(&matching)?))
}

/// Whether an error says that a program has nothing of what was asked for. Another one may have it.
fn is_absent(error: &SessionError) -> bool {
    match error {
        SessionError::Select(error) => matches!(
            error,
            SelectError::NoModule { .. }
                | SelectError::NoFunction { .. }
                | SelectError::NoUsdt { .. }
                | SelectError::Excluded { .. }
        ),
        SessionError::Source { .. } | SessionError::OnlyInlined { .. } => true,
        _ => false,
    }
}
