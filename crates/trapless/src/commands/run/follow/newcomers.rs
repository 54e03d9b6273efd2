//! Processes that nobody has named: they are found, now and while the run goes on, and follow as if they had been named.
//!
//! Two ways lead here:
//!
//! - **Told before it runs.** As root, the kernel tells who is about to execute one of the files ([`ExecWatch`]). He is seized where he
//!   stands, and his new program is armed before its first instruction.
//! - **Found by looking.** All of `/proc` is looked at again and again. What a process did before is not counted, which the summary says.
//!
//! Without `--follow`, a process leaves the family when it runs something else.

use super::super::collect::Aside;
use super::worker::{Follower, Member};
use crate::error::Error;
use crate::report::{Note, count};
use crate::whoever::{Whoever, is_our_program};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use trapless_process::execs::{ExecWatch, PendingExec};
use trapless_process::{Errno, Pid, Process, processes, status_of};

/// How often `/proc` is looked at, where that is quick.
const LOOK: Duration = Duration::from_millis(20);

/// A look may take one part of so many of the time.
const SHARE: u32 = 20;

/// How long at most somebody is left alone who could not be probed.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How those are found who are wanted.
#[derive(Debug)]
pub(super) struct Newcomers {
    whoever: Whoever,
    watch: Option<ExecWatch>,
    /// Whether all of them are told of before they run.
    is_told: bool,
    /// Programs that are known not to be probed.
    passed: HashSet<Passed>,
    /// Those that could not be probed when it was last tried, for a reason that may pass.
    refused: HashMap<Passed, Refused>,
    /// What the files were when they were marked.
    marked: Vec<(PathBuf, Option<Written>)>,
    /// How many files those had mapped that may still be loading libraries.
    loading: HashMap<i32, usize>,
    next_look: Instant,
    every: Duration,
    /// How many were found that had started meanwhile.
    late: u64,
    /// How many of those who were told of started without us.
    missed: u64,
}

impl Newcomers {
    pub fn new(whoever: Whoever) -> Newcomers {
        let programs = whoever.files.iter().map(|file| file.as_path());
        // Without files everybody's programs would have to wait for us.
        let watch = (!whoever.files.is_empty()).then(|| ExecWatch::new(programs).ok()).flatten();
        let is_told = watch.is_some() && !whoever.now().has_libraries;
        let marked = whoever.files.iter().map(|file| (file.clone(), written(file))).collect();
        let (passed, refused, loading) = (HashSet::new(), HashMap::new(), HashMap::new());
        Newcomers {
            whoever,
            watch,
            is_told,
            marked,
            passed,
            refused,
            loading,
            next_look: Instant::now(),
            every: LOOK,
            late: 0,
            missed: 0,
        }
    }

    /// What becomes readable when somebody is about to run one of the files.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.watch.as_ref().map(|watch| watch.descriptor().as_raw_fd())
    }

    pub fn next_look(&self) -> Instant {
        self.next_look
    }

    /// A file that was written anew is another one, of which nobody is told.
    fn mark_again(&mut self) {
        let Some(watch) = &self.watch else { return };
        let mut has_ended = false;
        for (path, before) in &mut self.marked {
            let marked = watch.add(path);
            let now = written(path);
            self.is_told &= std::mem::replace(before, now) == now && marked.is_ok();
            has_ended |= marked == Err(Errno(libc::EMFILE));
        }
        if has_ended {
            self.end();
        }
    }

    /// Nobody waits for us any more, and nobody is looked for.
    pub fn end(&mut self) {
        self.missed += self.watch.take().map_or(0, |watch| watch.missed());
    }
}

