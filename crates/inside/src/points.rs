//! Calls that are followed to their return: where each came from, until it has returned or was left.
//!
//! Each goes by a point of its own, whose address stands on the stack where the caller's was. A point is taken ahead of the call and given back
//! behind it, and each thread keeps a few at hand. A call that is left by `longjmp`, or whose thread ends in it, gives nothing back: when there are no
//! more points, those are looked for whose address does not stand where it was put. It does stand there until the dispatcher of the end has
//! been called: the function's return leaves it below the stack pointer, where handlers of signals write nothing.

use crate::call::Return;
use crate::code::{self, instructions};
use crate::patch::Memory;
use crate::site::{Lane, Site};
use crate::threads::{self, Record};
use crate::{Error, unwind};
use rustix::fs::{Mode, OFlags};
use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use trapless_isa::inside::{Ends, Saved};

/// What a handler at the entry keeps for the one at the return.
pub(crate) type Kept = [MaybeUninit<u64>; 2];

/// Handlers at returns that a function can have.
pub(crate) const LANES: usize = 4;

/// For each of those whose handler at the entry was called: when it began to listen, which no two did at once, and what it keeps. 0: nobody's.
pub(crate) type Lanes = [(u64, Kept); LANES];

/// A call that is followed.
#[repr(C)]
pub(crate) struct Point {
    /// Where it was called from, which unwinders read; or another point's address, where a function that is followed has gone on in this one.
    home: AtomicU64,
    /// What the point calls.
    target: AtomicU64,
    /// Where on the stack the return address is.
    slot: AtomicU64,
    /// What it is used for, in the two lowest bits, and how often it was given back.
    uses: AtomicU64,
    site: AtomicPtr<Site>,
    /// The next one in a list of those that are free, from 1 on; 0: none.
    next: AtomicU32,
    lanes: UnsafeCell<Lanes>,
}

// SAFETY: the lanes are read and written by the one thread that has the point.
unsafe impl Sync for Point {}

/// What a point is used for: a call that is under way; one whose handlers are being called. 0: nothing.
const UNDER_WAY: u64 = 1;
const ENDING: u64 = 2;
const STATE: u64 = 3;

/// Calls that can be followed at a time, in all threads together. Memory for more would have to be asked for.
const MOST: u32 = 32_768;

/// Points that a thread keeps at hand: so many are got at once, and not more than so many are kept.
const BATCH: u32 = 4;
const KEPT: u32 = 8;

/// Where a search for points that nobody gives back has found fewer, so many calls are let go before the next one.
const FEW: u64 = 1024;

/// All points, and their code.
struct Pool {
    known: &'static [Point],
    /// Address of the first one's code, what is on the stack of its call, and bytes to the next one's.
    code: u64,
    back: u64,
    length: u64,
    /// How many were used so far; the others are free.
    fresh: AtomicU32,
    /// The first that was given back, from 1 on, and how often this was changed.
    free: AtomicU64,
    /// Calls that are let go before it is looked for more.
    let_go: AtomicU64,
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

fn pool() -> Option<&'static Pool> {
    // SAFETY: it is made once, and stays.
    unsafe { POOL.load(Ordering::Acquire).as_ref() }
}

/// The ones that a thread keeps at hand: a list.
pub(crate) struct Cache {
    first: AtomicU32,
    count: AtomicU32,
}

impl Cache {
    pub const fn new() -> Self {
        Self { first: AtomicU32::new(0), count: AtomicU32::new(0) }
    }

