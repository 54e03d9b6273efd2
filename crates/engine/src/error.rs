//! What can go wrong, and why a site was left out.

use crate::{admit::Runtime, answer::Malformed, channel::ChannelError};
use thiserror::Error;
use trapless_isa::Reason;
use trapless_isa::operand::NotRead;
use trapless_process as process;

/// Why a site was left out. The text completes "skipped: …".
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
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
    /// The same, and its handlers could not be given what shows them the program.
    #[error(
        "a displaced instruction may fault, and the program's handlers of such faults could not be exchanged"
    )]
    Handlers,
    /// The bytes in memory are not the file's.
    #[error("the code in memory is not the file's: another tool has patched it, or it was relocated")]
    Modified,
    /// The same, and it was one of ours.
    #[error("{}", probed(*.tool, *.is_left))]
    Probed {
        /// The tool's process.
        tool: u32,
        /// Whether that has ended, and has left it.
        is_left: bool,
    },
    /// Something on a stack, or what may be a context saved elsewhere, points into the displaced instructions.
    #[error("a stack or saved context holds an address inside the displaced instructions")]
    OnStack,
    /// Go stops goroutines at any instruction, and there is too much memory to look for those that would go on inside.
    #[error(
        "a goroutine may have been stopped inside the displaced instructions, and there is too much memory to look for it"
    )]
    Unsearched,
    /// No free address range near the module.
    #[error("no free memory within reach of the module")]
    NoGap,
    /// Modules have an arena each, and a session has only so many.
    #[error("one run can probe {} modules, and this one is beyond", trapless_wire::MAX_ARENAS)]
    TooManyModules,
    /// The detours of a module are larger than what was kept for them.
    #[error("the module's detours need more memory than was kept for them")]
    ArenaTooSmall,
    /// There is no more room for counters.
    #[error("the counters of all probes together are too large")]
    NoCounters,
    /// A tracer would have to run what it does not.
    #[error("a script's code does not run at a probe that traps: {0}")]
    BodyTraps(&'static str),
    /// A function that goes on in another one has no result yet where it is left.
    #[error(
        "the function goes on in another one at {0:#x}, so its result is not known there, and a script's code would be told a wrong one"
    )]
    NoResult(u64),
    /// A Go function that does not check for stack space may have none left for a detour, and so may one that has not checked yet; and what
    /// is asked for takes some.
    #[error(
        "Go runs this on what is left of the stack, and the probe needs some (nosplit, or ahead of the check for more)"
    )]
    NoSplit,
    /// Go looks up a goroutine's frame by the instruction at which it stops it, and a short jump leads by one of another place.
    #[error("Go may stop a goroutine between two jumps, and would take its frame for another")]
    Preempted,
    /// Removal would put back return addresses that the shadow stack does not hold, and a displaced call pushes
    /// one that it never gets.
    #[error("the program has a shadow stack, which does not allow this")]
    ShadowStack,
    /// Followed calls need the unwinder to be hooked, and it could not be found or hooked.
    #[error("exceptions could not pass: the program's unwinder cannot be probed")]
    Unwinder,
    /// An unwinder that is asked by a signal handler may go astray where it has interrupted code of ours, and the one there is could not be found
    /// or hooked (powerpc64le).
    #[error(
        "the program's unwinder cannot be probed, so a handler's walk over the stack could go astray in a copy of the \
         instruction: only stepping is safe"
    )]
    Walks,
    /// Another one has taken it since it was found free.
    #[error("the pointer to the original leads to that of another function, which was replaced meanwhile")]
    Pointer,
    /// A run-time system finds the frames of its own code by their return addresses.
    #[error("{0}")]
    Runtime(Runtime),
    /// A run-time system finds frames by the return addresses of any function in the process.
    #[error("something else in the program does not allow it: {0}")]
    RuntimeInProcess(Runtime),
    /// The program starts here, by no call.
    #[error("nobody calls the entry point")]
    EntryPoint,
    /// An unwinder starts here.
    #[error("it walks the stack from its own return address on")]
    WalksStack,
    /// By its name: it compares its return address with the modules' addresses.
    #[error("the function chooses by its return address")]
    ChoosesByCaller,
    /// By its name: it reports where it was called from.
    #[error("the function reports its return address")]
    ReportsCaller,
    /// By its name: it returns more than once, to another frame, or is reached by no call.
    #[error("the function does not return exactly once to its caller")]
    ReturnsOddly,
    /// The compiler moved this part of a function away.
    #[error("it is a part of a function that is jumped to, not called")]
    Part,
    /// Nothing says that a call arrives.
    #[error("the function is not seen to be called: it may be a part that is jumped to")]
    NotCalled,
    /// It ends in a jump to a function that cannot be followed: its name, or its address.
    #[error("it goes on in {0}, which cannot be followed")]
    GoesOn(String),
    /// Its calls cannot be paired, and it is left at this place, which cannot be probed.
    #[error("its return address has to stay, and at {0:#x}, where it is left: {1}")]
    Exit(u64, Box<Refusal>),
    /// A part of the file that tells where control arrives could not be read.
    #[error("{0} could not be read")]
    Unread(&'static str),
    /// Bodies of a script have no stacks of their own in a session that began without Go.
    #[error(
        "Go's run-time system came after the script had begun, which has no stacks for goroutines: begin again"
    )]
    NoBodyStacks,
    /// The keeper finds return addresses on the stack.
    #[error(
        "a probe that traps follows no calls where they are given their return address in a register; a branch does"
    )]
    InRegister,
    /// A script asks for an argument of a USDT probe that is not told at this place.
    #[error("the script asks for arg{0} there: {1}")]
    Operand(u8, NotRead),
    /// It makes a system call, which would become a signal.
    #[error(
        "it makes a system call, and those of the program's threads are made into signals (prctl PR_SET_SYSCALL_USER_DISPATCH)"
    )]
    Dispatching,
    /// The semaphore of a USDT probe cannot be raised.
    #[error("its semaphore is not in writable memory of the module's own, or counts no further")]
    Semaphore,
}

