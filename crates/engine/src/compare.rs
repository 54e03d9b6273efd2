//! Is the code at the sites of a plan the file's? Asked while the target runs; the stop asks again.

use crate::{EngineError, Plan, PlannedSite, Refusal};
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
        self.refuse(|site| {
            let is_same = same.by_ref().take(site.changed().count()).fold(true, |all, same| all & same);
            (!is_same).then_some(Refusal::Modified)
        });
        Ok(self)
    }
}
