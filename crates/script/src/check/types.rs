//! Types: what the checker knows of a value. How they are written, which fit into each other, and what two become together.

mod together;

use crate::shape::{EnumNames, StackMode};
use std::fmt;
use std::sync::Arc;

/// What a value is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Type {
    /// Not known, or no value at all.
    #[default]
    None,
    /// What functions that return nothing return.
    Void,
    /// An integer.
    Int(Int),
    /// An enum of C. It is an integer that is printed by name.
    Enum(Int, Arc<EnumNames>),
    /// A truth value.
    Bool,
    /// A float of 4 or 8 bytes.
    Float(u8),
    /// A string with room for so many bytes, its final zero among them. 0: as many as it will need.
    String(u32),
    /// Bytes, at most so many.
    Buffer(u32),
    /// An address of something.
    Pointer(Arc<Type>, Space),
    /// So many of a kind. 0: as many as the value has that is cast to it.
    Array(Arc<Type>, u32),
    /// A struct or a union of C.
    Struct(StructRef),
    /// Values beside each other.
    Tuple(Arc<[Type]>),
    /// Values with names.
    Record(Arc<[(Arc<str>, Type)]>),
    /// A call stack.
    Stack {
        /// How it is printed.
        mode: StackMode,
        /// How many frames at most.
        frames: u8,
    },
    /// An address that is printed as a symbol.
    Symbol,
    /// A point in time that is printed by a format.
    Timestamp(Arc<str>, Clock),
    /// An internet address.
    Inet,
    /// A hardware address.
    Mac,
    /// A user's id that is printed as a name.
    Username,
    /// A control group's id that is printed as a path.
    CgroupPath,
    /// The probe that was hit.
    Probe,
    /// The function that was hit.
    Function,
    /// The number of an error that is printed as its text.
    ErrorText,
    /// What comes of many values in a map.
    Aggregate(Aggregate),
    /// A word that says how a function works, as `perf` or `monotonic`.
    Mode,
}

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether it is signed.
    pub signed: bool,
    /// Whether it comes from literals that are not below 0, which are as good as unsigned ones. No part of the type's identity.
    pub flexible: bool,
    /// Which clock it counts, where it is a time.
    pub clock: Clock,
}

/// Whose memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The probed process's.
    Foreign,
    /// The probed process's, where that is a 32-bit program: addresses have 4 bytes.
    Narrow,
    /// The body's own variables'.
    Own,
}

/// What a time counts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Boot.
    #[default]
    Boot,
    /// Boot, without suspended time.
    Monotonic,
    /// 1970, in atomic time.
    Tai,
}

/// A struct or a union by its number in [`Structs`](super::structs::Structs).
#[derive(Clone, Debug)]
pub struct StructRef {
    /// The number.
    pub id: u32,
    /// As it is written: `struct name`.
    pub name: Arc<str>,
}

impl PartialEq for StructRef {
    fn eq(&self, other: &StructRef) -> bool {
        self.id == other.id
    }
}

/// What comes of many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// `count()`.
    Count,
    /// `sum()`.
    Sum(Of),
    /// `min()`.
    Min(Of),
    /// `max()`.
    Max(Of),
    /// `avg()`.
    Average(Of),
    /// `stats()`.
    Stats(Of),
    /// `hist()`.
    Hist,
    /// `lhist()`.
    LinearHist,
    /// `tseries()`.
    TimeSeries,
}

/// What kind of numbers an aggregation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Signed integers.
    Signed,
    /// Unsigned ones.
    Unsigned,
    /// Doubles.
    Float,
}

impl Int {
    /// An integer type.
    pub const fn new(size: u8, signed: bool) -> Int {
        Int { size, signed, flexible: false, clock: Clock::Boot }
    }

    /// Bits.
    pub fn bits(self) -> u8 {
        self.size * 8
    }

    /// Whether the types are the same, whatever else is known of them.
    pub fn is(self, other: Int) -> bool {
        (self.size, self.signed) == (other.size, other.signed)
    }

    /// Whether it holds this value, which is of 65 bits so to speak.
    pub fn holds(self, value: i128) -> bool {
        let (low, high) = match self.signed {
            true => (-(1i128 << (self.bits() - 1)), (1i128 << (self.bits() - 1)) - 1),
            false => (0, (1i128 << self.bits()) - 1),
        };
        (low..=high).contains(&value)
    }

    /// The type of a literal: the smallest signed one, or `uint64` if it is too large for `int64`.
    pub fn of_literal(value: i128) -> Int {
        for size in [1, 2, 4, 8] {
            let of = Int::new(size, true);
            if of.holds(value) {
                return Int { flexible: value >= 0, ..of };
            }
        }
        Int::new(8, false)
    }

