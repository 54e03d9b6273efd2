//! Who is in a handler: so that none calls another, and that what is taken out is given back when nobody has it any more.
//!
//! Each thread has a record, which says how often it has begun and ended to call handlers: an odd number is in the midst of it. Who
//! takes something out that they may have read does so first, has all threads run a barrier (`membarrier`), and then looks at the records. A
//! thread that was not in the midst of it, or has ended since, can have it no longer. So the threads themselves run no barrier.
//!
//! Nothing is asked of the C library for a record, since a thread may be anywhere in it when its first call of a handler comes.

use crate::call::Errno;
use crate::points::{self, Cache};
use crate::{busy, own, patch};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A thread's.
pub(crate) struct Record {
    passes: AtomicU64,
    /// Whose it is; 0: nobody's.
    tid: AtomicI32,
    /// Points for calls of its.
    pub points: Cache,
}

/// [`Record::tid`] while somebody looks into one that is nobody's.
const LOOKED_AT: i32 = -1;

impl Record {
    const fn new(passes: u64) -> Self {
        Self { passes: AtomicU64::new(passes), tid: AtomicI32::new(0), points: Cache::new() }
    }
}

/// Threads that can call handlers at a time. Memory for more would have to be asked for.
const MOST: usize = 4096;

static RECORDS: [Record; MOST] = [const { Record::new(0) }; MOST];

/// How often somebody looks for a record that others may be about to free.
const TRIES: usize = 10_000;

/// That of a thread which is about to get one: it is in the midst of something.
static SOON: Record = Record::new(1);

/// Calls whose thread had no record.
static MISSED: AtomicU64 = AtomicU64::new(0);

/// How many calls found no place to be noted in, since more than [`MOST`] threads were there: no handlers were called for them.
pub(crate) fn missed() -> u64 {
    MISSED.load(Ordering::Relaxed)
}

/// Runs `work` unless this thread is in the midst of calling handlers: then it is not to call any.
pub(crate) fn unless_inside(work: impl FnOnce(&'static Record)) {
    match own::get().or_else(first) {
        Some(own) if own.passes.load(Ordering::Relaxed) & 1 != 0 => {}
        Some(own) => own.pass(|| work(own)),
        None => miss(),
    }
}

/// Runs `work` so that this thread calls no handlers for it.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    match own::get().or_else(first) {
        Some(own) if own.passes.load(Ordering::Relaxed) & 1 == 0 => {
            let mut done = None;
            own.pass(|| done = Some(work()));
            done.expect("it has run")
        }
        _ => work(),
    }
}

/// This thread calls no handlers, ever: it is one of ours.
#[cfg(feature = "script")]
pub(crate) fn never() {
    own::set(Some(&SOON));
}

/// Ends a pass, however that comes.
struct Pass<'r>(&'r Record, u64);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.passes.store(self.1 + 2, Ordering::Release);
    }
}

impl Record {
    fn pass(&self, work: impl FnOnce()) {
        let passes = self.passes.load(Ordering::Relaxed);
        let _ends = Pass(self, passes);
        self.passes.store(passes + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        work();
        compiler_fence(Ordering::SeqCst);
    }

    /// It is nobody's any more. A thread may have left a handler by another way than to its end.
    fn free(&self) {
        let passes = self.passes.load(Ordering::Relaxed);
        self.passes.store(passes + (passes & 1), Ordering::Release);
        self.tid.store(0, Ordering::Release);
    }
}

/// A record for this thread. What is called here may be probed itself, and then finds the thread in the midst of something.
#[cold]
fn first() -> Option<&'static Record> {
    own::set(Some(&SOON));
    let _errno = Errno::now();
    if !is_this_process() {
        // A child of vfork has its parent's memory, this word among it.
        own::set(None);
        return None;
    }
    // SAFETY: the call takes nothing.
    let tid = unsafe { libc::gettid() };
    let claim = || {
        let is_claimed = |record: &&Record| {
            record.tid.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        RECORDS.iter().find(is_claimed)
    };
    // Another one may be at it, and about to have freed some. It is not waited for: what this interrupts may be that one.
    let claim_late = || match busy::try_run(free_ended) {
        Some(()) => Some(claim()),
        None => {
            std::thread::yield_now();
            claim().map(Some)
        }
    };
    let record = claim().or_else(|| (0..TRIES).find_map(|_| claim_late()).flatten());
    own::set(record);
    record
}

/// Frees the records of threads that have ended. Only one at a time does so: a number may be another thread's by then.
fn free_ended() {
    if !is_this_process() {
        return;
    }
    // SAFETY: the calls take integers; a signal of 0 is none.
    let has_ended = |tid: i32| unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) != 0
            && *libc::__errno_location() == libc::ESRCH
    };
    for record in &RECORDS {
        let tid = record.tid.load(Ordering::Acquire);
        if tid > 0 && has_ended(tid) {
            record.free();
        }
    }
}

