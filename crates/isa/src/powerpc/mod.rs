//! 64-bit PowerPC, little endian, ELFv2.
//!
//! Nearly everything on Power may stand anywhere, an instruction is a word, and a patch is one branch: so nearly every
//! function can have a detour, and what takes care is the ABI. See `verdict` for the two entry points, `emit` for
//! where a detour may save registers, `count` for what takes the fewest instructions, `runtime` for how a return finds its call, `lower` for how the routines that all ISAs
//! share are written here.

mod arithmetic;
mod assembler;
mod bodies;
mod caller;
mod count;
mod data;
mod decode;
mod detour;
mod emit;
mod emulate;
mod exclusive;
mod facts;
mod faults;
mod fetch;
mod flow;
mod follow;
mod frames;
mod gate;
mod landing;
mod liveness;
mod loader;
mod lower;
mod prologue;
mod registers;
mod relocate;
mod replace;
mod reservation;
mod returns;
mod runtime;
mod slot;
mod spare;
mod steps;
pub(crate) mod system_call;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod verdict;

pub use emulate::{Version, emulate};
#[cfg(test)]
pub(crate) use liveness::step;
pub use liveness::{Liveness, liveness};
pub use relocate::{Relocated, relocate};

use crate::*;
use alloc::{string::String, vec::Vec};

/// 64-bit PowerPC, little endian, ELFv2.
pub struct PowerPc64Le;

/// The instruction set.
pub static POWERPC64LE: PowerPc64Le = PowerPc64Le;

impl Isa for PowerPc64Le {
    fn machine(&self) -> Machine {
        Machine::PowerPc64Le
    }

    fn facts(&self) -> &'static Facts {
        &facts::FACTS
    }

    fn decode(&self, code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
        decode::decode(code, address)
    }

    fn disassemble(&self, code: &[u8], address: u64) -> String {
        text::disassemble(code, address)
    }

    fn sweep(&self, code: &[u8], address: u64, data: &dyn ReadOnlyData, found: &mut Swept) {
        tables::branch_targets(code, address, data, &mut found.targets);
    }

    fn verdict(&self, site: &Site<'_>) -> Ladder {
        verdict::verdict(site)
    }

    fn return_verdict(&self, site: &Site<'_>) -> Result<(), Reason> {
        returns::return_verdict(site)
    }

    fn may_fault(&self, code: &[u8], address: u64) -> Faults {
        faults::faults(code, address)
    }

    fn return_kept_at(&self, _site: &Site<'_>) -> Option<i32> {
        Some(returns::LR_SAVE as i32)
    }

    fn code_address_in_context(&self, code: &[u8]) -> Option<u32> {
        landing::code_address_in_context(code)
    }

    fn patch(&self, displaced: &Displaced, detour: u64) -> Result<Vec<u8>, Reason> {
        emit::patch(displaced.start, displaced.length, detour)
    }

    fn moved(
        &self,
        turn: &Displaced,
        original: &[u8],
        address: u64,
        past: Option<Past>,
    ) -> Result<Moved, Reason> {
        relocate::moved(turn, original, address, past)
    }

    fn runs_bodies(&self) -> bool {
        true
    }

    fn runtime(&self, address: u64, layout: &Layout) -> Result<Runtime, Reason> {
        runtime::runtime(address, layout)
    }

    fn detour(&self, request: &DetourRequest<'_>) -> Result<Detour, Reason> {
        detour::detour(request)
    }

    fn loader(&self, loader: &crate::loader::Loader<'_>, at: u64) -> Result<Vec<u8>, Reason> {
        loader::make(loader, at)
    }

    fn replaces(&self) -> bool {
        true
    }

    fn caller(&self, at: u64, table: u64) -> Option<crate::loader::Caller> {
        Some(caller::make(at, table))
    }

    fn slot(
        &self,
        displaced: &Displaced,
        original: &[u8],
        address: u64,
        boosted: bool,
    ) -> Result<Slot, Reason> {
        slot::slot(displaced, original, address, boosted)
    }

    fn together(&self, site: &Site<'_>, first: Displaced, next: Option<u64>) -> Displaced {
        prologue::EMULATOR.together(site, first, next)
    }

    fn emulate(&self, code: &[u8], address: u64, thread: &mut dyn Thread) -> Result<(), EmulateError> {
        prologue::EMULATOR.all(code, address, thread)
    }

    fn exclusive(&self, code: &[u8], thread: &dyn Thread) -> Option<Exclusive> {
        exclusive::exclusive(code, thread)
    }

    fn store_exclusive(&self, code: &[u8], address: u64, thread: &mut dyn Thread) -> Option<()> {
        exclusive::store(code, address, thread)
    }

    fn leads_to(&self, code: &[u8], address: u64) -> Option<u64> {
        prologue::leads_to(code, address)
    }
}
