//! Where a thread stands in the program that is interrupted in a detour, for signal handlers and unwinders.
//!
//! A signal handler that looks at what it interrupts, or walks its stack from there, may find an instruction of ours: no file knows that
//! one. So each arena tells of each of its instructions which place of the program it stands for, how far the stack pointer is from
//! where it is at that place, and where the registers are that hold something else by now. Those that functions keep for their
//! callers hold what they hold there, or nothing is told.
//!
//! At [`ARENA_FRAMES`] an arena holds two 32-bit words: where its *index* is, from the arena's start, and how many entries that has. An
//! entry is a piece of code, a detour or the routines, in order of address:
//!
//! | offset | field | |
//! |---|---|---|
//! | [`ENTRY_START`] | start | offset of its first instruction |
//! | [`ENTRY_ROWS`] | rows | offset of its rows |
//! | [`ENTRY_SITE`] | site | address of the site |
//!
//! A row holds from where the one before it ends. It is two 32-bit words. The first one has its end in the piece ([`ROW_END`]), the words
//! between the stack pointer and the place's, and one ([`ROW_DEPTH`]), and what it stands for ([`ROW_PLACE`]). The second one, at
//! [`ROW_SAVED`], is the offset in the arena of what is known of the registers ([`Saved`]), or 0 where they all are as they were. The last
//! row ends nowhere and is unknown.

use alloc::vec::Vec;

/// Where an arena says where its index is.
pub const ARENA_FRAMES: u32 = 16;
/// Log2 of the size of an entry of the index.
pub const ENTRY_SHIFT: u32 = 4;
/// Entry: offset of the piece in the arena.
pub const ENTRY_START: u32 = 0;
/// Entry: offset of its rows in the arena.
pub const ENTRY_ROWS: u32 = 4;
/// Entry: address of the site.
pub const ENTRY_SITE: u32 = 8;

/// Log2 of the size of a row.
pub const ROW_SHIFT: u32 = 3;
/// Row: offset of the word that leads to the registers.
pub const ROW_SAVED: u32 = 4;
/// Row: lowest bit and bits of its end.
pub const ROW_END: (u32, u32) = (0, 16);
/// Row: the same of the words between the stack pointers, and one, since a detour may have popped a word.
pub const ROW_DEPTH: (u32, u32) = (16, 8);
/// Row: the same of what it stands for.
pub const ROW_PLACE: (u32, u32) = (24, 8);

/// The stack was switched, for handlers only: at the place's stack pointer lie the address of the instruction that has done so, and the stack
/// pointer that it had.
pub const PLACE_SWITCHED: u8 = 252;
/// Nothing is known: the walk ends here. Or nothing is told to unwinders, and handlers are shown more: then what is known of the registers is
/// there, and [`SAVED_PLACE`] behind its start the place.
pub const PLACE_UNKNOWN: u8 = 253;
/// In a routine; at the place's stack pointer lies the address in a detour that it goes back to.
pub const PLACE_ROUTINE: u8 = 254;
/// Offset of the place behind what is known of the registers, where that is for handlers only.
pub const SAVED_PLACE: u32 = 16;
/// The call has returned: at the real return address, with the call's slot popped.
pub const PLACE_CALLER: u8 = 255;

/// What an instruction of ours stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The program's instruction so many bytes behind the site's first.
    Site(u8),
    /// The same, for handlers only: a register that functions keep for their callers holds something else, and was saved.
    SiteForHandlers(u8),
    /// [`PLACE_ROUTINE`].
    Routine,
    /// In a body, or in a routine that bodies call: as [`Place::Routine`], for handlers only.
    Body,
    /// In a detour, on a stack of ours ([`crate::Layout::stacks`]): as the instruction that has switched to it, for handlers only.
    Switched,
    /// [`PLACE_CALLER`].
    Caller,
    /// As [`Place::Caller`], for handlers only.
    CallerForHandlers,
}

impl Place {
    fn number(self) -> u8 {
        match self {
            Place::Site(behind) | Place::SiteForHandlers(behind) if behind >= PLACE_SWITCHED => PLACE_UNKNOWN,
            Place::Site(behind) | Place::SiteForHandlers(behind) => behind,
            Place::Switched => PLACE_SWITCHED,
            Place::Routine | Place::Body => PLACE_ROUTINE,
            Place::Caller | Place::CallerForHandlers => PLACE_CALLER,
        }
    }

    fn is_for_handlers(self) -> bool {
        matches!(self, Place::SiteForHandlers(_) | Place::Body | Place::Switched | Place::CallerForHandlers)
    }

    /// The same place where registers that functions keep were saved and hold something else; `None` where nobody is told of that.
    #[must_use]
    pub fn for_handlers(self) -> Option<Place> {
        match self {
            Place::Site(behind) | Place::SiteForHandlers(behind) => Some(Place::SiteForHandlers(behind)),
            Place::Caller | Place::CallerForHandlers => Some(Place::CallerForHandlers),
            Place::Body | Place::Switched => Some(self),
            Place::Routine => None,
        }
    }
}

