//! The keeper's work: events of the family become probes and numbers.
//!
//! All of it is one thread, which ends when no probe is in any more: if somebody is still attached to it by then, as a
//! parent that waits for its child of vfork in the kernel, the kernel lets him go. Only then is the report written, for which somebody may
//! have to be waited for.

use super::super::collect::{Aside, Collector, End, Flow, Who};
use super::super::{Armed, pending::Pending};
use super::arming::{Arriving, Newcomer};
use super::ends::Cleaned;
use super::newcomers::Newcomers;
use super::sharing::Sharing;
use super::{OUT, RUNS, Root, Task, ends, exit_of};
use crate::cli::validated::Run;
use crate::commands::wake::Wake;
use crate::error::Error;
use crate::files::Files;
use crate::report::Exit;
use crate::target;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use trapless_process::family::{ChildSignal, Family, FamilyEvent};
use trapless_process::launch::Handover;
use trapless_process::{Pid, Process, same_memory};
use trapless_session::clock::Clock;

/// How often those are looked at who have somebody in their memory, and are to stop.
const TICK: Duration = Duration::from_millis(5);

/// How often the bytes at the sites are looked at again.
const LOOK: Duration = Duration::from_secs(1);

/// How many events are served before anything else is looked at.
const AT_ONCE: usize = 64;

/// A process of the family.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub parent: i32,
    /// `None`: it could not be opened, for want of descriptors or rights.
    pub process: Option<Rc<Process>>,
    /// Whether it runs a program in which nothing matches.
    pub is_without_match: bool,
    pub sharing: Option<Sharing>,
}

/// The run.
pub(super) struct Follower<'r> {
    pub run: &'r Run,
    pub family: Family,
    pub members: HashMap<Pid, Member>,
    pub targets: Vec<Armed>,
    pub who: HashMap<i32, Who>,
    /// Who reads what they collect.
    pub collector: &'r mut dyn Collector,
    /// What all of them run.
    pub files: Files,
    pub beginning: Option<Clock>,
    pub announced: bool,
    /// The probes that have matched anywhere, by their place on the command line.
    pub matched: BTreeSet<usize>,
    /// At the end: those without probes that stand yet, and those that have left.
    pub cleaned: BTreeMap<Pid, Cleaned>,
    pub left: BTreeSet<Pid>,
    /// What was said of a program in which nothing matches.
    pub absent: Option<Error>,
    /// How those are found whom nobody has named.
    pub newcomers: Option<Newcomers>,
    /// What those have loaded who were asked to stop for it.
    pub arriving: BTreeMap<Pid, Arriving>,
    task: &'r Task<'r>,
}

/// Does the run, and reports.
///
/// # Errors
/// Nothing could be probed, probes could not be taken out, or the output broke.
pub(super) fn work(task: &Task<'_>, collector: &mut dyn Collector) -> Result<(), Error> {
    trapless_process::family::raise_descriptor_limit();
    let signal = ChildSignal::new().map_err(Error::other)?;
    let traced = std::thread::scope(|scope| {
        let collector = &mut *collector;
        scope.spawn(move || trace(task, collector, signal)).join()
    });
    let (result, has_begun, absent) = traced.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    trapless_process::keeper::end_with_parent();
    task.running.finish();
    task.tell(OUT);
    if task.parent.gone() {
        return Ok(());
    }
    let is_asked = has_begun && !collector.is_empty() || matches!(task.root, Root::Whoever(_));
    if is_asked && !matches!(result, Err(Error::Output { .. })) {
        let reported = collector.finish_followed();
        return result.and(reported);
    }
    result?;
    absent.map_or(Ok(()), Err)
}

/// The tracer's thread: how its work went, and what was said of a program in which nothing matches.
fn trace(
    task: &Task<'_>,
    collector: &mut dyn Collector,
    signal: ChildSignal,
) -> (Result<(), Error>, bool, Option<Error>) {
    let run = task.run;
    let mut follower = Follower {
        run,
        family: Family::new(super::super::super::stop_options(run.allow_seccomp), signal),
        members: HashMap::new(),
        targets: Vec::new(),
        who: HashMap::new(),
        collector,
        files: run.files(),
        beginning: None,
        announced: false,
        matched: BTreeSet::new(),
        cleaned: BTreeMap::new(),
        left: BTreeSet::new(),
        absent: None,
        newcomers: None,
        arriving: BTreeMap::new(),
        task,
    };
    let begun = follower.begin();
    // A run that has not begun has nothing to report.
    let has_begun = begun.is_ok();
    let watched = begun.and_then(|()| follower.watch());
    let ended = follower.end();
    follower.note_unmatched();
    follower.note_newcomers();
    (watched.and(ended), has_begun, follower.absent)
}