/// A call has no record or no point, and handlers are not called for it.
pub(crate) fn miss() {
    MISSED.fetch_add(1, Ordering::Relaxed);
}

/// Looks at what threads kept that have ended.
pub(crate) fn of_nobody(mut look: impl FnMut(&Cache)) {
    let claim = |record: &&Record, from: i32, to: i32| {
        record.tid.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    for record in RECORDS.iter().filter(|record| claim(record, 0, LOOKED_AT)) {
        look(&record.points);
        claim(&record, LOOKED_AT, 0);
    }
}

/// The process whose threads have records. A child that was made without the C library's knowledge has them as well, and none of its own.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The records are this process's.
pub(crate) fn of_this_process() {
    // SAFETY: the call takes nothing.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

fn is_this_process() -> bool {
    // SAFETY: as above.
    PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// In a forked child, which has this thread only.
pub(crate) fn only_this_one() {
    // Those that were dropping something are not here.
    LEFT.store(0, Ordering::Relaxed);
    of_this_process();
    points::in_child();
    let own = own::get();
    let is_own = |record: &&Record| own.is_some_and(|own| std::ptr::eq(own, *record));
    RECORDS.iter().filter(|record| !is_own(record)).for_each(Record::free);
    if let Some(own) = own.filter(|own| !std::ptr::eq(*own, &raw const SOON)) {
        // SAFETY: the call takes nothing.
        own.tid.store(unsafe { libc::gettid() }, Ordering::Release);
    }
}

/// Something that is given back when nobody has it, and how many passes each thread had begun that may have it.
struct Waiting {
    what: Box<dyn Send>,
    threads: Vec<(&'static AtomicU64, u64)>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

/// How much of what was waiting is being dropped now, and how much stays for good.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Has `what` dropped when no thread can have it, which could be found by threads until now: by [`collect`].
pub(crate) fn drop_later<T: Send + 'static>(what: Vec<T>) {
    if what.is_empty() {
        return;
    }
    if patch::refuse_seccomp().and_then(|()| patch::barrier()).is_err() {
        // Nothing is known of the others, so it stays.
        std::mem::forget(what);
        LEFT.fetch_add(1, Ordering::Relaxed);
        return;
    }
    free_ended();
    let threads = RECORDS
        .iter()
        .map(|record| (&record.passes, record.passes.load(Ordering::Acquire)))
        .filter(|(_, passes)| passes & 1 != 0)
        .collect();
    waiting().push(Waiting { what: Box::new(what), threads });
}

/// Drops what no thread has any more. Not by who is busy: what is dropped may take probes out.
pub(crate) fn collect() {
    let has_gone = |waiting: &mut Waiting| {
        waiting.threads.retain(|(passes, then)| passes.load(Ordering::Acquire) == *then);
        waiting.threads.is_empty()
    };
    // What is called here may be probed, and its handlers may want to be alone, too.
    let gone: Vec<Waiting> = quietly(|| {
        busy::run(|| {
            let gone: Vec<Waiting> = waiting().extract_if(.., has_gone).collect();
            LEFT.fetch_add(gone.len(), Ordering::Relaxed);
            gone
        })
    });
    for gone in gone {
        drop(gone.what);
        LEFT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much is not dropped yet.
pub(crate) fn left() -> usize {
    quietly(|| busy::run(|| waiting().len() + LEFT.load(Ordering::Relaxed)))
}

fn waiting() -> MutexGuard<'static, Vec<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}
