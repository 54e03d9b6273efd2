//! Sessions found in a process by the memory they left there.
//!
//! Everything here was written by the target, or could have been. A header is believed if it is one that this version writes, of memory
//! that is really mapped ([`Checked::read`]); how much of a journal is believed, [`crate::believe`] tells.

use crate::{
    EngineError,
    believe::{self, Arenas},
    writes,
};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use trapless_process::{Mapping, Mappings, Pid, Process, RemoteAddr};
use trapless_wire::{
    ARENA_LIST_SIZE, Arena, BadHeader, Checked, Counters, Header, Journal, MAX_ARENAS, Numbers, PAGE, Places,
    REGION_NAME, RawPlace, Schema, SessionState, SiteWrites, Words, WriteKind,
};

/// A session found in a process by its shared region, or one of our own.
#[derive(Clone, Debug)]
pub struct FoundSession {
    /// Its header.
    pub header: Checked,
    /// Its journal, as far as it is believed.
    pub journal: Journal,
    /// How many of its sites are not believed.
    pub doubted: usize,
}

impl FoundSession {
    /// A session of this tool's own making, kept where the target cannot write.
    pub fn own(header: Header, journal: Journal) -> Self {
        Self { header: Checked::own(header), journal, doubted: 0 }
    }

    /// What its believed sites collect, and where, read from the target; and how many places of the schema are not believed.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn schema(&self, process: &Process) -> Result<(Schema, usize), EngineError> {
        let start = self.header.region + self.header.places_at();
        let mut list: Vec<RawPlace> = believe::read_list(process, start, self.header.places)?;
        let probes: HashSet<u32> = self.journal.sites().map(|site| site.probe).collect();
        list.retain(|place| probes.contains(&place.probe));
        Ok(Schema::read(&self.header, &list))
    }

    /// The numbers of some probes, read from the target, in the same order. What cannot be read is 0.
    pub fn numbers(&self, process: &Process, probes: &[Places]) -> Vec<Numbers> {
        let region = self.header.region;
        let words = RemoteWords { process, region, page: RefCell::new((u64::MAX, [0; PAGE as usize])) };
        Counters::new(&self.header, &words).numbers(probes)
    }

    /// Whether the tool that armed it still runs. One that was killed and not yet waited for does not, nor does another process
    /// that got its id. One that cannot be looked at may.
    pub fn has_owner(&self) -> bool {
        let Ok(tool) = i32::try_from(self.header.tool) else { return false };
        Process::known_start_of(Pid(tool)).map_or(true, |start| start == Some(self.header.tool_start_time))
    }

    /// Whether its patches are out, and what is left is memory into which something may still lead.
    pub fn is_removed(&self) -> bool {
        is_removed(&self.header)
    }

    /// Whether a site at which unwinders ask is still armed.
    pub fn asks_for_unwinders(&self, process: &Process) -> bool {
        self.journal.planned().any(|site| site.is_lookup() && self.is_armed(process, &site))
    }

    /// The inode of its memory, if that is mapped in the process: no other session has it. What its header says is not asked for: the
    /// target can write there.
    pub(crate) fn inode(&self, process: &Process) -> Result<Option<u64>, EngineError> {
        let maps = process.maps()?;
        let region = regions(&maps).find(|at| at.start == self.header.region);
        let mapping = region.and_then(|at| maps.iter().find(|mapping| mapping.start.0 == at.start));
        Ok(mapping.map(|mapping| mapping.inode))
    }

    /// Whether all writes of the site are in place. What a pointer leads to is the program's to change.
    pub fn is_armed(&self, process: &Process, site: &SiteWrites<'_>) -> bool {
        let mut code = site.writes().filter(|write| write.kind != WriteKind::Pointer);
        code.all(|write| writes::stands(process, write.address, write.patched))
    }
}

/// The shared region, read through the target a page at a time: that takes no more of its memory than one word would.
struct RemoteWords<'p> {
    process: &'p Process,
    region: u64,
    /// Which page was read last, and what is in it.
    page: RefCell<(u64, [u8; PAGE as usize])>,
}

impl Words for RemoteWords<'_> {
    fn word(&self, offset: u64) -> u64 {
        let (page, at) = (offset / PAGE, (offset % PAGE) as usize);
        let mut last = self.page.borrow_mut();
        if last.0 != page {
            let address = self.region.wrapping_add(page * PAGE);
            last.0 = page;
            if self.process.read_exact(RemoteAddr(address), &mut last.1).is_err() {
                last.1.fill(0);
            }
        }
        last.1.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
    }
}

/// Sessions whose memory is mapped in `process`, armed or not.
///
/// Read from the target's own memory: the file descriptor is long closed.
pub fn find_sessions(process: &Process) -> Result<Vec<FoundSession>, EngineError> {
    let maps = process.maps()?;
    let headers: Vec<Checked> = regions(&maps).filter_map(|at| read_header(process, &at).ok()).collect();
    let arenas = Arenas::of(&headers);
    headers.iter().map(|header| believe::session(process, &maps, *header, &arenas)).collect()
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
    removed.map(|header| believe::session(process, &maps, *header, &arenas)).collect()
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

/// The arenas of a session that a process itself has, as its own list tells. `header` is known to be the session's.
///
/// # Errors
/// Those of the memory; the list is not what we have written there.
pub(crate) fn arenas(process: &Process, header: &Header) -> Result<[Arena; MAX_ARENAS], EngineError> {
    let mut list = [0; ARENA_LIST_SIZE];
    process.read_exact(RemoteAddr(header.arena_list()), &mut list)?;
    let found = Checked::own(*header).with_arenas(&list);
    found.map(|found| found.arenas).map_err(|_| EngineError::NotArmed)
}

fn read_header(process: &Process, at: &Range<u64>) -> Result<Checked, BadHeader> {
    let mut bytes = vec![0; size_of::<Header>()];
    process.read_exact(RemoteAddr(at.start), &mut bytes).map_err(|_| BadHeader::Foreign)?;
    let header = Checked::read(&bytes, at.clone())?;
    let mut list = [0; ARENA_LIST_SIZE];
    match process.read_exact(RemoteAddr(header.arena_list()), &mut list) {
        // Whoever armed it was killed before it had written any.
        Ok(()) if list.iter().all(|byte| *byte == 0) => Ok(header),
        Ok(()) => header.with_arenas(&list),
        // It is not mapped, or not any more.
        Err(_) => Ok(header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its probes would be taken out.
    #[test]
    fn the_session_of_a_tool_that_cannot_be_looked_at_is_not_taken_for_nobodys() {
        let tool = std::process::id();
        let tool_start_time = Process::start_of(Pid(tool as i32)).unwrap();
        let has_owner = |tool, tool_start_time| {
            let mut header: Header = bytemuck::Zeroable::zeroed();
            (header.tool, header.tool_start_time) = (tool, tool_start_time);
            FoundSession::own(header, Journal::default()).has_owner()
        };
        let gone = i32::MAX as u32;
        let looked = [(tool, tool_start_time), (tool, tool_start_time + 1), (tool, 0), (gone, 0)];
        assert_eq!(looked.map(|(tool, start)| has_owner(tool, start)), [true, false, false, false]);
        let blind = trapless_process::keeper::run(|_| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the call reads one rlimit, and limits a process that ends with this.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
            vec![u8::from(has_owner(tool, tool_start_time))]
        });
        assert_eq!(blind.unwrap(), [1]);
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