impl Refusal {
    /// Its name for programs. It never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Verdict(reason) => reason.code(),
            Refusal::Overlaps(_) => "overlaps",
            Refusal::MayFault(_) => "may_fault",
            Refusal::Handlers => "handlers",
            Refusal::Modified => "modified",
            Refusal::Probed { .. } => "probed",
            Refusal::OnStack => "on_stack",
            Refusal::Unsearched => "unsearched",
            Refusal::NoGap => "no_gap",
            Refusal::TooManyModules => "too_many_modules",
            Refusal::ArenaTooSmall => "arena_too_small",
            Refusal::NoCounters => "no_counters",
            Refusal::BodyTraps(_) => "body_traps",
            Refusal::NoResult(_) => "no_result",
            Refusal::NoSplit => "nosplit",
            Refusal::NoBodyStacks => "no_body_stacks",
            Refusal::Preempted => "preempted",
            Refusal::ShadowStack => "shadow_stack",
            Refusal::Unwinder => "unwinder",
            Refusal::Walks => "walks",
            Refusal::Pointer => "pointer",
            Refusal::Runtime(_) => "runtime",
            Refusal::RuntimeInProcess(_) => "runtime_in_process",
            Refusal::EntryPoint => "entry_point",
            Refusal::WalksStack => "walks_stack",
            Refusal::ChoosesByCaller => "chooses_by_caller",
            Refusal::ReportsCaller => "reports_caller",
            // What the code shows and what a name says is one reason.
            Refusal::ReturnsOddly => "returns_oddly",
            Refusal::Part => "part",
            Refusal::NotCalled => "not_called",
            Refusal::GoesOn(_) => "tail_call_unknown",
            Refusal::Exit(..) => "exit",
            Refusal::Unread(_) => "unread",
            Refusal::InRegister => "in_register",
            Refusal::Operand(..) => "operand",
            Refusal::Dispatching => "dispatching",
            Refusal::Semaphore => "semaphore",
        }
    }

    /// The text for all sites that have this reason, without the addresses and names that are each site's own.
    pub fn group(&self) -> String {
        match self {
            Refusal::Verdict(Reason::BranchInto(_)) => {
                "a branch leads inside the displaced instructions".to_owned()
            }
            Refusal::Overlaps(_) => "another probe displaces these instructions".to_owned(),
            Refusal::NoResult(_) => {
                "it goes on in another function, and its result is not known there".to_owned()
            }
            Refusal::GoesOn(_) => "it goes on in a function that cannot be followed".to_owned(),
            Refusal::Exit(_, why) => {
                format!("its return address has to stay, and where it is left: {}", why.group())
            }
            other => other.to_string(),
        }
    }
}

