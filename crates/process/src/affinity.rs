//! Keeping the tracing thread on the processor of the threads that trap: waking it on another one is what a trap costs most.

use crate::{Process, Tid};
use std::mem::{size_of, zeroed};

/// The processors the tracing thread may use, put back when dropped.
#[derive(Debug)]
pub(crate) struct Affinity {
    original: Option<libc::cpu_set_t>,
    traps: u32,
}

impl Affinity {
    /// Traps between two looks at where the target runs: a look costs a read of `/proc`.
    const EVERY: u32 = 256;

    /// Those of the calling thread.
    pub fn new() -> Affinity {
        // SAFETY: zeros are a valid set, and the call writes at most its size.
        let original = unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0).then_some(set)
        };
        Affinity { original, traps: 0 }
    }

    /// Takes note of a trap in `tid`, and moves the calling thread now and then.
    pub fn follow(&mut self, process: &Process, tid: Tid) {
        self.traps = self.traps.wrapping_add(1);
        if self.traps % Self::EVERY != 1 {
            return;
        }
        let (Some(original), Ok(stat)) = (self.original, process.thread_stat(tid)) else { return };
        let cpu = stat.processor as usize;
        // SAFETY: the sets are valid, and CPU_ISSET and CPU_SET check the index against their size.
        unsafe {
            if cpu < libc::CPU_SETSIZE as usize && libc::CPU_ISSET(cpu, &original) {
                let mut set: libc::cpu_set_t = zeroed();
                libc::CPU_SET(cpu, &mut set);
                // Where it fails we are only slower.
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            }
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if let Some(original) = &self.original {
            // SAFETY: the set is one the kernel gave us.
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), original) };
        }
    }
}
