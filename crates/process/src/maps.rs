//! `/proc/PID/maps`: what lies where in the target.

use crate::{ProcError, RemoteAddr};
use std::ffi::{OsStr, OsString};
use std::ops::{Deref, Range};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Access rights of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Perms {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// Shared with other processes, not copied on write.
    pub shared: bool,
}

/// A device number as `/proc` and `stat` show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: RemoteAddr,
    /// One past the last byte.
    pub end: RemoteAddr,
    /// Access rights.
    pub perms: Perms,
    /// Where in the file the mapping starts, in bytes.
    pub offset: u64,
    /// The file's device.
    pub device: Device,
    /// The file's inode, 0 for anonymous memory.
    pub inode: u64,
    /// The path, a name in brackets such as `[heap]`, or empty.
    pub name: OsString,
    /// Whether the path's file had been unlinked or replaced when the kernel wrote the line.
    pub deleted: bool,
}

impl Mapping {
    /// The mapping's length in bytes.
    pub fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Never true: the kernel keeps no empty mappings and the parser refuses them.
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether the byte at `address` belongs to it.
    pub fn contains(&self, address: RemoteAddr) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The file's path in the target's mount namespace; `None` for anonymous and special mappings.
    pub fn path(&self) -> Option<&Path> {
        (self.inode != 0 && self.name.as_bytes().starts_with(b"/")).then(|| Path::new(&self.name))
    }

    /// Whether it is the special mapping with this name, such as `[vdso]`.
    pub fn is_special(&self, name: &str) -> bool {
        self.name == OsStr::new(name)
    }

    /// The file offset that `address` shows; `None` outside the mapping.
    pub fn file_offset(&self, address: RemoteAddr) -> Option<u64> {
        self.contains(address).then(|| self.offset + (address.0 - self.start.0))
    }
}

/// All mappings of a process at one moment, ascending and without overlap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mappings(Vec<Mapping>);

impl Mappings {
    /// The mapping that holds `address`.
    pub fn find(&self, address: RemoteAddr) -> Option<&Mapping> {
        let after = self.0.partition_point(|mapping| mapping.start <= address);
        self.0[..after].last().filter(|mapping| mapping.contains(address))
    }

    /// What is mapped of a file for reading and not for writing, from the mapping that holds `address` on upwards and downwards as long as one
    /// lies behind the other in memory and in the file. Empty if that mapping is none of those.
    pub fn constant_around(&self, address: RemoteAddr) -> Range<u64> {
        let after = self.0.partition_point(|mapping| mapping.start <= address);
        let (before, behind) = self.0.split_at(after);
        let Some((here, before)) = before.split_last() else { return 0..0 };
        let is_constant = |mapping: &Mapping| {
            let Perms { read, write, shared, .. } = mapping.perms;
            read && !write && !shared && mapping.inode != 0
        };
        if !is_constant(here) || !here.contains(address) {
            return 0..0;
        }
        let follows = |first: &Mapping, next: &Mapping| {
            let [one, other] = [first, next].map(|mapping| (mapping.device, mapping.inode));
            one == other && first.end == next.start && first.offset < next.offset
        };
        let (mut first, mut last) = (here, here);
        for mapping in before.iter().rev() {
            if !is_constant(mapping) || !follows(mapping, first) {
                break;
            }
            first = mapping;
        }
        for mapping in behind {
            if !is_constant(mapping) || !follows(last, mapping) {
                break;
            }
            last = mapping;
        }
        first.start.0..last.end.0
    }

    /// The same with mappings cut at `holes`, which are ascending, and each hole a mapping of its own that nobody may touch.
    pub(crate) fn cut_at(&self, holes: &[Range<u64>]) -> Mappings {
        let mut pieces = Vec::with_capacity(self.0.len() + 2 * holes.len());
        for mapping in &self.0 {
            let first = holes.partition_point(|hole| hole.end <= mapping.start.0);
            let mut start = mapping.start.0;
            let mut add = |end: u64, perms: Perms| {
                if start < end {
                    let offset = mapping.offset + (start - mapping.start.0);
                    let (start, end) = (RemoteAddr(start), RemoteAddr(end));
                    pieces.push(Mapping { start, end, perms, offset, ..mapping.clone() });
                }
                start = start.max(end);
            };
            for hole in holes[first..].iter().take_while(|hole| hole.start < mapping.end.0) {
                add(hole.start, mapping.perms);
                add(hole.end.min(mapping.end.0), Perms { shared: mapping.perms.shared, ..Perms::default() });
            }
            add(mapping.end.0, mapping.perms);
        }
        Mappings(pieces)
    }

