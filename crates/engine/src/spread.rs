//! Pure work on many sites, on all processors.

use std::thread;

/// Fewer than this are not worth a thread.
const LEAST: usize = 256;
/// More threads than this gain nothing: the sites of one process are a second's work.
const MOST: usize = 8;

/// `work` of each item, in order. A panic in it is passed on.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MOST);
    let share = items.len().div_ceil(workers).max(LEAST);
    if items.len() <= share {
        return items.iter().map(work).collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = items
            .chunks(share)
            .map(|chunk| scope.spawn(move || chunk.iter().map(work).collect::<Vec<R>>()))
            .collect();
        let finish = |thread: thread::ScopedJoinHandle<'_, Vec<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().flat_map(finish).collect()
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
