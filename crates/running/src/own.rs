//! The tool's own process, as the hit of a probe that runs in it: `begin`, `end`, `interval` and the like.

use crate::names::clock_ns;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use trapless_script::interp::Hit;
use trapless_script::ir::{ClockKind, Context, Kin, StackWalk};

/// This process.
pub struct Own {
    /// When the script began, by [`ClockKind::Boot`].
    began: i64,
    /// How many random words were drawn.
    drawn: u64,
    random: RandomState,
}

impl Own {
    /// From now on.
    pub fn now() -> Self {
        Self { began: clock_ns(libc::CLOCK_BOOTTIME), drawn: 0, random: RandomState::new() }
    }
}

/// A clock by its kind.
pub fn clock(kind: ClockKind) -> libc::clockid_t {
    match kind {
        ClockKind::Monotonic => libc::CLOCK_MONOTONIC,
        ClockKind::Boot => libc::CLOCK_BOOTTIME,
        ClockKind::Tai => libc::CLOCK_TAI,
        ClockKind::Real => libc::CLOCK_REALTIME,
        ClockKind::Coarse => libc::CLOCK_MONOTONIC_COARSE,
    }
}

/// The processor and the node that we run on.
fn place() -> (u32, u32) {
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: both point to integers of ours; the third argument has no meaning any more.
    unsafe { libc::syscall(libc::SYS_getcpu, &mut cpu, &mut node, std::ptr::null_mut::<u8>()) };
    (cpu, node)
}

/// The NUMA node of a processor; 0 where the machine does not say.
pub fn node_of(processor: u64) -> u64 {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{processor}"));
    let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).unwrap_or(0)
}

/// How many processors there are, whether or not we may use them.
pub fn processors() -> u64 {
    // SAFETY: sysconf takes an integer.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as u64
}

/// The id of the control group that a process is in: the inode of its directory. 0 if that is not to be found.
pub fn cgroup_of(pid: u32) -> u64 {
    let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = group.lines().find_map(|line| line.strip_prefix("0::"));
    let directory = path.and_then(|path| std::fs::metadata(format!("/sys/fs/cgroup{path}")).ok());
    directory.map_or(0, |directory| directory.ino())
}

impl Hit for Own {
    fn context(&mut self, what: Context) -> u64 {
        match what {
            Context::Pid => std::process::id().into(),
            // SAFETY: these calls take nothing and cannot fail.
            Context::Tid => unsafe { libc::gettid() as u64 },
            // SAFETY: as above.
            Context::ParentPid => unsafe { libc::getppid() as u64 },
            // SAFETY: as above.
            Context::Uid => unsafe { libc::getuid().into() },
            // SAFETY: as above.
            Context::Gid => unsafe { libc::getgid().into() },
            Context::Cpu => place().0.into(),
            Context::NumaNode => place().1.into(),
            Context::Processors => processors(),
            Context::Time(kind) => clock_ns(clock(kind)) as u64,
            Context::Elapsed => clock_ns(libc::CLOCK_BOOTTIME).wrapping_sub(self.began) as u64,
            Context::Random => {
                self.drawn = self.drawn.wrapping_add(1);
                let mut hasher = self.random.build_hasher();
                hasher.write_u64(self.drawn);
                hasher.finish()
            }
            Context::Cgroup => cgroup_of(std::process::id()),
            _ => 0,
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        let own = std::process::id() as libc::pid_t;
        let mut done = 0;
        // Whole pages are read or not: what is ahead of one that is missing has to be asked for alone.
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let piece = (into.len() - done).min(4096 - (at % 4096) as usize);
            let to = libc::iovec { iov_base: into[done..].as_mut_ptr().cast(), iov_len: piece };
            let from = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: piece };
            // SAFETY: `to` is memory of ours of that length; whatever `from` says, the kernel answers with an error and no fault.
            let read = unsafe { libc::process_vm_readv(own, &to, 1, &from, 1, 0) };
            if read != piece as isize {
                return done + read.max(0) as usize;
            }
            done += piece;
        }
        done
    }

    fn stack(&mut self, _frames: u8, _by: StackWalk) -> u64 {
        // Ours means nothing to anybody.
        0
    }

    fn thread_name(&mut self) -> [u8; 16] {
        let mut name = [0; 16];
        // SAFETY: the call writes at most 16 bytes, with the final zero.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        name
    }

    fn process_name(&mut self, of: Kin) -> [u8; 16] {
        let path = match of {
            Kin::Own => "/proc/self/comm".to_owned(),
            Kin::Parent => format!("/proc/{}/comm", std::os::unix::process::parent_id()),
        };
        let read = std::fs::read(path).unwrap_or_default();
        let mut name = [0; 16];
        name.iter_mut().zip(read.strip_suffix(b"\n").unwrap_or(&read)).for_each(|(to, from)| *to = *from);
        name
    }

    fn signal(&mut self, signal: i64) {
        let Ok(signal) = libc::c_int::try_from(signal) else { return };
        // SAFETY: raise takes an integer, and answers with an error where it is no signal.
        unsafe { libc::raise(signal) };
    }
}
