//! Loading a library into another process: the routine that a thread of it runs, and the words by which it tells what came of it.
//!
//! A thread that stands at the entry of a function is sent to the routine. It saves everything, as handling code does ([`crate::inside`]),
//! asks the program's own loader for the library and for one function of it, puts everything back, errno too, and goes on at the
//! function that the thread stood at. From when it is sent on it needs nobody: who has sent it may be gone.
//!
//! What it calls is in its code, which nobody can write. In memory that is shared it only writes:
//!
//! | offset | word |
//! |---|---|
//! | [`LOAD_STAGE`] | how far it has come: a [`Stage`] |
//! | [`LOAD_HANDLE`] | what `dlopen` has given |
//! | [`LOAD_ADDRESS`] | what `dlsym` has given |
//! | [`LOAD_LENGTH`] | bytes of what `dlerror` has said, where one of them gave nothing; then these, from [`LOAD_TEXT`] on |
//! | [`LOAD_CALLER`] | the same of [`CALLER`] |
//! | [`LOAD_PASSED`] | how many calls were let pass, for each reason: whoever sends threads there counts them |
//!
//! All of them are the program's to change. Who reads them believes nothing of it.

use crate::inside::Vectors;
use alloc::vec::Vec;

/// Offset of the stage.
pub const LOAD_STAGE: u32 = 0;
/// Offset of the library's handle.
pub const LOAD_HANDLE: u32 = 8;
/// Offset of the function's address.
pub const LOAD_ADDRESS: u32 = 16;
/// Offset of the length of the text.
pub const LOAD_LENGTH: u32 = 24;
/// Offset of the address of what calls functions that replace others ([`Caller`]).
pub const LOAD_CALLER: u32 = 32;
/// Offset of the numbers of calls that were let pass.
pub const LOAD_PASSED: u32 = 64;
/// Offset of the text.
pub const LOAD_TEXT: u32 = 512;
/// The most bytes of it.
pub const LOAD_MOST_TEXT: u32 = 2048;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Stage {
    /// No thread was sent.
    Waiting = 0,
    /// One was.
    Sent = 1,
    /// It runs the routine.
    Begun = 2,
    /// The program's loader is done. The thread goes on.
    Done = 3,
}

impl Stage {
    /// The one with this number.
    pub fn from_raw(raw: u64) -> Option<Self> {
        [Self::Waiting, Self::Sent, Self::Begun, Self::Done].into_iter().find(|stage| *stage as u64 == raw)
    }
}

/// The name by which a [`Caller`] is exported from a library of its own. Without zeros.
pub const CALLER: &str = "trapless_call";

/// The name of the memory that this library is in.
pub const CALLER_MEMORY: &str = "trapless-call";

/// Code that calls a function instead of another one, and gives callers back what only the other one's file would have left them. Calls that are under
/// way return to it, whatever has become of the detours that led there. So it is in a library of its own, which stays, with a table for unwinders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The code.
    pub code: Vec<u8>,
    /// A table for unwinders (`.eh_frame`), with an end.
    pub unwind: Vec<u8>,
    /// Offset of its entry.
    pub entry: u32,
}

/// What vector registers have beyond their low 128 bits, which the routine always saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// Nothing.
    Nothing,
    /// State components of x86.
    Components(Vectors),
    /// Vectors of a length that the program tells, and predicates (SVE).
    Scalable,
}

/// What the routine does. Addresses are the target's.
#[derive(Clone, Copy, Debug)]
pub struct Loader<'a> {
    /// What is saved of vector registers beside their low 128 bits.
    pub beyond: Beyond,
    /// Where the thread goes on.
    pub way: u64,
    /// Address of the words.
    pub words: u64,
    /// `void *dlopen(const char *, int)`
    pub open: u64,
    /// `void *dlsym(void *, const char *)`
    pub find: u64,
    /// `char *dlerror(void)`
    pub error: u64,
    /// `int *__errno_location(void)`
    pub errno: u64,
    /// `int pthread_setcancelstate(int, int *)`, if there is one: a thread that is to be cancelled is not while it loads.
    pub cancel: Option<u64>,
    /// The library of the [`Caller`] that is to be loaded ahead of the other, if one is.
    pub caller: Option<&'a [u8]>,
    /// The library's path, for `dlopen`. Without zeros.
    pub path: &'a [u8],
    /// The function's name, for `dlsym`. Without zeros.
    pub symbol: &'a [u8],
}
