//! Ends a deadlock the kernel has with tracers of programs that start another program.
//!
//! execve in a process with threads kills all other threads and waits until they are reaped. The ones we have attached to are
//! reaped by us; but attaching to one more waits for a lock that execve holds (`cred_guard_mutex`), and no signal ends that wait. So
//! while the calling thread attaches, this one looks now and then for attached threads that have died, and reaps them: a wait may be
//! made by any thread of the tracer's process.

use crate::{Tid, wait};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any healthy attachment takes between two steps, short for a person.
const PERIOD: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Shared {
    attached: Vec<Tid>,
    over: bool,
}

/// Reaps dead attached threads until dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<(Mutex<Shared>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts it. If no thread can be made there is none, and only that deadlock is left unguarded.
    pub fn start() -> Watchdog {
        let shared = Arc::new((Mutex::new(Shared::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().stack_size(64 << 10).spawn(move || watch(&theirs.0, &theirs.1)).ok();
        Watchdog { shared, thread }
    }

    /// Adds a thread whose death nobody but us has to notice.
    pub fn add(&self, tid: Tid) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).attached.push(tid);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Mutex<Shared>, changed: &Condvar) {
    let mut guard = shared.lock().unwrap_or_else(PoisonError::into_inner);
    while !guard.over {
        guard = changed.wait_timeout(guard, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
        if !guard.over {
            guard.attached.retain(|&tid| !wait::reap_if_dead(tid));
        }
    }
}
