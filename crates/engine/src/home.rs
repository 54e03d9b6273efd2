//! What a plan's sites go into: a session of their own, or one that is armed already and has room for more.
//!
//! A session that is to be added to keeps room from the beginning, in its journal, its schema and its blocks. It is address space: what is not
//! used of it takes no memory. And it has from the beginning whatever serves all of its probes: those that unwinders ask, the stubs of
//! signal handlers, the shadow of the stacks.

use crate::{Plan, Wanted};
use trapless_isa::Layout;
use trapless_wire::{Geometry, Header, Histogram, JournalSizes, MAX_SEMAPHORES, PlaceKind};

/// What is kept free in a session for sites that are added to it while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// How many probes.
    pub probes: u32,
    /// What may be wanted of each.
    pub wanted: Wanted,
}

/// A session that sites are added to, as far as it matters to them.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// What is free in its blocks.
    pub geometry: Geometry,
    /// Whether its calls may be followed: unwinders are told where they return, and there is a shadow for them.
    pub follows: bool,
    /// Whether handlers of signals are shown the program.
    pub shows: bool,
}

/// What the sites of a plan go into.
#[derive(Clone, Copy, Debug)]
pub enum Home {
    /// A session of their own, that keeps so much free.
    New(Spare),
    /// One that is armed.
    Armed(Host),
}

impl Default for Home {
    fn default() -> Self {
        Self::New(Spare::default())
    }
}

/// How many sites a probe takes at most in the mean, with all exits of its function.
const SITES: u64 = 4;
/// How many bytes a write changes in the mean.
const WRITE: u64 = 16;

impl Spare {
    /// Room in the blocks, in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        const WORD: u32 = 8;
        let followed = if self.wanted.follows() { 2 * WORD } else { 0 };
        let histogram = if self.wanted.latency { Histogram::SIZE } else { 0 };
        self.probes.saturating_mul(WORD + followed + histogram)
    }

    /// Room in the journal.
    pub(crate) fn journal(&self) -> JournalSizes {
        let sites = SITES * u64::from(self.probes);
        JournalSizes { sites, writes: 2 * sites, bytes: 2 * 2 * sites * WRITE }
    }

    /// Room in the schema.
    pub(crate) fn places(&self) -> u64 {
        PlaceKind::ALL.len() as u64 * u64::from(self.probes)
    }

    /// Room for semaphores.
    pub(crate) fn semaphores(&self) -> u64 {
        u64::from(self.probes).min(MAX_SEMAPHORES / 2)
    }
}

impl Home {
    pub(crate) fn spare(&self) -> Spare {
        match self {
            Home::New(spare) => *spare,
            Home::Armed(_) => Spare::default(),
        }
    }

    /// Where the plan's numbers begin.
    pub(crate) fn geometry(&self) -> Geometry {
        match self {
            Home::New(_) => Geometry::default(),
            Home::Armed(host) => host.geometry,
        }
    }

    /// Whether the session is there already.
    pub(crate) fn is_armed(&self) -> bool {
        matches!(self, Home::Armed(_))
    }
}

/// How much of a session's lists is taken by the sites that it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub arenas: usize,
    pub journal: JournalSizes,
    pub places: u64,
    pub semaphores: u64,
}

impl Used {
    /// Whether there is room for what a plan adds.
    pub(crate) fn has_room(&self, header: &Header, more: &Used) -> bool {
        header.journal.holds(&self.journal.and(&more.journal))
            && self.places + more.places <= header.places
            && self.semaphores + more.semaphores <= header.semaphores
    }
}

/// What a session knows of itself for those that are added to it.
#[derive(Clone, Copy, Debug)]
pub struct Hosting {
    /// What detours know of its memory.
    pub(crate) layout: Layout,
    /// What is free in its blocks.
    pub(crate) geometry: Geometry,
    /// How many places its schema has.
    pub(crate) places: u64,
    /// How many semaphores it has records of.
    pub(crate) semaphores: u64,
    /// Whether handlers of signals are shown the program.
    pub(crate) shows: bool,
    /// Whether it has a gate.
    pub(crate) has_gate: bool,
}

impl Plan<'_> {
    /// Whether unwinders have to be told of followed calls, of its own or of those that are added, or of code of ours.
    pub(crate) fn tells_unwinders(&self) -> bool {
        let is_asked = self.sites.iter().any(|site| site.request.wanted.is_lookup());
        is_asked || self.follows_by_jump() || self.home.spare().wanted.follows()
    }
}
