//! Values as text, in the notation of the language they are of.
//!
//! C and C++ values are written like initializers (`{ .x = 1, .y = 2 }`), Rust's like [`Debug`](std::fmt::Debug) does
//! (`Point { x: 1, y: 2 }`, `Some(3)`). What is more than its bytes, a string, a vector, an owning pointer, is recognised by the
//! library's own fields ([`Rendering`]) and shown as what it stands for.
//!
//! The memory may be anything, and so may the types. What cannot be read is its address, `(unreadable)`; what nobody has looked at is
//! `...`. Depth, elements, reads and the length of the text are limited ([`Limits`]), so a list that leads to itself ends.
//!
//! What memory a value of a type needs is known beforehand ([`Layouts`]), so it can be read at one time and shown at another.

mod cpp;
mod numbers;
mod plain;
mod reads;
mod recorded;
mod rust;
mod text;

use plain::{Followed, followed};
pub use reads::{Extent, Layout, LayoutId, Layouts, MOST_BYTES, MOST_TEXT, Read, Step};
pub use recorded::{DEEPEST_READ, MOST_READS, MOST_RECORDED, MOST_WORK, Recorded, follow};

use crate::types::{Kind, Language, TypeId, Types};

/// How a value is shown that is more than its bytes. Offsets count from the value's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendering {
    /// As its type's fields say.
    Plain,
    /// Characters somewhere else.
    Text {
        /// Where the pointer to the first is.
        data: u64,
        /// How many there are.
        length: Length,
    },
    /// Characters in itself if they are few, else somewhere else: libc++'s strings.
    ShortText(Box<ShortText>),
    /// Elements somewhere else, one after the other.
    Elements {
        /// Where the pointer to the first is.
        data: u64,
        /// How many there are.
        count: Length,
        /// Their type.
        of: TypeId,
    },
    /// A value that is somewhere else and belongs to this one.
    Owned {
        /// Where the pointer is.
        pointer: u64,
        /// Where what is shown begins, from where it leads.
        inner: u64,
        /// Its type.
        of: TypeId,
    },
    /// A value that is there or not.
    Optional {
        /// Where it says so: a byte.
        engaged: u64,
        /// Where the value is.
        inner: u64,
        /// Its type.
        of: TypeId,
    },
    /// A value in a wrapper that says nothing.
    Wrapped {
        /// Where it is.
        inner: u64,
        /// Its type.
        of: TypeId,
    },
    /// Something behind a pointer of which the type is not known: a trait object.
    Opaque {
        /// Where the pointer is.
        pointer: u64,
    },
}

/// How many characters or elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// As many as come before a zero.
    Zero,
    /// A word of the value, at this offset.
    At(u64),
    /// As many as lie before the address in the word at this offset.
    Until(u64),
    /// A word ahead of the first one: old libstdc++'s strings keep it 24 bytes before.
    Before(u64),
}

/// Where libc++'s strings keep what. See [`Rendering::ShortText`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortText {
    /// The bit that says whether it is long: a byte's offset, and the bit.
    pub is_long: (u64, u32),
    /// The length of a short one: a byte's offset, the first bit, and how many.
    pub short_length: (u64, u32, u32),
    /// Where a short one's characters are.
    pub short: u64,
    /// Where the pointer to a long one's characters is.
    pub data: u64,
    /// Where its length is.
    pub length: u64,
}

/// How much of a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longer texts are cut, in characters.
    pub characters: usize,
    /// Values that lie deeper in others are `...`.
    pub depth: usize,
    /// More elements of one array are `...`.
    pub elements: usize,
    /// Reads of memory for one value.
    pub reads: usize,
}

impl Default for Limits {
    /// 200 characters, 6 values in each other, 32 elements, 64 reads.
    fn default() -> Limits {
        Limits { characters: 200, depth: 6, elements: 32, reads: 64 }
    }
}

/// What a look at memory has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Its bytes: all that were asked for, or the first of them where nobody has looked at the rest.
    Bytes(Vec<u8>),
    /// Some of them cannot be read.
    Unreadable,
    /// Nobody has looked.
    Unseen,
}

impl From<Option<Vec<u8>>> for Seen {
    fn from(read: Option<Vec<u8>>) -> Seen {
        read.map_or(Seen::Unreadable, Seen::Bytes)
    }
}

/// Looks at memory: an address, and how many bytes.
pub type Memory<'r> = dyn FnMut(u64, usize) -> Seen + 'r;

/// How a value of a type is shown.
pub fn recognise(types: &Types, id: TypeId) -> Rendering {
    let stripped = types.stripped(id);
    let this = types.get(stripped);
    let (Kind::Struct(of), Some(name)) = (&this.kind, this.name.as_deref()) else { return Rendering::Plain };
    let found = match this.language {
        Language::Cpp => cpp::recognise(types, stripped, of, name),
        Language::Rust => rust::recognise(types, stripped, of, name),
        _ => None,
    };
    found.unwrap_or(Rendering::Plain)
}

