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
//! | `bodies` | which bodies of a script run at a trap, and what do they see? |
//! | `allowed` | may breakpoints be set in this process? |
//! | `keeper` | who serves, from when to when? |
//! | `load` | may a thread that stands at a hit load a library? |
//! | `leave` | where does a thread go that a removal finds at a landing pad? |
//! | `serve` | what becomes of each stop of a thread? |
//! | `step` | what is known of a thread between the two traps of a step? |
//! | `returns` | where do calls go whose return address was replaced? |
//! | `numbers` | where are hits counted and recorded? |

mod allowed;
mod bodies;
mod keeper;
mod leave;
mod load;
mod numbers;
mod returns;
mod serve;
mod step;

pub(crate) use bodies::TrapBodies;
pub use bodies::{Interpreter, TrapHit, TrapMemory};
pub use keeper::{Serving, arm_serving};

use trapless_isa::{Displaced, EntryStep, Hook, Isa, Machine, Mechanism, Operand, Payload, Slot};

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
    /// Address of the routine by which a thread that comes here loads a library, if one is to.
    pub loader: Option<u64>,
    /// What is done there. Hooks are for detours: the keeper counts in a block of its own, whoever hits.
    pub payload: Payload,
    /// What is recorded of a USDT probe.
    pub operands: Vec<Operand>,
    /// What [`EntryStep::Run`] and [`ReturnStep::Run`](trapless_isa::ReturnStep::Run) are here.
    pub bodies: TrapBodies,
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
    pub fn only_counts(&self) -> Option<(u64, Vec<u32>)> {
        let Payload { hooks, entry, followed: None } = self.payload else { return None };
        if self.unwinds || self.loader.is_some() || !hooks.iter().all(|hook| matches!(hook, Hook::Share(_))) {
            return None;
        }
        let counters = entry.iter().map(|step| match step {
            EntryStep::Count(counter) => Some(counter),
            EntryStep::Record { .. } | EntryStep::Fetch { .. } | EntryStep::Run(_) => None,
        });
        let counters = counters.collect::<Option<Vec<u32>>>()?;
        let leads_to = match self.mechanism {
            Mechanism::Boost => Some(self.slot_address),
            Mechanism::Emulate => self.isa().leads_to(&self.original, self.address),
            Mechanism::Step | Mechanism::Jump | Mechanism::Short => None,
        };
        Some((leads_to?, counters))
    }

    /// Address behind the copy of the instruction in the slot.
    pub fn end_of_copy(&self) -> u64 {
        self.slot_address + u64::from(self.slot.copy)
    }

    /// Whether a thread whose instruction pointer is where the breakpoint would leave it has met the breakpoint.
    pub fn is_unmistakable(&self) -> bool {
        self.isa().is_unmistakable(self.instruction())
    }

    /// Whether the instruction saves the flags, in which a single step leaves its own.
    pub fn saves_step(&self) -> bool {
        self.isa().saves_step(self.instruction())
    }

    /// The instruction set.
    pub fn isa(&self) -> &'static dyn Isa {
        self.machine.isa()
    }

    /// Bytes of an address.
    pub fn word(&self) -> u64 {
        u64::from(self.isa().facts().word)
    }
}
