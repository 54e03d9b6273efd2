//! Paths of source files: as the line tables hold them, and as people write them.

use gimli::{AttributeValue, Dwarf, EndianSlice, FileEntry, LineProgramHeader, Unit};

use super::sections::Slice;

/// A file's whole path: its folder's, and that of the compiler's working directory where the folder's is relative.
pub(super) fn whole(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    header: &LineProgramHeader<Slice<'_>>,
    file: &FileEntry<Slice<'_>>,
) -> String {
    let text = |value: AttributeValue<Slice<'_>>| {
        let text = dwarf.attr_string(unit, value).ok()?;
        let text = if text.len() > libc::PATH_MAX as usize { EndianSlice::default() } else { text };
        Some(text.to_string_lossy().into_owned())
    };
    let mut path = text(file.path_name()).unwrap_or_default();
    if !is_absolute(&path)
        && let Some(folder) = file.directory(header).and_then(text)
    {
        path = format!("{folder}/{path}");
    }
    if !is_absolute(&path)
        && let Some(folder) = unit.comp_dir.as_ref().filter(|folder| folder.len() <= libc::PATH_MAX as usize)
    {
        path = format!("{}/{path}", folder.to_string_lossy());
    }
    normal(&path)
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') || is_drive(path)
}

/// Whether a path begins like `C:\` or `C:/`, as compilers on Windows write it.
fn is_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic())
}

/// The path without `.`, `..` and doubled slashes. What `..` leaves is a guess where folders are links, as in every debugger.
pub(super) fn normal(path: &str) -> String {
    let is_drive = is_drive(path);
    let slash = |c: char| c == '/' || is_drive && c == '\\';
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(slash) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if path.starts_with('/') && parts.is_empty() => {}
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

/// What a person wrote, ready to be compared.
pub(super) struct Written {
    path: String,
    name: String,
}

impl Written {
    pub(super) fn new(path: &str) -> Written {
        let path = normal(path);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Written { path, name }
    }

    /// Whether a file table's name may be meant: a look at its end, which is cheap.
    pub(super) fn may_be(&self, name: &[u8]) -> bool {
        let last = name.rsplit(|&byte| byte == b'/' || byte == b'\\').next().unwrap_or_default();
        last == self.name.as_bytes()
    }

    /// Whether this whole path, which is normal, ends in what was written, at a slash.
    pub(super) fn means(&self, whole: &str) -> bool {
        match whole.strip_suffix(&self.path) {
            Some("") => true,
            Some(before) => !self.path.starts_with('/') && before.ends_with('/'),
            None => false,
        }
    }

    /// It, made normal.
    pub(super) fn into_path(self) -> String {
        self.path
    }

    /// Whether the whole path was written.
    pub(super) fn is(&self, whole: &str) -> bool {
        self.path == whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_normal() {
        for (path, expected) in [
            ("/a/b/../c.c", "/a/c.c"),
            ("/a/./b//c.c", "/a/b/c.c"),
            ("/../c.c", "/c.c"),
            ("../c.c", "../c.c"),
            ("../../c.c", "../../c.c"),
            ("a/../../c.c", "../c.c"),
            ("C:\\src\\..\\c.c", "C:/c.c"),
            ("C:/src/c.c", "C:/src/c.c"),
            ("/a/b\\c.c", "/a/b\\c.c"),
            ("./c.c", "c.c"),
            ("", ""),
            ("/", "/"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn a_file_is_known_by_the_end_of_its_path() {
        for (written, whole, expected) in [
            ("c.c", "/a/b/c.c", true),
            ("b/c.c", "/a/b/c.c", true),
            ("./b/c.c", "/a/b/c.c", true),
            ("/a/b/c.c", "/a/b/c.c", true),
            ("/b/c.c", "/a/b/c.c", false),
            ("c.c", "/a/b/cc.c", false),
            ("b/c.c", "/a/bb/c.c", false),
            ("b/c.c", "/a/lib/c.c", false),
            ("/a/x/../b/c.c", "/a/b/c.c", true),
            ("src/c.c", "C:/src/c.c", true),
            ("C:\\src\\c.c", "C:/src/c.c", true),
            ("", "/a/b/c.c", false),
        ] {
            assert_eq!(Written::new(written).means(whole), expected, "{written} {whole}");
        }
    }
}
