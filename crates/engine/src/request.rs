//! What the engine is asked to probe.

use crate::admit::{Functions, Runtimes};
use crate::live_patch::LivePatch;
use crate::script::Clauses;
use std::fmt::Debug;
use std::ops::Range;
use trapless_isa::{BranchTargets, Identity, Lookup, Machine, Mechanism, Operand, Sharing, SignalCall, Site};

/// A loaded module: code of one file in the target.
#[derive(Clone, Debug)]
pub struct Module<'m> {
    /// Instruction set of the code.
    pub machine: Machine,
    /// First address of its mappings in the target.
    pub start: u64,
    /// Address behind its last mapping.
    pub end: u64,
    /// Where control can arrive other than by falling through, in addresses of the target.
    pub targets: &'m BranchTargets,
    /// Addresses inside of its functions where registers are told of, in order. The plan finds them.
    pub observed: Vec<u64>,
    /// Run-time systems that the file shows.
    pub runtimes: Runtimes,
    /// Address of its entry point in the target.
    pub entry: u64,
    /// Where it lists its goroutines, if it is known to have any: `runtime.allgptr` and `runtime.allglen`.
    pub goroutines: Option<[u64; 2]>,
    /// What is known of its functions beside their code.
    pub functions: &'m Functions<'m>,
    /// All its functions.
    pub code: &'m dyn Code,
}

/// The code of a module's file.
pub trait Code: Debug + Sync {
    /// The functions that have bytes in `range`, or padding, but for those of which it is not known where all jumps into them lead.
    fn functions(&self, range: Range<u64>) -> Vec<Function<'_>>;

    /// Whether it is known that Go's compiler, and not its assembler, made the function that begins at `address`.
    fn is_compiled_by_go(&self, address: u64) -> bool;

    /// Whether something may be in scalable vectors where the function that begins at `address` is entered or left, or somewhere `inside` of it.
    fn may_hold_vectors(&self, address: u64, inside: bool) -> bool;
}

/// Nothing but the functions that are asked for.
impl Code for () {
    fn functions(&self, _: Range<u64>) -> Vec<Function<'_>> {
        Vec::new()
    }

    fn is_compiled_by_go(&self, _: u64) -> bool {
        false
    }

    fn may_hold_vectors(&self, _: u64, _: bool) -> bool {
        true
    }
}

impl Module<'_> {
    /// One of its functions as the instruction set sees it, from its first instruction on.
    pub(crate) fn whole<'a>(&'a self, function: &Function<'a>) -> Site<'a> {
        Site {
            address: function.address,
            function: function.address,
            code: function.code(),
            padding: function.padding(),
            targets: self.targets,
            observed: &self.observed,
        }
    }
}

/// A function of a loaded module.
#[derive(Clone, Copy, Debug)]
pub struct Function<'m> {
    /// Address of its first byte in the target.
    pub address: u64,
    /// Its code, as the file has it, and what lies between it and the next function.
    pub bytes: &'m [u8],
    /// Length of the code; the rest of `bytes` is padding.
    pub size: usize,
}

impl<'m> Function<'m> {
    /// The code alone.
    pub fn code(&self) -> &'m [u8] {
        &self.bytes[..self.size.min(self.bytes.len())]
    }

    /// The padding alone.
    pub fn padding(&self) -> &'m [u8] {
        &self.bytes[self.size.min(self.bytes.len())..]
    }
}

/// How the calls of a function are followed, and what a site has to do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Calls that are followed are paired at the site, which is an entry.
    #[default]
    Whole,
    /// An entry at which calls are noted. They are followed to the exits, the other sites of the same id.
    Noted {
        /// By what a call is known again.
        by: Identity,
    },
    /// The same, and what is displaced at the entry reaches to one of the exits, which is no site of its own.
    Through {
        /// By what a call is known again.
        by: Identity,
        /// Address of that exit.
        exit: u64,
        /// Whether its result is there.
        result: bool,
    },
    /// An instruction by which the function of the entry with the same id is left.
    Exit {
        /// By what a call is known again.
        by: Identity,
        /// Whether its result is there: not where it goes on in another function.
        result: bool,
    },
}

/// Which arrivals at a site are meant, where it is a function's first instruction and the function jumps back there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Meant {
    /// Those by calls: the probe is one of the function.
    #[default]
    Calls,
    /// All: it is one of a place that happens to be there, such as a line of the source.
    All,
}

