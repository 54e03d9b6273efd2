//! What is to be known of a session beside its numbers, by code and in words.

use super::{Session, Snapshot};
use crate::number::{count, plural};
use crate::outcome::{ChildHits, Losses, Note};
use trapless_engine::{Kept, Removed};

impl Session {
    /// What these numbers do not hold, or hold of others. Who reads records ([`Calls`](super::Calls)) knows more of `children` than that
    /// there were some.
    pub fn losses(&self, now: &Snapshot) -> Losses {
        let in_children = (now.in_children > 0).then_some(ChildHits { pid: None, hits: now.in_children });
        Losses {
            not_shown: now.records_lost,
            without_stack: now.unrecorded,
            left_by_exception: now.unwound,
            children: in_children.into_iter().collect(),
            sharing_children: self.sharing_children(),
            lost_sites: self.lost_sites(),
            notes: self.notes().into_iter().chain(self.hidden_children()).chain(of_anybody(now)).collect(),
        }
    }

    /// How patterns were understood, where that is not what they say, and what is known of the process.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes = self.remarks().to_vec();
        notes.extend(self.mapped_again().iter().map(|path| Note {
            code: "mapped_again",
            text: format!(
                "{} was mapped again at another place while it was probed; calls there were not counted",
                path.display()
            ),
        }));
        let sharing = self.sharing_threads();
        if sharing > 0 {
            let threads = if sharing == 1 { "thread shares" } else { "threads share" };
            let text = format!(
                "{sharing} {threads} a thread pointer with another one; hits of such threads at the same time may be lost"
            );
            notes.push(Note { code: "shared_thread_pointer", text });
        }
        let clones = self.unseen_clones();
        if clones > 0 {
            let times = if clones == 1 { "once".to_owned() } else { format!("{clones} times") };
            let text = format!(
                "clone was called {times}; what children called that share the memory (CLONE_VM with CLONE_VFORK) was counted as the process's own"
            );
            notes.push(Note { code: "clones", text });
        }
        notes
    }

    /// What became of children that no tracer is told of. To be asked when the probes are out.
    pub fn hidden_children(&self) -> Option<Note> {
        let ended = self.ended_children();
        let text = format!(
            "breakpoints have ended children that hide from tracers (CLONE_UNTRACED): {}",
            count(ended as u64)
        );
        (ended > 0).then_some(Note { code: "hidden-children", text })
    }
}

/// What is counted of threads that nobody can tell from a child's.
fn of_anybody(now: &Snapshot) -> Option<Note> {
    let text = format!(
        "{} above, counted on threads that found no memory of their own left, and maybe in forked children: give --follow where a program makes thousands",
        plural(now.of_anybody, "hit")
    );
    (now.of_anybody > 0).then_some(Note { code: "maybe-in-children", text })
}

/// What became of memory of ours: of sessions before, and of this one.
pub fn of_memory(freed: usize, kept: Option<Kept>) -> Vec<Note> {
    let sessions = plural(freed as u64, "session");
    let freed = (freed > 0).then(|| Note {
        code: "memory-freed",
        text: format!("unmapped now is memory of {sessions} before, which had to stay in the target"),
    });
    let kept = kept.map(|why| Note {
        code: "memory-kept",
        text: format!(
            "all probes are out, but their memory stays in the target: {why}; the next attach or detach tries again"
        ),
    });
    freed.into_iter().chain(kept).collect()
}

/// Which handlers of signals saw detours where they see the program, and which ones have left bodies of scripts.
pub fn of_handlers(removed: &Removed) -> impl Iterator<Item = Note> + use<> {
    let note = |code, times: usize, text: &dyn Fn(String) -> String| {
        (times > 0).then(|| Note { code, text: text(count(times as u64)) })
    };
    let unseen = note("handler-without-stub", removed.without_stub, &|times| {
        format!(
            "handlers of signals that could not be shown the program: {times}; what they read in contexts may have been a detour's"
        )
    });
    let cut = note("hits-cut-short", removed.cut, &|times| {
        format!(
            "hits that may be in some of the script's numbers only: {times}; handlers of signals came in between, and did not go back there"
        )
    });
    unseen.into_iter().chain(cut)
}
