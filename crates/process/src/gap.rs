//! Free address space: near a module, for code that has to be reached by a branch, or out of everybody's way.

use crate::arch::{POINTED_PAST, addresses_end, narrow_end};
use crate::{Mappings, ProcError, Process, RemoteAddr};
use std::ops::Range;
use std::sync::OnceLock;

/// Address space that may be taken, beyond what is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapRules {
    /// Bytes of a page, a power of two.
    pub page: u64,
    /// The lowest address the kernel maps for us (`vm.mmap_min_addr`).
    pub lowest: RemoteAddr,
    /// One past the highest address of user space.
    pub end: RemoteAddr,
    /// Bytes below the main stack that it may grow into.
    pub stack_growth: u64,
    /// Where the heap starts or will start; 0 if unknown.
    pub heap_start: RemoteAddr,
    /// Bytes above the heap that it may grow into. Beyond them `brk` fails and allocators fall back to `mmap`.
    pub heap_growth: u64,
    /// Bytes behind what is mapped to which addresses lead that the program has of its own: what lay there would seem to be held.
    pub past_ends: u64,
}

impl Process {
    /// How far the first thread's stack may grow (`RLIMIT_STACK`), in bytes; `None`: as far as there is room.
    ///
    /// # Errors
    /// [`ProcError`] if it ended.
    pub fn stack_limit(&self) -> Result<Option<u64>, ProcError> {
        let limits = self.read_proc("limits")?;
        let limits = String::from_utf8_lossy(&limits);
        let mut lines = limits.lines();
        Ok(lines
            .find_map(|line| line.strip_prefix("Max stack size")?.split_whitespace().next()?.parse().ok()))
    }

    /// The rules that hold for this process.
    ///
    /// # Errors
    /// [`ProcError`] if it ended.
    pub fn gap_rules(&self) -> Result<GapRules, ProcError> {
        /// More than any program grows its stack by; "unlimited" is no reason to give up the address space.
        const LARGEST_STACK: u64 = 1 << 30;
        const SMALLEST_STACK: u64 = 8 << 20;
        /// `stack_guard_gap` of the kernel, 256 pages, which it keeps free below the stack.
        const GUARD: u64 = 1 << 20;
        let lowest = std::fs::read_to_string("/proc/sys/vm/mmap_min_addr").ok();
        let lowest = lowest.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(65536);
        let stack = self.stack_limit()?.unwrap_or(LARGEST_STACK);
        Ok(GapRules {
            page: page_size(),
            // Never page 0, whatever the setting.
            lowest: RemoteAddr(lowest.max(65536)),
            end: RemoteAddr(if self.is_32bit() { narrow_end() } else { addresses_end(page_size()) }),
            stack_growth: stack.clamp(SMALLEST_STACK, LARGEST_STACK) + GUARD,
            heap_start: RemoteAddr(self.stat()?.start_brk),
            heap_growth: if self.is_32bit() { 64 << 20 } else { 512 << 20 },
            past_ends: POINTED_PAST,
        })
    }
}

impl Mappings {
    /// Page-aligned addresses where `size` bytes are free and every byte of them is within `reach` of every byte of `near`;
    /// nearest first. There are several, because the kernel may refuse one, and finitely many.
    ///
    /// Left alone are the space the heap and the main stack grow into, and what the rules exclude.
    pub fn find_gap(
        &self,
        rules: &GapRules,
        near: Range<RemoteAddr>,
        reach: u64,
        size: u64,
    ) -> impl Iterator<Item = RemoteAddr> + use<> {
        let mut candidates: Vec<u64> = Vec::new();
        if let Some(size) = size.checked_next_multiple_of(rules.page).filter(|&size| size > 0) {
            // The last byte of either may need to reach the first of the other.
            let low = near.end.0.saturating_sub(reach).max(rules.lowest.0);
            let high = near.start.0.saturating_add(reach).min(rules.end.0);
            for gap in self.gaps(rules) {
                let start = gap.start.max(low).checked_next_multiple_of(rules.page);
                let end = gap.end.min(high) & !(rules.page - 1);
                if let Some(start) = start
                    && end.checked_sub(start).is_some_and(|len| len >= size)
                {
                    candidates.extend(places(start, end - size, near.start.0, rules.page.max(size)));
                }
            }
        }
        candidates.sort_by_key(|&at| (distance(at..at + size, near.start.0..near.end.0), at));
        candidates.dedup();
        candidates.into_iter().map(RemoteAddr)
    }

