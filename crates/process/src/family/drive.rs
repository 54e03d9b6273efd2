//! Letting processes join a family, hold still, go on and leave.

use super::{Family, FamilyEvent, Member, OPTIONS, Program, Run};
use crate::arch::Waiting;
use crate::launch::LaunchError;
use crate::launch::loader::Loading;
use crate::status::{Stat, parse_stat};
use crate::stop::{BASE_OPTIONS, Parked, Thread};
use crate::wait::OnExit;
use crate::{Errno, Pid, Process, Registers, RemoteError, StopError, Stopped, Tid, ptrace};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

impl Family {
    /// Takes a stopped process in, and lets it run.
    ///
    /// # Errors
    /// [`StopError`]; the process is let go then.
    pub fn join(&mut self, stopped: Stopped<'_>) -> Result<(), StopError> {
        let pid = stopped.process.pid();
        for thread in &stopped.threads {
            match ptrace::set_options(thread.tid, (BASE_OPTIONS | OPTIONS) as usize) {
                Ok(()) | Err(Errno(libc::ESRCH)) => {}
                Err(errno) => return Err(stopped.explain(thread.tid, "PTRACE_SETOPTIONS", errno)),
            }
        }
        let mut member = Member::default();
        for thread in stopped.into_threads() {
            thread.give_back(pid);
            self.threads.insert(thread.tid, pid);
            member.threads.insert(thread.tid, Run::Standing(thread.parked));
        }
        self.members.insert(pid, member);
        self.go_on(pid);
        Ok(())
    }

    /// Takes a process in that runs on meanwhile: it is told of when it does something. It may stand in the kernel where nothing
    /// stops it.
    ///
    /// # Errors
    /// What the kernel says: EPERM if it may not be traced, or is already; ESRCH if it has ended.
    pub fn seize(&mut self, pid: Pid) -> Result<(), Errno> {
        if self.members.contains_key(&pid) {
            return Ok(());
        }
        let options = (BASE_OPTIONS | OPTIONS | self.options.ptrace_options) as usize;
        ptrace::seize(pid.leader(), options)?;
        let mut threads = HashMap::from([(pid.leader(), Run::Running)]);
        // One that is made meanwhile by a thread which is not seized yet is found by looking again; others come by themselves.
        let mut before = 0;
        while threads.len() > std::mem::replace(&mut before, threads.len()) {
            for tid in self.tasks(pid) {
                if !threads.contains_key(&tid) && ptrace::seize(tid, options).is_ok() {
                    threads.insert(tid, Run::Running);
                }
            }
        }
        self.threads.extend(threads.keys().map(|&tid| (tid, pid)));
        self.members.insert(pid, Member { threads, ..Member::default() });
        Ok(())
    }

