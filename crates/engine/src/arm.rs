//! Arming: the only time a running target is changed.
//!
//! # The protocol, in order
//!
//! 1. Stop every thread. Another session that follows calls is in the way of one that wants to, too.
//! 2. Map, by system calls on one stopped thread: the shared region (a memfd, taken out of the target, proven and sealed as
//!    `process/src/shared.rs` tells), the thread region (wiped in forked children), the return region, and an executable arena for
//!    each module. Each at its planned address and only if nothing is there. Then prove that the mapping is of that memfd.
//!    Where detours read the clock, ask whether they may.
//! 3. Write the code of the arenas, through `/proc/PID/mem`: they are never writable. Meanwhile write the header and the journal.
//! 4. Check each site again: no saved context leads inside its displaced instructions, and those that run from a copy after
//!    a trap are the file's.
//! 5. Say in the journal of which sites that was not so. Give the program's handlers of signals their stubs ([`crate::signals`]).
//! 6. Raise the semaphores of USDT probes ([`crate::semaphores`]).
//! 7. Patch every site whose bytes are the file's.
//! 8. Move threads that stand inside displaced instructions to the same instruction of the detour; and those at an entry that its function
//!    jumps back to, which may be in a round.
//! 9. Let the target go.
//!
//! Sites that are added to an armed session ([`Blueprint::add`]) go the same way: of step 2 only arenas are mapped, and the handlers keep
//! the stubs that they have.
//!
//! When a step fails, what was mapped is unmapped and nothing was changed. If we are killed from step 6 on,
//! the journal tells what to undo, and each patch is harmless by itself: detours are complete before the first
//! patch is written.

use crate::own_stacks::OwnStacks;
use crate::{
    Blueprint, EngineError, LeftAlone, Module, Session, admit::Runtime, clock, dispatched, exits,
    find_sessions, found::find_headers, home::Hosting, mapped::Mapped, reach, region::Region, scan,
    semaphores, spread, tids, trap::TrapSite, writes,
};
use std::{
    collections::BTreeSet,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};
use trapless_isa::detour::BLOCK_ORIGIN;
use trapless_process::{Process, ReadRange, RemoteAddr, StopError, Stopped, Tid};
use trapless_wire::{
    Arena, Checked, Geometry, Header, Journal, RawPlace, SessionState, SiteWrites, WordsMut, Write,
};

/// What arming did.
#[derive(Debug)]
pub struct Armed {
    /// The shared region's file. Keeps the counters when the target is gone.
    pub memory: OwnedFd,
    /// The header as it was written.
    pub header: Header,
    /// The journal as it was written.
    pub journal: Journal,
    /// What it knows of itself for those that are added to it.
    pub hosting: Hosting,
    /// How long the target stood still.
    pub stopped: Duration,
    /// Per site of the plan, in order: why it was left out after all.
    pub refused: Vec<Option<LeftAlone>>,
}

/// What adding sites to a session did.
#[derive(Debug)]
pub struct Added {
    /// The session's header, with the new arenas.
    pub header: Header,
    /// What is free in the blocks yet.
    pub geometry: Geometry,
    /// The journal of the sites that were added, as it was written.
    pub journal: Journal,
    /// How many places were added to the schema.
    pub places: u64,
    /// How many semaphores were added.
    pub semaphores: u64,
    /// How long the target stood still.
    pub stopped: Duration,
    /// Per site of the plan, in order: why it was left out after all.
    pub refused: Vec<Option<LeftAlone>>,
}

impl Blueprint<'_, '_> {
    /// Puts everything into the stopped target.
    ///
    /// # Errors
    /// The target is as it was, unless the error says that it is gone.
    /// [`EngineError::Remote`] with `EEXIST`: an address was taken in the meantime; draw again.
    pub fn arm(&self, stopped: &mut Stopped<'_>) -> Result<Armed, EngineError> {
        let process = stopped.process();
        let since = Instant::now();
        let mut mapped = Mapped::default();
        match self.arm_stopped(process, stopped, &mut mapped) {
            Ok(armed) => Ok(Armed { stopped: since.elapsed(), ..armed }),
            Err(error) => {
                // Where patches cannot be taken out again, what they lead to stays.
                if mapped.take_out(process) || !process.is_alive() {
                    mapped.undo(stopped);
                }
                Err(error)
            }
        }
    }

