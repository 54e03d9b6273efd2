//! The code of a process, to be compared with what it was and with its files.

use super::tool::detach;
use super::{arenas, eventually, eventually_or};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Reads a process's memory.
pub fn read(pid: i32, address: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(bytes)
}

/// Waits until the code of a file that a process has mapped is not what it is in the file.
#[track_caller]
pub fn wait_until_written(pid: i32, path: &str) {
    let file = std::fs::read(path).unwrap();
    let is_written = |(line, code): &(String, Vec<u8>)| {
        let offset = usize::from_str_radix(line.split(' ').nth(2).unwrap(), 16).unwrap();
        // Behind the end of the file the page goes on.
        line.ends_with(path) && code.iter().zip(&file[offset..]).any(|(now, kept)| now != kept)
    };
    eventually("code that is written", || Text::of(pid).mappings.values().any(is_written));
}

/// The words of a process's writable memory that lie in `ranges`, a line each: what may have kept memory there.
fn words_into(pid: i32, ranges: &[Range<u64>]) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return String::new() };
    let mut lines = String::new();
    // What a session's own memory says of its arenas keeps nothing.
    for line in maps.lines().filter(|line| line.contains(" rw") && !line.contains("memfd:trapless")) {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        // Room for return instances, which is hardly used, is more than there is memory.
        if end - start > 1 << 30 {
            continue;
        }
        let (mut at, mut bytes) = (start, vec![0; 1 << 20]);
        while at < end {
            let piece = bytes.len().min((end - at) as usize);
            // Nobody can read a guard within a mapping, which is passed page by page.
            let Ok(read @ 1..) = memory.read_at(&mut bytes[..piece], at) else {
                at += 4096;
                continue;
            };
            for (word, at) in bytes[..read].chunks_exact(8).zip((at..).step_by(8)) {
                let value = u64::from_le_bytes(word.try_into().unwrap());
                if ranges.iter().any(|range| range.contains(&value)) {
                    lines += &format!("{at:#x}: {value:#x}, in {line}\n");
                }
            }
            at += read as u64;
        }
    }
    lines
}

/// Waits until nobody may be in our memory any more, while each call gives up what it can, and fails with the words that lead there when that
/// never comes.
#[track_caller]
pub fn eventually_nothing_is_left(pid: i32) {
    let what = || format!("nothing is left; words that lead there:\n{}", words_into(pid, &arenas(pid)));
    eventually_or(what, || detach(pid).json().iter().all(|row| row["memory_kept"] != true));
}

/// All executable memory of a process.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    /// By start address: the line of `/proc/PID/maps`, and the bytes.
    mappings: BTreeMap<u64, (String, Vec<u8>)>,
}

impl Text {
    pub fn of(pid: i32) -> Text {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut mappings = BTreeMap::new();
        for line in maps.lines().filter(|line| line.split(' ').nth(1).unwrap().contains('x')) {
            let range = line.split(' ').next().unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            // The vsyscall page cannot be read.
            if let Ok(bytes) = read(pid, start, (end - start) as usize) {
                mappings.insert(start, (line.to_owned(), bytes));
            }
        }
        Text { mappings }
    }

    /// Address of the executable mapping that was added since next to `address`: the arena of the module there.
    #[track_caller]
    pub fn added_near(&self, pid: i32, address: u64) -> u64 {
        let now = Text::of(pid);
        let added = now.mappings.keys().filter(|start| !self.mappings.contains_key(start));
        *added.min_by_key(|start| start.abs_diff(address)).expect("no mapping was added")
    }

