//! Many detours, one after the other: what [`Isa::detour`] gives, sooner.

use crate::{Detour, DetourRequest, Isa, Machine, Reason, Site, x86};

/// The detours of one arena: their requests have one layout and one runtime.
pub struct Detours {
    isa: &'static dyn Isa,
    templates: x86::Templates,
}

/// What a detour of a site may use without saving it. Finding that out takes longer than anything else about a detour, and depends on
/// nothing but the site, so it can be done ahead and for many sites at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spare(Option<x86::Liveness>);

impl Spare {
    /// What is to spare where the displaced code of `site` begins, at `address`.
    pub fn at(machine: Machine, site: &Site<'_>, address: u64) -> Self {
        Spare((machine == Machine::X86_64).then(|| x86::spare(site, address)))
    }
}

impl Detours {
    /// None yet.
    pub fn new(machine: Machine) -> Self {
        Self { isa: machine.isa(), templates: x86::Templates::default() }
    }

    /// The detour of one site, without comments. `spare` is the site's own.
    ///
    /// # Errors
    /// Those of [`Isa::detour`].
    pub fn detour(&mut self, request: &DetourRequest<'_>, spare: Spare) -> Result<Detour, Reason> {
        match spare.0 {
            Some(liveness) => self.templates.detour(request, liveness),
            None => self.isa.detour(request),
        }
    }

    /// How many detours were made without the encoder.
    pub fn filled(&self) -> usize {
        self.templates.filled()
    }
}
