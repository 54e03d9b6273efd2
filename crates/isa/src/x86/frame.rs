//! The registers that the entry part of a detour works with, and how it saves what it may not lose.

use super::{
    bodies,
    detour::Asm,
    emit::{GPR32, GPR64, number::*},
    frames::KEPT_64,
    goroutine::GOROUTINE,
    liveness::Liveness,
};
use crate::Stack;
use crate::body::{Extra, Takes};
use crate::detour::{BodyStacks, DetourRequest};
use crate::payload::*;
use alloc::vec::Vec;
use iced_x86::code_asm::*;

/// Bytes below the stack pointer that belong to the interrupted code (System V ABI for x86-64, 3.2.2).
///
/// In 32-bit mode there are none: what is below esp, the kernel overwrites with the next signal's frame.
pub(super) const RED_ZONE: i32 = 128;

/// The same of code with such a `stack`: Go's has none, and pushes there itself what it stops.
pub(super) fn red_zone(bits: u32, stack: Stack) -> i32 {
    if bits == 64 && stack != Stack::AskedInGo { RED_ZONE } else { 0 }
}

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
    /// Bytes below the stack pointer that are the program's.
    red_zone: i32,
    keep_flags: bool,
    /// rax is needed while it would hold the flags.
    push_flags: bool,
}

/// Which stacks a detour works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stacks {
    /// What it may use of the program's.
    pub detour: Stack,
    /// What it calls bodies on.
    pub bodies: BodyStacks,
}

impl Stacks {
    /// Those of a detour.
    pub fn of(request: &DetourRequest<'_>) -> Self {
        Self { detour: request.stack, bodies: request.layout.body_stacks() }
    }

    /// The program's, of a detour that calls no bodies.
    pub fn without_bodies(detour: Stack) -> Self {
        Self { detour, bodies: BodyStacks::Programs }
    }
}

/// When the entry part reads the clock, which takes rax and rdx.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Clock {
    Never,
    /// When what the first roles held is not needed any more, so these two may play them.
    Last,
    /// While every role is played.
    Aside,
}

/// What a part of the entry works with besides the flags: so many of the roles, in their order, and the clock.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    pub roles: usize,
    pub clock: Clock,
}

impl Scratch {
    /// What finding the thread and its block takes.
    pub const THREAD: Self = Self { roles: 2, clock: Clock::Never };

    /// What a payload takes at the entry.
    fn of_all(payload: &Payload) -> Self {
        let following = payload.followed.map(|followed| Self {
            roles: 3,
            clock: if followed.needs().entered { Clock::Last } else { Clock::Never },
        });
        let all = payload.entry.iter().map(Self::of).chain(following);
        all.fold(Self::THREAD, |one, other| Self {
            roles: one.roles.max(other.roles),
            clock: one.clock.max(other.clock),
        })
    }
}

impl Frame {
    /// Where bodies are called: their arguments stay where they are, and the block is where they look for it.
    fn with_bodies(stacks: Stacks, payload: &Payload, live: Liveness, takes: Takes) -> Self {
        let by = payload.followed.map(|followed| followed.way.by());
        let is_kept = |register: usize| by == Some(Identity::Goroutine) && register == GOROUTINE;
        // What all registers were, is told of dead ones, too.
        let all = takes.has(Extra::Registers);
        // Where a call is skipped, its caller gets what the function would have put back, and what that leaves alone.
        let callers = if takes.has(Extra::Changes) { KEPT_64 | 1 << RAX } else { 0 };
        let free = live.dead.0 & !callers;
        let dead = |register: usize| !all && !is_kept(register) && free & (1 << register) != 0;
        let Scratch { roles: count, clock } = Scratch::of_all(payload);
        let clocked = [RAX, RDX].into_iter().filter(|_| clock != Clock::Never);
        let mut used: Vec<usize> = bodies::lost_with(takes).chain(clocked).collect();
        used.sort_unstable();
        used.dedup();
        let flags_in_rax = !live.flags_dead;
        let first = (!flags_in_rax && !used.contains(&RAX)).then_some(RAX).into_iter();
        let free = first.chain(bodies::ROLES).filter(|&register| !is_kept(register));
        let (mut roles, second): (Vec<_>, Vec<_>) = free.partition(|&register| dead(register));
        roles.extend(second);
        let [entry, x, y] = [roles[0], roles[1], roles[2]];
        used.extend([R15, entry]);
        // The first of them holds the program's stack pointer while bodies run elsewhere.
        let more = count.saturating_sub(2).max(usize::from(stacks.bodies == BodyStacks::Own));
        used.extend([x, y].into_iter().take(more));
        let push_flags = flags_in_rax && used.contains(&RAX);
        let mut saved: Vec<_> = used.into_iter().filter(|&register| !dead(register)).collect();
        if flags_in_rax && !dead(RAX) && !saved.contains(&RAX) {
            saved.push(RAX);
        }
        let red_zone = red_zone(64, stacks.detour);
        Self { bits: 64, entry, block: R15, x, y, saved, red_zone, keep_flags: flags_in_rax, push_flags }
    }

