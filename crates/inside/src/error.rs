//! Everything that can be in the way.

use std::io;
use trapless_isa::Reason;
use trapless_session::error::Error as SessionError;

/// Why nothing was probed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not on this machine.
    #[error("probes in one's own process are for x86-64 only")]
    Machine,
    /// A filter might end the process for a system call.
    #[error(
        "this process has a seccomp filter, which might end it for a system call; Inside::allow_seccomp says that it does not"
    )]
    Seccomp,
    /// A thread cannot be sent on from a breakpoint.
    #[error(
        "thread {tid} blocks SIGTRAP, and would be ended by a breakpoint that stands for a moment while probes go in or out"
    )]
    TrapBlocked {
        /// The thread.
        tid: i32,
    },
    /// A thread could not be sent on from a breakpoint while it is in a handler.
    #[error(
        "the handler of signal {signal} blocks SIGTRAP, and a thread in it would be ended by a breakpoint that stands for a moment while probes go in or out"
    )]
    HandlerBlocks {
        /// The signal.
        signal: i32,
    },
    /// What was named could not be found.
    #[error(transparent)]
    Find(#[from] SessionError),
    /// A specification that names something other than functions.
    #[error("'{0}' names no function, and only those are probed in one's own process")]
    NoFunction(String),
    /// No function of a file is there.
    #[error("{0:#x} is the entry of no function of a mapped file")]
    Nowhere(u64),
    /// Nothing that was found can be probed.
    #[error("{function} cannot be probed: {reason}")]
    Refused {
        /// The function, or one of them.
        function: String,
        /// Why.
        reason: String,
    },
    /// The code could not be made.
    #[error("the code for a probe cannot be made: {0}")]
    Code(Reason),
    /// No address suits the jump.
    #[error("no memory is free at an address that the jump at {0:#x} could lead to")]
    NoRoom(u64),
    /// Somebody has changed the code.
    #[error("the code at {0:#x} is not what its file has: another tool is there")]
    Modified(u64),
    /// The two are one, as compilers make functions that are alike.
    #[error("the function at {0:#x} cannot be replaced by itself")]
    Itself(u64),
    /// There is a replacement already.
    #[error("the function at {0:#x} is replaced already")]
    Replaced(u64),
    /// A function has as many handlers at its return as it can have.
    #[error("the function at {0:#x} has {most} handlers at its return already", most = crate::points::LANES)]
    Full(u64),
    /// A call is followed by a script's detour or by a handler's point.
    #[error(
        "the returns of the function at {0:#x} have a probe of a script's or a handler already, and cannot have both"
    )]
    Followed(u64),
    /// There is no counter left.
    #[error("the calls of the function at {0:#x} cannot be counted or timed: so many functions' are already")]
    TooMany(u64),
    /// The processor's clock cannot be read.
    #[error(
        "calls cannot be timed: this thread must not read the processor's clock (prctl(PR_SET_TSC)), and would be ended for it"
    )]
    Clock,
    /// Exceptions could not pass.
    #[error("calls cannot be followed to their return, since not all unwinders could be told of it: {0}")]
    Unwinder(String),
    /// A script is wrong: what is, where, as the command tells it.
    #[cfg(feature = "script")]
    #[error("{0}")]
    Script(String),
    /// A script asks for what there is only from outside.
    #[cfg(feature = "script")]
    #[error("{what} cannot be had in one's own process: {why}")]
    NotInside {
        /// What it asks for, as the script writes it.
        what: String,
        /// Why.
        why: &'static str,
    },
    /// Scripts are asked for something from within what they print to.
    #[cfg(feature = "script")]
    #[error("what a script prints to cannot wait for scripts: it runs on the thread that would do it")]
    Within,
    /// It is another process's.
    #[cfg(feature = "script")]
    #[error("the script runs in the process that has forked this one")]
    Forked,
    /// What a script has printed could not be written.
    #[cfg(feature = "script")]
    #[error("what the script has printed could not be written: {0}")]
    Output(io::Error),
    /// The thread that collects what scripts tell has failed.
    #[cfg(feature = "script")]
    #[error("the thread that collects what scripts tell has failed: {0}")]
    Collector(String),
    /// The kernel refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl Error {
    /// Whether it says something of one function, and others can be probed.
    pub(crate) fn is_of_a_site(&self) -> bool {
        matches!(
            self,
            Error::Code(_)
                | Error::NoRoom(_)
                | Error::Modified(_)
                | Error::Full(_)
                | Error::Followed(_)
                | Error::TooMany(_)
        )
    }

    /// What the kernel has just said.
    pub(crate) fn last(what: &'static str) -> Self {
        Self::System { what, source: io::Error::last_os_error() }
    }
}
