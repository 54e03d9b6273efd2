//! A script's memory: how large its two parts are and where everything lies in them.
//!
//! The *shared part* lies once in the region:
//!
//! | offset | what |
//! |---|---|
//! | [`SCRIPT_PID`] … | words that say something of the process, written by the tool |
//! | [`SCRIPT_CLOCKS`] | for each clock, [`SCRIPT_CLOCK_SIZE`] bytes ([`Clock`]) |
//! | [`SCRIPT_SYMBOLS`] | addresses that the script wants to know |
//! | [`SCRIPT_STACK_END`] … | words about the process's memory, for walks of its stacks |
//! | behind them | constant bytes, shared maps, the table of stacks, [unwind tables](crate::unwind) |
//!
//! The *thread's part* lies in each block:
//!
//! | offset | what |
//! |---|---|
//! | [`THREAD_HEAD`] … | words that the thread writes |
//! | [`THREAD_TAIL`] | what the tool has read of the ring, on a cache line of its own |
//! | behind them | the ring of messages ([`crate::MessageRing`]), levels of scratch, the thread's own maps |
//!
//! Both follow from [`ScriptSizes`] alone. What nobody has written takes no memory.

use crate::{Change, MAX_BUCKET_BITS, PAGE, Table};

/// Shared part: id of the process, in the tool's namespace.
pub const SCRIPT_PID: u32 = 0;
/// Shared part: id of its parent.
pub const SCRIPT_PARENT: u32 = 8;
/// Shared part: real user id.
pub const SCRIPT_UID: u32 = 16;
/// Shared part: real group id.
pub const SCRIPT_GID: u32 = 24;
/// Shared part: id of the control group.
pub const SCRIPT_CGROUP: u32 = 32;
/// Shared part: a word that nobody can guess, for random numbers.
pub const SCRIPT_SEED: u32 = 40;
/// Shared part: how many processors are online.
pub const SCRIPT_PROCESSORS: u32 = 48;
/// Shared part: when the script began, by the second of the clocks, in nanoseconds.
pub const SCRIPT_BEGAN: u32 = 56;
/// Shared part: the clocks.
pub const SCRIPT_CLOCKS: u32 = 64;
/// Size of a clock.
pub const SCRIPT_CLOCK_SIZE: u32 = 32;
/// How many clocks there are.
pub const CLOCKS: u32 = 5;
/// Shared part: the end of the first thread's stack, in whole pages; 0 where it is not known.
pub const SCRIPT_STACK_END: u32 = 224;
/// Shared part: address of the shadow blocks of stacks on which calls are followed, with their tags ([`trapless_isa::Layout::first_tag`]); 0 where none are.
pub const SCRIPT_SHADOWS: u32 = 232;
/// Shared part: log2 of the number of shadow blocks.
pub const SCRIPT_SHADOW_BITS: u32 = 240;
/// Shared part: address of the list of arenas, ended by a zero address.
pub const SCRIPT_ARENAS: u32 = 248;
/// Shared part: not 0 in a process with Go, whose threads run on stacks that lie anywhere and are given back, and whose thread pointers lead to no stack.
pub const SCRIPT_GOROUTINES: u32 = 256;
/// Shared part: where the part of the program's own file begins that is mapped for reading and not for writing, around its entry point; 0 where it is
/// not known.
pub const SCRIPT_CONSTANT: u32 = 264;
/// Shared part: how long that is.
pub const SCRIPT_CONSTANT_SIZE: u32 = 272;
/// Shared part: where the first thread's stack began when the process was probed. It may reach further down since.
pub const SCRIPT_STACK_START: u32 = 280;
/// Shared part: how far behind its thread pointer a thread's control block says where its stack lies, in three words: the lowest address, how long it is, and
/// how much of that, at its lower end, may not be used. 0 where it is not known; signed.
pub const SCRIPT_BOUNDS: u32 = 288;
/// Shared part: not 0 once the script is being taken out of the process. Threads that sleep in a body sleep on this word (its lower half, as
/// `futex` has it), which whoever takes it out writes while all of them stand.
pub const SCRIPT_LEAVE: u32 = 296;
/// Shared part: the address of the origin word ([`trapless_isa::detour::Layout::origin`]), by which a thread that has slept sees whether
/// it is in a forked child.
pub const SCRIPT_ORIGIN: u32 = 304;
/// Shared part: addresses of symbols, 8 bytes each.
pub const SCRIPT_SYMBOLS: u32 = 320;

