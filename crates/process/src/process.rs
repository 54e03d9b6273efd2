//! A process by its id, held so that a reused id is noticed, with what `/proc` tells about it.

use crate::arch;
use crate::maps::{Mappings, parse_maps};
use crate::readable::is_readable;
use crate::status::{Auxv, Stat, Status, parse_stat, parse_status};
use crate::wait::Backoff;
use crate::{Errno, MappedFileError, Mapping, OpenError, Pid, ProcError, Tid};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A live process. The id stays ours to name as long as [`Process::is_alive`] says so: it is held by a pidfd, and its
/// memory by an open `/proc/PID/mem`, which never turns into another process's.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: Option<OwnedFd>,
    mem: File,
    start_time: u64,
    is_32bit: bool,
}

/// The `/proc` directory through which the process's memory can be seen: its own, or that of a thread that lives if the leader has
/// exited before the others, because an exited thread shows no memory.
fn memory_directory(pid: Pid) -> PathBuf {
    let leader = PathBuf::from(format!("/proc/{pid}"));
    let shows_memory = |dir: &Path| std::fs::read_link(dir.join("exe")).is_ok();
    if shows_memory(&leader) {
        return leader;
    }
    let tasks = std::fs::read_dir(leader.join("task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).find(|task| shows_memory(task)).unwrap_or(leader)
}

fn open_memory(pid: Pid) -> io::Result<File> {
    File::options().read(true).write(true).open(memory_directory(pid).join("mem"))
}

impl Process {
    /// Opens the process, and proves by it that we may trace it: opening its memory asks the kernel the same question.
    ///
    /// # Errors
    /// [`OpenError`] says which of the many reasons it is and what to do about it.
    pub fn open(pid: Pid) -> Result<Process, OpenError> {
        crate::open::refuse_untraceable(pid)?;
        Self::open_any(pid)
    }

    /// The calling process, to be looked at: it cannot stop itself.
    ///
    /// # Errors
    /// Something of it cannot be opened.
    pub fn own() -> Result<Process, OpenError> {
        Self::open_any(Pid(std::process::id() as i32))
    }

    fn open_any(pid: Pid) -> Result<Process, OpenError> {
        let pidfd = open_pidfd(pid).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => OpenError::NoSuchProcess { pid },
            _ => OpenError::System { pid, what: "pidfd_open", source },
        })?;
        let mem = open_memory(pid).map_err(|error| crate::open::explain_denial(pid, error))?;
        let mut process = Process { pid, pidfd, mem, start_time: 0, is_32bit: false };
        let described = process.describe();
        // All of the above was opened by number. The pidfd was first, so if its process lives, all of it is its own.
        if !process.is_alive() {
            return Err(crate::open::gone(pid));
        }
        described?;
        if process.is_32bit && !arch::HAS_32BIT {
            return Err(OpenError::Narrow { pid });
        }
        if !process.is_32bit && !arch::HAS_64BIT {
            return Err(OpenError::Wide { pid });
        }
        Ok(process)
    }

    fn describe(&mut self) -> Result<(), ProcError> {
        self.start_time = self.stat()?.start_time;
        self.is_32bit = self.class_is_32bit()?;
        Ok(())
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it runs 32-bit code (of the program it ran when it was opened).
    pub fn is_32bit(&self) -> bool {
        self.is_32bit
    }

    /// Bytes of its pointers and of the words on its stacks: 4 or 8.
    pub fn word_size(&self) -> usize {
        if self.is_32bit { 4 } else { 8 }
    }

    /// When it was started, in clock ticks after boot. Together with the id this names a process until the next boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// When the process with this id was started, as [`Process::start_time`]. `None` if there is none, or it has ended and
    /// was not waited for yet; or where that is not known.
    pub fn start_of(pid: Pid) -> Option<u64> {
        Self::known_start_of(pid).ok().flatten()
    }

    /// As [`Process::start_of`], where it makes a difference that nothing is known.
    ///
    /// # Errors
    /// [`ProcError::Unreadable`], as for a tool that has no descriptor left to look.
    pub fn known_start_of(pid: Pid) -> Result<Option<u64>, ProcError> {
        let path = PathBuf::from(format!("/proc/{pid}/stat"));
        let stat = match read_file(&path) {
            Ok(text) => parse_stat(&text)?,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Ok(None);
            }
            Err(source) => return Err(ProcError::Unreadable { path, source }),
        };
        Ok((!stat.state.has_ended()).then_some(stat.start_time))
    }

    /// The pidfd; `None` on kernels older than 5.3. It becomes readable when the process ends.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn mem(&self) -> &File {
        &self.mem
    }

    /// Opens its memory once more, by a thread that lives.
    pub(crate) fn open_memory(&self) -> io::Result<File> {
        open_memory(self.pid)
    }

    /// Whether at least one thread of the very process that was opened still lives.
    pub fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => !is_readable(pidfd.as_fd(), Duration::ZERO),
            None => self
                .stat()
                .is_ok_and(|stat| stat.start_time == self.start_time && self.live_thread().is_some()),
        }
    }

    /// A thread that has not ended. A leader that has exited before the others has no memory any more, like every zombie.
    pub(crate) fn live_thread(&self) -> Option<Tid> {
        let lives = |tid: &Tid| self.thread_stat(*tid).is_ok_and(|stat| !stat.state.has_ended());
        self.threads().unwrap_or_default().into_iter().find(lives)
    }

    /// Whether it has ended, or does within `patience`. One that has given up its memory runs nothing any more, however long
    /// the kernel takes to free it: that is an end, too.
    pub fn has_ended_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut backoff = Backoff::default();
        let has_ended = || !self.is_alive() || self.has_lost_memory() && self.exe().is_err();
        while !has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            backoff.pause();
        }
        true
    }

    /// Whether nobody runs any more in the memory that it had when it was opened.
    fn has_lost_memory(&self) -> bool {
        use std::os::unix::fs::FileExt;
        // Whatever lies there: of an address space that is gone, not even an error can be read.
        matches!(self.mem.read_at(&mut [0], 0), Ok(0))
    }

    /// Whether what was opened as its memory is none of it. A child of vfork has its parent's until it has started a program, and the kernel lets
    /// the parent go on a moment before that: memory that was opened then is the parent's for good, and lives. It is asked of a process that is
    /// stopped, and known by the random bytes that each program is given (`AT_RANDOM` of `getauxval(3)`).
    pub(crate) fn has_another_memory(&self) -> bool {
        use std::os::unix::fs::FileExt;
        let random = self.auxv().ok().and_then(|auxv| auxv.get(libc::AT_RANDOM));
        let (Some(random), Ok(now)) = (random, open_memory(self.pid)) else { return false };
        let bytes = |memory: &File| {
            let mut bytes = [0; 16];
            memory.read_exact_at(&mut bytes, random).ok().map(|()| bytes)
        };
        bytes(&self.mem) != bytes(&now)
    }

    /// Whether it has started another program since it was opened, and runs that. Not told of one that has ended by now.
    pub fn runs_another_program(&self) -> bool {
        // A process that ends has none for a moment before it is seen to have ended.
        self.has_lost_memory() && self.exe().is_ok() && self.is_alive()
    }

    /// The path of the program it runs, in its own mount namespace.
    ///
    /// # Errors
    /// [`ProcError`] if it ended or may not be looked at.
    pub fn exe(&self) -> Result<PathBuf, ProcError> {
        std::fs::read_link(self.memory_path("exe")).map_err(|error| self.unreadable("exe", error))
    }

    /// Its root directory as a path of ours, which differs from `/` in a container.
    pub fn root(&self) -> PathBuf {
        self.memory_path("root")
    }

    /// `path` of its mount namespace as a path of ours.
    pub fn path_in_root(&self, path: &Path) -> PathBuf {
        self.root().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Its mappings now.
    ///
    /// # Errors
    /// [`ProcError`] if it ended or the text makes no sense.
    pub fn maps(&self) -> Result<Mappings, ProcError> {
        let text = read_file(&self.memory_path("maps")).map_err(|error| self.unreadable("maps", error))?;
        if text.is_empty() {
            // A process that has given up its memory still has the file.
            return Err(ProcError::Gone(self.pid));
        }
        parse_maps(&text)
    }

    /// Its leader's status now.
    ///
    /// # Errors
    /// [`ProcError`] if it ended or the text makes no sense.
    pub fn status(&self) -> Result<Status, ProcError> {
        parse_status(&self.read_proc("status")?)
    }

    /// The status of one of its threads.
    ///
    /// # Errors
    /// [`ProcError`] if the thread ended or the text makes no sense.
    pub fn thread_status(&self, tid: Tid) -> Result<Status, ProcError> {
        parse_status(&self.read_proc(&format!("task/{tid}/status"))?)
    }

    /// The name of one of its threads, filled up with zeros.
    ///
    /// # Errors
    /// [`ProcError`] if the thread ended.
    pub fn thread_name(&self, tid: Tid) -> Result<[u8; 16], ProcError> {
        let text = self.read_proc(&format!("task/{tid}/comm"))?;
        let name = text.strip_suffix(b"\n").unwrap_or(&text);
        let mut all = [0; 16];
        // The last byte is always 0 (`TASK_COMM_LEN` of `include/linux/sched.h`).
        name.iter().take(15).zip(&mut all).for_each(|(from, to)| *to = *from);
        Ok(all)
    }

    /// The processor that one of its threads ran on last.
    ///
    /// # Errors
    /// [`ProcError`] if the thread ended or the text makes no sense.
    pub fn thread_processor(&self, tid: Tid) -> Result<u64, ProcError> {
        Ok(self.thread_stat(tid)?.processor)
    }

    pub(crate) fn stat(&self) -> Result<Stat, ProcError> {
        parse_stat(&self.read_proc("stat")?)
    }

    pub(crate) fn thread_stat(&self, tid: Tid) -> Result<Stat, ProcError> {
        parse_stat(&self.read_proc(&format!("task/{tid}/stat"))?)
    }

    /// Its threads now, oldest first (`copy_process` appends to the list that `proc_task_readdir` goes by), which their numbers need not
    /// tell: those start again from small ones. Exited ones that are not yet gone are among them; what the kernel has in it for work of its
    /// own is not.
    ///
    /// # Errors
    /// [`ProcError`] if it ended.
    pub fn threads(&self) -> Result<Vec<Tid>, ProcError> {
        let mut threads = self.tasks()?;
        threads.retain(|&tid| !self.is_worker(tid));
        Ok(threads)
    }

    /// Whether a thread is none of the program's ([`Stat::is_worker`]).
    pub(crate) fn is_worker(&self, tid: Tid) -> bool {
        self.thread_stat(tid).is_ok_and(|stat| stat.is_worker())
    }

    /// All that the kernel lists as its threads.
    pub(crate) fn tasks(&self) -> Result<Vec<Tid>, ProcError> {
        let unreadable = |error| self.unreadable("task", error);
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(self.proc_path("task")).map_err(unreadable)? {
            if let Some(tid) =
                entry.map_err(unreadable)?.file_name().to_str().and_then(|name| name.parse().ok())
            {
                threads.push(Tid(tid));
            }
        }
        Ok(threads)
    }

    /// Its auxiliary vector.
    ///
    /// # Errors
    /// [`ProcError`] if it ended.
    pub fn auxv(&self) -> Result<Auxv, ProcError> {
        let bytes = read_file(&self.memory_path("auxv")).map_err(|error| self.unreadable("auxv", error))?;
        Ok(Auxv::parse(&bytes, self.is_32bit))
    }

    /// Opens the very file that is mapped, also if its path is gone or names another file by now.
    ///
    /// # Errors
    /// [`MappedFileError::Replaced`] if only the path is left to go by and it no longer leads there.
    pub fn open_mapped_file(&self, mapping: &Mapping) -> Result<File, MappedFileError> {
        let path = mapping.path().ok_or(MappedFileError::NotAFile(mapping.start))?;
        // `map_files` needs CAP_CHECKPOINT_RESTORE; `exe` and the path need nothing special.
        let range = format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
        let mut refused = None;
        let by_link = |file: &str| open_path_only(libc::AT_FDCWD, &self.memory_path(file), 0);
        let candidates: [&dyn Fn() -> io::Result<File>; 3] =
            [&|| by_link(&range), &|| by_link("exe"), &|| self.path_only_in_root(path)];
        for candidate in candidates {
            match candidate().and_then(|file| read_regular(&file)) {
                Ok(file) if same_file(&file, mapping) => return Ok(file),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(source)
                if std::fs::metadata(self.path_in_root(path)).is_ok_and(|m| m.ino() == mapping.inode) =>
            {
                Err(MappedFileError::Unreadable { path: path.to_owned(), source })
            }
            _ => Err(MappedFileError::Replaced(path.to_owned())),
        }
    }

    /// Names the file at `path` in the target's own root, without opening it. Links in it lead where they lead the target.
    fn path_only_in_root(&self, path: &Path) -> io::Result<File> {
        let root = open_path_only(libc::AT_FDCWD, &self.root(), 0)?;
        let below = path.strip_prefix("/").unwrap_or(path);
        match open_path_only(root.as_raw_fd(), below, libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS) {
            // Kernels before 5.6, and sandboxes that do not know the call.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                open_path_only(libc::AT_FDCWD, &self.path_in_root(path), 0)
            }
            opened => opened,
        }
    }

    /// Opens one of the files that show its memory.
    pub(crate) fn open_memory_file(&self, file: &str) -> Result<File, ProcError> {
        File::open(self.memory_path(file)).map_err(|error| self.unreadable(file, error))
    }

    fn memory_path(&self, file: &str) -> PathBuf {
        memory_directory(self.pid).join(file)
    }

    pub(crate) fn proc_path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    pub(crate) fn read_proc(&self, file: &str) -> Result<Vec<u8>, ProcError> {
        read_file(&self.proc_path(file)).map_err(|error| self.unreadable(file, error))
    }

    fn unreadable(&self, file: &str, source: io::Error) -> ProcError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ProcError::Gone(self.pid),
            _ => ProcError::Unreadable { path: self.proc_path(file), source },
        }
    }

    /// The class byte of the ELF file it runs.
    fn class_is_32bit(&self) -> Result<bool, ProcError> {
        let mut ident = [0; 5];
        let mut exe = File::open(self.memory_path("exe")).map_err(|error| self.unreadable("exe", error))?;
        exe.read_exact(&mut ident).map_err(|error| self.unreadable("exe", error))?;
        Ok(ident[4] == 1)
    }
}

