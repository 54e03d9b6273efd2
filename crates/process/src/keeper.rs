//! Work that must not be left half done, in a process of its own.
//!
//! While a target is half changed, a terminal's Ctrl-C, a closed window or a SIGKILL to us must not leave it so. The keeper
//! is a forked child in a session of its own that ignores what a terminal sends, does the work, and hands its result back. If
//! its parent goes away it learns of it ([`ParentWatch::gone`]) and can undo what it did before it ends.
//!
//! ```text
//!     parent                              keeper
//!       │ fork ───────────────────────────▶ setsid, ignore signals
//!       │ ends: asked_to_end, gone ───────▶ ParentWatch
//!       │ ◀─────────── result ───────────── work(), then _exit
//! ```
//!
//! The fork happens in a process that may have other threads, which do not exist in the child. glibc's and musl's allocators are made
//! usable there by the C library itself; the work must not use other locks that threads of the parent may hold at that moment.

use crate::process::open_pidfd;
use crate::readable::is_readable;
use crate::wait::Backoff;
use crate::{Errno, Pid};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// What a terminal, a session's end or a polite kill sends, and what else ends a run of the tool.
const IGNORED: [i32; 15] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    // Writing a result nobody reads must fail, not kill.
    libc::SIGPIPE,
    libc::SIGXFSZ,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGPWR,
    libc::SIGXCPU,
];

/// Why a keeper gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// It could not be started.
    #[error("cannot start the keeper process: {what}: {errno}")]
    Start {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// It ended before it was done, by a signal or by its own fault.
    #[error(
        "the keeper process ended before its work was done ({0}); the target may hold probes: run `trapless detach` on it"
    )]
    Died(ExitStatus),
    /// It did not come to an end.
    #[error(
        "the keeper process {pid} was not done within {} seconds, and was left to itself; it ends when the target can be stopped",
        .limit.as_secs()
    )]
    Late {
        /// The keeper.
        pid: Pid,
        /// How long was waited for it.
        limit: Duration,
    },
    /// Its work panicked.
    #[error("the keeper process failed: {0}")]
    Panicked(String),
}

/// The keeper's view of its parent.
#[derive(Debug)]
pub struct ParentWatch {
    parent: Pid,
    pidfd: Option<OwnedFd>,
    ends: PipeReader,
}

impl ParentWatch {
    /// Whether the parent has ended, however that came.
    pub fn gone(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => is_readable(pidfd.as_fd(), Duration::ZERO),
            // Orphans are given to another parent.
            // SAFETY: getppid takes nothing and cannot fail.
            None => (unsafe { libc::getppid() }) != self.parent.0,
        }
    }

    /// Whether the work should come to its end: the parent asked for it, or is gone.
    pub fn should_end(&self) -> bool {
        self.should_end_within(Duration::ZERO)
    }

    /// What becomes readable when [`ParentWatch::should_end`] becomes true; without a pidfd, only when it was asked for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.ends.as_fd()).chain(self.pidfd.as_ref().map(AsFd::as_fd))
    }

    /// As [`ParentWatch::should_end`], waiting for it for up to `patience`.
    pub fn should_end_within(&self, patience: Duration) -> bool {
        is_readable(self.ends.as_fd(), patience) || self.gone()
    }
}

/// A running keeper. Dropping it asks it to end and waits for that.
#[derive(Debug)]
pub struct Keeper {
    pid: Pid,
    ends: Option<PipeWriter>,
    result: PipeReader,
    reaped: bool,
}

/// How long work may take, after it was asked to end. All waits in it that depend on the target are shorter.
const LIMIT: Duration = Duration::from_secs(120);

/// How long the end of a keeper may take that has given its result.
const ENDING: Duration = Duration::from_secs(5);

/// First byte of what the keeper sends.
const DONE: u8 = b'd';
const PANICKED: u8 = b'p';

/// Does `work` in a keeper and waits for its result.
///
/// # Errors
/// [`KeeperError`] if it could not be started, panicked, or was killed.
pub fn run(work: impl FnOnce(&ParentWatch) -> Vec<u8>) -> Result<Vec<u8>, KeeperError> {
    Keeper::start(work)?.wait()
}

