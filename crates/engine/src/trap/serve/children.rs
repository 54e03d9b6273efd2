//! What becomes of the processes that the target makes.
//!
//! A forked child gets a clean copy before it runs. A child made by vfork shares the target's memory, so it is served
//! like a thread until it starts another program.

use super::{Server, restore_code};
use crate::{FoundSession, semaphores, trap::returns::Returns};
use trapless_process::{Pid, Process, StopError, Tid, same_memory};
use trapless_wire::JournalSite;

impl Server<'_, '_> {
    pub(super) fn forked(&mut self, tid: Tid, child: Pid, vfork: bool) -> Result<(), StopError> {
        self.told.insert(child);
        // The leader may have exited before the others, and has no memory then.
        if same_memory(tid, child.leader()).unwrap_or(vfork) {
            self.tracer.adopt(child)?;
        } else {
            clean_copy(child, self.session, &self.returns);
            self.tracer.release(child);
        }
        self.tracer.cont(tid, 0)
    }
}

/// Takes everything of ours out of a copy of the target: a forked child.
pub(in crate::trap) fn clean_copy(child: Pid, session: &FoundSession, returns: &Returns) {
    if let Ok(copy) = Process::open(child) {
        // What cannot be cleaned is being killed.
        let _ = restore_code(&copy, session);
        // Jumps stay in the copy, and so do the semaphores that go with them.
        let _ = semaphores::lower(&copy, session, JournalSite::traps);
        returns.restore_in(&copy);
    }
}