/// Thread's part: bytes of messages that were reserved so far.
pub const THREAD_HEAD: u32 = 0;
/// Thread's part: messages that found no room.
pub const THREAD_LOST: u32 = 8;
/// Thread's part: runs that ended because their loops took too many rounds.
pub const THREAD_OUT_OF_FUEL: u32 = 16;
/// Thread's part: runs that did not begin, because all levels of scratch were in use.
pub const THREAD_NO_SCRATCH: u32 = 24;
/// Thread's part: reads that were not tried, because the thread's id is not known.
pub const THREAD_UNREAD: u32 = 32;
/// Thread's part: how many levels of scratch are in use.
pub const THREAD_LEVEL: u32 = 40;
/// Thread's part: state of its random numbers.
pub const THREAD_RANDOM: u32 = 48;
/// Thread's part: bytes of messages that the tool has read so far.
pub const THREAD_TAIL: u32 = 64;
/// Thread's part: where its ring begins.
pub const THREAD_RING: u32 = 192;
/// What is said of a thread's stack ([`SCRIPT_BOUNDS`]) is believed if the stack ends no further above the thread pointer than this.
pub const MOST_ABOVE_POINTER: u64 = 1 << 16;

/// How many levels of scratch a thread has: so deep may signal handlers interrupt each other.
pub const SCRATCH_LEVELS: u32 = 8;
/// Bytes of a level ahead of what is a body's: the stack pointer of who claimed it, by which it is seen that it was left for good.
pub const SCRATCH_HEAD: u32 = 8;
/// Log2 of the smallest ring.
pub const MIN_RING_BITS: u32 = 12;
/// Log2 of the largest ring.
pub const MAX_RING_BITS: u32 = 26;

/// The most that the shared part takes.
const MOST_SHARED: u64 = 1 << 38;
/// The most that a thread's part takes: with what else is in a block it stays in reach of 32-bit displacements.
const MOST_THREAD: u64 = 1 << 30;
/// How many different stacks are kept.
const STACKS: u32 = 1 << 14;

/// Room for unwind tables. What is not used takes address space only. (A browser of 200 MB has tables of 40 MB.)
pub const UNWIND_ROOM: u64 = 256 << 20;

/// From ticks to nanoseconds of one clock: `base + ((ticks - ticks_base) * scale >> 32)`, with the product in 128 bits.
///
/// It is written before anything runs that reads it, and stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Ticks at one moment.
    pub ticks_base: u64,
    /// Nanoseconds at that moment.
    pub base: u64,
    /// Nanoseconds of a tick, times 2^32.
    pub scale: u64,
}

impl Clock {
    /// Its words, in the order in which they lie there.
    pub fn words(&self) -> [u64; 3] {
        [self.ticks_base, self.base, self.scale]
    }

    /// Nanoseconds at so many ticks.
    ///
    /// ```
    /// use trapless_wire::Clock;
    /// // A clock of 2 GHz.
    /// let clock = Clock { ticks_base: 1000, base: 7, scale: 1 << 31 };
    /// assert_eq!(clock.nanoseconds(1010), 12);
    /// ```
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let product = u128::from(ticks.wrapping_sub(self.ticks_base)) * u128::from(self.scale);
        let passed = product >> 32;
        self.base.wrapping_add(passed as u64)
    }

    /// Where the clock with this number, below [`CLOCKS`], is in the shared part.
    pub fn offset(number: u32) -> u32 {
        SCRIPT_CLOCKS + number.min(CLOCKS - 1) * SCRIPT_CLOCK_SIZE
    }
}

/// What a map lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Words that are changed one by one: first one that is not 0 once there is a value, then so many of the value's. The map has no key.
    Words(u32),
    /// A table.
    Table(Table),
}

impl MapKind {
    /// Its size in bytes, in whole cache lines.
    pub fn size(&self) -> u64 {
        match self {
            MapKind::Words(words) => (8 + 8 * u64::from(*words)).next_multiple_of(64),
            MapKind::Table(table) => table.size(),
        }
    }
}

