//! Where the registers of a thread that stands tell the system call that it was in.

use crate::{Pid, Tid};

/// What a thread was waiting in before it was asked to stop: nothing that has to be known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting;

impl Waiting {
    /// Nothing that is known.
    pub const NOTHING: Self = Self;

    /// That of a thread that runs.
    pub fn of(_pid: Pid, _tid: Tid) -> Self {
        Self
    }
}
