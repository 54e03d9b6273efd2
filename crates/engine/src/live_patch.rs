//! Another function instead of one that a process has: a library is loaded there, and then calls are led to a function of it.
//!
//! 1. A *loading* session sets a breakpoint at the function. A thread that comes there calls it, and could as well have called the loader
//!    there, if nothing else is under way on its stack: its keeper looks at that (`trap/load.rs`), lets calls pass until
//!    one is safe, and sends that thread to the routine that loads the library ([`trapless_isa::loader`]). Then the breakpoint goes, the keeper
//!    goes, and the thread needs neither. What came of it is in the session's memory, which stays as long as the thread may come back to the routine.
//! 2. A *replacing* session has a jump there that leads to the other function and does nothing else. It is a session like any other: it is found
//!    by its journal, and taken out by whoever wants to. If the library has a pointer for it, that leads meanwhile to what runs the original: the
//!    copies of the displaced instructions, and the jump behind them; and to the function itself before and afterwards.

use crate::{EngineError, Region};
use std::ops::Range;
use std::sync::Arc;
use trapless_isa::inside::Vectors;
use trapless_isa::loader::{
    Beyond, LOAD_ADDRESS, LOAD_CALLER, LOAD_HANDLE, LOAD_LENGTH, LOAD_MOST_TEXT, LOAD_PASSED, LOAD_STAGE,
    LOAD_TEXT, Loader, Stage,
};
use trapless_process::LongVectors;
use trapless_wire::{Header, PAGE, Words, WordsMut};

/// What is done at a function to have another one called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivePatch {
    /// A library is loaded by a thread that calls it.
    Load(Load),
    /// Another one is called.
    Replace(Replacement),
}

/// Another function that is called instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Its address.
    pub with: u64,
    /// What calls it, where callers need something back ([`trapless_isa::loader::Caller`]).
    pub caller: Option<u64>,
    /// What is to lead to the original.
    pub original: Option<Pointer>,
}

/// A pointer that is to lead to the original, and to the function before and afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Its address.
    pub at: u64,
    /// What it held when it was found free. Who has written there since then has taken it.
    pub held: u64,
}

/// A library to be loaded, and by which functions of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// `dlopen`
    pub open: u64,
    /// `dlsym`
    pub find: u64,
    /// `dlerror`
    pub error: u64,
    /// `__errno_location`
    pub errno: u64,
    /// `pthread_setcancelstate`, if there is one.
    pub cancel: Option<u64>,
    /// What the processor has beyond the low 128 bits of its vector registers.
    pub beyond: Beyond,
    /// The library's path, as the process sees it. Without zeros.
    pub path: Vec<u8>,
    /// The name of the function that is looked for. Without zeros.
    pub symbol: Vec<u8>,
    /// The library of what calls the function, if that has to be loaded, too.
    pub caller: Option<Vec<u8>>,
    /// Code that a thread may not be in while it loads.
    pub apart: Vec<Apart>,
    /// The process's unwind tables ([`trapless_wire::unwind`]), by which frames are told from what calls have left behind; none where they are
    /// too large.
    pub unwind: Option<Arc<[u8]>>,
}

/// Code that a thread may not be in while it loads a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Where it is.
    pub code: Range<u64>,
    /// What it means to be in it.
    pub why: Passed,
}

/// Why a call was let pass, and no library loaded in it. The text completes "a call was let pass: …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Passed {
    /// A signal was handled.
    #[error("it came from a handler of a signal, or what may be one's frame is on the stack")]
    Handler,
    /// The dynamic loader was at work.
    #[error("the dynamic loader was at work below it, or what may be its return address is on the stack")]
    Loader,
    /// The allocator was at work.
    #[error("the allocator was at work below it, or what may be its return address is on the stack")]
    Allocator,
    /// The thread was on another stack than that which it was made with.
    #[error(
        "the thread was on a stack of which nobody knows where it ends: a signal stack, or a coroutine's"
    )]
    Stack,
    /// There was little room on its stack.
    #[error("there was less than {} KiB of room on the thread's stack", Load::ROOM >> 10)]
    Room,
    /// So much of its stack was in use that it was not looked through.
    #[error("more than {} MiB of the thread's stack were in use", Load::MOST_OF_STACK >> 20)]
    Depth,
    /// A child that shares the memory, and is no thread.
    #[error("it came from a child that shares the process's memory (vfork)")]
    Child,
    /// It could not be looked at.
    #[error("the thread's memory could not be read")]
    Unread,
    /// The processor was in another mode than functions of libraries run in.
    #[error("the thread had the processor's streaming mode or its matrix (SME) on")]
    Streaming,
}

