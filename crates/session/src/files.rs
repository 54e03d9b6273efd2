//! The files that processes run, each read and analysed once.
//!
//! Programs are started by the hundred and map the same few files. So who looks at several processes, or at one after the
//! other, keeps one [`Files`] for all of them. What a file says by itself, which is nearly all that takes time, is in its
//! [`File`]. What depends on the process is not: where the file is mapped, which part of it, and what else is there.
//!
//! A file is known by what the kernel says of the one that is mapped, never by its path, and its contents are read from
//! that one: a file that was replaced is another, and so may be a file at the same path in another mount namespace. Where
//! symbols that were stripped off are looked for belongs to it, too.
//!
//! A file that was changed just now may be changed once more without a trace, for file systems count the time in steps.
//! Until it is older than any step, it is read anew for each process.
//!
//! Files that nobody uses stay, for the next process. If these are too many (`MOST_UNUSED`) or too large
//! (`LARGEST_UNUSED`), those go that were asked for the longest time ago: a long build runs thousands of programs that it
//! has made for one test.

mod file;
mod goroutines;
mod sharing;
mod signals;

pub use file::File;
pub(crate) use file::{code_of, function_around};

use crate::session::Probe;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use trapless_process::{Mapping, Process};
use trapless_symbols::{DebugSearch, Module, ModuleError};

/// So many files are kept that no process needs now.
const MOST_UNUSED: usize = 256;

/// So many probes are kept, in lists that no process has now, besides the last list.
const MOST_UNUSED_PROBES: usize = 1 << 16;

/// So large are these at the most together, in bytes of the files.
const LARGEST_UNUSED: u64 = 256 << 20;

/// The longest step in which a file system counts time: FAT's.
const LONGEST_STEP: Duration = Duration::from_secs(2);

/// Where stripped symbols are, below a root.
const DEBUG_FOLDER: &str = "usr/lib/debug";

/// The files of some processes. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Files {
    kept: Arc<Mutex<Kept>>,
    /// Where separate debug files are looked for, too, as we see it.
    debug: Arc<[PathBuf]>,
}

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<Identity, Entry>,
    roots: Vec<(RootIdentity, Weak<Root>)>,
    /// What was probed last in processes, the latest at the end.
    probes: Vec<Arc<[Probe]>>,
    /// How often any file was asked for.
    asked: u64,
}

#[derive(Debug)]
struct Entry {
    file: Arc<File>,
    /// When it was asked for last, by [`Kept::asked`].
    asked: u64,
}

/// A device, and an inode there.
type Inode = (u64, u64);

/// Which file it is, and with which contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    inode: Inode,
    size: u64,
    /// When it was written and when it was changed in any way: seconds and nanoseconds.
    written: (i64, i64),
    changed: (i64, i64),
    /// The folders where symbols of its own may lie: the one that it is in, and that of debug files.
    folders: [Option<Inode>; 2],
}

/// A root directory. It is held, for the process whose it was may end before the symbols of a file below it are looked for.
#[derive(Debug)]
struct Root(fs::File);

/// A mount namespace, where the kernel has them, and the root directory in it.
type RootIdentity = (Option<Inode>, Inode);

impl Files {
    /// None yet. Separate debug files are looked for in these folders first (see [`DebugSearch::roots`]).
    pub fn searching(debug: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { debug: debug.into_iter().collect(), ..Self::default() }
    }

    /// The file at `path`, which no process needs to map.
    pub(crate) fn open_path(&self, path: &Path) -> Result<File, ModuleError> {
        let mut search = DebugSearch::default();
        search.roots.splice(0..0, self.debug.iter().cloned());
        Ok(File::new(Module::open_with(path, search)?, None))
    }

    /// The file that is mapped, even when its path leads elsewhere by now. `path`: the mapping's, as the process sees it.
    pub(crate) fn open(
        &self,
        process: &Process,
        mapping: &Mapping,
        path: &str,
    ) -> Result<Arc<File>, ModuleError> {
        let unreadable = |error: io::Error| ModuleError::Io { path: path.into(), source: error };
        let mapped =
            process.open_mapped_file(mapping).map_err(|error| unreadable(io::Error::other(error)))?;
        let is_there = fs::metadata(process.path_in_root(Path::new(path)));
        let is_there = is_there.is_ok_and(|there| there.ino() == mapping.inode);
        let folders = [
            Path::new(path).parent().filter(|_| is_there).map(|folder| process.path_in_root(folder)),
            Some(process.path_in_root(Path::new(DEBUG_FOLDER))),
        ];
        let folders = folders.map(|folder| fs::metadata(folder?).ok().map(|folder| inode(&folder)));
        let identity = |file: &fs::File| file.metadata().map(|about| Identity::of(&about, folders));
        let before = identity(&mapped).map_err(unreadable)?;
        if let Some(known) = self.known(&before) {
            return Ok(known);
        }
        let since = SystemTime::now();
        let root = self.root(process).map_err(unreadable)?;
        let roots = self.debug.iter().cloned().chain([root.path(DEBUG_FOLDER)]).collect();
        let search = DebugSearch { roots, ..DebugSearch::default() };
        // Separate debug files are found from its path, where that still leads to it.
        let found_from = if is_there { root.path(path) } else { format!("{path} (deleted)").into() };
        let file = Arc::new(File::new(Module::of_file(&mapped, found_from, search)?, Some(root)));
        if before.is_older_than(since) && identity(&mapped).is_ok_and(|now| now == before) {
            self.kept().keep(before, Arc::clone(&file));
        }
        Ok(file)
    }

