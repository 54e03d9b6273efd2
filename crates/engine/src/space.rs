//! The address space that a blueprint is drawn for, as plain data: drawing touches no process.

use crate::{EngineError, target::isa};
use std::ops::Range;
use trapless_isa::Additions;
use trapless_process::{GapRules, Mappings, Pid, Process, RemoteAddr};

/// What is known of a process when addresses are chosen in it.
#[derive(Debug)]
pub struct Space {
    /// Its memory.
    pub maps: Mappings,
    /// Where nothing may lie.
    pub rules: GapRules,
    /// The process.
    pub pid: Pid,
    /// When it was started ([`Process::start_time`]).
    pub start_time: u64,
    /// Whether it has 4 GB of addresses.
    pub is_32bit: bool,
    /// How its processor adds ([`trapless_isa::Layout::additions`]).
    pub additions: Additions,
}

impl Space {
    /// That of a process, as it is now.
    ///
    /// # Errors
    /// The process is gone or may not be read.
    pub fn of(process: &Process) -> Result<Self, EngineError> {
        Ok(Self {
            maps: process.maps()?,
            rules: process.gap_rules()?,
            pid: process.pid(),
            start_time: process.start_time(),
            is_32bit: process.is_32bit(),
            additions: additions(process)?,
        })
    }
}

/// How detours in this process may add. Where there is no choice the kernel is not asked.
fn additions(process: &Process) -> Result<Additions, EngineError> {
    let Some(capability) = isa(process).facts().single_additions else { return Ok(Additions::Loops) };
    Ok(if process.auxv()?.has_capability(libc::AT_HWCAP, capability) {
        Additions::Single
    } else {
        Additions::Loops
    })
}

/// Addresses below this are numbers that programs work with.
const LOW: u64 = 1 << 32;

/// What lies best in ranges of memory.
#[derive(Clone, Copy)]
pub(crate) struct Best<const N: usize> {
    /// Log2 of the number ([`trapless_isa::Facts::best_multiple`]).
    pub multiple: u8,
    /// How far behind its start each range has what is to lie there, less than a page behind a multiple.
    pub offsets: [Option<u64>; N],
}

/// Free address ranges, less those that were given out.
pub(crate) struct Taken<'a> {
    space: &'a Space,
    ours: Vec<(u64, u64)>,
}

impl<'a> Taken<'a> {
    /// Nothing is given out yet.
    pub fn new(space: &'a Space) -> Self {
        Self { space, ours: Vec::new() }
    }

    /// Where `size` bytes are free that reach all of `near`, without taking them.
    pub fn look_near(&self, near: Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let away = self.away_from_numbers(&near, reach, size);
        away.or_else(|| self.look(near, reach, size))
    }

    /// The same for a 64-bit program that lies low, if there is such a place, as far above it as can be. Words that look like addresses of ours keep our
    /// memory ([`crate::reach`]), and next to such a program any number of a few million does: a length, a counter.
    fn away_from_numbers(&self, near: &Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let length = near.end.saturating_sub(near.start);
        let is_low = !self.space.is_32bit && near.end <= LOW && reach <= LOW;
        if !is_low || length.saturating_add(size) > reach / 8 {
            return None;
        }
        let from = (near.end + reach / 8 * 6).next_multiple_of(self.space.rules.page);
        self.look(from..from, reach / 8, size)
    }

    fn look(&self, near: Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let near = RemoteAddr(near.start)..RemoteAddr(near.end);
        let is_free = |at: &u64| self.ours.iter().all(|&(from, to)| at + size <= from || to <= *at);
        let Space { maps, rules, .. } = self.space;
        // The places that are offered for a size lie close together. What a large range of ours covers them all with leaves
        // some of those for a larger size.
        let sizes = [0, 4, 8, 12].into_iter().filter_map(|bits| size.checked_shl(bits));
        sizes
            .filter(|&larger| larger >= size)
            .find_map(|larger| maps.find_gap(rules, near.clone(), reach, larger).map(|at| at.0).find(is_free))
    }

    /// Takes `size` bytes that reach all of `near`.
    pub fn near(&mut self, near: Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let found = self.look_near(near, reach, size)?;
        self.ours.push((found, found + size));
        Some(found)
    }

    /// Takes ranges of these sizes where they are in nobody's way, and out of reach of what is at `near`: next to that is little
    /// room, and detours need it. Where there is room for that, what `best` says lies little behind multiples of a power of 2.
    pub fn regions<const N: usize>(
        &mut self,
        sizes: [u64; N],
        best: Option<Best<N>>,
        near: impl IntoIterator<Item = (Range<u64>, u64)>,
    ) -> Option<[u64; N]> {
        let kept = near
            .into_iter()
            .map(|(near, reach)| (near.start.saturating_sub(reach), near.end.saturating_add(reach)));
        let mut elsewhere = Self { space: self.space, ours: self.ours.iter().copied().chain(kept).collect() };
        let at_multiples = best.and_then(|best| elsewhere.at_multiples(sizes, best));
        let Some(places) = at_multiples.or_else(|| elsewhere.side_by_side(sizes)) else {
            return self.side_by_side(sizes);
        };
        self.ours.extend(places.iter().zip(sizes).map(|(&start, size)| (start, start + size)));
        Some(places)
    }

    /// Places for ranges of these sizes: one behind the other where there is room for that, since a second one would not find the
    /// best place free.
    fn side_by_side<const N: usize>(&mut self, sizes: [u64; N]) -> Option<[u64; N]> {
        let page = self.space.rules.page;
        let sizes = sizes.map(|size| size.next_multiple_of(page));
        if let Some(mut next) = self.anywhere(sizes.iter().sum()) {
            return Some(sizes.map(|size| {
                next += size;
                next - size
            }));
        }
        let mut places = [0; N];
        for (place, size) in places.iter_mut().zip(sizes) {
            *place = self.anywhere(size)?;
        }
        Some(places)
    }

