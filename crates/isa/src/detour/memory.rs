//! The memory that detours work in, and the protocol they follow there.
//!
//! # The thread's memory
//!
//! A hit is counted without a lock, in memory that belongs to the thread. Detours find it by the thread pointer (fs
//! base on x86-64, `TPIDR_EL0` on arm64, r13 on powerpc64le), hashed into the *thread table*. The layout of an entry:
//!
//! | offset | field | |
//! |---|---|---|
//! | [`THREAD_OWNER`] | owner | thread pointer of the owner (its complement but on 32-bit x86); 0 free; [`THREAD_RESERVED`] being filled |
//! | [`THREAD_BLOCK`] | block | address of the thread's block of counters, histograms and ring |
//! | [`THREAD_CALL`] | call | address of the arguments of the `clone3` for which the entry is *shared*, or 0 |
//! | [`THREAD_CHILDREN`] + [`THREAD_BLOCK`] | block | the same for the thread's children that share the memory, or 0 |
//!
//! The table is wiped in a forked child (`MADV_WIPEONFORK`), blocks are shared with the tool (and with forked
//! children), return instances are private. So a child claims a block of its own and counts exactly, and keeps
//! its copy of the return instances that its stack refers to.
//!
//! A lookup that does not hit goes to the runtime's *resolve* routine. It claims an entry: owner 0 →
//! `THREAD_RESERVED` by compare-and-swap, fields, then owner; so a signal handler or another thread never sees an
//! owned entry without its fields. Threads with a thread pointer of 0, and threads that find the table or the blocks
//! exhausted, have no entry: their hits go to the *overflow block* by locked increments. So do hits of whoever is not found at first sight where
//! there is no stack to call the routine on ([`Stack`](crate::Stack)); and where not even registers are free there, all hits do, since the overflow block
//! is mapped once more in reach of the code ([`Layout::near`]).
//!
//! A handler of the thread's may come between any two instructions of a lookup, and may fork: then its child goes on with a table that
//! is empty. So whoever has seen the owner sees the block by the same instruction, or before; or looks whether it is 0, and if so asks the
//! runtime again. A child that has found its parent's block before it was forked adds there once, for a hit that has begun in the parent.
//!
//! Where additions are atomic and nothing but a number is asked for, as on arm64 and powerpc64le, a detour does not look at the owner: what stands in
//! the entry of its thread pointer is a block of this process, and a number there is as good as in its own, since they are summed up.
//!
//! # Children that share the memory
//!
//! A child of vfork or posix_spawn runs in its parent's memory, with its parent's thread pointer, until it runs another program or
//! ends. The parent's thread stands still meanwhile, in the kernel. Behind the system calls that make such children stand probes
//! ([`crate::Sharing`]), so child and parent pass them both, and two things are done:
//!
//! - **The child is marked**, by a flag that is each task's own, that programs do not use, that children inherit and that another
//!   program starts without: on x86 the identification flag, whose only meaning is that it can be changed.
//! - **The thread's entry is shared**: its owner less one stands in place of the owner, which no thread finds at first sight. So both
//!   go to *resolve*, which gives the entry to the parent, and to who bears the mark that part of it at [`THREAD_CHILDREN`]
//!   which has a block of its own. Its origin is 0: it is one of a child, as those of forked children are.
//!
//! When the parent comes back the entry is its own again. Until then it is counted right as well, only later: a signal handler
//! of the parent may run before, and may even leave by longjmp. What children of such a child do is the first one's.
//! A forked child has its entries from no one, and all that is counted in it is a child's, so nothing is shared there.
//!
//! The arguments of `clone3` lie in the memory of who calls it. A thread that it makes may find them gone, so they are looked at by
//! a probe ahead of the call: it shares the entry, and notes where the arguments are. Whoever comes back as a child with these
//! very arguments and a thread pointer whose entry is shared is one that shares the memory.
//!
//! # Return instances
//!
//! A return instance holds the return address that the detour popped. The address of the stack slot that it was popped
//! from names one call in the whole process, whichever thread runs it. So instances lie in a *shadow of the stack*:
//! each page of a stack on which a call is followed claims a *shadow block*, once and for all, by compare-and-swap of its page number into
//! the block's tag. In it every slot of the page has an instance of its own. Only whoever runs on that stack gets there,
//! so plain loads and stores do. There is no table per thread, no limit of depth, and no two slots share an instance.
//!
//! Which block a page has is a hash of its number ([`Layout::block_index`]), on arm64 and powerpc64le one that folds the whole slot, so
//! that the slot alone gives the place of its instance ([`Shadows`]); where that block is another page's, the next
//! [`SHADOW_PROBES`] are tried in order. Blocks are never given back, so the first free one ends a search. When no block is
//! free the call is not followed, and counted as lost. Who claims a block writes its page to a list ([`PAGES_FIRST`]), for those who take
//! probes out and must find every return point on every stack.
//!
//! | offset | field | |
//! |---|---|---|
//! | [`RETURN_POINT`] | point | the return point that the callee was given instead, or a [`note`]; 0 or the [`slot_name`]: the instance is free |
//! | [`RETURN_ADDRESS`] | address | the return address that was taken |
//! | [`RETURN_ENTERED`] | entered | time stamp of the entry; where nobody asks for that, what the detour wants to know again at the return, or at the next entry |
//! | [`RETURN_OLDER`] | older | instance of the call that reached this one by a tail call, in the *pool*; or 0, or the [`slot_name`]. None when free |
//!
//! **Names.** Where [`Shadows::Plain`] are, a detour looks at no tag. The *claim* routine, which finds the block by its tag, writes the slot's
//! [`slot_name`] into an instance that it gives away, in place of an older one. Blocks are never given back, so whoever finds the name of his
//! own slot there knows that the block is his page's, and that there is no older instance. A detour that frees such an instance leaves
//! the name in place of the point, and the next entry at the slot has but that one word to look at. Whoever does not find the name asks the
//! runtime, which takes 0 and any name for the same. Instances of the pool are freed by 0, and their older ones may be names, too.
//!
//! On powerpc64le an instance that is freed by its name has the address of an entry of the thread table at [`RETURN_ENTERED`]: that of who has called, or that
//! which is looked at first for who has returned. Calls of which nothing but a number is asked for take the block from there, and look for no thread. So
//! whatever else writes to a free instance, as the record of a walk, writes 0 in place of the name.
//!
//! **Entry.** The instance of the slot is free, or the runtime's *claim* routine is asked. It finds one of two things. If the return
//! address to be taken is the instance's own point, this call was reached by a tail call from the one that the instance is of:
//! both will return through the slot, the last one first. The older instance moves to the pool, and the younger one
//! points to it. In any other case the instance was left behind, by longjmp, an exception, a thread's or a coroutine's end: **the
//! latest call at a slot wins**, and what was there is forgotten.
//!
//! **Return.** The return point's own address must be that of the slot's instance. The address goes back to its slot *before* the
//! instance is freed: whenever the program's own code runs, slot and instance together tell the real address. If the instance has an older one,
//! the runtime's *leave* routine exchanges the two, so that the older one's point finds what it looks for. An
//! instance that is not there is no reason to stop: if the slot holds something else than the return point, somebody
//! has put the real address there, and that is the way home.
//!
//! # Notes
//!
//! Where the return address must stay where it is, a call is only *noted*: its instance is claimed as above, with the number of its probe
//! ([`note`]), which is no address, in place of the return point. At each place where the function is left a detour asks for the
//! instance of the slot that the stack pointer is at, as a return part does. If it bears the number, the call is over. A call that was
//! left in another way has left its note behind, like any instance, and the next call at the slot wins. One note can lie over
//! the instance of a paired call that has made a tail call, and is exchanged with it in the same way.
//!
//! A goroutine's stack is moved when it grows, and the goroutine itself from thread to thread. What stays is how deep a call is in the
//! stack, so that takes the place of the slot's address, with the goroutine's own ([`goroutine_slot`]).
//!
//! # Unwinders
//!
//! Nothing is put back for an unwinder, so there is nothing to be followed again: it is *told* the real address. An unwinder looks up
//! each frame's code address in `_dl_find_object` or `dl_iterate_phdr`. Both are probed with a [`crate::Lookup`]. When the address that is
//! looked up lies in an arena, the runtime's *translate* routine finds the unwinder's context on the stack: the word that
//! holds the return point, with the frame address beside it, for whose slot an instance has that very point. There it
//! writes the real address, in place of the point; and wherever the unwinder keeps the address that it looks up (that of the
//! point less one, which nobody else has), in saved registers and on the stack below, the real one less one. So it walks on as if no call
//! were followed, at any depth and on any stack, whenever it was loaded.
//!
//! **Landing.** An exception leaves the calls that it passes, and they are counted as such. A personality routine lands, in a `catch` or to clean up,
//! by one call of libgcc's `_Unwind_SetIP`, which is probed with [`Hook::Land`](crate::Hook::Land). What was walked over by then the look-ups have
//! noted, in a *record* for each walk, which stands in the instance that the slot of the context's code address would have:
//!
//! | offset | field | |
//! |---|---|---|
//! | [`RETURN_POINT`], [`RETURN_OLDER`] | | 0: no call returns through the middle of a context |
//! | [`WALK_LAST`] | last | the slot of the last call walked over |
//! | [`WALK_CALLS`] | calls | how many calls were walked over, plus *last*, which tells a record from what a call has left there |
//!
//! A throw walks twice, first to find who catches; the second walk begins below where the first has ended, and so the record begins again.
//! Instances and slots are let be: those of calls that were left are free for the next ones, as after longjmp.
//!
//! **Points.** In one's own process calls may be followed in another way, too: by a *point*, code that stands on the stack in place of the return address
//! and is in an unwinder's table ([`crate::inside`]). That table reads what stands on the stack. Where a detour has taken a point off the stack for a return address, an
//! unwinder is told the address that the point goes back to, and passes over it.
//!
//! # Stacks for bodies
//!
//! A goroutine's stack is as small as it can be, and a body takes more of it than Go leaves. So in a process with Go's run-time system bodies run
//! on stacks of ours: each block has one, in private memory, since a forked child goes on with a copy of what it was called on. It has
//! [`STACK_LEVELS`] levels. A detour takes one by adding to [`STACK_USED`], notes at the level's end where it comes from
//! ([`LEVEL_POINTER`], [`LEVEL_SWITCH`]), calls the bodies, goes back, and only then gives the level back: a handler that interrupts it at any
//! instruction finds a level that is nobody's, and leaves the word as it was.
//!
//! A frame that was interrupted in a detour itself is told in the same way, by what the arena says of each of its instructions
//! ([`crate::frames`]): the unwinder gets the place of the program that the thread stands for, and the stack pointer that it has there.

