//! Messages of the probes in processes: read from their rings, and given in the order in which they were told.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use trapless_engine::ScriptMemory;
use trapless_process::ticks;
use trapless_script::ir::{MessageId, PartKind};
use trapless_wire::{
    Incomplete, MapKind, MapPlace, Message, MessagePart, MessageRing, THREAD_NO_SCRATCH, THREAD_OUT_OF_FUEL,
    THREAD_UNREAD, Words,
};

/// A record that is not complete for so long never will be.
const HOPELESS: Duration = Duration::from_secs(1);

/// A message of a probe.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whose.
    pub pid: i32,
    /// Of which thread; 0 where nobody knows its number.
    pub tid: u32,
    /// At which site.
    pub site: u32,
    /// When it was told.
    pub ticks: u64,
    /// What kind of message it is.
    pub message: MessageId,
    /// Its parts.
    pub parts: Vec<Vec<u8>>,
}

/// The rings of all processes.
pub struct Rings {
    kinds: Vec<Vec<MessagePart>>,
    bits: u32,
    /// Messages that wait for earlier ones, with the process they come from.
    waiting: Vec<(i32, Message)>,
    /// Ticks when the rings were read last: what was told before is all here.
    read_at: u64,
    /// Since when a ring, by its process and place, waits for a record.
    stuck: HashMap<(i32, u64), Instant>,
    /// Messages that were begun and never completed.
    left: u64,
}

impl Rings {
    /// Of messages with these parts. `bits`: log2 of the size of each ring; 0 where nothing is told.
    pub fn new(messages: &[Vec<PartKind>], bits: u32) -> Self {
        let kind = |kind: &PartKind| match kind {
            PartKind::Word => MessagePart::Word,
            PartKind::Bytes(size) => MessagePart::Bytes(*size),
            PartKind::Text(size) => MessagePart::Text(*size),
        };
        let kinds = messages.iter().map(|parts| parts.iter().map(kind).collect()).collect();
        Self { kinds, bits, waiting: Vec::new(), read_at: 0, stuck: HashMap::new(), left: 0 }
    }

    /// Whether anything is ever told.
    pub fn tell(&self) -> bool {
        self.bits != 0
    }

    /// Reads all rings, and gives what was told before the last time: nothing earlier can come any more. `leaving`: whose probes are gone, so
    /// that nothing more comes from it.
    pub fn read(&mut self, memories: &[(i32, ScriptMemory)], leaving: Option<i32>) -> Vec<Told> {
        if !self.tell() {
            return Vec::new();
        }
        let (before, now) = (self.read_at, ticks());
        for (pid, memory) in memories {
            for block in memory.blocks() {
                let ring = MessageRing { at: block.start, bits: self.bits };
                self.read_ring(*pid, memory, ring, leaving == Some(*pid));
            }
        }
        self.read_at = now;
        self.before(before)
    }

    /// All that was read and not given yet.
    pub fn rest(&mut self) -> Vec<Told> {
        self.before(u64::MAX)
    }

    /// How many messages were lost: those of these processes, and those that were left half written.
    pub fn lost(&self, memories: &[(i32, ScriptMemory)]) -> u64 {
        let of = |(_, memory): &(i32, ScriptMemory)| Losses::of(memory, self.bits, &[]).messages;
        memories.iter().map(of).sum::<u64>() + self.left
    }

    fn read_ring(&mut self, pid: i32, memory: &ScriptMemory, ring: MessageRing, is_last: bool) {
        let place = (pid, ring.at);
        let since = self.stuck.get(&place);
        let is_hopeless = is_last || since.is_some_and(|since| since.elapsed() >= HOPELESS);
        let incomplete = if is_hopeless { Incomplete::Leave } else { Incomplete::Wait };
        let waiting = &mut self.waiting;
        let drained = ring.drain(memory.region(), incomplete, |message| waiting.push((pid, message)));
        self.left += drained.left;
        match drained.is_waiting && drained.taken == 0 {
            true => drop(self.stuck.entry(place).or_insert_with(Instant::now)),
            false => drop(self.stuck.remove(&place)),
        }
    }

