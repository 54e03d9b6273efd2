//! Pure work on many things, on all processors.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Fewer than this are not worth a thread.
const LEAST: usize = 256;
/// More threads than this gain nothing: the sites of one process are a second's work.
const MOST: usize = 8;

/// Less memory than this, in bytes, is copied sooner than another thread comes to run, the more so on a busy machine.
pub(crate) const WORTH_A_THREAD: u64 = 1 << 20;

/// `work` of each item, in order. A panic in it is passed on.
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    map_by(LEAST, items, work)
}

/// The same of items each of which takes longer than a thread's start.
pub fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    map_by(1, items, work)
}

fn map_by<T: Sync, R: Send>(least: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let shares: Vec<&[T]> = items.chunks(least).collect();
    if shares.len() <= 1 {
        return items.iter().map(work).collect();
    }
    let of_share = |done: &mut Vec<(usize, Vec<R>)>, (index, share): &(usize, &[T])| {
        done.push((*index, share.iter().map(&work).collect()));
    };
    let shares: Vec<(usize, &[T])> = shares.into_iter().enumerate().collect();
    let done = share_out(&shares, of_share).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    let mut results = Vec::with_capacity(items.len());
    done.into_iter().for_each(|(_, share)| results.extend(share));
    results
}

/// Calls `work` with each of `items`, and with something that each thread keeps and that is given back. Items differ in size, and processors in
/// what else they do, so a thread takes the next one when it is done with one.
///
/// # Errors
/// What `work` panicked with.
pub fn share_out<T: Sync, K: Default + Send>(
    items: &[T],
    work: impl Fn(&mut K, &T) + Sync,
) -> thread::Result<Vec<K>> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MOST).min(items.len());
    let next = AtomicUsize::new(0);
    let worker = &|| {
        let mut kept = K::default();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(&mut kept, item);
        }
        kept
    };
    thread::scope(|scope| {
        // Where no more threads may be made, this one does what there is.
        let more = || thread::Builder::new().spawn_scoped(scope, worker).ok();
        let running: Vec<_> = (1..workers).map_while(|_| more()).collect();
        let own = std::panic::catch_unwind(AssertUnwindSafe(worker));
        running.into_iter().map(|thread| thread.join()).chain([own]).collect()
    })
}

/// What both give, or what `other` panicked with. That runs on a thread of its own, where one can be made.
pub fn both<A: Send, B>(other: impl Fn() -> A + Sync, own: impl FnOnce() -> B) -> (thread::Result<A>, B) {
    thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, &other);
        let own = own();
        (running.map_or_else(|_| Ok(other()), thread::ScopedJoinHandle::join), own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_their_number() {
        for count in [0, 1, LEAST, LEAST + 1, 10 * LEAST + 3] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map(&items, |n| n + 1), (1..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_is_passed_on() {
        let items: Vec<usize> = (0..4 * LEAST).collect();
        let caught = std::panic::catch_unwind(|| map(&items, |&n| assert_ne!(n, 3 * LEAST, "that one")));
        assert!(caught.unwrap_err().downcast_ref::<String>().unwrap().contains("that one"));
    }
}
