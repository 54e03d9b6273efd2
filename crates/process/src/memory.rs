//! Reading and writing the target's memory.
//!
//! Writing goes through `/proc/PID/mem`, whose accesses ignore page protection as a debugger's do: that is how code gets
//! into pages that are never writable. Reading many places at once goes through `process_vm_readv`.

use crate::{Errno, MemoryError, Process, RemoteAddr, Tid};
use std::io;
use std::os::unix::fs::FileExt;

/// A value that any bytes make a valid instance of.
///
/// # Safety
/// Implementors have no padding, no invalid bit patterns and no pointers.
pub unsafe trait Pod: Copy {}

macro_rules! pod {
    ($($t:ty)*) => { $(
        // SAFETY: primitive integers have no padding and no invalid values.
        unsafe impl Pod for $t {}
    )* };
}
pod!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);
// SAFETY: an array of such values has no padding between them.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// One destination of [`Process::read_vectored`].
#[derive(Debug)]
pub struct ReadRange<'b> {
    /// Where to read.
    pub address: RemoteAddr,
    /// Where to put it.
    pub buffer: &'b mut [u8],
    /// How many bytes at the start of `buffer` are valid afterwards.
    pub done: usize,
}

impl<'b> ReadRange<'b> {
    /// A range that fills `buffer` from `address`.
    pub fn new(address: RemoteAddr, buffer: &'b mut [u8]) -> Self {
        ReadRange { address, buffer, done: 0 }
    }
}