impl Keeper {
    /// Starts `work` in a keeper and returns at once.
    ///
    /// # Errors
    /// [`KeeperError::Start`].
    pub fn start(work: impl FnOnce(&ParentWatch) -> Vec<u8>) -> Result<Keeper, KeeperError> {
        let failed = |what| {
            move |error: io::Error| KeeperError::Start {
                what,
                errno: Errno(error.raw_os_error().unwrap_or(0)),
            }
        };
        let parent = Pid(std::process::id() as i32);
        // Opened before the fork, so it is the parent and not somebody with its number.
        let pidfd = open_pidfd(parent).map_err(failed("pidfd_open"))?;
        let (ends_read, ends_write) = io::pipe().map_err(failed("pipe"))?;
        let (result_read, result_write) = io::pipe().map_err(failed("pipe"))?;
        // SAFETY: the child runs only `keep`, which never returns; see the module's text on what it may use.
        let pid = Errno::check(libc::c_long::from(unsafe { libc::fork() }))
            .map_err(|errno| KeeperError::Start { what: "fork", errno })?;
        if pid == 0 {
            drop((ends_write, result_read));
            keep(work, &ParentWatch { parent, pidfd, ends: ends_read }, result_write);
        }
        Ok(Keeper { pid: Pid(pid as i32), ends: Some(ends_write), result: result_read, reaped: false })
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets [`ParentWatch::should_end`] become true.
    pub fn ask_to_end(&mut self) {
        if let Some(mut ends) = self.ends.take() {
            // A byte, because closing is no sign while a process forked at the same time holds the end, too. It fails only if the
            // keeper is gone.
            let _ = ends.write_all(b"e");
        }
    }

    /// Whether the result is there, or the keeper has died, within `patience`.
    pub fn is_done_within(&self, patience: Duration) -> bool {
        is_readable(self.result.as_fd(), patience)
    }

    /// What becomes readable when [`Keeper::is_done_within`] becomes true.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.result.as_fd()
    }

    /// Waits for its result.
    ///
    /// # Errors
    /// [`KeeperError`] if it panicked or was killed.
    pub fn wait(mut self) -> Result<Vec<u8>, KeeperError> {
        self.take_result()
    }

    fn take_result(&mut self) -> Result<Vec<u8>, KeeperError> {
        if !self.is_done_within(LIMIT) {
            // Killed, it would leave the target half changed.
            self.reaped = true;
            return Err(KeeperError::Late { pid: self.pid, limit: LIMIT });
        }
        // By length and not to the end of the pipe: a keeper forked at the same time may hold its other end, too.
        let mut header = [0; 9];
        let mut content = Vec::new();
        let complete = self.result.read_exact(&mut header).is_ok() && {
            let len = u64::from_le_bytes(std::array::from_fn(|n| header[n + 1]));
            (&self.result).take(len).read_to_end(&mut content).is_ok_and(|read| read as u64 == len)
        };
        let status = self.reap();
        match header[0] {
            _ if !complete => Err(KeeperError::Died(status)),
            DONE => Ok(content),
            _ => Err(KeeperError::Panicked(String::from_utf8_lossy(&content).into_owned())),
        }
    }

    fn reap(&mut self) -> ExitStatus {
        let mut status = 0;
        self.reaped = true;
        let deadline = Instant::now() + ENDING;
        let mut backoff = Backoff::default();
        loop {
            // SAFETY: the call writes one integer.
            let reaped = unsafe { libc::waitpid(self.pid.0, &mut status, libc::WNOHANG) };
            match Errno::check(libc::c_long::from(reaped)) {
                Err(Errno(libc::EINTR)) => {}
                Ok(0) if Instant::now() < deadline => backoff.pause(),
                _ => return ExitStatus::from_raw(status),
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.reaped {
            self.ask_to_end();
            // Reading lets it end if it waits for us to take its result.
            let _ = self.take_result();
        }
    }
}

/// The calling keeper, whose work is done, ends with its parent, also where it waits for somebody.
pub fn end_with_parent() {
    // SAFETY: prctl takes integers. Without it there is only more to wait for.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// The child's side.
fn keep(work: impl FnOnce(&ParentWatch) -> Vec<u8>, watch: &ParentWatch, mut result: PipeWriter) -> ! {
    // SAFETY: setsid and signal with SIG_IGN have no preconditions. A forked child is no group leader, so setsid succeeds.
    unsafe {
        libc::setsid();
        for signal in IGNORED {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    let (kind, content) = match catch_unwind(AssertUnwindSafe(|| work(watch))) {
        Ok(content) => (DONE, content),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            (PANICKED, text.as_bytes().to_vec())
        }
    };
    let mut message = Vec::with_capacity(content.len() + 9);
    message.push(kind);
    message.extend((content.len() as u64).to_le_bytes());
    message.extend(content);
    let sent = result.write_all(&message);
    // Not exit: the parent's exit handlers and buffers are not ours to run.
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(if sent.is_ok() { 0 } else { 1 }) }
}
