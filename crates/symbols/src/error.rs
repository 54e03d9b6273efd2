//! Why a file gives no module: what is wrong, where, and what to do about it.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why a file could not be taken as a module.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// There is no such file.
    #[error("{}: no such file; check the path, or name the library by its soname", .0.display())]
    NotFound(PathBuf),
    /// The file may not be read.
    #[error("{}: permission denied; run as a user who may read the file", .0.display())]
    Permission(PathBuf),
    /// A directory, device, pipe or socket.
    #[error("{}: not a regular file; name an executable or a shared library", .0.display())]
    NotAFile(PathBuf),
    /// Reading failed otherwise.
    #[error("{}: cannot be read: {source}; try again, or copy the file elsewhere", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("{}: the file is empty; build or install it again", .0.display())]
    Empty(PathBuf),
    /// The file does not start with the ELF magic.
    #[error("{}: not an ELF file ({found}); name the executable or library itself", .path.display())]
    NotElf {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        found: &'static str,
    },
    /// A big-endian file.
    #[error("{}: big-endian ELF; only little-endian machines are supported", .0.display())]
    BigEndian(PathBuf),
    /// An instruction set trapless does not know.
    #[error(
        "{}: machine {machine} (ELF class {bits} bit) is not supported; x86-64, i386, aarch64 and ppc64le are", .path.display()
    )]
    UnsupportedMachine {
        /// The file.
        path: PathBuf,
        /// `e_machine`.
        machine: u16,
        /// 32 or 64.
        bits: u8,
    },
    /// An object file, a core dump or a file with nothing to load.
    #[error("{}: {what}, which no process runs; name the linked executable or library", .path.display())]
    NotLoadable {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The headers name bytes behind the end of the file.
    #[error(
        "{}: truncated: {what} ends at byte {end:#x}, the file at {size:#x}; copy or install it again", .path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What lies behind the end.
        what: &'static str,
        /// Where it would end.
        end: u64,
        /// Where the file ends.
        size: u64,
    },
    /// The headers contradict themselves.
    #[error("{}: corrupt ELF file: {detail}; build or install it again", .path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        detail: String,
    },
}

/// Why a module's notes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotesError {
    /// A note reaches over the end of its section.
    #[error(
        "note at offset {0:#x} of .note.stapsdt is cut short; the file is corrupt, build or install it again"
    )]
    CutShort(usize),
    /// A probe description lacks one of its three addresses or three strings.
    #[error(
        "USDT probe at offset {0:#x} of .note.stapsdt is malformed; rebuild the file with a current sys/sdt.h"
    )]
    Malformed(usize),
}
