//! May detours read the time stamp counter in this process?
//!
//! A thread can forbid it to itself (`prctl(PR_SET_TSC, PR_TSC_SIGSEGV)`), and those that it creates inherit that: the
//! detour would be killed where it takes the time. Nothing in `/proc` tells, so threads are made to ask for us. In a process with very
//! many that is a sample: the first, which all others come from, and the last.

use crate::{EngineError, PlannedSite};
use trapless_process::{Process, RemoteAddr, RemoteError, Stopped, Tid};

/// How many threads are asked, each of which lengthens the stop a little.
const ASKED: usize = 8;

/// Whether a site's detour reads the clock. Where it traps, the tracer reads its own.
pub(crate) fn is_read_by(site: &PlannedSite<'_>) -> bool {
    !site.traps() && site.request.wanted.is_timed()
}

/// Fails where a thread must not read the clock. `word` is memory of ours in the target, and zero before and after.
pub(crate) fn require(
    process: &Process,
    stopped: &mut Stopped<'_>,
    word: RemoteAddr,
) -> Result<(), EngineError> {
    let mut by_age = process.threads()?;
    by_age.retain(|&tid| stopped.thread(tid).is_some());
    for tid in sample(&by_age) {
        let args = [libc::PR_GET_TSC as u64, word.0, 0, 0, 0, 0];
        let asked = stopped.remote_on(tid, |remote| remote.syscall(remote.abi().prctl, args));
        match asked {
            // A kernel or processor that cannot forbid it.
            Ok(_) | Err(RemoteError::Failed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let answer = process.read_pod::<u32>(word)?;
        process.write(word, &0u32.to_le_bytes())?;
        if answer == libc::PR_TSC_SIGSEGV as u32 {
            return Err(EngineError::ClockForbidden(tid));
        }
    }
    Ok(())
}

/// The oldest and the youngest of threads by age.
fn sample(by_age: &[Tid]) -> impl Iterator<Item = Tid> {
    let (first, others) = by_age.split_at(by_age.len().min(ASKED / 2));
    first.iter().chain(others.iter().rev().take(ASKED / 2)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_thread_is_asked_though_numbers_have_started_again() {
        let by_age: Vec<Tid> = (32762..=32768).chain(300..320).map(Tid).collect();
        let asked: Vec<i32> = sample(&by_age).map(|tid| tid.0).collect();
        assert_eq!(asked, [32762, 32763, 32764, 32765, 319, 318, 317, 316]);
        assert_eq!(sample(&by_age[..6]).count(), 6);
    }
}