impl Follower<'_> {
    /// Takes in those who are there at the beginning.
    pub(super) fn begin_with_whoever(&mut self) -> Result<(), Error> {
        self.look_for_newcomers(true)?;
        if self.targets.is_empty()
            && let Some(newcomers) = &self.newcomers
        {
            crate::terminal::tell(format_args!("waiting for a process {}", newcomers.whoever.text()));
        }
        Ok(())
    }

    /// Serves those who are about to run one of the files. They stand until then.
    pub(super) fn meet_pending(&mut self) {
        let pending = |newcomers: &mut Newcomers| newcomers.watch.as_mut().and_then(ExecWatch::take);
        while let Some(pending) = self.newcomers.as_mut().and_then(pending) {
            // He goes on when `pending` is dropped.
            self.expect_program(&pending);
        }
    }

    /// Looks for others, if it is time.
    pub(super) fn meet_newcomers(&mut self) -> Result<(), Error> {
        if self.newcomers.as_ref().is_some_and(|newcomers| Instant::now() >= newcomers.next_look) {
            self.look_for_newcomers(false)?;
        }
        Ok(())
    }

    /// Becomes the tracer of somebody who is about to run another program, if nobody is. Who cannot be traced may be found by looking,
    /// which says why.
    fn expect_program(&mut self, pending: &PendingExec) {
        let is_expected = status_of(pending.tid).is_ok_and(|status| {
            let pid = Pid(status.tgid);
            if self.members.contains_key(&pid) || is_our_program(pid.0) {
                return true;
            }
            let is_seized = self.family.seize(pid).is_ok();
            if is_seized {
                let process = Process::open(pid).ok().map(Rc::new);
                let parent = status.ppid;
                self.members.insert(pid, Member { parent, process, is_without_match: true, sharing: None });
            }
            // Its new program may run already, and nobody tells of that any more.
            let is_late = pending.is_over();
            if is_seized && is_late {
                self.family.ask_to_stop(pid);
            }
            is_seized && !is_late
        });
        if let Some(newcomers) = self.newcomers.as_mut().filter(|_| !is_expected) {
            newcomers.missed += 1;
        }
    }

    /// Somebody stands who was to be traced before his program started, and was not.
    pub(super) fn meet_late(&mut self, pid: Pid) -> Result<(), Error> {
        let parent = self.members.get(&pid).map_or(0, |member| member.parent);
        if !self.targets.iter().any(|armed| armed.pid() == pid.0)
            && self.is_wanted(pid)
            && let Some(process) = self.open_member(pid, parent)
        {
            self.arm_program(&process)?;
        }
        self.go_on_or_leave(pid);
        Ok(())
    }

    fn look_for_newcomers(&mut self, is_first: bool) -> Result<(), Error> {
        let since = Instant::now();
        let Some(newcomers) = &mut self.newcomers else { return Ok(()) };
        newcomers.mark_again();
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let loading = std::mem::take(&mut newcomers.loading);
        let conditions = newcomers.whoever.now();
        for Pid(pid) in processes() {
            seen.insert(pid);
            if self.members.contains_key(&Pid(pid)) || is_our_program(pid) || !conditions.are_met_by(pid) {
                continue;
            }
            // A program that is being loaded has more of its libraries at the next look.
            let mapped = if conditions.has_libraries { Whoever::mapped(pid) } else { 0 };
            match is_first || !conditions.has_libraries || loading.get(&pid) == Some(&mapped) {
                true => found.push(pid),
                false => drop(newcomers.loading.insert(pid, mapped)),
            }
        }
        newcomers.passed.retain(|(pid, ..)| seen.contains(pid));
        newcomers.refused.retain(|(pid, ..), _| seen.contains(pid));
        newcomers.every = LOOK.max(since.elapsed() * SHARE);
        found.sort_unstable();
        for pid in found {
            // One may be what another waits for.
            self.meet_pending();
            let key = program_of(pid);
            let Some(newcomers) = &self.newcomers else { break };
            // It was some time ago that it was looked at. A newborn of ours is told of, and is not to be taken for a stranger.
            let is_passed =
                newcomers.passed.contains(&key) || newcomers.refused.get(&key).is_some_and(Refused::waits);
            if is_passed || is_ours(pid) || !newcomers.whoever.now().are_met_by(pid) {
                continue;
            }
            self.announced &= !is_first;
            // What is in one process's way is not in the others'.
            let tried = Instant::now();
            let begun = self.begin_with(pid, None);
            let is_member = self.members.contains_key(&Pid(pid));
            let Some(newcomers) = &mut self.newcomers else { break };
            let before = newcomers.refused.remove(&key);
            match begun {
                Err(error @ Error::Output { .. }) => return Err(error),
                Ok(()) if is_member => newcomers.late += u64::from(!is_first || before.is_some()),
                // It has ended, or runs something else.
                Err(_) if !newcomers.whoever.now().are_met_by(pid) => {}
                Err(error) if error.may_pass() => {
                    newcomers.refused.insert(key, Refused::after(before, error, tried.elapsed()));
                }
                begun => {
                    newcomers.passed.insert(key);
                    if let Err(error) = begun {
                        self.not_followed(pid, &error);
                    }
                }
            }
        }
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.next_look = Instant::now() + newcomers.every;
        }
        Ok(())
    }

    pub(super) fn looks_for_files(&self) -> bool {
        self.newcomers.as_ref().is_some_and(|newcomers| !newcomers.whoever.files.is_empty())
    }

    /// Whether a process that runs a program in which there is nothing to probe has to be let go.
    pub(super) fn is_none_of_ours(&self, pid: Pid) -> bool {
        self.newcomers.is_some() && !self.run.follow && !self.targets.iter().any(|armed| armed.pid() == pid.0)
    }

    /// Whether a process that has just started its program may be one of those who are looked for.
    pub(super) fn may_be_wanted(&self, pid: Pid) -> bool {
        let newcomers = self.newcomers.as_ref().filter(|_| !self.run.follow);
        newcomers.is_none_or(|newcomers| newcomers.whoever.now().may_be_met_by(pid.0))
    }

    /// Whether a process whose libraries are loaded is one of those.
    pub(super) fn is_wanted(&self, pid: Pid) -> bool {
        let newcomers = self.newcomers.as_ref().filter(|_| !self.run.follow);
        newcomers.is_none_or(|newcomers| newcomers.whoever.now().are_met_by(pid.0))
    }

    /// Lets a process go that stands.
    pub(super) fn leave(&mut self, pid: Pid) {
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.passed.insert(program_of(pid.0));
        }
        let process = self.members.remove(&pid).and_then(|member| member.process);
        let released = process.as_ref().is_some_and(|process| self.family.release(process).is_ok());
        if !released {
            self.family.let_go(pid);
        }
    }

    /// Says what a search cannot see.
    pub(super) fn note_newcomers(&mut self) {
        let refused = self.newcomers.as_mut().map(|newcomers| std::mem::take(&mut newcomers.refused));
        for ((pid, start, ..), refused) in refused.into_iter().flatten() {
            // Whoever has its number by now was not refused.
            if Process::start_of(Pid(pid)) == Some(start) {
                self.not_followed(pid, &refused.why);
            }
        }
        let Some(newcomers) = &self.newcomers else { return };
        if newcomers.missed > 0 {
            let text = format!(
                "programs that were started and could not be probed from their first instruction on: {}",
                count(newcomers.missed)
            );
            self.collector.note(Aside::Note(Note { code: "missed", text }));
        }
        if newcomers.late > 0 || !newcomers.is_told {
            let text = format!(
                "processes that start while this runs are found by looking, every {} ms; what they do before is not counted, and who ends sooner is not seen. Found so: {}",
                newcomers.every.as_millis(),
                count(newcomers.late)
            );
            self.collector.note(Aside::Note(Note { code: "found-late", text }));
        }
        if self.who.is_empty() && self.collector.is_empty() {
            let text = format!("there was no process {} that could be probed", newcomers.whoever.text());
            self.collector.note(Aside::Note(Note { code: "nobody", text }));
        }
    }
}