impl Follower<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        match &self.task.root {
            Root::Processes(pids) => pids.iter().try_for_each(|&pid| {
                self.announced = false;
                self.begin_with(pid, None)
            }),
            Root::Whoever(whoever) => {
                self.newcomers = Some(Newcomers::new(whoever.clone()));
                self.begin_with_whoever()
            }
            Root::Command(pid, handover) => {
                self.begin_with(pid.0, Some(*handover))?;
                self.task.tell(RUNS);
                Ok(())
            }
        }
    }

    pub(super) fn begin_with(&mut self, pid: i32, handover: Option<Handover>) -> Result<(), Error> {
        let process = Rc::new(target::open(pid)?);
        let parent = process.status().map_or(0, |status| status.ppid);
        let mut newcomer = Newcomer { process: &process, family: &self.family, stopped: None };
        if let Some(handover) = handover {
            let stopped = handover.take(&process, self.family.options()).map_err(Error::other)?;
            newcomer.stopped = Some(stopped);
        }
        let matched = &mut self.matched;
        let attached =
            Self::attach(self.run, matched, &process, &self.files, |attach| attach(&mut newcomer))?;
        let stopped = newcomer.stopped;
        let probed = match attached {
            Ok(probed) => Some(probed),
            Err(absent) => {
                self.note_absent(pid, absent);
                if self.is_none_of_ours(Pid(pid)) {
                    return Ok(());
                }
                None
            }
        };
        let mut stopped = match stopped {
            Some(stopped) => stopped,
            // Nothing matches there, and what it runs may.
            None => process.stop_with(self.family.options()).map_err(Error::other)?,
        };
        let is_without_match = probed.is_none();
        let known = Some(Rc::clone(&process));
        self.members.insert(Pid(pid), Member { parent, process: known, is_without_match, sharing: None });
        if let Some(probed) = probed {
            self.add(&process, probed)?;
        }
        if let Some(handover) = handover {
            if self.task.parent.should_end() {
                return Err(Error::Interrupted);
            }
            handover.settle(&mut stopped).map_err(Error::other)?;
        }
        self.family.join(stopped).map_err(Error::other)
    }

    /// Until a limit is reached, somebody asks for the end, or nobody is left.
    fn watch(&mut self) -> Result<(), Error> {
        let run = self.run;
        let start = Instant::now();
        let deadline = run.limits.duration.and_then(|limit| start.checked_add(limit));
        let mut next_look = start + LOOK;
        loop {
            self.meet_newcomers()?;
            let is_busy = self.serve()?;
            self.meet_libraries();
            let over = self.task.parent.should_end()
                || deadline.is_some_and(|deadline| Instant::now() >= deadline)
                || (self.family.is_empty() && self.newcomers.is_none());
            // What is not taken from the rings is counted as lost there, if it is too much.
            let is_behind = self.task.running.is_behind();
            if !is_behind && self.collector.take(&mut self.targets)? == Flow::Enough || over {
                return Ok(());
            }
            let now = Instant::now();
            if now >= next_look {
                self.targets.iter().for_each(|armed| armed.session.look_again(&armed.process, false));
                next_look = now + LOOK;
            }
            self.collector.tick(now, &mut self.targets)?;
            if !is_busy {
                let newcomers = self.newcomers.as_ref().map(Newcomers::next_look);
                let libraries =
                    self.targets.iter().filter_map(|armed| armed.pending.as_ref()?.next_look()).min();
                let sharers = self.waits_for_sharers().then(|| now + TICK);
                let times = [Some(next_look), self.collector.next(), deadline, sharers, newcomers, libraries];
                self.sleep(times.into_iter().flatten().min());
            }
        }
    }

    /// Sleeps until something has happened or somebody asks for the end.
    fn sleep(&self, until: Option<Instant>) {
        let mut wake = Wake::default();
        wake.on(Some(self.family.descriptor().as_raw_fd()));
        if let Some(newcomers) = self.newcomers.as_ref().and_then(Newcomers::descriptor) {
            wake.on(Some(newcomers));
        }
        for armed in &self.targets {
            if let Some(libraries) = armed.pending.as_ref().and_then(Pending::descriptor) {
                wake.on(Some(libraries));
            }
        }
        for descriptor in self.task.parent.descriptors() {
            wake.on(Some(descriptor.as_raw_fd()));
        }
        wake.on_noted();
        wake.sleep(until);
    }

    /// Sleeps until something has happened.
    pub(super) fn sleep_for_family(&self, until: Instant) {
        let mut wake = Wake::default();
        wake.on(Some(self.family.descriptor().as_raw_fd()));
        wake.sleep(Some(until));
    }

    /// Serves what has happened, for a while; whether there may be more.
    fn serve(&mut self) -> Result<bool, Error> {
        for _ in 0..AT_ONCE {
            self.meet_pending();
            let Some(event) = self.family.next_event() else { return Ok(false) };
            match event {
                FamilyEvent::Born { pid, parent } => self.born(pid, parent)?,
                FamilyEvent::Execed { pid } => self.execed(pid)?,
                FamilyEvent::Loaded { pid } => {
                    let process = self.members.get(&pid).and_then(|member| member.process.clone());
                    if let Some(process) = process.filter(|_| self.is_wanted(pid)) {
                        self.arm_program(&process)?;
                    }
                    self.go_on_or_leave(pid);
                }
                FamilyEvent::NotLoaded { pid, error } => {
                    self.not_followed(pid.0, &error);
                    self.go_on_or_leave(pid);
                }
                FamilyEvent::Ended { pid, status } => self.ended(pid, exit_of(status))?,
                FamilyEvent::Stopped { pid } if self.arm_arrived(pid) => self.go_on_or_leave(pid),
                FamilyEvent::Stopped { pid } => self.meet_late(pid)?,
                _ => {}
            }
        }
        Ok(true)
    }

    fn born(&mut self, pid: Pid, parent: Pid) -> Result<(), Error> {
        let mut may_leave = false;
        if let Some(process) = self.meet(pid, parent) {
            match self.inherited(&process) {
                _ if self.is_sharing(pid) => {}
                Some(of) => self.arm_child(&process, of),
                // Whoever has created it was killed while doing so, and is forgotten.
                None if ends::has_own_session(&process) => {
                    let why = "its parent was killed while it was created".to_owned();
                    self.not_followed(pid.0, &why);
                }
                // It was created when its parent had no probes yet.
                None if !self.inherits_nothing(pid, parent) => self.arm_program(&process)?,
                None => {
                    self.note_without_match(pid);
                    may_leave = true;
                }
            }
        }
        match may_leave {
            true => self.go_on_or_leave(pid),
            false => self.family.go_on(pid),
        }
        Ok(())
    }

    /// Which target's probes a process has in its memory that has just been created.
    pub(super) fn inherited(&self, process: &Process) -> Option<usize> {
        let sessions = trapless_engine::find_sessions(process).ok()?;
        let own = sessions.iter().find(|session| session.header.tool == std::process::id())?;
        self.targets.iter().position(|armed| armed.pid() == own.header.pid as i32)
    }

    /// Whether a process without probes is a copy of one that has none, because nothing matches there.
    fn inherits_nothing(&self, pid: Pid, parent: Pid) -> bool {
        self.members.get(&parent).is_some_and(|member| member.is_without_match)
            || same_memory(pid.leader(), parent.leader()) == Some(true)
    }

    fn note_without_match(&mut self, pid: Pid) {
        self.members.entry(pid).and_modify(|member| member.is_without_match = true);
    }

    fn execed(&mut self, pid: Pid) -> Result<(), Error> {
        let parent = self.members.get(&pid).map_or(0, |member| member.parent);
        self.retire(pid, End::default())?;
        if !self.may_be_wanted(pid) {
            self.family.let_go(pid);
            return Ok(());
        }
        if let Some(process) = self.open_member(pid, parent) {
            self.note_lost_rights(&process);
            match self.family.load(&process) {
                Ok(()) => return Ok(()),
                Err(error) => self.not_followed(pid.0, &error),
            }
        }
        self.go_on_or_leave(pid);
        Ok(())
    }

    pub(super) fn go_on_or_leave(&mut self, pid: Pid) {
        match self.is_none_of_ours(pid) {
            true => self.leave(pid),
            false => self.family.go_on(pid),
        }
    }

    pub(super) fn ended(&mut self, pid: Pid, exit: Exit) -> Result<(), Error> {
        self.retire(pid, End { exit: Some(exit), ..End::default() })
    }

    /// Takes down the numbers of a process whose program is over, and forgets it.
    pub(super) fn retire(&mut self, pid: Pid, end: End) -> Result<(), Error> {
        self.arriving.remove(&pid);
        let Some(member) = self.members.remove(&pid) else { return Ok(()) };
        if let Some(sharing) = &member.sharing {
            self.tell_apart(pid, &member, sharing, end.exit);
        }
        let Some(index) = self.targets.iter().position(|armed| armed.pid() == pid.0) else { return Ok(()) };
        // In the order of time with what the others have to show.
        self.collector.take(&mut self.targets)?;
        let mut armed = self.targets.swap_remove(index);
        // What was waited for has not come.
        if armed.pending.as_ref().is_some_and(|pending| pending.is_vain(&armed.session)) {
            self.who.remove(&pid.0);
            self.collector.note(Aside::WithoutMatch);
            self.absent = self.absent.take().or(armed.absent.take());
            return Ok(());
        }
        let Some(who) = self.who.remove(&pid.0) else { return Ok(()) };
        self.collector.gone(armed, who, end)
    }
}
