//! 64-bit PowerPC, little endian, ELFv2.

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