/// What to collect at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Count entries.
    pub entries: bool,
    /// Count returns.
    pub returns: bool,
    /// A histogram of the time from entry to return. Counts returns, too.
    pub latency: bool,
    /// Record each entry with this many integer arguments.
    pub record_entry: Option<u8>,
    /// Record each return with its value.
    pub record_return: bool,
    /// Call bodies of a script at the site: [`Request::clauses`] says which.
    pub run_entry: bool,
    /// Call some where the call returns.
    pub run_return: bool,
    /// Serve an unwinder that starts or asks here.
    pub unwinder: Option<Unwinder>,
    /// Tell the children that are made here and share the memory from their parent.
    pub sharing: Option<Sharing>,
    /// See to it that handlers of signals see the program.
    pub signal: Option<SignalCall>,
    /// Make threads wait here until the tool has looked for what has changed.
    pub gate: bool,
}

/// How unwinders get to know the real return addresses of followed calls, and we which calls they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwinder {
    /// An unwinder's entry point. A tracer, which has replaced return addresses in their slots, puts them back there.
    Entry,
    /// A function that unwinders ask about an address. A detour translates it.
    Lookup(Lookup),
    /// The function by which an unwinder lands, and where its context has its code address. A detour counts the calls that are left.
    Landing(u32),
}

impl Unwinder {
    /// What may give it control.
    pub fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Unwinder::Entry => &[Mechanism::Boost, Mechanism::Emulate, Mechanism::Step],
            Unwinder::Lookup(_) | Unwinder::Landing(_) => &[Mechanism::Jump],
        }
    }
}

impl Wanted {
    /// Whether calls are followed to their return.
    pub fn follows(&self) -> bool {
        self.returns || self.latency || self.record_return || self.run_return
    }

    /// Whether bodies are called.
    pub fn runs(&self) -> bool {
        self.run_entry || self.run_return
    }

    /// What is not collected but done for the program.
    pub(crate) fn hooks(&self) -> Self {
        let Wanted { unwinder, sharing, signal, gate, .. } = *self;
        Wanted { unwinder, sharing, signal, gate, ..Wanted::default() }
    }

    /// Whether nothing is collected, and only an unwinder served or a child told from its parent.
    pub fn is_hook(&self) -> bool {
        *self != Wanted::default() && *self == self.hooks()
    }

    /// Whether unwinders ask here where a call returns, and are to be told.
    pub fn is_lookup(&self) -> bool {
        matches!(self.unwinder, Some(Unwinder::Lookup(_)))
    }

    /// Whether only unwinders matter here, and no fault can be meant for a handler of the program's.
    pub(crate) fn is_unwinders(&self) -> bool {
        matches!(self.unwinder, Some(Unwinder::Lookup(_) | Unwinder::Landing(_)))
    }

    /// Whether the time is taken. Bodies may be told it.
    pub fn is_timed(&self) -> bool {
        self.latency || self.records() || self.runs()
    }

    /// Whether anything goes through a ring.
    pub fn records(&self) -> bool {
        self.record_entry.is_some() || self.record_return
    }
}

/// One site to probe.
#[derive(Clone, Copy, Debug)]
pub struct Request<'m> {
    /// The caller's number for it, handed back with every result. Below 2^30.
    pub id: u32,
    /// What it has to do with following calls. The caller says [`Role::Whole`], and a plan finds out what it takes.
    pub role: Role,
    /// Index of its module.
    pub module: usize,
    /// The function it is in.
    pub function: Function<'m>,
    /// Address of the probed instruction in the target; [`entry_of`](crate::admit::entry_of) the function for an entry.
    pub address: u64,
    /// Which arrivals count.
    pub meant: Meant,
    /// What to collect.
    pub wanted: Wanted,
    /// The only mechanism that may be used; `None` for any that the plan allows. Unwinders' entries follow how calls are followed.
    pub mechanism: Option<Mechanism>,
    /// Addresses of the semaphores that are raised while the site is armed.
    pub semaphores: &'m [u64],
    /// What is recorded of each hit in place of the arguments that functions of C have: at a USDT probe, or in Go.
    pub operands: Option<&'m [Operand]>,
    /// The bodies of a script that are called, where they are wanted.
    pub clauses: Clauses<'m>,
    /// What is done there to have another function called, if it is for that.
    pub live_patch: Option<&'m LivePatch>,
    /// What tells where control arrives in the function and could not be read, if there is something.
    pub unread: Option<&'static str>,
}

impl Request<'_> {
    /// Whether return addresses are taken off the stack here.
    pub fn pairs(&self) -> bool {
        self.wanted.follows() && self.role == Role::Whole
    }

    /// Whether it is one of the places where a function is left whose entry has the same id.
    pub fn is_exit(&self) -> bool {
        matches!(self.role, Role::Exit { .. })
    }
}
