//! Counting where there is no stack.
//!
//! With two registers that hold nothing a detour finds the thread and counts in its own block. Where the code does not show that there
//! are any, as at the entries of Go's assembly, all threads count in the overflow block, by locked increments: it is mapped once more in reach
//! of the code ([`Layout::near`](crate::Layout::near)), and that takes the flags alone. Where somebody reads those, they are kept in rax, and
//! what is in there is kept in xmm15: code of Go's compiler has nothing but zeros in that one, or nothing that anybody reads
//! (`src/cmd/compile/abi-internal.md` of Go).

use super::detour::{Asm, Template};
use super::frame::{Frame, Stacks, restore_flags};
use super::liveness::Liveness;
use super::sharing::starts_threads;
use crate::Stack;
use crate::payload::*;
use iced_x86::{Code, Instruction, MemoryOperand, Register, code_asm::*};

/// How a detour counts without a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stackless {
    /// In the thread's block.
    Own,
    /// In the overflow block, as it is mapped nearby.
    Near(Flags),
}

/// What becomes of the flags meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flags {
    /// Nobody reads them.
    Dead,
    /// They are in rax, which holds nothing.
    InRax,
    /// They are in rax, and what that held in xmm15, which is all zeros afterwards.
    InRaxOfGo,
}

/// How a detour with this payload does without a stack, if it can: in `code`, a function's.
pub(super) fn stackless(payload: &Payload, stack: Stack, code: &[u8], live: Liveness) -> Option<Stackless> {
    let counts = payload.entry.iter().all(|step| matches!(step, EntryStep::Count(_)));
    if !counts || !payload.hooks.is_empty() || payload.followed.is_some() {
        return None;
    }
    let has_own = || stack == Stack::NoneInGo || !starts_threads(code);
    if !Frame::choose(64, Stacks::without_bodies(stack), payload, live).uses_stack() && has_own() {
        return Some(Stackless::Own);
    }
    let flags = match stack {
        _ if live.flags_dead => Flags::Dead,
        _ if live.dead.contains(0) => Flags::InRax,
        Stack::NoneInGo => Flags::InRaxOfGo,
        Stack::None | Stack::AskedInGo | Stack::Enough => return None,
    };
    Some(Stackless::Near(flags))
}

impl Template<'_> {
    /// Counts in the overflow block.
    pub(super) fn count_nearby(&mut self, flags: Flags) -> Asm {
        let a = &mut self.asm.a;
        if flags == Flags::InRaxOfGo {
            a.movq(xmm15, rax)?;
        }
        if flags != Flags::Dead {
            a.lahf()?;
            a.seto(al)?;
        }
        for step in self.request.payload.entry.iter() {
            let EntryStep::Count(counter) = step else { continue };
            let counter = self.request.layout.near.wrapping_add(counter.into());
            let counter = MemoryOperand::with_base_displ(Register::RIP, counter as i64);
            let mut increment = Instruction::with1(Code::Inc_rm64, counter)?;
            increment.set_has_lock_prefix(true);
            a.add_instruction(increment)?;
        }
        if flags != Flags::Dead {
            restore_flags(a)?;
        }
        if flags == Flags::InRaxOfGo {
            a.movq(rax, xmm15)?;
            a.xorps(xmm15, xmm15)?;
        }
        Ok(())
    }
}
