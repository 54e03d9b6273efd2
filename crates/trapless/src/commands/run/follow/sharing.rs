//! Children that run in their parent's memory until they run another program: those of vfork, posix_spawn and `clone(CLONE_VM)`.
//!
//! They are let run as they are. What such a child of vfork hits is counted apart from its parent by the detours, under the thread
//! that has made it, which stands in the kernel meanwhile. So the difference between its birth and its end or exec is its own.

use super::super::collect::Who;
use super::worker::{Follower, Member};
use crate::cli::validated::Measure;
use crate::report::{Exit, ProbeSummary};
use crate::spec::Kind;
use std::rc::Rc;
use std::sync::Arc;
use trapless_process::{Pid, Process, RemoteAddr, same_memory};

/// A child that runs in its parent's memory.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Whose memory it is.
    pub of: Pid,
    /// The thread that has made it, which stands in the kernel meanwhile.
    thread_pointer: RemoteAddr,
    /// How often children of that thread had hit each probe before.
    before: Vec<u64>,
}

impl Follower<'_> {
    /// Takes a new process in; `None` if it cannot be opened.
    pub(super) fn meet(&mut self, pid: Pid, parent: Pid) -> Option<Rc<Process>> {
        let process = self.open_member(pid, parent.0);
        let shares = |of: Pid| same_memory(pid.leader(), of.leader()) == Some(true);
        if let Some(process) = &process {
            self.family.clean_newborn(parent, process, shares(parent));
        }
        let inherited = process.as_ref().and_then(|process| self.inherited(process));
        // Its parent may be another one than who has made it (`CLONE_PARENT`).
        let maker = inherited.map(|index| Pid(self.targets[index].pid()));
        if let Some(of) = maker.into_iter().chain([parent]).find(|of| shares(*of)) {
            let thread_pointer = self.family.thread_pointer(pid).unwrap_or_default();
            let before = self.hits_of_sharing(of, thread_pointer);
            let sharing = Some(Sharing { of, thread_pointer, before });
            self.members.entry(pid).and_modify(|member| member.sharing = sharing);
        }
        process
    }

    pub(super) fn is_sharing(&self, pid: Pid) -> bool {
        self.members.get(&pid).is_some_and(|member| member.sharing.is_some())
    }

    /// What children of a thread have hit so far that share its memory.
    fn hits_of_sharing(&self, of: Pid, thread_pointer: RemoteAddr) -> Vec<u64> {
        // Only counts are had by thread.
        let counts = self.run.measure == Measure::Count && self.run.limits.max_events.is_none();
        let target = self.targets.iter().find(|armed| counts && armed.pid() == of.0);
        target.map_or_else(Vec::new, |armed| armed.session.hits_of_sharing(thread_pointer))
    }

    /// What a child did in its parent's memory is counted as its own.
    pub(super) fn tell_apart(&mut self, pid: Pid, member: &Member, sharing: &Sharing, exit: Option<Exit>) {
        let now = self.hits_of_sharing(sharing.of, sharing.thread_pointer);
        let Some(of) = self.targets.iter().find(|armed| armed.pid() == sharing.of.0) else { return };
        let rows = of.session.probes_at().zip(now.iter().zip(&sharing.before));
        let rows: Vec<ProbeSummary> = rows
            .map(|((probe, address), (now, before))| ProbeSummary {
                probe: Arc::clone(&probe.probed),
                kind: if probe.kinds.entry { Kind::Entry } else { Kind::Return },
                address,
                sites: 1,
                hits: now.saturating_sub(*before),
                lost: 0,
                collected: None,
            })
            .collect();
        let hits = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.hits));
        let Some(who) = self.who.get_mut(&sharing.of.0) else { return };
        who.told_apart = who.told_apart.saturating_add(hits);
        let who = Who { command: who.command.clone(), parent: member.parent, told_apart: 0 };
        self.collector.of_sharing(pid.0, who, rows, exit);
    }
}
