//! What an instruction is, what moving it takes, and what it does.
//!
//! This crate knows no operating system, no process and no file format. It is `no_std`, it forbids `unsafe`, and
//! every ISA compiles on every host, so that `trapless explain` can look at an arm64 file on an x86-64 machine and
//! one 64-bit tool can probe 64-bit and 32-bit programs.
//!
//! The folders [`x86`], [`aarch64`] and [`powerpc`] hold the same files:
//!
//! | file | question it answers |
//! |---|---|
//! | `decode` | how long is this instruction, and where can control go after it? |
//! | `verdict` | which rungs of the ladder are proven safe at this site, and why not the others? |
//! | `relocate` | which bytes do the same thing at another address? |
//! | `slot` | which code runs one instruction out of line, after a trap? |
//! | `emulate` | what does this instruction do to a set of saved registers and memory? |
//! | `prologue` | which instructions are emulated together in one trap? |
//! | `liveness` | which registers does nobody read any more? |
//! | `faults` | which faults may these instructions raise? |
//! | `emit` | the machine code of detours, slots and patches |
//! | `steps` | what does each step of a [`payload`] take, and what is its code? |
//!
//! [`Isa`] is the seam between them and the engine: nothing outside of this crate names one of the folders. What an instruction
//! set has not answers with a reason, never with a guess.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aarch64;
mod assemble;
pub mod body;
pub mod detour;
mod detours;
mod emulate;
mod exclusive;
mod facts;
mod fault;
pub mod frames;
pub mod inside;
pub mod instruction;
mod liveness;
pub mod loader;
mod locals;
pub mod model;
pub mod operand;
pub mod passed;
pub mod payload;
pub mod powerpc;
mod prologue;
mod routines;
pub mod slot;
mod stack_check;
mod sweep;
mod targets;
mod turns;
pub mod verdict;
pub mod x86;

use alloc::{string::String, vec::Vec};
use core::ops::Range;

pub use detour::{Additions, Detour, DetourRequest, Layout, Moved, Runtime, Stack};
pub use detours::{Kinds, Sketch, Spare, Template};
pub use emulate::{EmulateError, Thread};
pub use exclusive::Exclusive;
pub use facts::{Arguments, Facts, ThreadNumber};
pub use fault::Faults;
pub use instruction::{DecodeError, Flow, Instruction, Reference};
pub use locals::returned_local;
pub use operand::Operand;
pub use payload::{
    EntryStep, Followed, Function, Hook, Identity, Lookup, Noted, Payload, ReturnStep, Sharing, SignalCall,
    Steps, Way,
};
pub use slot::Slot;
pub use sweep::{Swept, Told, View};
pub use targets::{Arrivals, BranchTargets};
pub use verdict::{
    Displaced, Exit, Ladder, Leaves, Mechanism, Past, Reason, Site, StackCheck, UnknownMechanism,
};

/// The instruction sets trapless knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86 in 64-bit mode.
    X86_64,
    /// x86 in 32-bit protected mode.
    I386,
    /// Arm A64.
    AArch64,
    /// 64-bit PowerPC, little endian, ELFv2.
    PowerPc64Le,
}

impl Machine {
    /// That of this program; `None` where it is none of them.
    pub const HOST: Option<Machine> = if cfg!(target_arch = "x86_64") {
        Some(Machine::X86_64)
    } else if cfg!(target_arch = "x86") {
        Some(Machine::I386)
    } else if cfg!(target_arch = "aarch64") {
        Some(Machine::AArch64)
    } else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
        Some(Machine::PowerPc64Le)
    } else {
        None
    };

    /// Its name, as people say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Machine::X86_64 => "x86-64",
            Machine::I386 => "32-bit x86",
            Machine::AArch64 => "arm64",
            Machine::PowerPc64Le => "powerpc64le",
        }
    }

    /// That of a process which runs beside this program: the host runs 32-bit programs beside its own, if at all.
    pub fn beside(is_32bit: bool) -> Machine {
        match Self::HOST {
            Some(Machine::X86_64) | None if is_32bit => Machine::I386,
            Some(host) => host,
            None => Machine::X86_64,
        }
    }

    /// The instruction set itself.
    pub fn isa(self) -> &'static dyn Isa {
        match self {
            Machine::X86_64 => &x86::X86_64,
            Machine::I386 => &x86::I386,
            Machine::AArch64 => &aarch64::AARCH64,
            Machine::PowerPc64Le => &powerpc::POWERPC64LE,
        }
    }
}

