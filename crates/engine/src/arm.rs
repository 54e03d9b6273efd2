//! Arming: the only time a running target is changed.
//!
//! # The protocol, in order
//!
//! 1. Stop every thread.
//! 2. Map, by system calls on one stopped thread: the shared region (a memfd, which we open through the target and size
//!    ourselves, because the target's `RLIMIT_FSIZE` would apply to it), the thread region (wiped in forked
//!    children), the return region, and an executable arena for each module. Each at its planned address and only
//!    if nothing is there.
//! 3. Write the code of the arenas, through `/proc/PID/mem`: they are never writable.
//! 4. Check each site again: no stack holds an address inside its displaced instructions.
//! 5. Write the header and the journal.
//! 6. Patch every site whose bytes are the file's.
//! 7. Move threads that stand inside displaced instructions to the same instruction of the detour.
//! 8. Let the target go.
//!
//! When a step fails, what was mapped is unmapped and nothing was changed. If we are killed from step 6 on,
//! the journal tells what to undo, and each patch is harmless by itself: detours are complete before the first
//! patch is written.

use crate::{
    Blueprint, EngineError, Refusal,
    patch::{self, Change, Found},
    region::Region,
    scan::{self, Ranges},
};
use std::{os::fd::OwnedFd, time::Duration};
use trapless_process::{Errno, Process, RemoteAddr, RemoteError, Stopped};
use trapless_wire::{Header, JournalEntry, PAGE, REGION_NAME, SessionState, SiteState};

/// What arming did.
#[derive(Debug)]
pub struct Armed {
    /// The shared region's file. Keeps the counters when the target is gone.
    pub memory: OwnedFd,
    /// The header as it was written.
    pub header: Header,
    /// How long the target stood still.
    pub stopped: Duration,
    /// Per site of the plan, in order: why it was left out after all.
    pub refused: Vec<Option<Refusal>>,
}

/// Undoes the mappings unless it is told to keep them.
struct Mapped {
    ranges: Vec<(u64, u64)>,
}

impl Blueprint<'_, '_> {
    /// Stops the target, puts everything in, lets it go.
    ///
    /// # Errors
    /// The target is as it was, unless the error says that it is gone.
    /// [`RemoteError`] with `EEXIST`: an address was taken in the meantime; draw again.
    pub fn arm(&self, process: &Process, stopped: Stopped<'_>) -> Result<Armed, EngineError> {
        let mut stopped = stopped;
        let mut mapped = Mapped { ranges: Vec::new() };
        match self.arm_stopped(process, &mut stopped, &mut mapped) {
            Ok((memory, refused)) => {
                let time = stopped.stopped_for();
                stopped.resume()?;
                Ok(Armed { memory, header: self.header, stopped: time, refused })
            }
            Err(error) => {
                // The target may be gone, and then so are the mappings.
                let _ = stopped.remote(|remote| {
                    for &(address, size) in &mapped.ranges {
                        let _ = remote.munmap(RemoteAddr(address), size);
                    }
                    Ok(())
                });
                let _ = stopped.resume();
                Err(error)
            }
        }
    }

    fn arm_stopped(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        mapped: &mut Mapped,
    ) -> Result<(OwnedFd, Vec<Option<Refusal>>), EngineError> {
        let memory = self.map(process, stopped, mapped)?;
        for (arena, code) in self.header.arenas().zip(&self.code) {
            process.write(RemoteAddr(arena.address), code)?;
        }
        process.write(RemoteAddr(self.header.threads), &u64::from(self.header.pid).to_le_bytes())?;

        let mut refused = self.refused_by_stacks(process, stopped)?;
        let moves = self.threads_inside(stopped, &mut refused);
        let mut journal = self.journal.clone();
        for (entry, refusal) in journal.iter_mut().zip(&refused) {
            if refusal.is_some() {
                entry.state = SiteState::Skipped as u8;
            }
        }
        let region = Region::map(&memory, self.header.blocks_offset)?;
        region.write(0, bytemuck::bytes_of(&self.header));
        region.write(PAGE, bytemuck::cast_slice(&journal));

        self.patch(process, &journal, &mut refused)?;
        for (tid, index, copy) in moves {
            if refused[index].is_none() {
                stopped.set_instruction_pointer(tid, copy)?;
            }
        }
        set_state(&region, &self.header, SessionState::Armed);
        Ok((memory, refused))
    }

