//! Where a script works: its memory, its code, and the detours that call it.
//!
//! All of it is laid out as from outside ([`trapless_wire::Header`]), and the same code works in it: what threads have in common and their blocks are shared
//! memory, so that children which were forked count there what they do not run; the table of threads is this process's alone, and is empty in a child.
//!
//! A thread may be anywhere in that code at any time, so nothing of it is ever given back. It is used again: a script whose code is the same as that of one which was
//! stopped gets its memory, all zeros, and its detours. Where forked children have blocks in the memory it stays theirs.
//!
//! Our own thread has the first block, which says that it is a child's: what it calls runs no bodies, and is counted as that.

use crate::code::Arenas;
use crate::detours::Detours;
use crate::find::Probed;
use crate::patch::Memory;
use crate::site::Link;
use crate::times::{BLOCKS, SIZES, Timing, far, map};
use crate::{Error, counts, own};
use bytemuck::Zeroable;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trapless_engine::{Clause, Clauses, OwnStacks, Region, Script, ScriptMemory};
use trapless_isa::Machine;
use trapless_isa::body::Runs;
use trapless_isa::detour::{
    BLOCK_ORIGIN, BLOCK_OWNER, BLOCK_UNRUN, Layout, THREAD_BLOCK, THREAD_OWNER, THREAD_SHIFT,
};
use trapless_process::Process;
use trapless_script::ir::{Body, BodyId, Program};
use trapless_script::native::{Moment, NativeProgram};
use trapless_session::session::{SiteNumbers, tid_offset_by_library};
use trapless_wire::{
    Counter, Geometry, Header, JournalSizes, MapKind, MapPlace, PAGE, ThreadMemory, Words, WordsMut,
};

/// The number of our own thread's block.
const OURS: u64 = 1;

/// All that there are.
#[derive(Default)]
pub(super) struct Parts(Vec<Part>);

/// Which of them.
pub(super) type Number = usize;

/// What code was compiled of: bodies that run in functions, and all that they refer to.
#[derive(PartialEq)]
pub(super) struct Origin(Program, Vec<(BodyId, Moment)>);

impl Origin {
    pub fn of(program: &Program, bodies: &[(BodyId, Moment)]) -> Self {
        let mut program = program.clone();
        for (number, body) in (0..).zip(&mut program.bodies) {
            if bodies.iter().all(|one| one.0 != BodyId(number)) {
                *body = Body::default();
            }
        }
        Self(program, bodies.to_vec())
    }
}

/// One.
pub(super) struct Part {
    /// That of the last script that it was given to.
    origin: Origin,
    native: NativeProgram,
    follows: bool,
    /// The numbers by which bodies know functions.
    pub numbers: Arc<SiteNumbers>,
    /// The script as the engine has it. What its memory begins with is another one's each time.
    pub script: Script,
    header: Header,
    region: Arc<Region>,
    /// As it is read.
    pub memory: ScriptMemory,
    /// What calls that were not followed are counted by.
    lost: Counter,
    detours: Detours,
    made: Vec<Made>,
    use_: Use,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Used,
    /// Of forked children for good.
    Theirs,
}

/// A detour that calls bodies at a function.
struct Made {
    function: u64,
    clauses: [Vec<Clause>; 2],
    number: u32,
    link: Link,
}

impl Parts {
    /// The code of a program, if it was compiled before.
    pub fn compiled(&self, program: &Program, bodies: &[(BodyId, Moment)]) -> Option<NativeProgram> {
        let origin = Origin::of(program, bodies);
        self.0.iter().find(|part| part.origin == origin).map(|part| part.native.clone())
    }

    /// One that is free for a script with this code.
    pub fn take(
        &mut self,
        native: &NativeProgram,
        origin: Origin,
        follows: bool,
        timing: &mut Timing,
    ) -> Result<Number, Error> {
        let suits = |part: &Part| {
            let is_same = (&part.native.code, &part.native.layout) == (&native.code, &native.layout);
            part.use_ == Use::Free && is_same && part.follows == follows
        };
        let number = match self.0.iter().position(suits) {
            Some(number) => {
                self.0[number].origin = origin;
                number
            }
            None => {
                self.0.push(Part::new(native, origin, follows, timing)?);
                self.0.len() - 1
            }
        };
        self.0[number].use_ = Use::Used;
        Ok(number)
    }

    /// The one with this number, which whoever asks was given.
    pub fn get(&mut self, number: Number) -> &mut Part {
        &mut self.0[number]
    }
}

