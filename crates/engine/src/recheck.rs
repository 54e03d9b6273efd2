//! Looking at armed sites again while the target runs: is what we wrote still there?
//!
//! Somebody else may change a site: a module is unloaded and loaded again, `trapless detach` takes the probes out, a debugger or
//! the kernel (a uprobe) puts a breakpoint over the jump, another tool patches it. None of that can be prevented, and none of it is
//! undone: it is told, because the site's numbers end there.
//!
//! # A kernel uprobe over a jump
//!
//! The kernel knows the file's code only. A uprobe on an armed site replaces the first byte of our jump by a breakpoint and runs the
//! *file's* instruction from a copy, which then goes on at the instruction after it: inside our jump, where it is shorter
//! than that. When the uprobe is taken off, the kernel writes the *file's* first byte, before the rest of our jump. Either way
//! the target runs into bytes that nobody wrote as code. Both have one byte that is not ours and a tail that is, so both
//! are told from everything else, and one write makes each of them whole:
//!
//! | first byte | the rest | nobody traces | what is written |
//! |---|---|---|---|
//! | breakpoint | ours | yes | the file's bytes behind the breakpoint: the uprobe then works, and the site is lost to us |
//! | the file's | ours | – | the first byte of our jump: the site is as we left it |
//!
//! Over the room of a short jump ([`trapless_isa::Mechanism::Short`]) it is the same, but the short jump is taken out first.
//! Both write only what we would have written there ourselves, and neither writes over a byte that is not what it was compared with. The
//! second is one byte, which processors see before or after. The first is behind a breakpoint, so nobody arrives there in order but
//! who comes out of the uprobe's copy, into bytes that would kill it. Under a debugger nothing is written: it keeps our
//! first byte and puts it back.

use trapless_process::{Mappings, MemoryError, Process, ReadRange, RemoteAddr, page_size};
use trapless_wire::{Journal, SessionState, WriteKind};

use crate::{LeftAlone, Session, patch, target};
use std::collections::HashSet;
use std::os::unix::fs::FileExt;

/// What became of an armed site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Became {
    /// Nothing is mapped there any more, or another file is.
    Unloaded,
    /// The file is mapped there, but anew: it was unloaded and loaded again.
    Reloaded,
    /// The bytes before the probe were put back, and not by this session.
    Restored,
    /// Another `trapless detach` took the session out.
    Detached,
    /// A breakpoint stands over the jump, and somebody traces the process.
    Breakpoint,
    /// A breakpoint stands over the jump and nobody traces the process: a kernel uprobe.
    Uprobe,
    /// A kernel uprobe was put on and taken off, and the jump was put together again. The site counts on.
    Mended,
    /// Other bytes stand there.
    Changed,
    /// The process runs another program.
    Replaced,
}

impl Became {
    /// Its name in machine-readable output.
    pub fn code(self) -> &'static str {
        match self {
            Became::Unloaded => "unloaded",
            Became::Reloaded => "reloaded",
            Became::Restored => "restored",
            Became::Detached => "detached",
            Became::Breakpoint => "breakpoint",
            Became::Uprobe => "uprobe",
            Became::Mended => "mended",
            Became::Changed => "changed",
            Became::Replaced => "replaced",
        }
    }
}

impl std::fmt::Display for Became {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Became::Unloaded => "the module was unloaded; calls after that are not counted",
            Became::Reloaded => "the module was unloaded and loaded again; calls after that are not counted",
            Became::Restored => "somebody else put the original code back; calls after that are not counted",
            Became::Detached => "`trapless detach` took the probe out; calls after that are not counted",
            Became::Breakpoint => "a debugger set a breakpoint on it; calls after that may not be counted",
            Became::Uprobe => "a kernel uprobe was set on it; calls after that are not counted",
            Became::Mended => {
                "a kernel uprobe was set on it and taken off; the probe was mended, and calls between may not be counted"
            }
            Became::Changed => "somebody else changed the code there; calls after that are not counted",
            Became::Replaced => "the process ran another program; its calls are not counted",
        })
    }
}

/// A write of an armed site and where its bytes are kept.
#[derive(Clone, Copy, Debug)]
struct Written {
    address: u64,
    /// Index of the site in the plan.
    index: u32,
    /// Of `patched` and then `original` in the bytes of all.
    bytes: u32,
    length: u16,
    /// Jumps are what one byte of somebody else's may stand in.
    kind: WriteKind,
}

