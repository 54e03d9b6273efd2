//! Who is about to run a file, told before it does.
//!
//! The kernel asks a fanotify group for leave (`FAN_OPEN_EXEC_PERM`) when somebody opens a file to execute it, a script's interpreter
//! included. Whoever asks stands in the kernel until he has the answer, where no tracer can stop him, and may hold what
//! `PTRACE_SEIZE` waits for (`cred_guard_mutex`, while an interpreter is opened). So all questions stay with a thread of their own, which
//! answers those that nobody has answered in time, taken or not. Should we die, the kernel lets all go on.
//!
//! The kernel refuses the exec where it has no descriptor for the question. Some are kept for that; where they cannot be had, nobody is
//! asked for any more.
//!
//! Only root may ask for this (CAP_SYS_ADMIN), and only for files: nobody else on the machine waits for us.

use crate::readable::is_readable;
use crate::status::{State, parse_stat};
use crate::{Errno, Pid, Tid, same_memory, status_of};
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long somebody may stand until he is taken, and once more until he is let go: whoever takes him may have much to do for others.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same of somebody who runs in another one's memory, as a child of vfork does. Who stops that one waits for him
/// ([`StopError::SharesMemory`](crate::StopError::SharesMemory)), some five times as long.
const PATIENCE_OF_SHARERS: Duration = Duration::from_millis(200);

/// How long whoever has taken somebody may sleep, at each look: to trace him is a system call for each of his threads, unless he holds what
/// that waits for. That it only comes slowly on, beside many who run, is no reason to let him go.
const TAKING: Duration = Duration::from_millis(20);

/// How often those who wait are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How many questions are read at once, and how many descriptors are kept for them.
const AT_ONCE: usize = 8;

/// Told of everybody who is about to run one of some files. Dropping it lets all of them go on.
#[derive(Debug)]
pub struct ExecWatch {
    waiting: Arc<Waiting>,
    /// Gone with the thread, when there are no descriptors left.
    group: Weak<OwnedFd>,
    told: PipeReader,
    /// Closed to end the thread.
    lives: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Somebody who is about to run a file and stands in the kernel. He goes on when this is dropped, or when it takes too long.
#[derive(Debug)]
pub struct PendingExec {
    /// The thread that executes it.
    pub tid: Tid,
    question: Arc<Question>,
}

/// What the kernel asks.
#[derive(Debug)]
struct Question {
    tid: Tid,
    file: OwnedFd,
    group: Arc<OwnedFd>,
    is_answered: AtomicBool,
    /// How long it may wait until it is taken, and then until it is answered.
    patience: Duration,
    /// The thread of ours that has taken it; 0: none has.
    taker: AtomicI32,
}

/// A question that somebody of ours has taken.
struct Taken {
    /// When it was seen to be taken.
    since: Instant,
    /// Since when the taker was seen to sleep each time.
    asleep: Option<Instant>,
    question: Arc<Question>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Those that nobody has taken.
    queue: Mutex<VecDeque<Arc<Question>>>,
    /// How many of those were answered because nobody took them in time.
    missed: AtomicU64,
}

impl ExecWatch {
    /// From now on, of these files.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; ENOSYS or EINVAL where the kernel or the file system cannot tell.
    pub fn new<'p>(files: impl IntoIterator<Item = &'p Path>) -> Result<ExecWatch, Errno> {
        let flags = libc::FAN_CLASS_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_REPORT_TID;
        // SAFETY: the call takes integers, and the descriptor it makes is nobody else's.
        let group = unsafe {
            let made =
                libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE) as u32);
            Arc::new(OwnedFd::from_raw_fd(Errno::check(made.into())? as i32))
        };
        for file in files {
            mark(&group, file)?;
        }
        let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
        let (told, tells) = std::io::pipe().map_err(errno)?;
        let (ends, lives) = std::io::pipe().map_err(errno)?;
        let (waiting, weak) = (Arc::<Waiting>::default(), Arc::downgrade(&group));
        let reserve = reserve().ok_or(Errno(libc::EMFILE))?;
        let thread = {
            let waiting = Arc::clone(&waiting);
            let serve = move || waiting.serve(&group, reserve, &ends, tells);
            std::thread::Builder::new().spawn(serve).map_err(errno)?
        };
        Ok(ExecWatch { waiting, group: weak, told, lives: Some(lives), thread: Some(thread) })
    }

    /// Also of the file that has this path now.
    ///
    /// # Errors
    /// What the kernel says; EMFILE if nobody is asked for any more.
    pub fn add(&self, file: &Path) -> Result<(), Errno> {
        mark(&*self.group.upgrade().ok_or(Errno(libc::EMFILE))?, file)
    }

    /// What becomes readable when there is somebody to take.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }

    /// How many went on because nobody took them in time.
    pub fn missed(&self) -> u64 {
        self.waiting.missed.load(Ordering::Relaxed)
    }

    /// Who has waited longest.
    pub fn take(&mut self) -> Option<PendingExec> {
        let mut next = self.waiting.lock().pop_front();
        if next.is_none() && is_readable(self.told.as_fd(), Duration::ZERO) {
            // What comes from now on makes it readable again.
            let _ = self.told.read(&mut [0; 64]);
            next = self.waiting.lock().pop_front();
        }
        next.map(|question| {
            // SAFETY: gettid takes nothing and cannot fail.
            question.taker.store(unsafe { libc::gettid() }, Ordering::Release);
            PendingExec { tid: question.tid, question }
        })
    }
}

impl Drop for ExecWatch {
    fn drop(&mut self) {
        self.lives.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.waiting.lock().clear();
    }
}