    /// Those from before a moment, in order.
    fn before(&mut self, moment: u64) -> Vec<Told> {
        self.waiting.sort_by_key(|(_, message)| message.ticks);
        let end = self.waiting.partition_point(|(_, message)| message.ticks < moment);
        let kinds = &self.kinds;
        let told = |(pid, message): (i32, Message)| {
            let parts = message.parts(kinds.get(message.number as usize)?)?;
            Some(Told {
                pid,
                tid: message.tid,
                site: message.site,
                ticks: message.ticks,
                message: MessageId(message.number),
                parts,
            })
        };
        self.waiting.drain(..end).filter_map(told).collect()
    }
}

/// What was not done, or not told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Messages that found a ring full.
    pub messages: u64,
    /// Runs that ended because their loops took too many rounds.
    pub out_of_fuel: u64,
    /// Runs that did not begin, because all levels of scratch were in use.
    pub no_scratch: u64,
    /// Reads that were not tried.
    pub unread: u64,
    /// Hits of threads without memory of their own.
    pub without_block: u64,
    /// Hits in children that were forked or share the memory.
    pub in_children: u64,
    /// Hits that were counted where nobody can tell a forked child's threads from the process's.
    pub of_anybody: u64,
}

impl Losses {
    /// Those in the memory of a process. `bits`: log2 of the size of a ring; `maps`: where those lie in which detours may have counted by
    /// themselves.
    pub fn of(memory: &ScriptMemory, bits: u32, maps: &[MapPlace]) -> Self {
        let region = memory.region();
        let sum =
            |offset: u32| memory.blocks().map(|block| region.word(block.start + u64::from(offset))).sum();
        let unrun = memory.unrun();
        let counters = || {
            maps.iter().filter_map(|map| match map {
                MapPlace::PerThread(at, MapKind::Words(1)) => Some(u64::from(at + 8)),
                _ => None,
            })
        };
        let counted = |at: u64| memory.children().map(move |block| region.word(block.start + at));
        let overflow = memory.overflow().start;
        Self {
            messages: memory.blocks().map(|block| MessageRing { at: block.start, bits }.lost(region)).sum(),
            out_of_fuel: sum(THREAD_OUT_OF_FUEL),
            // Where bodies have stacks of their own, all levels of a thread's were in use.
            no_scratch: sum(THREAD_NO_SCRATCH) + unrun.crowded,
            unread: sum(THREAD_UNREAD),
            without_block: unrun.without_block,
            in_children: counters().flat_map(counted).fold(unrun.in_children, u64::saturating_add),
            of_anybody: counters().fold(0, |sum, at| sum.saturating_add(region.word(overflow + at))),
        }
    }

    /// Adds those of another one.
    pub fn add(&mut self, more: Self) {
        self.messages += more.messages;
        self.out_of_fuel += more.out_of_fuel;
        self.no_scratch += more.no_scratch;
        self.unread += more.unread;
        self.without_block += more.without_block;
        self.in_children += more.in_children;
        self.of_anybody += more.of_anybody;
    }

    /// Those that there were, but for messages: how many, and what they are.
    pub fn sentences(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let all = [
            (
                self.out_of_fuel,
                "runs of probes were ended, because their loops went round too often or for too long",
            ),
            (
                self.no_scratch,
                "hits did not run their probe, because too many signal handlers had interrupted each other in probes, or had left them for good",
            ),
            (
                self.unread,
                "reads of memory were not tried, because it is not known which thread they were for",
            ),
            (
                self.without_block,
                "hits did not run their probe, because their threads had no memory for it, or in Go too little of a stack",
            ),
            (
                self.in_children,
                "hits were in forked children, and did not run their probe there: with --follow, those run it that have memory of their own, as children of vfork have not",
            ),
            (
                self.of_anybody,
                "of the hits that are counted were on threads without memory of their own, and may have been in forked children",
            ),
        ];
        all.into_iter().filter(|(count, _)| *count > 0)
    }
}
