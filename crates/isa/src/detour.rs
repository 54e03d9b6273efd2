//! What a detour is asked to do, and the memory it does it in.
//!
//! # The thread's memory
//!
//! A hit is counted without a lock, in memory that belongs to the thread. Detours find it by the thread pointer (fs
//! base on x86-64, `TPIDR_EL0` on arm64, r13 on powerpc64le), hashed into the *thread table*. The layout of an entry:
//!
//! | offset | field | |
//! |---|---|---|
//! | [`THREAD_OWNER`] | owner | thread pointer of the owner (on x86 its complement); 0 free; [`THREAD_RESERVED`] being filled |
//! | [`THREAD_BLOCK`] | block | address of the thread's block of counters, histograms and ring |
//! | [`THREAD_RETURNS`] | returns | address of the thread's table of return instances |
//! | [`THREAD_HIGHEST`] | highest | the highest stack slot of all calls the thread followed |
//!
//! The table is wiped in a forked child (`MADV_WIPEONFORK`), blocks are shared with the tool (and with forked
//! children), return tables are private. So a child claims a block of its own and counts exactly, and keeps
//! its copy of the return instances that its stack refers to.
//!
//! A lookup that does not hit goes to the runtime's *resolve* routine. It claims an entry: owner 0 →
//! `THREAD_RESERVED` by compare-and-swap, fields, then owner; so a signal handler or another thread never sees an
//! owned entry without its fields. Threads with a thread pointer of 0, and threads that find the table or the blocks
//! exhausted, have no entry: their hits go to the *overflow block* by locked increments, and their returns are not
//! followed (and counted as lost).
//!
//! # Return instances
//!
//! A return instance holds the return address that the detour popped. It is found again by the address of the stack
//! slot it was popped from: the slot's bits select an entry of the thread's return table ([`Layout::return_index`]),
//! like a shadow of the stack, with [`RETURN_PROBES`] further places when that one is taken. So
//! entries that longjmp or a dead coroutine left behind are simply reused by the next call at that stack depth, and
//! coroutines may return in any order. A return that does not find its entry in its own thread's table (the coroutine
//! moved to another thread) looks through the tables of all threads. When no place is free the call is not
//! followed, and counted as lost.
//!
//! A function that is reached by a tail call from a followed one has the same slot, and both return through it, the
//! last one first. Such a call is known by its return address, which lies in an arena. Of several instances with
//! one slot the one at the lowest place is the latest.
//!
//! | offset | field | |
//! |---|---|---|
//! | [`RETURN_SLOT`] | slot | address of the stack slot; 0 when free. Written first when claimed, cleared last |
//! | [`RETURN_ADDRESS`] | address | the caller's return address |
//! | [`RETURN_ENTERED`] | entered | time stamp of the entry |

use crate::{Displaced, Reason};
use alloc::{string::String, vec::Vec};

/// Log2 of the size of a thread table entry.
pub const THREAD_SHIFT: u32 = 6;
/// Thread table: the owner's thread pointer.
pub const THREAD_OWNER: u32 = 0;
/// Thread table: address of the thread's block.
pub const THREAD_BLOCK: u32 = 8;
/// Thread table: address of the thread's return table.
pub const THREAD_RETURNS: u32 = 16;
/// Thread table: the highest stack slot of a followed call. In a forked child, where calls may have been followed
/// before, all ones.
pub const THREAD_HIGHEST: u32 = 24;
/// Owner of an entry that is being claimed. Never a thread pointer.
pub const THREAD_RESERVED: u64 = 1;
/// The thread pointer's lowest bit that takes part in the hash: TLS blocks are at least a cache line apart, and
/// glibc and musl place them at the same offset in their pages.
pub const THREAD_HASH_SHIFT: u32 = 11;

/// Log2 of the size of a return instance.
pub const RETURN_SHIFT: u32 = 5;
/// Return instance: address of the stack slot.
pub const RETURN_SLOT: u32 = 0;
/// Return instance: the caller's return address.
pub const RETURN_ADDRESS: u32 = 8;
/// Return instance: time stamp of the entry.
pub const RETURN_ENTERED: u32 = 16;
/// How many places after the first are tried for a return instance.
pub const RETURN_PROBES: u32 = 8;

