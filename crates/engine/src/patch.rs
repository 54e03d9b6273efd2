//! Comparing and changing the code of a stopped target, a page at a time.

use trapless_process::{MemoryError, Process, RemoteAddr};
use trapless_wire::PAGE;

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

/// What was found at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// `from`: it was changed.
    Changed,
    /// `to` already.
    Already,
    /// Somebody else's bytes: left alone.
    Foreign,
    /// No memory any more: the module was unloaded.
    Unmapped,
}

/// Applies every change whose `from` is in place, and tells for each what was found. `changes` are sorted by address.
///
/// A page is read once, changed in a copy, and written once; only pages with a change are written, and they become
/// the target's own. The caller holds the target stopped, so nobody sees a page half written.
pub fn apply(process: &Process, changes: &[Change<'_>]) -> Result<Vec<Found>, MemoryError> {
    let mut results = Vec::with_capacity(changes.len());
    let mut rest = changes;
    while let [first, ..] = rest {
        // A run: changes whose pages touch, so that one that crosses a page boundary is in one run.
        let start = first.address & !(PAGE - 1);
        let mut end = start;
        let mut count = 0;
        for change in rest {
            let first_page = change.address & !(PAGE - 1);
            if count > 0 && first_page > end {
                break;
            }
            end = end.max((change.address + change.from.len() as u64).next_multiple_of(PAGE));
            count += 1;
        }
        let (run, after) = rest.split_at(count);
        apply_run(process, start, end, run, &mut results)?;
        rest = after;
    }
    Ok(results)
}

/// Applies a change of one byte, while threads may run there: the processor sees the old byte or the new one.
pub fn apply_byte(process: &Process, change: &Change<'_>) -> Result<(), MemoryError> {
    let mut now = [0];
    match process.read_exact(RemoteAddr(change.address), &mut now) {
        Ok(()) if now == *change.from => process.write(RemoteAddr(change.address), change.to),
        Err(MemoryError::Gone) => Err(MemoryError::Gone),
        // Somebody else's byte, or an unloaded module.
        _ => Ok(()),
    }
}

fn apply_run(
    process: &Process,
    start: u64,
    end: u64,
    run: &[Change<'_>],
    results: &mut Vec<Found>,
) -> Result<(), MemoryError> {
    let mut bytes = vec![0; (end - start) as usize];
    if process.read_exact(RemoteAddr(start), &mut bytes).is_err() {
        return apply_singly(process, run, results);
    }
    let mut dirty: Vec<(usize, usize)> = Vec::new();
    for change in run {
        let at = (change.address - start) as usize;
        let place = &mut bytes[at..at + change.from.len()];
        results.push(if place == change.from {
            place.copy_from_slice(change.to);
            let (first, last) = (at / PAGE as usize, (at + change.from.len() - 1) / PAGE as usize);
            match dirty.last_mut() {
                Some(range) if range.1 + 1 >= first => range.1 = last.max(range.1),
                _ => dirty.push((first, last)),
            }
            Found::Changed
        } else if place == change.to {
            Found::Already
        } else {
            Found::Foreign
        });
    }
    for (first, last) in dirty {
        let (from, to) = (first * PAGE as usize, (last + 1) * PAGE as usize);
        process.write(RemoteAddr(start + from as u64), &bytes[from..to])?;
    }
    Ok(())
}

/// Where a run's pages are not all there: each change on its own.
fn apply_singly(process: &Process, run: &[Change<'_>], results: &mut Vec<Found>) -> Result<(), MemoryError> {
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
    Ok(())
}