/// What was in the way of probing a process, and may not be at the next try.
#[derive(Debug)]
struct Refused {
    why: Error,
    /// When it is tried again, and how long after this one that is.
    again: Instant,
    wait: Duration,
}

impl Refused {
    /// A process stands still while it is tried, and the others wait for us: the next time comes later each time, and the later the longer
    /// this one `took`.
    fn after(before: Option<Refused>, why: Error, took: Duration) -> Refused {
        let wait = before.map_or(LOOK, |before| (before.wait * 2).min(LONGEST_WAIT)).max(took * SHARE);
        Refused { why, again: Instant::now() + wait, wait }
    }

    fn waits(&self) -> bool {
        Instant::now() < self.again
    }
}

/// A program that is passed by: its process, that one's start, the program's file, and how many files with code it had mapped.
type Passed = (i32, u64, Option<PathBuf>, usize);

/// Which file it is, and when it was changed: device, inode, seconds and nanoseconds.
type Written = (u64, u64, i64, i64);

fn written(path: &Path) -> Option<Written> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

/// Whether a process is traced by the calling thread: also one that was created by one of the family's and was not served yet.
fn is_ours(pid: i32) -> bool {
    // SAFETY: gettid takes nothing and cannot fail.
    status_of(Pid(pid).leader()).is_ok_and(|status| status.tracer == unsafe { libc::gettid() })
}

/// What is remembered of a program that is passed by.
fn program_of(pid: i32) -> Passed {
    let start = Process::known_start_of(Pid(pid)).ok().flatten().unwrap_or_default();
    (pid, start, std::fs::read_link(format!("/proc/{pid}/exe")).ok(), Whoever::mapped(pid))
}