    /// The value as this type has it: its low bits, extended.
    pub fn wrap(self, value: i64) -> i64 {
        let shift = 64 - u32::from(self.bits());
        match self.signed {
            true => value << shift >> shift,
            false => ((value as u64) << shift >> shift) as i64,
        }
    }
}

impl Type {
    /// `int64`.
    pub const INT64: Type = Type::Int(Int::new(8, true));
    /// `uint64`.
    pub const UINT64: Type = Type::Int(Int::new(8, false));
    /// `uint32`.
    pub const UINT32: Type = Type::Int(Int::new(4, false));
    /// `int8`.
    pub const INT8: Type = Type::Int(Int::new(1, true));
    /// `uint8`.
    pub const UINT8: Type = Type::Int(Int::new(1, false));

    /// An integer type.
    pub const fn int(size: u8, signed: bool) -> Type {
        Type::Int(Int::new(size, signed))
    }

    /// A pointer into the probed process.
    pub fn pointer(to: Type) -> Type {
        Type::Pointer(Arc::new(to), Space::Foreign)
    }

    /// As an integer type, where it is one. Enums are.
    pub fn as_int(&self) -> Option<Int> {
        match self {
            Type::Int(int) | Type::Enum(int, _) => Some(*int),
            _ => None,
        }
    }

    /// Whether it is an integer.
    pub fn is_int(&self) -> bool {
        self.as_int().is_some()
    }

    /// Whether it is an aggregation that is a number.
    pub fn is_number_of_aggregate(&self) -> bool {
        matches!(
            self,
            Type::Aggregate(
                Aggregate::Count
                    | Aggregate::Sum(_)
                    | Aggregate::Min(_)
                    | Aggregate::Max(_)
                    | Aggregate::Average(_)
            )
        )
    }

    /// Whether it is an aggregation that is more than a number.
    pub fn is_chart(&self) -> bool {
        matches!(self, Type::Aggregate(_)) && !self.is_number_of_aggregate()
    }

    /// The number that an aggregation is read as.
    pub fn number(&self) -> Type {
        match self {
            Type::Aggregate(aggregate) if self.is_number_of_aggregate() => match aggregate.of() {
                Of::Float => Type::Float(8),
                Of::Signed => Type::INT64,
                Of::Unsigned => Type::UINT64,
            },
            other => other.clone(),
        }
    }

    /// Whether a value of it is one scalar of the machine.
    pub fn is_scalar(&self) -> bool {
        matches!(
            self,
            Type::Int(_)
                | Type::Enum(..)
                | Type::Bool
                | Type::Float(_)
                | Type::Pointer(..)
                | Type::Username
                | Type::CgroupPath
                | Type::Probe
                | Type::Function
                | Type::ErrorText
                | Type::Timestamp(..)
        )
    }

    /// Whether nothing is known of it.
    pub fn is_none(&self) -> bool {
        matches!(self, Type::None)
    }

    /// What kind of type it is, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Type::None => "none",
            Type::Void => "void",
            Type::Int(_) | Type::Enum(..) => "int",
            Type::Bool => "bool",
            Type::Float(_) => "float",
            Type::String(_) | Type::Probe | Type::ErrorText => "string",
            Type::Buffer(_) => "buffer",
            Type::Pointer(..) => "pointer",
            Type::Array(..) => "array",
            Type::Struct(_) => "c_type",
            Type::Tuple(_) => "tuple",
            Type::Record(_) => "record",
            Type::Stack { .. } => "ustack",
            Type::Symbol | Type::Function => "usym_t",
            Type::Timestamp(..) => "timestamp",
            Type::Inet => "inet",
            Type::Mac => "mac_address",
            Type::Username => "username_t",
            Type::CgroupPath => "cgroup_path_t",
            Type::Aggregate(aggregate) => aggregate.name(),
            Type::Mode => "timestamp_mode",
        }
    }

    /// How deep it is, types in types.
    pub fn depth(&self) -> u32 {
        match self {
            Type::Tuple(of) => 1 + of.iter().map(Type::depth).max().unwrap_or(0),
            Type::Record(of) => 1 + of.iter().map(|(_, of)| of.depth()).max().unwrap_or(0),
            Type::Array(of, _) | Type::Pointer(of, _) => 1 + of.depth(),
            _ => 0,
        }
    }
}

/// A field of a record with its index.
pub fn field<'a>(fields: &'a [(Arc<str>, Type)], name: &str) -> Option<(usize, &'a Type)> {
    fields.iter().position(|(other, _)| &**other == name).map(|index| (index, &fields[index].1))
}

impl Aggregate {
    /// What it is of.
    pub fn of(self) -> Of {
        match self {
            Aggregate::Sum(of)
            | Aggregate::Min(of)
            | Aggregate::Max(of)
            | Aggregate::Average(of)
            | Aggregate::Stats(of) => of,
            Aggregate::Count => Of::Unsigned,
            Aggregate::Hist | Aggregate::LinearHist | Aggregate::TimeSeries => Of::Signed,
        }
    }

