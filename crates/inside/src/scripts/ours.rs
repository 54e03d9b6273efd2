//! The thread of ours: it compiles scripts, arms them, reads what they tell and prints it. It is made for the first script, and stays as
//! long as a thread of the program does.
//!
//! What it does is none of the program's. No handlers are called on it ([`threads::never`]), bodies do not run on it ([`super::part`]), and it takes no signals
//! but those that a fault of its own would be, and SIGTRAP, without which nobody may be at a breakpoint.

use super::running::Running;
use crate::{Error, busy, threads};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of its stack: compilers go deep.
const STACK: usize = 8 << 20;

/// What it knows.
#[derive(Default)]
pub(super) struct Ours {
    /// The scripts that run, by their numbers.
    pub scripts: BTreeMap<u64, Running>,
    /// Memory and code of scripts, which stay.
    pub parts: super::part::Parts,
}

type Work = Box<dyn FnOnce(&mut Ours) + Send>;

/// The way to it, and the process that it is in. Changed by whoever is [`busy`]: a forked child finds it whole, and has no such thread.
static WAY: Mutex<Option<(u32, Sender<Work>)>> = Mutex::new(None);

/// What the C library calls it; 0: there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// Whether this is it.
pub(super) fn is_here() -> bool {
    // SAFETY: the call takes nothing.
    THREAD.load(Ordering::Relaxed) == unsafe { libc::pthread_self() } as usize
}

/// In a forked child, where it is not: another thread may be called the same there.
pub(crate) fn in_child() {
    THREAD.store(0, Ordering::Relaxed);
}

fn way() -> Result<Sender<Work>, Error> {
    let process = std::process::id();
    let find = || {
        let mut way = WAY.lock().unwrap_or_else(PoisonError::into_inner);
        match &*way {
            Some((of, way)) if *of == process => Ok(way.clone()),
            // What its parent's thread was told stays untold.
            _ => {
                let made = begin()?;
                if let Some(parents) = way.replace((process, made.clone())) {
                    std::mem::forget(parents);
                }
                Ok(made)
            }
        }
    };
    threads::quietly(|| busy::run(find))
}

fn begin() -> Result<Sender<Work>, Error> {
    let (way, works) = channel();
    let failed = |source| Error::System { what: "a thread that collects what scripts tell", source };
    let _blocked = Blocked::all_but_faults();
    std::thread::Builder::new()
        .name("trapless".to_owned())
        .stack_size(STACK)
        .spawn(move || work_off(&works))
        .map_err(failed)?;
    Ok(way)
}

/// Has it do something. Nobody waits for it.
pub(super) fn post(work: impl FnOnce(&mut Ours) + Send + 'static) -> Result<(), Error> {
    let gone = |_| Error::Collector("it has ended".to_owned());
    way()?.send(Box::new(work)).map_err(gone)
}

/// Has it do something, and waits for what comes of it.
///
/// # Errors
/// This is it; it could not be made; it has panicked.
pub(super) fn ask<T: Send + 'static>(
    work: impl FnOnce(&mut Ours) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if is_here() {
        return Err(Error::Within);
    }
    let (answers, answer) = channel();
    post(move |ours| {
        // Who asked waits.
        let _ = answers.send(guarded(|| work(ours)));
    })?;
    answer.recv().unwrap_or_else(|_| Err(Error::Collector("it has ended".to_owned())))
}

/// What came of it, or that it has panicked.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        // What it holds may panic once more when it is dropped.
        std::mem::forget(panic);
        Err(Error::Collector(text.unwrap_or_else(|| "it has panicked".to_owned())))
    })
}

fn work_off(works: &Receiver<Work>) {
    threads::never();
    // SAFETY: the call takes nothing.
    THREAD.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    // What it has, threads may be in: it stays, whatever becomes of this.
    let mut ours = std::mem::ManuallyDrop::new(Ours::default());
    let mut looked = Instant::now();
    loop {
        let next = ours.scripts.values().filter_map(Running::next).min();
        let next = next.map_or(LOOK, |at| at.saturating_duration_since(Instant::now()).min(LOOK));
        match works.recv_timeout(next) {
            Ok(work) => work(&mut ours),
            Err(RecvTimeoutError::Timeout) => {
                if looked.elapsed() >= LOOK {
                    looked = Instant::now();
                    if is_alone() {
                        return;
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let Ours { scripts, parts } = &mut *ours;
        for script in scripts.values_mut() {
            // What handlers have is dropped there, too, and may panic.
            let _ = guarded(|| {
                script.tick(parts);
                Ok(())
            });
        }
    }
}

/// How often it looks whether the program's threads have ended.
const LOOK: Duration = Duration::from_secs(1);

/// Whether it is the last thread that runs. A program whose first thread ends by itself, as by `pthread_exit` in `main`, ends with the last
/// of the others: with this one then, by which the C library ends the process as any other's end would have.
fn is_alone() -> bool {
    let stat = |path: &std::path::Path| {
        let text = std::fs::read(path.join("stat")).ok()?;
        trapless_process::parse_stat(&text).ok()
    };
    // One that runs no more is left of the first thread, for as long as others do.
    let leader = stat("/proc/self".as_ref());
    if !leader.is_some_and(|stat| stat.state.has_ended()) {
        return false;
    }
    // SAFETY: the call takes nothing.
    let own = unsafe { libc::gettid() }.to_string();
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    tasks
        .flatten()
        .filter(|task| task.file_name() != own.as_str())
        .all(|task| stat(&task.path()).is_none_or(|stat| stat.state.has_ended() || stat.is_worker()))
}

/// Signals of this thread, as they were before.
struct Blocked(libc::sigset_t);

impl Blocked {
    /// What is made meanwhile begins with all blocked but those that faults of its own would be, and SIGTRAP.
    fn all_but_faults() -> Self {
        // SAFETY: the calls write sets, which have any value before, and read them.
        unsafe {
            let [mut set, mut before] = [std::mem::zeroed::<libc::sigset_t>(); 2];
            libc::sigfillset(&mut set);
            for signal in [
                libc::SIGTRAP,
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGSYS,
                libc::SIGABRT,
            ] {
                libc::sigdelset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, &mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: it is a set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
