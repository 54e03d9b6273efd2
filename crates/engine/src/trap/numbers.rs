//! Where hits are counted and recorded: a block of the shared region that the keeper has claimed for itself.

use crate::Region;
use trapless_isa::detour::*;
use trapless_process::{Process, Registers};
use trapless_wire::{Header, Words, WordsMut};

/// The keeper's block.
pub(super) struct Numbers<'r> {
    region: &'r Region,
    base: u64,
    ring: u32,
    ring_bits: u32,
}

/// What is recorded of a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// Time stamp.
    pub time: u64,
    /// The thread.
    pub tid: u32,
    /// Address of the return address's stack slot.
    pub slot: u64,
    /// Arguments, or return value and time stamp of the entry.
    pub values: [u64; 6],
}

impl<'r> Numbers<'r> {
    /// Claims a block; the overflow block when all are taken.
    pub fn claim(region: &'r Region, header: &Header) -> Self {
        let index = region.add(Header::CURSOR_OFFSET, 1);
        let index = if index < header.block_count { index } else { 0 };
        let base = header.blocks_offset + index * header.block_stride;
        if index != 0 {
            region.set_word(base + u64::from(BLOCK_OWNER), u64::from(header.pid));
            // Zero would mark a forked child's.
            region.set_word(base + u64::from(BLOCK_ORIGIN), u64::from(header.pid));
        }
        Self { region, base, ring: header.ring, ring_bits: header.ring_bits }
    }

    fn at(&self, offset: u32) -> u64 {
        self.base + u64::from(offset)
    }

    /// Adds one to a counter.
    pub fn count(&self, counter: u32) {
        self.add(counter, 1);
    }

    /// Adds to a counter.
    pub fn add(&self, counter: u32, value: u64) {
        self.region.add(self.at(counter), value);
    }

    /// Adds a duration to a histogram.
    pub fn latency(&self, histogram: u32, ticks: u64) {
        self.count(histogram + LATENCY_COUNT);
        self.add(histogram + LATENCY_SUM, ticks);
        let longest = self.at(histogram + LATENCY_MAX);
        self.region.set_word(longest, self.region.word(longest).max(ticks));
        self.count(histogram + LATENCY_BUCKETS + 8 * latency_bucket(ticks));
    }

    /// Writes a record into the ring; one that is full loses it, and says so.
    pub fn record(&self, record: Record, event: &Event) {
        let head = self.region.word(self.at(BLOCK_RING_HEAD));
        let tail = self.region.word(self.at(BLOCK_RING_TAIL));
        if self.ring == 0 || head.wrapping_sub(tail) >= 1 << self.ring_bits {
            return self.count(BLOCK_RING_LOST);
        }
        let index = (head & ((1 << self.ring_bits) - 1)) as u32;
        let at = self.at(self.ring + (index << RECORD_SHIFT));
        let set = |offset: u32, value| self.region.set_word(at + u64::from(offset), value);
        set(RECORD_TIME, event.time);
        set(RECORD_ID, u64::from(record.id) | u64::from(event.tid) << 32);
        set(RECORD_SLOT, event.slot);
        for (index, value) in (0..).zip(event.values) {
            set(RECORD_VALUES + 8 * index, value);
        }
        self.region.set_word(self.at(BLOCK_RING_HEAD), head + 1);
        // Last: it says that the record is complete.
        set(RECORD_SEQUENCE, head + 1);
    }
}

/// The time stamp that detours take, too.
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc reads a counter and touches nothing else.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

/// The first integer arguments of the function a thread has just entered.
pub(super) fn arguments(process: &Process, registers: &Registers, count: u8) -> [u64; 6] {
    /// rdi, rsi, rdx, rcx, r8, r9.
    const ORDER: [u8; 6] = [7, 6, 2, 1, 8, 9];
    let mut values = [0; 6];
    for (index, value) in values.iter_mut().enumerate().take(usize::from(count)) {
        *value = if registers.is_32bit() {
            let mut bytes = [0; 4];
            let at = registers.sp() + 4 * (index as u64 + 1);
            // The argument may not exist, and nothing be there.
            let _ = process.load(at, &mut bytes);
            u64::from(u32::from_le_bytes(bytes))
        } else {
            registers.general(ORDER[index])
        };
    }
    values
}
