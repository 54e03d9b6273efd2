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
//! 8. Move threads that stand inside displaced instructions to the same instruction of the detour.
//! 9. Let the target go.
//!
//! When a step fails, what was mapped is unmapped and nothing was changed. If we are killed from step 6 on,
//! the journal tells what to undo, and each patch is harmless by itself: detours are complete before the first
//! patch is written.

use crate::{
    Blueprint, EngineError, LeftAlone, clock, exits, find_sessions, found::find_headers, reach,
    region::Region, scan, semaphores, spread, trap::TrapSite, writes,
};
use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};
use trapless_isa::detour::BLOCK_ORIGIN;
use trapless_process::{Process, ReadRange, Remote, RemoteAddr, RemoteError, StopError, Stopped, Tid};
use trapless_wire::{Checked, Header, Journal, REGION_NAME, SessionState, SiteWrites, Write};

/// What arming did.
#[derive(Debug)]
pub struct Armed {
    /// The shared region's file. Keeps the counters when the target is gone.
    pub memory: OwnedFd,
    /// The header as it was written.
    pub header: Header,
    /// The journal as it was written.
    pub journal: Journal,
    /// How long the target stood still.
    pub stopped: Duration,
    /// Per site of the plan, in order: why it was left out after all.
    pub refused: Vec<Option<LeftAlone>>,
}

/// What was mapped so far, to be undone if a later step fails.
struct Mapped {
    ranges: Vec<(u64, u64)>,
}

