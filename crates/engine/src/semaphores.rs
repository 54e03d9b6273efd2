//! Raising and lowering the semaphores of USDT probes in a stopped target.
//!
//! What is written ahead of each change and how it is judged after a death, `wire/src/semaphore.rs` tells. Here is what is
//! believed of records that were found, since the target can write them: a semaphore lies in private writable memory of the
//! module that a believed site is in. Nothing is ever written elsewhere, and only ever the number that is there less one.
//!
//! A record outlives its module where that is unloaded. One that was loaded again at the same address has new semaphores, which
//! were never raised: it shows by the site's page, which is the file's again.

use crate::{EngineError, FoundSession, LeftAlone, believe, recheck::is_of_a_file};
use std::collections::BTreeSet;
use trapless_process::{Mapping, Mappings, Process, RemoteAddr};
use trapless_wire::{Header, JournalSite, SemaphorePhase, SemaphoreRecord};

/// A semaphore of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Semaphore {
    /// Its address.
    pub address: u64,
    /// The sites that it belongs to, by their indices in the plan, and where they are.
    pub sites: Vec<(usize, u64)>,
}

impl Semaphore {
    /// The first of its sites that is not left alone.
    fn site(&self, refused: &[Option<LeftAlone>]) -> Option<u64> {
        self.sites.iter().find(|(index, _)| refused[*index].is_none()).map(|(_, site)| *site)
    }
}

/// Leaves those sites alone whose semaphore cannot be raised.
pub(crate) fn refuse(
    process: &Process,
    semaphores: &[Semaphore],
    refused: &mut [Option<LeftAlone>],
) -> Result<(), EngineError> {
    if semaphores.is_empty() {
        return Ok(());
    }
    let maps = process.maps()?;
    for semaphore in semaphores {
        let counts = read(process, semaphore.address).is_some_and(|now| now < u16::MAX);
        for &(index, site) in &semaphore.sites {
            if refused[index].is_none() && !(counts && is_of_module(&maps, semaphore.address, site)) {
                refused[index] = Some(LeftAlone::Semaphore);
            }
        }
    }
    Ok(())
}

/// Raises those that belong to a site which is not left alone. Their records begin with the one of number `first`.
///
/// # Errors
/// Those of the memory; then none is raised, as far as that can be.
pub(crate) fn raise(
    process: &Process,
    header: &Header,
    first: u64,
    semaphores: &[Semaphore],
    refused: &[Option<LeftAlone>],
) -> Result<(), EngineError> {
    for (place, semaphore) in records(header, first).zip(semaphores) {
        let Some(site) = semaphore.site(refused) else { continue };
        let raised = read(process, semaphore.address)
            .and_then(|now| SemaphoreRecord::raising(semaphore.address, site, now))
            .ok_or(EngineError::Unsupported("a semaphore could be raised, and then could not"))
            .and_then(|record| {
                write_record(process, place, &record)?;
                Ok(process.write(RemoteAddr(record.address), &record.after.to_le_bytes())?)
            });
        if let Err(error) = raised {
            lower_again(process, header, first);
            return Err(error);
        }
    }
    Ok(())
}

/// Once the patches are in: says so of the semaphores that belong to one of them, and lowers the others.
///
/// What cannot be written stays as it was announced, which is undone as well.
pub(crate) fn confirm(
    process: &Process,
    header: &Header,
    first: u64,
    semaphores: &[Semaphore],
    refused: &[Option<LeftAlone>],
) {
    for (place, semaphore) in records(header, first).zip(semaphores) {
        let Some(record) = read_record(process, place) else { continue };
        let _ = match semaphore.site(refused) {
            None => lower_one(process, place, record),
            Some(site) => {
                let record = SemaphoreRecord { site, ..record.in_phase(SemaphorePhase::Raised) };
                write_record(process, place, &record)
            }
        };
    }
}

/// Lowers all that were raised just now, since nothing will be armed.
pub(crate) fn lower_again(process: &Process, header: &Header, first: u64) {
    lower_all(process, header, first, &mut |_| true);
}

/// Lowers what a session has raised for the sites that `which` says, as far as its records are believed.
pub(crate) fn lower(
    process: &Process,
    session: &FoundSession,
    which: impl Fn(&JournalSite) -> bool,
) -> Result<(), EngineError> {
    if session.header.semaphores == 0 {
        return Ok(());
    }
    let maps = process.maps()?;
    lower_all(process, &session.header, 0, &mut |record| {
        let was_in = record.phase == SemaphorePhase::Raised as u8;
        session.journal.site_at(record.site).is_some_and(|site| which(&site))
            && is_of_module(&maps, record.address, record.site)
            && !(was_in && is_of_a_file(process, record.site))
    });
    Ok(())
}

