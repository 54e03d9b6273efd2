//! The first page of the shared region: whose it is, in what state, and where everything lies.

use crate::JournalSizes;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use trapless_isa::{
    Additions, Layout,
    detour::{
        return_sizes,
        signals::{SIGNAL_KEY, Signals},
    },
};

/// First eight bytes of the region.
pub const MAGIC: [u8; 8] = *b"TRAPLESS";

/// Version of everything this crate describes. A tool does not touch what another version left.
pub const VERSION: u32 = 16;

/// Name given to the memfd; `/proc/PID/maps` shows it as `/memfd:trapless (deleted)`.
pub const REGION_NAME: &std::ffi::CStr = c"trapless";

/// Most arenas a session can have: one near each probed module.
pub const MAX_ARENAS: usize = 96;

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SessionState {
    /// Memory is mapped; sites are being patched or about to be.
    Arming = 1,
    /// All patches of the journal are in.
    Armed = 2,
    /// Patches are being taken out.
    Removing = 3,
    /// No patch is in. Memory may still be mapped, because a thread could return into it.
    Removed = 4,
}

impl SessionState {
    /// The state with this number.
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Arming, Self::Armed, Self::Removing, Self::Removed].into_iter().find(|s| *s as u32 == raw)
    }
}

/// An executable mapping of ours in the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Arena {
    /// Address in the target; 0 marks an unused entry.
    pub address: u64,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
}

/// What is known of the memory that a program's thread pointers lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadMemory {
    /// Whether the word there holds the thread pointer, for every thread that will ever run ([`Layout::self_pointer`]).
    pub self_pointer: bool,
    /// Where each thread's number is, from its thread pointer on ([`Layout::tid_offset`]).
    pub tid_offset: Option<i32>,
}

impl ThreadMemory {
    /// That of a C library whose threads have their numbers there, or of which nothing is known.
    #[must_use]
    pub fn of_c_library(tid_offset: Option<i32>) -> Self {
        Self { self_pointer: tid_offset.is_some(), tid_offset }
    }
}

/// The header. All addresses are the target's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// A [`SessionState`].
    pub state: u32,
    /// Process that was attached, in the tool's pid namespace.
    pub pid: u32,
    /// Process of the tool that attached it.
    pub tool: u32,
    /// Its start time, as that of the attached process: ids are used again.
    pub tool_start_time: u64,
    /// Start time of the attached process, in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_time: u64,
    /// Seconds since the epoch when the session began.
    pub created: u64,
    /// Address of the shared region.
    pub region: u64,
    /// Size of the shared region.
    pub region_size: u64,
    /// How much the journal has room for; it starts at the second page.
    pub journal: JournalSizes,
    /// How many places the schema has room for; it starts behind the journal.
    pub places: u64,
    /// Offset of block 0.
    pub blocks_offset: u64,
    /// Distance between blocks.
    pub block_stride: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Address of the thread region: the origin word's page, then the table.
    pub threads: u64,
    /// Its size.
    pub threads_size: u64,
    /// Log2 of the thread table's number of entries.
    pub thread_bits: u64,
    /// Address of the return region: the list of pages, the pool, the shadow blocks, and stacks for bodies. Hardly more than an address when nothing is followed.
    pub returns: u64,
    /// Its size, with that of the semaphores' records at its end.
    pub returns_size: u64,
    /// How many semaphores there is room for.
    pub semaphores: u64,
    /// Log2 of the number of shadow blocks.
    pub return_bits: u64,
    /// Log2 of the distance between stack slots.
    pub slot_shift: u64,
    /// Offset of the ring in a block; 0 when there is none.
    pub ring: u32,
    /// Log2 of the number of records in a ring.
    pub ring_bits: u32,
    /// Threads that had the thread pointer of another one when the probes were armed.
    pub sharing_threads: u64,
    /// Address of the arena of the stubs of signal handlers ([`trapless_isa::detour::signals`]); 0 where there are none.
    pub signals: u64,
    /// Address at which block 0 is mapped once more, in reach of an arena's code ([`trapless_isa::Layout::near`]); 0 where it is not.
    pub near: u64,
    /// Offset of the shared memory of a script, or of the words by which a library is loaded ([`trapless_isa::loader`]); 0 where there is neither.
    pub script: u64,
    /// Its size, in whole pages.
    pub script_size: u64,
    /// Offset in a block of what a script has there, in whole pages; 0 where there is nothing.
    pub script_block: u32,
    /// Its size, in whole pages.
    pub script_block_size: u32,
    /// Address of the arena of a script's code; 0 where there is none, as where a library is loaded.
    pub program: u64,
    /// Size of the stacks that bodies run on, in the return region ([`Header::stacks`]); 0 where they run on the program's.
    pub stacks_size: u64,
    /// Our executable mappings when the session was armed, ended by an unused entry. With those that were added since they stand in
    /// the [`Header::arena_list`].
    pub arenas: [Arena; MAX_ARENAS],
    /// Ends the arenas, and keeps the cursor on a cache line of its own.
    _pad: [u64; 8],
    /// Number of claimed blocks; starts at 1, since block 0 is the overflow block. May exceed the number of blocks.
    pub block_cursor: u64,
    /// The words of the gate ([`trapless_isa::detour::gate`]).
    pub gate: [u32; 4],
    _end: [u64; 5],
}

