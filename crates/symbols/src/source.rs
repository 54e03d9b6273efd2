//! How the bytes of a file get into memory safely.
//!
//! A mapped file that somebody truncates kills its reader with SIGBUS, and build systems truncate binaries while
//! people trace them. So files up to [`MAPPED_FROM`] are read into memory; only beyond, where a copy would cost more
//! memory than a tool may take, is the file mapped and the (rare) risk taken.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    ops::Deref,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use memmap2::Mmap;

use crate::ModuleError;

/// Files of this size in bytes and above are mapped, smaller ones are read.
pub(crate) const MAPPED_FROM: u64 = 64 << 20;

/// A file's contents, read or mapped.
pub(crate) enum Source {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Source::Read(bytes) => bytes,
            Source::Mapped(map) => map,
        }
    }
}

impl Source {
    /// The contents of the regular file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Source, ModuleError> {
        Self::open_with_threshold(path, MAPPED_FROM)
    }

    fn open_with_threshold(path: &Path, mapped_from: u64) -> Result<Source, ModuleError> {
        // Without O_NONBLOCK, opening a named pipe would wait for somebody to write into it.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|error| {
            match error.raw_os_error() {
                // A socket, or a device without a driver.
                Some(libc::ENXIO) => ModuleError::NotAFile(path.into()),
                _ => failed(path, error),
            }
        })?;
        Self::read(&file, path, mapped_from)
    }

    /// The contents of a file that is open. `path` is for messages.
    pub(crate) fn of_file(file: &File, path: &Path) -> Result<Source, ModuleError> {
        Self::read(file, path, MAPPED_FROM)
    }

    fn read(file: &File, path: &Path, mapped_from: u64) -> Result<Source, ModuleError> {
        let fail = |error| failed(path, error);
        let metadata = file.metadata().map_err(fail)?;
        if !metadata.is_file() {
            return Err(ModuleError::NotAFile(path.into()));
        }
        if metadata.len() < mapped_from {
            // A file that grows while it is read must not be read forever.
            let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
            file.take(mapped_from).read_to_end(&mut bytes).map_err(fail)?;
            return Ok(Source::Read(bytes));
        }
        map(file).map(Source::Mapped).map_err(fail)
    }
}

fn failed(path: &Path, error: io::Error) -> ModuleError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ModuleError::NotFound(path.into()),
        io::ErrorKind::PermissionDenied => ModuleError::Permission(path.into()),
        _ => ModuleError::Io { path: path.into(), source: error },
    }
}

#[allow(unsafe_code, reason = "a file is mapped")]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping lives as long as the `Mmap` that owns it, and is only read. What cannot be ruled out is that
    // somebody writes to the file meanwhile, as for every mapped file: then bytes change under a `&[u8]`, of which all
    // readers here check each index and length before use. Truncation gives SIGBUS, see the head of this file.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_give_the_same_bytes() {
        let path = Path::new("/proc/self/exe");
        let read = Source::open_with_threshold(path, u64::MAX).unwrap();
        let mapped = Source::open_with_threshold(path, 1).unwrap();
        assert!(matches!(read, Source::Read(_)));
        assert!(matches!(mapped, Source::Mapped(_)));
        assert!(read[..] == mapped[..]);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [pipe.as_path(), socket.as_path(), folder.path(), Path::new("/dev/zero")] {
            assert!(matches!(Source::open(path), Err(ModuleError::NotAFile(_))), "{}", path.display());
        }
    }
}
