//! Sessions found in a process by the memory they left there, and how much of it is believed.
//!
//! Everything here was written by the target, or could have been: a hostile one forges sessions, and a careless one overwrites
//! ours. What is taken out in their name is limited to what this tool would have done:
//!
//! 1. The header is one that this version writes, of memory that is really mapped ([`Checked::read`]).
//! 2. The journal is read as far as it was written, a piece at a time. An entry is believed if its detour lies in one of the
//!    session's arenas and its patch is the very jump there that the instruction set makes, or the breakpoint.
//! 3. The site lies in private executable memory, not in an arena of anybody's, and its original bytes are those of the mapped file,
//!    where that can be read.
//!
//! So removal only ever takes out a jump into the session's own arena, and only ever writes what the file holds. Entries that
//! are not believed are left alone and counted, and then the session's memory stays mapped: a jump may still lead there.

use crate::{EngineError, target};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use trapless_isa::{Displaced, Machine};
use trapless_process::{Mapping, Mappings, Pid, Process, RemoteAddr};
use trapless_wire::{
    BadHeader, Checked, Counters, Header, JournalEntry, MAX_DISPLACED, PAGE, REGION_NAME, SessionState,
    SiteState, Words,
};

/// A session found in a process by its shared region, or one of our own.
#[derive(Clone, Debug)]
pub struct FoundSession {
    /// Its header.
    pub header: Checked,
    /// Its journal, as far as it is believed.
    pub journal: Vec<JournalEntry>,
    /// How many entries are not believed.
    pub doubted: usize,
}

impl FoundSession {
    /// A session of this tool's own making, kept where the target cannot write.
    pub fn own(header: Header, journal: Vec<JournalEntry>) -> Self {
        Self { header: Checked::own(header), journal, doubted: 0 }
    }

    /// How often a site was hit, read from the target. 0 when nothing can be read.
    pub fn hits(&self, process: &Process, entry: &JournalEntry) -> u64 {
        let words = RemoteWords { process, region: self.header.region };
        if entry.hits == 0 { 0 } else { Counters::new(&self.header, &words).sum(entry.hits) }
    }

    /// Whether the tool that armed it still runs. One that was killed and not yet waited for does not, nor does another process
    /// that got its id.
    pub fn has_owner(&self) -> bool {
        let owner = i32::try_from(self.header.tool).ok().and_then(|tool| Process::start_of(Pid(tool)));
        owner == Some(self.header.tool_start_time)
    }

    /// Whether its patches are out, and what is left is memory into which something may still lead.
    pub fn is_removed(&self) -> bool {
        is_removed(&self.header)
    }

    /// Whether its memory is mapped in the process. That its header says so is not asked for: the target can write there.
    pub(crate) fn is_mapped(&self, process: &Process) -> Result<bool, EngineError> {
        Ok(regions(&process.maps()?).any(|at| at.start == self.header.region))
    }

    /// Whether the site's patch is in place.
    pub fn is_armed(&self, process: &Process, entry: &JournalEntry) -> bool {
        let mut now = [0; MAX_DISPLACED];
        let now = &mut now[..entry.patched().len()];
        process.read_exact(RemoteAddr(entry.site), now).is_ok() && now == entry.patched()
    }
}

/// The shared region, read through the target.
struct RemoteWords<'p> {
    process: &'p Process,
    region: u64,
}

impl Words for RemoteWords<'_> {
    fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        let read = self.process.read_exact(RemoteAddr(self.region.wrapping_add(offset)), &mut word);
        read.map_or(0, |()| u64::from_le_bytes(word))
    }
}

/// Sessions whose memory is mapped in `process`, armed or not.
///
/// Read from the target's own memory: the file descriptor is long closed.
pub fn find_sessions(process: &Process) -> Result<Vec<FoundSession>, EngineError> {
    let maps = process.maps()?;
    let headers: Vec<Checked> = regions(&maps).filter_map(|at| read_header(process, &at).ok()).collect();
    let arenas = Arenas::of(&headers);
    headers.iter().map(|header| read_session(process, &maps, *header, &arenas)).collect()
}

/// Their headers alone, which takes little time.
pub(crate) fn find_headers(process: &Process) -> Result<Vec<Checked>, EngineError> {
    Ok(regions(&process.maps()?).filter_map(|at| read_header(process, &at).ok()).collect())
}

