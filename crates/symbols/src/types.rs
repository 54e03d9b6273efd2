//! A table of types, as C, C++ and Rust have them: pure data, whoever it came from.
//!
//! A [`Types`] is an arena: types refer to each other by [`TypeId`], so that a type that leads to itself is no special case and a
//! copy of the table is a copy of everything. Types of several files may be in one table, beside those that somebody made up
//! ([`Types::add`]): a script's own structs, say. A [`TypeReader`](crate::TypeReader) fills it from DWARF.
//!
//! What is here came from files that nobody has checked. A type may be a member of itself, an array may have 2^64 elements, a
//! typedef may name itself. So nothing here follows types without a limit ([`DEEPEST`]), and sizes are computed with care.

mod notation;

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc};

/// Types that lie in each other are followed to this depth.
pub const DEEPEST: usize = 32;

/// A type in a [`Types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(u32);

/// The language that a type, or a function, was written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Language {
    /// C, and whatever is not known to be another one.
    #[default]
    C,
    /// C++.
    Cpp,
    /// Rust.
    Rust,
    /// Go.
    Go,
}

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// Its name with its scopes (`ns::Point`, `alloc::string::String`) and its template arguments; none where it has none.
    pub name: Option<Arc<str>>,
    /// Bytes, where told. [`Types::size`] also works it out.
    pub size: Option<u64>,
    /// Bytes, where the source asked for more than the type's own ([`Types::align`] works that out).
    pub align: Option<u64>,
    /// Where it is from.
    pub language: Language,
    /// What it is.
    pub kind: Kind,
}

/// What a type is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `void`, or nothing at all.
    Void,
    /// A number, a character, a truth value.
    Base(Encoding),
    /// Leads to a value of another type.
    Pointer(Pointer, TypeId),
    /// A C++ pointer to a member of the second type's: its offset, or two words where it is a function.
    MemberPointer(TypeId, TypeId),
    /// Elements, one after the other.
    Array(Array),
    /// Struct, class or union.
    Struct(Struct),
    /// Named numbers.
    Enum(Enum),
    /// Another name for a type.
    Typedef(TypeId),
    /// `const` and its like.
    Qualified(Qualifier, TypeId),
    /// A function.
    Function(Signature),
    /// A type that is named and not described here (`struct foo;`): see [`TypeReader::complete`](crate::TypeReader::complete).
    Declared(Word),
    /// A type that was not read, as too many others were read before: see [`TypeReader::complete`](crate::TypeReader::complete).
    Unread,
    /// What is there makes no sense, or is nothing that C, C++ or Rust have.
    Unknown,
}

/// How the bytes of a base type are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Two's complement.
    Signed,
    /// Without a sign.
    Unsigned,
    /// 0 or not 0.
    Bool,
    /// A character with a sign, one byte.
    SignedChar,
    /// A character without a sign, one byte.
    UnsignedChar,
    /// A Unicode character: `char8_t`, `char16_t`, `char32_t`, Rust's `char`.
    Utf,
    /// Binary floating point; 10 significant bytes of 12 or 16 are x87's format.
    Float,
    /// Two floats, the real part first.
    Complex,
    /// Something else, such as decimal floating point.
    Other,
}

/// How a pointer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pointer {
    /// `T *`, `*const T`, `&T`: a Rust type's name tells which.
    Plain,
    /// `T &`.
    Reference,
    /// `T &&`.
    RvalueReference,
}

/// An array of one or more dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub of: TypeId,
    /// The number of elements in each dimension, outermost first; `None` where it is not told or not constant.
    pub counts: Vec<Option<u64>>,
    /// Whether it is a vector register's type (`__m128`).
    pub is_vector: bool,
}

/// The word that declares a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// `struct`.
    Struct,
    /// `class`.
    Class,
    /// `union`.
    Union,
    /// `enum`.
    Enum,
}

impl Word {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            Word::Struct => "struct",
            Word::Class => "class",
            Word::Union => "union",
            Word::Enum => "enum",
        }
    }
}

