//! What a single step leaves behind.
//!
//! The kernel takes the trap flag that it sets for a step out of the registers, but neither out of what the step has pushed, nor where
//! the thread steps on behind a `popf`: from there on it takes the flag for the thread's own.

use super::Registers;
use crate::Process;

const PUSHF: u8 = 0x9c;
const POPF: u8 = 0x9d;

/// An instruction that is stepped over, as far as steps leave something behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepping {
    /// It pushes the flags, and the trap flag among them.
    pub pushes_flags: bool,
    /// It pops the flags: a trap flag is the thread's own.
    pub pops_flags: bool,
}

impl Stepping {
    /// The instruction that a thread with these registers stands at.
    pub fn over(process: &Process, registers: &Registers) -> Self {
        let mut code = [0; 3];
        // Near the end of a mapping less is there; then it is left zero.
        let _ = process.read(registers.ip(), &mut code);
        let is_prefix = |byte: &u8| *byte == 0x66 || !registers.is_32bit() && byte & 0xf0 == 0x40;
        let opcode = code.into_iter().find(|byte| !is_prefix(byte)).unwrap_or_default();
        Self { pushes_flags: opcode == PUSHF, pops_flags: opcode == POPF }
    }
}
