//! What a detour does besides running the displaced instructions: its payload, which is a list of steps.
//!
//! # When a step is done
//!
//! | list | when | what is known there |
//! |---|---|---|
//! | [`Payload::hooks`] | ahead of everything | nothing; a hook saves what it uses itself |
//! | [`Payload::entry`] | once the thread is known | its block, the slot, the arguments |
//! | [`Followed::steps`] | at the return, once the call is known | the block, the slot, the time, that of the entry, the result |
//!
//! A call is followed in one of two ways ([`Way`]): it is *paired*, and its one detour sees both ends; or it is *noted* at its entry,
//! and what looks for the note stands at each place where the function is *left*.
//!
//! Steps of a list are done in its order. Only what needs nothing of the call (`Followed::early`) may be done before the return
//! instance is found, ahead of the other steps. A step leaves to those behind it what they need, and to the program everything.
//!
//! # What a step is
//!
//! It says of itself what it needs of the detour around it (`Needs`), and for each instruction set which registers it takes and
//! what its code is. Detours find, save and skip what *any* of their steps needs, and no place asks which steps there are together.
//! What an instruction set has not, it refuses with a reason.
//!
//! A new step is a variant of its enum, and the compiler names every place that has to decide about it. They are
//!
//! 1. here: what it needs (`needs`), and whether an offset is all that differs between two of its kind (`offset`);
//! 2. `steps.rs` of each instruction set, in `x86` and `x86/narrow`, `aarch64`, and `powerpc`: its registers and its code;
//! 3. `x86/template.rs`, in `kinds`: whether templates know it;
//! 4. `engine/src/trap/serve.rs`: how the keeper does it where the probe traps.
//!
//! Then `PlannedSite::payload` (`engine/src/plan.rs`) asks for it where the user did, and the lists of this crate's tests that say
//! "all payloads" get it: `detour/pinned.rs`, and for each instruction set those that run all of them.

use crate::body::{Extra, Takes};
use core::{array, fmt, iter};

/// All that a detour does besides running the displaced instructions. The default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Ahead of everything else.
    pub hooks: Steps<Hook>,
    /// At the entry.
    pub entry: Steps<EntryStep>,
    /// Whether the call is followed to its return, and what is done there.
    pub followed: Option<Followed>,
}

/// What comes of following a call to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Offset in the block of the counter of calls that could not be followed.
    pub lost: u32,
    /// At the return.
    pub steps: Steps<ReturnStep>,
    /// How.
    pub way: Way,
}

/// How a call is followed to its return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// The displaced code is called, and the function's own `ret` comes back to the detour.
    #[default]
    Paired,
    /// Nothing on the stack is changed: the entry notes the call ([`note`](crate::detour::note)). The steps are those of the places where
    /// the function is left.
    Noted(Noted),
    /// Such a place: an instruction by which the function of this probe is left. The steps are done if the call was noted.
    Left(Noted),
    /// Both at once: the displaced instructions of the entry hold such a place.
    Through {
        /// The call.
        noted: Noted,
        /// How far behind the first displaced instruction the function is left.
        exit: u8,
    },
}

/// A call that is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The number of the probe.
    pub probe: u32,
    /// By what it is known again.
    pub by: Identity,
}

/// By what a call that is noted is known again where it is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// By the address of the stack slot of its return address.
    #[default]
    Slot,
    /// By its goroutine and how deep it is in that one's stack: Go moves stacks, and goroutines from thread to thread
    /// ([`goroutine_slot`](crate::detour::goroutine_slot)).
    Goroutine,
}

impl Way {
    /// The call that is noted at the entry.
    pub(crate) fn noted(self) -> Option<Noted> {
        match self {
            Way::Noted(noted) | Way::Through { noted, .. } => Some(noted),
            Way::Paired | Way::Left(_) => None,
        }
    }

    /// The call that leaves.
    pub(crate) fn left(self) -> Option<Noted> {
        match self {
            Way::Left(noted) | Way::Through { noted, .. } => Some(noted),
            Way::Paired | Way::Noted(_) => None,
        }
    }

    /// By what the call is known again.
    pub(crate) fn by(self) -> Identity {
        self.noted().or(self.left()).map_or(Identity::Slot, |noted| noted.by)
    }
}

