//! Is the code at the sites of a plan the file's? Asked while the target runs; the stop asks again.

use crate::{EngineError, Plan, Refusal};
use trapless_process::{Process, ReadRange, RemoteAddr};

impl Plan<'_> {
    /// The plan less the sites where other bytes stand.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn compared(mut self, process: &Process) -> Result<Self, EngineError> {
        let parts = self.sites.iter().flat_map(|site| {
            let room = site.original_room().map(|(room, original)| (room.start, original));
            [Some((site.displaced.start, site.original())), room].into_iter().flatten()
        });
        let parts: Vec<(u64, &[u8])> = parts.collect();
        let mut buffers: Vec<Vec<u8>> = parts.iter().map(|(_, original)| vec![0; original.len()]).collect();
        let places = parts.iter().zip(buffers.iter_mut().map(Vec::as_mut_slice));
        let mut ranges: Vec<_> =
            places.map(|((start, _), buffer)| ReadRange::new(RemoteAddr(*start), buffer)).collect();
        process.read_vectored(&mut ranges)?;
        let is_there = |(range, (_, original)): (&ReadRange<'_>, &(u64, &[u8]))| {
            range.buffer[..range.done] == **original
        };
        let same: Vec<bool> = ranges.iter().zip(&parts).map(is_there).collect();
        let mut same = same.into_iter();
        self.refuse(|site| {
            let own = 1 + usize::from(site.room.is_some());
            let is_same = same.by_ref().take(own).fold(true, |all, same| all & same);
            (!is_same).then_some(Refusal::Modified)
        });
        Ok(self)
    }
}
