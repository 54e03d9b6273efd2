//! Guards that are none of the mappings: pages within one that `MADV_GUARD_INSTALL` (Linux 6.13) has made such that nobody can touch them.
//!
//! glibc has ended the stacks of threads by them since 2.42, where it had protected a part of each mapping before. So nothing keeps neighbouring
//! stacks apart in the list of mappings, and the kernel makes one of many. Who asks where a stack ends needs them as they were.

use crate::{Mapping, Mappings, PageRanges, Pagemap, Process};
use std::ops::Range;

/// How much memory is looked at that may be guards: it may as well be swapped out.
const MOST: u64 = 4 << 30;

/// More are not told: a program can make as many as it likes.
const MOST_GUARDS: usize = 1 << 16;

impl Process {
    /// Its mappings, of which those of private anonymous memory that can be written end at guards, and a guard is one without rights: as if all guards had been made
    /// by `mprotect`. `None` where there are none, the kernel does not tell them (before 6.15), or they are beyond all measure.
    pub fn with_guards(&self, maps: &Mappings) -> Option<Mappings> {
        let guards = guards(Pagemap::open(self).ok()?, maps)?;
        (!guards.is_empty()).then(|| maps.cut_at(&guards))
    }
}

/// The guards of all such mappings, ascending; `None` where they are not told.
fn guards(mut pagemap: Pagemap, maps: &Mappings) -> Option<Vec<Range<u64>>> {
    // Kernels that have guards can look for them.
    if !pagemap.is_quick() {
        return None;
    }
    let may_have_guards =
        |mapping: &&Mapping| mapping.inode == 0 && mapping.perms.write && !mapping.perms.shared;
    let (mut guards, mut left) = (PageRanges::default(), MOST);
    for mapping in maps.iter().filter(may_have_guards) {
        let most = (&mut left, MOST_GUARDS);
        pagemap.find_guards(mapping.start.0..mapping.end.0, most, &mut guards).ok()?;
    }
    Some(guards.ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Errno, Perms, page_size, parse_maps};

    #[test]
    fn guards_are_mappings_that_nobody_may_touch() {
        const GUARD_INSTALL: i32 = 102;
        let page = page_size() as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, where the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 10 * page, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = at as u64;
        let pages = |pages: Range<u64>| start + pages.start * page as u64..start + pages.end * page as u64;
        for (first, count) in [(0, 1), (4, 2)] {
            // SAFETY: of the mapping that was made above, and nobody reads it.
            if unsafe { libc::madvise(at.byte_add(first * page), count * page, GUARD_INSTALL) } != 0 {
                return trapless_testing::inapplicable!("the kernel has no guards within mappings");
            }
        }
        let maps = parse_maps(&std::fs::read("/proc/self/maps").unwrap()).unwrap();
        let Some(guards) = guards(Pagemap::own(), &maps).filter(|guards| !guards.is_empty()) else {
            return trapless_testing::inapplicable!("the kernel does not tell guards");
        };
        let maps = maps.cut_at(&guards);
        let is_within = |mapping: &&Mapping| mapping.start.0 < pages(0..10).end && start < mapping.end.0;
        let parts: Vec<_> = maps.iter().filter(is_within).collect();
        // What lies next to it may be one mapping with it.
        let ends: Vec<u64> = parts.iter().map(|part| part.end.0.min(pages(0..10).end)).collect();
        let rest = ends.len() - 4;
        assert_eq!(ends[rest..], [1, 4, 6, 10].map(|end| pages(0..end).end));
        let rights: Vec<bool> = parts[rest..].iter().map(|part| part.perms != Perms::default()).collect();
        assert_eq!(rights, [false, true, false, true]);
        let find = |mut bytes: u64, ranges: usize| {
            let mut found = PageRanges::default();
            let found = Pagemap::own().find_guards(pages(0..10), (&mut bytes, ranges), &mut found);
            found.map(|()| bytes)
        };
        assert_eq!(find(MOST, 1), Err(Errno(libc::E2BIG)));
        // What the kernel tells at once takes nothing.
        assert!([Ok(0), Ok(3 * page as u64)].contains(&find(3 * page as u64, 2)));
        // SAFETY: what was mapped above.
        unsafe { libc::munmap(at, 10 * page) };
    }
}