use super::signals::Signals;

/// Log2 of the size of a thread table entry.
pub const THREAD_SHIFT: u32 = 6;
/// Thread table: the owner's thread pointer.
pub const THREAD_OWNER: u32 = 0;
/// Thread table: address of the thread's block.
pub const THREAD_BLOCK: u32 = 8;
/// Thread table: address of the arguments of the call that an entry is shared for.
pub const THREAD_CALL: u32 = 16;
/// Thread table: offset in an entry of the part that children have who share the thread's memory; laid out like the entry.
pub const THREAD_CHILDREN: u32 = 32;
/// Owner of an entry that is being claimed. Never a thread pointer.
pub const THREAD_RESERVED: u64 = 1;
/// What thread pointers and page numbers are multiplied with to be hashed: 2^32 over the golden ratio squared, odd and positive.
pub const HASH_FACTOR: u32 = 0x61c8_8647;

/// Log2 of the size of a stack page, as shadows see it. Not the kernel's pages.
pub const STACK_PAGE_SHIFT: u32 = 12;
/// Shadow block: number of the stack page that has it; 0 free. Where [`Shadows::Plain`] are, it stands in the list of tags.
pub const SHADOW_TAG: u32 = 0;
/// Shadow block: the instances of its page's slots, in order; where [`Shadows::Plain`] are, from its beginning.
pub const SHADOW_INSTANCES: u32 = 32;
/// By how many bits slots are folded where [`Shadows::Plain`] are.
///
/// Pages side by side have blocks side by side. What tells threads apart, which is from bit 23 on where their stacks have the usual 8 MB, comes to
/// bit 17 and so 32 blocks away: of 4096 such threads each has the blocks of 32 pages for itself, if there are so many.
pub const SHADOW_FOLD: u32 = 6;
/// By how many bits thread pointers are folded on arm64 and powerpc64le, before those from [`STACK_PAGE_SHIFT`] on are taken for an index
/// into the thread table.
///
/// Stacks lie a power of 2 apart, with or without a guard of one page or some, and thread pointers at their ends. A fold by the distance of
/// two stacks would undo the steps of the guards, so not every number will do: by this one, no more thread pointers share an index in
/// a table of 2^13 than by a multiplication.
pub const THREAD_FOLD: u32 = 13;
/// How many blocks are tried for a page.
pub const SHADOW_PROBES: u32 = 64;

