//! What the printer of a script asks for: names of addresses, probes and users, the time of the wall, files and commands.
//!
//! Symbols are read by us, from the files that were mapped when a process was probed. Files stay open, so names are there after it has
//! ended.

use crate::mapped::Mapped;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trapless_engine::{Region, ScriptMemory};
use trapless_process::Process;
use trapless_script::output::{Ran, Resolver, Symbol, Zone};
use trapless_script::shape::TimeBase;
use trapless_session::files::Files;
use trapless_session::target;
use trapless_wire::{KeptStacks, ScriptLayout};

/// How many call stacks are kept by number.
const MOST_STACKS: usize = 1 << 16;

/// How deep control groups are searched.
const GROUP_DEPTH: usize = 16;

/// Names of a run.
#[derive(Default)]
pub struct Names {
    files: Files,
    processes: HashMap<u32, Mapped>,
    /// Frames by the stack's number.
    stacks: HashMap<u64, Vec<u64>>,
    /// Processes that keep more of them.
    kept: BTreeMap<i32, (ScriptMemory, ScriptLayout)>,
    /// Whether lines and inlined functions are told.
    tells_lines: bool,
    /// Probe and function of each site.
    sites: BTreeMap<u64, SiteNames>,
}

/// What a site is called.
#[derive(Clone, Debug, Default)]
pub struct SiteNames {
    /// As the script could have named the probe.
    pub probe: String,
    /// The function.
    pub function: String,
}

impl Names {
    /// Names of what is in these files, which somebody else reads, too.
    pub fn of(files: &Files) -> Self {
        Self { files: files.clone(), ..Self::default() }
    }

    /// Gives a site its names.
    pub fn name_site(&mut self, site: u64, names: SiteNames) {
        self.sites.insert(site, names);
    }

    /// A process keeps stacks in this memory.
    pub fn watch_stacks(&mut self, pid: i32, memory: ScriptMemory, layout: &ScriptLayout) {
        self.kept.insert(pid, (memory, layout.clone()));
    }

    /// A process keeps no more stacks: those that it has kept are kept here.
    pub fn leave_stacks(&mut self, pid: i32) {
        let Some((memory, layout)) = self.kept.remove(&pid) else { return };
        let Some(stacks) = kept(&memory, &layout) else { return };
        for number in stacks.numbers() {
            if self.stacks.len() >= MOST_STACKS {
                break;
            }
            if let Some(frames) = stacks.get(number) {
                self.stacks.insert(number, frames);
            }
        }
    }

    /// The files of all processes.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Whether lines and inlined functions are told.
    pub fn tell_lines(&mut self, tells: bool) {
        self.tells_lines = tells;
    }

    /// Looks what a process has mapped, while it lives. Files are opened now, and stay so.
    pub fn look_at(&mut self, pid: i32) {
        // Who drives a script for himself traces nobody.
        let opened =
            if pid as u32 == std::process::id() { Process::own().ok() } else { target::open(pid).ok() };
        let Some(process) = opened else { return };
        if let Some(mapped) = Mapped::now(process, &self.files) {
            self.processes.insert(pid as u32, mapped);
        }
    }

    fn mapped(&mut self, pid: u32) -> Option<&mut Mapped> {
        if !self.processes.contains_key(&pid) {
            self.look_at(pid as i32);
        }
        self.processes.get_mut(&pid)
    }
}

/// The stacks that a process keeps.
fn kept<'m>(memory: &'m ScriptMemory, layout: &ScriptLayout) -> Option<KeptStacks<'m, Region>> {
    KeptStacks::of(layout, memory.region(), memory.shared().start)
}

impl Resolver for Names {
    fn stack(&mut self, number: u64) -> Vec<u64> {
        if let Some(frames) = self.stacks.get(&number) {
            return frames.clone();
        }
        let of = |(memory, layout)| kept(memory, layout)?.get(number);
        let frames =
            self.kept.values().map(|(memory, layout)| (memory, layout)).find_map(of).unwrap_or_default();
        // It is asked for again, mostly.
        if !frames.is_empty() && self.stacks.len() < MOST_STACKS {
            self.stacks.insert(number, frames.clone());
        }
        frames
    }

    fn symbols(&mut self, pid: u32, address: u64) -> Vec<Symbol> {
        let (files, tells_lines) = (self.files.clone(), self.tells_lines);
        let Some(mapped) = self.mapped(pid) else { return Vec::new() };
        if let Some(known) = mapped.known.get(&address) {
            return known.clone();
        }
        let found = mapped.symbols(&files, address, tells_lines);
        // Anybody may print any number of addresses.
        if mapped.known.len() < MOST_STACKS {
            mapped.known.insert(address, found.clone());
        }
        found
    }

    fn caller(&mut self, pid: u32, address: u64) -> Vec<Symbol> {
        // The file says which code handlers return to.
        let returns = |mapped: &mut Mapped| {
            mapped.module_at(address).is_some_and(|(module, at)| module.is_signal_trampoline(at))
        };
        if self.mapped(pid).is_some_and(returns) {
            return self.symbols(pid, address);
        }
        let mut symbols = self.symbols(pid, address.wrapping_sub(1));
        if symbols.is_empty() {
            // A stack that was made by hand begins at a function's first instruction.
            return self.symbols(pid, address);
        }
        if let Some(own) = symbols.last_mut() {
            own.offset += 1;
        }
        symbols
    }