    fn put(&self, pool: &Pool, index: u32) {
        pool.known[index as usize].next.store(self.first.load(Ordering::Relaxed), Ordering::Relaxed);
        self.first.store(index + 1, Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn take(&self, pool: &Pool) -> Option<u32> {
        let index = self.first.load(Ordering::Relaxed).checked_sub(1)?;
        self.first.store(pool.known[index as usize].next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        Some(index)
    }
}

/// Makes the points, if there are none yet. By who is alone at it.
pub(crate) fn ready() -> Result<(), Error> {
    if pool().is_some() {
        return Ok(());
    }
    let isa = instructions().ok_or(Error::Machine)?;
    // What lies behind the points is little.
    const BEHIND: usize = 16 << 10;
    const CODE: usize = (MOST as usize * 32) + BEHIND;
    const KNOWN: usize = (MOST as usize * size_of::<Point>()).next_multiple_of(4096);
    let start = reserve(CODE + KNOWN)?;
    let known_at = start + CODE as u64;
    let ends = Ends {
        dispatcher: leave as *const () as u64,
        unwound: unwound as *const () as u64,
        resume: unwind::resume(),
        personality: unwind::personality(),
        count: MOST,
        known: known_at,
        stride: size_of::<Point>() as u32,
        target: offset_of!(Point, target) as u32,
        vectors: code::vectors(),
    };
    let made = || {
        let points = isa.points(&ends, start).map_err(Error::Code)?;
        if points.code.len() > CODE {
            return Err(Error::NoRoom(start));
        }
        protect(start, CODE, libc::PROT_READ | libc::PROT_EXEC)?;
        protect(known_at, KNOWN, libc::PROT_READ | libc::PROT_WRITE)?;
        Memory::open()?.write(start, &points.code)?;
        unwind::tell(&points, start)?;
        // SAFETY: the memory is mapped, stays for good and is all 0, which is a point.
        let known = unsafe {
            let first = std::ptr::with_exposed_provenance(known_at as usize);
            std::slice::from_raw_parts(first, MOST as usize)
        };
        Ok(Pool {
            known,
            code: start,
            back: start + u64::from(points.back),
            length: points.length.into(),
            fresh: AtomicU32::new(0),
            free: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
        })
    };
    let pool = made().inspect_err(|_| give_back(start, CODE + KNOWN))?;
    POOL.store(Box::into_raw(Box::new(pool)), Ordering::Release);
    Ok(())
}

fn reserve(size: usize) -> Result<u64, Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: memory of our own, where the kernel has room.
    match unsafe { libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0) } {
        libc::MAP_FAILED => Err(Error::last("mmap")),
        at => Ok(at.expose_provenance() as u64),
    }
}

fn protect(at: u64, size: usize, protection: i32) -> Result<(), Error> {
    // SAFETY: the memory is our own, and nobody has it yet.
    match unsafe { libc::mprotect(std::ptr::without_provenance_mut(at as usize), size, protection) } {
        0 => Ok(()),
        _ => Err(Error::last("mprotect")),
    }
}

fn give_back(at: u64, size: usize) {
    // SAFETY: as above.
    unsafe { libc::munmap(std::ptr::without_provenance_mut(at as usize), size) };
}

/// Has the call that handling code has saved go by a point to where it would go on; whether there is one for it.
///
/// # Safety
/// `saved` is of a call at its entry, by the thread whose record is `own`.
pub(crate) unsafe fn follow(own: &Record, saved: &mut Saved, site: &'static Site, lanes: Lanes) -> bool {
    let Some(pool) = pool() else { return false };
    let Some(index) = pool.take(&own.points) else { return false };
    let point = &pool.known[index as usize];
    let at = saved.general[crate::call::RSP];
    let slot: *mut u64 = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: at an entry the stack pointer is at the return address, which is the function's by now; a point that was taken is this thread's.
    unsafe {
        point.home.store(slot.read_volatile(), Ordering::Relaxed);
        *point.lanes.get() = lanes;
        point.target.store(saved.way, Ordering::Relaxed);
        point.slot.store(at, Ordering::Relaxed);
        point.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        slot.write_volatile(pool.back + u64::from(index) * pool.length);
    }
    // Behind what stands on the stack: whoever finds it under way finds that there.
    point.set(UNDER_WAY);
    saved.way = pool.code + u64::from(index) * pool.length;
    true
}

impl Point {
    fn state(&self) -> u64 {
        self.uses.load(Ordering::Acquire) & STATE
    }