impl Passed {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Handler,
        Self::Loader,
        Self::Allocator,
        Self::Stack,
        Self::Room,
        Self::Depth,
        Self::Child,
        Self::Unread,
        Self::Streaming,
    ];

    /// Where it is counted, from the beginning of the words.
    fn at(self) -> u64 {
        u64::from(LOAD_PASSED) + 8 * self as u64
    }
}

/// What code saves of the vectors of this machine beyond 128 bits.
///
/// # Errors
/// Nobody knows how they are saved.
pub fn vectors() -> Result<Beyond, EngineError> {
    match trapless_process::vectors() {
        trapless_process::Vectors::Short => Ok(Beyond::Nothing),
        trapless_process::Vectors::Long(LongVectors { components, tells_use }) => {
            Ok(Beyond::Components(Vectors { components, tells_use }))
        }
        trapless_process::Vectors::Scalable => Ok(Beyond::Scalable),
        trapless_process::Vectors::Unknown => {
            Err(EngineError::Unsupported("the vector registers of this machine cannot be saved"))
        }
    }
}

impl Load {
    /// What has to be free on the stack of a thread that loads: what the loader, constructors and the frame that saves everything take.
    pub const ROOM: u64 = 256 << 10;
    /// How much of a stack is looked through, while its thread stands.
    pub const MOST_OF_STACK: u64 = 64 << 20;
    /// Shared memory for the words.
    pub(crate) const MEMORY: u64 = PAGE;

    /// The routine, for a thread that goes on at `way`, with its words at `words`.
    pub(crate) fn loader(&self, way: u64, words: u64) -> Loader<'_> {
        let &Self { open, find, error, errno, cancel, beyond, .. } = self;
        let (path, symbol, caller) = (&self.path, &self.symbol, self.caller.as_deref());
        Loader { caller, beyond, way, words, open, find, error, errno, cancel, path, symbol }
    }
}

/// The words by which a library is loaded. They can be read when the session is gone.
#[derive(Clone, Debug)]
pub struct LoadMemory {
    region: Arc<Region>,
    at: u64,
}

/// What loading has come to. The process could have written anything there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// The function's address.
    At(u64),
    /// What `dlerror` has said, and whether the library is loaded all the same.
    Failed {
        /// Its text.
        text: String,
        /// Whether only the function was missing.
        is_loaded: bool,
    },
}

impl LoadMemory {
    /// `None` where the session loads nothing.
    pub(crate) fn of(region: &Arc<Region>, header: &Header) -> Option<Self> {
        let is_there = header.script != 0 && header.program == 0;
        is_there.then(|| Self { region: region.clone(), at: header.script })
    }

    /// How far it has come; `None` where the process has written over it.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        Stage::from_raw(self.word(LOAD_STAGE))
    }

    /// How many calls were let pass, and why: only reasons that there were.
    #[must_use]
    pub fn passed(&self) -> Vec<(Passed, u64)> {
        let counted = Passed::ALL.map(|passed| (passed, self.region.word(self.at + passed.at())));
        counted.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// What it has come to, once it is [`Stage::Done`].
    #[must_use]
    pub fn loaded(&self) -> Loaded {
        match self.word(LOAD_ADDRESS) {
            0 => Loaded::Failed { text: self.text(), is_loaded: self.word(LOAD_HANDLE) != 0 },
            address => Loaded::At(address),
        }
    }

    /// Where the process says that it has what calls the function; 0 where nothing was loaded for that.
    #[must_use]
    pub fn caller(&self) -> u64 {
        self.word(LOAD_CALLER)
    }

    fn text(&self) -> String {
        let length = self.word(LOAD_LENGTH).min(LOAD_MOST_TEXT.into()) as usize;
        let words =
            (0..length.div_ceil(8) as u64).map(|n| self.region.word(self.at + u64::from(LOAD_TEXT) + 8 * n));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(length).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn word(&self, offset: u32) -> u64 {
        self.region.word(self.at + u64::from(offset))
    }
}

/// The words as whoever sends a thread there writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadWords<'r> {
    region: &'r Region,
    at: u64,
}

impl<'r> LoadWords<'r> {
    pub fn of(region: &'r Region, header: &Header) -> Self {
        Self { region, at: header.script }
    }

    /// Says that a thread is sent.
    pub fn send(&self) {
        self.region.set_word(self.at + u64::from(LOAD_STAGE), Stage::Sent as u64);
    }

    /// Counts a call that is let pass.
    pub fn count(&self, passed: Passed) {
        self.region.add(self.at + passed.at(), 1);
    }
}
