//! Structs and unions: where their members are, by the rules of C on the target.

use super::environment::{Described, Environment, TypeName};
use super::types::{Int, Space, StructRef, Type};
use crate::shape::{Bits, EnumNames, Field, Fields, Shape};
use crate::syntax::c::{self, Definitions, Sign};
use std::collections::HashMap;
use std::sync::Arc;

/// A struct or union, laid out.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// Length in bytes.
    pub size: u32,
    /// What its address is a multiple of.
    pub align: u32,
    /// Its members, those of nameless members among them.
    pub members: Vec<Member>,
    /// Whether its members are known.
    pub is_complete: bool,
}

/// A member of it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: Arc<str>,
    /// How far from the beginning, in bytes.
    pub offset: u32,
    /// Its type.
    pub of: Type,
    /// The bits it has of the integer there.
    pub bits: Option<Bits>,
}

/// How deep structs may lie in structs.
const MAX_NESTING: u32 = 64;

/// The largest value that is handled, in bytes.
pub const MAX_SIZE: u32 = 1 << 20;

/// All structs and unions that a script names, by number.
pub struct Structs<'a> {
    definitions: &'a Definitions,
    environment: &'a dyn Environment,
    list: Vec<Option<Arc<Struct>>>,
    numbers: HashMap<String, u32>,
    enums: HashMap<String, Option<Arc<EnumNames>>>,
}

