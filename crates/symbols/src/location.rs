//! Where a value is, at one instruction: small enough for a probe to evaluate.
//!
//! DWARF tells places by a program for a stack machine. Here it is reduced to one of few forms, of which each takes at most two
//! registers, one addition and one read of memory; what cannot be reduced is [`Location::Unavailable`] with its reason.

use thiserror::Error;

/// Where a value is. Registers have their DWARF numbers, of the module's machine: on x86-64, `rdi` is 5 and `xmm0` is 17.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In a register, or in the lowest bytes of it.
    Register(u16),
    /// In memory at `register + offset`.
    Memory {
        /// Holds the address.
        register: u16,
        /// To add to it, wrapping.
        offset: i64,
    },
    /// In memory at `[register + offset] + then`: the address is in memory itself.
    Indirect {
        /// Leads to the address.
        register: u16,
        /// To add to it, wrapping.
        offset: i64,
        /// To add to the address that is there, wrapping.
        then: i64,
    },
    /// In memory at an address of the file, before any load bias.
    Address(u64),
    /// In the thread's own copy of the module's data, this many bytes from its beginning.
    ThreadLocal(u64),
    /// Nowhere, but it is `register + offset`.
    Sum {
        /// The first summand.
        register: u16,
        /// The second one, wrapping.
        offset: i64,
    },
    /// Nowhere, but it is known: its bytes. Fewer bytes than the type has mean zeros behind them.
    Constant(Vec<u8>),
    /// In parts, which come after each other.
    Pieces(Vec<Piece>),
    /// Nowhere that could be told.
    Unavailable(Unavailable),
}

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Bytes of the value.
    pub size: u64,
    /// Bytes of the register that are passed over, from its lowest.
    pub skip: u64,
    /// Where it is. No [`Location::Pieces`].
    pub location: Location,
}

/// Why it is not told where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Unavailable {
    /// The compiler has removed it.
    #[error("it was optimized out")]
    OptimizedOut,
    /// The place is known elsewhere in the function only.
    #[error("the compiler does not tell where it is at this address")]
    NotHere,
    /// The value that it had at the function's entry is not kept.
    #[error("only its value at the function's entry is known, which is not kept")]
    OnlyAtEntry,
    /// The place is told by a computation that probes do not do.
    #[error("its place is told by a computation that probes do not do")]
    Computed,
    /// The place is told by something that makes no sense.
    #[error("the debug information about its place makes no sense")]
    Malformed,
    /// The frame is not known here.
    #[error("no unwind row tells where the frame is at this address")]
    NoFrame,
    /// The calling convention is not known: a clone with other parameters, or another language.
    #[error("the function was changed by the compiler, and does not take it as the calling convention says")]
    Changed,
    /// The ABI does not say, as the type is not known.
    #[error("its type is not known")]
    NoType,
}

/// Where a function's result is, when it has returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ResultLocation {
    /// There is none, or it has no bytes.
    Nothing,
    /// There, at the moment of return.
    At(Location),
    /// In memory, at the address that this register held at the function's entry.
    Given {
        /// The register.
        register: u16,
    },
    /// Not told.
    Unavailable(Unavailable),
}

/// What [`Location::read`] asks for.
pub trait Context {
    /// The bytes of a register, lowest first: 8 of a general one, 16 of a vector register, 10 of `st0`.
    fn register(&mut self, number: u16) -> Option<Vec<u8>>;
    /// Bytes of memory at a run-time address.
    fn memory(&mut self, address: u64, size: usize) -> Option<Vec<u8>>;
    /// The run-time address of an address of the file.
    fn relocated(&mut self, address: u64) -> Option<u64>;
    /// Bytes of an address: 4 or 8.
    fn pointer_size(&self) -> usize {
        8
    }
    /// The run-time address of a thread-local variable.
    fn thread_local(&mut self, _offset: u64) -> Option<u64> {
        None
    }
}

/// Larger values are not read, in bytes.
pub const LARGEST_VALUE: u64 = 1 << 20;

impl Location {
    /// The run-time address of the value, if it has one.
    pub fn address(&self, context: &mut dyn Context) -> Option<u64> {
        let word = |bytes: Option<Vec<u8>>| {
            let bytes = bytes?;
            let mut word = [0; 8];
            let count = bytes.len().min(8);
            word[..count].copy_from_slice(&bytes[..count]);
            Some(u64::from_le_bytes(word))
        };
        match self {
            Location::Memory { register, offset } => {
                Some(word(context.register(*register))?.wrapping_add_signed(*offset))
            }
            Location::Indirect { register, offset, then } => {
                let at = word(context.register(*register))?.wrapping_add_signed(*offset);
                let size = context.pointer_size().min(8);
                Some(word(context.memory(at, size))?.wrapping_add_signed(*then))
            }
            Location::Address(address) => context.relocated(*address),
            Location::ThreadLocal(offset) => context.thread_local(*offset),
            _ => None,
        }
    }

    /// The value's bytes. Nothing where a part cannot be had, or it is larger than [`LARGEST_VALUE`].
    ///
    /// ```
    /// use trapless_symbols::{Location, Context};
    ///
    /// struct Stopped;
    /// impl Context for Stopped {
    ///     fn register(&mut self, number: u16) -> Option<Vec<u8>> {
    ///         (number == 5).then(|| 0x1000_u64.to_le_bytes().to_vec())
    ///     }
    ///     fn memory(&mut self, address: u64, size: usize) -> Option<Vec<u8>> {
    ///         (address == 0x1008).then(|| vec![7; size])
    ///     }
    ///     fn relocated(&mut self, address: u64) -> Option<u64> {
    ///         Some(address)
    ///     }
    /// }
    /// assert_eq!(Location::Register(5).read(4, &mut Stopped), Some(vec![0, 16, 0, 0]));
    /// assert_eq!(Location::Memory { register: 5, offset: 8 }.read(2, &mut Stopped), Some(vec![7, 7]));
    /// ```
    pub fn read(&self, size: u64, context: &mut dyn Context) -> Option<Vec<u8>> {
        if size > LARGEST_VALUE {
            return None;
        }
        match self {
            Location::Register(number) => taken(context.register(*number)?, 0, size),
            Location::Sum { register, offset } => {
                let word = Location::Memory { register: *register, offset: *offset }.address(context)?;
                taken(word.to_le_bytes().to_vec(), 0, size)
            }
            Location::Constant(bytes) => {
                let mut bytes = bytes.clone();
                bytes.resize(size as usize, 0);
                Some(bytes)
            }
            Location::Pieces(pieces) => {
                let mut all = Vec::new();
                for piece in pieces {
                    let left = size - all.len() as u64;
                    let count = piece.size.min(left);
                    match &piece.location {
                        Location::Register(number) => {
                            all.extend(taken(context.register(*number)?, piece.skip, count)?);
                        }
                        Location::Pieces(_) => return None,
                        other => all.extend(other.read(count, context)?),
                    }
                }
                (all.len() as u64 == size).then_some(all)
            }
            Location::Unavailable(_) => None,
            _ => {
                let address = self.address(context)?;
                context.memory(address, size as usize).filter(|bytes| bytes.len() as u64 == size)
            }
        }
    }
}

/// Some bytes of a register. Those above its end are zero, as of a flag that is asked for as a word.
fn taken(bytes: Vec<u8>, skip: u64, size: u64) -> Option<Vec<u8>> {
    let mut bytes = bytes.get(skip as usize..)?.to_vec();
    if size > 16 {
        return None;
    }
    bytes.resize(size as usize, 0);
    Some(bytes)
}
