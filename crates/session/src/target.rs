//! A process and the modules in it, or a file by itself: where functions are looked for.

use crate::error::Error;
use crate::files::{File, Files};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use trapless_isa::Machine;
use trapless_process::{Mapping, Pid, Process};
use trapless_symbols::{Module, ModuleError, Segment};

/// An ELF file, loaded at some address or not at all.
pub struct Image {
    /// Its path as the target sees it.
    pub path: String,
    /// The name the program was started by, where the path has another.
    pub alias: Option<String>,
    /// First and last address of its mappings; empty when it is not loaded.
    pub range: std::ops::Range<u64>,
    /// The executable mapping, to find the file by.
    mapping: Option<Mapping>,
    /// Where its code is mapped. A second mapping of a file may hold a part of it: V8 maps its builtins again, next to the
    /// code it makes.
    code: Vec<std::ops::Range<u64>>,
    /// Where in the file its last mapping starts.
    offset: u64,
    files: Files,
    file: OnceLock<Result<Arc<File>, ModuleError>>,
    bias: OnceLock<u64>,
}

impl Image {
    /// A file that no process runs.
    pub fn file(path: &Path) -> Result<Self, Error> {
        Self::file_of(path, &Files::default())
    }

    /// A file that no process runs, read as `files` says.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn file_of(path: &Path, files: &Files) -> Result<Self, Error> {
        let file = files.open_path(path).map_err(|error| file_error(path, &error))?;
        Ok(Self {
            path: path.display().to_string(),
            alias: None,
            range: 0..0,
            mapping: None,
            code: Vec::new(),
            offset: 0,
            files: files.clone(),
            file: OnceLock::from(Ok(Arc::new(file))),
            bias: OnceLock::from(0),
        })
    }

    /// The last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The files of all processes that are looked at with this one's.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// The inode of the mapped file; 0 of one that no process runs.
    pub fn inode(&self) -> u64 {
        self.mapping.as_ref().map_or(0, |mapping| mapping.inode)
    }

    /// Where its code is mapped.
    pub fn code(&self) -> &[std::ops::Range<u64>] {
        &self.code
    }

    /// Whether `file`, which is one of ours, is the one that is mapped, wherever the target sees it: its root may be another one.
    pub fn is_of(&self, process: &Process, file: &Metadata) -> bool {
        // Hardly any is looked at closer.
        let mapping = self.mapping.as_ref().filter(|mapping| mapping.inode == file.ino());
        let mapped = mapping.and_then(|mapping| process.open_mapped_file(mapping).ok()?.metadata().ok());
        mapped.is_some_and(|mapped| (mapped.dev(), mapped.ino()) == (file.dev(), file.ino()))
    }

    /// Whether the code at an address of the file is mapped here.
    pub fn holds(&self, process: Option<&Process>, address: u64) -> Result<bool, Error> {
        let at = address.wrapping_add(self.bias(process)?);
        Ok(self.mapping.is_none() || self.code.iter().any(|code| code.contains(&at)))
    }

    /// The file and what is known of it, opened when it is first asked for.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn opened(&self, process: Option<&Process>) -> Result<&File, Error> {
        let opened = self.file.get_or_init(|| match (process, &self.mapping) {
            (Some(process), Some(mapping)) => self.files.open(process, mapping, &self.path),
            _ => File::open(Path::new(&self.path)).map(Arc::new),
        });
        opened.as_deref().map_err(|error| file_error(Path::new(&self.path), error))
    }

    /// The file, to be held open, if it can be read.
    pub fn held(&self, process: Option<&Process>) -> Option<Arc<File>> {
        let _ = self.opened(process);
        self.file.get()?.as_ref().ok().cloned()
    }

    /// Its contents.
    ///
    /// # Errors
    /// As [`Self::opened`].
    pub fn module(&self, process: Option<&Process>) -> Result<&Module, Error> {
        Ok(self.opened(process)?.module())
    }

    /// What to add to an address in the file for the address in the process.
    pub fn bias(&self, process: Option<&Process>) -> Result<u64, Error> {
        let module = self.module(process)?;
        Ok(*self.bias.get_or_init(|| match &self.mapping {
            None => 0,
            Some(mapping) => bias(module.segments(), mapping),
        }))
    }
}

