//! Many detours: what [`crate::Isa::detour`] gives, sooner, and on as many processors as there are.
//!
//! Detours of one *kind* differ in a few words only. So all that are wanted are sketched first, which needs no address that is final;
//! from two of a kind a [`Template`] is learned; and then the length of each is known, and each can be written at its own place
//! without the others.

use crate::{Detour, DetourRequest, Machine, Payload, Site, Stack, x86};
use alloc::collections::BTreeMap;

/// What a detour of a site may use without saving it. Finding that out takes longer than anything else about a detour, and depends on
/// nothing but the site.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spare(Option<x86::Liveness>);

impl Spare {
    /// What is to spare where the displaced code of `site` begins, at `address`.
    pub fn at(machine: Machine, site: &Site<'_>, address: u64, stack: Stack) -> Self {
        let spare = || x86::spare(64, site, address, stack);
        Spare((machine == Machine::X86_64).then(spare))
    }
}

/// All that a detour's kind is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sketch(x86::Sketch);

impl Sketch {
    /// The sketch of a detour that will stand near the request's address; `None` for what templates are not made of, which goes through
    /// [`Isa::detour`](crate::Isa::detour). `spare`: that of the request's site.
    pub fn of(request: &DetourRequest<'_>, spare: Spare) -> Option<Self> {
        x86::Sketch::of(request, spare.0?).map(Sketch)
    }
}

/// Numbers the kinds of detours.
#[derive(Debug, Default)]
pub struct Kinds {
    sketches: BTreeMap<Sketch, usize>,
    shapes: BTreeMap<x86::Shape, usize>,
}

impl Kinds {
    /// Number of the kind of a sketch, from 0 on without a gap. Sketches that differ may be of one kind. `payload`: that of the request
    /// that the sketch is of.
    pub fn number(&mut self, sketch: Sketch, payload: &Payload) -> usize {
        *self.sketches.entry(sketch).or_insert_with(|| {
            let next = self.shapes.len();
            *self.shapes.entry(sketch.0.shape(payload)).or_insert(next)
        })
    }
}

/// A detour with holes.
#[derive(Debug)]
pub struct Template(x86::Template);

impl Template {
    /// What two detours of one kind have in common. Nothing is taken on trust: the second one, filled in, has to be what
    /// [`Isa::detour`](crate::Isa::detour) gives; else there is no template.
    pub fn learn(first: &DetourRequest<'_>, second: &DetourRequest<'_>) -> Option<Self> {
        x86::Template::learn(first, second).map(Template)
    }

    /// Length of the detours, in bytes.
    pub fn length(&self) -> usize {
        self.0.length()
    }

    /// The detour that [`Isa::detour`](crate::Isa::detour) would give, without comments; `None` where something is out of reach.
    pub fn fill(&self, request: &DetourRequest<'_>) -> Option<Detour> {
        self.0.fill(request)
    }
}
