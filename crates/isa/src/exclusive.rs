//! Loads that watch what they have loaded, and stores that come about only where nobody has stored there since: `ldxr` and `stxr`,
//! `larx` and `stcx.`
//!
//! A step takes the watch away, as every exception does. So a thread that is stepped goes round and round between the two. Who steps it
//! while everybody stands still knows without a watch whether anybody has stored, and makes the store come about
//! ([`Isa::store_exclusive`](crate::Isa::store_exclusive)).

/// Such an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exclusive {
    /// Of the memory that is accessed.
    pub address: u64,
    /// Bytes of it: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether it is the store.
    pub is_store: bool,
}