/// Sessions that were taken out and whose memory is still mapped, but for the one at `besides`.
pub(crate) fn find_removed(process: &Process, besides: u64) -> Result<Vec<FoundSession>, EngineError> {
    let maps = process.maps()?;
    let headers: Vec<Checked> = regions(&maps).filter_map(|at| read_header(process, &at).ok()).collect();
    let arenas = Arenas::of(&headers);
    let removed = headers.iter().filter(|header| header.region != besides && is_removed(header));
    removed.map(|header| read_session(process, &maps, *header, &arenas)).collect()
}

fn is_removed(header: &Header) -> bool {
    SessionState::from_raw(header.state) == Some(SessionState::Removed)
}

/// Memory that bears the name of ours and holds no session that is believed: where, and why.
pub fn find_disbelieved(process: &Process) -> Result<Vec<(RemoteAddr, BadHeader)>, EngineError> {
    let maps = process.maps()?;
    let bad = |at: Range<u64>| Some((RemoteAddr(at.start), read_header(process, &at).err()?));
    Ok(regions(&maps).filter_map(bad).collect())
}

/// What is mapped under our name, from its start on. One that the target has cut into several mappings is one.
fn regions(maps: &Mappings) -> impl Iterator<Item = Range<u64>> + '_ {
    let name = format!("/memfd:{}", REGION_NAME.to_string_lossy());
    let starts = maps.iter().enumerate().filter(move |(_, m)| m.offset == 0 && m.is_special(&name));
    starts.map(|(index, first)| {
        let goes_on = |end: u64, m: &Mapping| {
            m.start.0 == end && m.inode == first.inode && m.offset == end - first.start.0
        };
        let mut end = first.end.0;
        for mapping in &maps[index + 1..] {
            if !goes_on(end, mapping) {
                break;
            }
            end = mapping.end.0;
        }
        first.start.0..end
    })
}

fn read_header(process: &Process, at: &Range<u64>) -> Result<Checked, BadHeader> {
    let mut bytes = vec![0; size_of::<Header>()];
    process.read_exact(RemoteAddr(at.start), &mut bytes).map_err(|_| BadHeader::Foreign)?;
    Checked::read(&bytes, at.clone())
}

/// So many entries are read at a time. What they say of their number is the target's word, and its memory may be a hole.
const PIECE: usize = 8192;

fn read_session(
    process: &Process,
    maps: &Mappings,
    header: Checked,
    arenas: &Arenas,
) -> Result<FoundSession, EngineError> {
    let own = Arenas::of(&[header]);
    let machine = target::machine(process);
    let (mut journal, mut doubted) = (Vec::new(), 0);
    let mut left = header.journal_length as usize;
    let mut at = RemoteAddr(header.region + PAGE);
    let mut bytes = vec![0; PIECE.min(left) * size_of::<JournalEntry>()];
    'pieces: while left > 0 {
        let piece = PIECE.min(left) * size_of::<JournalEntry>();
        process.read_exact(at, &mut bytes[..piece])?;
        for entry in bytes[..piece].chunks_exact(size_of::<JournalEntry>()) {
            let entry: JournalEntry = bytemuck::pod_read_unaligned(entry);
            if entry.state == 0 && entry.site == 0 {
                // Whoever armed was killed before it had written more.
                break 'pieces;
            }
            if is_of_our_making(&entry, &header, &own, machine) {
                journal.push(entry);
            } else {
                doubted += 1;
            }
        }
        left -= PIECE.min(left);
        at = at + piece as u64;
    }
    journal.sort_by_key(|entry| entry.site);
    let mut files = Files { process, maps, mapping: None, file: None, window: Vec::new(), at: 0 };
    let believed = journal.len();
    journal.retain(|entry| is_where_code_is(entry, maps, arenas) && files.agree(entry));
    doubted += believed - journal.len();
    Ok(FoundSession { header, journal, doubted })
}