    fn arm_stopped(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        mapped: &mut Mapped,
    ) -> Result<Armed, EngineError> {
        let all = find_headers(process)?;
        self.refuse_second_follower(process, &all)?;
        tids::require(process, stopped, &self.layout, self.plan.script.is_some())?;
        dispatched::require(stopped, &self.plan)?;
        let memory = self.map(process, stopped, mapped)?;
        if self.plan.sites.iter().any(clock::is_read_by) || self.plan.home.spare().wanted.is_timed() {
            clock::require(process, stopped, RemoteAddr(self.header.threads))?;
        }
        let region = Region::map(&memory, self.header.blocks_offset + self.header.block_stride)?;
        region.write(0, bytemuck::bytes_of(&self.header))?;
        if let Some(script) = self.plan.script {
            script.write(&region, &self.header, OwnStacks::of(process, stopped)?)?;
        }
        self.write_all(process, &region)?;
        process.write(RemoteAddr(self.header.threads), &u64::from(self.header.pid).to_le_bytes())?;
        region.set_word(Header::SHARING_OFFSET, sharing_threads(stopped));
        // A block without it is a forked child's.
        let overflow = self.header.blocks_offset + u64::from(BLOCK_ORIGIN);
        region.set_word(overflow, u64::from(self.header.pid));
        let refused = self.put_in(process, stopped, &region, &all, mapped)?;
        set_state(&region, &self.header, SessionState::Armed);
        Ok(self.armed(memory, Duration::ZERO, refused))
    }

    /// Adds the sites to a session that is armed in the stopped target: that which it was drawn for.
    ///
    /// # Errors
    /// As those of [`Blueprint::arm`]. [`EngineError::NotArmed`]: the session is gone.
    pub fn add(&self, stopped: &mut Stopped<'_>, session: &Session) -> Result<Added, EngineError> {
        let (process, since) = (stopped.process(), Instant::now());
        // Nothing is written before it is known that the memory is the session's yet.
        let all = session.among(process)?;
        let mut mapped = Mapped::default();
        let added = self.add_stopped(process, stopped, session.region(), &all, &mut mapped);
        added.map(|added| Added { stopped: since.elapsed(), ..added }).inspect_err(|_| {
            // Where patches cannot be taken out again, what they lead to stays, and what tells of them.
            if !mapped.take_out(process) {
                return;
            }
            let mut before = self.header;
            before.arenas.iter_mut().skip(self.used.arenas).for_each(|arena| *arena = Arena::default());
            let _ = process.write(RemoteAddr(before.arena_list()), &before.arena_list_bytes());
            let parts = self.journal.parts(&self.header.journal, &self.used.journal);
            let _ = parts
                .into_iter()
                .rev()
                .try_for_each(|(offset, part)| session.region().write(offset, &vec![0; part.len()]));
            mapped.undo(stopped);
        })
    }

    fn add_stopped(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        region: &Region,
        all: &[Checked],
        mapped: &mut Mapped,
    ) -> Result<Added, EngineError> {
        dispatched::require(stopped, &self.plan)?;
        stopped.remote(|remote| self.map_arenas(remote, mapped))?;
        self.write_all(process, region)?;
        let refused = self.put_in(process, stopped, region, all, mapped)?;
        Ok(self.added(Duration::ZERO, refused))
    }

    /// The arenas that are new.
    pub(crate) fn new_arenas(&self) -> impl Iterator<Item = Arena> {
        self.header.arenas().skip(self.used.arenas)
    }

    /// Step 3.
    fn write_all(&self, process: &Process, region: &Region) -> Result<(), EngineError> {
        let bytes: u64 = self.new_arenas().map(|arena| arena.size).sum();
        if bytes < spread::WORTH_A_THREAD {
            self.write_code(process)?;
            return self.write_journal(region);
        }
        // The stop is to be short, so the two large pieces of work go side by side.
        let (told, written) = spread::both(|| self.write_journal(region), || self.write_code(process));
        told.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(written)
    }

