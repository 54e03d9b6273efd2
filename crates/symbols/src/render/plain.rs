//! Values as their types' fields say.

use super::{CUT, Seen, Writer, brackets, null, numbers};
use crate::types::{
    Array, DEEPEST, Encoding, Enum, Kind, Language, Member, Pointer, Role, Struct, TypeId, Types, Variants,
};

/// Pointers to structs show these where no more values lie around them.
const DEEPEST_POINTER: usize = 1;

/// What is shown of that to which a plain pointer leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// Nothing: the address is shown.
    No,
    /// Characters up to a zero.
    Text,
    /// A struct, behind the address.
    Struct,
    /// The value, as that of a Rust reference.
    Borrowed,
    /// The value, as that of a Rust box.
    Owned,
}

/// What is shown of what a pointer of this name leads to. `depth`: how many values it lies in.
pub(super) fn followed(
    types: &Types,
    to: TypeId,
    language: Language,
    name: Option<&str>,
    depth: usize,
) -> Followed {
    if language == Language::Rust {
        // What a Rust pointer may be followed to, its name tells.
        return match name {
            Some(name) if name.starts_with('&') => Followed::Borrowed,
            Some(name) if name.starts_with("alloc::boxed::Box<") => Followed::Owned,
            _ => Followed::No,
        };
    }
    let target = types.get(types.stripped(to));
    match target.kind {
        Kind::Base(Encoding::SignedChar | Encoding::UnsignedChar)
            if matches!(target.name.as_deref(), Some("char" | "char8_t")) =>
        {
            Followed::Text
        }
        Kind::Base(Encoding::Utf) if target.size == Some(1) => Followed::Text,
        Kind::Struct(_) if depth < DEEPEST_POINTER && types.size(to).is_some() => Followed::Struct,
        _ => Followed::No,
    }
}

impl Writer<'_, '_> {
    pub(super) fn plain(&mut self, id: TypeId, bytes: &[u8], depth: usize) {
        let types = self.types;
        let stripped = types.stripped(id);
        let this = types.get(stripped);
        let size = bytes.len() as u64;
        match &this.kind {
            Kind::Void => self.push(if this.language == Language::Rust { "()" } else { "void" }),
            Kind::Base(encoding) => {
                let is_wide = self.is_called(id, "wchar_t");
                let name = this.name.as_deref().unwrap_or_default();
                self.base(*encoding, this.language, name, is_wide, bytes);
            }
            Kind::Pointer(kind, to) => {
                let Some(address) = numbers::unsigned(bytes, size) else { return self.push(CUT) };
                let name = this.name.as_deref();
                self.pointer(*kind, *to, address as u64, this.language, name, depth);
            }
            Kind::MemberPointer(..) => match numbers::word(bytes, 0) {
                Some(word) => self.push(&format!("{word:#x}")),
                None => self.push(CUT),
            },
            Kind::Array(array) => self.array(array, bytes, this.language, depth),
            Kind::Enum(of) => {
                let Some(value) = numbers::unsigned(bytes, size) else { return self.push(CUT) };
                let name = this.name.as_deref().filter(|_| of.is_class && this.language == Language::Cpp);
                let text = enumerator(of, value, size as u32 * 8, name);
                self.push(&text);
            }
            Kind::Struct(of) => match (&of.variants, this.language) {
                (Some(variants), _) => self.variant(variants, bytes, depth),
                (None, Language::Rust) => {
                    let name = this.name.as_deref().unwrap_or_default();
                    self.rust_fields(last_name(name), of, bytes, depth);
                }
                _ => self.fields(of, bytes, depth),
            },
            _ => self.push("<incomplete>"),
        }
    }

    /// Whether a type, or one of the typedefs before it, has this name.
    fn is_called(&self, id: TypeId, name: &str) -> bool {
        let mut at = id;
        for _ in 0..DEEPEST {
            let this = self.types.get(at);
            match &this.kind {
                _ if this.name.as_deref() == Some(name) => return true,
                Kind::Typedef(of) | Kind::Qualified(_, of) => at = *of,
                _ => return false,
            }
        }
        false
    }

    fn base(&mut self, encoding: Encoding, language: Language, name: &str, is_wide: bool, bytes: &[u8]) {
        let size = bytes.len() as u64;
        if name == "()" {
            return self.push(name);
        }
        // `signed char` and `unsigned char` are small numbers, `char` is a character on every machine.
        let is_char = matches!(encoding, Encoding::SignedChar | Encoding::UnsignedChar) && name == "char"
            || encoding == Encoding::Utf
            || is_wide;
        let text = match numbers::unsigned(bytes, size) {
            Some(value) if is_char => return self.character(value),
            _ => numbers::text(encoding, size, bytes, name.contains("long double")),
        };
        let text = text
            .map(|text| if language == Language::Rust && text == "nan" { "NaN".to_owned() } else { text });
        self.push(text.as_deref().unwrap_or(CUT));
    }

