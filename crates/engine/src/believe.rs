//! How much of a journal is believed that was found in a process.
//!
//! The target has written it, or could have: a hostile one forges sessions, and a careless one overwrites ours. What is taken out in
//! their name is limited to what this tool would have done:
//!
//! 1. The lists are read as far as they were written, a piece at a time, and of the bytes no more than the writes name.
//! 2. A site is believed if it has all of its writes, if its detour lies in one of the session's arenas, and if what was written is
//!    the very jump there that the instruction set makes, or the breakpoint. The same goes for a short jump and its room, and for jumps back to
//!    the site that lead past the probe, and for a pointer to the original of a function that is replaced: into what is the site's of that arena.
//! 3. Each write lies in private executable memory, not in an arena of anybody's, and its original bytes are those of the mapped file,
//!    where that can be read. A pointer lies in private memory that can be written, and led to the function itself.
//!
//! So removal only ever takes out a jump into the session's own arena, and only ever writes what the file holds. Sites that
//! are not believed are left alone and counted, and then the session's memory stays mapped: a jump may still lead there.

use crate::{EngineError, FoundSession, target};
use bytemuck::AnyBitPattern;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use trapless_isa::{Displaced, Flow, Machine, Mechanism};
use trapless_process::{Mapping, Mappings, Process, ReadRange, RemoteAddr};
use trapless_wire::{
    Checked, Header, Journal, JournalSite, JournalWrite, SiteRole, SiteState, Write, WriteKind, WriteShape,
};

/// So many elements of a list are read at a time. What they say of their number is the target's word, and its memory may be a hole.
const PIECE: usize = 8192;

/// The longest code that a patch displaces.
const MAX_DISPLACED: usize = 64;

/// The session of a header, as far as it is believed. `arenas` are those of all sessions of the process.
pub(crate) fn session(
    process: &Process,
    maps: &Mappings,
    header: Checked,
    arenas: &Arenas,
) -> Result<FoundSession, EngineError> {
    let machine = target::machine(process);
    let own = Arenas::of(&[header]);
    let sizes = header.journal;
    let sites: Vec<JournalSite> = read_list(process, header.region + sizes.site_at(0), sizes.sites)?;
    let written = if sites.is_empty() { 0 } else { sizes.writes };
    let written: Vec<JournalWrite> = read_list(process, header.region + sizes.write_at(0), written)?;
    let writes = Writes::read(process, &header, &sites, &written)?;

    let mut order: Vec<usize> = (0..sites.len()).collect();
    order.sort_by_key(|&index| sites[index].site);
    let mut files = Files { process, maps, mapping: None, file: None, window: Vec::new(), at: 0 };
    let mut journal = Journal::default();
    for index in order {
        let (site, writes) = (sites[index], writes.of(index));
        let is_believed = is_of_our_making(&site, &writes, &own, machine)
            && writes.iter().all(|write| is_where_code_is(write, maps, arenas) && files.agree(write));
        if is_believed {
            journal.push(site, &writes);
        }
    }
    let doubted = sites.len() - journal.len();
    Ok(FoundSession { header, journal, doubted })
}

/// The elements of a list up to the first that was not written: whoever armed was killed before it had written more.
pub(crate) fn read_list<T: AnyBitPattern>(
    process: &Process,
    start: u64,
    count: u64,
) -> Result<Vec<T>, EngineError> {
    let mut list = Vec::new();
    let (mut left, mut at) = (count as usize, RemoteAddr(start));
    let mut bytes = vec![0; PIECE.min(left) * size_of::<T>()];
    while left > 0 {
        let piece = &mut bytes[..PIECE.min(left) * size_of::<T>()];
        process.read_exact(at, piece)?;
        for element in piece.chunks_exact(size_of::<T>()) {
            if element.iter().all(|byte| *byte == 0) {
                return Ok(list);
            }
            list.push(bytemuck::pod_read_unaligned(element));
        }
        at = at + piece.len() as u64;
        left -= PIECE.min(left);
    }
    Ok(list)
}

/// The writes of a journal whose shape is that of ours, with their bytes.
struct Writes {
    /// By site, each with where its bytes are in `bytes`.
    shapes: Vec<(WriteShape, usize)>,
    bytes: Vec<u8>,
}