    /// Steps 4 to 8. Why sites were left alone.
    fn put_in(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        region: &Region,
        all: &[Checked],
        mapped: &mut Mapped,
    ) -> Result<Vec<Option<LeftAlone>>, EngineError> {
        let mut refused = self.refused_by_contexts(process, stopped, all)?;
        self.refuse_modified(process, &mut refused)?;
        self.take_pointers(process, all, &mut refused)?;
        semaphores::refuse(process, &self.semaphores, &mut refused)?;
        let moves = self.threads_inside(stopped, &mut refused);
        self.require_lookups(process, &mut refused)?;
        dispatched::refuse_gate(stopped, &self.plan, &mut refused);
        if !self.plan.home.is_armed() {
            self.give_stubs(process, stopped, all, &mut refused)?;
        }
        self.keep_whole(&mut refused);
        let mut journal = self.journal.clone();
        for (index, _) in refused.iter().enumerate().filter(|(_, refused)| refused.is_some()) {
            self.skip(index, &mut journal, region)?;
        }
        let journal = mapped.put_in.insert(journal);
        let first = self.used.semaphores;
        semaphores::raise(process, &self.header, first, &self.semaphores, &refused)?;

        // Step 7.
        let put_in = writes::put_in(process, journal)
            .inspect_err(|_| semaphores::lower_again(process, &self.header, first));
        let modified = put_in?;
        if !modified.is_empty() {
            let before = refused.clone();
            modified.into_iter().for_each(|index| refused[index] = Some(LeftAlone::Modified));
            let others = refused.clone();
            self.keep_whole(&mut refused);
            // Those that are in go with the one that is not.
            writes::take_out(process, journal, |site| {
                others[site.index].is_none() && refused[site.index].is_some()
            })?;
            for index in (0..refused.len()).filter(|&index| before[index] != refused[index]) {
                // Removal need not wait for somebody else's bytes to go.
                self.skip(index, journal, region)?;
            }
        }
        semaphores::confirm(process, &self.header, first, &self.semaphores, &refused);
        for (tid, index, copy) in moves {
            if refused[index].is_none() {
                set_ip(stopped, tid, copy)?;
            }
        }
        Ok(refused)
    }

    /// Leaves a function alone that is followed to its exits where one of its sites is.
    fn keep_whole(&self, refused: &mut [Option<LeftAlone>]) {
        exits::keep_whole(refused, |index| &self.plan.sites[index].request, |left| *left, Some);
    }

    /// Of step 3.
    fn write_journal(&self, region: &Region) -> Result<(), EngineError> {
        let places = self.header.places_at() + self.used.places * size_of::<RawPlace>() as u64;
        region.write(places, bytemuck::cast_slice(&self.schema))?;
        let parts = self.journal.parts(&self.header.journal, &self.used.journal);
        parts.into_iter().try_for_each(|(offset, part)| region.write(offset, &part))
    }

    /// Of step 3. Detours look arenas up in the list, so the code comes first.
    fn write_code(&self, process: &Process) -> Result<(), EngineError> {
        for (arena, code) in self.new_arenas().zip(&self.code) {
            process.write(RemoteAddr(arena.address), code)?;
        }
        Ok(process.write(RemoteAddr(self.header.arena_list()), &self.header.arena_list_bytes())?)
    }

    /// Says of a site that it was never changed.
    fn skip(&self, index: usize, journal: &mut Journal, region: &Region) -> Result<(), EngineError> {
        journal.skip(index);
        match journal.site(index) {
            Some(site) => {
                let place = self.header.journal.site_at(self.used.journal.sites + index as u64);
                region.write(place, bytemuck::bytes_of(&*site))
            }
            None => Ok(()),
        }
    }

    /// Of step 1: return addresses of one session's may be found by the other's detours and be gone when the other looks for
    /// them, and unwinders ask one, so only one follows calls. Looked at in the stop, since two may come at the same time.
    fn refuse_second_follower(&self, process: &Process, all: &[Checked]) -> Result<(), EngineError> {
        if all.is_empty() || !self.plan.pairs() {
            return Ok(());
        }
        let follows =
            |journal: &Journal| journal.planned().any(|site| site.return_at != 0 || site.is_lookup());
        let sessions = find_sessions(process)?;
        match sessions.iter().find(|other| !other.is_removed() && follows(&other.journal)) {
            Some(other) => Err(EngineError::Followed { tool: other.header.tool }),
            None => Ok(()),
        }
    }

