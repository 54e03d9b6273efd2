//! What definitions of C say.

use std::collections::BTreeMap;

use crate::source::Span;

/// Everything that a script's definitions and headers define.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    /// Structs, by name without `struct`. Nameless ones have a name that no script can write.
    pub structs: BTreeMap<String, Record>,
    /// Unions, likewise.
    pub unions: BTreeMap<String, Record>,
    /// Enums, likewise.
    pub enums: BTreeMap<String, Enum>,
    /// Typedefs.
    pub typedefs: BTreeMap<String, Type>,
    /// The enum and value of every name in an enum.
    pub enumerators: BTreeMap<String, Enumerator>,
    /// What `#define` made of names. Put in where the script uses them by the time it is checked.
    pub(super) macros: BTreeMap<String, Macro>,
}

/// `#define NAME body` or `#define NAME(parameters) body`.
#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub(super) parameters: Option<Vec<String>>,
    pub(super) body: String,
}

/// A struct or a union.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its members in order. Empty also if it was only declared: then `complete` is false.
    pub members: Vec<Member>,
    /// Whether its body was seen.
    pub complete: bool,
    /// What its attributes say.
    pub layout: Layout,
    /// Where it stands.
    pub span: Span,
}

/// What attributes say about the place of a record or a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `packed`: no bytes between members.
    pub packed: bool,
    /// `aligned(n)`: the least alignment in bytes, a power of two. `aligned` alone is 16.
    pub aligned: Option<u32>,
    /// The most alignment of members, from `#pragma pack(n)`.
    pub pack: Option<u32>,
}

/// A member of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name. A record without a name lends its members' names to the one around it. A bit field without a
    /// name is only room.
    pub name: Option<String>,
    /// Its type.
    pub of: Type,
    /// The width of a bit field. 0 without a name ends the unit.
    pub bits: Option<u32>,
    /// What its attributes say.
    pub layout: Layout,
    /// Where it stands.
    pub span: Span,
}

/// An enum.
#[derive(Clone, Debug, PartialEq)]
pub struct Enum {
    /// Names and values in order.
    pub enumerators: Vec<(String, i128)>,
    /// The type behind `:` in C23, if told. Without, it is `unsigned int`, or `int` if a value is below 0, or
    /// the 64 bit type of the same kind if a value needs it.
    pub underlying: Option<Type>,
    /// Where it stands.
    pub span: Span,
}

/// A name in an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enumerator {
    /// The enum.
    pub of: String,
    /// The value.
    pub value: i128,
}

/// A type of C.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// `void`.
    Void,
    /// `_Bool`.
    Bool,
    /// `char` and its kin, 1 byte. Plain `char` is text: arrays of it are strings.
    Char(Sign),
    /// `short`.
    Short(Sign),
    /// `int`.
    Int(Sign),
    /// `long`: as wide as an address on every target that we know.
    Long(Sign),
    /// `long long`: 8 bytes.
    LongLong(Sign),
    /// `__int128`.
    Int128(Sign),
    /// `float`.
    Float,
    /// `double`.
    Double,
    /// `long double`.
    LongDouble,
    /// An integer of the script's own names: `uint8`, `int64`, ….
    Sized {
        /// Whether it has a sign.
        sign: Sign,
        /// 1, 2, 4 or 8.
        bytes: u8,
    },
    /// A typedef by its name.
    Named(String),
    /// A struct by its name in [`Definitions::structs`].
    Struct(String),
    /// A union by its name.
    Union(String),
    /// An enum by its name.
    Enum(String),
    /// A pointer.
    Pointer(Box<Type>),
    /// An array of so many elements; 0 also for `[]`.
    Array(Box<Type>, u64),
    /// A function. Only pointers to it occur in records.
    Function,
}

/// The sign of an integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Told as `signed`, or the default of every type but `char`.
    Signed,
    /// Told as `unsigned`.
    Unsigned,
    /// Plain `char`, which the target decides.
    Plain,
}
