//! The registers that the entry part of a detour works with, and how it saves what it may not lose.

use super::{
    detour::Asm,
    emit::{GPR32, GPR64, number::*},
    liveness::Liveness,
};
use crate::detour::*;
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// Bytes below the stack pointer that belong to the interrupted code (System V ABI for x86-64, 3.2.2).
///
/// In 32-bit mode there are none: what is below esp, the kernel overwrites with the next signal's frame.
pub(super) const RED_ZONE: i32 = 128;

/// Registers to use as scratch, best first, those that 32-bit mode does not have among them. r10 and r11 are left to
/// the runtime's routines, rsp is the stack.
const SCRATCH: [usize; 13] = [RCX, RDX, RSI, RDI, R8, R9, RAX, 3, 5, 12, 13, 14, 15];

/// Scratch registers by role, and what is saved for them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    /// 32 or 64.
    bits: u32,
    /// The thread's entry of the thread table, later its return table.
    pub entry: usize,
    /// The thread pointer, then the thread's block, later the stack slot.
    pub block: usize,
    /// A ring record or a return instance.
    pub x: usize,
    /// A ring record's position.
    pub y: usize,
    /// Pushed registers, in order.
    saved: Vec<usize>,
    keep_flags: bool,
    /// rax is needed while it would hold the flags.
    push_flags: bool,
}

impl Actions {
    /// Whether the entry reads the clock.
    fn reads_clock(&self) -> bool {
        self.entry.record.is_some() || self.ret.is_some_and(|r| r.times())
    }
}

impl ReturnActions {
    /// Whether the return instance must hold the time of the entry.
    pub(crate) fn times(&self) -> bool {
        self.latency.is_some() || self.record.is_some()
    }
}

impl Frame {
    /// Chooses dead registers first; what is not dead is saved.
    pub fn choose(bits: u32, actions: &Actions, live: Liveness) -> Self {
        let dead = |register: usize| live.dead.0 & (1 << register) != 0;
        let records = actions.entry.record.is_some();
        let clock = actions.reads_clock();
        // rdtsc takes rax and rdx. Without a record, what they held before the clock is read is not needed after.
        let fixed: &[usize] = if clock && !records { &[RDX, RAX] } else { &[] };
        let free = |r: &usize| {
            let taken = fixed.contains(r) || records && [RAX, RDX].contains(r);
            *r < bits as usize / 4 && !taken && (*r != RAX || live.flags_dead)
        };
        let (mut first, second): (Vec<_>, Vec<_>) =
            SCRATCH.iter().copied().filter(free).partition(|&r| dead(r));
        first.extend(second);
        let roles: Vec<usize> = fixed.iter().copied().chain(first).collect();
        let [entry, block, x, y] = [roles[0], roles[1], roles[2], roles[3]];
        let used = match (records, actions.ret) {
            (true, _) => alloc::vec![RAX, RDX, entry, block, x, y],
            (false, Some(_)) => alloc::vec![entry, block, x],
            (false, None) => alloc::vec![entry, block],
        };
        let keep_flags = !live.flags_dead;
        let push_flags = keep_flags && used.contains(&RAX);
        let mut saved: Vec<_> = used.into_iter().filter(|&r| !dead(r)).collect();
        if keep_flags && !dead(RAX) && !saved.contains(&RAX) {
            saved.push(RAX);
        }
        Self { bits, entry, block, x, y, saved, keep_flags, push_flags }
    }

    /// Whether anything is pushed.
    fn uses_stack(&self) -> bool {
        !self.saved.is_empty() || self.push_flags
    }

    /// How far the stack pointer is below where it was when the detour was entered.
    pub fn depth(&self) -> i32 {
        if !self.uses_stack() {
            return 0;
        }
        self.red_zone() + self.word() * (self.saved.len() as i32 + i32::from(self.push_flags))
    }

    fn word(&self) -> i32 {
        self.bits as i32 / 8
    }

    fn red_zone(&self) -> i32 {
        if self.bits == 64 { RED_ZONE } else { 0 }
    }

    fn push(&self, a: &mut CodeAssembler, register: usize) -> Asm {
        if self.bits == 64 { a.push(GPR64[register]) } else { a.push(GPR32[register]) }
    }

    fn pop(&self, a: &mut CodeAssembler, register: usize) -> Asm {
        if self.bits == 64 { a.pop(GPR64[register]) } else { a.pop(GPR32[register]) }
    }

    /// Saves registers and flags.
    pub fn save(&self, a: &mut CodeAssembler) -> Asm {
        if self.uses_stack() {
            self.move_over_red_zone(a, -RED_ZONE)?;
        }
        for &register in &self.saved {
            self.push(a, register)?;
        }
        if self.keep_flags {
            a.lahf()?;
            a.seto(al)?;
        }
        if self.push_flags {
            self.push(a, RAX)?;
        }
        Ok(())
    }

    /// Restores them. Every way out of the entry part has a copy of this.
    pub fn restore(&self, a: &mut CodeAssembler) -> Asm {
        if self.push_flags {
            self.pop(a, RAX)?;
        }
        if self.keep_flags {
            restore_flags(a)?;
        }
        for &register in self.saved.iter().rev() {
            self.pop(a, register)?;
        }
        if self.uses_stack() {
            self.move_over_red_zone(a, RED_ZONE)?;
        }
        Ok(())
    }

    /// Where the value is that `register` had when the detour was entered, if it was pushed. 64-bit mode only: the
    /// arguments of 32-bit functions are on the stack.
    pub fn saved_place(&self, register: usize) -> Option<AsmMemoryOperand> {
        let index = self.saved.iter().position(|&r| r == register)? as i32;
        Some(qword_ptr(rsp + (self.depth() - RED_ZONE - 8 * (index + 1))))
    }

    /// Before a push where nothing was saved.
    pub fn skip_red_zone(&self, a: &mut CodeAssembler) -> Asm {
        if self.uses_stack() { Ok(()) } else { self.move_over_red_zone(a, -RED_ZONE) }
    }

    /// The inverse. Keeps the flags.
    pub fn unskip_red_zone(&self, a: &mut CodeAssembler) -> Asm {
        if self.uses_stack() { Ok(()) } else { self.move_over_red_zone(a, RED_ZONE) }
    }

    fn move_over_red_zone(&self, a: &mut CodeAssembler, by: i32) -> Asm {
        if self.bits == 64 { a.lea(rsp, qword_ptr(rsp + by)) } else { Ok(()) }
    }
}

/// Flags from rax as `lahf` and `seto al` left them: OF by overflowing 127 + OF, the others from ah.
pub(super) fn restore_flags(a: &mut CodeAssembler) -> Asm {
    a.add(al, 127)?;
    a.sahf()
}