    /// Where memory that may lie anywhere is best put: near the libraries, because programs built with a sanitizer end if anything
    /// lies where they keep their shadow memory, and well below them, because right there the kernel puts the program's next mappings.
    pub fn quiet_place(&self, rules: &GapRules, size: u64) -> RemoteAddr {
        /// In 32 bits, well below the libraries. Words that look like addresses of ours keep our memory (`reach` in the engine), so it is no
        /// round number, as flags and floats are, and none that code has between its bytes: `nop` alone is 0x90.
        const NARROW: u64 = 0x9b37_5000;
        /// The same where a kernel of 32 bits leaves half of the addresses.
        const NARROWER: u64 = 0x5b37_5000;
        /// From here up every sanitizer keeps what is the application's: `HiAppMem` of `tsan_platform.h`, `app-3` of `msan.h`, `HighMem` of
        /// `asan_mapping.h`, each for x86-64.
        const APPLICATION: u64 = 0x7e80_0000_0000;
        /// The same where 46 bits are all, as with powerpc's small pages.
        const APPLICATION_46: u64 = 0x3e80_0000_0000;
        /// The same of arm64's 48, by those of gcc since 13 and of clang since 16.
        const APPLICATION_48: u64 = 0xfc00_0000_0000;
        /// By older ones.
        const OLDER_APPLICATION_48: u64 = 0xffff_0000_0000;
        /// For mappings of the program to come. A larger one goes below ours.
        const ROOM: u64 = 64 << 30;
        if rules.end.0 <= 1 << 32 {
            return RemoteAddr(if rules.end.0 > NARROW + (1 << 28) { NARROW } else { NARROWER });
        }
        let application = match u64::BITS - (rules.end.0 - 1).leading_zeros() {
            48.. => APPLICATION_48,
            47 => APPLICATION,
            46 => APPLICATION_46,
            // Nothing is known of these, but that libraries lie high.
            _ => rules.end.0 / 2,
        };
        let starts = self.iter().map(|mapping| mapping.start.0).filter(|&start| start >= application);
        let lowest = starts.min().unwrap_or(rules.end.0).min(rules.end.0);
        let older = OLDER_APPLICATION_48;
        if application == APPLICATION_48 && lowest > older && (lowest - older) / 4 >= size {
            return RemoteAddr((older + (lowest - older) / 2) & !(rules.page - 1));
        }
        // Of two places that are equally near the lower one is taken: the one that ends here.
        let place = lowest.saturating_sub(ROOM + size).max(application.saturating_add(size));
        RemoteAddr(place & !(rules.page - 1))
    }

    /// The free ranges, ascending.
    fn gaps(&self, rules: &GapRules) -> Vec<Range<u64>> {
        let mut taken: Vec<Range<u64>> = Vec::with_capacity(self.len() + 1);
        let heap_start = rules.heap_start.0;
        if heap_start != 0 {
            taken.push(heap_start..heap_start.saturating_add(rules.heap_growth));
        }
        for mapping in self {
            let (mut start, mut end) = (mapping.start.0, mapping.end.0.saturating_add(rules.past_ends));
            if mapping.is_special("[heap]") {
                end = end.saturating_add(rules.heap_growth);
            } else if mapping.is_special("[stack]") {
                start = start.saturating_sub(rules.stack_growth);
            }
            taken.push(start..end);
        }
        taken.sort_by_key(|range| range.start);
        let mut gaps = Vec::new();
        let mut free = rules.lowest.0;
        for range in taken {
            if range.start > free {
                gaps.push(free..range.start.min(rules.end.0));
            }
            free = free.max(range.end);
        }
        if free < rules.end.0 {
            gaps.push(free..rules.end.0);
        }
        gaps
    }
}

/// A few addresses from `first` to `last`: the one nearest to `near`, and others at growing distances from it.
fn places(first: u64, last: u64, near: u64, step: u64) -> impl Iterator<Item = u64> {
    let nearest = near.clamp(first, last);
    let distances =
        std::iter::once(0).chain((0..).map_while(move |n| step.checked_shl(n).filter(|d| *d >> n == step)));
    distances
        .take_while(move |&distance| distance <= last - first)
        .take(12)
        .flat_map(move |distance| [nearest.checked_sub(distance), nearest.checked_add(distance)])
        .flatten()
        .filter(move |place| (first..=last).contains(place))
}

/// Bytes between two ranges that do not overlap.
fn distance(a: Range<u64>, b: Range<u64>) -> u64 {
    if a.end <= b.start { b.start - a.end } else { a.start.saturating_sub(b.end) }
}

