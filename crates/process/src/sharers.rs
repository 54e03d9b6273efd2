//! Processes that run in the same memory without being threads: children made by `clone(CLONE_VM)`, and by `vfork` until they run
//! another program.
//!
//! `/proc/PID/task` does not list them, so a stop of all threads does not stop them, and whoever writes code or unmaps it meanwhile pulls
//! it away under them. The kernel tells which they are (`kcmp`); there is no list, so every process is asked about once before the stop,
//! and in the stop only those that have come since. A process that we may not look at answers for nobody.

use crate::process::read_file;
use crate::{Errno, Pid, Process, Tid, processes};
use std::collections::HashSet;
use std::path::Path;

/// `KCMP_VM` of `include/uapi/linux/kcmp.h`.
const KCMP_VM: i32 = 1;

/// The processes that were there at some moment.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pids: HashSet<i32>,
    /// The last process id that the kernel gave out before they were listed.
    last: Option<i32>,
}

impl Process {
    /// A process that runs in this one's memory, of those that are not in `seen`, to which all are added.
    pub(crate) fn memory_sharer(&self, seen: &mut Seen) -> Option<Pid> {
        let last = last_pid();
        if last.is_some() && last == seen.last {
            return None;
        }
        let own = self.live_thread()?;
        let mut sharer = None;
        for Pid(pid) in processes() {
            if !seen.pids.contains(&pid) && pid != self.pid().0 && shares_memory(own, Tid(pid)) {
                sharer = Some(Pid(pid));
            } else {
                seen.pids.insert(pid);
            }
        }
        if sharer.is_none() {
            seen.last = last;
        }
        sharer
    }
}

/// The last process id that was given out in our pid namespace: the fifth field of `/proc/loadavg`.
fn last_pid() -> Option<i32> {
    let text = read_file(Path::new("/proc/loadavg")).ok()?;
    String::from_utf8_lossy(&text).split_whitespace().nth(4)?.parse().ok()
}

fn shares_memory(own: Tid, other: Tid) -> bool {
    match same_memory(own, other) {
        Some(same) => same,
        // Not a process that we may look at, or one that has ended; or nobody may ask at all.
        None => same_memory(own, own).is_none() && looks_like_the_same(own, other),
    }
}

/// Whether two processes or threads have one memory; `None` if the kernel does not tell.
pub fn same_memory(a: Tid, b: Tid) -> Option<bool> {
    // SAFETY: kcmp takes five integers.
    match Errno::check(unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_VM, 0, 0) }) {
        Ok(0) => Some(true),
        Ok(_) => Some(false),
        Err(_) => None,
    }
}

/// Where the kernel has no `kcmp` or a sandbox forbids it: the same mappings and the same amounts of memory in use. A forked copy
/// starts like that, and soon differs.
fn looks_like_the_same(a: Tid, b: Tid) -> bool {
    ["statm", "maps"].iter().all(|file| {
        let read = |tid: Tid| read_file(Path::new(&format!("/proc/{tid}/{file}"))).ok();
        read(a).is_some_and(|a| a.iter().any(|byte| *byte != b'0' && *byte != b' ') && Some(a) == read(b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that waits until it is killed, in our memory or in a copy. It ends with this.
    struct Child(i32);

    impl Child {
        fn new(flags: i32) -> Child {
            extern "C" fn wait(_: *mut libc::c_void) -> i32 {
                loop {
                    // SAFETY: pause takes nothing.
                    unsafe { libc::pause() };
                }
            }
            let stack = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
            // SAFETY: the child runs on a stack of its own, which is never freed, and makes one system call only.
            let pid = unsafe {
                let top = stack.as_mut_ptr().add(stack.len()).cast();
                libc::clone(wait, top, flags | libc::SIGCHLD, std::ptr::null_mut())
            };
            assert!(pid > 0);
            Child(pid)
        }

        /// Stops it for good, so that its memory stays as it is.
        fn halt(&self) {
            // SAFETY: the child is ours and not reaped yet.
            unsafe {
                libc::kill(self.0, libc::SIGSTOP);
                libc::waitpid(self.0, std::ptr::null_mut(), libc::WUNTRACED);
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: the child is ours and not reaped yet.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn those_that_share_memory_are_told_from_copies() {
        let [own, init] = [std::process::id() as i32, 1].map(Tid);
        let (shares, copy) = (Child::new(libc::CLONE_VM), Child::new(0));
        let [sharer, copied] = [shares.0, copy.0].map(Tid);
        assert!(shares_memory(own, sharer) && !shares_memory(own, copied) && !shares_memory(own, init));
        // The copy's memory is its own and stands still, unlike ours, in which other tests run.
        copy.halt();
        assert!(looks_like_the_same(copied, copied) && !looks_like_the_same(own, init));
        drop(shares);
        assert!(!shares_memory(own, sharer));
    }
}