/// What is done for the program and its unwinders, ahead of everything that is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Translate the address that an unwinder looks up.
    Translate(Lookup),
    /// Count the calls that an unwinder leaves, which lands by libgcc's `void _Unwind_SetIP(struct _Unwind_Context *context, uintptr_t address)`.
    Land {
        /// Where the context has its code address ([`crate::Isa::code_address_in_context`]).
        code_address: u32,
    },
    /// Tell a child that shares the memory from its parent.
    Share(Sharing),
    /// See to it that handlers of signals see the program and not the detour.
    Signal(SignalCall),
    /// Wait until a tool has looked ([`crate::detour::gate`]).
    Gate,
    /// Go on at this function instead. It is entered as this one was, by whoever called that, and the displaced instructions are run by nobody
    /// but those who call the original by its address ([`crate::Detour::original`]).
    Replace(Function),
    /// That function is called by the code at this address ([`crate::loader::Caller`]), where callers need something back.
    CalledBy(Function),
}

/// Address of a function that is called instead. It is in two halves: steps are aligned as their offsets are, and lists of them stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function([u32; 2]);

impl Function {
    /// The one at an address.
    pub const fn at(address: u64) -> Self {
        Self([address as u32, (address >> 32) as u32])
    }

    /// Its address.
    pub const fn address(self) -> u64 {
        let Self([low, high]) = self;
        low as u64 | (high as u64) << 32
    }
}

/// What is done at an entry. Offsets are from the start of the thread's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStep {
    /// Increment the counter at this offset.
    Count(u32),
    /// Write a record of the arguments.
    Record {
        /// What stands in the record: the probe's number, twice.
        id: u32,
        /// How many integer arguments are stored.
        arguments: u8,
    },
    /// Write a record of operands: those of a USDT probe, or where a function of another language than C has its arguments ([`crate::DetourRequest::operands`]).
    Fetch {
        /// What stands in the record: the probe's number, twice.
        id: u32,
    },
    /// Call the bodies of [`Runs::entry`](crate::body::Runs), which take this together.
    Run(Takes),
}

/// What is done at a return. Offsets are from the start of the thread's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnStep {
    /// Increment the counter at this offset.
    Count(u32),
    /// Write a record of the return value and of the time of the entry.
    Record {
        /// What stands in the record: the probe's number, twice, plus 1; and [`RECORD_NO_RESULT`](crate::detour::RECORD_NO_RESULT) where the
        /// function is left for another one, whose result is not known yet.
        id: u32,
    },
    /// Add the duration of the call to the histogram at this offset.
    Time(u32),
    /// Call the bodies of [`Runs::at_return`](crate::body::Runs), which take this together.
    Run(Takes),
}

/// What a step needs of the detour around it; of several steps, what any of them needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The thread's block. For a thread that has none the overflow block does.
    pub block: bool,
    /// A block of the thread's own: the step is left out for threads that have none.
    pub own: bool,
    /// The time.
    pub time: bool,
    /// The time of the call's entry.
    pub entered: bool,
    /// The first arguments, so many.
    pub arguments: u8,
}

impl Needs {
    /// Whether anything is needed that belongs to one call on one thread, and not just a place to count in.
    pub fn is_of_the_call(self) -> bool {
        self.own || self.time || self.entered
    }

    fn or(self, other: Self) -> Self {
        Self {
            block: self.block || other.block,
            own: self.own || other.own,
            time: self.time || other.time,
            entered: self.entered || other.entered,
            arguments: self.arguments.max(other.arguments),
        }
    }
}

impl EntryStep {
    pub(crate) fn needs(self) -> Needs {
        match self {
            EntryStep::Count(_) => Needs { block: true, ..Needs::default() },
            EntryStep::Record { arguments, .. } => {
                Needs { block: true, own: true, time: true, arguments, ..Needs::default() }
            }
            EntryStep::Fetch { .. } => Needs { block: true, own: true, time: true, ..Needs::default() },
            EntryStep::Run(takes) => Needs {
                block: true,
                own: true,
                time: takes.has(Extra::Time),
                arguments: MOST_ARGUMENTS,
                ..Needs::default()
            },
        }
    }

    /// The offset that is all in which two steps of the kind differ.
    fn offset(&mut self) -> Option<&mut u32> {
        match self {
            EntryStep::Count(offset) => Some(offset),
            EntryStep::Record { .. } | EntryStep::Fetch { .. } | EntryStep::Run(_) => None,
        }
    }
}

