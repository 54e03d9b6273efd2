//! x86, in 64-bit and in 32-bit mode.
//!
//! Instructions are decoded by iced-x86. What to do with them is decided here: bytes are moved by editing them
//! (`relocate`), never by encoding them again, so that prefixes and redundant encodings survive.
//!
//! Beside the files that every ISA has:
//!
//! | file | question it answers |
//! |---|---|
//! | `facts` | what is always so? |
//! | `movable` | what does moving this instruction take, and why must it stay? |
//! | `computed` | where does code compute a place to jump to? |
//! | `tables` | where do a function's branches and jump tables lead? |
//! | `returns` | may this function carry a call-paired return probe? by which instructions is it left? |
//! | `frame`, `follow`, `runtime`, `lower` | how does a detour save registers, follow a call to its return, what do all share, and how are shared routines written? |
//! | `exits` | how is a call noted, and what is done where it is left? |
//! | `goroutine` | is Go's goroutine in its register all through a function? |
//! | `pieces` | which parts of a detour are copies of the program's instructions? |
//! | `frames` | where does the program stand at each instruction of a detour? |
//! | `template` | how are many detours made without encoding each? |
//! | `inside` | how is a handler of the program's own called? |
//! | `landing` | where has an unwinder's context its code address? |
//! | `room` | where does a short jump find room for the jump to a detour? |
//! | `turns` | how do jumps of a function back to its entry go past the probe there? |
//! | `sharing` | where does code make children that share its memory, and how are they told apart? |
//! | `narrow` | how do detours do all that in 32-bit programs? |
//! | `liveness` | which registers and flags does nobody read any more? |

mod bodies;
mod computed;
mod decode;
mod detour;
mod emit;
mod emulate;
mod exits;
mod facts;
mod faults;
mod follow;
mod frame;
mod frames;
mod gate;
mod goroutine;
mod inside;
mod landing;
mod liveness;
mod lower;
mod movable;
mod narrow;
mod offsets;
mod pieces;
mod prologue;
mod references;
mod relocate;
mod returns;
mod room;
mod runtime;
mod sharing;
mod signals;
mod skim;
mod slot;
mod stackless;
mod steps;
mod syscalls;
pub(crate) mod system_call;
mod tables;
mod template;
#[cfg(test)]
mod tests;
mod turns;
mod verdict;

pub use emulate::emulate;
pub(crate) use liveness::spare;
pub use liveness::{Liveness, RegisterSet, liveness};
pub use relocate::{Relocated, relocate};
pub(crate) use template::{Shape, Sketch, Template};

use crate::*;
use alloc::{string::String, vec::Vec};
use core::ops::Range;

/// Length of the `jmp rel32` that a patch writes.
pub const JUMP_LENGTH: u8 = 5;

/// Length of the `jmp rel8` that leads to room for the other.
const SHORT_JUMP_LENGTH: u8 = 2;

/// x86 in one of its modes.
pub struct X86 {
    bits: u32,
}

/// 64-bit mode.
pub static X86_64: X86 = X86 { bits: 64 };
/// 32-bit protected mode.
pub static I386: X86 = X86 { bits: 32 };

impl Isa for X86 {
    fn machine(&self) -> Machine {
        if self.bits == 64 { Machine::X86_64 } else { Machine::I386 }
    }

