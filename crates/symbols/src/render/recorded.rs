//! Memory as it was at one time: what was read then, for values that are shown later.

use std::collections::VecDeque;

use super::{Extent, LayoutId, Layouts, Length, MOST_TEXT, Memory, Read, Seen, Step};

/// Reads for one call.
pub const MOST_READS: usize = 64;
/// A value that so many others lead to is not followed.
pub const DEEPEST_READ: u32 = 6;
/// Bytes that are read for one call: what is over this is not begun.
pub const MOST_RECORDED: usize = 6144;
/// Steps that are done for one call.
pub const MOST_WORK: usize = 2048;

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded(Vec<(u64, Option<Vec<u8>>)>);

impl Recorded {
    /// Adds what was read at an address; nothing where it could not be read.
    pub fn add(&mut self, address: u64, bytes: Option<Vec<u8>>) {
        self.0.push((address, bytes));
    }

    /// What is known of some bytes: as many of the first as were read together.
    ///
    /// ```
    /// use trapless_symbols::render::{Recorded, Seen};
    /// let mut recorded = Recorded::default();
    /// recorded.add(0x1000, Some(b"apples".to_vec()));
    /// recorded.add(8, None);
    /// assert_eq!(recorded.look(0x1002, 3), Seen::Bytes(b"ple".to_vec()));
    /// assert_eq!(recorded.look(0x1002, 9), Seen::Bytes(b"ples".to_vec()));
    /// assert_eq!(recorded.look(8, 1), Seen::Unreadable);
    /// assert_eq!(recorded.look(0x2000, 1), Seen::Unseen);
    /// ```
    pub fn look(&self, address: u64, size: usize) -> Seen {
        let known = self.0.iter().filter_map(|(at, bytes)| {
            let into = usize::try_from(address.checked_sub(*at)?).ok()?;
            let rest = bytes.as_ref()?.get(into..)?;
            Some(&rest[..rest.len().min(size)])
        });
        match known.max_by_key(|bytes| bytes.len()) {
            Some(bytes) if !bytes.is_empty() => Seen::Bytes(bytes.to_vec()),
            _ if self.0.iter().any(|(at, bytes)| *at == address && bytes.is_none()) => Seen::Unreadable,
            _ => Seen::Unseen,
        }
    }

    /// All reads, in their order.
    pub fn reads(&self) -> &[(u64, Option<Vec<u8>>)] {
        &self.0
    }
}

/// Something whose layout says what is read next.
struct Found {
    layout: LayoutId,
    bytes: Vec<u8>,
    depth: u32,
}

/// Reads what some values need to be shown: their bytes, each with its layout. What is near to them is read first, and no more than the
/// limits of one call allow. This is what layouts mean; a probe that reads when it is hit does the same.
pub fn follow(layouts: &Layouts, values: &[(LayoutId, Vec<u8>)], read: &mut Memory<'_>) -> Recorded {
    let of =
        |(layout, bytes): &(LayoutId, Vec<u8>)| Found { layout: *layout, bytes: bytes.clone(), depth: 0 };
    let mut waiting: VecDeque<Found> = values.iter().map(of).collect();
    let mut follower = Follower { recorded: Recorded::default(), size: 0, read };
    follower.size = values.iter().map(|(_, bytes)| bytes.len().next_multiple_of(8) + HEAD).sum();
    let mut work = MOST_WORK;
    while let Some(found) = waiting.pop_front() {
        let layout = layouts.get(found.layout);
        let size = usize::try_from(layout.size).unwrap_or(0);
        if size == 0 || layout.steps.is_empty() {
            continue;
        }
        for element in found.bytes.chunks_exact(size) {
            let mut next = 0;
            while let Some(step) = layout.steps.get(next) {
                let Some(left) = work.checked_sub(1) else { return follower.recorded };
                work = left;
                next += 1;
                match step {
                    Step::Unless { at, mask, least, most, skip } => {
                        let value = word(element, *at) & mask;
                        if value < *least || value > *most {
                            next += skip;
                        }
                    }
                    Step::Read(step) if found.depth < DEEPEST_READ => {
                        if let Some(bytes) = follower.read(element, step)
                            && let Some(layout) = step.layout
                        {
                            waiting.push_back(Found { layout, bytes, depth: found.depth + 1 });
                        }
                    }
                    Step::Read(_) => {}
                }
            }
        }
    }
    follower.recorded
}

/// What a record has besides its bytes.
const HEAD: usize = 24;

struct Follower<'f, 'm> {
    recorded: Recorded,
    size: usize,
    read: &'f mut Memory<'m>,
}

impl Follower<'_, '_> {
    /// Reads what a step says.
    fn read(&mut self, element: &[u8], step: &Read) -> Option<Vec<u8>> {
        let pointer = word(element, step.at);
        let address = pointer.wrapping_add(step.plus);
        if pointer == 0 {
            return None;
        }
        let mut count = |most: u64| match step.extent {
            Extent::Elements { count: Length::At(at), .. } => Some(word(element, at).min(most)),
            Extent::Elements { count: Length::Until(at), size, .. } => {
                Some((word(element, at).wrapping_sub(pointer) / size.max(1)).min(most))
            }
            Extent::Elements { count: Length::Before(distance), .. } => {
                let ahead = self.take(pointer.wrapping_sub(distance), 8)?;
                Some(word(&ahead, 0).min(most))
            }
            Extent::Elements { count: Length::Zero, .. } | Extent::Text | Extent::Bytes(_) => None,
        };
        match step.extent {
            Extent::Text => self.text(address),
            Extent::Bytes(size) => self.take(address, size),
            Extent::Elements { size, most, .. } => {
                let all = count(most)? * size;
                self.take(address, all)
            }
        }
    }

    fn has_room(&self) -> bool {
        self.recorded.0.len() < MOST_READS && self.size < MOST_RECORDED
    }

    fn take(&mut self, address: u64, size: u64) -> Option<Vec<u8>> {
        if size == 0 || !self.has_room() {
            return None;
        }
        let bytes = match (self.read)(address, usize::try_from(size).ok()?) {
            Seen::Bytes(bytes) if bytes.len() as u64 == size => Some(bytes),
            _ => None,
        };
        self.note(address, bytes)
    }

    fn text(&mut self, address: u64) -> Option<Vec<u8>> {
        if !self.has_room() {
            return None;
        }
        let mut text = Vec::new();
        while (text.len() as u64) < MOST_TEXT {
            match (self.read)(address.wrapping_add(text.len() as u64), 1) {
                Seen::Bytes(byte) => text.extend(byte),
                _ => break,
            }
            if text.last() == Some(&0) {
                break;
            }
        }
        // Where it ends in memory that cannot be read, it ends there.
        let is_cut = !text.is_empty() && text.last() != Some(&0) && (text.len() as u64) < MOST_TEXT;
        text.extend(is_cut.then_some(0));
        let text = (!text.is_empty()).then_some(text);
        self.note(address, text);
        None
    }

    fn note(&mut self, address: u64, bytes: Option<Vec<u8>>) -> Option<Vec<u8>> {
        self.size += HEAD + bytes.as_ref().map_or(0, |bytes| bytes.len().next_multiple_of(8));
        self.recorded.add(address, bytes.clone());
        bytes
    }
}

/// The word of 8 bytes at an offset; what lies behind the end is 0.
fn word(bytes: &[u8], at: u64) -> u64 {
    let mut word = [0; 8];
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    word.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}
