//! What bodies in a process have not done, or not told.

use trapless_engine::ScriptMemory;
use trapless_wire::{MessageRing, THREAD_NO_SCRATCH, THREAD_OUT_OF_FUEL, THREAD_UNREAD, Words};

/// What was not done, or not told.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::commands) struct Losses {
    /// Messages that found no room.
    pub messages: u64,
    out_of_fuel: u64,
    no_scratch: u64,
    unread: u64,
    without_block: u64,
    in_children: u64,
}

impl Losses {
    /// Of a process.
    pub fn of(memory: &ScriptMemory, bits: u32) -> Self {
        let region = memory.region();
        let sum =
            |offset: u32| memory.blocks().map(|block| region.word(block.start + u64::from(offset))).sum();
        let unrun = memory.unrun();
        Self {
            messages: memory.blocks().map(|block| MessageRing { at: block.start, bits }.lost(region)).sum(),
            out_of_fuel: sum(THREAD_OUT_OF_FUEL),
            no_scratch: sum(THREAD_NO_SCRATCH),
            unread: sum(THREAD_UNREAD),
            without_block: unrun.without_block,
            in_children: unrun.in_children,
        }
    }

    /// Adds those of another process.
    pub fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.out_of_fuel += more.out_of_fuel;
        self.no_scratch += more.no_scratch;
        self.unread += more.unread;
        self.without_block += more.without_block;
        self.in_children += more.in_children;
    }
    /// All of them together.
    pub fn all(&self) -> u64 {
        let Self { messages, out_of_fuel, no_scratch, unread, without_block, in_children } = self;
        messages + out_of_fuel + no_scratch + unread + without_block + in_children
    }

    /// A line for each that is no message.
    pub fn lines(&self) -> Vec<String> {
        let Self { out_of_fuel, no_scratch, unread, without_block, in_children, .. } = *self;
        let notes = [
            (out_of_fuel, "runs of probes were ended, because their loops went round too often"),
            (
                no_scratch,
                "hits did not run their probe, because too many signal handlers had interrupted each other in probes, or had left them for good",
            ),
            (unread, "reads of memory were not tried, because it is not known which thread they were for"),
            (without_block, "hits did not run their probe, because their threads had no memory for it"),
            (
                in_children,
                "hits were in forked children, and did not run their probe there: give --follow for those",
            ),
        ];
        notes.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}
