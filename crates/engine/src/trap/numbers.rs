//! Where hits are counted and recorded: a block of the shared region that the keeper has claimed for itself.

use super::bodies::TrapMemory;
use crate::Region;
use std::cell::Cell;
use trapless_isa::{Arguments, Operand, detour::*};
use trapless_process::{Process, Registers, RemoteAddr};
use trapless_wire::{Header, Words, WordsMut};

/// The keeper's block.
pub(super) struct Numbers<'r> {
    region: &'r Region,
    header: Header,
    base: u64,
    /// Where the script's part of the block is, if it has one.
    script: Option<u64>,
    /// Another block, for what children that share the memory have not run.
    children: Cell<Option<u64>>,
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
    pub values: Values,
}

/// The values of a record.
pub(super) type Values = [u64; RECORD_MAX_VALUES as usize];

/// Claims a block with this origin; the overflow block when all are taken.
fn claim(region: &Region, header: &Header, origin: u64) -> u64 {
    let index = region.add(Header::CURSOR_OFFSET, 1);
    let index = if index < header.block_count { index } else { 0 };
    let base = header.blocks_offset + index * header.block_stride;
    if index != 0 {
        region.set_word(base + u64::from(BLOCK_OWNER), u64::from(header.pid));
        region.set_word(base + u64::from(BLOCK_ORIGIN), origin);
    }
    base
}

impl<'r> Numbers<'r> {
    /// Claims a block; the overflow block when all are taken.
    pub fn claim(region: &'r Region, header: &Header) -> Self {
        // Zero would mark a forked child's.
        let base = claim(region, header, u64::from(header.pid));
        let has_script = base != header.blocks_offset && header.script_block_size > 0;
        let script = has_script.then(|| base + u64::from(header.script_block));
        let (header, children) = (*header, Cell::new(None));
        Self { region, header, base, script, children, ring: header.ring, ring_bits: header.ring_bits }
    }

    /// Where bodies of a script run. `None`: no block was left that has a part for them.
    pub fn memory(&self) -> Option<TrapMemory<'r>> {
        let own = self.script?;
        Some(TrapMemory { region: self.region, shared: self.header.script, own })
    }

    /// Counts what a child that shares the memory would have run.
    pub fn unrun_in_child(&self) {
        let block = self.children.get().unwrap_or_else(|| claim(self.region, &self.header, 0));
        self.children.set(Some(block));
        self.region.add(block + u64::from(BLOCK_UNRUN), 1);
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
    pub fn record(&self, id: u32, event: &Event) {
        let head = self.region.word(self.at(BLOCK_RING_HEAD));
        let tail = self.region.word(self.at(BLOCK_RING_TAIL));
        if self.ring == 0 || head.wrapping_sub(tail) >= 1 << self.ring_bits {
            return self.count(BLOCK_RING_LOST);
        }
        let index = (head & ((1 << self.ring_bits) - 1)) as u32;
        let at = self.at(self.ring + (index << RECORD_SHIFT));
        let set = |offset: u32, value| self.region.set_word(at + u64::from(offset), value);
        set(RECORD_TIME, event.time);
        set(RECORD_ID, u64::from(id) | u64::from(event.tid) << 32);
        set(RECORD_SLOT, event.slot);
        for (index, value) in (0..).zip(event.values) {
            set(RECORD_VALUES + 8 * index, value);
        }
        self.region.set_word(self.at(BLOCK_RING_HEAD), head + 1);
        // Last: it says that the record is complete.
        set(RECORD_SEQUENCE, head + 1);
    }
}

/// The first integer arguments of the function a thread has just entered.
pub(super) fn arguments(process: &Process, registers: &Registers, place: Arguments, count: u8) -> Values {
    let mut values = Values::default();
    for (index, value) in values.iter_mut().enumerate().take(usize::from(count)) {
        *value = argument(process, registers, place, index).unwrap_or(0);
    }
    values
}

/// One of them. `None`: it may not exist, and nothing be there.
pub(super) fn argument(
    process: &Process,
    registers: &Registers,
    place: Arguments,
    index: usize,
) -> Option<u64> {
    match place {
        Arguments::Registers(numbers) => numbers.get(index).map(|&number| registers.general(number)),
        Arguments::Stack(above) => {
            let word = process.word_size();
            let mut bytes = [0; 8];
            let at = registers.sp() + u64::from(above) + (word * index) as u64;
            process.load(at, &mut bytes[..word]).ok()?;
            Some(u64::from_le_bytes(bytes))
        }
    }
}

/// The operands of a USDT probe that a thread has just met; which of them could not be read is the last value.
pub(super) fn operands(process: &Process, registers: &Registers, operands: &[Operand]) -> Values {
    let mut values = Values::default();
    let mut missing = 0;
    for (index, operand) in operands.iter().enumerate().take(MOST_FETCHED) {
        match operand_of(process, registers, *operand) {
            Some(value) => values[index] = value,
            None => missing |= 1 << index,
        }
    }
    values[MOST_FETCHED] = missing;
    values
}

pub(super) fn operand_of(process: &Process, registers: &Registers, operand: Operand) -> Option<u64> {
    let (address, size) = match operand {
        Operand::Register(number) => return Some(registers.general(number)),
        Operand::Memory { base, index, offset, size } => {
            let index = index.map_or(0, |(number, scale)| registers.general(number) << scale);
            let address = registers.general(base).wrapping_add(index).wrapping_add_signed(offset.into());
            (if process.is_32bit() { address & 0xffff_ffff } else { address }, size)
        }
        Operand::At { address, size } => (address, size),
    };
    let mut bytes = [0; 8];
    process.load(RemoteAddr(address), bytes.get_mut(..usize::from(size))?).ok()?;
    Some(u64::from_le_bytes(bytes))
}
