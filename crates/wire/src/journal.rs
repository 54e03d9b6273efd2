//! The journal: what was changed where, written before the change.
//!
//! Three lists lie one behind the other, from the region's second page on:
//!
//! | list | an element says |
//! |---|---|
//! | [`JournalSite`] × [`JournalSizes::sites`] | where a probe is, where its detour or slot is, and how many writes it takes |
//! | [`JournalWrite`] × [`JournalSizes::writes`] | a run of bytes that a site changes: where, how long, and of what kind |
//! | bytes × [`JournalSizes::bytes`] | for each write, what stood there before, then what stands there after |
//!
//! A site has one write or several, which need not touch each other, in the order of the sites. The lists are written from the last to the first, over
//! zeros. So a site that can be read has its writes and a write its bytes, whenever whoever armed was killed.
//!
//! Whether a write is in is decided by the target's bytes, never by the journal alone: they are what stood there before, what we
//! wrote, or somebody else's, and somebody else's are left alone.

use crate::PAGE;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use trapless_isa::Mechanism;

/// The longest write: more than any instruction, the padding before it, and all that a jump may displace.
pub const MAX_WRITE: usize = 256;

/// The most sites of a session: more than any program has functions.
pub const MAX_SITES: u64 = 1 << 21;

/// The most writes of a session.
const MAX_WRITES: u64 = 2 * MAX_SITES;

/// The most bytes of a journal.
const MAX_BYTES: u64 = 64 * MAX_SITES;

/// What has become of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SiteState {
    /// Its writes may be in or not: look at the bytes.
    Planned = 1,
    /// Never changed: the check in the stop refused it.
    Skipped = 2,
}

impl SiteState {
    /// The state with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Planned, Self::Skipped].into_iter().find(|state| *state as u8 == raw)
    }
}

/// What a write is for. Whoever takes it out knows by that what could have been written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum WriteKind {
    /// The branch to the detour, over the displaced instructions.
    Branch = 1,
    /// A breakpoint over the first byte of an instruction.
    Breakpoint = 2,
    /// The branches in the room that a short one leads to. It goes in before that, and comes out after it.
    Room = 3,
}

impl WriteKind {
    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Branch, Self::Breakpoint, Self::Room].into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// How much a journal has room for. What was not written of it is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct JournalSizes {
    /// Number of sites.
    pub sites: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl JournalSizes {
    /// Makes room for a site with writes of these lengths.
    pub fn add(&mut self, lengths: impl IntoIterator<Item = usize>) {
        self.sites += 1;
        for length in lengths {
            self.writes += 1;
            self.bytes += 2 * length as u64;
        }
    }

    /// Whether this version makes a journal of this size.
    pub fn is_possible(&self) -> bool {
        self.sites <= MAX_SITES
            && (self.sites..=MAX_WRITES).contains(&self.writes)
            && (2 * self.writes..=MAX_BYTES).contains(&self.bytes)
    }

    /// Offset of a site in the region.
    pub fn site_at(&self, index: u64) -> u64 {
        PAGE + index * size_of::<JournalSite>() as u64
    }

    /// Offset of a write in the region.
    pub fn write_at(&self, index: u64) -> u64 {
        self.site_at(self.sites) + index * size_of::<JournalWrite>() as u64
    }

    /// Offset of the bytes in the region.
    pub fn bytes_at(&self) -> u64 {
        self.write_at(self.writes)
    }

    /// Offset of what lies behind the journal, a multiple of 8.
    pub fn end(&self) -> u64 {
        (self.bytes_at() + self.bytes).next_multiple_of(8)
    }
}

/// A probe's site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct JournalSite {
    /// Address of the first displaced instruction. Never 0.
    pub site: u64,
    /// Address of the detour, or of the slot of a probe that traps.
    pub detour: u64,
    /// Address in the detour where followed calls return; 0 when calls are not followed by a detour.
    pub return_point: u64,
    /// Size of the detour in bytes.
    pub detour_size: u32,
    /// Id of its probe, by which the [`Schema`](crate::Schema) knows it.
    pub probe: u32,
    /// How many writes it has.
    pub writes: u16,
    /// A [`SiteState`].
    pub state: u8,
    /// The number of its [`Mechanism`]; see [`JournalSite::mechanism`].
    pub trap: u8,
    /// Length of the copy in the slot of a probe that traps; 0 for a jump.
    pub copy: u8,
    /// Length of the displaced instructions.
    pub displaced: u8,
    /// A [`SiteRole`].
    pub role: u8,
    /// How far behind `site` the probed instruction is, if others make room ahead of it.
    pub ahead: u8,
}

