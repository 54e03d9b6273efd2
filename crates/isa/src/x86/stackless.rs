//! Counting where there is no stack.
//!
//! With two registers that hold nothing a detour finds the thread and counts in its own block. Where the code does not show that there
//! are any, as at the entries of Go's assembly, all threads count in the overflow block, by locked increments: it is mapped once more in reach
//! of the code ([`Layout::near`](crate::Layout::near)), and that takes the flags alone. Where somebody reads those, they are kept in rax.

use super::detour::{Asm, Template};
use super::frame::{Frame, restore_flags};
use super::liveness::Liveness;
use crate::Stack;
use crate::payload::*;
use iced_x86::{Code, Instruction, MemoryOperand, Register, code_asm::*};

/// How a detour counts without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stackless {
    /// In the thread's block.
    Own,
    /// In the overflow block, as it is mapped nearby. Nobody reads the flags.
    Near,
    /// The same, with the flags in rax, which holds nothing.
    NearKeepingFlags,
}

/// How a detour with this payload does without a stack, if it can.
pub(super) fn stackless(payload: &Payload, stack: Stack, live: Liveness) -> Option<Stackless> {
    let counts = payload.entry.iter().all(|step| matches!(step, EntryStep::Count(_)));
    if !counts || !payload.hooks.is_empty() || payload.followed.is_some() {
        return None;
    }
    match Frame::choose(64, stack, payload, live).uses_stack() {
        false => Some(Stackless::Own),
        true if live.flags_dead => Some(Stackless::Near),
        true => live.dead.contains(0).then_some(Stackless::NearKeepingFlags),
    }
}

impl Template<'_> {
    /// Counts in the overflow block.
    pub(super) fn count_nearby(&mut self, keeps_flags: bool) -> Asm {
        if keeps_flags {
            self.asm.a.lahf()?;
            self.asm.a.seto(al)?;
        }
        for step in self.request.payload.entry.iter() {
            let EntryStep::Count(counter) = step else { continue };
            let counter = self.request.layout.near.wrapping_add(counter.into());
            let counter = MemoryOperand::with_base_displ(Register::RIP, counter as i64);
            let mut increment = Instruction::with1(Code::Inc_rm64, counter)?;
            increment.set_has_lock_prefix(true);
            self.asm.a.add_instruction(increment)?;
        }
        if keeps_flags { restore_flags(&mut self.asm.a) } else { Ok(()) }
    }
}
