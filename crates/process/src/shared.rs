//! Memory that we share with a target which may be hostile.
//!
//! It is a memfd that a stopped thread of the target makes, taken with `pidfd_getfd`. Others can reach the target's descriptors
//! meanwhile: a process made with `CLONE_FILES` shares them and is no thread, so it is not stopped. It can put another
//! file at the number, and it can keep a descriptor of ours to shrink the file under us. So, in order:
//!
//! 1. The descriptor is taken from the very thread that made it, by its pidfd. It is never opened again by a path: that would
//!    ask for *our* rights, and make a writable descriptor of one that was not.
//! 2. What came is proven to be a fresh memfd of the target's user: of tmpfs, without a name, empty, writable and with no
//!    seal. Any file that was ever opened by a name fails this. One that passes is as good as the one we asked for,
//!    since all that could be in it is the target's own.
//! 3. It is given its size and sealed: it can neither shrink nor grow, and no more seals can come. Its size is looked at
//!    once more after that. From here on no access to a mapping of it can fault.
//! 4. Mapped in the target it is compared with what `/proc/PID/maps` shows ([`SharedMemory::refuse_other_mapping`]). The
//!    caller does that before it writes anything.

use crate::process::open_thread_pidfd;
use crate::{Errno, Mappings, Remote, RemoteAddr, RemoteError};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// A sealed memfd of the target's, of fixed size, that only it and we have.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    theirs: i32,
    inode: u64,
    size: u64,
}

/// `F_SEAL_EXEC` of `include/uapi/linux/fcntl.h`: a kernel may set it on every new memfd (`vm.memfd_noexec`).
const F_SEAL_EXEC: i32 = 0x20;

impl Remote<'_, '_> {
    /// Makes memory of `size` bytes in the target, open in it and in our hands, proven and sealed as the module's text says.
    ///
    /// # Errors
    /// [`RemoteError::NoDescriptor`] if the kernel does not hand it out, [`RemoteError::Replaced`] if something else came than
    /// what was made.
    pub fn create_shared(&mut self, name: &CStr, size: u64) -> Result<SharedMemory, RemoteError> {
        let theirs = self.memfd_create(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
        let shared = self.take(theirs, size);
        if shared.is_err() {
            self.close_if_there(theirs)?;
        }
        shared
    }

    /// Closes the target's descriptor of shared memory. That it is closed already is the target's own doing, and no harm.
    ///
    /// # Errors
    /// The thread was lost.
    pub fn close_if_there(&mut self, fd: i32) -> Result<(), RemoteError> {
        match self.close(fd) {
            Err(RemoteError::Failed { .. }) => Ok(()),
            closed => closed,
        }
    }

    fn take(&mut self, theirs: i32, size: u64) -> Result<SharedMemory, RemoteError> {
        let user = self.process().thread_status(self.tid())?.uid[3];
        let file = File::from(self.descriptor(theirs)?);
        prove_fresh(&file, user)?;
        let failed = |what| move |error: io::Error| RemoteError::Unfit { what, errno: errno_of(&error) };
        // By us, not by the target: its `RLIMIT_FSIZE` is not for us.
        file.set_len(size).map_err(failed("cannot be sized"))?;
        seal(&file).map_err(failed("cannot be sealed"))?;
        let meta = file.metadata().map_err(failed("cannot be looked at"))?;
        if meta.len() != size {
            return Err(RemoteError::Replaced("its size was changed"));
        }
        Ok(SharedMemory { file, theirs, inode: meta.ino(), size })
    }

    /// A descriptor of ours for what `fd` of the thread that makes the calls refers to.
    fn descriptor(&self, fd: i32) -> Result<OwnedFd, RemoteError> {
        let (process, tid) = (self.process(), self.tid());
        let refused = |why| move |errno| RemoteError::NoDescriptor { pid: process.pid(), why, errno };
        let by_thread;
        let pidfd = if tid == process.pid().leader() {
            process.pidfd().map(|pidfd| pidfd.as_raw_fd())
        } else {
            // It stands still for us, so its id is its own.
            by_thread = open_thread_pidfd(tid);
            match &by_thread {
                Ok(pidfd) => Some(pidfd.as_raw_fd()),
                // Kernels before 6.9 know processes only, and answer for the leader.
                Err(Errno(libc::EINVAL)) => process.pidfd().map(|pidfd| pidfd.as_raw_fd()),
                Err(errno) => return Err(refused("its thread has no pidfd")(*errno)),
            }
        };
        let pidfd = pidfd.ok_or(refused("the kernel is older than 5.6")(Errno(libc::ENOSYS)))?;
        // SAFETY: pidfd_getfd takes three integers.
        let ours = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) };
        let ours = Errno::check(ours).map_err(|errno| {
            let why = match errno {
                Errno(libc::ENOSYS) => "the kernel is older than 5.6",
                Errno(libc::EPERM) => "a sandbox around trapless forbids pidfd_getfd",
                Errno(libc::ESRCH) => {
                    "its first thread has exited, and kernels before 6.9 ask that one for descriptors"
                }
                _ => "something in the process closes it",
            };
            refused(why)(errno)
        })?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(ours as i32) })
    }
}

