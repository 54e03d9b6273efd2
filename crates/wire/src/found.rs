//! Believing a header: from bytes in a process that may be hostile to a header that can be worked with.
//!
//! What a target can write may hold anything. A header that was found there is looked at once, here; a [`Checked`] one says only
//! what [`Geometry::describe`](crate::Geometry::describe) could have said of memory that is really there. So all that is computed
//! from it stays within the mapping and within what the sizes of this version allow, and no sum overflows.

use crate::{
    ARENA_LIST_SIZE, Arena, Header, MAGIC, MAX_ARENAS, MAX_SCRIPT, MAX_SEMAPHORES, PAGE, PlaceKind, RawPlace,
    SessionState, Sizes, VERSION,
};
use std::fmt;
use std::ops::{Deref, Range};
use trapless_isa::detour::{BLOCK_COUNTERS, RECORD_SHIFT, THREAD_SHIFT, return_sizes};

/// A header that holds no value that this version would not have written.
#[derive(Clone, Copy, Debug)]
pub struct Checked(Header);

impl Deref for Checked {
    type Target = Header;
    fn deref(&self) -> &Header {
        &self.0
    }
}

/// Why a header is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// Not a header of ours.
    Foreign,
    /// Another version wrote it: this one.
    Version(u32),
    /// A value that nobody would have written: what it says something about.
    Senseless(&'static str),
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::Foreign => write!(f, "it bears the name of memory of trapless, and is none"),
            BadHeader::Version(version) => {
                write!(
                    f,
                    "trapless of another version (layout {version}, here {VERSION}) made it: use that one"
                )
            }
            BadHeader::Senseless(part) => {
                write!(
                    f,
                    "it says of {part} what trapless never writes: the process has forged or overwritten it"
                )
            }
        }
    }
}

impl std::error::Error for BadHeader {}

/// The most memory that one arena takes: what a branch reaches.
const MAX_ARENA: u64 = 1 << 31;

/// Log2 of the most records in a ring.
const MAX_RING_BITS: u32 = 20;

/// No address of user space is above this.
const HIGHEST: u64 = 1 << 56;

impl Checked {
    /// A header of this tool's own making, which nobody else could write.
    pub fn own(header: Header) -> Self {
        Self(header)
    }

    /// Reads the header at the start of a region that is mapped from `mapped.start` to `mapped.end`.
    ///
    /// # Errors
    /// [`BadHeader`] says what is wrong with it.
    pub fn read(bytes: &[u8], mapped: Range<u64>) -> Result<Self, BadHeader> {
        let bytes = bytes.get(..size_of::<Header>()).ok_or(BadHeader::Foreign)?;
        let header: Header = bytemuck::pod_read_unaligned(bytes);
        if header.magic != MAGIC {
            return Err(BadHeader::Foreign);
        }
        if header.version != VERSION {
            return Err(BadHeader::Version(header.version));
        }
        let parts: [(Part, &str); 6] = [
            (owner, "its owner"),
            (blocks, "its blocks"),
            (region, "its region"),
            (threads, "its thread table"),
            (returns, "its return memory"),
            (arenas, "its arenas"),
        ];
        for (is_sound, what) in parts {
            is_sound(&header, &mapped).ok_or(BadHeader::Senseless(what))?;
        }
        Ok(Self(header))
    }

    /// The header with the arenas of a list that was found in the process's [`Header::arena_list`].
    ///
    /// # Errors
    /// [`BadHeader`]: the list holds what nobody would have written.
    pub fn with_arenas(self, list: &[u8; ARENA_LIST_SIZE]) -> Result<Self, BadHeader> {
        let Self(mut header) = self;
        let (arenas, end) = list.split_at(size_of_val(&header.arenas));
        bytemuck::bytes_of_mut(&mut header.arenas).copy_from_slice(arenas);
        let mapped = header.region..header.region.saturating_add(header.region_size);
        let is_sound = end.iter().all(|byte| *byte == 0) && self::arenas(&header, &mapped).is_some();
        is_sound.then_some(Self(header)).ok_or(BadHeader::Senseless("its arenas"))
    }
}

/// Looks at one part of a header, of a region that is mapped there; `Some` if it is sound.
type Part = fn(&Header, &Range<u64>) -> Option<()>;