/// List of the pages that have shadow blocks: how many there are.
pub const PAGES_COUNT: u32 = 0;
/// List of pages: the first page number; they are 8 bytes apart.
pub const PAGES_FIRST: u32 = 64;

/// Log2 of the size of a return instance.
pub const RETURN_SHIFT: u32 = 5;
/// Return instance: the return point that stands in the slot, or a [`note`].
pub const RETURN_POINT: u32 = 0;
/// Return instance: the return address that was taken.
pub const RETURN_ADDRESS: u32 = 8;
/// Return instance: time stamp of the entry.
pub const RETURN_ENTERED: u32 = 16;
/// Return instance: address of the instance that this one was reached from by a tail call.
pub const RETURN_OLDER: u32 = 24;

/// What a goroutine's address is multiplied with to name its calls: the golden ratio of 2^52, shifted by the page's bits less the three
/// that are 0 in the address.
///
/// So goroutines whose addresses lie within 15 GB of each other share no [`goroutine_slot`] as long as no stack is deeper than 1 GB, which is
/// the most that Go allows: multiples of the golden ratio lie as far apart as can be.
pub const GOROUTINE_FACTOR: u64 = 0x9_e377_9b97_f4a7 << (STACK_PAGE_SHIFT - 3);
/// Where a goroutine (`runtime.g`) has the address behind its stack (`stack.hi`).
pub const GOROUTINE_STACK_END: u32 = 8;
/// The bit that is set in what stands for the slot of a goroutine's call, and in no address of a stack.
pub const GOROUTINE_BIT: u32 = 63;