/// Why a site of the plan was left alone after all, when all threads stood. Each is a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// [`Refusal::OnStack`]
    OnStack,
    /// [`Refusal::Modified`]
    Modified,
    /// [`Refusal::Unwinder`]
    Unwinder,
    /// [`Refusal::Semaphore`]
    Semaphore,
    /// [`Refusal::Handlers`]
    Handlers,
    /// [`Refusal::Unsearched`]
    Unsearched,
    /// [`Refusal::Walks`]
    Walks,
    /// [`Refusal::Pointer`]
    Pointer,
    /// [`Refusal::Dispatching`]
    Dispatching,
}

impl LeftAlone {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::OnStack,
        Self::Modified,
        Self::Unwinder,
        Self::Semaphore,
        Self::Handlers,
        Self::Unsearched,
        Self::Walks,
        Self::Pointer,
        Self::Dispatching,
    ];
}

impl From<LeftAlone> for Refusal {
    fn from(left: LeftAlone) -> Self {
        match left {
            LeftAlone::OnStack => Refusal::OnStack,
            LeftAlone::Modified => Refusal::Modified,
            LeftAlone::Unwinder => Refusal::Unwinder,
            LeftAlone::Semaphore => Refusal::Semaphore,
            LeftAlone::Handlers => Refusal::Handlers,
            LeftAlone::Unsearched => Refusal::Unsearched,
            LeftAlone::Walks => Refusal::Walks,
            LeftAlone::Pointer => Refusal::Pointer,
            LeftAlone::Dispatching => Refusal::Dispatching,
        }
    }
}

fn probed(tool: u32, is_left: bool) -> String {
    match is_left {
        false => format!("another trapless (process {tool}) has a probe there: end that first"),
        true => "a trapless that was interrupted has left a probe there: take that out first, with trapless detach".to_owned(),
    }
}

/// Why a process could not be attached or detached.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The CPU or kernel lacks what detours need.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Nothing is left to probe.
    #[error("none of the {} sites can be probed", .0.len())]
    NothingToDo(Vec<(u32, Refusal)>),
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
    /// A session that runs has no room for more sites.
    #[error("the session has no room for more probes: start another one for them")]
    Full,
    /// The process that sites were to be added to has not got the session any more.
    #[error("the process has not got the probes any more that these were to be added to")]
    NotArmed,
    /// The kernel refuses to map even the least that probes need.
    #[error(
        "the process may not map the memory that probes need: its limits (RLIMIT_AS, RLIMIT_DATA) or the machine's leave no room"
    )]
    NoMemory,
    /// Two sessions cannot both replace return addresses.
    #[error(
        "process {tool} follows calls of this process to their return already, or is asked by its unwinder, which \
         only one can be at a time: wait for its end, or leave out returns and latencies"
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
    /// Its system calls become signals of its own, and it is to make some for us.
    #[error(
        "thread {0} has its system calls made into signals (prctl PR_SET_SYSCALL_USER_DISPATCH), as Wine does, and is to make some on its way through these probes: count, latency and trace do without, and so do scripts that read no memory (str(), what pointers lead to) and delay nothing"
    )]
    Dispatching(process::Tid),
    /// The work in the keeper failed, for a reason of which only the text has come.
    #[error("{0}")]
    Keeper(String),
    /// The keeper could not be started, or did not come to its end.
    #[error(transparent)]
    KeeperEnded(#[from] process::keeper::KeeperError),
    /// It cannot be heard, or told.
    #[error("cannot talk to the keeper process: {0}")]
    Channel(#[from] ChannelError),
    /// It gave an answer that is none.
    #[error("the keeper process gave an answer that is none: {0}")]
    Answer(#[from] Malformed),
    /// A launched command stands, and cannot be let run.
    #[error("the command could not be let run: {0}")]
    NotLetRun(#[source] ChannelError),
}

impl EngineError {
    /// Whether the same may succeed later by itself: because of what the process is doing just now, or a tool that probes it.
    pub fn may_pass(&self) -> bool {
        match self {
            EngineError::Stop(error) | EngineError::Remote(process::RemoteError::Stop(error)) => {
                error.may_pass()
            }
            EngineError::Crowded | EngineError::Followed { .. } => true,
            _ => false,
        }
    }
}
