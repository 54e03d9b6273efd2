//! What does this instruction do to a set of saved registers and memory?
//!
//! All branches, the loads and stores of general registers, and the arithmetic on them that starts functions: everything
//! whose result the manual defines without reference to the floating-point, vector or privileged state. Not emulated are
//! divisions and multiplications with partly undefined results, overflow-recording forms, barriers, cache operations and
//! reservations; the reason names them.

use super::arithmetic;
use super::decode::{Branch, Destination, Fields, Form, displacement_34, form, sign_extend, word_at};
use crate::Reason;
use thiserror::Error;

/// A thread's registers, as far as emulation reads or writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// r0 to r31.
    pub gpr: [u64; 32],
    /// Address of the instruction.
    pub pc: u64,
    /// Link register.
    pub lr: u64,
    /// Count register.
    pub ctr: u64,
    /// Target address register.
    pub tar: u64,
    /// Condition register; cr0 is the most significant nibble.
    pub cr: u32,
    /// Fixed-point exception register: summary overflow, overflow, carry.
    pub xer: u64,
}

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

/// The program's memory.
pub trait Memory {
    /// Fills `bytes` from `address` on.
    ///
    /// # Errors
    /// [`Fault`] when any of them is not readable; `bytes` is unspecified then.
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Stores `bytes` from `address` on.
    ///
    /// # Errors
    /// [`Fault`] when any of them is not writable; nothing was stored then.
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// An access to memory that the program would have died of, or handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no access to {address:#x}")]
pub struct Fault {
    /// Address of the access.
    pub address: u64,
}

/// Why an instruction had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    /// It is not emulated.
    #[error(transparent)]
    Refused(#[from] Reason),
    /// It faults.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Executes the instruction that `code` starts with, which stands at `registers.pc`, and moves the pc on.
///
/// # Errors
/// [`Stopped`], with registers and memory as they were.
pub fn emulate(
    code: &[u8],
    registers: &mut Registers,
    memory: &mut dyn Memory,
    version: Version,
) -> Result<(), Stopped> {
    let (form, length) = form(code, registers.pc).map_err(|_| Reason::NotAnInstruction)?;
    let word = word_at(code, 0).ok_or(Reason::NotAnInstruction)?;
    let next = registers.pc.wrapping_add(u64::from(length));
    match form {
        Form::Branch(taken) => {
            branch(taken, registers, next);
            return Ok(());
        }
        Form::AddPcIs { register, value } => registers.gpr[register as usize] = value,
        Form::Prefixed { relative } => {
            let suffix = word_at(code, 4).ok_or(Reason::NotAnInstruction)?;
            prefixed(word, suffix, relative, registers, memory)?;
        }
        Form::Trap { .. } => return Err(Reason::Traps.into()),
        Form::System(name) => return Err(Reason::NotEmulated(name).into()),
        Form::LoadReserve | Form::StoreConditional => return Err(Reason::NotEmulated("a reservation").into()),
        Form::Plain => match access(word) {
            Some(access) => access.run(registers, memory)?,
            None => arithmetic::run(word, registers, version)?,
        },
    }
    registers.pc = next;
    Ok(())
}

/// Whether [`emulate`] knows the instruction that `code` starts with.
pub(super) fn emulated(code: &[u8], address: u64) -> Result<(), Reason> {
    struct Zeros;
    impl Memory for Zeros {
        fn load(&mut self, _: u64, bytes: &mut [u8]) -> Result<(), Fault> {
            bytes.fill(0);
            Ok(())
        }
        fn store(&mut self, _: u64, _: &[u8]) -> Result<(), Fault> {
            Ok(())
        }
    }
    let mut registers = Registers { pc: address, ..Registers::default() };
    match emulate(code, &mut registers, &mut Zeros, Version::V3_0) {
        Err(Stopped::Refused(reason)) => Err(reason),
        _ => Ok(()),
    }
}

/// Book I, 2.4: the count is decremented first, then both tests are made; lr is set whether the branch is taken or not, and
/// after its old value was read.
fn branch(branch: Branch, registers: &mut Registers, next: u64) {
    let target = match branch.to {
        Destination::Address(target) => target,
        Destination::Link => registers.lr & !3,
        Destination::Count => registers.ctr & !3,
        Destination::Tar => registers.tar & !3,
    };
    let bo = |bit: u32| branch.bo & bit != 0;
    if branch.counts() {
        registers.ctr = registers.ctr.wrapping_sub(1);
    }
    let count_agrees = !branch.counts() || (registers.ctr == 0) == bo(2);
    let condition_agrees = bo(16) || (registers.cr << branch.bi & 1 << 31 != 0) == bo(8);
    registers.pc = if count_agrees && condition_agrees { target } else { next };
    if branch.link {
        registers.lr = next;
    }
}

/// A load or store of a general register.
struct Access {
    /// The register loaded or stored.
    register: u32,
    /// The base register, if there is one.
    base: Option<u32>,
    /// What is added to it.
    offset: Offset,
    bytes: usize,
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
    fn run(&self, registers: &mut Registers, memory: &mut dyn Memory) -> Result<(), Stopped> {
        let invalid = self.update && self.base.is_none_or(|base| !self.store && base == self.register);
        if invalid {
            return Err(Reason::NotEmulated("an invalid form").into());
        }
        let base = self.base.map_or(0, |base| registers.gpr[base as usize]);
        let address = match self.offset {
            Offset::Constant(offset) => base.wrapping_add_signed(offset),
            Offset::Register(index) => base.wrapping_add(registers.gpr[index as usize]),
        };
        let register = self.register as usize;
        let mut buffer = [0; 8];
        let bytes = &mut buffer[..self.bytes];
        if self.store {
            bytes.copy_from_slice(&registers.gpr[register].to_le_bytes()[..self.bytes]);
            if self.reversed {
                bytes.reverse();
            }
            memory.store(address, bytes)?;
        } else {
            memory.load(address, bytes)?;
            if self.reversed {
                bytes.reverse();
            }
            let value = u64::from_le_bytes(buffer);
            registers.gpr[register] =
                if self.signed { sign_extend(value, 8 * self.bytes as u32) as u64 } else { value };
        }
        if let (true, Some(base)) = (self.update, self.base) {
            registers.gpr[base as usize] = address;
        }
        Ok(())
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
fn access(word: u32) -> Option<Access> {
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
type Kind = (usize, &'static str);

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
    relative: bool,
    registers: &mut Registers,
    memory: &mut dyn Memory,
) -> Result<(), Stopped> {
    let displacement = displacement_34(prefix, suffix);
    let offset = match relative {
        true => displacement.wrapping_add(registers.pc as i64),
        false => displacement,
    };
    let base = (suffix.ra() != 0).then_some(suffix.ra());
    let (bytes, kind) = match (prefix >> 24 & 3, suffix.primary()) {
        (2, 14) => {
            let base = base.map_or(0, |base| registers.gpr[base as usize]);
            registers.gpr[suffix.rt() as usize] = base.wrapping_add_signed(offset);
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
    access.run(registers, memory)
}