/// What stands for the address of a stack slot where stacks are moved: it depends on the goroutine, and on how far its stack's end is
/// above the slot. Go copies stacks so that this stays.
///
/// A shadow block belongs to a goroutine's page then, and whoever runs as this goroutine gets there alone.
pub const fn goroutine_slot(goroutine: u64, stack_end: u64, slot: u64) -> u64 {
    let named = goroutine.wrapping_mul(GOROUTINE_FACTOR);
    named.wrapping_add(stack_end).wrapping_sub(slot) | 1 << GOROUTINE_BIT
}

/// What stands in a return instance in place of the return point where the call of a probe is noted and nothing else is done. It is no
/// address of any program's, and 32 bits that are sign-extended.
pub const fn note(probe: u32) -> u64 {
    0xffff_ffff_8000_0000 | probe as u64
}

/// Record of a walk, in a free return instance: the slot of the last call that was walked over.
pub const WALK_LAST: u32 = RETURN_ADDRESS;
/// Record of a walk: how many calls were walked over, plus the slot of the last one.
pub const WALK_CALLS: u32 = RETURN_ENTERED;
/// More calls are none of a walk.
pub const WALK_MOST: u64 = 1 << 24;

/// Words of points: what the first one has on the stack, which is an address of its code.
pub const POINTS_START: u32 = 0;
/// Words of points: how many bytes from there all have theirs in. Until this is written there are none.
pub const POINTS_SIZE: u32 = 8;
/// Words of points: what is added to an address of theirs to get that of the word that has where it goes back to.
pub const POINTS_APART: u32 = 16;

