//! Arm A64.

use crate::*;
use alloc::{string::String, vec::Vec};

/// Arm A64.
pub struct AArch64;

/// The instruction set.
pub static AARCH64: AArch64 = AArch64;

impl Isa for AArch64 {
    fn machine(&self) -> Machine {
        Machine::AArch64
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
