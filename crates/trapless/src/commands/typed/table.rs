//! What probes read, as bytes: layouts, and where the arguments of functions are, for the one [body](super::body) that follows them.
//!
//! | what | bytes |
//! |---|---|
//! | list | its value's size and how many steps it has, 4 bytes each; then the steps |
//! | step | its kind, 1 byte; how many steps it passes over, 2 bytes from the second on; where its word is, 4 bytes; four words |
//!
//! A function has a list of its own, whose steps put together the values that are at hand ([`Part`]); layouts are lists whose steps say what
//! is read from there. Offset 0 is the list without steps: of functions of which nothing is known.

use std::collections::HashMap;
use trapless_symbols::render::{self, Extent, LayoutId, Layouts, Length};

/// Bytes of a list ahead of its steps.
pub(super) const LIST_HEAD: usize = 8;
/// Bytes of a step.
pub(super) const STEP: usize = 40;
/// Where its words are.
pub(super) const WORDS: [usize; 4] = [8, 16, 24, 32];
/// A table is no larger: constants have a limit.
const MOST_BYTES: usize = 12 << 20;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Begin a value. Words: its size, none, none, its layout.
    Begin = 1,
    /// A word of it from a register. Words: the register's offset in the file, what is added, by how many bits it is shifted right.
    Register,
    /// A word of it that is always the same: the first one.
    Constant,
    /// Bytes of it from memory. Words: the register's offset in the file, what is added, how many.
    Memory,
    /// The same, from the address that is in memory there. The fourth word: what is added to that one.
    Indirect,
    /// Pass over steps unless a value lies in a range. Words: the bits that are looked at, the least, the greatest.
    Unless,
    /// Read a text up to its zero. Words, as of the reads that follow: what is added to the address; the size of an element; how many at
    /// most; the layout in the low half, and in the upper half what tells how many there are.
    Text,
    /// One element.
    One,
    /// As many as a word of the value says.
    Counted,
    /// As many as lie ahead of the address in a word of the value.
    Until,
    /// As many as a word in memory says, so far ahead of the address.
    Before,
}

/// A part of a value that is put together from where it is at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// `(register >> shift) + plus`, 8 bytes.
    Register {
        /// Its number in the file of registers.
        register: u8,
        /// In bits.
        shift: u8,
        /// What is added, wrapping.
        plus: i64,
    },
    /// Always the same, 8 bytes.
    Constant(u64),
    /// Memory at `register + plus`.
    Memory {
        /// Its number in the file of registers.
        register: u8,
        /// What is added, wrapping.
        plus: i64,
        /// How many bytes.
        size: u32,
        /// What is added to the address that is there, where that is one.
        then: Option<i64>,
    },
}

/// A value that is put together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Root {
    /// Its size, as far as it is recorded.
    pub size: u32,
    /// Its parts, each with its offset.
    pub parts: Vec<(u32, Part)>,
    /// What is read from there.
    pub layout: Option<u32>,
}

/// A table that is being made.
#[derive(Clone, Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    lists: HashMap<Vec<Root>, u32>,
}

/// Layouts that are in a table, of one table of types.
#[derive(Debug, Default)]
pub(super) struct Placed(Vec<Option<u32>>);

