//! Pure work on many sites, on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Fewer than this are not worth a thread.
const LEAST: usize = 256;
/// More threads than this gain nothing: the sites of one process are a second's work.
const MOST: usize = 8;

/// `work` of each item, in order. A panic in it is passed on.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let shares: Vec<&[T]> = items.chunks(LEAST).collect();
    let workers = match shares.len() {
        0 | 1 => return items.iter().map(work).collect(),
        several => thread::available_parallelism().map_or(1, usize::from).min(MOST).min(several),
    };
    // Functions differ in size, and processors in what else they do, so each thread takes a share when it is done with one.
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(share) = shares.get(index) else { return done };
            done.push((index, share.iter().map(&work).collect::<Vec<R>>()));
        }
    };
    let mut done = thread::scope(|scope| {
        let running: Vec<_> = (1..workers).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for thread in running {
            done.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    let mut results = Vec::with_capacity(items.len());
    done.into_iter().for_each(|(_, share)| results.extend(share));
    results
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