const _: () = assert!(size_of::<Header>() <= crate::PAGE as usize);
const _: () = assert!(std::mem::offset_of!(Header, block_cursor).is_multiple_of(64));

/// Where on the private page the list of arenas begins, behind the table of handlers.
const ARENA_LIST: u64 = 2304;

/// Size of the list of arenas: all that there can be, and the unused one that ends it.
pub const ARENA_LIST_SIZE: usize = (MAX_ARENAS + 1) * size_of::<Arena>();

const _: () = {
    assert!((SIGNAL_KEY + 8) as u64 <= ARENA_LIST);
    assert!(ARENA_LIST + ARENA_LIST_SIZE as u64 <= crate::PAGE);
};

impl Header {
    /// The session's state, if the number is one.
    pub fn session_state(&self) -> Option<SessionState> {
        SessionState::from_raw(self.state)
    }

    /// The arenas in use.
    pub fn arenas(&self) -> impl Iterator<Item = Arena> + '_ {
        self.arenas.iter().copied().filter(|a| a.address != 0)
    }

    /// Offset of the state word, to be rewritten alone.
    pub const STATE_OFFSET: u64 = std::mem::offset_of!(Header, state) as u64;

    /// Offset of the number of threads that share a thread pointer.
    pub const SHARING_OFFSET: u64 = std::mem::offset_of!(Header, sharing_threads) as u64;

    /// The bytes of the list of arenas.
    pub fn arena_list_bytes(&self) -> [u8; ARENA_LIST_SIZE] {
        let mut list = [0; ARENA_LIST_SIZE];
        let arenas: &[u8] = bytemuck::cast_slice(&self.arenas);
        list[..arenas.len()].copy_from_slice(arenas);
        list
    }

    /// Offset of the block cursor.
    pub const CURSOR_OFFSET: u64 = std::mem::offset_of!(Header, block_cursor) as u64;

    /// Offset of the gate.
    pub const GATE_OFFSET: u64 = std::mem::offset_of!(Header, gate) as u64;

    /// Offset of the schema in the region.
    pub fn places_at(&self) -> u64 {
        self.journal.end()
    }

    /// Address of the semaphores' records.
    pub fn semaphores_at(&self) -> u64 {
        self.returns + self.returns_size.saturating_sub(crate::semaphores_size(self.semaphores))
    }

    /// Address of the table of signal handlers, at the start of the *private page*, which lies ahead of the semaphores' records. What is
    /// there is the process's own: a forked child has a copy, and keeps it.
    pub fn signal_table(&self) -> u64 {
        self.semaphores_at().saturating_sub(crate::PAGE)
    }

    /// Where the stacks lie that bodies run on ([`trapless_isa::Layout::stacks`]): one for each block, ahead of the private page. Empty where there
    /// are none.
    pub fn stacks(&self) -> Range<u64> {
        let end = self.signal_table();
        end.saturating_sub(self.stacks_size)..end
    }

    /// Address of the list of all arenas, in the form of [`Header::arenas`], on the private page. A forked child has those that were there
    /// when it was forked, and no others are mapped in it.
    pub fn arena_list(&self) -> u64 {
        self.signal_table().saturating_add(ARENA_LIST)
    }

    /// Where block 0 is mapped once more, and its size; a size of 0 where it is not.
    pub fn near(&self) -> (u64, u64) {
        (self.near, if self.near == 0 { 0 } else { self.block_stride })
    }

    /// The stubs of signal handlers, if there are any.
    pub fn signals(&self) -> Option<Signals> {
        (self.signals != 0).then(|| Signals {
            table: self.signal_table(),
            arena: self.signals,
            stops: 0,
            hops: (0, 0),
            program: self.program,
            key: 0,
        })
    }

    /// The layout as detours see it, in a program of which this is known.
    pub fn layout(&self, threads: ThreadMemory) -> Layout {
        let ThreadMemory { self_pointer, tid_offset } = threads;
        Layout {
            threads: self.threads + crate::PAGE,
            thread_bits: self.thread_bits as u32,
            origin: self.threads,
            block_cursor: self.region + Self::CURSOR_OFFSET,
            blocks: self.region + self.blocks_offset,
            block_stride: self.block_stride,
            block_count: self.block_count as u32,
            ring: self.ring,
            ring_bits: self.ring_bits,
            self_pointer,
            tid_offset,
            // Nobody's, until somebody says it who knows the kernel.
            selector: u16::MAX,
            pages: self.returns,
            returns: self.returns + return_sizes(self.return_bits as u32, self.slot_shift as u32)[0],
            return_bits: self.return_bits as u32,
            slot_shift: self.slot_shift as u32,
            arenas: self.arena_list(),
            signals: self.signals(),
            gate: self.region + Self::GATE_OFFSET,
            near: self.near,
            stacks: if self.stacks_size == 0 { 0 } else { self.stacks().start },
            points: 0,
            additions: Additions::default(),
        }
    }
}
