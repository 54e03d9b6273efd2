//! Probes that trap, and the tracer that serves them.
//!
//! The byte at the site is a breakpoint. What it hides runs in one of three ways, chosen when the site is planned, so that a hit
//! decides nothing:
//!
//! | mechanism | after the trap | traps per hit |
//! |---|---|---|
//! | boost | the thread goes on in its slot, which jumps back | 1 |
//! | emulate | the instruction's effect is computed on the saved registers | 1 |
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
//! | `thread` | how does emulation see a stopped thread? |
//! | `returns` | where do calls go whose return address was replaced? |
//! | `numbers` | where are hits counted and recorded? |

mod allowed;
mod keeper;
mod leave;
mod numbers;
mod returns;
mod serve;
mod thread;

pub use keeper::{Serving, arm_serving};

use trapless_isa::{Actions, Displaced, Machine, Mechanism, Slot};
use trapless_wire::JournalEntry;

/// A site that traps.
#[derive(Clone, Debug)]
pub(crate) struct TrapSite {
    /// Address of the breakpoint.
    pub address: u64,
    /// The instruction it hides.
    pub displaced: Displaced,
    /// Its bytes.
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
    /// Instruction set.
    pub machine: Machine,
}

impl TrapSite {
    /// Whether the instruction saves the flags, in which a single step leaves its own.
    pub fn pushes_flags(&self) -> bool {
        let prefixes = self.original.iter().take_while(|b| matches!(b, 0x66 | 0x40..=0x4f)).count();
        self.machine == Machine::X86_64 && self.original.get(prefixes) == Some(&0x9c)
            || self.machine == Machine::I386 && self.original.last() == Some(&0x9c)
    }

    /// Bytes of an address.
    pub fn word(&self) -> u64 {
        if self.machine == Machine::I386 { 4 } else { 8 }
    }
}

/// The mechanism as the journal writes it.
pub(crate) fn number(mechanism: Mechanism) -> u8 {
    match mechanism {
        Mechanism::Jump => 0,
        Mechanism::Step => 1,
        Mechanism::Emulate => 2,
        Mechanism::Boost => 3,
    }
}

/// The mechanism of the probe that a journal entry describes.
pub fn mechanism_of(entry: &JournalEntry) -> Mechanism {
    match entry.trap {
        1 => Mechanism::Step,
        2 => Mechanism::Emulate,
        3 => Mechanism::Boost,
        _ => Mechanism::Jump,
    }
}
