//! Any bytes as the shared memory of a session that was found in a target: what its header, its journal and its rings say is
//! the target's word.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_isa::model;
use trapless_wire::{Checked, Counters, Header, JournalEntry, WordsMut};

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

fuzz_target!(|bytes: &[u8]| {
    for entry in bytes.chunks_exact(size_of::<JournalEntry>()) {
        let entry: JournalEntry = bytemuck::pod_read_unaligned(entry);
        let _ = (entry.original(), entry.patched(), entry.mechanism(), entry.is_planned());
    }
    let Some(header) = bytes.get(..size_of::<Header>()) else { return };
    let raw: Header = bytemuck::pod_read_unaligned(header);
    let Ok(header) = Checked::read(bytes, raw.region..raw.region.saturating_add(raw.region_size)) else { return };
    let mut copy = bytes.to_vec();
    let mut region = Region(std::cell::RefCell::new(&mut copy));
    let mut taken = 0;
    for block in Counters::new(&header, &region).blocks().take(64) {
        let _ = (block.owner(), block.is_of_child(), block.ring_lost());
        taken += block.drain(1 << 10, |_| {});
    }
    assert!(taken <= 64 << 10);
    let layout = header.layout(None);
    for slot in bytes.chunks_exact(8).take(64).map(|word| u64::from_le_bytes(word.try_into().unwrap())) {
        let _ = model::instance_of(&mut region, &layout, slot);
    }
});
