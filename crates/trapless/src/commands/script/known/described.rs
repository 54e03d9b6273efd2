//! From DWARF's types to what the checker has to know of them.
//!
//! Structs are told by their names, and their members when they are asked for. Different types may have one name, in different files or units of
//! the program, and then all but the first get a number behind it; types without one get a name of their own.

use super::places::Home;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use trapless_script::check::environment::{Described, Member, TypeName};
use trapless_symbols::types::{Array, DEEPEST, Encoding, Enum, Kind, Role, Struct, Word};
use trapless_symbols::{Machine, TypeId, TypeReader, Types};

/// Members that are told of one struct.
const MOST_MEMBERS: usize = 1 << 14;

/// A type of a file.
pub(super) type Typed = (Home, TypeId);

/// By which names structs were told, so that their members are found.
#[derive(Default)]
pub(super) struct Names {
    types: HashMap<TypeName, Typed>,
    names: HashMap<Typed, TypeName>,
    /// What types of one name have to have in common to be one.
    looks: HashMap<TypeName, Look>,
}

/// The size of a struct, and its members' names and offsets.
type Look = (Option<u64>, Vec<(Option<Arc<str>>, Option<u64>)>);

impl Names {
    /// The type of a name that was told.
    pub fn type_of(&self, name: &TypeName) -> Option<Typed> {
        self.types.get(name).copied()
    }

    /// From now on this is the type of that name, if it has none.
    fn name(&mut self, name: TypeName, of: Typed) {
        self.types.entry(name.clone()).or_insert(of);
        self.names.entry(of).or_insert(name);
    }

    fn known(&self, of: Typed) -> Option<TypeName> {
        self.names.get(&of).cloned()
    }

    /// A name for a type: this one, or with a number behind it.
    fn name_once(&mut self, wanted: TypeName, of: Typed, look: Look) -> TypeName {
        let mut name = wanted.clone();
        for number in 2.. {
            match self.looks.get(&name) {
                Some(other) if *other != look => name = numbered(&wanted, number),
                _ => break,
            }
        }
        self.looks.insert(name.clone(), look);
        self.name(name.clone(), of);
        name
    }
}

fn numbered(name: &TypeName, number: u32) -> TypeName {
    let with = |name: &String| format!("{name} #{number}");
    match name {
        TypeName::Struct(name) => TypeName::Struct(with(name)),
        TypeName::Union(name) => TypeName::Union(with(name)),
        TypeName::Enum(name) => TypeName::Enum(with(name)),
        TypeName::Named(name) => TypeName::Named(with(name)),
    }
}

/// Describes types of one file.
pub(super) struct Describer<'k, 'm> {
    pub reader: &'k mut TypeReader<'m>,
    pub types: &'k mut Types,
    pub names: &'k mut Names,
    pub home: Home,
    pub machine: Machine,
}

impl Describer<'_, '_> {
    /// Reads on, where a type was not yet read.
    pub fn complete(&mut self, id: TypeId) {
        self.reader.complete(self.types, id);
    }

    /// A type.
    pub fn described(&mut self, id: TypeId) -> Described {
        self.at_depth(id, DEEPEST)
    }

    fn at_depth(&mut self, id: TypeId, depth: usize) -> Described {
        self.complete(id);
        let size = self.types.size(id).and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
        let Some(below) = depth.checked_sub(1) else { return Described::Unknown(size) };
        let own = self.types.stripped(id);
        match self.types.get(own).kind.clone() {
            Kind::Void | Kind::Function(_) => Described::Void,
            Kind::Base(encoding) => base(encoding, size, self.types.get(own).name.as_deref()),
            Kind::Pointer(_, to) => Described::Pointer(Box::new(self.pointed(to, below))),
            Kind::Array(array) => self.array(&array, below),
            Kind::Struct(of) => Described::Record(self.name_of(id, &of)),
            Kind::Enum(of) => self.enumeration(id, size, &of),
            // Another file may know it.
            Kind::Declared(word) => Described::Record(declared(word, self.types.get(own).name.as_deref())),
            Kind::MemberPointer(..) => match size {
                8 => Described::Int { size: 8, signed: false },
                _ => Described::Unknown(size),
            },
            Kind::Typedef(_) | Kind::Qualified(..) | Kind::Unread | Kind::Unknown => Described::Unknown(size),
        }
    }

