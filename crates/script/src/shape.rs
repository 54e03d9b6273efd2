//! Shapes: how values lie in memory, as far as one has to know to print them.
//!
//! The checker gives every value a type. What is left of it behind the [`ir`](crate::ir) is its shape: scratch, keys, values of maps and
//! parts of messages are bytes, and a shape says what they mean. All numbers are little-endian.

use std::sync::Arc;

/// What bytes mean.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Nothing. No bytes.
    None,
    /// An integer of 1, 2, 4 or 8 bytes.
    Int {
        /// Its length in bytes.
        size: u8,
        /// Whether it is signed.
        signed: bool,
    },
    /// A truth value: 1 byte.
    Bool,
    /// A float of 4 or 8 bytes.
    Float(u8),
    /// A string: up to the first zero byte, at most so many.
    Text {
        /// Room.
        room: u32,
    },
    /// An array of characters in a C type: a string up to the first zero, or all of them.
    Characters {
        /// How many.
        count: u32,
    },
    /// Bytes: 4 bytes with their number, then room for the most.
    Buffer {
        /// Room for bytes, behind the number.
        room: u32,
    },
    /// An address of so many bytes, 4 or 8, printed as one.
    Pointer(u8),
    /// An enum's value, printed by name where it has one.
    Enum {
        /// Its length in bytes.
        size: u8,
        /// Whether it is signed.
        signed: bool,
        /// What it is called.
        names: Arc<EnumNames>,
    },
    /// Values beside each other, in parentheses.
    Tuple(Arc<Fields>),
    /// Values with names, as in records and structs.
    Record(Arc<Fields>),
    /// So many of a kind.
    Array {
        /// How many.
        count: u32,
        /// Of what.
        of: Arc<Shape>,
    },
    /// A call stack: 8 bytes, its number, as [`Statement::Stack`](crate::ir::Statement::Stack) gives it; then 4 bytes with the process's id
    /// and 4 of nothing.
    Stack {
        /// How it is printed.
        mode: StackMode,
        /// How many frames at most.
        frames: u8,
    },
    /// A code or data address of a process, printed as a symbol: 8 bytes, then 4 with the process's id and 4 of nothing.
    Symbol,
    /// A point in time, nanoseconds, printed by a format: 8 bytes.
    Time {
        /// A format of `strftime`, and `%f` for microseconds.
        format: Arc<str>,
        /// What is counted from.
        clock: TimeBase,
    },
    /// An internet address: 4 bytes with the family (`AF_INET` 2, `AF_INET6` 10), then 16 with the address.
    Inet,
    /// A hardware address of 6 bytes.
    Mac,
    /// The probe that was hit: the site's number, 8 bytes, printed as the probe's name.
    Probe,
    /// The function that was hit: the site's number, 8 bytes, printed as the function's name.
    Function,
    /// A user's id of 8 bytes, printed as the user's name.
    User,
    /// The number of an error, 8 bytes, printed as its text.
    Error,
    /// The id of a control group of 8 bytes, printed as its path.
    Cgroup,
}

/// Values in one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    /// Each, in their order.
    pub fields: Vec<Field>,
    /// Length of all in bytes.
    pub size: u32,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name. Empty in tuples.
    pub name: Arc<str>,
    /// How far from the beginning, in bytes.
    pub offset: u32,
    /// What it is.
    pub shape: Shape,
    /// The bits it has of the integer there, where it is a bit field.
    pub bits: Option<Bits>,
}

/// Some bits of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The lowest one.
    pub first: u8,
    /// How many.
    pub count: u8,
}

/// The names of an enum's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnumNames {
    /// The enum's own name.
    pub name: Box<str>,
    /// Each value and its name.
    pub values: Vec<(i64, Box<str>)>,
}

/// How stacks are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackMode {
    /// A line a frame: symbol and offset.
    #[default]
    Bpftrace,
    /// As perf does: address, symbol, offset and module.
    Perf,
    /// Addresses alone.
    Raw,
    /// Build id and offset in the file.
    BuildId,
}

/// What a time is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeBase {
    /// The system's start, without suspended time.
    Monotonic,
    /// The system's start.
    Boot,
    /// 1970, in international atomic time.
    Tai,
    /// 1970.
    Real,
}

impl Shape {
    /// Length in bytes.
    pub fn size(&self) -> u32 {
        match self {
            Shape::None => 0,
            Shape::Int { size, .. }
            | Shape::Enum { size, .. }
            | Shape::Float(size)
            | Shape::Pointer(size) => (*size).into(),
            Shape::Bool => 1,
            Shape::Text { room } => *room,
            Shape::Characters { count } => *count,
            Shape::Buffer { room } => 4 + room,
            Shape::Tuple(fields) | Shape::Record(fields) => fields.size,
            Shape::Array { count, of } => count.saturating_mul(of.size()),
            Shape::Stack { .. } | Shape::Symbol => 16,
            Shape::Inet => 20,
            Shape::Mac => 6,
            Shape::Time { .. }
            | Shape::Probe
            | Shape::Function
            | Shape::User
            | Shape::Error
            | Shape::Cgroup => 8,
        }
    }

    /// What its length is a multiple of when it lies in a tuple: 1, 2, 4 or 8.
    pub fn alignment(&self) -> u32 {
        match self {
            Shape::Int { size, .. }
            | Shape::Enum { size, .. }
            | Shape::Float(size)
            | Shape::Pointer(size) => (*size).into(),
            Shape::None | Shape::Bool | Shape::Text { .. } | Shape::Characters { .. } | Shape::Mac => 1,
            Shape::Buffer { .. } | Shape::Inet => 4,
            Shape::Tuple(fields) | Shape::Record(fields) => {
                fields.fields.iter().map(|field| field.shape.alignment()).max().unwrap_or(1)
            }
            Shape::Array { of, .. } => of.alignment(),
            Shape::Stack { .. }
            | Shape::Symbol
            | Shape::Time { .. }
            | Shape::Probe
            | Shape::Function
            | Shape::User
            | Shape::Error
            | Shape::Cgroup => 8,
        }
    }
}
