//! What does this instruction do to a set of saved registers and memory?
//!
//! All branches but those by the target address register, the loads and stores of general registers, and the arithmetic on them that
//! starts functions: everything whose result the manual defines without reference to the floating-point, vector or privileged state. Not
//! emulated are divisions and multiplications with partly undefined results, overflow-recording forms, barriers, cache operations and
//! reservations; the reason names them. What carries is not emulated either where the processor's [`Version`] is not known.
//!
//! An instruction has its whole effect or none: memory is accessed first.

use super::arithmetic;
use super::decode::{Branch, Destination, Fields, Form, displacement_34, form, sign_extend, word_at};
use crate::emulate::Blank;
use crate::{EmulateError, Reason, Thread};

/// The number of the count register of a [`Thread`].
pub(super) const CTR: u8 = 35;
/// That of the link register.
pub(super) const LR: u8 = 36;
/// That of the fixed-point exception register: summary overflow, overflow, carry.
pub(super) const XER: u8 = 37;

/// Summary overflow, copied into every comparison.
pub(super) const XER_SO: u64 = 0x8000_0000;
/// Carry.
pub(super) const XER_CA: u64 = 0x2000_0000;
/// Carry out of the low word; only from ISA 3.0 on.
pub(super) const XER_CA32: u64 = 0x0004_0000;

/// The level of the processor that the program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// POWER8: there is no CA32.
    V2_07,
    /// POWER9 and later: carrying instructions set CA32 too.
    V3_0,
}

/// Does to `thread` what the instruction that `code` starts with does at `address`; its length.
///
/// # Errors
/// Nothing in `thread` was changed then.
pub fn emulate(
    code: &[u8],
    address: u64,
    thread: &mut dyn Thread,
    version: Option<Version>,
) -> Result<u8, EmulateError> {
    let (form, length) = form(code, address).map_err(|_| Reason::NotAnInstruction)?;
    let word = word_at(code, 0).ok_or(Reason::NotAnInstruction)?;
    let next = address.wrapping_add(u64::from(length));
    match form {
        Form::Branch(taken) => {
            branch(taken, thread, next)?;
            return Ok(length);
        }
        Form::AddPcIs { register, value } => thread.set_register(register as u8, value),
        Form::Prefixed { relative } => {
            let suffix = word_at(code, 4).ok_or(Reason::NotAnInstruction)?;
            prefixed(word, suffix, relative.then_some(address), thread)?;
        }
        Form::Trap { .. } => return Err(Reason::Traps.into()),
        Form::System(name) => return Err(Reason::NotEmulated(name).into()),
        Form::LoadReserve | Form::StoreConditional => return Err(Reason::NotEmulated("a reservation").into()),
        Form::Plain => match access(word) {
            Some(access) => access.run(thread)?,
            None => arithmetic::run(word, thread, version)?,
        },
    }
    thread.set_ip(next);
    Ok(length)
}

/// Whether [`emulate`] knows the instruction that `code` starts with, for any version.
pub(super) fn emulated(code: &[u8], address: u64) -> Result<(), Reason> {
    match emulate(code, address, &mut Blank, None) {
        Err(EmulateError::Refused(reason)) => Err(reason),
        _ => Ok(()),
    }
}

/// Book I, 2.4: the count is decremented first, then both tests are made; lr is set whether the branch is taken or not, and
/// after its old value was read.
fn branch(branch: Branch, thread: &mut dyn Thread, next: u64) -> Result<(), Reason> {
    let target = match branch.to {
        Destination::Address(target) => target,
        Destination::Link => thread.register(LR) & !3,
        Destination::Count => thread.register(CTR) & !3,
        Destination::Tar => return Err(Reason::NotEmulated("a branch to the target address register")),
    };
    let bo = |bit: u32| branch.bo & bit != 0;
    let count = match branch.counts() {
        true => thread.register(CTR).wrapping_sub(1),
        false => 0,
    };
    let count_agrees = !branch.counts() || (count == 0) == bo(2);
    let condition_agrees = bo(16) || ((thread.flags() as u32) << branch.bi & 1 << 31 != 0) == bo(8);
    if branch.counts() {
        thread.set_register(CTR, count);
    }
    if branch.link {
        thread.set_register(LR, next);
    }
    thread.set_ip(if count_agrees && condition_agrees { target } else { next });
    Ok(())
}

/// A load or store of a general register.
pub(super) struct Access {
    /// The register loaded or stored.
    register: u32,
    /// The base register, if there is one.
    base: Option<u32>,
    /// What is added to it.
    offset: Offset,
    /// How many are loaded or stored.
    bytes: u8,
    store: bool,
    /// Whether a loaded value is sign-extended.
    signed: bool,
    /// Whether the base register is set to the address.
    update: bool,
    /// Whether the bytes are in big-endian order.
    reversed: bool,
}

enum Offset {
    Constant(i64),
    Register(u32),
}

