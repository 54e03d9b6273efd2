//! A running session, as the tool that armed it sees it: the counters, and the way to end it.

use crate::{Armed, EngineError, FoundSession, Region};
use std::time::Duration;
use trapless_wire::{Counters, Header, JournalEntry, PAGE};

/// Armed probes and their shared memory.
#[derive(Debug)]
pub struct Session {
    region: Region,
    header: Header,
    /// How long the target stood still while it was armed.
    pub stopped: Duration,
}

impl Session {
    /// Maps the shared memory of probes that were armed.
    pub fn new(armed: &Armed) -> Result<Self, EngineError> {
        let region = Region::map(&armed.memory, armed.header.region_size)?;
        Ok(Self { region, header: armed.header, stopped: armed.stopped })
    }

    /// Counters, histograms and rings.
    pub fn counters(&self) -> Counters<'_, Region> {
        Counters::new(&self.header, &self.region)
    }

    /// Where everything is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What [`remove`](fn@crate::remove) needs.
    pub fn to_remove(&self) -> FoundSession {
        let journal = (0..self.header.journal_length)
            .map(|index| {
                let mut bytes = [0; size_of::<JournalEntry>()];
                let at = PAGE + index * size_of::<JournalEntry>() as u64;
                for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(
                        &trapless_wire::Words::word(&self.region, at + 8 * i as u64).to_ne_bytes(),
                    );
                }
                bytemuck::pod_read_unaligned(&bytes)
            })
            .collect();
        FoundSession { header: self.header, journal }
    }
}
