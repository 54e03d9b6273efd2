//! How large the parts are for a given set of probes.

use crate::{Counter, Header, Histogram, JournalSizes, RawPlace, semaphores_size};
use trapless_isa::detour::{
    BLOCK_COUNTERS, BodyStacks, RECORD_SHIFT, STACK_SHIFT, THREAD_SHIFT, return_sizes,
};

/// Page size the layout is rounded to, which no kernel's exceeds.
pub const PAGE: u64 = trapless_isa::LARGEST_PAGE;

/// Log2 sizes of the tables: how many threads and how deep stacks are served. Tried from large to small, since
/// address space may be limited (`RLIMIT_AS`, `vm.overcommit_memory=2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Log2 of the thread table's entries.
    pub thread_bits: u32,
    /// Log2 of the number of stack pages on which calls can be followed. 2^17 are 512 MiB of stacks.
    pub return_bits: u32,
}

impl Sizes {
    /// What to try, in order.
    pub const ALL: [Sizes; 3] = [
        Sizes { thread_bits: 13, return_bits: 17 },
        Sizes { thread_bits: 10, return_bits: 14 },
        Sizes { thread_bits: 7, return_bits: 10 },
    ];

    /// What to try in a 32-bit program. Its address space holds a few hundred stacks of the usual size.
    pub const ALL_32_BIT: [Sizes; 5] = [
        Sizes { thread_bits: 9, return_bits: 11 },
        Sizes { thread_bits: 9, return_bits: 9 },
        Sizes { thread_bits: 7, return_bits: 9 },
        Sizes { thread_bits: 5, return_bits: 8 },
        Sizes { thread_bits: 3, return_bits: 7 },
    ];
}

/// Hands out the places in a block, then tells the sizes of all regions.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    next: u32,
    /// What is kept free behind it.
    spare: u32,
    /// The most that a block may hold.
    most: u32,
    ring: u32,
    ring_bits: u32,
    /// Of a script: the size of its shared memory, and where it has what in a block.
    script: u64,
    script_block: u32,
    script_block_size: u32,
    /// What its bodies run on.
    stacks: BodyStacks,
}

/// Offset in each block of what a script has there: it is the first that is given a place. Code is compiled for it.
pub const SCRIPT_BLOCK: u32 = PAGE as u32;

/// The most shared memory that a script can have.
pub const MAX_SCRIPT: u64 = 1 << 40;

/// A block that is larger than this would overflow the detours' 32-bit displacements.
const MAX_BLOCK: u32 = i32::MAX as u32;

impl Default for Geometry {
    fn default() -> Self {
        Self {
            next: BLOCK_COUNTERS,
            spare: 0,
            most: MAX_BLOCK,
            ring: 0,
            ring_bits: 0,
            script: 0,
            script_block: 0,
            script_block_size: 0,
            stacks: BodyStacks::Programs,
        }
    }
}

/// Size of the return region: of what belongs to followed calls, behind it stacks for bodies, the private page ([`Header::signal_table`]), and last the
/// semaphores' records.
pub(crate) fn returns_size(followed: u64, stacks: u64, semaphores: u64) -> u64 {
    followed.max(1).next_multiple_of(PAGE) + stacks + PAGE + semaphores_size(semaphores)
}

/// Size of the stacks that bodies run on, one for each block.
pub(crate) fn stacks_size(blocks: u64) -> u64 {
    blocks << STACK_SHIFT
}

impl Geometry {
    fn take(&mut self, bytes: u32) -> Option<u32> {
        let at = self.next;
        self.next = at.checked_add(bytes).filter(|&end| end <= self.most)?;
        Some(at)
    }

    /// Room for a 64-bit counter. `None` when blocks would become too large.
    pub fn counter(&mut self) -> Option<Counter> {
        self.take(Counter::SIZE).map(Counter)
    }

    /// Room for a latency histogram.
    pub fn latency(&mut self) -> Option<Histogram> {
        self.take(Histogram::SIZE).map(Histogram)
    }

