//! Threads and saved contexts between a short jump and the one that it leads to.
//!
//! What stands in the room of a short jump is no instruction of the program's, and yet it is outside of our arenas: a thread there is
//! still at the site. So it goes back to it before the room is taken out. One that a signal has interrupted there will come back, so its
//! room stays until it has: what leads there is looked for as it is at arming ([`crate::scan`]).

use crate::{
    EngineError, FoundSession, arm::set_ip, found::find_headers, reach, scan, scan::Ranges, target, writes,
};
use trapless_isa::{Flow, Isa};
use trapless_process::{Process, Stopped};
use trapless_wire::{SiteWrites, WriteKind};

/// Leads the threads of a stopped process from the entrances of a session's rooms back to the sites.
///
/// # Errors
/// The process cannot be read or changed.
pub(crate) fn leave(
    process: &Process,
    stopped: &mut Stopped<'_>,
    session: &FoundSession,
) -> Result<Held, EngineError> {
    let isa = target::isa(process);
    let entrance = |site: SiteWrites<'_>| Some((entrance_of(process, isa, &site)?, site.index, site.site));
    let mut entrances: Vec<(u64, usize, u64)> = session.journal.planned().filter_map(entrance).collect();
    if entrances.is_empty() {
        return Ok(Held::default());
    }
    entrances.sort_unstable();
    let at = |address: u64| entrances.binary_search_by_key(&address, |entrance| entrance.0);
    let threads = stopped.threads().iter();
    let inside = threads.filter_map(|thread| {
        at(thread.registers().ip().0).ok().map(|index| (thread.tid(), entrances[index].2))
    });
    let moves: Vec<_> = inside.collect();
    for (tid, site) in moves {
        set_ip(stopped, tid, site)?;
    }
    let ranges = Ranges::new(entrances.iter().map(|&(entrance, ..)| (entrance, entrance + 1)));
    let all = find_headers(process)?;
    // The journals of all sessions tell where rooms are, also those of sessions that are removed.
    let ours: Vec<_> = all.iter().flat_map(|header| reach::regions(header)).collect();
    let led = scan::led_into(process, stopped, &ranges, &ours, &all, &[])?.to;
    let mut held: Vec<usize> = led.iter().filter_map(|&to| Some(entrances[at(to).ok()?].1)).collect();
    held.sort_unstable();
    Ok(Held(held))
}

/// The sites, by their index, to whose rooms a saved context leads.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<usize>);

impl Held {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether this site is one.
    pub fn holds(&self, site: &SiteWrites<'_>) -> bool {
        self.0.binary_search(&site.index).is_ok()
    }
}

/// Where the short jump of a site leads, if its room is there yet. Where that was taken out before, the program's own instructions stand, and a
/// thread there is where it seems to be.
fn entrance_of(process: &Process, isa: &dyn Isa, site: &SiteWrites<'_>) -> Option<u64> {
    let room = site.writes().find(|write| write.kind == WriteKind::Room)?;
    if !writes::stands(process, room.address, room.patched) {
        return None;
    }
    let short = site.writes().find(|write| write.kind == WriteKind::Branch)?;
    match isa.decode(short.patched, short.address).ok()?.flow {
        Flow::Jump { target } => Some(target),
        _ => None,
    }
}