impl Writes {
    fn read(
        process: &Process,
        header: &Header,
        sites: &[JournalSite],
        written: &[JournalWrite],
    ) -> Result<Self, EngineError> {
        let mut shapes = Vec::with_capacity(written.len());
        // Ours do not overlap, so all of them together are no longer than the journal's bytes.
        let mut length = 0;
        for shape in written.iter().filter_map(|write| write.shape(&header.journal, sites.len())) {
            let end = length + 2 * shape.length;
            if end as u64 <= header.journal.bytes {
                shapes.push((shape, length));
                length = end;
            }
        }
        let mut bytes = vec![0; length];
        let start = header.region + header.journal.bytes_at();
        let mut whole = Vec::with_capacity(shapes.len());
        let mut rest = &mut bytes[..];
        for piece in shapes.chunks(PIECE) {
            let mut ranges = Vec::with_capacity(piece.len());
            for (shape, _) in piece {
                let (range, after) = rest.split_at_mut(2 * shape.length);
                ranges.push(ReadRange::new(RemoteAddr(start + shape.at), range));
                rest = after;
            }
            process.read_vectored(&mut ranges)?;
            whole.extend(ranges.iter().map(|range| range.done == range.buffer.len()));
        }
        let mut is_whole = whole.into_iter();
        shapes.retain(|_| is_whole.next() == Some(true));
        shapes.sort_by_key(|(shape, _)| shape.site);
        Ok(Self { shapes, bytes })
    }

    /// Those of a site.
    fn of(&self, site: usize) -> Vec<Write<'_>> {
        let first = self.shapes.partition_point(|(shape, _)| shape.site < site);
        let own = self.shapes[first..].iter().take_while(|(shape, _)| shape.site == site);
        own.map(|&(WriteShape { address, kind, length, .. }, at)| {
            let (original, patched) = self.bytes[at..at + 2 * length].split_at(length);
            Write { address, kind, original, patched }
        })
        .collect()
    }
}

/// Whether a site and its writes say only what arming would have written.
fn is_of_our_making(site: &JournalSite, writes: &[Write<'_>], own: &Arenas, machine: Machine) -> bool {
    // Every mechanism there is takes one, and one of them a second one for room. Behind those that do not trap come the turns.
    let Some((write, rest)) = writes.split_first() else { return false };
    let is_shaped = usize::from(site.writes) == writes.len()
        && write.address == site.site
        && SiteState::from_raw(site.state).is_some()
        && (1..=MAX_DISPLACED).contains(&usize::from(site.displaced))
        && SiteRole::from_raw(site.role).is_some()
        && site.ahead < site.displaced
        && write.original != write.patched;
    let detour = own
        .holding(site.detour)
        .filter(|arena| site.detour_size > 0 && u64::from(site.detour_size) <= arena.end - site.detour);
    if !is_shaped || detour.is_none() {
        return false;
    }
    let inside = site.detour..=site.detour + u64::from(site.detour_size);
    let returns = site.return_at == 0 || inside.contains(&site.return_point());
    let are_turns = |turns: &[Write<'_>]| {
        turns.iter().all(|turn| turn.kind == WriteKind::Turn && is_turn_of_our_making(site, turn, machine))
    };
    // Of one that is replaced, what leads to the original comes last.
    let (pointer, rest) = match rest.split_last() {
        Some((pointer, rest)) if pointer.kind == WriteKind::Pointer => (Some(pointer), rest),
        _ => (None, rest),
    };
    let leads_to_original = |pointer: &Write<'_>| {
        site.role == SiteRole::Replaced as u8 && is_pointer_of_our_making(site, pointer, machine)
    };
    if !pointer.is_none_or(leads_to_original) {
        return false;
    }
    let is_ours = match (site.mechanism(), write.kind, rest) {
        (Some(Mechanism::Jump), WriteKind::Branch, turns) => {
            let displaced = Displaced { start: site.site, length: site.displaced, instructions: 1 };
            let patch = machine.isa().patch(&displaced, site.detour);
            site.copy == 0 && patch.is_ok_and(|patch| patch == write.patched) && are_turns(turns)
        }
        (Some(Mechanism::Short), WriteKind::Branch, [room, turns @ ..]) => {
            site.copy == 0
                && room.kind == WriteKind::Room
                && is_room_of_our_making(site, write, room, machine)
                && are_turns(turns)
        }
        (Some(Mechanism::Boost | Mechanism::Emulate | Mechanism::Step), WriteKind::Breakpoint, []) => {
            write.patched == machine.isa().facts().breakpoint
                && site.return_at == 0
                && u32::from(site.copy) <= site.detour_size
        }
        _ => false,
    };
    is_ours && returns
}