impl ReturnStep {
    pub(crate) fn needs(self) -> Needs {
        match self {
            ReturnStep::Count(_) => Needs { block: true, ..Needs::default() },
            ReturnStep::Record { .. } | ReturnStep::Time(_) => {
                Needs { block: true, own: true, time: true, entered: true, ..Needs::default() }
            }
            ReturnStep::Run(takes) => Needs {
                block: true,
                own: true,
                time: takes.has(Extra::Time),
                entered: takes.has(Extra::Entered),
                ..Needs::default()
            },
        }
    }

    /// The offset that is all in which two steps of the kind differ.
    fn offset(&mut self) -> Option<&mut u32> {
        match self {
            ReturnStep::Count(offset) | ReturnStep::Time(offset) => Some(offset),
            ReturnStep::Record { .. } | ReturnStep::Run(_) => None,
        }
    }
}

impl Payload {
    /// What the steps at the entry need.
    pub(crate) fn needs(&self) -> Needs {
        self.entry.iter().map(EntryStep::needs).fold(Needs::default(), Needs::or)
    }

    /// The function that is called instead of this one, if there is one.
    pub(crate) fn replaced_by(&self) -> Option<u64> {
        self.hooks.iter().find_map(|hook| match hook {
            Hook::Replace(function) => Some(function.address()),
            _ => None,
        })
    }

    /// The counter that is all that is asked for.
    pub(crate) fn only_counter(&self) -> Option<u32> {
        let mut steps = self.entry.iter();
        match (steps.next(), steps.next()) {
            (Some(EntryStep::Count(counter)), None) if self.hooks.is_empty() && self.followed.is_none() => {
                Some(counter)
            }
            _ => None,
        }
    }

    /// What calls that, if anything does.
    pub(crate) fn called_by(&self) -> Option<u64> {
        self.hooks.iter().find_map(|hook| match hook {
            Hook::CalledBy(function) => Some(function.address()),
            _ => None,
        })
    }

    /// Whether nothing is done that needs a thread. One that begins there needs no memory yet.
    pub(crate) fn needs_no_thread(&self) -> bool {
        let needs_none = |hook| {
            matches!(
                hook,
                Hook::Share(_) | Hook::Signal(_) | Hook::Gate | Hook::Replace(_) | Hook::CalledBy(_)
            )
        };
        let only = self.entry.is_empty() && self.followed.is_none();
        only && !self.hooks.is_empty() && self.hooks.iter().all(needs_none)
    }

    /// What the bodies take that are called at the entry; `None` where there are none.
    pub(crate) fn runs_at_entry(&self) -> Option<Takes> {
        self.entry.iter().find_map(|step| match step {
            EntryStep::Run(takes) => Some(takes),
            _ => None,
        })
    }

    /// Whether any bodies are called.
    pub fn runs(&self) -> bool {
        self.runs_at_entry().is_some() || self.followed.is_some_and(|followed| followed.runs().is_some())
    }

    /// Whether the displaced code is called.
    pub(crate) fn pairs(&self) -> bool {
        self.followed.is_some_and(|followed| followed.way == Way::Paired)
    }

    /// Whether calls are followed in a way that this instruction set has not.
    pub(crate) fn follows_by_notes(&self) -> bool {
        self.followed.is_some() && !self.pairs()
    }

    /// Every offset in the block and the numbers of noted probes, in an order that depends on the steps alone.
    pub(crate) fn offsets(&mut self) -> impl Iterator<Item = &mut u32> {
        let entry = self.entry.iter_mut().filter_map(EntryStep::offset);
        let followed = self.followed.iter_mut().flat_map(|followed| {
            let way = match &mut followed.way {
                Way::Paired => None,
                Way::Noted(noted) | Way::Left(noted) | Way::Through { noted, .. } => Some(&mut noted.probe),
            };
            iter::once(&mut followed.lost)
                .chain(followed.steps.iter_mut().filter_map(ReturnStep::offset))
                .chain(way)
        });
        entry.chain(followed)
    }
}

impl Followed {
    /// What the steps at the return need.
    pub(crate) fn needs(&self) -> Needs {
        self.steps.iter().map(ReturnStep::needs).fold(Needs::default(), Needs::or)
    }

    /// What the bodies take that are called at the return; `None` where there are none.
    pub(crate) fn runs(&self) -> Option<Takes> {
        self.steps.iter().find_map(|step| match step {
            ReturnStep::Run(takes) => Some(takes),
            _ => None,
        })
    }

