//! The memory that arming maps into a target.

use crate::{Blueprint, EngineError};
use std::os::fd::OwnedFd;
use trapless_process::{Process, Remote, RemoteAddr, RemoteError, Stopped};
use trapless_wire::REGION_NAME;

/// What was mapped so far, to be undone if a later step fails.
#[derive(Default)]
pub(crate) struct Mapped {
    ranges: Vec<(u64, u64)>,
}

impl Mapped {
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
