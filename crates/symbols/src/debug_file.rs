//! Where the symbols are that were stripped off.
//!
//! Distributions keep them in a file of their own, found by build id (`.build-id/ab/cdef….debug` below a debug root)
//! or by the name and checksum in `.gnu_debuglink`; Fedora also leaves a compressed symbol table in
//! `.gnu_debugdata`. What several debug files have in common may be in one more (`.gnu_debugaltlink`, as dwz makes it), and the
//! compiler may have left most of it beside the object files (`.dwo`, `.dwp`). A file that does not belong is worse than none: it
//! names the wrong addresses. So the build id or the checksum must match.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use crate::{
    image::{Completeness, Image},
    notes::{build_id, build_id_path},
    source::Source,
};

/// Where to look for separate debug files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugSearch {
    /// Folders laid out like `/usr/lib/debug`, or with the files themselves. A relative one is beside the module. None: separate debug
    /// files are not looked for.
    pub roots: Vec<PathBuf>,
    /// Folders in which debuginfod's client keeps what it has fetched: `~/.cache/debuginfod_client`. Nothing is fetched.
    pub fetched: Vec<PathBuf>,
    /// Files larger than this, in bytes, are left alone.
    pub largest: u64,
}

impl Default for DebugSearch {
    /// `/usr/lib/debug`, files up to 2 GiB.
    fn default() -> DebugSearch {
        DebugSearch { roots: vec!["/usr/lib/debug".into()], fetched: Vec::new(), largest: 2 << 30 }
    }
}

impl DebugSearch {
    /// Looks nowhere.
    pub fn nowhere() -> DebugSearch {
        DebugSearch { roots: Vec::new(), fetched: Vec::new(), largest: 0 }
    }

    fn is_nowhere(&self) -> bool {
        self.roots.is_empty() && self.fetched.is_empty()
    }

    /// Where the debug file with a build id may be.
    fn by_build_id(&self, id: &[u8]) -> Vec<PathBuf> {
        let Some(relative) = build_id_path(id) else { return Vec::new() };
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let in_roots = self.roots.iter().map(|root| root.join(&relative));
        let fetched = self.fetched.iter().map(|folder| folder.join(&digits).join("debuginfo"));
        in_roots.chain(fetched).collect()
    }
}

/// A file with the symbols or the DWARF of another.
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub source: Source,
    pub image: Image,
}

/// The debug file of the module at `path`, if it is there and belongs to it.
pub(crate) fn find(path: &Path, image: &Image, bytes: &[u8], search: &DebugSearch) -> Option<DebugFile> {
    if search.is_nowhere() {
        return None;
    }
    let id = build_id(image, bytes);
    let paths = id.map(|id| search.by_build_id(id)).unwrap_or_default();
    let by_id = paths
        .iter()
        .filter_map(|path| open(path, search, image))
        .find(|file| build_id(&file.image, &file.source) == id);
    by_id.or_else(|| by_link(path, image, bytes, search)).or_else(|| by_name(path, image, id?, search))
}

/// By its own name with `.debug` behind it, where nothing links to it. Its build id tells whether it belongs.
fn by_name(path: &Path, image: &Image, id: &[u8], search: &DebugSearch) -> Option<DebugFile> {
    let path = path.canonicalize().ok()?;
    let mut name = path.file_name()?.to_owned();
    name.push(".debug");
    beside_and_in_roots(&path, Path::new(&name), search)
        .filter_map(|candidate| open(&candidate, search, image))
        .find(|file| build_id(&file.image, &file.source) == Some(id))
}

/// Where a debug file of that name may be. `path`: of the module, canonical.
fn beside_and_in_roots(
    path: &Path,
    name: &Path,
    search: &DebugSearch,
) -> impl Iterator<Item = PathBuf> + use<> {
    let folder = path.parent().unwrap_or(path);
    let below_root = folder.strip_prefix("/").unwrap_or(folder);
    // A root may be a plain folder, too, and lie relative to the file, as debuggers take it.
    let roots = search.roots.iter().map(|root| folder.join(root));
    let in_roots = roots.flat_map(|root| [root.join(below_root).join(name), root.join(name)]);
    let all: Vec<PathBuf> =
        [folder.join(name), folder.join(".debug").join(name)].into_iter().chain(in_roots).collect();
    let path = path.to_owned();
    all.into_iter().filter(move |candidate| *candidate != path)
}

