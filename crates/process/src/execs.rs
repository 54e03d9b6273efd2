//! Who is about to run a file, told before it does.
//!
//! The kernel asks a fanotify group for leave (`FAN_OPEN_EXEC_PERM`) when somebody opens a file to execute it, a script's interpreter
//! included. Whoever asks stands in the kernel until he has the answer, where no tracer can stop him either. So the questions are
//! taken by a thread of their own: whom nobody has taken over within 200 ms goes on, and should we die, the kernel lets all go on.
//!
//! Only root may ask for this (CAP_SYS_ADMIN), and only for files: nobody else on the machine waits for us.

use crate::readable::is_readable;
use crate::{Errno, Tid};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long somebody may stand before the program he is about to run starts without us.
const PATIENCE: Duration = Duration::from_millis(200);

/// How often those who wait are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Told of everybody who is about to run one of some files. Dropping it lets all of them go on.
#[derive(Debug)]
pub struct ExecWatch {
    waiting: Arc<Waiting>,
    told: PipeReader,
    /// Closed to end the thread.
    lives: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Somebody who is about to run a file and stands in the kernel. He goes on when this is dropped.
#[derive(Debug)]
pub struct PendingExec {
    /// The thread that executes it.
    pub tid: Tid,
    file: OwnedFd,
    group: Arc<OwnedFd>,
    since: Instant,
}

#[derive(Debug)]
struct Waiting {
    group: Arc<OwnedFd>,
    queue: Mutex<VecDeque<PendingExec>>,
    /// Those that nobody took in time.
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
            OwnedFd::from_raw_fd(Errno::check(made.into())? as i32)
        };
        for file in files {
            let path = CString::new(file.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))?;
            // SAFETY: the path is a string that lives across the call.
            let marked = unsafe {
                libc::fanotify_mark(
                    group.as_raw_fd(),
                    libc::FAN_MARK_ADD,
                    libc::FAN_OPEN_EXEC_PERM,
                    libc::AT_FDCWD,
                    path.as_ptr(),
                )
            };
            Errno::check(marked.into())?;
        }
        let errno = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
        let (told, tells) = std::io::pipe().map_err(errno)?;
        let (ends, lives) = std::io::pipe().map_err(errno)?;
        let waiting =
            Arc::new(Waiting { group: Arc::new(group), queue: Mutex::default(), missed: AtomicU64::new(0) });
        let thread = {
            let waiting = Arc::clone(&waiting);
            std::thread::Builder::new().spawn(move || waiting.serve(&ends, tells)).map_err(errno)?
        };
        Ok(ExecWatch { waiting, told, lives: Some(lives), thread: Some(thread) })
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
        let next = self.waiting.lock().pop_front();
        if next.is_none() && is_readable(self.told.as_fd(), Duration::ZERO) {
            // What comes from now on makes it readable again.
            let _ = self.told.read(&mut [0; 64]);
            return self.waiting.lock().pop_front();
        }
        next
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

impl Waiting {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<PendingExec>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes questions down, and answers those that nobody takes.
    fn serve(&self, ends: &PipeReader, mut tells: PipeWriter) {
        loop {
            let patience = if self.lock().is_empty() { -1 } else { LOOK.as_millis() as i32 };
            let poll =
                |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut polled = [poll(ends.as_fd()), poll(self.group.as_fd())];
            // SAFETY: two valid pollfds, and the count says so.
            unsafe { libc::poll(polled.as_mut_ptr(), 2, patience) };
            let [ended, asked] = polled.map(|poll| poll.revents != 0);
            if ended {
                return;
            }
            let asked = if asked { self.read() } else { Vec::new() };
            let is_asked = !asked.is_empty();
            let mut queue = self.lock();
            let before = queue.len();
            queue.retain(|pending| pending.since.elapsed() < PATIENCE);
            self.missed.fetch_add((before - queue.len()) as u64, Ordering::Relaxed);
            queue.extend(asked);
            drop(queue);
            if is_asked {
                // It fails only if nobody is left to take them.
                let _ = tells.write_all(b"x");
            }
        }
    }

    /// What is asked.
    fn read(&self) -> Vec<PendingExec> {
        type Event = libc::fanotify_event_metadata;
        const AT_ONCE: usize = 32;
        let mut events = [const { MaybeUninit::<Event>::uninit() }; AT_ONCE];
        // SAFETY: the kernel writes at most the bytes of the array: whole events of this size, since no further information was asked for.
        let read =
            unsafe { libc::read(self.group.as_raw_fd(), events.as_mut_ptr().cast(), size_of_val(&events)) };
        let count = usize::try_from(read).unwrap_or(0) / size_of::<Event>();
        // SAFETY: the first `count` were written.
        let events = events[..count].iter().map(|event| unsafe { event.assume_init_ref() });
        let asked = events.filter(|event| event.fd >= 0).map(|event| {
            PendingExec {
                tid: Tid(event.pid),
                // SAFETY: the descriptor came with the event and is nobody else's.
                file: unsafe { OwnedFd::from_raw_fd(event.fd) },
                group: Arc::clone(&self.group),
                since: Instant::now(),
            }
        });
        asked.collect()
    }
}

impl Drop for PendingExec {
    fn drop(&mut self) {
        let answer = libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        // SAFETY: the call reads one answer. Where it fails nobody waits for it.
        unsafe { libc::write(self.group.as_raw_fd(), (&raw const answer).cast(), size_of_val(&answer)) };
    }
}