/// Where the registers are that hold something else than at the place: of each, by its hardware number, how many words below the place's
/// stack pointer it was saved. 0: it holds what it holds there. [`SAVED_LOST`]: it was dead there, and is lost.
///
/// The stack pointer is told by the depth. In its place stand the arithmetic flags, in the form of x86's `lahf` and `seto al`:
/// [`SAVED_IN_RAX`] says that they are in rax, and [`SAVED_IN_AH`] that all are in ah but OF, which is back already. [`SAVED_IN_XMM15`] says
/// where rax is then, if there is no stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Saved(pub [u8; 16]);

/// See [`Saved`].
pub const SAVED_LOST: u8 = 255;
/// See [`Saved`].
pub const SAVED_IN_RAX: u8 = 254;
/// See [`Saved`].
pub const SAVED_IN_AH: u8 = 253;
/// See [`Saved`].
pub const SAVED_IN_XMM15: u8 = 252;
/// Where [`Saved`] has the flags.
pub const SAVED_FLAGS: usize = 4;

/// From an instruction on, until the next point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Offset of the instruction.
    pub offset: u32,
    /// What it stands for, and how many bytes the stack pointer is below the place's.
    pub stands: Option<(Place, i32)>,
    /// What is known of the registers there.
    pub saved: Saved,
}

/// A row in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Its first word.
    pub word: u32,
    /// What its second word leads to.
    pub saved: Saved,
    /// What it stands for, where only handlers are shown that.
    pub for_handlers: Option<u8>,
}

impl Point {
    /// Registers are what they are at `place`, but for the stack pointer, which is so many bytes below.
    pub fn at(offset: u32, place: Place, depth: i32) -> Self {
        Self { offset, stands: Some((place, depth)), saved: Saved::default() }
    }

    /// Nothing is known from `offset` on.
    pub fn unknown(offset: u32) -> Self {
        Self { offset, stands: None, saved: Saved::default() }
    }

    /// The upper half of the row's first word, and what only handlers are shown.
    fn bits(&self, word: u8) -> (u32, Option<u8>) {
        let depth = |bytes: i32| {
            u8::try_from(bytes / i32::from(word) + 1).ok().filter(|_| bytes % i32::from(word) == 0)
        };
        let known = self.stands.and_then(|(place, bytes)| Some((place, depth(bytes)?)));
        let bits = |place: u8, depth: u8| u32::from(place) << ROW_PLACE.0 | u32::from(depth) << ROW_DEPTH.0;
        match known {
            Some((place, depth)) if place.is_for_handlers() && place.number() != PLACE_UNKNOWN => {
                (bits(PLACE_UNKNOWN, depth), Some(place.number()))
            }
            Some((place, depth)) => (bits(place.number(), depth), None),
            None => (bits(PLACE_UNKNOWN, 0), None),
        }
    }
}

/// The rows of a piece whose instructions are known from `points`, in order, and where a word has so many bytes.
pub fn rows(points: &[Point], word: u8) -> Vec<Row> {
    const END: u32 = (1 << ROW_END.1) - 1;
    let unknown = Row { word: Point::unknown(0).bits(word).0, saved: Saved::default(), for_handlers: None };
    let mut rows: Vec<Row> = Vec::new();
    let mut now = unknown;
    for point in points.iter().take_while(|point| point.offset < END) {
        let next = match point.bits(word) {
            (bits, None) if bits == unknown.word => unknown,
            (word, for_handlers) => Row { word, saved: point.saved, for_handlers },
        };
        if next != now {
            if point.offset > 0 {
                rows.push(Row { word: now.word | point.offset, ..now });
            }
            now = next;
        }
    }
    // The last point is known to no end: whoever gives points ends them with an unknown one.
    rows.push(Row { word: unknown.word | END, ..unknown });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_until_something_changes() {
        let saved = |rcx| Saved([0, rcx, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let point = |offset, stands, rcx| Point { offset, stands, saved: saved(rcx) };
        let points = [
            point(0, Some((Place::Site(0), 0)), 0),
            point(4, Some((Place::Site(0), 136)), 0),
            point(5, Some((Place::Site(0), 136)), 0),
            point(7, Some((Place::Site(0), 136)), 17),
            point(9, Some((Place::Caller, -8)), 0),
            point(10, Some((Place::Site(0), 4)), 3),
            point(12, Some((Place::SiteForHandlers(7), 24)), 2),
            point(14, Some((Place::Body, 0)), 0),
            point(16, None, 0),
        ];
        let unknown = u32::from(PLACE_UNKNOWN) << 24;
        let row = |word, rcx| Row { word, saved: saved(rcx), for_handlers: None };
        let expected = [
            row(4 | 1 << 16, 0),
            row(7 | 18 << 16, 0),
            row(9 | 18 << 16, 17),
            row(10 | u32::from(PLACE_CALLER) << 24, 0),
            row(12 | unknown, 0),
            Row { for_handlers: Some(7), ..row(14 | 4 << 16 | unknown, 2) },
            Row { for_handlers: Some(PLACE_ROUTINE), ..row(16 | 1 << 16 | unknown, 0) },
            row(0xffff | unknown, 0),
        ];
        assert_eq!(rows(&points, 8), expected, "a depth that is not whole words is unknown");
        assert_eq!(rows(&[], 8), [row(0xffff | unknown, 0)]);
    }
}