    /// What a pointer leads to. Deeper ones than anybody follows lead to nothing.
    fn pointed(&mut self, to: TypeId, depth: usize) -> Described {
        if depth == 0 {
            return Described::Void;
        }
        match self.at_depth(to, depth) {
            Described::Unknown(0) => Described::Void,
            of => of,
        }
    }

    fn array(&mut self, array: &Array, depth: usize) -> Described {
        let mut of = self.at_depth(array.of, depth);
        for count in array.counts.iter().rev().take(depth) {
            of = Described::Array(Box::new(of), count.unwrap_or(0));
        }
        of
    }

    fn enumeration(&mut self, id: TypeId, size: u32, of: &Enum) -> Described {
        let is_signed =
            |of| matches!(self.types.kind(of), Kind::Base(Encoding::Signed | Encoding::SignedChar));
        let signed = of.of.is_some_and(is_signed) || of.enumerators.iter().any(|(_, value)| *value < 0);
        // Those above the range of signed words stand for what their bits mean.
        let values = of.enumerators.iter().map(|(name, value)| (*value as i64, name.to_string()));
        Described::Enum {
            name: self.written(id).unwrap_or_default(),
            size: u8::try_from(size).unwrap_or(4),
            signed,
            values: values.collect(),
        }
    }

    /// The name of a type, or that of the typedef which leads to it.
    fn written(&self, id: TypeId) -> Option<String> {
        let name = |id| self.types.get(id).name.as_ref().map(ToString::to_string);
        name(self.types.stripped(id)).or_else(|| {
            let mut at = id;
            for _ in 0..DEEPEST {
                match self.types.get(at).kind {
                    Kind::Qualified(_, of) => at = of,
                    Kind::Typedef(_) => return name(at),
                    _ => break,
                }
            }
            None
        })
    }

    fn name_of(&mut self, id: TypeId, of: &Struct) -> TypeName {
        let own = self.types.stripped(id);
        let typed = (self.home, own);
        if let Some(known) = self.names.known(typed) {
            return known;
        }
        let has_own = self.types.get(own).name.is_some();
        let name = match self.written(id) {
            Some(name) if has_own => declared(of.word, Some(&name)),
            Some(typedef) => TypeName::Named(typedef),
            None => declared(of.word, None),
        };
        self.names.name_once(name, typed, self.look(own, of))
    }

    fn look(&self, own: TypeId, of: &Struct) -> Look {
        let members = of.members.iter().map(|member| (member.name.clone(), member.offset));
        (self.types.get(own).size, members.collect())
    }

    /// The members of a struct that the script has asked for by this name.
    pub fn members_of(&mut self, name: &TypeName, id: TypeId) -> Option<Described> {
        let own = self.types.stripped(id);
        let look = self.look(own, self.types.as_struct(id)?);
        self.names.name_once(name.clone(), (self.home, own), look);
        self.members(id)
    }

    /// The members of a struct, with those of its nameless members and its base classes; a name that several have is the nearest one's.
    pub fn members(&mut self, id: TypeId) -> Option<Described> {
        self.complete(id);
        let size = u32::try_from(self.types.size(id)?).ok()?;
        self.types.as_struct(id)?;
        let mut found: Vec<(usize, Member)> = Vec::new();
        // What is to be looked at, with its offset and its depth; in the order of the program.
        let mut waiting = vec![(None, id, 0, 0)];
        while let Some((field, of, offset, depth)) = waiting.pop() {
            if found.len() >= MOST_MEMBERS {
                break;
            }
            if let Some((name, bits)) = field {
                let described = self.described(of);
                found.extend(member(name, described, offset, bits).map(|member| (depth, member)));
                continue;
            }
            self.complete(of);
            if depth >= DEEPEST {
                continue;
            }
            let Some(inner) = self.types.as_struct(of) else { continue };
            for member in inner.members.iter().rev() {
                let Some(at) = member.offset.and_then(|at| at.checked_add(offset)) else { continue };
                let field = match (&member.name, member.role) {
                    (_, Role::Artificial) => continue,
                    (Some(name), Role::Field) => Some((name.clone(), member.bits)),
                    // Bits without a name only fill.
                    (None, Role::Field) if member.bits.is_some() => continue,
                    _ => None,
                };
                waiting.push((field, member.of, at, depth + 1));
            }
            // Members of members, again and again, are more than anybody wrote.
            if waiting.len() > MOST_MEMBERS {
                break;
            }
        }
        let mut nearest: HashMap<String, usize> = HashMap::new();
        for (depth, member) in &found {
            let known = nearest.entry(member.name.clone()).or_insert(*depth);
            *known = (*known).min(*depth);
        }
        let mut told = HashSet::new();
        found.retain(|(depth, member)| nearest[&member.name] == *depth && told.insert(member.name.clone()));
        Some(Described::Members { size, members: found.into_iter().map(|(_, member)| member).collect() })
    }
}