impl<'a> Structs<'a> {
    /// Those of these definitions, and what debug information knows beyond.
    pub fn new(definitions: &'a Definitions, environment: &'a dyn Environment) -> Structs<'a> {
        Structs { definitions, environment, list: Vec::new(), numbers: HashMap::new(), enums: HashMap::new() }
    }

    /// Bytes of an address in the probed program.
    pub fn word(&self) -> u8 {
        self.environment.machine().word
    }

    /// What pointers into the probed program lead to.
    pub fn space(&self) -> Space {
        if self.word() == 4 { Space::Narrow } else { Space::Foreign }
    }

    /// A pointer into the probed program.
    pub fn pointer(&self, to: Type) -> Type {
        Type::Pointer(Arc::new(to), self.space())
    }

    /// The struct or union of that name, whether it is known or not.
    fn number(&mut self, name: &str) -> StructRef {
        let next = self.list.len() as u32;
        let id = *self.numbers.entry(name.to_owned()).or_insert(next);
        if id == next {
            self.list.push(None);
        }
        StructRef { id, name: name.into() }
    }

    /// Whether there is such a struct or union.
    pub fn is_known(&mut self, of: &StructRef) -> bool {
        self.get(of).is_complete
    }

    /// Its layout. One that is not known has no members.
    pub fn get(&mut self, of: &StructRef) -> Arc<Struct> {
        self.laid_out(of, 0)
    }

    fn laid_out(&mut self, of: &StructRef, depth: u32) -> Arc<Struct> {
        if let Some(Some(known)) = self.list.get(of.id as usize) {
            return known.clone();
        }
        if depth > MAX_NESTING {
            return Arc::default();
        }
        let definitions = self.definitions;
        let (record, is_union, name) = match of.name.split_once(' ') {
            Some(("struct", name)) => {
                (definitions.structs.get(name), false, TypeName::Struct(name.to_owned()))
            }
            Some(("union", name)) => (definitions.unions.get(name), true, TypeName::Union(name.to_owned())),
            _ => (None, false, TypeName::Named(of.name.to_string())),
        };
        let layout = match record {
            Some(record) if record.complete => self.placed(record, is_union, depth),
            _ => self.looked_up(&name, depth),
        };
        let layout = Arc::new(layout);
        if let Some(slot) = self.list.get_mut(of.id as usize) {
            *slot = Some(layout.clone());
        }
        layout
    }

    fn looked_up(&mut self, name: &TypeName, depth: u32) -> Struct {
        let Some(Described::Members { size, members }) = self.environment.described(name) else {
            return Struct::default();
        };
        let mut layout =
            Struct { size: size.min(MAX_SIZE), align: 1, members: Vec::new(), is_complete: true };
        for member in members {
            let of = self.described(&member.of, depth + 1);
            layout.align = layout.align.max(self.measure(&of, depth + 1).1);
            let bits = member.bits.map(|(first, count)| Bits { first, count });
            layout.members.push(Member { name: member.name.into(), offset: member.offset, of, bits });
        }
        layout
    }

    fn placed(&mut self, record: &c::Record, is_union: bool, depth: u32) -> Struct {
        let mut placer = Placer { packed: record.layout.packed, is_union, bits: 0, size: 0, align: 1 };
        if let Some(aligned) = record.layout.aligned {
            placer.align = aligned.clamp(1, 4096);
        }
        let mut members = Vec::new();
        for member in &record.members {
            let of = self.c_type(&member.of, depth + 1);
            let (size, mut align) = self.measure(&of, depth + 1);
            // In 32-bit x86 what has 8 bytes begins at multiples of 4 in structs (System V ABI, "Fundamental Types").
            align = align.min(self.word().into());
            if placer.packed || member.layout.packed {
                align = 1;
            }
            if let Some(pack) = record.layout.pack {
                align = align.min(pack.max(1));
            }
            if let Some(aligned) = member.layout.aligned {
                align = align.max(aligned.clamp(1, 4096));
            }
            if let Some(width) = member.bits {
                let Some((offset, first)) = placer.bit_field(size, align, width) else { continue };
                if let Some(name) = &member.name {
                    let bits = Some(Bits { first, count: width.min(64) as u8 });
                    members.push(Member { name: name.as_str().into(), offset, of, bits });
                }
                continue;
            }
            let offset = placer.member(size, align);
            match (&member.name, &of) {
                (Some(name), _) => {
                    members.push(Member { name: name.as_str().into(), offset, of, bits: None });
                }
                (None, Type::Struct(inner)) => {
                    let inner = self.laid_out(inner, depth + 1);
                    members.extend(inner.members.iter().map(|member| Member {
                        offset: offset.saturating_add(member.offset),
                        ..member.clone()
                    }));
                }
                (None, _) => {}
            }
        }
        let (size, align) = placer.finish();
        Struct { size: size.min(MAX_SIZE), align, members, is_complete: true }
    }

    /// The type of a C type.
    pub fn c_type(&mut self, of: &c::Type, depth: u32) -> Type {
        let int = |size, sign: &Sign| Type::int(size, !matches!(sign, Sign::Unsigned));
        if depth > MAX_NESTING {
            return Type::None;
        }
        match of {
            c::Type::Void | c::Type::Function => Type::Void,
            c::Type::Bool => Type::Bool,
            c::Type::Char(sign) => int(1, sign),
            c::Type::Short(sign) => int(2, sign),
            c::Type::Int(sign) => int(4, sign),
            c::Type::Long(sign) => int(self.word(), sign),
            c::Type::LongLong(sign) => int(8, sign),
            c::Type::Int128(_) => Type::Array(Arc::new(Type::UINT64), 2),
            c::Type::Float => Type::Float(4),
            c::Type::Double => Type::Float(8),
            c::Type::LongDouble if self.word() == 4 => Type::Array(Arc::new(Type::UINT32), 3),
            c::Type::LongDouble => Type::Array(Arc::new(Type::UINT64), 2),
            c::Type::Sized { sign, bytes } => int(*bytes, sign),
            c::Type::Named(name) => self.named(name, depth + 1).unwrap_or(Type::None),
            c::Type::Struct(name) => Type::Struct(self.number(&format!("struct {name}"))),
            c::Type::Union(name) => Type::Struct(self.number(&format!("union {name}"))),
            c::Type::Enum(name) => self.enumeration(name).unwrap_or(Type::int(4, false)),
            c::Type::Pointer(to) => {
                let to = self.c_type(to, depth + 1);
                self.pointer(to)
            }
            // Text is a string, where it lies and not where it is pointed to.
            c::Type::Array(of, count) if matches!(**of, c::Type::Char(Sign::Plain | Sign::Signed)) => {
                Type::String(count_of(*count))
            }
            c::Type::Array(of, count) => {
                let of = self.c_type(of, depth + 1);
                Type::Array(Arc::new(of), count_of(*count))
            }
        }
    }

    /// The type of a described type.
    pub fn described(&mut self, of: &Described, depth: u32) -> Type {
        if depth > MAX_NESTING {
            return Type::None;
        }
        match of {
            Described::Void => Type::Void,
            Described::Int { size: size @ (1 | 2 | 4 | 8), signed } => Type::int(*size, *signed),
            Described::Int { size, .. } => Type::Array(Arc::new(Type::UINT8), (*size).into()),
            Described::Char => Type::INT8,
            Described::Bool => Type::Bool,
            Described::Float(size @ (4 | 8)) => Type::Float(*size),
            Described::Float(size) => Type::Array(Arc::new(Type::UINT8), (*size).into()),
            Described::Pointer(to) => {
                let to = self.described(to, depth + 1);
                self.pointer(to)
            }
            Described::Array(of, count) if **of == Described::Char => Type::String(count_of(*count)),
            Described::Array(of, count) => {
                Type::Array(Arc::new(self.described(of, depth + 1)), count_of(*count))
            }
            Described::Record(name) => Type::Struct(match name {
                TypeName::Struct(name) => self.number(&format!("struct {name}")),
                TypeName::Union(name) => self.number(&format!("union {name}")),
                TypeName::Enum(name) | TypeName::Named(name) => self.number(name),
            }),
            Described::Enum { name, size, signed, values } => {
                let values = values.iter().map(|(value, name)| (*value, name.as_str().into())).collect();
                let size = if matches!(size, 1 | 2 | 4 | 8) { *size } else { 4 };
                Type::Enum(
                    Int::new(size, *signed),
                    Arc::new(EnumNames { name: name.as_str().into(), values }),
                )
            }
            Described::Members { .. } => Type::None,
            Described::Unknown(size) => Type::Array(Arc::new(Type::UINT8), (*size).min(MAX_SIZE)),
        }
    }

    /// The struct of this name.
    pub fn structure(&mut self, name: &str) -> Type {
        Type::Struct(self.number(&format!("struct {name}")))
    }

    /// The union of this name.
    pub fn union(&mut self, name: &str) -> Type {
        Type::Struct(self.number(&format!("union {name}")))
    }

    /// The enum of this name, if there is one.
    pub fn enumeration(&mut self, name: &str) -> Option<Type> {
        let Some(definition) = self.definitions.enums.get(name) else {
            let found = self.environment.described(&TypeName::Enum(name.to_owned()))?;
            return matches!(found, Described::Enum { .. }).then(|| self.described(&found, 0));
        };
        let values = definition.enumerators.iter();
        let known = self.enums.entry(name.to_owned()).or_insert_with(|| {
            let values = values.map(|(name, value)| (*value as i64, name.as_str().into())).collect();
            Some(Arc::new(EnumNames { name: name.into(), values }))
        });
        let names = known.clone()?;
        let int = match &definition.underlying {
            Some(underlying) => self.c_type(underlying, 1).as_int(),
            None => None,
        };
        let values = definition.enumerators.iter().map(|(_, value)| *value);
        let (low, high) = values.fold((0, 0), |(low, high), value| (value.min(low), value.max(high)));
        let of = |size| Int::new(size, low < 0);
        let int = int.unwrap_or(if of(4).holds(low) && of(4).holds(high) { of(4) } else { of(8) });
        Some(Type::Enum(int, names))
    }

    /// The value of a name of an enum, with the enum.
    pub fn enumerator(&mut self, name: &str) -> Option<(Type, i64)> {
        let Some(enumerator) = self.definitions.enumerators.get(name) else {
            let (of, value) = self.environment.enumerator(name)?;
            return Some((self.described(&of, 0), value));
        };
        let of = self.enumeration(&enumerator.of).unwrap_or(Type::int(8, true));
        Some((of, enumerator.value as i64))
    }

    /// The type of this name: of C, of a typedef, or of debug information.
    pub fn named(&mut self, name: &str, depth: u32) -> Option<Type> {
        if depth > MAX_NESTING {
            return None;
        }
        let definitions = self.definitions;
        if let Some(of) = definitions.typedefs.get(name) {
            return Some(self.c_type(of, depth + 1)).filter(|of| !of.is_none());
        }
        let int = |size, signed| Some(Type::int(size, signed));
        match name {
            "char" | "signed char" | "int8_t" | "s8" | "__s8" => int(1, true),
            "unsigned char" | "uint8_t" | "u8" | "__u8" => int(1, false),
            "short" | "int16_t" | "s16" | "__s16" => int(2, true),
            "unsigned short" | "uint16_t" | "u16" | "__u16" => int(2, false),
            "int" | "int32_t" | "s32" | "__s32" | "pid_t" => int(4, true),
            "unsigned int" | "unsigned" | "uint32_t" | "u32" | "__u32" | "uid_t" | "gid_t" => int(4, false),
            "long" | "ssize_t" | "intptr_t" | "off_t" => int(self.word(), true),
            "long long" | "int64_t" | "s64" | "__s64" => int(8, true),
            "unsigned long" | "size_t" | "uintptr_t" => int(self.word(), false),
            "unsigned long long" | "uint64_t" | "u64" | "__u64" => int(8, false),
            "_Bool" => Some(Type::Bool),
            "float" => Some(Type::Float(4)),
            "double" => Some(Type::Float(8)),
            _ => {
                let found = self.environment.described(&TypeName::Named(name.to_owned()))?;
                Some(match found {
                    Described::Members { .. } => Type::Struct(self.number(name)),
                    other => self.described(&other, depth + 1),
                })
            }
        }
    }

    /// Length and alignment of a type in C.
    pub fn measure(&mut self, of: &Type, depth: u32) -> (u32, u32) {
        match of {
            Type::Struct(of) => {
                let layout = self.laid_out(of, depth);
                (layout.size, layout.align.max(1))
            }
            Type::Array(of, count) => {
                let (size, align) = self.measure(of, depth + 1);
                (size.saturating_mul(*count).min(MAX_SIZE), align)
            }
            Type::String(size) => (*size, 1),
            Type::Int(int) | Type::Enum(int, _) => (int.size.into(), int.size.into()),
            other => {
                let shape = self.shape(other, depth + 1);
                (shape.size(), shape.alignment().max(1))
            }
        }
    }

    /// Length of a type in bytes.
    pub fn size(&mut self, of: &Type) -> u32 {
        self.measure(of, 0).0
    }

    /// Where the parts of a tuple or record lie.
    pub fn places<'t>(&mut self, parts: impl Iterator<Item = (&'t str, &'t Type)>, depth: u32) -> Fields {
        let mut fields = Fields::default();
        let mut widest = 1;
        for (name, of) in parts {
            let shape = self.shape(of, depth + 1);
            let (size, align) = match of {
                Type::Struct(_) => self.measure(of, depth + 1),
                _ => (shape.size(), shape.alignment().max(1)),
            };
            let offset = fields.size.next_multiple_of(align);
            widest = widest.max(align);
            fields.fields.push(Field { name: name.into(), offset, shape, bits: None });
            fields.size = offset.saturating_add(size).min(MAX_SIZE);
        }
        fields.size = fields.size.next_multiple_of(widest);
        fields
    }

    /// The same inside of a C type, where a string is all that is in an array of characters.
    fn inside(&mut self, of: &Type, depth: u32) -> Shape {
        match of {
            Type::String(count) => Shape::Characters { count: *count },
            of => self.shape(of, depth),
        }
    }

    /// How a value of a type lies in memory and is printed.
    pub fn shape(&mut self, of: &Type, depth: u32) -> Shape {
        if depth > MAX_NESTING {
            return Shape::None;
        }
        match of {
            Type::None | Type::Void | Type::Mode => Shape::None,
            Type::Int(int) => Shape::Int { size: int.size, signed: int.signed },
            Type::Enum(int, names) => {
                Shape::Enum { size: int.size, signed: int.signed, names: names.clone() }
            }
            Type::Bool => Shape::Bool,
            Type::Float(size) => Shape::Float(*size),
            Type::String(room) => Shape::Text { room: *room },
            Type::Buffer(room) => Shape::Buffer { room: *room },
            Type::Pointer(_, Space::Narrow) => Shape::Pointer(4),
            Type::Pointer(..) => Shape::Pointer(8),
            Type::Array(of, count) => {
                Shape::Array { count: *count, of: Arc::new(self.inside(of, depth + 1)) }
            }
            Type::Struct(of) => {
                let layout = self.laid_out(of, depth + 1);
                let fields = layout.members.iter().map(|member| Field {
                    name: member.name.clone(),
                    offset: member.offset,
                    shape: self.inside(&member.of, depth + 1),
                    bits: member.bits,
                });
                Shape::Record(Arc::new(Fields { fields: fields.collect(), size: layout.size }))
            }
            Type::Tuple(parts) => {
                Shape::Tuple(Arc::new(self.places(parts.iter().map(|of| ("", of)), depth + 1)))
            }
            Type::Record(parts) => {
                Shape::Record(Arc::new(self.places(parts.iter().map(|(name, of)| (&**name, of)), depth + 1)))
            }
            Type::Stack { mode, frames } => Shape::Stack { mode: *mode, frames: *frames },
            Type::Symbol => Shape::Symbol,
            Type::Timestamp(format, clock) => Shape::Time {
                format: format.clone(),
                clock: match clock {
                    super::types::Clock::Boot => crate::shape::TimeBase::Boot,
                    super::types::Clock::Monotonic => crate::shape::TimeBase::Monotonic,
                    super::types::Clock::Tai => crate::shape::TimeBase::Tai,
                },
            },
            Type::Inet => Shape::Inet,
            Type::Mac => Shape::Mac,
            Type::Username => Shape::User,
            Type::CgroupPath => Shape::Cgroup,
            Type::Probe => Shape::Probe,
            Type::Function => Shape::Function,
            Type::ErrorText => Shape::Error,
            Type::Aggregate(_) if of.is_chart() => Shape::None,
            Type::Aggregate(_) => self.shape(&of.number(), depth + 1),
        }
    }
}

