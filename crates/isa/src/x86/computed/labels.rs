//! What a register or memory may hold of addresses of code.

use iced_x86::Register;

/// Labels that are told apart, as bits; one more stands for all others. Few functions name as many addresses of code.
pub(super) const LABELS: usize = 62;
/// How many of the bits are kept for those inside the function.
pub(super) const LOCAL: usize = 24;
pub(super) const OTHERS: u64 = 1 << LABELS;
/// What the function does not name itself: it was loaded, or comes from whoever calls it or is called.
pub(super) const FOREIGN: u64 = 1 << (LABELS + 1);

/// What may be held of the labels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Labels {
    /// Themselves, or places that are known.
    pub exact: u64,
    /// Places around them.
    pub around: u64,
}

impl Labels {
    pub fn and(self, other: Labels) -> Labels {
        Labels { exact: self.exact | other.exact, around: self.around | other.around }
    }

    /// What may be any of it.
    pub fn is_foreign(self) -> bool {
        (self.exact | self.around) & FOREIGN != 0
    }

    /// Less what is not known.
    pub fn named(self) -> Labels {
        Labels { exact: self.exact & !FOREIGN, around: self.around & !FOREIGN }
    }

    /// What becomes of it by arithmetic.
    pub fn computed(self) -> Labels {
        Labels { exact: 0, around: self.exact | self.around }
    }
}

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// Anything, and of the labels these.
    Any(Labels),
    /// An address that the code names.
    Address(u64),
    /// A 32-bit entry of the table that is there.
    Entry(u64),
    /// A 32-bit entry of the table that this register points to.
    EntryBy(Register),
    /// A place that an entry tells by its distance from this label.
    Place(u64),
}

impl Value {
    pub const NOTHING: Value = Value::Any(Labels { exact: 0, around: 0 });
}

/// What is held in the registers.
pub(super) type Registers = [Labels; 16];

/// Adds to what is held. Whether that has made it more.
pub(super) fn join(held: &mut Registers, more: &Registers) -> bool {
    let mut is_more = false;
    for (held, more) in held.iter_mut().zip(more) {
        let both = held.and(*more);
        is_more |= both != *held;
        *held = both;
    }
    is_more
}