/// Log2 of the number of instances in the pool: of calls that have made a tail call and not returned.
pub const POOL_BITS: u32 = 16;
/// How many places of the pool are tried for an instance.
pub const POOL_PROBES: u32 = 64;
/// Size of the pool, which precedes the shadow blocks.
pub const POOL_SIZE: u64 = 1 << (POOL_BITS + RETURN_SHIFT);

/// How many words of what `dl_iterate_phdr` is given are looked at.
pub const LOOKED_UP_WORDS: u32 = 3;
/// How much of an unwinder's stack is searched for its context.
pub const UNWINDER_STACK: u32 = 4096;

/// Block: owner's thread pointer.
pub const BLOCK_OWNER: u32 = 0;
/// Block: copy of the origin word when claimed; 0 in a forked child, which has no histograms: nobody reads them, and each child would
/// take memory for its own. Never 0 in the overflow block.
pub const BLOCK_ORIGIN: u32 = 8;
/// Block: ring position of the next record, counting up.
pub const BLOCK_RING_HEAD: u32 = 16;
/// Block: records that found the ring full.
pub const BLOCK_RING_LOST: u32 = 24;
/// Block: followed calls that an exception has left, or a tracer has put back for an unwinder, so that their return is not seen.
pub const BLOCK_UNWOUND: u32 = 32;
/// Block: entries that were not recorded, of calls that are not followed either, so that no return is recorded that could be
/// taken for theirs. Only in the overflow block.
pub const BLOCK_UNRECORDED: u32 = 40;
/// Block: hits for which bodies were to be called and were not ([`crate::body`]): in the overflow block, of threads without a block of their
/// own; in another one, of children that were forked or share the memory. Bodies count there what they had no room to do.
pub const BLOCK_UNRUN: u32 = 48;
/// Block: address of the thread's stack for bodies, where there are such ([`Layout::stacks`]).
pub const BLOCK_STACK: u32 = 56;
/// Block: ring position up to which the tool has read. On a cache line of its own: the tool writes it.
pub const BLOCK_RING_TAIL: u32 = 64;
/// Block: where counters may start.
pub const BLOCK_COUNTERS: u32 = 128;

/// Log2 of the size of a thread's stack for bodies.
pub const STACK_SHIFT: u32 = 14;
/// Stack for bodies: how many bytes of it are in use, in whole levels from its end downwards.
pub const STACK_USED: u32 = 0;
/// Size of a level, in bytes: what the bodies of one hit have. Those of a signal's handler that interrupts them get the next one.
pub const STACK_LEVEL: u32 = 4064;
/// How many levels a stack has. A hit that finds them all in use runs no bodies, and is counted.
pub const STACK_LEVELS: u32 = 4;
/// Level: so far below its end is the stack pointer of whoever uses it, as it was on the program's stack.
pub const LEVEL_POINTER: u32 = 8;
/// Level: so far below its end is the address of the instruction that has switched to it.
pub const LEVEL_SWITCH: u32 = 16;

const _: () = assert!(STACK_LEVEL * STACK_LEVELS + 64 <= 1 << STACK_SHIFT && STACK_LEVEL.is_multiple_of(16));

