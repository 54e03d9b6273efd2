//! The steps of a payload: the registers that each takes, and its code.

use super::count::{add_one, latency};
use super::detour::Template;
use super::emit::instruction as a;
use super::frame::register::*;
use super::record::{Values, record};
use crate::Reason;
use crate::detour::*;
use crate::payload::*;

/// Bytes of the frame where four registers do, from `TEMPORARY` to `STATUS`.
const FOUR: i32 = 32;
/// The same for all eight.
const EIGHT: i32 = 64;

/// Bytes of the frame that a payload takes.
pub fn frame_size(payload: &Payload) -> i32 {
    let hooks = payload.hooks.iter().map(|hook| match hook {
        Hook::Translate(_) | Hook::Land { .. } => EIGHT,
        Hook::Share(_) | Hook::Signal(_) | Hook::Gate => FOUR,
    });
    let entry = payload.entry.iter().map(|step| match step {
        EntryStep::Count(_) => FOUR,
        EntryStep::Record { .. } | EntryStep::Fetch { .. } | EntryStep::Run(_) => EIGHT,
    });
    let followed = payload.followed.map(|_| EIGHT);
    hooks.chain(entry).chain(followed).fold(FOUR, i32::max)
}

impl Template<'_> {
    /// With nothing saved.
    pub fn hook(&mut self, hook: Hook) -> Emitted<()> {
        match hook {
            Hook::Translate(lookup) => self.translate(lookup),
            Hook::Land { code_address } => self.land(code_address),
            Hook::Share(_) | Hook::Signal(_) | Hook::Gate => Err(Reason::NotImplemented),
        }
    }

    /// With the thread's block, or the overflow block, in `BLOCK`; the slot is in `SLOT` where the call is `followed`.
    pub fn entry_step(&mut self, step: EntryStep, followed: bool) -> Emitted<()> {
        match step {
            EntryStep::Count(counter) => {
                self.comment("count");
                add_one(&mut self.code, counter);
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
            self.code.emit([a::add_immediate(SLOT, SP, self.frame as u32)]);
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