    /// Places for ranges of these sizes, in order, as far apart as it takes. Nothing is taken.
    fn at_multiples<const N: usize>(&self, sizes: [u64; N], best: Best<N>) -> Option<[u64; N]> {
        let page = self.space.rules.page;
        let sizes = sizes.map(|size| size.next_multiple_of(page));
        let multiple = 1u64 << best.multiple;
        let apart = multiple * best.offsets.iter().flatten().count() as u64;
        let size = sizes.iter().sum::<u64>() + apart;
        let quiet = self.space.maps.quiet_place(&self.space.rules, size).0;
        let mut next = self.look_near(quiet..quiet, u64::MAX, size)?;
        let mut places = [0; N];
        for ((place, size), offset) in places.iter_mut().zip(sizes).zip(best.offsets) {
            if let Some(offset) = offset {
                next = (next + offset).next_multiple_of(multiple) - offset / page * page;
            }
            *place = next;
            next += size;
        }
        Some(places)
    }

    /// Takes `size` bytes where they are in nobody's way.
    pub fn anywhere(&mut self, size: u64) -> Option<u64> {
        let quiet = self.space.maps.quiet_place(&self.space.rules, size).0;
        self.near(quiet..quiet, u64::MAX, size)
    }
}

#[cfg(test)]
impl Space {
    /// That of a 64-bit process with this `/proc/PID/maps`.
    pub(crate) fn of_maps(text: &str) -> Self {
        let rules = GapRules {
            page: trapless_wire::PAGE,
            lowest: RemoteAddr(0x1_0000),
            end: RemoteAddr(0x7fff_ffff_f000),
            stack_growth: 8 << 20,
            heap_start: RemoteAddr(0),
            heap_growth: 0,
            past_ends: 0,
        };
        let maps = trapless_process::parse_maps(text.as_bytes()).unwrap();
        Self { maps, rules, pid: Pid(1), start_time: 1, is_32bit: false, additions: Additions::Loops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: u64 = 1 << 31;
    const GB: u64 = 1 << 30;

    #[test]
    fn what_a_low_program_reaches_is_no_number_that_it_may_hold() {
        let program = 0x40_0000..0x90_0000;
        let of =
            |more: &str| Space::of_maps(&format!("400000-900000 r-xp 00000000 08:01 7 /bin/low\n{more}"));
        let at = |space: &Space| Taken::new(space).near(program.clone(), REACH, 1 << 20).unwrap();
        let far = at(&of(""));
        assert!(far > GB && far + (1 << 20) - program.start <= REACH, "{far:#x}");
        // Where that is taken it lies where it can.
        let full = of("10000000-fffff000 rw-p 00000000 00:00 0\n");
        let near = at(&full);
        let odd = Taken::new(&of("")).near(0x40_0000..0x40_0123, REACH, 4096).unwrap();
        assert!(odd.is_multiple_of(4096), "{odd:#x}");
        assert!(
            near < 0x1000_0000 && (near + (1 << 20) <= program.start || near >= program.end),
            "{near:#x}"
        );
        // It reaches all of a large program, or is looked for as everywhere else.
        let large = Space::of_maps("400000-30000000 r-xp 00000000 08:01 7 /bin/large\n");
        let place = Taken::new(&large).near(0x40_0000..0x3000_0000, REACH, 1 << 20).unwrap();
        assert!(place + (1 << 20) - 0x40_0000 <= REACH, "{place:#x}");
    }

    #[test]
    fn regions_leave_free_what_detours_must_reach() {
        // Wherever the kernel puts a library, and however large the regions are.
        for (step, sizes) in
            [(0, [GB, 1 << 19, GB]), (1, [300 * GB, 1 << 19, 70 * GB]), (2, [600 * GB, 4096, 9 * GB])]
        {
            for place in 0..64 {
                let library = 0x7eff_ffff_0000 + (place << 34) + (step << 24);
                let maps =
                    format!("{library:x}-{:x} r-xp 00000000 08:01 7 /lib/one.so\n", library + 0x10_0000);
                let space = Space::of_maps(&maps);
                let near = library..library + 0x10_0000;
                let best = Best { multiple: 32, offsets: [None, Some(0x1_0000), Some(0x40_1000)] };
                let at_multiples = Taken::new(&space).regions(sizes, Some(best), [(near.clone(), REACH)]);
                let behind = at_multiples.map(|[_, second, third]| [second + 0x1_0000, third + 0x40_1000]);
                let low = behind.unwrap().map(|place| place % (1 << 32));
                assert_eq!(low, [0, 0x40_1000 % space.rules.page], "{library:x}");
                let mut taken = Taken::new(&space);
                let best = Some(best).filter(|_| place % 2 == 0);
                let places = taken.regions(sizes, best, [(near.clone(), REACH)]).unwrap();
                for (start, size) in places.iter().zip(sizes) {
                    let is_far = start + size <= near.start - REACH || *start >= near.end + REACH;
                    assert!(is_far, "{library:x}: {places:x?}");
                }
                let mut all: Vec<_> = places.iter().zip(sizes).map(|(&at, size)| at..at + size).collect();
                all.sort_by_key(|range| range.start);
                assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{all:x?}");
                assert!(taken.near(near, REACH, 64 << 20).is_some());
            }
        }
    }
}
