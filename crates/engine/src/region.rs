//! The tool's own view of the shared region.
//!
//! Its file is sparse. A load from a page that nobody has written would take memory for it, as much as a store; so what is
//! there is asked of the file first (`SEEK_DATA`, which knows pages that are swapped out, too), and remembered: a page that is
//! there stays.

use crate::EngineError;
use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};
use trapless_process::page_size;
use trapless_wire::{Atomics, Words, WordsMut};

/// The shared region, mapped into this process. Lives on when the target is gone.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    size: usize,
    file: File,
    /// Which file that is, where somebody else may close the descriptor: the program's own process has it.
    identity: Option<(u64, u64)>,
    /// A bit for each page that is known to be in the file.
    present: Vec<AtomicU64>,
}

// SAFETY: the mapping is owned by the value, and every access goes through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `size` bytes of the region's file.
    pub fn map(fd: &OwnedFd, size: u64) -> Result<Self, EngineError> {
        let size = usize::try_from(size)
            .map_err(|_| EngineError::Map(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        let file = File::from(fd.try_clone().map_err(EngineError::Map)?);
        let mut present = Vec::new();
        present.resize_with(size.div_ceil(page_size() as usize * 64), AtomicU64::default);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast()) {
            Some(base) if base.as_ptr() as isize != -1 => {
                Ok(Self { base, size, file, identity: None, present })
            }
            _ => Err(EngineError::Map(io::Error::last_os_error())),
        }
    }

    /// Takes over a mapping of the region's file, of which it is the first `size` bytes.
    ///
    /// # Safety
    /// It is mapped there, shared, for reading and writing, and whoever else has it only reads and writes words in it.
    pub unsafe fn of_mapping(base: NonNull<u8>, size: usize, file: File) -> Self {
        let mut present = Vec::new();
        present.resize_with(size.div_ceil(page_size() as usize * 64), AtomicU64::default);
        let identity = Some(file.metadata().map_or((0, 0), |about| (about.dev(), about.ino())));
        Self { base, size, file, identity, present }
    }

    /// Its file; `None` where the descriptor was closed behind our back, and may be another file's by now.
    fn file(&self) -> Option<&File> {
        let is_it = |identity: (u64, u64)| {
            self.file.metadata().is_ok_and(|about| (about.dev(), about.ino()) == identity)
        };
        self.identity.is_none_or(is_it).then_some(&self.file)
    }

    /// The place of a range in memory.
    ///
    /// # Errors
    /// It does not lie in it.
    fn place(&self, offset: u64, length: usize) -> Result<*mut u8, EngineError> {
        let within = |offset: usize| offset.checked_add(length).is_some_and(|end| end <= self.size);
        match usize::try_from(offset) {
            // SAFETY: in bounds of our mapping.
            Ok(offset) if within(offset) => Ok(unsafe { self.base.as_ptr().add(offset) }),
            _ => Err(EngineError::Map(io::ErrorKind::InvalidInput.into())),
        }
    }

    /// Copies bytes in, by way of the file: no page of it has to be brought into this process first.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let Some(file) = self.file() else {
            let place = self.place(offset, bytes.len())?;
            // SAFETY: in bounds of our mapping; whoever else has it reads words that may be anything.
            unsafe { place.copy_from(bytes.as_ptr(), bytes.len()) };
            return Ok(());
        };
        file.write_all_at(bytes, offset).map_err(EngineError::Map)
    }

    /// What stands at these offsets.
    ///
    /// # Errors
    /// Those of reading the file.
    pub fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>, EngineError> {
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        let Some(file) = self.file() else {
            let place = self.place(range.start, bytes.len())?;
            // SAFETY: in bounds of our mapping.
            unsafe { place.copy_to(bytes.as_mut_ptr(), bytes.len()) };
            return Ok(bytes);
        };
        file.read_exact_at(&mut bytes, range.start).map_err(EngineError::Map)?;
        Ok(bytes)
    }

    /// Adds to the word at a byte offset, a multiple of 8; what it was before.
    pub fn add(&self, offset: u64, value: u64) -> u64 {
        self.atomic(offset).map_or(0, |word| word.fetch_add(value, Ordering::Relaxed))
    }

    /// Puts `new` in the place of `current` in the word at a byte offset, a multiple of 8, in one step. Whatever the target wrote before it wrote
    /// `current` is seen, and sees who reads `new`.
    ///
    /// # Errors
    /// What stands there instead. There is no such word: 0.
    pub fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<(), u64> {
        let word = self.atomic(offset).ok_or(0u64)?;
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Puts `new` into the word at a byte offset, a multiple of 8, and takes what stood there.
    pub fn swap(&self, offset: u64, new: u64) -> u64 {
        self.atomic(offset).map_or(0, |word| word.swap(new, Ordering::AcqRel))
    }

    /// Gives the pages in a range of offsets back: they read as 0 from then on, in the target, too. Only whole pages go.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget(&self, range: Range<u64>) -> Result<(), EngineError> {
        let (start, end) =
            (range.start.next_multiple_of(page_size()), range.end.min(self.size as u64) & !(page_size() - 1));
        if start >= end {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let Some(file) = self.file() else {
            let length = (end - start) as usize;
            let place = self.place(start, length)?;
            // SAFETY: in bounds of our mapping, which is shared; who reads it reads words that may be 0 at any time.
            return match unsafe { libc::madvise(place.cast(), length, libc::MADV_REMOVE) } {
                0 => Ok(()),
                _ => Err(EngineError::Map(io::Error::last_os_error())),
            };
        };
        let (at, length) = (start as libc::off_t, (end - start) as libc::off_t);
        // SAFETY: fallocate takes no pointers; the file is ours, and who reads it reads words that may be 0 at any time.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, at, length) } {
            0 => Ok(()),
            _ => Err(EngineError::Map(io::Error::last_os_error())),
        }
    }

    /// Gives all of it back but for what is ahead of an offset: it reads as 0 from then on, for everybody, and takes no memory when it is read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget_from(&self, offset: u64) -> Result<(), EngineError> {
        self.forget(offset..self.size as u64)?;
        self.present.iter().for_each(|pages| pages.store(0, Ordering::Relaxed));
        Ok(())
    }

    /// The 32-bit word at a byte offset, a multiple of 4.
    pub(crate) fn half(&self, offset: u64) -> u32 {
        self.atomic_half(offset).map_or(0, |half| half.load(Ordering::Acquire))
    }

    pub(crate) fn set_half(&self, offset: u64, value: u32) {
        if let Some(half) = self.atomic_half(offset) {
            half.store(value, Ordering::Release);
        }
    }

    /// Sleeps until somebody wakes who waits for this 32-bit word, if it has that value; or for no reason.
    pub(crate) fn wait(&self, offset: u64, value: u32) {
        if let Some(half) = self.atomic_half(offset) {
            // SAFETY: the word is ours to read for as long as the call takes; there is no time limit. Whatever it answers, the caller looks.
            unsafe {
                libc::syscall(libc::SYS_futex, half.as_ptr(), libc::FUTEX_WAIT, value, std::ptr::null::<u8>())
            };
        }
    }

    /// Wakes all who wait for this 32-bit word, in whichever process.
    pub(crate) fn wake(&self, offset: u64) {
        if let Some(half) = self.atomic_half(offset) {
            // SAFETY: the kernel takes the address of the word for a name, and reads nothing there.
            unsafe { libc::syscall(libc::SYS_futex, half.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    fn atomic_half(&self, offset: u64) -> Option<&AtomicU32> {
        let offset = usize::try_from(offset).ok()?;
        if !offset.is_multiple_of(4) || offset.checked_add(4)? > self.size {
            return None;
        }
        // SAFETY: as for whole words.
        Some(unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) })
    }

    fn atomic(&self, offset: u64) -> Option<&AtomicU64> {
        let offset = usize::try_from(offset).ok()?;
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.size {
            return None;
        }
        // SAFETY: in bounds of our mapping, which lives as long as `self`; aligned, since the base is page aligned;
        // and memory that others write at the same time is only ever read atomically.
        Some(unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) })
    }
}

