//! Where reports go: standard output or a file, buffered.
//!
//! A reader that does not read must not keep probes in a target. So while probes are armed, a write waits for room only until
//! the run is over ([`Running`]); what is left then is kept and written when the probes are out.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};

/// How much is gathered before it is written.
const BUFFER: usize = 64 << 10;

/// How much is kept for a reader who does not come before he is taken to be behind.
const MOST_KEPT: usize = 16 << 20;

/// What a pipe takes at once where it says that there is room (`PIPE_BUF`).
const PIECE: usize = 4096;

/// How often the end of a run is asked for where its signal came between the question and the wait.
const LOOK: Duration = Duration::from_millis(50);

/// Until when a write may wait.
#[derive(Debug)]
pub struct Running {
    until: OnceLock<Instant>,
    interrupted: fn() -> bool,
    /// The probes are out: writes wait as long as it takes.
    finished: AtomicBool,
    /// Bytes that nobody has taken yet.
    kept: AtomicUsize,
}

impl Running {
    /// A run that ends as soon as `interrupted` says so.
    pub fn new(interrupted: fn() -> bool) -> Arc<Self> {
        Arc::new(Self {
            until: OnceLock::new(),
            interrupted,
            finished: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
        })
    }

    /// The run ends then, too. The first time that is given counts.
    pub fn end_at(&self, until: Instant) {
        let _ = self.until.set(until);
    }

    /// The probes are out.
    pub fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Whether a reader is so far behind that nothing should be added.
    pub fn is_behind(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > MOST_KEPT
    }

    fn must_not_wait(&self) -> bool {
        let over = || self.until.get().is_some_and(|until| Instant::now() >= *until) || (self.interrupted)();
        !self.finished.load(Ordering::Relaxed) && over()
    }
}

/// From now on what a launched command writes to standard output goes to standard error. An [`Output`] that was opened before has
/// it for itself, so that a reader of JSON finds nothing else there. Where standard error is closed, all stays as it is.
pub fn leave_stdout() {
    // SAFETY: dup2 takes two integers. Nothing here writes to descriptor 1 but through an `Output`, which has its own.
    unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
}

/// A buffered destination that knows whether a person is looking.
pub struct Output {
    file: File,
    buffer: Vec<u8>,
    terminal: bool,
    /// Whether a write may wait for a reader.
    waits: bool,
    running: Option<Arc<Running>>,
}

impl Output {
    /// Standard output, by a descriptor of its own: the first may be given to somebody else.
    ///
    /// # Errors
    /// Those of duplicating a descriptor.
    pub fn stdout() -> io::Result<Self> {
        Ok(Self::new(io::stdout().as_fd().try_clone_to_owned()?.into()))
    }

    /// A file, created or emptied.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn file(path: &Path) -> io::Result<Self> {
        Ok(Self::new(File::create(path)?))
    }

    fn new(file: File) -> Self {
        let terminal = file.is_terminal();
        let waits = !file.metadata().is_ok_and(|about| about.is_file());
        Self { file, buffer: Vec::with_capacity(BUFFER), terminal, waits, running: None }
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// From now on a write waits until `running` is over, and after it is finished.
    pub fn wait_only_while(&mut self, running: Arc<Running>) {
        self.running = Some(running);
    }

    /// Writes what is gathered. Where nobody takes it and the run is over, the rest stays.
    fn write_out(&mut self) -> io::Result<()> {
        let mut done = 0;
        let result = loop {
            if done == self.buffer.len() || !self.wait_for_room() {
                break Ok(());
            }
            let most = if self.waits { done + PIECE } else { usize::MAX };
            let piece = &self.buffer[done..self.buffer.len().min(most)];
            match (&self.file).write(piece) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                // A descriptor that does not wait, because somebody who shares it made it so: room is waited for here.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&self.file, LOOK);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        if result.is_err() {
            // Nothing that follows could be read where it belongs.
            done = self.buffer.len();
        }
        self.buffer.drain(..done);
        if let Some(running) = &self.running {
            running.kept.store(self.buffer.len(), Ordering::Relaxed);
        }
        result
    }

    /// Whether the next piece may be written: without a wait, or because waiting is allowed.
    fn wait_for_room(&self) -> bool {
        let Some(running) = self.running.as_ref().filter(|_| self.waits) else { return true };
        loop {
            // An error, too, is found by the write.
            if poll(&self.file, Duration::ZERO) || running.finished.load(Ordering::Relaxed) {
                return true;
            }
            if running.must_not_wait() {
                return false;
            }
            poll(&self.file, LOOK);
        }
    }
}

/// Whether there is room in `file` within that time, or nobody who would read from it. A signal ends the wait.
fn poll(file: &File, patience: Duration) -> bool {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd, and the count says so.
    unsafe { libc::poll(&mut poll, 1, patience.as_millis() as i32) > 0 }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER {
            self.write_out()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // An error was told by the flush before, or the run has failed by another.
        let _ = self.write_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    fn pipe() -> (io::PipeReader, Output) {
        let (reader, writer) = io::pipe().unwrap();
        (reader, Output::new(OwnedFd::from(writer).into()))
    }

    #[test]
    fn what_nobody_reads_is_kept_until_the_probes_are_out() {
        let (mut reader, mut output) = pipe();
        let running = Running::new(|| true);
        output.wait_only_while(running.clone());
        // More than any pipe holds.
        let text = vec![b'x'; 4 << 20];
        output.write_all(&text).unwrap();
        output.flush().unwrap();
        running.finish();
        let reading = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            read
        });
        output.flush().unwrap();
        drop(output);
        assert!(reading.join().unwrap() == text);
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        let (reader, mut output) = pipe();
        drop(reader);
        output.write_all(b"x").unwrap();
        assert_eq!(output.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