/// What a site is there for, where that makes a difference to those who find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SiteRole {
    /// What its probe collects.
    Plain = 0,
    /// Unwinders ask here where a call returns. It comes out last: one may be about to ask.
    Lookup = 1,
    /// The function is left here of another site of the same probe, which all numbers are told of.
    Exit = 2,
}

impl SiteRole {
    /// The role with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Plain, Self::Lookup, Self::Exit].into_iter().find(|role| *role as u8 == raw)
    }
}

impl JournalSite {
    /// How the probe gets control; `None` when the site names no mechanism there is.
    pub fn mechanism(&self) -> Option<Mechanism> {
        Mechanism::from_number(self.trap)
    }

    /// Whether unwinders ask here where a call returns.
    pub fn is_lookup(&self) -> bool {
        self.role == SiteRole::Lookup as u8
    }

    /// Whether it is one of the places where a function is left, and not the probe's own.
    pub fn is_exit(&self) -> bool {
        self.role == SiteRole::Exit as u8
    }

    /// Address of the probed instruction, or of the landing place of indirect branches behind which the patch begins.
    pub fn probed(&self) -> u64 {
        self.site.wrapping_add(self.ahead.into())
    }

    /// Whether its writes may be in.
    pub fn is_planned(&self) -> bool {
        self.state == SiteState::Planned as u8
    }

    /// Whether it gets control by a trap.
    pub fn traps(&self) -> bool {
        ![Mechanism::Jump, Mechanism::Short].map(Mechanism::number).contains(&self.trap)
    }
}

/// A run of bytes that a site changes, as it stands in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct JournalWrite {
    /// Address of the first byte. Never 0.
    pub address: u64,
    /// Index of its site.
    pub site: u32,
    /// Where the bytes before are in the journal's bytes; those after follow them.
    pub bytes: u32,
    /// Length: of the bytes before, and of those after.
    pub length: u16,
    /// A [`WriteKind`].
    pub kind: u8,
    /// Unused.
    pub _pad: [u8; 5],
}

impl JournalWrite {
    /// What it says, if it is a write that a journal of this size, with this many sites written, could hold.
    pub fn shape(&self, sizes: &JournalSizes, sites: usize) -> Option<WriteShape> {
        let length = usize::from(self.length);
        let (site, at) = (self.site as usize, u64::from(self.bytes));
        let is_sound = site < sites
            && self.address != 0
            && (1..=MAX_WRITE).contains(&length)
            && self.address.checked_add(MAX_WRITE as u64).is_some()
            && at + 2 * length as u64 <= sizes.bytes;
        let shape = || {
            Some(WriteShape {
                site,
                address: self.address,
                kind: WriteKind::from_raw(self.kind)?,
                length,
                at,
            })
        };
        is_sound.then(shape)?
    }
}

/// A write whose site and bytes are where a journal's are. What they say is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteShape {
    /// Index of its site.
    pub site: usize,
    /// Address of the first byte.
    pub address: u64,
    /// What it is for.
    pub kind: WriteKind,
    /// Length, 1 to [`MAX_WRITE`].
    pub length: usize,
    /// Where its bytes are in the journal's: twice its length.
    pub at: u64,
}

/// A run of bytes that a site changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'j> {
    /// Address of the first byte.
    pub address: u64,
    /// What it is for.
    pub kind: WriteKind,
    /// The bytes before.
    pub original: &'j [u8],
    /// The bytes after, as many.
    pub patched: &'j [u8],
}

impl Write<'_> {
    /// The addresses that it changes.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address + self.original.len() as u64
    }
}

/// A journal in the memory of a tool: its own, or as much of a found one as is believed.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    sites: Vec<JournalSite>,
    writes: Vec<JournalWrite>,
    bytes: Vec<u8>,
}

/// A site and its writes.
#[derive(Clone, Copy, Debug)]
pub struct SiteWrites<'j> {
    /// Its index in the journal.
    pub index: usize,
    site: &'j JournalSite,
    writes: &'j [JournalWrite],
    bytes: &'j [u8],
}