impl Table {
    /// With the list without steps.
    pub fn new() -> Self {
        Self { bytes: vec![0; LIST_HEAD], lists: HashMap::new() }
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether there is room for more.
    pub fn has_room(&self) -> bool {
        self.bytes.len() < MOST_BYTES
    }

    /// The list that puts some values together: one for all functions that have theirs in the same places, with the same layouts.
    pub fn list(&mut self, roots: &[Root]) -> u32 {
        if roots.is_empty() {
            return 0;
        }
        if let Some(known) = self.lists.get(roots) {
            return *known;
        }
        let mut steps = Vec::new();
        for root in roots {
            steps.push(step(Kind::Begin, 0, 0, [root.size.into(), 0, 0, root.layout.unwrap_or(0).into()]));
            for &(at, part) in &root.parts {
                steps.push(match part {
                    Part::Register { register, shift, plus } => {
                        step(Kind::Register, at, 0, [8 * u64::from(register), plus as u64, shift.into(), 0])
                    }
                    Part::Constant(word) => step(Kind::Constant, at, 0, [word, 0, 0, 0]),
                    Part::Memory { register, plus, size, then } => {
                        let kind = if then.is_some() { Kind::Indirect } else { Kind::Memory };
                        let words =
                            [8 * u64::from(register), plus as u64, size.into(), then.unwrap_or(0) as u64];
                        step(kind, at, 0, words)
                    }
                });
            }
        }
        let at = self.put(0, &steps);
        self.lists.insert(roots.to_vec(), at);
        at
    }

    fn put(&mut self, size: u64, steps: &[[u8; STEP]]) -> u32 {
        let at = self.bytes.len();
        self.bytes.extend((size as u32).to_le_bytes());
        self.bytes.extend((steps.len() as u32).to_le_bytes());
        self.bytes.extend(steps.iter().flatten());
        at as u32
    }

    /// Where a layout is, with all that it leads to; nothing where there is nothing to be read. `placed`: those of the same types that are in
    /// already.
    pub fn layout(&mut self, layouts: &Layouts, placed: &mut Placed, id: LayoutId) -> Option<u32> {
        let first = placed.0.len();
        // All that were made since: they refer to each other, so their places come first.
        let mut next = self.bytes.len();
        for layout in &layouts.all()[first.min(layouts.all().len())..] {
            let is_in = !layout.steps.is_empty() && self.has_room();
            placed.0.push(is_in.then_some(next as u32));
            if is_in {
                next += LIST_HEAD + STEP * layout.steps.len();
            }
        }
        let place = |placed: &Placed, id: LayoutId| placed.0.get(id.0 as usize).copied().flatten();
        for (number, layout) in layouts.all().iter().enumerate().skip(first) {
            if placed.0[number].is_some() {
                let encode = |step: &render::Step| encoded(step, |id| place(placed, id));
                let steps: Vec<_> = layout.steps.iter().map(encode).collect();
                self.put(layout.size, &steps);
            }
        }
        place(placed, id)
    }
}

fn encoded(of: &render::Step, place: impl Fn(LayoutId) -> Option<u32>) -> [u8; STEP] {
    match of {
        render::Step::Unless { at, mask, least, most, skip } => {
            step(Kind::Unless, *at as u32, *skip as u16, [*mask, *least, *most, 0])
        }
        render::Step::Read(read) => {
            let layout = u64::from(read.layout.and_then(place).unwrap_or(0));
            let (kind, size, most, tells) = match read.extent {
                Extent::Text => (Kind::Text, 1, render::MOST_TEXT, 0),
                Extent::Bytes(size) => (Kind::One, size, 1, 0),
                Extent::Elements { count: Length::At(at), size, most } => (Kind::Counted, size, most, at),
                Extent::Elements { count: Length::Until(at), size, most } => (Kind::Until, size, most, at),
                Extent::Elements { count: Length::Before(by), size, most } => (Kind::Before, size, most, by),
                Extent::Elements { count: Length::Zero, .. } => (Kind::Text, 1, render::MOST_TEXT, 0),
            };
            step(kind, read.at as u32, 0, [read.plus, size, most, layout | tells << 32])
        }
    }
}

fn step(kind: Kind, at: u32, skip: u16, words: [u64; 4]) -> [u8; STEP] {
    let mut bytes = [0; STEP];
    bytes[0] = kind as u8;
    bytes[2..4].copy_from_slice(&skip.to_le_bytes());
    bytes[4..8].copy_from_slice(&at.to_le_bytes());
    for (place, word) in WORDS.into_iter().zip(words) {
        bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