/// The sites of a session that are still armed as far as is known.
#[derive(Clone, Debug)]
pub struct Recheck {
    sites: Vec<Written>,
    /// Those that were left out because their library was unloaded.
    given_up: Vec<Written>,
    bytes: Vec<u8>,
    /// Where the next look begins.
    next: usize,
    /// Where the target's code was mapped at the last look.
    mapped: Vec<(u64, u64, u64)>,
}

/// The most sites that are compared in one look, unless all are to be.
const MOST: usize = 8192;

impl Recheck {
    /// The sites that arming patched. `refused` says which of the plan it did not.
    pub fn of(journal: &Journal, refused: &[Option<LeftAlone>]) -> Self {
        let mut sites = Vec::with_capacity(journal.len());
        let mut bytes = Vec::new();
        for (site, refused) in journal.sites().zip(refused) {
            if refused.is_some() || !site.is_planned() {
                continue;
            }
            // What a pointer leads to is the program's to change.
            for write in site.writes().filter(|write| write.kind != WriteKind::Pointer) {
                sites.push(Written {
                    address: write.address,
                    index: site.index as u32,
                    bytes: bytes.len() as u32,
                    length: write.patched.len() as u16,
                    kind: write.kind,
                });
                bytes.extend_from_slice(write.patched);
                bytes.extend_from_slice(write.original);
            }
        }
        sites.sort_unstable_by_key(|site| site.address);
        Self { sites, given_up: Vec::new(), bytes, next: 0, mapped: Vec::new() }
    }

    /// Takes in sites that were added. Theirs are the indices from `first` on.
    pub fn include(&mut self, more: Recheck, first: u32) {
        let behind = self.bytes.len() as u32;
        self.bytes.extend(more.bytes);
        let more = more.sites.into_iter();
        self.sites.extend(more.map(|site| Written {
            index: site.index + first,
            bytes: site.bytes + behind,
            ..site
        }));
        self.sites.sort_unstable_by_key(|site| site.address);
    }

    /// Only the first sites.
    #[must_use]
    pub fn first(mut self, count: usize) -> Self {
        self.sites.retain(|site| (site.index as usize) < count);
        self.given_up.retain(|site| (site.index as usize) < count);
        self
    }

    /// Leaves out the sites with these indices.
    pub fn forget(&mut self, gone: &[u32]) {
        let gone: HashSet<u32> = gone.iter().copied().collect();
        self.given_up.extend(self.sites.extract_if(.., |site| gone.contains(&site.index)));
    }

    /// Takes in sites again that were left out.
    pub fn take_back(&mut self, back: &[u32]) {
        let back: HashSet<u32> = back.iter().copied().collect();
        self.sites.extend(self.given_up.extract_if(.., |site| back.contains(&site.index)));
        self.sites.sort_unstable_by_key(|site| site.address);
    }

    /// Compares some of the sites, or all, and tells which have become something else, by their index in the plan. Those that were
    /// told are not looked at again, but a mended one is.
    ///
    /// Nothing is told of a process that has ended.
    pub fn look(&mut self, process: &Process, session: &Session, all: bool) -> Vec<(u32, Became)> {
        if self.sites.is_empty() {
            return Vec::new();
        }
        let Ok(maps) = process.maps() else { return Vec::new() };
        if maps.is_empty() {
            return Vec::new();
        }
        let state = session.state();
        let gone = maps.find(RemoteAddr(session.header().region)).is_none();
        if gone || matches!(state, Some(SessionState::Removing | SessionState::Removed)) {
            let detached = matches!(state, Some(SessionState::Removing | SessionState::Removed));
            let became = if detached { Became::Detached } else { Became::Replaced };
            if !process.is_alive() {
                return Vec::new();
            }
            return once_each(self.sites.drain(..).map(|site| (site.index, became)).collect());
        }
        let code = maps.iter().filter(|m| m.perms.exec && m.inode != 0);
        let mapped: Vec<_> = code.map(|m| (m.start.0, m.end.0, m.inode)).collect();
        let changed = !self.mapped.is_empty() && mapped != self.mapped;
        self.mapped = mapped;

        let count = self.sites.len();
        let range = match all || changed || count <= MOST {
            true => 0..count,
            false => self.next.min(count)..(self.next + MOST).min(count),
        };
        self.next = if range.end >= count { 0 } else { range.end };
        let found = self.compare(process, &maps, range);
        // A process that ended meanwhile had no memory left to compare.
        if !process.is_alive() {
            return Vec::new();
        }
        let lost: Vec<u32> =
            found.iter().filter(|(_, became)| *became != Became::Mended).map(|(index, _)| *index).collect();
        if !lost.is_empty() {
            let lost: HashSet<u32> = lost.into_iter().collect();
            self.sites.retain(|site| !lost.contains(&site.index));
        }
        once_each(found)
    }