impl Blueprint<'_, '_> {
    /// Puts everything into the stopped target.
    ///
    /// # Errors
    /// The target is as it was, unless the error says that it is gone.
    /// [`RemoteError`] with `EEXIST`: an address was taken in the meantime; draw again.
    pub fn arm(&self, stopped: &mut Stopped<'_>) -> Result<Armed, EngineError> {
        let process = stopped.process();
        let since = Instant::now();
        let mut mapped = Mapped { ranges: Vec::new() };
        match self.arm_stopped(process, stopped, &mut mapped) {
            Ok(armed) => Ok(Armed { stopped: since.elapsed(), ..armed }),
            Err(error) => {
                // The target may be gone, and then so are the mappings.
                let _ = stopped.remote(|remote| {
                    for &(address, size) in &mapped.ranges {
                        let _ = remote.munmap(RemoteAddr(address), size);
                    }
                    Ok::<_, RemoteError>(())
                });
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
        let memory = self.map(process, stopped, mapped)?;
        if self.plan.sites.iter().any(clock::is_read_by) {
            clock::require(process, stopped, RemoteAddr(self.header.threads))?;
        }
        let region = Region::map(&memory, self.header.blocks_offset + self.header.block_stride)?;
        let bytes: u64 = self.header.arenas().map(|arena| arena.size).sum();
        if bytes < spread::WORTH_A_THREAD {
            self.write_journal(&region)?;
            self.write_code(process)?;
        } else {
            // The stop is to be short, so the two large pieces of work go side by side.
            let (told, written) = spread::both(|| self.write_journal(&region), || self.write_code(process));
            told.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(written)?;
        }
        process.write(RemoteAddr(self.header.threads), &u64::from(self.header.pid).to_le_bytes())?;

        let mut refused = self.refused_by_contexts(process, stopped, &all)?;
        self.refuse_modified(process, &mut refused)?;
        semaphores::refuse(process, &self.semaphores, &mut refused)?;
        let moves = self.threads_inside(stopped, &mut refused);
        self.require_lookups(process, &mut refused)?;
        self.give_stubs(process, stopped, &all, &mut refused)?;
        self.keep_whole(&mut refused);
        let mut journal = self.journal.clone();
        for (index, _) in refused.iter().enumerate().filter(|(_, refused)| refused.is_some()) {
            self.skip(index, &mut journal, &region)?;
        }
        trapless_wire::WordsMut::set_word(&region, Header::SHARING_OFFSET, sharing_threads(stopped));
        // A block without it is a forked child's.
        let overflow = self.header.blocks_offset + u64::from(BLOCK_ORIGIN);
        trapless_wire::WordsMut::set_word(&region, overflow, u64::from(self.header.pid));

        semaphores::raise(process, &self.header, &self.semaphores, &refused)?;

        // Step 7.
        let put_in =
            writes::put_in(process, &journal).inspect_err(|_| semaphores::lower_again(process, &self.header));
        let modified = put_in?;
        if !modified.is_empty() {
            let before = refused.clone();
            modified.into_iter().for_each(|index| refused[index] = Some(LeftAlone::Modified));
            let others = refused.clone();
            self.keep_whole(&mut refused);
            // Those that are in go with the one that is not.
            writes::take_out(process, &journal, |site| {
                others[site.index].is_none() && refused[site.index].is_some()
            })?;
            for index in (0..refused.len()).filter(|&index| before[index] != refused[index]) {
                // Removal need not wait for somebody else's bytes to go.
                self.skip(index, &mut journal, &region)?;
            }
        }
        semaphores::confirm(process, &self.header, &self.semaphores, &refused);
        for (tid, index, copy) in moves {
            if refused[index].is_none() {
                set_ip(stopped, tid, copy)?;
            }
        }
        set_state(&region, &self.header, SessionState::Armed);
        Ok(Armed { memory, header: self.header, journal, stopped: Duration::ZERO, refused })
    }

    /// Leaves a function alone that is followed to its exits where one of its sites is.
    fn keep_whole(&self, refused: &mut [Option<LeftAlone>]) {
        exits::keep_whole(refused, |index| &self.plan.sites[index].request, |left| *left, Some);
    }

    /// Of step 3: the header first, since what is mapped by then is found by it.
    fn write_journal(&self, region: &Region) -> Result<(), EngineError> {
        region.write(0, bytemuck::bytes_of(&self.header))?;
        region.write(self.header.places_at(), bytemuck::cast_slice(&self.schema))?;
        let parts = self.journal.parts(&self.header.journal);
        parts.into_iter().try_for_each(|(offset, part)| region.write(offset, part))
    }

    /// Step 3.
    fn write_code(&self, process: &Process) -> Result<(), EngineError> {
        let arenas = self.header.arenas().zip(&self.code);
        arenas.into_iter().try_for_each(|(arena, code)| Ok(process.write(RemoteAddr(arena.address), code)?))
    }

    /// Says of a site that it was never changed.
    fn skip(&self, index: usize, journal: &mut Journal, region: &Region) -> Result<(), EngineError> {
        journal.skip(index);
        match journal.site(index) {
            Some(site) => region.write(self.header.journal.site_at(index as u64), bytemuck::bytes_of(&*site)),
            None => Ok(()),
        }
    }

    /// Of step 1: return addresses of one session's may be found by the other's detours and be gone when the other looks for
    /// them, so only one follows calls. Looked at in the stop, since two may come at the same time.
    fn refuse_second_follower(&self, process: &Process, all: &[Checked]) -> Result<(), EngineError> {
        if all.is_empty() || !self.plan.pairs() {
            return Ok(());
        }
        let follows = |journal: &Journal| journal.planned().any(|site| site.return_point != 0);
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

    /// Refuses to follow calls by detours where a function that unwinders ask cannot be patched after all.
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
            for (site, refusal) in self.journal.sites().zip(refused) {
                if site.return_point != 0 && refusal.is_none() {
                    *refusal = Some(LeftAlone::Unwinder);
                }
            }
        }
        Ok(())
    }

    /// Step 2.
    fn map(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        mapped: &mut Mapped,
    ) -> Result<OwnedFd, EngineError> {
        let header = &self.header;
        stopped.remote(|remote| {
            let shared = remote.create_shared(REGION_NAME, header.region_size)?;
            let fd = shared.descriptor_in_target();
            let mapped = self.map_regions(remote, fd, mapped);
            remote.close_if_there(fd)?;
            mapped?;
            shared.refuse_other_mapping(&process.maps()?, RemoteAddr(header.region))?;
            Ok(shared.into_file())
        })
    }

    fn map_regions(
        &self,
        remote: &mut Remote<'_, '_>,
        fd: i32,
        mapped: &mut Mapped,
    ) -> Result<(), EngineError> {
        use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED};
        let header = &self.header;
        let locked = remote.process().status()?.locks_memory;
        let fixed = MAP_FIXED_NOREPLACE | MAP_NORESERVE;
        let private = MAP_PRIVATE | MAP_ANONYMOUS | fixed;
        for (at, size, flags, fd) in [
            (header.region, header.region_size, MAP_SHARED | fixed, fd),
            (header.threads, header.threads_size, private, -1),
            (header.returns, header.returns_size, private, -1),
        ] {
            map_data(remote, at, size, flags, fd, locked, mapped)?;
        }
        for arena in header.arenas() {
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            let got = remote.mmap(RemoteAddr(arena.address), arena.size, protection, private, -1, 0)?;
            mapped.ranges.push((got.0, arena.size));
        }
        remote.madvise(RemoteAddr(header.threads), header.threads_size, libc::MADV_WIPEONFORK)?;
        Ok(())
    }