/// A struct, class or union.
#[derive(Clone, Debug, PartialEq)]
pub struct Struct {
    /// How it is declared.
    pub word: Word,
    /// The classes it inherits from, with their offsets, and its fields, in their order. Not its static ones.
    pub members: Vec<Member>,
    /// Its static members are variables: see [`TypeReader::variable`](crate::TypeReader::variable).
    pub variants: Option<Box<Variants>>,
    /// What its template was given, in order: types only.
    pub arguments: Vec<(Option<Arc<str>>, TypeId)>,
    /// How it goes into functions and comes out.
    pub passing: Passing,
}

/// How a C++ object is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Passing {
    /// As the ABI says of its bytes.
    #[default]
    Value,
    /// By its address, as it has a copy constructor or a destructor.
    Reference,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// None for what is anonymous (its fields belong to the struct around it) and for base classes.
    pub name: Option<Arc<str>>,
    /// Its type.
    pub of: TypeId,
    /// Bytes from the beginning of the struct. Of a virtual base class it is not known: `None`.
    pub offset: Option<u64>,
    /// Where it is a bit field.
    pub bits: Option<Bits>,
    /// What it is.
    pub role: Role,
}

/// The bits of a bit field, as little-endian machines number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bits {
    /// The first one's place, counted from the lowest bit of the byte at the member's offset.
    pub first: u32,
    /// How many, 1 to 128.
    pub count: u32,
}

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A field.
    Field,
    /// A base class.
    Base,
    /// Something the compiler added: the pointer to the table of virtual functions.
    Artificial,
}

/// The variants of a Rust enum.
#[derive(Clone, Debug, PartialEq)]
pub struct Variants {
    /// The field that tells which variant it is: a tag, or another field's niche. None where there is only one variant.
    pub discriminant: Option<Member>,
    /// All of them.
    pub all: Vec<Variant>,
}

/// One variant of a Rust enum.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// The values of the discriminant that mean it, as unsigned numbers of its size; empty: all that mean no other one.
    pub values: Vec<RangeInclusive<u128>>,
    /// What it holds: its name is the variant's.
    pub member: Member,
}

/// A C enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enum {
    /// The type of the numbers, where told.
    pub of: Option<TypeId>,
    /// Names and numbers, in their order.
    pub enumerators: Vec<(Arc<str>, i128)>,
    /// Whether its names need it as their scope (`enum class`).
    pub is_class: bool,
}

impl Enum {
    /// The name of a number; the first, where it has several.
    pub fn name_of(&self, value: i128) -> Option<&str> {
        self.enumerators.iter().find(|(_, of)| *of == value).map(|(name, _)| &**name)
    }

    /// The number of a name.
    pub fn value_of(&self, name: &str) -> Option<i128> {
        self.enumerators.iter().find(|(of, _)| &**of == name).map(|(_, value)| *value)
    }
}

/// `const` and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qualifier {
    /// `const`.
    Const,
    /// `volatile`.
    Volatile,
    /// `restrict`.
    Restrict,
    /// `_Atomic`.
    Atomic,
}

/// The type of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What it gives: [`Kind::Void`] for nothing.
    pub result: TypeId,
    /// What it takes.
    pub parameters: Vec<TypeId>,
    /// Whether more may follow.
    pub is_variadic: bool,
}

/// Where a field is, in the struct that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the beginning.
    pub offset: u64,
    /// Its type.
    pub of: TypeId,
    /// Where it is a bit field.
    pub bits: Option<Bits>,
}

/// Where in a file a type is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    /// A number of the module, which no other one has.
    pub module: u32,
    /// Which part of its DWARF: see [`TypeReader`](crate::TypeReader).
    pub part: u32,
    /// The offset there.
    pub offset: usize,
    /// Whether that is in `.debug_types`.
    pub in_types: bool,
}

/// A table of types.
///
/// ```
/// use trapless_symbols::types::{Encoding, Field, Kind, Types};
///
/// let mut types = Types::new();
/// let int = types.base("int", 4, Encoding::Signed);
/// let point = types.structure("point", &[("x", int), ("y", int)]);
/// assert_eq!(types.size(point), Some(8));
/// let Some(Field { offset: 4, of, bits: None }) = types.field(point, "y") else { panic!() };
/// assert_eq!(types.notation(of), "int");
/// let to = types.pointer_to(point);
/// assert_eq!(types.notation(to), "struct point *");
/// assert_eq!(types.stripped(to), to);
/// assert!(matches!(types.get(to).kind, Kind::Pointer(..)));
/// ```
#[derive(Clone, Debug)]
pub struct Types {
    all: Vec<Type>,
    known: HashMap<Origin, TypeId>,
    origins: HashMap<TypeId, Origin>,
    pointers: HashMap<TypeId, TypeId>,
}