/// As many elements as are handled.
fn count_of(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(MAX_SIZE).min(MAX_SIZE)
}

/// Puts members one behind the other.
struct Placer {
    packed: bool,
    is_union: bool,
    /// The next free bit.
    bits: u64,
    size: u32,
    align: u32,
}

impl Placer {
    fn member(&mut self, size: u32, align: u32) -> u32 {
        let align = align.max(1);
        let from = if self.is_union { 0 } else { self.bits.div_ceil(8) as u32 };
        let offset = from.next_multiple_of(align).min(MAX_SIZE);
        self.advance(u64::from(offset.saturating_add(size)) * 8, align);
        offset
    }

    /// Where a bit field of a type of that size is: the offset of the integer, and its lowest bit there.
    fn bit_field(&mut self, size: u32, align: u32, width: u32) -> Option<(u32, u8)> {
        let unit = u64::from(size) * 8;
        if size == 0 || size > 8 {
            return None;
        }
        if width == 0 {
            self.bits = self.bits.next_multiple_of(unit);
            return None;
        }
        let width = u64::from(width).min(unit);
        let mut at = if self.is_union { 0 } else { self.bits };
        // A bit field lies in one unit of its type, unless the struct is packed.
        if !self.packed && at / unit != (at + width - 1) / unit {
            at = at.next_multiple_of(unit);
        }
        self.advance(at + width, align);
        let start = if self.packed { at / 8 } else { at / unit * u64::from(size) };
        let first = at - start * 8;
        // What is packed across the end of its type is not had by one read of it.
        (first + width <= unit.max(64)).then_some((start as u32, first as u8))
    }

    fn advance(&mut self, end: u64, align: u32) {
        let end = end.min(u64::from(MAX_SIZE) * 8);
        if !self.is_union {
            self.bits = end;
        }
        self.size = self.size.max(end.div_ceil(8) as u32);
        self.align = self.align.max(align);
    }

    fn finish(self) -> (u32, u32) {
        (self.size.next_multiple_of(self.align), self.align)
    }
}