    fn pointer(
        &mut self,
        kind: Pointer,
        to: TypeId,
        address: u64,
        language: Language,
        name: Option<&str>,
        depth: usize,
    ) {
        if kind != Pointer::Plain {
            return self.behind(address, to, depth);
        }
        match followed(self.types, to, language, name, depth) {
            Followed::Borrowed => {
                self.push("&");
                self.behind(address, to, depth);
            }
            Followed::Owned => self.behind(address, to, depth),
            _ if language == Language::Rust => self.push(&format!("{address:#x}")),
            _ if address == 0 => self.push(null(language)),
            Followed::Text => self.text_at(address, None),
            Followed::No => self.push(&format!("{address:#x}")),
            Followed::Struct => {
                let size = self.types.size(to).unwrap_or(0);
                match self.memory(address, size) {
                    Seen::Bytes(bytes) => {
                        self.push(&format!("{address:#x} -> "));
                        self.value(to, &bytes, depth + 2);
                    }
                    Seen::Unreadable => self.unreadable(address),
                    Seen::Unseen => self.push(&format!("{address:#x}")),
                }
            }
        }
    }

    fn array(&mut self, array: &Array, bytes: &[u8], language: Language, depth: usize) {
        let types = self.types;
        let of = types.get(types.stripped(array.of));
        let is_text = matches!(of.kind, Kind::Base(Encoding::SignedChar | Encoding::UnsignedChar))
            && of.name.as_deref() == Some("char");
        if is_text && array.counts.len() == 1 {
            let end = bytes.iter().position(|&byte| byte == 0);
            let is_cut = end.is_none() && array.counts[0].is_some_and(|count| (bytes.len() as u64) < count);
            return self.quoted(&bytes[..end.unwrap_or(bytes.len())], is_cut);
        }
        let size = types.size(array.of).unwrap_or(0);
        let count = array.counts.first().copied().flatten().unwrap_or(0);
        let inner: u64 = array.counts.iter().skip(1).map(|count| count.unwrap_or(0)).product_within();
        let step = size.saturating_mul(inner.max(u64::from(array.counts.len() == 1)));
        let (open, close) = brackets(language);
        self.push(open);
        for index in 0..count {
            if index > 0 {
                self.push(", ");
            }
            if index >= self.limits.elements as u64 {
                self.push(CUT);
                break;
            }
            if !self.has_room() {
                return;
            }
            let at = usize::try_from(index.saturating_mul(step)).unwrap_or(usize::MAX);
            let rest = bytes.get(at..).unwrap_or_default();
            if step > 0 && rest.is_empty() {
                self.push(CUT);
                break;
            }
            if array.counts.len() == 1 {
                self.value(array.of, rest, depth + 1);
            } else if depth >= self.limits.depth {
                self.push(CUT);
            } else {
                let inner = Array { of: array.of, counts: array.counts[1..].to_vec(), is_vector: false };
                let end = usize::try_from(step).unwrap_or(usize::MAX).min(rest.len());
                self.array(&inner, &rest[..end], language, depth + 1);
            }
        }
        self.push(close);
    }

    /// A C or C++ struct. What it inherits, and what is in its anonymous structs, are among its own fields.
    fn fields(&mut self, of: &Struct, bytes: &[u8], depth: usize) {
        let mut fields: Vec<(&Member, u64)> = Vec::new();
        let mut budget = MOST_MEMBERS;
        flattened(self.types, of, 0, self.limits.depth, &mut budget, &mut fields);
        self.push("{");
        let mut is_first = true;
        for (member, offset) in fields {
            if !self.has_room() {
                return;
            }
            self.push(if is_first { " " } else { ", " });
            is_first = false;
            let name = member.name.as_deref().unwrap_or("?");
            self.push(&format!(".{name} = "));
            self.member(member, offset, bytes, depth);
        }
        self.push(if is_first { "}" } else { " }" });
    }

    fn member(&mut self, member: &Member, offset: u64, bytes: &[u8], depth: usize) {
        let types = self.types;
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
        let Some(bits) = member.bits else { return self.value(member.of, rest, depth + 1) };
        let Some(value) = numbers::bits(rest, 0, bits.first, bits.count) else {
            return self.push(CUT);
        };
        let text = match types.kind(member.of) {
            Kind::Enum(of) => enumerator(of, value, bits.count, None),
            Kind::Base(Encoding::Bool) => if value == 0 { "false" } else { "true" }.to_owned(),
            Kind::Base(Encoding::Signed | Encoding::SignedChar) => {
                numbers::signed(value, bits.count).to_string()
            }
            _ => value.to_string(),
        };
        self.push(&text);
    }

