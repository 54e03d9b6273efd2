//! Whether there is something to read, asked by somebody whom signals interrupt.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Whether `fd` is readable now or within `patience`. A pidfd is when its process has ended.
///
/// The kernel answers even a poll that does not wait with EINTR where a signal is pending, and whoever traces has one every
/// few milliseconds ([`Alarm`](crate::alarm::Alarm)): that says nothing about the file.
pub(crate) fn is_readable(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let deadline = Instant::now().checked_add(patience);
    loop {
        let left = deadline.map_or(patience, |deadline| deadline.saturating_duration_since(Instant::now()));
        let millis = left.as_millis().min(i32::MAX as u128) as i32;
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd and the count says so.
        match unsafe { libc::poll(&mut poll, 1, millis) } {
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            found => return found > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::Alarm;
    use crate::{Pid, Process};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    /// One ends within some thousand looks where EINTR passes for an answer.
    #[test]
    fn a_process_lives_on_while_signals_interrupt_whoever_looks() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(Pid(child.id() as i32)).unwrap();
        let alarm = Alarm::every(Duration::from_micros(20)).unwrap();
        let always = (0..200_000).all(|_| process.is_alive());
        drop(alarm);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(always && !process.is_alive());
    }

    #[test]
    fn signals_neither_shorten_a_wait_nor_hide_what_came() {
        let _alarm = Alarm::every(Duration::from_millis(1)).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let start = Instant::now();
        assert!(!is_readable(reader.as_fd(), Duration::from_millis(50)));
        assert!(
            start.elapsed() >= Duration::from_millis(49),
            "the kernel's and our clock differ by less than 1 ms"
        );
        writer.write_all(b"x").unwrap();
        assert!(is_readable(reader.as_fd(), Duration::from_secs(600)));
    }
}