    /// Chooses dead registers first; what is not dead is saved.
    pub fn choose(bits: u32, stacks: Stacks, payload: &Payload, live: Liveness) -> Self {
        if let (Some(takes), 64) = (payload.runs_at_entry(), bits) {
            return Self::with_bodies(stacks, payload, live, takes);
        }
        // What names a goroutine's call is read while others are in use, and liveness knows nothing of that.
        let by = payload.followed.map(|followed| followed.way.by());
        let kept = if by == Some(Identity::Goroutine) { 1 << GOROUTINE } else { 0 };
        let dead = |register: usize| live.dead.0 & !kept & (1 << register) != 0;
        let Scratch { roles: count, clock } = Scratch::of_all(payload);
        let (fixed, aside): (&[usize], &[usize]) = match clock {
            Clock::Never => (&[], &[]),
            Clock::Last => (&[RDX, RAX], &[]),
            Clock::Aside => (&[], &[RAX, RDX]),
        };
        let free = |r: &usize| {
            let taken = fixed.contains(r) || aside.contains(r);
            *r < bits as usize / 4 && !taken && (*r != RAX || live.flags_dead)
        };
        let (mut first, second): (Vec<_>, Vec<_>) =
            SCRATCH.iter().copied().filter(free).partition(|&r| dead(r));
        first.extend(second);
        let roles: Vec<usize> = fixed.iter().copied().chain(first).collect();
        let [entry, block, x, y] = [roles[0], roles[1], roles[2], roles[3]];
        let used = [aside, &roles[..count]].concat();
        let keep_flags = !live.flags_dead;
        let push_flags = keep_flags && used.contains(&RAX);
        let mut saved: Vec<_> = used.into_iter().filter(|&r| !dead(r)).collect();
        if keep_flags && !dead(RAX) && !saved.contains(&RAX) {
            saved.push(RAX);
        }
        let red_zone = red_zone(bits, stacks.detour);
        Self { bits, entry, block, x, y, saved, red_zone, keep_flags, push_flags }
    }

    /// Whether anything is pushed.
    pub fn uses_stack(&self) -> bool {
        !self.saved.is_empty() || self.push_flags
    }

    /// How far the stack pointer is below where it was when the detour was entered.
    pub fn depth(&self) -> i32 {
        if !self.uses_stack() {
            return 0;
        }
        self.red_zone + self.word() * (self.saved.len() as i32 + i32::from(self.push_flags))
    }

    fn word(&self) -> i32 {
        self.bits as i32 / 8
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
            self.move_over_red_zone(a, -self.red_zone)?;
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
            self.move_over_red_zone(a, self.red_zone)?;
        }
        Ok(())
    }

    /// Where the value is that `register` had when the detour was entered, if it was pushed. In 64-bit mode.
    pub fn saved_place(&self, register: usize) -> Option<AsmMemoryOperand> {
        Some(qword_ptr(rsp + self.saved_at(register)?))
    }

    /// How far from the stack pointer that is, in both modes.
    pub fn saved_at(&self, register: usize) -> Option<i32> {
        let index = self.saved.iter().position(|&r| r == register)? as i32;
        Some(self.depth() - self.red_zone - self.word() * (index + 1))
    }

    /// Before a push where nothing was saved.
    pub fn skip_red_zone(&self, a: &mut CodeAssembler) -> Asm {
        if self.uses_stack() { Ok(()) } else { self.move_over_red_zone(a, -self.red_zone) }
    }

    /// The inverse. Keeps the flags.
    pub fn unskip_red_zone(&self, a: &mut CodeAssembler) -> Asm {
        if self.uses_stack() { Ok(()) } else { self.move_over_red_zone(a, self.red_zone) }
    }

    fn move_over_red_zone(&self, a: &mut CodeAssembler, by: i32) -> Asm {
        if by == 0 { Ok(()) } else { a.lea(rsp, qword_ptr(rsp + by)) }
    }
}

/// Flags from rax as `lahf` and `seto al` left them: OF by overflowing 127 + OF, the others from ah.
pub(super) fn restore_flags(a: &mut CodeAssembler) -> Asm {
    a.add(al, 127)?;
    a.sahf()
}
