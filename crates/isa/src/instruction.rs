//! The facts about one instruction that every ISA can state.

use thiserror::Error;

/// A decoded instruction: how long it is and where control goes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes, at least 1.
    pub length: u8,
    /// Where control goes next.
    pub flow: Flow,
}

impl Instruction {
    /// Address of the byte after the instruction.
    pub fn end(&self) -> u64 {
        self.address.wrapping_add(u64::from(self.length))
    }
}

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// On to the next instruction.
    Next,
    /// To `target`, always.
    Jump {
        /// Absolute address.
        target: u64,
    },
    /// To `target` or on to the next instruction.
    Branch {
        /// Absolute address.
        target: u64,
    },
    /// To `target`, and back to the next instruction later.
    Call {
        /// Absolute address.
        target: u64,
    },
    /// To an address in a register or in memory: a tail call or a jump table.
    IndirectJump,
    /// To an address in a register or in memory, and back to the next instruction later.
    IndirectCall,
    /// To the return address.
    Return,
    /// Into the kernel, and back to the next instruction later: `syscall`, `svc`, `sc`.
    System,
    /// Nowhere a program continues: `ud2`, `hlt`, `brk`, `int3`.
    Stop,
}

impl Flow {
    /// Whether the next instruction in memory can be reached by going through this one.
    pub fn falls_through(self) -> bool {
        !matches!(self, Flow::Jump { .. } | Flow::IndirectJump | Flow::Return | Flow::Stop)
    }

    /// The address a direct branch or call names.
    pub fn target(self) -> Option<u64> {
        match self {
            Flow::Jump { target } | Flow::Branch { target } | Flow::Call { target } => Some(target),
            _ => None,
        }
    }
}

/// What an instruction does with a word that it refers to relative to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Loads it, and nothing else.
    Loaded,
    /// Compares it with a register.
    Compared,
    /// Takes its address.
    Taken,
}

/// Why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the instruction does.
    #[error("the code ends inside an instruction")]
    Truncated,
    /// No such instruction.
    #[error("not an instruction")]
    Invalid,
}