    fn compare(
        &self,
        process: &Process,
        maps: &Mappings,
        range: std::ops::Range<usize>,
    ) -> Vec<(u32, Became)> {
        let sites = &self.sites[range];
        let mut buffer = vec![0; sites.iter().map(|site| usize::from(site.length)).sum()];
        let mut rest = buffer.as_mut_slice();
        let mut ranges = Vec::with_capacity(sites.len());
        for site in sites {
            let (now, after) = rest.split_at_mut(usize::from(site.length));
            ranges.push(ReadRange::new(RemoteAddr(site.address), now));
            rest = after;
        }
        if process.read_vectored(&mut ranges).is_err() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (site, range) in sites.iter().zip(&ranges) {
            let now = &range.buffer[..range.done];
            if now != self.patched(site) {
                found.push((site.index, self.became(process, maps, site, now)));
            }
        }
        found
    }

    fn patched(&self, site: &Written) -> &[u8] {
        &self.bytes[site.bytes as usize..][..usize::from(site.length)]
    }

    fn original(&self, site: &Written) -> &[u8] {
        &self.bytes[site.bytes as usize..][usize::from(site.length)..2 * usize::from(site.length)]
    }

    fn became(&self, process: &Process, maps: &Mappings, site: &Written, now: &[u8]) -> Became {
        let (ours, theirs) = (self.patched(site), self.original(site));
        if now.len() < ours.len() {
            return Became::Unloaded;
        }
        if is_of_a_file(process, site.address) {
            // What we wrote was in a page of the target's own.
            return if now == theirs { Became::Reloaded } else { Became::Unloaded };
        }
        if now == theirs {
            return Became::Restored;
        }
        if maps.find(RemoteAddr(site.address)).is_none_or(|m| m.inode == 0) {
            return Became::Unloaded;
        }
        if site.kind == WriteKind::Breakpoint || now[1..] != ours[1..] {
            return Became::Changed;
        }
        // One byte that is not ours before a tail that is.
        let write = |at: u64, bytes: &[u8]| {
            // It may take a moment, in which others write.
            patch::as_tracer_if_need_be(process, || {
                let mut again = vec![0; now.len()];
                match process.read_exact(RemoteAddr(site.address), &mut again) {
                    Ok(()) if again == now => process.write(RemoteAddr(at), bytes),
                    _ => Err(MemoryError::Gone),
                }
            })
        };
        if now[0] == theirs[0] && write(site.address, &ours[..1]).is_ok() {
            return Became::Mended;
        }
        if !now.starts_with(target::isa(process).facts().breakpoint) {
            return Became::Changed;
        }
        if is_traced(process) {
            return Became::Breakpoint;
        }
        if site.kind == WriteKind::Room {
            // Nothing may lead to what stands in it before that goes.
            for own in self.sites.iter().filter(|own| own.index == site.index && own.kind != WriteKind::Room)
            {
                let _ = write(own.address, self.original(own));
            }
        }
        // Where it fails there is nothing left to save.
        let _ = write(site.address + 1, &theirs[1..]);
        Became::Uprobe
    }
}

/// One answer for each site: what became of one of its writes and is more than mended, if there is such a one.
fn once_each(mut found: Vec<(u32, Became)>) -> Vec<(u32, Became)> {
    found.sort_by_key(|&(index, became)| (index, became == Became::Mended));
    found.dedup_by_key(|(index, _)| *index);
    found
}

/// Whether the page at `address` is the file's, and not one that was written to.
pub(crate) fn is_of_a_file(process: &Process, address: u64) -> bool {
    /// `PM_FILE` and `PM_SWAP` of `fs/proc/task_mmu.c`, and that the page is present.
    const FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;
    let Ok(pages) = std::fs::File::open(format!("/proc/{}/pagemap", process.pid())) else { return false };
    let mut entry = [0; 8];
    if pages.read_exact_at(&mut entry, address / page_size() * 8).is_err() {
        return false;
    }
    let entry = u64::from_le_bytes(entry);
    // A page of the file that nobody has touched is not there at all.
    entry & FILE != 0 || entry & (PRESENT | SWAPPED) == 0
}

/// Whether a tracer holds any thread. Where that cannot be read, one may.
fn is_traced(process: &Process) -> bool {
    let Ok(threads) = process.threads() else { return true };
    threads.iter().any(|tid| {
        let path = format!("/proc/{}/task/{}/status", process.pid(), tid.0);
        let status = std::fs::read_to_string(path).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    })
}