/// Whether a short jump leads to a jump to the detour, in room that was made as we make it.
fn is_room_of_our_making(site: &JournalSite, short: &Write<'_>, room: &Write<'_>, machine: Machine) -> bool {
    let displaced = Displaced { start: site.site, length: site.displaced, instructions: 1 };
    let Ok(length) = u8::try_from(room.original.len()) else { return false };
    let isa = machine.isa();
    // What made room stands behind the detour; nothing did, if it is padding.
    [0, 1].into_iter().any(|instructions| {
        let place = Displaced { start: room.address, length, instructions };
        let moved_to = isa.moved_to(&place, room.patched);
        let is_inside = instructions == 0
            || (site.detour + 1..site.detour + u64::from(site.detour_size)).contains(&moved_to);
        is_inside
            && isa
                .patches(&displaced, &place, site.detour, moved_to)
                .is_ok_and(|[first, second]| first == short.patched && second == room.patched)
    })
}

/// Whether a jump leads into what is the site's of an arena, and was changed in its place or moved there as we do it.
fn is_turn_of_our_making(site: &JournalSite, turn: &Write<'_>, machine: Machine) -> bool {
    let Ok(length) = u8::try_from(turn.original.len()) else { return false };
    let isa = machine.isa();
    let to = match isa.decode(turn.patched, turn.address).map(|jump| jump.flow) {
        Ok(Flow::Jump { target } | Flow::Branch { target }) => target,
        _ => return false,
    };
    let inside = site.detour..site.detour + u64::from(site.detour_size);
    let turned = |instructions: u8| {
        let place = Displaced { start: turn.address, length, instructions };
        isa.turned(&place, turn.original, to).is_ok_and(|turned| turned == turn.patched)
    };
    inside.contains(&to) && [0, 1].into_iter().any(turned)
}

/// Whether a pointer led to the function, and leads into what is the site's of an arena.
fn is_pointer_of_our_making(site: &JournalSite, pointer: &Write<'_>, machine: Machine) -> bool {
    let word = usize::from(machine.isa().facts().word);
    let address = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).ok().map(u64::from_le_bytes);
    let (Some(from), Some(to)) = (address(pointer.original), address(pointer.patched)) else { return false };
    // Behind what stays at the entry is the site.
    let is_function = (site.site.saturating_sub(MAX_DISPLACED as u64)..=site.site).contains(&from);
    let inside = site.detour..site.detour + u64::from(site.detour_size);
    word == 8 && pointer.address.is_multiple_of(8) && is_function && inside.contains(&to)
}

/// Whether a write lies where code is that is the process's own. One that lies nowhere any more is believed: its module was unloaded.
fn is_where_code_is(write: &Write<'_>, maps: &Mappings, arenas: &Arenas) -> bool {
    let range = write.range();
    let is_its = |mapping: &Mapping| match write.kind {
        WriteKind::Pointer => mapping.perms.write && !mapping.perms.exec && !mapping.perms.shared,
        _ => mapping.perms.exec && !mapping.perms.shared,
    };
    [range.start, range.end - 1]
        .into_iter()
        .all(|at| maps.find(RemoteAddr(at)).is_none_or(is_its) && arenas.holding(at).is_none())
}

/// The arenas of sessions, ascending.
pub(crate) struct Arenas(Vec<Range<u64>>);

