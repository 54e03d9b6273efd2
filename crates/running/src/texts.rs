//! Files that a script imports and includes.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use trapless_script::syntax::files::{FileKind, Files};

/// No script or header is longer.
const MOST: u64 = 64 << 20;

/// Those of the machine.
pub struct Disk;

impl Files for Disk {
    fn kind(&self, path: &str) -> Option<FileKind> {
        let about = fs::metadata(path).ok()?;
        Some(if about.is_dir() { FileKind::Directory } else { FileKind::File })
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        read(fs::File::open(path)?)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn anyone_may_write(&self, path: &str) -> bool {
        const OTHERS_WRITE: u32 = 0o002;
        let parent = Path::new(path).parent().map(|parent| match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        });
        let is_open = |path: &Path| fs::metadata(path).is_ok_and(|about| about.mode() & OTHERS_WRITE != 0);
        is_open(Path::new(path)) || parent.is_some_and(is_open)
    }
}

/// All of a text, unless it is too long to be one.
pub fn read(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 64 MiB"));
    }
    Ok(bytes)
}