    /// The steps that may be done before the return instance is found: they need nothing of the call.
    pub(crate) fn early(&self) -> impl Iterator<Item = ReturnStep> {
        self.steps.iter().filter(|step| !step.needs().is_of_the_call())
    }

    /// The other ones.
    pub(crate) fn late(&self) -> impl Iterator<Item = ReturnStep> {
        self.steps.iter().filter(|step| step.needs().is_of_the_call())
    }

    /// Whether the calls of threads without memory of their own are followed, too: nothing of such a thread is needed there.
    pub(crate) fn follows_all(&self) -> bool {
        !self.needs().own
    }
}

/// All registers that carry integer arguments, on every instruction set.
const MOST_ARGUMENTS: u8 = 8;

/// How many steps a list has room for.
const CAPACITY: usize = 4;

/// Two cache lines hold what a site does.
const _: () = assert!(size_of::<Payload>() <= 128);

/// Steps, in the order in which they are done. They are held in place: hundreds of thousands of sites are planned at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Steps<S>([Option<S>; CAPACITY]);

impl<S> Default for Steps<S> {
    fn default() -> Self {
        Self([const { None }; CAPACITY])
    }
}

impl<S: Copy> Steps<S> {
    /// These. More than there is room for do not compile.
    ///
    /// ```
    /// use trapless_isa::payload::*;
    /// const TIMED: Steps<ReturnStep> = Steps::of([ReturnStep::Count(144), ReturnStep::Time(512)]);
    /// assert_eq!(TIMED.iter().count(), 2);
    /// ```
    pub const fn of<const N: usize>(steps: [S; N]) -> Self {
        const { assert!(N <= CAPACITY, "a list of steps has no room for so many") };
        let mut all = [None; CAPACITY];
        let mut at = 0;
        while at < N {
            all[at] = Some(steps[at]);
            at += 1;
        }
        Self(all)
    }

    /// Those of them that there are.
    pub fn some_of<const N: usize>(steps: [Option<S>; N]) -> Self {
        const { assert!(N <= CAPACITY, "a list of steps has no room for so many") };
        let mut all = Self::default();
        for (to, step) in all.0.iter_mut().zip(steps.into_iter().flatten()) {
            *to = Some(step);
        }
        all
    }

    /// Each of them.
    pub fn iter(&self) -> iter::Flatten<array::IntoIter<Option<S>, CAPACITY>> {
        self.0.into_iter().flatten()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.0.iter_mut().flatten()
    }
}

impl<S: Copy> IntoIterator for Steps<S> {
    type Item = S;
    type IntoIter = iter::Flatten<array::IntoIter<Option<S>, CAPACITY>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<S: Copy + fmt::Debug> fmt::Debug for Steps<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A function that unwinders ask about a code address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// `int _dl_find_object(void *address, struct dl_find_object *result)`, and libgcc's `_Unwind_Find_FDE(void *address, struct dwarf_eh_bases
    /// *bases)`, which may have its own register of code: the address is the first argument.
    FindObject,
    /// `int dl_iterate_phdr(int (*callback)(…), void *data)`: the address is among the first three words of what `data` points
    /// to, on the caller's stack. Other callers than unwinders have none of ours there.
    IteratePhdr,
}

/// A place where a program makes children that share its memory until they run another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// Behind the system call `vfork`.
    Vfork,
    /// Behind the system call `clone`, whose flags are still in the register of the first argument.
    Clone,
    /// Ahead of the system call `clone3`, with the address of its arguments in the register of the first one.
    BeforeClone3,
    /// Behind it.
    Clone3,
}

/// A place where a program says which handler a signal has, or comes back from one ([`crate::detour::signals`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignalCall {
    /// Ahead of the system call `rt_sigaction`, with the address of the new action in the register of the second argument.
    BeforeAction,
    /// Behind it, with that of the old one in the register of the third.
    Action,
    /// Where handlers return to, ahead of the system call `rt_sigreturn`: the signal's frame lies at the stack pointer.
    Return,
    /// Where a handler begins, as the kernel calls it.
    Handler,
}

/// The flags of `clone` that decide (`linux/sched.h`): shared memory, a parent that waits, a thread pointer of the child's own.
pub const CLONE_VM: u32 = 0x100;
/// See [`CLONE_VM`].
pub const CLONE_VFORK: u32 = 0x4000;
/// See [`CLONE_VM`].
pub const CLONE_SETTLS: u32 = 0x8_0000;
