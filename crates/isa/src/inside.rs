//! Code for probes in one's own process, which nobody stops: the crate `trapless-inside` tells the protocol.
//!
//! ```text
//!     site:      jmp pad                        over displaced instructions
//!     pad:       jmp [slot]                     where the bytes of that jump say; see below
//!     slot:      the entry, or the copies, or the function that replaces this one
//!     entry:     says which site it is; jmp handling
//!     copies:    the displaced instructions, and the way back behind them
//!     handling:  saves everything, calls the dispatcher, puts everything back, and goes on where that says: at the copies, at the function
//!                that replaces this one, by a point, or at the caller
//!
//!     point:     call [target], and jmp end
//!     end:       saves everything, calls its dispatcher, puts everything back, and returns
//! ```
//!
//! A call that is followed to its return goes by a point of its own, whose address behind the call is on the stack in the place of the caller's. So
//! the call is known by that alone, whatever stack it is on and whatever thread goes on there; and calls and returns stay pairs, by which a processor
//! foretells them. At both of a point's instructions the stack pointer is as the caller has it behind the call, and below it stands the point's address, by which
//! unwinders find the caller's ([`Points::unwind`]).
//!
//! A thread may stand at any of the displaced instructions when the jump is written, or have been interrupted there and come back much
//! later. So where one of them begins inside of the jump, the jump's byte is one that traps, and whoever comes there is sent on to that
//! instruction's copy. The bytes say where the jump leads, so the pad has to be there.

use crate::{Displaced, Reason};
use alloc::vec::Vec;

/// What is saved of a thread that came to a probe, on its own stack, for the dispatcher to look at and to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Saved {
    /// What is done behind the dispatcher, which has to say it: [`RETURNS`] returns to the caller, and anything else is an address to go on at.
    pub way: u64,
    /// Whether that is a point: not 0 then.
    pub by_point: u64,
    /// The general registers, by their numbers in code. The stack pointer is as it was at the probe, and is not put back.
    pub general: [u64; 16],
    /// The arithmetic flags, in a form of the code's own.
    pub flags: u64,
    /// Address of the vector registers, by their numbers, each [so far](VECTOR_STRIDE) behind the last: their low 128 bits at least.
    pub vectors: u64,
    /// What else of them was in use.
    pub in_use: u64,
    /// The environment of floating-point numbers, with the exceptions that were raised: as it was, and behind the dispatcher.
    pub environment: [u32; 2],
}

/// [`Saved::way`]: to the caller.
pub const RETURNS: u64 = 1;

/// Bytes from where one vector register is saved to the next.
pub const VECTOR_STRIDE: usize = 64;

/// How vector registers are saved beyond their low 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// The state components of XCR0 that there are beyond the low 128 bits of vector registers.
    pub components: u32,
    /// Whether the processor tells which of them are in use (XGETBV with 1): others are not saved.
    pub tells_use: bool,
}

/// What handling code is for.
#[derive(Clone, Copy, Debug)]
pub struct Handling {
    /// Address of the dispatcher, an `extern "C" fn(*mut Saved, u64)`. The second argument is what an entry says.
    pub dispatcher: u64,
    /// What the processor has beyond the low 128 bits of its vector registers; `None`: nothing.
    pub vectors: Option<Vectors>,
}

/// Points that are to be made.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Address of the dispatcher of the end, an `extern "C" fn(*mut Saved)`. The stack pointer that it is shown is at the slot of the
    /// return address, which holds what is on the stack of a point, and is to hold the caller's behind it.
    pub dispatcher: u64,
    /// The same for calls that an unwinder leaves, an `extern "C" fn(*mut u64)` with the address of the slot.
    pub unwound: u64,
    /// Where the unwinder goes on (`_Unwind_Resume`).
    pub resume: u64,
    /// The personality by which an unwinder comes to [`Points::landing`].
    pub personality: u64,
    /// How many.
    pub count: u32,
    /// Address of what is known of the first one; that of the next is so many bytes behind it as a point has ([`Points::length`]). At its beginning is
    /// the caller's address.
    pub known: u64,
    /// From there to the address that the point calls.
    pub target: u32,
    /// As [`Handling::vectors`].
    pub vectors: Option<Vectors>,
}

/// Points, by which calls go that are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Points {
    /// The code, the first point first.
    pub code: Vec<u8>,
    /// Bytes from one to the next.
    pub length: u32,
    /// From the beginning of one to what is on the stack of its call.
    pub back: u32,
    /// Where an unwinder lands that leaves a call: offset in the code.
    pub landing: u32,
    /// The numbers that unwinders have for the registers in which are, there, the exception and what was on the stack of the call. Landing needs a word of
    /// the stack itself, which is that one.
    pub given: [i32; 2],
    /// A table for unwinders (`.eh_frame`), with an end, whose entry is at [`Points::entry`]. It holds wherever all of this is moved together.
    pub unwind: Vec<u8>,
    /// Offset of the entry.
    pub entry: u32,
}

/// Displaced instructions that run elsewhere, with the way back behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The code.
    pub code: Vec<u8>,
    /// For each instruction its original address and the offset of its copy.
    pub places: Vec<(u64, u32)>,
}

/// One instruction set, for probes in one's own process.
///
/// Pure, as [`Isa`](crate::Isa).
pub trait Inside: Sync {
    /// Bytes of the jump at a site.
    fn jump_length(&self) -> usize;

    /// What may stand ahead of that jump and means nothing.
    fn ahead_of_jump(&self) -> &'static [u8];

    /// Bytes of a pad.
    fn pad_length(&self) -> usize;

    /// The copies of displaced instructions, whose bytes are `original`, for the address `at`.
    ///
    /// # Errors
    /// They cannot run there.
    fn copies(&self, displaced: &Displaced, original: &[u8], at: u64) -> Result<Copies, Reason>;

    /// Handling code, for all sites, for the address `at`.
    ///
    /// # Errors
    /// It cannot be made.
    fn handling(&self, handling: &Handling, at: u64) -> Result<Vec<u8>, Reason>;

    /// Bytes of an entry.
    fn entry_length(&self) -> usize;

    /// What says `data` to the handling code at an address.
    fn entry(&self, data: u64, handling: u64) -> Vec<u8>;

    /// Points for the address `at`, with their table at `table`. They work wherever these and [`Ends::known`] are moved together.
    ///
    /// # Errors
    /// What is known of them is out of their reach.
    fn points(&self, ends: &Ends, at: u64, table: u64) -> Result<Points, Reason>;

    /// A pad at the address `at` that goes where the word at `slot` says.
    ///
    /// # Errors
    /// That is out of its reach.
    fn pad(&self, at: u64, slot: u64) -> Result<Vec<u8>, Reason>;

    /// The jump at `site` to `pad`.
    ///
    /// # Errors
    /// That is out of its reach.
    fn jump(&self, site: u64, pad: u64) -> Result<Vec<u8>, Reason>;

    /// A jump of two bytes at `site` that leads to an address near it.
    ///
    /// # Errors
    /// That is out of its reach.
    fn short_jump(&self, site: u64, to: u64) -> Result<Vec<u8>, Reason>;

    /// The byte that traps.
    fn trap(&self) -> u8;
}