/// Log2 of the size of a ring record.
pub const RECORD_SHIFT: u32 = 7;
/// Record: ring position + 1 once the record is complete.
pub const RECORD_SEQUENCE: u32 = 0;
/// Record: time stamp.
pub const RECORD_TIME: u32 = 8;
/// Record: what was hit ([`crate::EntryStep::Record`], [`crate::ReturnStep::Record`]).
pub const RECORD_ID: u32 = 16;
/// Record of a return, in its number: the result is not known, because the function went on in another one.
pub const RECORD_NO_RESULT: u32 = 1 << 31;
/// Record: thread id, or 0 where the thread pointer does not lead to it.
pub const RECORD_TID: u32 = 20;
/// Record: address of the return address's stack slot; pairs an entry with its return.
pub const RECORD_SLOT: u32 = 24;
/// Record: arguments, or return value and time stamp of the entry.
pub const RECORD_VALUES: u32 = 32;
/// How many values a record has room for.
pub const RECORD_MAX_VALUES: u32 = 12;
/// How many operands are recorded at most.
pub const MOST_FETCHED: usize = RECORD_MAX_VALUES as usize - 1;
/// Record of operands: which of them could not be read, a bit for each. Detours read all.
pub const RECORD_MISSING: u32 = RECORD_VALUES + 8 * MOST_FETCHED as u32;
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
    /// Address of the origin word: nonzero in the process that was attached, 0 in its forked children.
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
    /// What is in gs where it selects the thread's control block (32-bit x86): the first entry for that of the kernel's table, which
    /// `set_thread_area` gives to who asks first, the C library.
    pub selector: u16,
    /// Address of the list of the stack pages that have shadow blocks.
    pub pages: u64,
    /// Address of the pool of return instances; the shadow blocks follow it.
    pub returns: u64,
    /// Log2 of the number of shadow blocks.
    pub return_bits: u32,
    /// Log2 of the distance between stack slots that may hold a return address ([`crate::Facts::slot_shift`]).
    pub slot_shift: u32,
    /// Address of the list of arenas: pairs of 64-bit address and size, ended by a zero address.
    pub arenas: u64,
    /// Where the stubs of signal handlers are, if there are any.
    pub signals: Option<Signals>,
    /// Address of the gate's words ([`super::gate`]), on a cache line that no hit writes.
    pub gate: u64,
    /// Address at which block 0 is mapped once more, as far as its counters go, in reach of arenas; 0: it is not.
    pub near: u64,
    /// Address of the stacks that bodies run on, `1 << STACK_SHIFT` bytes for each block; 0: they run on the program's.
    pub stacks: u64,
    /// Address of the words that tell of points in one's own process ([`POINTS_START`]); 0: there are none.
    pub points: u64,
    /// How detours add to a counter.
    pub additions: Additions,
}

/// How detours of arm64 add to a counter. Those of x86 have one instruction for it, those of powerpc64le a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Additions {
    /// By a load and a store that are exclusive, until nobody comes in between. All processors can.
    #[default]
    Loops,
    /// By one instruction, of ARMv8.1 (`FEAT_LSE`): where the kernel says so ([`crate::Facts::single_additions`]).
    Single,
}

/// What bodies of a script run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyStacks {
    /// The stacks of the program.
    #[default]
    Programs,
    /// Stacks of their own, one for each thread ([`Layout::stacks`]): the program's may be too small.
    Own,
}

impl Layout {
    /// What bodies run on.
    pub fn body_stacks(&self) -> BodyStacks {
        if self.stacks == 0 { BodyStacks::Programs } else { BodyStacks::Own }
    }

    /// Index into the thread table where the search for `thread_pointer` starts. In 32-bit programs the product has 32 bits, and its
    /// upper ones are taken.
    pub fn thread_index(&self, thread_pointer: u64, word: u32) -> u64 {
        if word == 4 {
            return u64::from((thread_pointer as u32).wrapping_mul(HASH_FACTOR) >> (32 - self.thread_bits));
        }
        thread_pointer.wrapping_mul(u64::from(HASH_FACTOR)) >> 32 & ((1 << self.thread_bits) - 1)
    }