impl Access {
    fn run(&self, thread: &mut dyn Thread) -> Result<(), EmulateError> {
        let invalid = self.update && self.base.is_none_or(|base| !self.store && base == self.register);
        if invalid {
            return Err(Reason::NotEmulated("an invalid form").into());
        }
        let base = self.base.map_or(0, |base| thread.register(base as u8));
        let address = match self.offset {
            Offset::Constant(offset) => base.wrapping_add_signed(offset),
            Offset::Register(index) => base.wrapping_add(thread.register(index as u8)),
        };
        let bits = 8 * u32::from(self.bytes);
        let ordered = |value: u64| if self.reversed { value.swap_bytes() >> (64 - bits) } else { value };
        if self.store {
            let value = thread.register(self.register as u8);
            thread.write(address, self.bytes, ordered(value)).ok_or(EmulateError::Fault)?;
        } else {
            let value = ordered(thread.read(address, self.bytes).ok_or(EmulateError::Fault)?);
            let value = if self.signed { sign_extend(value, bits) as u64 } else { value };
            thread.set_register(self.register as u8, value);
        }
        if let (true, Some(base)) = (self.update, self.base) {
            thread.set_register(base as u8, address);
        }
        Ok(())
    }

    /// Whether the address is one register and a constant: those.
    pub fn at_constant(&self) -> Option<(u32, i64)> {
        match self.offset {
            Offset::Constant(offset) => self.base.map(|base| (base, offset)),
            Offset::Register(_) => None,
        }
    }
}

/// What kind of load or store of a general register a word instruction is, if it is one.
fn kind(word: u32) -> Option<Kind> {
    match word.primary() {
        primary @ 32..=45 => d_form(primary),
        58 => [(8, "l"), (8, "lu"), (4, "la")].get((word & 3) as usize).copied(),
        62 => [(8, "s"), (8, "su")].get((word & 3) as usize).copied(),
        31 => x_form(word.xo()),
        _ => None,
    }
}

/// The letters of the kind: `l` load, `s` store, `a` sign-extended, `u` with update, `r` byte-reversed.
pub(super) fn access_kind(word: u32) -> Option<&'static str> {
    kind(word).map(|(_, letters)| letters)
}

/// The access that a word instruction makes, if it is a load or store of a general register.
pub(super) fn access(word: u32) -> Option<Access> {
    let primary = word.primary();
    let (bytes, kind) = kind(word)?;
    let offset = match primary {
        31 => Offset::Register(word.rb()),
        58 | 62 => Offset::Constant(word.d() & !3),
        _ => Offset::Constant(word.d()),
    };
    Some(Access {
        register: word.rt(),
        base: (word.ra() != 0).then_some(word.ra()),
        offset,
        bytes,
        store: kind.starts_with('s'),
        signed: kind.contains('a'),
        update: kind.contains('u'),
        reversed: kind.contains('r'),
    })
}

/// Bytes, and the letters that [`access_kind`] explains.
type Kind = (u8, &'static str);

fn d_form(primary: u32) -> Option<Kind> {
    Some(match primary {
        32 => (4, "l"),
        33 => (4, "lu"),
        34 => (1, "l"),
        35 => (1, "lu"),
        36 => (4, "s"),
        37 => (4, "su"),
        38 => (1, "s"),
        39 => (1, "su"),
        40 => (2, "l"),
        41 => (2, "lu"),
        42 => (2, "la"),
        43 => (2, "lau"),
        44 => (2, "s"),
        45 => (2, "su"),
        _ => return None,
    })
}

fn x_form(xo: u32) -> Option<Kind> {
    Some(match xo {
        21 => (8, "l"),
        23 => (4, "l"),
        53 => (8, "lu"),
        55 => (4, "lu"),
        87 => (1, "l"),
        119 => (1, "lu"),
        149 => (8, "s"),
        151 => (4, "s"),
        181 => (8, "su"),
        183 => (4, "su"),
        215 => (1, "s"),
        247 => (1, "su"),
        279 => (2, "l"),
        311 => (2, "lu"),
        341 => (4, "la"),
        343 => (2, "la"),
        373 => (4, "lau"),
        375 => (2, "lau"),
        407 => (2, "s"),
        439 => (2, "su"),
        532 => (8, "lr"),
        534 => (4, "lr"),
        660 => (8, "sr"),
        662 => (4, "sr"),
        790 => (2, "lr"),
        918 => (2, "sr"),
        _ => return None,
    })
}

/// Prefixed additions, loads and stores; `pnop`.
fn prefixed(
    prefix: u32,
    suffix: u32,
    relative_to: Option<u64>,
    thread: &mut dyn Thread,
) -> Result<(), EmulateError> {
    let offset = displacement_34(prefix, suffix).wrapping_add(relative_to.unwrap_or(0) as i64);
    let base = (suffix.ra() != 0).then_some(suffix.ra());
    let (bytes, kind) = match (prefix >> 24 & 3, suffix.primary()) {
        (2, 14) => {
            let base = base.map_or(0, |base| thread.register(base as u8));
            thread.set_register(suffix.rt() as u8, base.wrapping_add_signed(offset));
            return Ok(());
        }
        (2, 32 | 34 | 36 | 38 | 40 | 42 | 44) => {
            d_form(suffix.primary()).ok_or(Reason::NotEmulated("a prefixed instruction"))?
        }
        (0, 41) => (4, "la"),
        (0, 57) => (8, "l"),
        (0, 61) => (8, "s"),
        (3, 0) if suffix == 0 => return Ok(()),
        _ => return Err(Reason::NotEmulated("a prefixed instruction").into()),
    };
    let access = Access {
        register: suffix.rt(),
        base,
        offset: Offset::Constant(offset),
        bytes,
        store: kind.starts_with('s'),
        signed: kind.contains('a'),
        update: false,
        reversed: false,
    };
    access.run(thread)
}