impl Region {
    /// The next place in the file, from `offset` on, that is in memory or swapped out (`SEEK_DATA`), or is not (`SEEK_HOLE`).
    fn seek(&self, offset: u64, whence: i32) -> Option<u64> {
        let Some(file) = self.file() else {
            // Nobody can tell: all of it may be.
            return if whence == libc::SEEK_DATA {
                Some(offset).filter(|at| *at < self.size as u64)
            } else {
                Some(self.size as u64)
            };
        };
        let offset = libc::off_t::try_from(offset).ok()?;
        // SAFETY: lseek takes no pointers, and nobody relies on the position of this file.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        u64::try_from(found).ok()
    }

    /// The bits of a page: their word, and which.
    fn presence(&self, page: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.present.get(usize::try_from(page / 64).ok()?)?, 1 << (page % 64)))
    }

    fn is_present(&self, offset: u64) -> bool {
        let Some((pages, bit)) = self.presence(offset / page_size()) else { return false };
        if pages.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let found = self.seek(offset, libc::SEEK_DATA) == Some(offset);
        if found {
            pages.fetch_or(bit, Ordering::Relaxed);
        }
        found
    }
}

impl Words for Region {
    fn word(&self, offset: u64) -> u64 {
        match self.atomic(offset) {
            Some(word) if self.is_present(offset) => word.load(Ordering::Acquire),
            _ => 0,
        }
    }

    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while let Some(start) = self.seek(at, libc::SEEK_DATA).filter(|&start| start < range.end) {
            let end = self.seek(start, libc::SEEK_HOLE).unwrap_or(range.end).min(range.end);
            for page in start / page_size()..end.div_ceil(page_size()) {
                if let Some((pages, bit)) = self.presence(page) {
                    pages.fetch_or(bit, Ordering::Relaxed);
                }
            }
            parts.push(start..end);
            at = end.max(start + 8);
        }
        parts
    }
}