    /// Step 2.
    fn map(
        &self,
        process: &Process,
        stopped: &mut Stopped<'_>,
        mapped: &mut Mapped,
    ) -> Result<OwnedFd, EngineError> {
        use libc::{
            MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_EXEC, PROT_READ,
            PROT_WRITE,
        };
        let header = &self.header;
        let private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
        let mut memory = None;
        let mut map_error = None;
        stopped.remote(|remote| {
            let fd = remote.memfd_create(REGION_NAME, libc::MFD_CLOEXEC)?;
            let opened = process.open_fd(fd).and_then(|own| size_file(own, header.region_size));
            match opened {
                Ok(own) => memory = Some(own),
                Err(error) => {
                    map_error = Some(error);
                    return remote.close(fd);
                }
            }
            let shared = MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
            let mut map =
                |remote: &mut trapless_process::Remote<'_, '_>, at: u64, size, protection, flags, fd| {
                    let got = remote.mmap(RemoteAddr(at), size, protection, flags, fd, 0)?;
                    mapped.ranges.push((got.0, size));
                    // Kernels before 4.17 take MAP_FIXED_NOREPLACE for a hint.
                    if got.0 == at { Ok(()) } else { Err(RemoteError::taken(RemoteAddr(at))) }
                };
            let read_write = PROT_READ | PROT_WRITE;
            let result = map(remote, header.region, header.region_size, read_write, shared, fd)
                .and_then(|()| map(remote, header.threads, header.threads_size, read_write, private, -1))
                .and_then(|()| map(remote, header.returns, header.returns_size, read_write, private, -1))
                .and_then(|()| {
                    header.arenas().try_for_each(|arena| {
                        map(remote, arena.address, arena.size, PROT_READ | PROT_EXEC, private, -1)
                    })
                });
            remote.close(fd)?;
            result?;
            remote.madvise(RemoteAddr(header.threads), header.threads_size, libc::MADV_WIPEONFORK)?;
            for (address, size) in [
                (header.region, header.region_size),
                (header.threads, header.threads_size),
                (header.returns, header.returns_size),
            ] {
                // Gigabytes of address space, hardly used: not for a core dump.
                remote.madvise(RemoteAddr(address), size, libc::MADV_DONTDUMP)?;
            }
            Ok(())
        })?;
        match (memory, map_error) {
            (_, Some(error)) => Err(error.into()),
            (Some(memory), None) => Ok(memory),
            (None, None) => Err(EngineError::Crowded),
        }
    }

    /// Step 4.
    fn refused_by_stacks(
        &self,
        process: &Process,
        stopped: &Stopped<'_>,
    ) -> Result<Vec<Option<Refusal>>, EngineError> {
        let inside = |entry: &JournalEntry| (entry.site + 1, entry.site + u64::from(entry.length));
        let ranges = Ranges::new(self.journal.iter().map(inside));
        let stacks: Vec<u64> = stopped.threads().iter().map(|t| t.registers().stack_pointer()).collect();
        let pointed = scan::pointed_into(process, &stacks, &ranges)?;
        let refusal = |entry: &JournalEntry| {
            pointed.binary_search(&(entry.site + 1)).is_ok().then_some(Refusal::OnStack)
        };
        Ok(self.journal.iter().map(refusal).collect())
    }

    /// Step 6.
    fn patch(
        &self,
        process: &Process,
        journal: &[JournalEntry],
        refused: &mut [Option<Refusal>],
    ) -> Result<(), EngineError> {
        let mut changes = Vec::new();
        let mut sites = Vec::new();
        for (index, entry) in journal.iter().enumerate().filter(|(_, e)| e.is_planned()) {
            changes.push(Change { address: entry.site, from: entry.original(), to: entry.patched() });
            sites.push(index);
        }
        for (found, index) in patch::apply(process, &changes)?.into_iter().zip(sites) {
            if found != Found::Changed {
                refused[index] = Some(Refusal::Modified);
            }
        }
        Ok(())
    }

    /// For step 7: threads inside displaced instructions, their sites, and where they go on. A thread that stands
    /// where no displaced instruction begins keeps its site unpatched.
    fn threads_inside(
        &self,
        stopped: &Stopped<'_>,
        refused: &mut [Option<Refusal>],
    ) -> Vec<(trapless_process::Tid, usize, u64)> {
        let starts: Vec<u64> = self.journal.iter().map(|entry| entry.site).collect();
        let mut moves = Vec::new();
        for thread in stopped.threads() {
            let ip = thread.registers().instruction_pointer();
            let Some(index) = starts.partition_point(|&start| start < ip).checked_sub(1) else { continue };
            let entry = &self.journal[index];
            if ip >= entry.site + u64::from(entry.length) {
                continue;
            }
            match self.places[index].iter().find(|place| place.0 == ip) {
                Some(copy) => moves.push((thread.tid(), index, copy.1)),
                None => refused[index] = Some(Refusal::OnStack),
            }
        }
        moves
    }
}

/// Writes the session's state.
pub(crate) fn set_state(region: &Region, header: &Header, state: SessionState) {
    let word = u64::from(header.version) | u64::from(state as u32) << 32;
    trapless_wire::Words::set_word(region, Header::STATE_OFFSET & !7, word);
}

fn size_file(fd: OwnedFd, size: u64) -> Result<OwnedFd, RemoteError> {
    let file = std::fs::File::from(fd);
    match file.set_len(size) {
        Ok(()) => Ok(file.into()),
        Err(error) => Err(RemoteError::local("ftruncate", Errno(error.raw_os_error().unwrap_or(0)))),
    }
}
