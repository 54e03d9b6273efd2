//! That something has happened to a child, as a descriptor to wait for.

use crate::Errno;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// SIGCHLD of the calling process, read from a descriptor.
#[derive(Debug)]
pub struct ChildSignal(OwnedFd);

impl ChildSignal {
    /// From now on. The signal is blocked in the calling thread, and in those that it makes: it goes to any thread that lets it through, and
    /// is lost there. So this is for a process that has no other threads yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> Result<ChildSignal, Errno> {
        // SAFETY: zeros are a valid set, both calls read and write only it, and the descriptor is new and nobody else's.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            Ok(ChildSignal(OwnedFd::from_raw_fd(Errno::check(fd.into())? as i32)))
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What happens from now on makes it readable again.
    pub(super) fn clear(&self) {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        // SAFETY: the call writes at most one description. One that there is not is no error here.
        unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size_of_val(&info)) };
    }
}