/// `Some` if it holds.
fn must(holds: bool) -> Option<()> {
    holds.then_some(())
}

const SMALLEST_PAGE: u64 = 4 << 10;

/// A range of the target's addresses, in whole pages.
fn pages(address: u64, size: u64) -> Option<Range<u64>> {
    let end = address.checked_add(size).filter(|&end| end <= HIGHEST)?;
    // Kernels map at multiples of their own pages, which may be smaller.
    must(address >= PAGE && size > 0 && address.is_multiple_of(SMALLEST_PAGE) && size.is_multiple_of(PAGE))?;
    Some(address..end)
}

fn owner(header: &Header, _: &Range<u64>) -> Option<()> {
    let is_id = |id: u32| i32::try_from(id).is_ok_and(|id| id > 0);
    must(SessionState::from_raw(header.state).is_some() && is_id(header.pid) && is_id(header.tool))
}

fn blocks(header: &Header, _: &Range<u64>) -> Option<()> {
    let ring_end = match header.ring {
        0 => 0,
        ring => {
            must(header.ring_bits <= MAX_RING_BITS && ring.is_multiple_of(8) && ring >= BLOCK_COUNTERS)?;
            u64::from(ring) + (1u64 << (header.ring_bits + RECORD_SHIFT))
        }
    };
    let stride = header.block_stride;
    let script =
        u64::from(header.script_block)..u64::from(header.script_block) + u64::from(header.script_block_size);
    must(
        header.script_block.is_multiple_of(PAGE as u32)
            && header.script_block_size.is_multiple_of(PAGE as u32),
    )?;
    must((header.script_block == 0) == (header.script_block_size == 0) && script.end <= stride)?;
    must(stride.is_multiple_of(PAGE) && (PAGE..=i32::MAX as u64 + 1).contains(&stride) && ring_end <= stride)
}

fn region(header: &Header, mapped: &Range<u64>) -> Option<()> {
    must(header.journal.is_possible())?;
    // A site has at most one of each kind.
    must(header.places <= PlaceKind::ALL.len() as u64 * header.journal.sites)?;
    let places = header.places * size_of::<RawPlace>() as u64;
    let script = (header.places_at() + places).next_multiple_of(PAGE);
    must(header.script_size <= MAX_SCRIPT && header.script_size.is_multiple_of(PAGE))?;
    must(header.script == if header.script_size > 0 { script } else { 0 })?;
    must(header.blocks_offset == script + header.script_size)?;
    must(header.block_count <= (1 << most(|sizes| sizes.thread_bits)) + 1)?;
    let size = header.block_stride.checked_mul(header.block_count)?.checked_add(header.blocks_offset)?;
    must(header.region_size == size && header.region == mapped.start)?;
    must(pages(header.region, size)?.end <= mapped.end)
}

fn threads(header: &Header, _: &Range<u64>) -> Option<()> {
    must(header.thread_bits <= u64::from(most(|sizes| sizes.thread_bits)))?;
    let threads = 1u64 << header.thread_bits;
    must(header.block_count == threads + 1)?;
    must(header.threads_size == PAGE + (threads << THREAD_SHIFT).next_multiple_of(PAGE))?;
    pages(header.threads, header.threads_size).map(drop)
}

fn returns(header: &Header, _: &Range<u64>) -> Option<()> {
    must((1..=u64::from(most(|sizes| sizes.return_bits))).contains(&header.return_bits))?;
    let size = match header.slot_shift {
        // Nothing is followed.
        0 => 0,
        2..=4 => return_sizes(header.return_bits as u32, header.slot_shift as u32).into_iter().sum(),
        _ => return None,
    };
    must(header.semaphores <= MAX_SEMAPHORES)?;
    let stacks = header.stacks_size;
    must(stacks == 0 || stacks == crate::geometry::stacks_size(header.block_count))?;
    must(stacks == 0 || header.script_size > 0)?;
    must(header.returns_size == crate::geometry::returns_size(size, stacks, header.semaphores))?;
    pages(header.returns, header.returns_size).map(drop)
}