/// What to add to addresses in a file whose executable mapping is `mapping`.
///
/// A mapping begins at a page, its segment anywhere in it (lld lets segments begin where the one before ends), so
/// the byte at the mapping's offset may be another segment's, which has another distance between offset and address.
fn bias(segments: &[Segment], mapping: &Mapping) -> u64 {
    let mapped = mapping.offset..mapping.offset + mapping.len();
    let overlaps =
        |s: &&Segment| s.executable && s.offset < mapped.end && mapped.start < s.offset + s.file_size;
    let address = segments.iter().find(overlaps).map_or(mapping.offset, |segment| {
        segment.address.wrapping_sub(segment.offset).wrapping_add(mapping.offset)
    });
    mapping.start.0.wrapping_sub(address)
}

fn file_error(path: &Path, error: &ModuleError) -> Error {
    let text = error.to_string();
    // It begins with the path by which we have found the file, which ends in that of the target.
    let reason = text.split_once(&format!("{}: ", path.display())).map_or(&*text, |(_, reason)| reason);
    Error::File { path: path.into(), reason: reason.to_owned() }
}

/// The instruction set in the engine's terms.
pub fn machine(module: &Module) -> Machine {
    match module.machine() {
        trapless_symbols::Machine::X86_64 => Machine::X86_64,
        trapless_symbols::Machine::I386 => Machine::I386,
        trapless_symbols::Machine::AArch64 => Machine::AArch64,
        trapless_symbols::Machine::PowerPc64Le => Machine::PowerPc64Le,
    }
}

/// Opens a process, with everything that can be in the way told apart.
pub fn open(pid: i32) -> Result<Process, Error> {
    Ok(Process::open(Pid(pid))?)
}

/// The files whose code is mapped, by address. `files`: those of all processes that are looked at.
///
/// # Errors
/// The process has ended.
pub fn images(process: &Process, files: &Files) -> Result<Vec<Image>, Error> {
    let maps = process.maps().map_err(Error::other)?;
    let mut images: Vec<Image> = Vec::new();
    for mapping in maps.iter() {
        let Some(path) = mapping.path() else { continue };
        let path = path.display().to_string();
        let known = images.iter_mut().rev().find(|image| {
            // A file that is loaded twice is two modules, and so is a part of it that is mapped again: the loader maps a file
            // from its start to its end.
            image.path == path
                && mapping.offset >= image.offset
                && mapping.start.0.wrapping_sub(image.range.end) < 1 << 30
        });
        let code = mapping.perms.exec.then_some(mapping.start.0..mapping.end.0);
        let mapping = mapping.clone();
        match known {
            Some(image) => {
                image.range.end = mapping.end.0;
                image.offset = mapping.offset;
                image.code.extend(code);
                if mapping.perms.exec && image.mapping.is_none() {
                    image.mapping = Some(mapping);
                }
            }
            None => images.push(Image {
                alias: None,
                path,
                range: mapping.start.0..mapping.end.0,
                code: code.into_iter().collect(),
                offset: mapping.offset,
                mapping: mapping.perms.exec.then_some(mapping),
                files: files.clone(),
                file: OnceLock::new(),
                bias: OnceLock::new(),
            }),
        }
    }
    images.retain(|image| image.mapping.is_some());
    let exe = process.exe().ok();
    if let Some(program) = images.iter_mut().find(|image| exe.as_deref() == Some(Path::new(&image.path))) {
        program.alias = started_as(process).filter(|name| name != program.name());
    }
    Ok(images)
}

/// The name a program was started by: that of the file given to execve, as the kernel keeps it (15 bytes), or the
/// whole of it from the command line where that is longer.
fn started_as(process: &Process) -> Option<String> {
    let kept = process.status().ok()?.name;
    let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).ok()?;
    let first = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first.rsplit(|&byte| byte == b'/').next().unwrap_or_default());
    Some(if first.len() > kept.len() && first.starts_with(&kept) && !first.contains(' ') {
        first.into()
    } else {
        kept
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_begins_inside_a_page_is_where_its_own_header_says() {
        // As lld lays out: the first page of code is the last one of the read-only segment's, too.
        let text = b"555555810000-555555c69000 r-xp 002ba000 fe:00 1 /bin/program\n";
        let maps = trapless_process::parse_maps(text).unwrap();
        let segment = |offset, address, file_size, executable| Segment {
            offset,
            address,
            file_size,
            memory_size: file_size,
            executable,
            readable: true,
            writable: false,
        };
        let segments = [segment(0, 0, 0x2b_a9c8, false), segment(0x2b_aa00, 0x2b_ba00, 0x45_84e0, true)];
        assert_eq!(bias(&segments, maps.iter().next().unwrap()), 0x5555_5581_0000 - 0x2b_b000);
    }
}