    /// Step 4.
    fn refused_by_contexts(
        &self,
        process: &Process,
        stopped: &Stopped<'_>,
        all: &[Checked],
    ) -> Result<Vec<Option<LeftAlone>>, EngineError> {
        let led = scan::led_into(process, stopped, &self.inside, &reach::regions(&self.header), all)?;
        if led.is_empty() {
            return Ok(vec![None; self.journal.len()]);
        }
        let refusal = |site: SiteWrites<'_>| {
            let is_led = |write: Write<'_>| led.binary_search(&(write.address + 1)).is_ok();
            site.writes().any(is_led).then_some(LeftAlone::OnStack)
        };
        Ok(self.journal.sites().map(refusal).collect())
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

    /// For step 8: threads inside displaced instructions, their sites, and where they go on. A thread that stands
    /// where no displaced instruction begins keeps its site unpatched.
    fn threads_inside(
        &self,
        stopped: &Stopped<'_>,
        refused: &mut [Option<LeftAlone>],
    ) -> Vec<(Tid, usize, u64)> {
        let mut moves = Vec::new();
        for thread in stopped.threads() {
            let ip = thread.registers().ip().0;
            let after = self.writes.partition_point(|(range, _)| range.start < ip);
            let Some((range, index)) = after.checked_sub(1).map(|last| self.writes[last].clone()) else {
                continue;
            };
            if !range.contains(&ip) {
                continue;
            }
            match self.places[index].iter().find(|place| place.0 == ip) {
                Some(copy) => moves.push((thread.tid(), index, copy.1)),
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

/// Maps readable and writable memory: gigabytes of address space that are hardly used.
///
/// A program that locked all memory to come (`mlockall(MCL_FUTURE)`) would get all of it filled in. There it is mapped without
/// access first, which cannot be filled in, unlocked, and only then made accessible.
fn map_data(
    remote: &mut Remote<'_, '_>,
    at: u64,
    size: u64,
    flags: i32,
    fd: i32,
    locked: bool,
    mapped: &mut Mapped,
) -> Result<(), EngineError> {
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let protection = if locked { libc::PROT_NONE } else { read_write };
    let got = remote.mmap(RemoteAddr(at), size, protection, flags, fd, 0)?;
    mapped.ranges.push((got.0, size));
    if locked {
        remote.munlock(got, size)?;
        remote.mprotect(got, size, read_write)?;
    }
    keep_out_of_dumps(remote, got, size)
}

/// Says of memory of ours that it is not for a core dump, and that pages are to be small.
pub(crate) fn keep_out_of_dumps(
    remote: &mut Remote<'_, '_>,
    at: RemoteAddr,
    size: u64,
) -> Result<(), EngineError> {
    remote.madvise(at, size, libc::MADV_DONTDUMP)?;
    // A thread needs a few pages of its return table, not two megabytes. Kernels without huge pages say EINVAL.
    let _ = remote.madvise(at, size, libc::MADV_NOHUGEPAGE);
    Ok(())
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
