//! The memory that arming maps into a target, and how all that it has done there is undone.

use crate::{Blueprint, EngineError, writes};
use std::os::fd::OwnedFd;
use trapless_process::{Mappings, Process, Remote, RemoteAddr, RemoteError, SharedMemory, Stopped};
use trapless_wire::{Header, Journal, REGION_NAME};

/// What was done so far, to be undone if a later step fails.
#[derive(Default)]
pub(crate) struct Mapped {
    ranges: Vec<(u64, u64)>,
    /// What is being put in, once that has begun. Before, bytes as ours are another tool's: two that come at the same time may have drawn
    /// the same arenas, and the later one finds them mapped.
    pub put_in: Option<Journal>,
}

impl Mapped {
    /// Takes out what was put in; whether nothing of it is left.
    pub(crate) fn take_out(&self, process: &Process) -> bool {
        self.put_in.as_ref().is_none_or(|journal| writes::take_out(process, journal, |_| true).is_ok())
    }

    /// Unmaps it. The target may be gone, and then so is all of it.
    pub(crate) fn undo(&self, stopped: &mut Stopped<'_>) {
        let _ = stopped.remote(|remote| {
            for &(address, size) in &self.ranges {
                let _ = remote.munmap(RemoteAddr(address), size);
            }
            Ok::<_, RemoteError>(())
        });
    }
}

impl Blueprint<'_, '_> {
    /// Step 2.
    pub(crate) fn map(
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
            let maps = process.maps()?;
            shared.refuse_other_mapping(&maps, RemoteAddr(header.region))?;
            refuse_other_near(&shared, &maps, header)?;
            Ok(shared.into_file())
        })
    }

    fn map_regions(
        &self,
        remote: &mut Remote<'_, '_>,
        fd: i32,
        mapped: &mut Mapped,
    ) -> Result<(), EngineError> {
        let header = &self.header;
        let locked = remote.process().status()?.locks_memory;
        let shared = |offset| Some((fd, offset));
        let (near, near_size) = header.near();
        let all = [
            Data { at: header.region, size: header.region_size, file: shared(0) },
            Data { at: near, size: near_size, file: shared(header.blocks_offset) },
            Data { at: header.threads, size: header.threads_size, file: None },
            Data { at: header.returns, size: header.returns_size, file: None },
        ];
        for data in all.iter().filter(|data| data.size > 0) {
            data.map(remote, locked, mapped)?;
        }
        self.map_arenas(remote, mapped)?;
        remote.madvise(RemoteAddr(header.threads), header.threads_size, libc::MADV_WIPEONFORK)?;
        Ok(())
    }

    pub(crate) fn map_arenas(
        &self,
        remote: &mut Remote<'_, '_>,
        mapped: &mut Mapped,
    ) -> Result<(), EngineError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
        for arena in self.new_arenas() {
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            let got = remote.mmap(RemoteAddr(arena.address), arena.size, protection, flags, -1, 0)?;
            mapped.ranges.push((got.0, arena.size));
        }
        Ok(())
    }
}

/// Readable and writable memory: gigabytes of address space that are hardly used.
struct Data {
    at: u64,
    size: u64,
    /// The target's descriptor of what is shared, and the offset there.
    file: Option<(i32, u64)>,
}

impl Data {
    /// Maps it.
    ///
    /// A program that locked all memory to come (`mlockall(MCL_FUTURE)`) would get all of it filled in. There it is mapped without
    /// access first, which cannot be filled in, unlocked, and only then made accessible.
    fn map(&self, remote: &mut Remote<'_, '_>, locked: bool, mapped: &mut Mapped) -> Result<(), EngineError> {
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let protection = if locked { libc::PROT_NONE } else { read_write };
        let kind =
            if self.file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let flags = kind | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
        let (fd, offset) = self.file.unwrap_or((-1, 0));
        let got = remote.mmap(RemoteAddr(self.at), self.size, protection, flags, fd, offset)?;
        mapped.ranges.push((got.0, self.size));
        if locked {
            remote.munlock(got, self.size)?;
            remote.mprotect(got, self.size, read_write)?;
        }
        keep_out_of_dumps(remote, got, self.size)
    }
}

/// Whether what is mapped in reach of arenas is a part of the shared memory.
pub(crate) fn refuse_other_near(
    shared: &SharedMemory,
    maps: &Mappings,
    header: &Header,
) -> Result<(), RemoteError> {
    let (near, size) = header.near();
    match size {
        0 => Ok(()),
        _ => {
            let part = header.blocks_offset..header.blocks_offset + size;
            shared.refuse_other_part(maps, RemoteAddr(near), part)
        }
    }
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
