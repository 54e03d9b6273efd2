//! What the processes of a family have done, and what is settled without a word.

use super::{Family, Member, Program, Run};
use crate::arch::Waiting;
use crate::launch::LaunchError;
use crate::launch::loader::Next;
use crate::open::status_of;
use crate::stop::Parked;
use crate::wait::{self, Happened, Stop};
use crate::{Pid, Registers, Tid, ptrace};
use std::process::ExitStatus;

/// What a process of a family has done. Unless it has ended, it stands until [`Family::go_on`].
#[derive(Debug)]
#[non_exhaustive]
pub enum FamilyEvent {
    /// It was created, and has not run yet.
    Born {
        /// The new process.
        pid: Pid,
        /// Its parent, as `/proc` tells: mostly who has created it.
        parent: Pid,
    },
    /// It has started another program, and stands before its first instruction. All of its other threads are gone.
    Execed {
        /// The process.
        pid: Pid,
    },
    /// The program that [`Family::load`] was asked to load has its libraries, and none of its own code has run.
    Loaded {
        /// The process.
        pid: Pid,
    },
    /// It could not be brought there. It stands somewhere on the way, as if nobody had tried.
    NotLoaded {
        /// The process.
        pid: Pid,
        /// Why.
        error: LaunchError,
    },
    /// All of its threads stand, as [`Family::ask_to_stop`] asked for.
    Stopped {
        /// The process.
        pid: Pid,
    },
    /// It has ended.
    Ended {
        /// The process.
        pid: Pid,
        /// How.
        status: ExitStatus,
    },
}

impl Family {
    /// What has happened next; `None` if nothing has.
    pub fn next_event(&mut self) -> Option<FamilyEvent> {
        loop {
            if let Some(event) = self.told.pop_front() {
                return Some(event);
            }
            if self.pending.is_empty() {
                // Before the look, so that nothing is missed that comes after it.
                self.signal.clear();
                while let Ok(Some(taken)) = wait::take_any_end() {
                    self.pending.push_back(taken);
                }
            }
            let (tid, mut happened) = self.pending.pop_front()?;
            // One that was killed while others were served, or made way for a thread that has called exec, no longer stands there.
            while let Some(newer) = happened.is_ok().then(|| wait::take_end_of(tid)).flatten() {
                happened = newer;
            }
            if let Some(event) = self.settle(tid, happened) {
                return Some(event);
            }
        }
    }

    fn settle(&mut self, tid: Tid, happened: Happened) -> Option<FamilyEvent> {
        let stop = match happened {
            Ok(stop) => stop,
            Err(status) => return self.ended(tid, status),
        };
        if stop == Stop::Event(libc::PTRACE_EVENT_EXEC) {
            let event = self.execed(tid);
            return self.tell_after_children(Pid(tid.0), event);
        }
        let Some(&pid) = self.threads.get(&tid) else { return self.first_stop(tid) };
        let member = self.members.get_mut(&pid)?;
        let stops = member.stops;
        let waiting = member.waiting.remove(&tid).unwrap_or(Waiting::NOTHING);
        let parked = match stop {
            Stop::Interrupted(signal) if signal != libc::SIGTRAP && !stops => {
                // ESRCH means killed, here and below: its end follows.
                let _ = ptrace::listen(tid, 0);
                return None;
            }
            _ if matches!(member.program, Program::Loads(..)) => return self.loads(pid, stop),
            Stop::Signal(signal) => {
                // A signal that is ignored would not have waked it.
                restart_if_interrupted(tid, waiting);
                Parked::Signal(signal)
            }
            Stop::Interrupted(_) => {
                restart_if_interrupted(tid, waiting);
                Parked::Plain
            }
            Stop::Event(event) => {
                if matches!(
                    event,
                    libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE
                ) {
                    self.expect_child(tid, pid);
                }
                // Inside of a system call. In the kernel any stop takes back an interrupt that has not had its effect.
                if stops {
                    let _ = ptrace::interrupt(tid, 0);
                }
                let _ = ptrace::cont(tid, 0);
                return None;
            }
            Stop::Syscall => {
                let _ = ptrace::cont(tid, 0);
                return None;
            }
        };
        let member = self.members.get_mut(&pid)?;
        if stops {
            member.threads.insert(tid, Run::Standing(parked));
            return self.all_stand(pid).then_some(FamilyEvent::Stopped { pid });
        }
        let signal = if let Parked::Signal(signal) = parked { signal } else { 0 };
        let _ = ptrace::cont(tid, signal as usize);
        None
    }

    /// A thread or a process that nobody has told of: it may be here before its creator, which may even have been killed.
    fn first_stop(&mut self, tid: Tid) -> Option<FamilyEvent> {
        let event = self.meet(tid);
        self.expect_no_more(tid);
        event
    }

    /// Takes note of what a thread has created, unless that was here first.
    fn expect_child(&mut self, tid: Tid, pid: Pid) {
        if let Ok(child) = ptrace::event_message(tid).map(|child| Tid(child as i32))
            && !self.early.remove(&child)
        {
            self.expected.insert(child, pid);
        }
    }