    /// Room for a ring of 2^`bits` records, once.
    pub fn ring(&mut self, bits: u32) -> Option<()> {
        // On a page of its own, so that the counters' pages stay few.
        self.next = self.next.next_multiple_of(PAGE as u32);
        self.ring = self.take(1 << (bits + RECORD_SHIFT))?;
        self.ring_bits = bits;
        Some(())
    }

    /// Room for a script, ahead of anything else: `shared` bytes that all threads share, and `block` bytes for each, at [`SCRIPT_BLOCK`]. `None`
    /// when blocks would become too large, or the shared memory is, or there is something else already.
    ///
    /// ```
    /// use trapless_wire::Geometry;
    /// let mut geometry = Geometry::default();
    /// assert_eq!(geometry.script(1, 5000), Some(()));
    /// assert_eq!(geometry.block_stride(), 3 * 4096);
    /// ```
    pub fn script(&mut self, shared: u64, block: u32) -> Option<()> {
        let shared = Some(shared.max(1)).filter(|&shared| shared <= MAX_SCRIPT)?;
        if self.next != BLOCK_COUNTERS {
            return None;
        }
        self.script = shared.next_multiple_of(PAGE);
        if block > 0 {
            // On pages of its own, as a ring.
            self.next = SCRIPT_BLOCK;
            self.script_block_size = block.checked_next_multiple_of(PAGE as u32)?;
            self.script_block = self.take(self.script_block_size)?;
        }
        Some(())
    }

    /// Has bodies run on such stacks.
    pub fn run_on(&mut self, stacks: BodyStacks) {
        self.stacks = stacks;
    }

    /// What bodies run on.
    pub fn body_stacks(&self) -> BodyStacks {
        self.stacks
    }

    /// Keeps `bytes` free for what is added later, or as many as there can be.
    pub fn keep_free(&mut self, bytes: u32) {
        self.spare = bytes.min(self.most.saturating_sub(self.next));
    }

    /// What is left of blocks that lie so far apart, for what is added to them.
    #[must_use]
    pub fn within(self, block_stride: u64) -> Self {
        Self {
            spare: 0,
            most: u32::try_from(block_stride).map_or(MAX_BLOCK, |most| most.min(MAX_BLOCK)),
            ..self
        }
    }

    /// Whether there is a ring.
    pub fn has_ring(&self) -> bool {
        self.ring != 0
    }

    /// Distance between blocks.
    pub fn block_stride(&self) -> u64 {
        (u64::from(self.next) + u64::from(self.spare)).next_multiple_of(PAGE)
    }

    /// Fills in sizes and offsets, with room for a journal, for the [`Header::places`] and for the [`Header::semaphores`]; addresses are
    /// left to the caller. `followed`: some probe needs return instances, for slots that lie `1 << slot_shift` bytes apart.
    pub fn describe(&self, header: &mut Header, sizes: Sizes, journal: JournalSizes, followed: Option<u32>) {
        let threads = 1u64 << sizes.thread_bits;
        header.journal = journal;
        let places = header.places_at() + header.places * size_of::<RawPlace>() as u64;
        let script = places.next_multiple_of(PAGE);
        header.script = if self.script > 0 { script } else { 0 };
        header.script_size = self.script;
        header.script_block = self.script_block;
        header.script_block_size = self.script_block_size;
        header.blocks_offset = script + self.script;
        header.block_stride = self.block_stride();
        header.block_count = threads + 1;
        header.region_size = header.blocks_offset + header.block_stride * header.block_count;
        header.thread_bits = u64::from(sizes.thread_bits);
        header.threads_size = PAGE + (threads << THREAD_SHIFT).next_multiple_of(PAGE);
        header.return_bits = u64::from(sizes.return_bits);
        header.slot_shift = u64::from(followed.unwrap_or(0));
        let returns = followed.map_or(0, |shift| return_sizes(sizes.return_bits, shift).into_iter().sum());
        header.stacks_size = match self.stacks {
            BodyStacks::Programs => 0,
            BodyStacks::Own => stacks_size(header.block_count),
        };
        header.returns_size = returns_size(returns, header.stacks_size, header.semaphores);
        header.ring = self.ring;
        header.ring_bits = self.ring_bits;
        header.block_cursor = 1;
    }
}
