//! What memory has to be read so that a value can be shown: the reads that [`render`](super::render()) does, known from the type alone.
//!
//! A [`Layout`] is a short list of [`Step`]s for one value of a type whose bytes are at hand: which words of it are addresses, how much is
//! read there, and of which layout each element of that is. Layouts refer to each other by number, so a list's is one that leads to
//! itself; how far it is followed is for whoever reads. Both a probe, which reads when it is hit, and this file's tests follow them with
//! the same few rules:
//!
//! - a word of 0 leads nowhere, and nothing is read of no elements;
//! - a [`Step::Unless`] whose value lies outside of its range passes over the steps that it names;
//! - of a value that is larger than [`MOST_BYTES`], that much is read, and steps whose words lie behind it are not done.
//!
//! What is read without need, or twice, does no harm: the value is shown from what is at an address.

use std::collections::HashMap;

use super::{Followed, Length, Rendering, followed, recognise};
use crate::types::{Kind, Language, Member, Pointer, Struct, TypeId, Types, Variants};

/// So much of a value or of elements is read, in bytes.
pub const MOST_BYTES: u64 = 1024;
/// So much of a text is read, in bytes: 200 characters of UTF-8 have no more.
pub const MOST_TEXT: u64 = 800;
/// So many elements are read.
const MOST_ELEMENTS: u64 = 32;
/// Steps of one layout.
const MOST_STEPS: usize = 128;
/// Values that lie in each other in one layout.
const DEEPEST: usize = 6;
/// Members and elements that are looked at for one layout.
const MOST_VISITED: usize = 4096;

/// The number of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutId(pub u32);

/// What has to be read for a value of a type. Offsets count from the value's beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the value, at most [`MOST_BYTES`].
    pub size: u64,
    /// What is done, in this order.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read what a word leads to.
    Read(Read),
    /// Unless a value lies in a range, pass over some steps.
    Unless {
        /// Where the value is: at most eight bytes, without a sign.
        at: u64,
        /// The bits that are looked at.
        mask: u64,
        /// The least of the range.
        least: u64,
        /// The greatest of the range.
        most: u64,
        /// How many steps are passed over.
        skip: usize,
    },
}

/// A read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where the word with the address is.
    pub at: u64,
    /// To add to the address, wrapping.
    pub plus: u64,
    /// How much.
    pub extent: Extent,
    /// The layout of what is there, of each element, if anything is to be read for it.
    pub layout: Option<LayoutId>,
}

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A text up to its zero.
    Text,
    /// So many bytes.
    Bytes(u64),
    /// Elements.
    Elements {
        /// How many there are, as the value says.
        count: Length,
        /// The size of one.
        size: u64,
        /// How many are read at most; their bytes are no more than [`MOST_BYTES`].
        most: u64,
    },
}

/// Layouts of types of one table.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    all: Vec<Layout>,
    known: HashMap<(TypeId, bool), LayoutId>,
    /// Those that have no steps yet.
    waiting: Vec<(LayoutId, TypeId, bool)>,
}

/// Makes a layout's steps.
struct Maker<'r> {
    types: &'r mut Types,
    complete: &'r mut dyn FnMut(&mut Types, TypeId),
    layouts: &'r mut Layouts,
    steps: Vec<Step>,
    budget: usize,
}

impl Layouts {
    /// The layout of an argument or a result. `complete` reads on where a type was only declared, as [`TypeReader::complete`] does.
    ///
    /// ```
    /// use trapless_symbols::{render::{Extent, Layouts, Step}, types::{Encoding, Types}};
    ///
    /// let mut types = Types::new();
    /// let char = types.base("char", 1, Encoding::SignedChar);
    /// let text = types.pointer_to(char);
    /// let entry = types.structure("entry", &[("count", char), ("name", text)]);
    /// let mut layouts = Layouts::default();
    /// let id = layouts.of_value(&mut types, &mut |_, _| {}, entry);
    /// let Step::Read(read) = &layouts.get(id).steps[0] else { panic!() };
    /// assert_eq!((read.at, read.extent), (8, Extent::Text));
    /// ```
    ///
    /// [`TypeReader::complete`]: crate::TypeReader::complete
    pub fn of_value(
        &mut self,
        types: &mut Types,
        complete: &mut dyn FnMut(&mut Types, TypeId),
        id: TypeId,
    ) -> LayoutId {
        let found = self.promise(types, id, true);
        while let Some((layout, of, is_whole)) = self.waiting.pop() {
            complete(types, of);
            let mut maker = Maker { types, complete, layouts: self, steps: Vec::new(), budget: MOST_VISITED };
            maker.value(of, 0, if is_whole { 0 } else { 1 }, DEEPEST);
            let Maker { steps, types, .. } = maker;
            let size = types.size(of).unwrap_or(0).min(MOST_BYTES);
            if let Some(layout) = self.all.get_mut(layout.0 as usize) {
                *layout = Layout { size, steps };
            }
        }
        found
    }