/// Bytes of a page of the running kernel.
pub fn page_size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf takes a number and has no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_maps;

    const RULES: GapRules = GapRules {
        page: 0x1000,
        lowest: RemoteAddr(0x1_0000),
        end: RemoteAddr(0x7fff_ffff_f000),
        stack_growth: 0x10_0000,
        heap_start: RemoteAddr(0),
        heap_growth: 0x20_0000,
        past_ends: 0,
    };

    fn gaps(maps: &str, rules: &GapRules, near: Range<u64>, reach: u64, size: u64) -> Vec<u64> {
        let maps = parse_maps(maps.as_bytes()).unwrap();
        maps.find_gap(rules, RemoteAddr(near.start)..RemoteAddr(near.end), reach, size)
            .map(|at| at.0)
            .collect()
    }

    #[test]
    fn the_nearest_place_on_either_side_comes_first() {
        let maps = "400000-401000 r-xp 0 0:0 0\n403000-404000 r--p 0 0:0 0\n";
        let found = gaps(maps, &RULES, 0x40_0000..0x40_1000, 1 << 31, 0x1000);
        assert_eq!(found[..3], [0x3f_f000, 0x40_1000, 0x3f_e000]);
    }

    #[test]
    fn a_place_in_the_middle_of_a_gap_is_taken_where_it_is_asked_for() {
        let maps = "400000-401000 r-xp 0 0:0 0\nf7000000-f7001000 r--p 0 0:0 0\n";
        let found = gaps(maps, &RULES, 0xc000_0000..0xc000_0000, u64::MAX, 0x1000);
        assert_eq!(found[..4], [0xbfff_f000, 0xc000_0000, 0xbfff_e000, 0xc000_1000]);
    }

    #[test]
    fn every_candidate_is_free_in_reach_and_aligned() {
        let maps = "400000-500000 r-xp 0 0:0 0\n500000-521000 rw-p 0 0:0 0 [heap]\n\
            7ffff0000000-7ffff0021000 rw-p 0 0:0 0 [stack]\n";
        let near = 0x40_0000..0x50_0000u64;
        for (reach, size) in [
            (1u64 << 31, 0x1000u64),
            (1 << 31, 0x10_0000),
            (1 << 25, 0x4000),
            (1 << 20, 1),
            (0x10_1000, 0x1000),
        ] {
            let found = gaps(maps, &RULES, near.clone(), reach, size);
            for at in &found {
                let end = at + size.next_multiple_of(0x1000);
                assert_eq!(at % 0x1000, 0);
                assert!(
                    end.max(near.end) - near.start.min(*at) <= reach,
                    "{at:#x} is out of reach {reach:#x}"
                );
                assert!(
                    end <= near.start || *at >= 0x52_1000 + RULES.heap_growth,
                    "{at:#x} is taken or the heap's"
                );
                assert!(*at >= RULES.lowest.0);
            }
            assert_eq!(found.is_empty(), reach <= 1 << 20, "reach {reach:#x}, size {size:#x}: {found:x?}");
        }
    }

    #[test]
    fn the_stack_keeps_its_room() {
        let maps = "7ffff0000000-7ffff0021000 rw-p 0 0:0 0 [stack]\n";
        let near = 0x7fff_f000_0000..0x7fff_f002_1000u64;
        let found = gaps(maps, &RULES, near, 1 << 24, 0x1000);
        assert!(
            found.iter().all(|&at| at + 0x1000 <= 0x7fff_eff0_0000 || at >= 0x7fff_f002_1000),
            "{found:x?}"
        );
        assert!(found.contains(&0x7fff_efef_f000));
    }

    /// What any sanitizer takes for itself lies below, whatever the layout.
    #[test]
    fn a_quiet_place_is_where_sanitizers_have_the_applications_memory() {
        const APPLICATION: u64 = 0x7e80_0000_0000;
        for (maps, lowest) in [
            (
                "7ff000000000-7ff000001000 r-xp 0 0:0 0\n7ffff0000000-7ffff0021000 rw-p 0 0:0 0 [stack]\n",
                0x7ff0_0000_0000,
            ),
            (
                "7eff00000000-7eff00001000 r-xp 0 0:0 0\n7ff000000000-7ff000001000 r-xp 0 0:0 0\n",
                0x7eff_0000_0000,
            ),
            // Libraries from the middle up, as with an unlimited stack.
            (
                "2aaaaaaab000-2aaaaaaac000 r-xp 0 0:0 0\n7ffff0000000-7ffff0021000 rw-p 0 0:0 0 [stack]\n",
                0x7fff_f000_0000,
            ),
            ("", RULES.end.0),
        ] {
            let parsed = parse_maps(maps.as_bytes()).unwrap();
            for size in [0x1000, 1 << 30, 100 << 30] {
                let near = parsed.quiet_place(&RULES, size).0;
                let found = gaps(maps, &RULES, near..near, u64::MAX, size)[0];
                assert!(
                    found >= APPLICATION && found + size <= lowest - (64 << 30),
                    "{maps} {size:#x}: {found:#x}"
                );
            }
        }
        let narrow = GapRules { end: RemoteAddr(0xffff_e000), ..RULES };
        assert_eq!(parse_maps(b"").unwrap().quiet_place(&narrow, 0x1000), RemoteAddr(0x9b37_5000));
        let halved = GapRules { end: RemoteAddr(1 << 31), ..RULES };
        assert_eq!(parse_maps(b"").unwrap().quiet_place(&halved, 0x1000), RemoteAddr(0x5b37_5000));
        let shorter = GapRules { end: RemoteAddr(0x3fff_ffff_0000), ..RULES };
        for (maps, lowest) in
            [("", 0x3fff_ffff_0000), ("3fffac750000-3fffac994000 r-xp 0 0:0 0\n", 0x3fff_ac75_0000)]
        {
            let near = parse_maps(maps.as_bytes()).unwrap().quiet_place(&shorter, 1 << 30).0;
            let found = gaps(maps, &shorter, near..near, u64::MAX, 1 << 30)[0];
            assert!(found >= 0x3e80_0000_0000 && found + (1 << 30) <= lowest - (64 << 30), "{found:#x}");
        }
        // Where little is the application's, and the program itself lies elsewhere. What comes second does so beside the first.
        let longer = GapRules { end: RemoteAddr(1 << 48), ..RULES };
        let program = "aaaac0d10000-aaaac0d11000 r-xp 0 0:0 0\n";
        let library = "ffffab1d1000-ffffab369000 r-xp 0 0:0 0\n";
        for (size, lowest) in
            [(1 << 16, 0xffff_0000_0000), (1 << 29, 0xffff_0000_0000), (17 << 30, 0xfc00_0000_0000)]
        {
            let (mut maps, mut first) = (format!("{program}{library}"), None);
            for _ in 0..2 {
                let parsed = parse_maps(maps.as_bytes()).unwrap();
                let near = first.unwrap_or_else(|| parsed.quiet_place(&longer, size).0);
                let size = if first.is_some() { 1 << 16 } else { size };
                let found = gaps(&maps, &longer, near..near, u64::MAX, size)[0];
                assert!(found >= lowest && found + size <= 0xffff_ab1d_1000, "{size:#x}: {found:#x}");
                assert!(found.is_multiple_of(RULES.page), "{found:#x}");
                maps = format!("{program}{found:x}-{:x} rw-s 0 0:0 0\n{library}", found + size);
                first = Some(near);
            }
        }
        // Fewer bits than any sanitizer has a layout for, as arm64's kernels may be configured.
        for bits in [39, 42] {
            let end = 1u64 << bits;
            let few = GapRules { end: RemoteAddr(end), ..RULES };
            let lowest = end - (3 << 30);
            let maps = format!("{lowest:x}-{:x} r-xp 0 0:0 0\n", lowest + 0x1000);
            let near = parse_maps(maps.as_bytes()).unwrap().quiet_place(&few, 1 << 29).0;
            let found = gaps(&maps, &few, near..near, u64::MAX, 1 << 29)[0];
            assert!(found >= end / 2 && found + (1 << 29) <= lowest - (64 << 30), "{bits}: {found:#x}");
        }
    }

    #[test]
    fn nothing_lies_where_pointers_past_the_end_of_a_module_lead() {
        let rules = GapRules { past_ends: 0x8000, ..RULES };
        let maps = "400000-401000 r-xp 0 0:0 0\n401000-402000 rw-p 0 0:0 0\n40b000-40c000 r--p 0 0:0 0\n";
        let found = gaps(maps, &rules, 0x40_0000..0x40_2000, 1 << 31, 0x1000);
        assert!(found.iter().all(|at| !(0x40_2000..0x40_a000).contains(at)), "{found:x?}");
        assert!(found.contains(&0x40_a000), "{found:x?}");
    }

    #[test]
    fn a_heap_that_does_not_exist_yet_keeps_its_room() {
        let rules = GapRules { heap_start: RemoteAddr(0x60_0000), ..RULES };
        let found = gaps("400000-600000 r-xp 0 0:0 0\n", &rules, 0x40_0000..0x60_0000, 1 << 31, 0x1000);
        assert!(found.iter().all(|at| !(0x40_0000..0x80_0000).contains(at)), "{found:x?}");
    }

    #[test]
    fn nonsense_finds_nothing() {
        for (near, reach, size) in
            [(0..0, 0, 0), (0..u64::MAX, 1, 1), (0..1, 1 << 31, u64::MAX), (u64::MAX - 1..u64::MAX, 16, 4096)]
        {
            assert_eq!(gaps("", &RULES, near, reach, size), [0; 0]);
        }
    }
}