    /// Size of a shadow block.
    pub fn block_size(&self) -> u64 {
        shadow_block_size(self.slot_shift)
    }

    /// Address of a shadow block.
    pub fn shadow_block(&self, index: u64) -> u64 {
        self.first_tag() + tags_size(self.return_bits, self.slot_shift) + index * self.block_size()
    }

    /// How shadow blocks are laid out.
    pub fn shadows(&self) -> Shadows {
        Shadows::of(self.slot_shift)
    }

    /// Address of the first tag: where all that is not of the pool begins.
    pub fn first_tag(&self) -> u64 {
        self.returns + POOL_SIZE
    }

    /// Address of the tag of a shadow block.
    pub fn tag(&self, index: u64) -> u64 {
        match self.shadows() {
            Shadows::Tagged => self.shadow_block(index) + u64::from(SHADOW_TAG),
            Shadows::Plain => self.first_tag() + (index << TAG_SHIFT),
        }
    }

    /// Index of the shadow block where the search for the page of `slot` starts.
    pub fn block_index(&self, slot: u64) -> u64 {
        match self.shadows() {
            Shadows::Tagged => {
                let page = (slot >> STACK_PAGE_SHIFT) as u32;
                u64::from(page.wrapping_mul(HASH_FACTOR) >> (32 - self.return_bits))
            }
            Shadows::Plain => fold(slot) >> STACK_PAGE_SHIFT & ((1 << self.return_bits) - 1),
        }
    }

    /// Index of the place in the pool where the search for one for `slot` starts.
    pub fn pool_index(&self, slot: u64) -> u64 {
        u64::from(((slot >> self.slot_shift) as u32).wrapping_mul(HASH_FACTOR) >> (32 - POOL_BITS))
    }

    /// Offset of a slot's instance in the shadow block of its page.
    pub fn instance_offset(&self, slot: u64) -> u64 {
        let (first, number) = match self.shadows() {
            Shadows::Tagged => (u64::from(SHADOW_INSTANCES), slot),
            Shadows::Plain => (0, fold(slot)),
        };
        let in_page = number & ((1 << STACK_PAGE_SHIFT) - 1);
        first + (in_page >> self.slot_shift << RETURN_SHIFT)
    }

    /// Whether an instance is free that has this point.
    pub fn is_free(&self, point: u64) -> bool {
        point == 0 || self.shadows() == Shadows::Plain && point & 1 != 0
    }
}

/// How shadow blocks are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shadows {
    /// Each begins with its tag, and a page's is found by a multiplication: on x86.
    Tagged,
    /// The tags stand in a list of their own, ahead of the blocks, and a slot's instance is found by a shift and an exclusive or, whatever
    /// its page. Instances that were claimed bear the [`slot_name`] of their slot: on arm64 and powerpc64le.
    Plain,
}

impl Shadows {
    /// Where slots lie `1 << slot_shift` bytes apart.
    pub const fn of(slot_shift: u32) -> Self {
        if slot_shift == 4 { Shadows::Plain } else { Shadows::Tagged }
    }
}

/// Log2 of the size of a tag in the list of [`Shadows::Plain`].
pub const TAG_SHIFT: u32 = 3;

/// What stands in a claimed instance of [`Shadows::Plain`] in place of an older one; and in place of the point, where a detour has freed
/// it. It is odd, as neither instances nor code addresses are.
pub const fn slot_name(slot: u64) -> u64 {
    slot | 1
}

/// What gives a slot its instance, in [`Shadows::Plain`]: from bit 12 on the number of its block, and below its place there. Slots of a page
/// have one block, and each another place.
pub const fn fold(slot: u64) -> u64 {
    slot ^ slot >> SHADOW_FOLD
}