impl Arenas {
    pub(crate) fn of(headers: &[Checked]) -> Self {
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
    /// Whether the file holds what stood there before. Where there is no file, or it cannot be read, nothing speaks against it.
    fn agree(&mut self, write: &Write<'_>) -> bool {
        if write.kind == WriteKind::Pointer {
            return true;
        }
        let Some(mapping) = self.maps.find(RemoteAddr(write.address)) else { return true };
        if self.mapping != Some(mapping) {
            self.mapping = Some(mapping);
            self.file = mapping.path().and_then(|_| self.process.open_mapped_file(mapping).ok());
            self.window.clear();
        }
        let (Some(file), Some(offset)) = (&self.file, mapping.file_offset(RemoteAddr(write.address))) else {
            return true;
        };
        let in_mapping = (mapping.end.0 - write.address).min(write.original.len() as u64) as usize;
        let original = &write.original[..in_mapping];
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
    use trapless_wire::{Arena, PAGE};

    const ARENA: u64 = 0x7000_0000;
    const SITE: u64 = 0x7001_0010;

    fn header() -> Checked {
        let mut header = Header::zeroed();
        header.arenas[0] = Arena { address: ARENA, size: PAGE };
        Checked::own(header)
    }

    /// A site with one write.
    #[derive(Clone, Debug)]
    struct Entry {
        site: JournalSite,
        kind: WriteKind,
        address: u64,
        original: Vec<u8>,
        patched: Vec<u8>,
    }

    impl Entry {
        fn write(&self) -> Write<'_> {
            let Entry { kind, address, original, patched, .. } = self;
            Write { address: *address, kind: *kind, original, patched }
        }

        fn is_believed(&self) -> bool {
            let own = Arenas::of(&[header()]);
            is_of_our_making(&self.site, &[self.write()], &own, Machine::X86_64)
        }
    }

    fn jump() -> Entry {
        let displaced = Displaced { start: SITE, length: 7, instructions: 2 };
        let patched = Machine::X86_64.isa().patch(&displaced, ARENA + 64).unwrap();
        let site = JournalSite {
            site: SITE,
            detour: ARENA + 64,
            detour_size: 64,
            return_at: 32,
            probe: 7,
            writes: 1,
            state: SiteState::Planned as u8,
            displaced: 7,
            ..JournalSite::zeroed()
        };
        Entry { site, kind: WriteKind::Branch, address: SITE, original: vec![0x90; 7], patched }
    }

    fn trap() -> Entry {
        let Entry { site, .. } = jump();
        let site = JournalSite { detour_size: 16, return_at: 0, trap: 1, copy: 5, displaced: 5, ..site };
        let (original, patched) = (vec![0x90], Machine::X86_64.isa().facts().breakpoint.to_vec());
        Entry { site, kind: WriteKind::Breakpoint, address: SITE, original, patched }
    }

    /// A short jump and its room, of which `instructions` were moved.
    fn short(instructions: u8) -> (JournalSite, [Entry; 2]) {
        let isa = Machine::X86_64.isa();
        let displaced = Displaced { start: SITE, length: 3, instructions: 1 };
        let room = Displaced { start: SITE + 40, length: 12, instructions };
        let [first, second] = isa.patches(&displaced, &room, ARENA + 64, ARENA + 112).unwrap();
        let number = Mechanism::Short.number();
        let site = JournalSite { trap: number, displaced: 3, writes: 2, ..jump().site };
        let entry = |kind, address, patched: Vec<u8>| {
            let original = vec![0x90; patched.len()];
            Entry { site, kind, address, original, patched }
        };
        (site, [entry(WriteKind::Branch, SITE, first), entry(WriteKind::Room, SITE + 40, second)])
    }

    #[test]
    fn a_short_jump_is_believed_with_the_room_that_it_leads_to() {
        let own = Arenas::of(&[header()]);
        let is_believed = |site: &JournalSite, entries: &[Entry]| {
            let writes: Vec<_> = entries.iter().map(Entry::write).collect();
            is_of_our_making(site, &writes, &own, Machine::X86_64)
        };
        for instructions in [0, 1] {
            let (site, entries) = short(instructions);
            assert!(is_believed(&site, &entries), "{instructions}");
            assert!(!is_believed(&JournalSite { writes: 1, ..site }, &entries[..1]));
            assert!(!is_believed(&site, &[entries[1].clone(), entries[0].clone()]));
            assert!(!is_believed(&JournalSite { trap: 0, ..site }, &entries));
            assert!(!is_believed(&JournalSite { copy: 1, ..site }, &entries));
            assert!(!is_believed(&JournalSite { detour: ARENA + 65, ..site }, &entries));
            for byte in 0..entries[1].patched.len() {
                let (mut first, mut second) = (entries[0].clone(), entries[1].clone());
                second.patched[byte] ^= 0x40;
                assert!(!is_believed(&site, &[entries[0].clone(), second]), "{instructions}, {byte}");
                if byte < first.patched.len() {
                    first.patched[byte] ^= 0x40;
                    assert!(!is_believed(&site, &[first, entries[1].clone()]), "{instructions}, {byte}");
                }
            }
            let elsewhere = Entry { address: SITE + 41, ..entries[1].clone() };
            assert!(!is_believed(&site, &[entries[0].clone(), elsewhere]));
            let breakpoint = Entry { kind: WriteKind::Breakpoint, ..entries[1].clone() };
            assert!(!is_believed(&site, &[entries[0].clone(), breakpoint]));
        }
        let (site, [first, second]) = short(1);
        let far = Entry { address: u64::MAX - 2, ..second };
        assert!(!is_believed(&site, &[first, far]));
    }

    /// A site with a jump whose function jumps back to it at two places: in one that was changed in its place, the other was moved.
    fn turning() -> (JournalSite, [Entry; 3]) {
        let isa = Machine::X86_64.isa();
        let own = jump();
        let site = JournalSite { writes: 3, ..own.site };
        let turn = |address, original: &[u8], instructions, to| {
            let length = original.len() as u8;
            let patched =
                isa.turned(&Displaced { start: address, length, instructions }, original, to).unwrap();
            Entry { site, kind: WriteKind::Turn, address, original: original.to_vec(), patched }
        };
        let in_place = turn(SITE + 20, &[0x0f, 0x85, 0xe6, 0xff, 0xff, 0xff], 0, ARENA + 80);
        let moved = turn(SITE + 30, &[0x75, 0xe0, 0x31, 0xc0, 0x5b, 0x5d], 4, ARENA + 112);
        (site, [Entry { site, ..own }, in_place, moved])
    }

    #[test]
    fn jumps_back_to_a_site_are_believed_that_lead_into_what_is_its_own() {
        let own = Arenas::of(&[header()]);
        let is_believed = |site: &JournalSite, entries: &[Entry]| {
            let writes: Vec<_> = entries.iter().map(Entry::write).collect();
            is_of_our_making(site, &writes, &own, Machine::X86_64)
        };
        let (site, entries) = turning();
        assert!(is_believed(&site, &entries));
        assert!(!is_believed(&site, &entries[..2]), "one is missing");
        assert!(
            !is_believed(&site, &[1, 0, 2].map(|index| entries[index].clone())),
            "the site's own comes first"
        );
        assert!(!is_believed(&JournalSite { detour_size: 40, ..site }, &entries), "one leads elsewhere");
        let trap = JournalSite { trap: 1, copy: 5, return_at: 0, ..site };
        assert!(!is_believed(&trap, &[trap_write(&trap), entries[1].clone(), entries[2].clone()]));
        for turn in [1, 2] {
            let with = |change: &dyn Fn(&mut Entry)| {
                let mut entries = entries.clone();
                change(&mut entries[turn]);
                is_believed(&site, &entries)
            };
            for byte in 0..entries[turn].patched.len() {
                // The lowest byte of a distance may be another one that is its own, too.
                let bit = if [1, 2].contains(&byte) { 0x80 } else { 0x40 };
                assert!(!with(&|entry| entry.patched[byte] ^= bit), "{turn}, {byte}");
            }
            assert!(!with(&|entry| entry.kind = WriteKind::Branch));
            assert!(!with(&|entry| entry.kind = WriteKind::Room));
            assert!(!with(&|entry| entry.address = u64::MAX - 2));
        }
        let (short_site, short) = short(1);
        let site = JournalSite { writes: 4, ..short_site };
        let mut all = short.to_vec();
        all.extend_from_slice(&entries[1..]);
        assert!(is_believed(&site, &all), "with a room");
        all.swap(1, 2);
        assert!(!is_believed(&site, &all));
    }

    #[test]
    fn a_pointer_is_believed_that_led_to_a_function_and_leads_to_its_original() {
        let own = Arenas::of(&[header()]);
        const POINTER: u64 = 0x7002_0008;
        let site = JournalSite { role: SiteRole::Replaced as u8, return_at: 0, writes: 2, ..jump().site };
        let pointer = |address: u64, from: u64, to: u64| Entry {
            site,
            kind: WriteKind::Pointer,
            address,
            original: from.to_le_bytes().to_vec(),
            patched: to.to_le_bytes().to_vec(),
        };
        let is_believed = |site: &JournalSite, pointer: &Entry| {
            let first = jump();
            is_of_our_making(site, &[first.write(), pointer.write()], &own, Machine::X86_64)
        };
        let ours = pointer(POINTER, SITE, ARENA + 78);
        assert!(is_believed(&site, &ours));
        // Ahead of the site may stand what stays at the entry.
        assert!(is_believed(&site, &pointer(POINTER, SITE - 4, ARENA + 78)));
        for (what, other) in [
            ("leads out of the detour", pointer(POINTER, SITE, ARENA + 128)),
            ("leads ahead of it", pointer(POINTER, SITE, ARENA + 63)),
            ("led elsewhere", pointer(POINTER, SITE + 1, ARENA + 78)),
            ("led far away", pointer(POINTER, SITE - 65, ARENA + 78)),
            ("is not aligned", pointer(POINTER + 4, SITE, ARENA + 78)),
            ("is shorter", Entry { original: vec![0; 4], patched: vec![1; 4], ..ours.clone() }),
            ("is none", Entry { kind: WriteKind::Turn, ..ours.clone() }),
        ] {
            assert!(!is_believed(&site, &other), "{what}");
        }
        let plain = JournalSite { role: SiteRole::Plain as u8, ..site };
        assert!(!is_believed(&plain, &ours), "of a site where nothing is replaced");
        assert!(
            !is_of_our_making(&site, &[ours.write(), jump().write()], &own, Machine::X86_64),
            "it is first"
        );
    }

    #[test]
    fn a_pointer_lies_in_data_and_all_else_in_code() {
        let text = b"70010000-70011000 r-xp 00000000 00:00 0 \n70020000-70021000 rw-p 00000000 00:00 0 \n70030000-70031000 rw-s 00000000 00:00 0 \n70040000-70041000 r--p 00000000 00:00 0 \n";
        let maps = trapless_process::parse_maps(text).unwrap();
        let arenas = Arenas::of(&[header()]);
        let lies = |address, kind| {
            let write = Write { address, kind, original: &[0; 8], patched: &[1; 8] };
            is_where_code_is(&write, &maps, &arenas)
        };
        let places = [0x7001_0010, 0x7002_0010, 0x7003_0010, 0x7004_0010];
        assert_eq!(places.map(|at| lies(at, WriteKind::Pointer)), [false, true, false, false]);
        assert_eq!(places.map(|at| lies(at, WriteKind::Branch)), [true, false, false, false]);
    }

    /// The write of a site that traps.
    fn trap_write(site: &JournalSite) -> Entry {
        Entry { site: *site, ..trap() }
    }

    #[test]
    fn what_arming_writes_is_believed() {
        for entry in [jump(), trap()] {
            assert!(entry.is_believed(), "{entry:?}");
        }
    }

    #[test]
    fn whatever_else_a_site_says_is_doubted() {
        type Forge = fn(&mut Entry);
        let forgeries: [(Entry, Forge); 26] = [
            (jump(), |e| e.site.site += 1),
            (jump(), |e| e.site.site = u64::MAX - 2),
            (jump(), |e| e.address += 1),
            (jump(), |e| e.site.writes = 0),
            (jump(), |e| e.site.writes = 2),
            (jump(), |e| e.site.displaced = 0),
            (jump(), |e| e.site.displaced = 8),
            (jump(), |e| e.site.displaced = 255),
            (jump(), |e| e.site.state = 3),
            (jump(), |e| e.site.trap = 5),
            (jump(), |e| e.site.trap = 1),
            (jump(), |e| e.kind = WriteKind::Breakpoint),
            (jump(), |e| e.site.role = 6),
            (jump(), |e| e.site.ahead = 7),
            (jump(), |e| e.site.copy = 1),
            (jump(), |e| e.site.detour = 0),
            (jump(), |e| e.site.detour = u64::MAX),
            (jump(), |e| e.site.detour += 1),
            (jump(), |e| e.site.detour_size = 0),
            (jump(), |e| e.site.detour_size = u32::MAX),
            (jump(), |e| e.site.return_at = 65),
            (jump(), |e| e.patched[6] = 0x90),
            (jump(), |e| e.original.clone_from(&e.patched)),
            (trap(), |e| e.patched[0] = 0x90),
            (trap(), |e| e.site.copy = 17),
            (trap(), |e| e.site.displaced = 65),
        ];
        for (index, (mut entry, forge)) in forgeries.into_iter().enumerate() {
            forge(&mut entry);
            assert!(!entry.is_believed(), "forgery {index}");
        }
    }

    #[test]
    fn a_site_without_its_write_or_with_another_is_doubted() {
        let (own, entry) = (Arenas::of(&[header()]), jump());
        for writes in [vec![], vec![entry.write(); 2]] {
            let site = JournalSite { writes: writes.len() as u16, ..entry.site };
            assert!(!is_of_our_making(&site, &writes, &own, Machine::X86_64), "{}", writes.len());
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
            assert_eq!(is_where_code_is(&jump().write(), &maps(line), arenas), is, "{line}");
        }
    }
}
