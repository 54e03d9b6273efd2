//! Where copies and handling code lie, and the words that they go by.
//!
//! An arena is a stretch of memory that can be read and run, and behind it one that can be read and written. The first is written as all code
//! is, through `/proc/self/mem`. Nothing of it is given back: a thread may be in it.

use crate::Error;
use crate::patch::Memory;
use std::sync::atomic::AtomicU64;
use trapless_isa::Machine;
use trapless_isa::inside::{Inside, Vectors};
use trapless_isa::loader::Beyond;
use trapless_process::{Mappings, Process, RemoteAddr};

/// The code of this machine; `None`: it has none for this.
pub(crate) fn instructions() -> Option<&'static dyn Inside> {
    let isa = Machine::HOST?.isa().inside()?;
    trapless_engine::vectors().is_ok().then_some(isa)
}

/// Bytes of an arena that can be run, and of words behind it.
const CODE: u64 = 64 << 10;
const WORDS: u64 = 16 << 10;

/// How far an arena may be from what it serves: instructions reach data of their module by 2 GiB, which may be on the other side.
pub(crate) const REACH: u64 = 1 << 30;

/// An arena, and what is used of it.
#[derive(Debug)]
pub(crate) struct Arena {
    start: u64,
    code: u64,
    words: u64,
}

/// The kernel's lowest and highest free addresses, and all between that is taken: as it is now.
pub(crate) struct Space {
    process: Process,
    pub maps: Mappings,
}

impl Space {
    pub fn now() -> Result<Self, Error> {
        let failed =
            |error: String| Error::System { what: "/proc/self", source: std::io::Error::other(error) };
        let process = Process::own().map_err(|error| failed(error.to_string()))?;
        let maps = process.maps().map_err(|error| failed(error.to_string()))?;
        Ok(Self { process, maps })
    }

    /// Free addresses near one, nearest first.
    pub fn near(&self, address: u64, reach: u64, size: u64) -> impl Iterator<Item = u64> + use<> {
        let near = RemoteAddr(address)..RemoteAddr(address + 1);
        let rules = self.process.gap_rules().ok();
        let places = rules.map(|rules| self.maps.find_gap(&rules, near, reach, size));
        places.into_iter().flatten().map(|place| place.0)
    }
}

/// Maps memory at an address where nothing is; whether it could be.
pub(crate) fn map(address: u64, size: u64, protection: i32) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let place = std::ptr::without_provenance_mut(address as usize);
    // SAFETY: nothing that is mapped is replaced, and what is mapped is nobody's.
    let mapped = unsafe { libc::mmap(place, size as usize, protection, flags, -1, 0) };
    if mapped.addr() as u64 == address {
        return true;
    }
    if mapped != libc::MAP_FAILED {
        // Before Linux 4.17 the address is a hint.
        // SAFETY: it was mapped by the call.
        unsafe { libc::munmap(mapped, size as usize) };
    }
    false
}

impl Arena {
    /// One in reach of an address.
    fn near(address: u64) -> Result<Self, Error> {
        let space = Space::now()?;
        for start in space.near(address, REACH, CODE + WORDS).take(64) {
            if !map(start, CODE, libc::PROT_READ | libc::PROT_EXEC) {
                continue;
            }
            if map(start + CODE, WORDS, libc::PROT_READ | libc::PROT_WRITE) {
                return Ok(Self { start, code: 0, words: 0 });
            }
            // SAFETY: it was mapped above, and nobody has it yet.
            unsafe { libc::munmap(std::ptr::without_provenance_mut(start as usize), CODE as usize) };
        }
        Err(Error::NoRoom(address))
    }

    fn reaches(&self, address: u64) -> bool {
        self.start.abs_diff(address) < REACH
    }

    /// A word that nobody has, which is 0.
    fn word(&mut self) -> Option<&'static AtomicU64> {
        let at = self.start + CODE + self.words;
        self.words += 8;
        // SAFETY: the memory is an arena's, which stays for good; the word is given out once, and is aligned.
        (self.words <= WORDS)
            .then(|| unsafe { AtomicU64::from_ptr(std::ptr::without_provenance_mut(at as usize)) })
    }
}

/// Arenas that serve one purpose.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    all: Vec<Arena>,
    /// Bytes at the beginning of each that stay 0.
    head: u64,
}

/// Memory for a site's code, before that is made.
pub(crate) struct Place {
    /// Where its code begins.
    pub code: u64,
    /// A word of its own.
    pub word: &'static AtomicU64,
}

impl Arenas {
    /// With so many bytes at the beginning of each that stay 0.
    pub fn with_head(head: u64) -> Self {
        Self { all: Vec::new(), head }
    }

    /// Where their code lies, and how much there can be, in the order in which they came.
    pub fn code(&self) -> impl Iterator<Item = (u64, u64)> {
        self.all.iter().map(|arena| (arena.start, CODE))
    }

    /// Room for so many bytes of code near an address, and a word.
    pub fn place(&mut self, near: u64, size: u64) -> Result<Place, Error> {
        let fits =
            |arena: &Arena| arena.reaches(near) && arena.code + size <= CODE && arena.words + 8 <= WORDS;
        if !self.all.iter().any(fits) {
            self.all.push(Arena { code: self.head, ..Arena::near(near)? });
        }
        let arena = self.all.iter_mut().find(|arena| fits(arena)).ok_or(Error::NoRoom(near))?;
        let word = arena.word().ok_or(Error::NoRoom(near))?;
        let code = arena.start + arena.code;
        arena.code += size.next_multiple_of(16);
        Ok(Place { code, word })
    }

    /// Writes code near an address. `make` makes it for where it will stand, which may lengthen it by some bytes, with more about it than the `code`; where that is, and what
    /// was made.
    pub fn write<T>(
        &mut self,
        near: u64,
        memory: &Memory,
        make: impl Fn(u64) -> Result<T, Error>,
        code: impl Fn(&T) -> &[u8],
    ) -> Result<(u64, T), Error> {
        const MORE: usize = 16;
        let room = code(&make(near)?).len() + MORE;
        let at = self.place(near, room as u64)?.code;
        let made = make(at)?;
        if code(&made).len() > room {
            return Err(Error::NoRoom(near));
        }
        memory.write(at, code(&made))?;
        Ok((at, made))
    }
}

/// What the processor has beyond the low halves of vector registers, as far as the kernel saves it.
pub(crate) fn vectors() -> Option<Vectors> {
    match trapless_engine::vectors() {
        Ok(Beyond::Components(vectors)) => Some(vectors),
        Ok(Beyond::Nothing | Beyond::Scalable) | Err(_) => None,
    }
}