/// A thread's index into the thread table where it is folded, with more bits than the table has.
pub const fn folded_thread(pointer: u64) -> u64 {
    (pointer ^ pointer >> THREAD_FOLD) >> STACK_PAGE_SHIFT
}

/// Size of the list of tags.
const fn tags_size(return_bits: u32, slot_shift: u32) -> u64 {
    match Shadows::of(slot_shift) {
        Shadows::Tagged => 0,
        Shadows::Plain => 1 << (return_bits + TAG_SHIFT),
    }
}

/// Size of the list of pages, the pool, and the shadow blocks with their tags, of which there are 2^`return_bits`.
pub const fn return_sizes(return_bits: u32, slot_shift: u32) -> [u64; 3] {
    let pages = (PAGES_FIRST as u64 + (8 << return_bits)).next_multiple_of(1 << STACK_PAGE_SHIFT);
    let blocks = shadow_block_size(slot_shift) << return_bits;
    [pages, POOL_SIZE, tags_size(return_bits, slot_shift) + blocks]
}

/// Size of a shadow block where return addresses lie `1 << slot_shift` bytes apart.
pub const fn shadow_block_size(slot_shift: u32) -> u64 {
    let head = match Shadows::of(slot_shift) {
        Shadows::Tagged => SHADOW_INSTANCES as u64,
        Shadows::Plain => 0,
    };
    head + (1 << (STACK_PAGE_SHIFT - slot_shift + RETURN_SHIFT))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these share their index with one before.
    fn shared(indices: impl Iterator<Item = u64>) -> usize {
        let mut seen = alloc::collections::BTreeSet::new();
        indices.filter(|index| !seen.insert(*index)).count()
    }

    #[test]
    fn thread_pointers_of_usual_threads_spread() {
        let index = |pointer: u64, bits: u32| folded_thread(pointer) & ((1 << bits) - 1);
        let last = 0x7fff_f7d8_f700;
        // glibc's stacks of 8 MB with guards of none, one and 16 pages, smaller and larger ones, and musl's.
        let apart = [0x80_0000, 0x80_1000, 0x81_0000, 0x20_0000, 0x20_1000, 0x4_1000, 0x400_1000, 0x2_3000];
        for (apart, threads, few) in apart.into_iter().flat_map(|apart| [(apart, 200, 3), (apart, 1000, 30)])
        {
            let pointers = (0..threads).map(|n| last - n * apart);
            let shared = shared(pointers.map(|pointer| index(pointer, 13)));
            assert!(shared <= few, "{shared} of {threads} threads, {apart:#x}");
        }
    }

    #[test]
    fn plain_shadows_give_each_slot_of_a_page_its_place_and_stacks_their_blocks() {
        let places = |page: u64| (0..256).map(move |n| fold(page << STACK_PAGE_SHIFT | n << 4));
        for page in [0, 1, 0x7_ffff_f7d8, 0x7_ffff_ffff, 0x5_5555_5555] {
            let blocks = places(page).map(|place| place >> STACK_PAGE_SHIFT);
            assert!(blocks.eq([fold(page << STACK_PAGE_SHIFT) >> STACK_PAGE_SHIFT; 256]));
            assert_eq!(shared(places(page).map(|place| place >> 4 & 255)), 0);
        }
        let last = 0x7fff_f7d8_f000u64;
        let block = |slot: u64, bits: u32| fold(slot) >> STACK_PAGE_SHIFT & ((1 << bits) - 1);
        for (threads, pages, bits) in [(2000, 20, 17), (200, 20, 14), (16, 20, 10), (1, 100_000, 17)] {
            let slots =
                (0..threads).flat_map(|n| (0..pages).map(move |page| last - (n << 23) - (page << 12)));
            // Runs of pages do not begin at a multiple of their length.
            let few = (threads * pages) as usize / 3;
            assert!(shared(slots.map(|slot| block(slot, bits))) < few, "{threads} threads, {pages} pages");
        }
    }

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
