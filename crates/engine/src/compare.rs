//! Is the code at the sites of a plan the file's? Asked while the target runs; the stop asks again.

use crate::{EngineError, Plan, PlannedSite, Refusal, find_sessions};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;
use trapless_process::{Process, ReadRange, RemoteAddr};

impl Plan<'_> {
    /// The plan less the sites where other bytes stand.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn compared(mut self, process: &Process) -> Result<Self, EngineError> {
        let parts: Vec<_> = self.sites.iter().flat_map(PlannedSite::changed).collect();
        let mut buffers: Vec<Vec<u8>> = parts.iter().map(|(_, original)| vec![0; original.len()]).collect();
        let places = parts.iter().zip(buffers.iter_mut().map(Vec::as_mut_slice));
        let mut ranges: Vec<_> =
            places.map(|((changed, _), buffer)| ReadRange::new(RemoteAddr(changed.start), buffer)).collect();
        process.read_vectored(&mut ranges)?;
        let is_there = |range: &ReadRange<'_>, original: &[u8]| range.buffer[..range.done] == *original;
        let same = ranges.iter().zip(&parts).map(|(range, (_, original))| is_there(range, original));
        let same: Vec<bool> = same.collect();
        let mut same = same.into_iter();
        let ours = OnceCell::new();
        self.refuse(|site| {
            let is_same = same.by_ref().take(site.changed().count()).fold(true, |all, same| all & same);
            (!is_same).then(|| ours.get_or_init(|| Ours::of(process)).at(site))
        });
        Ok(self)
    }

    /// Says of sites that were left alone, since other bytes stood there, whether those are of ours.
    pub fn tell_whose(&self, process: &Process, refused: &mut [(u32, Refusal)]) {
        if !refused.iter().any(|(_, refusal)| *refusal == Refusal::Modified) {
            return;
        }
        let ours = Ours::of(process);
        let sites: HashMap<u32, _> = self.sites.iter().map(|site| (site.request.id, site)).collect();
        for (id, refusal) in refused.iter_mut().filter(|(_, refusal)| *refusal == Refusal::Modified) {
            if let Some(site) = sites.get(id) {
                *refusal = ours.at(site);
            }
        }
    }
}

/// What sessions have written, by where it begins; nothing of it overlaps.
struct Ours(Vec<(Range<u64>, Refusal)>);

impl Ours {
    fn of(process: &Process) -> Self {
        let mut writes = Vec::new();
        // Where they cannot be found, somebody has changed the code.
        for session in
            find_sessions(process).unwrap_or_default().iter().filter(|session| !session.is_removed())
        {
            let probed = Refusal::Probed { tool: session.header.tool, is_left: !session.has_owner() };
            for site in session.journal.planned() {
                let range = |at: u64, length: usize| at..at.saturating_add(length as u64);
                let all =
                    site.writes().map(|write| (range(write.address, write.patched.len()), probed.clone()));
                writes.extend(all);
            }
        }
        writes.sort_unstable_by_key(|(range, _)| range.start);
        Self(writes)
    }

    /// Why a site is refused where other bytes stand than the file's.
    fn at(&self, site: &PlannedSite<'_>) -> Refusal {
        let ours = site.changed().find_map(|(changed, _)| {
            let behind = self.0.partition_point(|(range, _)| range.start < changed.end());
            self.0[..behind].last().filter(|(range, _)| range.end > changed.start)
        });
        ours.map_or(Refusal::Modified, |(_, refusal)| refusal.clone())
    }
}
