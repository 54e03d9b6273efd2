//! The kernel's own uprobes, by `perf_event_open`, to stand beside.
//!
//! An event on the uprobe PMU counts hits in one process. Its `config1` is the file's path, `config2` the offset of the
//! instruction in the file; a bit of `config`, whose place sysfs tells, makes it a return probe, and other bits of
//! it are the offset in the file of the semaphore of a USDT probe (`kernel/trace/trace_event_perf.c`,
//! `Documentation/ABI/testing/sysfs-bus-event_source-devices-format`).
//!
//! The event counts the process's first thread only. The others trap at the same instruction and go the same way through
//! the kernel, up to the counting. (Inherited events cannot be: a new thread's would read the path anew, in the memory of
//! the child, and `clone` fails with EFAULT.)

use super::triggers::Side;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::{fs, io};
use trapless_process::Process;

const PMU: &str = "/sys/bus/event_source/devices/uprobe";

/// `struct perf_event_attr` as far as version 5 of it, `PERF_ATTR_SIZE_VER5`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    rest: [u64; 5],
}

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// What a uprobe counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// That an instruction is reached.
    Hits,
    /// The same of a USDT probe. The kernel raises the semaphore at this address in the process while the event
    /// is open.
    Guarded(u64),
    /// That a function returns, by its first instruction.
    Returns,
}

/// How the kernel executes the instruction that a uprobe replaces (`arch/*/kernel/uprobes.c`, on arm64 in `probes` there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// It emulates it, in the one trap.
    Emulated,
    /// It emulates it since this release, and before that steps a copy.
    EmulatedSince(u32, u32),
    /// It steps a copy, for a second trap.
    Stepped,
    /// It emulates this nop of five bytes. Since Linux 6.18, in 64-bit code, the first hit makes it a call that leads
    /// into the kernel.
    Optimized,
}

/// A uprobe, gone when it is dropped.
pub struct Uprobe {
    event: OwnedFd,
}

impl Uprobe {
    /// Probes the instruction at `address` of `process`.
    ///
    /// # Errors
    /// The kernel has no such probes, or refuses them to this user.
    pub fn open(process: &Process, address: u64, counted: Counted) -> io::Result<Self> {
        let kind = number(&format!("{PMU}/type"), |text| text.parse().ok())?;
        let config = match counted {
            Counted::Hits => 0,
            Counted::Guarded(semaphore) => file_place(process, semaphore)?.1 << lowest_bit("ref_ctr_offset")?,
            Counted::Returns => 1 << lowest_bit("retprobe")?,
        };
        let (path, offset) = file_place(process, address)?;
        let attributes = Attributes {
            kind: kind as u32,
            size: size_of::<Attributes>() as u32,
            config,
            config1: path.as_ptr() as u64,
            config2: offset,
            ..Attributes::default()
        };
        // SAFETY: the structure and the path it points to live until the call returns; the kernel copies both.
        let event = unsafe {
            let attributes: *const Attributes = &attributes;
            libc::syscall(libc::SYS_perf_event_open, attributes, process.pid().0, -1, -1, CLOSE_ON_EXEC)
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just given us this descriptor, and nobody else knows it.
        Ok(Self { event: unsafe { OwnedFd::from_raw_fd(event as i32) } })
    }

    /// How often it was hit.
    ///
    /// # Errors
    /// Those of reading the event.
    pub fn hits(&self) -> io::Result<u64> {
        let mut count = 0u64;
        // SAFETY: eight bytes are read into a word of ours.
        let read = unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        if read == size_of::<u64>() as isize { Ok(count) } else { Err(io::Error::last_os_error()) }
    }
}

/// Traps per hit of a uprobe in `bits`-bit code. Told by the kernel's release, since the kernel does not count
/// them.
///
/// The return of a function of x86-64 is seen by a system call since Linux 6.11, any other by a trap.
pub fn traps(bits: u32, execution: Execution, side: Side) -> u32 {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let release: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let entry = match execution {
        Execution::Optimized if bits == 64 && release >= (6, 18) => 0,
        Execution::Optimized | Execution::Emulated => 1,
        Execution::EmulatedSince(major, minor) if release >= (major, minor) => 1,
        Execution::EmulatedSince(..) | Execution::Stepped => 2,
    };
    let by_call = cfg!(target_arch = "x86_64") && bits == 64 && release >= (6, 11);
    let ret = u32::from(side == Side::Return && !by_call);
    entry + ret
}

/// Where in an event's `config` a field begins.
fn lowest_bit(field: &str) -> io::Result<u64> {
    number(&format!("{PMU}/format/{field}"), |text| {
        text.strip_prefix("config:")?.split('-').next()?.parse().ok()
    })
}

fn number(path: &str, parse: impl Fn(&str) -> Option<u64>) -> io::Result<u64> {
    let text =
        fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    parse(text.trim()).ok_or_else(|| io::Error::other(format!("{path}: not a number")))
}

/// The program's file, if it is mapped at an address, and the offset in it.
fn file_place(process: &Process, address: u64) -> io::Result<(CString, u64)> {
    let maps = process.maps().map_err(io::Error::other)?;
    let mapping = maps.iter().find(|m| m.path().is_some() && (m.start.0..m.end.0).contains(&address));
    let mapping = mapping.ok_or_else(|| io::Error::other("the address is in no file"))?;
    // By this link, since a file in memory has no path.
    let path = format!("/proc/{}/exe", process.pid());
    if fs::metadata(&path)?.ino() != mapping.inode {
        return Err(io::Error::other("the address is not in the program's file"));
    }
    Ok((CString::new(path).map_err(io::Error::other)?, address - mapping.start.0 + mapping.offset))
}