/// Where a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPlace {
    /// At this offset of the shared part.
    Shared(u64, MapKind),
    /// At this offset of each thread's part.
    PerThread(u32, MapKind),
}

/// What a map needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSize {
    /// Length of a key in bytes; 0 for a map of one value.
    pub key: u32,
    /// Length of a value in bytes.
    pub value: u32,
    /// The most keys.
    pub capacity: u32,
    /// How values are changed.
    pub change: Change,
    /// Whether each thread has its own.
    pub is_per_thread: bool,
}

impl MapSize {
    /// What it lies in. `None`: it is larger than tables can be.
    fn kind(&self) -> Option<MapKind> {
        if self.key == 0 && self.change == Change::ByWord {
            return Some(MapKind::Words(self.value.div_ceil(8)));
        }
        // On average one key for each bucket of 8 at most, so that hardly ever a bucket is full before the table is.
        let bucket_bits = u64::from(self.capacity.max(1)).next_power_of_two().ilog2();
        let table = Table {
            key: self.key,
            value: self.value,
            bucket_bits: if self.key == 0 { 0 } else { bucket_bits },
            capacity: self.capacity,
            change: self.change,
        };
        (bucket_bits <= MAX_BUCKET_BITS).then_some(MapKind::Table(table))
    }
}

/// What a script needs of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptSizes {
    /// How many addresses of symbols it wants.
    pub symbols: u32,
    /// Lengths of its constants.
    pub constants: Vec<u32>,
    /// Its maps.
    pub maps: Vec<MapSize>,
    /// The most frames of its stacks; 0: it has none.
    pub frames: u32,
    /// Log2 of the size of a ring of messages, from [`MIN_RING_BITS`] to [`MAX_RING_BITS`]; 0: it sends none.
    pub ring_bits: u32,
    /// The most scratch that a body needs outside of its stack frame; 0: none.
    pub scratch: u32,
}

/// Where everything of a script lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptLayout {
    /// Size of the shared part, in whole pages.
    pub shared: u64,
    /// Size of a thread's part, in whole cache lines.
    pub thread: u32,
    /// Offsets of constants in the shared part.
    pub constants: Vec<u64>,
    /// The maps.
    pub maps: Vec<MapPlace>,
    /// The table of stacks, in the shared part: the key is a stack's number, the value how many frames it has, and then
    /// their addresses from the innermost on.
    pub stacks: Option<(u64, Table)>,
    /// Where unwind tables are in the shared part, [`UNWIND_ROOM`] bytes, if it has stacks. They come last.
    pub unwind: Option<u64>,
    /// Log2 of the size of a ring; 0: there is none.
    pub ring_bits: u32,
    /// Offset of the first level of scratch in a thread's part.
    pub scratch: u32,
    /// Distance between levels of scratch; 0: there are none.
    pub scratch_level: u32,
}

/// Hands out offsets, in whole cache lines.
struct Room {
    next: u64,
    most: u64,
}

impl Room {
    fn take(&mut self, size: u64) -> Option<u64> {
        let at = self.next;
        self.next = at.checked_add(size)?.checked_next_multiple_of(64).filter(|end| *end <= self.most)?;
        Some(at)
    }
}