/// A value as text, within the usual [`Limits`]. `bytes` are the value's own, or the first of them; `read` gives what it points to.
///
/// ```
/// use trapless_symbols::{render::render, types::{Encoding, Types}};
///
/// let mut types = Types::new();
/// let int = types.base("int", 4, Encoding::Signed);
/// let char = types.base("char", 1, Encoding::SignedChar);
/// let text = types.pointer_to(char);
/// let entry = types.structure("entry", &[("name", text), ("count", int)]);
/// let bytes = [0x1000_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
/// let page = |address: u64, size: usize| {
///     b"apples\0".get(address.checked_sub(0x1000)? as usize..)?.get(..size).map(<[u8]>::to_vec)
/// };
/// // Of a text, the first bytes are enough.
/// let mut read = |address, size: usize| page(address, size.min(7)).into();
/// assert_eq!(render(&types, entry, &bytes, &mut read), r#"{ .name = "apples", .count = 7 }"#);
/// ```
pub fn render(types: &Types, id: TypeId, bytes: &[u8], read: &mut Memory<'_>) -> String {
    render_within(Limits::default(), types, id, bytes, read)
}

/// Like [`render`], within other limits.
pub fn render_within(
    limits: Limits,
    types: &Types,
    id: TypeId,
    bytes: &[u8],
    read: &mut Memory<'_>,
) -> String {
    let mut writer = Writer { types, limits, reads: limits.reads, read, text: String::new(), count: 0 };
    writer.value(id, bytes, 0);
    writer.text
}

/// Writes one value.
struct Writer<'r, 'm> {
    types: &'r Types,
    limits: Limits,
    reads: usize,
    read: &'r mut Memory<'m>,
    text: String,
    /// Characters of it.
    count: usize,
}

/// Characters that say that something was cut, or that nobody has looked at it.
const CUT: &str = "...";
/// What is behind this is not read of larger values, in bytes.
const LARGEST: u64 = 4096;

impl Writer<'_, '_> {
    /// Whether there is room for more.
    fn has_room(&self) -> bool {
        self.count < self.limits.characters
    }

    /// Writes text, as far as there is room. What does not fit ends in dots.
    fn push(&mut self, text: &str) {
        for c in text.chars() {
            if !self.has_room() {
                return;
            }
            self.text.push(c);
            self.count += 1;
        }
        if !self.has_room() {
            let keep = self.limits.characters.saturating_sub(CUT.len());
            self.text = self.text.chars().take(keep).chain(CUT.chars()).collect();
        }
    }

    /// Memory, within the limits.
    fn memory(&mut self, address: u64, size: u64) -> Seen {
        let Some(left) = self.reads.checked_sub(1) else { return Seen::Unseen };
        self.reads = left;
        let size = size.min(LARGEST) as usize;
        match (self.read)(address, size) {
            Seen::Bytes(bytes) if bytes.is_empty() && size > 0 => Seen::Unseen,
            Seen::Bytes(mut bytes) => {
                bytes.truncate(size);
                Seen::Bytes(bytes)
            }
            other => other,
        }
    }

    /// What stands for memory at an address that cannot be read.
    fn unreadable(&mut self, address: u64) {
        self.push(&format!("{address:#x} (unreadable)"));
    }

    /// What stands for memory that is not there to be shown.
    fn missing(&mut self, seen: &Seen, address: u64) {
        match seen {
            Seen::Unreadable => self.unreadable(address),
            _ => self.push(CUT),
        }
    }

