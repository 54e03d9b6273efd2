//! The journal: what was changed where, written before the change.

use bytemuck::{Pod, Zeroable};
use trapless_isa::Mechanism;

/// Longest patch: the longest displaced instructions are 4 + 15 bytes.
pub const MAX_DISPLACED: usize = 32;

/// What has become of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SiteState {
    /// The patch may be in or not: look at the bytes.
    Planned = 1,
    /// Never patched: the check in the stop refused it.
    Skipped = 2,
}

/// One patch. Whether it is in is decided by the target's bytes, never by the journal alone: they are equal to
/// `original`, to `patched`, or somebody else's, and somebody else's are left alone.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct JournalEntry {
    /// Address of the first displaced instruction.
    pub site: u64,
    /// Address of the detour.
    pub detour: u64,
    /// Address in the detour where followed calls return; 0 when calls are not followed.
    pub return_point: u64,
    /// Size of the detour in bytes.
    pub detour_size: u32,
    /// Length of the patch.
    pub length: u8,
    /// A [`SiteState`].
    pub state: u8,
    /// Length of the copy in the slot of a probe that traps; 0 for a jump.
    pub copy: u8,
    /// Length of the instruction at the trap.
    pub displaced: u8,
    /// The number of its [`Mechanism`]; see [`JournalEntry::mechanism`].
    pub trap: u8,
    /// Whether unwinders ask at this site where a call returns (0 or 1). It comes out last: one may be about to ask.
    pub is_lookup: u8,
    /// Unused.
    pub _pad: [u8; 2],
    /// Offset in the blocks of the counter of its entries; 0 when they are not counted.
    pub hits: u32,
    /// The bytes before.
    pub original: [u8; MAX_DISPLACED],
    /// The bytes after.
    pub patched: [u8; MAX_DISPLACED],
}

impl JournalEntry {
    /// A planned patch; `None` when it is longer than any patch.
    pub fn new(site: u64, original: &[u8], patched: &[u8]) -> Option<Self> {
        let mut entry = Self::zeroed();
        entry.site = site;
        entry.length = u8::try_from(original.len()).ok()?;
        entry.state = SiteState::Planned as u8;
        entry.original.get_mut(..original.len())?.copy_from_slice(original);
        entry.patched.get_mut(..original.len())?.copy_from_slice(patched.get(..original.len())?);
        Some(entry)
    }

    /// The bytes before, as many as were replaced.
    pub fn original(&self) -> &[u8] {
        &self.original[..usize::from(self.length).min(MAX_DISPLACED)]
    }

    /// The bytes after.
    pub fn patched(&self) -> &[u8] {
        &self.patched[..usize::from(self.length).min(MAX_DISPLACED)]
    }

    /// How the probe gets control; `None` when the entry names no mechanism there is.
    pub fn mechanism(&self) -> Option<Mechanism> {
        Mechanism::from_number(self.trap)
    }

    /// Whether unwinders ask here where a call returns.
    pub fn is_lookup(&self) -> bool {
        self.is_lookup != 0
    }

    /// Whether a patch may be in.
    pub fn is_planned(&self) -> bool {
        self.state == SiteState::Planned as u8 && usize::from(self.length) <= MAX_DISPLACED
    }
}