impl Process {
    /// Reads up to `buffer.len()` bytes; fewer where the mapped memory ends.
    ///
    /// # Errors
    /// [`MemoryError::Fault`] if not even the first byte can be read, [`MemoryError::Gone`] if there is no memory any more.
    pub fn read(&self, address: RemoteAddr, buffer: &mut [u8]) -> Result<usize, MemoryError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.mem().read_at(&mut buffer[done..], address.0.wrapping_add(done as u64)) {
                Ok(0) => return Err(MemoryError::Gone),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(fault("read", address, buffer.len(), &error)),
            }
        }
        Ok(done)
    }

    /// Fills `buffer` from `address`.
    ///
    /// # Errors
    /// As [`Process::read`], and [`MemoryError::Fault`] at the first byte that is missing.
    pub fn read_exact(&self, address: RemoteAddr, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let done = self.read(address, buffer)?;
        if done == buffer.len() {
            return Ok(());
        }
        let (address, len) = (address + done as u64, buffer.len() - done);
        Err(MemoryError::Fault { access: "read", address, len, errno: Errno(libc::EFAULT) })
    }

    /// Writes all of `bytes` where the target itself may write, or fails and writes what comes before the fault at most.
    ///
    /// # Errors
    /// [`MemoryError::Fault`] where a store of the target's would fault, too (or would grow the stack).
    pub fn store(&self, address: RemoteAddr, bytes: &[u8]) -> Result<(), MemoryError> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address.0 as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: the kernel only reads `local`; `remote` is an address of the target's, which is checked there.
        let done = self
            .through_a_living_thread(|tid| unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) });
        self.whole("store", address, bytes.len(), done)
    }

    /// Fills `buffer` as loads of the target's would.
    ///
    /// # Errors
    /// [`MemoryError::Fault`] where a load of the target's would fault, too.
    pub fn load(&self, address: RemoteAddr, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = libc::iovec { iov_base: address.0 as *mut libc::c_void, iov_len: buffer.len() };
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
        let done = self
            .through_a_living_thread(|tid| unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) });
        self.whole("load", address, buffer.len(), done)
    }

    /// Makes a call that reaches the memory through the leader, or through another thread when the leader has exited before it: it
    /// shows no memory then.
    fn through_a_living_thread(&self, call: impl Fn(i32) -> isize) -> isize {
        let done = call(self.pid().0);
        if done >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
            return done;
        }
        let others = self.threads().unwrap_or_default();
        let mut others = others.into_iter().filter(|tid| *tid != self.pid().leader());
        // The answer of the last call is also the error's, which is asked for next.
        let answers = |tid: Tid| {
            let done = call(tid.0);
            (done >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)).then_some(done)
        };
        others.find_map(answers).unwrap_or(done)
    }

    fn whole(
        &self,
        access: &'static str,
        address: RemoteAddr,
        len: usize,
        done: isize,
    ) -> Result<(), MemoryError> {
        match usize::try_from(done) {
            Ok(done) if done == len => Ok(()),
            Ok(_) => Err(MemoryError::Fault { access, address, len, errno: Errno(libc::EFAULT) }),
            Err(_) => Err(fault(access, address, len, &io::Error::last_os_error())),
        }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// As [`Process::read_exact`].
    pub fn read_pod<T: Pod>(&self, address: RemoteAddr) -> Result<T, MemoryError> {
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        // SAFETY: the slice covers exactly `value`, whose bytes are all initialised (to zero).
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        self.read_exact(address, bytes)?;
        // SAFETY: all bytes are initialised, and any bytes are a valid `T` by `Pod`'s contract.
        Ok(unsafe { value.assume_init() })
    }

    /// Reads a pointer-sized word of the target, zero-extended.
    ///
    /// # Errors
    /// As [`Process::read_exact`].
    pub fn read_word(&self, address: RemoteAddr) -> Result<u64, MemoryError> {
        if self.is_32bit() { self.read_pod::<u32>(address).map(u64::from) } else { self.read_pod(address) }
    }

    /// Writes all of `bytes`, also to pages the target itself may not write. Private pages of a file are copied first, so the file
    /// never changes.
    ///
    /// # Errors
    /// [`MemoryError::Fault`] at the first byte that could not be written; those before it have been.
    pub fn write(&self, address: RemoteAddr, bytes: &[u8]) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            match self.mem().write_at(&bytes[done..], at.0) {
                Ok(0) => return Err(MemoryError::Gone),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) && self.is_readable(at) => {
                    done += self.write_anew(at, &bytes[done..]).ok_or(MemoryError::Refused(at))?;
                }
                Err(error) => return Err(fault("write", at, bytes.len() - done, &error)),
            }
        }
        Ok(())
    }

    /// Writes through the memory as it is opened now. Where only the tracer may write, the kernel asks who traces the thread that it was
    /// opened by, and that one may have exited since.
    fn write_anew(&self, address: RemoteAddr, bytes: &[u8]) -> Option<usize> {
        let memory = self.open_memory().ok()?;
        // What was opened before still has its memory, so no other program runs in it; and this is the same.
        let [mut then, mut now] = [[0; 16]; 2];
        let read = self.mem().read_at(&mut then, address.0).ok()?;
        let is_same = memory.read_at(&mut now, address.0).ok()? == read && then == now && self.is_alive();
        is_same.then(|| memory.write_at(bytes, address.0).ok()).flatten().filter(|written| *written > 0)
    }

    fn is_readable(&self, address: RemoteAddr) -> bool {
        self.read_exact(address, &mut [0]).is_ok()
    }

    /// Fills many ranges with few system calls. Each range's `done` says how much of it could be read: a range that is not mapped
    /// is no error, because the stacks of running threads come and go.
    ///
    /// # Errors
    /// [`MemoryError::Gone`] if there is no memory any more.
    pub fn read_vectored(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), MemoryError> {
        /// `UIO_MAXIOV` of `include/uapi/linux/uio.h`.
        const MAX_RANGES: usize = 1024;
        let mut next = 0;
        while next < ranges.len() {
            let batch = &mut ranges[next..];
            let batch_len = batch.len().min(MAX_RANGES);
            let mut read = match self.read_batch(&mut batch[..batch_len]) {
                Ok(read) => read,
                // Containers' seccomp profiles refuse the call, a process whose leader has exited gives ESRCH, and a first range
                // that is not mapped EFAULT: the other way in tells which.
                Err(_) => {
                    let range = &mut ranges[next];
                    range.done = match self.read(range.address, range.buffer) {
                        Err(MemoryError::Gone) => return Err(MemoryError::Gone),
                        other => other.unwrap_or(0),
                    };
                    next += 1;
                    continue;
                }
            };
            // The kernel stops at the first byte it cannot read: ranges before it are whole, the one that holds it is cut.
            for range in &mut batch[..batch_len] {
                range.done = read.min(range.buffer.len());
                read -= range.done;
                next += 1;
                if range.done < range.buffer.len() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn read_batch(&self, ranges: &mut [ReadRange<'_>]) -> Result<usize, Errno> {
        let iovec = |base: *mut u8, len: usize| libc::iovec { iov_base: base.cast(), iov_len: len };
        let remote: Vec<_> =
            ranges.iter().map(|r| iovec(r.address.0 as usize as *mut u8, r.buffer.len())).collect();
        let local: Vec<_> = ranges.iter_mut().map(|r| iovec(r.buffer.as_mut_ptr(), r.buffer.len())).collect();
        // SAFETY: every local vector covers a buffer that `ranges` borrows mutably; the kernel only looks up the remote ones in the
        // target's address space.
        let read = unsafe {
            libc::process_vm_readv(
                self.pid().0,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        Errno::check(read as libc::c_long).map(|read| read as usize)
    }
}

fn fault(access: &'static str, address: RemoteAddr, len: usize, error: &io::Error) -> MemoryError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => MemoryError::Gone,
        errno => MemoryError::Fault { access, address, len, errno: Errno(errno.unwrap_or(libc::EIO)) },
    }
}