impl Part {
    fn new(
        native: &NativeProgram,
        origin: Origin,
        follows: bool,
        timing: &mut Timing,
    ) -> Result<Self, Error> {
        let isa = Machine::HOST.ok_or(Error::Machine)?.isa();
        let script = Script {
            program: native.code.clone(),
            shared: Vec::new(),
            shared_size: native.layout.shared,
            block_size: native.layout.thread,
            walks: None,
            interpreter: None,
        };
        let failed = |error: trapless_engine::EngineError| Error::Script(format!("script: {error}\n"));
        script.check().map_err(failed)?;
        let too_large = || {
            Error::Script("script: its maps and strings take more memory than a script can have\n".to_owned())
        };
        let mut geometry = Geometry::default();
        geometry.script(script.shared_size, script.block_size).ok_or_else(too_large)?;
        let lost = geometry.counter().ok_or_else(too_large)?;
        let mut header = Header::zeroed();
        let slots = follows.then_some(isa.facts().slot_shift);
        geometry.describe(&mut header, SIZES, JournalSizes::default(), slots);
        header.block_count = BLOCKS;
        header.region_size = header.blocks_offset + header.block_stride * header.block_count;
        // Calls that are followed are known to all detours of the process.
        header.returns = if follows { timing.returns()? } else { map(header.returns_size)? };
        let (start, file) = shared(header.region_size)?;
        header.region = start.as_ptr().expose_provenance() as u64;
        header.threads = map(header.threads_size)?;
        let size = script.arena_size(isa);
        header.program = code(size)?;
        let shared = header.region + header.script;
        Memory::open()?.write(header.program, &script.drawn(isa, header.program, size, shared))?;
        // SAFETY: it was mapped so, and what others do there they do word by word.
        let region = Arc::new(unsafe { Region::of_mapping(start, header.region_size as usize, file) });
        let memory = ScriptMemory::of(&region, &header).ok_or_else(too_large)?;
        let process = Process::own().map_err(trapless_session::error::Error::from)?;
        let mut layout = header.layout(ThreadMemory { self_pointer: true, tid_offset: tid_offset(&process) });
        if follows {
            layout.points = header.signal_table();
        }
        let layout: &'static Layout = Box::leak(Box::new(layout));
        Ok(Self {
            origin,
            native: native.clone(),
            follows,
            numbers: Arc::default(),
            script,
            header,
            region,
            memory,
            lost,
            detours: Detours::new(layout),
            made: Vec::new(),
            use_: Use::Free,
        })
    }

    /// The memory is all zeros, but for what the script begins with. Nothing leads to it yet.
    pub fn begin(&mut self, shared: Vec<u8>, process: &Process) -> Result<(), Error> {
        self.clear()?;
        let pointer = own::thread_pointer();
        let stacks = OwnStacks::of_own(process, pointer).map_err(|error| Error::System {
            what: "/proc/self/mem",
            source: std::io::Error::other(error),
        })?;
        self.script.shared = shared;
        let failed = |error: trapless_engine::EngineError| Error::System {
            what: "memory for a script",
            source: std::io::Error::other(error),
        };
        self.script.write(&self.region, &self.header, stacks).map_err(failed)?;
        let layout = self.detours.layout;
        let block = |number: u64| self.header.blocks_offset + number * layout.block_stride;
        self.region.set_word(block(0) + u64::from(BLOCK_ORIGIN), 1);
        // As the runtime's *resolve* does it, but for the origin.
        self.region.set_word(block(OURS) + u64::from(BLOCK_OWNER), pointer);
        let entry = layout.threads + (layout.thread_index(pointer, 8) << THREAD_SHIFT);
        let at = |offset: u32| counts::word(entry + u64::from(offset));
        at(THREAD_BLOCK).store(layout.blocks + OURS * layout.block_stride, Ordering::Release);
        at(THREAD_OWNER).store(!pointer, Ordering::Release);
        self.region.set_word(Header::CURSOR_OFFSET, OURS + 1);
        counts::word(layout.origin).store(1, Ordering::Release);
        Ok(())
    }

    /// Gives its memory back.
    fn clear(&self) -> Result<(), Error> {
        const WHAT: &str = "giving memory of a script back";
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(self.header.threads as usize);
        let length = self.header.threads_size as usize;
        // SAFETY: it is the part's own, and what is in it are words that may be 0.
        unsafe {
            // In forked children there is nobody's.
            if libc::madvise(start, length, libc::MADV_DONTNEED) != 0
                || libc::madvise(start, length, libc::MADV_WIPEONFORK) != 0
            {
                return Err(Error::last(WHAT));
            }
        }
        let failed = |error| Error::System { what: WHAT, source: std::io::Error::other(error) };
        // The first page has the number of the next block. Children may ask for one at any time.
        self.region.forget_from(PAGE).map_err(failed)
    }

    /// Nothing came of it.
    pub fn free(&mut self) {
        self.use_ = Use::Free;
    }