    /// The name of its type, whatever it is of.
    pub fn name(self) -> &'static str {
        match self {
            Aggregate::Count => "count_t",
            Aggregate::Sum(_) => "sum_t",
            Aggregate::Min(_) => "min_t",
            Aggregate::Max(_) => "max_t",
            Aggregate::Average(_) => "avg_t",
            Aggregate::Stats(_) => "stats_t",
            Aggregate::Hist => "hist_t",
            Aggregate::LinearHist => "lhist_t",
            Aggregate::TimeSeries => "tseries_t",
        }
    }

    /// How such a value is put in a map.
    pub fn hint(self) -> &'static str {
        match self {
            Aggregate::Count => "count()",
            Aggregate::Sum(_) => "sum(retval)",
            Aggregate::Min(_) => "min(retval)",
            Aggregate::Max(_) => "max(retval)",
            Aggregate::Average(_) => "avg(retval)",
            Aggregate::Stats(_) => "stats(arg2)",
            Aggregate::Hist => "hist(retval)",
            Aggregate::LinearHist => "lhist(rand %10, 0, 10, 1)",
            Aggregate::TimeSeries => "tseries(rand %10, 10s, 1)",
        }
    }

    /// The same of other numbers.
    pub fn with(self, of: Of) -> Aggregate {
        match self {
            Aggregate::Sum(_) => Aggregate::Sum(of),
            Aggregate::Min(_) => Aggregate::Min(of),
            Aggregate::Max(_) => Aggregate::Max(of),
            Aggregate::Average(_) => Aggregate::Average(of),
            Aggregate::Stats(_) => Aggregate::Stats(of),
            other => other,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Int(int) => write!(f, "{}int{}", if int.signed { "" } else { "u" }, int.bits()),
            Type::Enum(_, names) => write!(f, "enum {}", names.name),
            Type::Float(4) => f.write_str("float"),
            Type::Float(_) => f.write_str("double"),
            Type::String(0) => f.write_str("string"),
            Type::String(room) => write!(f, "string[{room}]"),
            Type::Buffer(room) => write!(f, "buffer[{}]", room + 4),
            Type::Pointer(to, _) => write!(f, "{to} *"),
            Type::Array(of, count) => write!(f, "{of}[{count}]"),
            Type::Struct(of) => f.write_str(&of.name),
            Type::Tuple(of) => {
                f.write_str("(")?;
                for (index, of) in of.iter().enumerate() {
                    write!(f, "{}{of}", if index > 0 { "," } else { "" })?;
                }
                f.write_str(")")
            }
            Type::Record(of) => {
                f.write_str("record { ")?;
                for (index, (name, of)) in of.iter().enumerate() {
                    write!(f, "{}.{name} = {of}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str(" }")
            }
            Type::Stack { mode, frames } => {
                let mode = match mode {
                    StackMode::Bpftrace => "bpftrace",
                    StackMode::Perf => "perf",
                    StackMode::Raw => "raw",
                    StackMode::BuildId => "build_id",
                };
                write!(f, "ustack_{mode}_{frames}")
            }
            Type::Inet => f.write_str("inet[24]"),
            Type::Aggregate(aggregate) => {
                let unsigned = aggregate.of() == Of::Unsigned && *aggregate != Aggregate::Count;
                write!(f, "{}{}", if unsigned { "u" } else { "" }, aggregate.name())
            }
            other => f.write_str(other.kind()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_have_the_smallest_signed_type() {
        for (value, name) in [
            (0, "int8"),
            (127, "int8"),
            (128, "int16"),
            (-129, "int16"),
            (1 << 31, "int64"),
            (i128::from(u64::MAX), "uint64"),
        ] {
            assert_eq!(Type::Int(Int::of_literal(value)).to_string(), name, "{value}");
        }
    }

    #[test]
    fn integers_become_what_holds_both() {
        let literal = Int::of_literal(1);
        let of = Int::new;
        for (left, right, size, signed) in [
            (of(4, true), of(2, true), 4, true),
            (of(4, false), of(2, true), 8, true),
            (of(2, false), of(4, true), 4, true),
            (of(8, false), of(8, true), 8, true),
            (of(4, false), literal, 4, false),
            (literal, of(1, false), 1, false),
        ] {
            let both = left.promoted(right);
            assert_eq!((both.size, both.signed), (size, signed), "{left:?} {right:?}");
        }
    }

    #[test]
    fn records_are_compatible_in_any_order() {
        let of = |names: [&str; 2]| Type::Record(names.map(|name| (name.into(), Type::INT8)).to_vec().into());
        assert!(of(["a", "b"]).is_compatible(&of(["b", "a"])));
        assert!(!of(["a", "b"]).is_compatible(&of(["a", "c"])));
        assert!(!of(["a", "b"]).is_same(&of(["b", "a"])));
    }
}
