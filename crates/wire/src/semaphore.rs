//! Semaphores of USDT probes: 16-bit counters in the program, which whoever listens raises by one, and lowers by one at the end.
//!
//! A semaphore is not restored to what it was, since others count in it, too: kernel uprobes, other sessions. So it must be
//! known whether it was raised, whoever armed may be killed at any moment, and its own bytes do not tell. Therefore each has a
//! [`SemaphoreRecord`], which is written ahead of every change with the number before and after it, and once more behind it.
//! A change that was announced and not confirmed was made if the semaphore has at least the number after it; only who else counts in it
//! between the death of one tool and the coming of the next can make that wrong.
//!
//! The records lie in private memory of the target, at the end of the return region: a forked child has its own copy
//! of them, as it has of the semaphores.

use crate::PAGE;
use bytemuck::{Pod, Zeroable};

/// The most semaphores of a session.
pub const MAX_SEMAPHORES: u64 = 1 << 16;

/// How far the change of a semaphore has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SemaphorePhase {
    /// It is about to be raised, or was just now.
    Raising = 1,
    /// It was raised, and the probes are in.
    Raised = 2,
    /// It is about to be lowered, or was just now.
    Lowering = 3,
    /// It was lowered, or never raised.
    Lowered = 4,
}

impl SemaphorePhase {
    /// The phase with this number.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Raising, Self::Raised, Self::Lowering, Self::Lowered].into_iter().find(|p| *p as u8 == raw)
    }
}

/// A semaphore, and what was done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SemaphoreRecord {
    /// Its address. Never 0.
    pub address: u64,
    /// Address of a site that it belongs to, in the same module.
    pub site: u64,
    /// Its number before the latest change.
    pub before: u16,
    /// And after it.
    pub after: u16,
    /// A [`SemaphorePhase`].
    pub phase: u8,
    /// Unused.
    pub _pad: [u8; 3],
}

impl SemaphoreRecord {
    /// What is written ahead of raising a semaphore that has the number `now`, for a site at `site`; `None` if it counts no further.
    pub fn raising(address: u64, site: u64, now: u16) -> Option<Self> {
        let after = now.checked_add(1)?;
        let phase = SemaphorePhase::Raising as u8;
        Some(Self { address, site, before: now, after, phase, _pad: [0; 3] })
    }

    /// In another phase.
    pub fn in_phase(self, phase: SemaphorePhase) -> Self {
        Self { phase: phase as u8, ..self }
    }

    /// What is written ahead of lowering it, where it has the number `now`; `None` if it is not to be lowered.
    pub fn lowering(self, now: u16) -> Option<Self> {
        let is_up = match SemaphorePhase::from_raw(self.phase)? {
            SemaphorePhase::Raising => now >= self.after,
            SemaphorePhase::Raised => true,
            SemaphorePhase::Lowering => now >= self.before,
            SemaphorePhase::Lowered => false,
        };
        let after = now.checked_sub(1).filter(|_| is_up)?;
        Some(Self { before: now, after, ..self.in_phase(SemaphorePhase::Lowering) })
    }

    /// Whether this version writes such a record.
    pub fn is_sound(&self) -> bool {
        self.address != 0 && self.address.is_multiple_of(2) && SemaphorePhase::from_raw(self.phase).is_some()
    }
}

/// How much memory the records of so many semaphores take, in whole pages.
pub fn semaphores_size(count: u64) -> u64 {
    (count * size_of::<SemaphoreRecord>() as u64).next_multiple_of(PAGE)
}

// The records are read by other tools of the same version.
const _: () = assert!(size_of::<SemaphoreRecord>() == 24);

#[cfg(test)]
mod tests {
    use super::*;
    use SemaphorePhase::*;

    /// What happens to a semaphore from the arming by one tool to the removal by another, if each of them may be killed anywhere.
    #[test]
    fn a_semaphore_ends_where_it_was_whenever_tools_are_killed() {
        for start in [0, 1, 7, u16::MAX - 1] {
            // Arming writes the record, the semaphore, the record.
            for armed in 0..=3 {
                let mut semaphore = start;
                let mut record = SemaphoreRecord::zeroed();
                if armed >= 1 {
                    record = SemaphoreRecord::raising(16, 8, start).unwrap();
                }
                if armed >= 2 {
                    semaphore = record.after;
                }
                if armed >= 3 {
                    record = record.in_phase(Raised);
                }
                // Removals do the same, and the last one is not killed.
                for killed in [[0, 0], [1, 0], [2, 0], [3, 1], [1, 1], [2, 2], [1, 2]] {
                    let (mut semaphore, mut record) = (semaphore, record);
                    for writes in killed.into_iter().chain([3]) {
                        if let Some(lowering) = record.lowering(semaphore) {
                            if writes >= 1 {
                                record = lowering;
                            }
                            if writes >= 2 {
                                semaphore = lowering.after;
                            }
                        }
                        if writes >= 3 && record.phase != 0 {
                            record = record.in_phase(Lowered);
                        }
                    }
                    assert_eq!(semaphore, start, "armed up to {armed}, removed up to {killed:?}");
                }
            }
        }
    }

    #[test]
    fn what_counts_no_further_is_left_alone() {
        assert_eq!(SemaphoreRecord::raising(16, 8, u16::MAX), None);
        let raised = SemaphoreRecord::raising(16, 8, 0).unwrap().in_phase(Raised);
        // Somebody has cleared it, or its module was loaded anew.
        assert_eq!(raised.lowering(0), None);
        assert_eq!(raised.in_phase(Lowered).lowering(5), None);
        assert_eq!(SemaphoreRecord { phase: 9, ..raised }.lowering(5), None);
    }

    #[test]
    fn others_may_count_meanwhile() {
        let raised = SemaphoreRecord::raising(16, 8, 3).unwrap().in_phase(Raised);
        for now in [1, 2, 4, 9] {
            let lowering = raised.lowering(now).unwrap();
            assert_eq!((lowering.before, lowering.after), (now, now - 1));
        }
    }

    #[test]
    fn records_that_nobody_writes_are_not_sound() {
        let record = SemaphoreRecord::raising(16, 8, 3).unwrap();
        assert!(record.is_sound());
        for forged in [
            SemaphoreRecord { address: 0, ..record },
            SemaphoreRecord { address: 17, ..record },
            SemaphoreRecord { phase: 0, ..record },
            SemaphoreRecord { phase: 5, ..record },
        ] {
            assert!(!forged.is_sound(), "{forged:?}");
        }
    }
}
