//! Comparing and changing the code of a stopped target, a page at a time.

use crate::{EngineError, spread};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use trapless_process::{MemoryError, Process, RemoteAddr, page_size};

/// What stands at a site and what shall stand there.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// What must be there now.
    pub from: &'a [u8],
    /// What comes instead; as long as `from`.
    pub to: &'a [u8],
}

/// What was found where something was to be changed. The later in this list, the less became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// `to` already.
    Already,
    /// `from`: it was changed.
    Changed,
    /// No memory any more: the module was unloaded.
    Unmapped,
    /// Somebody else's bytes: left alone.
    Foreign,
}

/// Up to so many changes next to each other are written one by one.
const FEW: usize = 8;

/// The most memory that is read and changed at a time.
const LONGEST_RUN: u64 = 256 << 10;

/// Applies every change whose `from` is in place, and tells for each what was found. `changes` are sorted by address.
///
/// A page is read once, and what is changed in it is written; only pages with a change become
/// the target's own, which is what takes the time: where there are many, all processors are at it. A page with many changes is written as a whole.
/// One with few is not: there may be a pointer in it among data that the kernel writes for somebody who waits. Some kernels let only the thread that traces
/// the target write over code (`proc_mem.force_override=ptrace`): it does what others may not. The caller is that thread and holds the target
/// stopped, so nobody sees a page half written.
pub fn apply(process: &Process, changes: &[Change<'_>]) -> Result<Vec<Found>, MemoryError> {
    let mut runs = Vec::new();
    let mut rest = changes;
    while !rest.is_empty() {
        let (pages, count) = run_of(rest);
        let (run, after) = rest.split_at(count);
        runs.push((runs.len(), pages, run));
        rest = after;
    }
    /// What a thread keeps from run to run.
    #[derive(Default)]
    struct Own {
        /// Of the longest run so far: fresh memory would have to be cleared for each, while the target stands.
        memory: Vec<u8>,
        done: Vec<(usize, Result<Vec<Found>, MemoryError>)>,
    }
    type Run<'c> = (usize, Range<u64>, &'c [Change<'c>]);
    let apply = |own: &mut Own, (index, pages, run): &Run<'_>| {
        own.done.push((*index, apply_run(process, pages, run, &mut own.memory)));
    };
    let bytes: u64 = runs.iter().map(|(_, pages, _)| pages.end - pages.start).sum();
    let all = if bytes < spread::WORTH_A_THREAD {
        let mut own = Own::default();
        runs.iter().for_each(|run| apply(&mut own, run));
        vec![own]
    } else {
        let (tracer, is_for_all) = (thread::current().id(), AtomicBool::new(true));
        let apply_if_may = |own: &mut Own, run: &Run<'_>| {
            if thread::current().id() == tracer {
                return apply(own, run);
            }
            if !is_for_all.load(Ordering::Relaxed) {
                return;
            }
            apply(own, run);
            let is_refused = |(_, found): &mut (usize, Result<_, MemoryError>)| {
                found.as_ref().is_err_and(MemoryError::is_refused)
            };
            if own.done.pop_if(is_refused).is_some() {
                is_for_all.store(false, Ordering::Relaxed);
            }
        };
        let mut all =
            spread::share_out(&runs, apply_if_may).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let done: BTreeSet<usize> =
            all.iter().flat_map(|own| own.done.iter().map(|(index, _)| *index)).collect();
        let mut own = Own::default();
        runs.iter().filter(|(index, ..)| !done.contains(index)).for_each(|run| apply(&mut own, run));
        all.push(own);
        all
    };
    let mut done: Vec<_> = all.into_iter().flat_map(|own| own.done).collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    let found: Vec<Vec<Found>> = done.into_iter().map(|(_, found)| found).collect::<Result<_, _>>()?;
    Ok(found.concat())
}

