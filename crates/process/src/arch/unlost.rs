//! System calls where they leave every register alone that is none of their own, and no processor has a mode beside its usual one.

use crate::{Errno, Tid};

/// What the next system call clears beside general registers: nothing.
#[derive(Debug)]
pub(crate) struct LostByCalls;

impl LostByCalls {
    /// That of a stopped thread.
    pub fn of(_: Tid) -> Result<Self, Errno> {
        Ok(Self)
    }

    /// Gives it back.
    pub fn put_back(&self, _: Tid) -> Result<(), Errno> {
        Ok(())
    }
}

/// Whether a stopped thread is in another mode: never.
pub(crate) fn is_streaming(_: Tid) -> bool {
    false
}