/// Types that one table holds; what comes behind is [`Kind::Unknown`].
const MOST: usize = 1 << 22;

impl Default for Types {
    fn default() -> Types {
        Types::new()
    }
}

impl Types {
    /// An empty table: it holds `void`, and what is not known.
    pub fn new() -> Types {
        let bare = |kind| Type { name: None, size: None, align: None, language: Language::C, kind };
        Types {
            all: vec![bare(Kind::Void), bare(Kind::Unknown)],
            known: HashMap::new(),
            origins: HashMap::new(),
            pointers: HashMap::new(),
        }
    }

    /// `void`.
    pub const VOID: TypeId = TypeId(0);
    /// A type of which nothing is known.
    pub const UNKNOWN: TypeId = TypeId(1);

    /// A type. An id of another table gives an unknown type, or a wrong one.
    pub fn get(&self, id: TypeId) -> &Type {
        self.all.get(id.0 as usize).unwrap_or(&self.all[Self::UNKNOWN.0 as usize])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Never: `void` is always there.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a type. A full table (4 million) gives [`Types::UNKNOWN`].
    pub fn add(&mut self, added: Type) -> TypeId {
        if self.all.len() >= MOST {
            return Self::UNKNOWN;
        }
        self.all.push(added);
        TypeId((self.all.len() - 1) as u32)
    }

    /// Puts another type in the place of one that is there: for types that lead to themselves, the first is added as
    /// [`Kind::Declared`].
    pub fn replace(&mut self, id: TypeId, with: Type) {
        if id.0 > Self::UNKNOWN.0
            && let Some(of) = self.all.get_mut(id.0 as usize)
        {
            *of = with;
        }
    }

    /// Adds a base type.
    pub fn base(&mut self, name: &str, size: u64, encoding: Encoding) -> TypeId {
        let name = Some(name.into());
        let kind = Kind::Base(encoding);
        self.add(Type { name, size: Some(size), align: None, language: Language::C, kind })
    }

    /// A pointer to a type, of 8 bytes; the same one each time.
    pub fn pointer_to(&mut self, to: TypeId) -> TypeId {
        if let Some(known) = self.pointers.get(&to) {
            return *known;
        }
        let (language, kind) = (self.get(to).language, Kind::Pointer(Pointer::Plain, to));
        let id = self.add(Type { name: None, size: Some(8), align: None, language, kind });
        self.pointers.insert(to, id);
        id
    }

    /// Adds a C struct with these fields, laid out as C does.
    pub fn structure(&mut self, name: &str, fields: &[(&str, TypeId)]) -> TypeId {
        let (mut end, mut align, mut members) = (0_u64, 1, Vec::new());
        for (name, of) in fields {
            let own = self.align(*of).max(1);
            align = align.max(own);
            let offset = end.next_multiple_of(own);
            end = offset.saturating_add(self.size(*of).unwrap_or(0)).min(u64::MAX >> 1);
            let (name, of) = (Some((*name).into()), *of);
            members.push(Member { name, of, offset: Some(offset), bits: None, role: Role::Field });
        }
        let kind = Kind::Struct(Struct {
            word: Word::Struct,
            members,
            variants: None,
            arguments: Vec::new(),
            passing: Passing::Value,
        });
        let size = Some(end.next_multiple_of(align));
        self.add(Type { name: Some(name.into()), size, align: None, language: Language::C, kind })
    }

    /// The type without typedefs and qualifiers. What names itself for ever is [`Types::UNKNOWN`].
    pub fn stripped(&self, id: TypeId) -> TypeId {
        let mut at = id;
        for _ in 0..DEEPEST {
            match &self.get(at).kind {
                Kind::Typedef(of) | Kind::Qualified(_, of) => at = *of,
                _ => return at,
            }
        }
        Self::UNKNOWN
    }

    /// What [`Types::stripped`] leaves of it.
    pub fn kind(&self, id: TypeId) -> &Kind {
        &self.get(self.stripped(id)).kind
    }

    /// The struct that it is.
    pub fn as_struct(&self, id: TypeId) -> Option<&Struct> {
        match self.kind(id) {
            Kind::Struct(of) => Some(of),
            _ => None,
        }
    }

    /// What it points or refers to.
    pub fn target(&self, id: TypeId) -> Option<TypeId> {
        match self.kind(id) {
            Kind::Pointer(_, to) => Some(*to),
            _ => None,
        }
    }

    /// Bytes of a value; none for functions, for arrays without an end, and where it is not known.
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let (mut at, mut times) = (id, 1_u64);
        for _ in 0..DEEPEST {
            let this = self.get(at);
            if let Some(size) = this.size {
                return size.checked_mul(times);
            }
            match &this.kind {
                Kind::Typedef(of) | Kind::Qualified(_, of) => at = *of,
                Kind::Array(array) => {
                    for count in &array.counts {
                        times = times.checked_mul((*count)?)?;
                    }
                    at = array.of;
                }
                Kind::Enum(of) => at = of.of?,
                _ => return None,
            }
        }
        None
    }