/// The largest page that kernels of the host may use, which memory that is shared with programs is laid out by. They use 4 KiB on x86; 4, 16 or 64 on
/// arm64; 4 or 64 on powerpc64.
pub const LARGEST_PAGE: u64 = match Machine::HOST {
    Some(Machine::AArch64 | Machine::PowerPc64Le) => 64 << 10,
    _ => 4 << 10,
};

/// The bits of a pointer in a program of the host that are its address. On arm64 others may be a tag, or its signature; addresses with more bits
/// are only given to who asks for them, and none of ours are.
pub const ADDRESS_MASK: u64 = match Machine::HOST {
    Some(Machine::AArch64) => (1 << 48) - 1,
    _ => u64::MAX,
};

/// A module's read-only data, where compilers put jump tables.
pub trait ReadOnlyData {
    /// The bytes from `address` to the end of its read-only section; empty when it lies in none.
    fn at(&self, address: u64) -> &[u8];

    /// Whether the file runs at fixed addresses, so that constants in its code may be addresses.
    fn is_fixed(&self) -> bool {
        false
    }

    /// What position-independent code on 32-bit x86 finds its data by, if that is known.
    fn got(&self) -> Option<u64> {
        None
    }

    /// The code from `address` to the end of its section; empty when it lies in none, or nobody knows.
    fn code_at(&self, _address: u64) -> &[u8] {
        &[]
    }

    /// Whether there may be code at `address`.
    fn may_be_code(&self, _address: u64) -> bool {
        true
    }
}

/// No data at all.
impl ReadOnlyData for () {
    fn at(&self, _address: u64) -> &[u8] {
        &[]
    }
}

/// Where the children of one system call are told from their parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingCalls {
    /// It makes none that share its memory.
    None,
    /// At this address.
    One(u64, Sharing),
    /// At both of these addresses, and not at one of them alone.
    Two((u64, Sharing), (u64, Sharing)),
    /// It may make some, and the code does not tell what it takes.
    Unclear,
}

/// One instruction set, as the engine sees it.
///
/// Every method is pure: bytes and addresses in, verdicts and bytes out.
pub trait Isa: Sync {
    /// Which instruction set this is.
    fn machine(&self) -> Machine;

    /// What is always so on it.
    fn facts(&self) -> &'static Facts;

    /// Decodes the instruction at the start of `code`, which stands at `address`.
    fn decode(&self, code: &[u8], address: u64) -> Result<Instruction, DecodeError>;