    /// The special mapping with this name, such as `[vdso]` or `[heap]`.
    pub fn special(&self, name: &str) -> Option<&Mapping> {
        self.0.iter().find(|mapping| mapping.is_special(name))
    }
}

impl Deref for Mappings {
    type Target = [Mapping];
    fn deref(&self) -> &[Mapping] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Mappings {
    type Item = &'a Mapping;
    type IntoIter = std::slice::Iter<'a, Mapping>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// Reads the text of a `/proc/PID/maps`.
///
/// # Errors
/// [`ProcError::Malformed`] for a line the kernel would not write, or lines out of order.
pub fn parse_maps(text: &[u8]) -> Result<Mappings, ProcError> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let mapping = parse_line(line)
            .ok_or(ProcError::Malformed { what: "/proc/PID/maps", detail: "not a mapping" })?;
        // The kernel walks the list in pieces; a mapping that grew between two of them can be seen twice.
        match mappings.last_mut() {
            Some(last) if mapping.start < last.start => {
                return Err(ProcError::Malformed { what: "/proc/PID/maps", detail: "mappings out of order" });
            }
            Some(last) if mapping.start < last.end => {
                if mapping.start == last.start {
                    *last = mapping;
                } else {
                    last.end = mapping.start;
                    mappings.push(mapping);
                }
            }
            _ => mappings.push(mapping),
        }
    }
    Ok(Mappings(mappings))
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let len = rest[start..].iter().position(|&byte| byte == b' ').unwrap_or(rest.len() - start);
        let (field, tail) = rest[start..].split_at(len);
        rest = tail;
        std::str::from_utf8(field).ok()
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let (start, end) = (RemoteAddr(hex(start)?), RemoteAddr(hex(end)?));
    let perms = match field()?.as_bytes() {
        &[r, w, x, s] => Perms { read: r == b'r', write: w == b'w', exec: x == b'x', shared: s == b's' },
        _ => return None,
    };
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let device = Device { major: hex(major)?.try_into().ok()?, minor: hex(minor)?.try_into().ok()? };
    let inode = field()?.parse().ok()?;
    if start >= end {
        return None;
    }
    // A path may start with a blank only if it is relative, which no mapping's is.
    let name = &rest[rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len())..];
    let (name, deleted) = match name.strip_suffix(b" (deleted)") {
        Some(name) => (name, true),
        None => (name, false),
    };
    Some(Mapping { start, end, perms, offset, device, inode, name: unescape(name), deleted })
}

