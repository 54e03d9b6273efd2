//! Is the code at the sites of a plan the file's? Asked while the target runs; the stop asks again.

use crate::{EngineError, Plan, Refusal};
use trapless_process::{Process, ReadRange, RemoteAddr};

impl Plan<'_> {
    /// The plan less the sites where other bytes stand.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn compared(mut self, process: &Process) -> Result<Self, EngineError> {
        let mut buffers: Vec<Vec<u8>> =
            self.sites.iter().map(|site| vec![0; site.original().len()]).collect();
        let places = self.sites.iter().zip(buffers.iter_mut().map(Vec::as_mut_slice));
        let mut ranges: Vec<_> =
            places.map(|(site, buffer)| ReadRange::new(RemoteAddr(site.displaced.start), buffer)).collect();
        process.read_vectored(&mut ranges)?;
        let read: Vec<usize> = ranges.iter().map(|range| range.done).collect();
        let mut found = buffers.iter().zip(read);
        self.refuse(|site| match found.next() {
            Some((bytes, read)) if bytes[..read] == *site.original() => None,
            _ => Some(Refusal::Modified),
        });
        Ok(self)
    }
}