    fn set(&self, state: u64) {
        self.uses.store(self.uses.load(Ordering::Relaxed) & !STATE | state, Ordering::Release);
    }
}

/// One use more that is over, and free.
fn freed(uses: u64) -> u64 {
    (uses & !STATE).wrapping_add(STATE + 1)
}

impl Pool {
    /// The point of which this stands on a stack.
    fn of(&self, address: u64) -> Option<(u32, &'static Point)> {
        let offset = address.wrapping_sub(self.back);
        let index = offset / self.length;
        let is_one = offset.is_multiple_of(self.length) && index < self.known.len() as u64;
        is_one.then(|| (index as u32, &self.known[index as usize]))
    }

    /// From what stands on a stack, the points that the call goes back by, each with its index; the last one's home is the caller.
    fn chain(&self, address: u64) -> impl Iterator<Item = (u32, &'static Point)> {
        std::iter::successors(self.of(address), |(_, point)| self.of(point.home.load(Ordering::Relaxed)))
            .take(self.known.len())
    }

    fn take(&self, own: &Cache) -> Option<u32> {
        own.take(self).or_else(|| self.take_more(own))
    }

    #[cold]
    fn take_more(&self, own: &Cache) -> Option<u32> {
        let more = || (0..BATCH).map_while(|_| self.take_shared()).for_each(|index| own.put(self, index));
        more();
        own.take(self).or_else(|| {
            let one_less = |left: u64| left.checked_sub(1);
            if self.let_go.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
                self.sweep();
                more();
            }
            own.take(self)
        })
    }