impl ScriptLayout {
    /// Lays out a script's memory. `None`: it needs more than there can be.
    pub fn new(sizes: &ScriptSizes) -> Option<Self> {
        let mut shared = Room { next: SCRIPT_SYMBOLS.into(), most: MOST_SHARED };
        let mut thread = Room { next: THREAD_RING.into(), most: MOST_THREAD };
        shared.take(8 * u64::from(sizes.symbols))?;
        let constants =
            sizes.constants.iter().map(|size| shared.take(u64::from(*size))).collect::<Option<_>>()?;
        if sizes.ring_bits != 0 {
            let is_possible = (MIN_RING_BITS..=MAX_RING_BITS).contains(&sizes.ring_bits);
            is_possible.then(|| thread.take(1 << sizes.ring_bits))??;
        }
        let scratch_level = match sizes.scratch {
            0 => 0,
            bytes => (u64::from(bytes) + u64::from(SCRATCH_HEAD)).next_multiple_of(64),
        };
        let scratch = thread.take(scratch_level * u64::from(SCRATCH_LEVELS))?;
        let place = |map: &MapSize| {
            let kind = map.kind()?;
            Some(if map.is_per_thread {
                MapPlace::PerThread(u32::try_from(thread.take(kind.size())?).ok()?, kind)
            } else {
                MapPlace::Shared(shared.take(kind.size())?, kind)
            })
        };
        let maps = sizes.maps.iter().map(place).collect::<Option<_>>()?;
        let stacks = match sizes.frames {
            0 => None,
            frames => {
                let value = frames.checked_add(1)?.checked_mul(8)?;
                let bucket_bits = STACKS.ilog2() - 2;
                let table = Table { key: 8, value, bucket_bits, capacity: STACKS, change: Change::ByWord };
                Some((shared.take(table.size())?, table))
            }
        };
        let unwind = match sizes.frames {
            0 => None,
            _ => Some(shared.take(UNWIND_ROOM)?),
        };
        Some(Self {
            shared: shared.next.next_multiple_of(PAGE),
            thread: u32::try_from(thread.next).ok()?,
            constants,
            maps,
            stacks,
            unwind,
            ring_bits: sizes.ring_bits,
            scratch: u32::try_from(scratch).ok()?,
            scratch_level: u32::try_from(scratch_level).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(key: u32, value: u32, is_per_thread: bool) -> MapSize {
        MapSize { key, value, capacity: 4096, change: Change::ByWord, is_per_thread }
    }

    #[test]
    fn nothing_lies_over_anything_else() {
        let sizes = ScriptSizes {
            symbols: 3,
            constants: vec![5, 0, 70],
            maps: vec![map(0, 8, true), map(0, 520, false), map(8, 8, true), map(12, 40, false)],
            frames: 127,
            ring_bits: 16,
            scratch: 1000,
        };
        let layout = ScriptLayout::new(&sizes).unwrap();
        let mut shared = vec![(0, u64::from(SCRIPT_SYMBOLS) + 24)];
        let mut thread = vec![(0, u64::from(THREAD_RING) + (1 << 16))];
        shared.extend(layout.constants.iter().zip([5, 0, 70]).map(|(at, size)| (*at, at + size)));
        thread.push((layout.scratch.into(), u64::from(layout.scratch + 8 * layout.scratch_level)));
        for place in &layout.maps {
            match place {
                MapPlace::Shared(at, kind) => shared.push((*at, at + kind.size())),
                MapPlace::PerThread(at, kind) => thread.push(((*at).into(), u64::from(*at) + kind.size())),
            }
        }
        let (at, stacks) = layout.stacks.unwrap();
        shared.push((at, at + stacks.size()));
        let unwind = layout.unwind.unwrap();
        shared.push((unwind, unwind + UNWIND_ROOM));
        for (mut parts, end) in [(shared, layout.shared), (thread, layout.thread.into())] {
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].1 <= two[1].0), "{parts:?}");
            assert!(parts.iter().all(|part| part.1 <= end) && parts[1..].iter().all(|part| part.0 % 64 == 0));
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let with = |maps| ScriptLayout::new(&ScriptSizes { maps, ..ScriptSizes::default() });
        assert!(with(vec![MapSize { capacity: u32::MAX, ..map(8, 8, false) }]).is_none());
        assert!(with(vec![map(8, 1 << 24, false)]).is_none());
        assert!(with(vec![map(8, 1 << 18, true)]).is_none());
        assert!(with(vec![map(8, 1 << 10, true)]).is_some());
        for ring_bits in [1, 11, 27, 64] {
            let sizes = ScriptSizes { ring_bits, ..ScriptSizes::default() };
            assert!(ScriptLayout::new(&sizes).is_none(), "{ring_bits}");
        }
    }

    #[test]
    fn clocks_go_on_where_ticks_pass_their_limits() {
        let clock = Clock { ticks_base: u64::MAX - 4, base: 100, scale: 3 << 32 };
        assert_eq!((clock.nanoseconds(u64::MAX - 4), clock.nanoseconds(5)), (100, 130));
        assert!((0..9).map(Clock::offset).all(|at| at + SCRIPT_CLOCK_SIZE <= SCRIPT_SYMBOLS));
    }
}
