//! Arm A64.
//!
//! Every instruction has four bytes and a branch reaches 128 MB, so a patch is one `b` in the place of one
//! instruction, written at once: no instruction boundary moves and no thread can be inside.

mod bodies;
pub mod count;
pub mod decode;
pub mod detour;
pub mod emit;
pub mod emulate;
mod exclusive;
mod facts;
mod faults;
mod fetch;
mod follow;
pub mod frame;
mod frames;
mod gate;
mod landing;
pub mod liveness;
mod loader;
mod lower;
pub mod operands;
mod prologue;
pub mod record;
pub mod relocate;
mod replace;
pub mod returns;
pub mod runtime;
mod slot;
mod spare;
mod steps;
pub(crate) mod system_call;
pub mod targets;
#[cfg(test)]
mod tests;
mod text;
pub mod verdict;

use crate::*;
use alloc::{string::String, vec::Vec};

/// Arm A64.
pub struct AArch64;

/// The instruction set.
pub static AARCH64: AArch64 = AArch64;

/// How far `b` reaches backwards; forwards it is 4 bytes less.
pub const REACH: u64 = 128 << 20;

/// Log2 of the stack pointer's alignment (AAPCS64, 6.4.5.1): a call is named by the stack pointer at its entry.
const SLOT_SHIFT: u32 = 4;

impl Isa for AArch64 {
    fn machine(&self) -> Machine {
        Machine::AArch64
    }

    fn facts(&self) -> &'static Facts {
        &facts::FACTS
    }

    fn runs_bodies(&self) -> bool {
        true
    }

    fn has_scalable_vectors(&self, code: &[u8]) -> bool {
        code.chunks_exact(decode::LENGTH as usize).filter_map(decode::word).any(decode::is_scalable)
    }

    fn decode(&self, code: &[u8], address: u64) -> Result<Instruction, DecodeError> {
        decode::decode(code, address)
    }

    fn disassemble(&self, code: &[u8], address: u64) -> String {
        text::disassemble(code, address)
    }

    fn sweep(&self, code: &[u8], address: u64, data: &dyn ReadOnlyData, found: &mut Swept) {
        targets::branch_targets(code, address, data, &mut found.targets);
    }

    fn verdict(&self, site: &Site<'_>) -> Ladder {
        verdict::verdict(site)
    }

    fn return_verdict(&self, site: &Site<'_>) -> Result<(), Reason> {
        returns::return_verdict(site)
    }

    fn may_fault(&self, code: &[u8], _address: u64) -> Faults {
        faults::faults(code)
    }

    fn return_kept_at(&self, site: &Site<'_>) -> Option<i32> {
        returns::saved(site).and_then(|offset| i32::try_from(offset).ok())
    }

    fn return_signed_by(&self, site: &Site<'_>) -> Option<u64> {
        returns::signed_by(site)
    }

    fn signs_return(&self, code: &[u8]) -> bool {
        decode::word(code).and_then(returns::key).is_some()
    }

    fn code_address_in_context(&self, code: &[u8]) -> Option<u32> {
        landing::code_address_in_context(code)
    }

    fn patch(&self, displaced: &Displaced, detour: u64) -> Result<Vec<u8>, Reason> {
        if u64::from(displaced.length) != decode::LENGTH {
            return Err(Reason::MidInstruction);
        }
        let mut code = emit::Code::new(displaced.start);
        code.branch(detour)?;
        code.finish()
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
