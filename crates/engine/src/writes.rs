//! Putting in and taking out the writes of a journal.
//!
//! A site is put in as a whole or not at all: where one of its writes meets other bytes than the file's, the others are undone.
//! It is taken out write by write: each only where our own bytes stand, whatever became of the others.
//!
//! What a short jump leads to goes in before it and comes out after it, so whoever is killed between the two leaves nothing that leads
//! to what is not there. Jumps back to a site that lead past the probe go in and come out with the site: each leads to a copy of what it has
//! always led to, whatever stands at the other places. So does a pointer to the original of a function that is replaced. Where somebody else's bytes stand over a short jump, its room stays: they may put the jump back.

use crate::patch::{self, Change, Found};
use trapless_isa::Mechanism;
use trapless_process::{MemoryError, Process, RemoteAddr};
use trapless_wire::{Journal, SiteWrites, Write, WriteKind};

/// What taking out has done, in sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenOut {
    /// All of ours was there, and the original bytes are there again.
    pub restored: usize,
    /// Something of it had other bytes than ours, or is unmapped.
    pub left: usize,
    /// Whether somebody else's bytes stand over any of ours.
    pub covered: bool,
}

/// Puts in the writes of all planned sites, and tells which sites were left as they are, ascending.
///
/// # Errors
/// Those of the memory. What was put in until then is taken out again, as far as that can be.
pub(crate) fn put_in(process: &Process, journal: &Journal) -> Result<Vec<usize>, MemoryError> {
    let rooms = rooms(journal);
    let mut refused = Vec::new();
    for &part in rooms.iter().rev() {
        let is_refused = |site: usize| refused.binary_search(&site).is_ok();
        let which = |site: &SiteWrites<'_>| !is_refused(site.index);
        let (sites, changes) = by_address(journal, part, which, |write| (write.original, write.patched));
        let found = match patch::apply(process, &changes) {
            Ok(found) => found,
            Err(error) => {
                let _ = take_out(process, journal, |_| true);
                return Err(error);
            }
        };
        let others = found.iter().zip(&sites).filter(|(found, _)| **found != Found::Changed);
        let others: Vec<usize> = others.map(|(_, site)| *site).collect();
        refused.extend(&others);
        refused.sort_unstable();
        refused.dedup();
        let is_refused = |site: usize| refused.binary_search(&site).is_ok();
        let undone: Vec<_> = (changes.iter().zip(&sites).zip(&found))
            .filter(|((_, site), found)| **found == Found::Changed && is_refused(**site))
            .map(|((change, _), _)| Change { address: change.address, from: change.to, to: change.from })
            .collect();
        patch::apply(process, &undone)?;
        if part == Part::Own && rooms.len() > 1 && !others.is_empty() {
            let which = |site: &SiteWrites<'_>| others.contains(&site.index);
            let (_, changes) =
                by_address(journal, Part::Rooms, which, |write| (write.patched, write.original));
            patch::apply(process, &changes)?;
        }
    }
    Ok(refused)
}

/// Takes out the writes of those planned sites that `which` says.
///
/// # Errors
/// Those of the memory.
pub(crate) fn take_out(
    process: &Process,
    journal: &Journal,
    which: impl Fn(&SiteWrites<'_>) -> bool,
) -> Result<TakenOut, MemoryError> {
    let mut worst = vec![Found::Already; journal.len()];
    for &part in rooms(journal) {
        let may_go =
            |site: &SiteWrites<'_>| which(site) && (part == Part::Own || worst[site.index] != Found::Foreign);
        let (sites, changes) = by_address(journal, part, may_go, |write| (write.patched, write.original));
        for ((found, &site), change) in patch::apply(process, &changes)?.into_iter().zip(&sites).zip(&changes)
        {
            // What somebody else has stored in a pointer stays, and speaks for nothing else.
            if found == Found::Changed || !is_pointer(journal, site, change.address) {
                worst[site] = worst[site].max(found);
            }
        }
    }
    let count = |wanted: Found| worst.iter().filter(|found| **found == wanted).count();
    Ok(TakenOut {
        restored: count(Found::Changed),
        left: count(Found::Unmapped) + count(Found::Foreign),
        covered: count(Found::Foreign) > 0,
    })
}

/// Whether what a site writes at an address is a pointer.
fn is_pointer(journal: &Journal, site: usize, address: u64) -> bool {
    let is_it = |write: Write<'_>| write.kind == WriteKind::Pointer && write.address == address;
    journal.site(site).is_some_and(|site| site.is_replaced() && site.writes().any(is_it))
}

/// Whether these bytes stand at an address.
pub(crate) fn stands(process: &Process, address: u64, bytes: &[u8]) -> bool {
    let mut now = vec![0; bytes.len()];
    process.read_exact(RemoteAddr(address), &mut now).is_ok() && now == bytes
}

/// The writes of a journal that go in and come out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// What threads of the program come to.
    Own,
    /// What only a short jump leads to.
    Rooms,
}

