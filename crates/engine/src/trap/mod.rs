//! Probes that trap, and the tracer that serves them.
//!
//! The byte at the site is a breakpoint. What it hides runs in one of three ways, chosen when the site is planned, so that a hit
//! decides nothing:
//!
//! | mechanism | after the trap | traps per hit |
//! |---|---|---|
//! | boost | the thread goes on in its slot, which jumps back | 1 |
//! | emulate | its effect is computed on the saved registers, and that of the rest of a prologue with it | 1 |
//! | step | the thread takes one step in the slot and is put back | 2 |
//!
//! A breakpoint kills a process that has no tracer, so a keeper stays attached from before the first one is written until after the
//! last one is gone, whatever becomes of the tool ([`arm_serving`]). It counts into a block of the shared region like a thread
//! of the target, so the tool reads all numbers in one way.
//!
//! | file | question it answers |
//! |---|---|
//! | `allowed` | may breakpoints be set in this process? |
//! | `keeper` | who serves, from when to when? |
//! | `leave` | where does a thread go that a removal finds at a landing pad? |
//! | `serve` | what becomes of each stop of a thread? |
//! | `step` | what is known of a thread between the two traps of a step? |
//! | `thread` | how does emulation see a stopped thread? |
//! | `returns` | where do calls go whose return address was replaced? |
//! | `numbers` | where are hits counted and recorded? |

mod allowed;
mod keeper;
mod leave;
mod numbers;
mod returns;
mod serve;
mod step;
mod thread;

pub use keeper::{Serving, arm_serving};

use trapless_isa::{Actions, Displaced, Machine, Mechanism, Slot, x86};

/// A site that traps.
#[derive(Clone, Debug)]
pub(crate) struct TrapSite {
    /// Address of the breakpoint.
    pub address: u64,
    /// The instruction it hides.
    pub displaced: Displaced,
    /// Its bytes, and those of the instructions that are emulated with it.
    pub original: Vec<u8>,
    /// What is done after the trap.
    pub mechanism: Mechanism,
    /// Where the slot is.
    pub slot_address: u64,
    /// The slot. Emulated sites have one, too, for the access to memory that turns out to fault.
    pub slot: Slot,
    /// Address of a breakpoint that followed calls return to.
    pub pad: u64,
    /// What to count and record.
    pub actions: Actions,
    /// Whether an unwinder starts here, which must find real return addresses.
    pub unwinds: bool,
    /// Instruction set.
    pub machine: Machine,
}

impl TrapSite {
    /// Bytes of the instruction that the breakpoint hides.
    pub fn instruction(&self) -> &[u8] {
        &self.original[..usize::from(self.displaced.length)]
    }

    /// Where a hit leads, and what it counts, if that is all it does: then the thread's registers need not even be read.
    pub fn only_counts(&self) -> Option<(u64, Option<u32>)> {
        let Actions { entry, ret: None, lookup: None } = self.actions else { return None };
        if self.unwinds {
            return None;
        }
        let leads_to = match self.mechanism {
            Mechanism::Boost => Some(self.slot_address),
            Mechanism::Emulate => x86::leads_to(self.bits(), &self.original, self.address),
            Mechanism::Step | Mechanism::Jump => None,
        };
        if entry.record.is_some() { None } else { Some((leads_to?, entry.hits)) }
    }

    /// Whether a thread whose instruction pointer is one behind the site's address has met the breakpoint: it hides an
    /// instruction of several bytes, which cannot be entered at its second one as one with a lock prefix is.
    pub fn is_unmistakable(&self) -> bool {
        const LOCK: u8 = 0xf0;
        self.displaced.length > 1 && self.original.first() != Some(&LOCK)
    }

    /// 32 or 64.
    pub fn bits(&self) -> u32 {
        if self.machine == Machine::I386 { 32 } else { 64 }
    }

    /// Whether the instruction saves the flags, in which a single step leaves its own.
    pub fn pushes_flags(&self) -> bool {
        let instruction = self.instruction();
        let prefixes = instruction.iter().take_while(|b| matches!(b, 0x66 | 0x40..=0x4f)).count();
        self.machine == Machine::X86_64 && instruction.get(prefixes) == Some(&0x9c)
            || self.machine == Machine::I386 && instruction.last() == Some(&0x9c)
    }

    /// Bytes of an address.
    pub fn word(&self) -> u64 {
        u64::from(self.bits() / 8)
    }
}
