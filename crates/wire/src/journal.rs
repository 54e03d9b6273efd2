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
//! zeros. So a site that can be read has its writes and a write its bytes, whenever whoever armed was killed. Sites that are added to an armed session
//! are written behind those that are there, in the same order.
//!
//! Whether a write is in is decided by the target's bytes, never by the journal alone: they are what stood there before, what we
//! wrote, or somebody else's, and somebody else's are left alone.

mod list;

use crate::PAGE;
use bytemuck::{Pod, Zeroable};
use trapless_isa::Mechanism;

pub use list::{Journal, SiteWrites, Write};

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
    /// A jump of a function back to its entry, which leads past the probe there; or the jump to where it was moved with its neighbours.
    Turn = 4,
    /// A pointer of the program's own, which leads to a function or, while another one is called instead, to what runs it. No code.
    Pointer = 5,
}

impl WriteKind {
    /// The kind with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Branch, Self::Breakpoint, Self::Room, Self::Turn, Self::Pointer];
        all.into_iter().find(|kind| *kind as u8 == raw)
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

    /// Makes room for `more`, too.
    #[must_use]
    pub fn and(self, more: &JournalSizes) -> Self {
        let (sites, writes, bytes) =
            (self.sites + more.sites, self.writes + more.writes, self.bytes + more.bytes);
        Self { sites, writes, bytes }
    }

    /// Whether so much fits in.
    pub fn holds(&self, used: &JournalSizes) -> bool {
        used.sites <= self.sites && used.writes <= self.writes && used.bytes <= self.bytes
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
    /// How far into the detour followed calls return; 0 when calls are not followed by a detour.
    pub return_at: u32,
    /// Where a followed call has its return point while its function runs: see [`JournalSite::kept_at`].
    pub kept: i16,
    /// The instruction by which its function signs return addresses: see [`JournalSite::signed_by`].
    pub signs: u16,
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

/// [`JournalSite::kept`] where there is no such place, or none is known.
pub const NOWHERE: i16 = i16::MIN;
/// In so many bytes [`JournalSite::kept`] counts, and [`JournalSite::signs`] in so many.
const KEPT_UNIT: i32 = 8;
const SIGNS_UNIT: i64 = 4;
/// [`JournalSite::signs`] of an instruction at the site itself. One may stand ahead of it, and 0 is none.
pub const SIGNS_AT_SITE: u16 = 2;

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
    /// A handler of signals begins here, and is shown the program. A thread that is about to begin it has to have done so ahead of removal.
    Handler = 3,
    /// A program installs handlers of signals here, or handlers return: it is told of its own where stubs of ours stand for them. It comes out with
    /// the stubs.
    Signals = 4,
    /// Another function is called here instead.
    Replaced = 5,
}

impl SiteRole {
    /// The role with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Plain, Self::Lookup, Self::Exit, Self::Handler, Self::Signals, Self::Replaced];
        all.into_iter().find(|role| *role as u8 == raw)
    }
}

impl JournalSite {
    /// Address where followed calls return; 0 when calls are not followed by a detour.
    pub fn return_point(&self) -> u64 {
        if self.return_at == 0 { 0 } else { self.detour.wrapping_add(self.return_at.into()) }
    }

    /// How the probe gets control; `None` when the site names no mechanism there is.
    pub fn mechanism(&self) -> Option<Mechanism> {
        Mechanism::from_number(self.trap)
    }

    /// Whether unwinders ask here where a call returns.
    pub fn is_lookup(&self) -> bool {
        self.role == SiteRole::Lookup as u8
    }

    /// [`Self::kept`] of a function that has its return address so many bytes from the call's slot on, while it runs, if it is anywhere
    /// ([`trapless_isa::Isa::return_kept_at`]). One that is farther away than frames are large is not known.
    pub fn keeps_at(distance: Option<i32>) -> i16 {
        let kept = distance.filter(|distance| distance % KEPT_UNIT == 0);
        kept.and_then(|distance| i16::try_from(distance / KEPT_UNIT).ok()).unwrap_or(NOWHERE)
    }

    /// Where a followed call has its return point while its function runs, from its slot on, in bytes.
    pub fn kept_at(&self) -> Option<i32> {
        (self.kept != NOWHERE).then(|| i32::from(self.kept) * KEPT_UNIT)
    }

    /// [`Self::signs`] of a function that signs its return addresses by the instruction at `address`, if it does
    /// ([`trapless_isa::Isa::return_signed_by`]). `None` where that is too far away.
    pub fn signs_by(site: u64, address: Option<u64>) -> Option<u16> {
        let Some(address) = address else { return Some(0) };
        let behind = address.wrapping_sub(site).cast_signed();
        let units = (behind % SIGNS_UNIT == 0).then(|| behind / SIGNS_UNIT + i64::from(SIGNS_AT_SITE))?;
        u16::try_from(units).ok().filter(|units| *units > 0)
    }

    /// Address of the instruction by which its function signs return addresses.
    pub fn signed_by(&self) -> Option<u64> {
        let behind = (i64::from(self.signs) - i64::from(SIGNS_AT_SITE)) * SIGNS_UNIT;
        (self.signs != 0).then(|| self.site.wrapping_add_signed(behind))
    }

    /// Whether it is one of the places where a function is left, and not the probe's own.
    pub fn is_exit(&self) -> bool {
        self.role == SiteRole::Exit as u8
    }

    /// Whether another function is called here instead.
    pub fn is_replaced(&self) -> bool {
        self.role == SiteRole::Replaced as u8
    }

    /// Whether a handler of signals begins here.
    pub fn is_handler(&self) -> bool {
        self.role == SiteRole::Handler as u8
    }

    /// Whether handlers of signals are shown the program by what is done here.
    pub fn is_for_handlers(&self) -> bool {
        self.is_handler() || self.role == SiteRole::Signals as u8
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

// The region is read by other tools of the same version.
const _: () = assert!(size_of::<JournalSite>() == 40 && size_of::<JournalWrite>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_return_addresses_are_and_how_they_are_signed_comes_back() {
        for (distance, known) in [
            (None, None),
            (Some(0), Some(0)),
            (Some(16), Some(16)),
            (Some(-24), Some(-24)),
            (Some(-8 * 32767), Some(-8 * 32767)),
            (Some(-8 * 32768), None),
            (Some(1 << 20), None),
            (Some(-20), None),
        ] {
            let site = JournalSite { kept: JournalSite::keeps_at(distance), ..JournalSite::zeroed() };
            assert_eq!(site.kept_at(), known, "{distance:?}");
        }
        let at = 0x40_0000u64;
        for behind in [-4i64, 0, 4, 8, 4 * 65533] {
            let address = Some(at.wrapping_add_signed(behind));
            let signs = JournalSite::signs_by(at, address).unwrap();
            let site = JournalSite { site: at, signs, ..JournalSite::zeroed() };
            assert_eq!(site.signed_by(), address, "{behind}");
        }
        for far in [-8i64, 2, 4 * 65534, i64::MIN] {
            assert_eq!(JournalSite::signs_by(at, Some(at.wrapping_add_signed(far))), None, "{far}");
        }
        assert_eq!(JournalSite::signs_by(at, None), Some(0));
        assert_eq!(JournalSite::zeroed().signed_by(), None);
    }
}