/// The parts that a journal has, in the order in which they come out.
fn rooms(journal: &Journal) -> &'static [Part] {
    match journal.planned().any(|site| site.mechanism() == Some(Mechanism::Short)) {
        true => &[Part::Own, Part::Rooms],
        false => &[Part::Own],
    }
}

/// The writes of one part of those planned sites by address, as changes, and the index of each one's site.
fn by_address<'j>(
    journal: &'j Journal,
    part: Part,
    which: impl Fn(&SiteWrites<'j>) -> bool,
    from_to: impl Fn(&Write<'j>) -> (&'j [u8], &'j [u8]),
) -> (Vec<usize>, Vec<Change<'j>>) {
    let mut all = Vec::with_capacity(journal.len());
    for site in journal.planned().filter(|site| which(site)) {
        let is_of_part = |write: &Write<'_>| (write.kind == WriteKind::Room) == (part == Part::Rooms);
        for write in site.writes().filter(is_of_part) {
            let (from, to) = from_to(&write);
            all.push((site.index, Change { address: write.address, from, to }));
        }
    }
    all.sort_unstable_by_key(|(_, change)| change.address);
    all.into_iter().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use trapless_process::Pid;
    use trapless_testing::Idle;
    use trapless_wire::{JournalSite, MAX_WRITE, SiteRole, SiteState};

    const LENGTH: usize = 4 * 4096;

    /// Pages of a process that waits, which it does not use, filled with nops.
    struct Text {
        process: Process,
        _idle: Idle,
        start: u64,
    }

    impl Text {
        fn new() -> Self {
            let idle = Idle::start();
            let process = Process::open(Pid(idle.pid())).unwrap();
            // It waits high up on its stack.
            let start = process.maps().unwrap().iter().find(|m| m.is_special("[stack]")).unwrap().start.0;
            let text = Self { process, _idle: idle, start };
            text.write(0, &[0x90; LENGTH]);
            text
        }

        fn at(&self, offset: u64) -> u64 {
            self.start + offset
        }

        fn read(&self, offset: u64, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            self.process.read_exact(RemoteAddr(self.at(offset)), &mut bytes).unwrap();
            bytes
        }

        fn write(&self, offset: u64, bytes: &[u8]) {
            self.process.write(RemoteAddr(self.at(offset)), bytes).unwrap();
        }

        fn is_original(&self) -> bool {
            self.read(0, LENGTH) == [0x90; LENGTH]
        }

        /// A site for each list of writes: offset, and length.
        fn journal(&self, sites: &[&[(u64, usize)]]) -> Journal {
            let mut journal = Journal::default();
            let (original, patched) = ([0x90; MAX_WRITE], [0x11; MAX_WRITE]);
            for writes in sites {
                let write = |&(offset, length): &(u64, usize)| Write {
                    address: self.at(offset),
                    kind: WriteKind::Branch,
                    original: &original[..length],
                    patched: &patched[..length],
                };
                let number = journal.len() as u64 + 1;
                let state = SiteState::Planned as u8;
                let site = JournalSite { site: number, state, ..JournalSite::zeroed() };
                journal.push(site, &writes.iter().map(write).collect::<Vec<_>>()).unwrap();
            }
            journal
        }
    }

    #[test]
    fn a_site_may_have_several_writes_of_any_length_in_any_order() {
        let text = Text::new();
        // One lies before the site that it belongs to, one over the end of a page, and sites lie between each other.
        let journal = text.journal(&[&[(100, 5), (20, 40)], &[(4000, MAX_WRITE), (80, 1)], &[(8000, 7)]]);
        assert_eq!(put_in(&text.process, &journal).unwrap(), []);
        for (offset, length) in [(100, 5), (20, 40), (4000, MAX_WRITE), (80, 1), (8000, 7)] {
            let around = text.read(offset - 1, length + 2);
            assert!(around[1..=length].iter().all(|byte| *byte == 0x11), "{offset}: {around:x?}");
            assert_eq!((around[0], around[length + 1]), (0x90, 0x90), "{offset}");
        }
        let restored = TakenOut { restored: 3, left: 0, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), restored);
        assert!(text.is_original());
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), TakenOut::default());
    }

    #[test]
    fn a_site_of_which_one_write_meets_other_bytes_is_not_put_in() {
        let text = Text::new();
        let journal = text.journal(&[&[(100, 5)], &[(200, 5), (5000, 40), (300, 2)], &[(400, 5)]]);
        text.write(5039, &[0xcc]);
        assert_eq!(put_in(&text.process, &journal).unwrap(), [1]);
        text.write(5039, &[0x90]);
        assert_eq!([200, 5000, 300].map(|at| text.read(at, 2)), [[0x90; 2]; 3]);
        assert_eq!([100, 400].map(|at| text.read(at, 2)), [[0x11; 2]; 2]);
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap().restored, 2);
        assert!(text.is_original());
    }

    /// One site with a short jump at 100 whose room is at 200, and another with a jump at 400.
    fn with_room(text: &Text) -> Journal {
        let mut journal = Journal::default();
        let write = |offset, kind| Write {
            address: text.at(offset),
            kind,
            original: &[0x90; 10],
            patched: &[0x11; 10],
        };
        let site = |site, mechanism: Mechanism| JournalSite {
            site,
            state: SiteState::Planned as u8,
            trap: mechanism.number(),
            ..JournalSite::zeroed()
        };
        let both = [write(100, WriteKind::Branch), write(200, WriteKind::Room)];
        journal.push(site(1, Mechanism::Short), &both).unwrap();
        journal.push(site(2, Mechanism::Jump), &[write(400, WriteKind::Branch)]).unwrap();
        journal
    }

    #[test]
    fn a_short_jump_and_its_room_go_in_and_come_out_together() {
        let text = Text::new();
        let journal = with_room(&text);
        assert_eq!(put_in(&text.process, &journal).unwrap(), []);
        assert_eq!([100, 200, 400].map(|at| text.read(at, 10)), [[0x11; 10]; 3]);
        let restored = TakenOut { restored: 2, left: 0, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), restored);
        assert!(text.is_original());
        for at in [100, 200] {
            text.write(at + 9, &[0xcc]);
            assert_eq!(put_in(&text.process, &journal).unwrap(), [0]);
            text.write(at + 9, &[0x90]);
            assert_eq!([100, 200].map(|at| text.read(at, 10)), [[0x90; 10]; 2]);
            take_out(&text.process, &journal, |_| true).unwrap();
            assert!(text.is_original());
        }
    }

    #[test]
    fn room_stays_as_long_as_somebody_else_may_put_back_what_leads_there() {
        let text = Text::new();
        let journal = with_room(&text);
        put_in(&text.process, &journal).unwrap();
        text.write(100, &[0xcc]);
        let taken = TakenOut { restored: 1, left: 1, covered: true };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), taken);
        assert_eq!(text.read(200, 10), [0x11; 10]);
        text.write(100, &[0x11]);
        let taken = TakenOut { restored: 1, left: 0, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), taken);
        assert!(text.is_original());
    }

    #[test]
    fn a_site_that_was_skipped_is_left_alone() {
        let text = Text::new();
        let mut journal = text.journal(&[&[(100, 5), (50, 2)], &[(200, 5)]]);
        journal.skip(0);
        assert_eq!(put_in(&text.process, &journal).unwrap(), []);
        assert_eq!([100, 50].map(|at| text.read(at, 2)), [[0x90; 2]; 2]);
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap().restored, 1);
        assert!(text.is_original());
    }

    #[test]
    fn each_write_is_taken_out_only_where_all_of_its_bytes_are_ours() {
        let text = Text::new();
        let journal = text.journal(&[&[(100, 5), (1000, MAX_WRITE), (300, 2)], &[(400, 5)]]);
        put_in(&text.process, &journal).unwrap();
        // The last byte of the long one is somebody else's.
        text.write(1000 + MAX_WRITE as u64 - 1, &[0xcc]);
        let taken = TakenOut { restored: 1, left: 1, covered: true };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), taken);
        assert_eq!([100, 300, 400].map(|at| text.read(at, 2)), [[0x90; 2]; 3]);
        assert_eq!(text.read(1000, 2), [0x11; 2]);
        // When that is gone, so is ours.
        text.write(1000 + MAX_WRITE as u64 - 1, &[0x11]);
        let taken = TakenOut { restored: 1, left: 0, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), taken);
        assert!(text.is_original());
    }

    #[test]
    fn what_the_program_has_stored_in_a_pointer_stays_and_covers_nothing() {
        let text = Text::new();
        let mut journal = Journal::default();
        let (state, role) = (SiteState::Planned as u8, SiteRole::Replaced as u8);
        let site = JournalSite { site: 1, state, role, ..JournalSite::zeroed() };
        let write = |offset, kind| Write {
            address: text.at(offset),
            kind,
            original: &[0x90; 8],
            patched: &[0x11; 8],
        };
        journal.push(site, &[write(100, WriteKind::Branch), write(2000, WriteKind::Pointer)]).unwrap();
        assert_eq!(put_in(&text.process, &journal).unwrap(), []);
        assert_eq!([100, 2000].map(|at| text.read(at, 8)), [[0x11; 8]; 2]);
        text.write(2000, &[0x22; 8]);
        let restored = TakenOut { restored: 1, left: 0, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), restored);
        assert_eq!((text.read(100, 8), text.read(2000, 8)), (vec![0x90; 8], vec![0x22; 8]));
        // Where it led elsewhere, nothing is put in.
        assert_eq!(put_in(&text.process, &journal).unwrap(), [0]);
        assert_eq!(text.read(100, 8), [0x90; 8]);
    }

    #[test]
    fn some_sites_may_come_out_before_others() {
        let text = Text::new();
        let journal = text.journal(&[&[(100, 5)], &[(200, 5), (300, 2)], &[(400, 5)]]);
        put_in(&text.process, &journal).unwrap();
        assert_eq!(take_out(&text.process, &journal, |site| site.site != 2).unwrap().restored, 2);
        assert_eq!([100, 400].map(|at| text.read(at, 2)), [[0x90; 2]; 2]);
        assert_eq!([200, 300].map(|at| text.read(at, 2)), [[0x11; 2]; 2]);
        assert_eq!(take_out(&text.process, &journal, |site| site.site == 2).unwrap().restored, 1);
        assert!(text.is_original());
    }

    #[test]
    fn what_is_unmapped_is_left() {
        let text = Text::new();
        let mut journal = text.journal(&[&[(100, 5)]]);
        let site = JournalSite { state: SiteState::Planned as u8, ..JournalSite::zeroed() };
        let far =
            Write { address: 1 << 46, kind: WriteKind::Branch, original: &[0x90; 33], patched: &[0x11; 33] };
        let near = Write { address: text.at(200), ..far };
        journal.push(site, &[near, far]).unwrap();
        assert_eq!(put_in(&text.process, &journal).unwrap(), [1]);
        assert_eq!(text.read(200, 33), [0x90; 33]);
        let taken = TakenOut { restored: 1, left: 1, covered: false };
        assert_eq!(take_out(&text.process, &journal, |_| true).unwrap(), taken);
    }
}
