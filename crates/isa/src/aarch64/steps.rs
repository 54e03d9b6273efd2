//! The steps of a payload: the registers that each takes, and its code.

use super::count::{add_at, add_one, add_one_at_last, latency};
use super::detour::Template;
use super::emit::instruction as a;
use super::frame::register::*;
use super::record::{Values, record};
use crate::Reason;
use crate::detour::*;
use crate::payload::*;

/// The registers that a detour saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Saved {
    /// `TEMPORARY` and `BLOCK`: one counter takes no more where the processor adds to memory.
    Two,
    /// `ADDRESS`, too: one counter elsewhere.
    Three,
    /// From `TEMPORARY` to `STATUS`.
    Four,
    /// The same, in a frame with room for all: calls are followed, and nothing but numbers of them is asked for.
    FourOfEight,
    /// All of them.
    Eight,
}
use Saved::{Eight, Four, FourOfEight, Three, Two};

impl Saved {
    /// Bytes of the frame. The last word of those for two and three is free.
    pub fn size(self) -> i32 {
        match self {
            Two | Three | Four => 32,
            FourOfEight | Eight => 64,
        }
    }

    /// Whether one counter is all that is asked for.
    pub fn counts_once(self) -> bool {
        matches!(self, Two | Three)
    }
}

/// The largest counter that a detour reaches which has no register to spare.
pub(super) const NEAR: u32 = 1 << 24;

/// What a payload takes.
pub fn saved(payload: &Payload, additions: Additions) -> Saved {
    let mut steps = payload.entry.iter();
    let counts_once = matches!((steps.next(), steps.next()), (Some(EntryStep::Count(..NEAR)), None));
    if counts_once && payload.hooks.is_empty() {
        match payload.followed {
            None if additions == Additions::Single => return Two,
            None => return Three,
            Some(followed) if followed.steps.iter().all(|step| matches!(step, ReturnStep::Count(_))) => {
                return FourOfEight;
            }
            Some(_) => {}
        }
    }
    let hooks = payload.hooks.iter().map(|hook| match hook {
        Hook::Translate(_) | Hook::Land { .. } => Eight,
        Hook::Share(_) | Hook::Signal(_) | Hook::Gate | Hook::Replace(_) | Hook::CalledBy(_) => Four,
    });
    let entry = payload.entry.iter().map(|step| match step {
        EntryStep::Count(_) => Four,
        EntryStep::Record { .. } | EntryStep::Fetch { .. } | EntryStep::Run(_) => Eight,
    });
    let followed = payload.followed.map(|_| Eight);
    hooks.chain(entry).chain(followed).fold(Four, Saved::max)
}

impl Template<'_> {
    /// With nothing saved.
    pub fn hook(&mut self, hook: Hook) -> Emitted<()> {
        match hook {
            Hook::Translate(lookup) => self.translate(lookup),
            Hook::Land { code_address } => self.land(code_address),
            Hook::Gate => {
                self.stands_nowhere();
                self.gate()?;
                self.stands(0);
                Ok(())
            }
            Hook::Replace(function) => {
                self.replace(function);
                Ok(())
            }
            // Callers need nothing.
            Hook::CalledBy(_) => Ok(()),
            Hook::Share(_) | Hook::Signal(_) => Err(Reason::NotImplemented),
        }
    }

    /// With the thread's block, or the overflow block, in `BLOCK`; the slot is in `SLOT` where the call is `followed`.
    pub fn entry_step(&mut self, step: EntryStep, followed: bool) -> Emitted<()> {
        match step {
            EntryStep::Count(counter) => {
                self.comment("count");
                match self.saved {
                    Two | Three => add_one_at_last(&mut self.code, counter),
                    // `STATUS` is the thread's entry, and the block is not needed any more.
                    FourOfEight => add_at(&mut self.code, counter, BLOCK),
                    Four | Eight => add_one(&mut self.code, counter),
                }
                Ok(())
            }
            EntryStep::Record { id, arguments } => {
                self.record_entry(id, Values::Arguments(arguments), followed)
            }
            EntryStep::Fetch { id } => self.record_entry(id, Values::Operands(self.operands), followed),
            EntryStep::Run(_) => self.run_at_entry(),
        }
    }

    fn record_entry(&mut self, id: u32, values: Values<'_>, followed: bool) -> Emitted<()> {
        self.comment("record");
        self.code.emit([a::mrs_time(TIME)]);
        if !followed {
            self.code.emit([a::add_immediate(SLOT, SP, self.saved.size() as u32)]);
        }
        record(&mut self.code, self.layout, id, values)
    }

    /// With the block, the slot, the time and that of the entry in their registers.
    pub fn return_step(&mut self, step: ReturnStep) -> Emitted<()> {
        match step {
            ReturnStep::Count(counter) => {
                self.comment("count");
                add_one(&mut self.code, counter);
                Ok(())
            }
            ReturnStep::Record { id } => {
                self.comment("record");
                record(&mut self.code, self.layout, id, Values::Result)
            }
            ReturnStep::Time(histogram) => {
                self.comment("histogram");
                latency(&mut self.code, histogram);
                Ok(())
            }
            ReturnStep::Run(_) => self.run_at_return(),
        }
    }
}
