//! What can go wrong, and why a site was left out.

use thiserror::Error;
use trapless_isa::Reason;
use trapless_process as process;

/// Why a site was left out. The text completes "skipped: …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The code itself does not allow it.
    #[error(transparent)]
    Verdict(#[from] Reason),
    /// Another probe of the same request displaces these instructions.
    #[error("another probe, at {0:#x}, displaces these instructions")]
    Overlaps(u64),
    /// The displaced instructions may fault, and the program handles such faults.
    #[error("a displaced instruction may fault, and the program handles {0} itself")]
    MayFault(&'static str),
    /// The bytes in memory are not the file's.
    #[error("the code in memory is not the file's: another tool has patched it, or it was relocated")]
    Modified,
    /// Something on a stack, or what may be a context saved elsewhere, points into the displaced instructions.
    #[error("a stack or saved context holds an address inside the displaced instructions")]
    OnStack,
    /// No free address range near the module.
    #[error("no free memory within reach of the module")]
    NoArena,
    /// There is no more room for counters.
    #[error("the counters of all probes together are too large")]
    NoCounters,
    /// A Go function that does not check for stack space may have none left for a detour.
    #[error("Go runs this function on what is left of the stack (nosplit)")]
    NoSplit,
    /// Removal would put back return addresses that the shadow stack does not hold, and a displaced call pushes
    /// one that it never gets.
    #[error("the program has a shadow stack, which does not allow this")]
    ShadowStack,
    /// Followed calls need the unwinder to be hooked, and it could not be found or hooked.
    #[error("exceptions could not pass: the program's unwinder cannot be probed")]
    Unwinder,
}

/// Why a process could not be attached or detached.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The CPU or kernel lacks what detours need.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Nothing is left to probe.
    #[error("none of the {0} sites can be probed")]
    NothingToDo(usize),
    /// The target could not be stopped.
    #[error(transparent)]
    Stop(#[from] process::StopError),
    /// A system call in the target failed.
    #[error(transparent)]
    Remote(#[from] process::RemoteError),
    /// The target's memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] process::MemoryError),
    /// `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] process::ProcError),
    /// Our view of the shared region could not be made.
    #[error("cannot map the shared region: {0}")]
    Map(#[source] std::io::Error),
    /// Other mappings appeared where ours were planned, again and again.
    #[error("the process maps memory faster than places for ours can be found; try again")]
    Crowded,
    /// Two sessions cannot both replace return addresses.
    #[error(
        "process {tool} follows calls of this process to their return already, which only one can do at a time: \
         wait for its end, or leave out returns and latencies"
    )]
    Followed {
        /// The tool that does.
        tool: u32,
    },
    /// The first breakpoint would set the disposition of SIGTRAP to its default.
    #[error(
        "the process ignores SIGTRAP, which a breakpoint would change: probes that trap are not possible here"
    )]
    IgnoresTraps,
    /// A breakpoint in this thread would unblock SIGTRAP and take away its handler.
    #[error(
        "thread {0} blocks SIGTRAP, which a breakpoint would change: probes that trap are not possible here"
    )]
    BlocksTraps(process::Tid),
    /// Detours that read the clock would be killed.
    #[error(
        "thread {0} must not read the time stamp counter (prctl PR_SET_TSC), and a probe that takes times would kill it: count does not, and --mechanism step takes the time outside of it"
    )]
    ClockForbidden(process::Tid),
    /// The work in the keeper failed.
    #[error("{0}")]
    Keeper(String),
}