    /// A Rust enum.
    fn variant(&mut self, variants: &Variants, bytes: &[u8], depth: usize) {
        let value = match &variants.discriminant {
            None => None,
            Some(tag) => {
                let size = self.types.size(tag.of).unwrap_or(0);
                let at = tag.offset.and_then(|offset| usize::try_from(offset).ok());
                let rest = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
                match numbers::unsigned(rest, size) {
                    Some(value) => Some(value),
                    None => return self.push(CUT),
                }
            }
        };
        let is_meant =
            |value: u128| variants.all.iter().find(|of| of.values.iter().any(|range| range.contains(&value)));
        let found = value
            .and_then(is_meant)
            .or_else(|| variants.all.iter().find(|variant| variant.values.is_empty()));
        let Some(variant) = found else { return self.push("<no variant>") };
        let name = variant.member.name.as_deref().unwrap_or("?");
        let at = variant.member.offset.and_then(|offset| usize::try_from(offset).ok());
        let rest = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
        match self.types.as_struct(variant.member.of) {
            Some(of) => self.rust_fields(name, of, rest, depth),
            None => self.push(name),
        }
    }

    /// A Rust struct, tuple, or variant.
    fn rust_fields(&mut self, name: &str, of: &Struct, bytes: &[u8], depth: usize) {
        let name = if name.starts_with('(') { "" } else { name };
        self.push(name);
        // The fields of unions and of what holds nothing by itself.
        let fields: Vec<&Member> = of.members.iter().filter(|member| member.name.is_some()).collect();
        let is_tuple = fields.iter().all(|field| {
            field.name.as_deref().and_then(|name| name.strip_prefix("__")).is_some_and(|digits| {
                !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
            })
        });
        if fields.is_empty() {
            if name.is_empty() {
                self.push("()");
            }
            return;
        }
        self.push(if is_tuple {
            "("
        } else if name.is_empty() {
            "{ "
        } else {
            " { "
        });
        for (index, field) in fields.iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            if !self.has_room() {
                return;
            }
            if !is_tuple {
                self.push(field.name.as_deref().unwrap_or("?"));
                self.push(": ");
            }
            self.member(field, field.offset.unwrap_or(0), bytes, depth);
        }
        let is_single = is_tuple && name.is_empty() && fields.len() == 1;
        self.push(if is_single {
            ",)"
        } else if is_tuple {
            ")"
        } else {
            " }"
        });
    }
}

/// Products that end at the largest number.
trait ProductWithin {
    fn product_within(self) -> u64;
}

impl<I: Iterator<Item = u64>> ProductWithin for I {
    fn product_within(self) -> u64 {
        self.fold(1, u64::saturating_mul)
    }
}

/// Fields that one struct shows.
const MOST_FIELDS: usize = 256;

/// Members that are looked at for them.
const MOST_MEMBERS: usize = 1 << 12;

fn flattened<'t>(
    types: &'t Types,
    of: &'t Struct,
    at: u64,
    depth: usize,
    budget: &mut usize,
    into: &mut Vec<(&'t Member, u64)>,
) {
    for member in &of.members {
        if into.len() >= MOST_FIELDS || *budget == 0 {
            return;
        }
        *budget -= 1;
        let Some(offset) = member.offset.and_then(|offset| offset.checked_add(at)) else { continue };
        match (&member.name, types.as_struct(member.of)) {
            (None, Some(inner)) if depth > 0 => flattened(types, inner, offset, depth - 1, budget, into),
            (None, _) => {}
            _ if member.role == Role::Artificial => {}
            _ => into.push((member, offset)),
        }
    }
}

/// The name of an enum's number; of several, where they are flags; else the number.
fn enumerator(of: &Enum, value: u128, bits: u32, scope: Option<&str>) -> String {
    let with_scope = |name: &str| match scope {
        Some(scope) => format!("{}::{name}", last_name(scope)),
        None => name.to_owned(),
    };
    for value in [numbers::signed(value, bits), value as i128] {
        if let Some(name) = of.name_of(value) {
            return with_scope(name);
        }
    }
    let is_flags = of.enumerators.iter().all(|(_, value)| value & (value - 1).max(0) == 0 && *value >= 0);
    let mut rest = value as i128;
    let mut names = Vec::new();
    if is_flags {
        for (name, flag) in of.enumerators.iter().filter(|(_, flag)| *flag > 0) {
            if rest & flag != 0 {
                rest &= !flag;
                names.push(with_scope(name));
            }
        }
    }
    if rest == 0 && !names.is_empty() {
        return names.join(" | ");
    }
    let has_sign = of.enumerators.iter().any(|(_, value)| *value < 0);
    if has_sign { numbers::signed(value, bits).to_string() } else { value.to_string() }
}

/// The last part of a name, without what its template was given: `Vec` of `alloc::vec::Vec<u8>`.
pub(super) fn last_name(name: &str) -> &str {
    if name.starts_with(['(', '[', '&', '*']) {
        return name;
    }
    let end = name.find('<').unwrap_or(name.len());
    let name = &name[..end];
    name.rsplit("::").next().unwrap_or(name)
}
