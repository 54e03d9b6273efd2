//! How bytes are changed that threads run, one step of the protocol after the other.

use crate::Error;
use crate::code::instructions;
use std::fs::File;
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
///
/// Without the C library, whose functions may have a breakpoint just then.
pub(crate) struct Memory(File);

impl Memory {
    pub fn open() -> Result<Self, Error> {
        let opened = File::options().read(true).write(true).open("/proc/self/mem");
        opened.map(Self).map_err(|source| Error::System { what: "/proc/self/mem", source })
    }

    /// What lies there; `None` if nothing does.
    pub fn read(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < length {
            read += match rustix::io::pread(&self.0, &mut bytes[read..], address + read as u64) {
                Ok(more) if more > 0 => more,
                _ => return None,
            };
        }
        Some(bytes)
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut written = 0;
        while written < bytes.len() {
            let more = rustix::io::pwrite(&self.0, &bytes[written..], address + written as u64);
            written += more
                .map_err(|errno| Error::System { what: "writing to /proc/self/mem", source: errno.into() })?;
        }
        Ok(())
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
    pub fn stands(&self, now: &[u8]) -> Stands {
        match now {
            now if now.starts_with(&self.original) => Stands::Original,
            now if now.starts_with(&self.bytes) => Stands::Ours,
            _ => Stands::Other,
        }
    }

    fn write_first(&self, memory: &Memory, byte: u8) -> Result<(), Error> {
        memory.write(self.address, &[byte])
    }

    /// The bytes at which an instruction begins, behind the first one.
    fn write_starts(&self, memory: &Memory, byte: impl Fn(usize) -> u8) -> Result<(), Error> {
        self.starts.iter().try_for_each(|&at| memory.write(self.address + at as u64, &[byte(at)]))
    }

    /// All the others.
    fn write_rest(&self, memory: &Memory, bytes: &[u8]) -> Result<(), Error> {
        let mut from = 1;
        for end in self.starts.iter().copied().chain([bytes.len()]) {
            if from < end {
                memory.write(self.address + from as u64, &bytes[from..end])?;
            }
            from = end + 1;
        }
        Ok(())
    }
}

/// Jumps that are put in or taken out together, and what has become of each.
struct Together<'j> {
    jumps: &'j [&'j Jump],
    results: Vec<Result<(), Error>>,
}

impl<'j> Together<'j> {
    fn new(jumps: &'j [&'j Jump]) -> Self {
        Self { jumps, results: jumps.iter().map(|_| Ok(())).collect() }
    }

    /// One step of the protocol, which all threads see when it is done.
    fn step(&mut self, write: impl Fn(&Jump) -> Result<(), Error>) {
        let is_going_on = |result: &Result<(), Error>| result.is_ok();
        for (jump, result) in self.jumps.iter().zip(&mut self.results).filter(|(_, result)| result.is_ok()) {
            *result = write(jump);
        }
        if self.results.iter().any(is_going_on) && synchronize().is_err() {
            let failed = self.results.iter_mut().filter(|result| result.is_ok());
            failed.for_each(|result| *result = Err(Error::last("membarrier")));
        }
    }
}

/// Puts jumps in. Whoever may meet a breakpoint of theirs is sent on by then.
///
/// Each may fail by itself; what was is undone then, as far as that can be.
pub(crate) fn put_in(jumps: &[&Jump], memory: &Memory) -> Vec<Result<(), Error>> {
    let trap = instructions().map_or(0, |isa| isa.trap());
    let mut all = Together::new(jumps);
    all.step(|jump| jump.write_first(memory, trap));
    all.step(|jump| jump.write_starts(memory, |_| trap));
    all.step(|jump| jump.write_rest(memory, &jump.bytes));
    all.step(|jump| jump.write_first(memory, jump.bytes[0]));
    let failed = jumps.iter().zip(&all.results).filter(|(_, result)| result.is_err());
    let failed: Vec<&Jump> = failed.map(|(jump, _)| *jump).collect();
    if !failed.is_empty() {
        take_out(&failed, memory);
    }
    all.results
}

/// Puts back what stood there.
///
/// Each may fail by itself. At every step whoever comes there is sent on.
pub(crate) fn take_out(jumps: &[&Jump], memory: &Memory) -> Vec<Result<(), Error>> {
    let trap = instructions().map_or(0, |isa| isa.trap());
    let mut all = Together::new(jumps);
    all.step(|jump| jump.write_first(memory, trap));
    all.step(|jump| jump.write_rest(memory, &jump.original));
    all.step(|jump| jump.write_starts(memory, |at| jump.original[at]));
    all.step(|jump| jump.write_first(memory, jump.original[0]));
    all.results
}
