//! A running session, as the tool that armed it sees it: the counters, and the way to end it.

use crate::home::{Hosting, Used};
use crate::{
    Added, Armed, EngineError, FoundSession, Host, LoadMemory, Region, ScriptMemory, found::find_headers,
    writes,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use trapless_isa::Layout;
use trapless_process::Process;
use trapless_wire::{Checked, Counters, Header, Journal, SessionState, SiteWrites};

/// Armed probes and their shared memory.
#[derive(Debug)]
pub struct Session {
    region: Arc<Region>,
    header: Header,
    journal: Journal,
    hosting: Hosting,
    /// The sites that were given up, by their indices in the journal.
    given_up: BTreeSet<usize>,
    /// How long the target stood still while it was armed.
    pub stopped: Duration,
}

impl Session {
    /// Maps the shared memory of probes that were armed.
    pub fn new(armed: Armed) -> Result<Self, EngineError> {
        let Armed { memory, header, journal, hosting, stopped, .. } = armed;
        let region = Arc::new(Region::map(&memory, header.region_size)?);
        Ok(Self { region, header, journal, hosting, given_up: BTreeSet::new(), stopped })
    }

    /// The same session in another memory of the same layout, as far as the process has its sites.
    pub(crate) fn in_memory(
        &self,
        memory: &OwnedFd,
        header: Header,
        journal: Journal,
        stopped: Duration,
    ) -> Result<Self, EngineError> {
        let region = Arc::new(Region::map(memory, header.region_size)?);
        // Where it has not got all sites they have other indices.
        let is_whole = journal.len() == self.journal.len();
        let given_up = if is_whole { self.given_up.clone() } else { BTreeSet::new() };
        Ok(Self { region, header, journal, hosting: self.hosting, given_up, stopped })
    }

    /// What a plan has to know whose sites are to be added.
    pub fn host(&self) -> Host {
        // One in a library that was unloaded asks nobody.
        let is_asked = |site: &SiteWrites<'_>| site.is_lookup() && !self.given_up.contains(&site.index);
        Host {
            geometry: self.hosting.geometry,
            // Where one could not be armed, nothing of this session is followed.
            follows: self.header.slot_shift != 0
                && !self.journal.sites().filter(is_asked).any(|site| !site.is_planned()),
            shows: self.hosting.shows,
        }
    }

    /// Gives up sites in memory that has been unmapped since, and whatever is mapped there now has none of our writes. Their indices in the
    /// plans, counted on over all that were added.
    ///
    /// # Errors
    /// The shared memory cannot be written.
    pub fn forget(&mut self, process: &Process, unmapped: &[Range<u64>]) -> Result<Vec<u32>, EngineError> {
        let is_gone = |site: &SiteWrites<'_>| {
            let mut writes = site.writes();
            unmapped.iter().any(|range| range.contains(&site.site))
                && !writes.any(|write| writes::stands(process, write.address, write.patched))
        };
        let gone: Vec<usize> =
            self.journal.planned().filter(|site| is_gone(site)).map(|site| site.index).collect();
        for &index in &gone {
            self.journal.skip(index);
            self.given_up.insert(index);
            if let Some(site) = self.journal.site(index) {
                self.region.write(self.header.journal.site_at(index as u64), bytemuck::bytes_of(&*site))?;
            }
        }
        Ok(gone.into_iter().map(|index| index as u32).collect())
    }

    pub(crate) fn given_up(&self) -> &BTreeSet<usize> {
        &self.given_up
    }

    /// Sites that were given up are in again.
    pub(crate) fn planned_again(&mut self, indices: &[usize]) {
        for &index in indices {
            self.journal.plan_again(index);
            self.given_up.remove(&index);
        }
    }

    /// The sessions of the process, of which this is one that is armed.
    ///
    /// # Errors
    /// [`EngineError::NotArmed`]: it is not.
    pub(crate) fn among(&self, process: &Process) -> Result<Vec<Checked>, EngineError> {
        let all = find_headers(process)?;
        let own = |header: &Header| (header.region, header.tool, header.returns, header.created);
        let is_own = |header: &&Checked| {
            own(header) == own(&self.header) && header.session_state() == Some(SessionState::Armed)
        };
        match all.iter().any(|header| is_own(&header)) {
            true => Ok(all),
            false => Err(EngineError::NotArmed),
        }
    }

    /// How many sites it has, whatever became of them.
    pub fn sites(&self) -> usize {
        self.journal.len()
    }

    /// How much of its lists is taken.
    pub(crate) fn used(&self) -> Used {
        let arenas = self.header.arenas().count();
        Used {
            arenas,
            journal: self.journal.sizes(),
            places: self.hosting.places,
            semaphores: self.hosting.semaphores,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.hosting.layout
    }

    /// Takes note of sites that were added, by [`Blueprint::add`](crate::Blueprint::add).
    ///
    /// # Errors
    /// [`EngineError::Full`]: there are more than a journal holds.
    pub fn include(&mut self, added: &Added) -> Result<(), EngineError> {
        self.journal.append(&added.journal).ok_or(EngineError::Full)?;
        self.header = added.header;
        self.hosting.geometry = added.geometry;
        self.hosting.places += added.places;
        self.hosting.semaphores += added.semaphores;
        Ok(())
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Whether a gate was armed with it.
    pub fn has_gate(&self) -> bool {
        self.hosting.has_gate
    }

    /// Its sites.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Counters, histograms and rings.
    pub fn counters(&self) -> Counters<'_, Region> {
        Counters::new(&self.header, &*self.region)
    }

    /// Threads that had the thread pointer of another one when the probes were armed: what they count may be lost.
    pub fn sharing_threads(&self) -> u64 {
        trapless_wire::Words::word(&*self.region, Header::SHARING_OFFSET)
    }

    /// Where everything is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How far the session has come, as it stands in the shared memory.
    pub fn state(&self) -> Option<SessionState> {
        let word = trapless_wire::Words::word(&*self.region, Header::STATE_OFFSET & !7);
        SessionState::from_raw((word >> 32) as u32)
    }

    /// The memory of its script, if it has one.
    pub fn script(&self) -> Option<ScriptMemory> {
        ScriptMemory::of(&self.region, &self.header)
    }

    /// The words by which a library is loaded, if it is there for that.
    pub fn load(&self) -> Option<LoadMemory> {
        LoadMemory::of(&self.region, &self.header)
    }

    /// What [`remove`](fn@crate::remove) needs: what was armed, not what the target has made of our memory since.
    pub fn to_remove(&self) -> FoundSession {
        FoundSession::own(self.header, self.journal.clone())
    }
}