    /// The alignment in bytes, a power of two; 1 where it is not known. Of a struct it is that of its fields, as far as it has not more.
    pub fn align(&self, id: TypeId) -> u64 {
        let mut budget = MOST_VISITED;
        self.align_at(id, DEEPEST, &mut budget)
    }

    fn align_at(&self, id: TypeId, depth: usize, budget: &mut usize) -> u64 {
        let this = self.get(id);
        if let Some(align) = this.align.filter(|align| align.is_power_of_two()) {
            return align;
        }
        if depth == 0 || *budget == 0 {
            return 1;
        }
        *budget -= 1;
        match &this.kind {
            Kind::Typedef(of) | Kind::Qualified(_, of) => self.align_at(*of, depth - 1, budget),
            Kind::Array(array) if array.is_vector => self.size(id).map_or(1, power),
            Kind::Array(array) => self.align_at(array.of, depth - 1, budget),
            Kind::Struct(of) => {
                let variants = of.variants.as_deref();
                let parts = variants.into_iter().flat_map(|variants| {
                    variants.discriminant.iter().chain(variants.all.iter().map(|variant| &variant.member))
                });
                let members = of.members.iter().chain(parts);
                members.map(|member| self.align_at(member.of, depth - 1, budget)).max().unwrap_or(1)
            }
            Kind::Base(Encoding::Complex) => self.size(id).map_or(1, |size| power(size / 2)),
            Kind::Base(_) | Kind::Enum(_) => self.size(id).map_or(1, power),
            Kind::MemberPointer(..) => 8,
            Kind::Pointer(..) => this.size.map_or(8, power),
            _ => 1,
        }
    }

    /// The field of that name: one of its own, of an anonymous struct or union in it, or of a base class. A path leads into fields:
    /// `sockaddr.family`. The names of a Rust tuple's fields are `__0`, `__1`; `0` is taken for `__0`.
    pub fn field(&self, id: TypeId, path: &str) -> Option<Field> {
        let mut found = Field { offset: 0, of: id, bits: None };
        for name in path.split('.') {
            let next = self.field_named(found.of, name)?;
            found = Field { offset: found.offset.checked_add(next.offset)?, of: next.of, bits: next.bits };
        }
        Some(found)
    }

    fn field_named(&self, id: TypeId, name: &str) -> Option<Field> {
        let is_meant = |member: &Member| {
            member.name.as_deref().is_some_and(|of| of == name || of.strip_prefix("__") == Some(name))
        };
        // Nearest first, as C++ does: a struct's own fields hide those of its bases.
        let mut level = vec![(id, 0_u64)];
        let mut budget = MOST_VISITED;
        for _ in 0..DEEPEST {
            let mut next = Vec::new();
            for (id, at) in level {
                let Some(of) = self.as_struct(id) else { continue };
                for member in &of.members {
                    budget = budget.checked_sub(1)?;
                    let Some(offset) = member.offset.and_then(|offset| offset.checked_add(at)) else {
                        continue;
                    };
                    if is_meant(member) {
                        return Some(Field { offset, of: member.of, bits: member.bits });
                    }
                    if member.name.is_none() {
                        next.push((member.of, offset));
                    }
                }
            }
            if next.is_empty() {
                return None;
            }
            level = next;
        }
        None
    }