    /// The list of a process's probes, which it shares with those that run the same files.
    pub(crate) fn shared(&self, probes: Vec<Probe>) -> Arc<[Probe]> {
        let known = &mut self.kept().probes;
        let list = match known.iter().position(|list| **list == *probes) {
            Some(at) => known.remove(at),
            None => probes.into(),
        };
        let is_used = |list: &Arc<[Probe]>| Arc::strong_count(list) > 1;
        let mut unused: usize = known.iter().filter(|list| !is_used(list)).map(|list| list.len()).sum();
        known.retain(|list| {
            let stays = is_used(list) || unused <= MOST_UNUSED_PROBES;
            unused = unused.saturating_sub(if stays { 0 } else { list.len() });
            stays
        });
        known.push(Arc::clone(&list));
        list
    }

    fn known(&self, identity: &Identity) -> Option<Arc<File>> {
        let mut kept = self.kept();
        kept.asked += 1;
        let asked = kept.asked;
        let entry = kept.files.get_mut(identity)?;
        entry.asked = asked;
        Some(Arc::clone(&entry.file))
    }

    fn root(&self, process: &Process) -> io::Result<Arc<Root>> {
        let namespace = fs::metadata(process.root().with_file_name("ns/mnt")).ok();
        let identity = (namespace.as_ref().map(inode), inode(&fs::metadata(process.root())?));
        let mut kept = self.kept();
        kept.roots.retain(|(_, root)| root.strong_count() > 0);
        let known = kept.roots.iter().find(|(known, _)| *known == identity);
        if let Some(root) = known.and_then(|(_, root)| root.upgrade()) {
            return Ok(root);
        }
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let directory = fs::OpenOptions::new().read(true).custom_flags(flags).open(process.root())?;
        let root = Arc::new(Root(directory));
        kept.roots.push((identity, Arc::downgrade(&root)));
        Ok(root)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Who panicked has left nothing half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn keep(&mut self, identity: Identity, file: Arc<File>) {
        self.files.insert(identity, Entry { file, asked: self.asked });
        self.drop_unused(MOST_UNUSED, LARGEST_UNUSED);
    }

    /// Forgets files that nobody uses until there are no more than `most`, of no more than `largest` bytes together.
    fn drop_unused(&mut self, most: usize, largest: u64) {
        let unused = self.files.iter().filter(|(_, entry)| Arc::strong_count(&entry.file) == 1);
        let mut unused: Vec<_> = unused.map(|(identity, entry)| (entry.asked, *identity)).collect();
        unused.sort_unstable_by_key(|(asked, _)| *asked);
        let mut size: u64 = unused.iter().map(|(_, identity)| identity.size).sum();
        let mut count = unused.len();
        for (_, identity) in unused {
            if count <= most && size <= largest {
                break;
            }
            self.files.remove(&identity);
            size -= identity.size;
            count -= 1;
        }
    }
}

impl Identity {
    fn of(about: &Metadata, folders: [Option<Inode>; 2]) -> Self {
        Self {
            inode: inode(about),
            size: about.size(),
            written: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
            folders,
        }
    }

    /// Whether a change at `time` or later shows.
    fn is_older_than(&self, time: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let seconds = u64::try_from(seconds).ok().map(Duration::from_secs);
        let since = seconds.map(|seconds| seconds + Duration::from_nanos(nanoseconds as u64) + LONGEST_STEP);
        let now = time.duration_since(SystemTime::UNIX_EPOCH).ok();
        since.zip(now).is_some_and(|(since, now)| since < now)
    }
}

impl Root {
    /// A path below it, for us.
    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        let below = below.as_ref();
        let root = Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string());
        root.join(below.strip_prefix("/").unwrap_or(below))
    }
}

fn inode(about: &Metadata) -> Inode {
    (about.dev(), about.ino())
}

#[cfg(test)]
mod tests;
