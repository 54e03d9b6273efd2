//! Files that a script asks for: imports and headers. The crate reads none by itself.

use std::io;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file that can be read.
    File,
    /// A directory.
    Directory,
}

/// Where files come from.
pub trait Files {
    /// What `path` names, if anything.
    fn kind(&self, path: &str) -> Option<FileKind>;

    /// The bytes of a file.
    ///
    /// # Errors
    /// It cannot be read, or is larger than whoever implements this wants to read.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// It cannot be read.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Whether anyone may write the file, or the directory in which it is. Scripts are not imported from
    /// there.
    fn anyone_may_write(&self, path: &str) -> bool;
}

/// No files at all: scripts can neither import nor include.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn kind(&self, _: &str) -> Option<FileKind> {
        None
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        Err(io::Error::new(io::ErrorKind::NotFound, path.to_string()))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.read(path).map(|_| Vec::new())
    }

    fn anyone_may_write(&self, _: &str) -> bool {
        false
    }
}

/// `name` as seen from `directory`.
pub(crate) fn join(directory: &str, name: &str) -> String {
    if name.starts_with('/') || directory.is_empty() {
        return name.to_string();
    }
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// The directory of `path`; empty if it is the current one.
pub(crate) fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| if directory.is_empty() { "/" } else { directory })
}

#[cfg(test)]
pub(crate) mod memory {
    //! Files that tests write down.

    use std::collections::BTreeMap;

    use super::{FileKind, Files, directory};

    /// Paths and contents. Directories are there if a file is in them; those named `open…` may be written by
    /// anyone.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Memory(pub(crate) BTreeMap<String, String>);

    impl Memory {
        pub(crate) fn new<const N: usize>(files: [(&str, &str); N]) -> Memory {
            Memory(files.into_iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
        }
    }

    impl Files for Memory {
        fn kind(&self, path: &str) -> Option<FileKind> {
            let inside = format!("{}/", path.trim_end_matches('/'));
            if self.0.contains_key(path) {
                Some(FileKind::File)
            } else {
                self.0.keys().any(|key| key.starts_with(&inside)).then_some(FileKind::Directory)
            }
        }

        fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
            let found = self.0.get(path).ok_or_else(|| std::io::Error::other("cannot be read"))?;
            Ok(found.as_bytes().to_vec())
        }

        fn list(&self, path: &str) -> std::io::Result<Vec<String>> {
            let names = self.0.keys().filter(|key| directory(key) == path);
            Ok(names.filter_map(|key| key.rsplit('/').next().map(str::to_string)).collect())
        }

        fn anyone_may_write(&self, path: &str) -> bool {
            directory(path).starts_with("open") || path.starts_with("open")
        }
    }
}
