//! A forked child gets numbers of its own.
//!
//! A child begins as a copy of its parent: patched code, arenas and return instances at the same addresses, and the *same* shared
//! region, in which it counts apart from its parent and with all other children together. Here it gets a region of its own in the place
//! of that one, with the same header, journal and schema and with empty blocks. None of the code need be changed for it. From
//! then on the child is a process with a session like any other, and so are its own children. A script's bodies, which a child without a
//! session does not call, run in it from then on, in memory of its own that is new.
//!
//! In order, while the child stands before its first instruction:
//! 1. Make the memory in the child, and fill it: whoever finds it finds a whole session.
//! 2. Map it over the parent's, wherever that is mapped. The thread table is empty (it is wiped in children), so no thread has a block
//!    in the old one.
//! 3. Say that what counts here is no child any more: the origin word, which is wiped, too.

use crate::own_stacks::OwnStacks;
use crate::{
    EngineError, Script, Session,
    arm::set_state,
    found,
    mapped::{keep_out_of_dumps, refuse_other_near},
    region::Region,
};
use std::time::Instant;
use trapless_isa::detour::BLOCK_ORIGIN;
use trapless_process::{Process, RemoteAddr, Stopped, Tid};
use trapless_wire::{
    Arena, JournalSite, JournalSizes, REGION_NAME, RawPlace, SCRIPT_BOUNDS, SCRIPT_PARENT, SCRIPT_PID,
    SCRIPT_SEED, SessionState, Words, WordsMut,
};

impl Session {
    /// The session of a forked child of this one's process, which stands before its first instruction. `script`: that of this session, whose
    /// memory in the child begins as it began here.
    ///
    /// # Errors
    /// The child cannot make the memory. It then goes on counting in its parent's, as a child.
    pub fn of_forked_child(
        &self,
        child: &Process,
        stopped: &mut Stopped<'_>,
        script: Option<&Script>,
    ) -> Result<Session, EngineError> {
        let since = Instant::now();
        let mut header = *self.header();
        // What was added to the parent since the fork, the child has not got.
        let own = found::arenas(child, &header)?;
        let journal = match own == header.arenas {
            true => self.journal().clone(),
            false => self.journal().only(|site| has(&own, site)),
        };
        header.arenas = own;
        header.pid = child.pid().0 as u32;
        header.start_time = child.start_time();
        header.sharing_threads = 0;
        let at = RemoteAddr(header.region);
        let parent = child.status().map_or(0, |status| status.ppid as u64);
        let script = match script.filter(|_| header.program != 0) {
            // Its threads are made by the same C library.
            Some(script) => {
                let bounds = self.region().word(header.script + u64::from(SCRIPT_BOUNDS)) as i64;
                Some((script, OwnStacks { bounds, ..OwnStacks::of(child, stopped)? }))
            }
            None => None,
        };
        let memory = stopped.remote(|remote| {
            let shared = remote.create_shared(REGION_NAME, header.region_size)?;
            let fd = shared.descriptor_in_target();
            let filled = shared.file().map_err(EngineError::Map).and_then(|file| {
                let region = Region::map(&file, header.blocks_offset + header.block_stride)?;
                region.write(0, bytemuck::bytes_of(&header))?;
                let parts = journal.parts(&header.journal, &JournalSizes::default());
                parts.into_iter().try_for_each(|(offset, part)| region.write(offset, &part))?;
                self.copy_schema(&region)?;
                if let Some((script, stacks)) = script {
                    script.write(&region, &header, stacks)?;
                    // It begins as its parent's, but the process is another one, with other random numbers.
                    let seed = script.seed() ^ u64::from(header.pid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let pid = header.pid.into();
                    for (at, word) in [(SCRIPT_PID, pid), (SCRIPT_PARENT, parent), (SCRIPT_SEED, seed)] {
                        region.set_word(header.script + u64::from(at), word);
                    }
                }
                // A block without it is a forked child's.
                region.set_word(header.blocks_offset + u64::from(BLOCK_ORIGIN), u64::from(header.pid));
                set_state(&region, &header, SessionState::Armed);
                Ok(())
            });
            let mapped = filled.and_then(|()| {
                let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let (near, near_size) = header.near();
                // What is a part of it first: as long as the whole is the parent's, so is what counts in it.
                let all = [(near, near_size, header.blocks_offset), (at.0, header.region_size, 0)];
                all.into_iter().filter(|(_, size, _)| *size > 0).try_for_each(|(at, size, offset)| {
                    let got = remote.mmap(RemoteAddr(at), size, protection, flags, fd, offset)?;
                    keep_out_of_dumps(remote, got, size)
                })
            });
            remote.close_if_there(fd)?;
            mapped?;
            let maps = child.maps()?;
            shared.refuse_other_mapping(&maps, at)?;
            refuse_other_near(&shared, &maps, &header)?;
            Ok::<_, EngineError>(shared.into_file())
        })?;
        child.write(RemoteAddr(header.threads), &u64::from(header.pid).to_le_bytes())?;
        unmark(stopped, child.pid().leader())?;
        crate::signals::begin_in_child(child, &header)?;
        self.in_memory(&memory, header, journal, since.elapsed())
    }

    /// The schema as it stands in this session's region.
    fn copy_schema(&self, region: &Region) -> Result<(), EngineError> {
        let start = self.header().places_at();
        let size = self.used().places * size_of::<RawPlace>() as u64;
        region.write(start, &self.region().bytes(start..start + size)?)
    }
}

/// Whether a site's detour lies in one of these arenas.
fn has(arenas: &[Arena], site: &JournalSite) -> bool {
    arenas.iter().any(|arena| (arena.address..arena.address + arena.size).contains(&site.detour))
}

/// Takes the mark of a child that shares its parent's memory off one that does not: it may have been forked by such a child, and has
/// inherited it.
fn unmark(stopped: &mut Stopped<'_>, tid: Tid) -> Result<(), EngineError> {
    let mark = crate::target::isa(stopped.process()).facts().mark;
    let Some(thread) = stopped.thread(tid) else { return Ok(()) };
    let mut registers = *thread.registers();
    if registers.flags() & mark == 0 {
        return Ok(());
    }
    registers.set_flags(registers.flags() & !mark);
    Ok(stopped.set_registers(tid, registers)?)
}