impl std::ops::Deref for SiteWrites<'_> {
    type Target = JournalSite;
    fn deref(&self) -> &JournalSite {
        self.site
    }
}

impl<'j> SiteWrites<'j> {
    /// Its writes, in order.
    pub fn writes(&self) -> impl Iterator<Item = Write<'j>> + use<'j> {
        let bytes = self.bytes;
        self.writes.iter().filter_map(move |write| {
            let (at, length) = (write.bytes as usize, usize::from(write.length));
            let (original, patched) = bytes.get(at..at + 2 * length)?.split_at(length);
            Some(Write { address: write.address, kind: WriteKind::from_raw(write.kind)?, original, patched })
        })
    }
}

impl Journal {
    /// Adds a planned site with its writes; `None` where a write is none that a journal can hold. Sites come in the order of their addresses.
    pub fn push(&mut self, site: JournalSite, writes: &[Write<'_>]) -> Option<()> {
        let is_sound = |write: &Write<'_>| {
            (1..=MAX_WRITE).contains(&write.original.len()) && write.original.len() == write.patched.len()
        };
        if writes.is_empty() || !writes.iter().all(is_sound) {
            return None;
        }
        let index = u32::try_from(self.sites.len()).ok()?;
        let count = u16::try_from(writes.len()).ok()?;
        u32::try_from(self.bytes.len() + 2 * MAX_WRITE * writes.len()).ok()?;
        for write in writes {
            let bytes = self.bytes.len() as u32;
            self.bytes.extend_from_slice(write.original);
            self.bytes.extend_from_slice(write.patched);
            let (length, kind) = (write.original.len() as u16, write.kind as u8);
            self.writes.push(JournalWrite {
                address: write.address,
                site: index,
                bytes,
                length,
                kind,
                _pad: [0; 5],
            });
        }
        self.sites.push(JournalSite { writes: count, ..site });
        Some(())
    }

    /// Number of sites.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The sites, in order.
    pub fn sites(&self) -> impl Iterator<Item = SiteWrites<'_>> {
        let mut left = &self.writes[..];
        self.sites.iter().enumerate().map(move |(index, site)| {
            let (writes, after) = left.split_at_checked(usize::from(site.writes)).unwrap_or((left, &[]));
            left = after;
            SiteWrites { index, site, writes, bytes: &self.bytes }
        })
    }

    /// The sites whose writes may be in.
    pub fn planned(&self) -> impl Iterator<Item = SiteWrites<'_>> {
        self.sites().filter(|site| site.is_planned())
    }

    /// One site.
    pub fn site(&self, index: usize) -> Option<SiteWrites<'_>> {
        let site = self.sites.get(index)?;
        let first = self.writes.partition_point(|write| (write.site as usize) < index);
        let writes = self.writes.get(first..first + usize::from(site.writes))?;
        Some(SiteWrites { index, site, writes, bytes: &self.bytes })
    }

    /// The site at an address.
    pub fn site_at(&self, address: u64) -> Option<SiteWrites<'_>> {
        self.site(self.sites.binary_search_by_key(&address, |site| site.site).ok()?)
    }

    /// Says that a site was never changed.
    pub fn skip(&mut self, index: usize) {
        if let Some(site) = self.sites.get_mut(index) {
            site.state = SiteState::Skipped as u8;
        }
    }

    /// What is to be written into a region that has room for `sizes`, in this order: at which offsets, multiples of 8, and what.
    pub fn parts(&self, sizes: &JournalSizes) -> [(u64, &[u8]); 3] {
        [
            (sizes.bytes_at(), &self.bytes[..]),
            (sizes.write_at(0), bytemuck::cast_slice(&self.writes)),
            (sizes.site_at(0), bytemuck::cast_slice(&self.sites)),
        ]
    }
}