    fn build_id(&mut self, pid: u32, address: u64) -> Option<(Vec<u8>, u64)> {
        let mapped = self.mapped(pid)?;
        let (module, at) = mapped.module_at(address)?;
        let segment = module.segments().iter().find(|s| s.address <= at && at - s.address < s.file_size)?;
        Some((module.build_id()?.to_vec(), at - segment.address + segment.offset))
    }

    fn probe(&mut self, site: u64) -> String {
        self.sites.get(&site).map_or_else(String::new, |names| names.probe.clone())
    }

    fn function(&mut self, site: u64) -> String {
        self.sites.get(&site).map_or_else(String::new, |names| names.function.clone())
    }

    fn user(&mut self, id: u64) -> Option<String> {
        user_name(u32::try_from(id).ok()?)
    }

    fn cgroup(&mut self, id: u64) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let found = hierarchies(&mounts)
            .into_iter()
            .filter_map(|(name, root)| Some(format!("{name}:{}", group_path(&root, id, GROUP_DEPTH)?)))
            .collect::<Vec<_>>();
        (!found.is_empty()).then(|| found.join(","))
    }

    fn now(&mut self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    fn clock_start(&mut self, clock: TimeBase) -> i64 {
        let id = match clock {
            TimeBase::Monotonic => libc::CLOCK_MONOTONIC,
            TimeBase::Boot => libc::CLOCK_BOOTTIME,
            TimeBase::Tai => libc::CLOCK_TAI,
            TimeBase::Real => return 0,
        };
        self.now().wrapping_sub(clock_ns(id))
    }

    fn zone(&mut self, seconds: i64) -> Zone {
        zone(seconds)
    }

    fn file(&mut self, path: &[u8], most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(Path::new(std::ffi::OsStr::from_bytes(path)))?;
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn command(&mut self, command: &[u8]) -> io::Result<Ran> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(std::ffi::OsStr::from_bytes(command)).stdin(Stdio::null());
        let (mut reader, writer) = io::pipe()?;
        shell.stdout(writer.try_clone()?).stderr(writer);
        let mut child = shell.spawn()?;
        // Our ends of the pipe are in there, and it ends only without them.
        drop(shell);
        let mut printed = Vec::new();
        reader.read_to_end(&mut printed)?;
        Ok(Ran { printed, code: child.wait()?.code() })
    }
}

/// Nanoseconds of a clock.
pub fn clock_ns(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec to write to; clocks that are not there leave it as it is.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as i64
}

/// The local time zone at a time.
fn zone(seconds: i64) -> Zone {
    #[allow(
        clippy::useless_conversion,
        reason = "a 32-bit program's C library knows the times of 32 bits only"
    )]
    let seconds: libc::time_t = seconds.try_into().unwrap_or(libc::time_t::MAX);
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: a valid time to read and valid memory for the result, which is zero before: its name is null if nothing is written.
    let name = unsafe {
        libc::localtime_r(&seconds, parts.as_mut_ptr());
        parts.assume_init_ref().tm_zone
    };
    // SAFETY: as above.
    let offset = unsafe { parts.assume_init_ref().tm_gmtoff };
    let name = match name.is_null() {
        true => String::new(),
        // SAFETY: the C library's own string, which lives until the zone is set anew, and nobody does that.
        false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
    };
    Zone { offset: offset as i32, name }
}

/// Name of a user.
fn user_name(id: u32) -> Option<String> {
    let (mut entry, mut buffer) = (std::mem::MaybeUninit::<libc::passwd>::zeroed(), vec![0; 16 << 10]);
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to memory of ours, whose length is given; `found` is null or points to the entry, whose name is in the
    // buffer.
    unsafe {
        libc::getpwuid_r(id, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        found.as_ref().map(|entry| CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned())
    }
}

/// The hierarchies of control groups that are mounted, by name: that of the second version is `unified`, and comes first.
fn hierarchies(mounts: &str) -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(path), Some(kind)) = (words.next(), words.next()) else { continue };
        let name = match kind {
            "cgroup2" => "unified",
            "cgroup" => path.rsplit('/').next().unwrap_or(path),
            _ => continue,
        };
        if all.iter().all(|(known, _)| known != name) {
            all.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    all.sort_by(|(one, _), (other, _)| (one != "unified", one).cmp(&(other != "unified", other)));
    all
}

/// The path of the control group whose directory has this inode number, which is its id.
fn group_path(root: &Path, id: u64, depth: usize) -> Option<String> {
    let is_it = |path: &Path| std::fs::metadata(path).is_ok_and(|data| data.ino() == id);
    let mut left: Vec<(PathBuf, usize)> = vec![(root.to_owned(), depth)];
    while let Some((path, depth)) = left.pop() {
        if is_it(&path) {
            let inner = path.strip_prefix(root).ok()?;
            return Some(format!("/{}", inner.display()));
        }
        let inside = std::fs::read_dir(&path).into_iter().flatten().flatten();
        let directories = inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        if depth > 0 {
            left.extend(directories.map(|entry| (entry.path(), depth - 1)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_control_groups_have_their_names() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
            cgroup2 /sys/fs/cgroup/all cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
            cgroup2 /again cgroup2 rw 0 0\n";
        let found = hierarchies(mounts);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["unified", "cpu", "memory"]);
        assert_eq!(found[0].1, Path::new("/sys/fs/cgroup/all"));
    }
}
