//! A rule: how a frame leads to its caller's. 16 bytes, and the same for all machines.
//!
//! With `b` the register that [`Base`] names, `[x]` the word in memory at `x`:
//!
//! ```text
//! a   = b + cfa
//! CFA = a                or, with MEMORY,   [a] + plus
//! pc  = [CFA + ra]       or, with RA_AT_BASE,   [b + ra]       or, if ra is UNCHANGED,   the link register
//! fp  = [CFA + fp]       or, with SAVED_AT_BASE,   [b + fp]    or, if fp is UNCHANGED,   as it was
//! bp  = likewise
//! sp  = CFA
//! ```
//!
//! A frame that a signal has made (INTERRUPTED) is of the same form: the saved registers lie at fixed distances from its stack pointer.
//! There `pc` is the interrupted instruction, not a return address, and the link register is restored, too.

use bytemuck::{Pod, Zeroable};

/// Where a register is saved: bytes from the CFA, or from the base register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Slot(pub i16);

impl Slot {
    /// It is not saved: it still has the caller's value. Of a return address: it is in the link register.
    pub const UNCHANGED: Slot = Slot(i16::MAX);
    /// It is saved nowhere that a rule can tell, or it is unknown whether it is.
    pub const LOST: Slot = Slot(i16::MIN);
}

/// The register that a rule starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Base {
    /// The stack pointer.
    Stack = 0,
    /// The frame pointer: rbp, ebp, x29, r31.
    Frame = 1,
    /// The base pointer of x86-64, rbx; other machines follow no third register.
    Pointer = 2,
    /// Another one, whose number is in [`Rule::plus`]. Only the innermost frame has its value: compilers do that where they align a stack.
    Other = 3,
}

/// What a rule says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No row tells of this code. The fallback is tried.
    Nothing,
    /// There is a caller.
    Frame,
    /// There is none: the outermost frame of a thread.
    End,
    /// There is one, and no rule of this form says where. The walk stops; the number is the reason, which is the tool's to know.
    Unknown(u8),
}

/// A rule, as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Rule {
    /// [`Rule::NOTHING`] (0), [`Rule::FRAME`] (1), [`Rule::END`] (2), and from [`Rule::UNKNOWN`] (3) on the reasons.
    pub kind: u8,
    /// The base in the low two bits, and the flags.
    pub flags: u8,
    /// The link register, where the frame is one of a signal; from the base.
    pub link: Slot,
    /// From the base to the CFA, or with MEMORY to the word that holds it.
    pub cfa: i32,
    /// The return address.
    pub ra: Slot,
    /// The frame pointer.
    pub fp: Slot,
    /// The base pointer.
    pub bp: Slot,
    /// Added to the word that holds the CFA, with MEMORY; DWARF's number of the register, with [`Base::Other`], which has no MEMORY.
    pub plus: i16,
}

const _: () = assert!(size_of::<Rule>() == Rule::SIZE);

impl Rule {
    /// Bytes of a rule.
    pub const SIZE: usize = 16;

    /// See [`Kind::Nothing`].
    pub const NOTHING: u8 = 0;
    /// See [`Kind::Frame`].
    pub const FRAME: u8 = 1;
    /// See [`Kind::End`].
    pub const END: u8 = 2;
    /// See [`Kind::Unknown`].
    pub const UNKNOWN: u8 = 3;

    /// The bits of `flags` that are the base.
    pub const BASE: u8 = 3;
    /// The CFA is in memory.
    pub const MEMORY: u8 = 1 << 2;
    /// The return address is found from the base, not from the CFA.
    pub const RA_AT_BASE: u8 = 1 << 3;
    /// The frame and base pointers are found from the base, not from the CFA.
    pub const SAVED_AT_BASE: u8 = 1 << 4;
    /// A signal made this frame: what is found is the interrupted instruction, and stacks may have been changed.
    pub const INTERRUPTED: u8 = 1 << 5;
    /// The caller's stack pointer is not the CFA, which is only below it.
    pub const STACK_LOST: u8 = 1 << 6;

    /// A rule that is a kind alone.
    pub const fn of_kind(kind: u8) -> Rule {
        let (link, ra, fp, bp) = (Slot::UNCHANGED, Slot::UNCHANGED, Slot::UNCHANGED, Slot::UNCHANGED);
        Rule { kind, flags: 0, link, cfa: 0, ra, fp, bp, plus: 0 }
    }

    /// A frame whose CFA is at a distance from a register and whose return address is in the link register.
    pub const fn frame(base: Base, cfa: i32) -> Rule {
        Rule { flags: base as u8, cfa, ..Rule::of_kind(Rule::FRAME) }
    }

    /// What it says first.
    pub fn kind(&self) -> Kind {
        match self.kind {
            Rule::NOTHING => Kind::Nothing,
            Rule::FRAME => Kind::Frame,
            Rule::END => Kind::End,
            reason => Kind::Unknown(reason - Rule::UNKNOWN),
        }
    }
}

impl Default for Rule {
    /// No rule.
    fn default() -> Self {
        Rule::of_kind(Rule::NOTHING)
    }
}