    /// A layout.
    pub fn get(&self, id: LayoutId) -> &Layout {
        const NONE: &Layout = &Layout { size: 0, steps: Vec::new() };
        self.all.get(id.0 as usize).unwrap_or(NONE)
    }

    /// All of them, by number.
    pub fn all(&self) -> &[Layout] {
        &self.all
    }

    /// The layout of a type, to be made. `is_whole`: it is no part of another value.
    fn promise(&mut self, types: &Types, id: TypeId, is_whole: bool) -> LayoutId {
        let id = types.stripped(id);
        let next = LayoutId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        let known = *self.known.entry((id, is_whole)).or_insert(next);
        if known == next {
            self.all.push(Layout::default());
            self.waiting.push((next, id, is_whole));
        }
        known
    }
}

impl Maker<'_> {
    /// The steps of a value at an offset. `around`: how many values it lies in; `depth`: how many more may lie in it.
    fn value(&mut self, id: TypeId, at: u64, around: usize, depth: usize) {
        let Some(left) = self.budget.checked_sub(1) else { return };
        self.budget = left;
        if depth == 0 || self.steps.len() >= MOST_STEPS {
            return;
        }
        (self.complete)(self.types, id);
        match recognise(self.types, id) {
            Rendering::Plain => self.plain(id, at, around, depth),
            Rendering::Text { data, length } => {
                let extent = match length {
                    Length::Zero => Extent::Text,
                    length => Extent::Elements { count: moved(length, at), size: 1, most: MOST_TEXT },
                };
                self.read(at.wrapping_add(data), 0, extent, None);
            }
            Rendering::ShortText(of) => {
                let (byte, bit) = of.is_long;
                let mask = 1_u64.checked_shl(bit).unwrap_or(0);
                let count = Length::At(at.wrapping_add(of.length));
                self.unless(at.wrapping_add(byte), mask, (mask, mask), |maker| {
                    let extent = Extent::Elements { count, size: 1, most: MOST_TEXT };
                    maker.read(at.wrapping_add(of.data), 0, extent, None);
                });
            }
            Rendering::Elements { data, count, of } => {
                (self.complete)(self.types, of);
                let size = self.types.size(of).unwrap_or(0);
                if size == 0 {
                    return;
                }
                let most = (MOST_BYTES / size).clamp(1, MOST_ELEMENTS);
                let size = size.min(MOST_BYTES);
                let extent = Extent::Elements { count: moved(count, at), size, most };
                self.read(at.wrapping_add(data), 0, extent, Some(of));
            }
            Rendering::Owned { pointer, inner, of } => self.one(at.wrapping_add(pointer), inner, of),
            Rendering::Optional { engaged, inner, of } => {
                self.unless(at.wrapping_add(engaged), 0xff, (1, 1), |maker| {
                    maker.value(of, at.wrapping_add(inner), around + 1, depth - 1);
                });
            }
            Rendering::Wrapped { inner, of } => {
                self.value(of, at.wrapping_add(inner), around + 1, depth - 1);
            }
            Rendering::Opaque { .. } => {}
        }
    }

    fn plain(&mut self, id: TypeId, at: u64, around: usize, depth: usize) {
        let this = self.types.get(self.types.stripped(id)).clone();
        match this.kind {
            Kind::Pointer(Pointer::Plain, to) => {
                (self.complete)(self.types, to);
                match followed(self.types, to, this.language, this.name.as_deref(), around) {
                    Followed::No => {}
                    Followed::Text => self.read(at, 0, Extent::Text, None),
                    Followed::Struct | Followed::Borrowed | Followed::Owned => self.one(at, 0, to),
                }
            }
            Kind::Pointer(_, to) => self.one(at, 0, to),
            Kind::Array(array) => {
                let size = self.types.size(array.of).unwrap_or(0);
                let all =
                    array.counts.iter().fold(1_u64, |all, count| all.saturating_mul(count.unwrap_or(0)));
                let is_empty_handed = matches!(self.types.kind(array.of), Kind::Base(_) | Kind::Enum(_));
                if size == 0 || is_empty_handed {
                    return;
                }
                for index in 0..all.min(MOST_ELEMENTS * MOST_ELEMENTS) {
                    if self.budget == 0 || index * size >= MOST_BYTES {
                        return;
                    }
                    self.value(array.of, at.wrapping_add(index * size), around + 1, depth - 1);
                }
            }
            Kind::Struct(of) => match &of.variants {
                Some(variants) => self.variants(variants, at, around, depth),
                None => self.fields(&of, this.language, at, around, depth),
            },
            _ => {}
        }
    }

    fn fields(&mut self, of: &Struct, language: Language, at: u64, around: usize, depth: usize) {
        for member in &of.members {
            // Bit fields hold no addresses; nameless fields are shown in C and C++ alone.
            if member.bits.is_some() || language == Language::Rust && member.name.is_none() {
                continue;
            }
            self.member(member, at, around, depth);
        }
    }

    fn member(&mut self, member: &Member, at: u64, around: usize, depth: usize) {
        if let Some(offset) = member.offset {
            self.value(member.of, at.wrapping_add(offset), around + 1, depth - 1);
        }
    }

    /// The fields of the variant that there is. A variant whose discriminant is no word is taken for there.
    fn variants(&mut self, variants: &Variants, at: u64, around: usize, depth: usize) {
        let tag = variants.discriminant.as_ref().and_then(|tag| {
            let size = self.types.size(tag.of).filter(|size| (1..=8).contains(size))?;
            Some((at.wrapping_add(tag.offset?), u64::MAX >> (64 - 8 * size)))
        });
        for variant in &variants.all {
            let bounds = variant.values.iter().fold(None, |bounds: Option<(u128, u128)>, range| {
                let (least, most) = bounds.unwrap_or((*range.start(), *range.end()));
                Some((least.min(*range.start()), most.max(*range.end())))
            });
            let bounds =
                bounds.and_then(|(least, most)| Some((least.try_into().ok()?, most.try_into().ok()?)));
            let fields = |maker: &mut Self| {
                if let (Some(of), Some(offset)) =
                    (maker.types.as_struct(variant.member.of).cloned(), variant.member.offset)
                {
                    maker.fields(&of, Language::Rust, at.wrapping_add(offset), around, depth);
                }
            };
            match (tag, bounds) {
                (Some((at, mask)), Some(bounds)) => self.unless(at, mask, bounds, fields),
                _ => fields(self),
            }
        }
    }

    /// Does something for values in a range.
    fn unless(&mut self, at: u64, mask: u64, (least, most): (u64, u64), then: impl FnOnce(&mut Self)) {
        let place = self.steps.len();
        self.steps.push(Step::Unless { at, mask, least, most, skip: 0 });
        then(self);
        let more = self.steps.len() - place - 1;
        match self.steps.get_mut(place) {
            Some(Step::Unless { skip, .. }) if more > 0 => *skip = more,
            _ => self.steps.truncate(place),
        }
    }

    /// One value that a word leads to.
    fn one(&mut self, at: u64, plus: u64, of: TypeId) {
        (self.complete)(self.types, of);
        let Some(size) = self.types.size(of).filter(|size| *size > 0) else { return };
        self.read(at, plus, Extent::Bytes(size.min(MOST_BYTES)), Some(of));
    }

    fn read(&mut self, at: u64, plus: u64, extent: Extent, of: Option<TypeId>) {
        // Of larger values only the beginning is at hand.
        if at > MOST_BYTES - 8 || self.steps.len() >= MOST_STEPS {
            return;
        }
        let layout = of.map(|of| self.layouts.promise(self.types, of, false));
        self.steps.push(Step::Read(Read { at, plus, extent, layout }));
    }
}

/// A length that a part at an offset says of itself.
fn moved(length: Length, at: u64) -> Length {
    match length {
        Length::At(offset) => Length::At(offset.wrapping_add(at)),
        Length::Until(offset) => Length::Until(offset.wrapping_add(at)),
        other => other,
    }
}
