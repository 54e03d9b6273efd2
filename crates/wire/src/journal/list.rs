//! A journal in the memory of a tool.

use super::{JournalSite, JournalSizes, JournalWrite, MAX_WRITE, SiteState, WriteKind};
use std::borrow::Cow;
use std::ops::Range;

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
    /// Indices of the sites, by address.
    order: Vec<u32>,
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
    /// Adds a planned site with its writes; `None` where a write is none that a journal can hold.
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
        let behind = self.order.last().is_none_or(|&last| self.sites[last as usize].site <= site.site);
        let place = match behind {
            true => self.order.len(),
            false => self.order.partition_point(|&other| self.sites[other as usize].site <= site.site),
        };
        self.order.insert(place, index);
        self.sites.push(JournalSite { writes: count, ..site });
        Some(())
    }

    /// Adds all sites of another one behind those that are there; `None`, and nothing is added, where they are more than a journal holds.
    pub fn append(&mut self, other: &Journal) -> Option<()> {
        let shift = u32::try_from(self.sites.len()).ok()?;
        u32::try_from(self.sites.len() + other.sites.len()).ok()?;
        let behind = u32::try_from(self.bytes.len()).ok()?;
        u32::try_from(self.bytes.len() + other.bytes.len()).ok()?;
        self.writes.extend(other.shifted(shift, behind));
        self.bytes.extend_from_slice(&other.bytes);
        self.sites.extend_from_slice(&other.sites);
        self.order.extend(other.order.iter().map(|index| index + shift));
        self.order.sort_by_key(|&index| self.sites[index as usize].site);
        Some(())
    }

    /// The writes, as they are behind so many sites and bytes of others.
    fn shifted(&self, sites: u32, bytes: u32) -> impl Iterator<Item = JournalWrite> {
        let shift = move |write: &JournalWrite| JournalWrite {
            site: write.site + sites,
            bytes: write.bytes + bytes,
            ..*write
        };
        self.writes.iter().map(shift)
    }

    /// How much room it takes.
    pub fn sizes(&self) -> JournalSizes {
        let [sites, writes, bytes] =
            [self.sites.len(), self.writes.len(), self.bytes.len()].map(|length| length as u64);
        JournalSizes { sites, writes, bytes }
    }

    /// The sites of this one that `keep` says.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&JournalSite) -> bool) -> Self {
        let mut journal = Self::default();
        for site in self.sites().filter(|site| keep(site)) {
            // It was one of a journal before.
            let _ = journal.push(*site.site, &site.writes().collect::<Vec<_>>());
        }
        journal
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
        let address_of = |&index: &u32| self.sites[index as usize].site;
        // Of several, where a module was unloaded and another one loaded there, the last.
        let after = self.order.partition_point(|index| address_of(index) <= address);
        let index = *self.order.get(after.checked_sub(1)?)?;
        self.site(index as usize).filter(|site| site.site.site == address)
    }

    /// Says that a site was never changed.
    pub fn skip(&mut self, index: usize) {
        if let Some(site) = self.sites.get_mut(index) {
            site.state = SiteState::Skipped as u8;
        }
    }

    /// Says that the writes of a site that was skipped may be in.
    pub fn plan_again(&mut self, index: usize) {
        if let Some(site) = self.sites.get_mut(index) {
            site.state = SiteState::Planned as u8;
        }
    }

    /// What is to be written into a region that has room for `sizes` and holds `others` already, in this order: at which offsets, and what.
    pub fn parts(&self, sizes: &JournalSizes, others: &JournalSizes) -> [(u64, Cow<'_, [u8]>); 3] {
        let writes = match others.sites {
            0 => Cow::Borrowed(bytemuck::cast_slice(&self.writes)),
            behind => {
                let shifted: Vec<_> = self.shifted(behind as u32, others.bytes as u32).collect();
                Cow::Owned(bytemuck::cast_slice(&shifted).to_vec())
            }
        };
        [
            (sizes.bytes_at() + others.bytes, Cow::Borrowed(&self.bytes[..])),
            (sizes.write_at(others.writes), writes),
            (sizes.site_at(others.sites), Cow::Borrowed(bytemuck::cast_slice(&self.sites))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::WriteShape;
    use super::*;
    use crate::PAGE;
    use bytemuck::Zeroable;

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
        let [bytes, writes, sites] = journal.parts(&sizes, &JournalSizes::default());
        assert_eq!(sites.0, PAGE);
        assert_eq!(writes.0, sites.0 + sites.1.len() as u64);
        assert_eq!(bytes.0, writes.0 + writes.1.len() as u64);
        assert_eq!(sizes.end(), (bytes.0 + bytes.1.len() as u64).next_multiple_of(8));
        assert!([sites.0, writes.0, bytes.0].iter().all(|at| at.is_multiple_of(8)));
    }

    #[test]
    fn what_is_added_lies_behind_what_is_there() {
        let (mut whole, sizes) = journal();
        let mut added = Journal::default();
        for (address, length) in [(150, 5), (100, 6)] {
            added.push(site(address), &[write(address, length)]).unwrap();
        }
        let room = sizes.and(&added.sizes());
        assert!(room.holds(&room) && !sizes.holds(&room));
        let written = |journal: &Journal, others: &JournalSizes, memory: &mut [u8]| {
            for (at, part) in journal.parts(&room, others) {
                memory[at as usize..][..part.len()].copy_from_slice(&part);
            }
        };
        let memory = || vec![0; room.end() as usize];
        let (mut one, mut other) = (memory(), memory());
        written(&whole, &JournalSizes::default(), &mut one);
        written(&added, &whole.sizes(), &mut one);
        whole.append(&added).unwrap();
        assert_eq!(whole.sizes(), room);
        written(&whole, &JournalSizes::default(), &mut other);
        assert_eq!(one, other, "in two parts and in one");
        let length =
            |address| whole.site_at(address).map(|found| found.writes().next().unwrap().patched.len());
        assert_eq!([150, 300, 100, 99].map(length), [Some(5), Some(19), Some(6), None]);
        assert_eq!(whole.only(|site| site.site != 100).len(), 3);
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
            JournalWrite { kind: 6, ..sound },
        ] {
            assert_eq!(forged.shape(&sizes, 3), None, "{forged:?}");
        }
        assert_eq!(sound.shape(&sizes, 2), None, "its site was not written");
        let large = JournalSizes { bytes: 1 << 20, ..sizes };
        assert_eq!(JournalWrite { length: MAX_WRITE as u16 + 1, ..sound }.shape(&large, 3), None);
    }
}