    /// What was created has stopped, or has been killed. What was not told because of it comes behind it.
    fn expect_no_more(&mut self, tid: Tid) {
        let Some(pid) = self.expected.remove(&tid) else {
            self.early.insert(tid);
            return;
        };
        if self.expected.values().any(|creator| *creator == pid) {
            return;
        }
        let of = |event: &FamilyEvent| matches!(event, FamilyEvent::Ended { pid: of, .. } | FamilyEvent::Execed { pid: of } if *of == pid);
        let (due, deferred) = std::mem::take(&mut self.deferred).into_iter().partition(of);
        self.deferred = deferred;
        self.told.extend::<Vec<_>>(due);
    }

    fn tell_after_children(&mut self, pid: Pid, event: FamilyEvent) -> Option<FamilyEvent> {
        if self.expected.values().any(|creator| *creator == pid) {
            self.deferred.push(event);
            return None;
        }
        Some(event)
    }

    fn meet(&mut self, tid: Tid) -> Option<FamilyEvent> {
        let Some(status) = self.look(|| status_of(tid).ok()) else {
            // It is ending, or we cannot look. It must not stand for that.
            let _ = ptrace::detach(tid, 0);
            return None;
        };
        let pid = Pid(status.tgid);
        if tid == pid.leader() {
            let threads = [(tid, Run::Standing(Parked::Plain))].into();
            self.members.insert(pid, Member { threads, ..Member::default() });
            self.threads.insert(tid, pid);
            return Some(FamilyEvent::Born { pid, parent: Pid(status.ppid) });
        }
        let Some(member) = self.members.get_mut(&pid) else {
            let _ = ptrace::detach(tid, 0);
            return None;
        };
        self.threads.insert(tid, pid);
        if member.stops {
            member.threads.insert(tid, Run::Standing(Parked::Plain));
            return self.all_stand(pid).then_some(FamilyEvent::Stopped { pid });
        }
        member.threads.insert(tid, Run::Running);
        let _ = ptrace::cont(tid, 0);
        None
    }

    fn ended(&mut self, tid: Tid, status: ExitStatus) -> Option<FamilyEvent> {
        let Some(pid) = self.threads.remove(&tid) else {
            self.expect_no_more(tid);
            return None;
        };
        if tid == pid.leader() {
            // The kernel tells of a leader's end when all others have ended.
            self.forget(pid);
            return self.tell_after_children(pid, FamilyEvent::Ended { pid, status });
        }
        let member = self.members.get_mut(&pid)?;
        member.threads.remove(&tid);
        (member.stops && self.all_stand(pid)).then_some(FamilyEvent::Stopped { pid })
    }

    /// `tid` is the leader's, whichever thread it was that called exec.
    fn execed(&mut self, tid: Tid) -> FamilyEvent {
        let pid = Pid(tid.0);
        self.forget(pid);
        let threads = [(tid, Run::Standing(Parked::Plain))].into();
        self.members.insert(pid, Member { threads, ..Member::default() });
        self.threads.insert(tid, pid);
        FamilyEvent::Execed { pid }
    }

    fn loads(&mut self, pid: Pid, stop: Stop) -> Option<FamilyEvent> {
        let tid = pid.leader();
        // The kernel stops a thread for an interrupt before it gives it the signal of a breakpoint or a step that it has run into. That
        // signal is ours, and would be left to the program; it comes before anything else is executed.
        if matches!(stop, Stop::Interrupted(_)) && ptrace::has_pending_trap(tid) {
            let _ = ptrace::cont(tid, 0);
            return None;
        }
        let member = self.members.get_mut(&pid)?;
        let Program::Loads(loading, process) = &mut member.program else { return None };
        match loading.stopped(process, stop) {
            Ok(Next::Loaded(loaded)) => {
                member.program = Program::Loaded(loaded);
                member.threads.insert(tid, Run::Standing(Parked::Plain));
                let stopped = std::mem::take(&mut member.stops);
                Some(if stopped { FamilyEvent::Stopped { pid } } else { FamilyEvent::Loaded { pid } })
            }
            Ok(Next::Go(signal) | Next::Step(signal))
                if member.stops && !matches!(stop, Stop::Event(_) | Stop::Syscall) =>
            {
                // A step to come would only have led off the breakpoint, which is out already.
                let _ = loading.abandon(process);
                let parked = if signal == 0 { Parked::Plain } else { Parked::Signal(signal) };
                member.program = Program::Runs;
                member.threads.insert(tid, Run::Standing(parked));
                Some(FamilyEvent::Stopped { pid })
            }
            Ok(Next::Go(signal)) => {
                if member.stops {
                    let _ = ptrace::interrupt(tid, 0);
                }
                let _ = ptrace::cont(tid, signal as usize);
                None
            }
            Ok(Next::Step(signal)) => {
                let _ = ptrace::singlestep(tid, signal as usize);
                None
            }
            Err(error) => {
                let _ = loading.abandon(process);
                member.program = Program::Runs;
                member.threads.insert(tid, Run::Standing(Parked::Plain));
                Some(FamilyEvent::NotLoaded { pid, error })
            }
        }
    }
}

fn restart_if_interrupted(tid: Tid, waiting: Waiting) {
    if let Ok(mut registers) = Registers::read(tid)
        && registers.restart_if_interrupted(waiting)
    {
        let _ = registers.write(tid);
    }
}
