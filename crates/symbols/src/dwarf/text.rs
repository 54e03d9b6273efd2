//! The text of source files, where it is there and is what was compiled.
//!
//! Some compilers note a checksum of each file; then only that text is shown. Without one, a file that was changed after the program
//! was built is not shown: its lines would stand beside the wrong addresses.

use std::{path::Path, time::SystemTime};

use md5::{Digest, Md5};
use thiserror::Error;

use crate::{ModuleError, source::Source};

/// Larger files are no source, in bytes.
const LARGEST: usize = 16 << 20;

/// Why the text of a source file is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoText {
    /// It is not there.
    #[error("the file is not there")]
    Missing,
    /// It may not be what was compiled.
    #[error("the file is newer than the program")]
    Newer,
    /// It is not what was compiled.
    #[error("the file is not the one that was compiled")]
    Other,
    /// It is no text that can be read.
    #[error("the file cannot be read")]
    Unreadable,
}

/// The lines of the file at `path`. `md5`: what the compiler noted of its contents. `built`: when the program was, if that is known.
///
/// # Errors
/// It is not there, cannot be read, or is another one.
pub fn source_text(
    path: &Path,
    md5: Option<[u8; 16]>,
    built: Option<SystemTime>,
) -> Result<Vec<String>, NoText> {
    let about = std::fs::metadata(path).map_err(|_| NoText::Missing)?;
    if about.len() > LARGEST as u64 {
        return Err(NoText::Unreadable);
    }
    let source = Source::open(path).map_err(|error| match error {
        ModuleError::NotFound(_) => NoText::Missing,
        _ => NoText::Unreadable,
    })?;
    match md5 {
        Some(noted) if Md5::digest(&*source)[..] != noted => return Err(NoText::Other),
        None if about.modified().ok().zip(built).is_some_and(|(changed, built)| changed > built) => {
            return Err(NoText::Newer);
        }
        _ => {}
    }
    Ok(String::from_utf8_lossy(&source).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_was_compiled_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.c");
        std::fs::write(&path, "int a;\nint b;\n").unwrap();
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        let second = Duration::from_secs(1);
        let noted: [u8; 16] = Md5::digest(b"int a;\nint b;\n").into();
        let lines = Ok(vec!["int a;".to_owned(), "int b;".to_owned()]);
        for (md5, built, expected) in [
            (None, Some(changed + second), &lines),
            (None, Some(changed), &lines),
            (None, None, &lines),
            (None, Some(changed - second), &Err(NoText::Newer)),
            (Some(noted), Some(changed - second), &lines),
            (Some([0; 16]), Some(changed + second), &Err(NoText::Other)),
        ] {
            assert_eq!(&source_text(&path, md5, built), expected, "{md5:?} {built:?}");
        }
        assert_eq!(source_text(&folder.path().join("b.c"), None, None), Err(NoText::Missing));
        assert_eq!(source_text(folder.path(), None, None), Err(NoText::Unreadable));
        let large = std::fs::File::create(folder.path().join("large.c")).unwrap();
        large.set_len(LARGEST as u64 + 1).unwrap();
        assert_eq!(source_text(&folder.path().join("large.c"), None, None), Err(NoText::Unreadable));
    }
}