/// Whether an entry says only what arming would have written.
fn is_of_our_making(entry: &JournalEntry, header: &Header, own: &Arenas, machine: Machine) -> bool {
    let length = usize::from(entry.length);
    let state = [SiteState::Planned, SiteState::Skipped].iter().any(|state| *state as u8 == entry.state);
    let site = entry.site.checked_add(MAX_DISPLACED as u64).is_some();
    let detour = own
        .holding(entry.detour)
        .filter(|arena| entry.detour_size > 0 && u64::from(entry.detour_size) <= arena.end - entry.detour);
    let Some(_) = detour.filter(|_| state && site && (1..=MAX_DISPLACED).contains(&length)) else {
        return false;
    };
    let inside = entry.detour..=entry.detour + u64::from(entry.detour_size);
    let counter =
        entry.hits == 0 || entry.hits.is_multiple_of(8) && u64::from(entry.hits) < header.block_stride;
    let is_ours = match entry.trap {
        0 => {
            let displaced = Displaced { start: entry.site, length: entry.length, instructions: 1 };
            let patch = machine.isa().patch(&displaced, entry.detour);
            entry.copy == 0 && patch.is_ok_and(|patch| patch == entry.patched())
        }
        1..=3 => {
            entry.patched() == machine.isa().facts().breakpoint
                && entry.return_point == 0
                && u32::from(entry.copy) <= entry.detour_size
                && usize::from(entry.displaced) <= MAX_DISPLACED
        }
        _ => false,
    };
    let returns = entry.return_point == 0 || inside.contains(&entry.return_point);
    is_ours && returns && counter && entry.original() != entry.patched()
}

/// Whether a site lies where code is that is the process's own. One that lies nowhere any more is believed: its module was unloaded.
fn is_where_code_is(entry: &JournalEntry, maps: &Mappings, arenas: &Arenas) -> bool {
    [entry.site, entry.site + u64::from(entry.length) - 1].into_iter().all(|at| {
        maps.find(RemoteAddr(at)).is_none_or(|mapping| mapping.perms.exec && !mapping.perms.shared)
            && arenas.holding(at).is_none()
    })
}

/// The arenas of sessions, ascending.
struct Arenas(Vec<Range<u64>>);

impl Arenas {
    fn of(headers: &[Checked]) -> Self {
        let arenas = headers.iter().flat_map(|header| header.arenas());
        let mut ranges: Vec<_> = arenas.map(|arena| arena.address..arena.address + arena.size).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        Self(ranges)
    }

    /// The one that holds an address.
    fn holding(&self, address: u64) -> Option<&Range<u64>> {
        let after = self.0.partition_point(|range| range.start <= address);
        // Those of different sessions may overlap if one of them is forged.
        self.0[..after].iter().rev().find(|range| range.contains(&address))
    }
}

/// The mapped files, read along with a journal in the order of its addresses.
struct Files<'p> {
    process: &'p Process,
    maps: &'p Mappings,
    mapping: Option<&'p Mapping>,
    file: Option<File>,
    /// What was read last, and from where in the file.
    window: Vec<u8>,
    at: u64,
}

/// So much of a file is read at a time: sites lie close together.
const WINDOW: usize = 64 << 10;