    /// Whether the code of a site is the file's.
    pub(crate) fn is_original(&self, process: &Process, index: usize) -> bool {
        let original = |write: Write<'_>| writes::stands(process, write.address, write.original);
        self.journal.site(index).is_some_and(|site| site.writes().all(original))
    }

    /// Refuses to follow calls by detours where a function that unwinders ask cannot be patched after all, and what leads them astray then.
    fn require_lookups(
        &self,
        process: &Process,
        refused: &mut [Option<LeftAlone>],
    ) -> Result<(), EngineError> {
        let mut missing = false;
        for (index, site) in self.plan.sites.iter().enumerate() {
            if site.request.wanted.is_lookup() {
                missing |= refused[index].is_some() || !self.is_original(process, index);
            }
        }
        if missing {
            let leads_astray = self.plan.walks_by_chain() && process.status()?.sig_caught != 0;
            for (index, (site, refusal)) in self.journal.sites().zip(refused).enumerate() {
                let why = (site.return_at != 0).then_some(LeftAlone::Unwinder);
                let is_astray = || self.plan.sites[index].is_copied() && self.is_original(process, index);
                let why = why.or_else(|| (leads_astray && is_astray()).then_some(LeftAlone::Walks));
                *refusal = refusal.take().or(why);
            }
        }
        Ok(())
    }