    /// Nothing leads to it any more, and all that it has was read.
    pub fn end(&mut self) {
        // Children that ask from now on get none.
        let claimed = self.region.swap(Header::CURSOR_OFFSET, self.header.block_count);
        let is_childs = |number: u64| self.memory.block_word(number, BLOCK_ORIGIN) == 0;
        let are_childrens = (OURS + 1..claimed.min(self.header.block_count)).any(is_childs);
        self.use_ = if are_childrens || self.clear().is_err() { Use::Theirs } else { Use::Free };
    }

    /// The detour that does at a function what the script asks for.
    pub fn link(
        &mut self,
        timing: &mut Timing,
        arenas: &mut Arenas,
        memory: &Memory,
        probed: &Probed,
    ) -> Result<Link, Error> {
        let function = probed.found.function;
        let is_it = |made: &&Made| {
            (made.function, made.number) == (function, probed.number) && made.clauses == probed.clauses
        };
        if let Some(made) = self.made.iter().find(is_it) {
            return Ok(made.link);
        }
        let [entry, at_return] = &probed.clauses;
        let clauses = Clauses { entry, at_return, site: probed.number, operands: Ok(&[]) };
        let [entry, at_return] = clauses.runs(&self.script, self.header.program);
        let (payload, runs) =
            (clauses.payload(self.lost.offset()), Runs { entry: &entry, at_return: &at_return });
        let follows = payload.followed.is_some();
        let detours = &mut self.detours;
        let (detour, next) = match follows {
            true => timing.follow(memory, function, detours, payload, runs)?,
            false => detours.write_ahead(arenas, memory, function, payload, runs)?,
        };
        let link = Link { detour, next, follows };
        let (clauses, number) = (probed.clauses.clone(), probed.number);
        self.made.push(Made { function, clauses, number, link });
        Ok(link)
    }

    /// How many calls were not followed to their return.
    pub fn lost(&self) -> u64 {
        self.memory.sum(self.lost.offset())
    }

    /// How many hits were our own thread's, which run no bodies.
    pub fn ours(&self) -> u64 {
        let counted = self.native.layout.maps.iter().filter_map(|map| match map {
            MapPlace::PerThread(at, MapKind::Words(1)) => Some(u64::from(at + 8)),
            _ => None,
        });
        let block = self.memory.block(OURS).start;
        let counted: u64 = counted.map(|at| self.region.word(block + at)).sum();
        counted + self.memory.block_word(OURS, BLOCK_UNRUN)
    }
}

/// Where the C library has the number of a thread, if it is there.
fn tid_offset(process: &Process) -> Option<i32> {
    let offset = tid_offset_by_library(process)?;
    let at = own::thread_pointer().wrapping_add_signed(offset.into());
    let mut number = [0; 4];
    process.read_exact(trapless_process::RemoteAddr(at), &mut number).ok()?;
    // SAFETY: the call takes nothing.
    (i32::from_le_bytes(number) == unsafe { libc::gettid() }).then_some(offset)
}

/// Memory that is all 0, that takes as much as is used of it, and that forked children share.
fn shared(size: u64) -> Result<(NonNull<u8>, File), Error> {
    const WHAT: &str = "memory for a script";
    // SAFETY: the name is a string of C, and the descriptor is nobody else's.
    let file = unsafe {
        match libc::memfd_create(c"trapless-script".as_ptr(), libc::MFD_CLOEXEC) {
            // A program without standard files has them not in there.
            fd @ 0..=2 => {
                let higher = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3);
                libc::close(fd);
                if higher < 0 {
                    return Err(Error::last("memfd_create"));
                }
                File::from_raw_fd(higher)
            }
            fd if fd > 2 => File::from_raw_fd(fd),
            _ => return Err(Error::last("memfd_create")),
        }
    };
    file.set_len(size).map_err(|source| Error::System { what: WHAT, source })?;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let length = size as usize;
    // SAFETY: it is mapped where nothing is, and nobody has it yet.
    unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let start = libc::mmap(far(size), length, libc::PROT_NONE, flags, fd, 0);
        if start == libc::MAP_FAILED {
            return Err(Error::last(WHAT));
        }
        // As for calls that are timed: a program that has all of its memory locked does not mean this.
        libc::munlock(start, length);
        if libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            let error = Error::last(WHAT);
            libc::munmap(start, length);
            return Err(error);
        }
        NonNull::new(start.cast()).map(|start| (start, file)).ok_or_else(|| Error::last(WHAT))
    }
}

/// Memory for code, anywhere: detours call bodies by their addresses.
fn code(size: u64) -> Result<u64, Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (length, rights) = (size.next_multiple_of(PAGE) as usize, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: it is mapped where nothing is.
    let start = unsafe { libc::mmap(far(length as u64), length, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Error::last("memory for a script's code"));
    }
    Ok(start.expose_provenance() as u64)
}