    /// Lets a process that stands run.
    pub fn go_on(&mut self, pid: Pid) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.stops = false;
        for (&tid, run) in &mut member.threads {
            let Run::Standing(parked) = std::mem::replace(run, Run::Running) else { continue };
            let signal = match parked {
                Parked::Signal(signal) => signal,
                Parked::Plain => {
                    // One that job control has stopped must not run. With this each stops once more, at once, and tells which it is.
                    let _ = ptrace::interrupt(tid, 0);
                    0
                }
            };
            // ESRCH means killed: its end follows.
            let _ = ptrace::cont(tid, signal as usize);
        }
    }

    /// Brings a program that stands behind its exec to where its libraries are loaded; [`FamilyEvent::Loaded`] follows.
    ///
    /// # Errors
    /// [`LaunchError`]; it stands as it did.
    pub fn load(&mut self, process: &Rc<Process>) -> Result<(), LaunchError> {
        let pid = process.pid();
        let loading = Loading::begin(process)?;
        if let Some(member) = self.members.get_mut(&pid) {
            member.program = Program::Loads(loading, Rc::clone(process));
            member.threads.insert(pid.leader(), Run::Running);
            let _ = ptrace::cont(pid.leader(), 0);
        }
        Ok(())
    }

    /// What loading has written into the memory of a process that has just been created is taken out of it. `shares`: it runs in its
    /// parent's memory, which is then not loaded to the end.
    pub fn clean_newborn(&mut self, parent: Pid, child: &Process, shares: bool) {
        let Some(member) = self.members.get_mut(&parent) else { return };
        let Program::Loads(loading, process) = &member.program else { return };
        // A child that has ended needs nothing.
        let _ = loading.clean_copy(child);
        if shares {
            let _ = loading.abandon(process);
            member.program = Program::Runs;
        }
    }

    /// Works on a process all of whose threads stand. They stand on afterwards.
    ///
    /// # Errors
    /// Those of `work`, or that the process has ended.
    pub fn hold<T, E: From<RemoteError> + From<StopError>>(
        &mut self,
        process: &Process,
        work: impl FnOnce(&mut Stopped<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let pid = process.pid();
        let mut stopped = self.standing(process)?;
        let member = self.members.get_mut(&pid);
        let loaded = member.and_then(|member| match std::mem::take(&mut member.program) {
            Program::Loaded(loaded) => Some(loaded),
            other => {
                member.program = other;
                None
            }
        });
        let result = match loaded {
            Some(loaded) => loaded.put_back(&mut stopped).map_err(E::from).and_then(|()| work(&mut stopped)),
            None => work(&mut stopped),
        };
        let threads = stopped.into_threads();
        if let Some(member) = self.members.get_mut(&pid) {
            for thread in threads {
                thread.give_back(pid);
                member.threads.insert(thread.tid, Run::Standing(thread.parked));
            }
        }
        result
    }

    /// Asks all threads of a process to stop. [`FamilyEvent::Stopped`] follows, or its end, or another program.
    pub fn ask_to_stop(&mut self, pid: Pid) {
        let Some(member) = self.members.get_mut(&pid) else { return };
        member.stops = true;
        for (&tid, _) in member.threads.iter().filter(|(_, run)| **run == Run::Running) {
            member.waiting.insert(tid, Waiting::of(pid, tid));
            // It can only fail because the thread has ended, which is told.
            let _ = ptrace::interrupt(tid, 0);
        }
        if self.all_stand(pid) {
            self.told.push_back(FamilyEvent::Stopped { pid });
        }
    }

    /// A process all of whose threads stand leaves the family: it runs on by itself when what is returned is dropped.
    ///
    /// # Errors
    /// It has ended.
    pub fn release<'p>(&mut self, process: &'p Process) -> Result<Stopped<'p>, StopError> {
        let mut stopped = self.standing(process)?;
        if let Some(Program::Loaded(loaded)) = self.forget(process.pid()).map(|member| member.program) {
            let _ = loaded.put_back(&mut stopped);
        }
        stopped.at_drop = crate::stopped::AtDrop::LetGo;
        Ok(stopped)
    }

    /// As [`Family::release`], of one that nothing is known of but its id.
    pub fn let_go(&mut self, pid: Pid) {
        let Some(member) = self.forget(pid) else { return };
        for (tid, run) in member.threads {
            let signal = match run {
                Run::Standing(Parked::Signal(signal)) => signal,
                Run::Standing(Parked::Plain) => 0,
                Run::Running => continue,
            };
            let _ = ptrace::detach(tid, signal as usize);
        }
    }

    /// The threads of a process that stand, which is all of them.
    fn standing<'p>(&self, process: &'p Process) -> Result<Stopped<'p>, StopError> {
        let pid = process.pid();
        let member = self.members.get(&pid).ok_or(StopError::Gone(pid))?;
        let mut threads = Vec::new();
        for (&tid, run) in &member.threads {
            // Those that were killed meanwhile have no registers, and their end is told.
            if let Run::Standing(parked) = *run
                && let Ok(regs) = Registers::read(tid)
            {
                threads.push(Thread::new(tid, regs, parked));
            }
        }
        if threads.is_empty() {
            return Err(StopError::Gone(pid));
        }
        threads.sort_by_key(|thread| thread.tid);
        let mut stopped = Stopped::new(process, threads, self.options.clone(), OnExit::Reap, Instant::now());
        stopped.at_drop = crate::stopped::AtDrop::Stand;
        Ok(stopped)
    }

    /// Whether nothing of a process runs, and nothing of it is yet to be told of.
    pub(super) fn all_stand(&self, pid: Pid) -> bool {
        let Some(member) = self.members.get(&pid) else { return false };
        // A leader that has ended before the others is told of when they have.
        let has_ended = |tid: Tid| tid == pid.leader() && self.look(|| thread_has_ended(pid, tid));
        let stands = |(tid, run): (&Tid, &Run)| matches!(run, Run::Standing(_)) || has_ended(*tid);
        if !member.threads.iter().all(stands) {
            return false;
        }
        let mut unknown = self.tasks(pid).into_iter().filter(|tid| !member.threads.contains_key(tid));
        !unknown.any(|tid| !self.look(|| has_ended_or_never_runs(pid, tid)))
    }

    /// The threads of a process, as `/proc` tells.
    fn tasks(&self, pid: Pid) -> Vec<Tid> {
        self.look(|| {
            let listed = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Tid)).collect()
        })
    }

    pub(super) fn forget(&mut self, pid: Pid) -> Option<Member> {
        let member = self.members.remove(&pid)?;
        for tid in member.threads.keys() {
            self.threads.remove(tid);
        }
        Some(member)
    }
}

fn stat_of(pid: Pid, tid: Tid) -> Option<Stat> {
    let text = crate::process::read_file(format!("/proc/{pid}/task/{tid}/stat").as_ref()).ok()?;
    parse_stat(&text).ok()
}

fn thread_has_ended(pid: Pid, tid: Tid) -> bool {
    stat_of(pid, tid).is_none_or(|stat| stat.state.has_ended())
}

/// The same, or whether the kernel has it there for work of its own, which nobody is told of.
fn has_ended_or_never_runs(pid: Pid, tid: Tid) -> bool {
    stat_of(pid, tid).is_none_or(|stat| stat.state.has_ended() || stat.is_worker())
}