    /// Step 4.
    fn refused_by_contexts(
        &self,
        process: &Process,
        stopped: &Stopped<'_>,
        all: &[Checked],
    ) -> Result<Vec<Option<LeftAlone>>, EngineError> {
        let is_go = |module: &&Module<'_>| module.runtimes.contains(Runtime::Go);
        let go: Vec<_> = self.plan.modules.iter().filter(is_go).collect();
        let lists: Vec<_> = go.iter().filter_map(|module| module.goroutines).collect();
        let ours = reach::regions(&self.header);
        // Goroutines that no list tells of may be anywhere.
        let lists = if lists.len() == go.len() { lists } else { Vec::new() };
        let led = scan::led_into(process, stopped, &self.inside, &ours, all, &lists)?;
        let is_seen = go.is_empty() || led.is_whole;
        if led.to.is_empty() && is_seen {
            return Ok(vec![None; self.journal.len()]);
        }
        let to: BTreeSet<usize> = led.to.iter().filter_map(|&to| self.interrupted(to)).collect();
        let of_go = |address: u64| go.iter().any(|module| (module.start..module.end).contains(&address));
        let refusal = |site: SiteWrites<'_>| {
            let has_inside = |write: Write<'_>| self.inside.find(write.address + 1).is_some();
            let is_unseen = |write: Write<'_>| !is_seen && of_go(write.address) && has_inside(write);
            match to.contains(&site.index) {
                true => Some(LeftAlone::OnStack),
                false => site.writes().any(is_unseen).then_some(LeftAlone::Unsearched),
            }
        };
        Ok(self.journal.sites().map(refusal).collect())
    }

    /// The site that somebody was interrupted in who goes on at an address inside of what is written: an instruction begins there.
    fn interrupted(&self, address: u64) -> Option<usize> {
        self.written_around(address).filter(|&index| self.copy_of(index, address).is_some())
    }

    /// The site of what is written over an address, but for where it begins.
    fn written_around(&self, address: u64) -> Option<usize> {
        let after = self.writes.partition_point(|(range, _)| range.start < address);
        let (range, index) = &self.writes[after.checked_sub(1)?];
        range.contains(&address).then_some(*index)
    }

    /// Where the copy is of a site's displaced instruction that begins at an address.
    fn copy_of(&self, index: usize, address: u64) -> Option<u64> {
        Some(self.places[index].iter().find(|place| place.0 == address)?.1)
    }

    /// Refuses sites that trap whose instructions are not the file's behind the first byte, too: those run from copies.
    fn refuse_modified(
        &self,
        process: &Process,
        refused: &mut [Option<LeftAlone>],
    ) -> Result<(), EngineError> {
        let mut buffers: Vec<Vec<u8>> = self.traps.iter().map(|site| vec![0; site.original.len()]).collect();
        let place = |(site, buffer): (&TrapSite, _)| ReadRange::new(RemoteAddr(site.address), buffer);
        let mut ranges: Vec<_> =
            self.traps.iter().zip(buffers.iter_mut().map(Vec::as_mut_slice)).map(place).collect();
        process.read_vectored(&mut ranges)?;
        for (site, range) in self.traps.iter().zip(&ranges) {
            if range.buffer[..range.done] != site.original
                && let Some(found) = self.journal.site_at(site.address)
            {
                refused[found.index] = Some(LeftAlone::Modified);
            }
        }
        Ok(())
    }

    /// Of step 6: pointers to originals lead to the functions yet, unless they lead into what another session has mapped. Looked at in
    /// the stop, since two tools may have found one free.
    fn take_pointers(
        &self,
        process: &Process,
        all: &[Checked],
        refused: &mut [Option<LeftAlone>],
    ) -> Result<(), EngineError> {
        let is_taken = |to: u64| {
            let mut arenas = all.iter().flat_map(|other| other.arenas());
            arenas.any(|arena| to.wrapping_sub(arena.address) < arena.size)
        };
        for (site, refused) in self.plan.sites.iter().zip(refused).filter(|(_, refused)| refused.is_none()) {
            let Some((pointer, function)) = site.pointer() else { continue };
            let at = RemoteAddr(pointer.at);
            let now = process.read_word(at)?;
            // An attempt before this one may have come so far.
            match [pointer.held, function].contains(&now) && !is_taken(now) {
                true => process.write(at, &function.to_le_bytes())?,
                false => *refused = Some(LeftAlone::Pointer),
            }
        }
        Ok(())
    }

    /// For step 8: threads inside displaced instructions, and at entries that their functions jump back to, their sites, and where they
    /// go on. A thread that stands where no displaced instruction begins keeps its site unpatched.
    fn threads_inside(
        &self,
        stopped: &Stopped<'_>,
        refused: &mut [Option<LeftAlone>],
    ) -> Vec<(Tid, usize, u64)> {
        let mut moves = Vec::new();
        for thread in stopped.threads() {
            let ip = thread.registers().ip().0;
            if let Some(&(index, copy)) = self.looping.get(&ip) {
                moves.push((thread.tid(), index, copy));
                continue;
            }
            let Some(index) = self.written_around(ip) else { continue };
            match self.copy_of(index, ip) {
                Some(copy) => moves.push((thread.tid(), index, copy)),
                None => refused[index] = Some(LeftAlone::OnStack),
            }
        }
        moves
    }
}

/// Says of the sites that were left alone that they were never changed.
pub(crate) fn skip_refused(journal: &mut Journal, refused: &[Option<LeftAlone>]) {
    for (index, _) in refused.iter().enumerate().filter(|(_, refused)| refused.is_some()) {
        journal.skip(index);
    }
}

/// Threads that have the thread pointer of another one, as those made by a bare `clone` without `CLONE_SETTLS` do: they
/// would count in one block, by increments that are not locked.
fn sharing_threads(stopped: &Stopped<'_>) -> u64 {
    let mut pointers: Vec<u64> =
        stopped.threads().iter().map(|thread| thread.registers().thread_pointer().0).collect();
    pointers.sort_unstable();
    let shared = pointers.windows(2).filter(|pair| pair[0] == pair[1] && pair[0] != 0).count();
    shared as u64
}

pub(crate) fn set_ip(stopped: &mut Stopped<'_>, tid: Tid, ip: u64) -> Result<(), EngineError> {
    let mut registers = *stopped.thread(tid).ok_or(StopError::UnknownThread(tid))?.registers();
    registers.set_ip(RemoteAddr(ip));
    Ok(stopped.set_registers(tid, registers)?)
}

/// Writes the session's state.
pub(crate) fn set_state(region: &Region, header: &Header, state: SessionState) {
    let word = u64::from(header.version) | u64::from(state as u32) << 32;
    trapless_wire::WordsMut::set_word(region, Header::STATE_OFFSET & !7, word);
}