/// Arenas lie apart from each other and from the other memory of the session, and end with the first that is unused. So does what is
/// mapped in their reach.
fn arenas(header: &Header, _: &Range<u64>) -> Option<()> {
    let used = header.arenas.iter().take_while(|arena| arena.address != 0).count();
    must(header.arenas[used..].iter().all(|arena| arena.address == 0) && used <= MAX_ARENAS)?;
    let mut ranges = vec![
        pages(header.region, header.region_size)?,
        pages(header.threads, header.threads_size)?,
        pages(header.returns, header.returns_size)?,
    ];
    if header.near != 0 {
        let (address, size) = header.near();
        ranges.push(pages(address, size)?);
    }
    for &Arena { address, size } in &header.arenas[..used] {
        must(size <= MAX_ARENA)?;
        ranges.push(pages(address, size)?);
    }
    let is_arena = |address| header.arenas[..used].iter().any(|arena| arena.address == address);
    must(header.signals == 0 || is_arena(header.signals))?;
    must(header.program == 0 || is_arena(header.program) && header.script_size > 0)?;
    ranges.sort_unstable_by_key(|range| range.start);
    must(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start))
}

/// The largest that any of the sizes has.
fn most(of: impl Fn(&Sizes) -> u32) -> u32 {
    Sizes::ALL.iter().chain(&Sizes::ALL_32_BIT).map(of).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, JournalSizes, MAX_SITES};
    use bytemuck::Zeroable;

    const REGION: u64 = 0x10_0000_0000;

    /// A header as arming writes it, with 3 sites, and where it is mapped.
    fn written(sizes: Sizes, followed: bool, ring: bool) -> (Header, Range<u64>) {
        let mut geometry = Geometry::default();
        if ring {
            geometry.script(5000, 100).unwrap();
        }
        geometry.counter().unwrap();
        if ring {
            geometry.ring(14).unwrap();
        }
        let mut header = Header::zeroed();
        header.magic = MAGIC;
        header.version = VERSION;
        header.state = SessionState::Armed as u32;
        header.pid = 7;
        header.tool = 8;
        let mut journal = JournalSizes::default();
        for lengths in [&[5][..], &[7], &[5, 40]] {
            journal.add(lengths.iter().copied());
        }
        geometry.describe(&mut header, sizes, journal, followed.then_some(3));
        header.region = REGION;
        header.threads = header.region + header.region_size;
        header.returns = header.threads + header.threads_size;
        header.arenas[0] = Arena { address: 0x40_0000, size: PAGE };
        header.arenas[1] = Arena { address: 0x40_0000 + PAGE, size: 2 * PAGE };
        header.program = if ring { header.arenas[1].address } else { 0 };
        header.near = 0x40_0000 + 3 * PAGE;
        let mapped = header.region..header.region + header.region_size;
        (header, mapped)
    }

    fn read(header: &Header, mapped: &Range<u64>) -> Result<Checked, BadHeader> {
        Checked::read(bytemuck::bytes_of(header), mapped.clone())
    }

    #[test]
    fn what_arming_writes_is_believed() {
        for sizes in Sizes::ALL.into_iter().chain(Sizes::ALL_32_BIT) {
            for (followed, ring) in [(false, false), (true, false), (false, true), (true, true)] {
                let (header, mapped) = written(sizes, followed, ring);
                assert!(read(&header, &mapped).is_ok(), "{sizes:?} {followed} {ring}");
            }
        }
    }

    #[test]
    fn every_part_is_looked_at() {
        type Forge = fn(&mut Header);
        let forgeries: [(&str, Forge); 50] = [
            ("its owner", |h| h.state = 0),
            ("its owner", |h| h.pid = 0),
            ("its owner", |h| h.tool = u32::MAX),
            ("its blocks", |h| h.block_stride = 0),
            ("its blocks", |h| h.block_stride += 8),
            ("its blocks", |h| h.block_stride = 1 << 40),
            ("its blocks", |h| h.ring_bits = 31),
            ("its blocks", |h| h.ring_bits = u32::MAX),
            ("its blocks", |h| h.ring = u32::MAX),
            ("its blocks", |h| h.ring = 8),
            ("its blocks", |h| h.script_block = 0),
            ("its blocks", |h| h.script_block += 8),
            ("its blocks", |h| h.script_block_size = 0),
            ("its blocks", |h| h.script_block_size = !4095),
            ("its region", |h| h.script = 0),
            ("its region", |h| h.script += PAGE),
            ("its region", |h| h.script_size = !4095),
            ("its region", |h| h.journal.sites = u64::MAX),
            ("its region", |h| h.journal.sites = MAX_SITES),
            ("its region", |h| h.journal.writes = u64::MAX),
            ("its region", |h| h.journal.writes = 2),
            ("its region", |h| h.journal.bytes = u64::MAX),
            ("its region", |h| h.journal.bytes = 4096),
            ("its region", |h| h.places = u64::MAX),
            ("its region", |h| h.places = 256),
            ("its region", |h| h.blocks_offset = 8),
            ("its region", |h| h.block_count = u64::MAX),
            ("its region", |h| h.block_count += 1),
            ("its region", |h| h.region += PAGE),
            ("its region", |h| h.region_size -= PAGE),
            ("its thread table", |h| h.thread_bits = 64),
            ("its thread table", |h| h.thread_bits -= 1),
            ("its thread table", |h| h.threads = 0),
            ("its thread table", |h| h.threads = u64::MAX - 4095),
            ("its return memory", |h| h.return_bits = 63),
            ("its return memory", |h| h.return_bits = 0),
            ("its return memory", |h| h.slot_shift = 5),
            ("its return memory", |h| h.returns_size = u64::MAX),
            ("its return memory", |h| h.returns += 1),
            ("its return memory", |h| h.semaphores = u64::MAX),
            ("its return memory", |h| h.semaphores = 200),
            ("its arenas", |h| h.arenas[0].size = 0),
            ("its arenas", |h| h.arenas[0].size = !4095),
            ("its arenas", |h| h.arenas[1].address -= PAGE),
            ("its arenas", |h| h.arenas[1].address = h.region),
            ("its arenas", |h| h.arenas[95].address = PAGE),
            ("its arenas", |h| h.program += PAGE),
            ("its arenas", |h| h.near += 8),
            ("its arenas", |h| h.near = h.arenas[0].address),
            ("its arenas", |h| h.near = h.threads),
        ];
        for (index, (what, forge)) in forgeries.into_iter().enumerate() {
            let (mut header, mapped) = written(Sizes::ALL[0], true, true);
            forge(&mut header);
            let found = read(&header, &mapped).map(drop);
            assert_eq!(found, Err(BadHeader::Senseless(what)), "forgery {index}");
        }
    }

    #[test]
    fn arenas_that_were_added_are_looked_at() {
        let (header, mapped) = written(Sizes::ALL[0], true, false);
        let found = read(&header, &mapped).unwrap();
        let mut added = header;
        added.arenas[2] = Arena { address: 0x80_0000, size: PAGE };
        let list = added.arena_list_bytes();
        assert_eq!(found.with_arenas(&list).unwrap().arenas().count(), 3);
        added.arenas[2].address = header.threads;
        assert!(found.with_arenas(&added.arena_list_bytes()).is_err(), "over other memory of the session");
        let mut endless = list;
        endless[ARENA_LIST_SIZE - 1] = 1;
        assert!(found.with_arenas(&endless).is_err());
    }

    #[test]
    fn a_region_is_believed_where_all_of_it_is_mapped() {
        let (header, mapped) = written(Sizes::ALL[0], true, false);
        for (mapped, believed) in [
            (mapped.clone(), true),
            (mapped.start..mapped.end + PAGE, true),
            (mapped.start..mapped.end - PAGE, false),
            (mapped.start - PAGE..mapped.end, false),
            (mapped.start + PAGE..mapped.end + PAGE, false),
        ] {
            assert_eq!(read(&header, &mapped).is_ok(), believed, "{mapped:x?}");
        }
    }

    #[test]
    fn other_versions_and_other_files_are_told_apart() {
        let (mut header, mapped) = written(Sizes::ALL[0], false, false);
        header.version = 1;
        assert_eq!(read(&header, &mapped).map(drop), Err(BadHeader::Version(1)));
        header.magic[0] = 0;
        assert_eq!(read(&header, &mapped).map(drop), Err(BadHeader::Foreign));
        assert_eq!(Checked::read(&[], mapped).map(drop), Err(BadHeader::Foreign));
    }
}
