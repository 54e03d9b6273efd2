//! A detour: what it is asked for, and what comes of it.
//!
//! What it does besides running the displaced instructions is told in [`crate::payload`], the memory it does it in and the protocol
//! it follows there in [`memory`].

use crate::body::{Extra, Runs, Takes};
use crate::{Displaced, Hook, Operand, Payload, Reason, frames::Point};
use alloc::{string::String, vec::Vec};

pub mod gate;
pub mod memory;
#[cfg(test)]
mod pinned;
pub mod signals;

pub use memory::*;

/// What a detour may use of the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// There is enough.
    #[default]
    Enough,
    /// None. So it can only count, and has to do with registers that hold nothing any more ([`Isa::counts_without_stack`](crate::Isa::counts_without_stack)).
    None,
    /// None, and if the displaced code is at the entry of the function, that is one of Go's compiler, whose callers leave it the flags and
    /// some registers.
    NoneInGo,
    /// Maybe none, at the entry or an exit of such a function, and the goroutine is in its register: the detour asks there how much is left,
    /// and does without where that is too little. What is followed or recorded is counted as lost then.
    AskedInGo,
}

/// A detour to be generated.
#[derive(Clone, Copy, Debug)]
pub struct DetourRequest<'a> {
    /// Where the detour will stand.
    pub address: u64,
    /// The displaced instructions.
    pub displaced: Displaced,
    /// Their bytes.
    pub original: &'a [u8],
    /// The site with its function, for liveness. `displaced` comes from its verdict.
    pub site: &'a crate::Site<'a>,
    /// What to do besides.
    pub payload: Payload,
    /// What [`crate::EntryStep::Fetch`] records. What is more than [`MOST_FETCHED`] is left out.
    pub operands: &'a [Operand],
    /// The bodies that it calls.
    pub runs: Runs<'a>,
    /// What it may use of the stack.
    pub stack: Stack,
    /// The target's probe memory.
    pub layout: &'a Layout,
    /// The arena's shared routines.
    pub runtime: &'a Runtime,
    /// Whether to find out what its instructions stand for: [`Detour::frames`].
    pub tells: bool,
}

impl DetourRequest<'_> {
    /// Whether what its bodies change is where they may: at the entry of a function of C's, nothing of which has run, and at returns.
    pub(crate) fn lets_change(&self) -> bool {
        let DetourRequest { site, displaced, payload, stack, .. } = self;
        let changes = |takes: Option<Takes>| takes.is_some_and(|takes| takes.has(Extra::Changes));
        let has_stack = *stack == Stack::Enough;
        // Behind what stays at an entry is as good; but nothing of it may stand ahead.
        let is_entry = site.address == site.function && displaced.start >= site.address;
        let at_return = payload.followed.and_then(|followed| followed.runs());
        (!changes(payload.runs_at_entry()) || is_entry && has_stack)
            && (!changes(at_return) || payload.pairs() && has_stack)
    }

    /// Whether another function can be called instead, if one is to be: the site is the entry of a whole one, nothing of which has run, and
    /// nothing else is done there.
    pub(crate) fn lets_replace(&self) -> bool {
        let DetourRequest { site, displaced, payload, .. } = self;
        let others = payload.hooks.iter().filter(|hook| !matches!(hook, Hook::CalledBy(_)));
        let only = others.count() == 1 && payload.needs_no_thread();
        let is_entry = site.address == site.function && displaced.start >= site.address;
        payload.replaced_by().is_none() || only && is_entry
    }
}

/// The routines that the detours of one arena share.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// Machine code.
    pub code: Vec<u8>,
    /// Addresses of the routines, each ISA's own order.
    pub routines: Vec<u64>,
    /// What its instructions stand for, for unwinders; empty where the instruction set does not tell.
    pub frames: Vec<Point>,
}

/// A finished detour.
#[derive(Clone, Debug)]
pub struct Detour {
    /// Machine code, to stand at the request's address.
    pub code: Vec<u8>,
    /// For each displaced instruction, its original address and the offset of its copy; last, the first
    /// instruction that stays and the offset of the branch back. A thread stopped at one is at the same place of the
    /// program as one stopped at the other.
    pub places: Vec<(u64, u32)>,
    /// Offset of the address to which a followed call returns.
    pub return_point: Option<u32>,
    /// Offset of where calls of the original arrive that go by an address, of a function that is replaced.
    pub original: Option<u32>,
    /// What its instructions stand for, for unwinders; empty where nobody asks or the instruction set does not tell.
    pub frames: Vec<Point>,
    /// Comments for `explain`, by offset.
    pub comments: Vec<(u32, String)>,
}

impl Detour {
    /// Offset of the copy of the instruction at `original`.
    pub fn copy_of(&self, original: u64) -> Option<u32> {
        self.places.iter().find(|p| p.0 == original).map(|p| p.1)
    }
}

/// Instructions that run elsewhere, because their place is needed.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Machine code, which ends in a branch to the first instruction that stays.
    pub code: Vec<u8>,
    /// As [`Detour::places`].
    pub places: Vec<(u64, u32)>,
    /// What its instructions stand for, for unwinders: instructions so far behind the first that was moved.
    pub frames: Vec<Point>,
}

/// Shorthand of the generators.
pub type Emitted<T> = Result<T, Reason>;
