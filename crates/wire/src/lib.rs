//! The layout of the memory that trapless shares with its target.
//!
//! One memfd, made in the target and mapped by both sides, from low to high offsets:
//!
//! | part | size | written by |
//! |---|---|---|
//! | [`Header`] | one page | the tool, but for the block cursor |
//! | journal: sites, writes, bytes ([`Journal`]) | pages | the tool, before it changes anything |
//! | schema: places ([`Schema`]) | on the journal's last page, and more | the tool |
//! | block 0, the overflow block | [`Geometry::block_stride`] | any thread, by locked increments |
//! | blocks 1 … | the same each | their thread |
//!
//! The file is sparse: a block that no thread claimed, and a histogram that nothing was added to, take no memory.
//! Beside it lie two private regions of the target, told in the header: the *thread table* (wiped in forked children)
//! and the *return tables*, behind which lie a page of what else is the process's own ([`Header::signal_table`], [`Header::arena_list`]) and the
//! records of semaphores ([`SemaphoreRecord`]). What detours do in all this memory is described in [`trapless_isa::detour::memory`].
//!
//! Journal, schema and blocks may have room for more than is in them: sites can be added to a session while it runs.
//!
//! The header starts with [`MAGIC`] and the mapping's name in `/proc/PID/maps` contains [`REGION_NAME`]: that is
//! how `trapless status` and `trapless detach` find what an interrupted run left behind.
//!
//! Stacks are walked in the target by tables of their own, which are described in [`unwind`].
#![forbid(unsafe_code)]
#![deny(unreachable_pub)]

mod counters;
mod found;
mod geometry;
mod header;
mod journal;
mod messages;
mod schema;
mod script;
mod semaphore;
mod stacks;
mod table;
pub mod unwind;

pub use counters::{BlockView, Counters, Latency, RecordView, Totals, Words, WordsMut};
pub use found::{BadHeader, Checked};
pub use geometry::{Geometry, MAX_SCRIPT, PAGE, SCRIPT_BLOCK, Sizes};
pub use header::{
    ARENA_LIST_SIZE, Arena, Header, MAGIC, MAX_ARENAS, REGION_NAME, SessionState, ThreadMemory, VERSION,
};
pub use journal::{
    Journal, JournalSite, JournalSizes, JournalWrite, MAX_SITES, MAX_WRITE, NOWHERE, SIGNS_AT_SITE, SiteRole,
    SiteState, SiteWrites, Write, WriteKind, WriteShape,
};
pub use messages::*;
pub use schema::{Counter, Histogram, Numbers, PlaceKind, Places, RawPlace, Schema};
pub use script::*;
pub use semaphore::{MAX_SEMAPHORES, SemaphorePhase, SemaphoreRecord, semaphores_size};
pub use stacks::KeptStacks;
pub use table::*;
