//! The one judge: may this site be probed, by which mechanism, and may its calls be followed to their return?
//!
//! `list`, `explain` and attaching ask the same functions, so what is offered is what is armed. They look at code and at
//! facts, which whoever asks has read once: of the process ([`Facts`]), of the file ([`crate::Module`]) and of the function
//! ([`Known`]). They touch no process and read no file. What is not known is refused.
//!
//! | file | question it answers |
//! |---|---|
//! | `verdict` | which mechanisms are possible at a site? |
//! | `turns` | where its function jumps back to an entry, may that be led past the probe? |
//! | `faults` | would a handler of the program's see a fault of a moved instruction? |
//! | `shadow_stack` | which instructions does a shadow stack keep where they are? |
//! | `go` | where may a Go program be probed? |
//! | `returns` | may a function's calls be followed to their return? |
//! | `exits` | where not, by which instructions is it left, and may those be probed? |
//! | `known_names` | which functions must not be followed, by their names? |
//! | `runtimes` | which run-time systems find their frames by return addresses? |
//! | `unwinders` | which functions must be hooked for unwinders? |

mod changes;
mod exits;
mod faults;
mod go;
mod known_names;
mod returns;
mod runtimes;
mod shadow_stack;
mod turns;
mod unwinders;
mod verdict;

use crate::Function;
use std::collections::BTreeMap;

pub use changes::lets_change;
pub use exits::exits;
pub(crate) use faults::{MAY_FAULT, seen_by_handlers};
pub use go::{entry_of, stack_of};
pub use returns::judge_returns;
pub use runtimes::{Marks, Runtime, Runtimes};
pub use turns::turns_of;
pub use unwinders::{LANDINGS, LOOKUPS, UNWINDERS, require_unwinders};
pub(crate) use verdict::{Best, best, original, room};
pub use verdict::{Rungs, best_of, room_of, rungs};

/// What is known of a process before any of its functions is looked at. The default: there is no process, so nothing is
/// handled and nothing is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The signals that the program handles; bit `n - 1` is signal `n`, as in `/proc/PID/status`.
    pub handled: u64,
    /// Whether the processor keeps a second copy of every return address (CET).
    pub shadow_stack: bool,
    /// The run-time systems of all modules together.
    pub runtimes: Runtimes,
    /// Handlers of signals are shown the program where they interrupt a detour ([`trapless_isa::detour::signals`]), if all probes that this takes
    /// can be had.
    pub shows: bool,
    /// Handlers are never shown the room of a short jump in Go's code, on the same condition.
    pub hops: bool,
    /// A signal by which a run-time system of the process stops its threads, or 0 ([`trapless_isa::detour::signals::Signals::stops`]).
    pub stops: u32,
    /// Exceptions are thrown, and no unwinder was found that could be hooked.
    pub throws_unhooked: bool,
    /// What its processor has beyond vectors of 128 bits.
    pub vectors: Vectors,
}

/// What system calls and the code of scripts may lose of vectors beyond 128 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors {
    /// Nothing: there are none, or they are kept.
    #[default]
    Kept,
    /// What is beyond (SVE).
    Scalable,
    /// The same, and a mode (SME) in which code of scripts may be no instructions at all.
    Streaming,
}

impl Facts {
    /// The same where handlers see detours.
    pub(crate) fn without_stubs(&self) -> Self {
        Self { shows: false, hops: false, ..*self }
    }
}

/// What is known of a function beside its code.
#[derive(Clone, Debug)]
pub struct Known<'m> {
    /// Its code.
    pub function: Function<'m>,
    /// Its names without versions, mangled; none that were made up.
    pub names: Vec<&'m str>,
    /// How control arrives at its first instruction.
    pub arrival: Arrival,
    /// Whether that is told by its entry in the unwind table.
    pub is_told: bool,
    /// Addresses of the functions that its direct jumps lead to.
    pub goes_on: Vec<u64>,
}

/// The functions that are known, by address. Those that are to be followed are among them, with all that they go on in.
pub type Functions<'m> = BTreeMap<u64, Known<'m>>;

/// How control arrives at a function's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// By a call, or by a jump that leaves the return address where a call puts it.
    Called,
    /// By a jump from the function that it is a part of (`.cold`).
    Jumped,
    /// Nothing says that the return address is where a call puts it.
    Unclear,
}
