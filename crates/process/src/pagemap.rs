//! `/proc/PID/pagemap`: which pages of the target hold something.
//!
//! Reading a page that is not there would bring it in: from a disk, from a file server that does not answer, or from a
//! `userfaultfd` whose other end is a thread that we hold. So what is to be read whole is asked for here first.

use crate::{Errno, ProcError, Process, page_size};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Which pages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The process's own: anonymous memory, and pages of files that it has written and so has copies of. Swapped out or not.
    Own,
    /// Those of shared memory and files, as far as the process has touched them.
    Shared,
}

/// Pages that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRanges {
    /// Address ranges, ascending.
    pub ranges: Vec<Range<u64>>,
    /// How many bytes they are together.
    pub bytes: u64,
    /// How many of these are swapped out.
    pub swapped: u64,
}

impl PageRanges {
    fn add(&mut self, range: Range<u64>, swapped: bool) {
        let bytes = range.end - range.start;
        self.bytes += bytes;
        self.swapped += if swapped { bytes } else { 0 };
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }
}

/// An open page map.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    scans: bool,
}

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of the same file.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `page_size()MAP_SCAN`, of Linux 6.7.
const SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// Of Linux 6.16.
const IS_GUARD: u64 = 1 << 8;

impl Pagemap {
    /// Opens the page map of a process.
    ///
    /// # Errors
    /// [`ProcError`] if it ended or may not be looked at.
    pub fn open(process: &Process) -> Result<Self, ProcError> {
        Ok(Self { file: process.open_memory_file("pagemap")?, scans: true })
    }

    /// Our own, which is no process that can be opened.
    #[cfg(test)]
    pub(crate) fn own() -> Self {
        Self { file: File::open("/proc/self/pagemap").unwrap(), scans: true }
    }

    /// Whether time and not address space is what a look takes. Without that, a gigabyte of nothing takes a millisecond.
    pub fn is_quick(&mut self) -> bool {
        self.scans = self.scans && self.scan(0..page_size(), Pages::Own, &mut PageRanges::default()).is_ok();
        self.scans
    }

    /// Adds the pages of a range to what was found.
    ///
    /// # Errors
    /// [`Errno`] where the kernel tells nothing.
    pub fn find(&self, range: Range<u64>, pages: Pages, found: &mut PageRanges) -> Result<(), Errno> {
        if self.scans { self.scan(range, pages, found) } else { self.read(range, pages, found) }
    }

    /// Adds the guards within a range. Where the kernel calls them swapped out and nothing else (before 6.16), each page of which it says that is looked at; that
    /// takes the bytes from `most`, until there are none.
    ///
    /// # Errors
    /// [`Errno`] where the kernel cannot look for them quickly; `E2BIG` where that would be too much, or they are more than `most_ranges`.
    pub(crate) fn find_guards(
        &self,
        range: Range<u64>,
        (most, most_ranges): (&mut u64, usize),
        found: &mut PageRanges,
    ) -> Result<(), Errno> {
        let is_room = |found: &PageRanges| match found.ranges.len() <= most_ranges {
            true => Ok(()),
            false => Err(Errno(libc::E2BIG)),
        };
        let told = self.scan_each(range.clone(), (0, IS_GUARD), |region| {
            found.add(region.start..region.end, false);
            is_room(found)
        });
        if told != Err(Errno(libc::EINVAL)) {
            return told;
        }
        self.scan_each(range, (0, IS_SWAPPED), |region| {
            *most = most.checked_sub(region.end - region.start).ok_or(Errno(libc::E2BIG))?;
            self.read_each(region.start..region.end, |at, entry| {
                if entry.is_guard() {
                    found.add(at..at + page_size(), false);
                }
            })?;
            is_room(found)
        })
    }

    fn scan(&self, range: Range<u64>, pages: Pages, found: &mut PageRanges) -> Result<(), Errno> {
        let categories = match pages {
            Pages::Own => (IS_FILE | IS_ZERO, IS_PRESENT | IS_SWAPPED),
            Pages::Shared => (0, IS_PRESENT),
        };
        self.scan_each(range, categories, |region| {
            if region.categories & IS_SWAPPED == 0 {
                found.add(region.start..region.end, false);
                return Ok(());
            }
            // So it says of guards, too.
            self.read(region.start..region.end, pages, found)
        })
    }

    fn read(&self, range: Range<u64>, pages: Pages, found: &mut PageRanges) -> Result<(), Errno> {
        self.read_each(range, |at, entry| {
            let wanted = match pages {
                Pages::Own => {
                    (entry.is_present() || entry.is_swapped()) && !entry.is_file() && !entry.is_guard()
                }
                Pages::Shared => entry.is_present(),
            };
            if wanted {
                found.add(at..at + page_size(), entry.is_swapped());
            }
        })
    }