/// The changes at the start of `changes` whose pages touch, so that one that crosses a page boundary is in one run; and their
/// pages. Addresses may be anything: a change that reaches beyond the address space is a run of its own without pages.
fn run_of(changes: &[Change<'_>]) -> (Range<u64>, usize) {
    let page = page_size();
    let mut run = 0..0;
    let mut count = 0;
    for change in changes {
        let first = change.address & !(page - 1);
        let end = change.address.checked_add(change.from.len() as u64);
        let Some(end) = end.and_then(|end| end.checked_next_multiple_of(page)) else { break };
        if count == 0 {
            run = first..end;
        } else if first < run.start || first > run.end || end.max(run.end) - run.start > LONGEST_RUN {
            break;
        }
        run.end = run.end.max(end);
        count += 1;
    }
    (run, count.max(1))
}

/// Does what writes over the code of a process that runs; as its tracer, while it stands for a moment, where the kernel wants that.
pub fn as_tracer_if_need_be(
    process: &Process,
    work: impl Fn() -> Result<(), MemoryError>,
) -> Result<(), EngineError> {
    match work() {
        // Who traces already is the tracer.
        Err(error) if error.is_refused() && process.status().is_ok_and(|status| status.tracer == 0) => {
            let stopped = process.stop()?;
            let done = work();
            stopped.resume_and_detach();
            Ok(done?)
        }
        done => Ok(done?),
    }
}

/// Applies a change of one breakpoint, while threads may run there. It is a byte, or a word that the kernel stores at once: the processor
/// sees the old one or the new one.
pub fn apply_breakpoint(process: &Process, change: &Change<'_>) -> Result<(), MemoryError> {
    let mut now = [0; 4];
    let Some(now) = now.get_mut(..change.from.len()) else { return Ok(()) };
    match process.read_exact(RemoteAddr(change.address), now) {
        Ok(()) if now == change.from => process.write(RemoteAddr(change.address), change.to),
        Err(MemoryError::Gone) => Err(MemoryError::Gone),
        // Somebody else's, or an unloaded module.
        _ => Ok(()),
    }
}

fn apply_run(
    process: &Process,
    pages: &Range<u64>,
    run: &[Change<'_>],
    memory: &mut Vec<u8>,
) -> Result<Vec<Found>, MemoryError> {
    let mut results = Vec::with_capacity(run.len());
    let start = pages.start;
    let length = (pages.end - start) as usize;
    memory.resize(memory.len().max(length), 0);
    let bytes = &mut memory[..length];
    if bytes.is_empty() || process.read_exact(RemoteAddr(start), bytes).is_err() {
        return apply_singly(process, run);
    }
    let page = page_size() as usize;
    // Pages next to each other, and what is changed there.
    let mut dirty: Vec<(Range<usize>, Vec<Range<usize>>)> = Vec::new();
    for change in run {
        let at = (change.address - start) as usize;
        let range = at..at + change.from.len();
        // A run holds all of its changes; see above.
        let Some(place) = bytes.get_mut(range.clone()) else {
            results.push(Found::Unmapped);
            continue;
        };
        results.push(if place == change.from {
            place.copy_from_slice(change.to);
            let pages = range.start / page * page..range.end.next_multiple_of(page);
            match dirty.last_mut() {
                Some((all, changed)) if all.end >= pages.start => {
                    all.end = all.end.max(pages.end);
                    changed.push(range);
                }
                _ => dirty.push((pages, vec![range])),
            }
            Found::Changed
        } else if place == change.to {
            Found::Already
        } else {
            Found::Foreign
        });
    }
    for (pages, changed) in dirty {
        let written = if changed.len() <= FEW { changed } else { vec![pages] };
        for range in written {
            process.write(RemoteAddr(start + range.start as u64), &bytes[range])?;
        }
    }
    Ok(results)
}

/// Where a run's pages are not all there: each change on its own.
fn apply_singly(process: &Process, run: &[Change<'_>]) -> Result<Vec<Found>, MemoryError> {
    let mut results = Vec::with_capacity(run.len());
    for change in run {
        let mut now = vec![0; change.from.len()];
        results.push(match process.read_exact(RemoteAddr(change.address), &mut now) {
            Err(MemoryError::Gone) => return Err(MemoryError::Gone),
            Err(_) => Found::Unmapped,
            Ok(()) if now == change.from => {
                process.write(RemoteAddr(change.address), change.to)?;
                Found::Changed
            }
            Ok(()) if now == change.to => Found::Already,
            Ok(()) => Found::Foreign,
        });
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use trapless_process::Pid;
    use trapless_testing::Idle;

    fn runs(sites: &[(u64, usize)]) -> Vec<(u64, u64, usize)> {
        let bytes = [0; 32];
        let change = |&(address, length): &(u64, usize)| Change {
            address,
            from: &bytes[..length],
            to: &bytes[..length],
        };
        let changes: Vec<_> = sites.iter().map(change).collect();
        let (mut rest, mut runs) = (&changes[..], Vec::new());
        while !rest.is_empty() {
            let (pages, count) = run_of(rest);
            runs.push((pages.start, pages.end, count));
            rest = &rest[count..];
        }
        runs
    }

    #[test]
    fn runs_are_changes_whose_pages_touch() {
        for (sites, expected) in [
            (&[][..], &[][..]),
            (&[(0x1000, 5), (0x1ff0, 5)], &[(0x1000, 0x2000, 2)]),
            (&[(0x1ffe, 5), (0x2800, 5), (0x3800, 5)], &[(0x1000, 0x4000, 3)]),
            (&[(0x1000, 5), (0x3000, 5)], &[(0x1000, 0x2000, 1), (0x3000, 0x4000, 1)]),
            (&[(u64::MAX - 2, 5)], &[(0, 0, 1)]),
            (
                &[(u64::MAX - 4096, 1), (u64::MAX - 4095, 5)],
                &[(u64::MAX - 8191, u64::MAX - 4095, 1), (0, 0, 1)],
            ),
            (&[(0x3000, 5), (0x1000, 5)], &[(0x3000, 0x4000, 1), (0x1000, 0x2000, 1)]),
            (&[(0x1000, 0)], &[(0x1000, 0x1000, 1)]),
        ] {
            assert_eq!(runs(sites), expected, "{sites:x?}");
        }
    }

    #[test]
    fn what_only_the_tracer_may_write_is_written_as_the_tracer() {
        let idle = Idle::start();
        let process = Process::open(Pid(idle.pid())).unwrap();
        let is_traced = || process.status().unwrap().tracer != 0;
        for (refused, expected) in [(0, &[false][..]), (1, &[false, true]), (2, &[false, true])] {
            let tries = RefCell::new(Vec::new());
            let done = as_tracer_if_need_be(&process, || {
                tries.borrow_mut().push(is_traced());
                let is_refused = tries.borrow().len() <= refused;
                if is_refused { Err(MemoryError::Refused(RemoteAddr(0))) } else { Ok(()) }
            });
            assert_eq!((done.is_ok(), &tries.borrow()[..]), (refused < 2, expected), "{done:?}");
            assert!(!is_traced());
        }
    }

    #[test]
    fn no_run_is_longer_than_it_may_be() {
        let sites: Vec<_> = (1..=4096).map(|page| (page * page_size(), 5)).collect();
        let runs = runs(&sites);
        assert!(runs.iter().all(|(start, end, _)| end - start <= LONGEST_RUN), "{runs:x?}");
        assert_eq!(runs.iter().map(|run| run.2).sum::<usize>(), 4096);
    }
}
