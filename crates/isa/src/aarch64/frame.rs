//! What the templates and the routines agree on: which register holds what.

/// The templates' registers. All are saved; x0 to x8 are never touched, so that arguments and results are
/// where they were.
pub mod register {
    /// Thread pointer, and scratch.
    pub const TEMPORARY: u32 = 9;
    /// Entry of the thread table, then the thread's block.
    pub const BLOCK: u32 = 10;
    /// Addresses, and scratch.
    pub const ADDRESS: u32 = 11;
    /// Scratch. Holds x30 while a routine is called.
    pub const STATUS: u32 = 12;
    /// The return instance.
    pub const PLACE: u32 = 13;
    /// The slot: sp at the entry.
    pub const SLOT: u32 = 14;
    /// Time stamp.
    pub const TIME: u32 = 15;
    /// Time stamp of the entry; the return address while an instance is claimed.
    pub const ENTERED: u32 = 16;
    /// The thread's block while a body runs ([`crate::body::Convention::block`]).
    pub const BODY_BLOCK: u32 = 21;
    /// Link register.
    pub const LINK: u32 = 30;
    /// Stack pointer, or zero.
    pub const SP: u32 = 31;
}