impl PendingExec {
    /// Whether he has gone on already, because it took too long.
    pub fn is_over(&self) -> bool {
        self.question.is_answered.load(Ordering::Acquire)
    }
}

impl Drop for PendingExec {
    fn drop(&mut self) {
        self.question.answer();
    }
}

impl Question {
    /// Whether the thread that has taken it waits for something in the kernel.
    fn taker_sleeps(&self) -> bool {
        let taker = self.taker.load(Ordering::Acquire);
        let stat = std::fs::read(format!("/proc/self/task/{taker}/stat")).ok();
        let state = stat.and_then(|stat| Some(parse_stat(&stat).ok()?.state));
        matches!(state, Some(State::Sleeping | State::Uninterruptible))
    }

    fn answer(&self) {
        if self.is_answered.swap(true, Ordering::AcqRel) {
            return;
        }
        let answer = libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: the call reads one answer. Where it fails nobody waits for it.
        unsafe { libc::write(self.group.as_raw_fd(), (&raw const answer).cast(), size_of_val(&answer)) };
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.answer();
    }
}

impl Waiting {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Question>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes questions down, and answers those that nobody answers in time.
    fn serve(&self, group: &Arc<OwnedFd>, mut reserved: Vec<File>, ends: &PipeReader, mut tells: PipeWriter) {
        let mut asked: VecDeque<(Instant, Arc<Question>)> = VecDeque::new();
        let mut taken: VecDeque<Taken> = VecDeque::new();
        loop {
            let patience = if asked.is_empty() && taken.is_empty() { -1 } else { LOOK.as_millis() as i32 };
            let poll =
                |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut polled = [poll(ends.as_fd()), poll(group.as_fd())];
            // SAFETY: two valid pollfds, and the count says so.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, patience) };
            let [ended, is_asked] = polled.map(|poll| poll.revents != 0);
            if ended {
                return;
            }
            if is_asked {
                drop(std::mem::take(&mut reserved));
                let questions = read(group);
                self.lock().extend(questions.iter().cloned());
                asked.extend(questions.into_iter().map(|question| (Instant::now(), question)));
                // It fails only if nobody is left to take them.
                let _ = tells.write_all(b"x");
                let Some(again) = reserve() else {
                    // The group is closed with the last of them, which lets those go on whose questions were not read.
                    asked.iter().for_each(|(_, question)| question.answer());
                    taken.iter().for_each(|taken| taken.question.answer());
                    self.lock().clear();
                    return;
                };
                reserved = again;
            }
            let mut queue = self.lock();
            asked.retain(|(since, question)| {
                let place = queue.iter().position(|queued| Arc::ptr_eq(queued, question));
                match place {
                    None => taken.push_back(Taken::new(question)),
                    Some(place) if since.elapsed() >= question.patience => {
                        queue.remove(place);
                        question.answer();
                        self.missed.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(_) => return true,
                }
                false
            });
            drop(queue);
            taken.retain_mut(|taken| !taken.is_over());
        }
    }
}

impl Taken {
    fn new(question: &Arc<Question>) -> Self {
        Taken { since: Instant::now(), asleep: None, question: Arc::clone(question) }
    }

    /// Answers it if that took too long; whether it is answered.
    fn is_over(&mut self) -> bool {
        self.asleep =
            if self.question.taker_sleeps() { self.asleep.or_else(|| Some(Instant::now())) } else { None };
        if self.since.elapsed() >= self.question.patience
            || self.asleep.is_some_and(|since| since.elapsed() >= TAKING)
        {
            self.question.answer();
        }
        self.question.is_answered.load(Ordering::Acquire)
    }
}

fn mark(group: &OwnedFd, file: &Path) -> Result<(), Errno> {
    let path = CString::new(file.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))?;
    let (flags, mask) = (libc::FAN_MARK_ADD, libc::FAN_OPEN_EXEC_PERM);
    // SAFETY: the path is a string that lives across the call.
    let marked =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, libc::AT_FDCWD, path.as_ptr()) };
    Errno::check(marked.into()).map(drop)
}

/// Descriptors for as many questions as are read at once; `None` if there are not that many.
fn reserve() -> Option<Vec<File>> {
    (0..AT_ONCE).map(|_| File::open("/dev/null").ok()).collect()
}

/// Whether a thread's process has the memory of its parent.
fn runs_in_anothers_memory(tid: Tid) -> bool {
    let parent = status_of(tid).ok().map(|status| Pid(status.ppid).leader());
    parent.is_some_and(|parent| same_memory(tid, parent) == Some(true))
}

/// What is asked.
fn read(group: &Arc<OwnedFd>) -> Vec<Arc<Question>> {
    type Event = libc::fanotify_event_metadata;
    let mut events = [const { MaybeUninit::<Event>::uninit() }; AT_ONCE];
    // SAFETY: the kernel writes at most the bytes of the array: whole events of this size, since no further information was asked for.
    let read = unsafe { libc::read(group.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
    let count = usize::try_from(read).unwrap_or(0) / size_of::<Event>();
    // SAFETY: the first `count` were written.
    let events = events[..count].iter().map(|event| unsafe { event.assume_init_ref() });
    let asked = events.filter(|event| event.fd >= 0).map(|event| {
        Arc::new(Question {
            tid: Tid(event.pid),
            // SAFETY: the descriptor came with the event and is nobody else's.
            file: unsafe { OwnedFd::from_raw_fd(event.fd) },
            group: Arc::clone(group),
            is_answered: AtomicBool::new(false),
            patience: if runs_in_anothers_memory(Tid(event.pid)) { PATIENCE_OF_SHARERS } else { PATIENCE },
            taker: AtomicI32::new(0),
        })
    });
    asked.collect()
}