impl SharedMemory {
    /// The target's descriptor, to be mapped there and closed.
    pub fn descriptor_in_target(&self) -> i32 {
        self.theirs
    }

    /// Proves that the mapping at `address` is this memory from its start to its end, writable and shared.
    ///
    /// # Errors
    /// [`RemoteError::Replaced`] if something else is mapped there.
    pub fn refuse_other_mapping(&self, maps: &Mappings, address: RemoteAddr) -> Result<(), RemoteError> {
        self.refuse_other_part(maps, address, 0..self.size)
    }

    /// The same of a mapping of a part.
    ///
    /// # Errors
    /// As above.
    pub fn refuse_other_part(
        &self,
        maps: &Mappings,
        address: RemoteAddr,
        part: Range<u64>,
    ) -> Result<(), RemoteError> {
        let same = maps.find(address).is_some_and(|mapping| {
            mapping.start == address
                && mapping.len() == part.end - part.start
                && mapping.offset == part.start
                && mapping.inode == self.inode
                && mapping.deleted
                && mapping.perms.shared
                && mapping.perms.read
                && mapping.perms.write
        });
        if same { Ok(()) } else { Err(RemoteError::Replaced("other memory was mapped in its place")) }
    }

    /// The memory, to be filled before it is mapped in the target.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn file(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Our descriptor.
    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }
}

/// Step 2.
fn prove_fresh(file: &File, user: u32) -> Result<(), RemoteError> {
    let fd = file.as_raw_fd();
    // SAFETY: zeros are a valid statfs.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one statfs; the fcntls take integers only.
    let (known, flags, seals) = unsafe {
        (libc::fstatfs(fd, &mut system), libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GET_SEALS))
    };
    let Ok(meta) = file.metadata() else { return Err(RemoteError::Replaced("it cannot be looked at")) };
    let wrong = [
        (flags < 0 || flags & libc::O_PATH != 0, "it is only a path"),
        (known != 0 || system.f_type != libc::TMPFS_MAGIC, "it is not in memory"),
        (!meta.is_file(), "it is not a file"),
        (flags & libc::O_ACCMODE != libc::O_RDWR, "it is not writable"),
        // A file that was opened by a name can never be sealed, and says so with a seal.
        (seals < 0 || seals & !F_SEAL_EXEC != 0, "it is sealed"),
        (meta.nlink() != 0, "it has a name"),
        (meta.len() != 0, "it is not empty"),
        (meta.uid() != user, "it belongs to somebody else"),
    ];
    match wrong.into_iter().find(|(is, _)| *is) {
        Some((_, what)) => Err(RemoteError::Replaced(what)),
        None => Ok(()),
    }
}