impl Files<'_> {
    /// Whether the file holds what stood at the site before. Where there is no file, or it cannot be read, nothing speaks against it.
    fn agree(&mut self, entry: &JournalEntry) -> bool {
        let Some(mapping) = self.maps.find(RemoteAddr(entry.site)) else { return true };
        if self.mapping != Some(mapping) {
            self.mapping = Some(mapping);
            self.file = mapping.path().and_then(|_| self.process.open_mapped_file(mapping).ok());
            self.window.clear();
        }
        let (Some(file), Some(offset)) = (&self.file, mapping.file_offset(RemoteAddr(entry.site))) else {
            return true;
        };
        let mut original = entry.original();
        let in_mapping = (mapping.end.0 - entry.site).min(original.len() as u64) as usize;
        original = &original[..in_mapping];
        let is_there = |window: &[u8], at: u64| {
            let start = usize::try_from(offset.checked_sub(at)?).ok()?;
            window.get(start..start.checked_add(original.len())?).map(|bytes| bytes == original)
        };
        if let Some(same) = is_there(&self.window, self.at) {
            return same;
        }
        self.window.resize(WINDOW, 0);
        self.at = offset;
        let read = file.read_at(&mut self.window, offset).unwrap_or(0);
        self.window.truncate(read);
        is_there(&self.window, self.at).unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use trapless_wire::Arena;

    const ARENA: u64 = 0x7000_0000;
    const SITE: u64 = 0x7001_0010;

    fn header() -> Checked {
        let mut header = Header::zeroed();
        header.arenas[0] = Arena { address: ARENA, size: PAGE };
        header.block_stride = PAGE;
        Checked::own(header)
    }

    fn jump() -> JournalEntry {
        let displaced = Displaced { start: SITE, length: 7, instructions: 2 };
        let patch = Machine::X86_64.isa().patch(&displaced, ARENA + 64).unwrap();
        let mut entry = JournalEntry::new(SITE, &[0x90; 7], &patch).unwrap();
        (entry.detour, entry.detour_size, entry.return_point, entry.hits) = (ARENA + 64, 64, ARENA + 96, 128);
        entry
    }

    fn trap() -> JournalEntry {
        let mut entry = JournalEntry::new(SITE, &[0x90], Machine::X86_64.isa().facts().breakpoint).unwrap();
        (entry.detour, entry.detour_size, entry.trap, entry.copy, entry.displaced) =
            (ARENA + 64, 16, 1, 5, 5);
        entry
    }

    #[test]
    fn what_arming_writes_is_believed() {
        let (header, own) = (header(), Arenas::of(&[header()]));
        for entry in [jump(), trap()] {
            assert!(is_of_our_making(&entry, &header, &own, Machine::X86_64), "{entry:?}");
        }
    }

    #[test]
    fn whatever_else_an_entry_says_is_doubted() {
        type Forge = fn(&mut JournalEntry);
        let forgeries: [(JournalEntry, Forge); 21] = [
            (jump(), |e| e.site += 1),
            (jump(), |e| e.site = u64::MAX - 2),
            (jump(), |e| e.length = 0),
            (jump(), |e| e.length = 8),
            (jump(), |e| e.length = 255),
            (jump(), |e| e.state = 3),
            (jump(), |e| e.trap = 4),
            (jump(), |e| e.copy = 1),
            (jump(), |e| e.detour = 0),
            (jump(), |e| e.detour = u64::MAX),
            (jump(), |e| e.detour += 1),
            (jump(), |e| e.detour_size = 0),
            (jump(), |e| e.detour_size = u32::MAX),
            (jump(), |e| e.return_point = 1),
            (jump(), |e| e.hits = 129),
            (jump(), |e| e.hits = u32::MAX - 7),
            (jump(), |e| e.patched[6] = 0x90),
            (jump(), |e| e.original = e.patched),
            (trap(), |e| e.patched[0] = 0x90),
            (trap(), |e| e.copy = 17),
            (trap(), |e| e.displaced = 33),
        ];
        let (header, own) = (header(), Arenas::of(&[header()]));
        for (index, (mut entry, forge)) in forgeries.into_iter().enumerate() {
            forge(&mut entry);
            assert!(!is_of_our_making(&entry, &header, &own, Machine::X86_64), "forgery {index}");
        }
    }

    #[test]
    fn sites_lie_in_private_code_that_is_nobodys_arena() {
        let maps = |line: &str| trapless_process::parse_maps(line.as_bytes()).unwrap();
        let other = Arenas(std::iter::once(SITE & !4095..(SITE & !4095) + PAGE).collect());
        let own = Arenas::of(&[header()]);
        for (line, arenas, is) in [
            ("70010000-70020000 r-xp 0 08:01 7 /lib\n", &own, true),
            ("70010000-70020000 r-xp 0 00:00 0\n", &own, true),
            ("", &own, true),
            ("70010000-70020000 rwxp 0 08:01 7 /lib\n", &own, true),
            ("70010000-70020000 r--p 0 08:01 7 /lib\n", &own, false),
            ("70010000-70020000 r-xs 0 08:01 7 /lib\n", &own, false),
            ("70010000-70020000 r-xp 0 00:00 0\n", &other, false),
        ] {
            assert_eq!(is_where_code_is(&jump(), &maps(line), arenas), is, "{line}");
        }
    }

    #[test]
    fn a_region_goes_on_over_mappings_of_the_same_file() {
        let maps = trapless_process::parse_maps(
            b"1000-3000 rw-s 0 00:01 7 /memfd:trapless (deleted)\n\
            3000-4000 r--s 2000 00:01 7 /memfd:trapless (deleted)\n\
            4000-5000 rw-s 2000 00:01 7 /memfd:trapless (deleted)\n\
            5000-6000 rw-s 0 00:01 8 /memfd:trapless (deleted)\n\
            6000-7000 rw-s 1000 00:01 9 /memfd:trapless (deleted)\n\
            8000-9000 rw-s 0 00:01 9 /memfd:trapless2 (deleted)\n",
        )
        .unwrap();
        assert_eq!(regions(&maps).collect::<Vec<_>>(), [0x1000..0x4000, 0x5000..0x6000]);
    }
}
