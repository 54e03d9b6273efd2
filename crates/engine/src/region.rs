//! The tool's own view of the shared region.

use crate::EngineError;
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};
use trapless_wire::{Header, Words};

/// The shared region, mapped into this process. Lives on when the target is gone.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    size: usize,
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
            Some(base) if base.as_ptr() as isize != -1 => Ok(Self { base, size }),
            _ => Err(EngineError::Map(io::Error::last_os_error())),
        }
    }

    /// The header as it is now.
    pub fn header(&self) -> Option<Header> {
        let mut bytes = [0; size_of::<Header>()];
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.word(8 * i as u64).to_ne_bytes());
        }
        Header::read(&bytes)
    }

    /// Copies bytes in. Both ends must be multiples of 8; what does not fit is left out.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            self.set_word(offset + 8 * i as u64, u64::from_ne_bytes(value));
        }
    }

    /// Adds to the word at a byte offset, a multiple of 8; what it was before.
    pub fn add(&self, offset: u64, value: u64) -> u64 {
        self.atomic(offset).map_or(0, |word| word.fetch_add(value, Ordering::Relaxed))
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

impl Words for Region {
    fn word(&self, offset: u64) -> u64 {
        self.atomic(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set_word(&self, offset: u64, value: u64) {
        if let Some(word) = self.atomic(offset) {
            word.store(value, Ordering::Release);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}