    fn facts(&self) -> &'static Facts {
        if self.bits == 64 { &facts::X86_64 } else { &facts::I386 }
    }

    fn decode(&self, code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
        decode::decode(self.bits, code, address)
    }

    fn flows(&self, code: &[u8], address: u64, see: &mut dyn FnMut(Flow)) {
        decode::flows(self.bits, code, address, see);
    }

    fn disassemble(&self, code: &[u8], address: u64) -> String {
        decode::disassemble(self.bits, code, address)
    }

    fn sweep(&self, code: &[u8], address: u64, data: &dyn ReadOnlyData, found: &mut Swept) {
        tables::sweep(self.bits, code, address, data, None, found);
    }

    fn sweep_pointed_into(
        &self,
        code: &[u8],
        address: u64,
        pointers: &[u64],
        data: &dyn ReadOnlyData,
        found: &mut Swept,
    ) {
        tables::sweep(self.bits, code, address, data, Some(pointers), found);
    }

    fn verdict(&self, site: &Site<'_>) -> Ladder {
        verdict::verdict(self.bits, site)
    }

    fn rung(&self, site: &Site<'_>, mechanism: Mechanism) -> Result<Displaced, Reason> {
        verdict::rung(self.bits, site, mechanism)
    }

    fn through(&self, site: &Site<'_>, exit: u64) -> Result<Displaced, Reason> {
        if self.bits == 64 { verdict::through(site, exit) } else { Err(Reason::NotImplemented) }
    }

    fn return_verdict(&self, site: &Site<'_>) -> Result<(), Reason> {
        returns::return_verdict(self.bits, site)
    }

    fn return_kept_at(&self, _site: &Site<'_>) -> Option<i32> {
        Some(0)
    }

    fn exits(
        &self,
        site: &Site<'_>,
        start: u64,
        depth: Option<i64>,
        is_resumed: bool,
    ) -> Result<Vec<Exit>, Reason> {
        match self.bits {
            64 => returns::exits(site, start, depth, is_resumed),
            _ => Err(Reason::NotImplemented),
        }
    }

    fn may_fault(&self, code: &[u8], address: u64) -> Faults {
        faults::faults(self.bits, code, address)
    }

    fn stack_check(&self, site: &Site<'_>) -> Option<StackCheck> {
        let check = crate::stack_check::find(self, site)?;
        goroutine::compares(self.bits, site, &check).then_some(check)
    }

    fn references(&self, code: &[u8], address: u64) -> Vec<(u64, Reference)> {
        if self.bits == 64 { references::references(code, address) } else { Vec::new() }
    }

    fn keeps_goroutine(&self, site: &Site<'_>, check: Option<&StackCheck>) -> bool {
        self.bits == 64 && goroutine::is_kept(site, check)
    }

    fn runs_when_asked(&self, code: &[u8], address: u64) -> bool {
        self.bits == 64 && goroutine::reads_nothing_free(code, address)
    }

    fn flags_are_unread(&self, site: &Site<'_>, by_go: bool) -> bool {
        liveness::flags_are_unread(self.bits, site, by_go)
    }

    fn counts_without_stack(&self, site: &Site<'_>, displaced: &Displaced, stack: Stack) -> bool {
        self.bits == 64 && detour::counts_without_stack(site, displaced, stack).is_some()
    }

    fn loader(&self, loader: &crate::loader::Loader<'_>, at: u64) -> Result<Vec<u8>, Reason> {
        if self.replaces() { inside::loader::make(loader, at) } else { Err(Reason::NoReplacement) }
    }

    fn replaces(&self) -> bool {
        self.bits == 64
    }

    fn inside(&self) -> Option<&'static dyn crate::inside::Inside> {
        if self.bits == 64 { Some(&inside::Wide) } else { None }
    }

    fn sharing_candidates(&self, code: &[u8]) -> Vec<usize> {
        sharing::candidates(self.bits, code)
    }

    fn sharing_calls(&self, code: &[u8], start: u64, at: u64) -> SharingCalls {
        sharing::sharing_calls(self.bits, code, start, at)
    }

    fn shows_handlers_the_program(&self) -> bool {
        self.bits == 64
    }

    fn action_candidates(&self, code: &[u8]) -> Vec<usize> {
        if self.bits == 64 { signals::action_candidates(code) } else { Vec::new() }
    }

    fn action_places(&self, code: &[u8], start: u64, at: u64) -> Option<(u64, u64)> {
        if self.bits == 64 { signals::action_places(code, start, at) } else { None }
    }

    fn handlers_return_to(&self, code: &[u8]) -> Vec<usize> {
        if self.bits == 64 { signals::returns(code) } else { Vec::new() }
    }

    fn body_frames(&self, code: &[u8]) -> Vec<crate::frames::Point> {
        if self.bits == 64 { frames::of_body(code) } else { Vec::new() }
    }

    fn runs_bodies(&self) -> bool {
        self.bits == 64
    }

    fn signal_code(&self, layout: &Layout) -> Result<Runtime, Reason> {
        if self.bits == 64 { signals::signal_code(layout) } else { Err(Reason::NotImplemented) }
    }

    fn code_address_in_context(&self, code: &[u8]) -> Option<u32> {
        landing::code_address_in_context(self.bits, code)
    }

    fn patch(&self, displaced: &Displaced, detour: u64) -> Result<Vec<u8>, Reason> {
        emit::patch(self.bits, displaced, detour)
    }

    fn room(
        &self,
        site: &Site<'_>,
        displaced: &Displaced,
        is_taken: &dyn Fn(Range<u64>) -> bool,
    ) -> Result<Displaced, Reason> {
        room::room(self.bits, site, displaced, is_taken)
    }

    fn in_reach(&self, displaced: &Displaced) -> Range<u64> {
        room::in_reach(displaced)
    }

    fn entrance(&self, room: &Displaced) -> u64 {
        room::entrance(room)
    }

    fn patches(
        &self,
        displaced: &Displaced,
        room: &Displaced,
        detour: u64,
        moved: u64,
    ) -> Result<[Vec<u8>; 2], Reason> {
        room::patches(self.bits, displaced, room, detour, moved)
    }

    fn moved_to(&self, room: &Displaced, patched: &[u8]) -> u64 {
        room::moved_to(self.bits, room, patched)
    }

    fn moved(
        &self,
        room: &Displaced,
        original: &[u8],
        address: u64,
        past: Option<Past>,
    ) -> Result<Moved, Reason> {
        room::moved(self.bits, room, original, address, past)
    }

    fn turns(&self, site: &Site<'_>, displaced: &Displaced) -> Result<Vec<Displaced>, Reason> {
        turns::turns(self.bits, site, displaced)
    }

    fn turned(&self, turn: &Displaced, original: &[u8], to: u64) -> Result<Vec<u8>, Reason> {
        turns::turned(self.bits, turn, original, to)
    }

    fn runtime(&self, address: u64, layout: &Layout) -> Result<Runtime, Reason> {
        runtime::runtime(self.bits, address, layout)
    }

    fn detour(&self, request: &DetourRequest<'_>) -> Result<Detour, Reason> {
        detour::detour(self.bits, request)
    }

    fn slot(
        &self,
        displaced: &Displaced,
        original: &[u8],
        address: u64,
        boosted: bool,
    ) -> Result<Slot, Reason> {
        slot::slot(self.bits, displaced, original, address, boosted)
    }

    fn together(&self, site: &Site<'_>, first: Displaced, next: Option<u64>) -> Displaced {
        prologue::prologue(self.bits, site, first, next)
    }

    fn emulate(&self, code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<(), EmulateError> {
        prologue::emulate_all(self.bits, code, address, thread)
    }

    fn leads_to(&self, code: &[u8], address: u64) -> Option<u64> {
        prologue::leads_to(self.bits, code, address)
    }

    fn is_unmistakable(&self, instruction: &[u8]) -> bool {
        slot::is_unmistakable(instruction)
    }

    fn saves_step(&self, instruction: &[u8]) -> bool {
        slot::saves_flags(self.bits, instruction)
    }
}