/// Step 3: no seal but these, none to come.
fn seal(file: &File) -> io::Result<()> {
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: both calls take integers only.
    let seals = unsafe {
        match libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, wanted) {
            0 => libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS),
            _ => -1,
        }
    };
    match seals {
        -1 => Err(io::Error::last_os_error()),
        seals if seals & !F_SEAL_EXEC == wanted => Ok(()),
        // Somebody forbade writing in between.
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_maps;

    fn memfd(flags: u32) -> File {
        // SAFETY: the name ends with a zero; the descriptor is new and ours.
        unsafe {
            let fd = libc::memfd_create(c"shared".as_ptr(), flags);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        }
    }

    fn own_user() -> u32 {
        // SAFETY: geteuid takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    fn reason(file: &File) -> String {
        prove_fresh(file, own_user()).map_or_else(|error| error.to_string(), |()| "fresh".into())
    }

    #[test]
    fn only_a_fresh_memfd_is_taken_for_one() {
        let memory = memfd(libc::MFD_ALLOW_SEALING);
        assert_eq!(reason(&memory), "fresh");
        let again = |options: &mut std::fs::OpenOptions| {
            options.open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap()
        };
        let read_only = again(File::options().read(true));
        let write_only = again(File::options().write(true));
        // SAFETY: the path ends with a zero; the descriptor is new and ours.
        let path_only = unsafe {
            File::from_raw_fd(libc::open(c"/proc/self/exe".as_ptr(), libc::O_PATH | libc::O_CLOEXEC))
        };
        let named = File::options().read(true).open("/proc/self/exe").unwrap();
        let full = memfd(libc::MFD_ALLOW_SEALING);
        full.set_len(1).unwrap();
        let (pipe, _) = std::io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(pipe));
        for (file, why) in [
            (&read_only, "not writable"),
            (&write_only, "not writable"),
            (&path_only, "only a path"),
            (&named, "not in memory"),
            (&pipe, "not in memory"),
            (&memfd(0), "sealed"),
            (&full, "not empty"),
        ] {
            assert!(reason(file).contains(why), "{why}: {}", reason(file));
        }
        let foreign = prove_fresh(&memory, own_user() + 1).unwrap_err().to_string();
        assert!(foreign.contains("somebody else"), "{foreign}");
    }

    /// Where there is a tmpfs with names, its files are none of ours, whatever became of their names.
    #[test]
    fn a_file_of_a_tmpfs_is_no_memfd() {
        let path = format!("/dev/shm/trapless-shared-{}", std::process::id());
        let Ok(file) = File::options().read(true).write(true).create_new(true).open(&path) else {
            trapless_testing::inapplicable!("there is no /dev/shm");
            return;
        };
        let named = reason(&file);
        std::fs::remove_file(&path).unwrap();
        assert_ne!(named, "fresh");
        assert_ne!(reason(&file), "fresh");
    }

    #[test]
    fn sealed_memory_neither_shrinks_nor_grows_and_stays_writable() {
        use std::os::unix::fs::FileExt;
        let memory = memfd(libc::MFD_ALLOW_SEALING);
        memory.set_len(8192).unwrap();
        seal(&memory).unwrap();
        for size in [0, 4096, 16384] {
            assert!(memory.set_len(size).is_err(), "{size}");
        }
        memory.write_all_at(b"word", 4096).unwrap();
        assert!(seal(&memory).is_err(), "no seal comes later");
        let unwritable = memfd(libc::MFD_ALLOW_SEALING);
        // SAFETY: takes integers only.
        let sealed =
            unsafe { libc::fcntl(unwritable.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        assert_eq!(sealed, 0);
        assert!(seal(&unwritable).is_err());
    }

    #[test]
    fn a_mapping_is_this_memory_only_if_everything_fits() {
        let file = memfd(libc::MFD_ALLOW_SEALING);
        let shared = SharedMemory { file, theirs: 3, inode: 77, size: 0x2000 };
        for (line, fits) in [
            ("1000-3000 rw-s 0 00:01 77 /memfd:t (deleted)\n", true),
            ("1000-3000 rw-s 0 00:01 78 /memfd:t (deleted)\n", false),
            ("1000-2000 rw-s 0 00:01 77 /memfd:t (deleted)\n", false),
            ("1000-4000 rw-s 0 00:01 77 /memfd:t (deleted)\n", false),
            ("0000-3000 rw-s 0 00:01 77 /memfd:t (deleted)\n", false),
            ("1000-3000 rw-p 0 00:01 77 /memfd:t (deleted)\n", false),
            ("1000-3000 r--s 0 00:01 77 /memfd:t (deleted)\n", false),
            ("1000-3000 rw-s 1000 00:01 77 /memfd:t (deleted)\n", false),
            ("1000-3000 rw-s 0 08:01 77 /tmp/file\n", false),
            ("", false),
        ] {
            let maps = parse_maps(line.as_bytes()).unwrap();
            assert_eq!(shared.refuse_other_mapping(&maps, RemoteAddr(0x1000)).is_ok(), fits, "{line}");
        }
        let part = parse_maps(b"5000-6000 rw-s 1000 00:01 77 /memfd:t (deleted)\n").unwrap();
        let refuses = |range| shared.refuse_other_part(&part, RemoteAddr(0x5000), range).is_err();
        assert_eq!([0x1000..0x2000, 0..0x1000, 0x1000..0x3000].map(refuses), [false, true, true]);
    }
}
