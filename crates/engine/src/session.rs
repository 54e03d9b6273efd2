//! A running session, as the tool that armed it sees it: the counters, and the way to end it.

use crate::{Armed, EngineError, FoundSession, Region};
use std::os::fd::OwnedFd;
use std::time::Duration;
use trapless_wire::{Counters, Header, Journal, SessionState};

/// Armed probes and their shared memory.
#[derive(Debug)]
pub struct Session {
    region: Region,
    header: Header,
    journal: Journal,
    /// How long the target stood still while it was armed.
    pub stopped: Duration,
}

impl Session {
    /// Maps the shared memory of probes that were armed.
    pub fn new(armed: Armed) -> Result<Self, EngineError> {
        Self::of_memory(&armed.memory, armed.header, armed.journal, armed.stopped)
    }

    pub(crate) fn of_memory(
        memory: &OwnedFd,
        header: Header,
        journal: Journal,
        stopped: Duration,
    ) -> Result<Self, EngineError> {
        let region = Region::map(memory, header.region_size)?;
        Ok(Self { region, header, journal, stopped })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Counters, histograms and rings.
    pub fn counters(&self) -> Counters<'_, Region> {
        Counters::new(&self.header, &self.region)
    }

    /// Threads that had the thread pointer of another one when the probes were armed: what they count may be lost.
    pub fn sharing_threads(&self) -> u64 {
        trapless_wire::Words::word(&self.region, Header::SHARING_OFFSET)
    }

    /// Where everything is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How far the session has come, as it stands in the shared memory.
    pub fn state(&self) -> Option<SessionState> {
        let word = trapless_wire::Words::word(&self.region, Header::STATE_OFFSET & !7);
        SessionState::from_raw((word >> 32) as u32)
    }

    /// What [`remove`](fn@crate::remove) needs: what was armed, not what the target has made of our memory since.
    pub fn to_remove(&self) -> FoundSession {
        FoundSession::own(self.header, self.journal.clone())
    }
}
