//! How bytes are changed that threads run, one step of the protocol after the other.

use crate::Error;
use crate::code::instructions;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Commands of `membarrier(2)` (`include/uapi/linux/membarrier.h`).
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;

fn membarrier(command: i32) -> Result<(), Error> {
    // SAFETY: the call takes integers.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(Error::last("membarrier")),
    }
}

/// Lets this process call the other ones. A forked child has to do so again.
pub(crate) fn register() -> Result<(), Error> {
    membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)?;
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// Every thread has run a full barrier when this returns.
pub(crate) fn barrier() -> Result<(), Error> {
    membarrier(PRIVATE_EXPEDITED)
}

/// Every thread runs the instructions that are in memory now when this returns.
fn synchronize() -> Result<(), Error> {
    membarrier(PRIVATE_EXPEDITED_SYNC_CORE)
}

/// Somebody has said that filters let our system calls pass.
static ALLOWED: AtomicBool = AtomicBool::new(false);

pub(crate) fn allow_seccomp() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// Refuses where a filter might end the process for a system call. A process may have come to have one since it was asked last.
pub(crate) fn refuse_seccomp() -> Result<(), Error> {
    if ALLOWED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let status = std::fs::read_to_string("/proc/thread-self/status")
        .map_err(|source| Error::System { what: "/proc/thread-self/status", source })?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    if mode.is_some_and(|mode| mode != "0") { Err(Error::Seccomp) } else { Ok(()) }
}

/// Our own memory, which can be written where it is read-only to us: for each page that is the kernel makes a copy of our own.
pub(crate) struct Memory(File);

impl Memory {
    pub fn open() -> Result<Self, Error> {
        let opened = File::options().read(true).write(true).open("/proc/self/mem");
        opened.map(Self).map_err(|source| Error::System { what: "/proc/self/mem", source })
    }

    /// What lies there; `None` if nothing does.
    pub fn read(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.0.write_all_at(bytes, address);
        written.map_err(|source: io::Error| Error::System { what: "writing to /proc/self/mem", source })
    }
}

/// A jump over instructions, and what it is written over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    /// Where it stands.
    pub address: u64,
    /// Its bytes. Where an instruction begins behind the first one, they are breakpoints.
    pub bytes: Vec<u8>,
    /// What stood there.
    pub original: Vec<u8>,
    /// Offsets of these beginnings, ascending.
    pub starts: Vec<usize>,
}

/// What stands at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// What its file has.
    Original,
    /// Our jump.
    Ours,
    /// Something else, or nothing.
    Other,
}

impl Jump {
    pub fn stands(&self, memory: &Memory) -> Stands {
        match memory.read(self.address, self.bytes.len()) {
            Some(now) if now == self.original => Stands::Original,
            Some(now) if now == self.bytes => Stands::Ours,
            _ => Stands::Other,
        }
    }

    /// Puts the jump in. Whoever may meet a breakpoint of it is sent on by then.
    ///
    /// # Errors
    /// It could not be written; what was is undone, as far as that can be.
    pub fn put_in(&self, memory: &Memory) -> Result<(), Error> {
        let trap = instructions().map_or(0, |isa| isa.trap());
        let put_in = || {
            self.write_first(memory, trap)?;
            if !self.starts.is_empty() {
                self.starts.iter().try_for_each(|&at| memory.write(self.address + at as u64, &[trap]))?;
                synchronize()?;
            }
            self.write_rest(memory, &self.bytes)?;
            self.write_first(memory, self.bytes[0])
        };
        put_in().inspect_err(|_| drop(self.take_out(memory)))
    }

    /// Puts back what stood there.
    ///
    /// # Errors
    /// It could not be written. At every step whoever comes there is sent on.
    pub fn take_out(&self, memory: &Memory) -> Result<(), Error> {
        let trap = instructions().map_or(0, |isa| isa.trap());
        self.write_first(memory, trap)?;
        self.write_rest(memory, &self.original)?;
        if !self.starts.is_empty() {
            let put_back = |&at: &usize| memory.write(self.address + at as u64, &[self.original[at]]);
            self.starts.iter().try_for_each(put_back)?;
            synchronize()?;
        }
        self.write_first(memory, self.original[0])
    }

    fn write_first(&self, memory: &Memory, byte: u8) -> Result<(), Error> {
        memory.write(self.address, &[byte])?;
        synchronize()
    }

    /// All bytes but those at which an instruction begins.
    fn write_rest(&self, memory: &Memory, bytes: &[u8]) -> Result<(), Error> {
        let mut from = 1;
        for end in self.starts.iter().copied().chain([bytes.len()]) {
            if from < end {
                memory.write(self.address + from as u64, &bytes[from..end])?;
            }
            from = end + 1;
        }
        synchronize()
    }
}
