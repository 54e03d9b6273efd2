//! Any bytes as the shared memory of a session that was found in a target: what its header, its journal and its rings say is
//! the target's word.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_isa::model;
use trapless_wire::{Checked, Counters, Header, Journal, JournalSite, JournalWrite, MAX_WRITE, RawPlace, Schema, Write, WriteShape, WordsMut};

/// The region: the fuzzer's bytes, wherever they are looked for.
struct Region<'b>(std::cell::RefCell<&'b mut [u8]>);

impl Region<'_> {
    fn at(&self, offset: u64) -> Option<usize> {
        let length = self.0.borrow().len();
        (length >= 8).then(|| offset as usize % (length - 7))
    }
}

impl trapless_wire::Words for Region<'_> {
    fn word(&self, offset: u64) -> u64 {
        let Some(at) = self.at(offset) else { return 0 };
        let bytes = self.0.borrow();
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
    }
}

impl WordsMut for Region<'_> {
    fn set_word(&self, offset: u64, value: u64) {
        if let Some(at) = self.at(offset) {
            self.0.borrow_mut()[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
}

impl model::Read for Region<'_> {
    fn load(&mut self, address: u64) -> u64 {
        trapless_wire::Words::word(self, address)
    }
}

/// What can be believed of a journal without knowing the target is within what it has room for.
fn read_journal(bytes: &[u8], header: &Header) {
    let sizes = header.journal;
    let list = |start: u64, end: u64| bytes.get(start as usize..end as usize).unwrap_or_default();
    let sites = list(sizes.site_at(0), sizes.site_at(sizes.sites)).chunks_exact(size_of::<JournalSite>());
    let sites: Vec<JournalSite> = sites.map(bytemuck::pod_read_unaligned).collect();
    let mut journal = Journal::default();
    for write in list(sizes.write_at(0), sizes.write_at(sizes.writes)).chunks_exact(size_of::<JournalWrite>()) {
        let write: JournalWrite = bytemuck::pod_read_unaligned(write);
        let Some(WriteShape { site, address, kind, length, at }) = write.shape(&sizes, sites.len()) else { continue };
        assert!((1..=MAX_WRITE).contains(&length) && at + 2 * length as u64 <= sizes.bytes);
        let start = (sizes.bytes_at() + at) as usize;
        let Some(both) = bytes.get(start..start + 2 * length) else { continue };
        let (original, patched) = both.split_at(length);
        let writes = [Write { address, kind, original, patched }; 2];
        let _ = (sites[site].mechanism(), sites[site].is_planned(), writes[0].range());
        journal.push(sites[site], &writes).unwrap();
        let last = journal.site(journal.len() - 1).unwrap();
        assert_eq!(last.writes().collect::<Vec<_>>(), writes);
    }
    assert_eq!(journal.sites().map(|site| site.writes().count()).sum::<usize>(), 2 * journal.len());
}

/// The places that are believed lie in a block, and all numbers can be read there.
fn read_schema(bytes: &[u8], header: &Header) {
    let start = header.places_at() as usize;
    let list = bytes.get(start..start + header.places as usize * size_of::<RawPlace>()).unwrap_or_default();
    let list: Vec<RawPlace> = list.chunks_exact(size_of::<RawPlace>()).map(bytemuck::pod_read_unaligned).collect();
    let (schema, doubted) = Schema::read(header, &list);
    let probes: Vec<_> = schema.probes().map(|(_, places)| places).collect();
    let known: usize = probes.iter().map(|places| places.count()).sum();
    assert_eq!(known + doubted, list.len());
    for places in &probes {
        let counters = [places.entries, places.returns, places.lost].into_iter().flatten();
        assert!(counters.map(|counter| u64::from(counter.offset())).all(|at| at + 8 <= header.block_stride));
        let histogram = places.latency.map_or(0, |histogram| u64::from(histogram.offset()));
        assert!(histogram <= header.block_stride);
    }
    let mut copy = bytes.to_vec();
    let region = Region(std::cell::RefCell::new(&mut copy));
    let few = &probes[..probes.len().min(8)];
    assert_eq!(Counters::new(header, &region).numbers(few).len(), few.len());
}

fuzz_target!(|bytes: &[u8]| {
    let Some(header) = bytes.get(..size_of::<Header>()) else { return };
    let raw: Header = bytemuck::pod_read_unaligned(header);
    let Ok(header) = Checked::read(bytes, raw.region..raw.region.saturating_add(raw.region_size)) else { return };
    read_journal(bytes, &header);
    read_schema(bytes, &header);
    let mut copy = bytes.to_vec();
    let mut region = Region(std::cell::RefCell::new(&mut copy));
    let mut taken = 0;
    for block in Counters::new(&header, &region).blocks().take(64) {
        let _ = (block.owner(), block.is_of_child(), block.ring_lost());
        taken += block.drain(1 << 10, |_| {});
    }
    assert!(taken <= 64 << 10);
    let layout = header.layout(trapless_wire::ThreadMemory::default());
    for slot in bytes.chunks_exact(8).take(64).map(|word| u64::from_le_bytes(word.try_into().unwrap())) {
        let _ = model::instance_of(&mut region, &layout, slot);
    }
});