fn by_link(path: &Path, image: &Image, bytes: &[u8], search: &DebugSearch) -> Option<DebugFile> {
    let (name, checksum) = link(image.section_bytes(bytes, ".gnu_debuglink"))?;
    let path = path.canonicalize().ok()?;
    beside_and_in_roots(&path, Path::new(name), search)
        .filter_map(|candidate| open(&candidate, search, image))
        .find(|file| crc32fast::hash(&file.source) == checksum)
}

/// The file that this one and others have a part of their DWARF in, by the name and build id in `.gnu_debugaltlink`.
pub(crate) fn shared(path: &Path, image: &Image, bytes: &[u8], search: &DebugSearch) -> Option<DebugFile> {
    if search.is_nowhere() {
        return None;
    }
    let section = image.section_bytes(bytes, ".gnu_debugaltlink");
    let end = section.iter().position(|&byte| byte == 0)?;
    let (name, id) = (std::str::from_utf8(&section[..end]).ok()?, section.get(end + 1..)?);
    let folder = path.canonicalize().ok()?.parent()?.to_owned();
    std::iter::once(folder.join(name))
        .chain(search.by_build_id(id))
        .filter_map(|candidate| open_as(&candidate, search, Completeness::Object))
        .find(|file| file.image.machine == image.machine && build_id(&file.image, &file.source) == Some(id))
}

/// A file with split DWARF: `.dwo` or `.dwp`. Whether it belongs is for its reader to see.
pub(crate) fn split(path: &Path, search: &DebugSearch) -> Option<DebugFile> {
    if search.is_nowhere() {
        return None;
    }
    open_as(path, search, Completeness::Object)
}

/// The file name and the CRC-32 in `.gnu_debuglink`.
fn link(section: &[u8]) -> Option<(&str, u32)> {
    let end = section.iter().take(256).position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&section[..end]).ok()?;
    // A name that leaves its folder is an attack, not a link.
    if name.is_empty() || name.contains('/') || name == ".." || name == "." {
        return None;
    }
    let checksum = section.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    Some((name, u32::from_le_bytes(*checksum)))
}

fn open(path: &Path, search: &DebugSearch, of: &Image) -> Option<DebugFile> {
    open_as(path, search, Completeness::DebugOnly)
        .filter(|file| file.image.machine == of.machine && file.image.is_fixed == of.is_fixed)
}

fn open_as(path: &Path, search: &DebugSearch, complete: Completeness) -> Option<DebugFile> {
    if std::fs::metadata(path).ok()?.len() > search.largest {
        return None;
    }
    let source = Source::open(path).ok()?;
    let image = Image::read(path, &source, complete).ok()?;
    Some(DebugFile { path: path.into(), source, image })
}

/// Unpacked MiniDebugInfo is smaller than this; beyond it is a decompression bomb.
const LARGEST_MINI: u64 = 64 << 20;
/// KiB the decompressor may use. `xz -9` needs 64 MiB.
const XZ_MEMORY: u32 = 66 << 10;

/// The ELF file in `.gnu_debugdata`.
pub(crate) fn mini_debug_info(image: &Image, bytes: &[u8]) -> Option<(Vec<u8>, Image)> {
    let packed = image.section_bytes(bytes, ".gnu_debugdata");
    if packed.is_empty() {
        return None;
    }
    let mut unpacked = Vec::new();
    lzma_rust2::XzReader::new_mem_limit(packed, false, XZ_MEMORY)
        .take(LARGEST_MINI)
        .read_to_end(&mut unpacked)
        .ok()?;
    let inner = Image::read(Path::new(".gnu_debugdata"), &unpacked, Completeness::DebugOnly).ok()?;
    (inner.machine == image.machine).then_some((unpacked, inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_a_file_in_the_same_folder_only() {
        for (section, expected) in [
            (&b"a.debug\0\x04\x03\x02\x01"[..], Some(("a.debug", 0x0102_0304))),
            (b"abc\0\x01\0\0\0", Some(("abc", 1))),
            (b"abcd\0\0\0\0\x01\0\0\0", Some(("abcd", 1))),
            (b"../a\0\0\0\0\x01\0\0\0", None),
            (b"..\0\0\x01\0\0\0", None),
            (b"/a\0\0\x01\0\0\0", None),
            (b"abc\0\x01\0\0", None),
            (b"abc", None),
            (b"\0\0\0\0\x01\0\0\0", None),
            (b"", None),
        ] {
            assert_eq!(link(section), expected, "{section:?}");
        }
    }
}
