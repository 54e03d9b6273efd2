//! Which faults instructions may raise.
//!
//! A displaced instruction faults at the address of its copy. A program that handles that fault would see an address that
//! is not its own, so its own faults decide which sites it leaves to probes.

/// A set of faults, each named after what the processor found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u8);

impl Faults {
    /// None.
    pub const NONE: Faults = Faults(0);
    /// Memory that is not there, or is there for others only.
    pub const MEMORY: Faults = Faults(1);
    /// A division, or arithmetic on floating-point numbers whose exceptions the program may have unmasked.
    pub const ARITHMETIC: Faults = Faults(2);
    /// An instruction that not every processor has.
    pub const INVALID: Faults = Faults(4);
    /// Every fault there is: of instructions that nobody has looked at.
    pub const ALL: Faults = Faults(7);

    /// Those of both sets.
    #[must_use]
    pub const fn with(self, other: Faults) -> Faults {
        Faults(self.0 | other.0)
    }

    /// Whether the sets have a fault in common.
    pub const fn meets(self, other: Faults) -> bool {
        self.0 & other.0 != 0
    }
}