    /// Calls `see` with where control goes after each instruction of `code`, which stands at `address`. After bytes that do not decode,
    /// such as data in text, it tries again at the next place where an instruction may begin.
    fn flows(&self, code: &[u8], address: u64, see: &mut dyn FnMut(Flow)) {
        let step = usize::from(self.facts().unit);
        let mut at = 0;
        while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
            match self.decode(rest, address.wrapping_add(at as u64)) {
                Ok(instruction) => {
                    see(instruction.flow);
                    at += usize::from(instruction.length).max(1);
                }
                Err(_) => at += step,
            }
        }
    }

    /// The instruction at the start of `code` as assembly text, for `explain`.
    fn disassemble(&self, code: &[u8], address: u64) -> String;

    /// Reads `code`, which stands at `address` and starts at an instruction, for where control can arrive because of it; usually
    /// it is one function. Bytes that do not decode are skipped. `data` serves the jump tables that the code refers to.
    fn sweep(&self, code: &[u8], address: u64, data: &dyn ReadOnlyData, found: &mut Swept);

    /// The same of a function into which `pointers` lead, from data or from other code. Tells [`Swept::leads_around`], too.
    fn sweep_pointed_into(
        &self,
        code: &[u8],
        address: u64,
        _pointers: &[u64],
        data: &dyn ReadOnlyData,
        found: &mut Swept,
    ) {
        self.sweep(code, address, data, found);
    }

    /// Appends to `targets` those of them that a sweep names.
    fn branch_targets(&self, code: &[u8], address: u64, data: &dyn ReadOnlyData, targets: &mut Vec<u64>) {
        let mut found = Swept::default();
        self.sweep(code, address, data, &mut found);
        targets.append(&mut found.targets);
        targets.append(&mut found.turns);
    }

    /// Which mechanisms are proven safe for a probe at `site`, and why the others are not.
    fn verdict(&self, site: &Site<'_>) -> Ladder;

    /// What one of them takes at `site`, which is less work than all.
    fn rung(&self, site: &Site<'_>, mechanism: Mechanism) -> Result<Displaced, Reason> {
        self.verdict(site).rung(mechanism)
    }

    /// What a jump at the entry `site` displaces if that reaches to the `exit` of the function that control comes to from there, and the
    /// probe is done with both.
    fn through(&self, _site: &Site<'_>, _exit: u64) -> Result<Displaced, Reason> {
        Err(Reason::NotImplemented)
    }

    /// Whether the function may carry a call-paired return probe.
    ///
    /// Refused are functions that read their own return address, return twice, or leave the stack in another place
    /// than a plain return does. Names are the engine's business; this looks at the code alone.
    fn return_verdict(&self, site: &Site<'_>) -> Result<(), Reason>;

    /// Where a followed call of the function at `site` has its return address once it has stored it, from the call's slot on, in bytes. Before
    /// and after, a register has it. `None` if it is stored in several places, or in none.
    fn return_kept_at(&self, _site: &Site<'_>) -> Option<i32> {
        None
    }

    /// The address of the instruction by which the function at `site` [signs its return address](Self::signs_return), which is what it stores then.
    /// `None` if it does not.
    fn return_signed_by(&self, _site: &Site<'_>) -> Option<u64> {
        None
    }

    /// Whether an instruction signs the return address with the stack pointer, by a key that only the program has.
    fn signs_return(&self, _code: &[u8]) -> bool {
        false
    }

    /// Every instruction by which the function at `site` is left, if control arrives at `start` with the stack pointer `depth` bytes above the
    /// slot of the return address ([`Leaves`]): for the whole function that is its first address, and 0. By jumps it may be left for a part
    /// of itself that stands elsewhere.
    ///
    /// `is_resumed`: the run-time system may go on behind any of its calls, as Go does where a panic was recovered; so what no path leads to
    /// is walked, too.
    ///
    /// # Errors
    /// Not all of them can be told, or one leaves the stack as no return does.
    fn exits(
        &self,
        _site: &Site<'_>,
        _start: u64,
        _depth: Option<i64>,
        _is_resumed: bool,
    ) -> Result<Vec<Exit>, Reason> {
        Err(Reason::NotImplemented)
    }

    /// Which faults `code`, displaced instructions that stand at `address`, may raise. All of them, where nobody has looked.
    fn may_fault(&self, _code: &[u8], _address: u64) -> Faults {
        Faults::ALL
    }

    /// Where the function at `site` checks for stack space, as Go's do unless they are `nosplit`: its first branch leads to where more is
    /// made, by a call of `runtime.morestack`, and the function begins again.
    fn stack_check(&self, site: &Site<'_>) -> Option<StackCheck> {
        stack_check::find(self, site)
    }

    /// The words of its module that the code at `address` refers to relative to itself, in its order; none, where nobody has looked.
    fn references(&self, _code: &[u8], _address: u64) -> Vec<(u64, Reference)> {
        Vec::new()
    }

    /// Whether the register that is Go's for the goroutine holds it all through the function at `site`: one that checks for stack space by it, or one
    /// that does not, and that Go's compiler has made. Those that assembly calls get it elsewhere, and load it.
    fn keeps_goroutine(&self, _site: &Site<'_>, _check: Option<&StackCheck>) -> bool {
        false
    }

    /// Whether `code`, displaced instructions that stand at `address`, runs as it does behind a question for room on a goroutine's stack
    /// ([`Stack::AskedInGo`]): it reads nothing that this loses.
    fn runs_when_asked(&self, _code: &[u8], _address: u64) -> bool {
        false
    }

    /// Whether a detour that only counts what `displaced` is of at `site` needs no stack. `stack`: what else is known there.
    fn counts_without_stack(&self, _site: &Site<'_>, _displaced: &Displaced, _stack: Stack) -> bool {
        false
    }

    /// Whether nobody reads the flags that the instruction at `site` finds, however the function goes on. `by_go`: Go's compiler has made it.
    fn flags_are_unread(&self, _site: &Site<'_>, _by_go: bool) -> bool {
        false
    }

    /// Where the context of an unwinder has its code address, as `code` tells, that of libgcc's `_Unwind_SetIP`: all it does is to
    /// store its second argument at this offset, not 0, from its first. `None` for what does anything else, as another unwinder's does.
    fn code_address_in_context(&self, _code: &[u8]) -> Option<u32> {
        None
    }

    /// Offsets in `code` of system calls that may make children which share the memory of their parent.
    fn sharing_candidates(&self, _code: &[u8]) -> Vec<usize> {
        Vec::new()
    }

    /// Where probes tell the children of such a call from their parent: of the candidate at the address `at`, in a function that
    /// stands at `start`. `code` is all of it, and may go on behind it.
    fn sharing_calls(&self, _code: &[u8], _start: u64, _at: u64) -> SharingCalls {
        SharingCalls::Unclear
    }

    /// Whether handlers of signals can be shown the program where they interrupt a detour ([`detour::signals`]).
    fn shows_handlers_the_program(&self) -> bool {
        false
    }

    /// Offsets in `code` of system calls that may install handlers of signals.
    fn action_candidates(&self, _code: &[u8]) -> Vec<usize> {
        Vec::new()
    }

    /// Where probes stand ahead of and behind such a call: of the candidate at the address `at`, in a function that stands at `start`, of which
    /// `code` is all. `None` where it is none, or there is no room.
    fn action_places(&self, _code: &[u8], _start: u64, _at: u64) -> Option<(u64, u64)> {
        None
    }

    /// Offsets in `code` of what handlers of signals return to.
    fn handlers_return_to(&self, _code: &[u8]) -> Vec<usize> {
        Vec::new()
    }

    /// What each instruction of a body stands for, or of a routine that bodies call ([`body`]); nothing, where bodies are not called.
    fn body_frames(&self, _code: &[u8]) -> Vec<frames::Point> {
        Vec::new()
    }

    /// Whether `code` may work with vectors of more than 128 bits that system calls lose ([`Facts::scalable_vectors`]). Data among it may
    /// look so, too.
    fn has_scalable_vectors(&self, _code: &[u8]) -> bool {
        false
    }

    /// Whether detours call bodies.
    fn runs_bodies(&self) -> bool {
        false
    }

    /// The code of the arena of stubs that `layout` tells of, from [`detour::signals::SIGNAL_WRAP`] on.
    fn signal_code(&self, _layout: &Layout) -> Result<Runtime, Reason> {
        Err(Reason::NotImplemented)
    }

    /// The routine that loads a library, for the address `at`, where it begins; and whatever it needs. It reaches what detours of
    /// the same module reach.
    ///
    /// # Errors
    /// It cannot be made.
    fn loader(&self, _loader: &loader::Loader<'_>, _at: u64) -> Result<Vec<u8>, Reason> {
        Err(Reason::NoReplacement)
    }

    /// The code by which functions are called instead of others, where callers need something back that only such code gives them
    /// ([`Hook::CalledBy`]): for the address `at`, with its table at `table`. It works wherever both are moved together.
    fn caller(&self, _at: u64, _table: u64) -> Option<loader::Caller> {
        None
    }

    /// Whether there is one, and detours that lead to other functions ([`Hook::Replace`]).
    fn replaces(&self) -> bool {
        false
    }

    /// The code for probes in one's own process; `None` where there is none.
    fn inside(&self) -> Option<&'static dyn inside::Inside> {
        None
    }

    /// The bytes that replace `displaced`: a branch to `detour`, filled up to the displaced length.
    fn patch(&self, displaced: &Displaced, detour: u64) -> Result<Vec<u8>, Reason>;

    /// Room for the jump to a detour, in reach of the short one at `displaced` ([`Mechanism::Short`]): padding of no instructions, or
    /// instructions that are moved away. It is in the function of `site`, which may be another one than that of `displaced`, or behind it.
    /// None of it lies where `is_taken` says.
    fn room(
        &self,
        _site: &Site<'_>,
        _displaced: &Displaced,
        _is_taken: &dyn Fn(Range<u64>) -> bool,
    ) -> Result<Displaced, Reason> {
        Err(Reason::NotImplemented)
    }

    /// The bytes of which some must be its room's where [`Self::room`] finds any for the short jump at `displaced`.
    fn in_reach(&self, displaced: &Displaced) -> Range<u64> {
        displaced.start..displaced.end()
    }

    /// Where the short jump leads to in its room. A thread there is still at the site.
    fn entrance(&self, room: &Displaced) -> u64 {
        room.start
    }

    /// The bytes that replace `displaced`, a short jump to its `room`, and those that replace the room: branches to the `detour` and
    /// to what was `moved` away from there.
    fn patches(
        &self,
        _displaced: &Displaced,
        _room: &Displaced,
        _detour: u64,
        _moved: u64,
    ) -> Result<[Vec<u8>; 2], Reason> {
        Err(Reason::NotImplemented)
    }

    /// Where a `room`'s own instructions were moved to, as `patched` says, which stands there.
    fn moved_to(&self, _room: &Displaced, _patched: &[u8]) -> u64 {
        0
    }

    /// The instructions of a `room` or a turn ([`Self::turns`]) with the bytes `original`, to run at `address` instead. Where there is a probe that
    /// their jumps go `past`, those lead there.
    fn moved(
        &self,
        _room: &Displaced,
        _original: &[u8],
        _address: u64,
        _past: Option<Past>,
    ) -> Result<Moved, Reason> {
        Err(Reason::NotImplemented)
    }

    /// The turns of a function: where it jumps back to its entry `site`, of which a patch takes `displaced`. A round of a loop is no call, so these
    /// jumps are led past the probe. One that is changed in its place displaces no instruction; others are moved, with their neighbours. They
    /// are in order of address and share no bytes, not with `displaced` either. None, where nothing jumps back or `site` is no entry.
    ///
    /// # Errors
    /// Something jumps back that cannot be changed, or may.
    fn turns(&self, site: &Site<'_>, displaced: &Displaced) -> Result<Vec<Displaced>, Reason> {
        turns::turns(self, site, displaced)
    }

    /// The bytes that replace `original` where a `turn` stands. `to`: where its jump leads now, or where it was moved.
    fn turned(&self, turn: &Displaced, original: &[u8], to: u64) -> Result<Vec<u8>, Reason> {
        turns::turned(self, turn, original, to)
    }

    /// The routines that all detours of one arena share, to stand at `address`.
    fn runtime(&self, address: u64, layout: &Layout) -> Result<Runtime, Reason>;

    /// The detour of one site.
    fn detour(&self, request: &DetourRequest<'_>) -> Result<Detour, Reason>;

    /// The slot in which `displaced`, one instruction with the bytes `original`, runs after a trap; to stand at `address`.
    fn slot(
        &self,
        _displaced: &Displaced,
        _original: &[u8],
        _address: u64,
        _boosted: bool,
    ) -> Result<Slot, Reason> {
        Err(Reason::NotImplemented)
    }

    /// The instructions of `site`'s function that are emulated together when a thread traps at `first`: at least that one, and none
    /// at or behind the `next` probed instruction or one that a branch leads to.
    fn together(&self, _site: &Site<'_>, first: Displaced, _next: Option<u64>) -> Displaced {
        first
    }

    /// Does to `thread` what all instructions of `code`, which stands at `address`, do: those that [`Isa::together`] has put together.
    ///
    /// # Errors
    /// One of them is not emulated, or would fault; `thread` has to be dropped then.
    fn emulate(&self, _code: &[u8], _address: u64, _thread: &mut dyn Thread) -> Result<(), EmulateError> {
        Err(EmulateError::Refused(Reason::NotImplemented))
    }

    /// Where the instruction that `code` starts with leads, if it is emulated and changes nothing but the instruction pointer.
    fn leads_to(&self, _code: &[u8], _address: u64) -> Option<u64> {
        None
    }

    /// Whether a thread whose instruction pointer is where the breakpoint at the start of `instruction` would leave it has met that
    /// breakpoint: no program runs a part of `instruction` from there on. `false` where nobody has looked, and where a breakpoint leaves the
    /// pointer at itself ([`Facts::advance`]): who got another signal there has yet to meet it.
    fn is_unmistakable(&self, _instruction: &[u8]) -> bool {
        false
    }

    /// The access that `code` starts with, by a thread that stands in front of it, if it is one of those that a step in between keeps from
    /// coming about.
    fn exclusive(&self, _code: &[u8], _thread: &dyn Thread) -> Option<Exclusive> {
        None
    }

    /// Does to `thread` what the exclusive store does that `code`, which stands at `address`, starts with, as one that comes about. `None`
    /// if it is not known or would fault; `thread` has to be dropped then.
    fn store_exclusive(&self, _code: &[u8], _address: u64, _thread: &mut dyn Thread) -> Option<()> {
        None
    }

    /// Whether `instruction` saves flags among which a single step shows: x86's trap flag. Others step without a trace.
    fn saves_step(&self, _instruction: &[u8]) -> bool {
        false
    }
}
