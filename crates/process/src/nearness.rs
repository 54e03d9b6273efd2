//! How the tracing thread waits for the next trap.
//!
//! Waking a thread on a processor that sleeps is what a trap costs most: on a virtual machine 20 µs and more, twice a hit. There are two ways
//! to wake nobody, and which one is open is the scheduler's choice, since the threads that trap are not ours to move:
//!
//! - **together**: we are on the processor of the thread that traps. It runs when we wait, and we run when it stands. The scheduler
//!   leaves it so where no other processor is idle.
//! - **apart**: it puts the thread on an idle processor whenever we let it go. Then we do not sleep, but ask again and again, as
//!   long as traps come quickly.
//!
//! A look at where the thread and we are, now and then, tells which one it is.

use crate::{Process, Tid};
use std::mem::{size_of, zeroed};
use std::time::{Duration, Instant};

/// Where the tracing thread stays, and whether it sleeps. The processors it may use are put back when this is dropped.
#[derive(Debug)]
pub(crate) struct Nearness {
    original: Option<libc::cpu_set_t>,
    /// Traps until the next look.
    until_look: u32,
    /// Looks until being together is tried again.
    until_retry: u32,
    apart: bool,
    /// Traps for which we sleep, since asking was in vain.
    sleeps: u32,
}

impl Nearness {
    /// Traps between two looks: a look costs a read of `/proc`.
    const LOOK: u32 = 256;
    /// Traps until it shows whether the scheduler leaves us together.
    const TRIAL: u32 = 8;
    /// Looks between two trials.
    const RETRY: u32 = 32;
    /// How long we ask before we sleep: as long as a wake-up takes.
    const ASKING: Duration = Duration::from_micros(50);
    /// For how many traps we sleep after that.
    const SLEEPS: u32 = 32;

    /// That of the calling thread.
    pub fn new() -> Self {
        // SAFETY: zeros are a valid set, and the call writes at most its size.
        let original = unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0).then_some(set)
        };
        Self { original, until_look: 0, until_retry: 0, apart: false, sleeps: 0 }
    }

    /// Takes note of a trap in `tid`, and looks where it is now and then.
    pub fn note(&mut self, process: &Process, tid: Tid) {
        if let Some(left) = self.until_look.checked_sub(1) {
            self.until_look = left;
            return;
        }
        let Ok(stat) = process.thread_stat(tid) else { return };
        // SAFETY: the call takes nothing.
        let here = unsafe { libc::sched_getcpu() };
        self.decide(stat.processor as i32, here);
    }

    /// Whether to ask for the next event, again and again until the time it gives; `None` to sleep at once.
    pub fn asks(&mut self) -> Option<Instant> {
        if !self.apart {
            return None;
        }
        match self.sleeps.checked_sub(1) {
            Some(left) => {
                self.sleeps = left;
                None
            }
            None => Some(Instant::now() + Self::ASKING),
        }
    }

    /// Says that asking was in vain.
    pub fn asked_in_vain(&mut self) {
        self.sleeps = Self::SLEEPS;
    }

    fn decide(&mut self, theirs: i32, ours: i32) {
        self.until_look = Self::LOOK;
        if theirs == ours {
            // Under load, or with one processor.
            self.move_to(theirs);
        } else if self.until_retry == 0 {
            self.move_to(theirs);
            self.until_look = Self::TRIAL;
            self.until_retry = Self::RETRY;
        } else {
            self.until_retry -= 1;
            self.apart = true;
            self.set(None);
        }
    }

    fn move_to(&mut self, processor: i32) {
        self.apart = false;
        self.set(Some(processor));
    }

    /// Limits us to a processor, or to those we had. Where it fails we are only slower.
    fn set(&self, processor: Option<i32>) {
        let Some(original) = &self.original else { return };
        // SAFETY: the sets are valid, and CPU_ISSET and CPU_SET are given an index within them.
        unsafe {
            let mut set = *original;
            if let Some(processor) = processor.filter(|&p| (0..libc::CPU_SETSIZE).contains(&p)) {
                if !libc::CPU_ISSET(processor as usize, original) {
                    return;
                }
                set = zeroed();
                libc::CPU_SET(processor as usize, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

impl Drop for Nearness {
    fn drop(&mut self) {
        self.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that decides, but does not move this thread.
    fn still() -> Nearness {
        Nearness { original: None, until_look: 0, until_retry: 0, apart: false, sleeps: 0 }
    }

    #[test]
    fn together_is_tried_first_and_kept_where_it_holds() {
        let mut nearness = still();
        nearness.decide(1, 0);
        assert_eq!((nearness.apart, nearness.until_look), (false, Nearness::TRIAL));
        nearness.decide(1, 1);
        assert_eq!((nearness.apart, nearness.until_look), (false, Nearness::LOOK));
        assert_eq!(nearness.asks(), None);
    }

    #[test]
    fn what_the_scheduler_takes_apart_is_waited_for_awake_and_tried_again_later() {
        let mut nearness = still();
        nearness.decide(1, 0);
        for _ in 0..Nearness::RETRY {
            nearness.decide(0, 1);
            assert!(nearness.apart && nearness.asks().is_some());
        }
        nearness.decide(0, 1);
        assert_eq!((nearness.apart, nearness.until_look), (false, Nearness::TRIAL));
    }

    #[test]
    fn rare_traps_are_slept_for() {
        let mut nearness = still();
        nearness.decide(1, 0);
        nearness.decide(0, 1);
        assert!(nearness.asks().is_some());
        nearness.asked_in_vain();
        for _ in 0..Nearness::SLEEPS {
            assert_eq!(nearness.asks(), None);
        }
        assert!(nearness.asks().is_some());
    }
}