/// What cannot be read or written is no semaphore any more.
fn lower_all(
    process: &Process,
    header: &Header,
    first: u64,
    is_believed: &mut dyn FnMut(&SemaphoreRecord) -> bool,
) {
    let places = records(header, first);
    let Some(start) = places.clone().next() else { return };
    let list = believe::read_list::<SemaphoreRecord>(process, start.0, header.semaphores - first);
    let all: Vec<_> = places.zip(list.unwrap_or_default()).collect();
    let mut known = BTreeSet::new();
    for (place, record) in all.into_iter().rev() {
        // A session raises each once. Where a module was unloaded and another one loaded, the last record is of what is there.
        if record.is_sound() && known.insert(record.address) && is_believed(&record) {
            let _ = lower_one(process, place, record);
        }
    }
}

fn lower_one(process: &Process, place: RemoteAddr, record: SemaphoreRecord) -> Result<(), EngineError> {
    let lowering = read(process, record.address).and_then(|now| record.lowering(now));
    if let Some(lowering) = lowering {
        write_record(process, place, &lowering)?;
        process.write(RemoteAddr(lowering.address), &lowering.after.to_le_bytes())?;
    }
    write_record(process, place, &lowering.unwrap_or(record).in_phase(SemaphorePhase::Lowered))
}

/// Where the records are, from the one of number `first` on.
fn records(header: &Header, first: u64) -> impl Iterator<Item = RemoteAddr> + Clone + use<> {
    let start = header.semaphores_at();
    (first..header.semaphores)
        .map(move |index| RemoteAddr(start + index * size_of::<SemaphoreRecord>() as u64))
}

fn read_record(process: &Process, place: RemoteAddr) -> Option<SemaphoreRecord> {
    let mut bytes = [0; size_of::<SemaphoreRecord>()];
    process.read_exact(place, &mut bytes).ok()?;
    Some(bytemuck::pod_read_unaligned(&bytes)).filter(SemaphoreRecord::is_sound)
}

fn write_record(process: &Process, place: RemoteAddr, record: &SemaphoreRecord) -> Result<(), EngineError> {
    Ok(process.write(place, bytemuck::bytes_of(record))?)
}

fn read(process: &Process, address: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    process.read_exact(RemoteAddr(address), &mut bytes).ok()?;
    Some(u16::from_le_bytes(bytes))
}

/// Whether a semaphore lies in private data of the module that a site is in: in a mapping of its file, or in the memory that the
/// loader adds to it for variables that the file does not hold.
fn is_of_module(maps: &Mappings, address: u64, site: u64) -> bool {
    let (Some(code), Some(data)) = (maps.find(RemoteAddr(site)), maps.find(RemoteAddr(address))) else {
        return false;
    };
    let is_same = |mapping: &Mapping| {
        (mapping.device, mapping.inode) == (code.device, code.inode) && mapping.name == code.name
    };
    let is_variable = data.perms.read && data.perms.write && !data.perms.shared && !data.perms.exec;
    let is_added = || {
        let before = maps.iter().find(|mapping| mapping.end == data.start);
        data.inode == 0 && data.name.is_empty() && before.is_some_and(is_same)
    };
    address.is_multiple_of(2) && code.inode != 0 && is_variable && (is_same(data) || is_added())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semaphore_is_private_data_of_the_module_of_its_site() {
        let text = b"10000-11000 r-xp 0 08:01 7 /lib\n\
            11000-12000 r--p 1000 08:01 7 /lib\n\
            12000-13000 rw-p 2000 08:01 7 /lib\n\
            13000-14000 rw-p 0 00:00 0\n\
            14000-15000 rw-p 0 00:00 0 [heap]\n\
            20000-21000 rw-p 0 08:01 8 /other\n\
            21000-22000 rw-p 0 00:00 0\n\
            22000-23000 rw-s 2000 08:01 7 /lib\n\
            23000-24000 rwxp 2000 08:01 7 /lib\n\
            30000-31000 r-xp 0 00:00 0\n\
            31000-32000 rw-p 0 00:00 0\n";
        let maps = trapless_process::parse_maps(text).unwrap();
        for (address, site, is) in [
            (0x12010, 0x10020, true),
            (0x13010, 0x10020, true),
            (0x12011, 0x10020, false),
            (0x10010, 0x10020, false),
            (0x11010, 0x10020, false),
            (0x14010, 0x10020, false),
            (0x15010, 0x10020, false),
            (0x20010, 0x10020, false),
            (0x21010, 0x10020, false),
            (0x22010, 0x10020, false),
            (0x23010, 0x10020, false),
            (0x12010, 0x50020, false),
            (0x31010, 0x30020, false),
        ] {
            assert_eq!(is_of_module(&maps, address, site), is, "{address:x} {site:x}");
        }
    }
}