    fn take_shared(&self) -> Option<u32> {
        let mut free = self.free.load(Ordering::Acquire);
        while let Some(index) = (free as u32).checked_sub(1) {
            let next = self.known[index as usize].next.load(Ordering::Relaxed);
            let changed = ((free >> 32) + 1) << 32 | u64::from(next);
            match self.free.compare_exchange(free, changed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
        let next = |used: u32| (used < MOST).then_some(used + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    fn give_shared(&self, index: u32) {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            self.known[index as usize].next.store(free as u32, Ordering::Relaxed);
            let changed = ((free >> 32) + 1) << 32 | u64::from(index + 1);
            match self.free.compare_exchange(free, changed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// A call is over. `own`: this thread's, unless it is in the midst of taking or giving one.
    fn give(&self, own: Option<&Cache>, index: u32) {
        let point = &self.known[index as usize];
        point.uses.store(freed(point.uses.load(Ordering::Relaxed)), Ordering::Release);
        match own.filter(|own| own.count.load(Ordering::Relaxed) < KEPT) {
            Some(own) => own.put(self, index),
            None => self.give_shared(index),
        }
    }

    /// Looks for points that nobody gives back.
    fn sweep(&self) {
        static SWEEPING: AtomicBool = AtomicBool::new(false);
        if SWEEPING.swap(true, Ordering::Acquire) {
            return;
        }
        let mut found = 0;
        let mut give = |index| {
            found += 1;
            self.give_shared(index);
        };
        threads::of_nobody(|cache| {
            while let Some(index) = cache.take(self) {
                give(index);
            }
        });
        if let Some(memory) = Stacks::open() {
            let used = self.fresh.load(Ordering::Relaxed);
            for (index, point) in (0..used).zip(self.known) {
                let uses = point.uses.load(Ordering::Acquire);
                // Only if it has been the same call all the time.
                if uses & STATE == UNDER_WAY
                    && self.is_left(&memory, index, point)
                    && point
                        .uses
                        .compare_exchange(uses, freed(uses), Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
                {
                    give(index);
                }
            }
        }
        self.let_go.store(if found < FEW { FEW } else { 0 }, Ordering::Relaxed);
        SWEEPING.store(false, Ordering::Release);
    }

    /// Whether what was put on the stack for a call stands there no more, by itself or behind that of a function that it has gone on in.
    fn is_left(&self, memory: &Stacks, index: u32, point: &Point) -> bool {
        let slot = point.slot.load(Ordering::Relaxed);
        let Some(there) = memory.word(slot) else { return true };
        for (other, next) in self.chain(there) {
            if other == index {
                return false;
            }
            let uses = next.uses.load(Ordering::Acquire);
            match uses & STATE {
                UNDER_WAY if next.slot.load(Ordering::Relaxed) != slot => return true,
                UNDER_WAY => {}
                // It comes or goes: nothing is known.
                _ => return false,
            }
        }
        true
    }
}

/// Our own memory, of which parts may be gone. Without the C library, which may end the thread there (`pthread_cancel`).
struct Stacks(OwnedFd);

impl Stacks {
    fn open() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/self/mem", flags, Mode::empty()).ok().map(Self)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = rustix::io::pread(&self.0, &mut bytes, at).ok()?;
        (read == bytes.len()).then(|| u64::from_ne_bytes(bytes))
    }
}

/// A call that has come back.
pub(crate) struct Ended {
    pub site: &'static Site,
    pub lanes: Lanes,
}

/// Puts the caller's address where the thread goes on by, and gives the points back by which it went, each behind `work`.
///
/// # Safety
/// At `slot` there is the address of a point whose call has come back or was left.
unsafe fn end(slot: *mut u64, mut work: impl FnMut(&Record, Ended)) {
    let Some(pool) = pool() else { return };
    // SAFETY: as the caller says.
    let there = unsafe { slot.read_volatile() };
    let mut home = there;
    for (_, point) in pool.chain(there) {
        point.set(ENDING);
        home = point.home.load(Ordering::Relaxed);
    }
    // SAFETY: the slot is nobody's, since the call has come back.
    unsafe { slot.write_volatile(home) };
    let mut left = pool.chain(there);
    let mut next = left.next();
    while let Some((index, point)) = next {
        if point.state() != ENDING {
            break;
        }
        // By its home the next one is found, which is another call's as soon as it was given back.
        next = left.next();
        // SAFETY: the point is this thread's until it is given back; sites stay.
        let (site, lanes) = unsafe { (point.site.load(Ordering::Relaxed).as_ref(), *point.lanes.get()) };
        let mut is_given = false;
        threads::unless_inside(|own| {
            if let Some(site) = site {
                work(own, Ended { site, lanes });
            }
            pool.give(Some(&own.points), index);
            is_given = true;
        });
        if !is_given {
            pool.give(None, index);
        }
    }
}

/// Called at the end of a call, by its code.
extern "C" fn leave(saved: *mut Saved) {
    // SAFETY: the code has saved it, with the stack pointer at the slot, and waits.
    unsafe {
        let slot = std::ptr::with_exposed_provenance_mut((*saved).general[crate::call::RSP] as usize);
        end(slot, |_, ended| {
            let mut returned = Return::new(saved, ended.site.function());
            ended.site.has_returned(&ended.lanes, &mut returned);
        });
    }
}

/// An unwinder is about to leave a call, and to write over what is on the stack for it.
pub(crate) fn are_left(on_stack: u64) {
    pool().into_iter().flat_map(|pool| pool.chain(on_stack)).for_each(|(_, point)| point.set(ENDING));
}

/// Called where an unwinder has left a call.
extern "C" fn unwound(slot: *mut u64) {
    // SAFETY: as the code has it.
    unsafe { end(slot, |_, ended| ended.site.was_left(&ended.lanes)) };
}

/// What nobody has entered.
pub(crate) const NO_LANES: Lanes = [(0, [MaybeUninit::uninit(); 2]); LANES];

/// Whether a lane is that of a handler which was called at the entry.
pub(crate) fn of(lanes: &Lanes, lane: Lane, born: u64) -> Option<Kept> {
    let (entered, kept) = lanes[usize::from(lane)];
    (entered == born).then_some(kept)
}