    /// This with other bytes at an address.
    #[track_caller]
    pub fn with(&self, address: u64, bytes: &[u8]) -> Text {
        let mut changed = self.clone();
        let (start, (_, code)) = changed.mappings.range_mut(..=address).next_back().unwrap();
        code[(address - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        changed
    }

    /// Puts back the code of a file, by a part of its path, as somebody else might who keeps what was there.
    #[track_caller]
    pub fn put_back(&self, pid: i32, file: &str) {
        let mut found = self.mappings.iter().filter(|(_, (line, _))| line.contains(file)).peekable();
        assert!(found.peek().is_some(), "{file} is not mapped");
        found.for_each(|(&start, (_, bytes))| write(pid, start, bytes));
    }

    /// Whether the code is what this says, byte for byte.
    pub fn is_now(&self, pid: i32) -> bool {
        let read = |(&start, (_, bytes)): (&u64, &(String, Vec<u8>))| {
            read(pid, start, bytes.len()).is_ok_and(|now| now == *bytes)
        };
        self.mappings.iter().all(read)
    }

    /// Fails unless the process's code is again what this says, and its files' besides, and no memory of the tool is left.
    #[track_caller]
    pub fn assert_restored(&self, pid: i32) {
        let mut now = Text::of(pid);
        // A library of ours, which some machines have for replaced functions, stays.
        now.mappings.retain(|_, (line, _)| !line.contains("memfd:trapless-call"));
        for (start, (line, bytes)) in &now.mappings {
            let before = self.mappings.get(start);
            let Some((_, was)) = before else {
                let added = *start..*start + bytes.len() as u64;
                let words = words_into(pid, std::slice::from_ref(&added));
                panic!("a mapping that was not there before: {line}\nwords that lead there:\n{words}")
            };
            if let Some(at) = was.iter().zip(bytes).position(|(was, is)| was != is) {
                let end = bytes.len().min(at + 16);
                let (was, is) = (&was[at..end], &bytes[at..end]);
                panic!(
                    "code differs at {:#x} ({line})\n  was {was:02x?}\n  is  {is:02x?}",
                    *start + at as u64
                );
            }
        }
        assert_eq!(self.mappings.len(), now.mappings.len(), "a mapping is gone");
        now.assert_is_of_files(pid);
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert!(!maps.contains("memfd:trapless "), "memory is left:\n{maps}");
    }

    /// Fails unless the code is what the files hold.
    #[track_caller]
    pub fn assert_is_of_files(&self, pid: i32) {
        for (line, bytes) in self.mappings.values() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let Some(path) = fields.get(5).filter(|path| path.starts_with('/')) else { continue };
            let Ok(file) = File::open(format!("/proc/{pid}/root{path}")) else { continue };
            let offset = u64::from_str_radix(fields[2], 16).unwrap();
            let length = file.metadata().unwrap().len().saturating_sub(offset).min(bytes.len() as u64);
            let mut content = vec![0; length as usize];
            file.read_exact_at(&mut content, offset).unwrap();
            assert!(bytes[..content.len()] == content, "code is not its file's: {line}");
        }
    }
}

/// Writes a process's memory, code too.
#[track_caller]
pub fn write(pid: i32, address: u64, bytes: &[u8]) {
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let written = memory.write_all_at(bytes, address).or_else(|error| match error.raw_os_error() {
        // Some kernels let nobody but a tracer write over code (`proc_mem.force_override=ptrace`).
        Some(libc::EIO) => as_tracer(pid, || memory.write_all_at(bytes, address)).unwrap_or(Err(error)),
        _ => Err(error),
    });
    written.expect("the target's memory can be written");
}

/// Does something while this thread traces a process, if that can be.
fn as_tracer<T>(pid: i32, work: impl FnOnce() -> T) -> Option<T> {
    let request = |request| {
        // SAFETY: none of these requests writes memory of ours.
        unsafe { libc::ptrace(request, pid, 0, 0) == 0 }
    };
    if !request(libc::PTRACE_SEIZE) {
        return None;
    }
    request(libc::PTRACE_INTERRUPT);
    // SAFETY: nothing is written.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    let done = work();
    request(libc::PTRACE_DETACH);
    Some(done)
}