// The region is read by other tools of the same version.
const _: () = assert!(size_of::<JournalSite>() == 40 && size_of::<JournalWrite>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: [u8; MAX_WRITE] = [7; MAX_WRITE];

    fn site(address: u64) -> JournalSite {
        JournalSite { site: address, state: SiteState::Planned as u8, ..JournalSite::zeroed() }
    }

    fn write(address: u64, length: usize) -> Write<'static> {
        let (original, patched) = (&LONG[..length], &[9; MAX_WRITE][..length]);
        Write { address, kind: WriteKind::Branch, original, patched }
    }

    /// A site with one write, one with three of which one is as long as can be, and another with one.
    fn journal() -> (Journal, JournalSizes) {
        let all: [(u64, &[Write<'_>]); 3] = [
            (100, &[write(100, 5)]),
            (200, &[write(200, 7), write(80, MAX_WRITE), write(700, 1)]),
            (300, &[write(300, 19)]),
        ];
        let (mut journal, mut sizes) = (Journal::default(), JournalSizes::default());
        for (address, writes) in all {
            journal.push(site(address), writes).unwrap();
            sizes.add(writes.iter().map(|write| write.original.len()));
        }
        (journal, sizes)
    }

    #[test]
    fn sites_keep_their_writes() {
        let (mut journal, _) = journal();
        let found = |found: SiteWrites<'_>| {
            let ranges: Vec<_> = found.writes().map(|write| (write.address, write.range().end)).collect();
            (JournalSite::clone(&found).site, ranges)
        };
        let expected: [(u64, Vec<_>); 3] = [
            (100, vec![(100, 105)]),
            (200, vec![(200, 207), (80, 336), (700, 701)]),
            (300, vec![(300, 319)]),
        ];
        assert_eq!(journal.sites().map(found).collect::<Vec<_>>(), expected);
        for (index, expected) in expected.iter().enumerate() {
            assert_eq!(&found(journal.site(index).unwrap()), expected);
            assert_eq!(&found(journal.site_at(expected.0).unwrap()), expected);
        }
        assert!(journal.site(3).is_none() && journal.site_at(150).is_none());
        journal.skip(1);
        assert_eq!(journal.planned().map(|site| site.index).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn what_no_journal_can_hold_is_not_added() {
        let mut journal = Journal::default();
        let (empty, short) = (write(1, 0), Write { patched: &[], ..write(1, 5) });
        let long = Write { original: &[0; MAX_WRITE + 1], patched: &[1; MAX_WRITE + 1], ..write(1, 5) };
        for writes in [&[][..], &[empty], &[short], &[write(1, 5), long]] {
            assert_eq!(journal.push(site(1), writes), None);
        }
        assert!(journal.is_empty());
    }

    #[test]
    fn the_parts_lie_one_behind_the_other_and_are_as_large_as_was_planned() {
        let (journal, sizes) = journal();
        assert!(sizes.is_possible());
        let [bytes, writes, sites] = journal.parts(&sizes);
        assert_eq!(sites.0, PAGE);
        assert_eq!(writes.0, sites.0 + sites.1.len() as u64);
        assert_eq!(bytes.0, writes.0 + writes.1.len() as u64);
        assert_eq!(sizes.end(), (bytes.0 + bytes.1.len() as u64).next_multiple_of(8));
        assert!([sites.0, writes.0, bytes.0].iter().all(|at| at.is_multiple_of(8)));
    }

    #[test]
    fn a_write_has_a_shape_if_its_site_and_its_bytes_are_there() {
        let sizes = JournalSizes { sites: 3, writes: 3, bytes: 100 };
        let sound = JournalWrite { address: 4096, site: 2, bytes: 80, length: 10, kind: 1, _pad: [0; 5] };
        let shape = WriteShape { site: 2, address: 4096, kind: WriteKind::Branch, length: 10, at: 80 };
        assert_eq!(sound.shape(&sizes, 3), Some(shape));
        for forged in [
            JournalWrite { address: 0, ..sound },
            JournalWrite { address: u64::MAX - 9, ..sound },
            JournalWrite { site: 3, ..sound },
            JournalWrite { bytes: 81, ..sound },
            JournalWrite { bytes: u32::MAX, ..sound },
            JournalWrite { length: 0, ..sound },
            JournalWrite { length: 11, ..sound },
            JournalWrite { length: MAX_WRITE as u16 + 1, bytes: 0, ..sound },
            JournalWrite { kind: 0, ..sound },
            JournalWrite { kind: 4, ..sound },
        ] {
            assert_eq!(forged.shape(&sizes, 3), None, "{forged:?}");
        }
        assert_eq!(sound.shape(&sizes, 2), None, "its site was not written");
        let large = JournalSizes { bytes: 1 << 20, ..sizes };
        assert_eq!(JournalWrite { length: MAX_WRITE as u16 + 1, ..sound }.shape(&large, 3), None);
    }
}