/// A struct's name with its word.
fn declared(word: Word, name: Option<&str>) -> TypeName {
    let name = name.unwrap_or("(anonymous)").to_owned();
    match word {
        Word::Union => TypeName::Union(name),
        Word::Enum => TypeName::Enum(name),
        Word::Struct | Word::Class => TypeName::Struct(name),
    }
}

fn base(encoding: Encoding, size: u32, name: Option<&str>) -> Described {
    let int = |signed| match size {
        1 | 2 | 4 | 8 => Described::Int { size: size as u8, signed },
        _ => Described::Unknown(size),
    };
    match encoding {
        Encoding::SignedChar | Encoding::UnsignedChar if name == Some("char") && size == 1 => Described::Char,
        Encoding::Signed | Encoding::SignedChar => int(true),
        Encoding::Unsigned | Encoding::UnsignedChar | Encoding::Utf => int(false),
        Encoding::Bool if size == 1 => Described::Bool,
        Encoding::Bool => int(false),
        Encoding::Float if matches!(size, 4 | 8) => Described::Float(size as u8),
        Encoding::Float | Encoding::Complex | Encoding::Other => Described::Unknown(size),
    }
}

/// A member; none that is too far away to be read.
fn member(
    name: Arc<str>,
    of: Described,
    offset: u64,
    bits: Option<trapless_symbols::types::Bits>,
) -> Option<Member> {
    let name = name.to_string();
    let Some(bits) = bits else {
        return Some(Member { name, offset: u32::try_from(offset).ok()?, of, bits: None });
    };
    let size: u64 = match &of {
        Described::Int { size, .. } | Described::Enum { size, .. } => (*size).into(),
        Described::Char | Described::Bool => 1,
        _ => return None,
    };
    let (unit, count) = (size.max(1) * 8, u64::from(bits.count));
    let first = offset.checked_mul(8)?.checked_add(bits.first.into())?;
    // In one aligned integer of its type; what is packed across the end of that is read from its first byte.
    let start = match first / unit == (first + count.max(1) - 1) / unit {
        true => first / unit * size,
        false => first / 8,
    };
    let low = first - start * 8;
    (low + count <= 64).then_some(())?;
    let offset = u32::try_from(start).ok()?;
    Some(Member { name, offset, of, bits: Some((low as u8, count as u8)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_symbols::types::Bits;

    #[test]
    fn bit_fields_are_parts_of_integers_of_their_types() {
        let int = Described::Int { size: 4, signed: false };
        let at = |offset, first, count| {
            let member = member("f".into(), int.clone(), offset, Some(Bits { first, count }))?;
            Some((member.offset, member.bits?))
        };
        assert_eq!(at(0, 3, 5), Some((0, (3, 5))));
        // The byte in which it begins is told, or the integer that it is in.
        assert_eq!(at(5, 1, 2), Some((4, (9, 2))));
        assert_eq!(at(4, 9, 2), Some((4, (9, 2))));
        assert_eq!(at(3, 6, 7), Some((3, (6, 7))), "packed");
    }

    #[test]
    fn different_types_of_one_name_have_different_names() {
        let mut names = Names::default();
        let home = |image| Home { group: 0, image };
        let look = |size| (Some(size), vec![(Some("a".into()), Some(0))]);
        let name = || TypeName::Struct("node".to_owned());
        let first = names.name_once(name(), (home(0), Types::VOID), look(8));
        let same = names.name_once(name(), (home(1), Types::VOID), look(8));
        let other = names.name_once(name(), (home(2), Types::VOID), look(16));
        assert_eq!((&first, &same), (&name(), &name()));
        assert_eq!(other, TypeName::Struct("node #2".to_owned()));
        assert_eq!(names.type_of(&other), Some((home(2), Types::VOID)));
    }
}
