//! x86, in 64-bit and in 32-bit mode.

mod detour;
mod emit;
mod frame;
mod liveness;
mod relocate;
mod follow;
mod runtime;

use crate::*;
use alloc::{string::String, vec::Vec};

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

    fn decode(&self, _code: &[u8], _address: u64) -> Result<Instruction, DecodeError> {
        Err(DecodeError::Invalid)
    }

    fn disassemble(&self, _code: &[u8], _address: u64) -> String {
        String::new()
    }

    fn branch_targets(&self, _code: &[u8], _address: u64, _data: &dyn ReadOnlyData, _targets: &mut Vec<u64>) {
    }

    fn verdict(&self, _site: &Site<'_>) -> Ladder {
        let no = Err(Reason::NotImplemented);
        Ladder { jump: no, boost: no, emulate: no, step: no }
    }

    fn return_verdict(&self, _site: &Site<'_>) -> Result<(), Reason> {
        Err(Reason::NotImplemented)
    }

    fn reach(&self) -> u64 {
        0
    }

    fn patch(&self, _displaced: &Displaced, _detour: u64) -> Result<Vec<u8>, Reason> {
        Err(Reason::NotImplemented)
    }

    fn runtime(&self, _address: u64, _layout: &Layout) -> Result<Runtime, Reason> {
        Err(Reason::NotImplemented)
    }

    fn detour(&self, _request: &DetourRequest<'_>) -> Result<Detour, Reason> {
        Err(Reason::NotImplemented)
    }
}