    /// The names of the fields that [`Types::field`] finds, nearest first: for messages, and for whoever looks at all.
    pub fn field_names(&self, id: TypeId) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = Vec::new();
        let mut level = vec![id];
        let mut budget = MOST_VISITED;
        for _ in 0..DEEPEST {
            let mut next = Vec::new();
            for member in level.iter().filter_map(|id| self.as_struct(*id)).flat_map(|of| &of.members) {
                if budget == 0 {
                    return names;
                }
                budget -= 1;
                match &member.name {
                    Some(name) => names.push(name.clone()),
                    None => next.push(member.of),
                }
            }
            level = next;
        }
        names
    }

    /// The type as its own language writes it: `const struct point *`, `const Point &`, `alloc::string::String`.
    pub fn notation(&self, id: TypeId) -> String {
        notation::of(self, id, None)
    }

    /// The type in C notation, whatever its language: `struct alloc::string::String *`.
    pub fn c_notation(&self, id: TypeId) -> String {
        notation::of(self, id, Some(Language::C))
    }

    pub(crate) fn known(&self, origin: Origin) -> Option<TypeId> {
        self.known.get(&origin).copied()
    }

    /// Adds a type that is to be read.
    pub(crate) fn promise(&mut self, origin: Origin) -> TypeId {
        let id =
            self.add(Type { name: None, size: None, align: None, language: Language::C, kind: Kind::Unread });
        if id != Self::UNKNOWN {
            self.known.insert(origin, id);
            self.origins.insert(id, origin);
        }
        id
    }

    pub(crate) fn origin(&self, id: TypeId) -> Option<Origin> {
        self.origins.get(&id).copied()
    }
}

/// Members that one question looks at.
const MOST_VISITED: usize = 1 << 14;

/// The largest power of two that is not above, of sizes up to 16.
fn power(size: u64) -> u64 {
    match size {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 4,
        8..=15 => 8,
        _ => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: Option<&str>, of: TypeId, offset: u64) -> Member {
        Member { name: name.map(Into::into), of, offset: Some(offset), bits: None, role: Role::Field }
    }

    fn structure(types: &mut Types, name: Option<&str>, members: Vec<Member>) -> TypeId {
        let kind = Kind::Struct(Struct {
            word: Word::Struct,
            members,
            variants: None,
            arguments: Vec::new(),
            passing: Passing::Value,
        });
        types.add(Type {
            name: name.map(Into::into),
            size: Some(16),
            align: None,
            language: Language::C,
            kind,
        })
    }

    #[test]
    fn fields_of_anonymous_structs_belong_to_the_struct_around_them() {
        let mut types = Types::new();
        let int = types.base("int", 4, Encoding::Signed);
        let inner = structure(&mut types, None, vec![member(Some("a"), int, 0), member(Some("b"), int, 4)]);
        let outer = structure(
            &mut types,
            Some("outer"),
            vec![member(None, inner, 8), member(Some("b"), int, 0), member(Some("in"), inner, 4)],
        );
        let at = |path| types.field(outer, path).map(|field| field.offset);
        assert_eq!(
            [at("a"), at("b"), at("in.b"), at("c"), at("in.c")],
            [Some(8), Some(0), Some(8), None, None]
        );
        assert_eq!(types.field_names(outer), ["b", "in", "a", "b"].map(Arc::<str>::from));
    }

    #[test]
    fn a_type_that_leads_to_itself_ends() {
        let mut types = Types::new();
        let bare = |kind| Type { name: None, size: None, align: None, language: Language::C, kind };
        let own = types.add(bare(Kind::Void));
        types.replace(own, bare(Kind::Typedef(own)));
        assert_eq!((types.stripped(own), types.size(own), types.align(own)), (Types::UNKNOWN, None, 1));
        assert!(types.notation(own).len() < 100);
        let holds = types.add(bare(Kind::Void));
        let many = (0..100).map(|_| member(None, holds, 1 << 60)).collect();
        let inner = structure(&mut types, None, many);
        types.replace(holds, types.get(inner).clone());
        assert_eq!(types.field(holds, "a"), None);
        assert_eq!(types.align(holds), 1);
        let array = Array { of: holds, counts: vec![Some(u64::MAX)], is_vector: false };
        let array = types.add(bare(Kind::Array(array)));
        assert_eq!(types.size(array), None);
    }
}