/// The kernel writes a newline in a path as `\012` and escapes nothing else, not even the backslash
/// (`show_map_vma` calls `seq_path` with `"\n"`), so nothing else may be decoded.
fn unescape(name: &[u8]) -> OsString {
    const NEWLINE: &[u8] = b"\\012";
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(&first) = rest.first() {
        if let Some(tail) = rest.strip_prefix(NEWLINE) {
            out.push(b'\n');
            rest = tail;
        } else {
            out.push(first);
            rest = &rest[1..];
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &[u8]) -> Mapping {
        parse_maps(line).unwrap()[0].clone()
    }

    #[test]
    fn the_parts_of_a_line() {
        let m = one(
            b"7f0000001000-7f0000003000 r-xp 00002000 fd:1f 1234                       /usr/lib/libc.so.6\n",
        );
        assert_eq!((m.start, m.end), (RemoteAddr(0x7f00_0000_1000), RemoteAddr(0x7f00_0000_3000)));
        assert_eq!(m.perms, Perms { read: true, write: false, exec: true, shared: false });
        assert_eq!((m.offset, m.inode, m.deleted), (0x2000, 1234, false));
        assert_eq!(m.device, Device { major: 0xfd, minor: 0x1f });
        assert_eq!(m.path(), Some(Path::new("/usr/lib/libc.so.6")));
        assert_eq!(m.file_offset(RemoteAddr(0x7f00_0000_1010)), Some(0x2010));
        assert_eq!(m.file_offset(RemoteAddr(0x7f00_0000_3000)), None);
    }

    #[test]
    fn holes_are_mappings_of_their_own() {
        let maps =
            parse_maps(b"1000-5000 rw-p 00003000 00:00 7 /a\n5000-9000 rw-p 00000000 00:00 0\n").unwrap();
        let cut = maps.cut_at(&[0x0..0x800, 0x1000..0x2000, 0x3000..0x4000, 0x8000..0xb000]);
        let parts: Vec<_> =
            cut.iter().map(|m| (m.start.0, m.end.0, m.perms.write, m.offset, m.inode)).collect();
        let expected = [
            (0x1000, 0x2000, false, 0x3000, 7),
            (0x2000, 0x3000, true, 0x4000, 7),
            (0x3000, 0x4000, false, 0x5000, 7),
            (0x4000, 0x5000, true, 0x6000, 7),
            (0x5000, 0x8000, true, 0, 0),
            (0x8000, 0x9000, false, 0x3000, 0),
        ];
        assert_eq!(parts, expected);
        assert_eq!(maps.cut_at(std::slice::from_ref(&(0x2000..0x6000))).len(), 4);
        assert_eq!(maps.cut_at(&[]), maps);
    }

    #[test]
    fn names_as_they_come() {
        let table: &[(&[u8], &[u8], bool)] = &[
            (b"", b"", false),
            (b"[heap]", b"[heap]", false),
            (b"[anon: a b]", b"[anon: a b]", false),
            (b"/a b/c d", b"/a b/c d", false),
            (b"/gone (deleted)", b"/gone", true),
            (b"/memfd:x (deleted)", b"/memfd:x", true),
            (b"/line\\012feed", b"/line\nfeed", false),
            (b"/back\\slash\\040", b"/back\\slash\\040", false),
            (b"/latin\xe9", b"/latin\xe9", false),
        ];
        for &(text, name, deleted) in table {
            let line = [b"1000-2000 rw-s 0 0:0 7 ", text].concat();
            let mapping = one(&line);
            assert_eq!((mapping.name.as_bytes(), mapping.deleted), (name, deleted));
        }
    }

    #[test]
    fn lines_the_kernel_would_not_write_are_refused() {
        for line in [
            &b"x"[..],
            b"1000 rwxp 0 0:0 0",
            b"2000-1000 rwxp 0 0:0 0",
            b"1000-1000 rwxp 0 0:0 0",
            b"1000-2000 rwx 0 0:0 0",
            b"1000-2000 rwxp 0 0:0",
            b"1000-20000000000000000 rwxp 0 0:0 0",
            b"1000-2000 rwxp 0 123456789a:0 0",
            b"5000-6000 rwxp 0 0:0 0\n1000-2000 rwxp 0 0:0 0",
        ] {
            assert!(parse_maps(line).is_err(), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn what_is_constant_of_a_file_ends_where_something_else_begins() {
        let maps = parse_maps(
            b"1000-2000 r--p 0 8:1 7 /program\n2000-3000 r--p 0 8:1 7 /program\n3000-5000 r-xp 1000 8:1 7 /program\n\
            5000-6000 r--p 3000 8:1 7 /program\n6000-7000 r--p 3000 8:1 7 /program\n7000-8000 rw-p 4000 8:1 7 /program\n\
            8000-9000 r--p 5000 8:1 7 /program\na000-b000 r--p 6000 8:1 7 /program\nb000-c000 r--p 7000 8:1 8 /program\n\
            c000-d000 r--s 8000 8:1 8 /program\nd000-e000 --xp 9000 8:1 8 /program\ne000-f000 r--p 0 0:0 0\n",
        )
        .unwrap();
        for (address, expected) in [
            // The program was mapped once more at 1000, by itself, and will not be for long. Of what was protected later, the offset is lower.
            (0x3500, 0x2000..0x6000),
            (0x2000, 0x2000..0x6000),
            (0x6000, 0x6000..0x7000),
            (0x7000, 0..0),
            (0x8fff, 0x8000..0x9000),
            (0x9000, 0..0),
            (0xa000, 0xa000..0xb000),
            (0xb000, 0xb000..0xc000),
            (0xc000, 0..0),
            (0xd000, 0..0),
            (0xe000, 0..0),
            (0x800, 0..0),
        ] {
            assert_eq!(maps.constant_around(RemoteAddr(address)), expected, "{address:x}");
        }
    }

    #[test]
    fn a_mapping_that_grew_while_the_kernel_wrote_is_one_mapping() {
        let maps =
            parse_maps(b"1000-2000 rw-p 0 0:0 0\n1000-3000 rw-p 0 0:0 0\n2800-5000 r--p 0 0:0 0\n").unwrap();
        let ranges: Vec<_> = maps.iter().map(|m| (m.start.0, m.end.0)).collect();
        assert_eq!(ranges, [(0x1000, 0x2800), (0x2800, 0x5000)]);
    }

    #[test]
    fn lookup_by_address() {
        let maps = parse_maps(b"1000-2000 rw-p 0 0:0 0 [heap]\n3000-4000 r--p 0 0:0 0\n").unwrap();
        for (address, found) in
            [(0xfff, None), (0x1000, Some(0x1000)), (0x2000, None), (0x3fff, Some(0x3000)), (0x4000, None)]
        {
            assert_eq!(maps.find(RemoteAddr(address)).map(|m| m.start.0), found);
        }
        assert_eq!(maps.special("[heap]").map(|m| m.start.0), Some(0x1000));
    }
}