/// Block: owner's thread pointer.
pub const BLOCK_OWNER: u32 = 0;
/// Block: copy of the origin word when claimed; 0 in a forked child, which has no histograms: nobody reads them, and each child would
/// take memory for its own. Never 0 in the overflow block.
pub const BLOCK_ORIGIN: u32 = 8;
/// Block: ring position of the next record, counting up.
pub const BLOCK_RING_HEAD: u32 = 16;
/// Block: records that found the ring full.
pub const BLOCK_RING_LOST: u32 = 24;
/// Block: followed calls whose return address was put back for an unwinder, so that their return is not seen.
pub const BLOCK_UNWOUND: u32 = 32;
/// Block: ring position up to which the tool has read. On a cache line of its own: the tool writes it.
pub const BLOCK_RING_TAIL: u32 = 64;
/// Block: where counters may start.
pub const BLOCK_COUNTERS: u32 = 128;

/// Log2 of the size of a ring record.
pub const RECORD_SHIFT: u32 = 7;
/// Record: ring position + 1 once the record is complete.
pub const RECORD_SEQUENCE: u32 = 0;
/// Record: time stamp.
pub const RECORD_TIME: u32 = 8;
/// Record: what was hit ([`Record::id`]).
pub const RECORD_ID: u32 = 16;
/// Record: thread id, or 0 where the thread pointer does not lead to it.
pub const RECORD_TID: u32 = 20;
/// Record: address of the return address's stack slot; pairs an entry with its return.
pub const RECORD_SLOT: u32 = 24;
/// Record: arguments, or return value and time stamp of the entry.
pub const RECORD_VALUES: u32 = 32;
/// How many values a record has room for.
pub const RECORD_MAX_VALUES: u32 = 12;
/// Signal handlers may interrupt a thread between its look at the ring and its reservation, this deep.
pub const RING_SLACK: u32 = 64;

/// Histogram: calls whose return was seen.
pub const LATENCY_COUNT: u32 = 0;
/// Histogram: sum of the durations, in time-stamp ticks.
pub const LATENCY_SUM: u32 = 8;
/// Histogram: the longest duration.
pub const LATENCY_MAX: u32 = 16;
/// Histogram: the buckets.
pub const LATENCY_BUCKETS: u32 = 24;
/// Log2 of the number of buckets per octave.
pub const LATENCY_BITS: u32 = 4;
/// Durations of 2^this ticks and more go to the last bucket.
pub const LATENCY_OCTAVES: u32 = 42;
/// Number of buckets. The bucket of `v` is `((e - BITS) << BITS) + (v >> (e - BITS))` with `e = floor(log2(v | 16))`.
pub const LATENCY_LENGTH: u32 = ((LATENCY_OCTAVES - LATENCY_BITS) << LATENCY_BITS) + (1 << LATENCY_BITS);

/// Addresses and sizes of one process's probe memory, as its detours see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Address of the thread table.
    pub threads: u64,
    /// Log2 of its number of entries.
    pub thread_bits: u32,
    /// Address of the origin word: nonzero in the process that was attached, 0 in its forked children. The word
    /// behind it is nonzero once a return instance was put at another than its first place.
    pub origin: u64,
    /// Address of the 64-bit cursor, shared by all processes: the number of the next block to be claimed. It starts at
    /// 1, since block 0 is the overflow block, and may pass the number of blocks.
    pub block_cursor: u64,
    /// Address of block 0, which is the overflow block.
    pub blocks: u64,
    /// Distance between blocks, a multiple of the page size.
    pub block_stride: u64,
    /// Number of blocks.
    pub block_count: u32,
    /// Offset of the ring in a block; 0 when no probe records.
    pub ring: u32,
    /// Log2 of the number of records in a ring.
    pub ring_bits: u32,
    /// Whether the word at the thread pointer holds the thread pointer, for every thread that will ever run (x86; the
    /// C library sees to it). Loading it costs nothing; `rdfsbase` costs 5 ns, but works for threads without TLS, too.
    pub self_pointer: bool,
    /// Offset of the thread id from the thread pointer, where the C library's layout is known.
    pub tid_offset: Option<i32>,
    /// Address of the return tables; entry `i` of the thread table uses table `i`.
    pub returns: u64,
    /// Log2 of the number of entries of a return table.
    pub return_bits: u32,
    /// Address of the list of arenas: pairs of 64-bit address and size, ended by a zero address.
    pub arenas: u64,
    /// Address of the bitmap of return tables that were ever used, private and kept by fork.
    pub returns_used: u64,
}

impl Layout {
    /// Index into the thread table where the search for `thread_pointer` starts.
    pub fn thread_index(&self, thread_pointer: u64) -> u64 {
        (thread_pointer >> THREAD_HASH_SHIFT) & ((1 << self.thread_bits) - 1)
    }