    /// A value of a type. `depth`: how many values it lies in.
    fn value(&mut self, id: TypeId, bytes: &[u8], depth: usize) {
        if !self.has_room() {
            return;
        }
        if depth > self.limits.depth {
            return self.push(CUT);
        }
        let types = self.types;
        let Some(size) = types.size(id) else {
            return self.push("<incomplete>");
        };
        // Of a struct or an array, what is there is shown.
        let is_put_together = matches!(types.kind(id), Kind::Struct(_) | Kind::Array(_));
        if (bytes.len() as u64) < size && (!is_put_together || bytes.is_empty()) {
            return self.push(CUT);
        }
        let bytes = &bytes[..bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
        let language = types.get(types.stripped(id)).language;
        let word = |offset: u64| numbers::word(bytes, offset);
        match recognise(types, id) {
            Rendering::Plain => self.plain(id, bytes, depth),
            Rendering::Text { data, length } => {
                let Some(address) = word(data) else { return self.push(CUT) };
                match self.length(length, bytes, address, 1) {
                    Ok(length) => self.text_at(address, Some(length)),
                    Err(_) if length == Length::Zero => self.text_at(address, None),
                    Err(seen) => self.missing(&seen, address),
                }
            }
            Rendering::ShortText(of) => {
                let bit = |(offset, first, count)| numbers::bits(bytes, offset, first, count);
                let (at, first) = of.is_long;
                if bit((at, first, 1)) == Some(1) {
                    match (word(of.data), word(of.length)) {
                        (Some(address), Some(length)) => self.text_at(address, Some(length)),
                        _ => self.push(CUT),
                    }
                } else {
                    let length = bit(of.short_length).unwrap_or(0) as usize;
                    let text = bytes.get(of.short as usize..).unwrap_or_default();
                    self.quoted(text.get(..length).unwrap_or(text), text.len() < length);
                }
            }
            Rendering::Elements { data, count, of } => {
                let Some(address) = word(data) else { return self.push(CUT) };
                let size = types.size(of).unwrap_or(0);
                match self.length(count, bytes, address, size) {
                    Ok(count) => self.elements_at(language, address, count, of, depth),
                    Err(seen) => self.missing(&seen, address),
                }
            }
            Rendering::Owned { pointer, inner, of } => match word(pointer) {
                Some(0) => self.push(null(language)),
                Some(address) => self.behind(address.wrapping_add(inner), of, depth),
                None => self.push(CUT),
            },
            Rendering::Optional { engaged, inner, of } => match numbers::bits(bytes, engaged, 0, 8) {
                Some(0) => self.push("nullopt"),
                Some(1) => self.value(of, bytes.get(inner as usize..).unwrap_or_default(), depth + 1),
                // Neither there nor not: no such object is alive here.
                Some(other) => self.push(&format!("<engaged is {other}>")),
                None => self.push(CUT),
            },
            Rendering::Wrapped { inner, of } => {
                self.value(of, bytes.get(inner as usize..).unwrap_or_default(), depth + 1);
            }
            Rendering::Opaque { pointer } => {
                let address = word(pointer).unwrap_or(0);
                self.push(&format!("{address:#x}"));
            }
        }
    }

    /// The number that a length says, or why it is not known. An end before the beginning leads nowhere.
    fn length(&mut self, length: Length, bytes: &[u8], address: u64, size: u64) -> Result<u64, Seen> {
        match length {
            Length::Zero => Err(Seen::Unseen),
            Length::At(offset) => numbers::word(bytes, offset).ok_or(Seen::Unseen),
            Length::Until(offset) => {
                let end = numbers::word(bytes, offset).ok_or(Seen::Unseen)?;
                let between = end.checked_sub(address).ok_or(Seen::Unreadable)?;
                between.checked_div(size).ok_or(Seen::Unseen)
            }
            Length::Before(distance) => {
                let ahead = self.memory(address.checked_sub(distance).ok_or(Seen::Unreadable)?, 8);
                match ahead {
                    Seen::Bytes(ahead) => numbers::word(&ahead, 0).ok_or(Seen::Unseen),
                    other => Err(other),
                }
            }
        }
    }

    /// A value that an address leads to.
    fn behind(&mut self, address: u64, of: TypeId, depth: usize) {
        let Some(size) = self.types.size(of) else { return self.push("<incomplete>") };
        match self.memory(address, size) {
            Seen::Bytes(bytes) => self.value(of, &bytes, depth + 1),
            other => self.missing(&other, address),
        }
    }

    /// Elements in memory. Those that were not looked at are dots.
    fn elements_at(&mut self, language: Language, address: u64, count: u64, of: TypeId, depth: usize) {
        let (open, close) = brackets(language);
        let size = self.types.size(of).unwrap_or(0);
        let shown = count.min(self.limits.elements as u64);
        let seen = match shown.saturating_mul(size) {
            0 => Seen::Bytes(Vec::new()),
            all => self.memory(address, all),
        };
        let bytes = match seen {
            Seen::Bytes(bytes) => bytes,
            Seen::Unreadable => return self.unreadable(address),
            Seen::Unseen => Vec::new(),
        };
        self.push(open);
        for index in 0..shown {
            let rest = bytes.get((index * size) as usize..).unwrap_or_default();
            if index > 0 {
                self.push(", ");
            }
            if size > 0 && rest.is_empty() {
                self.push(CUT);
                return self.push(close);
            }
            self.value(of, rest, depth + 1);
            if !self.has_room() {
                return;
            }
        }
        if shown < count {
            self.push(if shown > 0 { ", ..." } else { CUT });
        }
        self.push(close);
    }
}

/// What an array is written between.
fn brackets(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::Rust => ("[", "]"),
        _ => ("{", "}"),
    }
}

/// How a pointer that leads nowhere is written.
fn null(language: Language) -> &'static str {
    match language {
        Language::Cpp => "nullptr",
        Language::C => "NULL",
        _ => "0x0",
    }
}