impl WordsMut for Region {
    fn set_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.atomic(offset) {
            word.store(value, Ordering::Release);
        }
    }

    fn release(&self, range: Range<u64>) {
        let (start, end) =
            (range.start.next_multiple_of(page_size()), range.end.min(self.size as u64) & !(page_size() - 1));
        if start < end {
            // SAFETY: in bounds of our mapping. It is shared, so what is in it stays in the file and is found there again.
            unsafe {
                let at = self.base.as_ptr().add(start as usize).cast();
                libc::madvise(at, (end - start) as usize, libc::MADV_DONTNEED);
            }
        }
    }
}

impl Atomics for Region {
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let word = self.atomic(offset).ok_or(0u64)?;
        word.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fetch_add(&self, offset: u64, value: u64) -> u64 {
        self.atomic(offset).map_or(0, |word| word.fetch_add(value, Ordering::SeqCst))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn memory(size: u64) -> File {
        // SAFETY: a new file from a name that ends in 0; its descriptor is nobody else's.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn reading_takes_no_memory() {
        let (size, page) = (1 << 30, page_size());
        let file = memory(size);
        let region = Region::map(&file.try_clone().unwrap().into(), size).unwrap();
        assert_eq!(region.written(0..size), []);
        region.set_word(3 * page + 8, 7);
        region.set_word(9 * page, 8);
        region.add(10 * page + 16, 9);
        let blocks = file.metadata().unwrap().blocks();
        assert_eq!(blocks * 512, 3 * page);

        assert_eq!([3 * page + 8, 9 * page, 10 * page + 16].map(|at| region.word(at)), [7, 8, 9]);
        for number in 0..size / page {
            assert_eq!(region.word(number * page + 4088), 0);
            assert_eq!(region.word(number * page) != 0, number == 9);
        }
        assert_eq!(region.written(0..size), [3 * page..4 * page, 9 * page..11 * page]);
        // The range cuts what is found.
        assert_eq!(
            region.written(3 * page + 64..9 * page + 8),
            [3 * page + 64..4 * page, 9 * page..9 * page + 8]
        );
        assert_eq!(region.written(4 * page..9 * page), []);
        assert_eq!(region.word(size), 0);
        assert_eq!(file.metadata().unwrap().blocks(), blocks);
    }
}
