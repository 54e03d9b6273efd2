//! How bytes are changed that threads run, one step of the protocol after the other.

use crate::Error;
use crate::code::instructions;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
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
    if has_filter()? { Err(Error::Seccomp) } else { Ok(()) }
}

/// Whether there is or may be a filter, whatever was said of it.
pub(crate) fn is_filtered() -> bool {
    has_filter().unwrap_or(true)
}

fn has_filter() -> Result<bool, Error> {
    const STATUS: &str = "/proc/thread-self/status";
    let status = read_to_end(STATUS).map_err(|source| Error::System { what: STATUS, source })?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    Ok(mode.is_some_and(|mode| mode != "0"))
}

/// A file of the kernel's, which is made when it is read: most are at once.
fn read_to_end(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4096);
    // Its size says nothing, and is not asked for.
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Which of the first 31 signals a thread blocks, as bits from the lowest on; `None` if it has ended.
///
/// # Errors
/// The kernel does not tell, as where no more files can be opened.
pub(crate) fn blocked(task: &Path) -> io::Result<Option<u32>> {
    match read_to_end(task.join("stat")) {
        Ok(stat) => blocked_in(&stat).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if [Some(libc::ENOENT), Some(libc::ESRCH)].contains(&error.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is blocked, by the text of `/proc/PID/stat`. A worker of the kernel's blocks all that can be blocked, and comes to no breakpoint.
fn blocked_in(stat: &str) -> Option<u32> {
    let stat = trapless_process::parse_stat(stat.as_bytes()).ok()?;
    Some(if stat.is_worker() { 0 } else { stat.blocked })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_blocks_is_behind_its_name() {
        let stat = |name: &str, mask: &str| {
            format!(
                "77 ({name}) S 1 77 77 0 -1 4194304 5 6 7 8 9 10 11 12 20 0 1 0 99 1000 10 18446744073709551615 1 2 3 4 5 0 {mask} 4096 0 1 0 0 17"
            )
        };
        for name in ["cat", "a b", ") S 1 (", "1 2) 3 4 5 6", ""] {
            assert_eq!(blocked_in(&stat(name, "16")), Some(16), "{name}");
            assert_eq!(blocked_in(&stat(name, "0")), Some(0), "{name}");
        }
        assert_eq!(blocked_in("77 (cat) S 1"), None);
        let worker = stat("iou-wrk-77", "2147221247").replace(" 4194304 ", " 4210704 ");
        assert_eq!(blocked_in(&worker), Some(0));
    }

    #[test]
    fn what_this_thread_blocks_is_seen() {
        let blocked =
            || blocked(Path::new("/proc/thread-self")).unwrap().unwrap() & 1 << (libc::SIGTRAP - 1) != 0;
        assert!(!blocked());
        let change = |how: i32| {
            // SAFETY: a set of bits, and one signal in it.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut set, libc::SIGTRAP);
                libc::pthread_sigmask(how, &set, std::ptr::null_mut());
            }
        };
        change(libc::SIG_BLOCK);
        let was_blocked = blocked();
        change(libc::SIG_UNBLOCK);
        assert!(was_blocked && !blocked());
        // A number that no thread has.
        assert_eq!(super::blocked(Path::new("/proc/self/task/0")).unwrap(), None);
    }
}
