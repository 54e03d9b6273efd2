//! Where a jump can lead that has breakpoints among its bytes.
//!
//! The distance of the jump is four bytes, of which each at which an instruction begins is given, and the others are free: so there are many
//! addresses, or few that lie together, or some far from each other. A pad at one of them takes a page, which others share.

use crate::Error;
use crate::code::{Space, map};

/// The distance's bytes, the lowest first: those that are given.
pub(crate) type Given = [Option<u8>; 4];

const PAGE: u64 = 4096;

/// Pages with pads, and the pads in each.
#[derive(Debug, Default)]
pub(crate) struct Pads(Vec<Page>);

#[derive(Debug)]
struct Page {
    start: u64,
    /// Bytes of it: two pages where a pad reaches into the next.
    size: u64,
    /// Where pads begin.
    used: Vec<u64>,
}

/// Pages that are looked at for another pad: the last ones.
const SHARED: usize = 32;

/// How far a pad may be from the words that it goes by, and code from both.
const REACH: u64 = 1 << 30;

impl Pads {
    /// An address for a pad of `length` bytes that a jump which ends at `end` can lead to, in reach of `word`.
    pub fn find(&mut self, end: u64, given: Given, length: u64, word: u64) -> Result<u64, Error> {
        let reaches = |at: u64| at.abs_diff(word) < REACH + (REACH >> 1);
        let suits = |at: u64| {
            let distance = at.wrapping_sub(end).cast_signed();
            i32::try_from(distance).is_ok_and(|distance| {
                let bytes = distance.to_le_bytes();
                given.iter().zip(bytes).all(|(given, byte)| given.is_none_or(|given| given == byte))
            })
        };
        for page in self.0.iter_mut().rev().take(SHARED) {
            let is_free = |at: &u64| page.used.iter().all(|used| used.abs_diff(*at) >= length);
            let places = page.start..=page.start + page.size - length;
            if let Some(at) = places.filter(|at| suits(*at)).find(is_free).filter(|at| reaches(*at)) {
                page.used.push(at);
                return Ok(at);
            }
        }
        let space = Space::now()?;
        let taken: Vec<(u64, u64)> = space.maps.iter().map(|one| (one.start.0, one.end.0)).collect();
        for at in addresses(end, given).filter(|at| reaches(*at)) {
            let start = at & !(PAGE - 1);
            let size = (at + length).next_multiple_of(PAGE) - start;
            if is_taken(&taken, start, start + size) || !may_be_used(&space, start, size) {
                continue;
            }
            if map(start, size, libc::PROT_READ | libc::PROT_EXEC) {
                self.0.push(Page { start, size, used: vec![at] });
                return Ok(at);
            }
        }
        Err(Error::NoRoom(end))
    }
}

fn is_taken(taken: &[(u64, u64)], start: u64, end: u64) -> bool {
    let after = taken.partition_point(|(_, taken_to)| *taken_to <= start);
    taken.get(after).is_some_and(|(taken_from, _)| *taken_from < end)
}

/// Whether it is where neither the heap nor a stack grows into.
fn may_be_used(space: &Space, start: u64, size: u64) -> bool {
    space.near(start, size, size).any(|at| at == start)
}

/// Addresses that the distance can be to, the nearest of each step first. One for each page of a window, so that there are some ten thousand.
fn addresses(end: u64, given: Given) -> impl Iterator<Item = u64> {
    let choices = |given: Option<u8>, step: usize| -> Vec<u8> {
        given.map_or_else(|| (0..=u8::MAX).step_by(step).collect(), |byte| vec![byte])
    };
    // The highest byte is the distance's sign, too.
    let mut highest: Vec<i8> = choices(given[3], 1).into_iter().map(u8::cast_signed).collect();
    highest.sort_by_key(|byte| (i32::from(*byte) * 2 + 1).abs());
    let [lowest, second, third] =
        [(0, 256), (1, 16), (2, 8)].map(|(index, step)| choices(given[index], step));
    highest.into_iter().flat_map(move |highest| {
        let (lowest, second) = (lowest.clone(), second.clone());
        third.clone().into_iter().flat_map(move |third| {
            let lowest = lowest.clone();
            second.clone().into_iter().flat_map(move |second| {
                let bytes = move |lowest| [lowest, second, third, highest.cast_unsigned()];
                let distances =
                    lowest.clone().into_iter().map(move |lowest| i32::from_le_bytes(bytes(lowest)));
                distances.map(move |distance| end.wrapping_add_signed(distance.into()))
            })
        })
    })
}
