//! What the numbers of a session do not hold, or hold of others.

use super::LostSite;
use serde::Serialize;

/// What a run's numbers do not hold, or hold of others. Nothing is left out silently: each of these is told on standard
/// error, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Hits that a trace did not show, because they came faster than they could be read.
    pub not_shown: u64,
    /// Hits that a trace did not show, because there was too little of the stack to record them.
    pub without_stack: u64,
    /// Followed calls that were left by an exception, so that they have no return. Those that longjmp or the end of a thread has left are
    /// not among them.
    pub left_by_exception: u64,
    /// Hits in children that were forked or share the memory. They are not in the numbers of the probes; a trace shows them with the
    /// child's own number, or with that of its parent where they share the memory.
    pub children: Vec<ChildHits>,
    /// Children made by vfork or posix_spawn, which shared the target's memory and could not be told from it: what they called is in
    /// the target's numbers.
    pub sharing_children: u64,
    /// Armed sites at which calls are no longer counted.
    pub lost_sites: Vec<LostSite>,
    /// What else is to be known, by code.
    pub notes: Vec<Note>,
}

/// Hits in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChildHits {
    /// The child; `None` for all children together, where only numbers are kept, and for those that share the memory or were made without
    /// the C library.
    pub pid: Option<i32>,
    /// How often probes fired in it.
    pub hits: u64,
}

/// Something that its numbers alone do not tell of a whole run, or of how a pattern was understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// What, in a word that stays the same.
    pub code: &'static str,
    /// The same in a sentence.
    pub text: String,
}