    /// The regions of a range that are of none of the first categories and any of the second, with whether they are swapped out.
    fn scan_each(
        &self,
        range: Range<u64>,
        (not, any): (u64, u64),
        mut each: impl FnMut(&PageRegion) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut regions = [PageRegion::default(); 256];
        let mut start = range.start;
        while start < range.end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                start,
                end: range.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_inverted: not,
                category_mask: not,
                category_anyof_mask: any,
                return_mask: IS_SWAPPED,
                ..ScanArgument::default()
            };
            // SAFETY: the kernel reads and writes `argument`, whose size it is told, and at most `vec_len` elements at `vec`,
            // which is `regions`; both outlive the call.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), SCAN, &raw mut argument) };
            let count = Errno::check(count.into())? as usize;
            regions.get(..count).unwrap_or_default().iter().try_for_each(&mut each)?;
            if argument.walk_end <= start {
                break;
            }
            start = argument.walk_end;
        }
        Ok(())
    }

    /// What the kernel says of each page of a range.
    fn read_each(&self, range: Range<u64>, mut each: impl FnMut(u64, Entry)) -> Result<(), Errno> {
        let pages = (range.end.saturating_sub(range.start)) / page_size();
        let mut entries = vec![0u8; (8 * pages).min(64 << 10) as usize];
        let mut start = range.start;
        while start < range.end {
            let wanted = entries.len().min(((range.end - start) / page_size() * 8) as usize);
            let read = self.file.read_at(&mut entries[..wanted], start / page_size() * 8);
            let read = read.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))? & !7;
            if read == 0 {
                break;
            }
            for entry in entries[..read].chunks_exact(8) {
                each(start, Entry(entry.try_into().map_or(0, u64::from_le_bytes)));
                start += page_size();
            }
        }
        Ok(())
    }
}

/// An element of `/proc/PID/pagemap` (`Documentation/admin-guide/mm/pagemap.rst`).
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    fn is_present(self) -> bool {
        self.0 & 1 << 63 != 0
    }

    fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }

    fn is_file(self) -> bool {
        self.0 & 1 << 61 != 0
    }

    /// Nothing is in a page that `MADV_GUARD_INSTALL` has made a guard (Linux 6.13, told since 6.15).
    fn is_guard(self) -> bool {
        self.0 & 1 << 58 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own memory, mapped for a test.
    struct Memory(*mut u8, usize);

    impl Memory {
        fn map(pages: usize, flags: i32) -> Self {
            let size = pages * page_size() as usize;
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    size,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            // Where pages are huge, what was not written is there, too.
            // SAFETY: the mapping is ours, and nothing in it changes.
            unsafe { libc::madvise(at, size, libc::MADV_NOHUGEPAGE) };
            Self(at.cast(), size)
        }

        fn write(&self, page: usize) {
            assert!(page * (page_size() as usize) < self.1);
            // SAFETY: in bounds, as was just asserted, and nobody else has the address.
            unsafe { self.0.add(page * page_size() as usize).write_volatile(1) };
        }

        fn read(&self, page: usize) -> u8 {
            assert!(page * (page_size() as usize) < self.1);
            // SAFETY: as above.
            unsafe { self.0.add(page * page_size() as usize).read_volatile() }
        }

        fn range(&self) -> Range<u64> {
            self.0 as u64..self.0 as u64 + self.1 as u64
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: `map` made this mapping, and the only pointer to it goes with the value.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    /// A stack is one mapping with its guard where glibc makes it so. What points to its end points to where nothing was ever written.
    #[test]
    fn guards_hold_nothing() {
        const GUARD_INSTALL: i32 = 102;
        let memory = Memory::map(20, libc::MAP_PRIVATE);
        memory.write(19);
        // SAFETY: the mapping is ours, and nobody reads the first page.
        if unsafe { libc::madvise(memory.0.cast(), page_size() as usize, GUARD_INSTALL) } != 0 {
            return trapless_testing::inapplicable!("the kernel has no guards within mappings");
        }
        for scans in [true, false] {
            let map = Pagemap { scans, ..Pagemap::own() };
            let mut found = PageRanges::default();
            if scans && map.scan(memory.range(), Pages::Own, &mut PageRanges::default()).is_err() {
                continue;
            }
            map.find(memory.range(), Pages::Own, &mut found).unwrap();
            let last = memory.range().end - page_size()..memory.range().end;
            assert_eq!((found.ranges, found.swapped), (vec![last], 0), "{scans}");
        }
    }

    #[test]
    fn pages_that_were_written_are_found_and_no_others() {
        for (flags, pages) in [(libc::MAP_PRIVATE, Pages::Own), (libc::MAP_SHARED, Pages::Shared)] {
            let memory = Memory::map(2000, flags);
            // One that was only read is the zero page, or one of zeros.
            memory.read(5);
            for page in [3, 10, 11, 1500] {
                memory.write(page);
            }
            let at = |page: u64| memory.range().start + page * page_size();
            for scans in [true, false] {
                let mut map = Pagemap { scans, ..Pagemap::own() };
                println!("asked for a scan: {scans}, done: {}", map.is_quick());
                let mut found = PageRanges::default();
                map.find(memory.range(), pages, &mut found).unwrap();
                found.ranges.retain(|range| range.start != at(5));
                assert_eq!(found.ranges, [at(3)..at(4), at(10)..at(12), at(1500)..at(1501)], "{pages:?}");
                let other = if pages == Pages::Own { Pages::Shared } else { Pages::Own };
                let mut found = PageRanges::default();
                map.find(memory.range(), other, &mut found).unwrap();
                // What is private is there, too, for one who asks for all that is present.
                assert_eq!(found.ranges.is_empty(), other == Pages::Own, "{other:?}");
            }
        }
    }
}