/// Names a file: what is opened with `O_PATH` is not touched, whatever it is. `resolve` are flags of `openat2`; 0 asks for nothing.
fn open_path_only(directory: RawFd, path: &Path, resolve: u64) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: `path` ends with a zero, zeros are a valid `open_how`, and the size is its size.
    let opened = unsafe {
        if resolve == 0 {
            libc::c_long::from(libc::openat(directory, path.as_ptr(), flags))
        } else {
            let mut how: libc::open_how = std::mem::zeroed();
            (how.flags, how.resolve) = (flags as u64, resolve);
            libc::syscall(libc::SYS_openat2, directory, path.as_ptr(), &how, size_of_val(&how))
        }
    };
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(Errno::check(opened)? as i32) })
}

/// Opens a named file for reading if it is a regular one. The names in a target's mappings are the target's word: a pipe would
/// make us wait, a device might act on being opened, and a terminal become ours.
fn read_regular(named: &File) -> io::Result<File> {
    if !named.metadata()?.is_file() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    // The very file that was looked at: the link leads nowhere else.
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}

/// Reads a `/proc` file whole; their length is not known before.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Overlay and btrfs show other device numbers in `maps` than in `stat`, so the device counts only where the inode could
/// belong to another file: the inode, size beyond the mapping's start and being a regular file must all hold.
fn same_file(file: &File, mapping: &Mapping) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    meta.is_file() && meta.ino() == mapping.inode && meta.len() > mapping.offset
}

/// A pidfd of one thread, which the kernel has from 6.9 on; EINVAL before.
pub(crate) fn open_thread_pidfd(tid: Tid) -> Result<OwnedFd, Errno> {
    /// `PIDFD_THREAD` of `include/uapi/linux/pidfd.h`.
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    // SAFETY: pidfd_open takes two integers.
    let fd = Errno::check(unsafe { libc::syscall(libc::SYS_pidfd_open, tid.0, PIDFD_THREAD) })?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `None` on kernels that have no pidfds.
pub(crate) fn open_pidfd(pid: Pid) -> io::Result<Option<OwnedFd>> {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.0, 0) };
    match Errno::check(fd) {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) })),
        Err(Errno(libc::ENOSYS)) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