    /// Index into a return table where the search for `slot` starts. The n-th further place is
    /// `(index + n * (2n + 1) * 61) mod size`: collisions of stacks that lie a multiple of the window apart spread out.
    pub fn return_index(&self, slot: u64) -> u64 {
        (slot >> 4) & ((1 << self.return_bits) - 1)
    }

    /// Address of a thread's return table.
    pub fn return_table(&self, thread_index: u64) -> u64 {
        self.returns + (thread_index << (self.return_bits + RETURN_SHIFT))
    }
}

/// Bucket of a duration in a latency histogram.
pub fn latency_bucket(ticks: u64) -> u32 {
    let ticks = ticks.min((1 << LATENCY_OCTAVES) - 1);
    let octave = (ticks | 1 << LATENCY_BITS).ilog2() - LATENCY_BITS;
    (octave << LATENCY_BITS) + (ticks >> octave) as u32
}

/// Smallest duration of a bucket. `latency_bucket_start(b + 1)` is where the bucket ends.
pub fn latency_bucket_start(bucket: u32) -> u64 {
    let base = 1 << LATENCY_BITS;
    if bucket < 2 * base {
        return u64::from(bucket);
    }
    let octave = bucket / base - 1;
    u64::from(base + bucket % base) << octave
}

/// A record's place in the ring and its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Identity stored in the record: the probe's number, twice, plus 1 for a return.
    pub id: u32,
    /// How many integer arguments to store (entry only).
    pub arguments: u8,
}

/// What happens at the entry. Offsets are from the start of the thread's block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryActions {
    /// Increment this counter.
    pub hits: Option<u32>,
    /// Write a record.
    pub record: Option<Record>,
}

/// What happens at the return. Offsets are from the start of the thread's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnActions {
    /// Counter of calls that could not be followed to their return.
    pub lost: u32,
    /// Increment this counter.
    pub hits: Option<u32>,
    /// Add the duration to this histogram.
    pub latency: Option<u32>,
    /// Write a record: return value, then the entry's time stamp.
    pub record: Option<Record>,
}

/// All that a detour does besides running the displaced instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// At the entry.
    pub entry: EntryActions,
    /// At the return; makes the entry call-paired.
    pub ret: Option<ReturnActions>,
    /// Before anything else, put back the return addresses of every followed call on this thread's stack: for the entry points of
    /// unwinders, which must see the real ones.
    pub restore_returns: bool,
}

/// A detour to be generated.
#[derive(Clone, Copy, Debug)]
pub struct DetourRequest<'a> {
    /// Where the detour will stand.
    pub address: u64,
    /// The displaced instructions.
    pub displaced: Displaced,
    /// Their bytes.
    pub original: &'a [u8],
    /// The site with its function, for liveness. `displaced` comes from its verdict.
    pub site: &'a crate::Site<'a>,
    /// What to do.
    pub actions: Actions,
    /// The target's probe memory.
    pub layout: &'a Layout,
    /// The arena's shared routines.
    pub runtime: &'a Runtime,
}

/// The routines that the detours of one arena share.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// Machine code.
    pub code: Vec<u8>,
    /// Addresses of the routines, each ISA's own order.
    pub routines: Vec<u64>,
}

/// A finished detour.
#[derive(Clone, Debug)]
pub struct Detour {
    /// Machine code, to stand at the request's address.
    pub code: Vec<u8>,
    /// For each displaced instruction, its original address and the offset of its copy; last, the first
    /// instruction that stays and the offset of the branch back. A thread stopped at one is at the same place of the
    /// program as one stopped at the other.
    pub places: Vec<(u64, u32)>,
    /// Offset of the address to which a followed call returns.
    pub return_point: Option<u32>,
    /// Comments for `explain`, by offset.
    pub comments: Vec<(u32, String)>,
}

impl Detour {
    /// Offset of the copy of the instruction at `original`.
    pub fn copy_of(&self, original: u64) -> Option<u32> {
        self.places.iter().find(|p| p.0 == original).map(|p| p.1)
    }
}

/// Shorthand of the generators.
pub type Emitted<T> = Result<T, Reason>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_ordered() {
        let mut previous = 0;
        for bucket in 1..LATENCY_LENGTH {
            let start = latency_bucket_start(bucket);
            assert!(start > previous, "bucket {bucket}");
            assert_eq!(latency_bucket(start), bucket);
            assert_eq!(latency_bucket(start - 1), bucket - 1);
            previous = start;
        }
        assert_eq!(latency_bucket(u64::MAX), LATENCY_LENGTH - 1);
    }
}
